//! Comparisons of what was measured with what the paper printed. Every point is shown as an observation, too.

use policies::tenants::{Pricing, Scheduling};

use super::super::Row;
use super::super::row::Printed;
use super::Case;
use super::printed::*;
use super::world::{Asked, Measured, Point};

/// Whom figures are about: the first guest of a point.
const VICTIM: usize = 0;
/// Who bursts.
const BURST: usize = 1;
const ALL_BASE_KIOPS: f64 = 18.0;

/// One value of a figure.
pub(super) struct Value {
    pub(super) label: String,
    pub(super) measured: f64,
    pub(super) detail: String,
}

impl Value {
    fn judged(&self, printed: &'static Printed) -> Row {
        Row::judged(printed, self.measured, format!("{}: {}", self.label, self.detail))
    }

    pub(super) fn observed(&self, what: &str, unit: &'static str) -> Row {
        Row::observed(format!("{}, {what}", self.label), self.measured, unit, self.detail.clone())
    }
}

/// By how many percent it is more than before.
pub(super) fn change(before: f64, after: f64) -> f64 {
    (after / before - 1.0) * 100.0
}

pub(super) fn least(values: &[Value]) -> Option<&Value> {
    values.iter().min_by(|one, other| one.measured.total_cmp(&other.measured))
}

pub(super) fn most(values: &[Value]) -> Option<&Value> {
    values.iter().max_by(|one, other| one.measured.total_cmp(&other.measured))
}

pub(super) fn judged(rows: &mut Vec<Row>, printed: &'static Printed, value: Option<&Value>) {
    rows.extend(value.map(|value| value.judged(printed)));
}

/// WildCBS, BaseCBS and the scheduler under test, in that order, of each label.
fn triples<'a>(case: &Case<'a>) -> impl Iterator<Item = (&'a Point, [&'a Measured; 3])> {
    case.measured.chunks_exact(3).filter_map(|three| match three {
        [(point, wild), (_, base), (_, bios)] => Some((point, [wild, base, bios])),
        _ => None,
    })
}

/// Figures 19 and 20: the first kinds' points are those of the lower depths.
fn judge_latency(
    case: &Case,
    high: usize,
    printed: [&'static Printed; 2],
    by_base: Option<&'static Printed>,
) -> Vec<Row> {
    let (mut gains, mut ratios, mut rows, mut all) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (point, each) in triples(case) {
        let [wild, base, bios] = each.map(|measured| measured.guest(VICTIM).latency_us());
        let detail = format!("{wild:.0} us, {base:.0} with BaseCBS, {bios:.0} with ours");
        let value = |measured| Value { label: point.label.clone(), measured, detail: detail.clone() };
        all.push(value(change(wild, bios)).observed("victim's mean latency", "%"));
        if point.guests.get(BURST).is_some_and(|burst| burst.depth == high) {
            gains.push(value(change(wild, bios)));
            ratios.push(value(bios / base));
        }
    }
    judged(&mut rows, printed[0], most(&gains));
    judged(&mut rows, printed[1], least(&gains));
    if let Some(printed) = by_base {
        judged(&mut rows, printed, most(&ratios));
    }
    rows.extend(ratios.iter().map(|value| value.observed("by that with BaseCBS", "x")));
    rows.extend(all);
    rows
}

pub(super) fn judge_fig19(case: &Case) -> Vec<Row> {
    let high = case.parameters.bps_depths.iter().max().copied().unwrap_or(0);
    judge_latency(case, high, [&FIG19_LEAST, &FIG19_MOST], Some(&FIG19_BASE))
}

pub(super) fn judge_fig20(case: &Case) -> Vec<Row> {
    let high = case.parameters.iops_depths.iter().max().copied().unwrap_or(0);
    judge_latency(case, high, [&FIG20_LEAST, &FIG20_MOST], None)
}

/// Operations of the victim, in thousands per second.
fn kiops(measured: &Measured) -> f64 {
    measured.guest(VICTIM).requests as f64 / measured.seconds / 1e3
}

fn reached(case: &Case) -> Vec<(Value, f64)> {
    let each = triples(case).map(|(point, each)| {
        let [wild, base, bios] = each.map(kiops);
        let detail = format!("{wild:.1} k with WildCBS, {base:.1} k with BaseCBS");
        (Value { label: point.label.clone(), measured: bios, detail }, wild)
    });
    each.collect()
}

pub(super) fn judge_fig21(case: &Case) -> Vec<Row> {
    let values: Vec<Value> = reached(case).into_iter().map(|(value, _)| value).collect();
    let mut rows = Vec::new();
    judged(&mut rows, &FIG21_LEAST, least(&values));
    rows.extend(values.iter().map(|value| value.observed("victim", " kIOPS")));
    rows
}

/// The second half of the points is figure 22's.
pub(super) fn judge_fig22(case: &Case) -> Vec<Row> {
    let both = reached(case);
    let failed: Vec<&(Value, f64)> = both.iter().filter(|(_, wild)| *wild < ALL_BASE_KIOPS).collect();
    let wild: Vec<String> = both.iter().map(|(value, wild)| format!("{} {wild:.1} k", value.label)).collect();
    let fails = Value { label: "WildCBS".into(), measured: failed.len() as f64, detail: wild.join("; ") };
    let of_fig22: Vec<Value> = both.into_iter().map(|(value, _)| value).skip(4).collect();
    let mut rows = Vec::new();
    judged(&mut rows, &FIG22_LEAST, least(&of_fig22));
    rows.push(fails.judged(&FIG22_WILD));
    rows.extend(of_fig22.iter().map(|value| value.observed("victim", " kIOPS")));
    rows
}

/// Figure 23: three schedulers, and ours without a reserve.
pub(super) fn judge_fig23(case: &Case) -> Vec<Row> {
    let (mut lost, mut halves, mut rows, mut unreserved) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut lost_time = Vec::new();
    for four in case.measured.chunks_exact(4) {
        let [(point, wild), (_, base), (_, bios), (_, bare)] = four else { continue };
        let [all, of_bios, of_bare] = [wild, bios, bare].map(Measured::throughput);
        let label = || point.label.clone();
        let moved = |after: f64| format!("{:.0} to {:.0} MB/s", all / 1e6, after / 1e6);
        lost.push(Value { label: label(), measured: -change(all, of_bios), detail: moved(of_bios) });
        unreserved.push(Value { label: label(), measured: -change(all, of_bare), detail: moved(of_bare) });
        let busy = |measured: &Measured| {
            let of_all: f64 = measured.guests.iter().map(|guest| point.processor_ns(*guest)).sum();
            of_all / measured.seconds / 1e7
        };
        let kiops = [wild, bios].map(kiops);
        lost_time.push(Value {
            label: label(),
            measured: -change(busy(wild), busy(bios)),
            detail: format!(
                "{:.1} to {:.1}% of a processor; who stays below has {:.1} to {:.1} kIOPS",
                busy(wild),
                busy(bios),
                kiops[0],
                kiops[1]
            ),
        });
        let burst = base.guest(BURST).bytes as f64 / base.seconds;
        halves.push(Value { label: label(), measured: burst / all * 100.0, detail: moved(burst) });
    }
    judged(&mut rows, &FIG23_LEAST, least(&lost));
    judged(&mut rows, &FIG23_MOST, most(&lost));
    let off = |value: &&Value| (value.measured - 50.0).abs();
    judged(&mut rows, &FIG23_BASE, halves.iter().max_by(|one, other| off(one).total_cmp(&off(other))));
    rows.extend(lost.iter().map(|value| value.observed("lost", "%")));
    rows.extend(lost_time.iter().map(|value| value.observed("lost in processor time", "%")));
    rows.extend(unreserved.iter().map(|value| value.observed("lost without a reserve", "%")));
    rows.extend(halves.iter().map(|value| value.observed("what bursts with BaseCBS, of all", "%")));
    rows
}

pub(super) fn judge_fig24(case: &Case) -> Vec<Row> {
    let base = case.parameters.wake_base_iops;
    let rate = |point: &Point| point.guests.first().and_then(|guest| guest.wakes_for).unwrap_or(0);
    let value = |(point, measured): &(Point, Measured)| {
        let Asked { requests, throttled, .. } = measured.guest(VICTIM);
        let throttled = if requests == 0 { f64::NAN } else { throttled as f64 };
        let detail = format!("of {requests}, {:.0} us", measured.guest(VICTIM).latency_us());
        (rate(point) <= base, Value { label: point.label.clone(), measured: throttled, detail })
    };
    let (within, beyond): (Vec<_>, Vec<_>) = case.measured.iter().map(value).partition(|(is_within, _)| *is_within);
    let [within, beyond] = [within, beyond].map(|these| these.into_iter().map(|(_, value)| value).collect::<Vec<_>>());
    let most_of = most(&within).map_or(String::new(), |most| format!("most: {}, {}", most.label, most.measured));
    let sum = within.iter().map(|value| value.measured).sum();
    let all = Value { label: "all within".into(), measured: sum, detail: most_of };
    let mut rows = vec![all.judged(&FIG24_WITHIN)];
    judged(&mut rows, &FIG24_BEYOND, least(&beyond));
    rows.extend(within.iter().chain(&beyond).map(|value| value.observed("throttled", "")));
    rows
}

/// Table 3: of reads and writes WildCBS, ours without adjustment, with it, and as it is shipped.
pub(super) fn judge_table3(case: &Case) -> Vec<Row> {
    let (mut rows, mut seen) = (Vec::new(), Vec::new());
    for (number, four) in case.measured.chunks_exact(4).enumerate() {
        let [(_, wild), (_, without), (_, with), (point, shipped)] = four else { continue };
        let before = wild.guest(VICTIM).latency_us();
        let value = |after: &Measured| {
            let after = after.guest(VICTIM).latency_us();
            let detail = format!("{before:.0} to {after:.0} us");
            Value { label: point.label.clone(), measured: change(before, after), detail }
        };
        judged(&mut rows, &TABLE3_UNADJUSTED[number.min(1)], Some(&value(without)));
        judged(&mut rows, &TABLE3_ADJUSTED[number.min(1)], Some(&value(with)));
        seen.push(value(shipped).observed("with adjustment and measured processor time", "%"));
    }
    rows.extend(seen);
    rows
}

/// Figure 16: a scalar, and a vector.
pub(super) fn judge_fig16(case: &Case) -> Vec<Row> {
    let (mut gains, mut rows) = (Vec::new(), Vec::new());
    for two in case.measured.chunks_exact(2) {
        let [(point, scalar), (_, vector)] = two else { continue };
        let [before, after] = [scalar, vector].map(Measured::throughput);
        let each = |measured: &Measured| {
            let of = |number| measured.guest(number).bytes as f64 / measured.seconds / 1e6;
            format!("{:.0} + {:.0}", of(0), of(1))
        };
        let detail = format!("{} to {} MB/s, small and large", each(scalar), each(vector));
        gains.push(Value { label: point.label.clone(), measured: change(before, after), detail });
    }
    judged(&mut rows, &FIG16_GAIN, least(&gains));
    rows.extend(gains.iter().map(|value| value.observed("throughput", "%")));
    rows
}

/// What points of a figure differ in where they are compared.
pub(super) const THREE: [Scheduling; 3] = [Scheduling::Wild, Scheduling::Base, Scheduling::Bios];
/// See [`THREE`].
pub(super) const BOTH: [Pricing; 2] = [Pricing::Scalar, Pricing::Vector];
