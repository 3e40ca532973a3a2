//! Names of things. Ids are never reused, even when a name is created again; counters only grow.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

id!(/// A store: everything that shares one set of directories. Drawn at random when it is made.
    StoreId(u128), "{:032x}");
id!(/// One directory (ideally one disk) of a store. Drawn at random when it joins.
    DirectoryId(u128), "{:032x}");
id!(/// A volume. A volume that is created again under an old name gets a new id. Zero is no volume.
    VolumeId(u64), "v{}");
id!(/// A file of the file layer. Zero is no file.
    FileId(u64), "{:016x}");
id!(/// The number of a block server's life: the unit of fencing.
    Incarnation(u64), "i{}");
id!(/// The number of an ownership of a segment. A higher one fences every lower one.
    Epoch(u64), "e{}");
id!(/// The number of a manager's time in charge. A higher one fences every lower one.
    Term(u32), "t{}");
id!(/// The number of an attachment of a volume. A higher one fences every lower one.
    Generation(u64), "g{}");
id!(/// The number of a snapshot of a volume, stamped by the agent on every write.
    SnapshotNumber(u32), "s{}");
id!(/// A record's position in the sequence of one log (a loop's journal, or its transaction log).
    LogSequence(u64), "#{}");
id!(/// A write's position among all writes of its segment: the order in which they take effect.
    SegmentSequence(u64), "#{}");
id!(/// A write's number within its generation, given by the agent.
    WriteSequence(u64), "w{}");

impl Epoch {
    /// The epoch that the manager of `term` makes with its `counter`, which it never does twice.
    pub fn of(term: Term, counter: u32) -> Epoch {
        Epoch(u64::from(term.0) << 32 | u64::from(counter))
    }

    /// The term of the manager that made it.
    pub fn term(self) -> Term {
        Term((self.0 >> 32) as u32)
    }
}

/// A segment: 32 GiB of a volume's address space, owned by one block server at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentId {
    /// The volume.
    pub volume: VolumeId,
    /// The segment's index in the volume, from 0; groups of four share 128 GiB round-robin.
    pub index: u32,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.volume, self.index)
    }
}
