//! Ways to spread writes over servers (DiffForward, SIGMETRICS 2023, §2.4 and §5.1): who takes which bytes.
//!
//! **Geometry** is the paper's (EBS, FAST 2024, §2.2, with other numbers): a volume is cut into groups of two segments, over
//! which its bytes go round in strips of 64 KiB. A segment has an owner, drawn at the begin. Segments that are not split at all
//! are the volumes themselves, on a server each, which is what figure 2 looks at.
//!
//! - *Segmentation*: each segment's owner takes its writes.
//! - *Migration*: the same, and every 5 s segments are moved, by what they are expected to be written: as much as in the
//!   interval before, or an average of all before (EWMA).
//! - *DiffForward*: the same for steady writes; bursts go to all servers in turn ([`policies::burst`]).
//!
//! Replication (C3 and a chain) chooses by how long others wait, and is not here.

use base::{Instant, KIB, Map, Prng};
use policies::burst::{self, BurstSettings, Detector};

use super::workload::Write;

/// How volumes are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of a segment; none: a volume is one.
    pub segment_bytes: Option<u64>,
}

const SEGMENTS_PER_GROUP: u64 = 2;
const STRIP: u64 = 64 * KIB;

impl Geometry {
    /// Volumes are not cut.
    pub const WHOLE: Geometry = Geometry { segment_bytes: None };

    /// The parts of a write: which segment of the volume, and how many bytes.
    fn parts(self, offset: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let (mut at, end) = (offset, offset + bytes);
        std::iter::from_fn(move || {
            let (begin, last) = (
                at,
                match self.segment_bytes {
                    None => end,
                    Some(_) => end.min((at / STRIP + 1) * STRIP),
                },
            );
            at = last;
            (begin < last).then(|| (self.segment_of(begin), last - begin))
        })
    }

    fn segment_of(self, offset: u64) -> u64 {
        match self.segment_bytes {
            None => 0,
            Some(bytes) => {
                offset / (bytes * SEGMENTS_PER_GROUP) * SEGMENTS_PER_GROUP + offset / STRIP % SEGMENTS_PER_GROUP
            }
        }
    }
}

/// How writes are spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scheme {
    /// See the module.
    Segmentation,
    /// See the module.
    Migration {
        /// What the last interval counts for; 1: nothing before it counts (Mig-avg), less: an average (Mig-ewma).
        last: f64,
    },
    /// See the module.
    DiffForward {
        /// What a burst is.
        settings: BurstSettings,
        /// A burst goes to all servers in turn; otherwise to one for each volume.
        in_turn: bool,
    },
}

impl Scheme {
    /// The same without turns.
    pub fn to_one_server(self) -> Scheme {
        match self {
            Scheme::DiffForward { settings, .. } => Scheme::DiffForward { settings, in_turn: false },
            other => other,
        }
    }
}

/// §5.1: traffic is looked at, and segments move, so often.
const INTERVAL_NS: u64 = 5_000_000_000;
/// A segment with less of the mean of servers is not worth its move.
const WORTH: f64 = 0.01;

/// A segment of a volume.
type Segment = (u32, u64);

#[derive(Clone, Copy, Default)]
struct Home {
    server: usize,
    /// Bytes of this interval, and what is expected of the next one.
    bytes: u64,
    expected: f64,
}

/// Spreads writes, one after the other in the order of their times.
pub struct Spreader {
    scheme: Scheme,
    geometry: Geometry,
    servers: usize,
    prng: Prng,
    /// In the order in which segments were met, so that nothing depends on how a map is laid out.
    homes: Vec<(Segment, Home)>,
    index: Map<Segment, usize>,
    volumes: Vec<Option<Volume>>,
    /// When the interval ends.
    until_ns: u64,
    moves: u64,
}

struct Volume {
    detector: Detector,
    /// Whose turn it is.
    next: usize,
}

impl Spreader {
    /// Segments are placed by `seed`.
    pub fn new(scheme: Scheme, geometry: Geometry, servers: usize, seed: u64) -> Spreader {
        Spreader {
            scheme,
            geometry,
            servers,
            prng: Prng::new(seed),
            homes: Vec::new(),
            index: Map::default(),
            volumes: Vec::new(),
            until_ns: INTERVAL_NS,
            moves: 0,
        }
    }

    /// Who takes how much of a write, told to `take`.
    pub fn spread(&mut self, write: &Write, mut take: impl FnMut(usize, u64)) {
        self.move_segments(write.at_ns);
        if let Scheme::DiffForward { settings, in_turn } = self.scheme {
            let at = write.volume as usize;
            if self.volumes.len() <= at {
                self.volumes.resize_with(at + 1, || None);
            }
            // Volumes begin at different servers.
            let first = || Volume { detector: Detector::new(settings, Instant(0)), next: at % self.servers };
            let volume = self.volumes[at].get_or_insert_with(first);
            let found = volume.detector.on_write(Instant(write.at_ns), write.offset, write.bytes);
            if found == burst::Traffic::Burst {
                take(volume.next, write.bytes);
                volume.next = (volume.next + usize::from(in_turn)) % self.servers;
                return;
            }
        }
        for (segment, bytes) in self.geometry.parts(write.offset, write.bytes) {
            let home = self.home_of((write.volume, segment));
            home.bytes += bytes;
            take(home.server, bytes);
        }
    }

    /// How many segments have moved.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    fn home_of(&mut self, segment: Segment) -> &mut Home {
        let Spreader { homes, prng, servers, .. } = self;
        let at = *self.index.entry(segment).or_insert_with(|| {
            homes.push((segment, Home { server: prng.below(*servers as u64) as usize, ..Home::default() }));
            homes.len() - 1
        });
        &mut self.homes[at].1
    }

    fn move_segments(&mut self, now_ns: u64) {
        let Scheme::Migration { last } = self.scheme else { return };
        while now_ns >= self.until_ns {
            self.until_ns += INTERVAL_NS;
            for (_, home) in &mut self.homes {
                home.expected = last * home.bytes as f64 + (1.0 - last) * home.expected;
                home.bytes = 0;
            }
            while self.move_one() {
                self.moves += 1;
            }
        }
    }

    /// Moves the largest segment from the server that has most to the one that has least, that makes neither worse.
    fn move_one(&mut self) -> bool {
        let mut loads = vec![0.0; self.servers];
        self.homes.iter().for_each(|(_, home)| loads[home.server] += home.expected);
        let mean = loads.iter().sum::<f64>() / self.servers as f64;
        let by_load = |one: &usize, other: &usize| loads[*one].total_cmp(&loads[*other]).then(one.cmp(other));
        let (Some(most), Some(least)) = ((0..self.servers).max_by(by_load), (0..self.servers).min_by(by_load)) else {
            return false;
        };
        let fits =
            |home: &Home| home.server == most && home.expected >= WORTH * mean && loads[least] + home.expected <= mean;
        let fitting = self.homes.iter_mut().filter(|(_, home)| fits(home));
        match fitting.max_by(|(_, one), (_, other)| one.expected.total_cmp(&other.expected)) {
            Some((_, home)) => home.server = least,
            None => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use base::{GIB, MIB};

    use super::*;

    const PAPER: Geometry = Geometry { segment_bytes: Some(64 * GIB) };

    fn write(at_ns: u64, volume: u32, offset: u64, bytes: u64) -> Write {
        Write { at_ns, volume, offset, bytes, is_burst: false }
    }

    #[test]
    fn bytes_go_round_over_the_segments_of_a_group() {
        let parts = |offset, bytes| PAPER.parts(offset, bytes).collect::<Vec<_>>();
        assert_eq!(parts(0, 4096), [(0, 4096)]);
        assert_eq!(parts(60 * KIB, 72 * KIB), [(0, 4 * KIB), (1, 64 * KIB), (0, 4 * KIB)]);
        assert_eq!(parts(128 * GIB, 4096), [(2, 4096)]);
        assert_eq!(parts(128 * GIB + 64 * KIB, 4096), [(3, 4096)]);
        assert_eq!(Geometry::WHOLE.parts(200 * GIB, MIB).collect::<Vec<_>>(), [(0, MIB)]);
    }

    /// Two volumes that write as much each, on one server of two: after an interval one has moved, and stays.
    #[test]
    fn a_segment_moves_to_where_less_is_expected() {
        for scheme in [1.0, 0.1].map(|last| Scheme::Migration { last }) {
            for seed in 0..10 {
                let mut spreader = Spreader::new(scheme, Geometry::WHOLE, 2, seed);
                let mut later = [0u64; 2];
                for n in 0..400 {
                    let at_ns = n * 100_000_000;
                    spreader.spread(&write(at_ns, (n % 2) as u32, 0, 4096), |server, bytes| {
                        if at_ns > INTERVAL_NS {
                            later[server] += bytes;
                        }
                    });
                }
                assert!(later[0].abs_diff(later[1]) <= 8192, "seed {seed}: {later:?}");
                assert!(spreader.moves() <= 1, "seed {seed}");
            }
        }
    }

    /// A burst reaches all servers alike, whoever owns what it writes; or one, if that is wanted.
    #[test]
    fn a_burst_goes_to_all_servers_in_turn() {
        let in_turn = Scheme::DiffForward { settings: BurstSettings::SENSITIVE, in_turn: true };
        let taken = taken_of_a_burst(in_turn);
        assert!(taken.iter().all(|bytes| (190 * 4096..=220 * 4096).contains(bytes)), "{taken:?}");
        let taken = taken_of_a_burst(in_turn.to_one_server());
        assert!(taken.iter().any(|bytes| *bytes > 900 * 4096), "{taken:?}");
    }

    fn taken_of_a_burst(scheme: Scheme) -> [u64; 5] {
        let mut spreader = Spreader::new(scheme, PAPER, 5, 1);
        (0..600).for_each(|n| spreader.spread(&write(n * 10_000_000, 3, n * MIB, 4096), |_, _| {}));
        let mut taken = [0u64; 5];
        for n in 0..1000 {
            spreader.spread(&write(6_000_000_000, 3, n * 7 * MIB, 4096), |server, bytes| taken[server] += bytes);
        }
        taken
    }
}
