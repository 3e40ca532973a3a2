//! What a person sees: logs, progress, tables.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use base::{Error, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

/// Sends log records to standard error, filtered by `filter`, else RUST_LOG, else warnings.
///
/// # Errors
/// `Invalid` for a filter that makes no sense.
pub fn start_logging(filter: Option<&str>) -> Result<()> {
    let filter = match filter.map(str::to_owned).or_else(|| std::env::var("RUST_LOG").ok()) {
        None => EnvFilter::new("warn"),
        Some(text) => EnvFilter::try_new(&text).map_err(|error| {
            Error::invalid(format!("'{text}' is not a log filter ({error}); write debug, or engine=debug,warn"))
        })?,
    };
    let terminal = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(terminal).init();
    Ok(())
}

/// Prints to standard output. A reader that went away ends the process quietly, as for every command in a pipe.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Prints one JSON document.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::internal(error.to_string()))?;
    print(&text);
    Ok(())
}

/// A spinner on a terminal; nothing elsewhere. It goes away when dropped or finished.
pub fn spinner(message: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target());
    bar.set_style(
        ProgressStyle::with_template("{spinner} {msg} ({elapsed})").unwrap_or(ProgressStyle::default_spinner()),
    );
    bar.set_message(message);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A bar of bytes on a terminal; nothing elsewhere. It goes away when dropped or finished.
pub fn progress(message: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target());
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes} of {total_bytes}, {eta} left");
    bar.set_style(style.unwrap_or(ProgressStyle::default_bar()));
    bar.set_message(message);
    bar
}

/// A bar of things that are counted, a spinner if nobody knows how many; on a terminal, nothing elsewhere.
pub fn count(what: &'static str, total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, target());
    let template = match total {
        Some(_) => "{msg} {wide_bar} {pos} of {len}, {per_sec}, {eta} left",
        None => "{spinner} {pos} {msg}, {per_sec} ({elapsed})",
    };
    bar.set_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()));
    bar.set_message(what);
    bar
}

fn target() -> ProgressDrawTarget {
    match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    }
}

/// Rows under a header, in columns as wide as they must be.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&mut header.iter().copied())];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

/// A point in time in milliseconds since 1970 as people write it, in UTC.
pub fn date(wall_ms: u64) -> String {
    let (days, seconds) = (wall_ms / 86_400_000, wall_ms / 1000 % 86_400);
    // Days to a date by the 400-year cycle of the calendar, with years that begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds * 1000), text);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".into(), "10 GiB".into()], vec!["longer".into(), "1 MiB".into()]];
        assert_eq!(table(&["NAME", "SIZE"], &rows), "NAME    SIZE\na       10 GiB\nlonger  1 MiB");
    }
}
