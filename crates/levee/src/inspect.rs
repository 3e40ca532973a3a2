//! `levee inspect`: into a store that is not running.

use std::collections::BTreeMap;

use base::units::format_size;
use base::{Error, Result};
use node::inspect::{self, Report};
use runtime::{Handle, uring};

use crate::cli::Inspect;
use crate::console;

/// Prints what is in the store.
///
/// # Errors
/// `Corrupt` if anything is damaged or a start would refuse, and what keeps it from being looked at.
pub fn run(options: Inspect) -> Result<()> {
    let bar = console::progress("verifying");
    let (directories, on_progress) = (options.directories.clone(), bar.clone());
    let main = move |handle: Handle| async move {
        inspect::inspect(&handle, &directories, |done, total| {
            on_progress.set_length(total);
            on_progress.set_position(done);
        })
        .await
    };
    let report = uring::run(uring::Options::default(), main);
    let report = report.map_err(|error| Error::from_io("cannot run an event loop", &error))??;
    bar.finish_and_clear();
    match options.json {
        true => console::print_json(&report)?,
        false => console::print(&text_of(&report)),
    }
    match report.is_intact() {
        true => Ok(()),
        false => Err(Error::corrupt(verdict(&report))),
    }
}

/// Places of damage that are printed; `--json` has more.
const PRINTED_MAX: usize = 50;

fn verdict(report: &Report) -> String {
    let places = match report.damage_count {
        0 => "no damage was found".to_owned(),
        1 => "one place is damaged".to_owned(),
        count => format!("{count} places are damaged"),
    };
    match report.refusals.is_empty() {
        true => places,
        false => format!("{places}, and a start would refuse"),
    }
}

fn damage_of(report: &Report) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for damage in report.damage.iter().take(PRINTED_MAX) {
        let place = damage.offset.map(|offset| format!(" at {offset}")).unwrap_or_default();
        lines.push(format!("damaged: {}{place}: {}\n         {}", damage.path, damage.what, damage.advice));
    }
    match report.damage_count.saturating_sub(PRINTED_MAX as u64) {
        0 => {}
        more => lines.push(format!("and {more} more; --json lists up to 1,000")),
    }
    lines.extend(report.refusals.iter().map(|refusal| format!("a start would refuse: {refusal}")));
    lines
}

fn text_of(report: &Report) -> String {
    let mut parts = vec![format!("store {}, last life {}", report.store, report.incarnation)];
    parts.push(directories_of(report));
    parts.push(volumes_of(report));
    parts.push(segments_of(report));
    parts.push(files_of(report));
    parts.push(space_of(report));
    let replay = report.replay;
    let mut start = format!(
        "a start replays {} transaction records and {} journal records",
        replay.transaction_records, replay.journal_records
    );
    if replay.torn_tails > 0 {
        start.push_str("; it cuts the unfinished end that a crash left");
    }
    if replay.rejected_large_writes > 0 {
        start.push_str("; it drops large writes at the end of the log whose data is not complete");
    }
    if replay.mends > 0 {
        start.push_str("; it brings copies in line that a crash left different");
    }
    parts.push(start);
    parts.extend(report.notes.iter().map(|note| format!("note: {note}")));
    parts.extend(damage_of(report));
    parts.push(match report.is_intact() {
        true => format!("{} checksums verified: everything is intact", report.verified),
        false => format!("{} checksums verified: {}", report.verified, verdict(report)),
    });
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn directories_of(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .directories
        .iter()
        .map(|directory| vec![directory.path.clone(), directory.state.clone(), format_size(directory.free_bytes)])
        .collect();
    console::table(&["DIRECTORY", "STATE", "FREE"], &rows)
}

fn volumes_of(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .volumes
        .iter()
        .map(|volume| {
            vec![
                volume.name.clone(),
                volume.id.to_string(),
                volume.state.into(),
                format_size(volume.size_bytes),
                format_size(volume.data_bytes),
                format_size(volume.journal_bytes),
            ]
        })
        .collect();
    match rows.is_empty() {
        true => "no volumes".into(),
        false => console::table(&["VOLUME", "ID", "STATE", "SIZE", "DATA", "JOURNALED"], &rows),
    }
}

fn segments_of(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .segments
        .iter()
        .map(|segment| {
            vec![
                format!("v{}/{}", segment.volume, segment.index),
                format_size(segment.data_bytes),
                format_size(segment.journal_bytes),
                segment.tables.to_string(),
            ]
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => console::table(&["SEGMENT", "DATA", "JOURNALED", "TABLES"], &rows),
    }
}

fn files_of(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .files
        .iter()
        .map(|file| {
            vec![
                file.kind.into(),
                file.id.clone(),
                file.incarnation.to_string(),
                format_size(file.capacity_bytes),
                file.sealed_bytes.map(format_size).unwrap_or_else(|| "open".into()),
                file.live_bytes.map(format_size).unwrap_or_default(),
                file.paths.join(" "),
            ]
        })
        .collect();
    match rows.is_empty() {
        true => "no files".into(),
        false => console::table(&["KIND", "FILE", "LIFE", "CAPACITY", "LENGTH", "LIVE", "COPIES"], &rows),
    }
}

fn space_of(report: &Report) -> String {
    let mut kinds: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for file in &report.files {
        let sums = kinds.entry(file.kind).or_default();
        *sums = (sums.0 + 1, sums.1 + file.capacity_bytes * file.paths.len() as u64);
    }
    let rows: Vec<Vec<String>> = kinds
        .iter()
        .map(|(kind, (count, bytes))| vec![(*kind).into(), count.to_string(), format_size(*bytes)])
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => console::table(&["SPACE", "FILES", "BYTES, ALL COPIES"], &rows),
    }
}
