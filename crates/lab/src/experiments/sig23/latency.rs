//! How long writes take where the network cards of servers are what is scarce (DiffForward, SIGMETRICS 2023, §5.3 and §5.4).
//!
//! **What is real, and what is modelled.** The agent's side is the store's own: [`agent::forwarding`] with its detector, logs,
//! index, book and merging, one agent for all volumes, in a simulated world. A server is its network card ([`super::cards`]): that
//! carries so many bytes in a second each way, in the order in which they were asked for, whether a client writes them, a log takes
//! them, or merging reads and writes them once more. Merging has its turn as at a real server, by [`turns`]. What is behind it takes the same time for each request. The paper has storage
//! there that gets slower with load, and connections that compete; here waiting for the card is all that differs.
//!
//! A volume has as many logs as a cluster of that size gives it, on all servers in turn. Which server has which bytes besides is up to
//! [`super::homes`], over segments as [`super::geometry`] cuts them: the agent has its own, and servers look at where in the
//! volume that is. With migration a segment that moves costs nothing, and nothing waits for it.
//!
//! For figure 15 clients read, too. There, and only there, what is behind a server is reached by the same card, which is what a read
//! can wait for.
//!
//! Replication needs no agent, and is in [`super::replication`].

mod clients;
mod servers;
mod turns;

use std::time::Duration;

use agent::forwarding::{Forwarder, Mode, Options};
use base::Histogram;
use policies::forwarding::{Limits, Pace};
use runtime::sim::{CpuOptions, NodeOptions, World};

use self::clients::Clients;
use self::servers::Servers;
use super::balance::Balance;
use super::geometry::Geometry;
use super::schemes::Scheme;
use super::workload::{Read, Traffic};

/// What is there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cluster {
    /// Servers.
    pub servers: usize,
    /// How much of their cards the traffic takes on average: that it arrives in them once, as if nothing were forwarded.
    pub utilization: f64,
    /// Who takes what.
    pub scheme: Scheme,
    /// How volumes are cut.
    pub geometry: Geometry,
    /// How what is in logs comes home.
    pub merging: Merging,
    /// What is behind a card takes so long.
    pub behind: Duration,
    /// What is behind is reached by the same card: what is written leaves it once more, and what is read came in by it.
    pub has_one_card: bool,
    /// Agents find out what a burst is, and whether spreading bursts gains; otherwise all of what the scheme calls one is spread.
    pub auto: Option<Auto>,
}

/// How agents find out; by default as they do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Auto {
    /// What it may cost.
    pub limits: Limits,
    /// Whether they find out that spreading gains. Otherwise that is taken for granted.
    pub finds_gain: bool,
}

impl Default for Auto {
    fn default() -> Self {
        let Options { limits, finds_gain, .. } = Options::default();
        Auto { limits, finds_gain }
    }
}

/// How what is in logs comes home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Merging {
    /// Over the same cards as all else.
    Carried(Pace),
    /// At once, and nothing of it passes a card or takes time: as if entries were just dropped, which nobody can do better.
    Free,
    /// Not at all: who reads a log waits for ever.
    Never,
}

impl Merging {
    fn pace(self) -> Pace {
        match self {
            Merging::Carried(pace) => pace,
            Merging::Free => Pace::AtOnce,
            Merging::Never => Pace::Prioritized,
        }
    }
}

impl Default for Merging {
    fn default() -> Self {
        Merging::Carried(Pace::Prioritized)
    }
}

/// What came of it.
#[derive(Clone, Default, Debug)]
pub struct Latency {
    /// Of each write after a warm-up, in nanoseconds.
    pub writes: Histogram,
    /// The same of reads.
    pub reads: Histogram,
    /// What of that was waiting, for cards and for other writes, and what the passing of a card. Where a write is cut: of the part
    /// that was done last. The rest is what is behind a card.
    pub parts: [Histogram; 2],
    /// Bytes that were written, that went to logs, and that came home, from the begin on.
    pub bytes: [u64; 3],
    /// Bytes that waited in logs, each second from the warm-up to the last write.
    pub waiting: Vec<u64>,
    /// Of each volume: entries that waited in logs, the mean of these seconds and the most.
    pub entries: Vec<(f64, u64)>,
    /// How evenly servers were asked by clients, in bins of 100 ms: merging is not counted.
    pub balance: Option<Balance>,
}

/// Writes of the first seconds are not looked at: nothing is known of a volume yet.
pub(super) const WARM_UP: Duration = Duration::from_secs(10);

impl Latency {
    /// Of traffic on a cluster, with reads beside it. Segments are placed by `seed`.
    pub fn of(traffic: &Traffic, reads: Vec<Read>, cluster: Cluster, seed: u64) -> Latency {
        let world = World::new(seed);
        // What an agent's processor takes is not what this is about.
        let cpu = CpuOptions { clock_ns: 1, submit_ns: 1, outcome_ns: 1, ..CpuOptions::default() };
        let node = world.add_node(NodeOptions { cpu, ..NodeOptions::default() });
        let handle = world.start_loop(node);
        let servers = Servers::new(&handle, traffic, cluster, seed);
        let (writes, inside) = (traffic.writes.clone(), handle.clone());
        world.block_on(&handle, async move {
            let options = match cluster.scheme {
                Scheme::DiffForward { settings: burst, .. } => {
                    // One agent stands for those of all volumes.
                    let mode = if cluster.auto.is_some() { Mode::Auto } else { Mode::On };
                    let Auto { limits, finds_gain } = cluster.auto.unwrap_or_default();
                    Options { mode, burst, limits, finds_gain, pace: cluster.merging.pace(), ..Options::default() }
                }
                Scheme::Segmentation | Scheme::Migration { .. } => Options::default(),
            };
            let forwarder = Forwarder::new(&inside, servers.clone(), servers.clone(), options);
            let clients = Clients::attach(&inside, forwarder, servers.volumes()).await;
            let latency = clients.ask_all(writes, reads, cluster.merging != Merging::Never).await;
            Latency { balance: Some(servers.balance()), ..latency }
        })
    }
}

#[cfg(test)]
mod tests {
    use base::KIB;
    use policies::burst::BurstSettings;

    use super::super::workload::Write;
    use super::*;

    const STRIPE: u64 = 64 * KIB;
    const LONELY: Cluster = Cluster {
        servers: 1,
        utilization: 0.5,
        scheme: Scheme::Segmentation,
        geometry: Geometry::LEVEE,
        merging: Merging::Carried(Pace::Prioritized),
        behind: Duration::from_micros(200),
        has_one_card: false,
        auto: None,
    };

    fn write(at_ms: u64, volume: u32, offset: u64, bytes: u64) -> Write {
        Write { at_ns: at_ms * 1_000_000, volume, offset, bytes, is_burst: false }
    }

    /// One card, which has half of its time to do; by hand.
    #[test]
    fn who_comes_second_waits_for_the_first() {
        // 64 KiB in each of 100 ms, both at once: a card of 2 x 64 KiB x 10 by 0.5, so 25 ms for each.
        let twice = |at: u64| [write(at * 100, 0, 0, STRIPE), write(at * 100, 1, 0, STRIPE)];
        let writes: Vec<Write> = (0..200).flat_map(twice).collect();
        let traffic = Traffic { writes, sizes: vec![128 << 30; 2] };
        let latency = Latency::of(&traffic, Vec::new(), LONELY, 1);
        let [first, second] = [latency.writes.quantile(250_000), latency.writes.quantile(990_000)];
        assert_eq!(latency.writes.count(), 200);
        assert!((24_000_000..27_000_000).contains(&first), "{first}");
        assert!((48_000_000..53_000_000).contains(&second), "{second}");
        assert_eq!(latency.bytes, [0; 3]);
        let [waiting, passing] = &latency.parts;
        assert!((24_000_000..27_000_000).contains(&waiting.quantile(990_000)) && waiting.quantile(250_000) < 1_000);
        assert!([10_000, 990_000].iter().all(|at| (24_000_000..27_000_000).contains(&passing.quantile(*at))));
    }

    /// By hand, as above.
    #[test]
    fn what_is_behind_may_share_the_card() {
        let writes: Vec<Write> = (0..200u64).map(|at| write(at * 100, 0, 0, STRIPE)).collect();
        let read = |at: u64| Read { at_ns: (at * 100 + 5) * 1_000_000, volume: 0, offset: STRIPE * 8, bytes: STRIPE };
        let traffic = Traffic { writes, sizes: vec![128 << 30] };
        let of = |has_one_card| {
            let cluster = Cluster { has_one_card, ..LONELY };
            let latency = Latency::of(&traffic, (0..199).map(read).collect(), cluster, 1);
            [latency.writes, latency.reads].map(|times| times.quantile(500_000) / 1_000_000)
        };
        // A strip takes 50 ms. A read comes in behind the write, and leaves behind what that has stored.
        let near = |found: [u64; 2], expected: [u64; 2]| {
            assert!(found.iter().zip(expected).all(|(found, expected)| found.abs_diff(expected) <= 3), "{found:?}");
        };
        near(of(false), [50, 50]);
        near(of(true), [100, 145]);
    }

    /// A burst of one volume, which is on one server of five or on all. The first one has logs made.
    #[test]
    fn a_burst_is_over_sooner_where_it_is_spread() {
        let calm = (0..1_500u64).map(|at| write(at * 10, (at % 8) as u32, at % 4 * STRIPE, 4096));
        let burst = |at_ms, count| (0..count).map(move |at| write(at_ms, 3, at * 4 * STRIPE, STRIPE));
        let mut writes: Vec<Write> = calm.chain(burst(7_000, 20)).chain(burst(12_000, 400)).collect();
        writes.sort_by_key(|write| write.at_ns);
        let traffic = Traffic { writes, sizes: vec![128 << 30; 8] };
        let of = |scheme| {
            let cluster = Cluster { servers: 5, utilization: 0.1, scheme, ..LONELY };
            Latency::of(&traffic, Vec::new(), cluster, 1)
        };
        let in_turn = Scheme::DiffForward { settings: BurstSettings::SENSITIVE, in_turn: true };
        let (owner, spread) = (of(Scheme::Segmentation), of(in_turn));
        assert!(spread.bytes[1] > 200 * STRIPE, "{spread:?}");
        assert!(spread.writes.max() * 2 < owner.writes.max(), "{} {}", spread.writes.max(), owner.writes.max());
        let one = of(in_turn.to_one_server());
        assert!(one.writes.max() > spread.writes.max() * 2, "{} {}", one.writes.max(), spread.writes.max());
    }

    /// What costs nothing is in nobody's way, and what is never merged stays in logs.
    #[test]
    fn merging_takes_its_part_of_cards() {
        // All in places of their own: what overlaps would wait for what never comes home.
        let calm = (0..2_000u64).map(|at| write(at * 10, (at % 8) as u32, (4_000 + at) * STRIPE, 4096));
        let burst = |at_ms, count| (0..count).map(move |at| write(at_ms, 3, at * 4 * STRIPE, STRIPE));
        let mut writes: Vec<Write> = calm.chain(burst(7_000, 20)).chain(burst(12_000, 400)).collect();
        writes.sort_by_key(|write| write.at_ns);
        let traffic = Traffic { writes, sizes: vec![128 << 30; 8] };
        let of = |merging| {
            let scheme = Scheme::DiffForward { settings: BurstSettings::SENSITIVE, in_turn: true };
            let cluster = Cluster { servers: 5, utilization: 0.1, scheme, merging, ..LONELY };
            Latency::of(&traffic, Vec::new(), cluster, 1)
        };
        let [free, usual, at_once, never] =
            [Merging::Free, Merging::default(), Merging::Carried(Pace::AtOnce), Merging::Never].map(of);
        assert!(free.writes.sum() < at_once.writes.sum(), "{} {}", free.writes.sum(), at_once.writes.sum());
        assert!(free.writes.sum() <= usual.writes.sum(), "{} {}", free.writes.sum(), usual.writes.sum());
        let last = |latency: &Latency| latency.waiting.last().copied().unwrap_or_default();
        assert!(last(&free) < 10 * STRIPE, "{:?}", free.waiting);
        assert!(last(&usual) * 2 < last(&never), "{:?} {:?}", usual.waiting, never.waiting);
        assert!(last(&never) > 300 * STRIPE && never.entries[3].1 > 300, "{:?}", never.waiting);
        assert!(never.entries[3].0 > usual.entries[3].0);
        assert_eq!(format!("{usual:?}"), format!("{:?}", of(Merging::default())), "the same seed is the same result");
    }

    /// Two volumes that are not cut and write as much each, at once: from the second interval on each has a server for itself.
    #[test]
    fn who_shares_a_server_moves() {
        let twice = |at: u64| [write(at * 100, 0, 0, STRIPE), write(at * 100, 1, 0, STRIPE)];
        let writes: Vec<Write> = (0..200).flat_map(twice).collect();
        let traffic = Traffic { writes, sizes: vec![128 << 30; 2] };
        let slowest = |scheme, seed| {
            let cluster = Cluster { servers: 2, scheme, geometry: Geometry::WHOLE, ..LONELY };
            Latency::of(&traffic, Vec::new(), cluster, seed).writes.max()
        };
        // With some seed both are on one server at the begin.
        let seed = (0..20).find(|seed| slowest(Scheme::Segmentation, *seed) > 90_000_000).unwrap();
        assert!(slowest(Scheme::Migration { last: 1.0 }, seed) < 60_000_000);
    }
}
