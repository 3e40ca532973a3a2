//! Writes and discards: the owner's part of them, and what goes to a log.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use base::checksum::crc32c;
use base::io::fragment_checksums;
use base::seeded::is_on;
use base::{Bytes, Error, ErrorKind, Passage, Result, SegmentId, Stage, WriteStamp};
use policies::burst::Traffic;
use policies::forwarding::{Address, Chosen, Content, LogNumber, Reach, Route, Serial, Way};
use wire::{Answer, LinkLost, Reply, Target};

use super::super::Mode;
use super::super::entry::{DATA_MAX, HEADER, Header};
use super::super::logs::{Logs, Trouble, to_its_end};
use super::{Forwarded, Segment};

/// Pieces of a discard that go their ways one by one.
const PIECES_MAX: usize = 4;

/// What a client writes.
#[derive(Clone)]
pub(in crate::forwarding) enum Written {
    Data {
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    },
    /// It discards.
    Nothing {
        len: u64,
        stamp: WriteStamp,
    },
}

/// Where a write goes that is part of a burst.
#[derive(Clone, Copy)]
struct Burst {
    way: Way,
    /// To which logs, if that is its way.
    reach: Reach,
    /// How it was found, where that may change.
    chosen: Option<Chosen>,
}

impl Written {
    fn len(&self) -> u64 {
        match self {
            Written::Data { data, .. } => data.len() as u64,
            Written::Nothing { len, .. } => *len,
        }
    }

    /// What of a range one entry may have.
    fn first(&self, range: &Range<u64>) -> Range<u64> {
        match self {
            Written::Data { .. } => range.start..range.end.min(range.start + DATA_MAX),
            Written::Nothing { .. } => range.clone(),
        }
    }

    /// The part of a write at `offset` that is in this range.
    fn slice(&self, segment: SegmentId, offset: u64, range: &Range<u64>) -> Written {
        match self {
            Written::Data { data, stamp, checksums } => {
                let part = data.slice((range.start - offset) as usize..(range.end - offset) as usize);
                let checksums = match part.len() == data.len() {
                    true => checksums.clone(),
                    false => fragment_checksums(segment, range.start, &part),
                };
                Written::Data { data: part, checksums, stamp: *stamp }
            }
            Written::Nothing { stamp, .. } => Written::Nothing { len: range.end - range.start, stamp: *stamp },
        }
    }
}

impl Forwarded {
    /// A write of a client.
    pub(in crate::forwarding) async fn write(
        self: Rc<Self>,
        target: Target,
        offset: u64,
        written: Written,
    ) -> Answer<()> {
        self.check()?;
        let len = written.len();
        let range = offset..offset + len;
        let burst = self.burst(target.segment.index, &range, &written);
        let (logged, all) = self.interval.get();
        self.counted.borrow_mut().written_bytes += len;
        let ways: VecDeque<Route> = match burst {
            Some(Burst { way: Way::Log, .. }) => {
                self.interval.set((logged + len, all + len));
                [Route::Log(range, 0)].into()
            }
            Some(Burst { way: Way::Owner, .. }) | None => {
                self.interval.set((logged, all + len));
                let ways = self.route(target.segment.index, range.clone());
                if let Written::Nothing { .. } = written { as_one(ways, range) } else { ways }.into()
            }
        };
        let is_direct = ways.len() == 1 && matches!(ways[0], Route::Owner(_));
        let begun = self.handle().now();
        let answer = match is_direct {
            true => self.send(target, offset, written).await,
            // What follows others into logs is no burst, and has its turn there.
            false => self.go(target, offset, written, ways, burst.map_or(Reach::All, |burst| burst.reach)).await,
        };
        if let Some(Burst { way, chosen: Some(chosen), .. }) = burst {
            let went_there =
                is_direct == (way == Way::Owner) && answer.as_ref().is_ok_and(|reply| reply.result.is_ok());
            let took = went_there.then(|| self.handle().now().since(begun));
            self.shared.gain.borrow_mut().on_answer(chosen, took);
        }
        answer
    }

    /// Where a write goes that is part of a burst, which may be spread. With `auto` it is as often as that gains anything.
    fn burst(self: &Rc<Self>, segment: u32, range: &Range<u64>, written: &Written) -> Option<Burst> {
        let Written::Data { data, .. } = written else { return None };
        if self.mode.get() == Mode::Off {
            return None;
        }
        let place = self.layout.volume_offset(segment, range.start);
        let now = self.handle().now();
        let traffic = self.detector.borrow_mut().on_write(now, place, data.len() as u64);
        let reach = match (self.mode.get(), traffic) {
            (Mode::Mixed, _) => match self.handle().random_u64() % 8 {
                0 => Reach::Nearest,
                2 | 4 | 6 => Reach::All,
                _ => return None,
            },
            (_, Traffic::Stable) => return None,
            (_, Traffic::Mild) => Reach::Nearest,
            (_, Traffic::Burst) => Reach::All,
        };
        let Some(logs) = self.opened() else {
            self.want_logs();
            return None;
        };
        let is_full = self.segments.borrow().get(&segment).is_some_and(|known| known.index.is_full());
        match (is_full || !logs.has_room((data.len() as u64).min(DATA_MAX)), self.mode.get()) {
            (true, _) => None,
            (false, Mode::Auto) if self.shared.options.finds_gain => {
                let chosen = self.shared.gain.borrow_mut().way(now, self.handle().random_u64());
                Some(Burst { way: chosen.way, reach, chosen: Some(chosen) })
            }
            (false, _) => Some(Burst { way: Way::Log, reach, chosen: None }),
        }
    }

    fn route(&self, segment: u32, range: Range<u64>) -> Vec<Route> {
        match self.segments.borrow().get(&segment) {
            Some(_) if is_on("written-over-logged") => vec![Route::Owner(range)],
            Some(known) if !known.index.is_empty() => known.index.route(range),
            _ => vec![Route::Owner(range)],
        }
    }

    /// The ways of the pieces of a write, one after the other.
    async fn go(
        self: &Rc<Self>,
        target: Target,
        offset: u64,
        written: Written,
        mut ways: VecDeque<Route>,
        reach: Reach,
    ) -> Answer<()> {
        let mut passage = Passage::default();
        while let Some(way) = ways.pop_front() {
            let answer = match way {
                Route::Owner(range) => {
                    let piece = written.slice(target.segment, offset, &range);
                    self.send(target, range.start, piece).await
                }
                Route::Log(range, reschedules) => {
                    let first = written.first(&range);
                    if first.end < range.end {
                        ways.push_front(Route::Log(first.end..range.end, reschedules));
                    }
                    let piece = written.slice(target.segment, offset, &first);
                    self.log(target, first, piece, reschedules, reach).await
                }
                Route::Wait(range, serial) => {
                    let waited = self.handle().now();
                    self.until_merged(target.segment.index, serial).await?;
                    passage.add(Stage::Order, self.handle().now().nanos_since(waited));
                    // What it overlapped is with the owner now; what came meanwhile waited for this write.
                    self.route(target.segment.index, range).into_iter().rev().for_each(|way| ways.push_front(way));
                    continue;
                }
            };
            let reply = answer?;
            passage.absorb(&reply.passage);
            if reply.result.is_err() {
                return Ok(reply);
            }
        }
        Ok(Reply { epoch: target.epoch, result: Ok(()), passage })
    }

    /// To the owner.
    async fn send(&self, target: Target, offset: u64, written: Written) -> Answer<()> {
        match written {
            Written::Data { data, checksums, stamp } => {
                self.service().write(target, offset, data, checksums, stamp).await
            }
            Written::Nothing { len, stamp } => self.service().discard(target, offset, len, stamp).await,
        }
    }

    /// To a log. It waits for room.
    async fn log(
        self: &Rc<Self>,
        target: Target,
        range: Range<u64>,
        written: Written,
        reschedules: u8,
        reach: Reach,
    ) -> Answer<()> {
        let Some(logs) = self.opened() else {
            return Err(self.lose("a write was to go to a log, and there are none".to_owned()));
        };
        if !logs.is_open()
            && let Err(trouble) = self.write_book(&logs).await
        {
            return match trouble {
                Trouble::Refused(error) => self.instead(target, range, written, error).await,
                Trouble::Lost(lost) => Err(self.lose(lost.message)),
            };
        }
        let (data, stamp) = match &written {
            Written::Data { data, stamp, .. } => (Some(data.clone()), *stamp),
            Written::Nothing { stamp, .. } => (None, *stamp),
        };
        let bytes = data.as_ref().map_or(0, |data| data.len() as u64);
        let (log, at) = loop {
            self.check()?;
            let advanced = self.advanced.wait();
            match logs.reserve(bytes, reach) {
                Some(place) => break place,
                None => self.wait_for(advanced).await,
            }
        };
        let segment = target.segment.index;
        let serial = self.begin(segment, range.clone(), log, at, data.is_some(), reschedules, stamp);
        let header = Header {
            at,
            segment,
            serial,
            offset: range.start,
            len: range.end - range.start,
            stamp,
            reschedules,
            data_checksum: data.as_deref().map(crc32c),
        };
        // It goes on though nobody may wait for it any more: the entry must come to an outcome.
        let forwarded = self.clone();
        let appending = async move {
            let appended = logs.append(log, header, data.as_deref().unwrap_or_default()).await;
            forwarded.appended(&logs, segment, serial, appended).await
        };
        match to_its_end(self.handle(), "append to a log", appending).await?? {
            Ok(passage) => Ok(Reply { epoch: target.epoch, result: Ok(()), passage }),
            Err(error) => self.instead(target, range, written, error).await,
        }
    }

    /// A log has not got it, and never will: the owner may have it, if nothing of it is in a log.
    async fn instead(&self, target: Target, range: Range<u64>, written: Written, error: Error) -> Answer<()> {
        if error.kind != ErrorKind::Fenced && self.is_free(target.segment.index, &range) {
            tracing::debug!(volume = %self.volume, %error, "a log took nothing, and the owner is asked instead");
            return self.send(target, range.start, written).await;
        }
        Ok(Reply { epoch: target.epoch, result: Err(error), passage: Passage::default() })
    }

    #[allow(clippy::too_many_arguments)] // what an entry is
    fn begin(
        &self,
        segment: u32,
        range: Range<u64>,
        log: LogNumber,
        at: Address,
        has_data: bool,
        reschedules: u8,
        stamp: WriteStamp,
    ) -> Serial {
        let content = match has_data {
            true => Content::Data(at.0 + HEADER),
            false => Content::Zeros(at.0),
        };
        let len = range.end - range.start;
        let mut segments = self.segments.borrow_mut();
        let known = segments.entry(segment).or_insert_with(|| Segment::new(self.shared.options));
        let serial = known.index.begin(range.clone(), log, content, reschedules);
        tracing::trace!(volume = %self.volume, segment, ?range, ?serial, ?log, ?content, "to a log");
        known.notes.insert(serial, (stamp, self.handle().now()));
        let mut counted = self.counted.borrow_mut();
        match reschedules {
            0 => counted.burst_bytes += len,
            _ => counted.rescheduled_bytes += if has_data { len } else { 0 },
        }
        serial
    }

    /// What came of an append: an error after which it is void, if there is an error.
    async fn appended(
        self: &Rc<Self>,
        logs: &Rc<Logs>,
        segment: u32,
        serial: Serial,
        outcome: Result<Passage, Trouble>,
    ) -> Result<Result<Passage>, LinkLost> {
        tracing::trace!(volume = %self.volume, segment, ?serial, error = ?outcome.as_ref().err(), "came of it");
        let error = match outcome {
            Ok(passage) => {
                self.with(segment, |known| known.index.logged(serial));
                self.work.notify();
                return Ok(Ok(passage));
            }
            Err(Trouble::Lost(lost)) => return Err(self.lose(lost.message)),
            // Whoever is attached now finds it, or does not.
            Err(Trouble::Refused(error)) if error.kind == ErrorKind::Fenced => return Ok(Err(error)),
            Err(Trouble::Refused(error)) => error,
        };
        self.with(segment, |known| known.index.failed(serial));
        // Where there was no room for it, it is not whole, and nobody takes it for an entry; there is none for the book, either.
        if error.kind != ErrorKind::Full {
            self.write_book(logs).await.map_err(|trouble| self.unknown(trouble))?;
        }
        self.work.notify();
        Ok(Err(error))
    }

    fn is_free(&self, segment: u32, range: &Range<u64>) -> bool {
        self.segments.borrow().get(&segment).is_none_or(|known| known.index.is_free(range))
    }

    /// Returns when all is merged through this entry.
    async fn until_merged(&self, segment: u32, serial: Serial) -> Result<(), LinkLost> {
        let waited_for = self.with(segment, |known| known.waited_for.clone());
        let _waits = Waits::new(&waited_for);
        loop {
            self.check()?;
            let advanced = self.advanced.wait();
            if self.with(segment, |known| known.index.watermark() >= serial) {
                return Ok(());
            }
            self.wait_for(advanced).await;
        }
    }

    /// Waits for what merging brings about; it is not kept waiting meanwhile.
    async fn wait_for(&self, advanced: impl Future<Output = ()>) {
        self.counted.borrow_mut().waits += 1;
        let _waits = Waits::new(&self.waiters);
        self.work.notify();
        self.wanted.notify();
        advanced.await;
    }
}

/// Somebody who waits.
struct Waits<'a>(&'a Cell<u64>);

impl<'a> Waits<'a> {
    fn new(count: &'a Cell<u64>) -> Self {
        count.set(count.get() + 1);
        Waits(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A discard of much that is in logs is one entry, with what its owner might have discarded at once: not as many as there are
/// pieces.
fn as_one(ways: Vec<Route>, range: Range<u64>) -> Vec<Route> {
    let times = |way: &Route| match way {
        Route::Owner(_) => Some(0),
        Route::Log(_, times) => Some(*times),
        Route::Wait(..) => None,
    };
    match ways.iter().map(times).collect::<Option<Vec<u8>>>() {
        Some(times) if ways.len() > PIECES_MAX => vec![Route::Log(range, times.into_iter().max().unwrap_or(1))],
        _ => ways,
    }
}
