//! The parameters of these experiments: `parameters/sig23.toml`.

use serde::Deserialize;

use super::super::FromFile;

/// Everything that an experiment depends on besides its points. The file explains each.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "parameters/sig23.toml explains each")]
pub struct Parameters {
    pub servers: usize,
    pub volumes: usize,
    pub heavy_volumes: usize,
    pub heavy_share: f64,
    pub w1_mib_per_sec: f64,
    pub w1_ramp: [f64; 2],
    pub w2_mib_per_sec: f64,
    pub w1_read_mib_per_sec: f64,
    pub w2_read_mib_per_sec: f64,
    pub read_again_share: f64,
    pub read_again_writes: usize,
    pub seconds: u64,
    pub heavy_burst_mib: f64,
    pub burst_mib: f64,
    pub burst_sigma: f64,
    pub burst_seconds: f64,
    pub heavy_burst_share: f64,
    pub burst_share: f64,
    pub trace_copies: u32,
    pub segment_gib: u64,
    pub placements: u64,
    pub bin_ms: u64,
    pub long_bin_ms: u64,
    pub ewma_last: f64,
    pub th_ms: u64,
    pub prototype_th_ms: u64,
    pub window_ms: u64,
    pub utilization: f64,
    pub utilizations: Vec<f64>,
    pub behind_us: u64,
    pub replicas: usize,
    pub change_bytes: u64,
    pub segment_sizes_gib: Vec<u64>,
    pub betas: Vec<f64>,
    pub low_utilization: f64,
    pub mild_percents: Vec<u32>,
}

impl FromFile for Parameters {
    const FILE: &'static str = include_str!("../../../parameters/sig23.toml");
    const SHARES: &'static [&'static str] = &[
        "heavy_share",
        "heavy_burst_share",
        "burst_share",
        "ewma_last",
        "utilization",
        "low_utilization",
        "read_again_share",
    ];

    fn is_sound(&self) -> bool {
        let shares = [self.heavy_share, self.heavy_burst_share, self.burst_share];
        let sizes =
            [self.w1_mib_per_sec, self.w2_mib_per_sec, self.heavy_burst_mib, self.burst_mib, self.burst_seconds];
        (2..=1000).contains(&self.servers)
            && (2..=100_000).contains(&self.volumes)
            && (1..self.volumes).contains(&self.heavy_volumes)
            && shares.iter().all(|share| *share > 0.0 && *share < 1.0)
            && sizes.iter().all(|size| *size > 0.0 && *size < 1e5)
            && self.w1_ramp.iter().all(|times| *times > 0.0 && *times < 100.0)
            && (0.0..10.0).contains(&self.burst_sigma)
            && (1..=100_000).contains(&self.seconds)
            && (1..=100_000).contains(&self.trace_copies)
            && (1..1 << 20).contains(&self.segment_gib)
            && self.placements > 0
            && [self.w1_read_mib_per_sec, self.w2_read_mib_per_sec].iter().all(|rate| *rate > 0.0 && *rate < 1e5)
            && (0.0..=1.0).contains(&self.read_again_share)
            && (1..=1 << 20).contains(&self.read_again_writes)
            && (1..=1_000_000).contains(&self.behind_us)
            && (1..=self.servers).contains(&self.replicas)
            && (1..=1 << 20).contains(&self.change_bytes)
            && self
                .utilizations
                .iter()
                .chain([&self.utilization, &self.low_utilization])
                .all(|used| *used > 0.0 && *used < 1.0)
            && self.segment_sizes_gib.iter().all(|gib| (1..1 << 20).contains(gib))
            && self.betas.len() >= 3
            && self.betas.iter().all(|beta| *beta > 0.0 && *beta < 1e3)
            && !self.mild_percents.is_empty()
            && self.mild_percents.iter().all(|percent| (1..=100).contains(percent))
            && self.bin_ms.min(self.long_bin_ms) > 0
            && self.ewma_last > 0.0
            && self.ewma_last <= 1.0
            && self.th_ms.min(self.prototype_th_ms).min(self.window_ms) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Paper;
    use super::super::Sig23;
    use super::*;

    #[test]
    fn the_file_is_sound_and_can_be_changed() {
        assert_eq!(Parameters::from_file().unwrap().servers, 5);
        assert_eq!(Parameters::with(&["servers=7".to_owned()]).unwrap().servers, 7);
        for wrong in ["server=7", "servers=1", "trace_copies=0", "burst_share=1.0", "w1_ramp=[0.0,1.0]"] {
            assert!(Parameters::with(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
        for figure in Sig23::FIGURES {
            for key in figure.sensitive {
                assert!(!Parameters::neighbours(&[], key).unwrap().is_empty(), "{}: {key}", figure.name);
            }
        }
    }
}
