//! Which loops serve the queues of a virtual machine's disk (BurstCBS, OSDI 2024, §5.1, "queue scaling").
//!
//! There a control thread is a loop here, and what spreads requests over threads is hardware. Here loops do it by pulling:
//! one loop hears that something is there, claims a few requests, and wakes one more if many remain, which does the same.
//! Whoever has claimed comes again in its next turn, so that a loop that has much to do besides claims less often. Nobody
//! looks at a request that another one runs, and nothing is sent between loops but the wake.
//!
//! The baselines are what is done where a queue has one loop that looks into its rings: nothing more (static), or that loop
//! hands some of what it claims to others, by messages: to all in turn (a dispatcher), or to those that have nothing to do
//! and say so (stealing). What a message brings is run by whoever gets it.

/// Requests that a loop claims at once, before it does anything else. Fewer spread better, more take the queue's lock less
/// often: to keep all loops at work, a queue needs some four batches for each at once (a batch waits while the one before
/// it runs, and its answers while the next one does). What is handed over in one message is one batch, too.
pub const BATCH: usize = 4;

/// Which loops serve a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Queues {
    /// All loops serve each (1 to N, figure 10b).
    #[default]
    Shared,
    /// Each belongs to one loop (1 to 1, figure 10a): a baseline.
    Static,
    /// One loop claims from all of a disk, and hands what it claims to all in turn: a baseline.
    Dispatcher,
    /// Each belongs to one loop, and one that has nothing to do asks that for some of it: a baseline.
    Stealing,
}

impl Queues {
    /// Whether a loop runs requests of a queue that belongs to loop `owner`.
    pub fn serves(self, index: usize, owner: usize) -> bool {
        self != Queues::Static || index == owner
    }

    /// Whether a loop looks into the rings of a queue that belongs to loop `owner`. One that serves it and does not look runs
    /// what is handed over to it.
    pub fn looks(self, index: usize, owner: usize) -> bool {
        self == Queues::Shared || index == owner
    }

    /// Whether a loop that does not look asks for something when it has nothing to do.
    pub fn asks(self) -> bool {
        self == Queues::Stealing
    }

    /// Messages of a batch that is handed over: itself, and that it was asked for.
    pub fn messages(self) -> usize {
        if self.asks() { 2 } else { 1 }
    }
}

/// The loop that a queue belongs to, of those of a disk whose first queue belongs to loop `first`: the round robin of §2.3.
/// Where all serve it, the one that hears of it first; a dispatcher has all queues.
///
/// # Panics
/// There are no loops.
pub fn plan_owner(queues: Queues, first: usize, queue: usize, loops: usize) -> usize {
    let steps = if queues == Queues::Dispatcher { 0 } else { queue };
    (first + steps) % loops
}

/// Another loop that serves a queue, as the one sees it that has claimed something there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Other {
    /// Which one it is.
    pub index: usize,
    /// Requests that it runs.
    pub running: usize,
    /// It does not look at the queue now, nor for what was handed over to it.
    pub is_asleep: bool,
    /// It has asked for something, and got nothing since.
    pub asks: bool,
}

/// What becomes of a batch that was claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Who has claimed it runs it, and wakes that loop.
    Run {
        /// If any.
        wakes: Option<usize>,
    },
    /// That loop runs it.
    HandOver(usize),
}

/// What becomes of a batch that loop `me` has claimed, where `remaining` requests are there still. `last`: the loop that runs
/// the one before.
pub fn plan_batch(
    queues: Queues,
    remaining: usize,
    me: usize,
    last: usize,
    others: impl IntoIterator<Item = Other>,
) -> Plan {
    let others = others.into_iter();
    let of = |other: Other| (other.index, other.running);
    match queues {
        Queues::Shared => Plan::Run { wakes: plan_wake(remaining, me, others.filter(|other| other.is_asleep).map(of)) },
        Queues::Static => Plan::Run { wakes: None },
        Queues::Dispatcher => {
            let next = others.map(|other| other.index).chain([me]).min_by_key(|&index| (index <= last, index));
            next.filter(|&to| to != me).map_or(Plan::Run { wakes: None }, Plan::HandOver)
        }
        // A batch is left for this one.
        Queues::Stealing => {
            let asking = others.filter(|other| other.asks).map(of);
            plan_wake(remaining, me, asking).map_or(Plan::Run { wakes: None }, Plan::HandOver)
        }
    }
}

/// The loop to be woken, if any, where `remaining` requests are there still after loop `me` has claimed a batch. `asleep`:
/// the loops that do not look at the queue now, each with the requests that it runs.
///
/// What remains is as much as a wake is worth once it is a batch; until then `me` comes to it in its next turn. Of those with
/// the fewest requests it is the next one in turn after `me`: the wakes of one loop are the round robin of all.
fn plan_wake(remaining: usize, me: usize, asleep: impl IntoIterator<Item = (usize, usize)>) -> Option<usize> {
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
        for queues in [Queues::Shared, Queues::Static, Queues::Stealing] {
            let owners: Vec<usize> = (0..5).map(|queue| plan_owner(queues, 2, queue, 4)).collect();
            assert_eq!(owners, [2, 3, 0, 1, 2]);
            assert_eq!(plan_owner(queues, 0, 7, 1), 0);
        }
        let owners: Vec<usize> = (0..5).map(|queue| plan_owner(Queues::Dispatcher, 2, queue, 4)).collect();
        assert_eq!(owners, [2; 5], "one loop has all of a disk");
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

    /// Loops 0, 1 and 3 beside loop 2: one at work, one asleep, one that asks.
    fn others() -> [Other; 3] {
        let other = |index, is_asleep, asks| Other { index, running: 0, is_asleep, asks };
        [other(0, false, false), other(1, true, false), other(3, true, true)]
    }

    #[test]
    fn a_dispatcher_hands_over_in_turn_and_runs_its_own_share() {
        let next = |last| plan_batch(Queues::Dispatcher, 0, 2, last, others());
        assert_eq!([0, 3, 2].map(next), [Plan::HandOver(1), Plan::HandOver(0), Plan::HandOver(3)]);
        assert_eq!(next(1), Plan::Run { wakes: None });
        assert_eq!(plan_batch(Queues::Dispatcher, 9, 2, 2, []), Plan::Run { wakes: None }, "all others have gone");
    }

    #[test]
    fn who_asks_gets_a_batch_if_one_is_left() {
        let plan = |remaining, others: &[Other]| plan_batch(Queues::Stealing, remaining, 2, 2, others.iter().copied());
        assert_eq!(plan(BATCH, &others()), Plan::HandOver(3));
        assert_eq!(plan(BATCH - 1, &others()), Plan::Run { wakes: None });
        assert_eq!(plan(1000, &others()[..2]), Plan::Run { wakes: None }, "nobody asks");
    }

    #[test]
    fn only_where_all_look_is_anybody_woken_to_claim() {
        let plan = |queues| plan_batch(queues, 1000, 2, 2, others());
        assert_eq!(plan(Queues::Shared), Plan::Run { wakes: Some(3) });
        assert_eq!(plan(Queues::Static), Plan::Run { wakes: None });
        for queues in [Queues::Static, Queues::Dispatcher, Queues::Stealing] {
            assert!(queues.looks(1, 1) && !queues.looks(0, 1));
        }
        assert!(Queues::Shared.looks(0, 1) && !Queues::Static.serves(0, 1) && Queues::Stealing.serves(0, 1));
    }
}
