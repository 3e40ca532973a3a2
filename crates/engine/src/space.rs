//! Writes that find no space: what is tried before they are refused.
//!
//! A store is full when garbage collection cannot help any more. So a write without a promise sets off everything
//! that may free space: what is cached is dumped (what it hides becomes garbage, and what it was promised beyond its
//! need comes back), open data files that nobody needs are sealed, garbage collection works in the foreground. It
//! waits as long as that gets somewhere, and is refused when it does not; writes that come while nothing has changed
//! since are refused at once. A discard or a deleted volume is such a change; while a volume is being deleted, nobody
//! is refused for want of patience.

use std::rc::Rc;
use std::time::Duration;

use base::Result;

use crate::core::Core;
use crate::fullness::Progress;

/// How often a waiting write looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Without any progress for so long, the store is full.
const PATIENCE: Duration = Duration::from_millis(300);
/// The longest wait, progress or not.
const WAIT_MAX: Duration = Duration::from_secs(10);

impl Core {
    /// Tries `take` until it succeeds, while space is being freed.
    ///
    /// # Errors
    /// `Full` once nothing more comes back.
    pub(crate) async fn with_space(self: &Rc<Self>, mut take: impl FnMut() -> bool) -> Result<u64> {
        if take() {
            return Ok(0);
        }
        if self.fullness.is_known(&self.progress()) {
            return Err(self.admission.on_full());
        }
        let _waiter = self.admission.wait_for_space();
        let started = self.handle.now();
        let (mut seen, mut seen_at) = (self.progress(), started);
        self.set_off();
        loop {
            self.handle.sleep(LOOK_AGAIN).await;
            self.check_writable()?;
            if take() {
                return Ok(self.handle.now().nanos_since(started));
            }
            let (progress, now) = (self.progress(), self.handle.now());
            if progress != seen || self.fullness.is_ending() {
                (seen, seen_at) = (progress, now);
            }
            if now - seen_at >= PATIENCE || now - started >= WAIT_MAX {
                self.fullness.on_full(progress);
                return Err(self.admission.on_full());
            }
        }
    }

    /// A discard took effect, or a volume is gone: a store that was full may have room again.
    pub(crate) fn on_discarded(self: &Rc<Self>) {
        self.fullness.on_released();
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
            releases: self.fullness.releases(),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::io::fragment_checksums;
    use base::{AlignedBuf, ErrorKind, KIB, MIB, SegmentId, VolumeId, WriteStamp};
    use files::memory::{Memory, MemoryOptions};
    use runtime::Class;

    use super::*;
    use crate::{Engine, Options, testing};

    async fn write(engine: &Engine, volume: u64, offset: u64) -> Result<()> {
        let segment = SegmentId { volume: VolumeId(volume), index: 0 };
        let data = AlignedBuf::copy_of(&[7; 64 << 10]).freeze();
        let checksums = fragment_checksums(segment, offset, &data);
        engine.write(segment, offset, data, checksums, WriteStamp::default()).await
    }

    /// A full store refuses at once, unless space is about to come back: then a write waits for it.
    #[test]
    fn a_write_waits_for_a_volume_that_is_being_deleted() {
        testing::run(1, |handle| async move {
            let options = Options {
                journal_file_bytes: 512 * KIB,
                journal_files: 2,
                transaction_file_bytes: 64 * KIB,
                data_file_bytes: 64 * KIB,
                ..Options::default()
            };
            let memory = Memory::new(1, MemoryOptions { capacity: 6 * MIB, ..MemoryOptions::default() });
            let engine = Engine::open(&handle, &memory.open(&handle), options).await.unwrap();
            let mut offset = 0;
            while write(&engine, 1, offset).await.is_ok() {
                offset += 64 * KIB;
            }
            assert!(offset > MIB, "most of it is for data: {offset}");
            let refused_at = handle.now();
            assert_eq!(write(&engine, 2, 0).await.unwrap_err().kind, ErrorKind::Full);
            assert!(handle.now() - refused_at < Duration::from_millis(1), "nothing has changed");
            let deleting = engine.clone();
            let deleting = async move { deleting.drop_volume(VolumeId(1)).await };
            let deleted = handle.spawn(Class::Io, "delete", deleting);
            handle.yield_now().await;
            write(&engine, 2, 0).await.unwrap();
            deleted.await.unwrap();
        });
    }
}
