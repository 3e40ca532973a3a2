//! Which loops serve the queues of a virtual machine's disk (BurstCBS, OSDI 2024, §5.1, "queue scaling").
//!
//! There a control thread is a loop here, and what spreads requests over threads is hardware. Here loops do it by pulling:
//! one loop hears that something is there, claims a few requests, and wakes one more if many remain, which does the same.
//! Whoever has claimed comes again in its next turn, so that a loop that has much to do besides claims less often. Nobody
//! looks at a request that another one runs, and nothing is sent between loops but the wake.

/// Requests that a loop claims at once, before it does anything else. Fewer spread better, more take the queue's lock less
/// often: to keep all loops at work, a queue needs some four batches for each at once (a batch waits while the one before
/// it runs, and its answers while the next one does).
pub const BATCH: usize = 4;

/// Which loops serve a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Queues {
    /// All loops serve each (1 to N, figure 10b).
    #[default]
    Shared,
    /// Each belongs to one loop (1 to 1, figure 10a): a baseline.
    Static,
}

/// The loop that a queue belongs to, of those of a disk whose first queue belongs to loop `first`: the round robin of §2.3.
/// Where all serve it, the one that hears of it first.
///
/// # Panics
/// There are no loops.
pub fn plan_owner(first: usize, queue: usize, loops: usize) -> usize {
    (first + queue) % loops
}

/// The loop to be woken, if any, where `remaining` requests are there still after loop `me` has claimed a batch. `asleep`:
/// the loops that do not look at the queue now, each with the requests that it runs.
///
/// What remains is as much as a wake is worth once it is a batch; until then `me` comes to it in its next turn. Of those with
/// the fewest requests it is the next one in turn after `me`: the wakes of one loop are the round robin of all.
pub fn plan_wake(remaining: usize, me: usize, asleep: impl IntoIterator<Item = (usize, usize)>) -> Option<usize> {
    if remaining < BATCH {
        return None;
    }
    let least_busy = asleep.into_iter().min_by_key(|&(index, running)| (running, index <= me, index));
    least_busy.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_go_round_by_loop() {
        let owners: Vec<usize> = (0..5).map(|queue| plan_owner(2, queue, 4)).collect();
        assert_eq!(owners, [2, 3, 0, 1, 2]);
        assert_eq!(plan_owner(0, 7, 1), 0);
    }

    #[test]
    fn one_more_is_woken_if_there_is_a_batch_for_it() {
        let asleep = [(0, 3), (2, 1), (3, 1)];
        assert_eq!(plan_wake(BATCH - 1, 1, asleep), None);
        assert_eq!(plan_wake(BATCH, 1, asleep), Some(2), "the least busy, from the one that asks on");
        assert_eq!(plan_wake(BATCH, 2, [(0, 1), (1, 1), (3, 1)]), Some(3));
        assert_eq!(plan_wake(BATCH, 3, [(1, 1), (0, 1)]), Some(0), "and around");
        assert_eq!(plan_wake(1000, 1, []), None);
    }
}
