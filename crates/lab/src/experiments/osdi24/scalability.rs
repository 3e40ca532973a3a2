//! Figure 25: what the scheduler takes for a window, by the number of tenants. It is measured in real time, and differs from run
//! to run.

use super::super::Row;
use super::judges::{Value, judged};
use super::printed::{FIG25_ACTIVE, FIG25_ALL, FIG25_LINEAR};
use super::world::{Bench, Point, Product, Window};
use super::{Case, Parameters, point};

/// One point, so that nothing of it is measured beside the rest: all tenants active, and a few of them.
pub(super) fn windows(parameters: &Parameters) -> Vec<Point> {
    let known = || parameters.known_tenants.iter().copied();
    let some =
        known().filter(|known| *known > parameters.active_tenants).map(|known| (known, parameters.active_tenants));
    let sizes = known().map(|known| (known, known)).chain(some).collect();
    let bench = Bench::Windows(sizes);
    vec![Point { bench, ..point(parameters, (Product::A, false), "scheduler".into(), Vec::new()) }]
}

pub(super) fn judge_fig25(case: &Case) -> Vec<Row> {
    let Some((_, measured)) = case.measured.first() else { return Vec::new() };
    let value = |window: &Window| {
        let Window { known, active, median_us, lowest_us } = *window;
        let detail = format!("median; {lowest_us:.2} us at least");
        Value { label: format!("{active} active of {known} tenants"), measured: median_us, detail }
    };
    let (all, some): (Vec<_>, Vec<_>) = measured.windows.iter().partition(|window| window.known == window.active);
    let mut rows = Vec::new();
    judged(&mut rows, &FIG25_ALL, all.last().copied().map(value).as_ref());
    judged(&mut rows, &FIG25_ACTIVE, some.last().copied().map(value).as_ref());
    if let [.., fewer, most] = &all[..] {
        let times = most.known as f64 / fewer.known as f64;
        let detail =
            format!("{:.2} us with {}, {:.2} with {}", fewer.median_us, fewer.known, most.median_us, most.known);
        let measured = most.median_us / fewer.median_us / times;
        judged(&mut rows, &FIG25_LINEAR, Some(&Value { label: "all active".into(), measured, detail }));
    }
    rows.extend(measured.windows.iter().map(|window| value(window).observed("a window", " us")));
    rows
}
