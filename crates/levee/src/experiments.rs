//! `levee lab run`: an experiment by name, its points side by side, its table.

#![allow(clippy::disallowed_methods, reason = "threads and files outside of the simulated worlds")]

mod tenants;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base::{Error, Map, Result};
use lab::experiments::report::in_the_middle;
use lab::experiments::{self, Experiment, Measured, Parameters, Point, Report, Row, Setup, Trace, Variation, summary};

use crate::cli::Run;
use crate::console;
use crate::verify::new_seed;

/// Requests at each point, in full and for a quick look.
const REQUESTS: u64 = 10_000_000;
const REQUESTS_QUICK: u64 = 600_000;

/// Runs the experiments that were asked for, and prints their tables; of several also the summary.
///
/// # Errors
/// `Invalid` for an unknown name or parameter, `Conflict` where a number is missed, or is not without what it needs.
pub fn run(options: Run) -> Result<()> {
    if options.names.is_empty() {
        let names =
            experiments::ALL.iter().map(|experiment| (experiment.name, experiment.title)).chain(tenants::names());
        let lines = names.map(|(name, title)| format!("{name:16} {title}"));
        console::print(&lines.collect::<Vec<_>>().join("\n"));
        return Ok(());
    }
    let (others, names): (Vec<String>, Vec<String>) =
        options.names.iter().cloned().partition(|name| tenants::has(name));
    let mut missed = tenants::run(&others, &options)?;
    missed.extend(run_throttling(&names, &options)?);
    match missed.is_empty() {
        true => Ok(()),
        false => Err(Error::conflict(format!("missed, or met without what it needs: {}", missed.join(", ")))),
    }
}

/// Runs those on throttling at the block server, and says which are missed.
fn run_throttling(names: &[String], options: &Run) -> Result<Vec<String>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let parameters = Parameters::with(&options.changes)?;
    let trace = options.trace.as_deref().map(read_trace).transpose()?.map(Arc::new);
    let found = names.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?;
    let has_load = |experiment: &&Experiment| trace.is_none() || experiment.has_load(&parameters);
    let chosen: Vec<&Experiment> = found.into_iter().flatten().filter(has_load).collect();
    if chosen.is_empty() {
        return Err(Error::invalid("nothing is asked for in this experiment that a trace could take the place of"));
    }
    let seed = options.seed.unwrap_or_else(|| if options.seeds.is_some() { new_seed() } else { 1 });
    let requests = options.requests.unwrap_or(if options.quick { REQUESTS_QUICK } else { REQUESTS });
    if let Some(seeds) = options.seeds {
        eprintln!("{seeds} seeds from {seed} on: --seed {seed} --seeds {seeds} repeats them");
    }
    let usual = Setup { parameters, requests, seed, without: None, trace };
    let (mut known, mut reports) = (Known::default(), Vec::new());
    for experiment in chosen {
        let report = Plan::new(experiment, &usual, options)?.measure(&mut known, options);
        show(&report, options)?;
        reports.push(report);
    }
    conclude(&reports, experiments::nsdi26::TITLES, "summary.md", options)
}

/// Prints a figure, and writes its files.
fn show(report: &Report, options: &Run) -> Result<()> {
    match options.json {
        true => console::print_json(report)?,
        false => console::print(&report.table()),
    }
    let stem = report.name.replace('/', "-");
    write(options, &format!("{stem}.csv"), &report.csv())?;
    write(options, &format!("{stem}.svg"), &report.svg())
}

/// Prints what all figures of a paper come to, and says which are missed.
fn conclude(reports: &[Report], titles: [&str; 2], file: &str, options: &Run) -> Result<Vec<String>> {
    let summary = summary::table(reports, titles);
    if reports.len() > 1 && !options.json {
        console::print(&summary);
    }
    write(options, file, &summary)?;
    Ok(reports.iter().filter(|report| !report.is_met()).map(|report| report.name.clone()).collect())
}

fn read_trace(path: &Path) -> Result<Trace> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| Error::from_io(format!("cannot read the trace {name}"), &error))?;
    Trace::parse(&name, &bytes)
}

/// Writes a file of results, if that was asked for.
fn write(options: &Run, name: &str, text: &str) -> Result<()> {
    let Some(directory) = &options.out else { return Ok(()) };
    let path = directory.join(name);
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text));
    written.map_err(|error| Error::from_io(format!("cannot write {}", path.display()), &error))
}

/// The experiments that a name stands for: one, or all of a paper.
fn find(name: &str) -> Result<Vec<&'static Experiment>> {
    if let Some(experiment) = experiments::find(name) {
        return Ok(vec![experiment]);
    }
    let prefix = format!("{}/", name.trim_end_matches('/'));
    let group: Vec<_> = experiments::ALL.iter().filter(|experiment| experiment.name.starts_with(&prefix)).collect();
    match group.is_empty() {
        false => Ok(group),
        true => Err(Error::invalid(format!("there is no experiment {name:?}: levee lab run lists them"))),
    }
}

/// What was measured already, by everything that it depends on: some figures look at the same points.
type Known = Map<String, Measured>;

fn key(point: &Point) -> String {
    format!("{:?}", Point { label: String::new(), ..point.clone() })
}

/// All the ways in which one figure is run.
struct Plan {
    experiment: &'static Experiment,
    usual: Setup,
    without: Vec<Setup>,
    neighbours: Vec<(String, Setup)>,
    seeds: Vec<Setup>,
}

impl Plan {
    fn new(experiment: &'static Experiment, usual: &Setup, options: &Run) -> Result<Plan> {
        let needs = if options.necessity { experiment.needs() } else { Vec::new() };
        let seen: &[&str] = if options.neighbours { experiment.sensitive } else { &[] };
        let near = seen.iter().map(|key| Parameters::neighbours(&options.changes, key)).collect::<Result<Vec<_>>>()?;
        let near = near.into_iter().flatten();
        let seed_of = |number: u64| Setup { seed: usual.seed.wrapping_add(number), ..usual.clone() };
        Ok(Plan {
            experiment,
            usual: usual.clone(),
            without: needs.into_iter().map(|one| Setup { without: Some(one), ..usual.clone() }).collect(),
            neighbours: near.map(|(change, parameters)| (change, Setup { parameters, ..usual.clone() })).collect(),
            seeds: (0..options.seeds.unwrap_or(0)).map(seed_of).collect(),
        })
    }

    fn measure(&self, known: &mut Known, options: &Run) -> Report {
        let others = self.without.iter().chain(self.neighbours.iter().map(|(_, setup)| setup)).chain(&self.seeds);
        let mut new: Vec<Point> = Vec::new();
        let mut listed = base::Set::default();
        for point in std::iter::once(&self.usual).chain(others).flat_map(|setup| self.experiment.points(setup)) {
            if !known.contains_key(&key(&point)) && listed.insert(key(&point)) {
                new.push(point);
            }
        }
        let measured = measure_all(new.len(), |number| new[number].measure());
        known.extend(new.iter().map(key).zip(measured));
        let rows = |setup: &Setup| self.rows(setup, known);
        let variation = |change: String, setup| Variation { change, rows: rows(setup) };
        let seeds: Vec<Variation> = self.seeds.iter().map(|setup| variation(setup.seed.to_string(), setup)).collect();
        let without = self.without.iter().filter_map(|setup| Some((setup.without?, rows(setup))));
        Report {
            name: self.experiment.name.to_owned(),
            title: self.experiment.title.to_owned(),
            requests: self.usual.requests,
            seed: self.usual.seed,
            changes: options
                .changes
                .iter()
                .cloned()
                .chain(self.usual.trace.iter().map(|trace| format!("{trace:?}")))
                .collect(),
            rows: in_the_middle(&seeds).unwrap_or_else(|| rows(&self.usual)),
            without: without.collect(),
            neighbours: self.neighbours.iter().map(|(change, setup)| variation(change.clone(), setup)).collect(),
            seeds,
        }
    }

    fn rows(&self, setup: &Setup, known: &Known) -> Vec<Row> {
        let of = |point: Point| (point.clone(), known.get(&key(&point)).cloned().unwrap_or_default());
        let pairs: Vec<(Point, Measured)> = self.experiment.points(setup).into_iter().map(of).collect();
        self.experiment.judge(setup, &pairs)
    }
}

/// Each point on a thread of its own, as many at a time as there are processors.
fn measure_all<T: Clone + Default + Send>(count: usize, measure: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(vec![T::default(); count]));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).min(count);
    let progress = console::count("points", Some(count as u64));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    let measured = measure(number);
                    if let Ok(mut done) = done.lock() {
                        done[number] = measured;
                    }
                    progress.inc(1);
                }
            });
        }
    });
    progress.finish_and_clear();
    done.into_inner().unwrap_or_default()
}
