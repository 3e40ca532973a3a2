//! What several processes said, added up for people.
//!
//! Numbers of other processes may be anything: they saturate.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Distribution, Explained, RequestCounters, SLOW_TOLD_MAX, Snapshot, Timed, VolumeCounters};
use crate::api;

impl Snapshot {
    /// Adds what another process said: traffic, memory, problems and where clients connect. What is shown of each process
    /// by itself (stages, metrics) is not added up.
    pub fn add(&mut self, other: &Snapshot) {
        add_traffic(&mut self.traffic, &other.traffic);
        add_requests(&mut self.served, &other.served);
        self.directories.extend(other.directories.iter().cloned());
        add_space(&mut self.space, &other.space);
        add(&mut self.memory.used_bytes, other.memory.used_bytes);
        add(&mut self.memory.limit_bytes, other.memory.limit_bytes);
        add_scrub(&mut self.scrub, &other.scrub);
        add(&mut self.connections, other.connections);
        let theirs = other.tenants.iter();
        self.tenants.extend(theirs.map(|tenant| api::Tenant { agent: other.name.clone(), ..tenant.clone() }));
        self.nbd.extend(other.nbd.iter().cloned());
        add(&mut self.broken_logs, other.broken_logs);
        add(&mut self.full_engines, other.full_engines);
        add(&mut self.lost_reads, other.lost_reads);
        add_admission(&mut self.admission, other.admission.as_ref());
    }
}

impl Explained {
    /// Adds what another process said of the same volume.
    pub fn add(&mut self, other: &Explained) {
        add_admission(&mut self.admission, other.admission.as_ref());
        add(&mut self.started_requests, other.started_requests);
        add_waits(&mut self.waits, &other.waits);
        self.hot_segments.extend(&other.hot_segments);
        self.hot_segments.sort_unstable();
        self.hot_segments.dedup();
        for theirs in &other.latency {
            match self.latency.iter_mut().find(|mine| mine.operation == theirs.operation) {
                Some(mine) => add_times(mine, theirs),
                None => self.latency.push(theirs.clone()),
            }
        }
        add_reasons(&mut self.slow_reasons, &other.slow_reasons);
        self.slow_requests.extend(other.slow_requests.iter().cloned());
        self.slow_requests.sort_by_key(|slow| slow.ago_ns);
        self.slow_requests.truncate(SLOW_TOLD_MAX);
        // One agent has it at a time; another one that still says so has lost it.
        let more = |bursts: &Option<api::ForwardedBursts>| bursts.as_ref().map(|bursts| bursts.written_bytes);
        if more(&other.forwarding) > more(&self.forwarding) {
            self.forwarding.clone_from(&other.forwarding);
        }
    }
}

fn add(mine: &mut u64, theirs: u64) {
    *mine = mine.saturating_add(theirs);
}

fn add_times(mine: &mut Timed, theirs: &Timed) {
    add_buckets(&mut mine.latency_ns, &theirs.latency_ns);
    mine.max_ns = mine.max_ns.max(theirs.max_ns);
    // Each has seen another part of the traffic; of two thresholds the higher one is shown.
    mine.slow_ns = mine.slow_ns.max(theirs.slow_ns);
}

fn add_traffic(mine: &mut Vec<VolumeCounters>, theirs: &[VolumeCounters]) {
    let mut places: BTreeMap<_, _> = mine.iter().enumerate().map(|(at, volume)| (volume.volume, at)).collect();
    for volume in theirs {
        let Some(found) = places.get(&volume.volume) else {
            places.insert(volume.volume, mine.len());
            mine.push(volume.clone());
            continue;
        };
        let known = &mut mine[*found];
        if known.name.is_empty() {
            known.name.clone_from(&volume.name);
        }
        add(&mut known.clients, volume.clients);
        add_requests(&mut known.requests, &volume.requests);
        add_waits(&mut known.waits, &volume.waits);
        add_reasons(&mut known.slow, &volume.slow);
    }
}

fn add_requests(mine: &mut Vec<RequestCounters>, theirs: &[RequestCounters]) {
    for counters in theirs {
        let Some(known) = mine.iter_mut().find(|known| known.operation == counters.operation) else {
            mine.push(counters.clone());
            continue;
        };
        add(&mut known.requests, counters.requests);
        add(&mut known.bytes, counters.bytes);
        add(&mut known.errors, counters.errors);
        add_distribution(&mut known.latency, &counters.latency);
        add_buckets(&mut known.latency_ns, &counters.latency_ns);
    }
}

fn add_distribution(mine: &mut Distribution, theirs: &Distribution) {
    if mine.below.len() < theirs.below.len() {
        mine.below.resize(theirs.below.len(), mine.count);
    }
    let beyond = std::iter::repeat(&theirs.count);
    mine.below.iter_mut().zip(theirs.below.iter().chain(beyond)).for_each(|(mine, more)| add(mine, *more));
    add(&mut mine.count, theirs.count);
    add(&mut mine.sum_ns, theirs.sum_ns);
}

/// Both are ascending, and so is what comes of it.
fn add_buckets(mine: &mut Vec<(u64, u64)>, theirs: &[(u64, u64)]) {
    let mut all: BTreeMap<u64, u64> = mine.drain(..).collect();
    theirs.iter().for_each(|(bound, count)| add(all.entry(*bound).or_default(), *count));
    mine.extend(all);
}

/// Adds what requests waited for elsewhere.
pub fn add_waits(mine: &mut Vec<api::Waiting>, theirs: &[api::Waiting]) {
    for wait in theirs {
        match mine.iter_mut().find(|known| known.reason == wait.reason) {
            Some(known) => {
                add(&mut known.requests, wait.requests);
                add(&mut known.total_ns, wait.total_ns);
                known.longest_ns = known.longest_ns.max(wait.longest_ns);
                add(&mut known.waiting_requests, wait.waiting_requests);
            }
            None => mine.push(wait.clone()),
        }
    }
    api::Waiting::sort(mine);
}

fn add_reasons(mine: &mut Vec<api::SlowReason>, theirs: &[api::SlowReason]) {
    for reason in theirs {
        let is_it =
            |known: &&mut api::SlowReason| (&known.operation, &known.reason) == (&reason.operation, &reason.reason);
        match mine.iter_mut().find(is_it) {
            Some(known) => {
                add(&mut known.requests, reason.requests);
                add(&mut known.total_ns, reason.total_ns);
                known.longest_ns = known.longest_ns.max(reason.longest_ns);
            }
            None => mine.push(reason.clone()),
        }
    }
    mine.sort_by_key(|reason| Reverse(reason.requests));
}

fn add_space(mine: &mut api::Space, theirs: &api::Space) {
    let api::Space { capacity_bytes, used_bytes, garbage_bytes, free_bytes, kept_bytes } = theirs;
    add(&mut mine.capacity_bytes, *capacity_bytes);
    add(&mut mine.used_bytes, *used_bytes);
    add(&mut mine.garbage_bytes, *garbage_bytes);
    add(&mut mine.free_bytes, *free_bytes);
    add(&mut mine.kept_bytes, *kept_bytes);
}

fn add_scrub(mine: &mut api::Scrub, theirs: &api::Scrub) {
    mine.is_running |= theirs.is_running;
    for (mine, theirs) in [
        (&mut mine.rounds, theirs.rounds),
        (&mut mine.late_rounds, theirs.late_rounds),
        (&mut mine.segments, theirs.segments),
        (&mut mine.segments_done, theirs.segments_done),
        (&mut mine.read_bytes, theirs.read_bytes),
        (&mut mine.lost_blocks, theirs.lost_blocks),
        (&mut mine.damaged_copies, theirs.damaged_copies),
        (&mut mine.repaired_copies, theirs.repaired_copies),
        (&mut mine.silent_engines, theirs.silent_engines),
    ] {
        add(mine, theirs);
    }
}

/// Block servers together: what they take and hold is added up, of latencies the worst one is shown.
fn add_admission(mine: &mut Option<api::Admission>, theirs: Option<&api::Admission>) {
    let Some(theirs) = theirs else { return };
    let Some(mine) = mine else {
        *mine = Some(theirs.clone());
        return;
    };
    // Of a sum one part of which is not known nothing is known.
    let both = |mine: &mut Option<u64>, theirs: Option<u64>| {
        *mine = mine.zip(theirs).map(|(mine, theirs)| mine.saturating_add(theirs));
    };
    let both_signed = |mine: &mut Option<i64>, theirs: Option<i64>| {
        *mine = mine.zip(theirs).map(|(mine, theirs)| mine.saturating_add(theirs));
    };
    both(&mut mine.bandwidth_bytes_per_second, theirs.bandwidth_bytes_per_second);
    mine.is_learned |= theirs.is_learned;
    both_signed(&mut mine.main_bytes, theirs.main_bytes);
    both(&mut mine.main_size_bytes, theirs.main_size_bytes);
    both_signed(&mut mine.cheque_bytes, theirs.cheque_bytes);
    both(&mut mine.cheque_size_bytes, theirs.cheque_size_bytes);
    add(&mut mine.waiting_requests, theirs.waiting_requests);
    add(&mut mine.active_segments, theirs.active_segments);
    add(&mut mine.hot_segments, theirs.hot_segments);
    add(&mut mine.started_bytes, theirs.started_bytes);
    add(&mut mine.overdrawn_bytes, theirs.overdrawn_bytes);
    mine.p95_ns = mine.p95_ns.max(theirs.p95_ns);
    mine.p99999_ns = mine.p99999_ns.max(theirs.p99999_ns);
    both(&mut mine.available_bytes_per_second, theirs.available_bytes_per_second);
}
