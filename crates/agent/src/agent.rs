//! The agent as its node sees it: it serves listeners, stops, lets go of volumes, and counts.

use std::rc::Rc;
use std::time::Duration;

use base::VolumeId;
use base::limits::REQUEST_SIZE_MAX;
use runtime::{Class, Handle, Listener, Stream};
use wire::{BlockService, LocalBoxFuture, VolumeDirectory, VolumeUser};

use crate::nbd;
use crate::peers::Peer;
use crate::registry::Registry;
use crate::shared::{Options, Shared};
use crate::statistics::{AgentStatistics, VolumeStatistics};

/// How long to wait after an accept that failed, for file descriptors to come free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// An agent on one loop. Clones are the same agent.
#[derive(Clone)]
pub struct Agent(Rc<Shared>);

impl Agent {
    /// An agent that finds volumes in `directory` and their bytes at `service`.
    pub fn new(
        handle: &Handle,
        directory: Rc<dyn VolumeDirectory>,
        service: Rc<dyn BlockService>,
        options: Options,
    ) -> Agent {
        let payload_bytes_max = options.payload_bytes_max.max(REQUEST_SIZE_MAX);
        let options = Options { payload_bytes_max, ..options };
        Agent(Rc::new(Shared::new(handle, Registry::new(handle, directory, service), options)))
    }

    /// Serves NBD on `listener` until the agent stops.
    pub fn serve(&self, listener: Listener) {
        let shared = self.0.clone();
        let accepting = self.0.handle.spawn(Class::Io, "nbd accept", async move {
            loop {
                match listener.accept().await {
                    Ok(stream) => on_connection(&shared, stream),
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

fn on_connection(shared: &Rc<Shared>, stream: Stream) {
    let mut counters = shared.counters.borrow_mut();
    if shared.peers.len() >= shared.options.connections_max {
        counters.connections_refused += 1;
        if counters.connections_refused.is_power_of_two() {
            let (open, refused) = (shared.options.connections_max, counters.connections_refused);
            tracing::warn!(open, refused, "too many connections: new ones are closed");
        }
        return;
    }
    counters.connections_accepted += 1;
    let peer = Rc::new(Peer::new(counters.connections_accepted, stream));
    drop(counters);
    shared.peers.insert(peer.clone());
    let serving_for = shared.clone();
    let serving = async move {
        nbd::serve_connection(&serving_for, &peer).await;
        serving_for.peers.remove(peer.id);
    };
    shared.handle.spawn(Class::Io, "nbd connection", serving).detach();
}
