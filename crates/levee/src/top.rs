//! `levee top`: what each volume did between two looks.
//!
//! Counters and latencies of a store only grow, so the difference of two answers is what happened between them; the
//! time between is the store's own. Where there are several servers, each is shown too, and the counters of a volume are those
//! of its agents together: they are compared only while the same agents answer.

#![allow(clippy::disallowed_methods, reason = "the clock outside of the simulated worlds")]

use std::io::{self, IsTerminal};
use std::time::Instant;

use base::{Error, Result};
use serde::Serialize;
use wire::api::{self, OperationTraffic, VolumeTraffic};
use wire::observe::quantile;

use crate::cli::Top;
use crate::client::{self, Client};
use crate::console;
use crate::explain::{duration, per_second};
use crate::status::{self, ROWS_MAX};

/// What happened between two looks.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Interval {
    seconds: f64,
    /// Whether the same agents were there at both ends: otherwise nothing is known of volumes.
    is_comparable: bool,
    /// Of several servers: each that lives.
    servers: Vec<ServerRates>,
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

#[derive(Clone, PartialEq, Debug, Serialize)]
struct ServerRates {
    server: String,
    engine: u64,
    segments: usize,
    waiting_requests: u64,
    /// Null: it has not answered, now or the last time.
    read: Option<Rate>,
    write: Option<Rate>,
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
    let mut asked = Instant::now();
    for shown in 0..options.count.unwrap_or(u64::MAX) {
        std::thread::sleep(options.interval);
        let now: api::Status = client.get(client::STATUS)?;
        let since = asked.elapsed();
        asked = Instant::now();
        let interval = between(&before, &now, since.as_secs_f64());
        let screen = format!("{}\n\n{}", status::summary(&now), tables(&interval));
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

/// Counters begin anew with the store: then all that it counted is since its start. Those of several servers outlive a
/// manager: when another one has answered, the time between is that of the clock here.
fn between(before: &api::Status, now: &api::Status, elapsed: f64) -> Interval {
    let is_one_life = (&before.store, before.incarnation) == (&now.store, now.incarnation);
    let is_same = is_one_life || now.cluster.is_some() && before.store == now.store;
    let seconds = match (is_one_life, is_same) {
        (true, _) => now.uptime_seconds - before.uptime_seconds,
        (false, true) => elapsed,
        (false, false) => now.uptime_seconds,
    };
    let seconds = seconds.max(0.001);
    let is_comparable =
        now.cluster.is_none() || before.cluster.as_ref().is_some_and(|cluster| has_agents(now, cluster));
    let earlier = |name: &str| before.traffic.iter().find(|volume| is_same && volume.volume == name);
    let rates = |volume: &VolumeTraffic| {
        let earlier = earlier(&volume.volume);
        let rate = |operation| match is_comparable {
            true => rate(
                earlier.and_then(|volume| find(&volume.operations, operation)),
                find(&volume.operations, operation),
                seconds,
            ),
            false => Rate::default(),
        };
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
    Interval { seconds, is_comparable, servers: servers_between(before, now), volumes }
}

/// Whether the agents of `now` are those of `before`, in the same lives.
fn has_agents(now: &api::Status, before: &api::Cluster) -> bool {
    let agents = now.cluster.iter().flat_map(|cluster| &cluster.agents);
    let is_one_life = |(now, before): (&api::Agent, &api::Agent)| {
        now.name == before.name && now.uptime_seconds >= before.uptime_seconds
    };
    agents.clone().count() == before.agents.len() && agents.zip(&before.agents).all(is_one_life)
}

/// What each engine did, by its own clock.
fn servers_between(before: &api::Status, now: &api::Status) -> Vec<ServerRates> {
    let engines = |status: &api::Status| -> Vec<(String, api::Engine)> {
        let servers = status.cluster.iter().flat_map(|cluster| &cluster.servers);
        servers.flat_map(|server| server.engines.iter().map(|engine| (server.name.clone(), engine.clone()))).collect()
    };
    let earlier = engines(before);
    let rates = |(server, engine): (String, api::Engine)| {
        let known = earlier.iter().find(|(_, known)| known.id == engine.id);
        let works = known.and_then(|(_, known)| known.work.as_ref()).zip(engine.work.as_ref());
        let rate = |operation| {
            works.map(|(before, now)| {
                let seconds = (now.uptime_seconds - before.uptime_seconds).max(0.001);
                rate(find(&before.operations, operation), find(&now.operations, operation), seconds)
            })
        };
        ServerRates {
            server,
            engine: engine.id,
            segments: engine.segments,
            waiting_requests: engine.work.as_ref().map_or(0, |work| work.waiting_requests),
            read: rate("read"),
            write: rate("write"),
        }
    };
    engines(now).into_iter().map(rates).collect()
}

fn find<'a>(operations: &'a [OperationTraffic], operation: &str) -> Option<&'a OperationTraffic> {
    operations.iter().find(|found| found.operation == operation)
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

/// Servers, if there are several, then volumes.
fn tables(interval: &Interval) -> String {
    let mut parts = Vec::new();
    if !interval.servers.is_empty() {
        parts.push(table_of_servers(&interval.servers));
    }
    if !interval.is_comparable {
        parts.push(
            "An agent has come or gone, or has not answered: what volumes did is not known of this moment.".into(),
        );
    }
    parts.push(table(interval));
    parts.join("\n\n")
}

fn table_of_servers(servers: &[ServerRates]) -> String {
    let row = |rates: &ServerRates| {
        let unknown = || ["?", "-", "-", "-"].map(str::to_owned);
        let mut row = vec![rates.server.clone(), rates.segments.to_string()];
        row.extend(rates.read.as_ref().map_or_else(unknown, cells));
        row.extend(rates.write.as_ref().map_or_else(unknown, cells));
        row.push(rates.waiting_requests.to_string());
        row
    };
    let rows: Vec<Vec<String>> = servers.iter().take(ROWS_MAX).map(row).collect();
    let header = ["SERVER", "SEGMENTS", "READ/S", "READ", "P50", "P99", "WRITE/S", "WRITTEN", "P50", "P99", "WAITING"];
    console::table(&header, &rows)
}

/// A rate, in the columns of a table.
fn cells(rate: &Rate) -> [String; 4] {
    match rate.iops {
        0 => ["0", "-", "-", "-"].map(str::to_owned),
        iops => [iops.to_string(), per_second(rate.bytes_per_second), duration(rate.p50_ns), duration(rate.p99_ns)],
    }
}

fn table(interval: &Interval) -> String {
    let rows: Vec<Vec<String>> = interval.volumes.iter().take(ROWS_MAX).map(row).collect();
    let header = ["VOLUME", "CLIENTS", "READ/S", "READ", "P50", "P99", "WRITE/S", "WRITTEN", "P50", "P99", "WAITS FOR"];
    status::with_rest(console::table(&header, &rows), interval.volumes.len())
}

fn row(rates: &Rates) -> Vec<String> {
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
        assert_eq!(tables(&between(&before, &now, 7.0)), expected);
        // Another life has counted from its own start on.
        now.incarnation += 1;
        now.uptime_seconds = 3.0;
        let anew = between(&before, &now, 7.0);
        assert_eq!((anew.seconds, anew.volumes[0].write.iops), (3.0, 100));
        assert_eq!(anew.volumes[0].write.p99_ns, 9_000_000);
    }

    /// One server goes on, one has not answered before; another manager is in charge; then an agent is another one.
    #[test]
    fn of_several_servers_each_has_rates_of_its_own() {
        let engine = |id, work| api::Engine { id, segments: 2, work, ..api::Engine::default() };
        let work = |uptime_seconds, requests| api::EngineWork {
            uptime_seconds,
            operations: write(requests, requests << 12, &[(100_000, requests)]),
            waiting_requests: 3,
            ..api::EngineWork::default()
        };
        let server =
            |name: &str, engine| api::Server { name: name.into(), engines: vec![engine], ..Default::default() };
        let agent = |uptime_seconds| api::Agent { name: "a1".into(), uptime_seconds, ..api::Agent::default() };
        let mut before = status::tests::status();
        before.traffic.truncate(1);
        before.traffic[0].operations = write(100, 409_600, &[(100_000, 100)]);
        let mut now = before.clone();
        now.incarnation += 1;
        now.uptime_seconds = 0.5;
        now.traffic[0].operations = write(300, 409_600 + (200 << 12), &[(100_000, 300)]);
        let first = [server("s1", engine(4, Some(work(10.0, 100)))), server("s2", engine(5, None))];
        let then = [server("s1", engine(4, Some(work(12.0, 500)))), server("s2", engine(5, Some(work(9.0, 50))))];
        let cluster = |servers: [api::Server; 2], agent| {
            Some(api::Cluster { servers: servers.into(), agents: vec![agent], ..api::Cluster::default() })
        };
        before.cluster = cluster(first, agent(5.0));
        now.cluster = cluster(then.clone(), agent(7.0));
        let expected = "\
SERVER  SEGMENTS  READ/S  READ  P50  P99  WRITE/S  WRITTEN    P50     P99     WAITING
s1      2         0       -     -    -    200      800 KiB/s  100 us  100 us  3
s2      2         ?       -     -    -    ?        -          -       -       3

VOLUME  CLIENTS  READ/S  READ  P50  P99  WRITE/S  WRITTEN    P50     P99     WAITS FOR
idle    1        0       -     -    -    100      400 KiB/s  100 us  100 us  nothing";
        assert_eq!(tables(&between(&before, &now, 2.0)), expected);
        // The agent began anew, and with it what it has counted.
        now.cluster = cluster(then, agent(1.0));
        let interval = between(&before, &now, 2.0);
        assert_eq!((interval.is_comparable, interval.volumes[0].write.iops), (false, 0));
        assert!(tables(&interval).contains("An agent has come or gone"));
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
