//! Watches that background tasks have their turn, however busy the loop is with I/O.
//!
//! Ready background tasks stand in one line. Now and then the watchdog marks the end of it: when as many tasks have been
//! polled as stood there, the last of them has waited at most since then. A clock at each task would cost more, and say
//! the same about the longest wait.

use std::time::Duration;

use base::Instant;

/// No background task should wait longer for its turn.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(super) struct Watchdog {
    mark: Option<Mark>,
}

struct Mark {
    /// Tasks that stand between the front of the line and the mark.
    ahead: usize,
    since: Instant,
    is_overdue: bool,
}

impl Watchdog {
    /// So many tasks are in line now. True when the marked one has begun to wait too long, once for each.
    pub fn look(&mut self, now: Instant, in_line: usize) -> bool {
        match &mut self.mark {
            None if in_line == 0 => false,
            None => {
                self.mark = Some(Mark { ahead: in_line, since: now, is_overdue: false });
                false
            }
            Some(mark) => {
                let is_late = now.since(mark.since) > PATIENCE;
                is_late && !std::mem::replace(&mut mark.is_overdue, true)
            }
        }
    }

    /// A task has its turn. How long the marked one waited, if it is this.
    pub fn on_poll(&mut self, now: Instant) -> Option<Duration> {
        let mark = self.mark.as_mut()?;
        mark.ahead -= 1;
        match mark.ahead {
            0 => self.mark.take().map(|mark| now.since(mark.since)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn the_last_in_line_is_timed() {
        let mut watchdog = Watchdog::default();
        assert!(!watchdog.look(at(0), 0) && watchdog.on_poll(at(0)).is_none());
        assert!(!watchdog.look(at(1), 3));
        assert_eq!(watchdog.on_poll(at(2)), None);
        // Who comes later is behind the mark.
        assert!(!watchdog.look(at(3), 9));
        assert_eq!((watchdog.on_poll(at(4)), watchdog.on_poll(at(7))), (None, Some(Duration::from_millis(6))));
        assert!(watchdog.on_poll(at(8)).is_none());
    }

    #[test]
    fn who_waits_too_long_is_told_of_once() {
        let mut watchdog = Watchdog::default();
        assert!(!watchdog.look(at(5), 1) && !watchdog.look(at(1_005), 1));
        assert!(watchdog.look(at(1_006), 2) && !watchdog.look(at(1_007), 2));
        assert_eq!(watchdog.on_poll(at(2_005)), Some(Duration::from_secs(2)));
        assert!(!watchdog.look(at(2_006), 1));
    }
}
