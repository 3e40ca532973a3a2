//! The two rings of a queue: what the guest makes available, what the device has used, and who wants to be told.
//!
//! The rings are `virtio_queue`'s; around them is what makes them safe to believe: a request that is in flight is not taken
//! again, and what is in flight is marked for a life after this one ([`super::inflight`]).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use base::seeded::is_on;
use runtime::guest::Memory;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::GuestAddress;

use super::chain::is_reachable;
use super::inflight::{Left, Tracking};
use super::protocol::{QUEUE_SIZE_MAX, Violation};

/// Where the parts of a queue lie, in guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// The table of descriptors.
    pub descriptors: u64,
    /// The ring of what is available.
    pub available: u64,
    /// The ring of what was used.
    pub used: u64,
}

/// See the module.
pub struct Ring {
    queue: Queue,
    /// Whether the request of that head is in flight.
    in_flight: Vec<bool>,
    count: usize,
    tracking: Option<Tracking>,
    /// What a former life has left to be done again.
    left: VecDeque<u16>,
}

impl Ring {
    /// A queue of `size` descriptors at `places`, whose next available place is `next`. `tells`: either side says when it
    /// wants to be told.
    ///
    /// # Errors
    /// There can be no such queue in this memory.
    pub fn new(memory: &Memory, size: u16, places: Places, next: u16, tells: bool) -> Result<Ring, Violation> {
        if size == 0 || size > QUEUE_SIZE_MAX || !size.is_power_of_two() {
            return Err(Violation::Ring);
        }
        let mut queue = Queue::new(size).map_err(|_| Violation::Ring)?;
        queue.set_event_idx(tells);
        queue.set_next_avail(next);
        let in_flight = vec![false; usize::from(size)];
        let mut ring = Ring { queue, in_flight, count: 0, tracking: None, left: VecDeque::new() };
        ring.place(memory, places)?;
        let used = ring.used_index(memory)?;
        ring.queue.set_next_used(used);
        Ok(ring)
    }

    /// The guest's memory is another one now, and the parts lie at `places`.
    ///
    /// # Errors
    /// They cannot lie there.
    pub fn place(&mut self, memory: &Memory, places: Places) -> Result<(), Violation> {
        let (map, size) = (memory.map(), u64::from(self.queue.size()));
        // With the two bytes at the end of either ring in which the other side is told when to tell.
        let parts = [(places.descriptors, 16 * size), (places.available, 6 + 2 * size), (places.used, 6 + 8 * size)];
        if let Some((address, len)) = parts.into_iter().find(|(address, len)| !is_reachable(map, *address, *len)) {
            return Err(Violation::Unreachable { address, len });
        }
        let set = [
            self.queue.try_set_desc_table_address(GuestAddress(places.descriptors)),
            self.queue.try_set_avail_ring_address(GuestAddress(places.available)),
            self.queue.try_set_used_ring_address(GuestAddress(places.used)),
        ];
        if set.iter().any(|outcome| outcome.is_err()) || places.available == 0 {
            return Err(Violation::Ring);
        }
        self.queue.set_ready(true);
        Ok(())
    }

    /// What is taken is marked by `tracking` from here on. `left`: what a former life of the queue has left: that comes
    /// first, and what is available next follows from it.
    pub fn track(&mut self, tracking: Tracking, left: Option<Left>) {
        self.tracking = Some(tracking);
        if let Some(Left { heads }) = left {
            self.queue.set_next_avail(self.queue.next_used().wrapping_add(heads.len() as u16));
            self.left = heads.into();
        }
    }

    /// Takes the next request: its head. Its descriptors are for [`super::chain::copy_chain`].
    ///
    /// # Errors
    /// The guest broke the rules.
    pub fn take(&mut self, memory: &Memory) -> Result<Option<u16>, Violation> {
        let (head, is_left) = match self.left.pop_front() {
            Some(head) => (head, true),
            None => match self.queue.iter(memory.map()).map_err(|_| Violation::Ring)?.next() {
                Some(chain) => (chain.head_index(), false),
                None => return Ok(None),
            },
        };
        match self.in_flight.get_mut(usize::from(head)) {
            None => return Err(Violation::OutOfTable),
            Some(in_flight) if *in_flight => return Err(Violation::Again),
            Some(in_flight) => *in_flight = true,
        }
        self.count += 1;
        if let Some(tracking) = &mut self.tracking
            && !is_left
            && !is_on("guest-not-marked")
            && let Err(violation) = tracking.mark(head)
        {
            self.give_up(head);
            return Err(violation);
        }
        Ok(Some(head))
    }

    /// How many requests a former life has left, and nobody has taken yet.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// What a former life has left is not done by this one. It stays marked.
    pub fn leave(&mut self) {
        self.left.clear();
    }

    /// How many requests are there that nobody has taken.
    ///
    /// # Errors
    /// The ring is not there any more.
    pub fn remaining(&self, memory: &Memory) -> Result<usize, Violation> {
        let available = self.queue.avail_idx(memory.map(), Ordering::Acquire).map_err(|_| Violation::Ring)?;
        Ok(self.left.len() + usize::from(available.0.wrapping_sub(self.queue.next_avail())))
    }

    /// Where the table of descriptors lies.
    pub fn table(&self) -> u64 {
        self.queue.desc_table()
    }

    /// How many descriptors it has.
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// A request that was taken is done, with `len` bytes written to its guest.
    ///
    /// # Errors
    /// The ring is not there any more.
    pub fn put_used(&mut self, memory: &Memory, head: u16, len: u32) -> Result<(), Violation> {
        self.give_up(head);
        if let Some(tracking) = &mut self.tracking {
            tracking.before_used(head)?;
        }
        self.queue.add_used(memory.map(), head, len).map_err(|_| Violation::Ring)?;
        let used = self.queue.next_used();
        if is_on("guest-stays-marked") {
            return self.tracking.as_mut().map_or(Ok(()), |tracking| tracking.note_used(used));
        }
        self.tracking.as_mut().map_or(Ok(()), |tracking| tracking.unmark(head, used))
    }

    /// A request that was taken will not be answered by this life.
    pub fn give_up(&mut self, head: u16) {
        let was_in_flight = std::mem::take(&mut self.in_flight[usize::from(head)]);
        assert!(was_in_flight, "a request is used once");
        self.count -= 1;
    }

    /// Whether the guest wants to be told of what was used since this was asked last.
    ///
    /// # Errors
    /// The ring is not there any more.
    pub fn wants_call(&mut self, memory: &Memory) -> Result<bool, Violation> {
        self.queue.needs_notification(memory.map()).map_err(|_| Violation::Ring)
    }

    /// Asks to be told of what is made available from here on; whether something is there already.
    ///
    /// # Errors
    /// The ring is not there any more.
    pub fn listen(&mut self, memory: &Memory) -> Result<bool, Violation> {
        self.queue.enable_notification(memory.map()).map_err(|_| Violation::Ring)
    }

    /// Asks not to be told.
    ///
    /// # Errors
    /// The ring is not there any more.
    pub fn stop_listening(&mut self, memory: &Memory) -> Result<(), Violation> {
        self.queue.disable_notification(memory.map()).map_err(|_| Violation::Ring)
    }

    /// Requests that were taken and not used.
    pub fn in_flight(&self) -> usize {
        self.count
    }

    /// The next place of the ring of what is available.
    pub fn next(&self) -> u16 {
        self.queue.next_avail()
    }

    /// The index of the used ring, as the guest sees it.
    ///
    /// # Errors
    /// The ring is not there.
    pub fn used_index(&self, memory: &Memory) -> Result<u16, Violation> {
        let used = self.queue.used_idx(memory.map(), Ordering::Acquire);
        used.map(|used| used.0).map_err(|_| Violation::Ring)
    }
}
