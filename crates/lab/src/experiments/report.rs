//! What an experiment found, beside what was printed: a table, numbers for others (CSV), a picture (SVG).

use std::fmt::Write;

use serde::Serialize;

use super::row::Printed;
use super::{Mechanism, Outcome, Row};

/// Seeds of a hundred for which a number has to be met or beyond.
const SEEDS_PERCENT: usize = 90;

/// What an experiment found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// Requests at each point.
    pub requests: u64,
    /// The first seed.
    pub seed: u64,
    /// Parameters that differ from the file's, and other conditions.
    pub changes: Vec<String>,
    /// The comparisons; of several seeds each that is in the middle.
    pub rows: Vec<Row>,
    /// The same without what the numbers depend on, one after the other.
    pub without: Vec<(Mechanism, Vec<Row>)>,
    /// The same with half and double of parameters that are not printed.
    pub neighbours: Vec<Variation>,
    /// The same with each of several seeds, the first one included; empty: there was only that one.
    pub seeds: Vec<Variation>,
}

/// What an experiment finds in another way.
#[derive(Clone, Debug, Serialize)]
pub struct Variation {
    /// `key=value`, or the seed.
    pub change: String,
    /// The comparisons, in the order of the report's.
    pub rows: Vec<Row>,
}

/// What a printed number is without one of the things that it needs.
pub struct Without {
    /// What was taken away.
    pub mechanism: Mechanism,
    /// What it is then; it should be missed.
    pub outcome: Outcome,
    /// As tables have it.
    pub value: String,
}

/// Of each comparison the one in the middle of several seeds; nothing of none.
pub fn in_the_middle(seeds: &[Variation]) -> Option<Vec<Row>> {
    let count = seeds.first()?.rows.len();
    let of_row = |number: usize| {
        let mut rows: Vec<&Row> = seeds.iter().filter_map(|variation| variation.rows.get(number)).collect();
        rows.sort_by(|one, other| one.measured.total_cmp(&other.measured));
        rows.get(rows.len().saturating_sub(1) / 2).copied().cloned()
    };
    (0..count).map(of_row).collect()
}

impl Report {
    /// The numbers of rows that are judged.
    pub fn judged(&self) -> impl Iterator<Item = (usize, &Row, &'static Printed)> {
        self.rows.iter().enumerate().filter_map(|(number, row)| Some((number, row, row.printed?)))
    }

    /// What became of a printed number: that of the only seed, or of several the more frequent good one, as long as at
    /// least nine in ten are good.
    pub fn outcome(&self, number: usize) -> Option<Outcome> {
        let first = self.rows.get(number)?.outcome()?;
        let of_seeds: Vec<Outcome> = self.each_seed(number).filter_map(Row::outcome).collect();
        let count = |outcome| of_seeds.iter().filter(|one| **one == outcome).count();
        let (met, beyond) = (count(Outcome::Met), count(Outcome::Beyond));
        Some(match () {
            () if of_seeds.is_empty() => first,
            () if (met + beyond) * 100 < of_seeds.len() * SEEDS_PERCENT => Outcome::Missed,
            () if beyond > met => Outcome::Beyond,
            () => Outcome::Met,
        })
    }

    /// For how many seeds a printed number is met or beyond, of how many.
    pub fn good_seeds(&self, number: usize) -> (usize, usize) {
        let all: Vec<Outcome> = self.each_seed(number).filter_map(Row::outcome).collect();
        (all.iter().filter(|outcome| **outcome != Outcome::Missed).count(), all.len())
    }

    /// What a printed number is without each thing that it needs.
    pub fn without(&self, number: usize) -> Vec<Without> {
        let needs = self.rows.get(number).and_then(|row| row.printed).map_or(&[][..], |printed| printed.needs);
        let those = self.without.iter().filter(|(mechanism, _)| needs.contains(mechanism));
        let each = those.filter_map(|(mechanism, rows)| {
            let row = rows.get(number)?;
            Some(Without { mechanism: *mechanism, outcome: row.outcome()?, value: row.value() })
        });
        each.collect()
    }

    /// What was taken away, each with whether the figure is missed then: whether any number is that needs it.
    pub fn necessity(&self) -> Vec<(Mechanism, bool)> {
        let without = |number| self.without(number).into_iter();
        let is_missed = |mechanism: Mechanism| {
            let all = (0..self.rows.len()).flat_map(without);
            all.filter(|one| one.mechanism == mechanism).any(|one| one.outcome == Outcome::Missed)
        };
        self.without.iter().map(|(mechanism, _)| (*mechanism, is_missed(*mechanism))).collect()
    }

    /// Whether every printed number is met or beyond, and the figure is missed without each thing that it needs.
    pub fn is_met(&self) -> bool {
        let is_good = |number| self.outcome(number) != Some(Outcome::Missed);
        (0..self.rows.len()).all(is_good) && self.necessity().iter().all(|(_, is_missed)| *is_missed)
    }

    /// Tables in Markdown: what is judged, what is only seen, and both with other parameters.
    pub fn table(&self) -> String {
        let mut text = format!("{}: {}\n", self.name, self.title);
        let _ = writeln!(text, "{} requests a point, seed {}", self.requests, self.seed);
        if !self.changes.is_empty() {
            let _ = writeln!(text, "changed: {}", self.changes.join(" "));
        }
        self.write_judged(&mut text);
        self.write_observed(&mut text);
        if !self.neighbours.is_empty() {
            self.write_neighbours(&mut text);
        }
        text
    }

    fn write_judged(&self, text: &mut String) {
        if self.judged().next().is_none() {
            return;
        }
        let _ = writeln!(
            text,
            "\n| what | paper | measured | band | outcome | values |\n| --- | --- | ---: | --- | --- | --- |"
        );
        for (number, row, printed) in self.judged() {
            let Row { what, detail, .. } = row;
            let (value, outcome) = (row.value(), self.outcome(number).map_or("", Outcome::name));
            let seeds = match self.good_seeds(number) {
                (_, 0) => String::new(),
                (good, all) => format!(", {good} of {all} seeds"),
            };
            let (paper, band) = (printed.number, printed.expected());
            let _ = writeln!(text, "| {what} | {paper} | {value} | {band} | {outcome}{seeds} | {detail} |");
        }
        for (number, row, printed) in self.judged() {
            if self.outcome(number) == Some(Outcome::Beyond) {
                let _ = writeln!(text, "\nbeyond, {}: {}", row.what, printed.beyond);
            }
            for without in self.without(number) {
                let Without { mechanism, value, .. } = &without;
                let said = still(without.outcome);
                let _ = writeln!(text, "\nwithout {}: {said} ({value}), {}", mechanism.name(), row.what);
            }
        }
    }

    fn write_observed(&self, text: &mut String) {
        let mut observed = self.rows.iter().filter(|row| row.printed.is_none()).peekable();
        if observed.peek().is_some() {
            let _ = writeln!(text, "\n| not judged | what it is | measured | values |\n| --- | --- | ---: | --- |");
        }
        for row in observed {
            let _ = writeln!(text, "| {} | {} | {} | {} |", row.what, row.kind, row.value(), row.detail);
        }
    }

    /// Rows down, parameters across; what is missed is in bold.
    fn write_neighbours(&self, text: &mut String) {
        let changes: Vec<&str> = self.neighbours.iter().map(|neighbour| neighbour.change.as_str()).collect();
        let lines = "---: | ".repeat(changes.len() + 1);
        let _ = writeln!(text, "\n| what | usual | {} |\n| --- | {}", changes.join(" | "), lines.trim_end());
        for (number, row, _) in self.judged() {
            let of = |row: &Row| match row.outcome() {
                Some(Outcome::Missed) => format!("**{}**", row.value()),
                _ => row.value(),
            };
            let others = self.neighbours.iter().map(|neighbour| neighbour.rows.get(number).map_or("".into(), of));
            let _ = writeln!(text, "| {} | {} | {} |", row.what, of(row), others.collect::<Vec<_>>().join(" | "));
        }
    }

    /// The rows as comma-separated values.
    pub fn csv(&self) -> String {
        let mut text =
            "experiment,what,kind,printed,measured,unit,band_low,band_high,outcome,good_seeds,seeds,without,\
                        values\n"
                .to_owned();
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        for (number, row) in self.rows.iter().enumerate() {
            let (paper, [low, high]) =
                row.printed.map_or(("", [f64::NAN; 2]), |printed| (printed.number, printed.band));
            let bound = |bound: f64| if bound.is_nan() { String::new() } else { bound.to_string() };
            let (good, all) = self.good_seeds(number);
            let each = self.without(number);
            let each = each.iter().map(|one| format!("{}={}", one.mechanism.name(), still(one.outcome)));
            let fields = [
                self.name.clone(),
                quoted(&row.what),
                if row.printed.is_some() { "printed".to_owned() } else { row.kind.to_owned() },
                quoted(paper),
                row.measured.to_string(),
                row.unit.trim().to_owned(),
                bound(low),
                bound(high),
                self.outcome(number).map_or("", Outcome::name).to_owned(),
                good.to_string(),
                all.to_string(),
                quoted(&each.collect::<Vec<_>>().join("; ")),
                quoted(&row.detail),
            ];
            let _ = writeln!(text, "{}", fields.join(","));
        }
        text
    }

    /// The rows as bars over their bands.
    pub fn svg(&self) -> String {
        let (width, line, left) = (1100.0, 26.0, 530.0);
        let height = line * (self.rows.len() as f64 + 2.0);
        let band =
            |row: &Row| row.printed.map(|printed| printed.band.map(|end| end.min(row.measured.max(end.min(1e6)))));
        let ends = self.rows.iter().flat_map(band).flatten();
        let values = self.rows.iter().map(|row| row.measured).chain(ends).filter(|value| value.is_finite());
        let (low, high) = values.fold((0.0f64, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        let at = |value: f64| left + (value.min(high) - low) / (high - low).max(1e-9) * (width - left - 60.0);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<text x=\"8\" y=\"18\">{}: {}</text>\n",
            self.name,
            escaped(&self.title)
        );
        for (number, row) in self.rows.iter().enumerate() {
            let y = line * (number as f64 + 1.2);
            let color = match self.outcome(number) {
                Some(Outcome::Met) => "#2471a3",
                Some(Outcome::Beyond) => "#1e8449",
                Some(Outcome::Missed) => "#c0392b",
                None => "#909497",
            };
            if let Some(printed) = row.printed {
                let (from, to) = (at(printed.band[0]), at(printed.band[1]));
                let span = to - from;
                let _ = write!(
                    text,
                    "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{span:.1}\" height=\"18\" fill=\"#d5d8dc\"/>"
                );
            }
            let (zero, end) = (at(0.0).min(at(row.measured)), at(0.0).max(at(row.measured)));
            let _ = writeln!(
                text,
                "<rect x=\"{zero:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"8\" fill=\"{color}\"/>\
                 <text x=\"8\" y=\"{:.1}\">{}</text><text x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\">{}</text>",
                y + 5.0,
                (end - zero).max(1.0),
                y + 14.0,
                escaped(&row.what),
                zero + 3.0,
                y + 13.0,
                row.value()
            );
        }
        text + "</svg>\n"
    }

    fn each_seed(&self, number: usize) -> impl Iterator<Item = &Row> {
        self.seeds.iter().filter_map(move |variation| variation.rows.get(number))
    }
}

/// What is said of a number that lacks what it needs.
pub(super) fn still(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Missed => "missed",
        Outcome::Met => "still met",
        Outcome::Beyond => "still beyond",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::row::Better;
    use super::*;

    const P99: Printed = Printed {
        what: "P99 of <steady>",
        number: "-96%",
        source: "figure 10",
        band: [-99.0, -70.0],
        reason: "",
        unit: "%",
        better: Better::Less,
        beyond: "The model is kind.",
        is_aside: false,
        needs: &[Mechanism::ChequeBucket],
    };

    /// A report of one number, which is so much, so much without what it needs, and so much with other seeds.
    pub fn report(measured: f64, without: f64, seeds: &[f64]) -> Report {
        let row = |measured| Row::judged(&P99, measured, "1 to 2 \"ms\"".into());
        let variation = |measured: &f64| Variation { change: "depth=2".into(), rows: vec![row(*measured)] };
        Report {
            name: "fig".into(),
            title: "a & b".into(),
            requests: 1,
            seed: 1,
            changes: vec!["depth=1".into()],
            rows: vec![row(measured), Row::observed("seen".into(), 7.0, "x", String::new())],
            without: vec![(Mechanism::ChequeBucket, vec![row(without)])],
            neighbours: vec![variation(&-20.0), variation(&-75.0)],
            seeds: seeds.iter().map(variation).collect(),
        }
    }

    #[test]
    fn tables_and_pictures() {
        let report = report(-80.0, -10.0, &[]);
        let table = report.table();
        assert!(table.contains("| P99 of <steady> | -96% | -80.0% | -99 to -70% | met | 1 to 2 \"ms\" |"), "{table}");
        assert!(
            table.contains("without cheque bucket: missed (-10.0%)") && table.contains("| seen | observation | 7.0x |")
        );
        assert!(table.contains("| P99 of <steady> | -80.0% | **-20.0%** | -75.0% |"), "{table}");
        let csv = report.csv();
        assert!(csv.contains("\"1 to 2 \"\"ms\"\"\"") && csv.lines().count() == 3, "{csv}");
        assert!(
            csv.contains(",met,0,0,\"cheque bucket=missed\",") && csv.contains(",observation,\"\",7,x,,,,"),
            "{csv}"
        );
        let svg = report.svg();
        assert!(svg.contains("a &amp; b") && svg.contains("&lt;steady&gt;") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn what_is_shown_of_several_seeds_is_in_the_middle() {
        assert_eq!(in_the_middle(&[]).map(|rows| rows.len()), None);
        let middle = in_the_middle(&report(0.0, 0.0, &[-90.0, -10.0, -80.0]).seeds).unwrap();
        assert_eq!(middle[0].measured, -80.0);
    }

    #[test]
    fn a_number_has_to_be_good_for_nine_seeds_in_ten_and_to_need_its_mechanism() {
        let nine = [-80.0, -80.0, -80.0, -80.0, -80.0, -80.0, -80.0, -80.0, -80.0, -10.0];
        assert_eq!(report(-80.0, 0.0, &nine).outcome(0), Some(Outcome::Met));
        assert_eq!(report(-80.0, 0.0, &nine[1..]).outcome(0), Some(Outcome::Missed), "eight in nine");
        assert_eq!(report(-80.0, 0.0, &[-99.5, -99.7, -80.0]).outcome(0), Some(Outcome::Beyond));
        assert!(report(-80.0, 0.0, &nine).is_met() && !report(-60.0, 0.0, &[]).is_met());
        assert!(!report(-80.0, -75.0, &[]).is_met() && report(-80.0, -75.0, &[]).table().contains("still met"));
    }
}
