//! A log of the table in memory, which takes a moment, and fails when it is told to.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::{Error, Result, Term};
use runtime::Handle;
use wire::LocalBoxFuture;

use super::OwnersLog;
use super::tables::{Entry, Tables};

const MS: Duration = Duration::from_millis(1);

/// What is durable.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) term: Term,
    pub(crate) tables: Tables,
    /// The terms that have begun.
    pub(crate) begun: Vec<Term>,
    /// Writes under a term that was over.
    pub(crate) refused: u64,
    /// One of so many appends fails, with its changes durable or not; zero: none.
    pub(crate) fails: u64,
}

/// The way of one loop to it.
pub(crate) struct LogOf {
    handle: Handle,
    pub(crate) log: Rc<RefCell<Log>>,
}

impl LogOf {
    pub(crate) fn new(handle: &Handle, log: &Rc<RefCell<Log>>) -> LogOf {
        LogOf { handle: handle.clone(), log: log.clone() }
    }
}

impl OwnersLog for LogOf {
    fn term(&self) -> LocalBoxFuture<'_, Result<Term>> {
        Box::pin(async move {
            self.handle.sleep(MS).await;
            Ok(self.log.borrow().term)
        })
    }

    fn begin(&self, term: Term) -> LocalBoxFuture<'_, Result<Tables>> {
        Box::pin(async move {
            self.handle.sleep(2 * MS).await;
            let mut log = self.log.borrow_mut();
            if term <= log.term {
                return Err(Error::fenced("it is over"));
            }
            log.term = term;
            log.begun.push(term);
            Ok(log.tables.clone())
        })
    }

    fn append(&self, term: Term, changes: Vec<Entry>) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.handle.sleep(MS).await;
            let mut log = self.log.borrow_mut();
            if term != log.term {
                log.refused += 1;
                return Err(Error::fenced("it is over"));
            }
            let draw = self.handle.random_u64();
            let fails = log.fails > 0 && draw.is_multiple_of(log.fails);
            if !fails || (draw >> 32).is_multiple_of(2) {
                for change in &changes {
                    log.tables.check(change)?;
                    log.tables.apply(change);
                }
            }
            match fails {
                true => Err(Error::io("nobody knows")),
                false => Ok(()),
            }
        })
    }
}
