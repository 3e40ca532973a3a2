//! What an experiment found, beside what was printed: a table, numbers for others (CSV), a picture (SVG).

use std::fmt::Write;

use serde::Serialize;

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was compared.
    pub what: String,
    /// What the paper printed; empty: nothing, the bound is ours.
    pub printed: String,
    /// What was measured, in the unit of the band.
    pub measured: f64,
    /// The measured values behind it, in words.
    pub detail: String,
    /// From where to where an honest reproduction is expected to be.
    pub band: [f64; 2],
    /// What the numbers are in: `%`, `x`, `ms`.
    pub unit: &'static str,
    /// Whether less is better still: then a result below the band is no miss.
    pub is_reduction: bool,
}

impl Row {
    /// Whether it is within its band.
    pub fn is_met(&self) -> bool {
        (self.band[0]..=self.band[1]).contains(&self.measured)
    }

    /// What was measured, as tables have it.
    pub fn value(&self) -> String {
        match self.unit {
            "" => format!("{:.2}", self.measured),
            unit => format!("{:.1}{unit}", self.measured),
        }
    }

    /// The verdict in words: a result on the good side of a reduction's band is said to be that.
    pub fn verdict(&self) -> &'static str {
        match self.is_met() {
            true => "met",
            false if self.is_reduction && self.measured < self.band[0] => "beyond",
            false => "missed",
        }
    }
}

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
    /// Parameters that differ from the file's.
    pub changes: Vec<String>,
    /// The comparisons.
    pub rows: Vec<Row>,
    /// The same with half and double of what the result depends on most.
    pub neighbours: Vec<Neighbour>,
}

/// What an experiment finds with another parameter.
#[derive(Clone, Debug, Serialize)]
pub struct Neighbour {
    /// `key=value`.
    pub change: String,
    /// The comparisons, in the order of the report's.
    pub rows: Vec<Row>,
}

impl Report {
    /// Whether every comparison is within its band, or better.
    pub fn is_met(&self) -> bool {
        self.rows.iter().all(|row| row.verdict() != "missed")
    }

    /// A table in Markdown.
    pub fn table(&self) -> String {
        let mut text = format!("{}: {}\n", self.name, self.title);
        let _ = writeln!(text, "{} requests a point, seed {}", self.requests, self.seed);
        if !self.changes.is_empty() {
            let _ = writeln!(text, "changed: {}", self.changes.join(" "));
        }
        let _ = writeln!(
            text,
            "\n| what | paper | measured | band | verdict | values |\n| --- | --- | ---: | --- | --- | --- |"
        );
        for row in &self.rows {
            let Row { what, printed, detail, band: [low, high], unit, .. } = row;
            let (value, verdict) = (row.value(), row.verdict());
            let _ = writeln!(text, "| {what} | {printed} | {value} | {low} to {high}{unit} | {verdict} | {detail} |");
        }
        if !self.neighbours.is_empty() {
            self.write_neighbours(&mut text);
        }
        text
    }

    /// Rows down, parameters across; what is outside of its band is in bold.
    fn write_neighbours(&self, text: &mut String) {
        let changes: Vec<&str> = self.neighbours.iter().map(|neighbour| neighbour.change.as_str()).collect();
        let lines = "---: | ".repeat(changes.len() + 1);
        let _ = writeln!(text, "\n| what | usual | {} |\n| --- | {}", changes.join(" | "), lines.trim_end());
        for (number, row) in self.rows.iter().enumerate() {
            let of = |row: &Row| match row.verdict() {
                "missed" => format!("**{}**", row.value()),
                _ => row.value(),
            };
            let others = self.neighbours.iter().map(|neighbour| neighbour.rows.get(number).map_or("".into(), of));
            let _ = writeln!(text, "| {} | {} | {} |", row.what, of(row), others.collect::<Vec<_>>().join(" | "));
        }
    }

    /// The rows as comma-separated values.
    pub fn csv(&self) -> String {
        let mut text = "experiment,what,printed,measured,unit,band_low,band_high,verdict,values\n".to_owned();
        for row in &self.rows {
            let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{}",
                self.name,
                quoted(&row.what),
                quoted(&row.printed),
                row.measured,
                row.unit,
                row.band[0],
                row.band[1],
                row.verdict(),
                quoted(&row.detail)
            );
        }
        text
    }

    /// The rows as bars over their bands.
    pub fn svg(&self) -> String {
        let (width, line, left) = (900.0, 26.0, 330.0);
        let height = line * (self.rows.len() as f64 + 2.0);
        let values = self.rows.iter().flat_map(|row| [row.measured, row.band[0], row.band[1]]);
        let (low, high) = values.fold((0.0f64, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        let at = |value: f64| left + (value - low) / (high - low).max(1e-9) * (width - left - 20.0);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
             font-size=\"13\">\n<text x=\"8\" y=\"18\">{}: {}</text>\n",
            self.name,
            escaped(&self.title)
        );
        for (number, row) in self.rows.iter().enumerate() {
            let y = line * (number as f64 + 1.2);
            let color = if row.verdict() == "missed" { "#c0392b" } else { "#2471a3" };
            let (from, to) = (at(row.band[0]), at(row.band[1]));
            let (zero, end) = (at(0.0).min(at(row.measured)), at(0.0).max(at(row.measured)));
            let _ = writeln!(
                text,
                "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"18\" fill=\"#d5d8dc\"/>\
                 <rect x=\"{zero:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"8\" fill=\"{color}\"/>\
                 <text x=\"8\" y=\"{:.1}\">{}</text><text x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\">{:.1}{}</text>",
                to - from,
                y + 5.0,
                (end - zero).max(1.0),
                y + 14.0,
                escaped(&row.what),
                zero + 3.0,
                y + 13.0,
                row.measured,
                row.unit
            );
        }
        text + "</svg>\n"
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_tables_and_pictures() {
        let row = |measured| Row {
            what: "P99 of <steady>".into(),
            printed: "-96%".into(),
            measured,
            detail: "1 to 2 \"ms\"".into(),
            band: [-99.0, -70.0],
            unit: "%",
            is_reduction: true,
        };
        let verdicts: Vec<&str> = [-80.0, -99.5, -10.0].map(|measured| row(measured).verdict()).into();
        assert_eq!(verdicts, ["met", "beyond", "missed"]);
        let report = Report {
            name: "fig".into(),
            title: "a & b".into(),
            requests: 1,
            seed: 1,
            changes: vec!["depth=1".into()],
            rows: vec![row(-80.0), row(-10.0)],
            neighbours: vec![Neighbour { change: "depth=2".into(), rows: vec![row(-20.0), row(-75.0)] }],
        };
        assert!(report.table().contains("| what | usual | depth=2 |\n| --- | ---: | ---: |"), "{}", report.table());
        assert!(report.table().contains("| P99 of <steady> | -80.0% | **-20.0%** |"));
        assert!(!report.is_met() && report.table().contains("| -80.0% | -99 to -70% | met |"));
        assert!(report.csv().contains("\"1 to 2 \"\"ms\"\"\"") && report.csv().lines().count() == 3);
        let svg = report.svg();
        assert!(svg.contains("a &amp; b") && svg.contains("&lt;steady&gt;") && svg.ends_with("</svg>\n"));
    }
}
