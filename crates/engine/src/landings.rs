//! Which appends of one data file have landed: an append counts by what its file says only when nothing is missing
//! before it.
//!
//! A recovery reads what follows the logged part of a data file from label to label ([`crate::label`]) and stops at the
//! first one that is not whole. Appends land in any order, so a large write whose own append has landed waits here
//! until all before it in its file have, and until the log has the record that says whose file it is. What stands
//! behind an append that failed never gets that far: such a write waits for its record in the log instead.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use base::seeded::is_on;
use runtime::sync::Event;

/// The appends of one file. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Landings(Rc<Inner>);

#[derive(Default)]
struct Inner {
    state: RefCell<State>,
    changed: Event,
}

#[derive(Default)]
struct State {
    /// The log says durably whose file it is.
    is_announced: bool,
    /// The number of the first one below; all before it have landed.
    first: u64,
    /// Where each of the others ends, and whether it has landed.
    open: VecDeque<(u64, bool)>,
    /// Where those that have all landed end.
    whole_through: u64,
}

impl Landings {
    /// The log has the record that says whose file it is.
    pub fn announce(&self) {
        self.0.state.borrow_mut().is_announced = true;
        self.0.changed.notify();
    }

    /// An append that ends at byte `end` is on its way. Gives its number.
    pub fn begin(&self, end: u64) -> u64 {
        let mut state = self.0.state.borrow_mut();
        state.open.push_back((end, false));
        state.first + state.open.len() as u64 - 1
    }

    /// An append is durable.
    pub fn on_landed(&self, number: u64) {
        let mut state = self.0.state.borrow_mut();
        let at = (number - state.first) as usize;
        state.open[at].1 = true;
        while let Some(&(end, true)) = state.open.front() {
            state.open.pop_front();
            state.first += 1;
            state.whole_through = end;
        }
        drop(state);
        self.0.changed.notify();
    }

    /// Up to this byte everything has landed.
    pub fn whole_through(&self) -> u64 {
        self.0.state.borrow().whole_through
    }

    /// Where the last one ends that has landed: nothing counts behind it.
    pub fn landed_through(&self) -> u64 {
        let state = self.0.state.borrow();
        let last = state.open.iter().rfind(|(_, has_landed)| *has_landed);
        last.map_or(state.whole_through, |(end, _)| *end)
    }

    /// Completes when a recovery would find the append `number`, as long as it has landed. Never, if one before it
    /// failed.
    pub async fn when_found(self, number: u64) {
        loop {
            let changed = self.0.changed.wait();
            {
                let state = self.0.state.borrow();
                let is_whole = number < state.first || is_on("large-acked-behind-hole");
                if is_whole && (state.is_announced || is_on("data-file-not-announced")) {
                    return;
                }
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_found(landings: &Landings, number: u64) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(landings.clone().when_found(number)).poll(&mut context) == Poll::Ready(())
    }

    #[test]
    fn an_append_counts_when_all_before_it_have_landed_and_the_file_is_announced() {
        let landings = Landings::default();
        let numbers: Vec<u64> = [10, 20, 30].into_iter().map(|end| landings.begin(end)).collect();
        landings.on_landed(numbers[0]);
        assert!(!is_found(&landings, numbers[0]), "nobody knows whose file it is");
        landings.announce();
        assert!(is_found(&landings, numbers[0]));
        landings.on_landed(numbers[2]);
        assert!(!is_found(&landings, numbers[2]));
        assert_eq!((landings.whole_through(), landings.landed_through()), (10, 30));
        landings.on_landed(numbers[1]);
        assert!(is_found(&landings, numbers[1]) && is_found(&landings, numbers[2]));
        assert_eq!((landings.whole_through(), landings.begin(40), landings.landed_through()), (30, 3, 30));
    }
}
