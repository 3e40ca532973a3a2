//! Errors in a frame: a kind in one byte, which is never 0, and a sentence.

use base::{Error, ErrorKind};
use bytes::BufMut;

use super::fields::{Fields, TEXT_MAX, put_text_within};

fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Retry => 1,
        ErrorKind::Fenced => 2,
        ErrorKind::Corrupt => 3,
        ErrorKind::Invalid => 4,
        ErrorKind::Full => 5,
        ErrorKind::NotFound => 6,
        ErrorKind::Conflict => 7,
        ErrorKind::Io => 8,
        ErrorKind::Internal => 9,
        ErrorKind::Moved => 10,
    }
}

fn kind(code: u8) -> Option<ErrorKind> {
    use ErrorKind::{Conflict, Corrupt, Fenced, Full, Internal, Invalid, Io, Moved, NotFound, Retry};
    [Retry, Fenced, Corrupt, Invalid, Full, NotFound, Conflict, Io, Internal, Moved]
        .get(usize::from(code).wrapping_sub(1))
        .copied()
}

/// What has another checksum than it was sent with.
pub(super) fn changed(what: &str) -> Error {
    Error::corrupt(format!(
        "{what} has the wrong checksum: its bytes changed on their way; connect again, and look after the network if it \
         happens again"
    ))
}

pub(super) fn put_error(out: &mut Vec<u8>, error: &Error) {
    put_error_within(out, error, TEXT_MAX);
}

/// Appends an error, and of its sentence no more bytes than `most`.
pub(super) fn put_error_within(out: &mut Vec<u8>, error: &Error, most: usize) {
    out.put_u8(code(error.kind));
    put_text_within(out, &error.message, most);
}

/// An error whose first byte is `code`.
pub(super) fn error(code: u8, fields: &mut Fields<'_>) -> Option<Error> {
    Some(Error { kind: kind(code)?, message: fields.text()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_code_of_its_own() {
        assert!((1..=10).all(|number| kind(number).is_some_and(|kind| code(kind) == number)));
        assert_eq!((kind(0), kind(11)), (None, None));
    }
}
