//! How long writers wait for background work that fails.
//!
//! Dumps, flushes and checkpoints are tried again until they come through, because nothing is lost meanwhile. Writers
//! that need what these give back (memory, a journal file, room in memtables or in the transaction log) wait for a
//! while, in which most of what ails a disk has passed; then they are told the error, and so are those who come after
//! them, until the work comes through again.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use base::{Error, Instant};

/// The patience of writers: well below the 30 s after which an NBD client gives a request up.
const PATIENCE: Duration = Duration::from_secs(8);

/// One kind of work that others wait for.
#[derive(Default)]
pub(crate) struct Patience {
    failing_since: Cell<Option<Instant>>,
    worn_out_by: RefCell<Option<Error>>,
}

impl Patience {
    /// The work failed; says whether patience has run out.
    pub(crate) fn on_failure(&self, now: Instant, error: &Error) -> bool {
        let since = self.failing_since.get().unwrap_or(now);
        self.failing_since.set(Some(since));
        let is_worn_out = now - since >= PATIENCE;
        if is_worn_out {
            *self.worn_out_by.borrow_mut() = Some(error.clone());
        }
        is_worn_out
    }

    /// The work came through.
    pub(crate) fn on_success(&self) {
        self.failing_since.set(None);
        *self.worn_out_by.borrow_mut() = None;
    }

    /// What writers are told who would have to wait for it.
    ///
    /// # Errors
    /// That of the work, once patience has run out.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.worn_out_by.borrow().clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_without_a_success_between_wear_it_out() {
        let (patience, error) = (Patience::default(), Error::io("the disk is away"));
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        assert!(!patience.on_failure(at(0), &error) && !patience.on_failure(at(7), &error));
        assert!(patience.check().is_ok());
        assert!(patience.on_failure(at(8), &error));
        assert_eq!(patience.check().unwrap_err().message, error.message);
        patience.on_success();
        assert!(patience.check().is_ok());
        assert!(!patience.on_failure(at(100), &error), "what failed long ago is over");
    }
}
