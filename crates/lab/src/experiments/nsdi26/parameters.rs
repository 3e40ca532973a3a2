//! The parameters of these experiments: `parameters/nsdi26.toml`.

use serde::Deserialize;

use super::super::FromFile;

/// Everything that an experiment depends on besides its points. The file explains each.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "parameters/nsdi26.toml explains each")]
pub struct Parameters {
    pub servers: u64,
    pub limit_bytes_per_sec: u64,
    pub service_bytes_per_sec: u64,
    pub background_bytes_per_sec: u64,
    pub headroom_bytes_per_sec: u64,
    pub hop_ns: u64,
    pub write_ns: u64,
    pub read_ns: u64,
    pub segments: u32,
    pub hot_percent: u32,
    pub hot_load_percent: u32,
    pub depth: u32,
    pub burst_percent: [u64; 2],
    pub calm_percent: [u64; 2],
    pub burst_median_ms: u64,
    pub burst_sigma: f64,
    pub pause_factor: f64,
    pub hot_clients: u32,
    pub clients: u32,
    pub interval_ms: u64,
    pub cheque_permille: u64,
    pub hot_share_percent: u64,
    pub calm_intervals: u64,
    pub hot_parts: u64,
    pub long_burst_percent: u64,
    pub long_burst_ms: [u64; 2],
    pub underload_bytes_per_sec: u64,
    pub parse_ns: u64,
    pub write_cpu_ns: u64,
    pub read_cpu_ns: u64,
    pub reply_ns: u64,
    pub step_percent: u64,
    pub disk_channels: u64,
    pub disk_write_percent: u64,
    pub disk_read_ns: u64,
    pub disk_write_ns: u64,
    pub disk_gc_bytes: u64,
    pub tasks: Vec<BackgroundTask>,
}

/// Name, period in microseconds, steps, nanoseconds of a step, whether it can be moved to another thread.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct BackgroundTask(pub String, pub u64, pub u64, pub u64, pub u64);

impl FromFile for Parameters {
    const FILE: &'static str = include_str!("../../../parameters/nsdi26.toml");

    fn is_sound(&self) -> bool {
        self.segments >= 4
            && (1..100).contains(&self.hot_percent)
            && (1..100).contains(&self.hot_load_percent)
            && self.depth > 0
            && self.servers > 0
            && (1..=self.segments * self.servers as u32 / 4).contains(&self.clients)
            && self.interval_ms > 0
            && self.disk_channels > 0
            && self.disk_gc_bytes > 0
            && self.limit_bytes_per_sec > 0
            && self.service_bytes_per_sec > self.limit_bytes_per_sec / 2
            && self.burst_percent[0] <= self.burst_percent[1]
            && self.calm_percent[0] <= self.calm_percent[1]
            && self.calm_percent[0] > 0
    }
}

impl Parameters {
    /// Segments that are hot: those with the lowest numbers.
    pub fn hot_segments(&self) -> u32 {
        (self.segments * self.hot_percent / 100).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Paper;
    use super::super::Nsdi26;
    use super::*;

    #[test]
    fn the_file_is_sound_and_can_be_changed() {
        let usual = Parameters::from_file().unwrap();
        assert_eq!((usual.hot_segments(), usual.limit_bytes_per_sec), (20, 1_200_000_000));
        let other = Parameters::with(&["depth=7".to_owned(), "burst_percent=[110,110]".to_owned()]).unwrap();
        assert_eq!((other.depth, other.burst_percent), (7, [110, 110]));
        for wrong in ["dept=7", "depth", "depth=\"x\"", "segments=1"] {
            assert!(Parameters::with(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn neighbours_are_half_and_double_of_what_is_set() {
        let both = Parameters::neighbours(&["depth=10".to_owned()], "depth").unwrap();
        let [half, double] = both.as_slice() else { panic!("half and double") };
        assert_eq!((half.0.as_str(), half.1.depth, double.1.depth), ("depth=5", 5, 20));
        assert_eq!(Parameters::neighbours(&[], "interval_ms").unwrap()[1].1.interval_ms, 20);
        assert_eq!(Parameters::neighbours(&[], "pause_factor").unwrap()[0].1.pause_factor, 0.5);
        assert!(Parameters::neighbours(&[], "tasks").is_err() && Parameters::neighbours(&[], "none").is_err());
        for experiment in Nsdi26::FIGURES {
            for key in experiment.sensitive {
                assert!(Parameters::neighbours(&[], key).is_ok(), "{}: {key}", experiment.name);
            }
        }
    }
}
