//! What a state of the model is made of.

use base::{DirectoryId, Incarnation, StoreId};
use files::local::superblock::{Member, Shard, StoreRecord, newest_slot};

use crate::protocol::explore::Broken;
use crate::protocol::small_set::SmallSet;

/// What was acknowledged is in every copy that is read.
pub const ACKNOWLEDGED: &str = "what was acknowledged is read";
/// What was deleted stays deleted.
pub const DELETED: &str = "what was deleted stays deleted";
/// Two files are never taken for one.
pub const ONE_FILE: &str = "a name is one file";
/// Nothing that was acknowledged is removed without a word.
pub const NOTHING_LOST: &str = "nothing is lost without a word";
/// With all members there are, and nothing given up before, a store starts.
pub const STARTS: &str = "a complete store starts";
/// Copies converge.
pub const CONVERGES: &str = "copies converge";

/// Directories at most.
pub(super) const DIRECTORIES_MAX: usize = 3;
/// Writes at most, and so files: each write is a file of its own.
pub(super) const WRITES_MAX: usize = 3;
/// Starts without members at most, and the birth of the store.
const LINEAGES_MAX: usize = 3;

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub(super) disks: [Disk; DIRECTORIES_MAX],
    /// The process that has the store open, if one has.
    pub(super) life: Option<Box<Life>>,
    /// What is known of each write by whoever sees everything.
    pub(super) truths: [Option<Truth>; WRITES_MAX],
    /// What each way that the store went promises. The newest last.
    pub(super) branches: Vec<Branch>,
    /// Writes that were acknowledged, by whomever.
    pub(super) acknowledged: SmallSet,
    /// The members of the last publication that counts, while none with others has begun.
    pub(super) members: Option<SmallSet>,
    pub(super) backup: Option<Backup>,
    /// The disk that was put back, until it was brought up to date.
    pub(super) put_back: Option<u8>,
    pub(super) left: Left,
    /// A step did what must not be done.
    pub(super) broken: Option<Broken>,
}

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Left {
    /// Starts.
    pub starts: u8,
    /// Writes to a directory that fail.
    pub failures: u8,
    /// Writes.
    pub writes: u8,
    /// Deletions.
    pub deletions: u8,
    /// Files that are sealed.
    pub seals: u8,
    /// Starts without members.
    pub overrides: u8,
    /// Images of a disk that are taken, and put back later.
    pub backups: u8,
}

/// One directory on its disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Disk {
    pub(super) slots: [Slot; 2],
    /// By write.
    pub(super) copies: [Option<Copy>; WRITES_MAX],
}

/// A slot of a superblock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Slot {
    #[default]
    Blank,
    Torn,
    Valid(u8, Record),
}

/// `StoreRecord`, small.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Record {
    pub(super) generation: u8,
    pub(super) incarnation: u8,
    pub(super) publication: u8,
    pub(super) agreed: u8,
    pub(super) next_file: u64,
    /// From the oldest; 0 is none.
    pub(super) lineages: [u8; LINEAGES_MAX],
    pub(super) members: SmallSet,
}

/// A copy of a write's file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Copy {
    pub(super) content: Content,
    /// The directories that its header says it was born in.
    pub(super) born_in: SmallSet,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Content {
    /// The file exists, and nothing is in it.
    Empty,
    /// The write is in it.
    Written,
    /// The same, and where it ends.
    Sealed,
}

/// The file of a write: its id, which is its name. (Also its incarnation, which differs between files of one life and
/// another, but not between those of two lives that went on without each other.)
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Truth {
    pub(super) file: u64,
}

/// A way that the store went: one until a start leaves members behind.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Branch {
    /// The newest lineage.
    pub(super) lineage: u8,
    /// Writes that must be there.
    pub(super) expected: SmallSet,
    /// Writes whose deletion was acknowledged.
    pub(super) gone: SmallSet,
    /// Writes that the override gave up, or of which the deletion was begun.
    pub(super) given_up: SmallSet,
}

/// A disk as it was once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Backup {
    pub(super) directory: u8,
    pub(super) disk: Disk,
    /// Publications that were completed since, up to two.
    pub(super) publications: u8,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Life {
    pub(super) stage: Stage,
    pub(super) states: [State; DIRECTORIES_MAX],
    pub(super) suspect: SmallSet,
    pub(super) sequences: [u8; DIRECTORIES_MAX],
    /// `Membership::record`.
    pub(super) record: Record,
    /// `Membership::agreed`.
    pub(super) agreed: Option<Record>,
    /// `Membership::agreed_generation`.
    pub(super) agreed_generation: u8,
    pub(super) next_file: u64,
    /// A publication was asked for that has not begun.
    pub(super) wanted: bool,
    /// What must be published before anything is confirmed: `Membership::confirm_after`.
    pub(super) unsettled: Option<Awaited>,
    pub(super) publication: Option<Publication>,
    /// `Catalogue`, by write.
    pub(super) catalogue: [Option<Entry>; WRITES_MAX],
    pub(super) operation: Option<Operation>,
}

/// How far a start came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Stage {
    /// Publishing for the first time.
    First,
    /// Publishing for the second time.
    Second,
    /// About to recover what earlier lives left unsealed.
    Recovering,
    Serving,
}

/// `directory::State`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum State {
    /// It was not given to this process.
    NotGiven,
    Member,
    Joining,
    Resynchronizing(Resync),
    Failed,
    Missing,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Resync {
    /// It is about to be told who the members are.
    Telling { left_behind: bool },
    /// Its files are about to be compared.
    Comparing,
    /// What was not attached is being removed.
    Removing,
}

/// Which publication somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Awaited {
    /// The one that is under way.
    Present,
    /// One that has not begun.
    Next,
}

/// A publication under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Publication {
    /// What is being written: what was agreed on before to those who join, or the next record to all.
    pub(super) record: Record,
    pub(super) introducing: bool,
    /// To whom.
    pub(super) to: SmallSet,
    pub(super) pending: SmallSet,
    pub(super) failed: SmallSet,
}

/// A file that a life knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    /// Its copies, by directory: good ones only.
    pub(super) attached: SmallSet,
    pub(super) sealed: bool,
    pub(super) deleted: bool,
}

/// What a client asked for, and is under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) write: u8,
    /// Copies of which nothing is known yet.
    pub(super) pending: SmallSet,
    pub(super) done: SmallSet,
    pub(super) failed: SmallSet,
    /// Directories that failed since it began: copies of before are worth nothing, even if they are back (`Copy::is_live`).
    pub(super) stale: SmallSet,
    /// All copies are done with, and this has to be published first.
    pub(super) awaits: Option<Awaited>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    Create,
    Append,
    Seal,
    Delete,
}

impl Record {
    /// What the real functions take.
    pub(super) fn expand(&self) -> StoreRecord {
        StoreRecord {
            store: StoreId(1),
            shard: Shard::WHOLE,
            generation: self.generation.into(),
            incarnation: Incarnation(self.incarnation.into()),
            next_file: self.next_file,
            publication: self.publication.into(),
            agreed_publication: self.agreed.into(),
            lineages: self.lineages.iter().filter(|lineage| **lineage > 0).map(|lineage| u64::from(*lineage)).collect(),
            members: self.members.iter().map(member).collect(),
        }
    }

    /// The other way around.
    pub(super) fn shrink(record: &StoreRecord) -> Record {
        let mut lineages = [0; LINEAGES_MAX];
        lineages.iter_mut().zip(&record.lineages).for_each(|(small, lineage)| *small = *lineage as u8);
        Record {
            generation: record.generation as u8,
            incarnation: record.incarnation.0 as u8,
            publication: record.publication as u8,
            agreed: record.agreed_publication as u8,
            next_file: record.next_file,
            lineages,
            members: record.members.iter().map(|member| number_of(member.id)).collect(),
        }
    }

    /// The newest lineage.
    pub(super) fn lineage(&self) -> u8 {
        self.lineages.iter().copied().rfind(|lineage| *lineage > 0).unwrap_or(0)
    }
}

/// The directory with this number, as a member.
pub(super) fn member(directory: usize) -> Member {
    Member { id: id_of(directory), path: String::new() }
}

/// The id of the directory with this number.
pub(super) fn id_of(directory: usize) -> DirectoryId {
    DirectoryId(directory as u128 + 1)
}

fn number_of(id: DirectoryId) -> usize {
    id.0 as usize - 1
}

impl Life {
    /// The directories that are read from and written to.
    pub(super) fn members(&self) -> SmallSet {
        self.in_state(State::Member)
    }

    /// The directories in this state.
    pub(super) fn in_state(&self, state: State) -> SmallSet {
        (0..DIRECTORIES_MAX).filter(|directory| self.states[*directory] == state).collect()
    }

    /// `EntryState::numbered_live`.
    pub(super) fn live(&self, write: usize) -> SmallSet {
        self.catalogue[write].map_or(SmallSet::EMPTY, |entry| entry.attached.and(self.members()))
    }
}

/// What a superblock says, and the number of its newest update.
pub(super) fn newest(disk: &Disk) -> Option<(u8, Record)> {
    let valid = disk.slots.iter().filter_map(|slot| match slot {
        Slot::Valid(sequence, record) => Some((*sequence, *record)),
        Slot::Blank | Slot::Torn => None,
    });
    newest_slot(valid, |(sequence, _)| u64::from(*sequence))
}
