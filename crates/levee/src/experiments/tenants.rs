//! `levee lab run osdi24`: the figures on tenants that share an agent, and on its loops.

#![allow(clippy::disallowed_methods, reason = "the clock outside of the simulated worlds")]

use std::time::Instant;

use base::{Error, Result};
use lab::experiments::osdi24::{self, Experiment, Known, Parameters, Point, Setup, Ways};

use super::{conclude, measure_all, show};
use crate::cli::Run;
use crate::verify::new_seed;

/// What all of them are called.
const PAPER: &str = "osdi24";
/// Requests at each point, of all guests, in full and for a quick look: half a second, and a tenth.
const REQUESTS: u64 = 50_000;
const REQUESTS_QUICK: u64 = 10_000;

/// Whether a name is one of these, though there may be no such figure.
pub(super) fn has(name: &str) -> bool {
    name.split('/').next() == Some(PAPER)
}

/// Names and titles.
pub(super) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    osdi24::ALL.iter().map(|experiment| (experiment.name, experiment.title))
}

/// Runs those, prints their tables, and says which are missed.
pub(super) fn run(names: &[String], options: &Run) -> Result<Vec<String>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    if options.trace.is_some() {
        return Err(Error::invalid("a trace takes no guest's place in experiments of osdi24: leave --trace out"));
    }
    let found = names.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?;
    let seed = options.seed.unwrap_or_else(|| if options.seeds.is_some() { new_seed() } else { 1 });
    let usual = Setup {
        parameters: Parameters::with(&options.changes)?,
        requests: options.requests.unwrap_or(if options.quick { REQUESTS_QUICK } else { REQUESTS }),
        seed,
        without: None,
    };
    let ways = Ways {
        changes: options.changes.clone(),
        necessity: options.necessity,
        neighbours: options.neighbours,
        seeds: options.seeds.unwrap_or(0),
    };
    let begun = Instant::now();
    let clock = || begun.elapsed();
    let measure = |points: &[Point]| measure_all(points.len(), |number| points[number].measure(&clock));
    let (mut known, mut reports) = (Known::default(), Vec::new());
    for experiment in found.into_iter().flatten() {
        let report = experiment.report(&usual, &ways, &mut known, &measure)?;
        show(&report, options)?;
        reports.push(report);
    }
    conclude(&reports, osdi24::TITLES, &format!("summary-{PAPER}.md"), options)
}

/// The experiments that a name stands for: one, or all.
fn find(name: &str) -> Result<Vec<&'static Experiment>> {
    match osdi24::find(name) {
        Some(experiment) => Ok(vec![experiment]),
        None if name.trim_end_matches('/') == PAPER => Ok(osdi24::ALL.iter().collect()),
        None => Err(Error::invalid(format!("there is no experiment {name:?}: levee lab run lists them"))),
    }
}
