//! Operations in flight: who waits for each, and what to do with an outcome that nobody waits for any more.
//!
//! An operation's slot lives from submission to its outcome's delivery, whatever becomes of the waiting future. A
//! future that is dropped earlier leaves an *orphan*: its outcome is thrown away, and a resource that it opened is
//! closed, so that a connection accepted for nobody does not stay open.

use std::cell::RefCell;
use std::task::{Poll, Waker};

use slab::Slab;

use crate::driver::{Op, OpId, Outcome, ResourceId};

#[derive(Default)]
pub(super) struct Operations(RefCell<State>);

#[derive(Default)]
struct State {
    slots: Slab<Slot>,
    /// Counts submissions; its low half tells lives of the same slot apart.
    submitted: u64,
}

struct Slot {
    life: u32,
    traits: Traits,
    stage: Stage,
}

enum Stage {
    Waiting(Option<Waker>),
    Done(Outcome),
    Orphan,
}

/// What matters about an operation once its future is gone.
#[derive(Clone, Copy)]
struct Traits {
    /// A success brings a resource that must be closed.
    opens: bool,
    /// May wait for a peer for ever.
    cancelled: bool,
}

impl Traits {
    fn of(op: &Op) -> Traits {
        match op {
            Op::Accept { .. } | Op::Connect { .. } => Traits { opens: true, cancelled: true },
            Op::Open { .. } | Op::Listen { .. } | Op::Adopt { .. } => Traits { opens: true, cancelled: false },
            Op::Receive { .. } | Op::Await { .. } => Traits { opens: false, cancelled: true },
            _ => Traits { opens: false, cancelled: false },
        }
    }
}

/// What is left to do for an operation whose outcome nobody wants.
#[must_use]
pub(super) enum Aftermath {
    Nothing,
    /// Ask the driver to end it early.
    Cancel,
    /// Close what it opened.
    Close(ResourceId),
}

impl Aftermath {
    fn of(traits: Traits, outcome: Outcome) -> Aftermath {
        match outcome.value {
            Ok(id) if traits.opens => Aftermath::Close(ResourceId(id)),
            _ => Aftermath::Nothing,
        }
    }
}

impl Operations {
    /// Makes a slot for an operation that is about to be submitted.
    pub fn insert(&self, op: &Op) -> OpId {
        let mut state = self.0.borrow_mut();
        state.submitted += 1;
        let life = state.submitted as u32;
        let index = state.slots.insert(Slot { life, traits: Traits::of(op), stage: Stage::Waiting(None) });
        assert!(index < u32::MAX as usize, "operations in flight are bounded by memory long before");
        OpId(u64::from(life) << 32 | index as u64)
    }

    /// Stores an outcome and gives the waker of the future that waits for it.
    pub fn deliver(&self, id: OpId, outcome: Outcome) -> (Option<Waker>, Aftermath) {
        let mut state = self.0.borrow_mut();
        let (index, slot) = state.slot(id);
        match &mut slot.stage {
            Stage::Waiting(waker) => {
                let waker = waker.take();
                slot.stage = Stage::Done(outcome);
                (waker, Aftermath::Nothing)
            }
            Stage::Orphan => {
                let slot = state.slots.remove(index);
                drop(state);
                (None, Aftermath::of(slot.traits, outcome))
            }
            Stage::Done(_) => panic!("the driver gave two outcomes of one operation"),
        }
    }

    /// Takes the outcome, or stores the waker to call when it is there.
    pub fn poll(&self, id: OpId, waker: &Waker) -> Poll<Outcome> {
        let mut state = self.0.borrow_mut();
        let (index, slot) = state.slot(id);
        match &mut slot.stage {
            Stage::Waiting(Some(old)) if old.will_wake(waker) => Poll::Pending,
            Stage::Waiting(slot) => {
                let old = slot.replace(waker.clone());
                drop(state);
                drop(old);
                Poll::Pending
            }
            Stage::Done(_) => match state.slots.remove(index).stage {
                Stage::Done(outcome) => Poll::Ready(outcome),
                _ => unreachable!("just matched"),
            },
            Stage::Orphan => unreachable!("an orphan has no future"),
        }
    }

    /// The future of an operation is dropped.
    pub fn abandon(&self, id: OpId) -> Aftermath {
        let mut state = self.0.borrow_mut();
        let (index, slot) = state.slot(id);
        let traits = slot.traits;
        match std::mem::replace(&mut slot.stage, Stage::Orphan) {
            Stage::Waiting(waker) => {
                drop(state);
                drop(waker);
                if traits.cancelled { Aftermath::Cancel } else { Aftermath::Nothing }
            }
            Stage::Done(outcome) => {
                state.slots.remove(index);
                drop(state);
                Aftermath::of(traits, outcome)
            }
            Stage::Orphan => unreachable!("a future is dropped once"),
        }
    }

    pub fn clear(&self) {
        let slots = std::mem::take(&mut self.0.borrow_mut().slots);
        drop(slots);
    }

    /// How many are in flight or undelivered.
    pub fn len(&self) -> usize {
        self.0.borrow().slots.len()
    }

    /// How many were ever submitted.
    pub fn submitted(&self) -> u64 {
        self.0.borrow().submitted
    }
}

impl State {
    fn slot(&mut self, id: OpId) -> (usize, &mut Slot) {
        let index = (id.0 & u64::from(u32::MAX)) as usize;
        let slot = self.slots.get_mut(index).filter(|slot| slot.life == (id.0 >> 32) as u32);
        (index, slot.expect("the driver knows only operations in flight"))
    }
}
