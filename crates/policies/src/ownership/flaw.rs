//! What may be wrong on purpose, so that the tests can see that they would notice: those of this module, and worlds with
//! seeded bugs (`base::seeded`). Elsewhere nothing is.

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
    /// The seeded bug that it is.
    #[cfg(not(test))]
    pub(super) fn seeded(self) -> &'static str {
        match self {
            Flaw::ReassignsSilent => "silent-assignee-replaced",
            Flaw::TwoRecoverers => "two-recoverers",
            Flaw::ForgetsReleases => "release-forgotten-at-once",
            Flaw::AttachesBeside => "attached-beside",
            Flaw::DropsBeside => "dropped-beside",
        }
    }
}
