//! In which order lines get what there is: deficit round robin, in two rings.

use std::collections::VecDeque;

use super::line::{Line, Lines, Place};
use super::settings::QUANTUM;

/// The lines with waiting requests, by number.
#[derive(Default)]
pub struct Rings {
    pub steady: VecDeque<u32>,
    pub hot: VecDeque<u32>,
    pub parked: Vec<u32>,
}

impl Rings {
    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.steady.is_empty() && self.hot.is_empty() && self.parked.is_empty()
    }

    /// Lines whose turn comes round.
    pub fn turning(&self) -> usize {
        self.steady.len() + self.hot.len()
    }

    pub fn ring(&mut self, is_hot: bool) -> &mut VecDeque<u32> {
        match is_hot {
            true => &mut self.hot,
            false => &mut self.steady,
        }
    }

    /// A line that was empty has a request now.
    pub fn enter<T>(&mut self, number: u32, line: &mut Line<T>, is_hot: bool) {
        line.place = if is_hot { Place::Hot } else { Place::Steady };
        self.ring(is_hot).push_back(number);
    }

    /// The line at the front of a ring is done for this round.
    pub fn rotate(&mut self, is_hot: bool) {
        let ring = self.ring(is_hot);
        if let Some(front) = ring.pop_front() {
            ring.push_back(front);
        }
    }

    /// The line at the front of a ring has nothing waiting any more.
    pub fn leave<T>(&mut self, is_hot: bool, line: &mut Line<T>) {
        self.ring(is_hot).pop_front();
        line.place = Place::Nowhere;
        line.deficit = 0;
    }

    /// The line at the front of a ring has used up something that comes back with the next refill.
    pub fn park<T>(&mut self, is_hot: bool, line: &mut Line<T>) {
        let front = self.ring(is_hot).pop_front();
        self.parked.extend(front);
        line.place = Place::Parked;
        line.deficit = 0;
    }

    /// Gives every line its place anew: parked ones come back, hot ones that have become steady change over.
    pub fn sort<T>(&mut self, lines: &mut Lines<T>, is_hot: impl Fn(&Line<T>) -> bool) {
        for number in std::mem::take(&mut self.parked) {
            let line = lines.get_mut(number);
            let hot = is_hot(line);
            self.enter(number, line, hot);
        }
        for _ in 0..self.hot.len() {
            let Some(number) = self.hot.pop_front() else { break };
            let line = lines.get_mut(number);
            let hot = is_hot(line);
            self.enter(number, line, hot);
        }
    }
}

/// Whether a line may start a request of `cost` in this round; a round gives it [`QUANTUM`] bytes.
pub fn may_spend<T>(line: &mut Line<T>, cost: u64) -> bool {
    match line.deficit >= cost {
        true => {
            line.deficit -= cost;
            true
        }
        false => {
            line.deficit += QUANTUM;
            false
        }
    }
}
