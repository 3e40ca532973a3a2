//! Ways to spread writes over servers (DiffForward, SIGMETRICS 2023, §2.4 and §5.1): who takes which bytes.
//!
//! How volumes are cut is [`super::geometry`]'s, which server has what of them [`super::homes`]'.
//!
//! - *Segmentation*: each segment's owner takes its writes.
//! - *Migration*: the same, and every 5 s segments are moved.
//! - *DiffForward*: the same for steady writes; bursts go to all servers in turn ([`policies::burst`]).
//!
//! Replication (C3 and a chain) chooses by how long others wait, so it is where something waits: [`super::replication`].

use base::Instant;
use policies::burst::{self, BurstSettings, Detector};

use super::geometry::Geometry;
use super::homes::Homes;
use super::workload::Write;

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

    /// The same where no burst is found.
    pub fn to_owners(self) -> Scheme {
        match self {
            Scheme::DiffForward { .. } => Scheme::Segmentation,
            other => other,
        }
    }

    /// What the last interval counts for where segments move.
    pub fn moving(self) -> Option<f64> {
        match self {
            Scheme::Migration { last } => Some(last),
            Scheme::Segmentation | Scheme::DiffForward { .. } => None,
        }
    }
}

/// Spreads writes, one after the other in the order of their times.
pub struct Spreader {
    scheme: Scheme,
    geometry: Geometry,
    servers: usize,
    homes: Homes,
    volumes: Vec<Option<Volume>>,
}

struct Volume {
    detector: Detector,
    /// Whose turn it is.
    next: usize,
}

impl Spreader {
    /// Segments are placed by `seed`.
    pub fn new(scheme: Scheme, geometry: Geometry, servers: usize, seed: u64) -> Spreader {
        let homes = Homes::new(servers, scheme.moving(), seed);
        Spreader { scheme, geometry, servers, homes, volumes: Vec::new() }
    }

    /// Who takes how much of a write, told to `take`.
    pub fn spread(&mut self, write: &Write, mut take: impl FnMut(usize, u64)) {
        if let Scheme::DiffForward { settings, in_turn } = self.scheme {
            let at = write.volume as usize;
            if self.volumes.len() <= at {
                self.volumes.resize_with(at + 1, || None);
            }
            // Volumes begin at different servers.
            let first = || Volume { detector: Detector::new(settings, Instant(0)), next: at % self.servers };
            let volume = self.volumes[at].get_or_insert_with(first);
            let found = volume.detector.on_write(Instant(write.at_ns), write.offset, write.bytes);
            match found {
                burst::Traffic::Stable => {}
                // Nothing waits here, so none is nearer than the first.
                burst::Traffic::Mild => return take(at % self.servers, write.bytes),
                burst::Traffic::Burst => {
                    take(volume.next, write.bytes);
                    volume.next = (volume.next + usize::from(in_turn)) % self.servers;
                    return;
                }
            }
        }
        for (segment, bytes) in self.geometry.parts(write.offset, write.bytes) {
            take(self.homes.take(write.at_ns, (write.volume, segment), bytes), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::MIB;

    use super::*;

    fn write(at_ns: u64, volume: u32, offset: u64, bytes: u64) -> Write {
        Write { at_ns, volume, offset, bytes, is_burst: false }
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
        let mut spreader = Spreader::new(scheme, Geometry::paper(64), 5, 1);
        (0..600).for_each(|n| spreader.spread(&write(n * 10_000_000, 3, n * MIB, 4096), |_, _| {}));
        let mut taken = [0u64; 5];
        for n in 0..1000 {
            spreader.spread(&write(6_000_000_000, 3, n * 7 * MIB, 4096), |server, bytes| taken[server] += bytes);
        }
        taken
    }
}
