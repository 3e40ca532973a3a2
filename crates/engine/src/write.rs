//! The path of a write or discard, from the request to its place in the journal and in the segment's cache.
//!
//! A write is cut in up to three: a large, block-aligned middle goes to [`crate::large`], what is left of it to the
//! journal. Each piece takes its own sequence; the write is acknowledged when all are applied.

use std::ops::Range;
use std::rc::Rc;

use base::limits::SEGMENT_SIZE;
use base::seeded::is_on;
use base::units::{is_aligned, round_down, round_up};
use base::{BLOCK, Bytes, Error, ErrorKind, Instant, Passage, Result, SECTOR, SegmentId, WriteStamp};
use runtime::sync::{Receiver, oneshot};

use crate::admission::owed_bytes;
use crate::core::{Core, Stage};
use crate::journal::{JournalRecord, Operation, RECORD_DATA_MAX};
use crate::segment::{Effect, Segment, Settled};
use crate::way::Way;

/// A part of a write that takes one way.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    /// Bytes of the write.
    range: Range<u64>,
    /// Whether it skips the journal.
    large: bool,
}

/// Cuts a write of `len` bytes at `offset`: a middle of whole blocks that is at least `large_min` long is large, in
/// parts of at most `large_max`; what is left is journaled, in parts that fit a record.
fn plan_write(offset: u64, len: u64, large_min: u64, large_max: u64) -> Vec<Piece> {
    let (first, last) = (round_up(offset, BLOCK), round_down(offset + len, BLOCK));
    let middle = match last > first && last - first >= large_min {
        true => first - offset..last - offset,
        false => len..len,
    };
    let mut pieces = Vec::new();
    push_parts(&mut pieces, offset, 0..middle.start, false, RECORD_DATA_MAX);
    push_parts(&mut pieces, offset, middle.clone(), true, large_max);
    push_parts(&mut pieces, offset, middle.end..len, false, RECORD_DATA_MAX);
    pieces
}

/// Parts of `range` of at most `max` bytes, ending at block boundaries, so that no fragment is cut.
fn push_parts(pieces: &mut Vec<Piece>, offset: u64, range: Range<u64>, large: bool, max: u64) {
    let mut at = range.start;
    while at < range.end {
        let end = match range.end - at <= max {
            true => range.end,
            false => round_down(offset + at + max, BLOCK) - offset,
        };
        pieces.push(Piece { range: at..end, large });
        at = end;
    }
}

/// Checks that a request lies in its segment, in whole sectors.
pub(crate) fn check_range(offset: u64, len: u64) -> Result<()> {
    let inside = offset.checked_add(len).is_some_and(|end| end <= SEGMENT_SIZE);
    if !inside || len == 0 || !is_aligned(offset, SECTOR) || !is_aligned(len, SECTOR) {
        return Err(Error::invalid(format!(
            "{len} bytes at {offset} are not a range of whole {SECTOR}-byte sectors within a segment of {SEGMENT_SIZE}"
        )));
    }
    Ok(())
}

impl Core {
    /// See [`crate::Engine::write`].
    pub(crate) async fn write(
        self: &Rc<Self>,
        id: SegmentId,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
        passage: &mut Passage,
    ) -> Result<()> {
        let arrived = self.handle.now();
        let len = data.len() as u64;
        check_range(offset, len)?;
        if checksums.len() as u64 != owed_bytes(offset, len) / BLOCK {
            return Err(Error::invalid("a write has one checksum for each block that it touches"));
        }
        let segment = self.segment(id)?;
        self.check_writable()?;
        if self.admission.admit(len).await? {
            passage.add(base::Stage::Memory, self.handle.now().nanos_since(arrived));
        }
        self.check_writable()?;
        tracing::trace!(target: "levee::stage", segment = %id, offset, len, "admitted");
        if len < self.options.large_write_bytes && len <= RECORD_DATA_MAX {
            let reply = self.submit_small(&segment, offset, data, checksums, stamp, arrived, passage).await?;
            settled(reply).await?.add_to(passage);
            return Ok(());
        }
        let large_max = self.factory.options().bytes_min;
        let pieces = plan_write(offset, len, self.options.large_write_bytes, large_max);
        let held = self.admission.hold_large(len);
        let mut replies = Vec::with_capacity(pieces.len());
        let mut outcome = Ok(Way::default());
        for piece in pieces {
            let at = offset + piece.range.start;
            let part = data.slice(piece.range.start as usize..piece.range.end as usize);
            let first = (at / BLOCK - offset / BLOCK) as usize;
            let count = (owed_bytes(at, part.len() as u64) / BLOCK) as usize;
            let sums = checksums[first..first + count].to_vec();
            let submitted = match piece.large {
                true => self.submit_large(&segment, at, part, sums, stamp, arrived, passage).await,
                false => self.submit_small(&segment, at, part, sums, stamp, arrived, passage).await,
            };
            match submitted {
                Ok(reply) => replies.push(reply),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        for reply in replies {
            outcome = match is_on("full-part-acked") {
                true => settled(reply).await,
                false => settled(reply).await.and_then(|way| Ok(later(outcome?, way))),
            };
        }
        drop(held);
        outcome.map(|way| way.add_to(passage))
    }

    /// See [`crate::Engine::discard`].
    pub(crate) async fn discard(
        self: &Rc<Self>,
        id: SegmentId,
        offset: u64,
        len: u64,
        stamp: WriteStamp,
    ) -> Result<()> {
        let arrived = self.handle.now();
        check_range(offset, len)?;
        let segment = self.segment(id)?;
        self.check_writable()?;
        self.admission.admit(0).await?;
        self.check_writable()?;
        segment.check_changeable()?;
        // Only the blocks at its ends may become data; they come out of the reserve, so that a full disk can be
        // emptied.
        let ends = [offset, offset + len].iter().filter(|&&end| !is_aligned(end, BLOCK)).count() as u64;
        segment.space.owe_unasked(ends * BLOCK);
        self.counters.discards.set(self.counters.discards.get() + 1);
        settled(self.submit(&segment, offset, len, Operation::Discard, stamp, arrived, ends * BLOCK)).await?;
        self.on_discarded();
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // a record's fields
    async fn submit_small(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
        arrived: Instant,
        passage: &mut Passage,
    ) -> Result<Receiver<Result<Way>>> {
        let len = data.len() as u64;
        let owed = owed_bytes(offset, len);
        let free = || (self.admission.free_space(), self.factory.capacity_for(segment.id()));
        let waited_ns = self.with_space(|| segment.space.owe(owed, segment.dumps.room(), free)).await?;
        passage.add(base::Stage::Space, waited_ns);
        segment.check_changeable()?;
        Ok(self.submit(segment, offset, len, Operation::Write { checksums, data }, stamp, arrived, owed))
    }

    #[allow(clippy::too_many_arguments)] // a record's fields
    fn submit(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        offset: u64,
        len: u64,
        operation: Operation,
        stamp: WriteStamp,
        arrived: Instant,
        owed: u64,
    ) -> Receiver<Result<Way>> {
        let submitted = self.handle.now();
        self.counters.queue.borrow_mut().record(submitted.nanos_since(arrived));
        let sequence = segment.take_place();
        let (id, epoch) = (segment.id(), segment.epoch());
        let record = JournalRecord { segment: id, epoch, sequence, stamp, offset, len, operation };
        let (reply, receiver) = oneshot();
        let (core, segment) = (Rc::downgrade(self), segment.clone());
        let sectors = offset / SECTOR..(offset + len) / SECTOR;
        self.fusion.submit(record, move |durable| {
            // Weak: the core owns what owns this, and a life that was cut off has nobody to tell.
            let Some(core) = core.upgrade() else { return };
            let now = match &durable {
                Ok((_, way)) => way.confirmed,
                Err(_) => core.handle.now(),
            };
            core.counters.journal.borrow_mut().record(now.nanos_since(submitted));
            let reply = match is_on("acked-before-applied") && durable.is_ok() {
                true => {
                    reply.send(Ok(Way::default()));
                    oneshot().0
                }
                false => reply,
            };
            let settled = match durable {
                Ok((extent, way)) => {
                    let result = Ok(Way { submitted, ..way });
                    Settled { effect: Effect::Cache { sectors, extent, owed }, result, reply }
                }
                Err(error) => {
                    if error.kind == ErrorKind::Fenced {
                        core.log.on_fenced(&error);
                    }
                    segment.space.on_failed(owed);
                    Settled { effect: Effect::Nothing, result: Err(error), reply }
                }
            };
            segment.settle(sequence, settled, now, &*core);
            core.on_dirty(&segment);
        });
        receiver
    }

    /// A segment's cache may have grown: is a dump due?
    pub(crate) fn on_dirty(self: &Rc<Self>, segment: &Rc<Segment>) {
        let is_wanted = self.journal_wants.borrow_mut().remove(&segment.id());
        if is_wanted || segment.active_bytes() >= self.options.segment_cache_bytes {
            self.want_dump(segment);
        }
        if self.admission.is_pressed() && self.dump_slots.available() > 0 {
            self.admission.wanted().notify();
        }
        self.dirtied.notify();
        self.admission.on_freed();
        if self.stage.get() == Stage::Closing || segment.is_leaving() {
            self.dumped.notify();
        }
    }
}

/// Waits for a piece to be applied.
async fn settled(reply: Receiver<Result<Way>>) -> Result<Way> {
    match reply.await {
        Some(result) => result,
        None => Err(Error::internal("the engine went away before the write was settled")),
    }
}

/// The way of the piece that was applied last: the others did not hold the write up.
fn later(one: Way, other: Way) -> Way {
    if other.applied >= one.applied { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_write_and_end_at_blocks() {
        let mut prng = base::Prng::new(1);
        for _ in 0..5_000 {
            let (offset, len) = (prng.below(64) * 512, prng.between(1, 4096) * 512);
            let pieces = plan_write(offset, len, 64 << 10, 1 << 20);
            let mut at = 0;
            for piece in &pieces {
                assert!(piece.range.start == at && piece.range.end > at);
                at = piece.range.end;
                assert!(at == len || (offset + at).is_multiple_of(BLOCK), "fragments stay whole");
                let size = piece.range.end - piece.range.start;
                match piece.large {
                    true => assert!((offset + piece.range.start).is_multiple_of(BLOCK) && size.is_multiple_of(BLOCK)),
                    false => assert!(size <= RECORD_DATA_MAX),
                }
            }
            assert_eq!(at, len);
            let journaled: u64 = pieces.iter().filter(|p| !p.large).map(|p| p.range.end - p.range.start).sum();
            assert!(journaled < (64 << 10) + 2 * BLOCK, "only the ends of a large write are journaled");
        }
    }
}
