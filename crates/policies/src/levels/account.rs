//! The account of a volume, which the loops of an agent share, and what each of them takes from it.
//!
//! The account is exact, and behind a lock. So that a loop does not need that for each request, it takes a small batch
//! with one: an eighth of what it used lately. What is in a purse is of the present interval; what is left of it goes
//! back with the next look. A request that the purse does not pay for in full is the account's to decide: so only that
//! one is ever in debt, however many loops there are.
//!
//! **Several loops with a line.** Who waits on one loop is not to wait for ever because another loop looks first. While
//! more than one has a line, each draws in an interval no more than its share of what is there. Where there is less
//! than a request for each, they take turns. Nobody takes a batch then, and who arrives gets in line.

use std::time::Duration;

use base::Instant;
use base::levels::{Level, Levels};

use super::allowance::{Allowance, Amount, Held};
use crate::waits::Reason;

/// How often an account gets tokens.
pub const INTERVAL: Duration = Duration::from_millis(1);
/// How many intervals' worth it keeps at most: ten milliseconds of a level may start at once.
pub const DEPTH: u64 = 10;
/// What of its use in an interval a loop takes in advance.
const BATCH: i64 = 8;
/// A loop that has not drawn for so long, though it was its turn, has no line any more.
const TURN_MAX: Duration = Duration::from_millis(50);

/// What a loop has of a volume's account for its next requests.
#[derive(Clone, Copy, Debug)]
pub struct Purse {
    level: Level,
    left: Amount,
    /// The interval that it is of, by its number, and when that ends.
    interval: u64,
    ends: Instant,
    /// What was used in that interval, and in the one before.
    used: Amount,
    before: Amount,
}

impl Default for Purse {
    fn default() -> Self {
        Purse {
            level: Level::Open,
            left: Amount::default(),
            interval: u64::MAX,
            ends: Instant::ZERO,
            used: Amount::default(),
            before: Amount::default(),
        }
    }
}

impl Purse {
    /// Pays for a request, if it can in full: on which level.
    #[inline]
    pub fn pay(&mut self, now: Instant, bytes: u64) -> Option<Level> {
        let amount = Amount::of(bytes);
        if now >= self.ends || !self.left.covers(&amount) {
            return None;
        }
        self.left = self.left.minus(amount);
        self.used = self.used.plus(amount);
        Some(self.level)
    }

    fn begin(&mut self, interval: u64, ends: Instant) {
        if self.interval != interval {
            let follows = interval.checked_sub(1) == Some(self.interval);
            self.before = if follows { self.used } else { Amount::default() };
            (self.interval, self.ends, self.used) = (interval, ends, Amount::default());
        }
    }
}

/// What one loop may still draw for its line, in the interval with that number.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    interval: u64,
    left: Amount,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Account {
    allowance: Allowance,
    /// The loops with a line, as bits.
    in_line: u64,
    shares: Vec<Share>,
    /// What was there in the interval with that number when the first loop with a line looked.
    opening: Share,
    /// Who has drawn for a line last, and since when it is the turn of the one after it.
    last: usize,
    turn_since: Option<Instant>,
}

impl Account {
    /// The account of a volume with these levels, for so many loops.
    ///
    /// # Panics
    /// More than 64 loops.
    pub fn new(levels: Levels, loops: usize, now: Instant) -> Account {
        assert!(loops <= 64, "a bit for each loop");
        Account {
            allowance: Allowance::new(levels, INTERVAL, DEPTH, now),
            in_line: 0,
            shares: vec![Share::default(); loops],
            opening: Share::default(),
            last: 0,
            turn_since: None,
        }
    }

    /// The volume has other levels from here on.
    pub fn change(&mut self, levels: Levels, now: Instant) {
        if *self.allowance.levels() != levels {
            self.allowance.change(levels, now);
        }
    }

    /// Its levels.
    pub fn levels(&self) -> &Levels {
        self.allowance.levels()
    }

    /// Operations and bytes that are saved.
    pub fn saved(&self) -> (u64, u64) {
        self.allowance.saved()
    }

    /// See [`Allowance::audit`].
    ///
    /// # Errors
    /// One sentence for what does not hold.
    pub fn audit(&self) -> Result<(), String> {
        self.allowance.audit()
    }

    /// A request that arrives on a loop: whether it may start now, and on which level. `tenant` is what all volumes of
    /// its owner have together. The loop has a line from here on if it may not.
    ///
    /// # Errors
    /// [`Held`].
    pub fn arrive(
        &mut self,
        now: Instant,
        index: usize,
        bytes: u64,
        purse: &mut Purse,
        mut tenant: Option<&mut Allowance>,
    ) -> Result<Level, Held> {
        self.settle(now, purse, tenant.as_deref_mut());
        let planned = match self.in_line & !(1 << index) {
            0 => self.plan(now, tenant.as_deref_mut()),
            _ => Err(self.behind_others()),
        };
        let level = planned.inspect_err(|_| self.in_line |= 1 << index)?;
        let amount = Amount::of(bytes);
        self.draw(amount, level, tenant.as_deref_mut());
        purse.used = purse.used.plus(amount);
        // What it wants in this interval, as far as can be told.
        let wanted = if purse.before.covers(&purse.used) { purse.before } else { purse.used };
        let batch = wanted.part(BATCH);
        let is_there = tenant.as_ref().is_none_or(|tenant| tenant.balance(Level::Burst).covers(&batch));
        if batch.operations > 0 && is_there && self.allowance.balance(level).covers(&batch) {
            self.draw(batch, level, tenant);
            (purse.level, purse.left) = (level, batch);
        }
        Ok(level)
    }

    /// The first request of a loop's line: whether it may start now, and on which level. `is_last`: it is the only one.
    ///
    /// # Errors
    /// [`Held`].
    pub fn go_on(
        &mut self,
        now: Instant,
        index: usize,
        bytes: u64,
        is_last: bool,
        purse: &mut Purse,
        mut tenant: Option<&mut Allowance>,
    ) -> Result<Level, Held> {
        self.settle(now, purse, tenant.as_deref_mut());
        self.in_line |= 1 << index;
        let level = self.plan(now, tenant.as_deref_mut())?;
        let amount = Amount::of(bytes);
        if self.in_line.count_ones() > 1 {
            self.take_share(now, index, amount)?;
        }
        self.draw(amount, level, tenant);
        purse.used = purse.used.plus(amount);
        (self.last, self.turn_since) = (index, None);
        if is_last {
            self.in_line &= !(1 << index);
        }
        Ok(level)
    }

    /// A loop has no line of this volume any more, and no use for what it has taken.
    pub fn leave(&mut self, now: Instant, index: usize, mut purse: Purse, tenant: Option<&mut Allowance>) {
        self.settle(now, &mut purse, tenant);
        self.in_line &= !(1 << index);
    }

    /// Takes back what a purse has left, and begins the present interval.
    fn settle(&mut self, now: Instant, purse: &mut Purse, tenant: Option<&mut Allowance>) {
        self.allowance.refill(now);
        let left = std::mem::take(&mut purse.left);
        if left != Amount::default() {
            self.allowance.give_back(left, purse.level);
            if let Some(tenant) = tenant {
                tenant.give_back(left, Level::Burst);
            }
        }
        purse.begin(self.allowance.interval_at(now), self.allowance.next_interval());
    }

    fn plan(&mut self, now: Instant, tenant: Option<&mut Allowance>) -> Result<Level, Held> {
        let levels = self.allowance.levels();
        let level = match levels.base.is_none() && levels.burst.is_none() {
            true => Level::Open,
            false => self.allowance.plan(now)?,
        };
        if let Some(tenant) = tenant {
            tenant.plan(now).map_err(|held| Held { reason: Reason::TenantLevel, ..held })?;
        }
        Ok(level)
    }

    fn draw(&mut self, amount: Amount, level: Level, tenant: Option<&mut Allowance>) {
        self.allowance.draw_amount(amount, level);
        if let Some(tenant) = tenant {
            tenant.draw_amount(amount, Level::Burst);
        }
    }

    fn behind_others(&self) -> Held {
        let levels = self.allowance.levels();
        let reason = if levels.burst == levels.base { Reason::BaseLevel } else { Reason::BurstLevel };
        Held { reason, until: self.allowance.next_interval() }
    }

    /// Whether a loop may draw for its line, where others have one, too: see the module.
    fn take_share(&mut self, now: Instant, index: usize, amount: Amount) -> Result<(), Held> {
        let interval = self.allowance.interval_at(now);
        if self.opening.interval != interval {
            self.opening = Share { interval, left: self.allowance.balance_of_all() };
        }
        let share = self.shares[index];
        if share.interval != interval {
            let left = self.opening.left.part(i64::from(self.in_line.count_ones()));
            self.shares[index] = Share { interval, left };
        }
        let left = self.shares[index].left;
        let is_enough = left.covers(&amount) || (left.operations > 0 && left.bytes > 0 && self.is_turn_of(index, now));
        if !is_enough {
            return Err(self.behind_others());
        }
        self.shares[index].left = left.minus(amount);
        Ok(())
    }

    /// Whether it is a loop's turn to draw more than is there for it.
    fn is_turn_of(&mut self, index: usize, now: Instant) -> bool {
        loop {
            let after = (self.last + 1..64).chain(0..=self.last).find(|other| self.in_line & (1 << other) != 0);
            let Some(next) = after.filter(|next| *next != index) else { return true };
            let since = *self.turn_since.get_or_insert(now);
            if now - since < TURN_MAX {
                return false;
            }
            // Whoever it was is gone.
            self.in_line &= !(1 << next);
            self.turn_since = None;
        }
    }
}
