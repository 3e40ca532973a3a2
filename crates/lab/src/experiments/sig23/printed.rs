//! The numbers that "DiffForward" prints, each with its band.
//!
//! All bands are the ones that were *stated* for an honest reproduction of each figure before anything was measured, and are
//! not touched afterwards; where one was written later it says so. Of two workloads and two ways to migrate the farthest from what
//! is printed counts.

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

pub(super) const FIG2D_TIMES: Printed = Printed {
    what: "P99 where most is used by that where least is, volumes not cut",
    number: "9.6",
    source: "§2.2, figure 2d",
    band: [5.0, f64::INFINITY],
    unit: "x",
    needs: &[Mechanism::Burst],
    ..STATED
};
pub(super) const FIG2D_STEPS: Printed = Printed {
    what: "P99 by that of the load before, step that adds least",
    number: "more at each",
    source: "§2.2, figure 2d",
    band: [1.0, f64::INFINITY],
    unit: "x",
    ..STATED
};

const FIG5: Printed = Printed { source: "§2.4, figure 5", ..STATED };
pub(super) const FIG5_COV: Printed =
    Printed { what: "CoV with segmentation", number: "0.67", band: [0.55, 0.8], needs: &[Mechanism::Burst], ..FIG5 };
pub(super) const FIG5_TIMES: Printed = Printed {
    what: "most by least, the least of segmentation and migration",
    number: "more than 10",
    band: [10.0, f64::INFINITY],
    needs: &[Mechanism::Burst],
    ..FIG5
};
pub(super) const FIG5_MIGRATION: Printed = Printed {
    what: "CoV of migration against segmentation",
    number: "0.71, +6%",
    band: [0.0, f64::INFINITY],
    unit: "%",
    ..FIG5
};
/// This band and those of the next two were written when figures 13 and 14 had been run.
pub(super) const FIG5_REPLICATION_COV: Printed = Printed {
    what: "CoV of replication against segmentation",
    number: "much better",
    band: [-100.0, -30.0],
    unit: "%",
    needs: &[Mechanism::ReplicaChoice],
    ..FIG5
};
pub(super) const FIG5_REPLICATION_AVERAGE: Printed = Printed {
    what: "average of replication against the slowest other",
    number: "even worse",
    band: [0.1, f64::INFINITY],
    unit: "%",
    needs: &[Mechanism::Synchronization],
    ..FIG5
};
pub(super) const FIG5_REPLICATION_P99: Printed = Printed {
    what: "P99 of replication against segmentation",
    number: "similar",
    band: [-30.0, 30.0],
    unit: "%",
    ..FIG5
};

const PREDICTIONS: Printed = Printed { source: "§2.4", ..STATED };
pub(super) const PREDICTIONS_LONG: Printed = Printed {
    what: "error of an average (EWMA), intervals of 5 s, mean of volumes",
    number: "over 100%",
    band: [80.0, f64::INFINITY],
    unit: "%",
    needs: &[Mechanism::Burst],
    ..PREDICTIONS
};
pub(super) const PREDICTIONS_SHORT: Printed = Printed {
    what: "error with intervals of 100 ms by that with 5 s",
    number: "twice",
    band: [1.001, f64::INFINITY],
    unit: "x",
    ..PREDICTIONS
};

/// Nothing but this is printed in numbers: the bands were written when figure 13 had been run.
const FIG12: Printed = Printed {
    source: "§5.2, figure 12",
    band: [-100.0, -30.0],
    unit: "%",
    needs: &[Mechanism::BurstDetection, Mechanism::RoundRobin],
    ..STATED
};
pub(super) const FIG12_RANGE: Printed =
    Printed { what: "most less least of servers, against segmentation", number: "much better", ..FIG12 };
pub(super) const FIG12_MIGRATION: Printed =
    Printed { what: "most less least of servers, against migration", number: "much better", ..FIG12 };
pub(super) const FIG12_REPLICATION: Printed = Printed {
    what: "most less least of servers, replication against segmentation",
    number: "much better",
    needs: &[Mechanism::ReplicaChoice],
    ..FIG12
};
pub(super) const FIG12_PEAK: Printed =
    Printed { what: "highest traffic of a server, against segmentation", number: "largely reduced", ..FIG12 };

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
/// Not above it, that is.
pub(super) const FIG13_REPLICATION: Printed =
    Printed { what: "CoV against replication, TH of the text", number: "-24%", band: [-100.0, -0.1], ..FIG13 };
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
pub(super) const FIG14_MIGRATION_AVERAGE: Printed = Printed {
    what: "average of writes against migration",
    number: "-52 to -56%",
    source: "§5.3, figure 14",
    band: [-90.0, -30.0],
    ..LATENCY
};
pub(super) const FIG14_MIGRATION_P99: Printed = Printed {
    what: "P99 of writes against migration",
    number: "-71 to -72%",
    source: "§5.3, figure 14",
    band: [-90.0, -50.0],
    ..LATENCY
};
/// The order of baselines.
pub(super) const FIG14_WORSE: Printed = Printed {
    what: "average of migration against segmentation",
    number: "+9 to +21%",
    source: "§5.3, figure 14",
    band: [0.0, f64::INFINITY],
    needs: &[],
    ..LATENCY
};
pub(super) const FIG14_REPLICATION: Printed = Printed {
    what: "average of replication against the slowest other baseline",
    number: "+20%",
    source: "§5.3, figure 14",
    band: [0.1, f64::INFINITY],
    needs: &[Mechanism::Synchronization],
    ..LATENCY
};
/// Of what is slower only the best other way counts.
const FIG15: Printed = Printed { source: "§5.3, figure 15", band: [-90.0, -10.0], ..LATENCY };
pub(super) const FIG15_AVERAGE: Printed =
    Printed { what: "average of reads against the best other", number: "-15%, -25%", ..FIG15 };
pub(super) const FIG15_P99: Printed =
    Printed { what: "P99 of reads against the best other", number: "-19%, -20%", ..FIG15 };

/// A gain at each load: that is what is stated, so any.
const FIG16: Printed =
    Printed { number: "a gain at each", source: "§5.4, figure 16", band: [-100.0, -1.0], ..LATENCY };
pub(super) const FIG16_AVERAGE: Printed =
    Printed { what: "average of writes against segmentation, load that gains least", ..FIG16 };
pub(super) const FIG16_P99: Printed =
    Printed { what: "P99 of writes against segmentation, load that gains least", ..FIG16 };

/// The order is what is stated, at each size.
const FIG17: Printed =
    Printed { number: "better at each", source: "§5.4, figure 17", band: [-100.0, -1.0], ..LATENCY };
pub(super) const FIG17_COV: Printed = Printed { what: "CoV against the best other, size that gains least", ..FIG17 };
pub(super) const FIG17_TIMES: Printed =
    Printed { what: "most by least against the best other, size that gains least", ..FIG17 };
pub(super) const FIG17_AVERAGE: Printed =
    Printed { what: "average of writes against the best other, size that gains least", ..FIG17 };
pub(super) const FIG17_P99: Printed =
    Printed { what: "P99 of writes against the best other, size that gains least", ..FIG17 };

/// Of what is looked at, from 0.1 to 4, not an end.
const FIG18: Printed = Printed { source: "§5.4, figure 18", ..LATENCY };
pub(super) const FIG18_BEST: Printed = Printed {
    what: "TH with the least average, in parts of the text's, 30% used",
    number: "around 0.5",
    band: [0.25, 2.0],
    unit: "x",
    ..FIG18
};
pub(super) const FIG18_ENDS: Printed = Printed {
    what: "average with the better one of both ends against the best TH, 30% used",
    number: "worse",
    band: [1.0, f64::INFINITY],
    ..FIG18
};
pub(super) const FIG18_FLAT: Printed = Printed {
    what: "average with the worst TH against the best, 10% used",
    number: "flat",
    band: [0.0, 25.0],
    needs: &[],
    ..FIG18
};

const FIG19: Printed = Printed { source: "§5.5, figure 19", band: [-80.0, -30.0], ..LATENCY };
pub(super) const FIG19_WAITING_AVERAGE: Printed =
    Printed { what: "waiting against segmentation, average", number: "around -50%", ..FIG19 };
pub(super) const FIG19_WAITING_P99: Printed =
    Printed { what: "waiting against segmentation, P99", number: "-76%", ..FIG19 };
pub(super) const FIG19_PASSING_AVERAGE: Printed =
    Printed { what: "transmission against segmentation, average", number: "around -50%", ..FIG19 };
pub(super) const FIG19_PASSING_P99: Printed =
    Printed { what: "transmission against segmentation, P99", number: "-77%", ..FIG19 };

const FIG20A: Printed = Printed { source: "§5.5, figure 20a", needs: &[Mechanism::BurstDetection], ..STATED };
pub(super) const FIG20A_RECALL: Printed =
    Printed { what: "recall by intervals, TH of the prototype", number: "0.8", band: [0.75, 0.95], ..FIG20A };
pub(super) const FIG20A_PRECISION: Printed =
    Printed { what: "precision by intervals, TH of the prototype", number: "0.92", band: [0.8, 0.95], ..FIG20A };

/// In GiB of each server: within what is printed, and not nothing.
pub(super) const FIG20B_MOST: Printed = Printed {
    what: "most in the logs of a server, mean of servers",
    number: "2 to 3 GiB",
    source: "§5.5, figure 20b",
    band: [0.001, 3.0],
    unit: " GiB",
    needs: &[Mechanism::BurstDetection],
    ..STATED
};
/// W1 rises, and what is printed with it by half. What nobody merged would be more than twice as much.
pub(super) const FIG20B_GROWTH: Printed = Printed {
    what: "last quarter of the time against the second",
    number: "no growth",
    source: "§5.5, figure 20b",
    band: [0.3, 1.5],
    unit: "x",
    needs: &[Mechanism::BurstDetection, Mechanism::Merging],
    ..STATED
};
/// Within five times of what is printed.
const FIG20C: Printed = Printed { source: "§5.5, figure 20c", needs: &[Mechanism::BurstDetection], ..STATED };
pub(super) const FIG20C_AVERAGE: Printed =
    Printed { what: "entries on average, 90% of volumes below", number: "645", band: [0.001, 5.0 * 645.0], ..FIG20C };
pub(super) const FIG20C_LARGEST: Printed =
    Printed { what: "entries on average, largest volume", number: "6426", band: [0.001, 5.0 * 6426.0], ..FIG20C };

const FIG20D: Printed = Printed { source: "§5.5, figure 20d", ..LATENCY };
pub(super) const FIG20D_PRIORITIZED: Printed = Printed {
    what: "average of writes against no merging, prioritized",
    number: "+13%",
    band: [0.1, 30.0],
    needs: &[Mechanism::BurstDetection, Mechanism::Coordination],
    ..FIG20D
};
/// The order is what is stated.
pub(super) const FIG20D_LIMITED: Printed = Printed {
    what: "average of writes with 1 MiB at once against prioritized",
    number: "+22%",
    band: [0.1, f64::INFINITY],
    needs: &[Mechanism::BurstDetection, Mechanism::Coordination],
    ..FIG20D
};
pub(super) const FIG20D_AT_ONCE: Printed = Printed {
    what: "average of writes as soon as possible against 1 MiB at once",
    number: "+4%",
    band: [0.0, f64::INFINITY],
    needs: &[],
    ..FIG20D
};

/// Not printed: this is asked of Levee. Of workloads the one that is farthest counts, and of each number the TH that is best for it.
const AUTO: Printed =
    Printed { number: "none", source: "§4", band: [-100.0, 10.0], needs: &[Mechanism::FindingOut], ..LATENCY };
pub(super) const AUTO_COV: Printed = Printed { what: "CoV with auto against the best TH", ..AUTO };
pub(super) const AUTO_AVERAGE: Printed = Printed { what: "average of writes with auto against the best TH", ..AUTO };
pub(super) const AUTO_P99: Printed = Printed { what: "P99 of writes with auto against the best TH", ..AUTO };

/// Not printed. A gain by which it would be the default, on each workload: at one of the percentages, the same one for all.
const CATEGORIES: Printed = Printed { number: "none", source: "§4", band: [-100.0, -5.0], ..LATENCY };
pub(super) const CATEGORIES_AVERAGE: Printed =
    Printed { what: "average with mild bursts to the nearest log, best percentage", ..CATEGORIES };
pub(super) const CATEGORIES_P99: Printed =
    Printed { what: "P99 with mild bursts to the nearest log, best percentage", ..CATEGORIES };
