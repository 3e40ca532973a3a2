//! `levee lab run`: an experiment by name, its points side by side, its table.

#![allow(clippy::disallowed_methods, reason = "threads, files and the clock outside of the simulated worlds")]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base::{Error, Result};
use lab::experiments::figure::{Figure, Known, Ways};
use lab::experiments::nsdi26::Nsdi26;
use lab::experiments::osdi24::Osdi24;
use lab::experiments::sig23::Sig23;
use lab::experiments::{FromFile, Paper, Report, Setup, Trace, summary};

use crate::cli::Run;
use crate::console;
use crate::verify::new_seed;

/// Runs the experiments that were asked for, and prints their tables; of several also the summary.
///
/// # Errors
/// `Invalid` for an unknown name or parameter, `Conflict` where a number is missed, or is not without what it needs.
pub fn run(options: Run) -> Result<()> {
    if options.names.is_empty() {
        console::print(&[names::<Nsdi26>(), names::<Osdi24>(), names::<Sig23>()].concat().join("\n"));
        return Ok(());
    }
    let is_known = |name: &&String| is_of::<Nsdi26>(name) || is_of::<Osdi24>(name) || is_of::<Sig23>(name);
    if let Some(name) = options.names.iter().find(|name| !is_known(name)) {
        return Err(unknown(name));
    }
    let mut missed = run_paper::<Osdi24>(&options)?;
    missed.extend(run_paper::<Nsdi26>(&options)?);
    missed.extend(run_paper::<Sig23>(&options)?);
    match missed.is_empty() {
        true => Ok(()),
        false => Err(Error::conflict(format!("missed, or met without what it needs: {}", missed.join(", ")))),
    }
}

/// Names and titles of a paper's figures.
fn names<P: Paper>() -> Vec<String> {
    P::FIGURES.iter().map(|figure| format!("{:16} {}", figure.name, figure.title)).collect()
}

/// Whether a name is one of this paper's, though there may be no such figure.
fn is_of<P: Paper>(name: &str) -> bool {
    name.split('/').next() == Some(P::NAME)
}

/// Runs what was asked for of one paper, and says which are missed.
fn run_paper<P: Paper>(options: &Run) -> Result<Vec<String>> {
    let names: Vec<&String> = options.names.iter().filter(|name| is_of::<P>(name)).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let usual: Setup<P> = Setup {
        parameters: P::Parameters::with(&options.changes)?,
        requests: options.requests.unwrap_or(P::REQUESTS[usize::from(options.quick)]),
        seed: options.seed.unwrap_or_else(|| if options.seeds.is_some() { new_seed() } else { 1 }),
        without: None,
        trace: options.trace.as_deref().map(read_trace).transpose()?.map(Arc::new),
    };
    let found = names.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?;
    let has_load = |figure: &&Figure<P>| usual.trace.is_none() || !figure.points(&usual).is_empty();
    let chosen: Vec<&Figure<P>> = found.into_iter().flatten().filter(has_load).collect();
    if chosen.is_empty() {
        return Err(Error::invalid(P::NO_LOAD));
    }
    if let Some(seeds) = options.seeds {
        let seed = usual.seed;
        eprintln!("{seeds} seeds from {seed} on: --seed {seed} --seeds {seeds} repeats them");
    }
    let ways = Ways {
        changes: options.changes.clone(),
        necessity: options.necessity,
        neighbours: options.neighbours,
        seeds: options.seeds.unwrap_or(0),
    };
    let begun = Instant::now();
    let clock = || begun.elapsed();
    let measure = |points: &[P::Point]| measure_all(points.len(), |number| P::measure(&points[number], &clock));
    let (mut known, mut reports) = (Known::default(), Vec::new());
    for figure in chosen {
        let report = figure.report(&usual, &ways, &mut known, &measure)?;
        show(&report, options)?;
        reports.push(report);
    }
    let summary = summary::table(&reports, P::TITLES);
    if reports.len() > 1 && !options.json {
        console::print(&summary);
    }
    write(options, P::SUMMARY, &summary)?;
    Ok(reports.into_iter().filter(|report| !report.is_met()).map(|report| report.name).collect())
}

/// The figures that a name stands for: one, or all of the paper.
fn find<P: Paper>(name: &str) -> Result<Vec<&'static Figure<P>>> {
    match P::find(name) {
        Some(figure) => Ok(vec![figure]),
        None if name.trim_end_matches('/') == P::NAME => Ok(P::FIGURES.iter().collect()),
        None => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> Error {
    Error::invalid(format!("there is no experiment {name:?}: levee lab run lists them"))
}

fn read_trace(path: &Path) -> Result<Trace> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| Error::from_io(format!("cannot read the trace {name}"), &error))?;
    Trace::parse(&name, &bytes)
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

/// Writes a file of results, if that was asked for.
fn write(options: &Run, name: &str, text: &str) -> Result<()> {
    let Some(directory) = &options.out else { return Ok(()) };
    let path = directory.join(name);
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text));
    written.map_err(|error| Error::from_io(format!("cannot write {}", path.display()), &error))
}

/// Each point on a thread of its own, as many at a time as there are processors.
pub(crate) fn measure_all<T: Clone + Default + Send>(count: usize, measure: impl Fn(usize) -> T + Sync) -> Vec<T> {
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
