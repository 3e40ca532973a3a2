//! Settings of admission, and the baselines among them.

use std::time::Duration;

use base::MIB;

use super::estimator::EstimatorSettings;
use super::knee::KneeSettings;

/// Who may keep whom waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Throttle {
    /// Nobody waits: what comes is started.
    Off,
    /// One bucket and one line for everybody: the baseline of NSDI 2026, §5.
    OneBucket,
    /// Main and cheque bucket, hot and steady segments: NSDI 2026, §4.2.
    DualBuckets,
    /// One bucket, and a limit in bytes per second for each client (NSDI 2026, §3.1, RQ3: 60 MBps).
    ClientCap(u64),
    /// One bucket, and a limit in bytes per second for each segment.
    SegmentCap(u64),
}

/// Settings of a block server's admission.
#[derive(Clone, PartialEq, Debug)]
pub struct AdmissionSettings {
    /// Who may keep whom waiting.
    pub throttle: Throttle,
    /// What the store below takes before its latency takes off, in bytes per second: the paper's 1.2 GBps.
    pub limit_bytes_per_sec: u64,
    /// How that is learned instead; then it holds nobody up before latency has taken off.
    pub learns: Option<KneeSettings>,
    /// Bytes that each operation costs besides its own.
    pub operation_bytes: u64,
    /// `T`: how often tokens are issued, and rates are judged.
    pub interval: Duration,
    /// `R` in percent of a fair share: the main bucket's size divided by the segments that were active in the last
    /// second. What the paper calls a threshold and does not print.
    pub hot_share_percent: u64,
    /// Requests below which a segment is not hot in an interval, however large they are.
    pub hot_requests_min: u32,
    /// `N`: calm intervals after which a hot segment is steady again.
    pub calm_intervals: u64,
    /// In how many parts hot segments get an interval's tokens while they wait for them; 1: at once, as printed.
    pub hot_parts: u64,
    /// The cheque bucket's size in thousandths of the main one's.
    pub cheque_permille: u64,
    /// Whether that size follows what steady segments ask for (up to twice of it), at most every 100 ms.
    pub cheque_follows_demand: bool,
    /// What is assumed of the store below.
    pub estimator: EstimatorSettings,
    /// Requests that may wait: more are refused. Agents bound what they have in flight, which keeps it far below.
    pub waiting_max: usize,
}

impl Default for AdmissionSettings {
    fn default() -> Self {
        AdmissionSettings {
            throttle: Throttle::DualBuckets,
            limit_bytes_per_sec: 1_200_000_000,
            learns: None,
            operation_bytes: 0,
            interval: Duration::from_millis(10),
            hot_share_percent: 100,
            hot_requests_min: 16,
            calm_intervals: 10,
            hot_parts: 10,
            cheque_permille: 200,
            cheque_follows_demand: true,
            estimator: EstimatorSettings::default(),
            waiting_max: 1 << 20,
        }
    }
}

impl AdmissionSettings {
    /// The sizes of the main and the cheque bucket with a limit.
    pub(super) fn bucket_sizes(&self, limit_bytes_per_sec: u64) -> (u64, u64) {
        let main = per_interval(limit_bytes_per_sec, self.interval);
        match self.throttle {
            Throttle::DualBuckets => (main, main.saturating_mul(self.cheque_permille) / 1000),
            _ => (main, 0),
        }
    }
}

/// What a rate gives in one interval; at least 1.
pub(super) fn per_interval(per_sec: u64, interval: Duration) -> u64 {
    let bytes = u128::from(per_sec) * interval.as_nanos() / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX).clamp(1, i64::MAX as u64 >> 8)
}

/// What one turn of a ring gives a line.
pub(super) const QUANTUM: u64 = MIB / 16;
