//! One tenant on one loop: its account, and its requests that wait.

use std::collections::VecDeque;

use base::Instant;

use super::cost::{Cost, DIMENSIONS};
use super::settings::Promise;

/// A request that waits.
pub(super) struct Waiting<T> {
    pub(super) arrived: Instant,
    pub(super) cost: Cost,
    pub(super) ticket: T,
}

/// The requests of one volume.
pub(super) struct Queue<T> {
    /// What the volume is called outside.
    pub(super) key: u64,
    /// Requests that it may start in one turn among the volumes of its tenant.
    pub(super) weight: u32,
    /// How many of those are left of this turn.
    pub(super) turn: u32,
    pub(super) waiting: VecDeque<Waiting<T>>,
}

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
pub(super) struct Tenant<T> {
    /// What the tenant is called outside.
    pub(super) key: u64,
    pub(super) promise: Promise,
    /// Its part of that on this loop.
    pub(super) part: f64,
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
    /// What waits.
    pub(super) queued: Cost,
    pub(super) waiting: usize,
    /// In which dimensions it used more than its base in the last window, or something waited for more of them.
    pub(super) is_short: [bool; DIMENSIONS],
    pub(super) idle: u64,
    pub(super) is_scanned: bool,
    /// It was allocated more than its base.
    pub(super) bursts: bool,
    pub(super) place: Place,
    /// What is left of its turn among tenants, as a share of a window.
    pub(super) turn: f64,
    pub(super) queues: Vec<Queue<T>>,
    /// Queues with something in them.
    pub(super) ring: VecDeque<u32>,
    pub(super) started: u64,
    pub(super) throttled: u64,
    pub(super) reclaimed: u64,
    pub(super) from_reserve: u64,
    /// How long its requests waited, in nanoseconds: all together, and the longest.
    pub(super) waited_ns: u64,
    pub(super) waited_max_ns: u64,
    pub(super) burst_windows: u64,
    /// Those of them that were told already.
    pub(super) told_bursts: u64,
}

impl<T> Tenant<T> {
    pub(super) fn new(key: u64, promise: Promise) -> Self {
        Tenant {
            key,
            promise,
            part: 1.0,
            base: Cost::ZERO,
            burst: Cost::UNLIMITED,
            alloc: Cost::ZERO,
            balance: Cost::ZERO,
            covered: Cost::ZERO,
            usage: Cost::ZERO,
            queued: Cost::ZERO,
            waiting: 0,
            is_short: [false; DIMENSIONS],
            idle: 0,
            is_scanned: false,
            bursts: false,
            place: Place::Nowhere,
            turn: 0.0,
            queues: Vec::new(),
            ring: VecDeque::new(),
            started: 0,
            throttled: 0,
            reclaimed: 0,
            from_reserve: 0,
            waited_ns: 0,
            waited_max_ns: 0,
            burst_windows: 0,
            told_bursts: 0,
        }
    }

    /// What it was short of in the window that ends (line 4).
    #[inline]
    pub(super) fn look_back(&mut self) {
        let next = self.first().map_or(Cost::ZERO, |first| first.cost);
        let (used, base, left) = (&self.usage.0, &self.base.0, &self.balance.0);
        self.is_short = std::array::from_fn(|d| used[d] > base[d] || next.0[d] > left[d]);
    }

    /// Whether it used more than this base in the window that ends, and not only what was left over from the one before.
    #[inline]
    pub(super) fn has_burst(&self, base: &Cost) -> bool {
        !(*base * (1.0 + CARRIED)).covers(&self.usage)
    }

    /// What it used in the window that ends, and where it was short of something, what waits: so many times (line 9).
    #[inline]
    pub(super) fn wanted(&self, weight_throttle: f64) -> Cost {
        let (used, queued) = (&self.usage.0, &self.queued.0);
        Cost(std::array::from_fn(|d| used[d] + if self.is_short[d] { queued[d] * weight_throttle } else { 0.0 }))
    }

    /// Begins a window with what it was allocated: `windows` have passed, of which debts are paid out of the base. Who waits
    /// keeps what was less than his next request: otherwise each that bursts would lose half a request in every window.
    #[inline]
    pub(super) fn begin_window(&mut self, alloc: Cost, windows: f64) {
        let debt = self.balance.zip(self.base, |left, base| (left.min(0.0) + base * (windows - 1.0)).min(0.0));
        let kept = match self.first() {
            Some(first) => self.balance.zip(first.cost, |left, cost| left.clamp(0.0, cost)),
            None => Cost::ZERO,
        };
        self.alloc = alloc;
        self.balance = alloc + debt + kept;
        let carried = 1.0 + CARRIED;
        self.covered = self.covered.zip(self.base, |left, base| (left + base * windows).min(base * carried));
        self.usage = Cost::ZERO;
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
        let (left, base, used) = (&self.balance.0, &self.base.0, &self.usage.0);
        let own = |d: usize| (base[d] - used[d]).max(0.0);
        Cost(std::array::from_fn(|d| cost.0[d].min((left[d] - own(d)).max(0.0))))
    }

    #[inline]
    pub(super) fn on_start(&mut self, cost: &Cost) {
        self.usage += *cost;
        self.covered -= *cost;
        self.started += 1;
    }

    /// Puts a request in line.
    pub(super) fn push(&mut self, queue: u32, waiting: Waiting<T>) {
        self.queued += waiting.cost;
        self.waiting += 1;
        let line = &mut self.queues[queue as usize];
        if line.waiting.is_empty() {
            line.turn = line.weight;
            self.ring.push_back(queue);
        }
        line.waiting.push_back(waiting);
    }

    /// The request whose turn it is.
    pub(super) fn first(&self) -> Option<&Waiting<T>> {
        self.queues[*self.ring.front()? as usize].waiting.front()
    }

    /// Takes that.
    pub(super) fn pop(&mut self) -> Option<Waiting<T>> {
        let queue = *self.ring.front()?;
        let line = &mut self.queues[queue as usize];
        let first = line.waiting.pop_front()?;
        line.turn = line.turn.saturating_sub(1);
        if line.waiting.is_empty() || line.turn == 0 {
            self.ring.pop_front();
            if !line.waiting.is_empty() {
                line.turn = line.weight;
                self.ring.push_back(queue);
            }
        }
        self.waiting -= 1;
        self.queued = if self.waiting == 0 { Cost::ZERO } else { self.queued - first.cost };
        Some(first)
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
