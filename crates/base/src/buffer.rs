//! Memory that a disk can read from and write to directly.

mod warm;

use std::alloc::{Layout, alloc, alloc_zeroed, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;

/// Alignment of the memory and the unit of its capacity, in bytes.
pub const ALIGNMENT: usize = 4096;

/// A byte buffer at a 4 KiB boundary, as O_DIRECT wants it. Frozen into [`Bytes`] without a copy.
///
/// Memory that was never visible reads as zeros, but is only zeroed when it becomes visible: a buffer that is filled
/// by [`AlignedBuf::extend_from_slice`] is written once.
pub struct AlignedBuf {
    pointer: NonNull<u8>,
    len: usize,
    /// Bytes from the start that were written or zeroed. `len <= initialized <= capacity`.
    initialized: usize,
    capacity: usize,
}

// The buffer owns its memory alone, as a Vec does.
unsafe impl Send for AlignedBuf {}
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len` zeros; its capacity is `len` rounded up to [`ALIGNMENT`].
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = match warm::holds(len.next_multiple_of(ALIGNMENT)) {
            true => Self::allocate(len, alloc),
            false => {
                let mut fresh = Self::allocate(len, alloc_zeroed);
                fresh.initialized = fresh.capacity;
                fresh
            }
        };
        buffer.set_len(len);
        buffer
    }

    /// An empty buffer that holds up to `capacity` bytes (rounded up to [`ALIGNMENT`]), all of them zero.
    pub fn with_capacity(capacity: usize) -> Self {
        Self::allocate(capacity, alloc)
    }

    /// Memory that was freed a moment ago, else memory from `allocator`; none of it taken as initialized.
    fn allocate(capacity: usize, allocator: unsafe fn(Layout) -> *mut u8) -> Self {
        let capacity = capacity.next_multiple_of(ALIGNMENT);
        if capacity == 0 {
            return AlignedBuf { pointer: NonNull::dangling(), len: 0, initialized: 0, capacity: 0 };
        }
        if let Some(pointer) = warm::take(capacity) {
            return AlignedBuf { pointer, len: 0, initialized: 0, capacity };
        }
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size above zero.
        let pointer = unsafe { allocator(layout) };
        let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(layout) };
        AlignedBuf { pointer, len: 0, initialized: 0, capacity }
    }

    /// A buffer with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::with_capacity(bytes.len());
        buffer.extend_from_slice(bytes);
        buffer
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT).expect("a buffer is far smaller than the address space")
    }

    /// How many bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length. Bytes that become visible keep the value they last had (zero at first).
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "a buffer does not grow");
        if len > self.initialized {
            // SAFETY: the range lies within the allocation, which this buffer owns alone.
            unsafe { self.pointer.add(self.initialized).write_bytes(0, len - self.initialized) }
            self.initialized = len;
        }
        self.len = len;
    }

    /// Where somebody else may write up to [`AlignedBuf::capacity`] bytes; see [`AlignedBuf::set_written`].
    pub fn as_target(&mut self) -> NonNull<u8> {
        self.pointer
    }

    /// Makes the first `len` bytes visible, without zeroing them first.
    ///
    /// # Safety
    /// They were written through [`AlignedBuf::as_target`], or visible before.
    pub unsafe fn set_written(&mut self, len: usize) {
        assert!(len <= self.capacity, "a buffer does not grow");
        self.initialized = self.initialized.max(len);
        self.len = len;
    }

    /// Appends `bytes`; the capacity must suffice.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let (start, end) = (self.len, self.len + bytes.len());
        assert!(end <= self.capacity, "a buffer does not grow");
        // SAFETY: the range lies within the allocation, which this buffer owns alone, so that `bytes` is elsewhere.
        unsafe { self.pointer.add(start).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) }
        self.initialized = self.initialized.max(end);
        self.len = end;
    }

    /// Appends `count` zeros; the capacity must suffice.
    pub fn extend_zeros(&mut self, count: usize) {
        let (start, end) = (self.len, self.len + count);
        assert!(end <= self.capacity, "a buffer does not grow");
        // SAFETY: the range lies within the allocation, which this buffer owns alone.
        unsafe { self.pointer.add(start).write_bytes(0, count) }
        self.initialized = self.initialized.max(end);
        self.len = end;
    }

    /// Appends zeros up to the next multiple of `unit`.
    pub fn pad_to(&mut self, unit: usize) {
        self.extend_zeros(self.len.next_multiple_of(unit) - self.len);
    }

    /// The content as shared bytes, without a copy.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.capacity > 0 {
            // SAFETY: allocated with the layout of its capacity, and nobody looks at it any more.
            unsafe { warm::put(self.pointer, self.capacity) }
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= initialized` bytes were written or zeroed.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the buffer is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} of {} bytes)", self.len, self.capacity)
    }
}

/// Bytes that are written as one range of a file, though they may lie in two places in memory.
///
/// A header and the payload behind it are one durable write this way, and the payload is copied nowhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gathered {
    first: Bytes,
    /// Empty, if all of it lies in one place.
    second: Bytes,
}

impl Gathered {
    /// `second` goes right behind `first`.
    pub fn new(first: Bytes, second: Bytes) -> Self {
        Gathered { first, second }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The parts that are not empty, in order.
    pub fn parts(&self) -> impl Iterator<Item = &Bytes> {
        [&self.first, &self.second].into_iter().filter(|part| !part.is_empty())
    }

    /// What is left from byte `start` on.
    pub fn starting_at(&self, start: usize) -> Gathered {
        let in_first = start.min(self.first.len());
        Gathered { first: self.first.slice(in_first..), second: self.second.slice(start - in_first..) }
    }

    /// All of it in one place, copied only if it lies in two.
    pub fn joined(&self) -> Bytes {
        match (self.first.is_empty(), self.second.is_empty()) {
            (_, true) => self.first.clone(),
            (true, false) => self.second.clone(),
            (false, false) => {
                let mut all = AlignedBuf::with_capacity(self.len());
                self.parts().for_each(|part| all.extend_from_slice(part));
                all.freeze()
            }
        }
    }
}

impl From<Bytes> for Gathered {
    fn from(bytes: Bytes) -> Self {
        Gathered { first: bytes, second: Bytes::new() }
    }
}

/// Zeros at a boundary that O_DIRECT accepts. They are never written to, so the system backs them by one page.
#[repr(align(4096))]
struct Zeros([u8; 1024 * 1024]);

static ZEROS: Zeros = Zeros([0; 1024 * 1024]);

/// `len` zeros, aligned as [`AlignedBuf`] is. Up to 1 MiB they are shared and cost nothing.
pub fn zeros(len: usize) -> Bytes {
    match len <= ZEROS.0.len() {
        true => Bytes::from_static(&ZEROS.0[..len]),
        false => AlignedBuf::zeroed(len).freeze(),
    }
}

/// Whether `bytes` are a part of what [`zeros`] shares: told by their address, without looking at them.
pub fn are_shared_zeros(bytes: &[u8]) -> bool {
    let (shared, bytes) = (ZEROS.0.as_ptr_range(), bytes.as_ptr_range());
    shared.start <= bytes.start && bytes.end <= shared.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_frozen_in_place() {
        let mut buffer = AlignedBuf::with_capacity(5000);
        assert_eq!((buffer.len(), buffer.capacity()), (0, 8192));
        buffer.extend_from_slice(b"levee");
        buffer.pad_to(4096);
        assert_eq!((buffer.len(), &buffer[..6]), (4096, &b"levee\0"[..]));
        let address = buffer.as_ptr();
        let bytes = buffer.freeze();
        assert_eq!(bytes.as_ptr(), address);
        assert_eq!(address as usize % ALIGNMENT, 0);
        assert!(AlignedBuf::zeroed(0).is_empty());
    }

    #[test]
    fn what_becomes_visible_is_zero_or_what_it_last_was() {
        // Leaves other bytes in the memory that the allocator gives out next.
        drop(AlignedBuf::copy_of(&[7; 8192]));
        let mut buffer = AlignedBuf::with_capacity(8192);
        buffer.extend_from_slice(&[1; 100]);
        buffer.set_len(50);
        buffer.set_len(8192);
        assert!(buffer[..100].iter().all(|byte| *byte == 1) && buffer[100..].iter().all(|byte| *byte == 0));
        buffer[8191] = 9;
        buffer.set_len(0);
        buffer.extend_from_slice(&[2]);
        buffer.set_len(8192);
        assert_eq!((buffer[0], buffer[1], buffer[8191]), (2, 1, 9));
    }

    #[test]
    fn zeros_are_aligned_and_known_by_their_address() {
        for len in [0, 1, 4096, 1 << 20, (1 << 20) + 1] {
            let zeros = zeros(len);
            assert_eq!((zeros.len(), zeros.as_ptr() as usize % ALIGNMENT), (len, 0));
            assert_eq!(are_shared_zeros(&zeros), len <= 1 << 20);
            assert!(zeros.iter().all(|&byte| byte == 0));
        }
        assert!(!are_shared_zeros(&AlignedBuf::zeroed(4096)));
    }

    #[test]
    fn gathered_bytes_are_one_range() {
        let (first, second) = (Bytes::from_static(b"header"), Bytes::from_static(b"payload"));
        let gathered = Gathered::new(first.clone(), second);
        assert_eq!((gathered.len(), &gathered.joined()[..]), (13, &b"headerpayload"[..]));
        for start in 0..=13 {
            let rest = gathered.starting_at(start);
            assert_eq!(&rest.joined()[..], &b"headerpayload"[start..]);
            assert!(rest.parts().all(|part| !part.is_empty()));
        }
        assert_eq!(Gathered::from(first.clone()).joined().as_ptr(), first.as_ptr(), "one part is not copied");
    }

    #[test]
    #[should_panic(expected = "does not grow")]
    fn a_buffer_does_not_grow() {
        AlignedBuf::zeroed(1).extend_from_slice(&[0; 4096]);
    }
}
