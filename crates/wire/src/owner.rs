//! What a manager asks of an engine that owns segments: to have them, to give them up, to recover a dead one.

use base::{Bytes, Epoch, Generation, Incarnation, Result, SegmentId, Term};

use crate::directory::VolumeDescriptor;
use crate::service::LocalBoxFuture;

/// A segment that an engine is to have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// The volume, with the newest generation that is recorded for it.
    pub volume: VolumeDescriptor,
    /// The segment.
    pub segment: SegmentId,
    /// The ownership: durable at the manager, and never given to anybody else.
    pub epoch: Epoch,
    /// Where it is to be had from.
    pub source: Source,
}

/// Where a segment is to be had from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Nobody has had it: it is empty.
    Nobody,
    /// It was released.
    Left(LeftSegment),
    /// From the log of an engine that is dead, and whose logs were sealed.
    Estate(Incarnation),
}

/// A segment as an engine left it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftSegment {
    /// Whose log has it last.
    pub incarnation: Incarnation,
    /// What there is of it, in the words of engines.
    pub content: Bytes,
}

/// What the log of an engine says of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The segment.
    pub segment: SegmentId,
    /// The ownership.
    pub epoch: Epoch,
    /// The newest attachment of its volume that is recorded there.
    pub generation: Generation,
    /// Whether it was released.
    pub is_released: bool,
}

/// Who has a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// The engine.
    pub owner: Incarnation,
    /// Where it listens.
    pub address: String,
    /// The ownership.
    pub epoch: Epoch,
}

/// Where segments are: what somebody who uses a volume asks when it is attached, and when a segment has moved.
pub trait SegmentDirectory {
    /// Who has `segment` now.
    ///
    /// # Errors
    /// `Retry`: it is on its way. `NotFound`: its volume was deleted. `Io`: the directory cannot be asked.
    fn locate(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Located>>;
}

/// An engine that owns segments, as a manager sees it. Every call may be repeated.
///
/// An order names the term of the manager that gives it. Once an engine has seen a higher one it answers `Fenced`, and
/// does nothing: whoever orders is in charge no more. What it was asked before that goes on. Questions have no term.
pub trait SegmentOwner {
    /// Has these segments from now on: of each, whether it does. What is asked for twice, or late, changes nothing.
    ///
    /// Errors of one: `Conflict` (another epoch was begun or refused here), `Retry` (the estate is not sealed yet),
    /// `Corrupt`, `Io`, `Full`, `Fenced`. After `Io` nobody knows whether it is here.
    fn assign(&self, term: Term, assignments: Vec<Assignment>) -> LocalBoxFuture<'_, Vec<Result<()>>>;

    /// Takes a segment under no epoch up to `epoch`, however late somebody asks.
    ///
    /// # Errors
    /// `Conflict`: it is here, or on its way here.
    fn refuse(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>>;

    /// Has a segment no more that it has under `epoch`. What is in flight lands before.
    ///
    /// # Errors
    /// `Moved`, `Conflict`: it is not here under that epoch. `Io`, `Full`: it stays.
    fn release(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<LeftSegment>>;

    /// Under which epoch it has a segment, if it has it.
    ///
    /// # Errors
    /// `Io`.
    fn held(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Option<Epoch>>>;

    /// What it has released, under which epochs, and was not told to forget. A manager asks from time to time: a release
    /// may have come about after whoever asked for it had changed its mind.
    ///
    /// # Errors
    /// `Io`.
    fn released(&self) -> LocalBoxFuture<'_, Result<Vec<(SegmentId, Epoch)>>>;

    /// What was released under `epoch` is in somebody's log.
    ///
    /// # Errors
    /// `Fenced`, `Io`.
    fn forget_release(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>>;

    /// Fences a dead engine, and decides and seals the ends of its logs. What they say of segments.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: whoever does it again finds the same.
    fn recover(&self, term: Term, dead: Incarnation) -> LocalBoxFuture<'_, Result<Vec<Holding>>>;

    /// The volume of a segment that it has under `epoch` was attached under the generation that is in its descriptor:
    /// older attachments are refused from now on, what they have in flight lands before this returns, and the log has it.
    ///
    /// # Errors
    /// `Moved`: it does not have the segment under that epoch. `Fenced`: a newer one is recorded, or as above. `Io`.
    fn begin_attachment(
        &self,
        term: Term,
        volume: VolumeDescriptor,
        segment: SegmentId,
        epoch: Epoch,
    ) -> LocalBoxFuture<'_, Result<()>>;

    /// Has a segment no more that it has under `epoch`, because its volume is deleted; and no client has the volume.
    ///
    /// # Errors
    /// `Moved`, `Conflict`: it does not have the segment under that epoch. `Io`.
    fn drop_segment(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>>;
}
