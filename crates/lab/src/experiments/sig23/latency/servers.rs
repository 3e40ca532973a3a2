//! The servers of [`super::Latency`]: network cards, and a manager that knows all volumes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::limits::SEGMENT_SIZE;
use base::{
    AllocationExtent, Bytes, Epoch, Error, Generation, KIB, Passage, ReadPart, Result, SegmentId, Stage, VolumeId,
    WriteStamp,
};
use runtime::Handle;
use wire::{
    Answer, Attachment, BlockService, Layout, LocalBoxFuture, Reply, SessionId, Target, VolumeDescriptor,
    VolumeDirectory,
};

use super::super::balance::{Balance, Bins};
use super::super::cards::{Cards, Way};
use super::super::homes::Homes;
use super::super::schemes::Scheme;
use super::super::workload::Traffic;
use super::turns::Turns;
use super::{Cluster, Merging};

/// The stripes of Levee's layout, by which the agent cuts volumes.
pub(super) const STRIPE: u64 = 64 * KIB;
/// Logs of a volume are a volume with a number that is so much higher.
const LOGS: u64 = 1 << 32;
/// What clients say they are attached as, and what their volumes are. What merging carries says the latter, whoever wrote it.
pub(super) const WRITER: Generation = Generation(1);
pub(super) const ATTACHED: Generation = Generation(2);
/// Bins in which servers are compared (DiffForward, §2.3).
const BIN_NS: u64 = 100_000_000;
/// In front of each log: where the book is (docs/formats/burst-log.md).
const BOOK: u64 = 128 * KIB;
/// A cluster of more than four servers has eight logs of a volume, one of four or less has four.
const FEW: usize = 4;

/// See the module.
pub(super) struct Servers {
    handle: Handle,
    cluster: Cluster,
    cards: RefCell<Cards>,
    /// What clients write, by the server that is asked, when it is.
    asked: RefCell<Bins>,
    turns: Turns,
    homes: RefCell<Homes>,
    sizes: Vec<u64>,
    generation: Cell<u64>,
    sessions: Cell<u64>,
}

impl Servers {
    pub(super) fn new(handle: &Handle, traffic: &Traffic, cluster: Cluster, seed: u64) -> Rc<Servers> {
        let Cluster { servers, utilization, scheme, geometry, .. } = cluster;
        let mut homes = Homes::new(servers, scheme.moving(), seed);
        // In the order in which segments are written, whoever takes that: so all schemes begin with the same owners.
        for write in &traffic.writes {
            for (segment, _) in geometry.parts(write.offset, write.bytes) {
                homes.server((write.volume, segment));
            }
        }
        Rc::new(Servers {
            handle: handle.clone(),
            cluster,
            cards: RefCell::new(Cards::of(traffic, servers, utilization)),
            asked: RefCell::new(Bins::new(servers, BIN_NS)),
            turns: Turns::new(handle, servers),
            homes: RefCell::new(homes),
            sizes: traffic.sizes.clone(),
            generation: Cell::new(1),
            sessions: Cell::new(0),
        })
    }

    /// How even servers were.
    pub(super) fn balance(&self) -> Balance {
        self.asked.borrow().balance()
    }

    /// How many volumes there are.
    pub(super) fn volumes(&self) -> usize {
        self.sizes.len()
    }

    /// The server that is asked for so many bytes there.
    fn server_for(&self, segment: SegmentId, offset: u64, bytes: u64) -> usize {
        match self.log_server(segment) {
            Some(server) => server,
            None => self.homes.borrow_mut().take(self.handle.now().0, self.part(segment, offset), bytes),
        }
    }

    fn log_server(&self, segment: SegmentId) -> Option<usize> {
        let Cluster { servers, scheme, .. } = self.cluster;
        let volume = segment.volume.0.checked_sub(LOGS)?;
        let is_in_turn = !matches!(scheme, Scheme::DiffForward { in_turn: false, .. });
        Some((volume as usize + if is_in_turn { segment.index as usize } else { 0 }) % servers)
    }

    /// What of a volume has an owner of its own.
    fn part(&self, segment: SegmentId, offset: u64) -> (u32, u64) {
        let place = Layout::new(STRIPE).volume_offset(segment.index, offset);
        (segment.volume.0 as u32, self.cluster.geometry.segment_of(place))
    }

    /// Waits until the card has carried so many bytes, behind all that it was asked for before. Says how long it took but for waiting:
    /// to pass the card, which counts as the payload, and behind it, as an append.
    ///
    /// Who goes first a server decides as a real one does: when it knows of a request. What comes in has passed the card then.
    ///
    /// # Errors
    /// `Retry`: it merges, and clients want the server.
    async fn carry(&self, target: Target, offset: u64, way: Way, bytes: u64) -> Result<Passage> {
        let server = self.server_for(target.segment, offset, bytes);
        self.carry_at(server, target, way, bytes).await
    }

    /// The same at this server.
    async fn carry_at(&self, server: usize, target: Target, way: Way, bytes: u64) -> Result<Passage> {
        let pass = |way| async move {
            let carried = self.cards.borrow_mut().carry(self.handle.now(), server, way, bytes);
            self.handle.sleep_until(carried.at).await;
            carried
        };
        let (mut carried, here) = match way {
            Way::Received => (pass(way).await, self.turns.enter(server, target.level).await?),
            Way::Sent => {
                let here = self.turns.enter(server, target.level).await?;
                if self.cluster.has_one_card {
                    pass(Way::Received).await;
                }
                (pass(way).await, here)
            }
        };
        if self.cluster.has_one_card && way == Way::Received {
            carried.passed += pass(Way::Sent).await.passed;
        }
        let _until_it_is_stored = here;
        self.handle.sleep(self.cluster.behind).await;
        let mut passage = Passage::default();
        passage.add(Stage::Payload, carried.passed.as_nanos() as u64);
        passage.add(Stage::Append, self.cluster.behind.as_nanos() as u64);
        Ok(passage)
    }
}

fn is_log(segment: SegmentId) -> bool {
    segment.volume.0 >= LOGS
}

fn answered<T>(target: Target, result: Result<T>) -> Answer<T> {
    Ok(Reply { epoch: target.epoch, result, passage: Passage::default() })
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
            match self.cluster.merging {
                Merging::Never if offset > 0 => std::future::pending().await,
                Merging::Free if offset > 0 => answered(target, Ok(vec![ReadPart::Zeros(len)])),
                _ => {
                    let carried = self.carry(target, offset, Way::Sent, if offset == 0 { 0 } else { len }).await;
                    answered(target, carried.map(|_| vec![ReadPart::Zeros(len)]))
                }
            }
        })
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        _checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        // To an owner under this generation, or to the book.
        let is_merging = match is_log(target.segment) {
            true => offset < BOOK,
            false => stamp.generation == ATTACHED,
        };
        Box::pin(async move {
            let bytes = data.len() as u64;
            let carried = match is_merging {
                true if self.cluster.merging == Merging::Free => Ok(Passage::default()),
                true => self.carry(target, offset, Way::Received, bytes).await,
                false => {
                    let server = self.server_for(target.segment, offset, bytes);
                    self.asked.borrow_mut().add(self.handle.now().0, server, bytes);
                    self.carry_at(server, target, Way::Received, bytes).await
                }
            };
            let passage = carried.as_ref().map_or(Passage::default(), |passage| *passage);
            Ok(Reply { epoch: target.epoch, result: carried.map(drop), passage })
        })
    }

    fn discard(&self, target: Target, _offset: u64, _len: u64, _stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(std::future::ready(answered(target, Ok(()))))
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(std::future::ready(answered(target, Ok(()))))
    }

    fn allocation(
        &self,
        target: Target,
        _offset: u64,
        len: u64,
        _extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        Box::pin(std::future::ready(answered(target, Ok(vec![AllocationExtent { len, allocated: true }]))))
    }

    fn server(&self, target: Target, offset: u64) -> u64 {
        let home = || self.homes.borrow_mut().server(self.part(target.segment, offset));
        self.log_server(target.segment).unwrap_or_else(home) as u64
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
