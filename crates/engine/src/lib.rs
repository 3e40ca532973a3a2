//! The log-structured block device (EBS, FAST 2024, §2.2 and §2.3): durable writes and verified reads of segments,
//! on append-only files.
//!
//! **Intuition.** Nothing is ever updated in place. A write is made durable in a *journal* that all segments share,
//! and visible in its segment's *cache*; it is acknowledged then. Later the cache is *dumped*: its blocks go to a
//! *data file*, a record in the *transaction log* says where, and the *index* learns it. The journal is read only
//! after a crash. What newer writes leave behind as garbage, *garbage collection* finds by comparing data files with
//! the index.
//!
//! # The life of a write
//! 1. [`Engine::write`] checks the range and asks `admission`: memory for the payload (it waits in line), and a
//!    promise of the space that its dump will need (or it is refused as `Full`).
//! 2. The [`segment`] gives it the next *segment sequence*. The [`fusion`] write engine copies it into the batch that
//!    it gathers, and appends the batch to the [`journal`] at the end of the loop's turn.
//! 3. When the batch, and all before it, are durable, the write is *settled*: applied to the segment's [`cache`] as
//!    soon as everything before it in the segment is, and acknowledged in the same step.
//! 4. A `dump` merges the cache's sectors into blocks, appends them, logs a `Dump` record ([`transaction`]), and moves
//!    them from the cache to the [`index`] in one step. Journal files that are dumped are deleted.
//! 5. Index entries go from memory to sorted tables; `checkpoint`s bound the transaction log; [`gc`] moves live blocks
//!    out of data files that are mostly garbage.
//!
//! A `large` write skips steps 2 to 4: its blocks go straight to a data file, and a `Large` record to the transaction
//! log at the same time; it is settled when both are durable. Unaligned ends of it take the journal.
//!
//! A read ([`reader`]) asks the caches, then the index, for what each sector's newest place is, and proves every block
//! by its checksum.
//!
//! # Rules, and why each is safe
//! - **Order.** Effects are applied to memory in segment-sequence order, after durability, before the reply, without
//!   an await in between. So a read that follows an acknowledgement sees the write, and "everything up to sequence s"
//!   is one state of the segment, the same in memory and in a replay.
//! - **Acknowledgement follows the journal's order.** A record is told durable when all before it are. So the records
//!   that a crash leaves behind a hole were never acknowledged, and may be cut.
//! - **The index is a join.** Of all entries for a block, wherever they stand, the one with the highest (sequence,
//!   moves) counts. Replaying records in any order, twice, or late, gives the same index; a slow dump can never hide a
//!   newer large write. An entry of sequence s holds every write up to s to its block, so comparing sequences is
//!   enough to know whether a journal record still matters.
//! - **A cache stays until the index has it.** The switch is one step; a read sees one or the other. A dump that fails
//!   changes nothing.
//! - **Durable first, then known.** The effect of a transaction record is applied when it retires, in log order. So a
//!   checkpoint, composed in one step, stands for exactly the records before its position.
//! - **One recovery decides, the next ones obey.** Where journals and log end is sealed in the files; which large
//!   writes count stands in the first checkpoint; only then is anything served. So what one recovery has shown, no
//!   later one takes back, and what one has cut, no later one brings back. Files of an earlier life are never appended
//!   to: a killed process's last writes may still land there.
//! - **Torn is not rotten.** A record that cannot be read is cut only if no later record claims that it was durable and
//!   no copy has it. Otherwise the engine does not open, and names the file and the override.
//! - **Space before acknowledgement.** What is acknowledged can be dumped: its space was promised out of what is really
//!   free, and journals, log, tables and garbage collection have a reserve of their own. Discards and deletes need no
//!   promise, so a full store can be emptied.
//! - **Everything bounded.** Caches and payload in flight share one bound, dumps, appends and index memory have
//!   theirs; who comes later waits in line. Overload makes the disk slower.
//!
//! Names are those of the paper: *segment* (32 GiB of a volume), *fusion write engine*, *segment cache*, *data file*,
//! *transaction file*. *Loop*: one thread of `runtime`; an engine lives on one. *Life*, *incarnation*: from an open to
//! the next one.

mod admission;
mod arrivals;
mod audit;
mod background;
pub mod cache;
mod checkpoint;
mod core;
pub mod data;
mod data_writer;
mod diagnose;
mod dropped;
mod dump;
mod fullness;
pub mod fusion;
pub mod garbage;
pub mod gc;
pub mod index;
pub mod journal;
mod label;
mod landings;
mod large;
pub mod options;
pub mod ownership;
mod patience;
pub mod pins;
mod read;
pub mod read_ahead;
mod read_plan;
pub mod reader;
mod recovery;
pub mod scrub;
pub mod segment;
mod space;
pub mod statistics;
#[cfg(test)]
mod testing;
pub mod transaction;
pub mod verified;
mod volume;
pub mod way;
mod write;

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{
    AllocationExtent, Bytes, Epoch, Generation, Incarnation, Passage, ReadPart, Result, SegmentId, VolumeId, WriteStamp,
};
use files::Store;
use policies::background::{Left, Work};
use policies::ready::plan_sizes;
use runtime::Handle;

pub use options::{EPOCH, Options, Ownership};
pub use recovery::inspect::{Damage, Inspection, SegmentInspection, inspect};
pub use recovery::{Replay, ReplayedSegment, is_proven};
pub use statistics::Statistics;
pub use transaction::{SegmentCheckpoint, Tenure};

/// An engine on one loop. Clones share it.
#[derive(Clone)]
pub struct Engine(Rc<core::Core>);

impl Engine {
    /// Opens the engine on `store`: recovers everything that earlier incarnations acknowledged.
    ///
    /// # Errors
    /// `Corrupt` where an acknowledged byte cannot be proven or disproven (it names the override), `Io`, `Full`.
    pub async fn open(handle: &Handle, store: &Store, options: Options) -> Result<Engine> {
        recovery::open(handle, store, options).await.map(Engine)
    }

    /// Writes `data` at byte `offset` of a segment, both multiples of 512. `checksums` are
    /// [`base::io::fragment_checksums`] of it. When it returns, the write is durable and visible.
    ///
    /// # Errors
    /// `Full`, `Io` (the outcome is unknown), `Invalid`.
    pub async fn write(
        &self,
        segment: SegmentId,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> Result<()> {
        self.write_noted(segment, offset, data, checksums, stamp, &mut Passage::default()).await
    }

    /// [`Engine::write`], which notes what the write waits for.
    ///
    /// # Errors
    /// The same.
    pub async fn write_noted(
        &self,
        segment: SegmentId,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
        passage: &mut Passage,
    ) -> Result<()> {
        self.0.write(segment, offset, data, checksums, stamp, passage).await
    }

    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: never wrong bytes.
    pub async fn read(&self, segment: SegmentId, offset: u64, len: u64) -> Result<Vec<ReadPart>> {
        self.read_noted(segment, offset, len, &mut Passage::default()).await
    }

    /// [`Engine::read`], which notes what the read waits for.
    ///
    /// # Errors
    /// The same.
    pub async fn read_noted(
        &self,
        segment: SegmentId,
        offset: u64,
        len: u64,
        passage: &mut Passage,
    ) -> Result<Vec<ReadPart>> {
        self.0.store.on_request();
        self.0.read(segment, offset, len, passage).await
    }

    /// Makes a range read as zeros and frees its space in time. Durable when it returns.
    ///
    /// # Errors
    /// `Io`. Works on a full disk.
    pub async fn discard(&self, segment: SegmentId, offset: u64, len: u64, stamp: WriteStamp) -> Result<()> {
        self.0.discard(segment, offset, len, stamp).await
    }

    /// Which parts of a range hold data. At most `extents_max` extents; they may cover less than was asked.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub async fn allocation(
        &self,
        segment: SegmentId,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>> {
        self.0.allocation(segment, offset, len, extents_max).await
    }

    /// Forgets every segment of a volume and frees its space in time. Durable when it returns.
    ///
    /// # Errors
    /// `Io`. Works on a full disk.
    pub async fn drop_volume(&self, volume: VolumeId) -> Result<()> {
        self.0.drop_volume(volume).await
    }

    /// Has a segment from now on, empty, under `tenure`. Durable when it returns; may be repeated.
    ///
    /// # Errors
    /// `Conflict`: it is here under another epoch. `NotFound`: its volume was dropped. `Io`: nobody knows whether it is
    /// here.
    pub async fn create_segment(&self, segment: SegmentId, tenure: Tenure) -> Result<()> {
        self.0.create_segment(segment, tenure).await
    }

    /// Has a segment from now on, under `tenure`, as `source` left it. Durable when it returns; may be repeated.
    ///
    /// # Errors
    /// As [`Engine::create_segment`]; `Corrupt` where a file of it is missing.
    pub async fn adopt(&self, source: Incarnation, left: SegmentCheckpoint, tenure: Tenure) -> Result<()> {
        self.0.adopt(source, left, tenure).await
    }

    /// Has a segment no more that it has under `epoch`, and gives it as it leaves it. Requests to it are answered with
    /// `Moved` from the call on, those in flight are waited for. Durable when it returns; may be repeated until
    /// [`Engine::forget_release`].
    ///
    /// # Errors
    /// `Moved`: it is not here. `Conflict`: it is here under another epoch, or is leaving already. `Io`, `Full`: it
    /// could not be settled, and stays.
    pub async fn release(&self, segment: SegmentId, epoch: Epoch) -> Result<SegmentCheckpoint> {
        self.0.release(segment, epoch).await
    }

    /// Has a segment no more that it has under `epoch`, and whose volume is being deleted: what there is of it goes.
    /// Durable when it returns; may be repeated.
    ///
    /// # Errors
    /// `Moved`: it is not here. `Conflict`: it is here under another epoch, or is leaving. `Io`.
    pub async fn drop_segment(&self, segment: SegmentId, epoch: Epoch) -> Result<()> {
        self.0.drop_segment(segment, epoch).await
    }

    /// What was released, under which epochs, and of which nobody said that somebody has it.
    pub fn released(&self) -> Vec<(SegmentId, Epoch)> {
        self.0.released.borrow().values().map(|left| (left.segment, left.tenure.epoch)).collect()
    }

    /// What was released under `epoch` is in somebody's log: nothing has to be known of it any more.
    pub fn forget_release(&self, segment: SegmentId, epoch: Epoch) {
        self.0.forget_release(segment, epoch);
    }

    /// Takes a segment under no epoch up to `epoch`, whoever asks, and however late.
    ///
    /// # Errors
    /// `Conflict`: it is here, or on its way, already.
    pub fn refuse(&self, segment: SegmentId, epoch: Epoch) -> Result<()> {
        self.0.refuse(segment, epoch)
    }

    /// Removes files of its segments that no log names: what was left by those who died, or gave up, while they had one
    /// of them or were about to ([`ownership`]). That is done after each adoption and every half hour, too. Gives how many.
    ///
    /// # Errors
    /// `Io`, `Full`, `Fenced`: some stay.
    pub async fn remove_strays(&self) -> Result<u64> {
        self.0.remove_strays().await
    }

    /// Records durably that a volume was attached, for the segments of it that are here.
    ///
    /// # Errors
    /// `Io`: nobody knows whether it is recorded.
    pub async fn record_attachment(&self, volume: VolumeId, generation: Generation) -> Result<()> {
        self.0.record_attachment(volume, generation).await
    }

    /// Completes when the log takes no more records, with the reason: it writes nothing more in this life.
    pub async fn when_broken(&self) -> base::Error {
        self.0.log.when_broken().await
    }

    /// Every segment that it has, as of now.
    pub fn segments(&self) -> Vec<SegmentCheckpoint> {
        self.0.all_segments().iter().map(|segment| self.0.checkpoint_of(segment)).collect()
    }

    /// By what right it has a segment, if it has it.
    pub fn tenure(&self, segment: SegmentId) -> Option<Tenure> {
        match self.0.options.ownership {
            Ownership::Whole => Some(Tenure::default()),
            Ownership::Given => self.0.segments.borrow().get(&segment).map(|segment| segment.tenure()),
        }
    }

    /// The volumes that it has something of: a segment, or a deletion that its logs still have to know of.
    pub fn volumes(&self) -> BTreeSet<VolumeId> {
        let mut volumes: BTreeSet<_> = self.0.all_segments().iter().map(|segment| segment.id().volume).collect();
        volumes.extend(self.0.dropped.borrow().volumes());
        volumes
    }

    /// Dumps what is dirty and ends background work, so that the next start has nothing to replay.
    ///
    /// # Errors
    /// `Io`: nothing acknowledged is lost, the next start replays.
    pub async fn close(&self) -> Result<()> {
        self.0.close().await
    }

    /// Says what foreground work leaves of the disks' bandwidth: background work takes no more of it while there is room.
    /// Holds for a second.
    pub fn set_spare_bandwidth(&self, left: Left) {
        self.0.gc.set_spare(left);
        self.0.scrub.set_spare(left);
        self.0.store.set_spare_bandwidth(left);
    }

    /// What it had the disks do besides what clients wait for, since it was opened.
    pub fn background_work(&self) -> Work {
        self.0.background_work()
    }

    /// Says how many bytes all volumes together may come to hold: space for data files is made ready for as much of it
    /// as is not there yet, while nobody wants the store ([`Store::keep_ready`]).
    pub fn set_provisioned(&self, bytes: u64) {
        let data = self.0.factory.options();
        self.0.store.keep_ready(&plan_sizes(data.bytes_min, data.bytes_max), bytes);
    }

    /// What it did since it was opened, and how it stands.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// Reads everything that is stored once, from every copy, and repairs what can be repaired: a round of [`scrub`],
    /// now, at its pace. Says how many blocks and pages no copy has right.
    pub async fn scrub(&self) -> u64 {
        self.0.scrub.round().await
    }

    /// Begins such a round, unless one is under way; [`Engine::statistics`] says how far it is.
    pub fn begin_scrub(&self) {
        self.0.scrub.begin();
    }

    /// Compares the accounts of space with a full scan of the index and the files, and says what does not add up. What
    /// goes on meanwhile may show up, too: only what is found twice in a row is wrong.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: the index cannot be read.
    pub async fn audit(&self) -> Result<Vec<String>> {
        self.0.audit().await
    }

    /// What somebody might be waiting for, line by line: for a person who looks into a store that does not move.
    pub fn diagnose(&self) -> String {
        self.0.diagnose()
    }
}
