//! Arrivals, and grants to those in line: what is spent of a window's allocations while it lasts (Algorithm 1, lines 14 to 25).

use base::Instant;

use super::super::account::{Place, fits};
use super::super::cost::Cost;
use super::super::profile::{Frontend, Operation};
use super::super::settings::Scheduling;
use super::super::tenant::Waiting;
use super::{Scheduler, VolumeNumber};

/// What a turn among tenants that wait gives one, in parts of its base.
const TURNS: f64 = 16.0;
/// The least that a turn gives, as a share of a window: nobody is passed over for long.
const TURN_MIN: f64 = 0.001;

/// What is said to an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It may start, within its tenant's base or beyond.
    Start {
        /// Within the base.
        is_base: bool,
    },
    /// It is in line: [`Scheduler::next_grant`] hands its ticket out.
    Wait,
}

/// A request that was in line and may start.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Grant<T> {
    /// What it was put in line with.
    pub ticket: T,
    /// Whether it is within its tenant's base.
    pub is_base: bool,
    /// How long it waited.
    pub waited_ns: u64,
    /// Processor time that it takes, by the profile: whoever hands grants out lets others run after some.
    pub processor_ns: f64,
}

impl<T> Scheduler<T> {
    /// What a request costs, as requests are priced.
    #[inline]
    pub fn cost(&self, frontend: Frontend, operation: Operation, bytes: u64) -> Cost {
        self.priced(self.settings.profile.cost(frontend, operation, bytes))
    }

    /// A request of a volume arrives: it starts, or `ticket` is put in line.
    #[inline]
    pub fn submit(&mut self, now: Instant, volume: VolumeNumber, cost: Cost, ticket: impl FnOnce() -> T) -> Verdict {
        self.profiled_ns += cost.0[0];
        // A bound besides processor time holds for one tenant, too.
        let is_alone = self.known < 2 && !self.limited[1..].contains(&true);
        if self.settings.scheduling == Scheduling::Off || is_alone || cost.is_zero() {
            self.account(volume.tenant).started += 1;
            return Verdict::Start { is_base: false };
        }
        self.roll(now);
        self.scan(volume.tenant);
        let account = &self.accounts[volume.tenant as usize];
        let (waits, is_blocked) = (account.waiting > 0, account.place == Place::Blocked);
        let is_paced =
            self.settings.scheduling == Scheduling::Bios && self.scanned.len() > 1 && !account.stays_within(&cost);
        let queues_for_budget = self.settings.scheduling == Scheduling::Wild && self.waiting > 0;
        if !waits
            && !is_paced
            && !queues_for_budget
            && let Some(is_base) = self.start(volume.tenant, &cost)
        {
            return Verdict::Start { is_base };
        }
        let can_pay = is_paced && self.account(volume.tenant).can_pay(&cost);
        let is_throttled = is_blocked || queues_for_budget || !(waits || can_pay);
        let tenant = self.tenant(volume.tenant);
        tenant.throttled += u64::from(is_throttled);
        tenant.push(volume.queue, Waiting { arrived: now, cost, ticket: ticket() });
        self.waiting += 1;
        let account = self.account(volume.tenant);
        account.on_wait(&cost);
        if account.place == Place::Nowhere {
            let place = if is_throttled { Place::Blocked } else { Place::Ready };
            self.enter(volume.tenant, place);
        }
        Verdict::Wait
    }

    /// The next of those in line that may start now.
    pub fn next_grant(&mut self, now: Instant) -> Option<Grant<T>> {
        self.roll(now);
        while let Some(number) = self.ready.front().copied() {
            if self.account(number).turn <= 0.0 {
                let turn = self.turn_of(number);
                let account = self.account(number);
                account.turn += turn;
                if account.turn <= 0.0 {
                    self.pass_turn();
                    continue;
                }
            }
            let cost = self.account(number).next;
            let Some(is_base) = self.start(number, &cost) else {
                if self.settings.scheduling == Scheduling::Wild {
                    // The budget is gone, for everybody; the next window goes on here.
                    return None;
                }
                self.ready.pop_front();
                self.account(number).turn = 0.0;
                self.enter(number, Place::Blocked);
                continue;
            };
            let share = cost.share_of(&self.total);
            let tenant = self.tenant(number);
            let Waiting { arrived, cost, ticket } = tenant.pop()?;
            let waited_ns = now.nanos_since(arrived);
            tenant.waited_ns += waited_ns;
            tenant.waited_max_ns = tenant.waited_max_ns.max(waited_ns);
            let next = tenant.first().map(|first| first.cost);
            self.waiting -= 1;
            let account = self.account(number);
            account.on_leave(next);
            account.turn -= share;
            if next.is_none() {
                (account.place, account.turn) = (Place::Nowhere, 0.0);
                self.ready.pop_front();
            } else if account.turn <= 0.0 {
                self.pass_turn();
            }
            return Some(Grant { ticket, is_base, waited_ns, processor_ns: cost.0[0] });
        }
        None
    }

    /// When to call [`Scheduler::next_grant`] next: at once, at the next window, or not at all.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        let next = Instant((self.window + 1) * self.window_ns);
        match (self.waiting, self.ready.is_empty()) {
            (0, _) => None,
            (_, false) if self.settings.scheduling != Scheduling::Wild || self.may_start_first() => Some(now),
            _ => Some(next),
        }
    }

    /// A tenant is looked at from here on.
    #[inline]
    fn scan(&mut self, number: u32) {
        if !self.account(number).is_scanned {
            self.begin_scanning(number);
        }
    }

    /// What a turn among those that wait gives a tenant.
    fn turn_of(&mut self, number: u32) -> f64 {
        let total = self.total;
        match self.settings.scheduling {
            // The quantum of weight x window.
            Scheduling::Wild => self.account(number).base.share_of(&total).max(TURN_MIN),
            _ => (self.account(number).base.share_of(&total) / TURNS).max(TURN_MIN),
        }
    }

    pub(super) fn enter(&mut self, number: u32, place: Place) {
        self.account(number).place = place;
        match place {
            Place::Ready => self.ready.push_back(number),
            Place::Blocked if self.settings.scheduling == Scheduling::Wild => {
                self.account(number).place = Place::Ready;
                self.ready.push_back(number);
            }
            Place::Blocked => self.blocked.push_back(number),
            Place::Nowhere => {}
        }
    }

    /// Whose turn it was is the last of those that may be asked.
    #[inline]
    fn pass_turn(&mut self) {
        if let Some(number) = self.ready.pop_front() {
            self.ready.push_back(number);
        }
    }

    /// Whether the budget of WildCBS has something for whose turn it is.
    fn may_start_first(&self) -> bool {
        let first = self.ready.front().map(|number| &self.accounts[*number as usize].next);
        first.is_some_and(|first| fits(&self.budget, first, &self.total))
    }

    /// Takes what a request costs, from whoever has it (Algorithm 1, lines 14 to 25). Says whether it is within the base that
    /// its tenant was promised.
    #[inline]
    fn start(&mut self, number: u32, cost: &Cost) -> Option<bool> {
        match self.settings.scheduling {
            Scheduling::Off => {}
            Scheduling::Wild => {
                if !fits(&self.budget, cost, &self.total) {
                    return None;
                }
                self.budget -= *cost;
            }
            Scheduling::Base | Scheduling::Bios => {
                let account = self.account(number);
                match account.can_pay(cost) {
                    true => account.balance -= *cost,
                    false => self.recover(number, cost)?,
                }
            }
        }
        let account = self.account(number);
        let is_base = account.promised.is_some() && account.stays_within(cost);
        account.on_start(cost);
        Some(is_base)
    }

    /// Who stays within his base gets it back: from what nobody has, from one of those that were allocated more than their
    /// base, or from the reserve.
    #[cold]
    fn recover(&mut self, number: u32, cost: &Cost) -> Option<()> {
        let may = self.settings.scheduling == Scheduling::Bios && self.settings.recovers;
        if !may || !self.account(number).stays_within(cost) {
            return None;
        }
        if self.spare.covers(cost) {
            self.spare -= *cost;
            return Some(());
        }
        let donor = self.draw_donor(number);
        let given = donor.map_or(Cost::ZERO, |donor| self.account(donor).can_give(cost));
        // What the donor has not got the reserve adds: what either has left is of no use where both together would do.
        let rest = *cost - given;
        if !self.reserve.covers(&rest) {
            return None;
        }
        if let Some(donor) = donor {
            self.account(donor).balance -= given;
        }
        if rest.is_zero() {
            self.tenant(number).reclaimed += 1;
            return Some(());
        }
        self.reserve -= rest;
        self.tenant(number).from_reserve += 1;
        Some(())
    }

    /// The richer of two that burst, drawn at random: sorting them for each request would take too long (§5.2).
    fn draw_donor(&mut self, number: u32) -> Option<u32> {
        if self.burst.is_empty() {
            return None;
        }
        let count = self.burst.len() as u64;
        let (one, other) = (self.prng.below(count) as usize, self.prng.below(count) as usize);
        let drawn = [self.burst[one], self.burst[other]].into_iter().filter(|donor| *donor != number);
        let total = self.total;
        drawn.max_by(|one, other| {
            let wealth = |donor: &u32| self.accounts[*donor as usize].balance.share_of(&total);
            wealth(one).total_cmp(&wealth(other))
        })
    }
}
