//! When a write passed the points behind its submission: what becomes its stages (`base::passage`).
//!
//! The journal notes when the append went out and landed, the segment when the write was applied; who waits for the
//! write gets all of it with the answer. An append shares its points with all of its records.

use base::{Instant, Passage, Stage};

/// The points of one write, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Way {
    /// It was submitted, to the journal or to a data file.
    pub submitted: Instant,
    /// From when to when the journal had no file for its appends, the last time before this one went out.
    pub starved: (Instant, Instant),
    /// Its append went out for the first time.
    pub tried: Instant,
    /// The append that carried it went out.
    pub launched: Instant,
    /// That landed.
    pub landed: Instant,
    /// All appends before it had landed, too.
    pub confirmed: Instant,
    /// It took effect, behind all writes of its segment before it.
    pub applied: Instant,
}

impl Way {
    /// A write whose data went out at once, and is durable at `landed`.
    pub fn direct(submitted: Instant, launched: Instant, landed: Instant) -> Way {
        Way { submitted, tried: submitted, launched, landed, confirmed: landed, ..Way::default() }
    }

    /// Adds the stages between the points.
    pub fn add_to(&self, passage: &mut Passage) {
        let (from, to) = self.starved;
        let starved_ns = to.min(self.tried).nanos_since(from.max(self.submitted));
        passage.add(Stage::JournalFile, starved_ns);
        passage.add(Stage::Gather, self.tried.nanos_since(self.submitted).saturating_sub(starved_ns));
        passage.add(Stage::Retry, self.launched.nanos_since(self.tried));
        passage.add(Stage::Append, self.landed.nanos_since(self.launched));
        passage.add(Stage::JournalOrder, self.confirmed.nanos_since(self.landed));
        passage.add(Stage::Apply, self.applied.nanos_since(self.confirmed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_become_stages() {
        let way = Way {
            submitted: Instant(100),
            starved: (Instant(50), Instant(130)),
            tried: Instant(140),
            launched: Instant(145),
            landed: Instant(200),
            confirmed: Instant(220),
            applied: Instant(221),
        };
        let mut passage = Passage::default();
        way.add_to(&mut passage);
        let stages =
            [Stage::JournalFile, Stage::Gather, Stage::Retry, Stage::Append, Stage::JournalOrder, Stage::Apply];
        assert_eq!(stages.map(|stage| passage.of(stage)), [30, 10, 5, 55, 20, 1]);
        assert_eq!(passage.total_ns(), 121);
        // A journal that was starved before this write came is none of its business.
        let later = Way { submitted: Instant(135), ..way };
        let mut passage = Passage::default();
        later.add_to(&mut passage);
        assert_eq!((passage.of(Stage::JournalFile), passage.of(Stage::Gather)), (0, 5));
    }
}
