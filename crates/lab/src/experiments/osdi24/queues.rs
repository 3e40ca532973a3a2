//! Figures 6, 11 and 18: the queues of virtual machines on several loops, and which loops serve them.
//!
//! Figure 6 is a drawing without numbers, of what figure 11's second bar and §5.1 are the answer to. All of them are of
//! product A. A machine has as many queues as the agent has loops, so that the round robin of static queues gives each loop
//! one.

use policies::queues::Queues;
use policies::tenants::Scheduling;

use super::super::Row;
use super::judges::{Value, change, judged, least, most};
use super::printed::*;
use super::world::{Bench, Guest, Loops, Measured, Point, Product};
use super::{Case, Parameters, guest, point};

/// Whom figure 6 is about: the first guest that connects.
const BURST: usize = 0;
const VICTIM: usize = 1;

/// A machine with so many requests in flight in each queue.
fn machine(name: &str, sizes_kib: &[u64], queue_depths: Vec<usize>) -> Guest {
    Guest { queue_depths: queue_depths.clone(), ..guest(name, sizes_kib, queue_depths.iter().sum()) }
}

/// Requests of a machine that come from one processor almost all (figure 7).
fn uneven(depth: usize, queues: usize) -> Vec<usize> {
    let mut depths = vec![1; queues];
    depths[0] = depth + 1 - queues;
    depths
}

fn even(depth: usize, queues: usize) -> Vec<usize> {
    (0..queues).map(|queue| (depth + queue) / queues).collect()
}

fn on(parameters: &Parameters, loops: usize, queues: Queues, label: String, guests: Vec<Guest>) -> Point {
    let bench = Bench::Machines(Loops { count: loops, queues, network_bytes_per_sec: None });
    Point { bench, ..point(parameters, (Product::A, true), label, guests) }
}

/// Figure 6: one that asks for one request after the other, alone and beside a burst, with static queues and with shared ones.
/// Nobody schedules tenants, as where the figure is from; and as it is shipped.
pub(super) fn imbalance(parameters: &Parameters) -> Vec<Point> {
    let loops = parameters.loops;
    let of = |scheduling| {
        let both = [Queues::Static, Queues::Shared].into_iter().flat_map(move |queues| {
            // The burst connects first: its first queue is the first loop's. The victim's first one is the next loop's, and its
            // last one the first loop's, in which it asks.
            let mut depths = vec![0; loops];
            depths[loops - 1] = 1;
            let victim = machine("victim", &[parameters.victim_kib], depths);
            let with = |depth| {
                let depths = if depth == 0 { vec![0; loops] } else { uneven(depth, loops) };
                vec![machine("burst", &[parameters.victim_kib], depths), victim.clone()]
            };
            let label = format!("{scheduling:?}, {queues:?}");
            [0, parameters.beside_depth]
                .map(|depth| Point { scheduling, ..on(parameters, loops, queues, label.clone(), with(depth)) })
        });
        both.collect::<Vec<_>>()
    };
    [Scheduling::Off, Scheduling::Bios].into_iter().flat_map(of).collect()
}

pub(super) fn judge_fig6(case: &Case) -> Vec<Row> {
    let (mut rows, mut seen) = (Vec::new(), Vec::new());
    for (number, four) in case.measured.chunks_exact(4).enumerate() {
        let [(point, bound_alone), (_, bound), (_, shared_alone), (_, shared)] = four else { continue };
        let latency = |measured: &Measured| measured.guest(VICTIM).latency_us();
        let [bound_alone, bound_us, shared_alone, shared_us] = [bound_alone, bound, shared_alone, shared].map(latency);
        let detail = format!(
            "{bound_alone:.0} us alone, {bound_us:.0} beside the burst; with shared queues {shared_alone:.0} and {shared_us:.0}"
        );
        let value = |measured| Value { label: format!("{:?}", point.scheduling), measured, detail: detail.clone() };
        let by_latency = value(bound_us / shared_us);
        let by_delay = value((bound_us - bound_alone) / (shared_us - shared_alone));
        if number == 0 {
            judged(&mut rows, &FIG6_LATENCY, Some(&by_latency));
            judged(&mut rows, &FIG6_DELAY, Some(&by_delay));
        }
        seen.push(by_latency.observed("victim's latency, static by shared", "x"));
        seen.push(by_delay.observed("what it waits for beside the burst, static by shared", "x"));
        for (queues, measured) in [("static", bound), ("shared", shared)] {
            let of = measured.guest(BURST).requests as f64 / measured.seconds / 1e3;
            let value =
                Value { label: format!("{:?}, {queues}", point.scheduling), measured: of, detail: by(measured) };
            seen.push(value.observed("burst", " kIOPS"));
        }
    }
    rows.extend(seen);
    rows
}

/// Figure 11: load that the user spreads evenly over static queues; and load of which one queue has almost all, with both
/// baselines in software and with shared queues.
pub(super) fn spreadings(parameters: &Parameters) -> Vec<Point> {
    let (loops, depth) = (parameters.loops, parameters.machine_depth);
    let asks = |depths| vec![machine("machine", &[parameters.victim_kib], depths)];
    let uneven = |queues| on(parameters, loops, queues, format!("{queues:?}"), asks(uneven(depth, loops)));
    let balanced = on(parameters, loops, Queues::Static, "LB".into(), asks(even(depth, loops)));
    let others = [Queues::Stealing, Queues::Dispatcher, Queues::Shared, Queues::Static].map(uneven);
    std::iter::once(balanced).chain(others).collect()
}

pub(super) fn judge_fig11(case: &Case) -> Vec<Row> {
    let [(_, balanced), others @ ..] = case.measured else { return Vec::new() };
    let all = balanced.kiops();
    let lost = |(point, measured): &(Point, Measured)| Value {
        label: point.label.clone(),
        measured: change(all, measured.kiops()),
        detail: format!("{all:.0} k spread evenly, {:.0} k; {}", measured.kiops(), by(measured)),
    };
    let (values, mut rows): (Vec<Value>, Vec<Row>) = (others.iter().map(lost).collect(), Vec::new());
    judged(&mut rows, &FIG11_STEALING, values.first());
    rows.extend(values.iter().map(|value| value.observed("throughput by that of load spread evenly", "%")));
    rows
}

/// What a burst of figure 18 asks for.
fn kinds(parameters: &Parameters) -> [(&'static str, Vec<u64>, bool); 4] {
    [
        ("4 KiB", vec![parameters.victim_kib], false),
        ("IOPS-intensive", parameters.iops_sizes_kib.clone(), false),
        ("BPS-intensive", parameters.bps_sizes_kib.clone(), true),
        ("128 KiB", vec![parameters.large_kib], true),
    ]
}

/// Figure 18: one queue over one loop and over several, and load that the user spreads evenly over static queues of as many
/// loops as there are at most.
pub(super) fn scaling(parameters: &Parameters) -> Vec<Point> {
    let mut points = Vec::new();
    let counts = || std::iter::once(1).chain(parameters.scaled_loops.iter().copied());
    for (name, sizes_kib, is_short) in kinds(parameters) {
        let depth = if is_short { parameters.large_machine_depth } else { parameters.machine_depth };
        let network_bytes_per_sec = is_short.then_some(parameters.short_network_bytes_per_sec);
        points.extend(counts().map(|count| {
            let guests = vec![machine("machine", &sizes_kib, vec![depth])];
            let bench = Bench::Machines(Loops { count, queues: Queues::Shared, network_bytes_per_sec });
            let label = format!("{name}, {count} loops");
            Point { bench, ..on(parameters, count, Queues::Shared, label, guests) }
        }));
    }
    let most = counts().max().unwrap_or(1);
    let guests = vec![machine("machine", &[parameters.victim_kib], even(parameters.machine_depth, most))];
    points.push(on(parameters, most, Queues::Static, "4 KiB, spread evenly".into(), guests));
    points
}

/// The most by the least that a loop began with.
fn unevenness(measured: &Measured) -> f64 {
    let [most, least] = [measured.by_loop.iter().max(), measured.by_loop.iter().min()].map(|of| of.copied());
    most.unwrap_or(0) as f64 / least.unwrap_or(0) as f64
}

/// What each loop began with.
fn by(measured: &Measured) -> String {
    let all = measured.by_loop.iter().sum::<u64>() as f64;
    let shares: Vec<String> = measured.by_loop.iter().map(|of| format!("{:.1}", *of as f64 / all * 100.0)).collect();
    format!("by loop {}%", shares.join(" + "))
}

pub(super) fn judge_fig18(case: &Case) -> Vec<Row> {
    let several = case.parameters.scaled_loops.len();
    let (mut rows, mut seen) = (Vec::new(), Vec::new());
    // Of each number of loops what kinds with a short processor gain; what the others gain, with any number.
    let (mut gains, mut bound): (Vec<Vec<Value>>, Vec<Value>) =
        ((0..several).map(|_| Vec::new()).collect(), Vec::new());
    let mut evenness = None;
    for (number, group) in case.measured.chunks_exact(1 + several).enumerate() {
        let [(_, alone), others @ ..] = group else { continue };
        let latency = |measured: &Measured| measured.guest(BURST).latency_us();
        for (count, (point, measured)) in others.iter().enumerate() {
            let value = |measured, detail| Value { label: point.label.clone(), measured, detail };
            let detail = format!(
                "{:.0} to {:.0} kIOPS, {:.0} MB/s; {}",
                alone.kiops(),
                measured.kiops(),
                measured.throughput() / 1e6,
                by(measured)
            );
            let gain = value(measured.kiops() / alone.kiops(), detail);
            seen.push(gain.observed("throughput by that of one loop", "x"));
            let detail = format!("{:.0} to {:.0} us", latency(alone), latency(measured));
            seen.push(
                value(latency(measured) / latency(alone), detail).observed("mean latency by that of one loop", "x"),
            );
            if number == 0 && count + 1 == several {
                evenness = Some(value(unevenness(measured), by(measured)));
            }
            match number {
                0 | 1 => gains[count].push(gain),
                _ => bound.push(gain),
            }
        }
    }
    for (values, printed) in gains.iter().zip([&FIG18_TWO, &FIG18_FOUR, &FIG18_SIX]) {
        judged(&mut rows, printed, least(values));
    }
    judged(&mut rows, &FIG18_NETWORK, most(&bound));
    judged(&mut rows, &FIG18_EVEN, evenness.as_ref());
    if let [.., (point, spread)] = case.measured {
        let value = Value { label: point.label.clone(), measured: unevenness(spread), detail: by(spread) };
        seen.push(value.observed("most by least of a loop", "x"));
    }
    rows.extend(seen);
    rows
}
