//! `levee lab bugs`: switches seeded bugs on, one after the other, and counts the seeds until a simulated run notices.
//! Only in builds with the feature `seeded-bugs`.

#![allow(clippy::disallowed_methods, reason = "the clock outside of the simulated worlds")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::seeded::{self, SeededBug};
use base::{Error, Result};
use lab::bugs::{Survey, subset, table_head};
use lab::verify::panics;

use crate::cli::Bugs;
use crate::console;
use crate::verify::new_seed;

/// Hunts for the bugs that were asked for, and prints a table.
///
/// # Errors
/// `Corrupt` if one was not caught from every start, `Invalid` for a name that no bug has.
pub fn run(options: Bugs) -> Result<()> {
    panics::remember();
    let base = options.base.unwrap_or_else(new_seed);
    let bugs = chosen(&options, base)?;
    // Which ones, before anything takes long: what is printed last may never be printed.
    eprintln!("{} of {} bugs, seeds from {base}", bugs.len(), seeded::ALL.len());
    let surveys = survey_all(&bugs, base, &options);
    let rows = surveys.iter().map(Survey::row);
    let table: Vec<String> = std::iter::once(table_head(options.starts)).chain(rows).collect();
    console::print(&table.join("\n"));
    if options.explain {
        surveys.iter().for_each(|survey| console::print(&survey.explanation()));
    }
    let missed: Vec<&str> = surveys.iter().filter(|survey| !survey.is_caught()).map(|s| s.bug.name).collect();
    match missed[..] {
        [] => Ok(()),
        _ => Err(Error::corrupt(format!(
            "not caught within {} seeds: {}; the same again: levee lab bugs --base {base} --bug {}",
            options.seeds,
            missed.join(", "),
            missed.join(" --bug ")
        ))),
    }
}

fn chosen(options: &Bugs, base: u64) -> Result<Vec<&'static SeededBug>> {
    if let Some(count) = options.subset {
        return Ok(subset(count, base));
    }
    if options.bugs.is_empty() {
        return Ok(seeded::ALL.iter().collect());
    }
    let find = |name: &String| seeded::find(name).ok_or_else(|| Error::invalid(format!("there is no bug {name:?}")));
    options.bugs.iter().map(find).collect()
}

/// Each bug on a thread of its own, as many at a time as there are processors.
fn survey_all(bugs: &[&'static SeededBug], base: u64, options: &Bugs) -> Vec<Survey> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let progress = console::count("bugs", Some(bugs.len() as u64));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let survey = Survey::of(bug, base, options.starts, options.seeds);
                    // Where nobody watches a bar, and for whoever does not want to wait for the last one.
                    progress.suspend(|| eprintln!("{}", survey.row()));
                    if let Ok(mut done) = done.lock() {
                        done.push(survey);
                    }
                    progress.inc(1);
                }
            });
        }
    });
    progress.finish_and_clear();
    let mut surveys = done.into_inner().unwrap_or_default();
    surveys.sort_by_key(|survey: &Survey| (survey.bug.rule, survey.bug.name));
    surveys
}
