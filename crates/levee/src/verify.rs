//! `levee lab verify`: many seeds, side by side, and what came of them.
//!
//! Each seed is a world of its own and knows nothing of the others, so that several run on threads of their own. They
//! are taken in order, and what was taken is finished: the seeds of a campaign are always a range without gaps, and
//! its hash, folded in order, does not depend on how many ran side by side.

#![allow(clippy::disallowed_methods, reason = "the clock outside of the simulated worlds")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::{Error, Result};
use indicatif::ProgressBar;
use lab::verify::coverage::Event;
use lab::verify::plan::Step;
use lab::verify::{Coverage, FaultKind, Outcome, Plan, panics, run as run_plan, shrink_plan};
use serde::Serialize;

use crate::cli::Verify;
use crate::console;

const SEEDS_DEFAULT: u64 = 200;
/// Runs that looking for a smaller plan may take.
const SHRINK_RUNS_MAX: usize = 400;
/// In so many worlds of several servers all happens that can.
const SEVERAL_ENOUGH: u64 = 50;
/// Where nobody watches a bar, a line says so often how far it is.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// Runs the seeds that were asked for, and prints what they exercised.
///
/// # Errors
/// `Corrupt` after a violation.
pub fn run(options: Verify) -> Result<()> {
    panics::remember();
    let campaign = Campaign::new(&options);
    let progress = Mutex::new(Progress::new(campaign.seeds));
    std::thread::scope(|scope| {
        (0..campaign.jobs).for_each(|_| drop(scope.spawn(|| campaign.work(&progress))));
    });
    let progress = progress.into_inner().map_err(|_| Error::internal("a seed ended its thread"))?;
    progress.bar.finish_and_clear();
    let (violation, wall) = (progress.violation.clone(), campaign.begun.elapsed());
    let shrunk = violation.as_ref().filter(|_| !options.no_shrink).map(|(seed, _)| campaign.shrink(*seed));
    let report = campaign.report(progress, wall);
    match options.json {
        true => console::print_json(&report)?,
        false => console::print(&report.text()),
    }
    match violation {
        None => Ok(()),
        Some((seed, what)) => Err(Error::corrupt(campaign.describe(seed, &what, shrunk))),
    }
}

/// What is to be run.
struct Campaign {
    first: u64,
    seeds: Option<u64>,
    time: Option<Duration>,
    kinds: Vec<FaultKind>,
    jobs: usize,
    begun: Instant,
}

/// How far it is.
struct Progress {
    /// Seeds that were taken.
    taken: u64,
    /// Hashes of seeds that are done and have one before them that is not.
    waiting: BTreeMap<u64, u64>,
    /// Seeds whose hash is in `hash`.
    folded: u64,
    hash: u64,
    coverage: Coverage,
    /// Of the lowest seed that has one.
    violation: Option<(u64, String)>,
    bar: ProgressBar,
    reported: Instant,
}

impl Progress {
    fn new(seeds: Option<u64>) -> Progress {
        Progress {
            taken: 0,
            waiting: BTreeMap::new(),
            folded: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            coverage: Coverage::default(),
            violation: None,
            bar: console::count("seeds", seeds),
            reported: Instant::now(),
        }
    }

    fn on_done(&mut self, number: u64, seed: u64, outcome: Outcome) {
        self.waiting.insert(number, outcome.hash);
        while let Some(hash) = self.waiting.remove(&self.folded) {
            // FNV-1a over words.
            self.hash = (self.hash ^ hash).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
            self.folded += 1;
        }
        self.coverage.add(&outcome.coverage);
        let is_first = self.violation.as_ref().is_none_or(|(first, _)| seed < *first);
        if let Some(what) = outcome.violation.filter(|_| is_first) {
            self.violation = Some((seed, what));
        }
        self.bar.inc(1);
        if self.bar.is_hidden() && self.reported.elapsed() >= REPORT_EVERY {
            self.reported = Instant::now();
            let (seeds, requests) = (self.bar.position(), self.coverage.requests);
            eprintln!("{seeds} seeds, {requests} operations, {} crashes", self.coverage.crashes);
        }
    }
}

/// Another one every time, as short as a person likes to type it.
pub fn new_seed() -> u64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    clock.as_micros() as u64 % 1_000_000_000_000
}

impl Campaign {
    fn new(options: &Verify) -> Campaign {
        let first = options.seed.unwrap_or_else(new_seed);
        let seeds = match (options.seeds, options.seed, options.minutes) {
            (Some(seeds), ..) => Some(seeds),
            (None, _, Some(_)) => None,
            (None, Some(_), None) => Some(1),
            (None, None, None) => Some(SEEDS_DEFAULT),
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Campaign {
            first,
            seeds,
            time: options.minutes,
            kinds: options.faults.clone().map_or(FaultKind::ALL.to_vec(), |faults| faults.0),
            jobs: options.jobs.map_or(processors, usize::from),
            begun: Instant::now(),
        }
    }

    /// Runs seeds until there are none.
    fn work(&self, progress: &Mutex<Progress>) {
        loop {
            let number = {
                let Ok(mut progress) = progress.lock() else { return };
                let is_late = self.time.is_some_and(|time| self.begun.elapsed() >= time);
                let is_last = self.seeds.is_some_and(|seeds| progress.taken >= seeds);
                if is_late || is_last || progress.violation.is_some() {
                    return;
                }
                progress.taken += 1;
                progress.taken - 1
            };
            let seed = self.first.wrapping_add(number);
            let outcome = run_plan(&self.plan(seed));
            let Ok(mut progress) = progress.lock() else { return };
            progress.on_done(number, seed, outcome);
        }
    }

    fn plan(&self, seed: u64) -> Plan {
        Plan::draw(seed, &self.kinds)
    }

    /// The steps that are needed for the violation of a seed, of how many, and whether all of them are.
    fn shrink(&self, seed: u64) -> (Vec<Step>, usize, bool) {
        let plan = self.plan(seed);
        let spinner = console::spinner("looking for a smaller plan");
        let shrunk = shrink_plan(&plan, SHRINK_RUNS_MAX);
        spinner.finish_and_clear();
        (shrunk.items, plan.steps.len(), shrunk.minimal)
    }

    fn describe(&self, seed: u64, what: &str, shrunk: Option<(Vec<Step>, usize, bool)>) -> String {
        let mut lines = vec![format!("seed {seed}: {what}")];
        lines.push(format!("its world: {:?}", self.plan(seed).shape));
        if let Some((steps, all, minimal)) = shrunk {
            let whether = if minimal { "none of which can be left out" } else { "perhaps fewer would do" };
            lines.push(format!("{} of its {all} steps are enough, {whether}:", steps.len()));
            lines.extend(steps.iter().map(|step| format!("  {step:?}")));
        }
        lines.push(format!("replay it with: {}", self.command(seed, 1)));
        lines.join("\n")
    }

    /// The command line that runs the same seeds.
    fn command(&self, first: u64, seeds: u64) -> String {
        let mut command = format!("levee lab verify --seed {first} --seeds {seeds}");
        if self.kinds != FaultKind::ALL {
            let names: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
            command.push_str(" --faults ");
            command.push_str(&if names.is_empty() { "none".into() } else { names.join(",") });
        }
        command
    }

    fn report(&self, progress: Progress, wall: Duration) -> Report {
        let Progress { taken, hash, coverage, violation, .. } = progress;
        let wall = wall.as_secs_f64();
        Report {
            replay: self.command(self.first, taken),
            first_seed: self.first,
            seeds: taken,
            wall_seconds: wall,
            seeds_per_second: taken as f64 / wall,
            simulated_hours: coverage.elapsed.as_secs_f64() / 3600.0,
            busy_hours: coverage.busy.as_secs_f64() / 3600.0,
            times_real: coverage.busy.as_secs_f64() / wall,
            faults: FaultKind::ALL
                .iter()
                .map(|kind| (kind.name(), coverage.faults.get(kind).copied().unwrap_or(0)))
                .collect(),
            is_everything: self.kinds == FaultKind::ALL,
            events: Event::all()
                .map(|event| (event.name(), coverage.events.get(&event).copied().unwrap_or(0)))
                .collect(),
            violation: violation.map(|(seed, what)| format!("seed {seed}: {what}")),
            hash: format!("{hash:016x}"),
            coverage,
        }
    }
}

/// What is printed.
#[derive(Serialize)]
struct Report {
    /// The command that runs the same again.
    replay: String,
    first_seed: u64,
    seeds: u64,
    wall_seconds: f64,
    seeds_per_second: f64,
    simulated_hours: f64,
    /// Of these, with an operation or a recovery in progress.
    busy_hours: f64,
    /// Busy simulated time by real time.
    times_real: f64,
    #[serde(flatten)]
    coverage: Coverage,
    faults: BTreeMap<&'static str, u64>,
    /// Whether everything may go wrong.
    #[serde(skip)]
    is_everything: bool,
    /// What happened to several servers.
    events: BTreeMap<String, u64>,
    violation: Option<String>,
    hash: String,
}

impl Report {
    /// What a campaign of this size with everything in it should have come by, and did not.
    fn never(&self) -> impl Iterator<Item = &str> {
        let is_large = self.is_everything && self.coverage.several >= SEVERAL_ENOUGH;
        self.events.iter().filter(move |(_, count)| is_large && **count == 0).map(|(name, _)| name.as_str())
    }

    fn text(&self) -> String {
        let Coverage { requests, failed_requests, broken_requests, attachments, deletions, .. } = self.coverage;
        let Coverage { recoveries, refused_starts, crashes, crashes_in_flight, restarts, .. } = self.coverage;
        let Coverage { alone, several, pooled, coded, carded, .. } = self.coverage;
        let Coverage { audits, sectors, throttled, logged, ordered, spread, .. } = self.coverage;
        let Coverage { guests, guest_requests, carried_over, driver_resets, .. } = self.coverage;
        let events: Vec<String> = self.events.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let faults: Vec<String> = self.faults.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let never: Vec<&str> = self.never().collect();
        let rows = [
            (
                "seeds",
                format!(
                    "{}, {:.1} a second: {alone} worlds of one server, {several} of several, {pooled} of these over a pool, \
                     {coded} with data files in another one, {carded} with cards that carry little",
                    self.seeds, self.seeds_per_second
                ),
            ),
            (
                "simulated",
                format!(
                    "{:.2} hours, {:.2} of them with an operation or a recovery in progress: {:.0} times real time",
                    self.simulated_hours, self.busy_hours, self.times_real
                ),
            ),
            (
                "operations",
                format!("{requests} done, {failed_requests} failed, {broken_requests} lost with their connection"),
            ),
            ("throttled", format!("{throttled} times somebody waited for a level or a bucket")),
            ("forwarding", format!("{logged} requests while something was in a log")),
            (
                "loops",
                format!("{spread} requests while several had connections; {ordered} looks at the order of writes"),
            ),
            (
                "guests",
                format!(
                    "{guests} clients were virtual machines: {guest_requests} answers, {carried_over} of them after another \
                     connection, {driver_resets} resets by drivers"
                ),
            ),
            ("crashes", format!("{crashes}, {crashes_in_flight} of them with I/O in flight")),
            ("starts", format!("{recoveries} recoveries, {restarts} clean restarts, {refused_starts} refused")),
            ("volumes", format!("{attachments} attachments, {deletions} deletions")),
            ("faults", faults.join(", ")),
            ("several servers", events.join(", ")),
            ("checked", format!("{sectors} sectors' histories, {audits} audits of all accounts")),
            ("violations", u64::from(self.violation.is_some()).to_string()),
            ("the same again", self.replay.clone()),
        ];
        let never = (!never.is_empty()).then(|| ("never happened", never.join(", ")));
        let rows: Vec<String> =
            rows.into_iter().chain(never).map(|(name, text)| format!("{name:<15} {text}")).collect();
        format!("{}\nhash={}", rows.join("\n"), self.hash)
    }
}
