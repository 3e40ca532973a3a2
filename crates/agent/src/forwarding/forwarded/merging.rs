//! How what is in logs comes home (DiffForward, SIGMETRICS 2023, §3.4).
//!
//! A task of the volume reads what was logged and writes it where it belongs, in the order of serials, what is longest first. Each
//! piece is marked as one that merges ([`Level::Merge`]), so that servers let it go while no client wants them
//! ([`policies::forwarding::Coordination`]), and pieces of all volumes share the way home (`way_home.rs`); but what clients wait for
//! goes as they do. When a batch is with its owner the book says so, and only then the entries are forgotten.
//!
//! **Chosen.** In the paper owners fetch entries from log servers. Here the agent carries them: it has the sessions with both, and
//! whoever is attached next closes them, so that nothing that is merged late can land behind a newer write. That costs a batch one
//! more passage through a network card, of the agent's. The log server is asked for its turn as well as the owner.

use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::buffer::{self, AlignedBuf};
use base::io::fragment_checksums;
use base::levels::Level;
use base::seeded::is_on;
use base::{Bytes, Epoch, Error, ErrorKind, ReadPart, SegmentId, WriteStamp};
use policies::forwarding::{Address, BatchSize, Content, Pace, Place};
use runtime::Handle;
use runtime::sync::{first, join_all};
use wire::{Answer, Target};

use super::super::Mode;
use super::super::entry::HEADER;
use super::super::logs::{Logs, Trouble, to_its_end};
use super::super::way_home::{UnderWay, Way};
use super::{Forwarded, Segment};

/// Between two looks at TH.
const TUNE: Duration = Duration::from_secs(1);
/// Where no more of a hundred periods are spread, that is to find out.
const TRIED_PERCENT: u32 = 25;
/// After something went wrong: at first, and at most.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Merges for as long as the volume is attached here.
pub(super) async fn run(forwarded: Weak<Forwarded>, handle: Handle) {
    let (mut tuned, mut pause) = (handle.now(), PAUSE);
    loop {
        let Some(this) = forwarded.upgrade() else { return };
        let Some(logs) = this.opened() else { return };
        if this.check().is_err() {
            return;
        }
        let now = handle.now();
        if now - tuned >= TUNE {
            tuned = now;
            this.tune();
        }
        let Some(segment) = longest(&this) else {
            let work = this.work.wait();
            drop((this, logs));
            work.await;
            continue;
        };
        pause = match batch(&this, &logs, segment).await {
            Ok(()) => PAUSE,
            Err(Trouble::Lost(lost)) => {
                this.lose(lost.message);
                return;
            }
            // A newer attachment has all of it, or the volume was deleted. Whoever waits for this to go on hears that.
            Err(Trouble::Refused(error)) if matches!(error.kind, ErrorKind::Fenced | ErrorKind::NotFound) => {
                this.lose(error.message);
                return;
            }
            Err(Trouble::Refused(error)) => {
                tracing::warn!(volume = %logs.volume.name, %error, "what is in a log is not merged: trying again");
                this.counted.borrow_mut().failed_merges += 1;
                drop((this, logs));
                handle.sleep(pause).await;
                (pause * 2).min(PAUSE_MAX)
            }
        };
    }
}

/// Merges everything there is, whoever wants what meanwhile.
pub(super) async fn empty(forwarded: &Rc<Forwarded>, logs: &Rc<Logs>) -> Result<(), Trouble> {
    loop {
        let has_batch = |(segment, known): (&u32, &Segment)| known.index.next_batch(1, 1).map(|_| *segment);
        let segments: Vec<u32> = forwarded.segments.borrow().iter().filter_map(has_batch).collect();
        if segments.is_empty() {
            return Ok(());
        }
        for segment in segments {
            batch(forwarded, logs, segment).await?;
        }
    }
}

/// The segment to merge next: one that writes wait for, otherwise the one of which most is logged.
fn longest(forwarded: &Forwarded) -> Option<u32> {
    let segments = forwarded.segments.borrow();
    let has_batch = segments.iter().filter(|(_, known)| known.index.next_batch(1, 1).is_some());
    has_batch.max_by_key(|(_, known)| (known.waited_for.get() > 0, known.index.bytes())).map(|(segment, _)| *segment)
}

/// Merges a batch of one segment.
///
/// It comes to its end before the next one begins, though nobody may wait for it any more: what is on its way to an owner, and
/// lands there after what the next one carries, would be older than that.
async fn batch(forwarded: &Rc<Forwarded>, logs: &Rc<Logs>, segment: u32) -> Result<(), Trouble> {
    let alone = match is_on("merged-by-two") {
        true => None,
        false => Some(forwarded.merges.take(1).await),
    };
    let (this, logs) = (forwarded.clone(), logs.clone());
    let merging = async move {
        let merged = batch_alone(&this, &logs, segment).await;
        drop(alone);
        merged
    };
    to_its_end(forwarded.handle(), "merge a batch", merging).await?
}

async fn batch_alone(forwarded: &Rc<Forwarded>, logs: &Rc<Logs>, segment: u32) -> Result<(), Trouble> {
    let BatchSize { bytes, parts } = forwarded.shared.options.pace.batch();
    let found = forwarded.with(segment, |known| known.index.next_batch(bytes, parts));
    let Some(found) = found else { return Ok(()) };
    let volume = forwarded.volume;
    tracing::trace!(%volume, segment, through = ?found.through, parts = ?found.parts, "to be merged");
    let carried = found.parts.iter().map(|(range, place)| carry(forwarded, segment, range.clone(), *place));
    for outcome in join_all(carried).await {
        outcome?;
    }
    let forget = || {
        let released = forwarded.with(segment, |known| {
            known.notes.retain(|serial, _| *serial > found.through);
            known.index.merged(found.through)
        });
        for (log, content) in released {
            let at = match content {
                Content::Data(at) => at - HEADER,
                Content::Zeros(at) => at,
            };
            logs.release(log, Address(at));
        }
    };
    tracing::trace!(%volume, segment, through = ?found.through, "merged");
    forwarded.with(segment, |known| known.merged = found.through);
    match is_on("log-trimmed-before-watermark") {
        true => {
            forget();
            forwarded.advanced.notify();
        }
        false => {
            forwarded.write_book(logs).await?;
            forget();
        }
    }
    if logs.wants_book() {
        forwarded.write_book(logs).await?;
    }
    forwarded.advanced.notify();
    Ok(())
}

/// Carries a piece from its log to its owner.
async fn carry(forwarded: &Forwarded, segment: u32, range: Range<u64>, place: Place) -> Result<(), Trouble> {
    let segment = SegmentId { volume: forwarded.volume, index: segment };
    let (service, way_home) = (&forwarded.shared.service, &forwarded.shared.way_home);
    let target = Target { session: forwarded.session, segment, epoch: Epoch(1), level: Level::Open, behind: 0 };
    let stamp = forwarded.with(segment.index, |known| known.notes.get(&place.serial).map(|(stamp, _)| *stamp));
    let stamp = stamp.ok_or_else(|| Trouble::Refused(Error::internal("an entry without a stamp")))?;
    // Whoever wrote it, it is this attachment that sends it.
    let stamp = WriteStamp { generation: forwarded.generation, ..stamp };
    let (offset, len) = (range.start, range.end - range.start);
    let Content::Data(at) = place.content else {
        let discard =
            |level| async move { refused(service.discard(Target { level, ..target }, offset, len, stamp).await) };
        patiently(forwarded, None, discard).await?;
        forwarded.counted.borrow_mut().merged_bytes += len;
        return Ok(());
    };
    let _memory = unless_waited_for(forwarded, way_home.memory(len)).await;
    let log_server = forwarded.opened().map_or(0, |logs| logs.server(place.log));
    let read = |level| forwarded.read_log(place, at, len, level);
    let (parts, _) = patiently(forwarded, Some((log_server, Way::Out, len)), read).await?;
    let data = joined(parts, len);
    let checksums = fragment_checksums(segment, offset, &data);
    let write = |level| {
        let (data, checksums) = (data.clone(), checksums.clone());
        async move { refused(service.write(Target { level, ..target }, offset, data, checksums, stamp).await) }
    };
    patiently(forwarded, Some((service.server(target, offset), Way::In, len)), write).await?;
    forwarded.counted.borrow_mut().merged_bytes += len;
    Ok(())
}

/// Asks for something on the way home, as often as it is sent away because clients want the server. `way`: so many bytes pass a
/// server for it, beside others that come home.
async fn patiently<T, F: Future<Output = Result<T, Trouble>>>(
    forwarded: &Forwarded,
    way: Option<(u64, Way, u64)>,
    ask: impl Fn(Level) -> F,
) -> Result<T, Trouble> {
    loop {
        let room = match way {
            Some((server, way, bytes)) => {
                unless_waited_for(forwarded, forwarded.shared.way_home.enter(server, way, bytes)).await
            }
            None => None,
        };
        match ask(forwarded.level_of_merging()).await {
            Err(Trouble::Refused(error)) if error.kind == ErrorKind::Retry => {
                room.into_iter().for_each(UnderWay::was_sent_away);
                forwarded.check()?;
                forwarded.handle().sleep(PAUSE).await;
            }
            Err(trouble) => return Err(trouble),
            Ok(done) => {
                room.into_iter().for_each(UnderWay::has_arrived);
                return Ok(done);
            }
        }
    }
}

/// Waits for something, but where somebody waits for what is carried: that goes as clients do.
async fn unless_waited_for<T>(forwarded: &Forwarded, something: impl Future<Output = T>) -> Option<T> {
    match forwarded.level_of_merging() {
        Level::Merge => first(something, forwarded.wanted.wait()).await.ok(),
        _ => None,
    }
}

fn refused<T>(answer: Answer<T>) -> Result<T, Trouble> {
    answer?.result.map_err(Trouble::Refused)
}

impl Forwarded {
    /// Whether bursts are spread only to find out what that gains. Then little is logged, and has to come home soon: what is written
    /// over it meanwhile has to follow it into logs, so that it would become more and more.
    fn is_trying(&self) -> bool {
        self.mode.get() == Mode::Auto && self.shared.gain.borrow().percent() <= TRIED_PERCENT
    }

    /// What is carried home is marked so: clients come before it, unless one of them waits for it.
    fn level_of_merging(&self) -> Level {
        let is_patient = self.shared.options.pace == Pace::Prioritized && !self.is_trying();
        match is_patient && self.waiters.get() == 0 && !self.is_closing.get() {
            true => Level::Merge,
            false => Level::Open,
        }
    }
}

fn joined(mut parts: Vec<ReadPart>, len: u64) -> Bytes {
    if parts.len() == 1 {
        return match parts.remove(0) {
            ReadPart::Data(data) => data,
            ReadPart::Zeros(len) => buffer::zeros(len as usize),
        };
    }
    let mut all = AlignedBuf::with_capacity(len as usize);
    for part in parts {
        match part {
            ReadPart::Data(data) => all.extend_from_slice(&data),
            ReadPart::Zeros(len) => all.extend_zeros(len as usize),
        }
    }
    all.freeze()
}
