//! What is left of the levels of one volume.
//!
//! Each level is a bucket of operations and one of bytes, refilled by the interval; a request needs something in both,
//! and its debt is paid by later intervals. What does not fit the base level's buckets any more is saved in part, where
//! the volume has credits, and gone otherwise.

use std::time::Duration;

use base::Instant;
use base::levels::{Level, Levels, Rate};

use crate::waits::Reason;

/// One operation or byte, in the parts that tokens are counted in: so that a low rate has some in every interval.
const UNIT: i64 = 1_000;
/// One operation, in what bytes are counted in. An operation per second is something in each millisecond.
const OPERATION: i64 = 1_000_000;
/// Most tokens of an interval: what is added up stays far from the end of the numbers.
const TOKENS_MAX: u64 = i64::MAX as u64 >> 12;

/// Why a request may not start now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Which level is used up.
    pub reason: Reason,
    /// When there is something again, as far as is known now.
    pub until: Instant,
}

/// What a request takes, or a loop has taken, of operations and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Amount {
    pub(super) operations: i64,
    pub(super) bytes: i64,
}

impl Amount {
    /// One request.
    #[inline]
    pub(super) fn of(bytes: u64) -> Amount {
        Amount { operations: OPERATION, bytes: (bytes.min(TOKENS_MAX / UNIT as u64) as i64) * UNIT }
    }

    #[inline]
    pub(super) fn covers(&self, other: &Amount) -> bool {
        self.operations >= other.operations && self.bytes >= other.bytes
    }

    #[inline]
    pub(super) fn plus(self, other: Amount) -> Amount {
        Amount { operations: self.operations + other.operations, bytes: self.bytes + other.bytes }
    }

    #[inline]
    pub(super) fn minus(self, other: Amount) -> Amount {
        Amount { operations: self.operations - other.operations, bytes: self.bytes - other.bytes }
    }

    pub(super) fn part(self, of: i64) -> Amount {
        Amount { operations: self.operations / of, bytes: self.bytes / of }
    }
}

/// Tokens in one dimension.
#[derive(Clone, Copy, Debug)]
struct Tokens {
    balance: i64,
    per_interval: i64,
    /// Most that may be there.
    cap: i64,
    /// What was there at first, and everything that was drawn since.
    first: i64,
    drawn: i128,
    /// The most that was drawn at once.
    largest: i64,
}

impl Tokens {
    fn new(per_interval: i64, cap: i64, balance: i64) -> Tokens {
        Tokens { balance, per_interval, cap, first: balance, drawn: 0, largest: 0 }
    }

    /// Issues what `passed` intervals give. What does not fit is returned.
    fn refill(&mut self, passed: u64) -> i64 {
        let passed = i64::try_from(passed).unwrap_or(i64::MAX);
        let all = self.per_interval.saturating_mul(passed).saturating_add(self.balance);
        self.balance = all.min(self.cap);
        all - self.balance
    }

    fn draw(&mut self, amount: i64) {
        self.balance -= amount;
        self.drawn += i128::from(amount);
        self.largest = self.largest.max(amount);
    }

    /// Takes back what was drawn and not used; says what does not fit.
    fn give_back(&mut self, amount: i64) -> i64 {
        self.drawn -= i128::from(amount);
        let all = self.balance.saturating_add(amount);
        self.balance = all.min(self.cap);
        all - self.balance
    }

    /// How many intervals pass until something is there.
    fn intervals_missing(&self) -> u64 {
        let missing = 1 - self.balance.min(1);
        (missing as u64).div_ceil(self.per_interval.max(1) as u64)
    }
}

/// Tokens of a rate.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    operations: Option<Tokens>,
    bytes: Option<Tokens>,
}

/// What a rate gives in an interval, at least 1; 0 of one that is not given.
fn per_interval(per_sec: u64, part: i64, interval_ns: u64) -> i64 {
    let tokens = u128::from(per_sec) * part as u128 * u128::from(interval_ns) / 1_000_000_000;
    let tokens = u64::try_from(tokens).unwrap_or(u64::MAX).min(TOKENS_MAX) as i64;
    if per_sec == 0 { 0 } else { tokens.max(1) }
}

impl Meter {
    /// Full, with room for `depth` intervals.
    fn new(rate: Rate, interval_ns: u64, depth: u64) -> Meter {
        Meter::with(rate, interval_ns, |per_interval| {
            let cap = per_interval.saturating_mul(depth.max(1) as i64);
            Tokens::new(per_interval, cap, cap)
        })
    }

    /// Empty, with room for so many seconds.
    fn empty(rate: Rate, interval_ns: u64, seconds: u32) -> Meter {
        let intervals = u128::from(seconds) * 1_000_000_000 / u128::from(interval_ns);
        let intervals = i64::try_from(intervals).unwrap_or(i64::MAX);
        Meter::with(rate, interval_ns, |per_interval| Tokens::new(0, per_interval.saturating_mul(intervals), 0))
    }

    fn with(rate: Rate, interval_ns: u64, tokens: impl Fn(i64) -> Tokens) -> Meter {
        let tokens = |per_interval: i64| (per_interval > 0).then(|| tokens(per_interval));
        Meter {
            operations: tokens(per_interval(rate.iops, OPERATION, interval_ns)),
            bytes: tokens(per_interval(rate.bytes_per_sec, UNIT, interval_ns)),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Tokens> {
        self.operations.iter().chain(&self.bytes)
    }

    fn refill(&mut self, passed: u64) -> Amount {
        let beyond = |tokens: &mut Option<Tokens>| tokens.as_mut().map_or(0, |tokens| tokens.refill(passed));
        Amount { operations: beyond(&mut self.operations), bytes: beyond(&mut self.bytes) }
    }

    #[inline]
    fn has_some(&self) -> bool {
        self.all().all(|tokens| tokens.balance > 0)
    }

    fn draw(&mut self, amount: Amount) {
        self.operations.iter_mut().for_each(|tokens| tokens.draw(amount.operations));
        self.bytes.iter_mut().for_each(|tokens| tokens.draw(amount.bytes));
    }

    fn give_back(&mut self, amount: Amount) -> Amount {
        let back = |tokens: &mut Option<Tokens>, amount| tokens.as_mut().map_or(0, |tokens| tokens.give_back(amount));
        Amount { operations: back(&mut self.operations, amount.operations), bytes: back(&mut self.bytes, amount.bytes) }
    }

    /// What is there; of a dimension that is not given more than anybody takes.
    fn balance(&self) -> Amount {
        let of = |tokens: &Option<Tokens>| tokens.map_or(TOKENS_MAX as i64, |tokens| tokens.balance);
        Amount { operations: of(&self.operations), bytes: of(&self.bytes) }
    }

    fn intervals_missing(&self) -> u64 {
        self.all().map(Tokens::intervals_missing).max().unwrap_or(0)
    }

    /// Whether no more was drawn than the intervals since gave, what there was at first, and one request.
    fn audit(&self, what: &str, intervals: u64, debt: i64) -> Result<(), String> {
        for tokens in self.all() {
            let given = i128::from(tokens.first) + i128::from(tokens.per_interval) * i128::from(intervals);
            let most = given + i128::from(tokens.largest) + i128::from(tokens.per_interval) * i128::from(debt);
            if tokens.drawn > most {
                return Err(format!("{} tokens of the {what} were drawn, and {given} were given", tokens.drawn));
            }
        }
        Ok(())
    }
}

/// Credits of a volume that saves.
#[derive(Clone, Copy, Debug)]
struct Savings {
    percent: i64,
    meter: Meter,
}

impl Savings {
    /// A part of what the base level's buckets have no room for.
    fn save(&mut self, beyond: Amount) {
        let part = |amount: i64| (i128::from(amount) * i128::from(self.percent) / 100) as i64;
        for (tokens, amount) in [(&mut self.meter.operations, beyond.operations), (&mut self.meter.bytes, beyond.bytes)]
        {
            if let Some(tokens) = tokens {
                tokens.balance = tokens.balance.saturating_add(part(amount)).min(tokens.cap);
            }
        }
    }
}

/// What a volume has left of its levels.
#[derive(Clone, Debug)]
pub struct Allowance {
    interval_ns: u64,
    depth: u64,
    levels: Levels,
    base: Option<Meter>,
    burst: Option<Meter>,
    savings: Option<Savings>,
    interval: u64,
    since: u64,
}

impl Allowance {
    /// A volume with these levels, of which `depth` intervals' worth is there, and no credits. More never is.
    pub fn new(levels: Levels, interval: Duration, depth: u64, now: Instant) -> Allowance {
        let interval_ns = (interval.as_nanos() as u64).max(1);
        let meter = |rate: Rate| (!rate.is_none()).then(|| Meter::new(rate, interval_ns, depth));
        let credits = levels.credits;
        let saves = credits.cap_seconds > 0 && credits.percent > 0 && !levels.base.is_none();
        let savings = saves.then(|| Savings {
            percent: i64::from(credits.percent),
            meter: Meter::empty(levels.base, interval_ns, credits.cap_seconds),
        });
        let interval = now.0 / interval_ns;
        Allowance {
            interval_ns,
            depth,
            levels,
            base: meter(levels.base),
            burst: meter(levels.burst),
            savings,
            interval,
            since: interval,
        }
    }

    /// It has other levels from here on. What was saved stays, as far as there is room.
    pub fn change(&mut self, levels: Levels, now: Instant) {
        self.refill(now);
        let before = self.savings;
        *self = Allowance::new(levels, Duration::from_nanos(self.interval_ns), self.depth, now);
        if let (Some(before), Some(savings)) = (before, &mut self.savings) {
            let kept = [
                (before.meter.operations, &mut savings.meter.operations),
                (before.meter.bytes, &mut savings.meter.bytes),
            ];
            for (before, tokens) in kept {
                if let (Some(before), Some(tokens)) = (before, tokens) {
                    tokens.balance = before.balance.clamp(0, tokens.cap);
                    tokens.first = tokens.balance;
                }
            }
        }
    }

    /// Its levels.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// On which level a request would start now.
    ///
    /// # Errors
    /// [`Held`]: on none.
    pub fn plan(&mut self, now: Instant) -> Result<Level, Held> {
        self.refill(now);
        if self.burst.as_ref().is_some_and(|burst| !burst.has_some()) {
            let is_base = self.levels.burst == self.levels.base;
            let reason = if is_base { Reason::BaseLevel } else { Reason::BurstLevel };
            return Err(Held { reason, until: self.after(&self.burst) });
        }
        if self.base.as_ref().is_some_and(Meter::has_some) {
            return Ok(Level::Base);
        }
        match &self.savings {
            Some(savings) if !savings.meter.has_some() => {
                // Credits come from what is left over of the base level: that has something before.
                Err(Held { reason: Reason::BaseLevel, until: self.after(&self.base) })
            }
            _ => Ok(Level::Burst),
        }
    }

    /// Whether a request would be within the base level.
    pub fn has_base(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.base.as_ref().is_some_and(Meter::has_some)
    }

    /// Whether a request that its agent has marked as base is within what was promised. An agent counts in intervals of
    /// its own, so an interval's worth is lent.
    pub fn covers_mark(&mut self, now: Instant) -> bool {
        self.refill(now);
        let lends = |tokens: &Tokens| tokens.balance > -tokens.per_interval.saturating_mul(self.depth as i64);
        self.base.as_ref().is_some_and(|base| base.all().all(lends))
    }

    /// Whether a request would be within the burst level.
    pub fn has_burst(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.burst.as_ref().is_none_or(Meter::has_some)
    }

    /// A request of `bytes` is started on that level.
    pub fn draw(&mut self, bytes: u64, level: Level) {
        self.draw_amount(Amount::of(bytes), level);
    }

    /// A request is started whose burst its agent has seen to: only what was promised is counted.
    pub fn draw_marked(&mut self, bytes: u64) {
        if let Some(meter) = &mut self.base {
            meter.draw(Amount::of(bytes));
        }
    }

    pub(super) fn draw_amount(&mut self, amount: Amount, level: Level) {
        match (level, &mut self.base, &mut self.savings) {
            (Level::Base, Some(base), _) => base.draw(amount),
            (Level::Burst, _, Some(savings)) => savings.meter.draw(amount),
            _ => {}
        }
        if let Some(meter) = &mut self.burst {
            meter.draw(amount);
        }
    }

    /// What was drawn on that level has not been used.
    pub(super) fn give_back(&mut self, amount: Amount, level: Level) {
        let beyond = match (level, &mut self.base, &mut self.savings) {
            (Level::Base, Some(base), _) => base.give_back(amount),
            (Level::Burst, _, Some(savings)) => {
                savings.meter.give_back(amount);
                Amount::default()
            }
            _ => Amount::default(),
        };
        if let Some(savings) = &mut self.savings {
            savings.save(beyond);
        }
        if let Some(meter) = &mut self.burst {
            meter.give_back(amount);
        }
    }

    /// What may be started on that level without a debt.
    pub(super) fn balance(&self, level: Level) -> Amount {
        let none = Meter::default();
        let own = match (level, &self.base, &self.savings) {
            (Level::Base, Some(base), _) => base,
            (Level::Burst, _, Some(savings)) => &savings.meter,
            _ => &none,
        };
        let (own, burst) = (own.balance(), self.burst.as_ref().unwrap_or(&none).balance());
        Amount { operations: own.operations.min(burst.operations), bytes: own.bytes.min(burst.bytes) }
    }

    /// What may be started on any level without a debt.
    pub(super) fn balance_of_all(&self) -> Amount {
        let none = Meter::default();
        let burst = self.burst.as_ref().unwrap_or(&none).balance();
        let (Some(base), Some(savings)) = (&self.base, &self.savings) else { return burst };
        let own = base.balance().plus(savings.meter.balance());
        Amount { operations: own.operations.min(burst.operations), bytes: own.bytes.min(burst.bytes) }
    }

    /// Operations and bytes that are saved.
    pub fn saved(&self) -> (u64, u64) {
        let of = |tokens: Option<Tokens>, part: i64| tokens.map_or(0, |tokens| (tokens.balance.max(0) / part) as u64);
        self.savings
            .as_ref()
            .map_or((0, 0), |savings| (of(savings.meter.operations, OPERATION), of(savings.meter.bytes, UNIT)))
    }

    /// Whether the volume got no more than its levels give: see the module above.
    ///
    /// # Errors
    /// One sentence for what does not hold.
    pub fn audit(&self) -> Result<(), String> {
        let intervals = self.interval - self.since;
        self.burst.iter().try_for_each(|burst| burst.audit("burst level", intervals, 0))?;
        self.base.iter().try_for_each(|base| base.audit("base level", intervals, self.depth as i64))?;
        let (Some(base), Some(savings)) = (&self.base, &self.savings) else { return Ok(()) };
        let dimensions = [(&base.operations, &savings.meter.operations), (&base.bytes, &savings.meter.bytes)];
        for (base, saved) in dimensions.into_iter().filter_map(|(base, saved)| base.as_ref().zip(saved.as_ref())) {
            let given = i128::from(base.first) + i128::from(base.per_interval) * i128::from(intervals);
            // What a debt has drawn was there to be left over, before.
            let debt = base.largest.saturating_add(base.per_interval.saturating_mul(self.depth as i64));
            let left_over = (given - base.drawn + i128::from(debt)).max(0) * i128::from(savings.percent) / 100;
            let had = (i128::from(saved.balance) + saved.drawn).max(saved.drawn - i128::from(saved.largest));
            if had > left_over + i128::from(saved.first) {
                return Err(format!("{had} credits were had, and {left_over} could be saved"));
            }
        }
        Ok(())
    }

    pub(super) fn interval_at(&self, now: Instant) -> u64 {
        now.0 / self.interval_ns
    }

    /// When the next interval begins.
    pub(super) fn next_interval(&self) -> Instant {
        Instant((self.interval + 1).saturating_mul(self.interval_ns))
    }

    fn after(&self, meter: &Option<Meter>) -> Instant {
        let missing = meter.as_ref().map_or(1, Meter::intervals_missing).max(1);
        Instant(self.interval.saturating_add(missing).saturating_mul(self.interval_ns))
    }

    pub(super) fn refill(&mut self, now: Instant) {
        let interval = now.0 / self.interval_ns;
        if interval > self.interval {
            let passed = interval - self.interval;
            self.interval = interval;
            let beyond = self.base.as_mut().map_or(Amount::default(), |base| base.refill(passed));
            if let Some(savings) = &mut self.savings {
                savings.save(beyond);
            }
            if let Some(burst) = &mut self.burst {
                burst.refill(passed);
            }
        }
    }
}
