//! How long writes take, and how even servers are, where each segment has replicas of its address map on several servers
//! (DiffForward, SIGMETRICS 2023, §2.4): *replication*.
//!
//! **What is modelled.** A volume that is not cut is one segment, which is best for replication (§5.3). A segment has three replicas
//! (how many the paper has is not printed) on servers drawn at random, and a write that is cut is done when all of its parts are. Of
//! the replicas the client takes the one with the least score, as C3 has it: `1 + o * w + q`, where o is what this client has under
//! way there, w the number of clients, and q how many requests wait there, as the last answer from there said. That one is the head of a chain for this write: its card receives the data, what is behind it
//! takes its time, and then the change of the address map goes to the next replica, whose card receives it in its turn, behind all
//! that it was asked for before, and so on. The last one's outcome is the client's. The data is in the storage behind all of them
//! once, so what follows the head is small.
//!
//! Kind to it: there are no messages but these, and none is lost; the outcome itself takes nothing; nobody repairs a chain.
//!
//! Cards are those of all other schemes ([`super::cards`]); what is behind them takes as long as there. It is a simulation of
//! events, one after the other in the order of their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use base::{Histogram, Instant, Prng};

use super::balance::{Balance, Bins};
use super::cards::{Cards, UnderWay, Way};
use super::geometry::Geometry;
use super::latency::WARM_UP;
use super::workload::{Traffic, Write};

/// What is there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Replication {
    /// Servers.
    pub servers: usize,
    /// How much of their cards the traffic takes on average, if data arrives in them once.
    pub utilization: f64,
    /// How volumes are cut.
    pub geometry: Geometry,
    /// On how many servers each segment is: d.
    pub replicas: usize,
    /// The head is the one with the least score; otherwise always the same one.
    pub chooses: bool,
    /// The change of the address map passes the chain; otherwise the head's outcome is the client's.
    pub synchronizes: bool,
    /// What is behind a card takes so long.
    pub behind: Duration,
    /// Bytes of the change of an address map.
    pub change_bytes: u64,
}

/// Something that happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A write wants to begin: its number.
    Begins(usize),
    /// A server has its part: the number of the chain, and which of it it is.
    Done(usize, usize),
}

/// What a client knows of one of a segment's replicas.
#[derive(Clone, Copy, Debug)]
struct Replica {
    server: usize,
    outstanding: u64,
    /// Requests that wait there, as it said last.
    waiting: u64,
}

/// A part of a write on its way.
#[derive(Clone, Copy, Debug)]
struct Chain {
    /// The number of the write.
    write: usize,
    /// Among all of all volumes.
    segment: usize,
    /// Which of the segment's replicas is the head.
    head: usize,
    /// Requests that waited there when it had the data.
    waiting: u64,
}

struct World<'a> {
    replication: Replication,
    writes: &'a [Write],
    cards: Cards,
    /// By volume, the number of its first segment.
    firsts: Vec<usize>,
    segments: Vec<Vec<Replica>>,
    chains: Vec<Chain>,
    /// Of each write, parts that are on their way.
    parts: Vec<u32>,
    under_way: UnderWay,
    /// Requests that wait at each server.
    waiting: Vec<u64>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    /// Events so far: of those at the same time the first one is first.
    order: u64,
    measured: Histogram,
    bins: Bins,
}

impl Replication {
    /// How long writes take, and how even servers are in bins of that length. Replicas are placed by `seed`.
    pub fn of(self, traffic: &Traffic, bin_ns: u64, seed: u64) -> (Histogram, Balance) {
        let mut prng = Prng::new(seed);
        let mut firsts = Vec::with_capacity(traffic.sizes.len());
        let mut segments = Vec::new();
        for size in &traffic.sizes {
            firsts.push(segments.len());
            segments.extend((0..self.geometry.segments(*size)).map(|_| self.place(&mut prng)));
        }
        let mut world = World {
            replication: self,
            writes: &traffic.writes,
            cards: Cards::of(traffic, self.servers, self.utilization),
            firsts,
            segments,
            chains: Vec::with_capacity(traffic.writes.len()),
            parts: vec![0; traffic.writes.len()],
            under_way: UnderWay::new(traffic.sizes.len()),
            waiting: vec![0; self.servers],
            events: BinaryHeap::new(),
            order: 0,
            measured: Histogram::new(),
            bins: Bins::new(self.servers, bin_ns),
        };
        world.run();
        (world.measured, world.bins.balance())
    }

    fn place(&self, prng: &mut Prng) -> Vec<Replica> {
        let mut servers: Vec<usize> = (0..self.servers).collect();
        let mut draw = || servers.swap_remove(prng.below(servers.len() as u64) as usize);
        (0..self.replicas.clamp(1, self.servers))
            .map(|_| Replica { server: draw(), outstanding: 0, waiting: 0 })
            .collect()
    }
}

impl World<'_> {
    fn run(&mut self) {
        let mut next = 0;
        loop {
            // Writes are begun one by one, so that those of the far future are not in the queue.
            let first = self.events.peek().map(|Reverse((at, ..))| *at);
            match self.writes.get(next) {
                Some(write) if first.is_none_or(|at| Instant(write.at_ns) <= at) => {
                    self.begin(Instant(write.at_ns), next);
                    next += 1;
                }
                _ => match self.events.pop() {
                    Some(Reverse((now, _, Event::Begins(number)))) => self.begin(now, number),
                    Some(Reverse((now, _, Event::Done(number, place)))) => self.done(now, number, place),
                    None => return,
                },
            }
        }
    }

    fn later(&mut self, at: Instant, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn begin(&mut self, now: Instant, number: usize) {
        let Write { at_ns, volume, offset, bytes, .. } = self.writes[number];
        let volume = volume as usize;
        if !self.under_way.begin(volume, offset..offset + bytes) {
            return self.later(now + UnderWay::AGAIN, Event::Begins(number));
        }
        for (segment, bytes) in self.replication.geometry.parts(offset, bytes) {
            self.parts[number] += 1;
            self.begin_part(now, number, self.firsts[volume] + segment as usize, bytes, at_ns);
        }
    }

    fn begin_part(&mut self, now: Instant, write: usize, segment: usize, bytes: u64, at_ns: u64) {
        let clients = self.firsts.len() as u64;
        let score = |replica: &Replica| 1 + replica.outstanding * clients + replica.waiting;
        let replicas = &mut self.segments[segment];
        let head = match self.replication.chooses {
            true => (0..replicas.len()).min_by_key(|at| score(&replicas[*at])).unwrap_or_default(),
            false => 0,
        };
        replicas[head].outstanding += 1;
        let server = replicas[head].server;
        self.chains.push(Chain { write, segment, head, waiting: 0 });
        self.waiting[server] += 1;
        self.bins.add(at_ns, server, bytes);
        let carried = self.cards.carry(now, server, Way::Received, bytes);
        self.later(carried.at + self.replication.behind, Event::Done(self.chains.len() - 1, 0));
    }

    fn done(&mut self, now: Instant, number: usize, place: usize) {
        let Chain { write, segment, head, waiting } = &mut self.chains[number];
        let replicas = &mut self.segments[*segment];
        if place == 0 {
            let server = replicas[*head].server;
            self.waiting[server] -= 1;
            *waiting = self.waiting[server];
        }
        let next = place + 1;
        if next < replicas.len() && self.replication.synchronizes {
            let server = replicas[(*head + next) % replicas.len()].server;
            let carried = self.cards.carry(now, server, Way::Received, self.replication.change_bytes);
            return self.later(carried.at + self.replication.behind, Event::Done(number, next));
        }
        replicas[*head].outstanding -= 1;
        replicas[*head].waiting = *waiting;
        let write = *write;
        self.parts[write] -= 1;
        if self.parts[write] == 0 {
            self.end(now, write);
        }
    }

    fn end(&mut self, now: Instant, write: usize) {
        let Write { at_ns, volume, offset, bytes, .. } = self.writes[write];
        self.under_way.end(volume as usize, offset..offset + bytes);
        if Duration::from_nanos(at_ns) >= WARM_UP {
            self.measured.record(now.nanos_since(Instant(at_ns)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// A byte takes a card a millisecond, with the traffic below.
    const THREE: Replication = Replication {
        servers: 4,
        utilization: 0.05,
        geometry: Geometry::WHOLE,
        replicas: 3,
        chooses: true,
        synchronizes: true,
        behind: Duration::from_millis(1),
        change_bytes: 2,
    };

    fn traffic(at_ns: u64, count: u64) -> Traffic {
        let write = |number| Write { at_ns, volume: 0, offset: number * 100, bytes: 100, is_burst: false };
        // The last one makes the cards what they are: 200 bytes a second, of which a twentieth of all four is used.
        let last = Write { at_ns: 100 * SECOND, volume: 1, bytes: 20_000 - count * 100, ..write(0) };
        Traffic { writes: (0..count).map(write).chain([last]).collect(), sizes: vec![1 << 30; 2] }
    }

    /// By hand.
    #[test]
    fn a_write_passes_the_chain() {
        let (latency, _) = THREE.of(&traffic(20 * SECOND, 1), SECOND, 1);
        // 100 bytes and what is behind, and twice 2 bytes and what is behind.
        let expected = 101 + 3 + 3;
        assert_eq!(latency.count(), 2);
        let first = latency.quantile(1) / 1_000_000;
        assert!((expected - 4..=expected + 4).contains(&first), "{first} ms");
    }

    /// By hand: both halves pass the chains of their own segments at once.
    #[test]
    fn a_write_that_is_cut_is_done_when_all_of_it_is() {
        let of = |geometry| {
            let write = |at_ns, bytes| Write { at_ns, volume: 0, offset: 0, bytes, is_burst: false };
            let writes = vec![write(20 * SECOND, 128 << 10), write(100 * SECOND, (384 - 128) << 10)];
            let traffic = Traffic { writes, sizes: vec![128 << 30] };
            // With another seed both segments may begin on one server.
            let latency = |seed| Replication { geometry, ..THREE }.of(&traffic, SECOND, seed).0.quantile(1);
            (0..10).map(latency).min().unwrap()
        };
        let (cut, whole) = (of(Geometry::paper(64)), of(Geometry::WHOLE));
        assert!((whole * 45 / 100..whole * 60 / 100).contains(&cut), "{cut} {whole}");
    }

    #[test]
    fn a_burst_goes_to_all_replicas_if_it_may_choose() {
        let most = |chooses| {
            let (latency, balance) = Replication { chooses, ..THREE }.of(&traffic(20 * SECOND, 30), SECOND, 1);
            (latency.quantile(900_000), balance.cov)
        };
        let ((chosen, even), (fixed, uneven)) = (most(true), most(false));
        assert!(fixed > 2 * chosen, "{fixed} {chosen}");
        assert!(uneven > 1.2 * even, "{uneven} {even}");
    }
}
