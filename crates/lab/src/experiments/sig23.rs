//! The figures of "DiffForward" (SIGMETRICS 2023), as far as they are about where traffic goes: who is asked for how much, and
//! when. Figure 2a: how unequal servers are; figures 12 and 13: what ways to spread writes make of that; figure 20a: how well bursts are
//! found.
//!
//! Figures 2d, 5, 14 and 16 to 19: how long writes take; figure 15: how long reads take. Figures 20b to 20d: what is in logs, and
//! what it costs to bring that home.
//!
//! [`workload`] is the traffic, [`schemes`] are the ways to spread it over what [`geometry`] and [`homes`] make of volumes,
//! [`balance`] is what is made of it, [`detection`] compares what was found with what was there. Nothing waits in these: a write
//! counts at the server that takes it, at the time when it was made. [`prediction`] is how wrong it is to expect what was before.
//! In [`latency`] the store's own agent sends writes to servers that are busy ([`cards`]), and in [`replication`] clients choose by
//! that. The detector is the store's own ([`policies::burst`]). For figure 20a there can be a real trace in place of the traffic.
//!
//! [`figures`] says which points each figure has, [`judges`] compares them with what is [`printed`].

pub mod balance;
pub mod cards;
pub mod detection;
mod figures;
pub mod geometry;
pub mod homes;
mod judges;
pub mod latency;
mod parameters;
pub mod prediction;
mod printed;
pub mod replication;
pub mod schemes;
pub mod workload;

use std::sync::Arc;
use std::time::Duration;

use base::Prng;
use policies::burst::BurstSettings;
use policies::forwarding::Pace;

use self::balance::Balance;
use self::detection::Detection;
use self::geometry::Geometry;
use self::latency::{Auto, Cluster, Latency, Merging};
use self::prediction::Errors;
use self::replication::Replication;
use self::schemes::Scheme;
use self::workload::{Read, Traffic, Workload, copied, writes_of};
use super::random::Random;
use super::{Mechanism, Paper, Trace, figure};

pub use parameters::Parameters;

/// The paper.
#[derive(Clone, Debug)]
pub struct Sig23;

type Figure = figure::Figure<Sig23>;
type Case<'a> = figure::Case<'a, Sig23>;

/// Traffic, and what is done with it.
#[derive(Clone, Debug)]
pub struct Point {
    /// How it is spread, or how bursts are found.
    label: String,
    parameters: Parameters,
    source: Source,
    bench: Bench,
    requests: u64,
    seed: u64,
}

/// Whose traffic it is.
#[derive(Clone, Debug)]
enum Source {
    /// The morning's.
    W1,
    /// The afternoon's.
    W2,
    /// That of a real disk.
    Trace(Arc<Trace>),
}

/// What is looked at.
#[derive(Clone, Debug)]
enum Bench {
    /// How even servers are.
    Balance { scheme: Scheme, geometry: Geometry, bin_ms: u64 },
    /// Which bursts are found; without settings none is.
    Detection(Option<BurstSettings>),
    /// How long writes take where so much of servers' cards is used.
    Latency { scheme: Scheme, geometry: Geometry, utilization: f64, merging: Merging },
    /// How long reads take beside it, and writes, with cards that lead to what is behind servers, too, or not.
    Reads { scheme: Scheme, utilization: f64, has_one_card: bool },
    /// How long writes take, and how even servers are, where bursts are told so, or agents find that out.
    Told { scheme: Scheme, auto: Option<Auto>, utilization: f64 },
    /// The same with replicas; and how even servers are.
    Replication(Replicated),
    /// How wrong predictions of volumes' traffic are.
    Prediction { interval_ms: u64 },
}

/// What of replication differs.
#[derive(Clone, Copy, Debug)]
struct Replicated {
    geometry: Geometry,
    utilization: f64,
    /// Clients choose among replicas.
    chooses: bool,
    /// Replicas have to agree.
    synchronizes: bool,
    /// How long reads take, too, with cards that lead to what is behind servers, or not. How even servers are is left out then.
    reads_with_one_card: Option<bool>,
}

/// What came of a point.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// For each placement of segments.
    pub balances: Vec<Balance>,
    /// What of bursts was found.
    pub detection: Detection,
    /// How long writes took.
    pub latency: Latency,
    /// How wrong predictions were.
    pub errors: Errors,
}

impl Paper for Sig23 {
    const NAME: &'static str = "sig23";
    const FIGURES: &'static [Figure] = figures::FIGURES;
    /// At most: the first so many writes. All of `seconds` are about as many.
    const REQUESTS: [u64; 2] = [2_000_000, 600_000];
    const TITLES: [&'static str; 2] = [
        "Against the paper's baselines, segmentation and migration; against bursts that are there",
        "Calibration: traffic was made after these",
    ];
    const SUMMARY: &'static str = "summary-sig23.md";
    const NO_LOAD: &'static str =
        "a trace takes the place of traffic in sig23/fig20a, sig23/auto and sig23/categories only: leave --trace out";

    type Parameters = Parameters;
    type Point = Point;
    type Measured = Measured;

    fn with(point: Point, requests: u64, seed: u64) -> Point {
        Point { requests, seed, ..point }
    }

    fn without(point: Point, mechanism: Mechanism) -> Point {
        let scheme = |scheme: Scheme| match mechanism {
            Mechanism::BurstDetection => scheme.to_owners(),
            Mechanism::RoundRobin => scheme.to_one_server(),
            _ => scheme,
        };
        let bench = match point.bench.clone() {
            Bench::Balance { scheme: usual, geometry, bin_ms } => {
                Bench::Balance { scheme: scheme(usual), geometry, bin_ms }
            }
            Bench::Latency { scheme: usual, geometry, utilization, merging: as_usual } => {
                let merging = match (mechanism, as_usual) {
                    (Mechanism::Merging, Merging::Carried(_)) => Merging::Never,
                    (Mechanism::Coordination, Merging::Carried(Pace::Prioritized)) => Merging::Carried(Pace::AtOnce),
                    _ => as_usual,
                };
                Bench::Latency { scheme: scheme(usual), geometry, utilization, merging }
            }
            Bench::Reads { scheme: usual, utilization, has_one_card } => {
                Bench::Reads { scheme: scheme(usual), utilization, has_one_card }
            }
            Bench::Told { scheme: usual, auto, utilization } => {
                let scheme = match (mechanism, auto) {
                    (Mechanism::FindingOut, Some(_)) => usual.to_owners(),
                    _ => scheme(usual),
                };
                Bench::Told { scheme, auto, utilization }
            }
            Bench::Detection(_) if mechanism == Mechanism::BurstDetection => Bench::Detection(None),
            Bench::Replication(replicated) => Bench::Replication(Replicated {
                chooses: replicated.chooses && mechanism != Mechanism::ReplicaChoice,
                synchronizes: replicated.synchronizes && mechanism != Mechanism::Synchronization,
                ..replicated
            }),
            bench => bench,
        };
        let mut parameters = point.parameters.clone();
        if mechanism == Mechanism::Burst {
            (parameters.heavy_burst_share, parameters.burst_share) = (0.0, 0.0);
        }
        Point { bench, parameters, ..point }
    }

    fn replaying(point: Point, trace: &Arc<Trace>) -> Option<Point> {
        let takes = matches!(point.bench, Bench::Detection(_) | Bench::Told { .. });
        takes.then(|| Point { source: Source::Trace(trace.clone()), ..point })
    }

    fn unlabelled(point: Point) -> Point {
        Point { label: String::new(), ..point }
    }

    fn measure(point: &Point, _clock: &dyn Fn() -> Duration) -> Measured {
        point.measure()
    }
}

impl Point {
    /// As tables have it.
    fn name(&self) -> String {
        let source = match &self.source {
            Source::W1 => "W1",
            Source::W2 => "W2",
            Source::Trace(_) => "trace",
        };
        format!("{source}, {}", self.label)
    }

    /// What traffic is made by, or the trace that it is taken from.
    fn workload(&self) -> Result<Workload, &Trace> {
        match &self.source {
            Source::W1 => Ok(Workload::w1(&self.parameters)),
            Source::W2 => Ok(Workload::w2(&self.parameters)),
            Source::Trace(trace) => Err(trace),
        }
    }

    /// Of a trace, where it is about many volumes, many copies.
    fn traffic(&self) -> Traffic {
        let copies = match (&self.source, &self.bench) {
            (Source::Trace(_), Bench::Told { .. }) => self.parameters.trace_copies,
            _ => 1,
        };
        let mut traffic = self.workload().map_or_else(writes_of, |workload| workload.make(self.seed));
        traffic.writes.truncate(self.requests as usize / copies as usize);
        match copies {
            1 => traffic,
            _ => copied(&traffic, copies, &mut Random(Prng::new(self.seed))),
        }
    }

    /// What is read beside it: nothing beside a trace's writes.
    fn reads(&self, traffic: &Traffic) -> Vec<Read> {
        self.workload().map_or_else(|_| Vec::new(), |workload| workload.reads(traffic, self.seed))
    }

    /// Makes the traffic, and looks at it.
    pub fn measure(&self) -> Measured {
        let traffic = self.traffic();
        let Parameters { servers, placements, replicas, change_bytes, bin_ms, ewma_last, .. } = self.parameters;
        let behind = Duration::from_micros(self.parameters.behind_us);
        let usual = |scheme, utilization| Cluster {
            servers,
            utilization,
            scheme,
            geometry: Geometry::LEVEE,
            merging: Merging::default(),
            behind,
            has_one_card: false,
            auto: None,
        };
        match &self.bench {
            Bench::Balance { scheme, geometry, bin_ms } => {
                let of = |seed| Balance::of(&traffic, *scheme, *geometry, servers, bin_ms * 1_000_000, seed);
                Measured { balances: (0..placements).map(of).collect(), ..Measured::default() }
            }
            Bench::Detection(settings) => {
                let each = traffic.by_volume().into_iter().map(|writes| Detection::of(&writes, *settings));
                Measured { detection: each.reduce(Detection::and).unwrap_or_default(), ..Measured::default() }
            }
            Bench::Latency { scheme, geometry, utilization, merging } => {
                let cluster = Cluster { geometry: *geometry, merging: *merging, ..usual(*scheme, *utilization) };
                Measured { latency: Latency::of(&traffic, Vec::new(), cluster, self.seed), ..Measured::default() }
            }
            Bench::Reads { scheme, utilization, has_one_card } => {
                let cluster = Cluster { has_one_card: *has_one_card, ..usual(*scheme, *utilization) };
                let latency = Latency::of(&traffic, self.reads(&traffic), cluster, self.seed);
                Measured { latency, ..Measured::default() }
            }
            Bench::Told { scheme, auto, utilization } => {
                let cluster = Cluster { auto: *auto, ..usual(*scheme, *utilization) };
                let latency = Latency::of(&traffic, Vec::new(), cluster, self.seed);
                Measured { balances: latency.balance.into_iter().collect(), latency, ..Measured::default() }
            }
            Bench::Prediction { interval_ms } => {
                let errors = Errors::of(&traffic, interval_ms * 1_000_000, ewma_last);
                Measured { errors, ..Measured::default() }
            }
            Bench::Replication(replicated) => {
                let Replicated { geometry, utilization, chooses, synchronizes, reads_with_one_card } = *replicated;
                let replication = Replication {
                    servers,
                    utilization,
                    geometry,
                    replicas,
                    chooses,
                    synchronizes,
                    behind,
                    has_one_card: reads_with_one_card == Some(true),
                    change_bytes,
                };
                let of = |reads: &[Read], seed| replication.of(&traffic, reads, bin_ms * 1_000_000, seed);
                if reads_with_one_card.is_some() {
                    return Measured { latency: of(&self.reads(&traffic), self.seed), ..Measured::default() };
                }
                let balances = (0..placements).filter_map(|seed| of(&[], seed).balance).collect();
                Measured { balances, latency: of(&[], self.seed), ..Measured::default() }
            }
        }
    }
}
