//! Model of the journal: appends in flight, files that fail and are gone on from, recoveries.
//!
//! One segment is written to, one record in each append, at different places. A record with its header takes two
//! blocks, so a torn append has one of them.

mod kill;
mod recover;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod writer;

use std::cell::RefCell;

use base::{BLOCK, Bytes, Epoch, LogSequence, Map, SegmentId, SegmentSequence, VolumeId, WriteStamp};
use engine::journal::{JournalRecord, Operation, Place, encode_append};

use self::recover::Found;
use self::state::{Phase, World};
use super::disk::Block;
use super::scanner::Scanner;
use crate::protocol::explore::{Broken, Model};

pub use self::state::Left;
pub use self::step::Step;

/// The segment that is written to.
const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };
/// Blocks of an append of one record, and of a marker.
const APPEND_BLOCKS: u8 = 2;
const MARKER_BLOCKS: u8 = 1;

/// The blocks of appends, by place and record.
type Encoded = Map<(Place, Option<u8>), Vec<Block>>;

/// The model with its bounds.
pub struct Journal {
    bounds: Bounds,
    scanner: Scanner<recover::Key, Found>,
    encoded: RefCell<Encoded>,
}

/// How much may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Copies of a file, at most two.
    pub copies: usize,
    /// Blocks of a file.
    pub file_blocks: u8,
    /// Appends in flight at most.
    pub in_flight: usize,
    /// What may happen.
    pub left: Left,
    /// What is wrong with the protocol.
    pub flaw: Option<Flaw>,
}

/// What may be wrong, to see that it would be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// A record is acknowledged when it is durable, whatever came before it.
    AcknowledgesOutOfOrder,
    /// After an append failed, the file is gone on with.
    GoesOnBehindAHole,
    /// Appends that failed do not become void by what is written after them.
    FailedAppendsStayValid,
    /// A recovery leaves copies different.
    RepairsNothing,
    /// The same, and files are not sealed where they end.
    ChangesNothing,
    /// A recovery neither waits for what a killed process still writes, nor seals files where it cut them.
    NeitherWaitsNorSeals,
    /// A recovery takes any bad append for rotten.
    CutsNothing,
}

impl Flaw {
    /// Every one.
    pub const ALL: [Flaw; 7] = [
        Flaw::AcknowledgesOutOfOrder,
        Flaw::GoesOnBehindAHole,
        Flaw::FailedAppendsStayValid,
        Flaw::RepairsNothing,
        Flaw::ChangesNothing,
        Flaw::NeitherWaitsNorSeals,
        Flaw::CutsNothing,
    ];
}

impl Journal {
    /// The model with these bounds.
    pub fn new(bounds: Bounds) -> Journal {
        assert!((1..=2).contains(&bounds.copies) && bounds.left.writes <= 8);
        Journal { bounds, scanner: Scanner::new(), encoded: RefCell::default() }
    }

    /// Recoveries of different disks.
    pub fn recoveries(&self) -> usize {
        self.scanner.scans()
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.bounds.flaw == Some(flaw)
    }

    /// The blocks of an append of one record, or of a marker.
    fn blocks(&self, place: Place, record: Option<u8>) -> Vec<Block> {
        if let Some(blocks) = self.encoded.borrow().get(&(place, record)) {
            return blocks.clone();
        }
        let bytes = encode_append(&place, record.into_iter().map(journal_record).collect());
        let blocks = self.scanner.blocks(&bytes);
        assert_eq!(blocks.len() as u8, if record.is_some() { APPEND_BLOCKS } else { MARKER_BLOCKS });
        self.encoded.borrow_mut().insert((place, record), blocks.clone());
        blocks
    }
}

/// The record with this number.
fn journal_record(record: u8) -> JournalRecord {
    let offset = u64::from(record) * BLOCK;
    let data = Bytes::from(vec![record + 1; BLOCK as usize]);
    JournalRecord {
        segment: SEGMENT,
        epoch: Epoch(1),
        sequence: SegmentSequence(u64::from(record) + 1),
        stamp: WriteStamp::default(),
        offset,
        len: BLOCK,
        operation: Operation::Write { checksums: base::io::fragment_checksums(SEGMENT, offset, &data), data },
    }
}

fn sequence(number: u8) -> LogSequence {
    LogSequence(number.into())
}

impl Model for Journal {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        vec![World::new(self.bounds.left)]
    }

    fn steps(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        match &world.phase {
            Phase::Down => {
                self.start(world, lead);
                self.lose(world, lead);
            }
            Phase::Recovering(recovering) => self.recover(world, recovering, lead),
            Phase::Running(writer) => self.write(world, writer, lead),
        }
        self.kill(world, lead);
        self.land_late(world, lead);
    }

    fn broken(&self, world: &World) -> Option<Broken> {
        world.broken.clone()
    }
}
