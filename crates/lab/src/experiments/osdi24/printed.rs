//! The numbers that "Burstable Cloud Block Storage with Data Processing Units" prints, each with its band. They stand here
//! before anything is measured with them, and are not touched afterwards.
//!
//! All bands are the ones that were *stated* for an honest reproduction of each figure when the experiments were planned.
//! A range is judged by its ends: both have to be in the band.

use super::super::Mechanism;
use super::super::row::{Better, Printed};

const BETTER_LATENCY: Printed = Printed {
    what: "",
    number: "",
    source: "",
    band: [0.0, 0.0],
    reason: "stated",
    unit: "%",
    better: Better::Less,
    beyond: "What the loop and the store take besides is less than there.",
    is_aside: false,
    needs: &[Mechanism::TenantScheduler],
};
/// A number that is outside of its band on either side is missed.
const EITHER_SIDE: Printed = Printed { better: Better::Neither, beyond: "", ..BETTER_LATENCY };

const FIG19: Printed = Printed { source: "§6.2, figure 19", band: [-90.0, -50.0], ..BETTER_LATENCY };
pub(super) const FIG19_LEAST: Printed = Printed {
    what: "victim's mean latency, BPS-intensive burst of depth 64, kind that gains least",
    number: "-68%",
    ..FIG19
};
pub(super) const FIG19_MOST: Printed = Printed { what: "the same, kind that gains most", number: "-85%", ..FIG19 };
pub(super) const FIG19_BASE: Printed = Printed {
    what: "the same, by that with BaseCBS, kind farthest above",
    number: "very close",
    source: "§6.2, figure 19",
    band: [0.0, 1.5],
    unit: "x",
    ..EITHER_SIDE
};

const FIG20: Printed = Printed { source: "§6.2, figure 20", band: [-80.0, -30.0], ..BETTER_LATENCY };
pub(super) const FIG20_LEAST: Printed = Printed {
    what: "victim's mean latency, IOPS-intensive burst of depth 128, kind that gains least",
    number: "-40%",
    ..FIG20
};
pub(super) const FIG20_MOST: Printed = Printed { what: "the same, kind that gains most", number: "-66%", ..FIG20 };

const REACHED: Printed = Printed {
    number: "20",
    band: [18.0, f64::INFINITY],
    unit: " kIOPS",
    source: "§6.3, figures 21 and 22",
    ..EITHER_SIDE
};
pub(super) const FIG21_LEAST: Printed =
    Printed { what: "victim with 20 k base IOPS at depth 8, BPS-intensive burst, kind with least", ..REACHED };
pub(super) const FIG22_LEAST: Printed =
    Printed { what: "victim with 20 k base IOPS at depth 8, IOPS-intensive burst, kind with least", ..REACHED };
pub(super) const FIG22_WILD: Printed = Printed {
    what: "WildCBS: kinds and bursts of eight below 18 k",
    number: "7",
    band: [5.0, 8.0],
    unit: "",
    // A number of the baseline.
    needs: &[],
    ..REACHED
};

const FIG23: Printed = Printed { source: "§6.4, figure 23", band: [0.0, 10.0], needs: &[], ..EITHER_SIDE };
pub(super) const FIG23_LEAST: Printed =
    Printed { what: "throughput lost against WildCBS, kind and burst that lose least", number: "5%", ..FIG23 };
pub(super) const FIG23_MOST: Printed =
    Printed { what: "the same, kind and burst that lose most", number: "8%", ..FIG23 };
pub(super) const FIG23_BASE: Printed = Printed {
    what: "BaseCBS: what bursts, of all with WildCBS, kind and burst farthest from half",
    number: "half",
    band: [45.0, 55.0],
    ..FIG23
};

const FIG24: Printed = Printed { source: "§6.5, figure 24", unit: "", ..EITHER_SIDE };
pub(super) const FIG24_WITHIN: Printed = Printed {
    what: "throttled requests of who wakes within his base of 45 k, all streams together",
    number: "0",
    band: [0.0, 0.0],
    needs: &[Mechanism::Recovery, Mechanism::Reserve],
    ..FIG24
};
pub(super) const FIG24_BEYOND: Printed = Printed {
    what: "the same with 60 k, kind with fewest",
    number: "some",
    band: [1.0, f64::INFINITY],
    // Without the scheduler they are throttled, too.
    needs: &[],
    ..FIG24
};

const TABLE3: Printed = Printed { source: "§5.3, table 3", ..BETTER_LATENCY };
const UNADJUSTED: Printed = Printed { band: [-40.0, -10.0], better: Better::Neither, beyond: "", ..TABLE3 };
const ADJUSTED: Printed = Printed {
    band: [-85.0, -60.0],
    needs: &[Mechanism::CostAdjustment],
    beyond: "A loop hands out little of a burst at a time and lets others run in between, whatever it is said to cost.",
    ..TABLE3
};
pub(super) const TABLE3_UNADJUSTED: [Printed; 2] = [
    Printed { what: "cost misestimated twice, reads, without adjustment", number: "-23%", ..UNADJUSTED },
    Printed { what: "cost misestimated twice, writes, without adjustment", number: "-14%", ..UNADJUSTED },
];
pub(super) const TABLE3_ADJUSTED: [Printed; 2] = [
    Printed { what: "cost misestimated twice, reads, with adjustment", number: "-77%", ..ADJUSTED },
    Printed { what: "cost misestimated twice, writes, with adjustment", number: "-69%", ..ADJUSTED },
];

pub(super) const FIG16_GAIN: Printed = Printed {
    what: "throughput of mixed bursts with a vector of costs, by that with a scalar, kind that gains least",
    number: "higher",
    source: "§5.3, figure 16",
    band: [20.0, f64::INFINITY],
    needs: &[Mechanism::VectorCost],
    ..EITHER_SIDE
};

pub(super) const FIG26_LEAST: Printed = Printed {
    what: "mean time of a database's writes beside 15 bursts, operation that gains least",
    number: "-60%",
    source: "§6.7, figure 26",
    band: [-85.0, -40.0],
    ..BETTER_LATENCY
};

const FIG27: Printed = Printed {
    source: "§6.7, figure 27",
    band: [1.5, 2.0],
    unit: "x",
    // WildCBS does as well there.
    needs: &[],
    ..EITHER_SIDE
};
pub(super) const FIG27_LEAST: Printed = Printed {
    what: "operations of a database whose neighbours are idle, by those with BaseCBS, mix that gains least",
    number: "1.7x",
    ..FIG27
};
pub(super) const FIG27_MOST: Printed = Printed { what: "the same, mix that gains most", number: "2.5x", ..FIG27 };

pub(super) const FIG28_BEST: Printed = Printed {
    what: "synthetic neighbours, mean time of a query, number of neighbours that gains most",
    number: "up to -83%",
    source: "§6.8, figure 28",
    band: [-85.0, -40.0],
    ..BETTER_LATENCY
};

pub(super) const FIG29_WORST: Printed = Printed {
    what: "synthetic neighbours that come and go, worst 10 ms of queries, by that with WildCBS",
    number: "20 to 50 ms, below 10",
    source: "§6.8, figure 29",
    band: [0.0, 0.5],
    unit: "x",
    ..EITHER_SIDE
};

const FIG6: Printed = Printed {
    number: "high queuing delay",
    source: "§2.3, figure 6",
    band: [2.0, f64::INFINITY],
    unit: "x",
    needs: &[Mechanism::SharedQueues],
    ..EITHER_SIDE
};
pub(super) const FIG6_LATENCY: Printed =
    Printed { what: "victim's mean latency with its queue on the loop of a burst, by that with shared queues", ..FIG6 };
pub(super) const FIG6_DELAY: Printed =
    Printed { what: "the same, of what it takes longer beside the burst than alone", ..FIG6 };

pub(super) const FIG11_STEALING: Printed = Printed {
    what: "throughput with work stealing, by that of load spread evenly",
    number: "-35%",
    source: "§5.1, figure 11",
    band: [-50.0, -20.0],
    needs: &[Mechanism::Messages],
    ..EITHER_SIDE
};

const FIG18: Printed = Printed {
    number: "near-linear",
    source: "§6.1, figure 18",
    unit: "x",
    needs: &[Mechanism::SharedQueues],
    ..EITHER_SIDE
};
pub(super) const FIG18_TWO: Printed = Printed {
    what: "one queue, short of processor time: throughput of two loops by that of one, kind that gains least",
    band: [1.8, f64::INFINITY],
    ..FIG18
};
pub(super) const FIG18_FOUR: Printed = Printed { what: "the same, four loops", band: [3.4, f64::INFINITY], ..FIG18 };
pub(super) const FIG18_SIX: Printed = Printed { what: "the same, six loops", band: [5.0, f64::INFINITY], ..FIG18 };
pub(super) const FIG18_NETWORK: Printed = Printed {
    what: "one queue, short of the network: throughput of several loops by that of one, kind and number that gain most",
    number: "limited",
    band: [0.0, 1.3],
    // The network is what bounds it, whoever serves the queue.
    needs: &[],
    ..FIG18
};
pub(super) const FIG18_EVEN: Printed = Printed {
    what: "one queue of 4 KiB, most by least throughput of six loops",
    number: "almost as where the user spreads it",
    band: [1.0, 1.1],
    ..FIG18
};

const FIG25: Printed = Printed { source: "§6.6, figure 25", unit: " us", needs: &[], ..EITHER_SIDE };
pub(super) const FIG25_ALL: Printed = Printed {
    what: "time of a window with 1,024 tenants, all active",
    number: "below 100 us",
    band: [0.0, 100.0],
    ..FIG25
};
pub(super) const FIG25_ACTIVE: Printed = Printed {
    what: "time of a window with 1,024 tenants, 64 of them active",
    number: "below 5 us",
    band: [0.0, 5.0],
    ..FIG25
};
pub(super) const FIG25_LINEAR: Printed = Printed {
    what: "time of a tenant with 1,024 tenants, by that with 256, all active",
    number: "linear",
    band: [0.7, 1.3],
    unit: "x",
    ..FIG25
};
