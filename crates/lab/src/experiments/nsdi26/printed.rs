//! The numbers that "Come Hell or Still Water" prints, each with its band. They stand here before anything is measured
//! with them, and are not touched afterwards.
//!
//! Where a band's reason says *stated*, it is the one that was set for an honest reproduction of this figure when the
//! experiments were planned. Figures 11, 19 and 21 had none but "the sign, and half": theirs go [from half of the printed
//! number](HALF) to 15 points beyond it, because those of figure 12, the same mechanism at the same load, end 7 and 13
//! points beyond.

use super::super::Mechanism::{self, *};
use super::super::row::{Better, Printed};

const STATED: &str = "stated";
const HALF: &str = "from half of the printed number to 15 points beyond it, as figure 12 has about";
/// What keeps steady segments' latency in a burst.
const TWO_BUCKETS: &[Mechanism] = &[ChequeBucket, HotMarking];
/// What keeps that of writes without one.
const IO_FIRST: &[Mechanism] = &[Priority];

const REDUCTION: Printed = Printed {
    what: "",
    number: "",
    source: "",
    band: [0.0, 0.0],
    reason: STATED,
    unit: "%",
    better: Better::Less,
    beyond: "",
    is_aside: false,
    needs: &[],
};
const IN_BURSTS: Printed = Printed {
    needs: TWO_BUCKETS,
    beyond: "One bucket keeps steady segments waiting for as long as in print; with two, what is left is the modelled \
             store's own tail, which is shorter than that of a real one.",
    ..REDUCTION
};
const UNDERLOADED: Printed = Printed {
    needs: IO_FIRST,
    beyond: "The modelled store has next to no tail of its own, so that what the loop saves is more of the whole.",
    ..REDUCTION
};

pub(super) const FIG3_CALM: Printed = Printed {
    what: "underloaded, one queue: the proxy layer's share of P99999 of writes",
    number: "over 49.2%",
    source: "§1, figure 3",
    band: [49.2, 100.0],
    reason: "it is printed as a lower bound",
    better: Better::Neither,
    needs: &[BackgroundTasks],
    ..REDUCTION
};

const BALANCE: Printed = Printed {
    source: "§3.1, figure 4",
    reason: "from half of the printed number to one and a half times it",
    unit: "",
    beyond: "Clients of the model are of one size.",
    needs: &[Spreading],
    ..REDUCTION
};
pub(super) const FIG4_MEAN: Printed = Printed {
    what: "coefficient of variation of arrivals between servers, mean",
    number: "0.12",
    band: [0.06, 0.25],
    reason: "stated: at most 0.25; evener than half of the printed number is beyond",
    ..BALANCE
};
pub(super) const FIG4_LOW: Printed =
    Printed { what: "the same, lowest second", number: "0.08", band: [0.04, 0.12], ..BALANCE };
pub(super) const FIG4_HIGH: Printed =
    Printed { what: "the same, highest second", number: "0.18", band: [0.09, 0.27], ..BALANCE };

const MODEL: Printed = Printed {
    number: "matches",
    source: "§4.2, figure 6",
    band: [-20.0, 20.0],
    reason: "stated: 20% where the equation is turned round, 35% at P99999",
    better: Better::Neither,
    needs: &[Estimate],
    ..REDUCTION
};
pub(super) const FIG6_LEFT: [Printed; 2] = [
    Printed {
        what: "what is left by equation 2, garbage collection of 300 MBps, load farthest from the truth",
        ..MODEL
    },
    Printed {
        what: "what is left by equation 2, garbage collection of 600 MBps, load farthest from the truth",
        ..MODEL
    },
];
pub(super) const FIG6_TAIL: [Printed; 2] = [
    Printed {
        what: "P99999 by P95, garbage collection of 300 MBps, load farthest from the truth",
        band: [-35.0, 35.0],
        needs: &[],
        ..MODEL
    },
    Printed {
        what: "P99999 by P95, garbage collection of 600 MBps, load farthest from the truth",
        band: [-35.0, 35.0],
        needs: &[],
        ..MODEL
    },
];

const EXAMPLE: Printed = Printed {
    source: "§4.3, figure 9",
    reason: "an example is exact",
    unit: "us",
    better: Better::Neither,
    needs: IO_FIRST,
    ..REDUCTION
};
pub(super) const FIG9: [Printed; 3] = [
    Printed { what: "length of loop 1", number: "12 us", band: [12.0, 12.0], ..EXAMPLE },
    Printed { what: "length of loop 2", number: "11 us and b2: 13 us", band: [13.0, 13.0], ..EXAMPLE },
    Printed { what: "length of loop 3", number: "c2, d3 and e3: 8 us", band: [8.0, 8.0], ..EXAMPLE },
];

pub(super) const FIG10_P99: Printed = Printed {
    what: "proxy layer, 4 KiB, P99 of steady segments, best mix",
    number: "up to -96%",
    source: "§5.2, figure 10",
    band: [-99.0, -70.0],
    ..IN_BURSTS
};
pub(super) const FIG10_P99999: Printed = Printed {
    what: "proxy layer, 4 KiB, P99999 of steady segments, best mix",
    number: "up to -83%",
    source: "§5.2, figure 10",
    band: [-95.0, -50.0],
    ..IN_BURSTS
};
pub(super) const FIG10_HOT: Printed = Printed {
    what: "P99 of hot segments, by that with one bucket, worst mix",
    number: "no significant increase",
    source: "§5.2",
    band: [0.0, 1.3],
    unit: "x",
    ..REDUCTION
};
pub(super) const FIG13_P99999: Printed = Printed {
    what: "whole cluster, 4 KiB, P99999 of steady segments, mix farthest from print",
    number: "-85%",
    source: "§5.3, figure 13",
    band: [-95.0, -60.0],
    ..IN_BURSTS
};
pub(super) const FIG13_SHARE: Printed = Printed {
    what: "one bucket: the proxy layer's share of P99999, mix farthest from print",
    number: "98%",
    source: "§5.3, figure 13",
    band: [90.0, 100.0],
    better: Better::Neither,
    needs: &[Burst],
    ..REDUCTION
};

const SIZES_PROXY: Printed = Printed { source: "§5.2, figure 18", band: [-98.0, -60.0], ..IN_BURSTS };
pub(super) const FIG18_LEAST: Printed = Printed {
    what: "proxy layer, 8 to 64 KiB, P99999 of steady segments, size that gains least",
    number: "-92%",
    ..SIZES_PROXY
};
pub(super) const FIG18_MOST: Printed = Printed {
    what: "proxy layer, 8 to 64 KiB, P99999 of steady segments, size that gains most",
    number: "-97%",
    ..SIZES_PROXY
};
pub(super) const FIG18_ORDER: Printed = Printed {
    what: "points by which 64 KiB gains more than 8 KiB",
    number: "larger requests gain more",
    band: [-100.0, 0.0],
    reason: "stated: larger ones gain at least as much",
    unit: " points",
    ..SIZES_PROXY
};
const SIZES_CLUSTER: Printed = Printed { source: "§5.3, figure 20", band: [-98.0, -60.0], ..IN_BURSTS };
pub(super) const FIG20_LEAST: Printed = Printed {
    what: "whole cluster, 8 to 64 KiB, P99999 of steady segments, size that gains least",
    number: "-77%",
    ..SIZES_CLUSTER
};
pub(super) const FIG20_MOST: Printed = Printed {
    what: "whole cluster, 8 to 64 KiB, P99999 of steady segments, size that gains most",
    number: "-86%",
    ..SIZES_CLUSTER
};

pub(super) const FIG11: Printed = Printed {
    what: "whole cluster, 4 KiB, P99999 of writes, mix farthest from print",
    number: "-43%",
    source: "§5.3, figure 11",
    band: [-58.0, -21.5],
    reason: HALF,
    ..UNDERLOADED
};
pub(super) const FIG11_SPLIT: Printed = Printed {
    what: "split threads, whole cluster, 4 KiB, P99999 of writes, mix farthest from print",
    number: "-22%",
    band: [-37.0, -11.0],
    is_aside: true,
    ..FIG11
};
pub(super) const FIG12: Printed = Printed {
    what: "proxy layer, 4 KiB, P99999 of writes, best mix",
    number: "up to -63%",
    source: "§5.2, figure 12",
    band: [-70.0, -20.0],
    ..UNDERLOADED
};
pub(super) const FIG12_SPLIT: Printed = Printed {
    what: "split threads, proxy layer, 4 KiB, P99999 of writes, best mix",
    number: "up to -37%",
    band: [-50.0, -10.0],
    is_aside: true,
    ..FIG12
};
pub(super) const FIG19_SPLIT: Printed = Printed {
    what: "split threads, proxy layer, 8 to 64 KiB, P99999 of writes, best size",
    number: "up to -55%",
    source: "§5.2, figure 19",
    band: [-70.0, -27.5],
    reason: HALF,
    is_aside: true,
    ..UNDERLOADED
};
pub(super) const FIG21: Printed = Printed {
    what: "whole cluster, 8 to 64 KiB, P99999 of writes, best size",
    number: "up to -66%",
    source: "§5.3, figure 21",
    band: [-81.0, -33.0],
    reason: HALF,
    ..UNDERLOADED
};
pub(super) const FIG21_SPLIT: Printed = Printed {
    what: "split threads, whole cluster, 8 to 64 KiB, P99999 of writes, best size",
    number: "up to -37%",
    band: [-52.0, -18.5],
    is_aside: true,
    ..FIG21
};

pub(super) const FIG14: Printed = Printed {
    what: "synthetic production bursts, P99999 of steady segments, size farthest from print",
    number: "-71%",
    source: "§5.4, figure 14",
    band: [-90.0, -40.0],
    ..IN_BURSTS
};
const PRODUCTION_CALM: Printed = Printed {
    source: "§5.4, figure 15",
    reason: "stated: 0 to -40%; a band that holds \"no change\" cannot fail, so it ends at half of the printed number",
    beyond: "The printed load is a trace that is not public, whose tail is mostly the drives'; ours is a Poisson process, \
             whose tail is mostly the loop's.",
    ..UNDERLOADED
};
pub(super) const FIG15: [Printed; 2] = [
    Printed {
        what: "synthetic 200 MBps, whole cluster, P99999 of writes",
        number: "up to -14%",
        band: [-40.0, -7.0],
        ..PRODUCTION_CALM
    },
    Printed {
        what: "synthetic 300 MBps, whole cluster, P99999 of writes",
        number: "up to -13%",
        band: [-40.0, -6.5],
        ..PRODUCTION_CALM
    },
];

pub(super) const RQ2: Printed = Printed {
    what: "one bucket: P99999 of steady segments in a burst, by that without one",
    number: "20x",
    source: "§3.1, RQ2",
    band: [5.0, f64::INFINITY],
    unit: "x",
    better: Better::Neither,
    needs: &[Burst],
    ..REDUCTION
};
pub(super) const RQ3: Printed = Printed {
    what: "throughput lost to a cap of 60 MBps for each major client",
    number: "27%",
    source: "§3.1, RQ3",
    band: [10.0, 45.0],
    better: Better::Neither,
    is_aside: true,
    needs: &[Cap],
    ..REDUCTION
};
