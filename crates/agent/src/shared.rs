//! What the connections of an agent share: those of one loop ([`Shared`]), and those of all ([`Commons`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use base::limits::CONNECTIONS_MAX;
use base::{Bytes, Generation, MIB, Result, VolumeId};
use policies::levels::LevelsSettings;
use policies::queues::Queues;
use policies::tenants::{Frontend, TenantsSettings};
use runtime::sync::{Budget, Event};
use runtime::{Class, Handle, SharedBudget, SharedPermit};
use wire::{BlockService, LocalBoxFuture, VolumeDescriptor, VolumeDirectory};

use crate::nbd::{Certificates, LARGE_BUFFERS_MAX, NbdTls};
use crate::peers::{Peer, Peers};
use crate::registry::Entered;
use crate::roster::Roster;
use crate::statistics::AgentStatistics;
use crate::tenants::Tenants;
use crate::volume::Volume;

/// How often one that waits for memory looks for peers that stand in the way.
const STALL_CHECK: Duration = Duration::from_secs(1);

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of payload in memory, of all connections together: of writes until they are answered, of reads until
    /// their replies are sent. At least the largest request.
    pub payload_bytes_max: u64,
    /// Connections that are open at once; further ones are closed at once.
    pub connections_max: usize,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long a peer may hold memory without taking or sending bytes while others wait for it.
    pub stall_timeout: Duration,
    /// How long a stop, or the release of a volume, waits for replies to be taken.
    pub drain_timeout: Duration,
    /// How tenants share its loops.
    pub tenants: TenantsSettings,
    /// Who holds volumes to their levels, and what a tenant gets at most.
    pub levels: LevelsSettings,
    /// Which loops serve the queues of virtual machines.
    pub queues: Queues,
    /// The certificates for NBD clients, if there are any.
    pub tls: Option<NbdTls>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            payload_bytes_max: 64 * MIB,
            connections_max: CONNECTIONS_MAX,
            handshake_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            tenants: TenantsSettings::default(),
            levels: LevelsSettings::default(),
            queues: Queues::default(),
            tls: None,
        }
    }
}

/// What connections on all loops share.
pub(crate) struct Commons {
    pub(crate) options: Options,
    /// Bytes of payload in memory.
    pub(crate) payload: SharedBudget,
    /// Bytes of it that are set aside for queues of virtual machines.
    set_aside: AtomicU64,
    pub(crate) roster: Roster,
    stopping: AtomicBool,
    /// Connections of each loop, those that are on their way to it included.
    connections: Box<[AtomicUsize]>,
    /// What each loop does for virtual machines.
    loads: Box<[Load]>,
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) violations: AtomicU64,
    pub(crate) stalled: AtomicU64,
}

/// A connection's place on a loop, from its acceptance to its end.
pub(crate) struct Place {
    commons: Arc<Commons>,
    index: usize,
}

impl Place {
    /// Which of the agent's loops it is on.
    pub(crate) fn index(&self) -> usize {
        self.index
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.commons.connections[self.index].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Requests of virtual machines on one loop, which alone writes here.
#[derive(Default)]
struct Load {
    running: AtomicUsize,
    begun: AtomicU64,
    /// Those that took memory from the pool.
    pooled: AtomicU64,
}

/// A request of a virtual machine, from when it begins to its end: counted with the loop that runs it.
pub(crate) struct Running(Rc<Shared>);

impl Running {
    pub(crate) fn new(shared: &Rc<Shared>) -> Running {
        let load = &shared.commons.loads[shared.index];
        load.running.fetch_add(1, Ordering::Relaxed);
        load.begun.fetch_add(1, Ordering::Relaxed);
        Running(shared.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.commons.loads[self.0.index].running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tasks of one loop that claim requests of virtual machines, without those that wait until there is something to claim.
#[derive(Default)]
pub(crate) struct Claiming {
    count: Cell<usize>,
    none: Event,
}

/// A task that waits, until this is dropped.
pub(crate) struct Pause<'a>(&'a Claiming);

impl Claiming {
    pub(crate) fn begin(&self) {
        self.count.set(self.count.get() + 1);
    }

    pub(crate) fn end(&self) {
        self.count.set(self.count.get() - 1);
        if self.count.get() == 0 {
            self.none.notify();
        }
    }

    pub(crate) fn pause(&self) -> Pause<'_> {
        self.end();
        Pause(self)
    }

    /// Returns when there are none: what this loop has is begun.
    pub(crate) async fn until_none(&self) {
        let none = self.none.wait();
        if self.count.get() > 0 {
            none.await;
        }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.begin();
    }
}

/// Payload memory that is set aside for a queue of a virtual machine, until it is dropped.
pub(crate) struct SetAside {
    commons: Arc<Commons>,
    bytes: u64,
    _permit: SharedPermit,
}

impl SetAside {
    pub(crate) fn new(commons: &Arc<Commons>, permit: SharedPermit, bytes: u64) -> SetAside {
        commons.set_aside.fetch_add(bytes, Ordering::Relaxed);
        SetAside { commons: commons.clone(), bytes, _permit: permit }
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        self.commons.set_aside.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Commons {
    /// What connections on so many loops share.
    pub(crate) fn new(options: Options, loops: usize) -> Arc<Commons> {
        Arc::new(Commons {
            payload: SharedBudget::new(options.payload_bytes_max),
            set_aside: AtomicU64::new(0),
            roster: Roster::new(loops, options.levels),
            options,
            stopping: AtomicBool::new(false),
            connections: (0..loops).map(|_| AtomicUsize::new(0)).collect(),
            loads: (0..loops).map(|_| Load::default()).collect(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
        })
    }

    /// How many connections each loop has.
    pub(crate) fn connections(&self) -> impl Iterator<Item = usize> {
        self.connections.iter().map(|count| count.load(Ordering::Relaxed))
    }

    /// A place for a connection on the loop of that index.
    pub(crate) fn place(self: &Arc<Self>, index: usize) -> Place {
        self.connections[index].fetch_add(1, Ordering::Relaxed);
        Place { commons: self.clone(), index }
    }

    /// How many requests of virtual machines a loop runs.
    pub(crate) fn running(&self, index: usize) -> usize {
        self.loads[index].running.load(Ordering::Relaxed)
    }

    /// A request of a virtual machine took memory from the pool, on that loop.
    pub(crate) fn count_pooled(&self, index: usize) {
        self.loads[index].pooled.fetch_add(1, Ordering::Relaxed);
    }

    /// How many each loop has begun.
    pub(crate) fn begun(&self) -> impl Iterator<Item = u64> {
        self.loads.iter().map(|load| load.begun.load(Ordering::Relaxed))
    }

    /// Whether the agent is going away.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// The counters, as the loop of `handle` sees them.
    pub(crate) fn statistics(&self, handle: &Handle) -> AgentStatistics {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AgentStatistics {
            connections_accepted: count(&self.accepted),
            connections_open: self.connections().sum(),
            connections_refused: count(&self.refused),
            violations: count(&self.violations),
            stalled: count(&self.stalled),
            payload_bytes: (self.payload.total() - self.payload.available(handle))
                .saturating_sub(count(&self.set_aside)),
            queue_bytes: count(&self.set_aside),
            guest_requests: self.begun().sum(),
            guest_requests_pooled: self.loads.iter().map(|load| count(&load.pooled)).sum(),
            payload_bytes_max: self.payload.total(),
        }
    }
}

/// A part's way to the home of its agent, on the same loop or on another one.
pub(crate) trait Door {
    /// Uses a volume from the loop of that index; `newest` is the generation that the directory says it is attached under.
    /// The future must not be dropped before it completes.
    fn enter(&self, volume: VolumeId, newest: Generation, index: usize) -> LocalBoxFuture<'_, Result<Entered>>;
    /// Stops using a volume.
    fn leave(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()>;
    /// Ends the connections that stand in the way of others, on every loop.
    fn end_stalled(&self) -> LocalBoxFuture<'_, ()>;
}

/// What the connections of one loop share: the agent's part there.
pub(crate) struct Shared {
    pub(crate) handle: Handle,
    /// Which of the agent's loops this is.
    index: usize,
    pub(crate) commons: Arc<Commons>,
    door: Box<dyn Door>,
    pub(crate) directory: Rc<dyn VolumeDirectory>,
    service: Rc<dyn BlockService>,
    pub(crate) tenants: Tenants,
    pub(crate) peers: Peers,
    pub(crate) claiming: Claiming,
    /// Large receive buffers; a connection without one uses a small one.
    pub(crate) large_buffers: Budget,
    listing: RefCell<Bytes>,
    pub(crate) certificates: Certificates,
}

impl Shared {
    /// The part on the loop of `handle`, which finds volumes in `directory` and their bytes at `service`.
    pub(crate) fn new(
        handle: &Handle,
        index: usize,
        commons: Arc<Commons>,
        door: Box<dyn Door>,
        directory: Rc<dyn VolumeDirectory>,
        service: Rc<dyn BlockService>,
    ) -> Rc<Shared> {
        let loops = commons.connections.len() as u64;
        let tenants = Tenants::new(handle, index, commons.roster.clone(), &commons.options.tenants);
        Rc::new(Shared {
            handle: handle.clone(),
            index,
            commons,
            door,
            directory,
            service,
            tenants,
            peers: Peers::default(),
            claiming: Claiming::default(),
            large_buffers: Budget::new((LARGE_BUFFERS_MAX / loops).max(1)),
            listing: RefCell::default(),
            certificates: Certificates::default(),
        })
    }

    /// Which of the agent's loops this is.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The settings.
    pub(crate) fn options(&self) -> &Options {
        &self.commons.options
    }

    /// Uses a volume that was just found in the directory. The caller sees to it that it leaves, with [`Self::leave`].
    pub(crate) async fn enter(&self, found: &VolumeDescriptor, frontend: Frontend) -> Result<Rc<Volume>> {
        let entered = self.door.enter(found.id, found.generation, self.index).await?;
        Ok(self.seat(found, frontend, entered))
    }

    /// The volume on this loop, which somebody has entered who will leave it after this was dropped.
    pub(crate) fn seat(&self, found: &VolumeDescriptor, frontend: Frontend, entered: Entered) -> Rc<Volume> {
        let (service, attachment) = (self.service.clone(), entered.attachment);
        // The levels are what was found just now: an attachment may be older.
        let seat = self.tenants.enter(found, frontend);
        Rc::new(Volume::new(&self.handle, self.index, service, attachment, seat, entered.counters))
    }

    /// Stops using a volume, of which nothing of this user is in flight.
    pub(crate) async fn leave(&self, volume: VolumeId) {
        self.door.leave(volume).await;
    }

    /// Returns when there are no connections.
    pub(crate) async fn wait_until_idle(&self) {
        while self.peers.len() > 0 {
            self.peers.gone.wait().await;
        }
    }

    /// Whether the agent is going away.
    pub(crate) fn is_stopping(&self) -> bool {
        self.commons.is_stopping()
    }

    /// Ends the connections of this loop that stand in the way of others.
    pub(crate) fn end_stalled(&self) {
        let ended = self.peers.end_stalled(self.handle.now(), self.options().stall_timeout);
        self.commons.stalled.fetch_add(ended, Ordering::Relaxed);
    }

    /// Drains the connections of a volume, or all. A client that does not take its replies is not waited for for ever.
    pub(crate) fn drain(&self, volume: Option<VolumeId>) {
        self.drain_peers(self.peers.of(volume));
    }

    /// Drains one connection, if it is on this loop.
    pub(crate) fn drain_one(&self, id: u64) {
        self.drain_peers(self.peers.get(id));
    }

    fn drain_peers(&self, peers: impl IntoIterator<Item = Rc<Peer>>) {
        for peer in peers {
            let (impatient, pause) = (peer.clone(), self.handle.sleep(self.options().drain_timeout));
            let watchdog = self.handle.spawn(Class::Io, "nbd drain limit", async move {
                pause.await;
                impatient.line.shutdown();
            });
            let draining = async move {
                peer.drain().await;
                drop(watchdog);
            };
            self.handle.spawn(Class::Io, "nbd drain", draining).detach();
        }
    }

    /// The replies to LIST. Connections share one copy, however many of them take their time to receive it.
    pub(crate) fn share_listing(&self, listing: Vec<u8>) -> Bytes {
        let mut shared = self.listing.borrow_mut();
        if *shared != listing {
            *shared = Bytes::from(listing);
        }
        shared.clone()
    }

    /// Takes memory for `bytes` of payload, in order of arrival. Whoever waits sees to it that nobody who does not
    /// move holds it for ever. Says whether it had to wait, too.
    pub(crate) async fn take_payload(&self, bytes: u64) -> (SharedPermit, bool) {
        let payload = &self.commons.payload;
        if let Some(permit) = payload.try_take(&self.handle, bytes) {
            return (permit, false);
        }
        let mut permit = std::pin::pin!(payload.take(&self.handle, bytes));
        loop {
            let mut pause = std::pin::pin!(self.handle.sleep(STALL_CHECK));
            let turn = std::future::poll_fn(|cx| match permit.as_mut().poll(cx) {
                std::task::Poll::Ready(permit) => std::task::Poll::Ready(Some(permit)),
                std::task::Poll::Pending => pause.as_mut().poll(cx).map(|()| None),
            });
            match turn.await {
                Some(permit) => return (permit, true),
                None => self.door.end_stalled().await,
            }
        }
    }
}
