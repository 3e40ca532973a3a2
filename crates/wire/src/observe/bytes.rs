//! Snapshots and explanations as the payload of a frame: JSON, as the API has it.
//!
//! A process of another version knows other counters: a field that is not known is passed over, and one that is missing is
//! empty. All else in it is checked here, because whoever shows it believes it: names are those of metrics, and lists have a
//! bound that follows from that of the payload.
//!
//! There may be more volumes than a payload says. Then each part has all that is not of volumes, and of volumes those behind
//! the last one of the part before.

use base::limits::OBSERVED_MAX;
use base::{Bytes, Error, Result, VolumeId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Distribution, Explained, Metric, POWERS, RequestCounters, Snapshot, VolumeCounters};

/// Behind all volumes: of them nothing is asked for.
pub const NO_VOLUMES: VolumeId = VolumeId(u64::MAX);

/// Longest name of a metric, label or operation, in bytes.
const NAME_MAX: usize = 100;
/// What an engine or agent says of itself apart from volumes takes less than this.
const ROOM_FOR_VOLUMES: usize = OBSERVED_MAX - OBSERVED_MAX / 8;

/// Of `snapshot` the part whose volumes have ids above `after`; its bytes.
///
/// # Errors
/// `Internal`: it is longer than any may be.
pub fn part_of(mut snapshot: Snapshot, after: VolumeId) -> Result<Bytes> {
    let mut volumes = std::mem::take(&mut snapshot.traffic);
    volumes.retain(|volume| volume.volume > after);
    volumes.sort_by_key(|volume| volume.volume);
    let mut len = written(&snapshot)?.len();
    for volume in volumes {
        len += written(&volume)?.len() + 1;
        if len > ROOM_FOR_VOLUMES && !snapshot.traffic.is_empty() {
            snapshot.has_more = true;
            break;
        }
        snapshot.traffic.push(volume);
    }
    bounded(written(&snapshot)?)
}

/// What was written by [`part_of`].
///
/// # Errors
/// `Io`: it cannot be what a process says of itself.
pub fn snapshot(bytes: &[u8]) -> Result<Snapshot> {
    let snapshot: Snapshot = read(bytes)?;
    let ascends = snapshot.traffic.is_sorted_by(|one, next| one.volume < next.volume);
    let is_sound = ascends
        && snapshot.uptime_seconds.is_finite()
        && snapshot.traffic.iter().all(is_sound_volume)
        && snapshot.served.iter().all(is_sound_counters)
        && snapshot.stages.iter().all(|(name, latency)| is_name(name) && is_sound_distribution(latency))
        && snapshot.metrics.iter().all(is_sound_metric)
        && snapshot.slow_engines.iter().all(|slow| is_name(&slow.part));
    if is_sound { Ok(snapshot) } else { Err(unsound()) }
}

/// Why I/O of a volume waits; its bytes.
///
/// # Errors
/// `Internal`: it is longer than any may be.
pub fn of_explained(explained: &Explained) -> Result<Bytes> {
    bounded(written(explained)?)
}

/// What was written by [`of_explained`].
///
/// # Errors
/// `Io`: it cannot be what a process says of a volume.
pub fn explained(bytes: &[u8]) -> Result<Explained> {
    let explained: Explained = read(bytes)?;
    let is_sound = explained.latency.iter().all(|timed| is_name(&timed.operation) && is_ascending(&timed.latency_ns));
    if is_sound { Ok(explained) } else { Err(unsound()) }
}

fn written(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::internal(format!("a snapshot cannot be said: {error}")))
}

fn bounded(bytes: Vec<u8>) -> Result<Bytes> {
    match bytes.len() <= OBSERVED_MAX {
        true => Ok(bytes.into()),
        false => Err(Error::internal(format!(
            "what it says of itself takes {} bytes, where {OBSERVED_MAX} are the most",
            bytes.len()
        ))),
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| Error::io(format!("{}: {error}", unsound().message)))
}

fn unsound() -> Error {
    Error::io("a process says of itself what cannot be: it has a bug, or another version; upgrade the older one")
}

/// As metrics and labels are named.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_letter)
}

fn is_sound_volume(volume: &VolumeCounters) -> bool {
    volume.requests.iter().all(is_sound_counters)
}

fn is_sound_counters(counters: &RequestCounters) -> bool {
    is_name(&counters.operation) && is_sound_distribution(&counters.latency) && is_ascending(&counters.latency_ns)
}

fn is_sound_distribution(distribution: &Distribution) -> bool {
    matches!(distribution.below.len(), 0 | POWERS)
}

fn is_ascending(buckets: &[(u64, u64)]) -> bool {
    buckets.is_sorted_by(|one, next| one.0 < next.0)
}

fn is_sound_metric(metric: &Metric) -> bool {
    is_name(&metric.name)
        && metric.value.is_finite()
        && !metric.help.contains(['\n', '\r', '\\'])
        && metric.labels.iter().all(|(label, _)| is_name(label))
}
