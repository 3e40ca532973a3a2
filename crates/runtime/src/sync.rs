//! What tasks of one loop wait on: one-shot results, events, budgets; and mailboxes from other threads.
//!
//! Everything here but [`mailbox`] and [`foreign`] is `!Send` and costs no atomic operation. All of it is first come,
//! first served, and every future may be dropped at any point: what it held or stood for passes to the next in line.
//!
//! Invariant of this module: no waker is called and nothing of a caller is dropped while a cell is borrowed.

mod join;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

pub use self::join::join_all;

/// A one-shot result between tasks of one loop.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(RefCell::new(OneShot { value: None, waker: None, sender_gone: false }));
    (Sender(shared.clone()), Receiver(shared))
}

struct OneShot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
}

/// The sending half of [`oneshot`].
pub struct Sender<T>(Rc<RefCell<OneShot<T>>>);

impl<T> Sender<T> {
    /// Completes the receiver. Nothing happens if it is gone.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
        // Dropping `self` wakes the receiver.
    }

    /// Whether nobody waits for the value any more.
    pub fn is_abandoned(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut shared = self.0.borrow_mut();
            shared.sender_gone = true;
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The receiving half of [`oneshot`]: a future of the value, or `None` when the sender was dropped.
pub struct Receiver<T>(Rc<RefCell<OneShot<T>>>);

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut shared = self.0.borrow_mut();
        if let Some(value) = shared.value.take() {
            return Poll::Ready(Some(value));
        }
        if shared.sender_gone {
            return Poll::Ready(None);
        }
        let old = renew(&mut shared.waker, cx);
        drop(shared);
        drop(old);
        Poll::Pending
    }
}

/// Wakes every task that waits, each time something changed; waiters look at the state themselves.
#[derive(Clone, Default)]
pub struct Event(Rc<EventState>);

#[derive(Default)]
struct EventState {
    notified: Cell<u64>,
    next_waiter: Cell<u64>,
    /// In the order of their first poll, which is the order in which they are woken.
    waiters: RefCell<BTreeMap<u64, Waker>>,
}

impl Event {
    /// An event without waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes all who wait now.
    pub fn notify(&self) {
        self.0.notified.set(self.0.notified.get() + 1);
        let waiters = std::mem::take(&mut *self.0.waiters.borrow_mut());
        for waker in waiters.into_values() {
            waker.wake();
        }
    }

    /// Completes at the next [`Event::notify`] after this call (not after the first poll).
    pub fn wait(&self) -> impl Future<Output = ()> + use<> {
        EventWait { event: self.0.clone(), since: self.0.notified.get(), key: None }
    }
}

struct EventWait {
    event: Rc<EventState>,
    since: u64,
    key: Option<u64>,
}

impl Future for EventWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.event.notified.get() != self.since {
            self.key = None;
            return Poll::Ready(());
        }
        let key = match self.key {
            Some(key) => key,
            None => self.event.next_waiter.get(),
        };
        if self.key.is_none() {
            self.event.next_waiter.set(key + 1);
            self.key = Some(key);
        }
        let old = self.event.waiters.borrow_mut().insert(key, cx.waker().clone());
        drop(old);
        Poll::Pending
    }
}

impl Drop for EventWait {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = self.event.waiters.borrow_mut().remove(&key);
            drop(waker);
        }
    }
}

/// A budget of units (bytes, slots) that is waited for in arrival order.
#[derive(Clone)]
pub struct Budget(Rc<RefCell<Line>>);

/// The books of a budget, and those in line for it.
pub(crate) struct Line {
    total: u64,
    free: u64,
    next_waiter: u64,
    /// Those in line. A waiter whose turn has come leaves the line; its units are its own from then on.
    waiters: BTreeMap<u64, Waiter>,
}

struct Waiter {
    units: u64,
    waker: Option<Waker>,
}

impl Line {
    pub(crate) fn new(total: u64) -> Self {
        Line { total, free: total, next_waiter: 0, waiters: BTreeMap::new() }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Takes units if they are free now and nobody waits.
    pub(crate) fn try_take(&mut self, units: u64) -> bool {
        let is_free = self.waiters.is_empty() && self.free >= units;
        self.free -= if is_free { units } else { 0 };
        is_free
    }

    /// Takes units, or a place in line for them.
    pub(crate) fn enter(&mut self, units: u64) -> Place {
        assert!(units <= self.total, "{units} units do not fit a budget of {}", self.total);
        if self.try_take(units) {
            return Place::Granted;
        }
        let key = self.next_waiter;
        self.next_waiter += 1;
        self.waiters.insert(key, Waiter { units, waker: None });
        Place::InLine(key)
    }

    /// Whether the place is still in line; it is told by the waker of `cx` then. The old waker is to be dropped unlocked.
    pub(crate) fn wait(&mut self, key: u64, cx: &mut Context<'_>) -> Option<Option<Waker>> {
        self.waiters.get_mut(&key).map(|waiter| renew(&mut waiter.waker, cx))
    }

    /// Gives a place up: false if its units had been granted, and are to be given back.
    pub(crate) fn leave(&mut self, key: u64) -> bool {
        self.waiters.remove(&key).is_some()
    }

    pub(crate) fn give_back(&mut self, units: u64) {
        self.free += units;
        assert!(self.free <= self.total, "more units came back than were taken");
    }

    /// Serves the head of the line if its units are free: whom to wake then, if anybody is to be.
    pub(crate) fn grant(&mut self) -> Option<Option<Waker>> {
        let head = self.waiters.first_entry().filter(|head| head.get().units <= self.free)?;
        let waiter = head.remove();
        self.free -= waiter.units;
        Some(waiter.waker)
    }
}

/// Where somebody who wants units of a budget stands.
pub(crate) enum Place {
    /// In line under this key, as long as the line holds it; granted once it does not.
    InLine(u64),
    Granted,
    Taken,
}

impl Budget {
    /// A budget of `total` units.
    pub fn new(total: u64) -> Self {
        Budget(Rc::new(RefCell::new(Line::new(total))))
    }

    /// Takes `units` (at most the total), waiting in line from this call on. A dropped waiter leaves the line.
    pub fn take(&self, units: u64) -> impl Future<Output = Permit> + use<> {
        let place = self.0.borrow_mut().enter(units);
        BudgetTake { budget: self.clone(), units, place }
    }

    /// Takes `units` if they are free now and nobody waits.
    pub fn try_take(&self, units: u64) -> Option<Permit> {
        self.0.borrow_mut().try_take(units).then(|| Permit { budget: self.clone(), units })
    }

    /// Units that are free now.
    pub fn available(&self) -> u64 {
        self.0.borrow().free()
    }

    /// Units in all.
    pub fn total(&self) -> u64 {
        self.0.borrow().total()
    }

    /// How many wait in line.
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiters.len()
    }

    fn give_back(&self, units: u64) {
        self.0.borrow_mut().give_back(units);
        self.grant();
    }

    /// Serves the head of the line while its units are free.
    fn grant(&self) {
        while let Some(waker) = { self.0.borrow_mut().grant() } {
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

struct BudgetTake {
    budget: Budget,
    units: u64,
    place: Place,
}

impl Future for BudgetTake {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        if let Place::InLine(key) = self.place
            && let Some(old) = { self.budget.0.borrow_mut().wait(key, cx) }
        {
            drop(old);
            return Poll::Pending;
        }
        assert!(!matches!(self.place, Place::Taken), "polled after completion");
        self.place = Place::Taken;
        Poll::Ready(Permit { budget: self.budget.clone(), units: self.units })
    }
}

impl Drop for BudgetTake {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.place, Place::Taken) {
            Place::InLine(key) => {
                let was_waiting = self.budget.0.borrow_mut().leave(key);
                match was_waiting {
                    // The next in line may need less than this one did.
                    true => self.budget.grant(),
                    false => self.budget.give_back(self.units),
                }
            }
            Place::Granted => self.budget.give_back(self.units),
            Place::Taken => {}
        }
    }
}

/// Units taken from a [`Budget`], given back when dropped.
pub struct Permit {
    budget: Budget,
    units: u64,
}

impl Permit {
    /// Units that it holds.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Gives `units` of this permit back early.
    pub fn release(&mut self, units: u64) {
        assert!(units <= self.units, "a permit of {} units cannot give back {units}", self.units);
        self.units -= units;
        self.budget.give_back(units);
    }

    /// Splits `units` off into a permit of their own.
    pub fn split(&mut self, units: u64) -> Permit {
        assert!(units <= self.units, "a permit of {} units cannot lose {units}", self.units);
        self.units -= units;
        Permit { budget: self.budget.clone(), units }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.give_back(std::mem::take(&mut self.units));
    }
}

/// What comes first; `Err` if that is `other`. What is not done is dropped.
pub async fn first<A, B>(wanted: impl Future<Output = A>, other: impl Future<Output = B>) -> Result<A, B> {
    let (mut wanted, mut other) = (pin!(wanted), pin!(other));
    poll_fn(|cx| match wanted.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => other.as_mut().poll(cx).map(Err),
    })
    .await
}

/// A bounded mailbox into a loop: senders on any thread, the receiver on the loop.
pub fn mailbox<T: Send>(bound: usize) -> (async_channel::Sender<T>, async_channel::Receiver<T>) {
    async_channel::bounded(bound)
}

/// The one way for another thread to complete something on a loop: a one-shot whose sender is `Send`.
pub fn foreign<T: Send>() -> (futures_channel::oneshot::Sender<T>, futures_channel::oneshot::Receiver<T>) {
    futures_channel::oneshot::channel()
}

/// Stores the waker of `cx` unless the stored one wakes the same task; gives the old one, to be dropped unborrowed.
fn renew(slot: &mut Option<Waker>, cx: &mut Context<'_>) -> Option<Waker> {
    match slot {
        Some(waker) if waker.will_wake(cx.waker()) => None,
        _ => slot.replace(cx.waker().clone()),
    }
}

#[cfg(test)]
mod tests;
