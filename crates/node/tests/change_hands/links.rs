//! The link to one server: it loses requests, loses answers, and delivers what was given up long ago.

use std::rc::Rc;
use std::time::Duration;

use base::{AllocationExtent, Bytes, ErrorKind, Generation, ReadPart, Result, VolumeId, WriteStamp};
use runtime::{Class, sync};
use wire::{Answer, Attachment, BlockService, LinkLost, LocalBoxFuture, SessionId, Target};

use crate::bed::Bed;

/// See the module.
pub struct Link {
    pub bed: Bed,
    pub server: Rc<dyn BlockService>,
}

/// What becomes of one request.
#[derive(Clone, Copy)]
enum Fate {
    Fine,
    RequestLost,
    AnswerLost,
    /// Whoever asks is told that the link broke; the request arrives all the same, after so many microseconds.
    Late(u64),
    /// It is on its way for so many microseconds, or its answer is.
    Slow(u64, bool),
}

fn lost() -> LinkLost {
    LinkLost { message: "the link broke".into() }
}

impl Link {
    fn fate(&self) -> Fate {
        let is_over = self.bed.share.borrow().is_over;
        let fate = self.bed.prng(|prng| match prng.below(100) {
            _ if is_over => Fate::Fine,
            0..=1 => Fate::RequestLost,
            2..=3 => Fate::AnswerLost,
            4..=5 => Fate::Late(prng.below(20_000)),
            6..=9 => Fate::Slow(prng.below(20_000), prng.one_in(2)),
            _ => Fate::Fine,
        });
        match fate {
            Fate::Fine => {}
            Fate::Slow(..) => self.bed.count("slow_answers"),
            Fate::RequestLost => self.bed.count("requests_lost"),
            Fate::AnswerLost => self.bed.count("answers_lost"),
            Fate::Late(_) => self.bed.count("late_requests"),
        }
        fate
    }

    /// Carries a request, in a task of its own: what arrived is done, whoever waits.
    fn carry<T: 'static>(
        &self,
        request: impl Fn(Rc<dyn BlockService>) -> LocalBoxFuture<'static, Answer<T>> + 'static,
    ) -> LocalBoxFuture<'static, Answer<T>> {
        let (fate, bed, server) = (self.fate(), self.bed.clone(), self.server.clone());
        let delay = |most| Duration::from_micros(bed.prng(|prng| prng.below(most)));
        let (there, back) = (delay(150), delay(150));
        let handle = bed.handle.clone();
        Box::pin(async move {
            if matches!(fate, Fate::RequestLost) {
                handle.sleep(there).await;
                return Err(lost());
            }
            let (sender, receiver) = sync::oneshot();
            let (inside, counting) = (handle.clone(), bed.clone());
            let arrive = async move {
                let late = match fate {
                    Fate::Late(us) | Fate::Slow(us, true) => Duration::from_micros(us),
                    _ => Duration::ZERO,
                };
                inside.sleep(there + late).await;
                let answer = request(server).await;
                let refused = |kind| matches!(kind, ErrorKind::Fenced | ErrorKind::Moved);
                let is_refused =
                    answer.as_ref().is_ok_and(|reply| reply.result.as_ref().is_err_and(|error| refused(error.kind)));
                if matches!(fate, Fate::Late(_)) && is_refused {
                    counting.count("late_requests_refused");
                }
                let slow = if let Fate::Slow(us, false) = fate { Duration::from_micros(us) } else { Duration::ZERO };
                inside.sleep(back + slow).await;
                sender.send(answer);
            };
            handle.spawn(Class::Io, "a request on a link", arrive).detach();
            match fate {
                Fate::Late(_) => {
                    handle.sleep(there).await;
                    Err(lost())
                }
                Fate::AnswerLost => {
                    drop(receiver.await);
                    Err(lost())
                }
                Fate::Fine | Fate::Slow(..) | Fate::RequestLost => receiver.await.unwrap_or_else(|| Err(lost())),
            }
        })
    }
}

impl BlockService for Link {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(async move {
            self.bed.pause(200).await;
            self.server.attach(volume, generation).await
        })
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        self.server.detach(session)
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        self.carry(move |server| Box::pin(async move { server.read(target, offset, len).await }))
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        self.carry(move |server| {
            let (data, checksums) = (data.clone(), checksums.clone());
            Box::pin(async move { server.write(target, offset, data, checksums, stamp).await })
        })
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        self.carry(move |server| Box::pin(async move { server.discard(target, offset, len, stamp).await }))
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        self.carry(move |server| Box::pin(async move { server.flush(target).await }))
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        self.carry(move |server| Box::pin(async move { server.allocation(target, offset, len, extents_max).await }))
    }
}
