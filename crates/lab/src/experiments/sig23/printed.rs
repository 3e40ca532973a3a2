//! The numbers that "DiffForward" prints, each with its band.
//!
//! All bands are the ones that were *stated* for an honest reproduction of each figure before anything was measured, and are
//! not touched afterwards. Of two workloads and two ways to migrate the farthest from what is printed counts.

use super::super::Mechanism;
use super::super::row::{Better, Printed};

const STATED: Printed = Printed {
    what: "",
    number: "",
    source: "",
    band: [0.0, 0.0],
    reason: "stated",
    unit: "",
    better: Better::Neither,
    beyond: "",
    is_aside: false,
    needs: &[],
};

/// Traffic was made after these: they are calibration.
const FIG2A: Printed = Printed { source: "§2.2, figure 2a", is_aside: true, ..STATED };
pub(super) const FIG2A_COV: Printed = Printed {
    what: "CoV of servers, bins of 100 ms",
    number: "1.01",
    band: [0.9, 1.1],
    needs: &[Mechanism::Burst],
    ..FIG2A
};
pub(super) const FIG2A_TIMES: Printed = Printed {
    what: "most by least of servers, bins of 100 ms",
    number: "50.5",
    band: [30.0, 90.0],
    needs: &[Mechanism::Burst],
    ..FIG2A
};
pub(super) const FIG2A_LONG_COV: Printed =
    Printed { what: "CoV of servers, bins of 100 s", number: "0.38", band: [0.25, 0.45], ..FIG2A };
pub(super) const FIG2A_LONG_TIMES: Printed =
    Printed { what: "most by least of servers, bins of 100 s", number: "2.8", band: [2.0, 3.5], ..FIG2A };

const FIG13: Printed = Printed {
    source: "§5.2, figure 13",
    unit: "%",
    needs: &[Mechanism::BurstDetection, Mechanism::RoundRobin],
    ..STATED
};
pub(super) const FIG13_COV: Printed =
    Printed { what: "CoV against segmentation, TH of the text", number: "-66%", band: [-75.0, -55.0], ..FIG13 };
pub(super) const FIG13_TIMES: Printed = Printed {
    what: "most by least against segmentation, TH of the text",
    number: "over -82%",
    band: [-92.0, -70.0],
    ..FIG13
};
pub(super) const FIG13_PROTOTYPE: Printed = Printed {
    what: "CoV against segmentation, TH of the prototype",
    number: "none for this TH",
    band: [-50.0, -30.0],
    ..FIG13
};
pub(super) const FIG13_MIGRATION: Printed =
    Printed { what: "CoV against migration, TH of the text", number: "about -70%", band: [-85.0, -55.0], ..FIG13 };
pub(super) const FIG13_WORSE: Printed = Printed {
    what: "CoV of migration against segmentation",
    number: "no better",
    band: [0.0, f64::INFINITY],
    needs: &[],
    ..FIG13
};

const LATENCY: Printed = Printed { unit: "%", needs: &[Mechanism::BurstDetection, Mechanism::RoundRobin], ..STATED };
pub(super) const FIG14_AVERAGE: Printed = Printed {
    what: "average of writes against segmentation",
    number: "-47%",
    source: "§5.3, figure 14",
    band: [-90.0, -30.0],
    ..LATENCY
};
pub(super) const FIG14_P99: Printed = Printed {
    what: "P99 of writes against segmentation",
    number: "-69%",
    source: "§5.3, figure 14",
    band: [-90.0, -50.0],
    ..LATENCY
};
/// A gain at each load: that is what is stated, so any.
const FIG16: Printed =
    Printed { number: "a gain at each", source: "§5.4, figure 16", band: [-100.0, -1.0], ..LATENCY };
pub(super) const FIG16_AVERAGE: Printed =
    Printed { what: "average of writes against segmentation, load that gains least", ..FIG16 };
pub(super) const FIG16_P99: Printed =
    Printed { what: "P99 of writes against segmentation, load that gains least", ..FIG16 };

const FIG20A: Printed = Printed { source: "§5.5, figure 20a", needs: &[Mechanism::BurstDetection], ..STATED };
pub(super) const FIG20A_RECALL: Printed =
    Printed { what: "recall by intervals, TH of the prototype", number: "0.8", band: [0.75, 0.95], ..FIG20A };
pub(super) const FIG20A_PRECISION: Printed =
    Printed { what: "precision by intervals, TH of the prototype", number: "0.92", band: [0.8, 0.95], ..FIG20A };
