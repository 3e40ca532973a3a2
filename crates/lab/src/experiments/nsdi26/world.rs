//! One point of an experiment: a world with a block server and its clients.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use policies::admission::estimator::EstimatorSettings;
use policies::admission::{AdmissionSettings, Throttle};
use policies::loop_schedule::{Discipline, LoopSettings};
use runtime::sim::{NetworkOptions, NodeOptions, World};
use runtime::{Address, Class, Handle};

use super::super::Trace;
use super::Parameters;
use super::ask::Shape;
use super::disk::DiskOptions;
use super::load::{LESSONS_END_NS, Load};
use super::measured::Measured;
use super::proxy::{Outbox, Proxy, REPLY, WarmUp, frame, receive_records, stamp};
use super::replay::{Replay, rate};
use super::store::Store;

/// Connections of the clients: 8 compute nodes (NSDI 2026, §5.1) with 8 threads each (§2.2: 4 to 8).
const CONNECTIONS: usize = 64;
/// From client to server.
const DELAY: Duration = Duration::from_micros(15);
const PORT: u16 = 10809;
/// Requests of a server that are not measured, as long as these are not most of them.
const WARM_UP: u64 = 20_000;
/// After a change of the load the percentile's window has to be of the new one.
const SETTLES_NS: u64 = 300_000_000;

/// How the server's loop treats background tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduling {
    /// One queue for everything.
    Fifo,
    /// One queue, and what can be moved runs on another thread.
    Split,
    /// I/O first: what Levee does.
    Priority,
    /// I/O first, and what can be moved runs on another thread.
    SplitPriority,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Point {
    /// What it is called in tables.
    pub label: String,
    /// What it depends on.
    pub parameters: Parameters,
    /// Who has to wait.
    pub throttle: Throttle,
    /// Changes the usual settings of admission.
    pub tune: fn(&mut AdmissionSettings),
    /// The loop.
    pub scheduling: Scheduling,
    /// What is asked for.
    pub shape: Shape,
    /// Bytes of each request.
    pub bytes: u64,
    /// How many of a hundred are writes.
    pub write_percent: u64,
    /// What is below in place of the queue.
    pub disk: Option<DiskOptions>,
    /// What is asked for instead, scaled to what the shape asks for in the mean.
    pub trace: Option<Arc<Trace>>,
    /// Requests in all.
    pub requests: u64,
    /// Everything random.
    pub seed: u64,
}

impl Point {
    /// The same with a trace as its load: sizes and mixes are the trace's.
    pub fn replaying(self, trace: &Arc<Trace>) -> Point {
        let label = format!("trace at {:.0} MB/s", rate(&self.parameters, self.shape) / 1e6);
        Point { label, trace: Some(trace.clone()), bytes: trace.sizes().0, write_percent: 0, ..self }
    }

    /// Measures it: each server of the cluster in a world of its own.
    pub fn measure(&self) -> Measured {
        let mut all = Measured::default();
        for server in 0..self.parameters.servers {
            all.merge(&self.measure_server(server, self.seed.wrapping_mul(1_000_003).wrapping_add(server)));
        }
        all
    }

    /// Bytes of a request, in the mean and at most.
    fn sizes(&self) -> (u64, u64) {
        self.trace.as_ref().map_or((self.bytes, self.bytes), |trace| trace.sizes())
    }

    fn options(&self) -> server::Options {
        let mut admission = AdmissionSettings {
            throttle: self.throttle,
            interval: Duration::from_millis(self.parameters.interval_ms),
            cheque_permille: self.parameters.cheque_permille,
            hot_share_percent: self.parameters.hot_share_percent,
            calm_intervals: self.parameters.calm_intervals,
            hot_parts: self.parameters.hot_parts,
            limit_bytes_per_sec: self.parameters.limit_bytes_per_sec,
            estimator: EstimatorSettings {
                service_bytes_per_sec: self.parameters.service_bytes_per_sec,
                headroom_bytes_per_sec: self.parameters.headroom_bytes_per_sec,
                ..EstimatorSettings::default()
            },
            ..AdmissionSettings::default()
        };
        (self.tune)(&mut admission);
        server::Options { admission, requests_max: 1 << 20 }
    }

    fn measure_server(&self, number: u64, seed: u64) -> Measured {
        let world = World::new(seed);
        let network = NetworkOptions {
            delay: DELAY,
            jitter_percent: 0,
            split_one_in: 0,
            loss_one_in: 0,
            pipe_bytes: 4 << 20,
            ..NetworkOptions::default()
        };
        world.set_network(network);
        let (server_node, client_node) =
            (world.add_node(NodeOptions::default()), world.add_node(NodeOptions::default()));
        let discipline = match self.scheduling {
            Scheduling::Fifo | Scheduling::Split => Discipline::Fifo,
            Scheduling::Priority | Scheduling::SplitPriority => Discipline::Priority,
        };
        let handle = world.start_loop_with(server_node, LoopSettings { discipline, ..LoopSettings::default() });
        let clients = world.start_loop(client_node);
        let address = Address::Tcp((world.address(server_node), PORT).into());
        let (inside, parameters, options, (bytes, bytes_max)) =
            (handle.clone(), self.parameters.clone(), self.options(), self.sizes());
        let wanted = self.requests / self.parameters.servers;
        // A world's clock does not begin at zero: lessons are counted from its start on.
        let until = if self.shape == Shape::Taught { handle.now().0 + LESSONS_END_NS as u64 + SETTLES_NS } else { 0 };
        let warm_up = WarmUp { requests: WARM_UP.min(wanted / 4), until: Instant(until) };
        let store = Store::new(&handle, &parameters, self.disk.clone(), bytes, seed ^ 0x5eed);
        let proxy = world.block_on(&handle, async move {
            Proxy::start(&inside, &parameters, options, store, bytes_max, DELAY, warm_up).await
        });
        let proxy = proxy.unwrap_or_else(|error| panic!("a modelled server starts: {error}"));
        proxy.run_background(matches!(self.scheduling, Scheduling::Split | Scheduling::SplitPriority));
        let (inside, serving, at) = (handle.clone(), proxy.clone(), address.clone());
        handle
            .spawn(Class::Io, "listener", async move {
                let Ok(listener) = inside.listen(&at).await else { return };
                while let Ok(stream) = listener.accept().await {
                    inside.spawn(Class::Io, "connection", serving.clone().serve(stream)).detach();
                }
            })
            .detach();
        let model = Load::new(&self.parameters, self.shape, self.bytes, self.write_percent, seed ^ 0x10ad);
        let load = match &self.trace {
            Some(trace) => model.replaying(Replay::new(trace, &self.parameters, self.shape, number)),
            None => model,
        };
        clients.spawn(Class::Io, "clients", ask(clients.clone(), address, load)).detach();
        if self.shape == Shape::Taught {
            proxy.watch_estimates();
        }
        world.run_until(|| proxy.counted() + warm_up.requests >= wanted);
        proxy.measured()
    }
}

/// Connects, and asks for what `load` says, for ever.
async fn ask(handle: Handle, address: Address, load: Load) {
    let load = Rc::new(RefCell::new(load));
    let mut outboxes = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = loop {
            match handle.connect(&address).await {
                Ok(stream) => break stream,
                Err(_) => handle.sleep(Duration::from_millis(1)).await,
            }
        };
        let outbox = Outbox::new(&handle, &stream, stamp);
        let (load, replies) = (load.clone(), outbox.clone());
        let receive = receive_records::<REPLY>(stream, move |reply| {
            let next = load.borrow_mut().on_reply(u32::from_le_bytes(*reply));
            if let Some(next) = next {
                replies.put(&frame(&next));
            }
        });
        handle.spawn(Class::Io, "replies", receive).detach();
        outboxes.push(outbox);
    }
    let begun = handle.now().0;
    loop {
        let next = Instant(begun + load.borrow().next_at as u64);
        if next > handle.now() {
            handle.sleep_until(next).await;
        }
        let asked = load.borrow_mut().arrive();
        if let Some(asked) = asked {
            // A segment's requests keep their order: one connection for each.
            outboxes[asked.segment as usize % CONNECTIONS].put(&frame(&asked));
        }
    }
}
