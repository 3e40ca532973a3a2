//! `levee lab traces`: what block traces are like, and one that is made.

#![allow(clippy::disallowed_methods, reason = "files outside of the simulated worlds")]

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;

use base::{Error, Result};
use lab::experiments::FromFile;
use lab::experiments::sig23::Parameters;
use lab::experiments::sig23::workload::Workload;
use lab::experiments::trace::Reader;
use lab::experiments::trace_statistics::{Statistics, Summary};
use serde::Serialize;

use crate::cli::{Made, Traces, TracesMake, TracesStat};
use crate::console;

/// Does what was asked for.
///
/// # Errors
/// A file that cannot be read, or is no trace.
pub fn run(command: Traces) -> Result<()> {
    match command {
        Traces::Stat(options) => stat(&options),
        Traces::Make(options) => make(&options),
    }
}

/// What is said of one file.
#[derive(Serialize)]
struct Described {
    file: String,
    format: &'static str,
    #[serde(flatten)]
    summary: Summary,
}

fn stat(options: &TracesStat) -> Result<()> {
    let described = options.files.iter().map(|file| describe(file)).collect::<Result<Vec<Described>>>()?;
    if options.json {
        return console::print_json(&described);
    }
    for Described { file, format, summary } in &described {
        let rows = [("format", (*format).to_owned())].into_iter().chain(summary.rows());
        let rows: Vec<Vec<String>> = rows.map(|(what, value)| vec![what.to_owned(), value]).collect();
        console::print(&console::table(&[file, ""], &rows));
    }
    Ok(())
}

fn make(options: &TracesMake) -> Result<()> {
    let parameters = Parameters::with(&options.changes)?;
    let workload = match options.workload {
        Made::W1 => Workload::w1(&parameters),
        Made::W2 => Workload::w2(&parameters),
    };
    let traffic = workload.make(options.seed).thinned(options.share, options.seed);
    let mut out = BufWriter::new(io::stdout().lock());
    match traffic.write_lines(&mut out).and_then(|()| out.flush()) {
        // Who reads has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(|error| Error::from_io("cannot print the trace", &error)),
    }
}

fn describe(path: &Path) -> Result<Described> {
    let file = path.display().to_string();
    let unreadable = |error: &std::io::Error| Error::from_io(format!("cannot read the trace {file}"), error);
    let wrong = |what: String| Error::invalid(format!("{file} is no trace that can be read: {what}"));
    let opened = File::open(path).map_err(|error| unreadable(&error))?;
    let bytes = opened.metadata().map_err(|error| unreadable(&error))?.len();
    let bar = console::progress("reading");
    bar.set_length(bytes);
    let mut reader = Reader::new(BufReader::with_capacity(1 << 20, bar.wrap_read(opened))).map_err(wrong)?;
    let mut statistics = Statistics::default();
    for request in reader.by_ref() {
        request.and_then(|request| statistics.add(request)).map_err(wrong)?;
    }
    bar.finish_and_clear();
    let (format, summary) = (reader.format(), statistics.summary().map_err(wrong)?);
    Ok(Described { file, format, summary })
}
