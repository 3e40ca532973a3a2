//! Bursts go to everybody (DiffForward, SIGMETRICS 2023): a [`BlockService`] in front of the router, which has some writes go to
//! logs on several servers instead of to the owner of their segment.
//!
//! **Intuition** and names: [`policies::forwarding`] decides what goes where; here it is done. To the volume above nothing is
//! different: a write that was answered is durable, and a read finds it.
//!
//! **Where the logs are.** A volume has a hidden one, of as many segments as it has logs, at most eight. The manager makes it when
//! the first burst comes ([`VolumeDirectory::take_logs`]), and puts its segments on different servers as it does with those of any
//! volume. A log is one of these segments: an append is a write at an address that grows (`logs.rs`), with a header in front
//! (`entry.rs`). So a log survives its server as a segment does, and whoever attaches the volume next closes the logs to whoever
//! was attached before. What is known beside the entries is in the book (`book.rs`).
//!
//! **Flow.** `attach: logs there are -> book -> traversal -> index`. Of a write: `detector -> route -> log (reserve, append, index)
//! or owner, or one after the other`. Of a read: `index -> pieces of logs and owner -> still there? else again`. Behind it
//! `forwarded/merging.rs` carries home what was logged: `batch -> owner -> book -> forget`.
//!
//! **Invariants** are rules 52 to 57 of docs/SAFETY.md. One that is of this place: the attachment of the logs belongs to that of
//! the volume. The manager gives it to nobody but the newest one, so that nobody appends whom the owners would refuse.

mod book;
mod entry;
mod forwarded;
mod logs;
mod way_home;

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use base::{AllocationExtent, Bytes, Generation, Map, ReadPart, Result, VolumeId, WriteStamp};
use policies::burst::BurstSettings;
use policies::forwarding::{Gain, IndexSettings, Limits, Pace};
use runtime::Handle;
use wire::{
    Answer, Attachment, BlockService, Forwarding, LocalBoxFuture, SessionId, Target, VolumeDescriptor, VolumeDirectory,
};

use forwarded::{Forwarded, Written};
use way_home::WayHome;

/// How long a volume that is given back may take to empty its logs: what is left the next attachment finds.
const CLOSING: Duration = Duration::from_secs(1);
/// After logs could not be made.
const AGAIN: Duration = Duration::from_secs(10);

/// Which writes are spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// None. What was logged before comes home all the same.
    #[default]
    Off,
    /// Bursts, unless that loses; what is called one follows what forwarding costs.
    Auto,
    /// Bursts, as the settings of the detector have it.
    On,
    /// Every other write, as chance has it: for tests.
    Mixed,
}

/// Settings.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// See there.
    pub mode: Mode,
    /// What is a burst.
    pub burst: BurstSettings,
    /// What it may cost, where that decides what is a burst.
    pub limits: Limits,
    /// Whether [`Mode::Auto`] finds out if spreading gains anything; otherwise that is taken for granted: to see what that does.
    pub finds_gain: bool,
    /// Bounds of what one segment may have in logs.
    pub index: IndexSettings,
    /// How what is in logs comes home.
    pub pace: Pace,
    /// Bytes of each log, within [`LOG_BYTES`]; holds from when the logs of a volume are empty.
    pub log_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            mode: Mode::Off,
            burst: BurstSettings::SENSITIVE,
            limits: Limits::default(),
            finds_gain: true,
            index: IndexSettings::default(),
            pace: Pace::default(),
            log_bytes: 64 << 20,
        }
    }
}

impl Mode {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Auto => "auto",
            Mode::On => "on",
            Mode::Mixed => "mixed",
        }
    }

    /// That of a volume, for which `forwarding` was set, where this is what the agent does.
    fn of(self, forwarding: Forwarding) -> Mode {
        match forwarding {
            Forwarding::Default => self,
            Forwarding::Off => Mode::Off,
            Forwarding::Auto => Mode::Auto,
            Forwarding::On => Mode::On,
        }
    }
}

/// Bytes that a log may have: several entries of any length fit into it.
pub const LOG_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 30;

/// What was forwarded of all volumes, and how it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Written bytes of volumes whose bursts were spread.
    pub written_bytes: u64,
    /// Written bytes that were a burst, and went to logs.
    pub burst_bytes: u64,
    /// Written bytes that followed others there.
    pub rescheduled_bytes: u64,
    /// Bytes that came home.
    pub merged_bytes: u64,
    /// Reads that went to a log, those of merging included.
    pub log_reads: u64,
    /// Reads that were done again, since what they had read was merged meanwhile.
    pub repeated_reads: u64,
    /// Times that a write waited for others to be merged.
    pub waits: u64,
    /// Batches that could not be merged, and were tried again.
    pub failed_merges: u64,
}

impl Counted {
    fn add(&mut self, more: &Counted) {
        self.written_bytes += more.written_bytes;
        self.burst_bytes += more.burst_bytes;
        self.rescheduled_bytes += more.rescheduled_bytes;
        self.merged_bytes += more.merged_bytes;
        self.log_reads += more.log_reads;
        self.repeated_reads += more.repeated_reads;
        self.waits += more.waits;
        self.failed_merges += more.failed_merges;
    }
}

/// How it stands with the bursts of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// Which writes are spread.
    pub mode: Mode,
    /// Whether it has logs.
    pub has_logs: bool,
    /// With [`Mode::Auto`]: of a hundred moments, those in which bursts are spread.
    pub spread_percent: Option<u32>,
    /// What was done since it was attached.
    pub counted: Counted,
    /// Bytes that wait in logs.
    pub waiting_bytes: u64,
    /// Entries that wait there.
    pub waiting_entries: u64,
    /// For how long the oldest of them does.
    pub lag: Duration,
    /// What is called a burst: TH.
    pub threshold: Duration,
}

/// See the module.
pub struct Forwarder {
    shared: Rc<Shared>,
    volumes: RefCell<Map<SessionId, Rc<Forwarded>>>,
    /// Of volumes that were given back.
    past: RefCell<Counted>,
}

/// What all volumes have in common.
struct Shared {
    handle: Handle,
    service: Rc<dyn BlockService>,
    directory: Rc<dyn VolumeDirectory>,
    options: Options,
    way_home: Rc<WayHome>,
    /// Whether volumes with [`Mode::Auto`] gain by being spread.
    gain: RefCell<Gain>,
}

impl Forwarder {
    /// Bursts of volumes that `directory` knows, on their way to `service`.
    pub fn new(
        handle: &Handle,
        directory: Rc<dyn VolumeDirectory>,
        service: Rc<dyn BlockService>,
        options: Options,
    ) -> Rc<Forwarder> {
        let way_home = WayHome::new(handle);
        let shared = Shared { handle: handle.clone(), service, directory, options, way_home, gain: RefCell::default() };
        Rc::new(Forwarder { shared: Rc::new(shared), volumes: RefCell::default(), past: RefCell::default() })
    }

    /// What was forwarded since it started.
    pub fn counted(&self) -> Counted {
        let mut all = *self.past.borrow();
        self.volumes.borrow().values().for_each(|forwarded| all.add(&forwarded.counted.borrow()));
        all
    }

    /// Bytes that wait in logs, and entries.
    pub fn waiting(&self) -> (u64, usize) {
        let volumes = self.volumes.borrow();
        let all = volumes.values().map(|forwarded| forwarded.waiting());
        all.fold((0, 0), |(bytes, entries), (more, others)| (bytes + more, entries + others))
    }

    /// How it stands with the bursts of a volume that is attached here.
    pub fn state(&self, volume: VolumeId) -> Option<State> {
        self.newest(volume).map(|forwarded| forwarded.state())
    }

    /// Says whether the bursts of a volume are spread from now on. What is in logs comes home all the same.
    pub fn learn(&self, volume: &VolumeDescriptor) {
        if let Some(forwarded) = self.newest(volume.id) {
            forwarded.set_mode(self.shared.options.mode.of(volume.forwarding));
        }
    }

    fn newest(&self, volume: VolumeId) -> Option<Rc<Forwarded>> {
        let volumes = self.volumes.borrow();
        let of_volume = volumes.values().filter(|forwarded| forwarded.volume == volume);
        of_volume.max_by_key(|forwarded| forwarded.generation).cloned()
    }

    /// Whether what is known of logs contradicts itself; for tests.
    ///
    /// # Panics
    /// It does.
    pub fn check_invariants(&self) {
        self.volumes.borrow().values().for_each(|forwarded| forwarded.check_invariants());
    }

    fn forwarded(&self, session: SessionId) -> Option<Rc<Forwarded>> {
        self.volumes.borrow().get(&session).filter(|forwarded| !forwarded.is_plain()).cloned()
    }

    /// Finds what is in the logs of a volume that was just attached.
    async fn begin(&self, volume: VolumeId, generation: Generation, session: SessionId) -> Result<()> {
        let described = self.shared.directory.describe(volume).await?;
        let mode = self.shared.options.mode.of(described.forwarding);
        let forwarded = Forwarded::new(self.shared.clone(), session, volume, generation, described.layout(), mode);
        forwarded.open_logs(false).await?;
        let mut volumes = self.volumes.borrow_mut();
        // One that was lost was not given back.
        let is_over = |other: &Forwarded| other.volume == volume && other.generation < generation;
        let over = volumes.values().filter(|other| is_over(other));
        over.for_each(|other| self.past.borrow_mut().add(&other.counted.borrow()));
        volumes.retain(|_, other| !is_over(other));
        volumes.insert(session, forwarded);
        Ok(())
    }
}

impl BlockService for Forwarder {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(async move {
            let attached = self.shared.service.attach(volume, generation).await?;
            match self.begin(volume, generation, attached.session).await {
                Ok(()) => Ok(attached),
                Err(error) => {
                    let _ = self.shared.service.detach(attached.session).await;
                    Err(error)
                }
            }
        })
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        let forwarded = self.volumes.borrow().get(&session).cloned();
        Box::pin(async move {
            if let Some(forwarded) = forwarded {
                forwarded.close().await;
                self.volumes.borrow_mut().remove(&session);
                self.past.borrow_mut().add(&forwarded.counted.borrow());
            }
            self.shared.service.detach(session).await
        })
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        let Some(forwarded) = self.forwarded(target.session) else {
            return self.shared.service.read(target, offset, len);
        };
        Box::pin(async move { forwarded.read(target, offset, len).await })
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        let Some(forwarded) = self.forwarded(target.session) else {
            return self.shared.service.write(target, offset, data, checksums, stamp);
        };
        Box::pin(async move { forwarded.write(target, offset, Written::Data { data, checksums, stamp }).await })
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        let Some(forwarded) = self.forwarded(target.session) else {
            return self.shared.service.discard(target, offset, len, stamp);
        };
        Box::pin(async move { forwarded.write(target, offset, Written::Nothing { len, stamp }).await })
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        // What was answered is durable, in a log as with its owner.
        self.shared.service.flush(target)
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        let Some(forwarded) = self.forwarded(target.session) else {
            return self.shared.service.allocation(target, offset, len, extents_max);
        };
        Box::pin(async move { forwarded.allocation(target, offset, len, extents_max).await })
    }
}

#[cfg(test)]
mod tests;
