//! The event queue: what happens next, ordered by time and then by insertion.
//!
//! Ties are broken by the order of insertion, so that the order of a run depends on the seed and on nothing else.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A queue of events, each at a point of virtual time (nanoseconds since the world began).
#[derive(Debug)]
pub(super) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    inserted: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at_ns: u64,
    sequence: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(super) fn new() -> Self {
        EventQueue { heap: BinaryHeap::new(), inserted: 0 }
    }

    /// Adds an event; of several at one time the first added comes first.
    pub(super) fn push(&mut self, at_ns: u64, event: E) {
        self.inserted += 1;
        self.heap.push(Entry { at_ns, sequence: self.inserted, event });
    }

    /// Takes the next event and its time.
    pub(super) fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|entry| (entry.at_ns, entry.event))
    }

    /// The time of the next event.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.at_ns)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    // The heap's maximum is the earliest entry.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.sequence).cmp(&(self.at_ns, self.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_then_by_insertion() {
        let mut queue = EventQueue::new();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            queue.push(at, event);
        }
        assert_eq!(queue.next_at(), Some(3));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(3, 'a'), (3, 'b'), (5, 'c'), (5, 'd')]);
    }
}
