//! What a state of the model is made of.

use engine::journal::JournalPosition;

use super::super::disk::{Block, Change, Disk};
use crate::protocol::explore::Broken;
use crate::protocol::small_set::SmallSet;

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub(super) disk: Disk,
    pub(super) phase: Phase,
    /// The last incarnation, and the last file id.
    pub(super) incarnation: u8,
    pub(super) files: u8,
    /// Where a replay may start, as the transaction log says.
    pub(super) start: Option<Start>,
    /// Writes of a killed process that have neither landed nor vanished.
    pub(super) late: Vec<Change>,
    /// Records that were given to a writer, from 0.
    pub(super) submitted: SmallSet,
    pub(super) acknowledged: SmallSet,
    /// Records that are dumped: no recovery has to find them.
    pub(super) dumped: SmallSet,
    /// What a recovery has shown, and what one has cut.
    pub(super) shown: SmallSet,
    pub(super) cut: SmallSet,
    pub(super) left: Left,
    pub(super) broken: Option<Broken>,
}

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Left {
    /// Starts.
    pub starts: u8,
    /// Records.
    pub writes: u8,
    /// Appends and seals that fail.
    pub failures: u8,
    /// Markers that follow when the journal is quiet.
    pub markers: u8,
    /// Times that all is dumped.
    pub dumps: u8,
    /// Directories that are lost for good.
    pub losses: u8,
}

/// [`JournalPosition`], small.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Start {
    pub(super) file: u8,
    /// In blocks.
    pub(super) at: u8,
    pub(super) sequence: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Nobody runs.
    Down,
    Recovering(Recovering),
    Running(Box<Writer>),
}

/// A recovery that has decided.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Recovering {
    /// What it changes, in order.
    pub(super) changes: Vec<Change>,
    /// What it hands out.
    pub(super) records: SmallSet,
    /// The files that are left, with what is in them.
    pub(super) files: Vec<Known>,
}

/// `journal::writer::State`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Writer {
    /// The next append's number.
    pub(super) next: u8,
    pub(super) durable_through: u8,
    pub(super) ordinal: u8,
    pub(super) current: Option<Current>,
    pub(super) flights: Vec<Flight>,
    pub(super) again: Vec<Option<u8>>,
    /// An append failed: these files have to end before a new one is opened.
    pub(super) failing: Option<Vec<u8>>,
    /// Whether the last append had a record.
    pub(super) unmarked: bool,
    /// `journal::ledger::Ledger`: files that exist, oldest first.
    pub(super) ledger: Vec<Known>,
}

/// The file that takes appends.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Current {
    pub(super) file: u8,
    pub(super) ordinal: u8,
    pub(super) base: u8,
    /// In blocks.
    pub(super) at: u8,
}

/// An append that was given to the store.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Flight {
    pub(super) sequence: u8,
    pub(super) file: u8,
    pub(super) at: u8,
    /// Nothing for a marker.
    pub(super) record: Option<u8>,
    pub(super) blocks: Vec<Block>,
    pub(super) outcome: Option<bool>,
}

/// `journal::ledger::LedgerFile`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Known {
    pub(super) file: u8,
    /// Where its confirmed content ends, in blocks, and the number of the append that would stand there.
    pub(super) end: u8,
    pub(super) next: u8,
    pub(super) records: SmallSet,
    /// Copies that are sealed.
    pub(super) sealed: SmallSet,
    /// Sealed, or as it stays.
    pub(super) ended: bool,
}

impl World {
    pub(super) fn new(left: Left) -> World {
        World {
            disk: Disk::default(),
            phase: Phase::Down,
            incarnation: 0,
            files: 0,
            start: None,
            late: Vec::new(),
            submitted: SmallSet::EMPTY,
            acknowledged: SmallSet::EMPTY,
            dumped: SmallSet::EMPTY,
            shown: SmallSet::EMPTY,
            cut: SmallSet::EMPTY,
            left,
            broken: None,
        }
    }
}

impl Start {
    pub(super) fn expand(self) -> JournalPosition {
        JournalPosition {
            file: base::FileId(self.file.into()),
            offset: u64::from(self.at) * base::BLOCK,
            sequence: super::sequence(self.sequence),
        }
    }
}
