//! A small store in memory: it takes its time, remembers what it was asked, and refuses what a block server refuses.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::io::fragment_checksums;
use base::levels::Level;
use base::{
    AllocationExtent, Bytes, Epoch, Error, Generation, Map, Passage, ReadPart, Result, SECTOR, SegmentId, Stage,
    VolumeId, WriteStamp,
};
use runtime::Handle;
use wire::{
    Answer, Attachment, BlockService, LinkLost, LocalBoxFuture, Reply, SessionId, Target, VolumeDescriptor,
    VolumeDirectory, VolumeOwner, VolumeUser,
};

use crate::stream::Services;

pub const EPOCH: Epoch = Epoch(7);

/// See the module.
pub struct Store {
    handle: Handle,
    pub takes: Cell<Duration>,
    /// What was asked, but for reads and writes.
    pub log: RefCell<Vec<String>>,
    /// The sessions that are open, with the generation of each.
    pub sessions: RefCell<Map<SessionId, Generation>>,
    last_session: Cell<u64>,
    sectors: RefCell<Map<(SegmentId, u64), Bytes>>,
    pub in_flight: Cell<usize>,
    pub in_flight_max: Cell<usize>,
    /// Where the memory of each write began, within a page.
    pub alignments: RefCell<Vec<usize>>,
    /// Reads that it was asked for.
    pub reads: Cell<usize>,
    /// What waited behind each request of a segment.
    pub behind: RefCell<Vec<u32>>,
    /// The next read or write says that its link is lost.
    pub loses_link: Cell<bool>,
}

impl Store {
    pub fn new(handle: &Handle) -> Rc<Store> {
        Rc::new(Store {
            handle: handle.clone(),
            takes: Cell::new(Duration::from_micros(20)),
            log: RefCell::default(),
            sessions: RefCell::default(),
            last_session: Cell::default(),
            sectors: RefCell::default(),
            in_flight: Cell::default(),
            in_flight_max: Cell::default(),
            alignments: RefCell::default(),
            reads: Cell::default(),
            behind: RefCell::default(),
            loses_link: Cell::default(),
        })
    }

    /// Everything that it does.
    pub fn services(self: &Rc<Self>) -> Services {
        Services {
            block: Some(self.clone()),
            directory: Some(self.clone()),
            owner: Some(self.clone()),
            user: Some(self.clone()),
            ..Services::default()
        }
    }

    pub fn note(&self, text: String) {
        self.log.borrow_mut().push(text);
    }

    /// Takes its time, and says whether the session is open then.
    async fn work(&self, target: Target) -> Result<()> {
        self.behind.borrow_mut().push(target.behind);
        self.in_flight.set(self.in_flight.get() + 1);
        self.in_flight_max.set(self.in_flight_max.get().max(self.in_flight.get()));
        self.handle.sleep(self.takes.get()).await;
        self.in_flight.set(self.in_flight.get() - 1);
        match self.sessions.borrow().contains_key(&target.session) {
            true if target.epoch == EPOCH => Ok(()),
            true => Err(Error::fenced(format!("it is owned under {EPOCH}"))),
            false => Err(Error::fenced(format!("{} has ended", target.session))),
        }
    }

    fn answer<T>(&self, result: Result<T>) -> Answer<T> {
        if self.loses_link.take() {
            return Err(LinkLost { message: "another loop has ended".into() });
        }
        let mut passage = Passage::default();
        passage.add(Stage::Append, 700);
        Ok(Reply { epoch: EPOCH, result, passage })
    }
}

impl BlockService for Store {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(async move {
            self.note(format!("attach {volume} {generation}"));
            self.handle.sleep(self.takes.get()).await;
            let session = SessionId(self.last_session.get() + 1);
            self.last_session.set(session.0);
            self.sessions.borrow_mut().insert(session, generation);
            Ok(Attachment { session, epoch: EPOCH })
        })
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.note(format!("detach {session}"));
            self.sessions.borrow_mut().remove(&session);
            Ok(())
        })
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        Box::pin(async move {
            self.reads.set(self.reads.get() + 1);
            let result = self.work(target).await.map(|()| {
                let sectors = self.sectors.borrow();
                let part = |at: u64| match sectors.get(&(target.segment, at)) {
                    Some(data) => ReadPart::Data(data.clone()),
                    None => ReadPart::Zeros(SECTOR),
                };
                (offset / SECTOR..(offset + len) / SECTOR).map(part).collect()
            });
            self.answer(result)
        })
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        _stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move {
            assert_eq!(checksums, fragment_checksums(target.segment, offset, &data), "wrong bytes reached the store");
            self.alignments.borrow_mut().push(data.as_ptr() as usize % 4096);
            let result = self.work(target).await.map(|()| {
                let mut sectors = self.sectors.borrow_mut();
                for (index, sector) in (offset / SECTOR..).zip(data.chunks(SECTOR as usize)) {
                    sectors.insert((target.segment, index), Bytes::copy_from_slice(sector));
                }
            });
            self.answer(result)
        })
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move {
            let mark = marked(target);
            self.note(format!("discard {} {offset} {len} {}{mark}", target.segment, stamp.sequence));
            let result = self.work(target).await;
            self.answer(result)
        })
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move {
            self.note(format!("flush {}{}", target.segment, marked(target)));
            let result = self.work(target).await;
            self.answer(result)
        })
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        Box::pin(async move {
            self.note(format!("allocation {} {offset} {len} {extents_max}", target.segment));
            let result = self.work(target).await.map(|()| vec![AllocationExtent { len, allocated: true }]);
            self.answer(result)
        })
    }
}

/// How a request is marked, if it is.
fn marked(target: Target) -> &'static str {
    match target.level {
        Level::Open => "",
        Level::Base => " as base",
        Level::Burst => " as burst",
        Level::Merge => " as merge",
    }
}

fn described(id: VolumeId, name: &str) -> VolumeDescriptor {
    VolumeDescriptor { generation: Generation(4), owner: "somebody".into(), ..VolumeDescriptor::new(id, name, 1 << 30) }
}

impl VolumeDirectory for Store {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        Box::pin(async move {
            match name {
                "disk" => Ok(described(VolumeId(1), name)),
                _ => Err(Error::not_found(format!("there is no volume '{name}'"))),
            }
        })
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move { Ok(described(volume, "disk")) })
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move { Ok(vec!["disk".into(), "other".into()]) })
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move {
            self.note(format!("take {volume}"));
            Ok(described(volume, "disk"))
        })
    }

    fn detach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.note(format!("give back {volume} {generation}"));
            Ok(())
        })
    }
}

impl VolumeOwner for Store {
    fn drop_volume(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.note(format!("drop {volume}"));
            Err(Error::full("no"))
        })
    }

    fn begin_scrub(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.note("scrub".into());
            Ok(())
        })
    }

    fn set_levels(&self, volume: &VolumeDescriptor) {
        self.note(format!("levels {} {}", volume.id, volume.levels.base.iops));
    }

    fn set_provisioned(&self, bytes: u64) {
        self.note(format!("provisioned {bytes}"));
    }
}

impl VolumeUser for Store {
    fn release(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move { self.note(format!("release {volume}")) })
    }

    fn users(&self, volume: VolumeId) -> usize {
        volume.0 as usize + 2
    }

    fn learn_levels(&self, volume: &VolumeDescriptor) {
        self.note(format!("learned {} {}", volume.id, volume.levels.base.iops));
    }
}
