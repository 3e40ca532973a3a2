//! How long writes and reads take, and how even servers are, where each segment has replicas of its address map on several servers
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
//! A read is answered by the replica with the least score. Where what is behind a server is reached by the same card
//! (figure 15), what is written leaves it once more, changes of address maps, too, and what is read comes in by it.
//!
//! Kind to it: there are no messages but these, and none is lost; the outcome itself takes nothing; nobody repairs a chain; and any
//! replica may answer a read, as if it always knew whether a change of the map is still on its way to it.
//!
//! Cards are those of all other schemes ([`super::cards`]); what is behind them takes as long as there. It is a simulation of
//! events, one after the other in the order of their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use base::{Instant, Prng};

use super::balance::Bins;
use super::cards::{Cards, UnderWay, Way};
use super::geometry::Geometry;
use super::latency::{Latency, WARM_UP};
use super::workload::{Read, Traffic, Write};

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
    /// What is behind a card is reached by the same one.
    pub has_one_card: bool,
    /// Bytes of the change of an address map.
    pub change_bytes: u64,
}

/// Something that happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A request wants to begin: its number.
    Begins(usize),
    /// A server's only card has received what it sends on: the number of the part, and where in its chain that server is.
    Received(usize, usize),
    /// A server has done its part: the same two.
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

/// What a client wants.
#[derive(Clone, Copy, Debug)]
enum Request {
    Write(Write),
    Read(Read),
}

impl Request {
    fn at(self) -> Instant {
        Instant(self.read().at_ns)
    }

    fn is_write(self) -> bool {
        matches!(self, Request::Write(_))
    }

    /// When, and where.
    fn read(self) -> Read {
        match self {
            Request::Read(read) => read,
            Request::Write(Write { at_ns, volume, offset, bytes, .. }) => Read { at_ns, volume, offset, bytes },
        }
    }
}

/// A part of a request on its way. That of a write passes a chain, that of a read has one server.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The number of the request.
    request: usize,
    /// Among all of all volumes.
    segment: usize,
    bytes: u64,
    /// Which of the segment's replicas is the head.
    head: usize,
    /// Requests that waited there when it was done with this one.
    waiting: u64,
}

struct World<'a> {
    replication: Replication,
    requests: &'a [Request],
    cards: Cards,
    /// By volume, the number of its first segment.
    firsts: Vec<usize>,
    segments: Vec<Vec<Replica>>,
    parts: Vec<Part>,
    /// Of each request, parts that are on their way.
    left: Vec<u32>,
    under_way: UnderWay,
    /// Requests that wait at each server.
    waiting: Vec<u64>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    /// Events so far: of those at the same time the first one is first.
    order: u64,
    measured: Latency,
    bins: Bins,
}

impl Replication {
    /// How long writes and reads take, and how even servers are in bins of that length: reads are not counted. Replicas are placed by
    /// `seed`.
    pub fn of(self, traffic: &Traffic, reads: &[Read], bin_ns: u64, seed: u64) -> Latency {
        let mut prng = Prng::new(seed);
        let mut firsts = Vec::with_capacity(traffic.sizes.len());
        let mut segments = Vec::new();
        for size in &traffic.sizes {
            firsts.push(segments.len());
            segments.extend((0..self.geometry.segments(*size)).map(|_| self.place(&mut prng)));
        }
        let writes = traffic.writes.iter().map(|write| Request::Write(*write));
        let mut requests: Vec<Request> = writes.chain(reads.iter().map(|read| Request::Read(*read))).collect();
        requests.sort_by_key(|request| request.at());
        let mut world = World {
            replication: self,
            requests: &requests,
            cards: Cards::of(traffic, self.servers, self.utilization),
            firsts,
            segments,
            parts: Vec::with_capacity(requests.len()),
            left: vec![0; requests.len()],
            under_way: UnderWay::new(traffic.sizes.len()),
            waiting: vec![0; self.servers],
            events: BinaryHeap::new(),
            order: 0,
            measured: Latency::default(),
            bins: Bins::new(self.servers, bin_ns),
        };
        world.run();
        Latency { balance: Some(world.bins.balance()), ..world.measured }
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
            // Requests are begun one by one, so that those of the far future are not in the queue.
            let first = self.events.peek().map(|Reverse((at, ..))| *at);
            match self.requests.get(next) {
                Some(request) if first.is_none_or(|at| request.at() <= at) => {
                    self.begin(request.at(), next);
                    next += 1;
                }
                _ => match self.events.pop() {
                    Some(Reverse((now, _, Event::Begins(number)))) => self.begin(now, number),
                    Some(Reverse((now, _, Event::Received(number, place)))) => {
                        self.carry(now, number, place, Way::Sent);
                    }
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
        let request = self.requests[number];
        let Read { volume, offset, bytes, .. } = request.read();
        let volume = volume as usize;
        if request.is_write() && !self.under_way.begin(volume, offset..offset + bytes) {
            return self.later(now + UnderWay::AGAIN, Event::Begins(number));
        }
        for (segment, bytes) in self.replication.geometry.parts(offset, bytes) {
            self.left[number] += 1;
            self.begin_part(now, number, self.firsts[volume] + segment as usize, bytes);
        }
    }

    fn begin_part(&mut self, now: Instant, number: usize, segment: usize, bytes: u64) {
        let clients = self.firsts.len() as u64;
        let score = |replica: &Replica| 1 + replica.outstanding * clients + replica.waiting;
        let replicas = &mut self.segments[segment];
        let head = match self.replication.chooses {
            true => (0..replicas.len()).min_by_key(|at| score(&replicas[*at])).unwrap_or_default(),
            false => 0,
        };
        replicas[head].outstanding += 1;
        let server = replicas[head].server;
        self.parts.push(Part { request: number, segment, bytes, head, waiting: 0 });
        self.waiting[server] += 1;
        if let Request::Write(write) = self.requests[number] {
            self.bins.add(write.at_ns, server, bytes);
        }
        self.ask(now, self.parts.len() - 1, 0);
    }

    /// A server of a chain is asked: what a client writes comes in, and what it reads does if there is one card only.
    fn ask(&mut self, now: Instant, number: usize, place: usize) {
        let is_write = self.requests[self.parts[number].request].is_write();
        let way = if is_write || self.replication.has_one_card { Way::Received } else { Way::Sent };
        self.carry(now, number, place, way);
    }

    fn carry(&mut self, now: Instant, number: usize, place: usize, way: Way) {
        let Part { segment, bytes, head, .. } = self.parts[number];
        let replicas = &self.segments[segment];
        let server = replicas[(head + place) % replicas.len()].server;
        let bytes = if place == 0 { bytes } else { self.replication.change_bytes };
        let carried = self.cards.carry(now, server, way, bytes);
        match way {
            Way::Received if self.replication.has_one_card => self.later(carried.at, Event::Received(number, place)),
            _ => self.later(carried.at + self.replication.behind, Event::Done(number, place)),
        }
    }

    fn done(&mut self, now: Instant, number: usize, place: usize) {
        let Part { request, segment, head, waiting, .. } = &mut self.parts[number];
        let replicas = &mut self.segments[*segment];
        if place == 0 {
            let server = replicas[*head].server;
            self.waiting[server] -= 1;
            *waiting = self.waiting[server];
        }
        let passes_chain = self.replication.synchronizes && self.requests[*request].is_write();
        if place + 1 < replicas.len() && passes_chain {
            return self.ask(now, number, place + 1);
        }
        replicas[*head].outstanding -= 1;
        replicas[*head].waiting = *waiting;
        let request = *request;
        self.left[request] -= 1;
        if self.left[request] == 0 {
            self.end(now, request);
        }
    }

    fn end(&mut self, now: Instant, number: usize) {
        let request = self.requests[number];
        let Read { at_ns, volume, offset, bytes } = request.read();
        if request.is_write() {
            self.under_way.end(volume as usize, offset..offset + bytes);
        }
        if Duration::from_nanos(at_ns) >= WARM_UP {
            let measured = if request.is_write() { &mut self.measured.writes } else { &mut self.measured.reads };
            measured.record(now.nanos_since(request.at()));
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
        has_one_card: false,
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
        let first = |has_one_card| {
            let three = Replication { has_one_card, ..THREE };
            let writes = three.of(&traffic(20 * SECOND, 1), &[], SECOND, 1).writes;
            assert_eq!(writes.count(), 2);
            writes.quantile(1) / 1_000_000
        };
        // 100 bytes and what is behind, and twice 2 bytes and what is behind; bytes twice if the card is the only one.
        for (has_one_card, expected) in [(false, 101 + 3 + 3), (true, 201 + 5 + 5)] {
            let first = first(has_one_card);
            assert!((expected - 8..=expected + 8).contains(&first), "{first} ms");
        }
    }

    /// By hand: a read that comes during a write finds another replica, and meets that write where it has no choice and the card is
    /// the only one.
    #[test]
    fn a_read_has_one_server_of_three() {
        let read = Read { at_ns: 20 * SECOND + SECOND / 20, volume: 0, offset: 1 << 20, bytes: 100 };
        let found = |chooses, has_one_card| {
            let three = Replication { chooses, has_one_card, ..THREE };
            let reads = three.of(&traffic(20 * SECOND, 1), &[read], SECOND, 1).reads;
            assert_eq!(reads.count(), 1);
            reads.max() / 1_000_000
        };
        // Another card: nothing leaves but this. One card: it comes in behind the write's other half, and leaves behind all of it.
        for (chooses, has_one_card, expected) in
            [(true, false, 101), (false, false, 101), (true, true, 201), (false, true, 251)]
        {
            let found = found(chooses, has_one_card);
            assert!((expected - 10..=expected + 10).contains(&found), "{chooses} {has_one_card}: {found} ms");
        }
    }

    /// By hand: both halves pass the chains of their own segments at once.
    #[test]
    fn a_write_that_is_cut_is_done_when_all_of_it_is() {
        let of = |geometry| {
            let write = |at_ns, bytes| Write { at_ns, volume: 0, offset: 0, bytes, is_burst: false };
            let writes = vec![write(20 * SECOND, 128 << 10), write(100 * SECOND, (384 - 128) << 10)];
            let traffic = Traffic { writes, sizes: vec![128 << 30] };
            // With another seed both segments may begin on one server.
            let latency = |seed| Replication { geometry, ..THREE }.of(&traffic, &[], SECOND, seed).writes.quantile(1);
            (0..10).map(latency).min().unwrap()
        };
        let (cut, whole) = (of(Geometry::paper(64)), of(Geometry::WHOLE));
        assert!((whole * 45 / 100..whole * 60 / 100).contains(&cut), "{cut} {whole}");
    }

    #[test]
    fn a_burst_goes_to_all_replicas_if_it_may_choose() {
        let most = |chooses| {
            let latency = Replication { chooses, ..THREE }.of(&traffic(20 * SECOND, 30), &[], SECOND, 1);
            (latency.writes.quantile(900_000), latency.balance.expect("it is measured").cov)
        };
        let ((chosen, even), (fixed, uneven)) = (most(true), most(false));
        assert!(fixed > 2 * chosen, "{fixed} {chosen}");
        assert!(uneven > 1.2 * even, "{uneven} {even}");
    }
}
