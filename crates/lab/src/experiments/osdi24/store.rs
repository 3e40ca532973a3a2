//! What an agent under test has behind it: volumes that are always there, and an owner of their segments that takes its
//! time, and none of anybody's processor.
//!
//! What a request takes of the agent's processor is charged here, too, by kind and size: the world itself charges the same for
//! each. It is charged after the scheduler has let the request go, as what is charged for is done then.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::levels::Rate;
use base::{AllocationExtent, Bytes, Epoch, Error, Generation, MIB, Passage, ReadPart, Result, VolumeId, WriteStamp};
use policies::tenants::Line;
use runtime::Handle;
use wire::{
    Answer, Attachment, BlockService, LocalBoxFuture, Reply, SessionId, Target, VolumeDescriptor, VolumeDirectory,
};

/// See the module.
pub(super) struct Store {
    handle: Handle,
    latency: Duration,
    /// Of reads, of writes.
    takes: [Line; 2],
    volumes: RefCell<BTreeMap<String, VolumeDescriptor>>,
}

impl Store {
    /// No volumes yet. Requests wait for `latency`, and take so much of the processor.
    pub(super) fn new(handle: &Handle, latency: Duration, takes: [Line; 2]) -> Rc<Store> {
        Rc::new(Store { handle: handle.clone(), latency, takes, volumes: RefCell::default() })
    }

    /// The same on another loop of the agent, which has it beside itself, too.
    pub(super) fn beside(&self, handle: &Handle) -> Rc<Store> {
        let Store { latency, takes, volumes, .. } = self;
        Rc::new(Store { handle: handle.clone(), latency: *latency, takes: *takes, volumes: volumes.clone() })
    }

    /// A volume, what it is promised, and the most that it gets: nothing in particular where that is none.
    pub(super) fn add_volume(&self, name: &str, size: u64, base_iops: Option<u64>, burst_iops: Option<u64>) {
        let mut volumes = self.volumes.borrow_mut();
        let mut volume = VolumeDescriptor::new(VolumeId(volumes.len() as u64 + 1), name, size);
        // Requests are not cut.
        volume.data_sector_bytes = MIB;
        volume.levels.base = Rate { iops: base_iops.unwrap_or(0), bytes_per_sec: 0 };
        volume.levels.burst = Rate { iops: burst_iops.unwrap_or(0), bytes_per_sec: 0 };
        volumes.insert(name.to_owned(), volume);
    }

    fn volume(&self, id: VolumeId) -> Result<VolumeDescriptor> {
        let found = self.volumes.borrow().values().find(|volume| volume.id == id).cloned();
        found.ok_or_else(|| Error::not_found(format!("there is no volume {id}")))
    }

    async fn answer<T>(&self, takes: Option<(Line, u64)>, result: T) -> Answer<T> {
        if let Some((line, bytes)) = takes {
            self.handle.charge(Duration::from_nanos((line.fixed_ns + line.per_byte_ns * bytes as f64) as u64));
        }
        self.handle.sleep(self.latency).await;
        Ok(Reply { epoch: Epoch(1), result: Ok(result), passage: Passage::default() })
    }
}

impl VolumeDirectory for Store {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        let found = self.volumes.borrow().get(name).cloned();
        Box::pin(async move { found.ok_or_else(|| Error::not_found(format!("there is no volume '{name}'"))) })
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move { self.volume(volume) })
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move { Ok(self.volumes.borrow().keys().cloned().collect()) })
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        let attached = |one: &mut VolumeDescriptor| {
            one.generation.0 += 1;
            one.clone()
        };
        let found = self.volumes.borrow_mut().values_mut().find(|one| one.id == volume).map(attached);
        Box::pin(async move { found.ok_or_else(|| Error::not_found(format!("there is no volume {volume}"))) })
    }

    fn detach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

impl BlockService for Store {
    fn attach(&self, volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(async move { Ok(Attachment { session: SessionId(volume.0), epoch: Epoch(1) }) })
    }

    fn detach(&self, _session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn read(&self, _target: Target, _offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        Box::pin(self.answer(Some((self.takes[0], len)), vec![ReadPart::Zeros(len)]))
    }

    fn write(
        &self,
        _target: Target,
        _offset: u64,
        data: Bytes,
        _checksums: Vec<u32>,
        _stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(self.answer(Some((self.takes[1], data.len() as u64)), ()))
    }

    fn discard(&self, _target: Target, _offset: u64, _len: u64, _stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(self.answer(None, ()))
    }

    fn flush(&self, _target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(self.answer(None, ()))
    }

    fn allocation(
        &self,
        _target: Target,
        _offset: u64,
        len: u64,
        _extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        Box::pin(self.answer(None, vec![AllocationExtent { len, allocated: true }]))
    }
}
