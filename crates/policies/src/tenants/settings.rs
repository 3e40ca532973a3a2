//! Settings of the tenants of one agent, and the baselines among them.

use std::time::Duration;

use super::cost::Cost;
use super::profile::Profile;

/// Who may keep whom waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduling {
    /// Nobody waits.
    Off,
    /// A budget for each window, and weighted round robin over tenants for it, which goes on where it stopped: WildCBS,
    /// work-conserving, and whoever comes after the budget is gone waits (BurstCBS §5.2, figure 14).
    Wild,
    /// Each tenant gets its part of every window, whoever else is there: BaseCBS (figure 13).
    Base,
    /// Algorithm 1.
    Bios,
}

/// How requests are priced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pricing {
    /// In each dimension what it takes there.
    Vector,
    /// In every dimension the share that it takes of the one in which that is highest: figure 16's baseline.
    Scalar,
}

/// Settings of a [`super::Scheduler`]. The paper prints none of these numbers but the reserve.
#[derive(Clone, PartialEq, Debug)]
pub struct TenantsSettings {
    /// Who may keep whom waiting.
    pub scheduling: Scheduling,
    /// How often resources are allocated.
    pub window: Duration,
    /// What of its last allocation a tenant keeps that stays below its base: `alpha`.
    pub alpha: f64,
    /// How much more a request counts that waits than one that was started: `weight_throttle`.
    pub weight_throttle: f64,
    /// The share of everything that is kept for tenants which come back: "just enough for two tenants", in the paper 5%.
    pub reserve: f64,
    /// Whether such a tenant may reclaim what others were allocated beyond their base, and use the reserve.
    pub recovers: bool,
    /// How requests are priced.
    pub pricing: Pricing,
    /// Whether cost follows delay ([`super::Delay`]).
    pub adjusts: bool,
    /// Whether cost follows measured processor time ([`super::Measured`]).
    pub measures: bool,
    /// What requests cost.
    pub profile: Profile,
    /// What one loop has in a second: processor time, and its part of what all loops have together.
    pub per_second: Cost,
}

impl Default for TenantsSettings {
    fn default() -> Self {
        let mut per_second = Cost::UNLIMITED * 1000.0;
        per_second.0[0] = 1e9;
        TenantsSettings {
            scheduling: Scheduling::Bios,
            window: Duration::from_millis(1),
            alpha: 0.9,
            weight_throttle: 2.0,
            reserve: 0.05,
            recovers: true,
            pricing: Pricing::Vector,
            adjusts: true,
            measures: true,
            profile: Profile::default(),
            per_second,
        }
    }
}

/// What a tenant was promised on one loop, and the most that it gets there, for each second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Promise {
    /// The base; none: an equal share of what nobody was promised.
    pub base: Option<Cost>,
    /// The burst; none: no bound but what there is.
    pub burst: Option<Cost>,
}
