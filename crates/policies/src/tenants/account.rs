//! What a tenant may spend on one loop, and what it spent: its account.
//!
//! Every window goes through the accounts of all that are looked at, and so they hold nothing else: they lie side by side, and of
//! a thousand of them a processor keeps everything near it. Lines of requests and what is only told are the
//! [tenant's](super::tenant); of those that wait an account has the sum, and the cost of the first.

use super::cost::{Cost, DIMENSIONS};

/// Where a tenant is among those with requests that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// It has none.
    Nowhere,
    /// It may be asked.
    Ready,
    /// It has to wait for the next window.
    Blocked,
}

/// What of its base a tenant may have left over in the next window, in parts of a window: who asks for just his base, with
/// requests a little bunched, is a request over it in one window and a request below it in the next.
const CARRIED: f64 = 0.125;

/// What is lost of a window's amounts while they are counted, at most: the last request that is paid for shall not wait for
/// the next window because of it.
const ROUNDING: f64 = 1e-9;

/// See the module.
pub(super) struct Account {
    /// What the tenant is called outside.
    pub(super) key: u64,
    /// Its part of the base on this loop, in a window, before all are scaled; none: an equal share of what nobody was promised.
    pub(super) promised: Option<Cost>,
    /// Its burst in a window, before it is priced; none: no bound.
    pub(super) bound: Option<Cost>,
    /// What it may spend of its base in a window, and the most that it may be allocated.
    pub(super) base: Cost,
    pub(super) burst: Cost,
    /// What it was allocated for this window, and what is left of that; below zero: debt.
    pub(super) alloc: Cost,
    pub(super) balance: Cost,
    /// What is left of its base in this window, with what it had left over, whatever it was allocated; below zero: debt.
    pub(super) covered: Cost,
    /// What it spent in this window.
    pub(super) usage: Cost,
    /// What waits: all together, and the request whose turn it is. Zero, where nothing does.
    pub(super) queued: Cost,
    pub(super) next: Cost,
    pub(super) waiting: usize,
    /// While a window is allocated: what its share of all that is unused follows.
    pub(super) wanted: Cost,
    /// Windows without a request.
    pub(super) idle: u64,
    pub(super) is_scanned: bool,
    pub(super) place: Place,
    /// What is left of its turn among tenants, as a share of a window.
    pub(super) turn: f64,
    pub(super) started: u64,
    /// Windows in which it used more than its base, and those of them that were told already.
    pub(super) burst_windows: u64,
    pub(super) told_bursts: u64,
}

impl Account {
    pub(super) fn new(key: u64) -> Self {
        Account {
            key,
            promised: None,
            bound: None,
            base: Cost::ZERO,
            burst: Cost::UNLIMITED,
            alloc: Cost::ZERO,
            balance: Cost::ZERO,
            covered: Cost::ZERO,
            usage: Cost::ZERO,
            queued: Cost::ZERO,
            next: Cost::ZERO,
            waiting: 0,
            wanted: Cost::ZERO,
            idle: 0,
            is_scanned: false,
            place: Place::Nowhere,
            turn: 0.0,
            started: 0,
            burst_windows: 0,
            told_bursts: 0,
        }
    }

    /// Ends a window, before one in which it has these levels: what it has there for certain, and what it wants beyond (Algorithm
    /// 1, lines 4 to 8, and what is above the bar in line 10). `kept`: the part of its last allocation that it keeps below its base.
    ///
    /// As printed line 7 lowers what a tenant has that steadily uses a part of its base, below what it uses, until it waits;
    /// and what covers it meanwhile is the reserve, which is for those who come back. So it keeps what it used.
    #[inline]
    pub(super) fn look_back(&mut self, base: Cost, burst: Cost, kept: f64, weight_throttle: f64) {
        let (used, before, next, left) = (&self.usage.0, &self.base.0, &self.next.0, &self.balance.0);
        // Short of what it used more of than its base, or of what its next request waits for more of.
        let is_short: [bool; DIMENSIONS] = std::array::from_fn(|d| (used[d] > before[d]) | (next[d] > left[d]));
        let whole = base.min(burst);
        let lowered = (self.alloc * kept).max(self.usage).min(whole);
        let throttled = self.queued * weight_throttle;
        self.wanted = self.usage + Cost(std::array::from_fn(|d| if is_short[d] { throttled.0[d] } else { 0.0 }));
        self.alloc = Cost(std::array::from_fn(|d| if is_short[d] { whole.0[d] } else { lowered.0[d] }));
        // What was left over from the window before is no burst.
        self.burst_windows += u64::from(!(base * (1.0 + CARRIED)).covers(&self.usage));
        (self.base, self.burst) = (base, burst);
    }

    /// Begins a window with what it was allocated: `windows` have passed, of which debts are paid out of the base. Who waits
    /// keeps what was less than his next request: otherwise each that bursts would lose half a request in every window.
    #[inline]
    pub(super) fn begin_window(&mut self, alloc: Cost, windows: f64) {
        let income = self.base * (windows - 1.0);
        let debt = (self.balance.min(Cost::ZERO) + income).min(Cost::ZERO);
        let kept = self.balance.max(Cost::ZERO).min(self.next);
        self.alloc = alloc;
        self.balance = alloc + debt + kept;
        self.covered = (self.covered + self.base * windows).min(self.base * (1.0 + CARRIED));
        self.usage = Cost::ZERO;
    }

    /// Counts windows without a request, where so many have passed: in those that nobody saw, nobody was there.
    #[inline]
    pub(super) fn count_idle(&mut self, passed: u64) {
        self.idle = match (self.waiting, self.usage.is_zero()) {
            (0, true) => self.idle + passed,
            (0, false) => passed - 1,
            _ => 0,
        };
    }

    /// Whether its own balance pays.
    #[inline]
    pub(super) fn can_pay(&self, cost: &Cost) -> bool {
        fits(&self.balance, cost, &self.alloc)
    }

    /// Whether it stays within its base with that.
    #[inline]
    pub(super) fn stays_within(&self, cost: &Cost) -> bool {
        fits(&self.covered, cost, &self.base)
    }

    /// What it can give of a cost, and keep what it has not used of its own base.
    #[inline]
    pub(super) fn can_give(&self, cost: &Cost) -> Cost {
        let own = (self.base - self.usage).max(Cost::ZERO);
        cost.min((self.balance - own).max(Cost::ZERO))
    }

    /// A request was started.
    #[inline]
    pub(super) fn on_start(&mut self, cost: &Cost) {
        self.usage += *cost;
        self.covered -= *cost;
        self.started += 1;
    }

    /// A request is put in line.
    #[inline]
    pub(super) fn on_wait(&mut self, cost: &Cost) {
        if self.waiting == 0 {
            self.next = *cost;
        }
        self.waiting += 1;
        self.queued += *cost;
    }

    /// The request whose turn it was has left the line, where it is another one's now.
    #[inline]
    pub(super) fn on_leave(&mut self, next: Option<Cost>) {
        self.waiting -= 1;
        match next {
            Some(next) => (self.queued, self.next) = (self.queued - self.next, next),
            None => (self.queued, self.next) = (Cost::ZERO, Cost::ZERO),
        }
    }
}

/// Whether a balance pays a cost: there is as much, or what is wanted is more than there ever is (`full`), and something
/// is there: the debt is paid by later windows.
#[inline]
pub(super) fn fits(balance: &Cost, cost: &Cost, full: &Cost) -> bool {
    (0..DIMENSIONS).all(|d| {
        let (left, wanted) = (balance.0[d], cost.0[d]);
        wanted <= left + full.0[d] * ROUNDING || wanted == 0.0 || (wanted > full.0[d] && left > 0.0)
    })
}
