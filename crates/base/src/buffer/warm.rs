//! Buffers that were freed a moment ago, for those who want one of the same size: still in the processor's caches, and
//! with their pages mapped.
//!
//! Payloads, replies and appends come and go in a few sizes, many thousands a second. An allocator searches for memory
//! at a page boundary each time, and gives large blocks back to the system, which then clears and maps their pages
//! again. Each thread keeps some of what it frees, up to [`BYTES_MAX`] in all. When that is full, a buffer of the size
//! that nobody has asked for for longest goes: sizes that are not used any more do not stay.

use std::alloc::dealloc;
use std::cell::RefCell;
use std::ptr::NonNull;

use super::{ALIGNMENT, AlignedBuf};

/// Largest buffer that is kept, in bytes.
const BUFFER_MAX: usize = 256 * 1024;
/// Bytes that a thread keeps.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Sizes: whole pages up to the largest.
const CLASSES: usize = BUFFER_MAX / ALIGNMENT;

thread_local! {
    static SHELF: RefCell<Shelf> = const { RefCell::new(Shelf::new()) };
}

/// What one thread keeps.
struct Shelf {
    classes: [Class; CLASSES],
    bytes: usize,
    /// Counts requests.
    clock: u64,
}

/// Buffers of one size.
struct Class {
    buffers: Vec<NonNull<u8>>,
    /// When one was asked for.
    asked_at: u64,
}

/// Whether a buffer of `capacity` bytes is kept.
pub(super) fn holds(capacity: usize) -> bool {
    let class = class_of(capacity);
    class
        .is_some_and(|class| SHELF.try_with(|shelf| !shelf.borrow().classes[class].buffers.is_empty()).unwrap_or(false))
}

/// A buffer of exactly `capacity` bytes, with whatever was in it.
pub(super) fn take(capacity: usize) -> Option<NonNull<u8>> {
    let class = class_of(capacity)?;
    // A thread that ends keeps nothing.
    SHELF.try_with(|shelf| shelf.borrow_mut().take(class)).ok().flatten()
}

/// Keeps or frees a buffer.
///
/// # Safety
/// It was allocated with [`AlignedBuf::layout`] of `capacity`, and is used by nobody.
pub(super) unsafe fn put(pointer: NonNull<u8>, capacity: usize) {
    let kept = match class_of(capacity) {
        Some(class) => SHELF.try_with(|shelf| shelf.borrow_mut().put(class, pointer)).is_ok(),
        None => false,
    };
    if !kept {
        // SAFETY: promised by the caller.
        unsafe { dealloc(pointer.as_ptr(), AlignedBuf::layout(capacity)) }
    }
}

/// Which size a capacity is; none if such buffers are not kept.
fn class_of(capacity: usize) -> Option<usize> {
    (capacity / ALIGNMENT).checked_sub(1).filter(|class| *class < CLASSES)
}

fn bytes_of(class: usize) -> usize {
    (class + 1) * ALIGNMENT
}

impl Shelf {
    const fn new() -> Shelf {
        Shelf { classes: [const { Class { buffers: Vec::new(), asked_at: 0 } }; CLASSES], bytes: 0, clock: 0 }
    }

    fn take(&mut self, class: usize) -> Option<NonNull<u8>> {
        self.clock += 1;
        self.classes[class].asked_at = self.clock;
        let taken = self.classes[class].buffers.pop();
        self.bytes -= taken.map_or(0, |_| bytes_of(class));
        taken
    }

    fn put(&mut self, class: usize, pointer: NonNull<u8>) {
        self.classes[class].buffers.push(pointer);
        self.bytes += bytes_of(class);
        while self.bytes > BYTES_MAX {
            self.drop_one();
        }
    }

    /// Frees a buffer of the size that nobody has asked for for longest.
    fn drop_one(&mut self) {
        let kept = self.classes.iter().enumerate().filter(|(_, class)| !class.buffers.is_empty());
        let Some((oldest, _)) = kept.min_by_key(|(_, class)| class.asked_at) else { return };
        if let Some(pointer) = self.classes[oldest].buffers.pop() {
            self.bytes -= bytes_of(oldest);
            // SAFETY: it came with this layout, and is on no shelf any more.
            unsafe { dealloc(pointer.as_ptr(), AlignedBuf::layout(bytes_of(oldest))) }
        }
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        while self.bytes > 0 {
            self.drop_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> usize {
        SHELF.with(|shelf| {
            let shelf = shelf.borrow();
            let count = |(class, kept): (usize, &Class)| kept.buffers.len() * bytes_of(class);
            assert_eq!(shelf.classes.iter().enumerate().map(count).sum::<usize>(), shelf.bytes);
            shelf.bytes
        })
    }

    #[test]
    fn what_was_freed_is_used_again_and_reads_as_zeros() {
        let mut buffer = AlignedBuf::zeroed(3 * ALIGNMENT);
        buffer.fill(7);
        let place = buffer.as_target();
        drop(buffer);
        let mut again = AlignedBuf::with_capacity(3 * ALIGNMENT - 5);
        assert_eq!(again.as_target(), place);
        again.set_len(10);
        assert_eq!(again[..], [0; 10]);
        drop(again);
        let mut zeroed = AlignedBuf::zeroed(3 * ALIGNMENT);
        assert_eq!(zeroed.as_target(), place);
        assert!(zeroed.iter().all(|byte| *byte == 0));
        // Another size is other memory.
        assert_ne!(AlignedBuf::with_capacity(2 * ALIGNMENT).as_target(), place);
    }

    #[test]
    fn a_thread_keeps_no_more_than_its_bound_and_forgets_sizes_that_are_not_used() {
        let many = |size: usize| (0..2 * BYTES_MAX / size).map(|_| AlignedBuf::with_capacity(size)).collect::<Vec<_>>();
        drop(many(64 * 1024));
        assert_eq!(kept(), BYTES_MAX);
        drop(many(4096));
        assert_eq!(kept(), BYTES_MAX);
        SHELF.with(|shelf| assert!(shelf.borrow().classes[15].buffers.is_empty(), "the old size is gone"));
        // Larger ones are not kept.
        drop(AlignedBuf::with_capacity(2 * BUFFER_MAX));
        assert_eq!(kept(), BYTES_MAX);
    }
}
