//! How long writes take where the network cards of servers are what is scarce (DiffForward, SIGMETRICS 2023, §5.3 and §5.4).
//!
//! **What is real, and what is modelled.** The agent's side is the store's own: [`agent::forwarding`] with its detector, logs,
//! index, book and merging, one agent for all volumes, in a simulated world. A server is its network card: that carries so many
//! bytes in a second each way, in the order in which they were asked for, whether a client writes them, a log takes them, or
//! merging reads and writes them once more. What is behind it takes the same time for each request. The paper has storage there that
//! gets slower with load, and connections that compete; here waiting for the card is all that differs.
//!
//! Segments are placed at random, with Levee's own layout (groups of four, of 32 GiB). A volume has as many logs as a cluster of that
//! size gives it, on all servers in turn.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use agent::forwarding::{Forwarder, Mode, Options};
use base::buffer::zeros;
use base::levels::Level;
use base::limits::SEGMENT_SIZE;
use base::{
    AllocationExtent, Bytes, Epoch, Error, Generation, Histogram, Instant, KIB, Map, Passage, Prng, ReadPart, Result,
    SegmentId, VolumeId, WriteSequence, WriteStamp,
};
use policies::burst::BurstSettings;
use runtime::sim::{CpuOptions, NodeOptions, World};
use runtime::sync::join_all;
use runtime::{Class, Handle};
use wire::{
    Answer, Attachment, BlockService, Layout, LocalBoxFuture, Reply, SessionId, Target, VolumeDescriptor,
    VolumeDirectory,
};

use super::workload::{Traffic, Write};

/// What is there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cluster {
    /// Servers.
    pub servers: usize,
    /// How much of their cards the traffic takes on average: that it arrives in them once, as if nothing were forwarded.
    pub utilization: f64,
    /// What is a burst; none: everything goes to owners (segmentation).
    pub bursts: Option<BurstSettings>,
    /// Whether a volume's logs are on all servers in turn; otherwise all of them are on one.
    pub in_turn: bool,
    /// What is behind a card takes so long.
    pub behind: Duration,
}

/// What came of it.
#[derive(Clone, Default, Debug)]
pub struct Latency {
    /// Of each write after a warm-up, in nanoseconds.
    pub writes: Histogram,
    /// Bytes that were written, that went to logs, and that came home, from the begin on.
    pub bytes: [u64; 3],
    /// The most that waited in logs, in bytes.
    pub waiting_max: u64,
}

/// Writes of the first seconds are not looked at: nothing is known of a volume yet.
const WARM_UP: Duration = Duration::from_secs(10);
/// A write that overlaps another one on its way is looked at again after so long.
const AGAIN: Duration = Duration::from_micros(100);
const STRIPE: u64 = 64 * KIB;
/// Logs of a volume are a volume with a number that is so much higher.
const LOGS: u64 = 1 << 32;
/// A cluster of more than four servers has eight logs of a volume, one of four or less has four.
const FEW: usize = 4;

impl Latency {
    /// Of traffic on a cluster. Segments are placed by `seed`.
    pub fn of(traffic: &Traffic, cluster: Cluster, seed: u64) -> Latency {
        let world = World::new(seed);
        // What an agent's processor takes is not what this is about.
        let cpu = CpuOptions { clock_ns: 1, submit_ns: 1, outcome_ns: 1, ..CpuOptions::default() };
        let node = world.add_node(NodeOptions { cpu, ..NodeOptions::default() });
        let handle = world.start_loop(node);
        let bytes: u64 = traffic.writes.iter().map(|write| write.bytes).sum();
        let seconds = traffic.writes.last().map_or(1.0, |last| last.at_ns as f64 / 1e9);
        let card = (bytes as f64 / seconds / cluster.servers as f64 / cluster.utilization).max(1.0) as u64;
        let servers = Rc::new(Servers {
            handle: handle.clone(),
            cluster,
            card,
            free: RefCell::new(vec![[Instant::ZERO; 2]; cluster.servers]),
            homes: RefCell::default(),
            prng: RefCell::new(Prng::new(seed)),
            sizes: traffic.sizes.clone(),
            generation: Cell::new(1),
            sessions: Cell::new(0),
        });
        let (writes, inside) = (traffic.writes.clone(), handle.clone());
        world.block_on(&handle, async move { servers.serve(inside, writes).await })
    }
}

/// Servers that are network cards, and a manager that knows all volumes.
struct Servers {
    handle: Handle,
    cluster: Cluster,
    /// Bytes in a second of each card, each way.
    card: u64,
    /// When each card has received and sent what it was asked for.
    free: RefCell<Vec<[Instant; 2]>>,
    homes: RefCell<Map<SegmentId, usize>>,
    prng: RefCell<Prng>,
    sizes: Vec<u64>,
    generation: Cell<u64>,
    sessions: Cell<u64>,
}

#[derive(Clone, Copy)]
enum Way {
    Received = 0,
    Sent = 1,
}

/// What clients of all volumes do, and what came of it.
struct Clients {
    handle: Handle,
    forwarder: Rc<Forwarder>,
    sessions: Vec<SessionId>,
    /// Of each volume, what is on its way.
    under_way: RefCell<Vec<Vec<Range<u64>>>>,
    begun: Instant,
    measured: RefCell<Histogram>,
}

impl Servers {
    async fn serve(self: Rc<Self>, handle: Handle, writes: Vec<Write>) -> Latency {
        let options = match self.cluster.bursts {
            Some(burst) => Options { mode: Mode::On, burst, ..Options::default() },
            None => Options::default(),
        };
        let forwarder = Forwarder::new(&handle, self.clone(), self.clone(), options);
        let mut sessions = Vec::new();
        for volume in 0..self.sizes.len() as u64 {
            let attached = BlockService::attach(&*forwarder, VolumeId(volume), Generation(1)).await;
            sessions.push(attached.expect("a modelled server takes everybody").session);
        }
        let clients = Rc::new(Clients {
            under_way: RefCell::new(vec![Vec::new(); sessions.len()]),
            handle: handle.clone(),
            forwarder,
            sessions,
            begun: handle.now(),
            measured: RefCell::default(),
        });
        let (mut tasks, mut waiting_max) = (Vec::new(), 0);
        for (number, write) in writes.into_iter().enumerate() {
            handle.sleep_until(clients.begun + Duration::from_nanos(write.at_ns)).await;
            tasks.push(handle.spawn(Class::Io, "write", clients.clone().write(number as u64, write)));
            if tasks.len() >= 4096 {
                waiting_max = clients.forwarder.waiting().0.max(waiting_max);
                tasks.retain(|task| !task.is_finished());
            }
        }
        for task in tasks {
            task.await;
        }
        let counted = clients.forwarder.counted();
        Latency {
            writes: clients.measured.take(),
            bytes: [counted.written_bytes, counted.burst_bytes + counted.rescheduled_bytes, counted.merged_bytes],
            waiting_max,
        }
    }

    fn home(&self, segment: SegmentId) -> usize {
        let Cluster { servers, in_turn, .. } = self.cluster;
        match segment.volume.0.checked_sub(LOGS) {
            Some(volume) => (volume as usize + if in_turn { segment.index as usize } else { 0 }) % servers,
            None => {
                let mut prng = self.prng.borrow_mut();
                *self.homes.borrow_mut().entry(segment).or_insert_with(|| prng.below(servers as u64) as usize)
            }
        }
    }

    /// Waits until the card has carried so many bytes, behind all that it was asked for before.
    async fn carry(&self, segment: SegmentId, way: Way, bytes: u64) {
        let carried = {
            let mut free = self.free.borrow_mut();
            let free = &mut free[self.home(segment)][way as usize];
            *free = self.handle.now().max(*free) + Duration::from_nanos(bytes * 1_000_000_000 / self.card);
            *free
        };
        self.handle.sleep_until(carried + self.cluster.behind).await;
    }
}

impl Clients {
    async fn write(self: Rc<Self>, number: u64, write: Write) {
        let Write { at_ns, volume, offset, bytes, .. } = write;
        let (at, range) = (self.begun + Duration::from_nanos(at_ns), offset..offset + bytes);
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        let volume = volume as usize;
        while self.under_way.borrow()[volume].iter().any(overlaps) {
            self.handle.sleep(AGAIN).await;
        }
        self.under_way.borrow_mut()[volume].push(range.clone());
        let sequence = WriteSequence(number + 1);
        let stamp = WriteStamp { generation: Generation(1), sequence, ..WriteStamp::default() };
        let parts = Layout::new(STRIPE).pieces(range.clone()).map(|piece| {
            let segment = SegmentId { volume: VolumeId(volume as u64), index: piece.segment };
            let target =
                Target { session: self.sessions[volume], segment, epoch: Epoch(1), level: Level::Open, behind: 0 };
            // No server looks at checksums.
            self.forwarder.write(target, piece.offset, zeros(piece.len as usize), Vec::new(), stamp)
        });
        for answer in join_all(parts).await {
            answer.expect("no link is lost").result.expect("nothing is refused");
        }
        self.under_way.borrow_mut()[volume].retain(|other| *other != range);
        if at - self.begun >= WARM_UP {
            self.measured.borrow_mut().record(self.handle.now().nanos_since(at));
        }
    }
}

fn answered<T>(target: Target, result: T) -> Answer<T> {
    Ok(Reply { epoch: target.epoch, result: Ok(result), passage: Passage::default() })
}

impl BlockService for Servers {
    fn attach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        self.sessions.set(self.sessions.get() + 1);
        let attached = Attachment { session: SessionId(self.sessions.get()), epoch: Epoch(1) };
        Box::pin(std::future::ready(Ok(attached)))
    }

    fn detach(&self, _session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// All is zeros; what it is has to pass the card all the same, but for the book, which was never written when it is read.
    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        Box::pin(async move {
            self.carry(target.segment, Way::Sent, if offset == 0 { 0 } else { len }).await;
            answered(target, vec![ReadPart::Zeros(len)])
        })
    }

    fn write(
        &self,
        target: Target,
        _offset: u64,
        data: Bytes,
        _checksums: Vec<u32>,
        _stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move {
            self.carry(target.segment, Way::Received, data.len() as u64).await;
            answered(target, ())
        })
    }

    fn discard(&self, target: Target, _offset: u64, _len: u64, _stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(std::future::ready(answered(target, ())))
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(std::future::ready(answered(target, ())))
    }

    fn allocation(
        &self,
        target: Target,
        _offset: u64,
        len: u64,
        _extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        Box::pin(std::future::ready(answered(target, vec![AllocationExtent { len, allocated: true }])))
    }
}

impl VolumeDirectory for Servers {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        let none = Error::not_found(format!("volumes have numbers here, and {name:?} is none"));
        Box::pin(std::future::ready(Err(none)))
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        let size = self.sizes[volume.0 as usize];
        let described = VolumeDescriptor { data_sector_bytes: STRIPE, ..VolumeDescriptor::new(volume, "disk", size) };
        Box::pin(std::future::ready(Ok(described)))
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        self.describe(volume)
    }

    fn detach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn take_logs(
        &self,
        volume: VolumeId,
        _generation: Generation,
        make: bool,
    ) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        if !make {
            return Box::pin(std::future::ready(Err(Error::not_found("it has no logs so far"))));
        }
        self.generation.set(self.generation.get() + 1);
        let logs = if self.cluster.servers > FEW { 2 * FEW } else { FEW };
        let hidden = VolumeDescriptor::new(VolumeId(LOGS + volume.0), ".logs", logs as u64 * SEGMENT_SIZE);
        let taken = VolumeDescriptor { generation: Generation(self.generation.get()), ..hidden };
        Box::pin(std::future::ready(Ok(taken)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONELY: Cluster =
        Cluster { servers: 1, utilization: 0.5, bursts: None, in_turn: true, behind: Duration::from_micros(200) };

    fn write(at_ms: u64, volume: u32, offset: u64, bytes: u64) -> Write {
        Write { at_ns: at_ms * 1_000_000, volume, offset, bytes, is_burst: false }
    }

    /// One card, which has half of its time to do; by hand.
    #[test]
    fn who_comes_second_waits_for_the_first() {
        // 64 KiB in each of 100 ms, both at once: a card of 2 x 64 KiB x 10 by 0.5, so 25 ms for each.
        let twice = |at: u64| [write(at * 100, 0, 0, STRIPE), write(at * 100, 1, 0, STRIPE)];
        let writes: Vec<Write> = (0..200).flat_map(twice).collect();
        let traffic = Traffic { writes, sizes: vec![128 << 30; 2] };
        let latency = Latency::of(&traffic, LONELY, 1);
        let [first, second] = [latency.writes.quantile(250_000), latency.writes.quantile(990_000)];
        assert_eq!(latency.writes.count(), 200);
        assert!((24_000_000..27_000_000).contains(&first), "{first}");
        assert!((48_000_000..53_000_000).contains(&second), "{second}");
        assert_eq!(latency.bytes, [0; 3]);
    }

    /// A burst of one volume, which is on one server of five or on all. The first one has logs made.
    #[test]
    fn a_burst_is_over_sooner_where_it_is_spread() {
        let calm = (0..1_500u64).map(|at| write(at * 10, (at % 8) as u32, at % 4 * STRIPE, 4096));
        let burst = |at_ms, count| (0..count).map(move |at| write(at_ms, 3, at * 4 * STRIPE, STRIPE));
        let mut writes: Vec<Write> = calm.chain(burst(7_000, 20)).chain(burst(12_000, 400)).collect();
        writes.sort_by_key(|write| write.at_ns);
        let traffic = Traffic { writes, sizes: vec![128 << 30; 8] };
        let of = |bursts, in_turn| {
            let cluster = Cluster { servers: 5, utilization: 0.1, bursts, in_turn, ..LONELY };
            Latency::of(&traffic, cluster, 1)
        };
        let (owner, spread) = (of(None, true), of(Some(BurstSettings::SENSITIVE), true));
        assert!(spread.bytes[1] > 200 * STRIPE, "{spread:?}");
        assert!(spread.writes.max() * 2 < owner.writes.max(), "{} {}", spread.writes.max(), owner.writes.max());
        let one = of(Some(BurstSettings::SENSITIVE), false);
        assert!(one.writes.max() > spread.writes.max() * 2, "{} {}", one.writes.max(), spread.writes.max());
    }
}
