//! The steps of the model, and what they are called in a trace.

use std::fmt::{self, Display, Formatter};

use crate::protocol::small_set::SmallSet;

/// What happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A process starts, and its recovery decides.
    Start,
    /// The recovery changes something.
    Change(String),
    /// Its first checkpoint begins.
    Decided,
    /// A write begins.
    Begin(u8, bool),
    /// A checkpoint begins.
    Checkpoint,
    /// A record is durable.
    Lands(u8),
    /// Writing a record fails.
    Fails(u8, Fate),
    /// The data of a large write is durable.
    DataLands(u8),
    /// Writing it fails.
    DataFails(u8, Fate),
    /// The file whose append failed is sealed in one copy.
    Seal(u8),
    /// A new transaction file is begun.
    Rotate,
    /// A file that is not needed any more is deleted in one copy.
    Trim(u8, u8),
    /// The process is killed.
    Kill(Vec<Fate>),
    /// What a killed process still had in flight lands.
    LandsLate,
    /// A directory is lost.
    Lose(u8),
}

/// What became of something in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fate {
    /// For each block the copies that it is in.
    pub there: Vec<SmallSet>,
    /// Copies in which the record is torn.
    pub torn: SmallSet,
}

impl Fate {
    /// Nothing of so many blocks.
    pub(super) fn nothing(blocks: usize) -> Fate {
        Fate { there: vec![SmallSet::EMPTY; blocks], torn: SmallSet::EMPTY }
    }

    /// All of them.
    pub(super) fn all(blocks: usize, copies: usize) -> Fate {
        Fate { there: vec![SmallSet::below(copies); blocks], torn: SmallSet::EMPTY }
    }
}

impl Display for Fate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.there.iter().all(|copies| copies.is_empty()) {
            true => write!(f, "nothing of it is there")?,
            false => write!(f, "its blocks are in copies {:?}", self.there)?,
        }
        match self.torn.is_empty() {
            true => Ok(()),
            false => write!(f, ", torn in {:?}", self.torn),
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Step::Start => write!(f, "a process starts; its recovery reads"),
            Step::Change(what) => write!(f, "the recovery: {what}"),
            Step::Decided => write!(f, "the recovery has decided; its checkpoint begins"),
            Step::Begin(write, false) => write!(f, "write {write} begins"),
            Step::Begin(write, true) => write!(f, "write {write} begins, a large one"),
            Step::Checkpoint => write!(f, "a checkpoint begins"),
            Step::Lands(sequence) => write!(f, "record {sequence} is durable"),
            Step::Fails(sequence, fate) => write!(f, "writing record {sequence} fails: {fate}"),
            Step::DataLands(write) => write!(f, "the data of write {write} is durable"),
            Step::DataFails(write, fate) => write!(f, "writing the data of write {write} fails: {fate}"),
            Step::Seal(copy) => write!(f, "the file that failed is sealed in copy {copy}"),
            Step::Rotate => write!(f, "a new transaction file is begun"),
            Step::Trim(file, copy) => write!(f, "file {file} is deleted in copy {copy}"),
            Step::Kill(fates) => {
                write!(f, "killed")?;
                fates.iter().try_for_each(|fate| write!(f, "; {fate}"))
            }
            Step::LandsLate => write!(f, "a write of the killed process lands"),
            Step::Lose(copy) => write!(f, "the directory of copy {copy} is lost"),
        }
    }
}
