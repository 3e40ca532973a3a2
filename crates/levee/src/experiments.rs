//! `levee lab run`: an experiment by name, its points side by side, its table.

#![allow(clippy::disallowed_methods, reason = "threads and files outside of the simulated worlds")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Error, Map, Result};
use lab::experiments::{self, Experiment, Measured, Neighbour, Parameters, Point, Report};

use crate::cli::Run;
use crate::console;

/// Requests at each point, in full and for a quick look.
const REQUESTS: u64 = 10_000_000;
const REQUESTS_QUICK: u64 = 600_000;

/// Runs the experiments that were asked for, and prints their tables.
///
/// # Errors
/// `Invalid` for an unknown name or parameter, `Conflict` where a result is outside of its band.
pub fn run(options: Run) -> Result<()> {
    if options.names.is_empty() {
        let names = experiments::ALL.iter().map(|experiment| format!("{:16} {}", experiment.name, experiment.title));
        console::print(&names.collect::<Vec<_>>().join("\n"));
        return Ok(());
    }
    let parameters = Parameters::with(&options.changes)?;
    let chosen = options.names.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?;
    let mut missed = Vec::new();
    let mut known = Known::default();
    for experiment in chosen.into_iter().flatten() {
        let report = measure(experiment, &parameters, &options, &mut known)?;
        match options.json {
            true => console::print_json(&report)?,
            false => console::print(&report.table()),
        }
        if let Some(directory) = &options.out {
            let stem = directory.join(report.name.replace('/', "-"));
            for (kind, text) in [("csv", report.csv()), ("svg", report.svg())] {
                let path = stem.with_extension(kind);
                let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text));
                written.map_err(|error| Error::from_io(format!("cannot write {}", path.display()), &error))?;
            }
        }
        if !report.is_met() {
            missed.push(report.name);
        }
    }
    match missed.is_empty() {
        true => Ok(()),
        false => Err(Error::conflict(format!("outside of the band: {}", missed.join(", ")))),
    }
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

fn measure(experiment: &Experiment, parameters: &Parameters, options: &Run, known: &mut Known) -> Result<Report> {
    let requests = options.requests.unwrap_or(if options.quick { REQUESTS_QUICK } else { REQUESTS });
    let seen: &[&str] = if options.neighbours { experiment.sensitive } else { &[] };
    let near = seen.iter().map(|key| Parameters::neighbours(&options.changes, key)).collect::<Result<Vec<_>>>()?;
    let near: Vec<(String, Parameters)> = near.into_iter().flatten().collect();
    let points_of = |parameters: &Parameters| -> Vec<Point> {
        let points = (experiment.points)(parameters).into_iter();
        points.map(|point| Point { requests, seed: options.seed, ..point }).collect()
    };
    let key = |point: &Point| format!("{:?}", Point { label: String::new(), ..point.clone() });
    let all = std::iter::once(parameters).chain(near.iter().map(|(_, parameters)| parameters)).flat_map(points_of);
    let new: Vec<Point> = all.filter(|point| !known.contains_key(&key(point))).collect();
    let measured = measure_all(&new);
    known.extend(new.iter().map(key).zip(measured));
    let rows_of = |parameters: &Parameters| {
        let of = |point: Point| (point.clone(), known.get(&key(&point)).cloned().unwrap_or_default());
        let pairs: Vec<(Point, Measured)> = points_of(parameters).into_iter().map(of).collect();
        (experiment.judge)(parameters, &pairs)
    };
    Ok(Report {
        name: experiment.name.to_owned(),
        title: experiment.title.to_owned(),
        requests,
        seed: options.seed,
        changes: options.changes.clone(),
        rows: rows_of(parameters),
        neighbours: near
            .iter()
            .map(|(change, parameters)| Neighbour { change: change.clone(), rows: rows_of(parameters) })
            .collect(),
    })
}

/// Each point on a thread of its own, as many at a time as there are processors.
fn measure_all(points: &[Point]) -> Vec<Measured> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(vec![Measured::default(); points.len()]));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).min(points.len());
    let progress = console::count("points", Some(points.len() as u64));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(point) = points.get(number) else { break };
                    let measured = point.measure();
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
