//! What an admission says of itself and of a volume, to whoever asks: status, metrics, explanations.

use base::levels::Levels;
use base::{Instant, SegmentId, VolumeId};

use super::admit::Admission;
use super::estimator::p99999_ns;
use super::line::Key;
use crate::waits::Waits;

/// What a server's admission knows of itself.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct AdmissionStatus {
    /// What the store below takes, in bytes per second: the limit that was set, or what was learned of the present mix.
    /// Nothing where nothing is known.
    pub limit_bytes_per_sec: Option<u64>,
    /// Whether that holds anybody up now: what was learned does not while one volume is by itself.
    pub is_limited: bool,
    /// Tokens of an interval.
    pub main_size: u64,
    /// Tokens in the main bucket, in bytes; below zero: debt.
    pub main: i64,
    /// Tokens in the cheque bucket.
    pub cheque: i64,
    /// What a full cheque bucket holds.
    pub cheque_size: u64,
    /// Requests in line.
    pub waiting: usize,
    /// Segments that were used in the last second.
    pub active_segments: u64,
    /// Segments that are hot.
    pub hot_segments: u64,
    /// Bytes that were started, and how many of them on the cheque bucket.
    pub started_bytes: u64,
    /// See [`AdmissionStatus::started_bytes`].
    pub overdrawn_bytes: u64,
    /// Bytes per second that were read and written lately without anybody waiting for it: dumps, garbage collection, copies.
    pub background_bytes_per_sec: u64,
    /// What requests take below: the 95th percentile of the last moments, the 99.999th that follows from it, and what the
    /// store has left, in bytes per second.
    pub p95_ns: Option<u64>,
    /// See [`AdmissionStatus::p95_ns`].
    pub p99999_ns: Option<u64>,
    /// See [`AdmissionStatus::p95_ns`].
    pub available_bytes_per_sec: Option<u64>,
}

/// What a server's admission knows of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeStatus {
    /// What it is held to.
    pub levels: Levels,
    /// Requests that were started.
    pub started: u64,
    /// What requests waited for.
    pub waits: Waits,
    /// Its segments that are hot now.
    pub hot_segments: Vec<SegmentId>,
}

impl<T> Admission<T> {
    /// What it knows of itself.
    pub fn status(&self, now: Instant) -> AdmissionStatus {
        let set = Some(self.limit).filter(|limit| *limit < u64::MAX);
        let latency = match &self.knee {
            Some(knee) => knee.latency(now).map(|latency| latency.quantile(95)),
            None => self.estimate().map(|estimate| (estimate.p95_ns, estimate.alone_ns)),
        };
        AdmissionStatus {
            limit_bytes_per_sec: match &self.knee {
                Some(knee) => knee.bytes_per_sec(),
                None => set,
            },
            is_limited: set.is_some(),
            main_size: self.buckets.main_size(),
            main: self.buckets.main(),
            cheque: self.buckets.cheque(),
            cheque_size: self.buckets.cheque_size(),
            waiting: self.waiting,
            active_segments: self.monitor.active(),
            hot_segments: self.lines.used().filter(|line| self.is_hot(line, now)).count() as u64,
            started_bytes: self.started_bytes,
            overdrawn_bytes: self.overdrawn_bytes,
            background_bytes_per_sec: self.background.bytes_per_sec() as u64,
            p95_ns: latency.map(|(p95_ns, _)| p95_ns),
            p99999_ns: latency.map(|(p95_ns, alone_ns)| p99999_ns(p95_ns, alone_ns)),
            available_bytes_per_sec: self.available(),
        }
    }

    /// What it knows of a volume, if requests for it were made.
    pub fn volume(&self, volume: VolumeId, now: Instant) -> Option<VolumeStatus> {
        let known = &self.volumes[*self.by_volume.get(&volume)? as usize];
        let hot = self.lines.used().filter(|line| self.is_hot(line, now)).filter_map(|line| match line.key {
            Key::Segment(segment) if segment.volume == volume => Some(segment),
            _ => None,
        });
        let mut hot_segments: Vec<SegmentId> = hot.collect();
        hot_segments.sort_unstable();
        let levels = *known.allowance.levels();
        Some(VolumeStatus { levels, started: known.started, waits: known.waits, hot_segments })
    }

    /// What the requests of each volume that it knows waited for.
    pub fn waits(&self) -> Vec<(VolumeId, Waits)> {
        self.by_volume.iter().map(|(volume, at)| (*volume, self.volumes[*at as usize].waits)).collect()
    }
}
