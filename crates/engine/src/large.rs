//! Large writes: past the journal, straight into a data file (EBS, FAST 2024, §2.3).
//!
//! One durable write: the data with its label in front ([`crate::label`]), which says what the transaction record will
//! say. The record takes its place in the log at the same time, and goes out later, with others. The write counts when
//! its append is durable and a recovery would find it ([`crate::landings`]), or when its record is durable, too: that
//! is what counts for a write behind one that failed. Record and label carry the checksums of the blocks, so that a
//! recovery can see by itself whether the data is there. In memory the write takes effect in its segment's order, like
//! a journaled one.
//!
//! When the data fails, the write is tried again at another place, with another record of the same sequence: equal
//! bytes, so it does not matter which one a recovery finds. The failed record is reported to the log, which lists it
//! in the next checkpoint as one that does not count.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use base::buffer::ALIGNMENT;
use base::seeded::is_on;
use base::{
    AlignedBuf, BLOCK, Bytes, ErrorKind, Gathered, Instant, LogSequence, Passage, Result, SegmentSequence, Stage,
    WriteStamp,
};
use runtime::Class;
use runtime::sync::{Receiver, Sender, oneshot};

use crate::core::Core;
use crate::data_writer::Placed;
use crate::label::{self, LABEL_BYTES};
use crate::segment::{Effect, Segment, Settled};
use crate::transaction::Record;
use crate::way::Way;

/// How often the data of one write is tried.
const ATTEMPTS_MAX: u32 = 3;
/// How often a write asks again for space that there is and that it does not get, and the pause between.
const FULL_TRIES_MAX: u32 = 30;
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// A large write on its way.
struct LargeWrite {
    core: Rc<Core>,
    segment: Rc<Segment>,
    sequence: SegmentSequence,
    stamp: WriteStamp,
    block: u32,
    data: Bytes,
    checksums: Vec<u32>,
}

impl Core {
    /// Submits `data`, whole blocks at `offset`; the answer comes when it is applied.
    ///
    /// # Errors
    /// `Full` and `Io`: nothing was written.
    #[allow(clippy::too_many_arguments)] // a record's fields
    pub(crate) async fn submit_large(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
        arrived: Instant,
        passage: &mut Passage,
    ) -> Result<Receiver<Result<Way>>> {
        let block = (offset / BLOCK) as u32;
        // The kernel reads the buffer directly: it must lie at a page boundary.
        let data = match (data.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            true => data,
            false => AlignedBuf::copy_of(&data).freeze(),
        };
        let len = data.len() as u64 + LABEL_BYTES;
        let has_space = || segment.larges.room() >= len || self.admission.has_space(len);
        let (begun, mut space_ns, mut refusals) = (self.handle.now(), 0, 0);
        self.index.room().await?;
        self.log.room().await?;
        while segment.larges.room() < len {
            space_ns += self.with_space(has_space).await?;
            self.check_running()?;
            match self.prepare_large(segment, len).await {
                // Another write took the space, or the room, meanwhile; or the disks have less than they say.
                Err(error) if error.kind == ErrorKind::Full && refusals < FULL_TRIES_MAX => {
                    refusals += 1;
                    self.handle.sleep(FULL_PAUSE).await;
                }
                Err(error) => {
                    segment.check_changeable()?;
                    return Err(error);
                }
                Ok(()) => {}
            }
        }
        let ready = self.handle.now();
        self.counters.queue.borrow_mut().record(ready.nanos_since(arrived));
        passage.add(Stage::Space, space_ns);
        passage.add(Stage::Room, ready.nanos_since(begun).saturating_sub(space_ns));
        segment.check_changeable()?;
        let (reply, receiver) = oneshot();
        let sequence = segment.take_large_place();
        let write =
            LargeWrite { core: self.clone(), segment: segment.clone(), sequence, stamp, block, data, checksums };
        // Its own task: a sequence that was taken is settled, also when nobody waits for the answer any more.
        let first = write.begin();
        self.handle.spawn(Class::Io, "large write", write.finish(first, reply)).detach();
        Ok(receiver)
    }

    async fn prepare_large(self: &Rc<Self>, segment: &Rc<Segment>, len: u64) -> Result<()> {
        let capacity = || {
            let (wanted, free) = (self.factory.capacity_for(segment.id()).max(len), self.admission.free_space());
            match free {
                free if free >= wanted => Ok(wanted),
                free if free >= len => Ok(len),
                _ => Err(self.admission.on_full()),
            }
        };
        segment.larges.prepare(&self.factory, segment.id(), len, capacity).await.map(drop)
    }
}

type Landing = Pin<Box<dyn Future<Output = Result<()>>>>;

/// One try.
struct Attempt {
    record: Record,
    log: LogSequence,
    /// Completes when the write counts.
    durable: Landing,
    /// Held until the effect is applied.
    placed: Placed,
}

impl LargeWrite {
    /// Sends the data out, with its label. Room was prepared, with no await in between.
    fn begin(&self) -> Attempt {
        let core = &self.core;
        let (place, whole_through) = self.segment.larges.next_label();
        let record = Record::Large {
            segment: self.segment.id(),
            epoch: self.segment.epoch(),
            sequence: self.sequence,
            stamp: self.stamp,
            block: self.block,
            file: place.file,
            offset: place.offset + LABEL_BYTES,
            checksums: self.checksums.clone(),
        };
        let label = label::encode(&place, whole_through, &record).freeze();
        let labelled = Gathered::new(label, self.data.clone());
        let (placed, landed, found) = self.segment.larges.append_labelled(labelled);
        // Taken with the place in the file, so that the order of the records is that of the labels.
        let (log, retired) = core.log.append_lazily(&record);
        let durable = async move {
            if is_on("large-acked-by-record") {
                return retired.await.map(drop);
            }
            landed.await?;
            let (mut found, mut retired) = (pin!(found), pin!(retired));
            poll_fn(|cx| match found.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending => retired.as_mut().poll(cx).map(|retired| retired.map(drop)),
            })
            .await
        };
        Attempt { record, log, durable: Box::pin(durable), placed }
    }

    async fn finish(self, first: Attempt, reply: Sender<Result<Way>>) {
        let core = self.core.clone();
        let submitted = core.handle.now();
        let mut launched = submitted;
        let mut attempt = first;
        let mut attempts = 1;
        let (effect, result) = loop {
            let error = match (&mut attempt.durable).await {
                Ok(()) => {
                    let entries = attempt.record.entries().into_owned();
                    break (Effect::Large { log: attempt.log, entries, placed: Some(attempt.placed) }, Ok(()));
                }
                Err(error) => error,
            };
            core.log.on_large_failed(attempt.log);
            core.checkpoint_wanted.notify();
            if attempts == ATTEMPTS_MAX || core.log.broken().is_some() || self.segment.is_dropped() {
                break (Effect::Nothing, Err(error));
            }
            attempts += 1;
            if let Err(error) = core.prepare_large(&self.segment, self.data.len() as u64 + LABEL_BYTES).await {
                break (Effect::Nothing, Err(error));
            }
            attempt = self.begin();
            launched = core.handle.now();
        };
        let now = core.handle.now();
        core.counters.large.borrow_mut().record(now.nanos_since(submitted));
        let result = result.map(|()| Way::direct(submitted, launched, now));
        self.segment.settle(self.sequence, Settled { effect, result, reply }, now, &*core);
        core.on_dirty(&self.segment);
    }
}
