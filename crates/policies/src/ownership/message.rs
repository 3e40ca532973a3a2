//! What a manager asks for, and what it is told.

use base::{Epoch, Generation, Incarnation, SegmentId, Term, VolumeId};

/// An order, and who gives it: whoever has seen a higher term refuses it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The term of the manager.
    pub term: Term,
    /// What it wants.
    pub order: Order,
}

/// What a manager wants. Every one may be said again, and done again, with the same outcome.
// Fields that several have mean the same: `engine` is asked, for `segment`.
#[allow(missing_docs)]
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// An engine is to log Create of a segment that nobody has had. Answered by [`Report::Adopted`] or
    /// [`Report::Refused`].
    Create { engine: Incarnation, segment: SegmentId, epoch: Epoch, generation: Generation },
    /// A holder is to log Release of what it has under `epoch`; `next` is the epoch of who gets it. Answered by
    /// [`Report::Released`].
    Release { engine: Incarnation, segment: SegmentId, epoch: Epoch, next: Epoch },
    /// An engine is to take a segment out of the log of `source`, which says nothing more of it, and to log Adopt under
    /// `epoch`, with the higher one of `generation` and the source's. Answered as Create.
    Adopt {
        engine: Incarnation,
        segment: SegmentId,
        epoch: Epoch,
        source: Incarnation,
        source_epoch: Epoch,
        generation: Generation,
    },
    /// Somebody else has adopted what the engine had under `epoch`: its checkpoints need not repeat the Release.
    Forget { engine: Incarnation, segment: SegmentId, epoch: Epoch },
    /// A holder is to record a generation, and to drain what is older. Answered by [`Report::Recorded`].
    Reattach { engine: Incarnation, segment: SegmentId, epoch: Epoch, generation: Generation },
    /// A holder is to log that the volume of a segment is gone. Answered by [`Report::Dropped`].
    Drop { engine: Incarnation, segment: SegmentId, epoch: Epoch },
    /// The store is to fence exactly this engine, if the term is the newest. Answered by [`Report::Fenced`].
    Fence { dead: Incarnation },
    /// A recoverer is to decide where the log and the journals of a dead engine end, and to seal them there. Answered by
    /// [`Report::Recovered`].
    Recover { dead: Incarnation, recoverer: Incarnation },
    /// The files of a dead engine can go; its fence stays. Answered by [`Report::Deleted`].
    Delete { dead: Incarnation },
    /// An engine was declared dead: it has nothing, and starts again as another one.
    Dismiss { engine: Incarnation },
    /// So many servers are missing that this manager may be the one who is: it is to renew its own lease, and then to
    /// ask another one which of these engines that one misses, too. Answered by [`super::Manager::on_confirmed`].
    Doubt { missing: Vec<Incarnation> },
    /// An attach returns. Said once: who does not hear it attaches again.
    Attached { volume: VolumeId, generation: Generation },
    /// The deletion of a volume is done. Said once: who does not hear it finds no volume when it asks again.
    Gone { volume: VolumeId },
}

impl Order {
    /// Whether it is said again until it is answered, or when somebody asks again.
    pub(super) fn is_repeated(&self) -> bool {
        !matches!(self, Order::Attached { .. } | Order::Gone { .. })
    }
}

/// What an engine or the store says. All of it is durable where it was done, so it is true whenever it arrives; whether it
/// still matters is decided here.
// Fields that several have mean the same: `engine` says it, of what it has under `epoch`.
#[allow(missing_docs)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// It will never take this assignment.
    Refused { engine: Incarnation, segment: SegmentId, epoch: Epoch },
    /// It has released the segment. It says so until it is told to forget it.
    Released { engine: Incarnation, segment: SegmentId, epoch: Epoch },
    /// It has adopted or created the segment, with this generation.
    Adopted { engine: Incarnation, segment: SegmentId, epoch: Epoch, generation: Generation },
    /// It has recorded this generation.
    Recorded { engine: Incarnation, segment: SegmentId, epoch: Epoch, generation: Generation },
    /// It has logged that the volume is gone.
    Dropped { engine: Incarnation, segment: SegmentId, epoch: Epoch },
    /// Nothing of a dead engine can be confirmed any more.
    Fenced { dead: Incarnation },
    /// A recoverer has sealed what a dead engine had. Its log says that it has, or has released, these segments, under
    /// these epochs.
    Recovered { dead: Incarnation, recoverer: Incarnation, has: Vec<(SegmentId, Epoch)> },
    /// The files of a dead engine are gone.
    Deleted { dead: Incarnation },
}
