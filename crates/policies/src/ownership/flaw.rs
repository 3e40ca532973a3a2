//! What may be wrong on purpose, so that the tests can see that they would notice: those of this module, and worlds with
//! seeded bugs (`base::seeded`). Elsewhere nothing is.

#[cfg(not(test))]
use base::seeded::is_on;

/// A rule that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    /// 40: an assignee that does not answer loses the segment.
    ReassignsSilent,
    /// 41: a recoverer that is slow is replaced though it is not fenced, and what either finds counts.
    TwoRecoverers,
    /// 42: who releases is told to forget that at once.
    ForgetsReleases,
    /// 47: an attach does not wait for segments on their way.
    AttachesBeside,
    /// 49: a volume is gone without those of its segments that are on their way.
    DropsBeside,
}

impl Flaw {
    /// Whether the seeded bug is on that it is, if it is one.
    #[cfg(not(test))]
    pub(super) fn is_seeded(self) -> bool {
        match self {
            Flaw::ReassignsSilent => is_on("silent-assignee-replaced"),
            Flaw::ForgetsReleases => is_on("release-forgotten-at-once"),
            Flaw::DropsBeside => is_on("dropped-beside"),
            Flaw::TwoRecoverers | Flaw::AttachesBeside => false,
        }
    }
}
