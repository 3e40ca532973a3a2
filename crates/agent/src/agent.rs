//! The agent as its node sees it: it serves listeners, stops, lets go of volumes, and counts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::limits::{CONNECTIONS_MAX, REQUEST_SIZE_MAX};
use base::{Bytes, MIB, VolumeId};
use runtime::sync::{Budget, Permit};
use runtime::{Class, Handle, Listener, Stream, Task};
use wire::{BlockService, LocalBoxFuture, VolumeDirectory, VolumeUser};

use crate::nbd;
use crate::peers::{Peer, Peers};
use crate::registry::Registry;
use crate::statistics::{AgentStatistics, VolumeStatistics};

/// How long to wait after an accept that failed, for file descriptors to come free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How often one that waits for memory looks for peers that stand in the way.
const STALL_CHECK: Duration = Duration::from_secs(1);

/// Settings of an agent.
#[derive(Clone, Copy, Debug)]
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
}

impl Default for Options {
    fn default() -> Self {
        Options {
            payload_bytes_max: 64 * MIB,
            connections_max: CONNECTIONS_MAX,
            handshake_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// An agent on one loop. Clones are the same agent.
#[derive(Clone)]
pub struct Agent(Rc<Shared>);

/// What connections share.
pub(crate) struct Shared {
    pub(crate) handle: Handle,
    pub(crate) options: Options,
    pub(crate) registry: Registry,
    pub(crate) peers: Peers,
    /// Bytes of payload in memory.
    payload: Budget,
    /// Large receive buffers; a connection without one uses a small one.
    pub(crate) large_buffers: Budget,
    stopping: Cell<bool>,
    listing: RefCell<Bytes>,
    listeners: RefCell<Vec<Task<()>>>,
    pub(crate) counters: RefCell<AgentStatistics>,
}

impl Agent {
    /// An agent that finds volumes in `directory` and their bytes at `service`.
    pub fn new(
        handle: &Handle,
        directory: Rc<dyn VolumeDirectory>,
        service: Rc<dyn BlockService>,
        options: Options,
    ) -> Agent {
        let payload_bytes_max = options.payload_bytes_max.max(REQUEST_SIZE_MAX);
        Agent(Rc::new(Shared {
            handle: handle.clone(),
            options: Options { payload_bytes_max, ..options },
            registry: Registry::new(handle, directory, service),
            peers: Peers::default(),
            payload: Budget::new(payload_bytes_max),
            large_buffers: Budget::new(nbd::LARGE_BUFFERS_MAX),
            stopping: Cell::new(false),
            listing: RefCell::default(),
            listeners: RefCell::default(),
            counters: RefCell::default(),
        }))
    }

    /// Serves NBD on `listener` until the agent stops.
    pub fn serve(&self, listener: Listener) {
        let shared = self.0.clone();
        let accepting = self.0.handle.spawn(Class::Io, "nbd accept", async move {
            loop {
                match listener.accept().await {
                    Ok(stream) => shared.on_connection(stream),
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        shared.handle.sleep(ACCEPT_RETRY).await;
                    }
                }
            }
        });
        self.0.listeners.borrow_mut().push(accepting);
    }

    /// Accepts nothing more, lets what is in flight finish, ends all connections and detaches all volumes.
    pub async fn stop(&self) {
        let shared = &self.0;
        shared.stopping.set(true);
        shared.listeners.borrow_mut().clear();
        shared.drain(None);
        while shared.peers.len() > 0 {
            shared.peers.gone.wait().await;
        }
    }

    /// The counters of every volume that was used lately, with its name.
    pub fn volume_statistics(&self) -> Vec<(VolumeId, String, VolumeStatistics)> {
        self.0.registry.statistics()
    }

    /// The agent's own counters.
    pub fn statistics(&self) -> AgentStatistics {
        AgentStatistics {
            connections_open: self.0.peers.len(),
            payload_bytes: self.0.payload.total() - self.0.payload.available(),
            payload_bytes_max: self.0.payload.total(),
            ..*self.0.counters.borrow()
        }
    }
}

impl VolumeUser for Agent {
    fn release(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.registry.close(volume);
            while let Some(changed) = self.0.registry.held(volume) {
                let changed = changed.wait();
                self.0.drain(Some(volume));
                changed.await;
            }
            self.0.registry.forget(volume);
        })
    }

    fn users(&self, volume: VolumeId) -> usize {
        self.0.registry.users(volume)
    }
}

impl Shared {
    fn on_connection(self: &Rc<Self>, stream: Stream) {
        let mut counters = self.counters.borrow_mut();
        if self.peers.len() >= self.options.connections_max {
            counters.connections_refused += 1;
            if counters.connections_refused.is_power_of_two() {
                let (open, refused) = (self.options.connections_max, counters.connections_refused);
                tracing::warn!(open, refused, "too many connections: new ones are closed");
            }
            return;
        }
        counters.connections_accepted += 1;
        let peer = Rc::new(Peer::new(counters.connections_accepted, stream));
        drop(counters);
        self.peers.insert(peer.clone());
        let shared = self.clone();
        let serving = async move {
            nbd::serve_connection(&shared, &peer).await;
            shared.peers.remove(peer.id);
        };
        self.handle.spawn(Class::Io, "nbd connection", serving).detach();
    }

    /// Whether the agent is going away.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Drains the connections of a volume, or all. A client that does not take its replies is not waited for for ever.
    pub(crate) fn drain(&self, volume: Option<VolumeId>) {
        for peer in self.peers.of(volume) {
            let (impatient, pause) = (peer.clone(), self.handle.sleep(self.options.drain_timeout));
            let watchdog = self.handle.spawn(Class::Io, "nbd drain limit", async move {
                pause.await;
                impatient.stream.shutdown();
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
    /// move holds it for ever.
    pub(crate) async fn take_payload(&self, bytes: u64) -> Permit {
        if let Some(permit) = self.payload.try_take(bytes) {
            return permit;
        }
        let mut permit = std::pin::pin!(self.payload.take(bytes));
        loop {
            let mut pause = std::pin::pin!(self.handle.sleep(STALL_CHECK));
            let turn = std::future::poll_fn(|cx| match permit.as_mut().poll(cx) {
                std::task::Poll::Ready(permit) => std::task::Poll::Ready(Some(permit)),
                std::task::Poll::Pending => pause.as_mut().poll(cx).map(|()| None),
            });
            match turn.await {
                Some(permit) => return permit,
                None => {
                    let ended = self.peers.end_stalled(self.handle.now(), self.options.stall_timeout);
                    self.counters.borrow_mut().stalled += ended;
                }
            }
        }
    }
}
