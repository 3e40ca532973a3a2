//! How what is in logs comes home (DiffForward, SIGMETRICS 2023, §3.4).
//!
//! A task of the volume reads what was logged and writes it where it belongs, in the order of serials, while no client wants
//! anything ([`Merges`]); what is old or long is not kept waiting for that. When a batch is with its owner the book says so, and
//! only then the entries are forgotten.
//!
//! **Chosen.** In the paper owners fetch entries from log servers. Here the agent carries them: it has the sessions with both, and
//! whoever is attached next closes them, so that nothing that is merged late can land behind a newer write. That costs a batch one
//! more passage through a network card, of the agent's.

use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::buffer::{self, AlignedBuf};
use base::io::fragment_checksums;
use base::levels::Level;
use base::seeded::is_on;
use base::{Bytes, Epoch, Error, ErrorKind, ReadPart, SegmentId, WriteStamp};
use policies::forwarding::{Address, Content, Merges, Place};
use runtime::Handle;
use runtime::sync::join_all;
use wire::{Answer, Target};

use super::super::Options;
use super::super::entry::HEADER;
use super::super::logs::{Logs, Trouble, to_its_end};
use super::{Forwarded, Segment};

/// Bytes and pieces of one batch.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_PARTS: usize = 64;
/// Pieces on their way at the same time.
const AT_ONCE: usize = 8;
/// Between two looks at TH.
const TUNE: Duration = Duration::from_secs(1);
/// After something went wrong: at first, and at most.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Merges for as long as the volume is attached here.
pub(super) async fn run(forwarded: Weak<Forwarded>, handle: Handle) {
    let Some(options) = forwarded.upgrade().map(|forwarded| forwarded.shared.options) else { return };
    let mut merges = Merges::new(options.merges);
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
        ask(&this, &logs, &mut merges, options);
        // Whoever waits for this does not keep it waiting.
        let depth = if this.waiters.get() > 0 { 0 } else { this.shared.depth.get() };
        let Some(segment) = merges.plan_next(now, depth) else {
            let work = this.work.wait();
            let next = merges.next_look(now);
            drop((this, logs));
            match next {
                Some(next) => handle.sleep_until(next).await,
                None => work.await,
            }
            continue;
        };
        let merged = batch(&this, &logs, segment as u32).await;
        merges.on_done(handle.now(), now);
        pause = match merged {
            Ok(()) => PAUSE,
            Err(Trouble::Lost(lost)) => {
                this.lose(lost.message);
                return;
            }
            // A newer attachment has all of it. Whoever waits for this to go on hears that.
            Err(Trouble::Refused(error)) if error.kind == ErrorKind::Fenced => {
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

/// Asks for a batch of each segment that has one.
fn ask(forwarded: &Forwarded, logs: &Logs, merges: &mut Merges, options: Options) {
    let now = forwarded.shared.handle.now();
    let is_long = logs.longest().saturating_mul(100) / logs.log_bytes >= options.merges.full_percent.into();
    for (segment, known) in &*forwarded.segments.borrow() {
        if known.index.next_batch(1, 1).is_some() {
            // What writes wait for comes before what is longer.
            let bytes = if known.waited_for.get() > 0 { u64::MAX } else { known.index.bytes().max(1) };
            // What is of a log that is long does not wait, however little of it there is.
            merges.on_asked(now, (*segment).into(), bytes, if is_long { bytes } else { u64::MAX });
        }
    }
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
    let found = forwarded.with(segment, |known| known.index.next_batch(BATCH_BYTES, BATCH_PARTS));
    let Some(found) = found else { return Ok(()) };
    let volume = forwarded.volume;
    tracing::trace!(%volume, segment, through = ?found.through, parts = ?found.parts, "to be merged");
    for parts in found.parts.chunks(AT_ONCE) {
        let carried = parts.iter().map(|(range, place)| carry(forwarded, segment, range.clone(), *place));
        for outcome in join_all(carried).await {
            outcome?;
        }
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
    let target = Target { session: forwarded.session, segment, epoch: Epoch(1), level: Level::Open };
    let stamp = forwarded.with(segment.index, |known| known.notes.get(&place.serial).map(|(stamp, _)| *stamp));
    let stamp = stamp.ok_or_else(|| Trouble::Refused(Error::internal("an entry without a stamp")))?;
    // Whoever wrote it, it is this attachment that sends it.
    let stamp = WriteStamp { generation: forwarded.generation, ..stamp };
    let (offset, len) = (range.start, range.end - range.start);
    let service = &forwarded.shared.service;
    let answer: Answer<()> = match place.content {
        Content::Zeros(_) => service.discard(target, offset, len, stamp).await,
        Content::Data(at) => {
            let (parts, _) = forwarded.read_log(place, at, len).await?;
            let data = joined(parts, len);
            let checksums = fragment_checksums(segment, offset, &data);
            service.write(target, offset, data, checksums, stamp).await
        }
    };
    forwarded.counted.borrow_mut().merged_bytes += len;
    answer?.result.map_err(Trouble::Refused)
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
