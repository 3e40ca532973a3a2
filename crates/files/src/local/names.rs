//! The names in the `files` folder of a directory.
//!
//! A file bears its final name only after its header is durable, and loses it before it is recycled:
//!
//! ```text
//! making-N  --zeros durable-->  spare-N  --header durable-->  journal-ID  --deleted-->  spare-M, or nothing
//!     \-------------------------header durable-------------------^
//! ```
//!
//! A data file that is deleted becomes `vacant-M` in the same way, and is taken for the next data file of its size. So
//! does a `making-N` that is allocated while nobody wants the store, to be zero-written under that name.
//!
//! So a crash between any two steps leaves the old or the new state. What is still `making` when a store is opened
//! is removed; a `spare` is one whatever its header says; everything else is a file, and never removed because its
//! header is damaged.

use std::fmt;

use base::FileId;

use crate::FileKind;

/// The meaning of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    /// A file of the store.
    File(FileKind, FileId),
    /// Space without a file, for the next one of its size.
    Spare(SpareKind, u64),
    /// Not ready yet, without meaning after a crash.
    Making(u64),
}

/// What is known of the space of a spare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum SpareKind {
    /// Every block was written once.
    Written,
    /// Every block is set aside.
    Allocated,
}

impl SpareKind {
    /// What a prepared file of `kind` is made of, and becomes. Data files are too large and too many for a promise that
    /// all of their space was written: they are recycled, and what is zero-written ahead is for them, as far as it goes.
    pub(crate) fn of(kind: FileKind) -> SpareKind {
        match kind {
            FileKind::Data | FileKind::Table => SpareKind::Allocated,
            FileKind::Journal | FileKind::Transaction | FileKind::Log | FileKind::Incarnation => SpareKind::Written,
        }
    }
}

impl Name {
    /// What `name` means, if it is one of ours.
    pub(crate) fn parse(name: &str) -> Option<Name> {
        let (prefix, number) = name.rsplit_once('-')?;
        let plain = number.len() == 16 && number.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let number = u64::from_str_radix(number, 16).ok().filter(|_| plain)?;
        match prefix {
            "spare" => Some(Name::Spare(SpareKind::Written, number)),
            "vacant" => Some(Name::Spare(SpareKind::Allocated, number)),
            "making" => Some(Name::Making(number)),
            _ => {
                let kind = FileKind::ALL.into_iter().find(|kind| kind.name() == prefix)?;
                Some(Name::File(kind, FileId(number)))
            }
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::File(kind, id) => write!(f, "{}-{id}", kind.name()),
            Name::Spare(SpareKind::Written, number) => write!(f, "spare-{number:016x}"),
            Name::Spare(SpareKind::Allocated, number) => write!(f, "vacant-{number:016x}"),
            Name::Making(number) => write!(f, "making-{number:016x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_names() {
        let names = [
            (Name::File(FileKind::Journal, FileId(0x1f)), "journal-000000000000001f"),
            (Name::File(FileKind::Transaction, FileId(1)), "transaction-0000000000000001"),
            (Name::File(FileKind::Data, FileId(u64::MAX)), "data-ffffffffffffffff"),
            (Name::File(FileKind::Table, FileId(2)), "table-0000000000000002"),
            (Name::File(FileKind::Log, FileId(3)), "log-0000000000000003"),
            (Name::Spare(SpareKind::Written, 4), "spare-0000000000000004"),
            (Name::Spare(SpareKind::Allocated, 6), "vacant-0000000000000006"),
            (Name::Making(5), "making-0000000000000005"),
        ];
        for (name, text) in names {
            assert_eq!(name.to_string(), text);
            assert_eq!(Name::parse(text), Some(name));
        }
        for foreign in ["lost+found", "journal-1f", "journal-000000000000001F", "notes", "data-+00000000000000f", "-"] {
            assert_eq!(Name::parse(foreign), None, "{foreign}");
        }
    }
}
