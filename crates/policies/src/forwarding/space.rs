//! The addresses of one log: which ones an append gets, and from where on there is something.
//!
//! **Intuition.** Addresses only grow, as if the log had no end; where one lies is its remainder by the log's size. What was merged
//! is freed from the low end on: the *low* address is the first one that somebody may still need. A low address counts when it is
//! durable, since a traversal begins at the one that it finds written down; only then what lies below is written again.
//!
//! A traversal has to know where to stop. Appends land in any order, so it goes on over holes, for as far as there may be one: the
//! *window*. Nothing is reserved farther than that behind the first append that has not landed. One that failed never lands: behind
//! it there is room again when it is below the low address.
//!
//! Invariants: what is reserved and not released lies between low and the next address; between the durable low and the next one
//! there are never more than `bytes_max`; no reservation crosses the end of the log; of what has landed and is not below low, no
//! two neighbours have more than the window between them, nor has the first one more before it.

use std::collections::VecDeque;

/// A byte of a log, counted from its first life on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Address(pub u64);

/// See the module.
#[derive(Clone, Debug)]
pub struct Space {
    /// Bytes of the log, and how many of them may be in use.
    size: u64,
    bytes_max: u64,
    window: u64,
    next: u64,
    durable_low: u64,
    /// What was reserved, by address.
    reserved: VecDeque<Reserved>,
}

#[derive(Clone, Copy, Debug)]
struct Reserved {
    at: u64,
    has_landed: bool,
    is_released: bool,
}

impl Space {
    /// A log of `size` bytes, in which nothing is, with `low` written down. So many bytes of it may be in use.
    ///
    /// # Panics
    /// More than there are.
    pub fn new(size: u64, bytes_max: u64, window: u64, low: Address) -> Space {
        assert!(bytes_max <= size, "no more can be in use than there is");
        Space { size, bytes_max, window, next: low.0, durable_low: low.0, reserved: VecDeque::new() }
    }

    /// A traversal found something of `len` bytes here. By address.
    ///
    /// # Panics
    /// Out of order.
    pub fn found(&mut self, at: Address, len: u64) {
        assert!(at.0 >= self.next, "what was found is taken in order");
        self.reserved.push_back(Reserved { at: at.0, has_landed: true, is_released: false });
        self.next = at.0 + len;
    }

    /// Whether there is room for an append of so many bytes.
    pub fn has_room(&self, len: u64) -> bool {
        self.place(len).is_some()
    }

    /// Where an append of so many bytes goes; none: there is no room.
    pub fn reserve(&mut self, len: u64) -> Option<Address> {
        let at = self.place(len)?;
        self.reserved.push_back(Reserved { at, has_landed: false, is_released: false });
        self.next = at + len;
        Some(Address(at))
    }

    fn place(&self, len: u64) -> Option<u64> {
        // It would cross the end: the rest of this round stays empty.
        let left = self.size - self.next % self.size;
        let at = if len > left { self.next + left } else { self.next };
        let first_open = self.reserved.iter().find(|reserved| !reserved.has_landed).map_or(at, |first| first.at);
        let is_room = at + len - self.durable_low <= self.bytes_max && at + len - first_open.min(at) <= self.window;
        is_room.then_some(at)
    }

    /// What was reserved here is there, durably.
    pub fn landed(&mut self, at: Address) {
        if let Ok(index) = self.reserved.binary_search_by_key(&at.0, |reserved| reserved.at) {
            self.reserved[index].has_landed = true;
        }
    }

    /// Nobody needs what was reserved here.
    pub fn release(&mut self, at: Address) {
        if let Ok(index) = self.reserved.binary_search_by_key(&at.0, |reserved| reserved.at) {
            self.reserved[index].is_released = true;
        }
        while self.reserved.front().is_some_and(|first| first.is_released) {
            self.reserved.pop_front();
        }
    }

    /// Below this nobody needs anything.
    pub fn low(&self) -> Address {
        Address(self.reserved.front().map_or(self.next, |first| first.at))
    }

    /// This low address is written down: what lies below may be written again. Gives the addresses that it frees.
    pub fn low_is_durable(&mut self, low: Address) -> std::ops::Range<u64> {
        let before = self.durable_low;
        self.durable_low = before.max(low.0.min(self.low().0));
        before..self.durable_low
    }

    /// Bytes from the low address to the next one.
    pub fn used(&self) -> u64 {
        self.next - self.low().0
    }

    /// Whether so much waits to be written down as free that it is worth a write: half of what may be in use.
    pub fn wants_low(&self) -> bool {
        self.low().0 - self.durable_low >= self.bytes_max / 2
    }

    /// Where an address lies in the log.
    pub fn offset(&self, at: Address) -> u64 {
        at.0 % self.size
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    #[test]
    fn what_is_released_is_used_again_when_that_is_durable() {
        let mut space = Space::new(100, 60, 60, Address(0));
        let [one, two, three] = [20, 20, 20].map(|len| space.reserve(len).expect("there is room"));
        assert_eq!([one, two, three], [Address(0), Address(20), Address(40)]);
        assert_eq!(space.reserve(1), None);
        space.release(two);
        assert_eq!((space.low(), space.used()), (Address(0), 60), "the first one is still needed");
        space.release(one);
        assert_eq!((space.low(), space.used()), (Address(40), 20));
        assert_eq!(space.reserve(1), None, "nobody would find it behind what is not written down");
        assert!(space.wants_low());
        assert_eq!(space.low_is_durable(Address(40)), 0..40);
        assert!(!space.wants_low());
        assert_eq!(space.reserve(40), Some(Address(60)));
        space.release(three);
        space.low_is_durable(Address(60));
        // Ten bytes would cross the end.
        let mut space = Space::new(100, 60, 60, Address(95));
        let at = space.reserve(10).expect("there is room");
        assert_eq!((at, space.offset(at)), (Address(100), 0));
        assert_eq!(space.low(), at);
    }

    /// Nothing that is reserved lies where something else is that a traversal could still come to.
    #[test]
    fn what_is_in_use_is_nobody_elses() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let (size, most) = (64, prng.between(8, 64));
            let mut space = Space::new(size, most, most, Address(prng.below(1_000)));
            let mut held: Vec<(Address, u64)> = Vec::new();
            // Of each byte of the log who has it.
            let mut bytes: Vec<Option<Address>> = vec![None; size as usize];
            let mut full = 0;
            for _ in 0..400 {
                match prng.below(4) {
                    0 | 1 => {
                        let len = prng.between(1, 12);
                        let Some(at) = space.reserve(len) else {
                            full += 1;
                            continue;
                        };
                        for byte in at.0..at.0 + len {
                            let byte = &mut bytes[(byte % size) as usize];
                            assert_eq!(*byte, None, "seed {seed}");
                            *byte = Some(at);
                        }
                        assert_eq!(at.0 / size, (at.0 + len - 1) / size, "seed {seed}: it crosses the end");
                        held.push((at, len));
                    }
                    2 if !held.is_empty() => {
                        let (at, _) = held.swap_remove(prng.below(held.len() as u64) as usize);
                        space.release(at);
                    }
                    _ => {
                        for byte in space.low_is_durable(space.low()) {
                            bytes[(byte % size) as usize] = None;
                        }
                    }
                }
                assert!(held.iter().all(|(at, _)| *at >= space.low()), "seed {seed}");
                assert!(space.used() <= most, "seed {seed}");
            }
            assert!(full > 0, "seed {seed}: the test reaches what it checks");
        }
    }

    /// However appends land, a traversal that goes on over holes of the window finds all that did.
    #[test]
    fn holes_are_no_longer_than_the_window() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let window = prng.between(10, 60);
            let mut space = Space::new(400, 400, window, Address(0));
            let (mut open, mut landed, mut full) = (Vec::new(), Vec::new(), 0);
            for _ in 0..100 {
                let len = prng.between(1, 10);
                match prng.below(3) {
                    0 if !open.is_empty() => {
                        let (at, len): (Address, u64) = open.swap_remove(prng.below(open.len() as u64) as usize);
                        space.landed(at);
                        landed.push((at.0, len));
                    }
                    _ => match space.has_room(len) {
                        true => open.push((space.reserve(len).expect("there is room"), len)),
                        false => full += 1,
                    },
                }
                landed.sort();
                let mut end = 0;
                for (at, len) in &landed {
                    assert!(at - end <= window, "seed {seed}: a hole from {end} to {at}, beyond {window}");
                    end = at + len;
                }
            }
            assert!(full > 0, "seed {seed}: the test reaches what it checks");
        }
    }

    #[test]
    fn what_a_traversal_finds_is_in_use() {
        let mut space = Space::new(1000, 500, 500, Address(2100));
        space.found(Address(2200), 50);
        space.found(Address(2300), 10);
        assert_eq!((space.low(), space.used()), (Address(2200), 110));
        assert_eq!(space.reserve(5), Some(Address(2310)));
        space.release(Address(2200));
        assert_eq!(space.low_is_durable(Address(2300)), 2100..2300);
    }
}
