//! Whether to spread a burst gains anything: found out by doing both.
//!
//! **Intuition.** DiffForward (SIGMETRICS 2023) spreads every burst. Where the cards of servers are what is scarce, that pays: a log
//! on another server answers long before an owner does whose card is full. Where it is processors, or one disk behind all servers,
//! a log answers no sooner, and what was logged has to be carried home besides. An agent cannot see which of these a cluster is;
//! but it can see which answers sooner. So a burst goes both ways, each of its writes as chance has it, and more of them take the
//! way that is the faster one.
//!
//! So it goes to and fro about where an owner, with what is left to it, takes a little longer than a log; or one of the ways has
//! nearly all.
//!
//! **Chosen** (the paper has nothing of it): a log must answer a fifth sooner, because what it has is carried home afterwards, of
//! which a part meets the very burst. At least one write of 32 takes either way, so that a change is seen. All volumes of an agent
//! share what was found: what is scarce is scarce for all of them, and a volume by itself has few bursts. What carrying home costs
//! others is not seen: with large writes more is spread than is good for them (bench/README.md, "What spreading costs").

use std::time::Duration;

/// Writes of a burst are divided into so many parts.
const PARTS: u32 = 32;
/// Of each way so many answers are compared with those of the other one. Some of a burst take a hundred times what others take,
/// so that of a few chance would decide.
const ANSWERS: u32 = 64;
/// Logs get more where they take less than so many of a hundred of what owners take.
const GAINS_PERCENT: u64 = 80;
/// And less where they take more than this.
const LOSES_PERCENT: u64 = 90;

/// Where a write of a burst goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To the owner of its segment.
    Owner,
    /// To a log.
    Log,
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gain {
    /// Of [`PARTS`], those that go to logs.
    logged: u32,
    owner: Answers,
    log: Answers,
}

/// Answers since the ways were compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Answers {
    count: u32,
    nanos: u64,
}

impl Default for Gain {
    /// Nothing is known: half goes each way.
    fn default() -> Self {
        Gain { logged: PARTS / 2, owner: Answers::default(), log: Answers::default() }
    }
}

impl Gain {
    /// Where the next write of a burst goes; `chance` is any number.
    pub fn way(&self, chance: u64) -> Way {
        match chance % u64::from(PARTS) < u64::from(self.logged) {
            true => Way::Log,
            false => Way::Owner,
        }
    }

    /// A write that went this way was answered after so long.
    pub fn on_answer(&mut self, way: Way, took: Duration) {
        let answers = match way {
            Way::Owner => &mut self.owner,
            Way::Log => &mut self.log,
        };
        answers.count = answers.count.saturating_add(1);
        answers.nanos = answers.nanos.saturating_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if self.owner.count < ANSWERS || self.log.count < ANSWERS {
            return;
        }
        let percent = self.log.mean().saturating_mul(100) / self.owner.mean().max(1);
        self.logged = match percent {
            ..GAINS_PERCENT => (self.logged * 3 / 2).max(self.logged + 1),
            GAINS_PERCENT..=LOSES_PERCENT => self.logged,
            _ => self.logged * 2 / 3,
        };
        self.logged = self.logged.clamp(1, PARTS - 1);
        (self.owner, self.log) = Default::default();
    }
}

impl Answers {
    fn mean(&self) -> u64 {
        self.nanos / u64::from(self.count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a hundred writes of a burst, those that go to logs.
    fn percent(gain: &Gain) -> u32 {
        gain.logged * 100 / PARTS
    }

    /// Lets so many writes of a burst be answered; `took` is what a way takes if so many of a hundred go to logs.
    fn run(gain: &mut Gain, writes: u64, took: impl Fn(Way, u32) -> u64) -> u32 {
        let mut prng = base::Prng::new(1);
        let mut logged = 0;
        for _ in 0..writes {
            let way = gain.way(prng.next_u64());
            logged += u32::from(way == Way::Log);
            gain.on_answer(way, Duration::from_micros(took(way, percent(gain))));
        }
        logged * 100 / writes as u32
    }

    #[test]
    fn what_gains_nothing_is_left_off_and_tried_again() {
        let mut gain = Gain::default();
        assert_eq!(percent(&gain), 50);
        run(&mut gain, 20_000, |_, _| 500);
        assert_eq!(percent(&gain), 3, "as long either way: one of 32");
        let tried = run(&mut gain, 10_000, |_, _| 500);
        assert!((2..=4).contains(&tried), "{tried}");
        // From now on a card is full.
        run(&mut gain, 20_000, |way, _| if way == Way::Log { 500 } else { 5_000 });
        assert_eq!(percent(&gain), 96, "and one of 32 tells when it is not any more");
        run(&mut gain, 20_000, |way, _| if way == Way::Log { 500 } else { 540 });
        assert_eq!(percent(&gain), 3, "a little sooner is not enough for what comes after it");
    }

    #[test]
    fn it_is_held_where_both_are_worth_it() {
        let mut gain = Gain::default();
        run(&mut gain, 20_000, |way, _| if way == Way::Log { 85 } else { 100 });
        assert_eq!(percent(&gain), 50);
    }

    /// An owner that takes the longer the more it gets, beside four logs.
    #[test]
    fn a_burst_is_divided_where_an_owner_takes_somewhat_longer() {
        let mut gain = Gain::default();
        let took = |way, percent| match way {
            Way::Owner => 100 + 20 * u64::from(100 - percent),
            Way::Log => 100 + 5 * u64::from(percent),
        };
        run(&mut gain, 20_000, took);
        let logged = run(&mut gain, 10_000, took);
        // To and fro about three quarters, and longest where one way has so little that its answers come slowly.
        assert!((60..=92).contains(&logged), "{logged}");
    }
}
