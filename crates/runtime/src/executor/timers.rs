//! The timers of a loop, in order of their deadlines. A dropped timer leaves nothing behind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::task::Waker;

use base::Instant;

/// Names one timer: its deadline, then a number that tells equal deadlines apart in order of registration.
pub(crate) type TimerKey = (Instant, u64);

#[derive(Default)]
pub(super) struct Timers(RefCell<State>);

#[derive(Default)]
struct State {
    waiting: BTreeMap<TimerKey, Waker>,
    next: u64,
}

impl Timers {
    pub fn insert(&self, deadline: Instant, waker: Waker) -> TimerKey {
        let mut state = self.0.borrow_mut();
        let key = (deadline, state.next);
        state.next += 1;
        state.waiting.insert(key, waker);
        key
    }

    /// Changes who is woken. False if the timer has fired.
    pub fn renew(&self, key: TimerKey, waker: &Waker) -> bool {
        let mut state = self.0.borrow_mut();
        let Entry::Occupied(mut entry) = state.waiting.entry(key) else { return false };
        if !entry.get().will_wake(waker) {
            let old = entry.insert(waker.clone());
            drop(state);
            drop(old);
        }
        true
    }

    pub fn remove(&self, key: TimerKey) {
        let waker = self.0.borrow_mut().waiting.remove(&key);
        drop(waker);
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.0.borrow().waiting.first_key_value().map(|(key, _)| key.0)
    }

    /// Wakes all whose deadline has come.
    pub fn fire(&self, now: Instant) {
        while let Some(waker) = self.pop_due(now) {
            waker.wake();
        }
    }

    pub fn clear(&self) {
        let waiting = std::mem::take(&mut self.0.borrow_mut().waiting);
        drop(waiting);
    }

    pub fn len(&self) -> usize {
        self.0.borrow().waiting.len()
    }

    fn pop_due(&self, now: Instant) -> Option<Waker> {
        let mut state = self.0.borrow_mut();
        let entry = state.waiting.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
