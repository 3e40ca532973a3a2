//! Which log the next part of a burst goes to: each in its turn (DiffForward, §3.3).
//!
//! The paper sends the l-th write of a burst to server l mod n. Servers that drain, are full or gone are left out here, so that it
//! is the next one of those that are there.

use super::LogNumber;

/// The logs of a volume, by number.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// Which ones take appends.
    is_open: Vec<bool>,
    next: usize,
}

impl Turns {
    /// So many logs, all of which take appends. `first`: who begins, so that volumes do not all begin with the same one.
    pub fn new(logs: u8, first: u8) -> Turns {
        Turns { is_open: vec![true; usize::from(logs)], next: usize::from(first) }
    }

    /// From here on a log takes appends, or does not.
    pub fn set_open(&mut self, log: LogNumber, is_open: bool) {
        if let Some(known) = self.is_open.get_mut(usize::from(log.0)) {
            *known = is_open;
        }
    }

    /// The log whose turn it is among those that take appends and that `has_room`.
    pub fn next(&mut self, has_room: impl Fn(LogNumber) -> bool) -> Option<LogNumber> {
        let count = self.is_open.len();
        let at = (0..count).map(|step| (self.next + step) % count);
        let found = at.into_iter().find(|at| self.is_open[*at] && has_room(LogNumber(*at as u8)))?;
        self.next = (found + 1) % count;
        Some(LogNumber(found as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_turn_but_who_takes_nothing() {
        let mut turns = Turns::new(3, 1);
        let next = |turns: &mut Turns| turns.next(|log| log.0 != 9).map(|log| log.0);
        assert_eq!([(); 4].map(|()| next(&mut turns)), [1, 2, 0, 1].map(Some));
        turns.set_open(LogNumber(2), false);
        assert_eq!([(); 3].map(|()| next(&mut turns)), [0, 1, 0].map(Some));
        assert_eq!(turns.next(|log| log.0 != 1), Some(LogNumber(0)), "the other one is full");
        turns.set_open(LogNumber(2), true);
        assert_eq!([(); 3].map(|()| next(&mut turns)), [1, 2, 0].map(Some));
        (0..3).for_each(|log| turns.set_open(LogNumber(log), false));
        assert_eq!(next(&mut turns), None);
        assert_eq!(Turns::new(0, 0).next(|_| true), None);
    }
}
