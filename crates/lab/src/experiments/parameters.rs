//! The parameters of experiments: one file, and what a run sets anew.

use base::{Error, Result};
use serde::Deserialize;

const FILE: &str = include_str!("../../parameters/nsdi26.toml");

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

impl Parameters {
    /// Those of the file.
    ///
    /// # Errors
    /// `Invalid`: only in a build with a broken file.
    pub fn from_file() -> Result<Parameters> {
        Self::with(&[])
    }

    /// Those of the file, with others in their place: `key=value`, values as in the file.
    ///
    /// # Errors
    /// `Invalid`, with the key.
    pub fn with(changes: &[String]) -> Result<Parameters> {
        let table = changed(FILE, changes)?;
        let parameters: Parameters = table.try_into().map_err(|error| Error::invalid(error.to_string().trim_end()))?;
        parameters.check()?;
        Ok(parameters)
    }

    /// The same with half and with double of one of them.
    ///
    /// # Errors
    /// `Invalid`: there is no such number, or no experiment with it.
    pub fn neighbours(changes: &[String], key: &str) -> Result<[(String, Parameters); 2]> {
        let both = half_and_double(FILE, changes, key)?;
        let with = |value: &String| {
            let change = format!("{key}={value}");
            let parameters = Parameters::with(&[changes, std::slice::from_ref(&change)].concat())?;
            Ok((change, parameters))
        };
        Ok([with(&both[0])?, with(&both[1])?])
    }

    fn check(&self) -> Result<()> {
        let is_sound = self.segments >= 4
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
            && self.calm_percent[0] > 0;
        match is_sound {
            true => Ok(()),
            false => Err(Error::invalid(format!("these parameters make no experiment: {self:?}"))),
        }
    }

    /// Segments that are hot: those with the lowest numbers.
    pub fn hot_segments(&self) -> u32 {
        (self.segments * self.hot_percent / 100).max(1)
    }
}

/// A file of parameters with others in their place.
pub(super) fn changed(file: &str, changes: &[String]) -> Result<toml::Table> {
    let mut table: toml::Table = file.parse().map_err(|error: toml::de::Error| Error::invalid(error.to_string()))?;
    for change in changes {
        let parsed = change.parse::<toml::Table>();
        let changed = parsed.map_err(|_| Error::invalid(format!("{change:?} is not key=value")))?;
        for (key, value) in changed {
            if !table.contains_key(&key) {
                let known: Vec<&String> = table.keys().collect();
                return Err(Error::invalid(format!("there is no parameter {key:?}; there are {known:?}")));
            }
            table.insert(key, value);
        }
    }
    Ok(table)
}

/// Half and double of one of a file's parameters, or of what was set in its place.
pub(super) fn half_and_double(file: &str, changes: &[String], key: &str) -> Result<[String; 2]> {
    match changed(file, changes)?.get(key) {
        Some(toml::Value::Integer(value)) => Ok([value / 2, value * 2].map(|value| value.to_string())),
        Some(toml::Value::Float(value)) => Ok([value / 2.0, value * 2.0].map(|value| format!("{value:?}"))),
        _ => Err(Error::invalid(format!("{key} is not a number that can be halved"))),
    }
}

#[cfg(test)]
mod tests {
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
        let [half, double] = Parameters::neighbours(&["depth=10".to_owned()], "depth").unwrap();
        assert_eq!((half.0.as_str(), half.1.depth, double.1.depth), ("depth=5", 5, 20));
        assert_eq!(Parameters::neighbours(&[], "interval_ms").unwrap()[1].1.interval_ms, 20);
        assert_eq!(Parameters::neighbours(&[], "pause_factor").unwrap()[0].1.pause_factor, 0.5);
        assert!(Parameters::neighbours(&[], "tasks").is_err() && Parameters::neighbours(&[], "none").is_err());
        for experiment in crate::experiments::ALL {
            for key in experiment.sensitive {
                assert!(Parameters::neighbours(&[], key).is_ok(), "{}: {key}", experiment.name);
            }
        }
    }
}
