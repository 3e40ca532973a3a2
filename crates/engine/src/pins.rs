//! Keeps files alive while somebody may still read them.
//!
//! **Intuition.** A reader does not know which files it will touch before it has asked the index, and asking takes
//! time. So it does not pin files: it pins the moment at which it started. A file that left the index at some moment
//! can be removed when every reader that started before that moment has ended; readers that start later cannot find
//! it any more. This is epoch-based reclamation (Fraser, 2004), on one loop.
//!
//! **Names.** A *generation* is a stretch of time between two removals; a *pin* belongs to the generation in which it
//! was taken.
//!
//! **Bound.** A generation is eight bytes, begins only with a removal, and goes when it and all before it have no pins:
//! there are never more than the removals that wait for the oldest pin, plus one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use runtime::sync::Event;

/// The pins of one loop. Clones share them.
#[derive(Clone, Default)]
pub struct Pins(Rc<State>);

struct State {
    /// Live pins of each generation, oldest first; the last one is the present. Never empty.
    generations: RefCell<VecDeque<u64>>,
    /// The number of the oldest generation.
    oldest: Cell<u64>,
    changed: Event,
}

impl Default for State {
    fn default() -> Self {
        State { generations: RefCell::new(VecDeque::from([0])), oldest: Cell::new(0), changed: Event::new() }
    }
}

/// Files that were in the index when this was taken stay until it is dropped.
pub struct Pin {
    pins: Pins,
    generation: u64,
}

impl Pins {
    /// No pins.
    pub fn new() -> Self {
        Self::default()
    }

    /// Pins the present. Taken before the index is asked, held until the last byte was read.
    pub fn pin(&self) -> Pin {
        let mut generations = self.0.generations.borrow_mut();
        let generation = self.0.oldest.get() + generations.len() as u64 - 1;
        *generations.back_mut().expect("there is always the present generation") += 1;
        Pin { pins: self.clone(), generation }
    }

    /// Completes when every pin taken before this call is gone: what left the index before the call may be removed.
    pub async fn quiesce(&self) {
        let first_later = {
            let mut generations = self.0.generations.borrow_mut();
            if generations.back().is_some_and(|&pins| pins > 0) {
                generations.push_back(0);
            }
            self.0.oldest.get() + generations.len() as u64 - 1
        };
        while self.0.oldest.get() < first_later {
            self.0.changed.wait().await;
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let state = &self.pins.0;
        let mut generations = state.generations.borrow_mut();
        let index = (self.generation - state.oldest.get()) as usize;
        generations[index] -= 1;
        let mut passed = false;
        while generations.len() > 1 && generations.front() == Some(&0) {
            generations.pop_front();
            state.oldest.set(state.oldest.get() + 1);
            passed = true;
        }
        drop(generations);
        if passed {
            state.changed.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_done(future: std::pin::Pin<&mut impl Future>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn waits_for_older_pins_only() {
        let pins = Pins::new();
        assert!(is_done(pin!(pins.quiesce())), "nobody reads");
        let (a, b) = (pins.pin(), pins.pin());
        let mut first = pin!(pins.quiesce());
        assert!(!is_done(first.as_mut()));
        let later = pins.pin();
        drop(a);
        assert!(!is_done(first.as_mut()), "b started before");
        drop(b);
        assert!(is_done(first.as_mut()), "the later one does not count");
        let mut second = pin!(pins.quiesce());
        assert!(!is_done(second.as_mut()));
        drop(later);
        assert!(is_done(second.as_mut()));
    }

    #[test]
    fn pins_end_in_any_order_and_generations_stay_few() {
        let pins = Pins::new();
        let mut held = VecDeque::new();
        for round in 0..100 {
            held.push_back(pins.pin());
            let mut quiesce = pin!(pins.quiesce());
            assert!(!is_done(quiesce.as_mut()));
            if round % 3 == 0 {
                held.pop_back();
            } else if held.len() > 5 {
                held.pop_front();
            }
            assert!(pins.0.generations.borrow().len() <= 3 * (held.len() + 1));
        }
        held.clear();
        assert_eq!(*pins.0.generations.borrow(), [0]);
    }
}
