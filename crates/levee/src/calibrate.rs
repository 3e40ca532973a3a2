//! `levee calibrate`: where the knee of the disks is, while no store runs on them (NSDI 2026, §4.2, figure 6).
//!
//! It says what it would cost and asks, has it measured ([`node::calibrate`]) with progress, and prints a table, the lines
//! for the configuration, and what speaks against them; [`plot`] draws it, [`device`] sees whether others used the disks
//! meanwhile. However it ends, its scratch files are removed.

#![allow(clippy::disallowed_methods, reason = "files and the terminal outside of the simulated worlds")]

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use base::units::format_size;
use base::{Error, Result};
use indicatif::ProgressBar;
use node::calibrate::{Arrivals, Bench, CalibrateOptions, Plan, PointRow, Progress, Report, plan};
use runtime::Handle;
use runtime::uring::{self, process};

use crate::cli::Calibrate;
use crate::explain::duration;
use crate::{console, up};

mod device;
mod plot;

/// The plot's name.
const PLOT: &str = "levee-calibration.svg";

/// Calibrates.
///
/// # Errors
/// What keeps the disks from being measured, and `Retry` where no knee was found.
pub fn run(options: Calibrate) -> Result<()> {
    let settings = up::settings_of(options.config.as_deref(), &options.directories)?;
    let resolved = settings.resolve()?;
    let wanted = CalibrateOptions {
        copies: resolved.copies.into(),
        directories: settings.directories,
        size: options.size,
        lasts: Duration::from_secs(options.seconds),
        mix: options.mix,
        takeoff_percent: settings.admission.takeoff_percent,
        operation_bytes: resolved.admission.operation_bytes,
        seed: options.seed,
    };
    let planned = in_a_loop({
        let wanted = wanted.clone();
        move |handle| async move { plan(&handle, &wanted).await }
    })?;
    if options.dry_run {
        return match options.json {
            true => console::print_json(&planned),
            false => {
                console::print(&text_of(&planned));
                Ok(())
            }
        };
    }
    eprintln!("{}", text_of(&planned));
    if !options.yes && !is_wanted()? {
        return Ok(());
    }
    let plot = plot_path(&options)?;
    let before = device::counters(&wanted.directories);
    // Before any other thread: they inherit which signals they do not take.
    let signals = process::stop_signals().map_err(|error| Error::from_io("cannot wait for signals", &error))?;
    let measured = {
        let wanted = wanted.clone();
        in_a_loop(move |handle| async move { measure(&handle, &wanted, signals).await })?
    };
    let Some(mut report) = measured else {
        return Err(Error::retry("stopped: nothing was found, and the scratch files are removed"));
    };
    let after = device::counters(&wanted.directories);
    report.doubts.extend(device::others(&before, &after, &wanted, &report));
    tell(&report, &options, plot.as_deref())
}

/// Measures until that is done, or a signal comes; then nothing is given. The scratch files are removed either way.
async fn measure(
    handle: &Handle,
    wanted: &CalibrateOptions,
    signals: async_channel::Receiver<process::Stop>,
) -> Result<Option<Report>> {
    let bench = Bench::open(handle, wanted).await?;
    let watch = Watch::new();
    let measured = {
        let mut measuring = pin!(bench.measure(|progress| watch.on_progress(progress)));
        let mut stop = pin!(signals.recv());
        std::future::poll_fn(|cx| match measuring.as_mut().poll(cx) {
            Poll::Ready(report) => Poll::Ready(Some(report)),
            Poll::Pending => stop.as_mut().poll(cx).map(|_| None),
        })
        .await
    };
    watch.finish();
    let closed = bench.close().await;
    let report = measured.transpose()?;
    closed.map(|()| report)
}

fn in_a_loop<T: 'static, F: Future<Output = Result<T>> + 'static>(main: impl FnOnce(Handle) -> F) -> Result<T> {
    uring::run(uring::Options::default(), main).map_err(|error| Error::from_io("cannot run an event loop", &error))?
}

/// Asks on a terminal; without one nobody can be asked.
fn is_wanted() -> Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(Error::invalid("nobody can be asked here: say --yes to go on, or --dry-run to only see this"));
    }
    eprint!("Go on? [y/N] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Error::from_io("cannot read the answer", &error))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Where the plot goes: to --out, else to where we are, unless a program reads what is printed. The directory is there
/// before anything is measured.
fn plot_path(options: &Calibrate) -> Result<Option<PathBuf>> {
    match &options.out {
        Some(out) => {
            let made = std::fs::create_dir_all(out);
            made.map_err(|error| Error::from_io(format!("cannot make {}", out.display()), &error))?;
            Ok(Some(out.join(PLOT)))
        }
        None if options.json => Ok(None),
        None => Ok(Some(PLOT.into())),
    }
}

/// What is printed in the end.
fn tell(report: &Report, options: &Calibrate, plot: Option<&Path>) -> Result<()> {
    match options.json {
        true => console::print_json(report)?,
        false => console::print(&report_text(report)),
    }
    if let Some(path) = plot {
        match std::fs::write(path, plot::svg(report)) {
            Ok(()) => eprintln!("The plot is in {}", path.display()),
            // What was measured is not to be lost because of a picture.
            Err(error) => eprintln!("warning: the plot could not be written to {}: {error}", path.display()),
        }
    }
    match report.knee {
        Some(_) => Ok(()),
        None => Err(Error::retry("no rate was found at which latency is flat: see above")),
    }
}

/// What would be done, in sentences.
fn text_of(plan: &Plan) -> String {
    let mut lines = Vec::new();
    for directory in &plan.directories {
        let kind = if directory.is_store { "a store that does not run" } else { "empty" };
        lines.push(format!(
            "{}: {kind}, {} free; a scratch file of {} will be there meanwhile",
            directory.path.display(),
            format_size(directory.free_bytes),
            format_size(plan.scratch_bytes)
        ));
    }
    let copies = if plan.copies > 1 { format!(", each write in {} directories", plan.copies) } else { String::new() };
    lines.push(format!(
        "This writes {} first, then reads and writes as fast as the disks take it, for about {} s in all: {}{copies}.",
        format_size(plan.written_bytes_min),
        plan.seconds,
        plan.mix
    ));
    lines.push(
        "Whoever else uses these disks is slow meanwhile. Files of a store are not touched, and it cannot start until this \
         is over."
            .into(),
    );
    lines.join("\n")
}

/// What was found.
fn report_text(report: &Report) -> String {
    let alone = report.alone.iter().map(|row| {
        vec![row.direction.into(), format_size(row.bytes), row.requests.to_string(), time(row.p50_us), time(row.p95_us)]
    });
    let alone: Vec<Vec<String>> = alone.collect();
    let points: Vec<Vec<String>> = report.points.iter().map(|point| cells(point, report)).collect();
    let mut parts = vec![
        format!("What requests take alone ({}):", report.mix),
        console::table(&["DIRECTION", "SIZE", "REQUESTS", "P50", "P95"], &alone),
        format!(
            "\nWhat they take in company; latency has taken off above {:.2} times the P95 alone:",
            report.takeoff_percent as f64 / 100.0
        ),
        console::table(&["OFFERED", "DELIVERED", "IOPS", "P50", "P95", "P99", "STRETCH", "CURVE", ""], &points),
    ];
    let rate = |rate: u64| format!("{}/s", format_size(rate));
    parts.push(match (report.knee, report.knee_requests) {
        (Some(knee), Some(requests)) => format!("\nknee  {}, {requests:.0} requests per second", rate(knee)),
        _ => "\nknee  none was found".into(),
    });
    parts.push(format!("mu    {}: what is delivered at most", rate(report.service)));
    if let Some(curve) = &report.curve {
        parts.push(format!(
            "P95 = {} + {:.3} x {} x 3 / (mu - rate), off by {:.0}% in the median of the points",
            time(curve.w0_us),
            curve.k,
            format_size(curve.mean_bytes as u64),
            curve.off_percent
        ));
    }
    if let Some(lines) = &report.lines {
        parts.push(format!(
            "\nFor the configuration (levee up --config), if this limit is always to hold:\n\n{}\n\nThe default, bandwidth = \
             \"auto\", needs none of it: it finds such a limit while the store runs, and follows the disks and the mix. This \
             one stays. It is of the disks: a store writes more than its clients do (journal, dumps, merges), so with many \
             small writes less than this is right.",
            lines.toml()
        ));
    }
    parts.extend(report.doubts.iter().map(|doubt| format!("\nnote: {doubt}.")));
    if !report.doubts.is_empty() {
        parts.push("\nDo not trust these results before that is settled.".into());
    }
    parts.join("\n")
}

fn cells(point: &PointRow, report: &Report) -> Vec<String> {
    let rate = |rate: u64| format!("{}/s", format_size(rate));
    let curve = report.curve.and_then(|curve| curve.p95_us(point.delivered as f64));
    let verdict = match (point.outran, point.has_taken_off) {
        (true, _) => "outran",
        (false, true) => "taken off",
        (false, false) => "",
    };
    vec![
        rate(point.offered),
        rate(point.delivered),
        format!("{:.0}", point.requests),
        time(point.p50_us),
        time(point.p95_us),
        time(point.p99_us),
        format!("{:.2}", point.stretch),
        curve.map(time).unwrap_or_default(),
        verdict.into(),
    ]
}

/// A time in microseconds for people.
fn time(us: f64) -> String {
    duration((us * 1e3) as u64)
}

/// What is seen meanwhile: a line that is drawn again and again on a terminal, a line for each rate elsewhere.
struct Watch {
    bar: ProgressBar,
    is_terminal: bool,
}

impl Watch {
    fn new() -> Watch {
        Watch { bar: console::spinner("writing the scratch files"), is_terminal: io::stderr().is_terminal() }
    }

    fn on_progress(&self, progress: Progress) {
        match progress {
            Progress::Filled(done, total) => {
                self.say(format!("writing the scratch files: {} of {}", format_size(done), format_size(total)));
                if done == total && !self.is_terminal {
                    eprintln!("the scratch files are written: {}", format_size(total));
                }
            }
            Progress::Step(step, spent, lasts) => {
                let what = match step.arrivals {
                    Arrivals::Alone => "requests alone".into(),
                    Arrivals::Full(depth) => format!("{depth} requests in flight"),
                    Arrivals::Random(per_sec) => format!("{per_sec:.0} requests per second"),
                };
                self.say(format!("{what} (after {} of about {} s)", spent.as_secs(), lasts.as_secs()));
                if !self.is_terminal && !matches!(step.arrivals, Arrivals::Random(_)) {
                    eprintln!("{what}");
                }
            }
            Progress::Point(point) => {
                let row = PointRow::of(&point);
                let verdict = if row.has_taken_off { "taken off" } else { "flat" };
                let (offered, delivered) = (format_size(row.offered), format_size(row.delivered));
                let (p95, stretch) = (time(row.p95_us), row.stretch);
                let line = format!(
                    "{offered}/s offered, {delivered}/s delivered, P95 {p95}, {stretch:.2} times alone: {verdict}"
                );
                match self.is_terminal {
                    true => self.say(line),
                    false => eprintln!("{line}"),
                }
            }
        }
    }

    fn say(&self, line: String) {
        self.bar.set_message(line);
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
