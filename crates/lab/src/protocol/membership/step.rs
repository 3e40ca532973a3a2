//! The steps of the model, and what they are called in a trace.

use std::fmt::{self, Display, Formatter};

use super::state::Kind;
use crate::protocol::small_set::SmallSet;

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A process starts.
    Start {
        /// With these directories.
        given: SmallSet,
        /// Without members that are missing, because a person said so.
        accepts_missing: bool,
    },
    /// A publication begins: the next record is written to all members, or the last one to those who join.
    Publish,
    /// A slot of a superblock was written.
    Lands(usize),
    /// Writing a slot of a superblock failed.
    Fails(usize, SlotFate),
    /// What earlier lives left unsealed is recovered; the process serves from now on.
    Recover,
    /// A client asks for something.
    Begin(Asked, usize, SmallSet),
    /// A copy was written, sealed or removed.
    CopyLands(usize),
    /// The same failed. Whether it was done all the same.
    CopyFails(usize, bool),
    /// A directory that failed is found again.
    Look(usize),
    /// A directory that failed is tried again.
    Trust(usize),
    /// A directory that is back is told who the members are; or stays out.
    Tell(usize),
    /// That fails.
    TellFails(usize, SlotFate),
    /// The files of a directory that is back are compared.
    Compare(usize),
    /// A file of it that nobody wants is removed; or all are, and it joins.
    Remove(usize, Option<usize>),
    /// A missing copy of a file is made.
    Repair(usize, usize),
    /// The process is killed.
    Kill {
        /// What became of the slots that were being written, by directory.
        slots: [Option<SlotFate>; 3],
        /// Copies that were being touched, and are done.
        copies: SmallSet,
    },
    /// An image of a disk is taken.
    Image(usize),
    /// A disk is put back to its image.
    PutBack(usize),
}

/// What became of a slot that was being written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotFate {
    /// It is as before.
    Lost,
    /// It is neither as before nor as it should be.
    Torn,
    /// It is written.
    Landed,
}

impl SlotFate {
    /// Every one.
    pub const ALL: [SlotFate; 3] = [SlotFate::Lost, SlotFate::Torn, SlotFate::Landed];
}

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A write, in a file of its own.
    Write,
    /// That the file of a write is sealed.
    Seal,
    /// That it is deleted.
    Delete,
}

impl Asked {
    pub(super) fn kind(self) -> Kind {
        match self {
            Asked::Write => Kind::Create,
            Asked::Seal => Kind::Seal,
            Asked::Delete => Kind::Delete,
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Step::Start { given, accepts_missing: false } => write!(f, "start with directories {given:?}"),
            Step::Start { given, accepts_missing: true } => {
                write!(f, "start with directories {given:?}, accepting that others are missing")
            }
            Step::Publish => write!(f, "a publication begins"),
            Step::Lands(directory) => write!(f, "the superblock of {directory} is written"),
            Step::Fails(directory, fate) => write!(f, "writing the superblock of {directory} fails: {fate:?}"),
            Step::Recover => write!(f, "recovered; serving"),
            Step::Begin(Asked::Write, write, to) => write!(f, "write {write} begins, in a file in {to:?}"),
            Step::Begin(Asked::Seal, write, to) => write!(f, "the file of write {write} is being sealed in {to:?}"),
            Step::Begin(Asked::Delete, write, to) => write!(f, "the file of write {write} is being deleted in {to:?}"),
            Step::CopyLands(directory) => write!(f, "that is done in {directory}"),
            Step::CopyFails(directory, true) => write!(f, "that fails in {directory}, though it is done"),
            Step::CopyFails(directory, false) => write!(f, "that fails in {directory}"),
            Step::Look(directory) => write!(f, "{directory} is found again"),
            Step::Trust(directory) => write!(f, "{directory} is tried again"),
            Step::Tell(directory) => write!(f, "{directory} is told who the members are, or stays out"),
            Step::TellFails(directory, fate) => write!(f, "telling {directory} who the members are fails: {fate:?}"),
            Step::Compare(directory) => write!(f, "the files of {directory} are compared"),
            Step::Remove(directory, Some(write)) => write!(f, "the file of write {write} is removed from {directory}"),
            Step::Remove(directory, None) => write!(f, "{directory} is as the others, and joins"),
            Step::Repair(write, directory) => write!(f, "the file of write {write} is copied to {directory}"),
            Step::Kill { slots, copies } => {
                write!(f, "killed")?;
                for (directory, fate) in slots.iter().enumerate().filter_map(|(at, fate)| Some((at, (*fate)?))) {
                    write!(f, "; the superblock of {directory}: {fate:?}")?;
                }
                match copies.is_empty() {
                    true => Ok(()),
                    false => write!(f, "; what was under way is done in {copies:?}"),
                }
            }
            Step::Image(directory) => write!(f, "an image of {directory} is taken"),
            Step::PutBack(directory) => write!(f, "{directory} is put back to its image"),
        }
    }
}
