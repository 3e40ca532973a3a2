//! What a state of the model is made of.

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
    /// Writes of a killed process that have neither landed nor vanished.
    pub(super) late: Vec<Change>,
    /// Writes that were begun, from 0.
    pub(super) submitted: SmallSet,
    pub(super) acknowledged: SmallSet,
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
    /// Writes.
    pub writes: u8,
    /// Large ones among them at most.
    pub large: u8,
    /// Appends that fail.
    pub failures: u8,
    /// Checkpoints, those of starts not counted.
    pub checkpoints: u8,
    /// Directories that are lost for good.
    pub losses: u8,
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
    pub(super) decision: Decision,
}

/// What a recovery found: `engine::Replay`, as far as this model goes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Decision {
    /// Writes that count.
    pub(super) writes: SmallSet,
    /// Those of them that are in tables.
    pub(super) tabled: SmallSet,
    pub(super) covers: u8,
    pub(super) rejected: Vec<u8>,
    pub(super) next: u8,
    pub(super) files: Vec<LogFile>,
}

/// `transaction::log::State`, and the large writes in flight.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Writer {
    /// Whether the first checkpoint is durable.
    pub(super) is_serving: bool,
    pub(super) decision: Decision,
    pub(super) next: u8,
    pub(super) slots: Vec<Slot>,
    pub(super) current: Option<Current>,
    /// A new file is wanted.
    pub(super) opening: bool,
    pub(super) incomplete: Vec<(u8, Incomplete)>,
    /// Records whose effect is not applied yet.
    pub(super) effects: Vec<u8>,
    pub(super) files: Vec<LogFile>,
    /// Writes that the index holds.
    pub(super) applied: SmallSet,
    /// `Core::rejected`.
    pub(super) rejected: Vec<u8>,
    /// Large writes that nobody was told of yet, in segment order.
    pub(super) large: Vec<Large>,
    pub(super) data_file: Option<u8>,
    pub(super) data_at: u8,
    /// Records below this one are not needed by any recovery.
    pub(super) trim: u8,
    /// A checkpoint is on its way: the failed large writes that it lists.
    pub(super) checkpointing: Option<Vec<u8>>,
}

/// `transaction::LogFile`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct LogFile {
    pub(super) file: u8,
    pub(super) first: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Current {
    pub(super) file: u8,
    /// In blocks, one for each record.
    pub(super) at: u8,
    /// Where the records end that retired.
    pub(super) retired_end: u8,
    pub(super) failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Incomplete {
    Pending,
    Failed,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    pub(super) sequence: u8,
    pub(super) what: What,
    pub(super) progress: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Progress {
    Waiting,
    InFlight { file: u8, at: u8, block: Block },
    Durable,
}

/// A record.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum What {
    Plain(u8),
    Large { write: u8, file: u8, at: u8 },
    Checkpoint { from: u8, covers: u8, decided_through: u8, rejected: Vec<u8>, tabled: SmallSet },
}

/// A try of a large write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Large {
    pub(super) write: u8,
    /// Its record.
    pub(super) log: u8,
    pub(super) file: u8,
    pub(super) at: u8,
    /// What became of its data.
    pub(super) data: Option<bool>,
    pub(super) retired: bool,
}

impl World {
    pub(super) fn new(left: Left) -> World {
        World {
            disk: Disk::default(),
            phase: Phase::Down,
            incarnation: 0,
            files: 0,
            late: Vec::new(),
            submitted: SmallSet::EMPTY,
            acknowledged: SmallSet::EMPTY,
            shown: SmallSet::EMPTY,
            cut: SmallSet::EMPTY,
            left,
            broken: None,
        }
    }
}

impl Writer {
    /// `transaction::log::State::retired_below`.
    pub(super) fn retired_below(&self) -> u8 {
        self.slots.first().map_or(self.next, |slot| slot.sequence)
    }

    /// `transaction::log::State::durable_through`.
    pub(super) fn durable_through(&self) -> u8 {
        let incomplete = self.incomplete.first().map_or(self.next, |(sequence, _)| *sequence);
        incomplete.min(self.retired_below()) - 1
    }

    /// Records that are being written.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| matches!(slot.progress, Progress::InFlight { .. }))
    }
}
