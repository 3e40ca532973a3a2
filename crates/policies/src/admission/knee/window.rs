//! What is counted between two looks: who was done, and how long it took.

use base::Instant;

use crate::admission::cost::Load;
use crate::admission::tally::Tally;

/// Steady requests that a window needs to be judged by them.
pub(super) const STEADY_MIN: u32 = 8;

/// What is counted since the last look.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) begun: Instant,
    /// What steady segments had done, and hot ones.
    pub(super) steady: Done,
    pub(super) hot: Done,
    pub(super) binds: bool,
    /// Refills of the buckets, and how many of them found nothing below.
    pub(super) refills: u32,
    pub(super) idle: u32,
}

/// What was done, and how long it took.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) load: Load,
    pub(super) tally: Tally,
    pub(super) requests: u64,
    /// The time of all of them below.
    pub(super) took_ns: u64,
}

impl Window {
    pub(super) fn new(begun: Instant) -> Window {
        let none = Done { load: Load::default(), tally: Tally::NONE, requests: 0, took_ns: 0 };
        Window { begun, steady: none.clone(), hot: none, binds: false, refills: 0, idle: 0 }
    }

    /// All requests.
    pub(super) fn requests(&self) -> u64 {
        self.steady.requests + self.hot.requests
    }

    /// The time of all of them below, which is how many there were at a time.
    pub(super) fn took_ns(&self) -> u64 {
        self.steady.took_ns + self.hot.took_ns
    }

    /// All that was done for clients.
    pub(super) fn done(&self) -> Load {
        self.steady.load.plus(&self.hot.load)
    }

    /// Whether the limit is certainly too low: tokens are what is waited for, and the store below was nearly always idle when
    /// they were issued. Whoever met somebody there met those who got tokens at the same refill, which is no knee.
    ///
    /// It is looked at where nobody is hot, or everybody is: beside hot segments a knee may be far below what keeps the store
    /// busy.
    pub(super) fn is_far_below(&self) -> bool {
        let is_of_one_kind = self.steady.requests == 0 || self.hot.requests == 0;
        self.binds && is_of_one_kind && self.idle * 4 >= self.refills * 3
    }

    /// How long it took.
    pub(super) fn tally(&self) -> Tally {
        let mut all = self.steady.tally.clone();
        all.merge(&self.hot.tally);
        all
    }

    /// The stretch, in percent; none where too few requests could be compared.
    pub(super) fn stretch_percent(&self) -> Option<u64> {
        if self.steady.tally.count >= STEADY_MIN {
            return Some(self.steady.tally.stretch(95));
        }
        let all = self.tally();
        (u64::from(all.count) * 2 >= self.requests().max(1)).then(|| all.stretch(75))
    }
}
