//! What spreading bursts would do to a workload that somebody has a trace of (`levee lab replay`): its writes, on the cluster that
//! DiffForward's figures are measured on ([`super::sig23::latency`]).
//!
//! A server is its network card there, so what comes out is how long writes wait for cards, and how even these are used; storage
//! behind them takes the same time for each write. Reads are left out: they pass cards the other way.

use std::time::Duration;

use base::{Error, Map, Result};
use policies::burst::BurstSettings;
use serde::Serialize;

use super::random::Random;
use super::sig23::geometry::Geometry;
use super::sig23::latency::{Auto, Cluster, Latency, Merging};
use super::sig23::schemes::Scheme;
use super::sig23::workload::{Traffic, Write, copied};
use super::trace::Request;

/// What is behind a card takes so long, as in the figures (`parameters/sig23.toml`).
const BEHIND: Duration = Duration::from_micros(500);
/// Where nothing is known of volumes yet, twice: what is shorter says nothing.
const SHORTEST_NS: u64 = 20_000_000_000;
const SECTOR: u64 = 512;
/// Volumes that a replay may have.
const VOLUMES_MAX: usize = 100_000;

/// Who takes what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Each segment's owner its writes.
    Owners,
    /// The same, and every 5 s segments go from the server that has most to do to the one that has least.
    Migration,
    /// As Levee does by default: what a burst is tunes itself, and bursts go to all servers while that gains.
    Auto,
    /// Bursts go to all servers, as DiffForward's text has it (TH of 50 ms).
    Spread,
    /// The same with the TH that its authors ran, 16 times that: fewer writes are bursts.
    SpreadLess,
}

impl Policy {
    /// All of them, what others are compared with first.
    pub const ALL: [Policy; 5] = [Policy::Owners, Policy::Migration, Policy::Auto, Policy::Spread, Policy::SpreadLess];

    /// As tables have it.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Owners => "owners",
            Policy::Migration => "migration",
            Policy::Auto => "auto",
            Policy::Spread => "spread",
            Policy::SpreadLess => "spread-less",
        }
    }

    fn scheme(self) -> Scheme {
        match self {
            Policy::Owners => Scheme::Segmentation,
            Policy::Migration => Scheme::Migration { last: 1.0 },
            Policy::Auto | Policy::Spread => Scheme::DiffForward { settings: BurstSettings::SENSITIVE, in_turn: true },
            Policy::SpreadLess => Scheme::DiffForward { settings: BurstSettings::EXACT, in_turn: true },
        }
    }
}

/// The cluster.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setting {
    /// Servers.
    pub servers: usize,
    /// How much of their cards the writes take on average.
    pub utilization: f64,
    /// Who takes what.
    pub policy: Policy,
    /// How volumes are cut.
    pub geometry: Geometry,
}

/// What came of it. Times in milliseconds, of each write.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Replayed {
    /// Who took what.
    pub policy: &'static str,
    /// How volumes were cut.
    pub cut: String,
    /// The mean.
    pub average_ms: f64,
    /// Percentiles.
    pub p50_ms: f64,
    /// Percentiles.
    pub p99_ms: f64,
    /// Percentiles.
    pub p999_ms: f64,
    /// How uneven servers are asked for, in bins of 100 ms: the coefficient of variation.
    pub cov: f64,
    /// Of all bytes, those that went to logs.
    pub logged: f64,
    /// The most that waited in logs, in bytes.
    pub waiting_max: u64,
}

/// The first `most` writes of a trace: each of its devices is a volume.
///
/// # Errors
/// `Invalid`: the trace is damaged, its times go back, or it is shorter than 20 s.
pub fn traffic(
    requests: impl IntoIterator<Item = std::result::Result<Request, String>>,
    most: usize,
) -> Result<Traffic> {
    let mut traffic = Traffic { writes: Vec::new(), sizes: Vec::new() };
    let (mut volumes, mut begun, mut before): (Map<u64, u32>, Option<u64>, u64) = (Map::default(), None, 0);
    for request in requests {
        let Request { at_ns, device, offset, bytes, is_write } = request.map_err(Error::invalid)?;
        if !is_write || bytes == 0 {
            continue;
        }
        if at_ns < before {
            let number = traffic.writes.len() + 1;
            return Err(Error::invalid(format!(
                "write {number} is before the one in front of it; sort the file by time"
            )));
        }
        let known = volumes.len() as u32;
        let volume = *volumes.entry(device).or_insert(known);
        let end = offset.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(SECTOR));
        let end = end.ok_or_else(|| Error::invalid(format!("a write at {offset} ends beyond what 64 bits can say")))?;
        if volume == known {
            traffic.sizes.push(0);
        }
        check_volumes(traffic.sizes.len())?;
        let size = &mut traffic.sizes[volume as usize];
        *size = end.max(*size);
        let (from, at) = (offset / SECTOR * SECTOR, at_ns - *begun.get_or_insert(at_ns));
        traffic.writes.push(Write { at_ns: at, volume, offset: from, bytes: end - from, is_burst: false });
        before = at_ns;
        if traffic.writes.len() == most {
            break;
        }
    }
    match traffic.length_ns() {
        0..SHORTEST_NS => {
            let (writes, seconds) = (traffic.writes.len(), traffic.length_ns() / 1_000_000_000);
            Err(Error::invalid(format!(
                "its first {writes} writes take {seconds} s, and of the first 10 s nothing is counted: give a trace of 20 s at \
                 least, or more of its writes (--writes)"
            )))
        }
        _ => Ok(traffic),
    }
}

/// A trace of few disks, several times ([`copied`]).
///
/// # Errors
/// `Invalid`: that is too many volumes.
pub fn copies_of(traffic: &Traffic, copies: u32, random: &mut Random) -> Result<Traffic> {
    check_volumes(traffic.sizes.len().saturating_mul(copies as usize))?;
    Ok(copied(traffic, copies, random))
}

fn check_volumes(volumes: usize) -> Result<()> {
    match volumes > VOLUMES_MAX {
        true => Err(Error::invalid(format!("it has more than {VOLUMES_MAX} disks, copies counted: take a part of it"))),
        false => Ok(()),
    }
}

impl Setting {
    /// Bytes that a card carries in a second, each way.
    pub fn card(&self, traffic: &Traffic) -> f64 {
        let bytes: u64 = traffic.writes.iter().map(|write| write.bytes).sum();
        bytes as f64 / (traffic.length_ns() as f64 / 1e9) / self.servers as f64 / self.utilization
    }

    /// Replays traffic. Segments are placed by `seed`.
    pub fn replay(&self, traffic: &Traffic, seed: u64) -> Replayed {
        let Setting { servers, utilization, policy, geometry } = *self;
        let scheme = policy.scheme();
        let cluster = Cluster {
            servers,
            utilization,
            scheme,
            geometry,
            merging: Merging::default(),
            behind: BEHIND,
            has_one_card: false,
            auto: (policy == Policy::Auto).then(Auto::default),
        };
        let latency = Latency::of(traffic, Vec::new(), cluster, seed);
        let ms = |per_million| latency.writes.quantile(per_million) as f64 / 1e6;
        let written: u64 = traffic.writes.iter().map(|write| write.bytes).sum();
        Replayed {
            policy: policy.name(),
            cut: geometry.name(),
            average_ms: latency.writes.sum() as f64 / latency.writes.count().max(1) as f64 / 1e6,
            p50_ms: ms(500_000),
            p99_ms: ms(990_000),
            p999_ms: ms(999_000),
            cov: latency.balance.map_or(f64::NAN, |balance| balance.cov),
            logged: latency.bytes[1] as f64 / written as f64,
            waiting_max: latency.waiting.iter().copied().max().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{KIB, Prng};

    use super::*;

    fn write(at_ms: u64, device: u64, offset: u64, bytes: u64) -> std::result::Result<Request, String> {
        Ok(Request { at_ns: at_ms * 1_000_000, device, offset, bytes, is_write: true })
    }

    /// A write each 100 ms, and each 4 s a burst of 100 at once.
    fn bursts() -> Traffic {
        let steady = (0..400u64).map(|at| write(at * 100, 7, at % 16 * 64 * KIB, 4 * KIB));
        let of_bursts = (0..1_000u64).map(|at| write(at / 100 * 4_000 + 1, 7, at * 29 % 977 * 64 * KIB, 64 * KIB));
        let mut all: Vec<_> = steady.chain(of_bursts).collect();
        all.sort_by_key(|request| request.as_ref().unwrap().at_ns);
        traffic(all, usize::MAX).unwrap()
    }

    #[test]
    fn writes_of_a_trace_are_taken_as_they_are() {
        let read = Ok(Request { at_ns: 0, device: 1, offset: 0, bytes: 512, is_write: false });
        let taken = traffic([read, write(5_000, 9, 100, 600), write(30_000, 4, 4_096, 512), write(31_000, 9, 0, 1)], 2);
        let taken = taken.unwrap();
        assert_eq!((taken.sizes.as_slice(), taken.length_ns()), ([1_024, 4_608].as_slice(), 25_000_000_000));
        let Write { at_ns, volume, offset, bytes, .. } = taken.writes[0];
        assert_eq!((at_ns, volume, offset, bytes), (0, 0, 0, 1_024), "whole sectors");
        let wrong = |requests: Vec<_>| traffic(requests, 10).unwrap_err().to_string();
        assert!(wrong(vec![]).contains("20 s at least"));
        assert!(wrong(vec![write(0, 1, 0, 512), write(19_999, 1, 0, 512)]).contains("take 19 s"));
        assert!(wrong(vec![write(5, 1, 0, 512), write(4, 1, 0, 512)]).contains("sort the file"));
        assert!(wrong(vec![write(5, 1, u64::MAX, 512)]).contains("64 bits"));
        assert!(wrong(vec![Err("line 3".into())]).contains("line 3"));
    }

    #[test]
    fn copies_are_elsewhere_in_the_trace() {
        let one = bursts();
        let three = copies_of(&one, 3, &mut Random(Prng::new(1))).unwrap();
        assert_eq!((three.writes.len(), three.sizes.len()), (3 * one.writes.len(), 3));
        assert!(three.writes.is_sorted_by_key(|write| write.at_ns) && three.length_ns() <= one.length_ns());
        let [first, second, third] = [0, 1, 2].map(|volume| three.by_volume()[volume].clone());
        assert_eq!(first, one.writes);
        assert!(second[0].at_ns != third[0].at_ns && second.len() == third.len());
        assert!(copies_of(&one, u32::MAX, &mut Random(Prng::new(1))).is_err());
    }

    #[test]
    fn bursts_are_over_sooner_where_they_are_spread_and_owners_are_where_nothing_is_logged() {
        let traffic = bursts();
        let setting = Setting { servers: 5, utilization: 0.1, policy: Policy::Owners, geometry: Geometry::LEVEE };
        let [owners, spread] =
            [Policy::Owners, Policy::Spread].map(|policy| Setting { policy, ..setting }.replay(&traffic, 1));
        assert!(spread.p99_ms < owners.p99_ms && spread.cov < owners.cov, "{spread:?} {owners:?}");
        assert!(owners.logged == 0.0 && spread.logged > 0.5, "{spread:?}");
        let auto = Setting { policy: Policy::Auto, ..setting }.replay(&traffic, 1);
        assert!(
            auto.average_ms < owners.average_ms && auto.logged > 0.0 && auto.cov < owners.cov,
            "{auto:?} {owners:?}"
        );
        let whole = Setting { geometry: Geometry::WHOLE, ..setting }.replay(&traffic, 1);
        assert!(whole.p99_ms > owners.p99_ms, "{whole:?} {owners:?}");
        assert!((setting.card(&traffic) - 66e6 / 40.0 / 5.0 / 0.1).abs() < 2e5, "{}", setting.card(&traffic));
    }
}
