//! One comparison with the paper, and its outcome.
//!
//! A printed number has one band, which was written down before it was measured, and one [`Outcome`]. What has no printed
//! number is shown without one.

use serde::Serialize;

use super::Mechanism;

/// A number of a paper, and what an honest reproduction of it may be expected to be.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Printed {
    /// What it is of.
    pub what: &'static str,
    /// As it is printed.
    pub number: &'static str,
    /// Where: section and figure.
    pub source: &'static str,
    /// From where to where an honest reproduction is expected to be.
    pub band: [f64; 2],
    /// Why from there to there.
    pub reason: &'static str,
    /// What the numbers are in: `%`, `x`, `us`; empty: a plain number.
    pub unit: &'static str,
    /// Which side of the band is a better result than the band.
    pub better: Better,
    /// Why it may be better here than printed.
    pub beyond: &'static str,
    /// Whether it is compared with something else than the baseline that all of the paper's figures have: one bucket,
    /// one queue.
    pub is_aside: bool,
    /// What it depends on: without any one of these it has to be missed.
    pub needs: &'static [Mechanism],
}

/// Which side of a band is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Below it.
    Less,
    /// Neither: outside is outside.
    Neither,
}

/// What became of a printed number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Within its band.
    Met,
    /// Outside of it, and better.
    Beyond,
    /// Outside of it.
    Missed,
}

impl Outcome {
    /// As tables have it.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Met => "met",
            Outcome::Beyond => "beyond",
            Outcome::Missed => "missed",
        }
    }
}

impl Printed {
    /// What a measured value is.
    pub fn outcome(&self, measured: f64) -> Outcome {
        let [low, high] = self.band;
        match self.better {
            _ if (low..=high).contains(&measured) => Outcome::Met,
            Better::Less if measured < low => Outcome::Beyond,
            _ => Outcome::Missed,
        }
    }

    /// The band in words.
    pub fn expected(&self) -> String {
        let ([low, high], unit) = (self.band, self.unit);
        match () {
            () if low == high => format!("{low}{unit}"),
            () if high.is_infinite() => format!("{low}{unit} or more"),
            () => format!("{low} to {high}{unit}"),
        }
    }
}

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was compared.
    pub what: String,
    /// The printed number that it is judged by.
    pub printed: Option<&'static Printed>,
    /// Without one: what else it is, such as "calibration".
    pub kind: &'static str,
    /// What was measured.
    pub measured: f64,
    /// What it is in.
    pub unit: &'static str,
    /// The measured values behind it, in words.
    pub detail: String,
}

impl Row {
    /// A value that is judged.
    pub fn judged(printed: &'static Printed, measured: f64, detail: String) -> Row {
        let (what, unit) = (printed.what.to_owned(), printed.unit);
        Row { what, printed: Some(printed), kind: "", measured, unit, detail }
    }

    /// A value of which nothing is printed.
    pub fn observed(what: String, measured: f64, unit: &'static str, detail: String) -> Row {
        Row { what, printed: None, kind: "observation", measured, unit, detail }
    }

    /// What became of the printed number, if it has one.
    pub fn outcome(&self) -> Option<Outcome> {
        self.printed.map(|printed| printed.outcome(self.measured))
    }

    /// What was measured, as tables have it.
    pub fn value(&self) -> String {
        value(self.measured, self.unit)
    }
}

/// A number as tables have it.
pub fn value(measured: f64, unit: &str) -> String {
    match unit {
        "" => format!("{measured:.2}"),
        unit => format!("{measured:.1}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_of_a_band_has_a_word_of_its_own() {
        let printed = Printed {
            what: "P99",
            number: "-96%",
            source: "figure 10",
            band: [-99.0, -70.0],
            reason: "",
            unit: "%",
            better: Better::Less,
            beyond: "",
            is_aside: false,
            needs: &[],
        };
        let outcomes = |printed: &Printed| [-80.0, -99.5, -10.0].map(|measured| printed.outcome(measured));
        assert_eq!(outcomes(&printed), [Outcome::Met, Outcome::Beyond, Outcome::Missed]);
        let neither = Printed { better: Better::Neither, ..printed };
        assert_eq!(outcomes(&neither), [Outcome::Met, Outcome::Missed, Outcome::Missed]);
        assert_eq!(printed.outcome(f64::NAN), Outcome::Missed, "where nothing was measured");
        assert_eq!(printed.expected(), "-99 to -70%");
        assert_eq!(Printed { band: [5.0, f64::INFINITY], unit: "x", ..printed }.expected(), "5x or more");
    }
}
