//! Those who use an engine: each does one thing after the other, and checks the answer.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::io::fragment_checksums;
use base::{AlignedBuf, BLOCK, Error, ErrorKind, Generation, Prng, ReadPart, SECTOR};
use base::{SegmentId, VolumeId, WriteSequence, WriteStamp};
use engine::Engine;
use runtime::Handle;

use super::scenario::Settings;
use super::sectors::{ReadToken, Sectors, encode};

/// What clients share, and what outlives them.
pub struct Shared {
    pub sectors: Sectors,
    pub prng: Prng,
    pub volumes: Vec<VolumeId>,
    /// Volumes of which nobody has said yet that they are gone: they may take space for ever.
    pub dropping: Vec<VolumeId>,
    next_volume: u64,
    next_write: u64,
    /// Before this life ends by itself.
    pub operations_left: u64,
    /// Clients at work.
    pub running: usize,
    pub failure: Option<String>,
    pub settings: Settings,
    /// Something was made to fail in this life: an error of the disk is an answer.
    pub faulty: bool,
    /// Content was lost in all copies: that it is not there is an answer.
    pub lost: bool,
    pub full_replies: u64,
    pub failed_replies: u64,
    pub lost_replies: u64,
}

/// See [`Shared`].
pub type Share = Rc<RefCell<Shared>>;

/// What an answer means that is not the one that was asked for.
enum Excuse {
    /// The volume is gone, or something fails: nothing follows from it.
    Granted,
    /// The store is full.
    Full,
}

impl Shared {
    pub fn new(settings: &Settings, prng: Prng) -> Shared {
        Shared {
            sectors: Sectors::new(settings.sectors.clone()),
            prng,
            volumes: (1..=settings.volumes as u64).map(VolumeId).collect(),
            dropping: Vec::new(),
            next_volume: settings.volumes as u64 + 1,
            next_write: 1,
            operations_left: 0,
            running: 0,
            failure: None,
            settings: settings.clone(),
            faulty: false,
            lost: false,
            full_replies: 0,
            failed_replies: 0,
            lost_replies: 0,
        }
    }

    fn segment(&mut self) -> SegmentId {
        let volume = *self.prng.pick(&self.volumes);
        SegmentId { volume, index: self.prng.below(u64::from(self.settings.segments)) as u32 }
    }

    /// Every segment that is used.
    pub fn segments(&self) -> Vec<SegmentId> {
        let of_volume = |&volume: &VolumeId| (0..self.settings.segments).map(move |index| SegmentId { volume, index });
        self.volumes.iter().flat_map(of_volume).collect()
    }

    /// A range of sectors, often of whole blocks.
    fn range(&mut self, len: u64) -> Range<u64> {
        let Range { start: first, end } = self.settings.sectors;
        let all = end - first;
        let mut len = len.min(all);
        let mut start = self.prng.below(all - len + 1);
        if self.prng.one_in(2) {
            start = start / 8 * 8;
            len = len.next_multiple_of(8).min(all - start);
        }
        first + start..first + start + len
    }

    fn stamp(&mut self) -> WriteStamp {
        self.next_write += 1;
        WriteStamp { generation: Generation(1), sequence: WriteSequence(self.next_write), ..WriteStamp::default() }
    }

    /// Learns what an engine did that has consequences. Where a disk could not be read for long, blocks are given up
    /// that were partly overwritten: see `engine::dump`.
    pub fn on_life(&mut self, engine: &Engine) -> &mut Self {
        self.lost |= self.faulty && engine.statistics().poisoned_blocks > 0;
        self
    }

    /// Whether an error is an answer, to somebody who asked for something in `volume`.
    fn excuse(&mut self, volume: VolumeId, error: &Error) -> Option<Excuse> {
        let is_gone = !self.volumes.contains(&volume);
        match error.kind {
            ErrorKind::NotFound if is_gone => Some(Excuse::Granted),
            ErrorKind::Full => Some(Excuse::Full),
            ErrorKind::Io if self.faulty => {
                self.failed_replies += 1;
                Some(Excuse::Granted)
            }
            ErrorKind::Corrupt if self.lost => {
                self.lost_replies += 1;
                Some(Excuse::Granted)
            }
            _ => None,
        }
    }

    /// Whether a write may be refused as `Full` that was asked for when `data_blocks` might hold data.
    fn may_be_full(&self, data_blocks: u64) -> bool {
        data_blocks.max(self.sectors.data_blocks()) * BLOCK > self.settings.room
    }
}

enum Operation {
    Read,
    Scan { sectors: u64 },
    Allocation,
    Write { sectors: u64 },
    Discard,
    DropVolume,
}

impl Operation {
    fn pick(shared: &mut Shared) -> Operation {
        let mix = shared.settings.mix;
        let weights = [mix.read, mix.allocation, mix.small_write, mix.large_write, mix.discard, mix.scan];
        let weights = weights.map(|part| part * 8);
        let mut at = shared.prng.below(weights.iter().sum::<u64>() + mix.drop_volume);
        let index = weights.iter().position(|&weight| {
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        });
        match index {
            Some(0) => Operation::Read,
            Some(1) => Operation::Allocation,
            Some(2) => Operation::Write { sectors: shared.prng.between(1, 24) },
            Some(3) => Operation::Write { sectors: shared.prng.between(16, 320) },
            Some(4) => Operation::Discard,
            Some(5) => Operation::Scan { sectors: *shared.prng.pick(&[8, 64, 128]) },
            _ => Operation::DropVolume,
        }
    }
}

/// Works until the operations of this life are done, or something is wrong.
pub async fn client(engine: Engine, share: Share, handle: Handle) {
    loop {
        let pause = {
            let mut shared = share.borrow_mut();
            if shared.operations_left == 0 || shared.failure.is_some() {
                break;
            }
            shared.operations_left -= 1;
            shared.prng.one_in(8).then(|| shared.prng.below(5_000_000))
        };
        if let Some(pause) = pause {
            handle.sleep(Duration::from_nanos(pause)).await;
        }
        if let Err(failure) = operate(&engine, &share).await {
            share.borrow_mut().failure.get_or_insert(failure);
        }
    }
    share.borrow_mut().running -= 1;
}

async fn operate(engine: &Engine, share: &Share) -> Result<(), String> {
    let (operation, segment) = {
        let mut shared = share.borrow_mut();
        (Operation::pick(&mut shared), shared.segment())
    };
    let range = |len: u64| share.borrow_mut().range(len);
    let up_to = |most: u64| {
        let mut shared = share.borrow_mut();
        let len = shared.prng.between(1, most);
        shared.range(len)
    };
    match operation {
        Operation::Read => read(engine, share, segment, up_to(128)).await,
        Operation::Scan { sectors } => scan(engine, share, segment, sectors).await,
        Operation::Allocation => allocation(engine, share, segment, up_to(512)).await,
        Operation::Write { sectors } => write(engine, share, segment, range(sectors)).await,
        Operation::Discard => {
            let everything = share.borrow_mut().prng.one_in(4);
            let range = if everything { share.borrow().settings.sectors.clone() } else { up_to(128) };
            discard(engine, share, segment, range).await
        }
        Operation::DropVolume => drop_volume(engine, share).await,
    }
}

/// Writes `range`.
///
/// # Errors
/// What is wrong with the answer: a store with room takes every write.
pub async fn write(engine: &Engine, share: &Share, segment: SegmentId, range: Range<u64>) -> Result<(), String> {
    let (op, stamp, data_blocks) = {
        let mut shared = share.borrow_mut();
        (shared.sectors.begin_write(segment, range.clone(), false), shared.stamp(), shared.sectors.data_blocks())
    };
    let len = (range.end - range.start) * SECTOR;
    let mut data = AlignedBuf::zeroed(len as usize);
    for (sector, out) in range.clone().zip(data.chunks_exact_mut(SECTOR as usize)) {
        encode(op, segment, sector, out);
    }
    let checksums = fragment_checksums(segment, range.start * SECTOR, &data);
    let outcome = engine.write(segment, range.start * SECTOR, data.freeze(), checksums, stamp).await;
    let mut shared = share.borrow_mut();
    let Err(error) = outcome else {
        shared.sectors.on_acknowledged(op);
        return Ok(());
    };
    let excuse = shared.excuse(segment.volume, &error);
    if matches!(excuse, Some(Excuse::Full)) && len < shared.settings.options.large_write_bytes {
        // It has one part only.
        shared.sectors.on_refused(op);
    }
    let now = shared.sectors.data_blocks();
    match excuse {
        Some(Excuse::Granted) => Ok(()),
        Some(Excuse::Full) if shared.may_be_full(data_blocks) || shared.faulty => {
            shared.full_replies += 1;
            Ok(())
        }
        _ => Err(format!("a write of {len} bytes to {segment}: {error} (data blocks: {data_blocks}, {now} now)")),
    }
}

/// Discards `range`.
///
/// # Errors
/// What is wrong with the answer: a full store takes discards, too.
pub async fn discard(engine: &Engine, share: &Share, segment: SegmentId, range: Range<u64>) -> Result<(), String> {
    let (op, stamp) = {
        let mut shared = share.borrow_mut();
        (shared.sectors.begin_write(segment, range.clone(), true), shared.stamp())
    };
    let len = (range.end - range.start) * SECTOR;
    let outcome = engine.discard(segment, range.start * SECTOR, len, stamp).await;
    let mut shared = share.borrow_mut();
    let Err(error) = outcome else {
        shared.sectors.on_acknowledged(op);
        return Ok(());
    };
    match shared.excuse(segment.volume, &error) {
        Some(Excuse::Granted) => Ok(()),
        _ => Err(format!("a discard in {segment}: {error}")),
    }
}

/// Reads `range`.
///
/// # Errors
/// What is wrong with the answer.
pub async fn read(engine: &Engine, share: &Share, segment: SegmentId, range: Range<u64>) -> Result<(), String> {
    let token = share.borrow_mut().sectors.begin_read(segment, range.clone());
    let len = (range.end - range.start) * SECTOR;
    let outcome = engine.read(segment, range.start * SECTOR, len).await;
    let Some(parts) = answer(engine, share, segment, &token, outcome)? else { return Ok(()) };
    let mut data = Vec::with_capacity(len as usize);
    for part in parts {
        match part {
            ReadPart::Data(bytes) => data.extend_from_slice(&bytes),
            ReadPart::Zeros(len) => data.resize(data.len() + len as usize, 0),
        }
    }
    share.borrow_mut().sectors.end_read(&token, &data)
}

/// Asks what of `range` is allocated: what is not reads as zeros.
/// Reads all that is used of a segment, one piece after the other.
async fn scan(engine: &Engine, share: &Share, segment: SegmentId, sectors: u64) -> Result<(), String> {
    let all = share.borrow().settings.sectors.clone();
    let mut at = all.start;
    while at < all.end && share.borrow().failure.is_none() {
        let end = all.end.min(at + sectors);
        read(engine, share, segment, at..end).await?;
        at = end;
    }
    Ok(())
}

async fn allocation(engine: &Engine, share: &Share, segment: SegmentId, range: Range<u64>) -> Result<(), String> {
    let token = share.borrow_mut().sectors.begin_read(segment, range.clone());
    let len = (range.end - range.start) * SECTOR;
    let extents_max = share.borrow_mut().prng.between(1, 40) as usize;
    let outcome = engine.allocation(segment, range.start * SECTOR, len, extents_max).await;
    let Some(extents) = answer(engine, share, segment, &token, outcome)? else { return Ok(()) };
    let mut at = range.start;
    for extent in &extents {
        let end = at + extent.len / SECTOR;
        if !extent.allocated {
            share.borrow_mut().sectors.end_hole(&token, at..end)?;
        }
        at = end;
    }
    match at <= range.end && !extents.is_empty() && extents.len() <= extents_max {
        true => Ok(()),
        false => Err(format!("the allocation of {range:?} of {segment}: {extents:?}")),
    }
}

/// What was read, if that says anything.
fn answer<T>(
    engine: &Engine,
    share: &Share,
    segment: SegmentId,
    token: &ReadToken,
    outcome: base::Result<T>,
) -> Result<Option<T>, String> {
    let mut shared = share.borrow_mut();
    shared.sectors.give_up_read(token);
    match outcome {
        _ if !shared.volumes.contains(&segment.volume) => Ok(None),
        Ok(parts) => Ok(Some(parts)),
        Err(error) => match shared.on_life(engine).excuse(segment.volume, &error) {
            Some(Excuse::Granted) => Ok(None),
            _ => Err(format!("a read of {segment}: {error}")),
        },
    }
}

/// Deletes a volume; another one takes its place.
async fn drop_volume(engine: &Engine, share: &Share) -> Result<(), String> {
    let volume = {
        let mut shared = share.borrow_mut();
        let count = shared.volumes.len() as u64;
        let index = shared.prng.below(count) as usize;
        let new = VolumeId(shared.next_volume);
        shared.next_volume += 1;
        let old = std::mem::replace(&mut shared.volumes[index], new);
        shared.sectors.forget_volume(old);
        shared.dropping.push(old);
        old
    };
    drop_old(engine, share, volume).await
}

/// Asks again for what the last life may not have done: who deletes a volume does so until he has an answer.
///
/// # Errors
/// What is wrong with an answer.
pub async fn drop_again(engine: &Engine, share: &Share) -> Result<(), String> {
    let dropping = share.borrow().dropping.clone();
    for volume in dropping {
        drop_old(engine, share, volume).await?;
    }
    Ok(())
}

async fn drop_old(engine: &Engine, share: &Share, volume: VolumeId) -> Result<(), String> {
    let outcome = engine.drop_volume(volume).await;
    let Err(error) = outcome else {
        share.borrow_mut().dropping.retain(|dropping| *dropping != volume);
        return Ok(());
    };
    match share.borrow_mut().excuse(volume, &error) {
        Some(Excuse::Granted) => Ok(()),
        _ => Err(format!("volume {volume} was not dropped: {error}")),
    }
}

/// Reads everything.
///
/// # Errors
/// What is wrong with the first wrong answer.
pub async fn check_all(engine: &Engine, share: &Share) -> Result<(), String> {
    let (segments, sectors) = (share.borrow().segments(), share.borrow().settings.sectors.clone());
    for segment in segments {
        for start in sectors.clone().step_by(256) {
            read(engine, share, segment, start..(start + 256).min(sectors.end)).await?;
        }
    }
    Ok(())
}
