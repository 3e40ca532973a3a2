//! A store for tests: a directory of volumes, and an owner of their segments that keeps sectors in a map, takes its
//! time, fails when told to, and watches the rules that an agent must keep.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::io::fragment_checksums;
use base::levels::{Levels, Rate};
use base::{
    AllocationExtent, Bytes, Epoch, Error, ErrorKind, Generation, Instant, ReadPart, Result, SECTOR, SegmentId,
    VolumeId, WriteSequence, WriteStamp,
};
use runtime::Handle;
use wire::{
    Answer, Attachment, BlockService, LinkLost, LocalBoxFuture, Reply, SessionId, Target, VolumeDescriptor,
    VolumeDirectory,
};

pub struct Store {
    handle: Handle,
    pub volumes: RefCell<BTreeMap<String, VolumeDescriptor>>,
    sectors: RefCell<BTreeMap<(SegmentId, u64), [u8; SECTOR as usize]>>,
    /// The session that is open, per volume.
    sessions: RefCell<BTreeMap<VolumeId, (SessionId, Generation)>>,
    changing: RefCell<Vec<(SegmentId, u64, u64)>>,
    last_stamp: RefCell<BTreeMap<(SegmentId, u64), WriteStamp>>,
    /// Requests take up to this long; reads exactly that.
    pub delay: Cell<Duration>,
    /// What every request is answered with, a limited number of times.
    pub fails: Cell<Option<(ErrorKind, u32)>>,
    pub lose_link: Cell<bool>,
    pub epoch: Cell<Epoch>,
    pub log: RefCell<Vec<String>>,
    reading: Cell<u64>,
    pub reading_max: Cell<u64>,
    /// Reads and writes without a mark, marked as base, and as burst.
    pub marked: Cell<[u64; 3]>,
}

impl Store {
    pub fn new(handle: &Handle) -> Rc<Store> {
        Rc::new(Store {
            handle: handle.clone(),
            volumes: RefCell::default(),
            sectors: RefCell::default(),
            sessions: RefCell::default(),
            changing: RefCell::default(),
            last_stamp: RefCell::default(),
            delay: Cell::new(Duration::from_micros(100)),
            fails: Cell::default(),
            lose_link: Cell::default(),
            epoch: Cell::new(Epoch(1)),
            log: RefCell::default(),
            reading: Cell::default(),
            reading_max: Cell::default(),
            marked: Cell::default(),
        })
    }

    /// The store of a process that comes after this one's: what was done stays, and nothing is in flight.
    pub fn reborn(&self, handle: &Handle) -> Rc<Store> {
        let next = Store::new(handle);
        *next.volumes.borrow_mut() = self.volumes.borrow().clone();
        *next.sectors.borrow_mut() = self.sectors.borrow().clone();
        *next.last_stamp.borrow_mut() = self.last_stamp.borrow().clone();
        next
    }

    pub fn add_volume(&self, name: &str, size: u64) {
        let id = VolumeId(self.volumes.borrow().len() as u64 + 1);
        self.volumes.borrow_mut().insert(name.into(), VolumeDescriptor::new(id, name, size));
    }

    fn volume(&self, id: VolumeId) -> Result<VolumeDescriptor> {
        let volumes = self.volumes.borrow();
        let found = volumes.values().find(|volume| volume.id == id).cloned();
        found.ok_or_else(|| Error::not_found(format!("there is no volume {id}")))
    }

    fn update(&self, id: VolumeId, change: impl FnOnce(&mut VolumeDescriptor)) {
        self.volumes.borrow_mut().values_mut().filter(|volume| volume.id == id).for_each(change_once(change));
    }

    /// What every request of a session goes through.
    async fn pass<T>(&self, target: Target, work: impl FnOnce() -> T) -> Answer<T> {
        let spread = self.handle.random_u64() % 100;
        self.handle.sleep(self.delay.get() * (spread as u32 + 1) / 100).await;
        if self.lose_link.get() {
            return Err(LinkLost { message: "the test cut the link".into() });
        }
        let session = self.sessions.borrow().get(&target.segment.volume).copied();
        let result = if session.map(|(id, _)| id) != Some(target.session) {
            Err(Error::fenced("another session"))
        } else if let Some((kind, times)) = self.fails.get() {
            self.fails.set((times > 1).then_some((kind, times - 1)));
            Err(Error { kind, message: "as the test wants it".into() })
        } else {
            Ok(work())
        };
        Ok(Reply { epoch: self.epoch.get(), result, passage: base::Passage::default() })
    }

    /// Promises a volume something.
    pub fn set_base(&self, name: &str, base: Rate) -> VolumeDescriptor {
        let mut volumes = self.volumes.borrow_mut();
        let volume = volumes.get_mut(name).expect("it is there");
        volume.levels.base = base;
        volume.clone()
    }

    /// Gives a volume levels.
    pub fn set_levels(&self, name: &str, levels: Levels) -> VolumeDescriptor {
        let mut volumes = self.volumes.borrow_mut();
        let volume = volumes.get_mut(name).expect("it is there");
        volume.levels = levels;
        volume.clone()
    }

    /// Counts the mark of a request that moves data.
    fn count_mark(&self, target: Target) {
        let mut marked = self.marked.get();
        marked[target.level as usize] += 1;
        self.marked.set(marked);
    }

    /// Gives a volume an owner.
    pub fn set_owner(&self, name: &str, owner: &str) {
        self.volumes.borrow_mut().get_mut(name).expect("it is there").owner = owner.into();
    }

    /// Another agent attaches a volume, and nobody here hears of it.
    pub fn attach_elsewhere(&self, name: &str) {
        let mut volumes = self.volumes.borrow_mut();
        volumes.get_mut(name).expect("it is there").generation.0 += 1;
    }

    /// Notes a change in flight, and asserts that it overlaps none and comes after all before it.
    fn begin_change(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) {
        let mut changing = self.changing.borrow_mut();
        let overlaps =
            |(segment, o, l): &(SegmentId, u64, u64)| *segment == target.segment && *o < offset + len && offset < o + l;
        assert!(!changing.iter().any(overlaps), "a write overlaps one whose outcome is not known");
        changing.push((target.segment, offset, len));
        let (_, generation) = self.sessions.borrow()[&target.segment.volume];
        assert_eq!(stamp.generation, generation);
        assert_ne!(stamp.sequence, WriteSequence(0));
        let mut last = self.last_stamp.borrow_mut();
        // Large ranges are checked at their ends only.
        for sector in [offset / SECTOR, (offset + len) / SECTOR - 1] {
            let before = last.insert((target.segment, sector), stamp);
            assert!(before.is_none_or(|before| before <= stamp), "stamps of a sector grow");
        }
    }

    fn end_change(&self, target: Target, offset: u64, len: u64) {
        let mut changing = self.changing.borrow_mut();
        let at = changing.iter().position(|change| *change == (target.segment, offset, len)).unwrap();
        changing.swap_remove(at);
    }
}

fn change_once<T>(change: impl FnOnce(&mut T)) -> impl FnMut(&mut T) {
    let mut change = Some(change);
    move |item| change.take().expect("ids are unique")(item)
}

impl VolumeDirectory for Store {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        Box::pin(async move {
            let found = self.volumes.borrow().get(name).cloned();
            found.ok_or_else(|| Error::not_found(format!("there is no volume '{name}'")))
        })
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move { self.volume(volume) })
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move { Ok(self.volumes.borrow().keys().cloned().collect()) })
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move {
            self.handle.sleep(self.delay.get()).await;
            self.update(volume, |volume| volume.generation.0 += 1);
            self.volume(volume)
        })
    }

    fn detach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.handle.sleep(self.delay.get()).await;
            self.log.borrow_mut().push(format!("released {volume} {generation}"));
            Ok(())
        })
    }
}

impl BlockService for Store {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(async move {
            self.handle.sleep(self.delay.get()).await;
            self.log.borrow_mut().push(format!("attached {volume} {generation}"));
            assert_eq!(self.volume(volume)?.generation, generation, "under the newest generation");
            assert!(self.changing.borrow().iter().all(|change| change.0.volume != volume), "nothing is in flight");
            let session = SessionId(self.handle.random_u64());
            self.sessions.borrow_mut().insert(volume, (session, generation));
            Ok(Attachment { session, epoch: self.epoch.get() })
        })
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.sessions.borrow_mut().retain(|_, (id, _)| *id != session);
            assert!(self.changing.borrow().iter().all(|c| self.sessions.borrow().contains_key(&c.0.volume)));
            Ok(())
        })
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        Box::pin(async move {
            self.count_mark(target);
            self.reading.set(self.reading.get() + len);
            self.reading_max.set(self.reading_max.get().max(self.reading.get()));
            let read = || {
                let sectors = self.sectors.borrow();
                let mut parts: Vec<ReadPart> = Vec::new();
                let mut at = offset / SECTOR;
                let end = (offset + len) / SECTOR;
                for (&(_, sector), content) in sectors.range((target.segment, at)..(target.segment, end)) {
                    if sector > at {
                        parts.push(ReadPart::Zeros((sector - at) * SECTOR));
                    }
                    parts.push(ReadPart::Data(Bytes::copy_from_slice(content)));
                    at = sector + 1;
                }
                if at < end {
                    parts.push(ReadPart::Zeros((end - at) * SECTOR));
                }
                parts
            };
            let answer = self.pass(target, read).await;
            self.reading.set(self.reading.get() - len);
            answer
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
        Box::pin(async move {
            self.count_mark(target);
            let len = data.len() as u64;
            assert_eq!(checksums, fragment_checksums(target.segment, offset, &data));
            self.begin_change(target, offset, len, stamp);
            let write = || {
                let mut sectors = self.sectors.borrow_mut();
                for (n, sector) in data.chunks(SECTOR as usize).enumerate() {
                    sectors.insert((target.segment, offset / SECTOR + n as u64), sector.try_into().unwrap());
                }
            };
            let answer = self.pass(target, write).await;
            self.end_change(target, offset, len);
            answer
        })
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move {
            self.begin_change(target, offset, len, stamp);
            let discard = || {
                let range = (target.segment, offset / SECTOR)..(target.segment, (offset + len) / SECTOR);
                let mut sectors = self.sectors.borrow_mut();
                let gone: Vec<_> = sectors.range(range).map(|(&place, _)| place).collect();
                for place in gone {
                    sectors.remove(&place);
                }
            };
            let answer = self.pass(target, discard).await;
            self.end_change(target, offset, len);
            answer
        })
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(self.pass(target, || ()))
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        Box::pin(async move {
            let look = || {
                let sectors = self.sectors.borrow();
                let (mut at, end) = (offset / SECTOR, (offset + len) / SECTOR);
                let mut extents: Vec<AllocationExtent> = Vec::new();
                let mut push = |len: u64, allocated| {
                    let count = extents.len();
                    match extents.last_mut() {
                        _ if len == 0 => {}
                        Some(last) if last.allocated == allocated => last.len += len * SECTOR,
                        _ if count == extents_max => return false,
                        _ => extents.push(AllocationExtent { len: len * SECTOR, allocated }),
                    }
                    true
                };
                for (&(_, sector), _) in sectors.range((target.segment, at)..(target.segment, end)) {
                    if !push(sector - at, false) || !push(1, true) {
                        return extents;
                    }
                    at = sector + 1;
                }
                push(end - at, false);
                extents
            };
            self.pass(target, look).await
        })
    }
}

/// How long something took, for tests that compare.
pub fn since(handle: &Handle, start: Instant) -> Duration {
    handle.now().since(start)
}
