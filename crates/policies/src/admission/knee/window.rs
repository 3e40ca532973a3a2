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
    pub(super) requests: u64,
    /// The time of all of them, which is how many there were at a time.
    pub(super) total_ns: u64,
    /// What steady segments had done, and hot ones.
    pub(super) steady: Done,
    pub(super) hot: Done,
    pub(super) binds: bool,
    /// Refills of the buckets, and how many of them found next to nothing below.
    pub(super) refills: u32,
    pub(super) drained: u32,
}

/// What was done, and how long it took.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) load: Load,
    pub(super) tally: Tally,
}

impl Window {
    pub(super) fn new(begun: Instant) -> Window {
        let none = Done { load: Load::default(), tally: Tally::NONE };
        Window {
            begun,
            requests: 0,
            total_ns: 0,
            steady: none.clone(),
            hot: none,
            binds: false,
            refills: 0,
            drained: 0,
        }
    }

    /// All that was done for clients.
    pub(super) fn done(&self) -> Load {
        self.steady.load.plus(&self.hot.load)
    }

    /// Whether who met somebody below met those who got tokens at the same refill: nobody is hot, tokens are what was waited
    /// for, and nearly always the store below was done with all of them when the next ones were issued.
    pub(super) fn is_bunched(&self) -> bool {
        self.binds && self.hot.load.bytes() < 1.0 && self.drained * 4 >= self.refills * 3
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
        (u64::from(all.count) * 2 >= self.requests.max(1)).then(|| all.stretch(75))
    }
}
