//! What the connections of an agent share: its settings, volumes, peers and memory.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use base::limits::CONNECTIONS_MAX;
use base::{Bytes, MIB, VolumeId};
use runtime::sync::{Budget, Permit};
use runtime::{Class, Handle, Task};

use crate::nbd::LARGE_BUFFERS_MAX;
use crate::peers::Peers;
use crate::registry::Registry;
use crate::statistics::AgentStatistics;

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

/// What connections share.
pub(crate) struct Shared {
    pub(crate) handle: Handle,
    pub(crate) options: Options,
    pub(crate) registry: Registry,
    pub(crate) peers: Peers,
    /// Bytes of payload in memory.
    pub(crate) payload: Budget,
    /// Large receive buffers; a connection without one uses a small one.
    pub(crate) large_buffers: Budget,
    pub(crate) stopping: Cell<bool>,
    listing: RefCell<Bytes>,
    pub(crate) listeners: RefCell<Vec<Task<()>>>,
    pub(crate) counters: RefCell<AgentStatistics>,
}

impl Shared {
    /// What the connections of a new agent share.
    pub(crate) fn new(handle: &Handle, registry: Registry, options: Options) -> Shared {
        Shared {
            handle: handle.clone(),
            options,
            registry,
            peers: Peers::default(),
            payload: Budget::new(options.payload_bytes_max),
            large_buffers: Budget::new(LARGE_BUFFERS_MAX),
            stopping: Cell::new(false),
            listing: RefCell::default(),
            listeners: RefCell::default(),
            counters: RefCell::default(),
        }
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
    /// move holds it for ever. Says whether it had to wait, too.
    pub(crate) async fn take_payload(&self, bytes: u64) -> (Permit, bool) {
        if let Some(permit) = self.payload.try_take(bytes) {
            return (permit, false);
        }
        let mut permit = std::pin::pin!(self.payload.take(bytes));
        loop {
            let mut pause = std::pin::pin!(self.handle.sleep(STALL_CHECK));
            let turn = std::future::poll_fn(|cx| match permit.as_mut().poll(cx) {
                std::task::Poll::Ready(permit) => std::task::Poll::Ready(Some(permit)),
                std::task::Poll::Pending => pause.as_mut().poll(cx).map(|()| None),
            });
            match turn.await {
                Some(permit) => return (permit, true),
                None => {
                    let ended = self.peers.end_stalled(self.handle.now(), self.options.stall_timeout);
                    self.counters.borrow_mut().stalled += ended;
                }
            }
        }
    }
}
