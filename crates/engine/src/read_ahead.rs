//! Reads ahead of whoever reads one block after the other, so that the next read finds its bytes in memory.
//!
//! **Intuition.** A client that reads a disk from one end to the other waits for the disk with every request, though
//! what it wants next is known. So the engine asks for it early, in large pieces: one disk operation runs over the
//! labels between large writes, and is the answer to several requests. A volume's data sectors go round-robin over its
//! segments, and a stream of the volume is a stream in each of them, so that streams are recognised by segment, on the
//! loop that has it (`policies::read_ahead`), whoever the client is.
//!
//! **Names.** A *chunk* is what was asked for at once for a stream: blocks of a segment, being *loaded* or held. What is
//! held of it are *pieces*: blocks that lie one after the other, in the segment as in one data file.
//!
//! **Why nobody reads stale bytes.** What is held is no copy of a volume: it is a copy of places in data files, and is
//! asked like the disk, at the same point and with the same proof.
//! - A read asks the caches and the index first, as ever. They say at which place (file, offset) a block's newest
//!   content is; only a piece of exactly that place is an answer. A write, discard, move or deletion changes what they
//!   say, and the piece is never found again: there is nothing to invalidate, and no order in which to do it.
//! - The content of a place never changes, once an index entry named it: data files are only appended to, an entry
//!   appears when its block is durable, ids of files are never used again, and a repair writes what was proven. A piece
//!   holds only blocks that the index named before they were read, under a pin that keeps their file until they are.
//!   What lies between two runs (a label, an append that has not landed yet) is read and thrown away.
//! - And it is not believed: memory is compared with the entry's checksum when it is handed out, as bytes from a disk
//!   are, and only then. What does not match is read from the disk, where a bad copy is told from a good one. So every
//!   byte is checksummed once, and the proof spans the time for which it was held.
//!
//! **Bounds.** Buffers are counted from before their read until the last reply that has a part of them is sent, and
//! nothing is read ahead beyond [`ReadAheadSettings::bytes_max`]. A piece goes when it was read to its end, or its stream
//! has passed it; all of a stream goes when it stands for a second. Then nothing is left to do: no timer runs.
//!
//! **Flow.** [`ReadAhead::on_read`] tells the policy of a read and starts a task for a chunk that it plans. The reader
//! waits for chunks that are being loaded and have blocks of its own ([`Following::loaded`]), instead of reading them
//! twice; then its plan takes runs from [`Following`] where it can. If loading fails, it reads for itself, and finds out
//! what is wrong.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::SEGMENT_BLOCKS;
use base::seeded::is_on;
use base::{AlignedBuf, BLOCK, Bytes, FileId, Map, Result, SECTOR, SegmentId};
use policies::read_ahead::{ReadAhead as Policy, ReadAheadSettings, StreamId};
use runtime::sync::Event;
use runtime::{Class, Handle};

use crate::data::{DataFiles, place};
use crate::index::{Entry, Index};
use crate::read_plan::{Held, Plan, Source, blocks_of, sectors_of};
use runtime::sync::join_all;

/// Disk operations of one chunk in flight.
const READS_IN_FLIGHT: usize = 32;

/// What reading ahead did since the start, and what it holds. Sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadAheadStatistics {
    /// Blocks that were read ahead.
    pub read_bytes: u64,
    /// Blocks among them that were the answer to a read.
    pub used_bytes: u64,
    /// Blocks that were not what the index named, when they were to be used, and were read again.
    pub unproven_bytes: u64,
    /// Chunks that a stream passed without use.
    pub unused_chunks: u64,
    /// Streams that are followed now.
    pub streams: u64,
    /// What is in memory now.
    pub held_bytes: u64,
}

impl ReadAheadStatistics {
    /// Adds another engine.
    pub(crate) fn merge(&mut self, other: &ReadAheadStatistics) {
        let ReadAheadStatistics { read_bytes, used_bytes, unproven_bytes, unused_chunks, streams, held_bytes } = other;
        self.read_bytes += read_bytes;
        self.used_bytes += used_bytes;
        self.unproven_bytes += unproven_bytes;
        self.unused_chunks += unused_chunks;
        self.streams += streams;
        self.held_bytes += held_bytes;
    }
}

/// Reads ahead for the streams of one engine. Clones share it.
#[derive(Clone)]
pub struct ReadAhead(Rc<Inner>);

struct Inner {
    handle: Handle,
    index: Index,
    data: DataFiles,
    memory: Memory,
    policy: RefCell<Policy<SegmentId>>,
    /// The chunks of each stream, by address.
    held: RefCell<Map<StreamId, VecDeque<Rc<Chunk>>>>,
    /// Whether a task waits for streams to stand.
    forgets: Cell<bool>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    read: Cell<u64>,
    used: Cell<u64>,
    unproven: Cell<u64>,
    unused_chunks: Cell<u64>,
}

struct Chunk {
    blocks: Range<u32>,
    /// By address; `None`: being loaded.
    pieces: RefCell<Option<Vec<Piece>>>,
    loaded: Event,
    /// Whether there was anything to hold, and whether any of it was used.
    has_data: Cell<bool>,
    is_used: Cell<bool>,
}

/// Blocks that are one after the other in a segment and in a file.
struct Piece {
    first_block: u32,
    file: FileId,
    /// Of the first block in the file.
    offset: u64,
    bytes: Bytes,
}

/// What is held, or on its way, of the blocks of one read.
pub(crate) struct Following {
    ahead: ReadAhead,
    stream: StreamId,
    chunks: Vec<Rc<Chunk>>,
    /// The blocks that the read takes to their end.
    blocks: Range<u32>,
}

impl ReadAhead {
    /// Nothing is held. `settings.bytes_max` bounds all that is in memory; windows get half of it, the rest is for what was
    /// handed out and for what is read over.
    pub fn new(index: &Index, data: &DataFiles, settings: ReadAheadSettings) -> ReadAhead {
        let windows = ReadAheadSettings { bytes_max: settings.bytes_max / 2, ..settings };
        ReadAhead(Rc::new(Inner {
            handle: index.files().handle().clone(),
            index: index.clone(),
            data: data.clone(),
            memory: Memory { used: Arc::default(), bytes_max: settings.bytes_max },
            policy: RefCell::new(Policy::new(windows)),
            held: RefCell::default(),
            forgets: Cell::new(false),
            counters: Counters::default(),
        }))
    }

    /// Somebody reads `len` bytes at `offset`. If that goes on with a stream: what there is of its blocks.
    pub(crate) fn on_read(&self, segment: SegmentId, offset: u64, len: u64) -> Option<Following> {
        if self.0.memory.bytes_max == 0 {
            return None;
        }
        let end = offset + len;
        let follow = self.0.policy.borrow_mut().on_read(self.0.handle.now(), segment, offset..end)?;
        if let Some(stream) = follow.given_up {
            self.forget(&[stream]);
        }
        self.pass(follow.stream, follow.passed);
        if let Some(ahead) = follow.ahead {
            self.begin(segment, follow.stream, ahead);
        }
        self.forget_in_time();
        let blocks = blocks_of(&(offset / SECTOR..end / SECTOR));
        let held = self.0.held.borrow();
        let chunks = held.get(&follow.stream).into_iter().flatten();
        let overlaps = |chunk: &&Rc<Chunk>| chunk.blocks.start < blocks.end && blocks.start < chunk.blocks.end;
        let chunks = chunks.filter(overlaps).cloned().collect();
        let blocks = blocks.start..(end / BLOCK) as u32;
        Some(Following { ahead: self.clone(), stream: follow.stream, chunks, blocks })
    }

    /// Whether `bytes` that were held are right; counts them.
    pub(crate) fn on_use(&self, bytes: u64, is_right: bool) {
        let counters = &self.0.counters;
        let counter = if is_right { &counters.used } else { &counters.unproven };
        counter.set(counter.get() + bytes);
    }

    /// Gives back all memory. What is being loaded is dropped when it is there.
    pub fn clear(&self) {
        self.0.held.borrow_mut().clear();
    }

    /// Counters, and what is held.
    pub fn statistics(&self) -> ReadAheadStatistics {
        let Counters { read, used, unproven, unused_chunks } = &self.0.counters;
        ReadAheadStatistics {
            read_bytes: read.get(),
            used_bytes: used.get(),
            unproven_bytes: unproven.get(),
            unused_chunks: unused_chunks.get(),
            streams: self.0.policy.borrow().streams() as u64,
            held_bytes: self.0.memory.used.load(Ordering::Relaxed),
        }
    }

    /// Drops what ends before byte `passed`.
    fn pass(&self, stream: StreamId, passed: u64) {
        let mut held = self.0.held.borrow_mut();
        let Some(chunks) = held.get_mut(&stream) else { return };
        while let Some(chunk) = chunks.pop_front() {
            if u64::from(chunk.blocks.end) * BLOCK > passed {
                chunks.push_front(chunk);
                break;
            }
            if chunk.has_data.get() && !chunk.is_used.get() {
                self.0.counters.unused_chunks.set(self.0.counters.unused_chunks.get() + 1);
                self.0.policy.borrow_mut().on_unused(stream);
            }
        }
    }

    fn forget(&self, streams: &[StreamId]) {
        let mut held = self.0.held.borrow_mut();
        for stream in streams {
            held.remove(stream);
        }
    }

    /// Makes sure that streams are forgotten when they stand.
    fn forget_in_time(&self) {
        if self.0.forgets.replace(true) {
            return;
        }
        let this = self.clone();
        let forget = async move {
            loop {
                let next = this.0.policy.borrow().next_deadline();
                let Some(deadline) = next else { break };
                this.0.handle.sleep_until(deadline).await;
                let standing = this.0.policy.borrow_mut().plan_forget(this.0.handle.now());
                this.forget(&standing);
            }
            this.0.forgets.set(false);
        };
        self.0.handle.spawn(Class::Background, "forget what was read ahead", forget).detach();
    }

    /// Starts to load a chunk.
    fn begin(&self, segment: SegmentId, stream: StreamId, ahead: Range<u64>) {
        // A block in which a stream stands is being read already.
        let block_at = |byte: u64| byte.div_ceil(BLOCK).min(SEGMENT_BLOCKS) as u32;
        let blocks = block_at(ahead.start)..block_at(ahead.end);
        if blocks.is_empty() {
            return;
        }
        let (pieces, loaded, has_data, is_used) =
            (RefCell::new(None), Event::new(), Cell::new(false), Cell::new(false));
        let chunk = Rc::new(Chunk { blocks, pieces, loaded, has_data, is_used });
        self.0.held.borrow_mut().entry(stream).or_default().push_back(chunk.clone());
        let this = self.clone();
        let load = async move {
            let loading = Loading(chunk);
            // What fails here fails for the reader, too, who says so.
            if let Ok(pieces) = this.load(segment, &loading.0.blocks).await {
                loading.0.has_data.set(!pieces.is_empty());
                loading.0.pieces.replace(Some(pieces));
            }
        };
        self.0.handle.spawn(Class::Io, "read ahead", load).detach();
    }

    /// Reads what the index names of `blocks`, as far as there is memory.
    async fn load(&self, segment: SegmentId, blocks: &Range<u32>) -> Result<Vec<Piece>> {
        let _pin = self.0.data.files().pin();
        let mut slots = vec![None; blocks.len()];
        self.0.index.lookup_into(segment, blocks.clone(), &mut slots).await?;
        let mut plan = Plan::default();
        plan.add_gap(sectors_of(blocks.clone()), blocks.start, &slots, &());
        let mut buffers = Vec::with_capacity(plan.runs.len());
        for some in plan.runs.chunks(READS_IN_FLIGHT) {
            buffers.extend(join_all(some.iter().map(|run| self.load_run(&run.entries))).await);
        }
        let (mut pieces, mut block) = (Vec::new(), blocks.start);
        for (len, source) in plan.pieces {
            if let Source::Run(run, start) = source
                && let Some(buffer) = &buffers[run]
            {
                let (file, offset, _) = place(&plan.runs[run].entries[0]);
                let bytes = buffer.slice(start as usize..(start + len) as usize);
                self.0.counters.read.set(self.0.counters.read.get() + len);
                pieces.push(Piece { first_block: block, file, offset: offset + start, bytes });
            }
            block += (len / BLOCK) as u32;
        }
        Ok(pieces)
    }

    async fn load_run(&self, entries: &[Entry]) -> Option<Bytes> {
        let charge = self.0.memory.take(crate::data::span(entries).len as u64)?;
        let buffer = self.0.data.read_run_unproven(entries).await.ok()?;
        Some(Bytes::from_owner(Charged { buffer, _charge: charge }))
    }
}

impl Following {
    /// Completes when nothing of the read's blocks is being loaded.
    pub(crate) async fn loaded(&self) {
        for chunk in &self.chunks {
            while chunk.pieces.borrow().is_none() {
                chunk.loaded.wait().await;
            }
        }
    }

    /// The read has what it needs: what it took to the end is dropped. What lies before may belong to a read that it has
    /// overtaken.
    pub(crate) fn pass(&self) {
        let is_over = |piece: &Piece| self.blocks.start < piece.end() && piece.end() <= self.blocks.end;
        if self.chunks.iter().any(|chunk| chunk.is_used.get()) {
            self.ahead.0.policy.borrow_mut().on_used(self.stream);
        }
        for chunk in &self.chunks {
            if let Some(pieces) = &mut *chunk.pieces.borrow_mut() {
                pieces.retain(|piece| !is_over(piece));
            }
        }
    }
}

impl Held for Option<Following> {
    fn find(&self, entry: &Entry) -> Option<Bytes> {
        self.as_ref()?.chunks.iter().find_map(|chunk| chunk.find(entry))
    }
}

impl Chunk {
    fn find(&self, entry: &Entry) -> Option<Bytes> {
        let pieces = self.pieces.borrow();
        let pieces = pieces.as_ref()?;
        let index = pieces.partition_point(|piece| piece.first_block <= entry.block).checked_sub(1)?;
        let bytes = pieces[index].starting_at(entry)?;
        self.is_used.set(true);
        Some(bytes)
    }
}

impl Piece {
    fn end(&self) -> u32 {
        self.first_block + (self.bytes.len() as u64 / BLOCK) as u32
    }

    /// What it has from the block of `entry` on, if that is where the index says.
    fn starting_at(&self, entry: &Entry) -> Option<Bytes> {
        let start = u64::from(entry.block - self.first_block) * BLOCK;
        let (file, offset, _) = place(entry);
        let is_there = entry.block < self.end();
        let is_it = (file, offset) == (self.file, self.offset + start) || is_on("read-ahead-believed");
        (is_there && is_it).then(|| self.bytes.slice(start as usize..))
    }
}

/// A chunk that is being loaded: whatever happens to that, nobody waits for ever.
struct Loading(Rc<Chunk>);

impl Drop for Loading {
    fn drop(&mut self) {
        self.0.pieces.borrow_mut().get_or_insert_default();
        self.0.loaded.notify();
    }
}

/// How much is in memory. Buffers travel to other loops, and are dropped there.
struct Memory {
    used: Arc<AtomicU64>,
    bytes_max: u64,
}

/// A part of it.
struct Charge {
    used: Arc<AtomicU64>,
    bytes: u64,
}

/// A buffer that is counted as long as anybody has a part of it.
struct Charged {
    buffer: AlignedBuf,
    _charge: Charge,
}

impl Memory {
    fn take(&self, bytes: u64) -> Option<Charge> {
        // Only this loop adds.
        if self.used.load(Ordering::Relaxed) + bytes > self.bytes_max {
            return None;
        }
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Some(Charge { used: self.used.clone(), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}
