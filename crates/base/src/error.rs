//! Errors are kinds that a caller can act on, with the context that a person needs.

use std::fmt;

/// What a caller can do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ErrorKind {
    /// Nothing is wrong that time does not mend: try again.
    Retry,
    /// A newer owner, generation or incarnation exists: stop.
    Fenced,
    /// What was asked for is, or will soon be, somewhere else: ask there. Nothing is known to have been done.
    Moved,
    /// Bytes are not what they should be; they are not returned.
    Corrupt,
    /// The request makes no sense: it was out of range, malformed or forbidden.
    Invalid,
    /// No space is left: discard or delete something.
    Full,
    /// What was asked for does not exist.
    NotFound,
    /// The name or thing exists already, or is in use.
    Conflict,
    /// A disk or a connection failed; the outcome may be unknown.
    Io,
    /// The component is shutting down, or a bug was contained.
    Internal,
}

/// An error: its kind, and one sentence for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// What a caller can do.
    pub kind: ErrorKind,
    /// What was wrong and what to do, for a person.
    pub message: String,
}

/// The result of most calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! constructor {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Error {
            Error { kind: ErrorKind::$kind, message: message.into() }
        }
    };
}

impl Error {
    constructor!(/// An error of kind [`ErrorKind::Retry`].
        retry, Retry);
    constructor!(/// An error of kind [`ErrorKind::Fenced`].
        fenced, Fenced);
    constructor!(/// An error of kind [`ErrorKind::Moved`].
        moved, Moved);
    constructor!(/// An error of kind [`ErrorKind::Corrupt`].
        corrupt, Corrupt);
    constructor!(/// An error of kind [`ErrorKind::Invalid`].
        invalid, Invalid);
    constructor!(/// An error of kind [`ErrorKind::Full`].
        full, Full);
    constructor!(/// An error of kind [`ErrorKind::NotFound`].
        not_found, NotFound);
    constructor!(/// An error of kind [`ErrorKind::Conflict`].
        conflict, Conflict);
    constructor!(/// An error of kind [`ErrorKind::Io`].
        io, Io);
    constructor!(/// An error of kind [`ErrorKind::Internal`].
        internal, Internal);

    /// The same error with `context` before its message.
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// An operating system's error with what was being done; a full disk keeps its kind.
    pub fn from_io(context: impl fmt::Display, error: &std::io::Error) -> Error {
        use std::io::ErrorKind as K;
        let kind = match error.kind() {
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => ErrorKind::Full,
            K::NotFound => ErrorKind::NotFound,
            K::AlreadyExists | K::AddrInUse => ErrorKind::Conflict,
            K::PermissionDenied | K::InvalidInput => ErrorKind::Invalid,
            _ => ErrorKind::Io,
        };
        Error { kind, message: format!("{context}: {error}") }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
