//! Keeps overlapping writes of a volume in the order of their arrival (docs/SAFETY.md, rule 30).
//!
//! A write is sent only when every earlier one that it overlaps has an outcome; writes that touch different bytes do
//! not wait for each other. For each byte the order remembers the *last* write that covers it, in flight or waiting;
//! a new write waits for exactly those that it covers, since whatever lies below them they wait for themselves. So
//! the cost is that of the pieces it covers, however many writes wait.
//!
//! A pure state machine: who waits is told by its ticket when its turn has come.

use std::ops::Range;

use base::{IntervalMap, Split};
use slab::Slab;

/// A write's name until it is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(usize);

impl Split for Ticket {
    fn split_off(&mut self, _at: u64) -> Self {
        *self
    }
}

#[derive(Debug)]
struct Entry {
    range: Range<u64>,
    /// Earlier writes that it waits for.
    blockers: usize,
    /// Later writes that wait for it.
    dependents: Vec<Ticket>,
}

/// The writes of one volume that have no outcome yet.
#[derive(Debug, Default)]
pub struct WriteOrder {
    /// For each byte, the last write that covers it.
    last: IntervalMap<Ticket>,
    entries: Slab<Entry>,
}

impl WriteOrder {
    /// An order without writes.
    pub fn new() -> Self {
        Self::default()
    }

    /// A write of `range` (not empty) arrived: its ticket, and whether it may be sent now. If not, some later
    /// [`Self::on_done`] will name it.
    pub fn on_arrival(&mut self, range: Range<u64>) -> (Ticket, bool) {
        let ticket = Ticket(self.entries.insert(Entry { range: range.clone(), blockers: 0, dependents: Vec::new() }));
        let mut covered: Vec<Ticket> =
            self.last.insert(range, ticket).into_iter().map(|(_, earlier)| earlier).collect();
        covered.sort_unstable();
        covered.dedup();
        for earlier in &covered {
            self.entries[earlier.0].dependents.push(ticket);
        }
        self.entries[ticket.0].blockers = covered.len();
        (ticket, covered.is_empty())
    }

    /// A write that was sent has its outcome: the tickets that may be sent now, in order of arrival.
    pub fn on_done(&mut self, ticket: Ticket) -> Vec<Ticket> {
        let done = self.entries.remove(ticket.0);
        assert_eq!(done.blockers, 0, "a write is done only after it was sent");
        match self.last.get(done.range.start) {
            // The common case: nobody came after it.
            Some((range, &last)) if last == ticket && range == done.range => drop(self.last.remove(range)),
            _ => {
                let own = self.last.overlapping(done.range).filter(|(_, last)| **last == ticket);
                let own: Vec<Range<u64>> = own.map(|(range, _)| range).collect();
                own.into_iter().for_each(|range| drop(self.last.remove(range)));
            }
        }
        let mut ready = done.dependents;
        ready.retain(|later| {
            let entry = &mut self.entries[later.0];
            entry.blockers -= 1;
            entry.blockers == 0
        });
        ready
    }

    /// Writes without an outcome.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether every write has its outcome.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Asserts what always holds.
    pub fn check_invariants(&self) {
        for (range, last) in self.last.iter() {
            let entry = self.entries.get(last.0).expect("the last write of a byte has no outcome yet");
            assert!(entry.range.start <= range.start && range.end <= entry.range.end, "it covers that byte");
        }
        let waits: usize = self.entries.iter().map(|(_, entry)| entry.blockers).sum();
        let waited_for: usize = self.entries.iter().map(|(_, entry)| entry.dependents.len()).sum();
        assert_eq!(waits, waited_for, "who waits is known to whom it waits for");
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    #[test]
    fn a_write_waits_for_what_it_overlaps_and_for_nothing_else() {
        let mut order = WriteOrder::new();
        let (first, now) = order.on_arrival(0..8);
        let (beside, beside_now) = order.on_arrival(8..16);
        let (over, over_now) = order.on_arrival(4..12);
        let (third, third_now) = order.on_arrival(4..5);
        assert_eq!([now, beside_now, over_now, third_now], [true, true, false, false]);
        order.check_invariants();
        assert_eq!(order.on_done(first), []);
        assert_eq!(order.on_done(beside), [over]);
        assert_eq!(order.on_done(over), [third]);
        assert_eq!(order.on_done(third), []);
        assert!(order.is_empty());
        order.check_invariants();
    }

    /// Random writes and outcomes against a list of all of them.
    #[test]
    fn agrees_with_a_list() {
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let mut order = WriteOrder::new();
            // Arrival order; whether it was sent.
            let mut model: Vec<(Ticket, Range<u64>, bool)> = Vec::new();
            let mut waited = 0;
            for _ in 0..200 {
                if model.is_empty() || prng.one_in(2) {
                    let start = prng.below(60);
                    let range = start..start + prng.between(1, 30);
                    let free = model.iter().all(|(_, r, _)| r.end <= range.start || range.end <= r.start);
                    let (ticket, now) = order.on_arrival(range.clone());
                    assert_eq!(now, free, "seed {seed}");
                    waited += usize::from(!now);
                    model.push((ticket, range, now));
                } else {
                    let sent: Vec<usize> = (0..model.len()).filter(|&i| model[i].2).collect();
                    let (ticket, ..) = model.remove(*prng.pick(&sent));
                    let ready = order.on_done(ticket);
                    for i in 0..model.len() {
                        let (earlier, rest) = model.split_at(i);
                        let range = &rest[0].1;
                        let free = earlier.iter().all(|(_, r, _)| r.end <= range.start || range.end <= r.start);
                        assert_eq!(free, rest[0].2 || ready.contains(&rest[0].0), "seed {seed}");
                    }
                    model.iter_mut().for_each(|(ticket, _, sent)| *sent |= ready.contains(ticket));
                }
                assert_eq!(order.len(), model.len());
                order.check_invariants();
            }
            assert!(waited > 0, "seed {seed}: the test reaches what it checks");
        }
    }

    /// A row of writes to one place costs each of them one step, not a look at all the others.
    #[test]
    fn many_writes_to_one_place_form_a_chain() {
        let mut order = WriteOrder::new();
        let tickets: Vec<Ticket> = (0..20_000).map(|_| order.on_arrival(0..8).0).collect();
        for pair in tickets.windows(2) {
            assert_eq!(order.on_done(pair[0]), [pair[1]]);
        }
    }
}
