//! Servers and manager of one volume as tests want them, and an agent that has it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::io::fragment_checksums;
use base::levels::Level;
use base::{
    AllocationExtent, Bytes, Epoch, Error, Generation, Passage, ReadPart, Result, SegmentId, VolumeId, WriteSequence,
    WriteStamp,
};
use policies::burst::{Average, BurstSettings};
use policies::forwarding::Limits;
use runtime::Handle;
use runtime::sim::{NodeOptions, World};
use wire::{
    Answer, Attachment, BlockService, Forwarding, LinkLost, LocalBoxFuture, Reply, SessionId, Target, VolumeDescriptor,
    VolumeDirectory,
};

use super::super::{Forwarder, Mode, Options};

pub(super) const DISK: VolumeId = VolumeId(1);
pub(super) const LOGS: VolumeId = VolumeId(2);
pub(super) const MIB: u64 = 1 << 20;

/// What becomes of a write.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Fate {
    Done,
    /// It is refused, and was done all the same.
    RefusedAndDone,
    /// It is refused, and nothing of it was done.
    Refused,
    /// There is no room.
    Full,
    /// Clients want the server: not now.
    Busy,
    /// The volume was deleted.
    Gone,
    /// Nobody hears of it again; it was done.
    Lost,
}

/// Servers and manager of one volume.
pub(super) struct Store {
    /// Itself.
    pub(super) this: Weak<Store>,
    pub(super) handle: Handle,
    /// Bytes that were written, by 512.
    pub(super) sectors: RefCell<BTreeMap<(VolumeId, u32, u64), [u8; 512]>>,
    pub(super) generations: RefCell<BTreeMap<VolumeId, Generation>>,
    pub(super) sessions: RefCell<BTreeMap<SessionId, (VolumeId, Generation)>>,
    pub(super) fate: RefCell<Box<dyn Fn(Target, u64) -> Fate>>,
    pub(super) has_logs: Cell<bool>,
    /// Servers have none of them any more: the volume is being deleted.
    pub(super) logs_are_gone: Cell<bool>,
    /// What is set for the volume.
    pub(super) forwarding: Cell<Forwarding>,
    /// How long a log takes to look for what a client asks it for.
    pub(super) log_reads_take: Cell<Duration>,
    /// The log that is near, if one is: others take 2 ms longer for a write.
    pub(super) near: Cell<Option<u32>>,
    /// How long an owner takes for a write that comes now.
    pub(super) owner_takes: Cell<Duration>,
    /// Writes and discards of the volume itself.
    pub(super) direct: Cell<u64>,
}

impl Store {
    pub(super) fn new(handle: &Handle) -> Rc<Store> {
        Rc::new_cyclic(|this| Store {
            this: this.clone(),
            handle: handle.clone(),
            sectors: RefCell::default(),
            generations: RefCell::default(),
            sessions: RefCell::default(),
            fate: RefCell::new(Box::new(|_, _| Fate::Done)),
            has_logs: Cell::new(false),
            logs_are_gone: Cell::new(false),
            forwarding: Cell::default(),
            log_reads_take: Cell::default(),
            near: Cell::default(),
            owner_takes: Cell::default(),
            direct: Cell::new(0),
        })
    }

    pub(super) fn set_fate(&self, fate: impl Fn(Target, u64) -> Fate + 'static) {
        *self.fate.borrow_mut() = Box::new(fate);
    }

    pub(super) fn described(&self, volume: VolumeId) -> VolumeDescriptor {
        VolumeDescriptor { forwarding: self.forwarding.get(), ..VolumeDescriptor::new(volume, "disk", 1 << 30) }
    }

    pub(super) fn next(&self, volume: VolumeId) -> VolumeDescriptor {
        let mut generations = self.generations.borrow_mut();
        let generation = generations.entry(volume).or_default();
        generation.0 += 1;
        VolumeDescriptor { generation: *generation, ..VolumeDescriptor::new(volume, "disk", 1 << 30) }
    }

    pub(super) fn check(&self, target: Target) -> Result<()> {
        let sessions = self.sessions.borrow();
        let (volume, generation) = sessions[&target.session];
        assert_eq!(volume, target.segment.volume);
        match self.generations.borrow()[&volume] > generation {
            true => Err(Error::fenced("a newer attachment")),
            false => Ok(()),
        }
    }

    /// It goes on though nobody may wait for it any more, as with any server.
    pub(super) async fn change(
        self: Rc<Self>,
        target: Target,
        offset: u64,
        len: u64,
        data: Option<Bytes>,
        stamp: WriteStamp,
    ) -> Answer<()> {
        let handle = self.handle.clone();
        let changing = async move { self.change_alone(target, offset, len, data, stamp).await };
        super::super::logs::to_its_end(&handle, "change", changing).await?
    }

    pub(super) async fn change_alone(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        data: Option<Bytes>,
        stamp: WriteStamp,
    ) -> Answer<()> {
        assert_eq!(stamp.generation, self.sessions.borrow()[&target.session].1, "as a server checks it");
        self.handle.sleep(Duration::from_micros(self.handle.random_u64() % 500)).await;
        if target.segment.volume == DISK {
            self.handle.sleep(self.owner_takes.get()).await;
            self.direct.set(self.direct.get() + 1);
        }
        if target.segment.volume == LOGS && self.near.get().is_some_and(|near| near != target.segment.index) {
            self.handle.sleep(Duration::from_millis(2)).await;
        }
        let fate = (self.fate.borrow())(target, offset);
        let result = self.check(target);
        if result.is_ok() && !matches!(fate, Fate::Refused | Fate::Full | Fate::Busy | Fate::Gone) {
            let mut sectors = self.sectors.borrow_mut();
            for at in (0..len).step_by(512) {
                let key = (target.segment.volume, target.segment.index, (offset + at) / 512);
                match &data {
                    Some(data) => drop(sectors.insert(key, data[at as usize..][..512].try_into().unwrap())),
                    None => drop(sectors.remove(&key)),
                }
            }
        }
        match fate {
            Fate::Lost => return Err(LinkLost { message: "cut".into() }),
            Fate::Busy if result.is_ok() => return answer(target, Err(Error::retry("not now"))),
            Fate::Gone => return answer(target, Err(Error::not_found("there is no such segment"))),
            Fate::Full if result.is_ok() => return answer(target, Err(Error::full("no room"))),
            Fate::Refused | Fate::RefusedAndDone if result.is_ok() => return answer(target, Err(Error::io("no"))),
            _ => {}
        }
        answer(target, result)
    }
}

pub(super) fn answer<T>(target: Target, result: Result<T>) -> Answer<T> {
    Ok(Reply { epoch: target.epoch, result, passage: Passage::default() })
}

impl BlockService for Store {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        let session = SessionId(self.sessions.borrow().len() as u64);
        self.sessions.borrow_mut().insert(session, (volume, generation));
        Box::pin(std::future::ready(Ok(Attachment { session, epoch: Epoch(1) })))
    }

    fn detach(&self, _session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        Box::pin(async move {
            self.handle.sleep(Duration::from_micros(self.handle.random_u64() % 500)).await;
            if target.segment.volume == LOGS && target.level != Level::Merge {
                self.handle.sleep(self.log_reads_take.get()).await;
            }
            if let Err(error) = self.check(target) {
                return answer(target, Err(error));
            }
            if target.segment.volume == LOGS && self.logs_are_gone.get() {
                return answer(target, Err(Error::not_found("there is no such segment")));
            }
            let sectors = self.sectors.borrow();
            let part = |at: u64| {
                let key = (target.segment.volume, target.segment.index, (offset + at) / 512);
                sectors.get(&key).map_or(ReadPart::Zeros(512), |sector| ReadPart::Data(Bytes::copy_from_slice(sector)))
            };
            answer(target, Ok((0..len).step_by(512).map(part).collect()))
        })
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        assert_eq!(checksums, fragment_checksums(target.segment, offset, &data));
        let len = data.len() as u64;
        Box::pin(self.this.upgrade().expect("it is called").change(target, offset, len, Some(data), stamp))
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(self.this.upgrade().expect("it is called").change(target, offset, len, None, stamp))
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(std::future::ready(answer(target, Ok(()))))
    }

    fn allocation(
        &self,
        target: Target,
        _offset: u64,
        len: u64,
        _extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        Box::pin(std::future::ready(answer(target, Ok(vec![AllocationExtent { len, allocated: true }]))))
    }
}

impl VolumeDirectory for Store {
    fn resolve<'a>(&'a self, _name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        unreachable!("nobody asks for a name")
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(std::future::ready(Ok(self.described(volume))))
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        unreachable!("nobody asks for all")
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(std::future::ready(Ok(self.next(volume))))
    }

    fn detach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn take_logs(
        &self,
        _volume: VolumeId,
        _generation: Generation,
        make: bool,
    ) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move {
            if !self.has_logs.replace(make || self.has_logs.get()) && !make {
                return Err(Error::not_found("no logs"));
            }
            self.handle.sleep(Duration::from_millis(1)).await;
            Ok(self.next(LOGS))
        })
    }
}

/// Everything is a burst.
pub(super) fn all() -> Options {
    let burst = BurstSettings { average: Average::Fixed(0), threshold: Duration::ZERO, ..BurstSettings::SENSITIVE };
    let limits = Limits { threshold_bytes: 0, ..Limits::default() };
    Options { mode: Mode::On, burst, limits, log_bytes: MIB, ..Options::default() }
}

/// An agent that has the volume.
pub(super) struct Holder {
    pub(super) store: Rc<Store>,
    pub(super) forwarder: Rc<Forwarder>,
    pub(super) session: SessionId,
    pub(super) generation: Generation,
    pub(super) sequence: Cell<u64>,
}

impl Holder {
    pub(super) async fn attach(store: &Rc<Store>, options: Options) -> Holder {
        let forwarder = Forwarder::new(&store.handle, store.clone(), store.clone(), options);
        let generation = store.next(DISK).generation;
        let session = forwarder.attach(DISK, generation).await.unwrap().session;
        let holder = Holder { store: store.clone(), forwarder, session, generation, sequence: Cell::new(0) };
        if matches!(options.mode, Mode::On | Mode::Mixed) && !store.has_logs.get() {
            // The first burst has logs made.
            holder.write(30 * MIB, &[0; 512]).await.unwrap().unwrap();
            store.handle.sleep(Duration::from_millis(20)).await;
        }
        holder
    }

    pub(super) fn target(&self) -> Target {
        let segment = SegmentId { volume: DISK, index: 0 };
        Target { session: self.session, segment, epoch: Epoch(1), level: Level::Open, behind: 0 }
    }

    pub(super) fn stamp(&self) -> WriteStamp {
        self.sequence.set(self.sequence.get() + 1);
        let sequence = WriteSequence(self.sequence.get());
        WriteStamp { generation: self.generation, sequence, ..WriteStamp::default() }
    }

    pub(super) async fn write(&self, offset: u64, data: &[u8]) -> Result<Result<()>, LinkLost> {
        let data = Bytes::copy_from_slice(data);
        let checksums = fragment_checksums(self.target().segment, offset, &data);
        let written = self.forwarder.write(self.target(), offset, data, checksums, self.stamp()).await;
        written.map(|reply| reply.result)
    }

    pub(super) async fn discard(&self, offset: u64, len: u64) -> Result<Result<()>, LinkLost> {
        self.forwarder.discard(self.target(), offset, len, self.stamp()).await.map(|reply| reply.result)
    }

    pub(super) async fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let reply = self.forwarder.read(self.target(), offset, len).await.unwrap();
        let mut all = Vec::new();
        for part in reply.result.unwrap() {
            match part {
                ReadPart::Data(data) => all.extend_from_slice(&data),
                ReadPart::Zeros(len) => all.resize(all.len() + len as usize, 0),
            }
        }
        assert_eq!(all.len() as u64, len);
        all
    }

    /// Until nothing is in a log.
    pub(super) async fn settle(&self) {
        for _ in 0..2_000 {
            if self.forwarder.waiting() == (0, 0) {
                return;
            }
            self.store.handle.sleep(Duration::from_millis(10)).await;
        }
        panic!("something stays in a log: {:?}", self.forwarder.waiting());
    }
}

pub(super) fn in_a_world<F: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Rc<Store>) -> F) {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.restart(node);
    let store = Store::new(&handle);
    world.block_on(&handle, test(store));
}

pub(super) fn is_entry(target: Target, offset: u64) -> bool {
    target.segment.volume == LOGS && offset >= super::super::book::FRONT
}
