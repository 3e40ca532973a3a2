//! `[vhost]`: how the loops of an agent share the queues of virtual machines.

use policies::queues;
use serde::{Deserialize, Serialize};

/// Who serves the queues of virtual machines.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VhostSettings {
    /// Which loops serve a queue.
    pub queues: Queues,
}

/// See [`queues::Queues`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queues {
    /// All loops serve each.
    #[default]
    Shared,
    /// Each belongs to one loop: a baseline to measure against, as the next two are.
    Static,
    /// One loop claims for all, and hands requests to each in turn.
    Dispatcher,
    /// Each belongs to one loop, and one that has nothing to do asks it for requests.
    Stealing,
}

impl VhostSettings {
    /// For [`agent::Options`].
    pub(super) fn resolve(&self) -> queues::Queues {
        match self.queues {
            Queues::Shared => queues::Queues::Shared,
            Queues::Static => queues::Queues::Static,
            Queues::Dispatcher => queues::Queues::Dispatcher,
            Queues::Stealing => queues::Queues::Stealing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_that_of_the_policy() {
        assert_eq!(VhostSettings::default().resolve(), queues::Queues::default());
    }

    #[test]
    fn baselines_are_called_by_name() {
        for (name, wanted) in [("dispatcher", queues::Queues::Dispatcher), ("stealing", queues::Queues::Stealing)] {
            let settings: VhostSettings = toml::from_str(&format!("queues = {name:?}")).unwrap();
            assert_eq!(settings.resolve(), wanted);
        }
    }
}
