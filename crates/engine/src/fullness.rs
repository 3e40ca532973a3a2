//! What is known of a full store, so that writes are refused at once while nothing has changed.

use std::cell::Cell;
use std::rc::Rc;

/// What is known of a full store.
#[derive(Default)]
pub(crate) struct Fullness {
    /// The state in which it was last found full.
    at: Cell<Option<Progress>>,
    /// See [`Progress`].
    releases: Cell<u64>,
    /// Volumes that are being deleted.
    deletions: Cell<u32>,
}

impl Fullness {
    /// Nothing came back for so long that it is full in this state.
    pub(crate) fn on_full(&self, progress: Progress) {
        self.at.set(Some(progress));
    }

    /// A discard took effect, or a volume is gone.
    pub(crate) fn on_released(&self) {
        self.releases.set(self.releases.get() + 1);
    }

    /// How often that was so.
    pub(crate) fn releases(&self) -> u64 {
        self.releases.get()
    }

    /// Whether it is full, as far as anybody knows without looking again.
    pub(crate) fn is_known(&self, progress: &Progress) -> bool {
        !self.is_ending() && self.at.get().as_ref() == Some(progress)
    }

    /// Whether space is certain to come back soon.
    pub(crate) fn is_ending(&self) -> bool {
        self.deletions.get() > 0
    }

    /// A volume is being deleted until the guard is dropped.
    pub(crate) fn begin_deletion(self: &Rc<Self>) -> Deletion {
        self.deletions.set(self.deletions.get() + 1);
        Deletion(self.clone())
    }
}

/// See [`Fullness::begin_deletion`].
pub(crate) struct Deletion(Rc<Fullness>);

impl Drop for Deletion {
    fn drop(&mut self) {
        self.0.deletions.set(self.0.deletions.get() - 1);
    }
}

/// What changes when space is being freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) collected_bytes: u64,
    pub(crate) moved_bytes: u64,
    pub(crate) counts: u64,
    pub(crate) dumps: u64,
    pub(crate) free_bytes: u64,
    /// Discards that took effect, and volumes that are gone.
    pub(crate) releases: u64,
}
