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
    /// Each belongs to one loop: a baseline to measure against.
    Static,
}

impl VhostSettings {
    /// For [`agent::Options`].
    pub(super) fn resolve(&self) -> queues::Queues {
        match self.queues {
            Queues::Shared => queues::Queues::Shared,
            Queues::Static => queues::Queues::Static,
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
}
