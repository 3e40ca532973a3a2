//! The volume table: which volumes exist, as a state machine that a log of changes rebuilds.
//!
//! A **row** is a volume. A **change** is planned against the table (which may refuse it), written to the log, and
//! only then applied; applying a change that was planned never fails, and replaying the same changes gives the same
//! table. [`format`] is what they look like in bytes, [`log`] keeps them in a file.
//!
//! A volume whose name begins with a dot is *hidden*: nobody can ask for it by name. One has the logs of another volume
//! (DiffForward; `agent::forwarding`).
//!
//! Invariants: an id is given out once, also when a name is created again; at most one *active* volume has a given
//! name (volumes that are being deleted have lost theirs); a generation only grows.

use std::collections::{BTreeMap, BTreeSet};

use base::levels::Levels;
use base::limits::{DATA_SECTOR_DEFAULT, SEGMENT_SIZE, VOLUMES_MAX};
use base::seeded::is_on;
use base::units::format_size;
use base::{Error, Generation, Result, VolumeId};
use wire::{Forwarding, VolumeDescriptor, logs_name};

use crate::levels::VolumeChange;
use crate::rules;

pub mod format;
pub mod log;
#[cfg(test)]
mod log_tests;
pub mod recovery;

/// Where a volume stands in its life. The numbers are on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum VolumeState {
    /// It can be attached.
    Active = 1,
    /// Its deletion was decided; its segments are being dropped.
    Deleting = 2,
}

/// What the table knows of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its id, never used again.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its stripe unit in bytes.
    pub data_sector_bytes: u64,
    /// Whose it is: tells clients apart where each has a cap, and means nothing else to Levee.
    pub owner: String,
    /// When it was created, in milliseconds since 1970: a label.
    pub created_wall_ms: u64,
    /// Its newest attachment; zero where it was never attached.
    pub generation: Generation,
    /// Where it stands in its life.
    pub state: VolumeState,
    /// What it was promised, and the most that it gets.
    pub levels: Levels,
    /// Whether its bursts are spread over several servers.
    pub forwarding: Forwarding,
}

impl Row {
    /// Whether it is for something that people do not see.
    pub fn is_hidden(&self) -> bool {
        self.name.starts_with('.')
    }

    /// What agents and block servers need to know of it.
    pub fn descriptor(&self) -> VolumeDescriptor {
        VolumeDescriptor {
            data_sector_bytes: self.data_sector_bytes,
            generation: self.generation,
            owner: self.owner.clone(),
            levels: self.levels,
            forwarding: self.forwarding,
            ..VolumeDescriptor::new(self.id, self.name.as_str(), self.size)
        }
    }
}

fn too_many() -> Error {
    Error::full(format!("there are {VOLUMES_MAX} volumes already, the most that a store keeps"))
}

/// One step in the life of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A volume comes into being.
    Create(Row),
    /// A volume is attached under this generation.
    Attach {
        /// The volume.
        volume: VolumeId,
        /// The new, highest generation.
        generation: Generation,
    },
    /// A volume's deletion is decided: its name is free again.
    MarkDeleted(VolumeId),
    /// Nothing of a deleted volume is left.
    Forget(VolumeId),
    /// A volume is promised something else, or its bursts go elsewhere.
    Set {
        /// The volume.
        volume: VolumeId,
        /// What it is promised from now on.
        levels: Levels,
        /// Whether its bursts are spread from now on.
        forwarding: Forwarding,
    },
}

/// All volumes, and the ids that were ever given out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeTable {
    rows: BTreeMap<VolumeId, Row>,
    by_name: BTreeMap<String, VolumeId>,
    next_id: VolumeId,
}

impl Default for VolumeTable {
    fn default() -> Self {
        VolumeTable { rows: BTreeMap::new(), by_name: BTreeMap::new(), next_id: VolumeId(1) }
    }
}

impl VolumeTable {
    /// Every volume in the order of ids, those that are being deleted included.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    /// The id that the next volume gets.
    pub fn next_id(&self) -> VolumeId {
        self.next_id
    }

    /// The volumes that people see.
    pub fn shown(&self) -> impl Iterator<Item = &Row> {
        self.rows().filter(|row| row.state == VolumeState::Active && !row.is_hidden())
    }

    /// The active volume that has the logs of a volume, if it has any.
    pub fn logs_of(&self, volume: VolumeId) -> Option<&Row> {
        self.by_name.get(&logs_name(volume)).and_then(|id| self.rows.get(id))
    }

    /// The active volume called `name`, of those that people see.
    ///
    /// # Errors
    /// `NotFound`, with the nearest name.
    pub fn find(&self, name: &str) -> Result<&Row> {
        let found = self.by_name.get(name).and_then(|id| self.rows.get(id));
        if let Some(row) = found.filter(|row| !row.is_hidden()) {
            return Ok(row);
        }
        let hint = rules::nearest(name, self.shown().map(|row| row.name.as_str()));
        let hint = hint.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
        Err(Error::not_found(format!("there is no volume {name:?}{hint}")))
    }

    /// The active volume with this id.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn get(&self, volume: VolumeId) -> Result<&Row> {
        let found = self.rows.get(&volume).filter(|row| row.state == VolumeState::Active);
        found.ok_or_else(|| Error::not_found(format!("there is no volume {volume}")))
    }

    /// The volume with this id, also one that is being deleted.
    pub fn row(&self, volume: VolumeId) -> Option<&Row> {
        self.rows.get(&volume)
    }

    /// Decides on a new volume; the id of `wanted` is set here.
    ///
    /// # Errors
    /// `Invalid` for a name, size, data sector, owner or levels against the rules, `Conflict` for a name that exists, `Full`
    /// for too many volumes.
    pub fn plan_create(&self, wanted: Row) -> Result<Change> {
        rules::check_name(&wanted.name)?;
        rules::check_size(wanted.size)?;
        rules::check_data_sector(wanted.data_sector_bytes)?;
        rules::check_owner(&wanted.owner)?;
        rules::check_levels(&wanted.levels)?;
        if let Ok(existing) = self.find(&wanted.name) {
            return Err(Error::conflict(format!(
                "there is a volume {:?} already, of {} ({} bytes); choose another name or delete it first",
                existing.name,
                format_size(existing.size),
                existing.size
            )));
        }
        if self.rows.len() >= VOLUMES_MAX {
            return Err(too_many());
        }
        let fresh = Row { id: self.next_id, generation: Generation(0), state: VolumeState::Active, ..wanted };
        Ok(Change::Create(fresh))
    }

    /// Decides on a hidden volume for the logs of a volume that has none.
    ///
    /// # Errors
    /// `NotFound`, `Full`.
    pub fn plan_create_logs(&self, volume: VolumeId, logs: u64, created_wall_ms: u64) -> Result<Change> {
        let owner = self.get(volume)?.owner.clone();
        if self.rows.len() >= VOLUMES_MAX {
            return Err(too_many());
        }
        Ok(Change::Create(Row {
            id: self.next_id,
            name: logs_name(volume),
            size: logs * SEGMENT_SIZE,
            data_sector_bytes: DATA_SECTOR_DEFAULT,
            owner,
            created_wall_ms,
            generation: Generation(0),
            state: VolumeState::Active,
            levels: Levels::default(),
            forwarding: Forwarding::Off,
        }))
    }

    /// Decides on a new attachment.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn plan_attach(&self, volume: VolumeId) -> Result<Change> {
        let row = self.get(volume)?;
        Ok(Change::Attach { volume, generation: Generation(row.generation.0 + 1) })
    }

    /// Decides on the deletion of an active volume.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn plan_delete(&self, volume: VolumeId) -> Result<Change> {
        self.get(volume).map(|row| Change::MarkDeleted(row.id))
    }

    /// Decides on what is to change of a volume.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for levels against the rules.
    pub fn plan_set(&self, name: &str, change: &VolumeChange) -> Result<Change> {
        let row = self.find(name)?;
        let levels = change.levels.over(row.levels);
        rules::check_levels(&levels)?;
        Ok(Change::Set { volume: row.id, levels, forwarding: change.forwarding.unwrap_or(row.forwarding) })
    }

    /// Takes an id out of use without a volume: the outcome of its creation is unknown.
    pub fn burn_id(&mut self) {
        self.next_id.0 += 1;
    }

    /// Those of `volumes` that were never created as far as this table knows. Nothing can be stored of a volume before
    /// its creation is durable: where something is, the record of that was lost.
    pub fn never_created(&self, volumes: impl IntoIterator<Item = VolumeId>) -> BTreeSet<VolumeId> {
        volumes.into_iter().filter(|volume| *volume >= self.next_id).collect()
    }

    /// Checks that `change` can follow on this table: true of every planned change, and of every record of a log
    /// that is intact.
    ///
    /// # Errors
    /// `Corrupt`, with what does not fit.
    pub fn check(&self, change: &Change) -> Result<()> {
        let fits = match change {
            Change::Create(row) => {
                row.id >= self.next_id && row.state == VolumeState::Active && !self.by_name.contains_key(&row.name)
            }
            Change::Attach { volume, generation } => self.get(*volume).is_ok_and(|row| row.generation < *generation),
            Change::MarkDeleted(volume) => self.get(*volume).is_ok(),
            Change::Forget(volume) => self.rows.get(volume).is_some_and(|row| row.state == VolumeState::Deleting),
            Change::Set { volume, .. } => self.get(*volume).is_ok(),
        };
        match fits {
            true => Ok(()),
            false => Err(Error::corrupt(format!("the change {change:?} does not follow from the volume table"))),
        }
    }

    /// Lets a change happen that [`VolumeTable::check`] accepts.
    pub fn apply(&mut self, change: Change) {
        assert!(self.check(&change).is_ok(), "only planned changes are applied: {change:?}");
        match change {
            Change::Create(row) => {
                self.next_id = VolumeId(row.id.0 + 1);
                self.by_name.insert(row.name.clone(), row.id);
                self.rows.insert(row.id, row);
            }
            Change::Attach { volume, generation } => self.row_mut(volume).generation = generation,
            Change::MarkDeleted(volume) => {
                let row = self.row_mut(volume);
                row.state = VolumeState::Deleting;
                let name = row.name.clone();
                self.by_name.remove(&name);
            }
            Change::Forget(volume) => {
                self.rows.remove(&volume);
                if is_on("volume-id-reused") {
                    self.next_id = VolumeId(self.rows.keys().next_back().map_or(1, |last| last.0 + 1));
                }
            }
            Change::Set { volume, levels, forwarding } => {
                let row = self.row_mut(volume);
                (row.levels, row.forwarding) = (levels, forwarding);
            }
        }
    }

    /// Takes the ids below `next` out of use.
    pub fn raise_next_id(&mut self, next: VolumeId) {
        self.next_id = self.next_id.max(next);
    }

    /// A short list of changes that makes this table out of an empty one, but for the id that is next.
    pub fn history(&self) -> Vec<Change> {
        let of_row = |row: &Row| {
            let created = Change::Create(Row { state: VolumeState::Active, ..row.clone() });
            let deleted = (row.state == VolumeState::Deleting).then_some(Change::MarkDeleted(row.id));
            std::iter::once(created).chain(deleted)
        };
        self.rows.values().flat_map(of_row).collect()
    }

    fn row_mut(&mut self, volume: VolumeId) -> &mut Row {
        self.rows.get_mut(&volume).expect("a change that was checked names a volume that exists")
    }

    /// A table as a checkpoint lists it.
    ///
    /// # Errors
    /// `Corrupt` where ids or names repeat, or an id was not given out yet.
    pub fn from_rows(next_id: VolumeId, rows: impl IntoIterator<Item = Row>) -> Result<VolumeTable> {
        let mut table = VolumeTable { next_id, ..VolumeTable::default() };
        for row in rows {
            let wrong = |what| Err(Error::corrupt(format!("the checkpoint lists {} with {what}", row.id)));
            if row.id == VolumeId(0) || row.id >= next_id {
                return wrong("an id that was not given out");
            }
            let is_active = row.state == VolumeState::Active;
            if is_active && table.by_name.insert(row.name.clone(), row.id).is_some() {
                return wrong("the name of another volume");
            }
            if table.rows.contains_key(&row.id) {
                return wrong("the id of another volume");
            }
            table.rows.insert(row.id, row);
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use base::levels::Rate;
    use base::{ErrorKind, GIB, KIB};

    use super::*;
    use crate::levels::LevelsChange;

    fn row(name: &str, size: u64) -> Row {
        Row {
            id: VolumeId(0),
            name: name.into(),
            size,
            data_sector_bytes: 128 * KIB,
            owner: String::new(),
            created_wall_ms: 0,
            generation: Generation(0),
            state: VolumeState::Active,
            levels: Levels::default(),
            forwarding: Forwarding::default(),
        }
    }

    fn create(table: &mut VolumeTable, name: &str) -> VolumeId {
        let change = table.plan_create(row(name, GIB)).unwrap();
        table.apply(change);
        table.find(name).unwrap().id
    }

    #[test]
    fn an_id_is_never_used_again() {
        let mut table = VolumeTable::default();
        let first = create(&mut table, "a");
        table.apply(table.plan_delete(first).unwrap());
        let second = create(&mut table, "a");
        assert!(second > first, "the name is free again, the id is not");
        table.apply(Change::Forget(first));
        table.burn_id();
        assert_eq!(create(&mut table, "b"), VolumeId(4));
    }

    #[test]
    fn refusals_say_what_to_do() {
        let mut table = VolumeTable::default();
        create(&mut table, "database");
        let duplicate = table.plan_create(row("database", GIB)).unwrap_err();
        assert_eq!(duplicate.kind, ErrorKind::Conflict);
        assert!(duplicate.message.contains("1 GiB"), "{duplicate}");
        let missing = table.find("databose").unwrap_err();
        assert_eq!(missing.message, r#"there is no volume "databose"; did you mean "database"?"#);
        assert_eq!(table.plan_create(row("a b", GIB)).unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(table.plan_create(row("small", 512)).unwrap_err().kind, ErrorKind::Invalid);
    }

    #[test]
    fn a_volume_that_is_being_deleted_cannot_be_attached() {
        let mut table = VolumeTable::default();
        let volume = create(&mut table, "a");
        table.apply(table.plan_attach(volume).unwrap());
        assert_eq!(table.get(volume).unwrap().generation, Generation(1));
        table.apply(table.plan_delete(volume).unwrap());
        assert_eq!(table.plan_attach(volume).unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(table.plan_delete(volume).unwrap_err().kind, ErrorKind::NotFound);
        assert!(table.check(&Change::MarkDeleted(volume)).is_err());
    }

    #[test]
    fn what_is_set_changes_and_nothing_else_does() {
        let mut table = VolumeTable::default();
        let volume = create(&mut table, "a");
        let before = table.get(volume).unwrap().clone();
        let iops = |base| Rate { iops: base, ..Rate::default() };
        let change = |base, burst| {
            let levels = LevelsChange { base_iops: base, burst_iops: burst, ..LevelsChange::default() };
            VolumeChange::from(levels)
        };
        table.apply(table.plan_set("a", &change(Some(100), Some(200))).unwrap());
        let after = table.get(volume).unwrap().clone();
        assert_eq!(after.levels, Levels { base: iops(100), burst: iops(200), ..Levels::default() });
        assert_eq!((after.descriptor().levels, after.descriptor().owner.as_str()), (after.levels, ""));
        assert_eq!(Row { levels: before.levels, ..after.clone() }, before);
        let spread = VolumeChange { forwarding: Some(Forwarding::On), ..VolumeChange::default() };
        table.apply(table.plan_set("a", &spread).unwrap());
        let spread = table.get(volume).unwrap();
        assert_eq!(spread.descriptor().forwarding, Forwarding::On);
        assert_eq!(Row { forwarding: Forwarding::Default, ..spread.clone() }, after);
        // Rules look at the whole, not at what was changed.
        assert_eq!(table.plan_set("a", &change(None, Some(99))).unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(table.plan_set("b", &change(Some(1), None)).unwrap_err().kind, ErrorKind::NotFound);
        let bad = Row { levels: Levels { base: iops(200_001), ..Levels::default() }, ..row("b", GIB) };
        assert_eq!(table.plan_create(bad).unwrap_err().kind, ErrorKind::Invalid);
        let late = table.plan_set("a", &VolumeChange::default()).unwrap();
        table.apply(table.plan_delete(volume).unwrap());
        assert!(table.check(&late).is_err(), "a volume that is being deleted has none");
    }

    #[test]
    fn a_checkpoint_that_contradicts_itself_is_refused() {
        let listed = |id, name: &str| Row { id: VolumeId(id), ..row(name, GIB) };
        assert!(VolumeTable::from_rows(VolumeId(3), [listed(1, "a"), listed(2, "b")]).is_ok());
        assert!(VolumeTable::from_rows(VolumeId(2), [listed(2, "b")]).is_err());
        assert!(VolumeTable::from_rows(VolumeId(9), [listed(1, "a"), listed(2, "a")]).is_err());
        assert!(VolumeTable::from_rows(VolumeId(9), [listed(1, "a"), listed(1, "b")]).is_err());
    }
}
