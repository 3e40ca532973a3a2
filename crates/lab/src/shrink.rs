//! Makes a list smaller that fails: delta debugging (Zeller and Hildebrandt, "Simplifying and isolating
//! failure-inducing input", 2002, the algorithm *ddmin*).
//!
//! Intuition: a run that failed had a thousand steps, and three of them were needed. Try one part of the list alone,
//! then the list without one part; whatever still fails is the new list. When no part helps, the parts become smaller,
//! until each is one item.
//!
//! Names: *part*, a stretch of neighbours in the list; *run*, one question whether a list fails; *1-minimal*, said of a
//! list that fails, and fails no more without any one of its items.
//!
//! Invariants: the result is a sub-list in the same order, and each list that became the current one has failed in a
//! run. The result says that it is 1-minimal only if every list with one item less was tried and did not fail.
//!
//! Flow: [`shrink`] halves the length of a part again and again; for each length it looks for a part that fails alone,
//! then leaves out one part after the other. At length one it goes around until a whole round has changed nothing.

#[cfg(test)]
mod tests;

/// What is left of a list that fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shrunk<T> {
    /// A sub-list that fails, in order.
    pub items: Vec<T>,
    /// How many lists were tried.
    pub runs: usize,
    /// Without any one of the items it fails no more. False when the budget ended first.
    pub minimal: bool,
}

/// The smallest sub-list of `items` found that still fails, after at most `runs_max` calls of `fails`. That `items`
/// fails as a whole is known to the caller, and not tried again. `fails` should depend on the list alone.
pub fn shrink<T: Clone>(items: Vec<T>, runs_max: usize, fails: impl FnMut(&[T]) -> bool) -> Shrunk<T> {
    let mut shrinking = Shrinking { part: items.len(), items, runs: 0, runs_max, fails };
    let minimal = shrinking.run().is_some();
    Shrunk { items: shrinking.items, runs: shrinking.runs, minimal }
}

struct Shrinking<T, F> {
    items: Vec<T>,
    /// The length of a part.
    part: usize,
    runs: usize,
    runs_max: usize,
    fails: F,
}

impl<T: Clone, F: FnMut(&[T]) -> bool> Shrinking<T, F> {
    /// Nothing if the budget ended before the list was 1-minimal.
    fn run(&mut self) -> Option<()> {
        self.part = self.part.div_ceil(2);
        while self.part > 1 {
            while self.keep()? {
                self.part = self.items.len().div_ceil(2);
            }
            self.leave_out()?;
            self.part = self.part.min(self.items.len()).div_ceil(2);
        }
        self.leave_out_one_by_one()
    }

    /// Keeps one part alone, if one fails. Nothing when the budget has ended.
    fn keep(&mut self) -> Option<bool> {
        if self.items.len() <= 1 {
            return Some(false);
        }
        for start in (0..self.items.len()).step_by(self.part) {
            let end = (start + self.part).min(self.items.len());
            let alone = self.items[start..end].to_vec();
            if self.try_list(alone)? {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Leaves out each part that is not needed.
    fn leave_out(&mut self) -> Option<()> {
        // Of two parts each alone is the list without the other, and was tried.
        if self.items.len() <= 2 * self.part {
            return Some(());
        }
        let mut start = 0;
        while start < self.items.len() {
            if !self.try_without(start, self.part)? {
                start += self.part;
            }
        }
        Some(())
    }

    /// Leaves out single items, around and around, until a whole round has changed nothing.
    fn leave_out_one_by_one(&mut self) -> Option<()> {
        let (mut at, mut needed) = (0, 0);
        while needed < self.items.len() {
            if at >= self.items.len() {
                at = 0;
            }
            if self.try_without(at, 1)? {
                needed = 0;
            } else {
                needed += 1;
                at += 1;
            }
        }
        Some(())
    }

    fn try_without(&mut self, start: usize, count: usize) -> Option<bool> {
        let end = (start + count).min(self.items.len());
        let rest = [&self.items[..start], &self.items[end..]].concat();
        self.try_list(rest)
    }

    /// Whether `list` fails: then it is the current one.
    fn try_list(&mut self, list: Vec<T>) -> Option<bool> {
        if self.runs == self.runs_max {
            return None;
        }
        self.runs += 1;
        let fails = (self.fails)(&list);
        if fails {
            self.items = list;
        }
        Some(fails)
    }
}
