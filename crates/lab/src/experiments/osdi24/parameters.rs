//! The parameters of these experiments: `parameters/osdi24.toml`.

use serde::Deserialize;

use super::super::FromFile;

/// Everything that an experiment depends on besides its points. The file explains each.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "parameters/osdi24.toml explains each")]
pub struct Parameters {
    pub window_us: u64,
    pub alpha: f64,
    pub weight_throttle: f64,
    pub reserve: f64,
    pub software_bytes_per_sec: u64,
    pub network_bytes_per_sec: u64,
    pub a_write_ns: u64,
    pub a_write_byte_ps: u64,
    pub a_read_ns: u64,
    pub a_read_byte_ps: u64,
    pub b_write_ns: u64,
    pub b_write_byte_ps: u64,
    pub b_read_ns: u64,
    pub b_read_byte_ps: u64,
    pub store_ns: u64,
    pub hop_ns: u64,
    pub queue_depth: usize,
    pub iops_sizes_kib: Vec<u64>,
    pub bps_sizes_kib: Vec<u64>,
    pub victim_kib: u64,
    pub iops_depths: Vec<usize>,
    pub bps_depths: Vec<usize>,
    pub base_iops: u64,
    pub base_depth: usize,
    pub below_depth: usize,
    pub wake_base_iops: u64,
    pub wake_iops: Vec<u64>,
    pub wake_depth: usize,
    pub asleep_us: u64,
    pub awake_us: u64,
    pub small_kib: u64,
    pub small_depth: usize,
    pub large_kib: u64,
    pub large_depth: usize,
    pub misestimated: f64,
    pub db_neighbours: usize,
    pub db_neighbour_depth: usize,
    pub db_sizes_kib: Vec<u64>,
    pub put_compute_us: u64,
    pub insert_compute_us: u64,
    pub insert_blocks: u64,
    pub db_base_iops: u64,
    pub ycsb_threads: usize,
    pub ycsb_compute_us: u64,
    pub ycsb_read_percents: Vec<u64>,
    pub rds_neighbours: Vec<usize>,
    pub rds_compute_us: u64,
    pub rds_blocks: u64,
    pub rds_read_percent: u64,
    pub pause_us: u64,
    pub warm_up_us: u64,
    pub crossing_ns: u64,
    pub lock_ns: u64,
    pub loops: usize,
    pub beside_depth: usize,
    pub machine_depth: usize,
    pub large_machine_depth: usize,
    pub scaled_loops: Vec<usize>,
    pub short_network_bytes_per_sec: u64,
    pub machines_warm_up_us: u64,
    pub known_tenants: Vec<u64>,
    pub active_tenants: u64,
}

impl FromFile for Parameters {
    const FILE: &'static str = include_str!("../../../parameters/osdi24.toml");
    const SHARES: &'static [&'static str] = &["alpha", "reserve"];

    fn is_sound(&self) -> bool {
        let sizes = [&self.iops_sizes_kib, &self.bps_sizes_kib, &self.db_sizes_kib].into_iter().flatten();
        let mut sizes = sizes.chain([&self.victim_kib, &self.small_kib, &self.large_kib]);
        let depths = [&self.iops_depths, &self.bps_depths].into_iter().flatten();
        let mut depths = depths.chain([
            &self.base_depth,
            &self.below_depth,
            &self.wake_depth,
            &self.db_neighbour_depth,
            &self.ycsb_threads,
        ]);
        sizes.all(|kib| (4..=1024).contains(kib) && kib % 4 == 0)
            && depths.all(|depth| (1..=512).contains(depth))
            && (1..=512).contains(&self.small_depth)
            && (1..=512).contains(&self.large_depth)
            && [
                &self.iops_sizes_kib,
                &self.bps_sizes_kib,
                &self.wake_iops,
                &self.db_sizes_kib,
                &self.ycsb_read_percents,
            ]
            .iter()
            .all(|list| !list.is_empty())
            && self.ycsb_read_percents.iter().chain([&self.rds_read_percent]).all(|percent| *percent <= 100)
            && self.rds_neighbours.iter().chain([&self.db_neighbours]).all(|count| (1..=64).contains(count))
            && !self.rds_neighbours.is_empty()
            && self.insert_blocks.min(self.rds_blocks) > 0
            && (1..=1_000_000).contains(&self.db_base_iops)
            && self.pause_us > 0
            && !self.iops_depths.is_empty()
            && !self.bps_depths.is_empty()
            && self.wake_iops.iter().all(|rate| (1..=1_000_000).contains(rate))
            && (1..=64).contains(&self.queue_depth)
            && (100..=100_000).contains(&self.window_us)
            && (0.0..1.0).contains(&self.alpha)
            && (0.0..1.0).contains(&self.reserve)
            && self.weight_throttle >= 0.0
            && self.misestimated > 0.0
            && self.software_bytes_per_sec > 0
            && self.network_bytes_per_sec > 0
            && self.awake_us > 0
            && (2..=16).contains(&self.loops)
            && self.scaled_loops.iter().all(|loops| (2..=16).contains(loops))
            && [self.beside_depth, self.machine_depth, self.large_machine_depth]
                .iter()
                .all(|depth| (2 * self.loops..=256).contains(depth))
            && self.short_network_bytes_per_sec > 0
            && !self.scaled_loops.is_empty()
            && !self.known_tenants.is_empty()
            && self.known_tenants.iter().all(|known| (1..=4096).contains(known))
            && self.active_tenants > 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Paper;
    use super::super::Osdi24;
    use super::*;

    #[test]
    fn the_file_is_sound_and_can_be_changed() {
        assert_eq!(Parameters::from_file().unwrap().wake_base_iops, 45_000);
        assert_eq!(Parameters::with(&["reserve=0.0".to_owned()]).unwrap().reserve, 0.0);
        for wrong in ["reserv=0.1", "reserve", "reserve=1.5", "victim_kib=5", "bps_depths=[]"] {
            assert!(Parameters::with(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn neighbours_are_half_and_double_where_there_is_double() {
        let of = |key| Parameters::neighbours(&[], key).unwrap();
        assert_eq!(of("window_us").iter().map(|one| one.1.window_us).collect::<Vec<_>>(), [500, 2000]);
        assert_eq!(of("alpha").iter().map(|one| one.1.alpha).collect::<Vec<_>>(), [0.45]);
        assert!(Parameters::neighbours(&[], "bps_depths").is_err());
        for experiment in Osdi24::FIGURES {
            assert!(experiment.sensitive.iter().all(|key| !of(key).is_empty()), "{}", experiment.name);
        }
    }
}
