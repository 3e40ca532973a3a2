//! `levee lab replay`: somebody's own workload on a modelled cluster, as a table and as a picture.

#![allow(clippy::disallowed_methods, reason = "files outside of the simulated worlds")]

use std::fmt::Write;
use std::fs::File;
use std::io::BufReader;

use base::units::format_size;
use base::{Error, Prng, Result};
use lab::experiments::random::Random;
use lab::experiments::replay::{Policy, Replayed, Setting, copies_of, traffic};
use lab::experiments::sig23::geometry::Geometry;
use lab::experiments::sig23::workload::Traffic;
use lab::experiments::trace::Reader;

use crate::cli::Replay;
use crate::console;
use crate::experiments::measure_all;

/// Replays the trace once for each policy and each size of segments, and prints what came of it.
///
/// # Errors
/// A file that cannot be read, or is no trace; a picture that cannot be written.
pub fn run(options: &Replay) -> Result<()> {
    let traffic = read(options)?;
    let or = |given: &[Policy]| if given.is_empty() { Policy::ALL.to_vec() } else { given.to_vec() };
    let cuts = if options.segments.is_empty() { &[Geometry::LEVEE][..] } else { &options.segments };
    let (servers, utilization) = (usize::from(options.servers), options.utilization);
    let of_cut = |geometry: &Geometry| {
        let geometry = *geometry;
        or(&options.policies).into_iter().map(move |policy| Setting { servers, utilization, policy, geometry })
    };
    let settings: Vec<Setting> = cuts.iter().flat_map(of_cut).collect();
    let replayed = measure_all(settings.len(), |number| settings[number].replay(&traffic, options.seed));
    if let Some(path) = &options.plot {
        std::fs::write(path, svg(&replayed))
            .map_err(|error| Error::from_io(format!("cannot write {}", path.display()), &error))?;
    }
    if options.json {
        return console::print_json(&replayed);
    }
    let (seconds, volumes) = (traffic.length_ns() as f64 / 1e9, traffic.sizes.len());
    let card = settings.first().map_or(0.0, |setting| setting.card(&traffic));
    console::print(&format!(
        "{} writes of {volumes} volumes in {seconds:.0} s, on {servers} servers with cards of {}/s; the first 10 s are not counted.",
        traffic.writes.len(),
        format_size(card as u64),
    ));
    console::print(&table(&replayed));
    Ok(())
}

/// The writes of the trace, and their copies.
fn read(options: &Replay) -> Result<Traffic> {
    let file = options.trace.display().to_string();
    let unreadable = |error: &std::io::Error| Error::from_io(format!("cannot read the trace {file}"), error);
    let wrong = |error: Error| Error::invalid(format!("{file} is no trace that can be replayed: {}", error.message));
    let opened = File::open(&options.trace).map_err(|error| unreadable(&error))?;
    let bar = console::progress("reading");
    bar.set_length(opened.metadata().map_err(|error| unreadable(&error))?.len());
    let reader = Reader::new(BufReader::with_capacity(1 << 20, bar.wrap_read(opened)));
    let most = (options.writes / options.copies).max(1) as usize;
    let taken = reader.map_err(Error::invalid).and_then(|reader| traffic(reader, most)).map_err(wrong)?;
    bar.finish_and_clear();
    copies_of(&taken, options.copies, &mut Random(Prng::new(options.seed))).map_err(wrong)
}

fn table(replayed: &[Replayed]) -> String {
    let header =
        ["policy", "segments", "average", "p50", "p99", "p99.9", "CoV of servers", "in logs", "waited in logs"];
    let row = |one: &Replayed| {
        let times = [one.average_ms, one.p50_ms, one.p99_ms, one.p999_ms].map(|ms| format!("{ms:.2} ms"));
        let [average, p50, p99, p999] = times;
        let cov = format!("{:.2}", one.cov);
        let logged = format!("{:.0}%", one.logged * 100.0);
        let waiting = format_size(one.waiting_max);
        vec![one.policy.to_owned(), one.cut.clone(), average, p50, p99, p999, cov, logged, waiting]
    };
    console::table(&header, &replayed.iter().map(row).collect::<Vec<_>>())
}

/// What is drawn of each: its name, its colour, and the number.
type Kind = (&'static str, &'static str, fn(&Replayed) -> f64);

/// Average, P99 and P99.9 of each as bars that go right in powers of ten of milliseconds.
fn svg(replayed: &[Replayed]) -> String {
    const LEFT: f64 = 260.0;
    const RIGHT: f64 = 900.0;
    const OF_ONE: f64 = 56.0;
    let kinds: [Kind; 3] = [
        ("average", "#2471a3", |one| one.average_ms),
        ("p99", "#b9770e", |one| one.p99_ms),
        ("p99.9", "#c0392b", |one| one.p999_ms),
    ];
    let times = || replayed.iter().flat_map(|one| kinds.map(|(_, _, of)| of(one))).filter(|ms| *ms > 0.0);
    let low = times().fold(f64::MAX, f64::min).min(1.0).log10().floor();
    let high = times().fold(1.0, f64::max).log10().ceil().max(low + 1.0);
    let x = |ms: f64| LEFT + (ms.max(1e-6).log10() - low).max(0.0) / (high - low) * (RIGHT - LEFT);
    let height = 60.0 + OF_ONE * replayed.len() as f64 + 30.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"960\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"16\" y=\"24\" font-size=\"15\">\
         How long writes take</text>\n"
    );
    for power in low as i32..=high as i32 {
        let (ms, bottom) = (10f64.powi(power), height - 30.0);
        let at = x(ms);
        let _ = writeln!(
            text,
            "<line x1=\"{at:.1}\" y1=\"50\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#d5d8dc\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{ms} ms</text>",
            bottom + 18.0
        );
    }
    for (number, (name, color, _)) in kinds.iter().enumerate() {
        let at = LEFT + 90.0 * number as f64;
        let _ = writeln!(
            text,
            "<rect x=\"{at}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{color}\"/><text x=\"{}\" y=\"41\">{name}</text>",
            at + 15.0
        );
    }
    for (number, one) in replayed.iter().enumerate() {
        let top = 60.0 + OF_ONE * number as f64;
        let _ = writeln!(text, "<text x=\"16\" y=\"{:.1}\">{}, {}</text>", top + 24.0, one.policy, one.cut);
        for (place, (name, color, of)) in kinds.iter().enumerate() {
            let (y, width) = (top + 14.0 * place as f64, (x(of(one)) - LEFT).max(1.0));
            let _ = writeln!(
                text,
                "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"11\" fill=\"{color}\"><title>{name}: {:.2} ms\
                 </title></rect>",
                of(one)
            );
        }
    }
    text + "</svg>\n"
}
