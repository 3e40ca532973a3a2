//! `[tenants]`: how those who share an agent share its loops, and what it holds them to.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use base::levels::{BURST_IOPS_MAX, Rate};
use base::{Error, MIB, Result, TIB};
use policies::levels::{self, LevelsSettings};
use policies::tenants as policy;
use policies::tenants::{Cost, Dimension, UNLIMITED};
use serde::{Deserialize, Serialize};
use wire::api::Size;

use super::{number, size};

/// Who may keep whom waiting at an agent. Rates are per second, for all loops together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantsSettings {
    /// How loops are shared.
    pub scheduling: Scheduling,
    /// What all clients together may read and write: `none`, the default, or a rate.
    pub limit: Option<Size>,
    /// What they may write.
    pub ingress: Option<Size>,
    /// What they may read.
    pub egress: Option<Size>,
    /// How often resources are allocated.
    pub window_us: u64,
    /// What a tenant that stays below its base keeps of its last allocation, in percent.
    pub alpha_percent: u64,
    /// How much more a request counts that waits than one that was started, in percent.
    pub weight_throttle_percent: u64,
    /// What is kept for tenants that come back, in percent of everything.
    pub reserve_percent: u64,
    /// Whether they may reclaim what others were allocated beyond their base.
    pub recovery: bool,
    /// How requests are priced.
    pub cost: Pricing,
    /// Whether cost follows delay.
    pub adjustment: bool,
    /// The file of `levee agent profile`. Default: `profile.toml` in the first directory, if it is there.
    pub profile: Option<PathBuf>,
    /// What is in it, where that was measured on this machine. Whoever reads files says so.
    #[serde(skip)]
    pub measured: Option<policy::Profile>,
    /// Who holds volumes to their base and burst levels.
    pub levels: Enforcer,
    /// Operations per second that each tenant gets at most, all its volumes on this agent together; 0, the default: no bound.
    pub burst_iops: u64,
    /// The same in bytes per second: `none`, the default, or a rate.
    pub burst_bandwidth: Option<Size>,
}

/// See [`policies::levels::Enforcer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcer {
    /// The agent, once for all servers.
    Agent,
    /// Each server by itself.
    Server,
}

/// See [`policy::Scheduling`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduling {
    /// Base at once, and bursts from what is idle.
    Bios,
    /// A budget that whoever comes first uses up.
    Wild,
    /// To each his part, whoever else is there.
    Base,
    /// Nobody waits.
    Off,
}

/// See [`policy::Pricing`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pricing {
    /// In each dimension by itself.
    Vector,
    /// By the dearest dimension.
    Scalar,
}

impl Default for TenantsSettings {
    fn default() -> Self {
        let defaults = policy::TenantsSettings::default();
        let percent = |part: f64| (part * 100.0).round() as u64;
        TenantsSettings {
            scheduling: Scheduling::Bios,
            limit: None,
            ingress: None,
            egress: None,
            window_us: defaults.window.as_micros() as u64,
            alpha_percent: percent(defaults.alpha),
            weight_throttle_percent: percent(defaults.weight_throttle),
            reserve_percent: percent(defaults.reserve),
            recovery: defaults.recovers,
            cost: Pricing::Vector,
            adjustment: defaults.adjusts,
            profile: None,
            measured: None,
            levels: Enforcer::Agent,
            burst_iops: 0,
            burst_bandwidth: None,
        }
    }
}

impl TenantsSettings {
    /// Checks them, and fills defaults in.
    ///
    /// # Errors
    /// `Invalid`, with the key and what would be accepted.
    pub(super) fn resolve(&self) -> Result<policy::TenantsSettings> {
        number("tenants.window_us", self.window_us, 100..=100_000)?;
        number("tenants.alpha_percent", self.alpha_percent, 0..=100)?;
        number("tenants.weight_throttle_percent", self.weight_throttle_percent, 0..=10_000)?;
        number("tenants.reserve_percent", self.reserve_percent, 0..=50)?;
        let mut per_second: Cost = policy::TenantsSettings::default().per_second;
        per_second.set(Dimension::Ingress, rate("ingress", self.ingress.as_ref())?);
        per_second.set(Dimension::Egress, rate("egress", self.egress.as_ref())?);
        per_second.set(Dimension::Software, rate("limit", self.limit.as_ref())?);
        let part = |percent: u64| percent as f64 / 100.0;
        Ok(policy::TenantsSettings {
            scheduling: match self.scheduling {
                Scheduling::Bios => policy::Scheduling::Bios,
                Scheduling::Wild => policy::Scheduling::Wild,
                Scheduling::Base => policy::Scheduling::Base,
                Scheduling::Off => policy::Scheduling::Off,
            },
            window: Duration::from_micros(self.window_us),
            alpha: part(self.alpha_percent),
            weight_throttle: part(self.weight_throttle_percent),
            reserve: part(self.reserve_percent),
            recovers: self.recovery,
            pricing: match self.cost {
                Pricing::Vector => policy::Pricing::Vector,
                Pricing::Scalar => policy::Pricing::Scalar,
            },
            adjusts: self.adjustment,
            profile: self.measured.unwrap_or_default(),
            per_second,
            ..policy::TenantsSettings::default()
        })
    }
}

impl TenantsSettings {
    /// Who holds volumes to their levels, and what a tenant gets at most.
    ///
    /// # Errors
    /// `Invalid`, with the key and what would be accepted.
    pub(super) fn levels(&self) -> Result<LevelsSettings> {
        number("tenants.burst_iops", self.burst_iops, 0..=BURST_IOPS_MAX)?;
        let bytes_per_sec = bytes_per_sec("burst_bandwidth", self.burst_bandwidth.as_ref())?.unwrap_or(0);
        let tenant_burst = Rate { iops: self.burst_iops, bytes_per_sec };
        let enforcer = match self.levels {
            Enforcer::Agent => levels::Enforcer::Agent,
            Enforcer::Server if !tenant_burst.is_none() => {
                return Err(Error::invalid(
                    "tenants.burst_iops and burst_bandwidth need tenants.levels = \"agent\": no server sees all that a tenant \
                     asks for",
                ));
            }
            Enforcer::Server => levels::Enforcer::Server,
        };
        Ok(LevelsSettings { enforcer, tenant_burst })
    }
}

/// What there is of a resource per second; without a rate more than there ever is.
fn rate(key: &str, rate: Option<&Size>) -> Result<f64> {
    let windows_in_a_second = 1000.0;
    Ok(bytes_per_sec(key, rate)?.map_or(UNLIMITED * windows_in_a_second, |rate| rate as f64))
}

/// Bytes per second, if there are any given.
fn bytes_per_sec(key: &str, rate: Option<&Size>) -> Result<Option<u64>> {
    const RATES: RangeInclusive<u64> = MIB..=TIB;
    let rate = match rate {
        None => return Ok(None),
        Some(Size::Text(text)) if text == "none" => return Ok(None),
        Some(rate) => size(&format!("tenants.{key}"), rate)?,
    };
    match RATES.contains(&rate) {
        true => Ok(Some(rate)),
        false => Err(Error::invalid(format!(
            "tenants.{key} = {rate} bytes per second cannot be: choose from 1M to 1T, or \"none\""
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_policy_and_what_is_wrong_is_said() {
        let defaults = TenantsSettings::default();
        assert_eq!(defaults.resolve().unwrap(), policy::TenantsSettings::default());
        let limited = TenantsSettings { limit: Some(Size::Text("100M".into())), ..defaults.clone() };
        assert_eq!(limited.resolve().unwrap().per_second.of(Dimension::Software), 104_857_600.0);
        let none = TenantsSettings { limit: Some(Size::Text("none".into())), ..defaults.clone() };
        assert_eq!(none.resolve().unwrap(), policy::TenantsSettings::default());
        let refused = |settings: TenantsSettings| settings.resolve().unwrap_err().message;
        assert!(refused(TenantsSettings { window_us: 5, ..defaults.clone() }).contains("tenants.window_us = 5"));
        assert!(refused(TenantsSettings { reserve_percent: 90, ..defaults.clone() }).contains("from 0 to 50"));
        let little = TenantsSettings { egress: Some(Size::Bytes(7)), ..defaults.clone() };
        assert!(refused(little).contains("tenants.egress = 7 bytes per second cannot be"));
        assert_eq!(defaults.levels().unwrap(), LevelsSettings::default());
        let bandwidth = Some(Size::Text("50M".into()));
        let bound = TenantsSettings { burst_iops: 9, burst_bandwidth: bandwidth, ..defaults.clone() };
        let tenant_burst = Rate { iops: 9, bytes_per_sec: 50 << 20 };
        assert_eq!(bound.levels().unwrap(), LevelsSettings { tenant_burst, ..LevelsSettings::default() });
        let nobody = TenantsSettings { levels: Enforcer::Server, ..bound };
        assert!(nobody.levels().unwrap_err().message.contains("need tenants.levels = \"agent\""));
        let papers = TenantsSettings { levels: Enforcer::Server, ..defaults.clone() };
        assert_eq!(papers.levels().unwrap().enforcer, levels::Enforcer::Server);
        let odd = TenantsSettings { limit: Some(Size::Text("much".into())), ..defaults };
        assert!(refused(odd).contains("tenants.limit"));
    }
}
