//! What is in flight, where it outlives the process: an area of the hypervisor's memory (vhost-user, "Inflight I/O
//! tracking"; the layout is the one that the specification suggests for split rings).
//!
//! For each queue there is a header of 16 bytes and an entry of 16 bytes for each descriptor:
//!
//! ```text
//! header  features u64 (0), version u16 (1), size u16, last used head u16, used index u16
//! entry   in flight u8, 5 bytes unused, next u16, count u64
//! ```
//!
//! A request that is taken gets the next count and is then marked; one that is used is noted as the last one, put into the
//! used ring, unmarked, and then the used index is noted. Whoever comes back after the process died finds what is marked;
//! if the used index of the ring is not the one that was noted, the last one was used, and was not unmarked any more. What
//! is left is done again, in the order of the counts.
//!
//! Invariant: whoever else can write there may make us do requests of the same guest again, or end its disk, and nothing
//! else: each number that is found is checked.

use runtime::guest::Memory;
use vm_memory::{Bytes, GuestAddress};

use super::protocol::{QUEUE_SIZE_MAX, QUEUES_MAX, Violation};

const HEADER_LEN: u64 = 16;
const ENTRY_LEN: u64 = 16;
const VERSION: u16 = 1;
/// Queues begin at multiples of this.
const ALIGNMENT: u64 = 64;

fn queue_len(size: u16) -> u64 {
    (HEADER_LEN + ENTRY_LEN * u64::from(size)).next_multiple_of(ALIGNMENT)
}

/// Bytes that so many queues of that size need; nothing, if there cannot be so many.
pub fn area_len(queues: u16, size: u16) -> Option<u64> {
    let fits = (1..=QUEUES_MAX as u16).contains(&queues) && (1..=QUEUE_SIZE_MAX).contains(&size);
    fits.then(|| queue_len(size) * u64::from(queues))
}

/// What a life before this one has left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Left {
    /// Heads of requests that were taken and not used, in the order in which they were taken.
    pub heads: Vec<u16>,
}

/// The part of an area that belongs to one queue.
#[derive(Clone, Debug)]
pub struct Tracking {
    area: Memory,
    start: u64,
    size: u16,
    /// The count of the next request.
    next: u64,
}

impl Tracking {
    /// The part of queue `index` in an area for `queues` queues of `size` descriptors, whose used ring has `used` as its
    /// index; and what was left there, if anything was ever written.
    ///
    /// # Errors
    /// [`Violation::Inflight`]
    pub fn open(
        area: Memory,
        queues: u16,
        size: u16,
        index: usize,
        used: u16,
    ) -> Result<(Tracking, Option<Left>), Violation> {
        let needed = area_len(queues, size).ok_or(Violation::Inflight)?;
        if area.len() < needed || index >= usize::from(queues) {
            return Err(Violation::Inflight);
        }
        let mut tracking = Tracking { area, start: queue_len(size) * index as u64, size, next: 1 };
        let left = match tracking.get::<u16>(8)? {
            0 => {
                tracking.begin(used)?;
                None
            }
            VERSION => Some(tracking.recover(used)?),
            _ => return Err(Violation::Inflight),
        };
        Ok((tracking, left))
    }

    fn begin(&mut self, used: u16) -> Result<(), Violation> {
        self.put(10, self.size)?;
        self.put(14, used)?;
        self.put(8, VERSION)
    }

    fn recover(&mut self, used: u16) -> Result<Left, Violation> {
        if self.get::<u16>(10)? != self.size {
            return Err(Violation::Inflight);
        }
        match used.wrapping_sub(self.get(14)?) {
            0 => {}
            1 => {
                let last = self.get::<u16>(12)?;
                if last >= self.size {
                    return Err(Violation::Inflight);
                }
                self.unmark(last, used)?;
            }
            _ => return Err(Violation::Inflight),
        }
        let mut heads = Vec::new();
        for head in 0..self.size {
            if self.get::<u8>(entry(head))? != 0 {
                heads.push((self.get::<u64>(entry(head) + 8)?, head));
            }
        }
        heads.sort_unstable();
        self.next = heads.last().map_or(1, |(count, _)| count.wrapping_add(1));
        Ok(Left { heads: heads.into_iter().map(|(_, head)| head).collect() })
    }

    /// A request was taken.
    ///
    /// # Errors
    /// [`Violation::Inflight`]
    pub fn mark(&mut self, head: u16) -> Result<(), Violation> {
        self.put(entry(head) + 8, self.next)?;
        self.next = self.next.wrapping_add(1);
        self.put(entry(head), 1u8)
    }

    /// A request is about to be put into the used ring.
    ///
    /// # Errors
    /// [`Violation::Inflight`]
    pub fn before_used(&mut self, head: u16) -> Result<(), Violation> {
        self.put(12, head)
    }

    /// It is there, and the ring's index is `used`.
    ///
    /// # Errors
    /// [`Violation::Inflight`]
    pub fn unmark(&mut self, head: u16, used: u16) -> Result<(), Violation> {
        self.put(entry(head), 0u8)?;
        self.note_used(used)
    }

    /// The ring's index is `used`.
    ///
    /// # Errors
    /// [`Violation::Inflight`]
    pub(super) fn note_used(&mut self, used: u16) -> Result<(), Violation> {
        self.put(14, used)
    }

    fn get<T: vm_memory::ByteValued>(&self, at: u64) -> Result<T, Violation> {
        self.area.map().read_obj(GuestAddress(self.start + at)).map_err(|_| Violation::Inflight)
    }

    fn put<T: vm_memory::ByteValued>(&self, at: u64, value: T) -> Result<(), Violation> {
        self.area.map().write_obj(value, GuestAddress(self.start + at)).map_err(|_| Violation::Inflight)
    }
}

/// Where the entry of a descriptor lies.
fn entry(head: u16) -> u64 {
    HEADER_LEN + ENTRY_LEN * u64::from(head)
}
