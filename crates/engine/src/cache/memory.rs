//! The memory that segment caches hold, counted as what it really costs.
//!
//! Intuition: a batch of the Fusion Write Engine is one buffer with the writes of many segments. The caches keep
//! slices of it, so that a write is copied once on its way in. The price: one small write of a quiet segment can pin
//! a whole batch. So every batch has a **backing** that knows how many of its bytes are still *live* (some cache
//! extent shows them). When less than half of it is live it is **sparse**, and is listed here until its owner copies
//! the live rest out. Since a backing becomes sparse once, at most half of every byte is copied a second time.
//!
//! Names: *pinned* bytes are those of every buffer that cannot be freed; [`CacheMemory::bytes`] adds what the map
//! entries cost, and is what admission compares with its bound.
//!
//! Invariants: `live <= pinned`; a backing is in the sparse list at most once; everything is zero when the last cache
//! and the last read of it are gone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use base::{Bytes, SegmentId};

/// What one extent costs beside its bytes: its place in the map, the write that it shows with its checksums, and the
/// bookkeeping of a buffer of its own.
pub const EXTENT_OVERHEAD: u64 = 256;

/// A batch buffer stays as it is when at least 3/4 of it is payload; a smaller share is copied into tight buffers.
const SHARE_KEPT_NUMERATOR: u64 = 3;
const SHARE_KEPT_DENOMINATOR: u64 = 4;

/// The account of the memory of all segment caches of one engine. Clones share it.
#[derive(Clone, Default)]
pub struct CacheMemory(Rc<Account>);

#[derive(Default)]
struct Account {
    pinned_bytes: Cell<u64>,
    live_bytes: Cell<u64>,
    extents: Cell<u64>,
    sparse: RefCell<VecDeque<Weak<Backing>>>,
}

/// A buffer that cache extents show parts of.
pub(crate) struct Backing {
    account: Rc<Account>,
    bytes: Bytes,
    /// Bytes of `bytes` that extents still show.
    live: Cell<u64>,
    /// Whether it was listed as sparse.
    listed: Cell<bool>,
    /// The segments whose writes are in it.
    segments: Vec<SegmentId>,
}

/// A backing of which less than half is live. Hand it to [`crate::cache::SegmentCache::copy_out`] of the active cache
/// of each segment in [`SparseBacking::segments`].
pub struct SparseBacking(pub(crate) Rc<Backing>);

impl SparseBacking {
    /// The segments that had writes in it.
    pub fn segments(&self) -> &[SegmentId] {
        &self.0.segments
    }
}

impl CacheMemory {
    /// An empty account.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that the caches cost: pinned buffers and map entries.
    pub fn bytes(&self) -> u64 {
        self.0.pinned_bytes.get() + self.0.extents.get() * EXTENT_OVERHEAD
    }

    /// Bytes that some extent shows: what a dump of everything would write at most.
    pub fn live_bytes(&self) -> u64 {
        self.0.live_bytes.get()
    }

    /// A backing of which less than half is live, until none is left. Worth a look after each dump.
    pub fn next_sparse(&self) -> Option<SparseBacking> {
        let mut sparse = self.0.sparse.borrow_mut();
        while let Some(candidate) = sparse.pop_front() {
            if let Some(backing) = candidate.upgrade().filter(|backing| backing.live.get() > 0) {
                return Some(SparseBacking(backing));
            }
        }
        None
    }

    /// Whether a buffer of `buffer_len` bytes with `payload_len` bytes of data is worth keeping as it is.
    pub(crate) fn keeps(buffer_len: u64, payload_len: u64) -> bool {
        payload_len * SHARE_KEPT_DENOMINATOR >= buffer_len * SHARE_KEPT_NUMERATOR
    }

    /// Takes `bytes` into account until the last part of it is dropped.
    pub(crate) fn pin(&self, bytes: Bytes, segments: Vec<SegmentId>) -> Rc<Backing> {
        self.0.pinned_bytes.set(self.0.pinned_bytes.get() + bytes.len() as u64);
        Rc::new(Backing { account: self.0.clone(), bytes, live: Cell::new(0), listed: Cell::new(false), segments })
    }

    pub(crate) fn add_extents(&self, count: i64) {
        let extents = self.0.extents.get().checked_add_signed(count);
        self.0.extents.set(extents.expect("no more extents are dropped than were made"));
    }
}

impl Backing {
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(crate) fn add_live(&self, bytes: u64) {
        self.live.set(self.live.get() + bytes);
        self.account.live_bytes.set(self.account.live_bytes.get() + bytes);
        debug_assert!(self.live.get() <= self.bytes.len() as u64);
    }

    pub(crate) fn remove_live(self: &Rc<Self>, bytes: u64) {
        let live = self.live.get().checked_sub(bytes).expect("no more bytes die than were live");
        self.live.set(live);
        self.account.live_bytes.set(self.account.live_bytes.get() - bytes);
        if live > 0 && live * 2 < self.bytes.len() as u64 && !self.listed.replace(true) {
            self.account.sparse.borrow_mut().push_back(Rc::downgrade(self));
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        assert_eq!(self.live.get(), 0, "an extent keeps its backing alive");
        self.account.pinned_bytes.set(self.account.pinned_bytes.get() - self.bytes.len() as u64);
    }
}
