//! One attachment of a volume, and what orders its writes: one structure that all loops with connections to it share.
//!
//! The attachment is made once, on the agent's first loop (docs/SAFETY.md, rule 29), with one session that every loop
//! uses. Each loop has a `Volume` on it. Where a write overlaps one that came in by another loop, it waits for that one as
//! for any other (rule 30): the order, and the numbers that stamps are made of, are behind one lock, which nobody holds
//! across an await. Reads do not need it.
//!
//! Invariants: of two writes that overlap, the one whose turn comes later has the higher number; whoever waits is woken
//! when the lock is free again; once lost, nothing more is sent, on no loop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use std::ops::Range;

use base::{Epoch, Map, SnapshotNumber, WriteSequence, WriteStamp};
use futures_channel::oneshot::{Receiver, Sender};
use runtime::sync::foreign;
use runtime::{Handle, Lock};
use wire::{SessionId, VolumeDescriptor};

use crate::write_order::{Ticket, WriteOrder};

/// See the module.
pub(crate) struct Attachment {
    pub(crate) descriptor: VolumeDescriptor,
    pub(crate) session: SessionId,
    books: Lock<Books>,
    /// The highest epoch that any owner answered under.
    epoch: AtomicU64,
    /// Why nothing more is sent.
    lost: OnceLock<String>,
    /// Told when it is lost.
    on_lost: Mutex<Option<Sender<()>>>,
    /// Its connections are to end, those too that are still to come.
    is_closing: AtomicBool,
}

#[derive(Default)]
struct Books {
    order: WriteOrder,
    last_sequence: u64,
    /// Writes whose turn has not come, on whichever loop.
    waiting: Map<Ticket, Sender<()>>,
}

impl Attachment {
    /// A new attachment, and what completes when it is lost.
    pub(crate) fn new(descriptor: VolumeDescriptor, session: SessionId, epoch: Epoch) -> (Attachment, Receiver<()>) {
        let (sender, receiver) = foreign();
        let attachment = Attachment {
            descriptor,
            session,
            books: Lock::default(),
            epoch: AtomicU64::new(epoch.0),
            lost: OnceLock::new(),
            on_lost: Mutex::new(Some(sender)),
            is_closing: AtomicBool::new(false),
        };
        (attachment, receiver)
    }

    /// A write of `range` arrived: its ticket, and what tells it that its turn has come, if that is not now.
    pub(crate) fn arrive(&self, handle: &Handle, range: Range<u64>) -> (Ticket, Option<Receiver<()>>) {
        self.books.with(handle, |books| {
            let (ticket, now) = books.order.on_arrival(range);
            let receiver = (!now).then(|| {
                let (sender, receiver) = foreign();
                books.waiting.insert(ticket, sender);
                receiver
            });
            (ticket, receiver)
        })
    }

    /// A write has its outcome: those have their turn that waited for no other.
    pub(crate) fn leave(&self, handle: &Handle, ticket: Ticket) {
        let ready: Vec<Sender<()>> = self.books.with(handle, |books| {
            let ready = books.order.on_done(ticket);
            ready.into_iter().filter_map(|ticket| books.waiting.remove(&ticket)).collect()
        });
        // Whoever waits keeps its turn until it is over: nobody is gone.
        for sender in ready {
            let _ = sender.send(());
        }
    }

    /// The stamp of a write whose turn it is.
    pub(crate) fn next_stamp(&self, handle: &Handle) -> WriteStamp {
        let sequence = self.books.with(handle, |books| {
            books.last_sequence += 1;
            books.last_sequence
        });
        WriteStamp {
            generation: self.descriptor.generation,
            sequence: WriteSequence(sequence),
            snapshot: SnapshotNumber(0),
        }
    }

    /// The highest epoch that any owner answered under.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// An owner answered under this epoch.
    ///
    /// # Errors
    /// The higher one that another answered under before.
    pub(crate) fn see_epoch(&self, epoch: Epoch) -> Result<(), Epoch> {
        // As a rule nothing changes, and all loops may read it at once.
        let known = match self.epoch() {
            known if known == epoch => known,
            _ => Epoch(self.epoch.fetch_max(epoch.0, Ordering::AcqRel)),
        };
        if epoch < known { Err(known) } else { Ok(()) }
    }

    /// Why nothing is sent any more.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// From here on nothing is sent; the first reason counts.
    pub(crate) fn lose(&self, reason: &str) {
        if self.lost.set(reason.to_owned()).is_ok() {
            tracing::warn!(volume = %self.descriptor.name, %reason, "the attachment of a volume was lost");
            let sender = self.on_lost.lock().unwrap_or_else(PoisonError::into_inner).take();
            // The registry forgets it when it is detached.
            sender.map(|sender| sender.send(()));
        }
    }

    /// Connections that enter from here on are to end.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    /// Whether a connection that has just entered is to end at once: whoever ended the others may have looked before it
    /// was there.
    pub(crate) fn turns_away(&self) -> bool {
        self.is_closing.load(Ordering::Acquire) || self.lost().is_some()
    }
}
