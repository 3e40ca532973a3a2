//! The figures of "Burstable Cloud Block Storage with Data Processing Units" (OSDI 2024): tenants that share a loop.
//!
//! Figures 19 and 20: what one that asks for little waits beside one that bursts; figures 21 and 22: whether it gets what it was
//! promised; figure 23: what that costs the burst; figure 24: what becomes of one that wakes; table 3: costs that are
//! wrong; figure 16: a scalar in place of a vector; figures 26 to 29: a database among others ([`databases`]); figures 6, 11 and
//! 18: queues of virtual machines on several loops ([`queues`]); figure 25: what the scheduler takes ([`scalability`]). The agent
//! with its frontends and its scheduler is the one that is shipped; the store behind it is a fixed latency, guests are models
//! ([`world`]).
//!
//! WildCBS and BaseCBS, the paper's baselines, are settings of the same scheduler. Numbers, bands and what is compared are
//! kept apart as those of the other paper are: [`printed`], [`judges`], `parameters/osdi24.toml`.

mod databases;
mod judges;
mod parameters;
mod printed;
mod queues;
mod scalability;
mod store;
mod world;

use std::time::Duration;

use policies::queues::Queues;
use policies::tenants::{Pricing, Scheduling};

use self::judges::*;
use self::printed::*;
use super::{Mechanism, Paper, figure};

pub use parameters::Parameters;
pub use world::{Asked, Bench, Guest, Loops, Measured, Point, Product, Window};

/// The paper.
#[derive(Clone, Debug)]
pub struct Osdi24;

type Figure = figure::Figure<Osdi24>;
type Case<'a> = figure::Case<'a, Osdi24>;

impl Paper for Osdi24 {
    const NAME: &'static str = "osdi24";
    const FIGURES: &'static [Figure] = FIGURES;
    /// Of all guests: half a second, and a tenth.
    const REQUESTS: [u64; 2] = [50_000, 10_000];
    const TITLES: [&'static str; 2] = ["Against the paper's baselines, WildCBS and BaseCBS", ""];
    const SUMMARY: &'static str = "summary-osdi24.md";
    const NO_LOAD: &'static str = "a trace takes no guest's place in experiments of osdi24: leave --trace out";

    type Parameters = Parameters;
    type Point = Point;
    type Measured = Measured;

    fn with(point: Point, requests: u64, seed: u64) -> Point {
        Point { requests, seed, ..point }
    }

    fn without(point: Point, mechanism: Mechanism) -> Point {
        match mechanism {
            Mechanism::TenantScheduler if point.scheduling == Scheduling::Bios => {
                Point { scheduling: Scheduling::Wild, ..point }
            }
            Mechanism::Recovery => Point { recovers: false, ..point },
            Mechanism::Reserve => {
                let parameters = Parameters { reserve: 0.0, ..point.parameters.clone() };
                Point { parameters, ..point }
            }
            Mechanism::CostAdjustment => Point { adjusts: false, ..point },
            Mechanism::VectorCost => Point { pricing: Pricing::Scalar, ..point },
            Mechanism::SharedQueues => {
                let is_shared = |loops: &Loops| loops.queues == Queues::Shared;
                let bench = match point.bench.clone() {
                    Bench::Machines(loops) if is_shared(&loops) => {
                        Bench::Machines(Loops { queues: Queues::Static, ..loops })
                    }
                    other => other,
                };
                Point { bench, ..point }
            }
            Mechanism::Messages => {
                let parameters = Parameters { crossing_ns: 0, ..point.parameters.clone() };
                Point { parameters, ..point }
            }
            _ => point,
        }
    }

    fn unlabelled(point: Point) -> Point {
        Point { label: String::new(), ..point }
    }

    fn measure(point: &Point, clock: &dyn Fn() -> Duration) -> Measured {
        point.measure(clock)
    }
}

/// Parameters that are not printed, on which all figures can depend.
const SENSITIVE: &[&str] = &["window_us", "alpha", "weight_throttle", "reserve", "store_ns", "queue_depth"];

/// Those of figures about loops.
const QUEUES_SENSITIVE: &[&str] = &["store_ns", "a_write_ns", "crossing_ns", "lock_ns"];

const FIGURES: &[Figure] = &[
    Figure {
        name: "osdi24/fig6",
        title: "latency of a virtual machine whose queue belongs to the loop of a burst, and with shared queues",
        points: queues::imbalance,
        judge: queues::judge_fig6,
        printed: &[&FIG6_LATENCY, &FIG6_DELAY],
        sensitive: QUEUES_SENSITIVE,
    },
    Figure {
        name: "osdi24/fig11",
        title: "throughput of a queue that is stolen from, or dispatched, by that of load spread evenly",
        points: queues::spreadings,
        judge: queues::judge_fig11,
        printed: &[&FIG11_STEALING],
        sensitive: QUEUES_SENSITIVE,
    },
    Figure {
        name: "osdi24/fig16",
        title: "throughput of two bursts, small requests and large ones, with a scalar as cost and with a vector",
        points: mixed_bursts,
        judge: judge_fig16,
        printed: &[&FIG16_GAIN],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig18",
        title: "throughput and latency of one queue on several loops, and how even these are",
        points: queues::scaling,
        judge: queues::judge_fig18,
        printed: &[&FIG18_TWO, &FIG18_FOUR, &FIG18_SIX, &FIG18_NETWORK, &FIG18_EVEN],
        sensitive: QUEUES_SENSITIVE,
    },
    Figure {
        name: "osdi24/fig19",
        title: "mean latency at depth 1 beside a BPS-intensive burst",
        points: |parameters| latencies(parameters, &parameters.bps_sizes_kib, &parameters.bps_depths),
        judge: judge_fig19,
        printed: &[&FIG19_LEAST, &FIG19_MOST, &FIG19_BASE],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig20",
        title: "mean latency at depth 1 beside an IOPS-intensive burst",
        points: |parameters| latencies(parameters, &parameters.iops_sizes_kib, &parameters.iops_depths),
        judge: judge_fig20,
        printed: &[&FIG20_LEAST, &FIG20_MOST],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig21",
        title: "base IOPS at depth 8 beside a BPS-intensive burst",
        points: |parameters| throughputs(parameters, &[Burst::Bps]),
        judge: judge_fig21,
        printed: &[&FIG21_LEAST],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig22",
        title: "base IOPS at depth 8 beside an IOPS-intensive burst, and where WildCBS fails in both figures",
        points: |parameters| throughputs(parameters, &[Burst::Bps, Burst::Iops]),
        judge: judge_fig22,
        printed: &[&FIG22_LEAST, &FIG22_WILD],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig23",
        title: "throughput of a burst beside one that stays below its base",
        points: utilization,
        judge: judge_fig23,
        printed: &[&FIG23_LEAST, &FIG23_MOST, &FIG23_BASE],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig24",
        title: "throttled requests of a tenant that wakes while another one holds everything",
        points: wakes,
        judge: judge_fig24,
        printed: &[&FIG24_WITHIN, &FIG24_BEYOND],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig25",
        title: "time of the scheduler by the number of tenants (real time)",
        points: scalability::windows,
        judge: scalability::judge_fig25,
        printed: &[&FIG25_ALL, &FIG25_ACTIVE, &FIG25_LINEAR],
        sensitive: &[],
    },
    Figure {
        name: "osdi24/table3",
        title: "mean latency at depth 1 beside a burst whose cost is misestimated",
        points: misestimates,
        judge: judge_table3,
        printed: &[&TABLE3_UNADJUSTED[0], &TABLE3_ADJUSTED[0], &TABLE3_UNADJUSTED[1], &TABLE3_ADJUSTED[1]],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig26",
        title: "mean time of a database's writes beside 15 bursts",
        points: databases::writes,
        judge: databases::judge_fig26,
        printed: &[&FIG26_LEAST],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig27",
        title: "operations of a database that bursts while its neighbours are idle",
        points: databases::bursts,
        judge: databases::judge_fig27,
        printed: &[&FIG27_LEAST, &FIG27_MOST],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig28",
        title: "mean time of a database's queries beside bursts (synthetic)",
        points: databases::queries,
        judge: databases::judge_fig28,
        printed: &[&FIG28_BEST],
        sensitive: SENSITIVE,
    },
    Figure {
        name: "osdi24/fig29",
        title: "worst stretch of a database's queries beside bursts that come and go (synthetic)",
        points: databases::spikes,
        judge: databases::judge_fig29,
        printed: &[&FIG29_WORST],
        sensitive: SENSITIVE,
    },
];

/// What a burst is short of.
#[derive(Clone, Copy)]
enum Burst {
    Iops,
    Bps,
}

impl Burst {
    /// At the depth that is called high.
    fn guest(self, parameters: &Parameters) -> Guest {
        let (sizes, depths) = match self {
            Burst::Iops => (&parameters.iops_sizes_kib, &parameters.iops_depths),
            Burst::Bps => (&parameters.bps_sizes_kib, &parameters.bps_depths),
        };
        burst(sizes, depths.iter().max().copied().unwrap_or(1))
    }

    fn name(self) -> &'static str {
        match self {
            Burst::Iops => "IOPS-intensive",
            Burst::Bps => "BPS-intensive",
        }
    }
}

fn burst(sizes_kib: &[u64], depth: usize) -> Guest {
    guest("burst", sizes_kib, depth)
}

fn victim(parameters: &Parameters, depth: usize) -> Guest {
    guest("victim", &[parameters.victim_kib], depth)
}

fn guest(name: &str, sizes_kib: &[u64], depth: usize) -> Guest {
    Guest {
        name: name.into(),
        base_iops: None,
        sizes_kib: sizes_kib.to_vec(),
        depth,
        queue_depths: Vec::new(),
        wakes_for: None,
        burst_iops: None,
        database: None,
        pauses_us: None,
    }
}

/// A product, and whether it is asked for writes.
type Kind = (Product, bool);
const KINDS: [Kind; 4] = [(Product::A, false), (Product::A, true), (Product::B, false), (Product::B, true)];

fn name_of((product, is_write): Kind) -> String {
    format!("{product:?} {}", if is_write { "write" } else { "read" })
}

fn point(parameters: &Parameters, (product, is_write): Kind, label: String, guests: Vec<Guest>) -> Point {
    Point {
        label,
        bench: Bench::Tenants,
        parameters: parameters.clone(),
        product,
        is_write,
        scheduling: Scheduling::Bios,
        recovers: true,
        adjusts: true,
        measures: true,
        pricing: Pricing::Vector,
        misestimated: 1.0,
        guests,
        requests: 0,
        seed: 0,
    }
}

fn latencies(parameters: &Parameters, sizes_kib: &[u64], depths: &[usize]) -> Vec<Point> {
    let mut points = Vec::new();
    for kind in KINDS {
        for &depth in depths {
            let guests = vec![victim(parameters, 1), burst(sizes_kib, depth)];
            let usual = point(parameters, kind, format!("{}, depth {depth}", name_of(kind)), guests);
            points.extend(THREE.map(|scheduling| Point { scheduling, ..usual.clone() }));
        }
    }
    points
}

fn throughputs(parameters: &Parameters, bursts: &[Burst]) -> Vec<Point> {
    let mut points = Vec::new();
    for burst in bursts {
        for kind in KINDS {
            let promised = Guest { base_iops: Some(parameters.base_iops), ..victim(parameters, parameters.base_depth) };
            let guests = vec![promised, burst.guest(parameters)];
            let usual = point(parameters, kind, format!("{}, {}", name_of(kind), burst.name()), guests);
            points.extend(THREE.map(|scheduling| Point { scheduling, ..usual.clone() }));
        }
    }
    points
}

fn utilization(parameters: &Parameters) -> Vec<Point> {
    let mut points = Vec::new();
    for burst in [Burst::Bps, Burst::Iops] {
        for kind in KINDS {
            let guests = vec![victim(parameters, parameters.below_depth), burst.guest(parameters)];
            let usual = point(parameters, kind, format!("{}, {}", name_of(kind), burst.name()), guests);
            points.extend(THREE.map(|scheduling| Point { scheduling, ..usual.clone() }));
            points.push(Osdi24::without(usual, Mechanism::Reserve));
        }
    }
    points
}

fn wakes(parameters: &Parameters) -> Vec<Point> {
    let mut points = Vec::new();
    // Reads are the dearest of each product: what was promised is priced by them.
    for product in [Product::A, Product::B] {
        for &rate in &parameters.wake_iops {
            let base_iops = Some(parameters.wake_base_iops);
            let sleeper = Guest { base_iops, wakes_for: Some(rate), ..victim(parameters, parameters.wake_depth) };
            let guests = vec![sleeper, Burst::Iops.guest(parameters)];
            points.push(point(parameters, (product, false), format!("{product:?} read, {} k", rate / 1000), guests));
        }
    }
    points
}

fn misestimates(parameters: &Parameters) -> Vec<Point> {
    let mut points = Vec::new();
    for kind in [(Product::B, false), (Product::B, true)] {
        let guests = vec![victim(parameters, 1), Burst::Iops.guest(parameters)];
        let shipped = point(parameters, kind, name_of(kind), guests);
        let shipped = Point { misestimated: parameters.misestimated, ..shipped };
        let with = Point { measures: false, ..shipped.clone() };
        let without = Point { adjusts: false, ..with.clone() };
        points.extend([Point { scheduling: Scheduling::Wild, ..without.clone() }, without, with, shipped]);
    }
    points
}

fn mixed_bursts(parameters: &Parameters) -> Vec<Point> {
    let mut points = Vec::new();
    for kind in KINDS {
        let small = Guest { name: "small".into(), ..burst(&[parameters.small_kib], parameters.small_depth) };
        let large = Guest { name: "large".into(), ..burst(&[parameters.large_kib], parameters.large_depth) };
        let usual = point(parameters, kind, name_of(kind), vec![small, large]);
        // Measured processor time would make processor time cheaper where it is priced by what is dearest.
        let usual = Point { measures: false, adjusts: false, ..usual };
        points.extend(BOTH.map(|pricing| Point { pricing, ..usual.clone() }));
    }
    points
}
