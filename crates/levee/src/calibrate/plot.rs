//! Figure 6 as a picture: percentiles over the rate, the curve, the knee.
//!
//! Rates go right from nothing to the most that was delivered, times go up in powers of ten, because what happens above
//! the knee is of another order than what happens below.

use std::fmt::Write;

use base::units::format_size;
use node::calibrate::Report;

/// The picture, and what surrounds the plot in it, in pixels.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 56.0;
/// Pieces of a curve.
const PIECES: u32 = 200;

const P95: &str = "#2471a3";
const P99: &str = "#b9770e";
const CURVE: &str = "#7f8c8d";
const KNEE: &str = "#c0392b";

/// From numbers to places.
struct Axes {
    rate_max: f64,
    /// Powers of ten of microseconds.
    low: f64,
    high: f64,
}

impl Axes {
    fn of(report: &Report) -> Axes {
        let rates = report.points.iter().map(|point| point.delivered).chain([report.service]);
        let times = report.points.iter().flat_map(|point| [point.p95_us, point.p99_us]).filter(|us| *us > 0.0);
        let (least, most) = times.fold((f64::MAX, 10.0f64), |(least, most), us| (least.min(us), most.max(us)));
        Axes {
            rate_max: rates.max().unwrap_or(1).max(1) as f64 * 1.05,
            low: least.min(most).log10().floor(),
            high: most.log10().ceil().max(least.min(most).log10().floor() + 1.0),
        }
    }

    fn x(&self, rate: f64) -> f64 {
        LEFT + rate / self.rate_max * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, us: f64) -> f64 {
        let part = (us.max(1e-3).log10() - self.low) / (self.high - self.low);
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }
}

/// The picture.
pub fn svg(report: &Report) -> String {
    let axes = Axes::of(report);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"22\" \
         font-size=\"15\">How long requests take over what is delivered ({})</text>\n",
        report.mix
    );
    write_axes(&mut text, &axes);
    if let Some(knee) = report.knee {
        let (x, top, bottom) = (axes.x(knee as f64), TOP, HEIGHT - BOTTOM);
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"{KNEE}\" stroke-dasharray=\"5 3\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{KNEE}\" text-anchor=\"end\">knee {}/s</text>",
            x - 6.0,
            top + 12.0,
            format_size(knee)
        );
    }
    write_curve(&mut text, &axes, report);
    for (percentile, color) in [(95, P95), (99, P99)] {
        for point in &report.points {
            let us = if percentile == 95 { point.p95_us } else { point.p99_us };
            let (x, y) = (axes.x(point.delivered as f64), axes.y(us));
            // Where latency has taken off, the point is hollow.
            let fill = if point.has_taken_off { "white" } else { color };
            let _ = writeln!(
                text,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{color}\"><title>P{percentile} {us:.0} us \
                 at {}/s</title></circle>",
                format_size(point.delivered)
            );
        }
    }
    let mut x = LEFT;
    for (name, color) in [("P95", P95), ("P99", P99), ("P95 = w0 + k x bytes x 3 / (mu - rate)", CURVE)] {
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"34\" width=\"10\" height=\"10\" fill=\"{color}\"/><text x=\"{}\" y=\"43\">{name}</text>",
            x + 15.0
        );
        x += 60.0;
    }
    let _ = writeln!(text, "<text x=\"{}\" y=\"43\" text-anchor=\"end\">hollow: taken off</text>", WIDTH - RIGHT);
    text + "</svg>\n"
}

fn write_axes(text: &mut String, axes: &Axes) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for power in axes.low as i32..=axes.high as i32 {
        let us = 10f64.powi(power);
        let y = axes.y(us);
        let label = if us >= 1000.0 { format!("{} ms", us / 1000.0) } else { format!("{us} us") };
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#d5d8dc\"/><text x=\"{:.1}\" \
             y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            y + 4.0
        );
    }
    for tenth in (0..=10).step_by(2) {
        let rate = axes.rate_max * f64::from(tenth) / 10.0;
        let x = axes.x(rate);
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" y1=\"{bottom}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"black\"/><text x=\"{x:.1}\" \
             y=\"{:.1}\" text-anchor=\"middle\">{}/s</text>",
            bottom + 5.0,
            bottom + 20.0,
            format_size(rate as u64)
        );
    }
    let _ = writeln!(
        text,
        "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/><text x=\"{:.1}\" y=\"{:.1}\" \
         text-anchor=\"middle\">delivered</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 12.0
    );
}

fn write_curve(text: &mut String, axes: &Axes, report: &Report) {
    let Some(curve) = &report.curve else { return };
    let highest = 10f64.powf(axes.high);
    let rates = (0..PIECES).map(|piece| axes.rate_max * f64::from(piece) / f64::from(PIECES));
    let places = rates.filter_map(|rate| Some((rate, curve.p95_us(rate).filter(|us| *us <= highest)?)));
    let places: Vec<String> = places.map(|(rate, us)| format!("{:.1},{:.1}", axes.x(rate), axes.y(us))).collect();
    let _ = writeln!(
        text,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{CURVE}\" stroke-width=\"1.5\"/>",
        places.join(" ")
    );
}
