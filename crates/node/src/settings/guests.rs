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
    /// All loops serve each. Not the default yet: in the real world a kick has been seen to be lost.
    Shared,
    /// Each belongs to one loop.
    #[default]
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
    fn a_queue_belongs_to_one_loop_if_nothing_else_is_said() {
        assert_eq!(VhostSettings::default().resolve(), queues::Queues::Static);
        assert_eq!(VhostSettings { queues: Queues::Shared }.resolve(), queues::Queues::Shared);
    }
}
