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
    /// It is done, and the process serves.
    Serve,
    /// A record is appended.
    Submit(u8),
    /// A marker is appended.
    Mark,
    /// An append is durable.
    Lands(u8),
    /// An append fails.
    Fails(u8, Fate),
    /// A file is sealed in one copy, or deleted there because nothing of it counts.
    Ends(u8, u8),
    /// A file cannot be sealed.
    EndFails(u8),
    /// Everything that was acknowledged is dumped.
    Dump,
    /// A file is deleted in one copy: it is dumped.
    Trim(u8, u8),
    /// The process is killed.
    Kill(Vec<Fate>),
    /// What a killed process still had in flight lands.
    LandsLate,
    /// A directory is lost.
    Lose(u8),
}

/// What became of an append: for each block the copies that it is in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fate(pub Vec<SmallSet>);

impl Display for Fate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.iter().all(|copies| copies.is_empty()) {
            true => write!(f, "nothing of it is there"),
            false => write!(f, "its blocks are in copies {:?}", self.0),
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Step::Start => write!(f, "a process starts; its recovery reads"),
            Step::Change(what) => write!(f, "the recovery: {what}"),
            Step::Serve => write!(f, "recovered; serving"),
            Step::Submit(record) => write!(f, "record {record} is appended"),
            Step::Mark => write!(f, "a marker is appended"),
            Step::Lands(sequence) => write!(f, "append {sequence} is durable"),
            Step::Fails(sequence, fate) => write!(f, "append {sequence} fails: {fate}"),
            Step::Ends(file, copy) => write!(f, "file {file} ends in copy {copy}"),
            Step::EndFails(file) => write!(f, "file {file} cannot be ended"),
            Step::Dump => write!(f, "all is dumped"),
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
