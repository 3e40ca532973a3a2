//! What the roles of several servers are told: the section `[cluster]` of the settings.

use std::path::PathBuf;
use std::time::Duration;

use agent::forwarding::{self, LOG_BYTES, Mode};
use base::{Error, Result};
use control::{etcd, rules};
use files::rados::librados::Place;
use policies::burst::BurstSettings;
use runtime::Address;
use serde::{Deserialize, Serialize};
use wire::api::Size;

use super::{LeasesPlace, StorePlace, address};

/// Shortest and longest lease of a server, in milliseconds.
const LEASE_MS: std::ops::RangeInclusive<u64> = 200..=60_000;
/// Longest time that requests wait for a segment to come back, in seconds.
const PATIENCE_MAX: u64 = 3600;
/// Most managers.
const MANAGERS_MAX: usize = 9;

/// See [`Mode`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// None.
    Off,
    /// Bursts, as far as that gains anything, and within what it may cost.
    #[default]
    Auto,
    /// Bursts, whatever it costs.
    On,
    /// Every other write, as chance has it: for tests.
    Mixed,
}

impl From<Forwarding> for Mode {
    fn from(forwarding: Forwarding) -> Mode {
        match forwarding {
            Forwarding::Off => Mode::Off,
            Forwarding::Auto => Mode::Auto,
            Forwarding::On => Mode::On,
            Forwarding::Mixed => Mode::Mixed,
        }
    }
}

/// See the module.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSettings {
    /// The name of this process among those of its role.
    pub name: String,
    /// Where it listens for others: `HOST:PORT` or `unix:PATH`. Port 0 asks for a free one.
    pub listen: String,
    /// The shared store of files: an address, or a pool of Ceph ([`Place::parse`]).
    pub store: String,
    /// The store of leases of managers: an address, or an etcd ([`etcd::Place::parse`]). Default: where the shared store is.
    pub leases: Option<String>,
    /// All managers, in any order.
    pub managers: Vec<String>,
    /// A server that no manager has heard of for so many milliseconds is dead.
    pub lease_ms: u64,
    /// How many seconds requests of clients wait for a segment whose server is gone, or does not answer.
    pub patience_seconds: u64,
    /// Which writes of an agent's volumes go to logs on several servers.
    pub forwarding: Forwarding,
    /// Bytes of each of a volume's logs.
    pub forwarding_log: Size,
    /// A write of a burst goes to the nearest log, and not to the next one, if less than so much of a hundred of it is more than
    /// the average traffic.
    pub forwarding_mild_percent: u32,
    /// Where a manager keeps the token of its API. Give all managers the same one, and any of them can be asked.
    pub token_file: Option<PathBuf>,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        ClusterSettings {
            name: String::new(),
            listen: "127.0.0.1:0".into(),
            store: String::new(),
            leases: None,
            managers: vec![],
            lease_ms: 2_000,
            patience_seconds: 60,
            forwarding: Forwarding::default(),
            forwarding_log: Size::Text("64M".into()),
            forwarding_mild_percent: 0,
            token_file: None,
        }
    }
}

/// The same, checked.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// See [`ClusterSettings::name`].
    pub name: String,
    /// See [`ClusterSettings::listen`].
    pub listen: Address,
    /// See [`ClusterSettings::managers`].
    pub managers: Vec<Address>,
    /// See [`ClusterSettings::lease_ms`].
    pub lease: Duration,
    /// See [`ClusterSettings::patience_seconds`].
    pub patience: Duration,
    /// See [`ClusterSettings::forwarding`].
    pub forwarding: forwarding::Options,
}

impl ClusterSettings {
    /// Checks what every role needs.
    ///
    /// # Errors
    /// `Invalid`: which setting, and what it may be.
    pub fn resolve(&self) -> Result<Resolved> {
        let wrong = |what: String| Err(Error::invalid(what));
        rules::check_server(&self.name).map_err(|error| error.context("cluster.name (--name)"))?;
        if self.managers.is_empty() || self.managers.len() > MANAGERS_MAX {
            return wrong(format!(
                "cluster.managers (--managers) names {} managers: name all of them, 1 to {MANAGERS_MAX}",
                self.managers.len()
            ));
        }
        if let Some(twice) = self.managers.iter().enumerate().find(|(at, name)| self.managers[..*at].contains(name)) {
            return wrong(format!("cluster.managers (--managers) names {} twice", twice.1));
        }
        if !LEASE_MS.contains(&self.lease_ms) {
            return wrong(format!(
                "cluster.lease_ms = {} is not possible: choose {} to {}",
                self.lease_ms,
                LEASE_MS.start(),
                LEASE_MS.end()
            ));
        }
        if !(1..=PATIENCE_MAX).contains(&self.patience_seconds) {
            return wrong(format!(
                "cluster.patience_seconds = {} is not possible: choose 1 to {PATIENCE_MAX}",
                self.patience_seconds
            ));
        }
        let log_bytes =
            self.forwarding_log.bytes().map_err(|wrong| Error::invalid(format!("cluster.forwarding_log: {wrong}")))?;
        if !LOG_BYTES.contains(&log_bytes) {
            return wrong(format!("cluster.forwarding_log = {log_bytes} is not possible: choose 1M to 1G"));
        }
        let mild_below = self.forwarding_mild_percent;
        if mild_below > 100 {
            return wrong(format!("cluster.forwarding_mild_percent = {mild_below} is not possible: choose 0 to 100"));
        }
        let burst = BurstSettings { mild_below, ..BurstSettings::SENSITIVE };
        let managers = self.managers.iter().map(|text| place("cluster.managers (--managers)", text));
        Ok(Resolved {
            name: self.name.clone(),
            listen: place("cluster.listen (--listen)", &self.listen)?,
            managers: managers.collect::<Result<_>>()?,
            lease: Duration::from_millis(self.lease_ms),
            patience: Duration::from_secs(self.patience_seconds),
            forwarding: forwarding::Options { mode: self.forwarding.into(), log_bytes, burst, ..Default::default() },
        })
    }

    /// Where the shared store is.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn store(&self) -> Result<StorePlace> {
        const SETTING: &str = "cluster.store (--store)";
        if self.store.is_empty() {
            return Err(Error::invalid(
                "no shared store was given: name a pool of Ceph with --store rados:POOL, or an address (for a try on one \
                 machine: levee lab files)",
            ));
        }
        if self.store.starts_with("rados:") {
            let place = Place::parse(&self.store).map_err(|wrong| Error::invalid(format!("{SETTING}: {wrong}")))?;
            return Ok(StorePlace::Pool(place));
        }
        place(SETTING, &self.store).map(StorePlace::Served)
    }

    /// Where the store of leases is.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn leases(&self) -> Result<LeasesPlace> {
        const SETTING: &str = "cluster.leases (--leases)";
        match (&self.leases, self.store()?) {
            (Some(leases), _) if leases.starts_with("etcd:") => {
                let place =
                    etcd::Place::parse(leases).map_err(|wrong| Error::invalid(format!("{SETTING}: {wrong}")))?;
                Ok(LeasesPlace::Etcd(place))
            }
            (Some(leases), _) => place(SETTING, leases).map(LeasesPlace::Served),
            (None, StorePlace::Served(address)) => Ok(LeasesPlace::Served(address)),
            (None, StorePlace::Pool(_)) => Err(Error::invalid(
                "a pool of Ceph keeps no leases of managers: name an etcd with --leases etcd:HOST:PORT,HOST:PORT,...",
            )),
        }
    }
}

fn place(what: &str, text: &str) -> Result<Address> {
    address(text).map_err(|wrong| Error::invalid(format!("{what}: {wrong}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_with_the_setting_and_what_it_may_be() {
        let good = ClusterSettings {
            name: "s1".into(),
            managers: vec!["127.0.0.1:1".into(), "unix:/run/m2.sock".into()],
            store: "127.0.0.1:9".into(),
            ..ClusterSettings::default()
        };
        let resolved = good.resolve().unwrap();
        assert_eq!((resolved.managers.len(), resolved.lease), (2, Duration::from_secs(2)));
        assert_eq!(good.leases().unwrap(), LeasesPlace::Served(address("127.0.0.1:9").unwrap()));
        assert_eq!(good.store().unwrap(), StorePlace::Served(address("127.0.0.1:9").unwrap()));
        let refused = |settings: ClusterSettings| settings.resolve().unwrap_err().message;
        assert!(refused(ClusterSettings { name: "a b".into(), ..good.clone() }).contains("--name"));
        assert!(refused(ClusterSettings { managers: vec![], ..good.clone() }).contains("--managers"));
        let twice = vec!["127.0.0.1:1".to_owned(); 2];
        assert!(refused(ClusterSettings { managers: twice, ..good.clone() }).contains("twice"));
        let nowhere = vec!["nowhere".to_owned()];
        assert!(refused(ClusterSettings { managers: nowhere, ..good.clone() }).contains("no address"));
        assert!(refused(ClusterSettings { lease_ms: 10, ..good.clone() }).contains("200 to 60000"));
        let mild = ClusterSettings { forwarding_mild_percent: 101, ..good.clone() };
        assert!(refused(mild).contains("0 to 100"));
        assert!(refused(ClusterSettings { patience_seconds: 0, ..good.clone() }).contains("patience_seconds"));
        assert!(
            ClusterSettings { store: String::new(), ..good.clone() }.store().unwrap_err().message.contains("--store")
        );
        let pool = ClusterSettings { store: "rados:disks".into(), ..good.clone() };
        assert_eq!(pool.store().unwrap(), StorePlace::Pool(Place::parse("rados:disks").unwrap()));
        assert!(pool.leases().unwrap_err().message.contains("--leases"));
        let with = |leases: &str| ClusterSettings { leases: Some(leases.into()), ..pool.clone() }.leases();
        assert_eq!(with("127.0.0.1:7").unwrap(), LeasesPlace::Served(address("127.0.0.1:7").unwrap()));
        let place = etcd::Place::parse("etcd:127.0.0.1:7/two").unwrap();
        assert_eq!(with("etcd:127.0.0.1:7/two").unwrap(), LeasesPlace::Etcd(place));
        assert!(with("etcd:nowhere").unwrap_err().message.contains("--leases"), "it names the setting");
        let wrong = ClusterSettings { store: "rados:".into(), ..good };
        assert!(wrong.store().unwrap_err().message.contains("--store"), "it names the setting");
    }
}
