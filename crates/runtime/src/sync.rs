//! What tasks of one loop wait on: events, budgets, one-shot results; and mailboxes from other threads.
//!
//! Everything here but [`mailbox`] and [`foreign`] is `!Send` and costs no atomic operation.

use std::future::Future;
use std::rc::Rc;

/// A one-shot result between tasks of one loop.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    todo!()
}

/// The sending half of [`oneshot`].
pub struct Sender<T>(std::marker::PhantomData<Rc<T>>);

impl<T> Sender<T> {
    /// Completes the receiver. Nothing happens if it is gone.
    pub fn send(self, value: T) {
        let _ = value;
        todo!()
    }
}

/// The receiving half of [`oneshot`]: a future of the value, or `None` when the sender was dropped.
pub struct Receiver<T>(std::marker::PhantomData<Rc<T>>);

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: std::pin::Pin<&mut Self>, _cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<T>> {
        todo!()
    }
}

/// Wakes every task that waits, each time something changed; waiters look at the state themselves.
#[derive(Clone, Default)]
pub struct Event(Rc<()>);

impl Event {
    /// An event without waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes all who wait now.
    pub fn notify(&self) {
        todo!()
    }

    /// Completes at the next [`Event::notify`] after this call (not after the first poll).
    pub fn wait(&self) -> impl Future<Output = ()> + use<> {
        std::future::ready(todo!())
    }
}

/// A budget of units (bytes, slots) that is waited for in arrival order.
#[derive(Clone)]
pub struct Budget(Rc<()>);

/// Units taken from a [`Budget`], given back when dropped.
pub struct Permit(Rc<()>);

impl Budget {
    /// A budget of `total` units.
    pub fn new(total: u64) -> Self {
        let _ = total;
        todo!()
    }

    /// Takes `units` (at most the total), waiting in line. A dropped waiter leaves the line.
    pub fn take(&self, units: u64) -> impl Future<Output = Permit> + use<> {
        let _ = units;
        std::future::ready(todo!())
    }

    /// Takes `units` if they are free now and nobody waits.
    pub fn try_take(&self, units: u64) -> Option<Permit> {
        let _ = units;
        todo!()
    }

    /// Units that are free now.
    pub fn available(&self) -> u64 {
        todo!()
    }
}

impl Permit {
    /// Gives `units` of this permit back early.
    pub fn release(&mut self, units: u64) {
        let _ = units;
        todo!()
    }
}

/// A bounded mailbox into a loop: senders on any thread, the receiver on the loop.
pub fn mailbox<T: Send>(bound: usize) -> (async_channel::Sender<T>, async_channel::Receiver<T>) {
    async_channel::bounded(bound)
}

/// The one way for another thread to complete something on a loop: a one-shot whose sender is `Send`.
pub fn foreign<T: Send>() -> (futures_channel::oneshot::Sender<T>, futures_channel::oneshot::Receiver<T>) {
    futures_channel::oneshot::channel()
}
