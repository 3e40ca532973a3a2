//! Writes that find no space: what is tried before they are refused.
//!
//! A store is full when garbage collection cannot help any more. So a write without a promise sets off everything
//! that may free space: what is cached is dumped (what it hides becomes garbage, and what it was promised beyond its
//! need comes back), open data files that nobody needs are sealed, garbage collection works in the foreground. It
//! waits as long as that gets somewhere, and is refused when it does not; writes that come while nothing has changed
//! since are refused at once. A discard or a deleted volume is such a change.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::Result;

use crate::core::Core;

/// How often a waiting write looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Without any progress for so long, the store is full.
const PATIENCE: Duration = Duration::from_millis(300);
/// The longest wait, progress or not.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// What changes when space is being freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    collected_bytes: u64,
    moved_bytes: u64,
    counts: u64,
    dumps: u64,
    free_bytes: u64,
}

impl Core {
    /// Tries `take` until it succeeds, while space is being freed.
    ///
    /// # Errors
    /// `Full` once nothing more comes back.
    pub(crate) async fn with_space(self: &Rc<Self>, mut take: impl FnMut() -> bool) -> Result<()> {
        if take() {
            return Ok(());
        }
        if self.full_at.get() == Some(self.progress()) {
            return Err(self.admission.on_full());
        }
        let _waiter = self.admission.wait_for_space();
        let started = self.handle.now();
        let (mut seen, mut seen_at) = (self.progress(), started);
        self.set_off();
        loop {
            self.handle.sleep(LOOK_AGAIN).await;
            self.check_running()?;
            if take() {
                return Ok(());
            }
            let (progress, now) = (self.progress(), self.handle.now());
            if progress != seen {
                (seen, seen_at) = (progress, now);
            }
            if now - seen_at >= PATIENCE || now - started >= WAIT_MAX {
                self.full_at.set(Some(progress));
                return Err(self.admission.on_full());
            }
        }
    }

    /// A discard took effect, or a volume is gone: a store that was full may have room again.
    pub(crate) fn on_discarded(self: &Rc<Self>) {
        self.full_at.set(None);
        if self.admission.has_space_waiters() {
            // What was discarded is garbage only when it is dumped.
            self.set_off();
        }
    }

    fn set_off(self: &Rc<Self>) {
        for segment in self.all_segments() {
            self.want_dump(&segment);
            // Nothing was promised on the room of this one.
            segment.larges.close();
            if segment.space.owed() == 0 {
                segment.dumps.close();
            }
        }
        self.garbage.changed().notify();
    }

    fn progress(&self) -> Progress {
        let collected = self.gc.statistics();
        Progress {
            collected_bytes: collected.freed_bytes,
            moved_bytes: collected.moved_bytes,
            counts: collected.counts,
            dumps: self.counters.dumps.get(),
            free_bytes: self.admission.free_space(),
        }
    }
}

/// The state in which the store was last found full.
pub(crate) type FullAt = Cell<Option<Progress>>;
