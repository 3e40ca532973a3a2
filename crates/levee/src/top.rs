//! `levee top`: what each volume did between two looks.
//!
//! Counters and latencies of a store only grow, so the difference of two answers is what happened between them; the
//! time between is the store's own.

#![allow(clippy::disallowed_methods, reason = "the clock outside of the simulated worlds")]

use std::io::{self, IsTerminal};

use base::{Error, Result};
use serde::Serialize;
use wire::api::{self, OperationTraffic, VolumeTraffic};

use crate::cli::Top;
use crate::client::{self, Client};
use crate::console;
use crate::explain::{duration, per_second};
use crate::status::{self, ROWS_MAX};

/// What happened between two looks.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Interval {
    seconds: f64,
    /// The busiest first.
    volumes: Vec<Rates>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct Rates {
    volume: String,
    clients: usize,
    read: Rate,
    write: Rate,
    waits_for: String,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
struct Rate {
    iops: u64,
    bytes_per_second: u64,
    p50_ns: u64,
    p99_ns: u64,
}

/// Shows a screen after each interval, until it is interrupted.
///
/// # Errors
/// What the store answers.
pub fn run(options: Top) -> Result<()> {
    let client = Client::new(&options.api)?;
    let is_terminal = io::stdout().is_terminal() && !options.api.json;
    let mut before: api::Status = client.get(client::STATUS)?;
    for shown in 0..options.count.unwrap_or(u64::MAX) {
        std::thread::sleep(options.interval);
        let now: api::Status = client.get(client::STATUS)?;
        let interval = between(&before, &now);
        let screen = format!("{}\n\n{}", status::summary(&now), table(&interval));
        match (options.api.json, is_terminal) {
            (true, _) => {
                let line = serde_json::to_string(&interval).map_err(|error| Error::internal(error.to_string()))?;
                console::print(&line);
            }
            (_, true) => console::print(&redrawn(&screen, shown == 0)),
            _ => console::print(&format!("{screen}\n")),
        }
        before = now;
    }
    Ok(())
}

/// The screen over the one before: each line is cleared to its end, then what is below. The first one clears all.
fn redrawn(screen: &str, is_first: bool) -> String {
    let start = if is_first { "\x1b[2J\x1b[H" } else { "\x1b[H" };
    format!("{start}{}\x1b[K\x1b[J", screen.replace('\n', "\x1b[K\n"))
}

/// Counters begin anew with the store: then all that it counted is since its start.
fn between(before: &api::Status, now: &api::Status) -> Interval {
    let is_same = (&before.store, before.incarnation) == (&now.store, now.incarnation);
    let seconds = if is_same { now.uptime_seconds - before.uptime_seconds } else { now.uptime_seconds };
    let seconds = seconds.max(0.001);
    let earlier = |name: &str| before.traffic.iter().find(|volume| is_same && volume.volume == name);
    let rates = |volume: &VolumeTraffic| {
        let earlier = earlier(&volume.volume);
        let rate =
            |operation| rate(earlier.and_then(|volume| find(volume, operation)), find(volume, operation), seconds);
        Rates {
            volume: volume.volume.clone(),
            clients: volume.clients,
            read: rate("read"),
            write: rate("write"),
            waits_for: status::waits_for(volume),
        }
    };
    let mut volumes: Vec<Rates> = now.traffic.iter().map(rates).collect();
    volumes.sort_by_key(|rates| std::cmp::Reverse(rates.read.iops + rates.write.iops));
    Interval { seconds, volumes }
}

fn find<'a>(volume: &'a VolumeTraffic, operation: &str) -> Option<&'a OperationTraffic> {
    volume.operations.iter().find(|found| found.operation == operation)
}

fn rate(before: Option<&OperationTraffic>, now: Option<&OperationTraffic>, seconds: f64) -> Rate {
    let Some(now) = now else { return Rate::default() };
    // A volume of the same name may be another one, whose counters began anew.
    let before = before.filter(|before| before.requests <= now.requests);
    let since = |count: fn(&OperationTraffic) -> u64| count(now).saturating_sub(before.map_or(0, count));
    let per_second = |count: u64| (count as f64 / seconds).round() as u64;
    let latency = difference(before.map_or(&[], |before| &before.latency_ns), &now.latency_ns);
    Rate {
        iops: per_second(since(|operation| operation.requests)),
        bytes_per_second: per_second(since(|operation| operation.bytes)),
        p50_ns: quantile(&latency, 500_000),
        p99_ns: quantile(&latency, 990_000),
    }
}

/// What came to each bucket.
fn difference(before: &[(u64, u64)], now: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let earlier = |bound: u64| before.binary_search_by_key(&bound, |bucket| bucket.0).map_or(0, |at| before[at].1);
    now.iter().map(|&(bound, count)| (bound, count.saturating_sub(earlier(bound)))).collect()
}

/// The bound that `per_million` parts of a million of all values do not exceed; zero without values.
fn quantile(buckets: &[(u64, u64)], per_million: u64) -> u64 {
    let count: u64 = buckets.iter().map(|(_, count)| count).sum();
    let rank = (u128::from(count) * u128::from(per_million)).div_ceil(1_000_000).max(1) as u64;
    let mut seen = 0;
    let found = buckets.iter().find(|(_, count)| {
        seen += count;
        seen >= rank
    });
    found.map_or(0, |(bound, _)| *bound)
}

fn table(interval: &Interval) -> String {
    let rows: Vec<Vec<String>> = interval.volumes.iter().take(ROWS_MAX).map(row).collect();
    let header = ["VOLUME", "CLIENTS", "READ/S", "READ", "P50", "P99", "WRITE/S", "WRITTEN", "P50", "P99", "WAITS FOR"];
    status::with_rest(console::table(&header, &rows), interval.volumes.len())
}

fn row(rates: &Rates) -> Vec<String> {
    let cells = |rate: &Rate| match rate.iops {
        0 => ["0", "-", "-", "-"].map(str::to_owned),
        iops => [iops.to_string(), per_second(rate.bytes_per_second), duration(rate.p50_ns), duration(rate.p99_ns)],
    };
    let mut row = vec![rates.volume.clone(), rates.clients.to_string()];
    row.extend(cells(&rates.read).into_iter().chain(cells(&rates.write)));
    row.push(rates.waits_for.clone());
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(requests: u64, bytes: u64, latency_ns: &[(u64, u64)]) -> Vec<OperationTraffic> {
        let latency_ns = latency_ns.to_vec();
        vec![OperationTraffic { operation: "write".into(), requests, bytes, errors: 0, latency_ns }]
    }

    #[test]
    fn an_interval_is_the_difference_of_two_looks() {
        let mut before = status::tests::status();
        before.traffic[0].operations = write(100, 409_600, &[(9_000_000, 100)]);
        let mut now = before.clone();
        now.uptime_seconds += 2.0;
        now.traffic[0].operations =
            write(300, 409_600 + (200 << 12), &[(100_000, 198), (5_000_000, 2), (9_000_000, 100)]);
        let expected = "\
VOLUME  CLIENTS  READ/S  READ  P50  P99  WRITE/S  WRITTEN    P50     P99     WAITS FOR
idle    1        0       -     -    -    100      400 KiB/s  100 us  100 us  nothing
past    1        0       -     -    -    0        -          -       -       nothing now; burst_level for 1.5 ms in all
slow    1        0       -     -    -    0        -          -       -       burst_level (2 now)";
        assert_eq!(table(&between(&before, &now)), expected);
        // Another life has counted from its own start on.
        now.incarnation += 1;
        now.uptime_seconds = 3.0;
        let anew = between(&before, &now);
        assert_eq!((anew.seconds, anew.volumes[0].write.iops), (3.0, 100));
        assert_eq!(anew.volumes[0].write.p99_ns, 9_000_000);
    }

    #[test]
    fn percentiles_of_what_came() {
        let came = difference(&[(10, 5), (30, 1)], &[(10, 6), (20, 98), (30, 2)]);
        assert_eq!(came, [(10, 1), (20, 98), (30, 1)]);
        assert_eq!([1, 500_000, 990_000, 999_999].map(|part| quantile(&came, part)), [10, 20, 20, 30]);
        assert_eq!(quantile(&[], 500_000), 0);
    }

    #[test]
    fn a_screen_covers_the_one_before() {
        assert_eq!(redrawn("a\nb", true), "\x1b[2J\x1b[Ha\x1b[K\nb\x1b[K\x1b[J");
        assert_eq!(redrawn("a", false), "\x1b[Ha\x1b[K\x1b[J");
    }
}
