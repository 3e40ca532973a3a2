//! Model of the transaction log and of large writes, whose data and record are in flight together.
//!
//! A *plain* record is one whose waiter is told as soon as it retires, as a dump's is. A *large* write has two blocks of
//! data in a data file; its record counts only with them. The effect of a record on the index is the write's number:
//! a table of a write, as checkpoints list them, is one that holds it.

mod kill;
mod recover;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod writer;

use std::cell::RefCell;

use base::checksum::block_checksum;
use base::{
    BLOCK, Bytes, Epoch, FileId, Incarnation, LogSequence, Map, SegmentId, SegmentSequence, VolumeId, WriteStamp,
};
use engine::index::{Entry, SegmentTables, TableInfo};
use engine::transaction::codec::{Header, encode, encode_body, kind_of};
use engine::transaction::{Checkpoint, Record, SegmentCheckpoint};

use self::recover::Found;
use self::state::{Phase, What, World};
use super::disk::Block;
use super::scanner::Scanner;
use crate::protocol::explore::{Broken, Model};
use crate::protocol::small_set::SmallSet;

pub use self::state::Left;
pub use self::step::Step;

/// The segment that is written to.
const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };
/// Blocks of a large write.
const LARGE_BLOCKS: u8 = 2;
/// The file id of the table that holds write 0; the others follow.
const TABLES_FROM: u64 = 1000;

/// The model with its bounds.
pub struct Log {
    bounds: Bounds,
    scanner: Scanner<u8, Found>,
    encoded: RefCell<Map<(Place, What), Block>>,
    data: RefCell<Map<u8, Vec<Block>>>,
}

/// How much may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Copies of a file, at most two.
    pub copies: usize,
    /// Records of a transaction file.
    pub file_records: u8,
    /// Records in flight at most.
    pub in_flight: usize,
    /// What may happen.
    pub left: Left,
    /// What is wrong with the protocol.
    pub flaw: Option<Flaw>,
}

/// What may be wrong, to see that it would be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// A record is told durable whatever came before it.
    RetiresOutOfOrder,
    /// A large write is acknowledged when its record is durable.
    AcknowledgesWithoutData,
    /// Records say that large writes are complete whose data is not there.
    VouchesWithoutData,
    /// The checkpoint of a recovery does not list the large writes that do not count.
    ForgetsRejected,
    /// After an append failed, a new file is begun without a seal of the old one.
    RotatesWithoutSeal,
    /// Files are deleted before the checkpoint is durable that makes them unneeded.
    TrimsBeforeCheckpoint,
    /// A recovery leaves copies different.
    RepairsNothing,
    /// The same, and files are not sealed where they end.
    ChangesNothing,
    /// A recovery neither waits for what a killed process still writes, nor seals files where it cut them.
    NeitherWaitsNorSeals,
}

impl Flaw {
    /// Every one.
    pub const ALL: [Flaw; 9] = [
        Flaw::RetiresOutOfOrder,
        Flaw::AcknowledgesWithoutData,
        Flaw::VouchesWithoutData,
        Flaw::ForgetsRejected,
        Flaw::RotatesWithoutSeal,
        Flaw::TrimsBeforeCheckpoint,
        Flaw::RepairsNothing,
        Flaw::ChangesNothing,
        Flaw::NeitherWaitsNorSeals,
    ];
}

/// Where a record stands, and what was durable when it was written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    file: u8,
    incarnation: u8,
    sequence: u8,
    durable_through: u8,
    index: u8,
}

impl Log {
    /// The model with these bounds.
    pub fn new(bounds: Bounds) -> Log {
        assert!((1..=2).contains(&bounds.copies) && bounds.left.writes <= 4);
        Log { bounds, scanner: Scanner::new(), encoded: RefCell::default(), data: RefCell::default() }
    }

    /// Recoveries of different disks.
    pub fn recoveries(&self) -> usize {
        self.scanner.scans()
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.bounds.flaw == Some(flaw)
    }

    /// The block of a record.
    fn block(&self, place: Place, what: &What) -> Block {
        let key = (place, what.clone());
        if let Some(block) = self.encoded.borrow().get(&key) {
            return *block;
        }
        let record = what.record();
        let header = Header {
            file: FileId(place.file.into()),
            incarnation: Incarnation(place.incarnation.into()),
            sequence: log_sequence(place.sequence),
            durable_through: log_sequence(place.durable_through),
            index: place.index.into(),
        };
        let blocks = self.scanner.blocks(&encode(&header, kind_of(&record), &encode_body(&record)).freeze());
        assert_eq!(blocks.len(), 1, "a record of the model fits a block");
        self.encoded.borrow_mut().insert(key, blocks[0]);
        blocks[0]
    }

    /// The blocks of the data of a large write.
    fn data(&self, write: u8) -> Vec<Block> {
        let mut known = self.data.borrow_mut();
        known.entry(write).or_insert_with(|| self.scanner.blocks(&data_of(write))).clone()
    }
}

fn log_sequence(number: u8) -> LogSequence {
    LogSequence(number.into())
}

fn data_of(write: u8) -> Bytes {
    Bytes::from(vec![write + 1; usize::from(LARGE_BLOCKS) * BLOCK as usize])
}

impl What {
    /// The record as the engine has it.
    fn record(&self) -> Record {
        let stamp = WriteStamp::default();
        let sequence_of = |write: u8| SegmentSequence(u64::from(write) + 1);
        let block_of = |write: u8| u32::from(write * LARGE_BLOCKS);
        match self {
            What::Plain(write) => {
                let entries = vec![Entry::zeros(block_of(*write), LARGE_BLOCKS.into(), sequence_of(*write))];
                // How far the segment is dumped is not what this is about.
                let through = SegmentSequence(0);
                Record::Dump { segment: SEGMENT, epoch: Epoch(1), through, replay: None, entries }
            }
            What::Large { write, file, at } => {
                let data = data_of(*write);
                let checksum = |(index, bytes): (usize, &[u8])| {
                    block_checksum(SEGMENT.volume, u64::from(block_of(*write)) + index as u64, bytes)
                };
                Record::Large {
                    segment: SEGMENT,
                    epoch: Epoch(1),
                    sequence: sequence_of(*write),
                    stamp,
                    block: block_of(*write),
                    file: FileId((*file).into()),
                    offset: u64::from(*at) * BLOCK,
                    checksums: data.chunks(BLOCK as usize).enumerate().map(checksum).collect(),
                }
            }
            What::Checkpoint { from, covers, decided_through, rejected, tabled } => Record::Checkpoint(Checkpoint {
                from: log_sequence(*from),
                decided_through: log_sequence(*decided_through),
                rejected: rejected.iter().copied().map(log_sequence).collect(),
                segments: vec![SegmentCheckpoint {
                    segment: SEGMENT,
                    next: SegmentSequence(100),
                    tables: SegmentTables {
                        tables: tabled.iter().map(table_of).collect(),
                        covers: log_sequence(*covers),
                    },
                    ..SegmentCheckpoint::default()
                }],
                ..Checkpoint::default()
            }),
        }
    }
}

/// The table that holds a write.
fn table_of(write: usize) -> TableInfo {
    let file = FileId(TABLES_FROM + write as u64);
    TableInfo { file, leaves: 1, entries: 1, first_block: 0, end_block: 1, ..TableInfo::default() }
}

/// The write that an entry of the index is about.
fn write_of(entry: &Entry) -> usize {
    (entry.block / u32::from(LARGE_BLOCKS)) as usize
}

impl Model for Log {
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

/// The writes whose tables a checkpoint lists.
fn tabled(tables: &SegmentTables) -> SmallSet {
    tables.tables.iter().map(|table| (table.file.0 - TABLES_FROM) as usize).collect()
}
