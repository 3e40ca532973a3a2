//! One attached volume on one loop: the way from its bytes to the owners of its segments, for the loop's connections.
//!
//! A request is cut along the layout into pieces of segments; pieces run at the same time, and the request is done
//! when the last one is. Writes and discards pass the order of the volume's [`Attachment`] first, which all loops share,
//! and get their stamp when they are sent. A reply of a lower epoch than the highest that is known, and a link that
//! broke, leave an outcome unknown: the volume is then *lost*. It sends nothing more (docs/SAFETY.md, rule 30), its
//! connections end, and the next attachment runs under a new generation, which fences whatever was in flight.

use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::levels::Level;
use base::{
    AllocationExtent, Bytes, Error, ErrorKind, Passage, ReadPart, Result, SegmentId, Stage, buffer,
    io::fragment_checksums, seeded,
};
use policies::tenants::Operation;
use runtime::{Class, Handle};
use wire::{Answer, BlockService, Layout, LocalBoxFuture, Piece, Target, VolumeDescriptor};

use crate::attachment::Attachment;
use crate::statistics::Counters;
use crate::tenants::Seat;
use crate::weave::{weave_extents, weave_parts};
use crate::write_order::Ticket;

/// How often a request that met a passing obstacle is tried in all.
const TRIES_MAX: u32 = 8;
/// The first wait between tries; each later one is twice as long.
const RETRY_WAIT: Duration = Duration::from_millis(1);
/// Bytes of zeros that are written at once, as data.
const ZEROS_WINDOW: u64 = base::MIB;
/// Extents that one piece is asked for, above what the client wants: neighbours of one kind are merged.
const EXTENTS_SPARE: usize = 16;

/// A volume that this agent holds, as one of its loops uses it.
pub(crate) struct Volume {
    handle: Handle,
    /// Which loop this is.
    index: usize,
    service: Rc<dyn BlockService>,
    attachment: Arc<Attachment>,
    layout: Layout,
    /// Its place among the tenants of this loop.
    seat: Seat,
    pub(crate) counters: Counters,
}

/// A write's turn. Dropped when its outcome is known.
struct Turn<'a> {
    volume: &'a Volume,
    ticket: Ticket,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.volume.attachment.leave(&self.volume.handle, self.ticket);
    }
}

impl Volume {
    /// The volume of an attachment, on the loop of `handle`, whose way to the owners is `service`.
    pub(crate) fn new(
        handle: &Handle,
        index: usize,
        service: Rc<dyn BlockService>,
        attachment: Arc<Attachment>,
        seat: Seat,
        counters: Counters,
    ) -> Volume {
        let layout = attachment.descriptor.layout();
        Volume { handle: handle.clone(), index, service, attachment, layout, seat, counters }
    }

    /// Returns when a request may start, within the levels of the volume and among all that the tenants of this loop want: on
    /// which level. The loop came to it after `delay_ns`.
    pub(crate) async fn pass(&self, operation: Operation, bytes: u64, delay_ns: u64, passage: &mut Passage) -> Level {
        self.seat.pass(operation, bytes, delay_ns, passage, &self.counters).await
    }

    /// Whether this loop has so many of the tenant's requests in line that it will not begin with another one soon: who has a
    /// choice leaves it to others.
    pub(crate) fn has_enough(&self) -> bool {
        self.seat.has_enough()
    }

    /// Returns when that is not so.
    pub(crate) async fn until_wanting(&self) {
        self.seat.until_wanting().await;
    }

    /// What the volume is.
    pub(crate) fn descriptor(&self) -> &VolumeDescriptor {
        &self.attachment.descriptor
    }

    /// Whether a connection that has just entered is to end at once.
    pub(crate) fn turns_away(&self) -> bool {
        self.attachment.turns_away()
    }

    /// Reads a range (within the volume, not empty): parts in address order.
    /// What it waits for is added to `passage`.
    pub(crate) async fn read(
        self: &Rc<Self>,
        range: Range<u64>,
        level: Level,
        passage: &mut Passage,
    ) -> Result<Vec<ReadPart>> {
        if let Some(piece) = self.layout.single(range.start, range.end - range.start) {
            return self.read_piece(piece, level, passage).await;
        }
        let pieces: Vec<Piece> = self.layout.pieces(range.clone()).collect();
        let volume = self.clone();
        let work = move |piece| {
            let volume = volume.clone();
            async move {
                let mut passage = Passage::default();
                volume.read_piece(piece, level, &mut passage).await.map(|parts| (parts, passage))
            }
        };
        let done = self.each(pieces.iter().copied(), work).await?;
        let (parts, passages): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        absorb_slowest(passage, &passages);
        Ok(weave_parts(self.layout, range, pieces.into_iter().zip(parts)))
    }

    /// Writes `data` at `offset`. What that waits for is added to `passage`.
    pub(crate) async fn write(
        self: &Rc<Self>,
        offset: u64,
        data: Bytes,
        level: Level,
        passage: &mut Passage,
    ) -> Result<()> {
        let _turn = self.take_turn(offset..offset + data.len() as u64, passage).await;
        self.write_in_turn(offset, data, level, passage).await
    }

    /// Makes a range read as zeros by writing zeros, so that it is allocated.
    pub(crate) async fn write_zeros(self: &Rc<Self>, range: Range<u64>, level: Level) -> Result<()> {
        let mut unasked = Passage::default();
        let _turn = self.take_turn(range.clone(), &mut unasked).await;
        let mut at = range.start;
        while at < range.end {
            let window = (ZEROS_WINDOW - at % ZEROS_WINDOW).min(range.end - at);
            self.write_in_turn(at, buffer::zeros(window as usize), level, &mut unasked).await?;
            at += window;
        }
        Ok(())
    }

    /// Makes a range read as zeros and frees its space.
    pub(crate) async fn discard(self: &Rc<Self>, range: Range<u64>) -> Result<()> {
        let _turn = self.take_turn(range.clone(), &mut Passage::default()).await;
        if let Some(piece) = self.layout.single(range.start, range.end - range.start) {
            return self.discard_piece(piece).await;
        }
        let volume = self.clone();
        let done = self.each(self.layout.pieces(range), move |piece| {
            let volume = volume.clone();
            async move { volume.discard_piece(piece).await }
        });
        done.await.map(drop)
    }

    /// Everything that was answered is durable; this asks whether the attachment still holds.
    pub(crate) async fn flush(&self) -> Result<()> {
        self.tries(&mut Passage::default(), || self.service.flush(self.target(0, Level::Open))).await
    }

    /// What a range is made of, from its start on: at least one extent, at most `extents_max`.
    pub(crate) async fn allocation(
        self: &Rc<Self>,
        range: Range<u64>,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>> {
        let pieces: Vec<Piece> = self.layout.pieces(range.clone()).collect();
        let volume = self.clone();
        let work = move |piece: Piece| {
            let (volume, most) = (volume.clone(), extents_max + EXTENTS_SPARE);
            async move {
                let send = |target| volume.service.allocation(target, piece.offset, piece.len, most);
                volume.tries(&mut Passage::default(), || send(volume.target(piece.segment, Level::Open))).await
            }
        };
        let extents = self.each(pieces.iter().copied(), work).await?;
        Ok(weave_extents(self.layout, range, pieces.into_iter().zip(extents), extents_max))
    }

    async fn write_in_turn(
        self: &Rc<Self>,
        offset: u64,
        data: Bytes,
        level: Level,
        passage: &mut Passage,
    ) -> Result<()> {
        if let Some(piece) = self.layout.single(offset, data.len() as u64) {
            return self.write_piece(piece, data, level, passage).await;
        }
        let volume = self.clone();
        let done = self.each(self.layout.stripes_of_range(offset..offset + data.len() as u64), move |stripe| {
            let start = (stripe.volume_offset - offset) as usize;
            let (volume, data) = (volume.clone(), data.slice(start..start + stripe.piece.len as usize));
            async move {
                let mut passage = Passage::default();
                volume.write_piece(stripe.piece, data, level, &mut passage).await.map(|()| passage)
            }
        });
        absorb_slowest(passage, &done.await?);
        Ok(())
    }

    async fn read_piece(&self, piece: Piece, level: Level, passage: &mut Passage) -> Result<Vec<ReadPart>> {
        self.tries(passage, || self.service.read(self.target(piece.segment, level), piece.offset, piece.len)).await
    }

    async fn write_piece(&self, piece: Piece, data: Bytes, level: Level, passage: &mut Passage) -> Result<()> {
        let stamp = self.attachment.next_stamp(&self.handle);
        self.tries(passage, || {
            let target = self.target(piece.segment, level);
            let checksums = fragment_checksums(target.segment, piece.offset, &data);
            self.service.write(target, piece.offset, data.clone(), checksums, stamp)
        })
        .await
    }

    async fn discard_piece(&self, piece: Piece) -> Result<()> {
        let stamp = self.attachment.next_stamp(&self.handle);
        let mut unasked = Passage::default();
        let target = || self.target(piece.segment, Level::Open);
        self.tries(&mut unasked, || self.service.discard(target(), piece.offset, piece.len, stamp)).await
    }

    fn target(&self, index: u32, level: Level) -> Target {
        let segment = SegmentId { volume: self.descriptor().id, index };
        tracing::trace!(target: "levee::stage", %segment, "routed");
        Target { session: self.attachment.session, segment, epoch: self.attachment.epoch(), level, behind: 0 }
    }

    /// Waits until no earlier write that overlaps `range` lacks its outcome.
    async fn take_turn(&self, range: Range<u64>, passage: &mut Passage) -> Turn<'_> {
        let (ticket, turn) = self.attachment.arrive(&self.handle, self.in_order(range));
        if let Some(turn) = turn {
            let since = self.handle.now();
            // The sender goes with its turn only.
            let _ = turn.await;
            let waited = self.handle.now().nanos_since(since);
            self.counters.with(|counters| counters.order_wait_ns.record(waited));
            passage.add(Stage::Order, waited);
        }
        Turn { volume: self, ticket }
    }

    /// The range as the order knows it.
    fn in_order(&self, range: Range<u64>) -> Range<u64> {
        if seeded::is_on("write-order-of-each-loop") {
            // No two loops have a byte in common.
            let apart = (self.index as u64) << 56;
            return range.start + apart..range.end + apart;
        }
        range
    }

    /// Sends a request, and sends it again while a passing obstacle stands in its way.
    async fn tries<'a, T>(&self, passage: &mut Passage, send: impl Fn() -> LocalBoxFuture<'a, Answer<T>>) -> Result<T> {
        let mut wait = RETRY_WAIT;
        for _ in 1..TRIES_MAX {
            match self.try_once(passage, send()).await {
                Err(error) if error.kind == ErrorKind::Retry => self.handle.sleep(wait).await,
                outcome => return outcome,
            }
            passage.add(Stage::Retry, wait.as_nanos() as u64);
            wait *= 2;
        }
        self.try_once(passage, send()).await
    }

    async fn try_once<T>(&self, passage: &mut Passage, answer: LocalBoxFuture<'_, Answer<T>>) -> Result<T> {
        if let Some(reason) = self.attachment.lost() {
            return Err(Error::fenced(reason));
        }
        let reply = match answer.await {
            Ok(reply) => reply,
            Err(lost) => return Err(self.lose(lost.message)),
        };
        if let Err(known) = self.attachment.see_epoch(reply.epoch) {
            return Err(self.lose(format!("an owner of {} answered after one of {known}", reply.epoch)));
        }
        passage.absorb(&reply.passage);
        reply.result.inspect_err(|error| {
            // Nobody is left to ask where it is: whoever knows has tried.
            if matches!(error.kind, ErrorKind::Fenced | ErrorKind::Moved) {
                self.lose(error.message.clone());
            }
        })
    }

    /// Sends nothing any more. The error is what the request is answered with.
    fn lose(&self, reason: String) -> Error {
        self.attachment.lose(&reason);
        Error::fenced(reason)
    }

    /// Runs `work` for every item at the same time. The outcome is known when all are done.
    async fn each<I, T: 'static, F: Future<Output = Result<T>> + 'static>(
        &self,
        items: impl Iterator<Item = I>,
        work: impl Fn(I) -> F,
    ) -> Result<Vec<T>> {
        let tasks: Vec<_> = items.map(|item| self.handle.spawn(Class::Io, "piece of a request", work(item))).collect();
        let mut outcomes = Vec::with_capacity(tasks.len());
        for task in tasks {
            outcomes.push(task.await);
        }
        outcomes.into_iter().collect()
    }
}

/// The piece that took longest says what the request waited for.
fn absorb_slowest(passage: &mut Passage, pieces: &[Passage]) {
    if let Some(slowest) = pieces.iter().max_by_key(|piece| piece.total_ns()) {
        passage.absorb(slowest);
    }
}
