//! All figures at a glance: each printed number with its outcome, what becomes of it without what it needs, for how many
//! seeds it holds, and how many hold with other parameters.

use std::fmt::Write;

use super::report::still;
use super::row::value;
use super::{Outcome, Report};

/// The summary of some figures of one paper, in Markdown: `titles` are of its numbers against the baseline that all of its
/// figures have, and of those against something else.
pub fn table(reports: &[Report], titles: [&str; 2]) -> String {
    let mut text = String::new();
    for (is_aside, title) in [(false, titles[0]), (true, titles[1])] {
        write_numbers(&mut text, reports, is_aside, title);
    }
    write_counts(&mut text, reports);
    write_without(&mut text, reports);
    write_neighbours(&mut text, reports);
    text
}

fn write_numbers(text: &mut String, reports: &[Report], is_aside: bool, title: &str) {
    let mut rows = String::new();
    for report in reports {
        for (number, row, printed) in report.judged().filter(|(_, _, printed)| printed.is_aside == is_aside) {
            let name = report.name.rsplit('/').next().unwrap_or_default();
            let outcome = report.outcome(number).map_or("", Outcome::name);
            let without = report.without(number);
            let without =
                without.iter().map(|one| format!("{}: {} ({})", one.mechanism.name(), still(one.outcome), one.value));
            let without = without.collect::<Vec<_>>().join("; ");
            let seeds = match report.good_seeds(number) {
                (_, 0) => String::new(),
                (good, all) => format!("{good} of {all}"),
            };
            let measured = match range(report, number) {
                Some([low, high]) if low < high => {
                    format!("{} ({} to {})", row.value(), value(low, row.unit), value(high, row.unit))
                }
                _ => row.value(),
            };
            let (what, paper, band) = (&row.what, printed.number, printed.expected());
            let _ =
                writeln!(rows, "| {name} | {what} | {paper} | {measured} | {band} | {outcome} | {seeds} | {without} |");
        }
    }
    if !rows.is_empty() {
        let _ = writeln!(
            text,
            "{title}:\n\n| figure | what | paper | measured | band | outcome | seeds | without |\n\
             | --- | --- | --- | ---: | --- | --- | --- | --- |\n{rows}"
        );
    }
}

/// The lowest and the highest of all seeds.
fn range(report: &Report, number: usize) -> Option<[f64; 2]> {
    let values = report.seeds.iter().filter_map(|variation| Some(variation.rows.get(number)?.measured));
    values.fold(None, |range, value| {
        let [low, high] = range.unwrap_or([value, value]);
        Some([low.min(value), high.max(value)])
    })
}

fn write_counts(text: &mut String, reports: &[Report]) {
    let outcomes = |report: &Report| -> Vec<Outcome> {
        report.judged().filter_map(|(number, _, _)| report.outcome(number)).collect()
    };
    let all: Vec<Outcome> = reports.iter().flat_map(outcomes).collect();
    let count = |outcome| all.iter().filter(|one| **one == outcome).count();
    let (met, beyond, missed) = (count(Outcome::Met), count(Outcome::Beyond), count(Outcome::Missed));
    let judged: Vec<Vec<Outcome>> = reports.iter().map(outcomes).filter(|those| !those.is_empty()).collect();
    let good = judged.iter().filter(|those| !those.contains(&Outcome::Missed)).count();
    let _ = writeln!(
        text,
        "{} printed numbers: {met} met, {beyond} beyond, {missed} missed. {good} of {} figures have none that is missed.",
        all.len(),
        judged.len()
    );
    if let Some(report) = reports.iter().find(|report| !report.seeds.is_empty()) {
        let seeds: Vec<&str> = report.seeds.iter().map(|variation| variation.change.as_str()).collect();
        let _ = writeln!(text, "Seeds: {}. A number is met if it is for at least nine in ten.", seeds.join(", "));
    }
}

fn write_without(text: &mut String, reports: &[Report]) {
    let figures = reports.iter().flat_map(|report| report.necessity().into_iter().map(move |one| (report, one)));
    let (missed, still_met): (Vec<_>, Vec<_>) = figures.partition(|(_, (_, is_missed))| *is_missed);
    if missed.is_empty() && still_met.is_empty() {
        return;
    }
    let all = missed.len() + still_met.len();
    let _ = writeln!(
        text,
        "Figures without what they need, one at a time: {} of {all} missed, {} still met.",
        missed.len(),
        still_met.len()
    );
    for (report, (mechanism, _)) in still_met {
        let _ = writeln!(text, "- still met: {} without {}", report.name, mechanism.name());
    }
    let numbers: Vec<Outcome> = reports
        .iter()
        .flat_map(|report| report.judged().flat_map(|(number, _, _)| report.without(number)))
        .map(|one| one.outcome)
        .collect();
    let missed = numbers.iter().filter(|outcome| **outcome == Outcome::Missed).count();
    let _ = writeln!(text, "Of their numbers {missed} of {} are missed then.", numbers.len());
}

fn write_neighbours(text: &mut String, reports: &[Report]) {
    let mut changes: Vec<&str> = Vec::new();
    for variation in reports.iter().flat_map(|report| &report.neighbours) {
        if !changes.contains(&variation.change.as_str()) {
            changes.push(&variation.change);
        }
    }
    if changes.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n| with | numbers that stay met or beyond | figures | missed then |\n| --- | --- | --- | --- |"
    );
    let (mut stay, mut of_all) = (0, 0);
    for change in changes {
        let (mut good, mut all, mut good_figures, mut figures, mut lost) = (0, 0, 0, 0, Vec::new());
        for report in reports {
            let Some(variation) = report.neighbours.iter().find(|variation| variation.change == change) else {
                continue;
            };
            let was_good = |row: &super::Row| row.outcome().is_some_and(|outcome| outcome != Outcome::Missed);
            let good_rows: Vec<usize> =
                report.judged().filter(|(_, row, _)| was_good(row)).map(|(number, _, _)| number).collect();
            let still = good_rows.iter().filter(|number| variation.rows.get(**number).is_some_and(was_good)).count();
            (good, all) = (good + still, all + good_rows.len());
            if !good_rows.is_empty() {
                figures += 1;
                good_figures += usize::from(still == good_rows.len());
                if still < good_rows.len() {
                    lost.push(report.name.rsplit('/').next().unwrap_or_default());
                }
            }
        }
        (stay, of_all) = (stay + good, of_all + all);
        let _ = writeln!(text, "| {change} | {good} of {all} | {good_figures} of {figures} | {} |", lost.join(", "));
    }
    let _ = writeln!(text, "\nWith half and double of what is not printed, {stay} of {of_all} stay met or beyond.");
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn everything_is_counted() {
        let text = table(&[report(-80.0, -10.0, &[]), report(-99.5, -99.5, &[]), report(-3.0, -3.0, &[])], [""; 2]);
        assert!(text.contains("3 printed numbers: 1 met, 1 beyond, 1 missed. 2 of 3 figures"), "{text}");
        assert!(text.contains("one at a time: 2 of 3 missed, 1 still met."), "{text}");
        assert!(text.contains(
            "| fig | P99 of <steady> | -96% | -80.0% | -99 to -70% | met |  | cheque bucket: missed (-10.0%) |"
        ));
        assert!(text.contains("| depth=2 | 0 of 2 | 0 of 2 | fig, fig |"), "{text}");
        let with_seeds = table(&[report(-80.0, -10.0, &[-80.0, -75.0])], [""; 2]);
        assert!(with_seeds.contains("-80.0% (-80.0% to -75.0%) | -99 to -70% | met | 2 of 2 |"), "{with_seeds}");
    }
}
