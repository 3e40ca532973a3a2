//! Volumes whose segments have owners: made, attached and deleted.
//!
//! Every change is one of the volume table and of the table of owners at once. What engines have to do because of it
//! follows from the tables, and goes on whoever is in charge; here somebody waits for it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use base::limits::SEGMENTS_PER_GROUP;
use base::seeded::is_on;
use base::{Error, ErrorKind, Generation, Instant, Map, Result, SegmentId, VolumeId};
use policies::ownership::Table;
use runtime::sync::first;
use wire::{LocalBoxFuture, VolumeDescriptor, VolumeDirectory};

use super::{ClusterManager, Users, described};
use crate::levels::VolumeChange;
use crate::owners::keeper::Desk;
use crate::service::{CreateVolume, VolumeView};
use crate::table::{Change, Row};

/// How long a deletion is waited for before it is said to go on in the background.
const DELETION_PATIENCE: Duration = Duration::from_secs(5);
/// How long agents may take to say who uses a volume, or to let go of it.
const AGENT_PATIENCE: Duration = Duration::from_secs(2);
/// Logs of a volume where there are more servers than segments in a group.
const LOGS_MAX: u64 = 2 * SEGMENTS_PER_GROUP;

impl ClusterManager {
    /// Decides something about volumes, and returns when that is durable.
    async fn decide<T>(&self, decide: impl FnOnce(&mut Desk, Instant, u64) -> Result<T>) -> Result<T> {
        self.look(|_, _| ())?;
        self.keeper.decide_both(decide).await?
    }

    /// Makes a volume; says whether it existed before.
    ///
    /// # Errors
    /// `Invalid`, `Conflict` for a name that exists (with another size, if an existing one is allowed), `Full`, `Io`;
    /// `Moved`: this manager is not in charge.
    pub(super) async fn create(&self, wanted: CreateVolume) -> Result<(VolumeView, bool)> {
        let fresh = wanted.row(self.handle.wall_ms());
        let decided = self.decide(move |desk, now, random| {
            if wanted.allow_existing
                && let Some(row) = wanted.existing(desk.volumes())?
            {
                return Ok((row.clone(), true));
            }
            let Change::Create(row) = desk.volumes().plan_create(fresh)? else {
                return Err(Error::internal("a creation became another change"));
            };
            desk.owners.create(now, random, row.id, row.descriptor().segments)?;
            desk.change(Change::Create(row.clone()));
            Ok((row, false))
        });
        let (row, existed) = decided.await?;
        Ok((VolumeView { row, clients: 0, nbd: self.listeners().await }, existed))
    }

    /// One volume.
    ///
    /// # Errors
    /// `NotFound`, `Moved`.
    pub(super) async fn show(&self, name: &str) -> Result<VolumeView> {
        let row = self.decide(|desk, _, _| desk.volumes().find(name).map(|row| as_shown(desk, row))).await?;
        Ok(self.view(row).await)
    }

    async fn view(&self, row: Row) -> VolumeView {
        VolumeView { clients: self.users(row.id).await.clients, row, nbd: self.listeners().await }
    }

    /// What the table has of every volume.
    ///
    /// # Errors
    /// `Moved`.
    pub(super) async fn rows(&self) -> Result<Vec<Row>> {
        self.decide(|desk, _, _| {
            let rows = desk.volumes().rows().filter(|row| !row.is_hidden());
            Ok(rows.map(|row| as_shown(desk, row)).collect())
        })
        .await
    }

    /// Promises a volume something else, or has its bursts go elsewhere.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for levels against the rules, `Io`, `Moved`.
    pub(super) async fn set(&self, name: &str, change: VolumeChange) -> Result<VolumeView> {
        let planned = self.decide(|desk, _, _| {
            let planned = desk.volumes().plan_set(name, &change)?;
            desk.change(planned);
            desk.volumes().find(name).map(|row| as_shown(desk, row))
        });
        let row = planned.await?;
        self.engines.set_levels(&row.descriptor());
        self.others.agents.learn_levels(&row.descriptor());
        Ok(self.view(row).await)
    }

    /// Deletes a volume; says whether its space was given back already (otherwise that goes on in the background).
    ///
    /// # Errors
    /// `NotFound`, `Conflict` for a volume with clients, or that may have some, without `force`; `Io`, `Moved`.
    pub(super) async fn delete(&self, name: &str, force: bool) -> Result<(VolumeView, bool)> {
        let row = self.decide(|desk, _, _| desk.volumes().find(name).map(|row| as_shown(desk, row))).await?;
        let (volume, users) = (row.id, self.users(row.id).await);
        if !force {
            check_unused(name, users)?;
        }
        let decided = self.decide(|desk, now, random| {
            // Its logs go with it: nobody looks for what is in them any more.
            let logs = desk.volumes().logs_of(volume).map(|row| row.id);
            let all: Vec<VolumeId> = [volume].into_iter().chain(logs).collect();
            for &volume in &all {
                let planned = desk.volumes().plan_delete(volume)?;
                desk.owners.drop_volume(now, random, volume)?;
                desk.change(planned);
            }
            Ok(all)
        });
        let all = decided.await?;
        let letting_go = self.others.agents.release(volume);
        let _ = first(letting_go, self.handle.sleep(AGENT_PATIENCE)).await;
        let what = format!("the deletion of {name:?}");
        let gone =
            self.wait(&what, |owners, _| all.iter().all(|volume| owners.volume(*volume).is_none()).then_some(()));
        let is_done = first(gone, self.handle.sleep(DELETION_PATIENCE)).await.is_ok_and(|gone| gone.is_ok());
        Ok((VolumeView { clients: users.clients, row, nbd: self.listeners().await }, is_done))
    }

    /// Who uses a volume, as far as agents are in touch.
    async fn users(&self, volume: VolumeId) -> Users {
        self.others.agents.users(volume, AGENT_PATIENCE).await
    }

    /// A new attachment, which the owners of all segments have recorded.
    async fn attach_volume(&self, volume: VolumeId) -> Result<VolumeDescriptor> {
        let decided = self.decide(|desk, now, random| {
            let descriptor = desk.volumes().get(volume).map(|row| described(desk.owners.table(), row))?;
            let generation = Generation(descriptor.generation.0 + 1);
            desk.owners.attach(now, random, volume, generation)?;
            Ok(VolumeDescriptor { generation, ..descriptor })
        });
        self.recorded(decided.await?).await
    }

    /// A new attachment of the logs of a volume that is attached under `generation`.
    ///
    /// Whoever lost the connection over which it asked asks again while the first question may still wait for the logs to
    /// be made. The last one that came is answered: had an earlier one its attachment after that, nobody would use it and
    /// the one in use would be fenced.
    ///
    /// Logs go with their volume. Who asks meanwhile is not told that there are none: it would serve what lies beneath what is in
    /// them (rule 54).
    async fn attach_logs(&self, volume: VolumeId, generation: Generation, make: bool) -> Result<VolumeDescriptor> {
        let taking = self.takings.begin(volume);
        if make {
            self.make_logs(volume, generation).await?;
        }
        let decided = self.decide(|desk, now, random| {
            check_newest(desk, volume, generation)?;
            if !taking.is_last() {
                return Err(Error::fenced(format!("the logs of volume {volume} were asked for again")));
            }
            let row = desk.volumes().logs_of(volume);
            let row = row.ok_or_else(|| Error::not_found(format!("volume {volume} has no logs")))?;
            let descriptor = described(desk.owners.table(), row);
            let generation = Generation(descriptor.generation.0 + 1);
            desk.owners.attach(now, random, descriptor.id, generation)?;
            Ok(VolumeDescriptor { generation, ..descriptor })
        });
        self.recorded(decided.await?).await.map_err(|error| match error.kind {
            ErrorKind::NotFound => gone_with_logs(volume),
            _ => error,
        })
    }

    /// Makes the logs of a volume, if it has none, and returns when they have owners.
    async fn make_logs(&self, volume: VolumeId, generation: Generation) -> Result<()> {
        let wall_ms = self.handle.wall_ms();
        let decided = self.decide(move |desk, now, random| {
            check_newest(desk, volume, generation)?;
            if desk.volumes().logs_of(volume).is_some() {
                return Ok(None);
            }
            let servers: BTreeSet<&str> = desk.owners.table().living().map(|(_, server)| server).collect();
            if servers.len() < 2 {
                let message = format!("volume {volume} gets no logs: there is no server to spread its bursts to");
                return Err(Error::not_found(message));
            }
            let logs = if servers.len() > SEGMENTS_PER_GROUP as usize { LOGS_MAX } else { SEGMENTS_PER_GROUP };
            let Change::Create(row) = desk.volumes().plan_create_logs(volume, logs, wall_ms)? else {
                return Err(Error::internal("a creation became another change"));
            };
            let made = row.descriptor();
            desk.owners.create(now, random, made.id, made.segments)?;
            desk.change(Change::Create(row));
            Ok(Some(made))
        });
        let Some(made) = decided.await? else { return Ok(()) };
        let segments = (0..made.segments).map(|index| SegmentId { volume: made.id, index });
        let has_owner = |owners: &Table, segment| owners.segment(segment).is_none_or(|row| row.holder.is_some());
        let what = format!("making logs of volume {volume}");
        self.wait(&what, |owners, _| segments.clone().all(|segment| has_owner(owners, segment)).then_some(())).await
    }

    /// Returns when the owners of all segments have recorded an attachment.
    async fn recorded(&self, descriptor: VolumeDescriptor) -> Result<VolumeDescriptor> {
        let volume = descriptor.id;
        let what = format!("attaching {:?}", descriptor.name);
        let recorded = self.wait(&what, |owners, _| match owners.volume(volume).filter(|row| !row.is_dropping) {
            None => Some(Err(Error::not_found(format!("there is no volume {volume}")))),
            // A later attachment may have come meanwhile: this one keeps its own generation, and is fenced.
            Some(row) => (row.attached >= descriptor.generation).then_some(Ok(())),
        });
        recorded.await??;
        Ok(descriptor)
    }
}

/// Questions for logs, of which the last one for each volume counts.
#[derive(Default)]
pub(super) struct Takings {
    begun: Cell<u64>,
    last: RefCell<Map<VolumeId, u64>>,
}

struct Taking<'a> {
    all: &'a Takings,
    volume: VolumeId,
    number: u64,
}

impl Takings {
    fn begin(&self, volume: VolumeId) -> Taking<'_> {
        let number = self.begun.get() + 1;
        self.begun.set(number);
        self.last.borrow_mut().insert(volume, number);
        Taking { all: self, volume, number }
    }
}

impl Taking<'_> {
    fn is_last(&self) -> bool {
        self.all.last.borrow().get(&self.volume) == Some(&self.number)
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        if self.is_last() {
            self.all.last.borrow_mut().remove(&self.volume);
        }
    }
}

/// # Errors
/// `Conflict`: the volume has clients, or nobody knows whether it has.
fn check_unused(name: &str, users: Users) -> Result<()> {
    let instead = "disconnect, or delete it with --force (force=true in the API)";
    match users {
        Users { clients: 0, silent_agents: 0 } => Ok(()),
        Users { clients: 0, silent_agents } => {
            let noun = if silent_agents == 1 { "agent" } else { "agents" };
            Err(Error::conflict(format!(
                "the volume {name:?} may be in use: {silent_agents} {noun} did not say whether clients of it are there. \
                 Try again; {instead}"
            )))
        }
        Users { clients, .. } => {
            let noun = if clients == 1 { "client" } else { "clients" };
            Err(Error::conflict(format!("the volume {name:?} is in use by {clients} {noun}; {instead}")))
        }
    }
}

/// Whoever is attached no more must not append what the owners of the volume would refuse (rule 54).
///
/// # Errors
/// `Fenced`: there is a newer attachment, or the volume is gone.
fn check_newest(desk: &Desk, volume: VolumeId, generation: Generation) -> Result<()> {
    let row = desk.volumes().get(volume).map_err(|_| gone_with_logs(volume))?;
    let newest = described(desk.owners.table(), row).generation;
    match newest == generation || is_on("logs-of-an-older-attachment") {
        true => Ok(()),
        false => Err(Error::fenced(format!("volume {volume} was attached under {newest}, after {generation}"))),
    }
}

fn gone_with_logs(volume: VolumeId) -> Error {
    Error::fenced(format!("volume {volume} was deleted, and its logs with it"))
}

/// A volume with its newest attachment that all owners have recorded.
fn as_recorded(owners: &Table, row: &Row) -> VolumeDescriptor {
    let generation = owners.volume(row.id).map_or(row.generation, |volume| volume.attached);
    VolumeDescriptor { generation, ..row.descriptor() }
}

/// A row with the attachment that the owners know.
fn as_shown(desk: &Desk, row: &Row) -> Row {
    Row { generation: described(desk.owners.table(), row).generation, ..row.clone() }
}

/// Who asks is told of the newest attachment that owners have recorded, which is durable: an agent compares it with its own. One
/// that was decided, and then lost with its manager, would be newer than those that come after it.
impl VolumeDirectory for ClusterManager {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        let found = self.look(|owners, volumes| volumes.find(name).map(|row| as_recorded(owners, row)));
        Box::pin(std::future::ready(found.and_then(|found| found)))
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        let found = self.look(|owners, volumes| volumes.get(volume).map(|row| as_recorded(owners, row)));
        Box::pin(std::future::ready(found.and_then(|found| found)))
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        let names = self.look(|_, volumes| {
            let mut names: Vec<String> = volumes.shown().map(|row| row.name.clone()).collect();
            names.sort();
            names
        });
        Box::pin(std::future::ready(names))
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(self.attach_volume(volume))
    }

    fn detach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        // Only generations are kept: who is attached at this moment is known to the agents and dies with them.
        Box::pin(std::future::ready(Ok(())))
    }

    fn take_logs(
        &self,
        volume: VolumeId,
        generation: Generation,
        make: bool,
    ) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(self.attach_logs(volume, generation, make))
    }
}
