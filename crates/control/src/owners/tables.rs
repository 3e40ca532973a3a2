//! What a manager of several servers must not forget: who has which segment, and which volumes there are.
//!
//! Both are in one log, because a volume comes into being together with its segments, and goes with them: what is decided
//! together is durable together. The newest attachment of a volume is the owners' to know ([`Tables::owners`]), who compare
//! generations; rows of the volume table have none here.

use base::{Result, VolumeId};
use policies::ownership;

use crate::table::{self, VolumeTable};

/// One step in the life of the tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Of the table of owners.
    Owners(ownership::Change),
    /// Of the volume table.
    Volumes(table::Change),
    /// Ids of volumes below this one were given out.
    NextVolume(VolumeId),
}

impl From<ownership::Change> for Entry {
    fn from(change: ownership::Change) -> Entry {
        Entry::Owners(change)
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tables {
    /// Who has which segment.
    pub owners: ownership::Table,
    /// Which volumes there are.
    pub volumes: VolumeTable,
}

impl Tables {
    /// Checks that `entry` can follow on these tables.
    ///
    /// # Errors
    /// Those of the tables.
    pub fn check(&self, entry: &Entry) -> Result<()> {
        match entry {
            Entry::Owners(change) => self.owners.check(change),
            Entry::Volumes(change) => self.volumes.check(change),
            Entry::NextVolume(_) => Ok(()),
        }
    }

    /// Lets something happen that [`Tables::check`] accepts.
    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Owners(change) => self.owners.apply(change),
            Entry::Volumes(change) => self.volumes.apply(change.clone()),
            Entry::NextVolume(next) => self.volumes.raise_next_id(*next),
        }
    }

    /// A short list that makes these tables out of empty ones: a checkpoint. It ends with the floor of the owners.
    pub fn history(&self) -> Vec<Entry> {
        let volumes = self.volumes.history().into_iter().map(Entry::Volumes);
        let next = std::iter::once(Entry::NextVolume(self.volumes.next_id()));
        volumes.chain(next).chain(self.owners.history().into_iter().map(Entry::Owners)).collect()
    }
}
