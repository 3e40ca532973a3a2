//! Two volumes, an admission and a disk: one volume asks steadily, the other one bursts as much as it can. And the same of
//! several stores that know nothing of each other, on one disk.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use base::levels::Level;
use base::{Instant, Prng, SegmentId, VolumeId};
use policies::admission::{Admission, AdmissionSettings, Outcome, Request, Verdict};
use policies::slow_requests::Direction;

use crate::disks::{Disk, Queue};

const SECOND: u64 = 1_000_000_000;

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests of 4 KiB per second of the steady volume, at random times.
    pub steady_per_sec: u64,
    /// Requests that the burst has in flight, and from which size to which they are, in powers of two.
    pub depth: u64,
    pub sizes: (u32, u32),
    /// Share of reads, in percent.
    pub reads: u64,
    pub seconds: u64,
    /// What is before that is not counted.
    pub warm_up: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Outcomes {
    /// Bytes per second of the burst.
    pub burst: f64,
    /// The steady volume's 99th percentile, from arrival to the end, in nanoseconds.
    pub p99: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Steady(usize),
    Done(usize),
    Look(usize),
}

struct Asked {
    store: usize,
    arrived: u64,
    granted: u64,
    request: Request,
    is_burst: bool,
}

pub fn run(disk: Disk, settings: AdmissionSettings, load: Load, seed: u64) -> Outcomes {
    run_stores(disk, settings, load, seed, 1)[0]
}

/// Each of the stores has two volumes with that load.
pub fn run_stores(disk: Disk, settings: AdmissionSettings, load: Load, seed: u64, stores: usize) -> Vec<Outcomes> {
    let store = || Store {
        admission: Admission::new(settings.clone(), Instant(0)),
        look_at: u64::MAX,
        burst_bytes: 0,
        latencies: Vec::new(),
    };
    let mut world = World {
        stores: (0..stores).map(|_| store()).collect(),
        disk: Queue::new(disk, seed),
        prng: Prng::new(seed ^ 77),
        events: BinaryHeap::new(),
        asked: Vec::new(),
        free: Vec::new(),
        load,
    };
    world.run()
}

struct Store {
    admission: Admission<usize>,
    look_at: u64,
    burst_bytes: u64,
    latencies: Vec<u64>,
}

struct World {
    stores: Vec<Store>,
    disk: Queue,
    prng: Prng,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    asked: Vec<Asked>,
    free: Vec<usize>,
    load: Load,
}

impl World {
    fn run(&mut self) -> Vec<Outcomes> {
        for store in 0..self.stores.len() {
            if self.load.steady_per_sec > 0 {
                self.events.push(Reverse((1, Event::Steady(store))));
            }
            for _ in 0..self.load.depth {
                self.ask(1, store, true);
            }
        }
        while let Some(Reverse((now, event))) = self.events.pop() {
            if now >= self.load.seconds * SECOND {
                break;
            }
            match event {
                Event::Steady(store) => {
                    self.ask(now, store, false);
                    let uniform = (self.prng.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
                    let gap = -(uniform.ln()) * SECOND as f64 / self.load.steady_per_sec as f64;
                    self.events.push(Reverse((now + gap as u64 + 1, Event::Steady(store))));
                }
                Event::Done(at) => self.done(now, at),
                Event::Look(store) => {
                    self.stores[store].look_at = u64::MAX;
                    self.grant(now, store);
                }
            }
        }
        let measured = (self.load.seconds - self.load.warm_up) as f64;
        let outcomes = self.stores.iter_mut().map(|store| {
            store.latencies.sort_unstable();
            let rank = store.latencies.len() * 99 / 100;
            Outcomes {
                burst: store.burst_bytes as f64 / measured,
                p99: store.latencies.get(rank).copied().unwrap_or(0),
            }
        });
        outcomes.collect()
    }

    fn ask(&mut self, now: u64, store: usize, is_burst: bool) {
        let (from, to) = self.load.sizes;
        let bytes = if is_burst { 1 << self.prng.between(from.into(), to.into()) } else { 4096 };
        let direction = if self.prng.below(100) < self.load.reads { Direction::Read } else { Direction::Write };
        let segment = SegmentId { volume: VolumeId(1 + u64::from(is_burst)), index: self.prng.below(4) as u32 };
        let request = Request { segment, bytes, direction, level: Level::Open };
        let asked = Asked { store, arrived: now, granted: now, request, is_burst };
        let at = match self.free.pop() {
            Some(at) => {
                self.asked[at] = asked;
                at
            }
            None => {
                self.asked.push(asked);
                self.asked.len() - 1
            }
        };
        match self.stores[store].admission.submit(Instant(now), request, || at).expect("bounded") {
            Verdict::Start => self.start(now, at),
            Verdict::Wait => self.grant(now, store),
        }
    }

    fn grant(&mut self, now: u64, store: usize) {
        while let Some(grant) = self.stores[store].admission.next_grant(Instant(now)) {
            self.start(now, grant.ticket);
        }
        if let Some(look) = self.stores[store].admission.next_look(Instant(now)) {
            let look = look.0.max(now + 1);
            if look < self.stores[store].look_at {
                self.stores[store].look_at = look;
                self.events.push(Reverse((look, Event::Look(store))));
            }
        }
    }

    fn start(&mut self, now: u64, at: usize) {
        let asked = &mut self.asked[at];
        asked.granted = now;
        let is_write = asked.request.direction == Direction::Write;
        let done = self.disk.done_at(now, is_write, asked.request.bytes);
        self.events.push(Reverse((done, Event::Done(at))));
    }

    fn done(&mut self, now: u64, at: usize) {
        let Asked { store, arrived, granted, request, is_burst } = self.asked[at];
        let Request { bytes, direction, segment, .. } = request;
        let outcome = Outcome { segment, granted: Instant(granted), bytes, direction, went_below: true };
        self.stores[store].admission.on_done(Instant(now), outcome);
        self.free.push(at);
        if now >= self.load.warm_up * SECOND {
            match is_burst {
                true => self.stores[store].burst_bytes += bytes,
                false => self.stores[store].latencies.push(now - arrived),
            }
        }
        if is_burst {
            self.ask(now, store, true);
        }
    }
}
