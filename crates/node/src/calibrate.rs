//! `levee calibrate`: where the knee of the disks is, measured while no store runs on them (NSDI 2026, §4.2, figure 6).
//!
//! The search is decided by `policies::admission::calibration`; here it is done, on scratch files in the store's own
//! directories, with the store's own way to its disks: past the page cache, a write durable when it completes, a read
//! from one directory, a write to as many as there are copies. So a rate means what `bandwidth` means: bytes of
//! requests, however many copies of them are written.
//!
//! **Flow.** [`plan`] looks, and says what it would cost; nothing is changed. [`Bench::open`] takes the directories' locks
//! and makes a scratch file in each; [`Bench::measure`] writes them over in full, which a disk needs to show what it does
//! later, then goes step by step; [`Bench::close`] removes them, whatever happened before. What it came to is a [`Report`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::units::{format_size, round_down};
use base::{BLOCK, Error, GIB, MIB, Prng, Result};
use files::local::LocalOptions;
use files::local::scratch::{self, Place, Scratch};
use policies::admission::calibration::{Calibration, CalibrationSettings, Point, Step};
use runtime::Handle;
use serde::Serialize;

mod fill;
mod report;
mod steps;

pub use policies::admission::calibration::{Arrivals, Mix};
pub use report::{AloneRow, Curve, Lines, PointRow, Report};

use crate::node::NEIGHBOURS;
use crate::shards;

/// Sizes that a scratch file may have.
const SIZE_MIN: u64 = 16 * MIB;
/// Room that is left in a file system: this part of it, but no more than a GiB.
const MARGIN_DIVISOR: u64 = 20;
/// The part of the time in which the scratch files are written over: what that does not reach is not used.
const FILL_DIVISOR: u32 = 4;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// The store's directories, or empty ones.
    pub directories: Vec<PathBuf>,
    /// To how many of them a write goes.
    pub copies: usize,
    /// Bytes of the scratch file in each.
    pub size: u64,
    /// How long all takes, about.
    pub lasts: Duration,
    /// What is asked for.
    pub mix: Mix,
    /// From how many times its time alone on latency has taken off, in percent.
    pub takeoff_percent: u64,
    /// Bytes that an operation costs besides its own.
    pub operation_bytes: u64,
    /// Everything random depends on it.
    pub seed: u64,
}

/// What it would cost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Plan {
    /// Where.
    pub directories: Vec<PlannedDirectory>,
    /// Bytes of the scratch file in each.
    pub scratch_bytes: u64,
    /// Bytes that are written at least, in all directories: what comes after depends on what they take.
    pub written_bytes_min: u64,
    /// To how many directories a write goes.
    pub copies: usize,
    /// How long it takes, about.
    pub seconds: u64,
    /// What is asked for.
    pub mix: String,
}

/// A directory that is to be measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PlannedDirectory {
    /// Its path.
    pub path: PathBuf,
    /// Whether it is one of a store; else it is empty.
    pub is_store: bool,
    /// What its file system has free.
    pub free_bytes: u64,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Progress {
    /// So many bytes of the scratch files are written, of so many.
    Filled(u64, u64),
    /// This is done now, since so long, and for about so long in all.
    Step(Step, Duration, Duration),
    /// A rate was tried.
    Point(Point),
}

/// Looks at the directories, and says what [`Bench`] would do. Nothing is changed.
///
/// # Errors
/// `Invalid` for sizes and times that cannot be, `Full` where there is no room, and what `files::local::scratch::look`
/// says.
pub async fn plan(handle: &Handle, options: &CalibrateOptions) -> Result<Plan> {
    check(options)?;
    let mut directories = Vec::new();
    for path in &options.directories {
        let place = scratch::look(handle, &looking_at(path)).await?;
        check_room(options, path, &place)?;
        let (is_store, free_bytes) = (place.is_store, place.space.free);
        directories.push(PlannedDirectory { path: path.clone(), is_store, free_bytes });
    }
    Ok(Plan {
        written_bytes_min: options.size * directories.len() as u64,
        directories,
        scratch_bytes: options.size,
        copies: options.copies,
        seconds: options.lasts.as_secs(),
        mix: options.mix.to_string(),
    })
}

/// Scratch files that are ours.
pub struct Bench {
    handle: Handle,
    options: CalibrateOptions,
    scratches: Vec<Scratch>,
}

impl Bench {
    /// Makes the scratch files; those of a measurement that was killed are removed.
    ///
    /// # Errors
    /// As [`plan`]; then none is left.
    pub async fn open(handle: &Handle, options: &CalibrateOptions) -> Result<Bench> {
        check(options)?;
        let mut bench = Bench { handle: handle.clone(), options: options.clone(), scratches: Vec::new() };
        for path in &options.directories {
            if let Err(error) = bench.add(path).await {
                let _ = bench.close().await;
                return Err(error);
            }
        }
        Ok(bench)
    }

    /// One after the other, because several may share a file system, whose room the earlier ones have taken from.
    async fn add(&mut self, path: &Path) -> Result<()> {
        let looking = looking_at(path);
        let place = scratch::look(&self.handle, &looking).await?;
        check_room(&self.options, path, &place)?;
        self.scratches.push(Scratch::create(&self.handle, &looking, self.options.size).await?);
        Ok(())
    }

    /// Searches the knee.
    ///
    /// # Errors
    /// `Io` where a disk fails, or does not answer.
    pub async fn measure(&self, mut on_progress: impl FnMut(Progress)) -> Result<Report> {
        let begun = self.handle.now();
        let mut prng = Prng::new(self.options.seed);
        let fill_until = begun + self.options.lasts / FILL_DIVISOR;
        let total = self.options.size * self.scratches.len() as u64;
        let on_filled = |done| on_progress(Progress::Filled(done, total));
        let filled = fill::fill(&self.handle, &self.scratches, self.options.size, fill_until, prng.fork(), on_filled);
        // The part that was written, where there was no time for all of it.
        let len = round_down(filled.await?, BLOCK).max(self.options.mix.most_bytes());
        let lasts = self.options.lasts.saturating_sub(self.handle.now().since(begun));
        let (takeoff_percent, mix) = (self.options.takeoff_percent, self.options.mix);
        let settings = CalibrationSettings { lasts, takeoff_percent, mix };
        let mut search = Calibration::new(settings, self.handle.now());
        let load = steps::Load::new(&self.handle, &self.scratches, self.options.copies, mix, len, prng);
        while let Some(step) = search.next(self.handle.now()) {
            on_progress(Progress::Step(step, self.handle.now().since(begun), self.options.lasts));
            let sample = load.run(step).await?;
            if let Some(point) = search.on_measured(self.handle.now(), &sample) {
                on_progress(Progress::Point(point));
            }
        }
        let moved = load.moved();
        Ok(Report::new(&self.options, &search.found(), len, moved, self.handle.now().since(begun)))
    }

    /// Removes the scratch files.
    ///
    /// # Errors
    /// `Io`: the next start or measurement removes what is left.
    pub async fn close(self) -> Result<()> {
        let mut closed = Ok(());
        for scratch in self.scratches {
            closed = closed.and(scratch.remove().await);
        }
        closed
    }
}

fn looking_at(path: &Path) -> LocalOptions {
    let neighbours = shards::neighbours_of(&NEIGHBOURS.map(str::to_owned), u8::MAX);
    LocalOptions { read_only: true, neighbours, ..LocalOptions::new(vec![path.to_owned()]) }
}

fn check(options: &CalibrateOptions) -> Result<()> {
    if options.directories.is_empty() {
        return Err(Error::invalid("no directory was given: name one with --dir"));
    }
    for (number, path) in options.directories.iter().enumerate() {
        if options.directories[..number].contains(path) {
            return Err(Error::invalid(format!("{} was given twice: name each directory once", path.display())));
        }
    }
    if !(1..=options.directories.len()).contains(&options.copies) {
        return Err(Error::invalid(format!(
            "{} copies in {} directories cannot be: there is at most one per directory",
            options.copies,
            options.directories.len()
        )));
    }
    if options.size < SIZE_MIN || !options.size.is_multiple_of(MIB) {
        let (size, least) = (format_size(options.size), format_size(SIZE_MIN));
        return Err(Error::invalid(format!("a scratch file of {size} cannot be: choose whole MiB, at least {least}")));
    }
    Ok(())
}

/// Whether the scratch file fits, and leaves a margin.
fn check_room(options: &CalibrateOptions, path: &Path, place: &Place) -> Result<()> {
    let margin = (place.space.total / MARGIN_DIVISOR).min(GIB);
    match place.space.free >= options.size + margin {
        true => Ok(()),
        false => Err(Error::full(format!(
            "{} has {} free; the scratch file needs {}, and {} are to stay free: free some, or choose less with --size",
            path.display(),
            format_size(place.space.free),
            format_size(options.size),
            format_size(margin)
        ))),
    }
}
