//! What the loops of one process share: a value behind a short lock, and a budget.
//!
//! Loops share as little as they can; what belongs to all of them (the order of a volume's writes, tokens, memory) is
//! kept exactly, behind a lock that is held for some tens of nanoseconds and never across an await. Wakers are called when
//! it is free again, from whichever loop that is.
//!
//! In the simulated world a lock costs what its machines say ([`crate::sim::CpuOptions`]), and who finds it taken waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::Handle;
use crate::sync::{Line, Place};

/// A value that loops share. Clones are the same one.
pub struct Lock<T>(Arc<Locked<T>>);

struct Locked<T> {
    value: Mutex<T>,
    /// See [`crate::driver::Driver::on_lock`].
    held_until_ns: AtomicU64,
}

impl<T> Clone for Lock<T> {
    fn clone(&self) -> Self {
        Lock(self.0.clone())
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Lock::new(T::default())
    }
}

impl<T> Lock<T> {
    /// A value for all loops.
    pub fn new(value: T) -> Self {
        Lock(Arc::new(Locked { value: Mutex::new(value), held_until_ns: AtomicU64::new(0) }))
    }

    /// Looks at the value, or changes it, on the loop of `handle`. `act` is short, and wakes nobody.
    #[inline]
    pub fn with<R>(&self, handle: &Handle, act: impl FnOnce(&mut T) -> R) -> R {
        handle.0.driver().on_lock(&self.0.held_until_ns);
        // A panic under the lock ends the process; what it left is not looked at by anybody who matters.
        act(&mut self.0.value.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A budget of units that loops share: waited for in the order of arrival, whichever loop that is on. Clones are the same
/// one.
#[derive(Clone)]
pub struct SharedBudget {
    line: Lock<Line>,
    total: u64,
}

impl SharedBudget {
    /// A budget of `total` units.
    pub fn new(total: u64) -> Self {
        SharedBudget { line: Lock::new(Line::new(total)), total }
    }

    /// Units in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Units that are free now.
    pub fn available(&self, handle: &Handle) -> u64 {
        self.line.with(handle, |line| line.free())
    }

    /// Takes `units` if they are free now and nobody waits.
    pub fn try_take(&self, handle: &Handle, units: u64) -> Option<SharedPermit> {
        self.line.with(handle, |line| line.try_take(units)).then(|| self.permit(handle, units))
    }

    /// Takes `units` (at most the total), waiting in line from this call on. A dropped waiter leaves the line.
    pub fn take(&self, handle: &Handle, units: u64) -> impl Future<Output = SharedPermit> + use<> {
        let place = self.line.with(handle, |line| line.enter(units));
        SharedTake { budget: self.clone(), handle: handle.clone(), units, place }
    }

    fn permit(&self, handle: &Handle, units: u64) -> SharedPermit {
        SharedPermit { budget: self.clone(), handle: handle.clone(), units }
    }

    fn give_back(&self, handle: &Handle, units: u64) {
        self.line.with(handle, |line| line.give_back(units));
        self.grant(handle);
    }

    /// Serves the head of the line while its units are free.
    fn grant(&self, handle: &Handle) {
        while let Some(waker) = self.line.with(handle, Line::grant) {
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

struct SharedTake {
    budget: SharedBudget,
    handle: Handle,
    units: u64,
    place: Place,
}

impl Future for SharedTake {
    type Output = SharedPermit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<SharedPermit> {
        if let Place::InLine(key) = self.place
            && let Some(old) = self.budget.line.with(&self.handle, |line| line.wait(key, cx))
        {
            drop(old);
            return Poll::Pending;
        }
        assert!(!matches!(self.place, Place::Taken), "polled after completion");
        self.place = Place::Taken;
        Poll::Ready(self.budget.permit(&self.handle, self.units))
    }
}

impl Drop for SharedTake {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.place, Place::Taken) {
            Place::InLine(key) => match self.budget.line.with(&self.handle, |line| line.leave(key)) {
                // The next in line may need less than this one did.
                true => self.budget.grant(&self.handle),
                false => self.budget.give_back(&self.handle, self.units),
            },
            Place::Granted => self.budget.give_back(&self.handle, self.units),
            Place::Taken => {}
        }
    }
}

/// Units taken from a [`SharedBudget`], given back when dropped. It stays on its loop.
pub struct SharedPermit {
    budget: SharedBudget,
    handle: Handle,
    units: u64,
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        self.budget.give_back(&self.handle, self.units);
    }
}

#[cfg(test)]
mod tests;
