//! The store below a block server, as a model: the network's second hop and a queue (NSDI 2026, §4.2: M/M/1).
//!
//! One server of rate `mu` works off requests and background work in the order of their arrival, each with an
//! exponential time in proportion to its bytes; besides, every request takes what the hop and the drive take. In place of
//! that queue there can be a [`Disk`] of channels. Nothing is stored: reads return zeros.

use std::cell::RefCell;
use std::rc::Rc;

use base::{
    AllocationExtent, Bytes, Instant, Map, Passage, Prng, ReadPart, Result, SegmentId, Stage, VolumeId, WriteStamp,
};
use runtime::Handle;
use server::Backend;

use super::Parameters;
use super::disk::{Disk, DiskOptions};
use super::load::exponential;

/// The modelled store of one server.
pub struct Store {
    handle: Handle,
    parameters: Parameters,
    /// Mean size of a piece of background work: like the requests'.
    bytes: u64,
    queue: RefCell<Queue>,
    /// What there is instead of the queue.
    disk: Option<RefCell<Disk>>,
    /// How long the last request at each address took, in nanoseconds: addresses tell requests in flight apart.
    took_ns: RefCell<Map<u64, u64>>,
}

struct Queue {
    prng: Prng,
    /// When the work that has arrived so far is done, in nanoseconds.
    free_at: f64,
    /// When the next piece of background work arrives.
    background_at: f64,
}

impl Store {
    /// A store for requests of `bytes` each: a queue, or a disk.
    pub fn new(
        handle: &Handle,
        parameters: &Parameters,
        disk: Option<DiskOptions>,
        bytes: u64,
        seed: u64,
    ) -> Rc<Store> {
        let queue = Queue { prng: Prng::new(seed), free_at: 0.0, background_at: 0.0 };
        Rc::new(Store {
            handle: handle.clone(),
            parameters: parameters.clone(),
            bytes,
            queue: RefCell::new(queue),
            disk: disk.map(|options| {
                let gc_begins_ns = options.gc_begins_ns + handle.now().0 as f64;
                RefCell::new(Disk::new(DiskOptions { gc_begins_ns, ..options }, seed))
            }),
            took_ns: RefCell::default(),
        })
    }

    /// How long the last request at `offset` took, in nanoseconds.
    pub fn took_ns(&self, offset: u64) -> u64 {
        self.took_ns.borrow().get(&offset).copied().unwrap_or_default()
    }

    async fn serve(&self, offset: u64, bytes: u64, is_write: bool) {
        let begun = self.handle.now();
        let arrives = (begun.0 + self.parameters.hop_ns) as f64;
        let done = match &self.disk {
            Some(disk) => disk.borrow_mut().pass(arrives, is_write, bytes) as u64,
            None => {
                let besides_ns = if is_write { self.parameters.write_ns } else { self.parameters.read_ns };
                self.queue.borrow_mut().pass(&self.parameters, self.bytes, arrives, bytes) as u64 + besides_ns
            }
        };
        let done = Instant(done + self.parameters.hop_ns);
        self.handle.sleep_until(done).await;
        // Not the time of waking: that the loop was busy is the proxy's affair.
        self.took_ns.borrow_mut().insert(offset, done.nanos_since(begun));
    }
}

impl Queue {
    /// When a request that arrives at `now` leaves.
    fn pass(&mut self, parameters: &Parameters, usual_bytes: u64, now: f64, bytes: u64) -> f64 {
        let per_ns = parameters.service_bytes_per_sec as f64 / 1e9;
        if parameters.background_bytes_per_sec > 0 {
            let gap_ns = usual_bytes as f64 / (parameters.background_bytes_per_sec as f64 / 1e9);
            while self.background_at < now {
                let work = exponential(&mut self.prng, usual_bytes as f64 / per_ns);
                self.free_at = self.free_at.max(self.background_at) + work;
                self.background_at += exponential(&mut self.prng, gap_ns);
            }
        }
        self.free_at = self.free_at.max(now) + exponential(&mut self.prng, bytes as f64 / per_ns);
        self.free_at
    }
}

/// Lets a server own a share of the store that the experiment looks at.
pub struct Shared(pub Rc<Store>);

impl Backend for Shared {
    async fn read(&self, _: SegmentId, offset: u64, len: u64, passage: &mut Passage) -> Result<Vec<ReadPart>> {
        self.0.serve(offset, len, false).await;
        // What says nothing of a disk is taken for a read from memory.
        passage.add(Stage::Disk, self.0.took_ns(offset));
        Ok(vec![ReadPart::Zeros(len)])
    }

    async fn write(
        &self,
        _segment: SegmentId,
        offset: u64,
        data: Bytes,
        _checksums: Vec<u32>,
        _stamp: WriteStamp,
        _: &mut Passage,
    ) -> Result<()> {
        self.0.serve(offset, data.len() as u64, true).await;
        Ok(())
    }

    async fn discard(&self, _segment: SegmentId, _offset: u64, _len: u64, _stamp: WriteStamp) -> Result<()> {
        Ok(())
    }

    async fn allocation(&self, _: SegmentId, _: u64, len: u64, _: usize) -> Result<Vec<AllocationExtent>> {
        Ok(vec![AllocationExtent { len, allocated: false }])
    }

    async fn drop_volume(&self, _volume: VolumeId) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::Histogram;

    use super::super::super::FromFile;
    use super::*;

    /// The queue against what theory says of it: -ln(1-p) / (mu - lambda), for several loads and percentiles.
    #[test]
    fn the_queue_is_an_m_m_1() {
        let parameters = Parameters::from_file().unwrap();
        for arrivals in [600e6, 1200e6] {
            let mut queue = Queue { prng: Prng::new(3), free_at: 0.0, background_at: 0.0 };
            let mut prng = Prng::new(4);
            let (mut now, mut latency) = (0.0, Histogram::new());
            for _ in 0..2_000_000 {
                now += exponential(&mut prng, 4096.0 / (arrivals / 1e9));
                latency.record((queue.pass(&parameters, 4096, now, 4096) - now) as u64);
            }
            let left = (2130e6 - 300e6 - arrivals) / 1e9;
            for (per_million, factor) in [(500_000, 0.693), (950_000, 2.996), (999_000, 6.908)] {
                let expected = factor * 4096.0 / left;
                let found = latency.quantile(per_million) as f64;
                assert!((0.9..1.2).contains(&(found / expected)), "{arrivals}: {found} ns for {expected}");
            }
        }
    }
}
