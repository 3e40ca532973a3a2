//! The tables of managers on their way to disk and back: which engine has which segment, and which volumes there are, as a
//! log that one manager at a time writes.
//!
//! The table of owners and its decisions are `policies::ownership`, and [`tables`] puts the volume table beside it;
//! [`format`](mod@format) is what their changes look like in bytes
//! (docs/formats/owners.md), and [`Replay`] makes a table of records again. What keeps the log is an [`OwnersLog`]: it
//! belongs to the manager that began the highest term in it, and refuses every other one in the same operation as it
//! would have written. The [`keeper`] is the manager itself: it decides while it is in charge, logs, and then says what it
//! has decided.

use base::{Error, LogSequence, Result, Term};
use policies::ownership::Change;
use wire::LocalBoxFuture;

use self::format::{Header, Kind, Record};
use self::tables::{Entry, Tables};

pub mod dispatch;
pub mod format;
pub mod keeper;
pub mod log;
pub mod tables;

/// The log of the tables, as a manager sees it.
pub trait OwnersLog {
    /// The highest term that has begun; zero before the first one.
    ///
    /// # Errors
    /// `Io`.
    fn term(&self) -> LocalBoxFuture<'_, Result<Term>>;

    /// Takes the log for a manager of this term, and gives the tables that it comes to. Nothing is written under a lower
    /// term from here on, not even what is on its way.
    ///
    /// # Errors
    /// `Fenced`: this term, or a later one, has begun already. `Io`: nobody knows whether it has begun.
    fn begin(&self, term: Term) -> LocalBoxFuture<'_, Result<Tables>>;

    /// Writes changes under a term: all of them, or none, are durable when it returns. One call is under way at a time.
    ///
    /// # Errors
    /// `Fenced`: a later term has begun. `Io`: nobody knows whether they are durable, and the caller takes no more part.
    fn append(&self, term: Term, changes: Vec<Entry>) -> LocalBoxFuture<'_, Result<()>>;
}

/// Makes tables of the records of a log, in their order.
#[derive(Debug, Default)]
pub struct Replay {
    tables: Tables,
    /// Of the last record.
    sequence: Option<LogSequence>,
    /// The checkpoint that the log begins with has ended.
    is_whole: bool,
}

impl Replay {
    /// Takes the next record.
    ///
    /// # Errors
    /// `Corrupt`: it does not follow on those before. `Fenced`: it was written under a term that was over.
    pub fn take(&mut self, record: &Record) -> Result<()> {
        let Header { sequence, term, .. } = record.header;
        if self.sequence.is_some_and(|last| sequence.0 != last.0 + 1) {
            return Err(Error::corrupt(format!("record {sequence} of the table of owners is out of order")));
        }
        if record.kind != if self.is_whole { Kind::Changes } else { Kind::Checkpoint } {
            return Err(Error::corrupt(format!("record {sequence} of the table of owners is of the wrong kind")));
        }
        for change in &record.changes {
            self.tables.check(change)?;
            self.tables.apply(change);
            self.is_whole |= matches!(change, Entry::Owners(Change::Floor { .. }));
        }
        let newest = self.tables.owners.term();
        if self.is_whole && term != newest {
            let error = format!("record {sequence} of the table of owners is of {term}, not {newest}");
            return Err(Error::fenced(error));
        }
        self.sequence = Some(sequence);
        Ok(())
    }

    /// The tables that the records come to, and the last of them.
    ///
    /// # Errors
    /// `Corrupt`: the checkpoint is not whole.
    pub fn end(self) -> Result<(Tables, LogSequence)> {
        match self.sequence.filter(|_| self.is_whole) {
            Some(sequence) => Ok((self.tables, sequence)),
            None => Err(Error::corrupt("the checkpoint of the table of owners has no end")),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
