//! What a loop has beyond what its profile says: it was idle while requests waited for a share of its time.
//!
//! A profile with its corrections ([`super::Measured`], [`super::Delay`]) may be far too dear: where the loop does much that is no
//! tenant's request, where other programs keep its processor from it, or where large requests take less than a line from small ones
//! says. Then requests wait for nothing. So while some do and the loop is idle everything becomes cheaper; and dearer again as soon as
//! it is busy.
//!
//! Only where nobody was promised a base: there what is too dear may be what keeps the promise.
//!
//! **Ours.** "Cost that follows delay" (BurstCBS, OSDI 2024, §5.3) finds what is too cheap. The paper says that BIOS conserves work,
//! which it does where costs are right.

/// How much cheaper everything becomes at most with one look.
const UP: f64 = 2.0;
/// How much dearer, while the loop is busy.
const DOWN: f64 = 0.9;
/// The part of the time that a loop must be busy not to count as idle.
const BUSY: f64 = 0.9;
/// The most: as much as both corrections can make it too dear.
const MAX: f64 = 80.0;

/// The factor by which a window has more.
#[derive(Clone, Copy, Debug)]
pub struct Slack(f64);

impl Default for Slack {
    fn default() -> Self {
        Slack(1.0)
    }
}

impl Slack {
    /// Requests waited for so long, and of that the loop was idle.
    pub fn on_wait(&mut self, waited_ns: u64, idle_ns: u64) {
        if waited_ns == 0 {
            return;
        }
        let busy = 1.0 - (idle_ns as f64 / waited_ns as f64).clamp(0.0, 1.0);
        let by = if busy < BUSY { (1.0 / busy.max(f64::MIN_POSITIVE)).min(UP) } else { DOWN };
        self.0 = (self.0 * by).clamp(1.0, MAX);
    }

    /// See the module.
    pub fn factor(&self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_an_idle_loop_gets_more_and_for_a_busy_one_as_the_profile_says() {
        let mut slack = Slack::default();
        slack.on_wait(1_000, 500);
        assert_eq!(slack.factor(), 2.0);
        slack.on_wait(1_000, 200);
        assert_eq!(slack.factor(), 2.5);
        (0..100).for_each(|_| slack.on_wait(1_000, 1_000));
        assert_eq!(slack.factor(), MAX);
        slack.on_wait(0, 0);
        assert_eq!(slack.factor(), MAX, "nobody waited");
        (0..50).for_each(|_| slack.on_wait(1_000, 10));
        assert_eq!(slack.factor(), 1.0);
    }
}
