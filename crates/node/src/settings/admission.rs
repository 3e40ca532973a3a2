//! `[admission]`: who has to wait when there is more to do than the store takes.

use std::ops::RangeInclusive;
use std::time::Duration;

use base::limits::REQUEST_SIZE_MAX;
use base::units::format_size;
use base::{Error, MIB, Result, TIB};
use policies::admission as policy;
use policies::admission::estimator::EstimatorSettings;
use policies::admission::knee::KneeSettings;
use serde::{Deserialize, Serialize};
use wire::api::Size;

use super::{number, size};

/// Who may keep whom waiting. Sizes are per second.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionSettings {
    /// What a full store does.
    pub throttle: Throttle,
    /// What the disks take before their latency takes off; `auto`, the default: that is learned; `none`: only levels hold
    /// anybody up.
    pub bandwidth: Option<Size>,
    /// What is learned is never below this.
    pub bandwidth_floor: Size,
    /// From how many times what requests take alone on latency has taken off, in percent.
    pub takeoff_percent: u64,
    /// What each client gets with the throttle `client-cap`.
    pub client_cap: Option<Size>,
    /// What each segment gets with the throttle `segment-cap`.
    pub segment_cap: Option<Size>,
    /// The cheque bucket's size in percent of the main one's.
    pub cheque_percent: u64,
    /// Whether that follows what calm segments ask for, between a quarter and twice of it.
    pub cheque_follows_demand: bool,
    /// How often tokens are issued.
    pub interval_ms: u64,
    /// From how much of a fair share on a segment is hot, in percent.
    pub hot_share_percent: u64,
    /// Calm intervals after which a hot segment is steady again.
    pub calm_intervals: u64,
    /// In how many parts hot segments get an interval's tokens while they wait.
    pub hot_parts: u64,
    /// Bytes that each operation costs besides its own.
    pub operation_cost: Size,
    /// What the disks serve when nothing else uses them: `mu` of the estimate. Default: 1.775 times the bandwidth.
    pub service_bandwidth: Option<Size>,
    /// What the estimate leaves alone. Default: 0.275 times the bandwidth.
    pub headroom: Option<Size>,
}

/// See [`policy::Throttle`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Throttle {
    /// Main and cheque bucket, hot and steady segments.
    DualBuckets,
    /// One bucket and one line for everybody.
    OneBucket,
    /// One bucket, and a cap for each client.
    ClientCap,
    /// One bucket, and a cap for each segment.
    SegmentCap,
    /// Nobody waits, whatever the levels say.
    Off,
}

impl Default for AdmissionSettings {
    fn default() -> Self {
        let defaults = policy::AdmissionSettings::default();
        AdmissionSettings {
            throttle: Throttle::DualBuckets,
            bandwidth: None,
            bandwidth_floor: Size::Bytes(KneeSettings::default().floor_bytes_per_sec),
            takeoff_percent: KneeSettings::default().takeoff_percent,
            client_cap: None,
            segment_cap: None,
            cheque_percent: defaults.cheque_permille / 10,
            cheque_follows_demand: defaults.cheque_follows_demand,
            interval_ms: defaults.interval.as_millis() as u64,
            hot_share_percent: defaults.hot_share_percent,
            calm_intervals: defaults.calm_intervals,
            hot_parts: defaults.hot_parts,
            operation_cost: Size::Bytes(defaults.operation_bytes),
            service_bandwidth: None,
            headroom: None,
        }
    }
}

/// What `bandwidth` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bandwidth {
    Learned,
    Unlimited,
    Fixed(u64),
}

/// Rates that make sense.
const RATES: RangeInclusive<u64> = MIB..=TIB;

impl AdmissionSettings {
    /// Checks them, and fills defaults in.
    ///
    /// # Errors
    /// `Invalid`, with the key and what would be accepted.
    pub(super) fn resolve(&self) -> Result<policy::AdmissionSettings> {
        let bandwidth = self.bandwidth()?;
        let limit = if let Bandwidth::Fixed(limit) = bandwidth { Some(limit) } else { None };
        let throttle = self.throttle()?;
        let learns = self.learns(bandwidth)?;
        number("admission.cheque_percent", self.cheque_percent, 0..=100)?;
        number("admission.interval_ms", self.interval_ms, 1..=1_000)?;
        number("admission.hot_share_percent", self.hot_share_percent, 1..=10_000)?;
        number("admission.calm_intervals", self.calm_intervals, 1..=100_000)?;
        number("admission.hot_parts", self.hot_parts, 1..=100)?;
        let operation_bytes = size("admission.operation_cost", &self.operation_cost)?;
        if operation_bytes > REQUEST_SIZE_MAX {
            let (found, most) = (format_size(operation_bytes), format_size(REQUEST_SIZE_MAX));
            return Err(Error::invalid(format!("admission.operation_cost = {found} is too much: choose up to {most}")));
        }
        Ok(policy::AdmissionSettings {
            throttle,
            limit_bytes_per_sec: limit.unwrap_or(u64::MAX),
            learns,
            operation_bytes,
            interval: Duration::from_millis(self.interval_ms),
            hot_share_percent: self.hot_share_percent,
            calm_intervals: self.calm_intervals,
            hot_parts: self.hot_parts,
            cheque_permille: self.cheque_percent * 10,
            cheque_follows_demand: self.cheque_follows_demand,
            estimator: self.estimator(limit)?,
            ..policy::AdmissionSettings::default()
        })
    }

    fn bandwidth(&self) -> Result<Bandwidth> {
        match &self.bandwidth {
            None => Ok(Bandwidth::Learned),
            Some(Size::Text(text)) if text == "auto" => Ok(Bandwidth::Learned),
            Some(Size::Text(text)) if text == "none" => Ok(Bandwidth::Unlimited),
            given => Ok(rate("bandwidth", given.as_ref())?.map_or(Bandwidth::Learned, Bandwidth::Fixed)),
        }
    }

    /// How the limit is learned, if it is.
    fn learns(&self, bandwidth: Bandwidth) -> Result<Option<KneeSettings>> {
        number("admission.takeoff_percent", self.takeoff_percent, 110..=10_000)?;
        let floor = rate("bandwidth_floor", Some(&self.bandwidth_floor))?.unwrap_or(MIB);
        if bandwidth != Bandwidth::Learned {
            return Ok(None);
        }
        for (key, given) in [("service_bandwidth", &self.service_bandwidth), ("headroom", &self.headroom)] {
            if given.is_some() {
                return Err(Error::invalid(format!(
                    "admission.{key} says something of disks whose admission.bandwidth is given: give that, too, or leave \
                     both out and have it learned"
                )));
            }
        }
        let takeoff_percent = self.takeoff_percent;
        Ok(Some(KneeSettings { floor_bytes_per_sec: floor, takeoff_percent, ..KneeSettings::default() }))
    }

    fn throttle(&self) -> Result<policy::Throttle> {
        let cap = |key: &str, wanted: Throttle, given: &Option<Size>| match (self.throttle == wanted, given) {
            (true, None) => Err(Error::invalid(format!(
                "this throttle needs admission.{key}, such as {key} = \"60M\" (per second)"
            ))),
            (false, Some(_)) => {
                let name = key.replace('_', "-");
                Err(Error::invalid(format!(
                    "admission.{key} is for throttle = \"{name}\" only: set that, or leave it out"
                )))
            }
            _ => rate(key, given.as_ref()),
        };
        let client = cap("client_cap", Throttle::ClientCap, &self.client_cap)?;
        let segment = cap("segment_cap", Throttle::SegmentCap, &self.segment_cap)?;
        Ok(match self.throttle {
            Throttle::DualBuckets => policy::Throttle::DualBuckets,
            Throttle::OneBucket => policy::Throttle::OneBucket,
            Throttle::ClientCap => policy::Throttle::ClientCap(client.unwrap_or(u64::MAX)),
            Throttle::SegmentCap => policy::Throttle::SegmentCap(segment.unwrap_or(u64::MAX)),
            Throttle::Off => policy::Throttle::Off,
        })
    }

    /// `mu` and `h`: in the paper 2,130 and 330 MB/s where the limit is 1,200 (NSDI 2026, §4.2).
    fn estimator(&self, bandwidth: Option<u64>) -> Result<EstimatorSettings> {
        let defaults = EstimatorSettings::default();
        let [service, headroom] = match bandwidth {
            Some(limit) => [limit / 1_000 * 1_775, limit / 1_000 * 275],
            None => [defaults.service_bytes_per_sec, defaults.headroom_bytes_per_sec],
        };
        let service = rate("service_bandwidth", self.service_bandwidth.as_ref())?.unwrap_or(service);
        let headroom = match &self.headroom {
            Some(headroom) => size("admission.headroom", headroom)?,
            None => headroom.min(service / 2),
        };
        if headroom >= service {
            return Err(Error::invalid(format!(
                "admission.headroom = {} leaves nothing of what the disks serve ({}): choose less",
                format_size(headroom),
                format_size(service)
            )));
        }
        Ok(EstimatorSettings { service_bytes_per_sec: service, headroom_bytes_per_sec: headroom, ..defaults })
    }
}

fn rate(key: &str, given: Option<&Size>) -> Result<Option<u64>> {
    let Some(given) = given else { return Ok(None) };
    let bytes = size(&format!("admission.{key}"), given)?;
    match RATES.contains(&bytes) {
        true => Ok(Some(bytes)),
        false => Err(Error::invalid(format!(
            "admission.{key} = {} per second cannot be: choose from {} to {}",
            format_size(bytes),
            format_size(*RATES.start()),
            format_size(*RATES.end())
        ))),
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    fn resolve(text: &str) -> Result<policy::AdmissionSettings> {
        let settings: AdmissionSettings = toml::from_str(text).map_err(|error| Error::invalid(error.to_string()))?;
        settings.resolve()
    }

    #[test]
    fn by_default_the_bandwidth_is_learned() {
        let unlimited = policy::AdmissionSettings { limit_bytes_per_sec: u64::MAX, ..Default::default() };
        let learned = policy::AdmissionSettings { learns: Some(KneeSettings::default()), ..unlimited.clone() };
        assert_eq!(resolve("").unwrap(), learned);
        assert_eq!(resolve("bandwidth = 'auto'").unwrap(), learned);
        assert_eq!(resolve("bandwidth = 'none'").unwrap(), unlimited);
        let own = resolve("bandwidth_floor = '8M'\ntakeoff_percent = 300").unwrap().learns.unwrap();
        assert_eq!((own.floor_bytes_per_sec, own.takeoff_percent), (8 * MIB, 300));
        assert_eq!(resolve("bandwidth = '8M'").unwrap().learns, None);
    }

    #[test]
    fn a_bandwidth_gives_the_estimate_its_numbers() {
        let found = resolve("bandwidth = 1200000000").unwrap();
        assert_eq!(found.limit_bytes_per_sec, 1_200_000_000);
        let estimator = found.estimator;
        assert_eq!((estimator.service_bytes_per_sec, estimator.headroom_bytes_per_sec), (2_130_000_000, 330_000_000));
        let own = resolve("bandwidth = '100M'\nservice_bandwidth = '1G'\nheadroom = '5M'").unwrap().estimator;
        assert_eq!((own.service_bytes_per_sec, own.headroom_bytes_per_sec), (1 << 30, 5 * MIB));
        let small = resolve("bandwidth = '100M'\nservice_bandwidth = '1M'").unwrap().estimator;
        assert_eq!((small.service_bytes_per_sec, small.headroom_bytes_per_sec), (MIB, MIB / 2));
    }

    #[test]
    fn each_setting_reaches_the_policy() {
        let text = "throttle = 'client-cap'\nclient_cap = '60M'\ncheque_percent = 30\ncheque_follows_demand = false\ninterval_ms = 5\n\
                    hot_share_percent = 150\ncalm_intervals = 7\nhot_parts = 4\noperation_cost = '4K'";
        let found = resolve(text).unwrap();
        assert_eq!(found.throttle, policy::Throttle::ClientCap(60 * MIB));
        assert_eq!((found.cheque_permille, found.interval), (300, Duration::from_millis(5)));
        assert_eq!((found.hot_parts, found.cheque_follows_demand), (4, false));
        assert_eq!((found.hot_share_percent, found.calm_intervals, found.operation_bytes), (150, 7, 4096));
        let capped = resolve("throttle = 'segment-cap'\nsegment_cap = '1M'").unwrap().throttle;
        assert_eq!(capped, policy::Throttle::SegmentCap(MIB));
        for (name, throttle) in [
            ("dual-buckets", policy::Throttle::DualBuckets),
            ("one-bucket", policy::Throttle::OneBucket),
            ("off", policy::Throttle::Off),
        ] {
            assert_eq!(resolve(&format!("throttle = '{name}'")).unwrap().throttle, throttle);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        for (text, part) in [
            ("throttle = 'two-buckets'", "`dual-buckets`, `one-bucket`, `client-cap`, `segment-cap`, `off`"),
            ("bandwidth = '1K'", "admission.bandwidth = 1 KiB per second cannot be: choose from 1 MiB to 1 TiB"),
            ("bandwidth = '2T'", "choose from 1 MiB to 1 TiB"),
            ("bandwidth = 'fast'", "admission.bandwidth: 'fast' is not a size"),
            ("throttle = 'client-cap'", "this throttle needs admission.client_cap, such as client_cap = \"60M\""),
            ("throttle = 'segment-cap'", "this throttle needs admission.segment_cap"),
            ("client_cap = '60M'", "admission.client_cap is for throttle = \"client-cap\" only"),
            ("throttle = 'client-cap'\nclient_cap = '1M'\nsegment_cap = '1M'", "admission.segment_cap is for"),
            ("throttle = 'segment-cap'\nsegment_cap = 1", "admission.segment_cap = 1 B per second"),
            ("cheque_percent = 101", "admission.cheque_percent = 101 cannot be: choose from 0 to 100"),
            ("interval_ms = 0", "choose from 1 to 1000"),
            ("hot_share_percent = 0", "choose from 1 to 10000"),
            ("calm_intervals = 0", "choose from 1 to 100000"),
            ("operation_cost = '33M'", "admission.operation_cost = 33 MiB is too much: choose up to 32 MiB"),
            ("bandwidth = '1G'\nservice_bandwidth = 0", "admission.service_bandwidth = 0 B per second"),
            ("service_bandwidth = '1G'", "admission.service_bandwidth says something of disks whose"),
            ("headroom = '1G'", "give that, too, or leave both out"),
            ("takeoff_percent = 100", "choose from 110 to 10000"),
            ("bandwidth_floor = '1K'", "admission.bandwidth_floor = 1 KiB per second cannot be"),
            ("bandwidth = '1G'\nheadroom = '2G'", "admission.headroom = 2 GiB leaves nothing"),
        ] {
            let error = resolve(text).unwrap_err();
            assert!(error.kind == ErrorKind::Invalid && error.message.contains(part), "{text}: {error}");
        }
    }

    /// Whatever is accepted, no number of the policy overflows, and its buckets hold something.
    #[test]
    fn the_ends_of_all_ranges_work_together() {
        for bandwidth in ["", "bandwidth = 'none'", "bandwidth = '1M'", "bandwidth = '1T'"] {
            for interval in [1, 1_000] {
                for (cheque, share) in [(0, 1), (100, 10_000)] {
                    let text = format!(
                        "{bandwidth}\ninterval_ms = {interval}\ncheque_percent = {cheque}\nhot_share_percent = {share}"
                    );
                    let settings = resolve(&text).unwrap();
                    let admission = policy::Admission::<()>::new(settings, base::Instant::ZERO);
                    let status = admission.status(base::Instant::ZERO);
                    assert!(status.main > 0 && (cheque == 0) == (status.cheque == 0), "{text}: {status:?}");
                }
            }
        }
    }
}
