//! The manager: owns the volume table and answers for it.
//!
//! Intuition: one state machine on one loop. A request is planned against the table, its change is made durable, then
//! it is applied; one change at a time, in a task of its own, so that a caller who stops waiting stops nothing.
//!
//! Flow of a deletion, which survives a crash between any two steps: mark (durable: the name is free, nobody can
//! attach) -> clients are let go -> the block server drops the segments (durable) -> forget (durable). What a crash or
//! an error interrupts is taken up by [`Manager::resume`] or by a retry in the background.
//!
//! Invariants: an attachment's generation and a volume's levels are durable before anybody hears of them; an answer
//! follows durability; a volume that may be deleted, because nobody knows what became of the mark, has no clients.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::levels::Levels;
use base::limits::{API_CALLS_MAX, DATA_SECTOR_DEFAULT};
use base::seeded::is_on;
use base::{Error, ErrorKind, Generation, Result, VolumeId};
use files::{Redundancy, Store};
use runtime::sync::{Budget, oneshot};
use runtime::{Class, Handle, Task};
use wire::observe::{Detail, Explained, Snapshot};
use wire::{
    Device, DeviceHost, Forwarding, LocalBoxFuture, Observer, VolumeDescriptor, VolumeDirectory, VolumeOwner,
    VolumeUser,
};

use crate::levels::{LevelsChange, VolumeChange, check_spread_on_one_machine};
use crate::table::log::TableLog;
use crate::table::{Change, Row, VolumeState, VolumeTable};

#[cfg(test)]
mod tests;

/// How long the first retry of an interrupted deletion waits; each later one waits twice as long.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest wait between retries.
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// Settings of a manager.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How the table survives the loss of a directory.
    pub redundancy: Redundancy,
    /// Whether to go on without records that were acknowledged and have rotted.
    pub accept_data_loss: bool,
}

/// A volume that somebody wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreateVolume {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its stripe unit in bytes.
    pub data_sector_bytes: u64,
    /// Whose it is.
    pub owner: String,
    /// Whether a volume of that name and size may exist already; its levels stay as they are.
    pub allow_existing: bool,
    /// Its levels.
    pub levels: LevelsChange,
    /// Whether its bursts are spread.
    pub forwarding: Forwarding,
}

impl CreateVolume {
    /// A volume with the defaults.
    pub fn new(name: impl Into<String>, size: u64) -> Self {
        CreateVolume {
            name: name.into(),
            size,
            data_sector_bytes: DATA_SECTOR_DEFAULT,
            owner: String::new(),
            allow_existing: false,
            levels: LevelsChange::default(),
            forwarding: Forwarding::default(),
        }
    }

    /// The volume of that name, if there is one.
    ///
    /// # Errors
    /// `Conflict`: it has another size.
    pub(crate) fn existing<'a>(&self, volumes: &'a VolumeTable) -> Result<Option<&'a Row>> {
        let Ok(existing) = volumes.find(&self.name) else { return Ok(None) };
        match existing.size == self.size {
            true => Ok(Some(existing)),
            false => Err(Error::conflict(format!(
                "there is a volume {:?} already, of {} bytes instead of {}; choose another name, its size, or delete \
                 it first",
                self.name, existing.size, self.size
            ))),
        }
    }

    /// Its row, before it has an id.
    pub(crate) fn row(&self, created_wall_ms: u64) -> Row {
        Row {
            id: VolumeId(0),
            name: self.name.clone(),
            size: self.size,
            data_sector_bytes: self.data_sector_bytes,
            owner: self.owner.clone(),
            created_wall_ms,
            generation: Generation(0),
            state: VolumeState::Active,
            levels: self.levels.over(Levels::default()),
            forwarding: self.forwarding,
        }
    }
}

/// A volume as it is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeView {
    /// What the table says.
    pub row: Row,
    /// Clients that are connected now.
    pub clients: usize,
    /// Where clients attach it besides the listeners of this process: URIs without a volume.
    pub nbd: Arc<[String]>,
}

impl VolumeView {
    /// By name, those that are being deleted last.
    pub(crate) fn sort(views: &mut [VolumeView]) {
        views.sort_by(|a, b| {
            (a.row.state as u8, &a.row.name, a.row.id).cmp(&(b.row.state as u8, &b.row.name, b.row.id))
        });
    }
}

/// What can be asked of a manager.
#[derive(Clone, Debug)]
pub enum Request {
    /// Makes a volume: [`Reply::Created`].
    Create(CreateVolume),
    /// Every volume: [`Reply::Volumes`].
    List,
    /// One volume by name: [`Reply::Volume`].
    Show(String),
    /// Removes a volume: [`Reply::Deleted`].
    Delete {
        /// Its name.
        name: String,
        /// Whether clients may lose it.
        force: bool,
    },
    /// Changes what a volume is promised, or where its bursts go: [`Reply::Volume`].
    Set {
        /// Its name.
        name: String,
        /// What changes.
        change: VolumeChange,
    },
    /// Why I/O of a volume waits: [`Reply::Explained`].
    Explain(String),
    /// The state of everything: [`Reply::Snapshot`].
    Observe,
    /// The state of everything, with every volume: [`Reply::Status`].
    Status,
    /// Looks whether everything is still as it was written, from now on: [`Reply::Snapshot`].
    Scrub,
    /// A server is to own nothing, or may again: [`Reply::Done`].
    Drain {
        /// Its name.
        server: String,
        /// Whether it is to own nothing.
        is_drained: bool,
    },
    /// A segment is to move: [`Reply::Done`].
    MoveSegment {
        /// The name of its volume.
        volume: String,
        /// Which one of it.
        index: u32,
        /// The name of a server; wherever there is room without one.
        to: Option<String>,
    },
    /// The disks of virtual machines that this process serves: [`Reply::Devices`].
    Devices,
    /// Serves a volume as such a disk: [`Reply::Devices`].
    AttachDevice {
        /// The name of the volume.
        volume: String,
        /// Where hypervisors connect.
        path: PathBuf,
    },
    /// Ends that: [`Reply::Devices`].
    DetachDevice {
        /// Where hypervisors connected.
        path: PathBuf,
    },
    /// Who knows all this, of several managers: [`Reply::InCharge`].
    InCharge,
    /// Whether the loop turns: [`Reply::Healthy`].
    Health,
}

/// Which of several managers is in charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InCharge {
    /// The one that was asked.
    Here,
    /// The one whose API is at this address.
    At(std::net::SocketAddr),
    /// Nobody, as far as is known.
    Nobody,
}

/// What a manager answers.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The volume exists, and whether it did before.
    Created(VolumeView, bool),
    /// One volume.
    Volume(VolumeView),
    /// All volumes by name, those that are being deleted last.
    Volumes(Vec<VolumeView>),
    /// The volume is deleted, and whether its space was given back already.
    Deleted(VolumeView, bool),
    /// A volume, and why its I/O waits.
    Explained(VolumeView, Box<Explained>),
    /// The state of everything.
    Snapshot(Box<Snapshot>),
    /// The state of everything, and all volumes as [`Reply::Volumes`].
    Status(Box<Snapshot>, Vec<VolumeView>),
    /// The disks of virtual machines, as they are now.
    Devices(Vec<Device>),
    /// Who is in charge.
    InCharge(InCharge),
    /// It was decided, and will come about.
    Done,
    /// The loop turns, and the store is open.
    Healthy,
}

/// A request on its way from another thread, and where the answer goes.
pub struct Call {
    /// What is asked.
    pub request: Request,
    /// Where the answer goes; nobody may be waiting any more.
    pub reply: futures_channel::oneshot::Sender<Result<Reply>>,
}

/// Answers the calls of a mailbox until its senders are gone: a bounded number at a time, the others wait there.
pub(crate) fn serve_calls(
    handle: &Handle,
    calls: async_channel::Receiver<Call>,
    answer: impl Fn(Request) -> LocalBoxFuture<'static, Result<Reply>> + 'static,
) -> Task<()> {
    let spawner = handle.clone();
    handle.spawn(Class::Io, "control calls", async move {
        let in_flight = Budget::new(API_CALLS_MAX as u64);
        while let Ok(call) = calls.recv().await {
            let permit = in_flight.take(1).await;
            let answer = answer(call.request);
            let answering = async move {
                let _ = call.reply.send(answer.await);
                drop(permit);
            };
            spawner.spawn(Class::Io, "control call", answering).detach();
        }
    })
}

/// The manager of one store. Clones share it.
#[derive(Clone)]
pub struct Manager(Rc<Inner>);

/// What [`Manager::connect`] has introduced to each other.
#[must_use = "dropping it parts them"]
pub struct Connection(Manager);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.part();
    }
}

struct Inner {
    handle: Handle,
    table: RefCell<VolumeTable>,
    /// Taken out by the one task that holds the permit of `turn`.
    log: RefCell<Option<TableLog>>,
    turn: Budget,
    owner: RefCell<Option<Rc<dyn VolumeOwner>>>,
    user: RefCell<Option<Rc<dyn VolumeUser>>>,
    observer: RefCell<Option<Rc<dyn Observer>>>,
    devices: RefCell<Option<Rc<dyn DeviceHost>>>,
    closing: Cell<bool>,
    /// Gives the table a copy in directories that come.
    renewing: RefCell<Option<Task<()>>>,
}

impl Manager {
    /// Opens the volume table of `store`. Comes before everything else that makes files there.
    ///
    /// # Errors
    /// `Corrupt` where the table has lost an acknowledged record, `Io`, `Full`.
    pub async fn open(handle: &Handle, store: &Store, options: Options) -> Result<Manager> {
        let (recovered, log) = TableLog::open(store, options.redundancy, options.accept_data_loss).await?;
        if recovered.lost_records > 0 {
            tracing::warn!(records = recovered.lost_records, "the volume table has lost records, as was accepted");
        }
        let manager = Manager(Rc::new(Inner {
            handle: handle.clone(),
            table: RefCell::new(recovered.table),
            log: RefCell::new(Some(log)),
            turn: Budget::new(1),
            owner: RefCell::default(),
            user: RefCell::default(),
            observer: RefCell::default(),
            devices: RefCell::default(),
            closing: Cell::new(false),
            renewing: RefCell::default(),
        }));
        let renewing = keep_copies(Rc::downgrade(&manager.0), store.clone());
        *manager.0.renewing.borrow_mut() = Some(handle.spawn(Class::Background, "volume table copies", renewing));
        Ok(manager)
    }

    /// Those of `volumes` that were never created as far as the table knows: [`VolumeTable::never_created`].
    pub fn never_created(&self, volumes: impl IntoIterator<Item = VolumeId>) -> BTreeSet<VolumeId> {
        self.0.table.borrow().never_created(volumes)
    }

    /// Takes the ids up to `last` out of use, durably. Comes before anybody asks for anything.
    ///
    /// # Errors
    /// `Full`, `Io`: the table takes no more changes.
    pub async fn burn_ids(&self, last: VolumeId) -> Result<()> {
        let mut table = self.0.table.borrow().clone();
        while table.next_id() <= last {
            table.burn_id();
        }
        let log = self.0.log.borrow_mut().take();
        let mut log = log.ok_or_else(|| Error::internal("the store is shutting down"))?;
        log.restate(&table).await?;
        *self.0.log.borrow_mut() = Some(log);
        *self.0.table.borrow_mut() = table;
        Ok(())
    }

    /// Introduces the side that owns segments, the side that uses volumes, and whom to ask for snapshots, until the
    /// connection is dropped: they know the manager, too, and would keep each other alive.
    pub fn connect(
        &self,
        owner: Rc<dyn VolumeOwner>,
        user: Rc<dyn VolumeUser>,
        observer: Option<Rc<dyn Observer>>,
    ) -> Connection {
        *self.0.owner.borrow_mut() = Some(owner);
        *self.0.user.borrow_mut() = Some(user);
        *self.0.observer.borrow_mut() = observer;
        self.tell_provisioned();
        Connection(self.clone())
    }

    /// Ends what [`Manager::connect`] began.
    fn part(&self) {
        let Inner { owner, user, observer, devices, .. } = &*self.0;
        let parted = (owner.take(), user.take(), observer.take(), devices.take());
        drop(parted);
    }

    /// Introduces who serves disks of virtual machines in this process, as [`Manager::connect`] does the others.
    pub fn connect_devices(&self, devices: Rc<dyn DeviceHost>) {
        *self.0.devices.borrow_mut() = Some(devices);
    }

    /// Has something done with the disks of virtual machines: how they are then.
    async fn with_devices(&self, act: impl AsyncFnOnce(&dyn DeviceHost) -> Result<()>) -> Result<Reply> {
        let devices = self.0.devices.borrow().clone().ok_or_else(starting_or_stopping)?;
        act(&*devices).await?;
        Ok(Reply::Devices(devices.devices()))
    }

    /// Takes up the deletions that an earlier life did not finish, in the background.
    pub fn resume(&self) {
        let unfinished: Vec<VolumeId> =
            self.0.table.borrow().rows().filter(|r| r.state == VolumeState::Deleting).map(|r| r.id).collect();
        for volume in unfinished {
            self.retry_deletion(volume);
        }
    }

    /// Answers one request.
    ///
    /// # Errors
    /// Those of each request; `Internal` while shutting down.
    pub async fn handle(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Create(wanted) => self.create(wanted).await.map(|(view, existed)| Reply::Created(view, existed)),
            Request::List => Ok(Reply::Volumes(self.volumes())),
            Request::Show(name) => self.show(&name).map(Reply::Volume),
            Request::Delete { name, force } => {
                self.delete(&name, force).await.map(|(view, is_done)| Reply::Deleted(view, is_done))
            }
            Request::Set { name, change } => self.set(&name, change).await.map(Reply::Volume),
            Request::Explain(name) => {
                self.explain(&name).await.map(|(view, explained)| Reply::Explained(view, Box::new(explained)))
            }
            Request::Health if self.0.closing.get() => Err(Error::retry("the store is shutting down")),
            Request::Health => Ok(Reply::Healthy),
            Request::InCharge => Ok(Reply::InCharge(InCharge::Here)),
            Request::Drain { .. } | Request::MoveSegment { .. } => {
                Err(Error::invalid("this store is one server, and its segments stay where they are"))
            }
            Request::Devices => self.with_devices(async |_| Ok(())).await,
            Request::AttachDevice { volume, path } => {
                self.with_devices(async |devices| devices.add_device(&volume, &path).await).await
            }
            Request::DetachDevice { path } => {
                self.with_devices(async |devices| devices.remove_device(&path).await).await
            }
            Request::Scrub => {
                self.begin_scrub().await?;
                self.observe().await.map(|snapshot| Reply::Snapshot(Box::new(snapshot)))
            }
            Request::Status => {
                let snapshot = self.observe().await?;
                Ok(Reply::Status(Box::new(snapshot), self.volumes()))
            }
            Request::Observe => self.observe().await.map(|snapshot| Reply::Snapshot(Box::new(snapshot))),
        }
    }

    /// Answers the calls of a mailbox until its senders are gone.
    pub fn serve(&self, calls: async_channel::Receiver<Call>) -> Task<()> {
        let this = self.clone();
        serve_calls(&self.0.handle, calls, move |request| {
            let manager = this.clone();
            Box::pin(async move { manager.handle(request).await })
        })
    }

    /// Makes a volume; says whether it existed before.
    ///
    /// # Errors
    /// `Invalid`, `Conflict` for a name that exists (with another size, if an existing one is allowed), `Full`, `Io`.
    pub async fn create(&self, wanted: CreateVolume) -> Result<(VolumeView, bool)> {
        check_spread_on_one_machine(Some(wanted.forwarding))?;
        let name = wanted.name.clone();
        if wanted.allow_existing
            && let Some(existing) = self.existing(&wanted)?
        {
            return Ok((existing, true));
        }
        let fresh = wanted.row(self.0.handle.wall_ms());
        match self.commit(move |table| table.plan_create(fresh)).await {
            Ok(_) => self.show(&name).map(|view| (view, false)),
            // Somebody else made it meanwhile.
            Err(error) if error.kind == ErrorKind::Conflict && wanted.allow_existing => match self.existing(&wanted)? {
                Some(existing) => Ok((existing, true)),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    fn existing(&self, wanted: &CreateVolume) -> Result<Option<VolumeView>> {
        let table = self.0.table.borrow();
        wanted.existing(&table).map(|row| row.map(|row| self.view(row)))
    }

    /// One volume.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn show(&self, name: &str) -> Result<VolumeView> {
        let table = self.0.table.borrow();
        table.find(name).map(|row| self.view(row))
    }

    /// Every volume by name, those that are being deleted last.
    pub fn volumes(&self) -> Vec<VolumeView> {
        let mut views: Vec<VolumeView> = self.0.table.borrow().rows().map(|row| self.view(row)).collect();
        VolumeView::sort(&mut views);
        views
    }

    fn view(&self, row: &Row) -> VolumeView {
        let clients = self.0.user.borrow().as_ref().map_or(0, |user| user.users(row.id));
        VolumeView { row: row.clone(), clients, nbd: Arc::default() }
    }

    /// Promises a volume something else. It holds from its next request on, also while the volume is attached.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for levels against the rules, `Full`, `Io`.
    pub async fn set(&self, name: &str, change: VolumeChange) -> Result<VolumeView> {
        check_spread_on_one_machine(change.forwarding)?;
        let wanted = name.to_owned();
        self.commit(move |table| table.plan_set(&wanted, &change)).await?;
        self.show(name)
    }

    /// Deletes a volume; says whether its space was given back already (otherwise that goes on in the background).
    ///
    /// # Errors
    /// `NotFound`, `Conflict` for a volume with clients without `force`; `Full`, `Io`: it may be gone after the next
    /// start, unless somebody attaches it before; its clients were let go.
    pub async fn delete(&self, name: &str, force: bool) -> Result<(VolumeView, bool)> {
        let view = self.show(name)?;
        let (volume, this) = (view.row.id, self.clone());
        let is_decided = Rc::new(Cell::new(false));
        let decided = is_decided.clone();
        let marked = self.commit(move |table| {
            let row = table.get(volume)?;
            let clients = this.view(row).clients;
            if clients > 0 && !force {
                return Err(Error::conflict(format!(
                    "the volume {:?} is in use by {clients} {}; disconnect, or delete it with --force (force=true in the API)",
                    row.name,
                    if clients == 1 { "client" } else { "clients" }
                )));
            }
            decided.set(true);
            table.plan_delete(volume)
        });
        if let Err(error) = marked.await {
            let user = self.0.user.borrow().clone();
            let may_count = is_decided.get() && !is_on("doubtful-volume-served");
            if let (true, Some(user)) = (may_count, user) {
                // The next start may find that it is deleted: until then nobody's writes are acknowledged. Whoever comes
                // again is attached, which settles that it is not.
                let letting_go = async move {
                    user.release(volume).await;
                    Ok(())
                };
                self.apart("let go of a volume", letting_go).await?;
            }
            return Err(error);
        }
        let this = self.clone();
        let finished = self.apart("delete volume", async move { this.finish_deletion(volume).await }).await;
        if let Err(error) = &finished {
            tracing::warn!(%volume, %error, "a deleted volume's space is not free yet; trying again");
            self.retry_deletion(volume);
        }
        Ok((view, finished.is_ok()))
    }

    async fn finish_deletion(&self, volume: VolumeId) -> Result<()> {
        let (owner, user) = (self.0.owner.borrow().clone(), self.0.user.borrow().clone());
        let (Some(owner), Some(user)) = (owner, user) else {
            return Err(Error::internal("the store is starting or shutting down"));
        };
        user.release(volume).await;
        owner.drop_volume(volume).await?;
        self.commit(move |_| Ok(Change::Forget(volume))).await.map(drop)
    }

    fn retry_deletion(&self, volume: VolumeId) {
        let this = self.clone();
        let retries = async move {
            let mut wait = RETRY_FIRST;
            while !this.0.closing.get() {
                match this.finish_deletion(volume).await {
                    Ok(()) => return,
                    Err(error) => tracing::debug!(%volume, %error, "a deletion waits"),
                }
                this.0.handle.sleep(wait).await;
                wait = (wait * 2).min(RETRY_LONGEST);
            }
        };
        self.0.handle.spawn(Class::Background, "finish deletion", retries).detach();
    }

    async fn begin_scrub(&self) -> Result<()> {
        let owner = self.0.owner.borrow().clone().ok_or_else(starting_or_stopping)?;
        owner.begin_scrub().await
    }

    /// The state of everything.
    ///
    /// # Errors
    /// `Retry` while the store starts; `Internal` where a part of it cannot be looked at.
    pub async fn observe(&self) -> Result<Snapshot> {
        let volumes = self.0.table.borrow().rows().filter(|row| row.state == VolumeState::Active).count();
        let observer = self.observer()?;
        let snapshot = only_look(async || observer.observe(Detail::Full).await).await?;
        Ok(Snapshot { volumes, ..snapshot })
    }

    /// Why I/O of a volume waits or waited.
    ///
    /// # Errors
    /// `NotFound`, and those of [`Manager::observe`].
    pub async fn explain(&self, name: &str) -> Result<(VolumeView, Explained)> {
        let view = self.show(name)?;
        let observer = self.observer()?;
        let explained = only_look(async || observer.explain(view.row.id).await).await?;
        Ok((view, explained))
    }

    fn observer(&self) -> Result<Rc<dyn Observer>> {
        self.0.observer.borrow().clone().ok_or_else(starting_or_stopping)
    }

    /// Takes no more changes, waits for the one in flight, ends the log and lets go of everybody.
    ///
    /// # Errors
    /// `Io` where the log could not be ended: nothing that was confirmed is lost.
    pub async fn close(&self) -> Result<()> {
        self.0.closing.set(true);
        self.0.renewing.borrow_mut().take();
        let _permit = self.0.turn.take(1).await;
        let log = self.0.log.borrow_mut().take();
        self.part();
        match log {
            Some(log) => log.close().await,
            None => Ok(()),
        }
    }

    /// Gives the table's file the copies that it could have.
    async fn renew_table(&self) {
        let this = self.clone();
        let steps = async move {
            let _permit = this.0.turn.take(1).await;
            let log = this.0.log.borrow_mut().take();
            let Some(mut log) = log else { return Ok(()) };
            let table = this.0.table.borrow().clone();
            let renewed = log.renew(&table).await;
            *this.0.log.borrow_mut() = Some(log);
            renewed
        };
        if let Err(error) = self.apart("volume table", steps).await {
            tracing::warn!(%error, "the volume table lacks a copy, until it changes");
        }
    }

    /// Plans a change against the table as it is when its turn comes, makes it durable and applies it.
    async fn commit(&self, plan: impl FnOnce(&VolumeTable) -> Result<Change> + 'static) -> Result<Change> {
        let this = self.clone();
        let steps = async move {
            let _permit = this.0.turn.take(1).await;
            let log = this.0.log.borrow_mut().take();
            let Some(mut log) = log else { return Err(Error::internal("the store is shutting down")) };
            let planned = plan(&this.0.table.borrow());
            let outcome = match planned {
                Ok(change) => log.append(|| this.0.table.borrow().clone(), &change).await.map(|()| change),
                Err(error) => {
                    *this.0.log.borrow_mut() = Some(log);
                    return Err(error);
                }
            };
            *this.0.log.borrow_mut() = Some(log);
            match outcome {
                Ok(change) => {
                    this.0.table.borrow_mut().apply(change.clone());
                    this.tell_owner(&change);
                    Ok(change)
                }
                Err(error) => {
                    // If it was a creation, its record may be found later: its id is not given out again.
                    this.0.table.borrow_mut().burn_id();
                    Err(error)
                }
            }
        };
        self.apart("volume table", steps).await
    }

    /// Lets the owner of a volume's segments, and who uses it, know of new levels: in the order of the log, and before anything else
    /// happens to the volume, so that a volume which is being dropped is not known anew.
    fn tell_owner(&self, change: &Change) {
        let volume = match change {
            Change::Set { volume, .. } => volume,
            Change::Create(_) | Change::MarkDeleted(_) => return self.tell_provisioned(),
            Change::Attach { .. } | Change::Forget(_) => return,
        };
        let owner = self.0.owner.borrow().clone();
        let descriptor = self.0.table.borrow().get(*volume).map(Row::descriptor);
        if let (Some(owner), Ok(descriptor)) = (owner, descriptor) {
            owner.set_levels(&descriptor);
            if let Some(user) = &*self.0.user.borrow() {
                user.learn_levels(&descriptor);
            }
        }
    }

    /// Lets the owner of segments know what all volumes together may come to hold.
    fn tell_provisioned(&self) {
        let owner = self.0.owner.borrow().clone();
        if let Some(owner) = owner {
            let table = self.0.table.borrow();
            let active = table.rows().filter(|row| row.state == VolumeState::Active);
            owner.set_provisioned(active.fold(0, |bytes: u64, row| bytes.saturating_add(row.size)));
        }
    }

    /// Runs `steps` in a task of their own, to their end even when the caller stops waiting.
    async fn apart<T: 'static>(
        &self,
        name: &'static str,
        steps: impl Future<Output = Result<T>> + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot();
        self.0.handle.spawn(Class::Io, name, async move { sender.send(steps.await) }).detach();
        receiver.await.unwrap_or_else(|| Err(Error::internal("the store is shutting down")))
    }
}

/// Asks something that only looks, so nothing is left half done; and nobody's disk stops because a counter cannot be
/// read.
async fn only_look<T>(ask: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let mut question = std::pin::pin!(ask());
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| question.as_mut().poll(cx))) {
        Ok(poll) => poll,
        Err(_) => {
            tracing::error!("looking at the state of the store failed: this is a bug");
            Poll::Ready(Err(Error::internal(
                "the state of the store could not be read, a bug that its log tells; its disks go on",
            )))
        }
    })
    .await
}

fn starting_or_stopping() -> Error {
    Error::retry("the store is starting or shutting down")
}

impl VolumeDirectory for Manager {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        Box::pin(async move { self.0.table.borrow().find(name).map(Row::descriptor) })
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move { self.0.table.borrow().get(volume).map(Row::descriptor) })
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            let table = self.0.table.borrow();
            let active = table.rows().filter(|row| row.state == VolumeState::Active);
            let mut names: Vec<String> = active.map(|row| row.name.clone()).collect();
            names.sort();
            Ok(names)
        })
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move {
            let change = self.commit(move |table| table.plan_attach(volume)).await?;
            let Change::Attach { generation, .. } = change else {
                return Err(Error::internal("an attachment became another change"));
            };
            // A later attachment may have come meanwhile: this one keeps its own generation, and is fenced.
            let table = self.0.table.borrow();
            table.get(volume).map(|row| VolumeDescriptor { generation, ..row.descriptor() })
        })
    }

    fn detach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        // Only generations are kept: who is attached at this moment is known to the agents and dies with them.
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Has the table go on in a file with a copy in each directory that has come, as long as there is a manager.
async fn keep_copies(manager: Weak<Inner>, store: Store) {
    loop {
        let renewal = store.renewal();
        let Some(inner) = manager.upgrade() else { return };
        Manager(inner).renew_table().await;
        renewal.await;
    }
}
