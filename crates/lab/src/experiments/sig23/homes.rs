//! Which server has which segment (DiffForward, SIGMETRICS 2023, §2.4 and §5.1). A segment has an owner, drawn at the begin. With
//! migration, every 5 s segments are moved by what they are expected to be written: as much as in the interval before, or an
//! average of all before (EWMA).

use base::{Map, Prng};

/// §5.1: traffic is looked at, and segments move, so often.
pub const INTERVAL_NS: u64 = 5_000_000_000;
/// A segment with less of the mean of servers is not worth its move.
const WORTH: f64 = 0.01;

/// A segment of a volume.
pub type Segment = (u32, u64);

/// What is expected of the next interval, after one with so much and what was expected of that; `last` is what it counts for (α).
pub fn expected(last: f64, bytes: f64, expected: f64) -> f64 {
    last * bytes + (1.0 - last) * expected
}

#[derive(Clone, Copy, Default)]
struct Home {
    server: usize,
    /// Bytes of this interval, and what is expected of the next one.
    bytes: u64,
    expected: f64,
}

/// See the module.
pub struct Homes {
    servers: usize,
    /// What the last interval counts for where segments move; none: they stay.
    moving: Option<f64>,
    prng: Prng,
    /// In the order in which segments were met, so that nothing depends on how a map is laid out.
    homes: Vec<(Segment, Home)>,
    index: Map<Segment, usize>,
    /// When the interval ends.
    until_ns: u64,
    moves: u64,
}

impl Homes {
    /// Segments are placed by `seed`.
    pub fn new(servers: usize, moving: Option<f64>, seed: u64) -> Homes {
        Homes {
            servers,
            moving,
            prng: Prng::new(seed),
            homes: Vec::new(),
            index: Map::default(),
            until_ns: INTERVAL_NS,
            moves: 0,
        }
    }

    /// The server that has a segment.
    pub fn server(&mut self, segment: Segment) -> usize {
        self.home(segment).server
    }

    /// The server that takes so many bytes of a segment, at a time that is not before those of others.
    pub fn take(&mut self, now_ns: u64, segment: Segment, bytes: u64) -> usize {
        self.move_segments(now_ns);
        let home = self.home(segment);
        home.bytes += bytes;
        home.server
    }

    /// How many segments have moved.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    fn home(&mut self, segment: Segment) -> &mut Home {
        let Homes { homes, prng, servers, .. } = self;
        let at = *self.index.entry(segment).or_insert_with(|| {
            homes.push((segment, Home { server: prng.below(*servers as u64) as usize, ..Home::default() }));
            homes.len() - 1
        });
        &mut self.homes[at].1
    }

    fn move_segments(&mut self, now_ns: u64) {
        let Some(last) = self.moving else { return };
        while now_ns >= self.until_ns {
            self.until_ns += INTERVAL_NS;
            for (_, home) in &mut self.homes {
                home.expected = expected(last, home.bytes as f64, home.expected);
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
    use super::*;

    /// Two segments that are written as much each, on one server of two: after an interval one has moved, and stays.
    #[test]
    fn a_segment_moves_to_where_less_is_expected() {
        for last in [1.0, 0.1] {
            for seed in 0..10 {
                let mut homes = Homes::new(2, Some(last), seed);
                let mut later = [0u64; 2];
                for n in 0..400 {
                    let now_ns = n * 100_000_000;
                    let server = homes.take(now_ns, ((n % 2) as u32, 0), 4096);
                    later[server] += if now_ns > INTERVAL_NS { 4096 } else { 0 };
                }
                assert!(later[0].abs_diff(later[1]) <= 8192, "seed {seed}: {later:?}");
                assert!(homes.moves() <= 1, "seed {seed}");
            }
        }
    }

    #[test]
    fn without_migration_a_segment_stays() {
        let mut homes = Homes::new(2, None, 3);
        let server = homes.server((7, 0));
        assert!((0..400).all(|n| homes.take(n * 100_000_000, (7, 0), 4096) == server && homes.moves() == 0));
    }
}
