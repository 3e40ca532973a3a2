//! How throughput grows with the loops of a store.
//!
//! A whole store (frontend, agent, block servers, engines) runs as it is shipped, in the simulated world, in which each
//! loop of a machine has a processor to itself; what the work costs that processor is charged by kind, as it was measured
//! on a real one. Clients and their machine cost nothing, and the disk has room for more, so that the loops are what is
//! measured: a request's own work, its passage to another loop where its segment lives there, and the wait for locks.
//!
//! Every parameter stands in `parameters/scaling.toml`, with its source.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, Error, Prng, Result};
use node::settings::EngineSettings;
use node::{Node, Settings};
use runtime::sim::{CpuOptions, DiskOptions, NetworkOptions, NodeOptions, World};
use runtime::{Address, Class, Handle};
use serde::Deserialize;
use wire::api::Size;

use crate::verify::nbd::{Command, Connection, Reply};

const FILE: &str = include_str!("../../parameters/scaling.toml");
const PORT: u16 = 10809;
/// Loops of the clients' machine: they cost next to nothing.
const CLIENT_LOOPS: usize = 8;

/// What a run depends on. The file explains each.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "parameters/scaling.toml explains each")]
pub struct Charges {
    pub volumes: usize,
    pub connections: usize,
    pub depth: usize,
    pub request_bytes: u32,
    pub span_bytes: u64,
    pub request_ns: u64,
    pub service_ns: u64,
    pub socket_byte_ps: u64,
    pub file_ns: u64,
    pub turn_ns: u64,
    pub clock_ns: u64,
    pub operation_ns: u64,
    pub crossing_ns: u64,
    pub lock_ns: u64,
    pub disk_latency_ns: u64,
    pub disk_channels: usize,
    pub disk_bytes_per_sec: u64,
    pub warm_up_us: u64,
    pub measured_us: u64,
}

/// Where the clients of a store with several loops are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clients {
    /// By all loops: what Levee does.
    Spread,
    /// By the first one: a baseline.
    Gathered,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// Requests per second of the world.
    pub iops: f64,
    /// Connections of each loop.
    pub connections: Vec<usize>,
}

impl Charges {
    /// Those of the file.
    ///
    /// # Errors
    /// `Invalid`: only in a build with a broken file.
    pub fn from_file() -> Result<Charges> {
        toml::from_str(FILE).map_err(|error| Error::invalid(error.to_string()))
    }

    /// Random writes to a store with so many loops.
    ///
    /// # Panics
    /// The store does not start, or does not answer.
    pub fn measure(&self, loops: u8, clients: Clients, seed: u64) -> Scaled {
        let world = World::new(seed);
        world.set_network(NetworkOptions {
            split_one_in: 0,
            pipe_bytes: 4 << 20,
            transfer_bytes_per_sec: 1_000_000_000_000,
            ..NetworkOptions::default()
        });
        let disk = DiskOptions {
            latency: Duration::from_nanos(self.disk_latency_ns),
            channels: self.disk_channels,
            transfer_bytes_per_sec: self.disk_bytes_per_sec,
            ..DiskOptions::default()
        };
        let server = world.add_node(NodeOptions { cpu: self.cpu(), ..NodeOptions::with_disks(["/disk"], &disk) });
        let idle = CpuOptions { clock_ns: 1, submit_ns: 1, outcome_ns: 1, ..CpuOptions::default() };
        let client = world.add_node(NodeOptions { cpu: idle, ..NodeOptions::default() });
        let address = Address::Tcp((world.address(server), PORT).into());
        let handle = world.start_loop(server);
        let settings = self.settings(world.address(server), loops, clients);
        let (inside, volumes, bytes) = (handle.clone(), self.volumes, self.span_bytes);
        let node = world.block_on(&handle, async move {
            let node = Node::start(&inside, &settings).await?;
            for volume in 0..volumes {
                node.ensure_volume(&name_of(volume), bytes).await?;
            }
            Ok::<Node, Error>(node)
        });
        let node = node.unwrap_or_else(|error| panic!("a store without accidents starts: {error}"));
        let done = Rc::new(Cell::new(0u64));
        let machines: Vec<Handle> = (0..CLIENT_LOOPS).map(|_| world.start_loop(client)).collect();
        for number in 0..self.volumes * self.connections {
            let machine = machines[number % CLIENT_LOOPS].clone();
            let (volume, seed) = (number % self.volumes, seed ^ number as u64);
            let asking = ask(machine.clone(), address.clone(), volume, self.clone(), seed, done.clone());
            machine.spawn(Class::Io, "client", asking).detach();
        }
        world.run_for(Duration::from_micros(self.warm_up_us));
        let (begun, before) = (world.now(), done.get());
        world.run_for(Duration::from_micros(self.measured_us));
        let seconds = world.now().since(begun).as_secs_f64();
        Scaled { iops: (done.get() - before) as f64 / seconds, connections: node.connections()() }
    }

    /// What a loop pays.
    pub(super) fn cpu(&self) -> CpuOptions {
        CpuOptions {
            clock_ns: self.clock_ns,
            submit_ns: self.operation_ns,
            outcome_ns: self.operation_ns,
            turn_ns: self.turn_ns,
            socket_byte_ps: self.socket_byte_ps,
            file_ns: self.file_ns,
            request_ns: self.request_ns,
            service_ns: self.service_ns,
            crossing_ns: self.crossing_ns,
            lock_ns: self.lock_ns,
            ..CpuOptions::default()
        }
    }

    fn settings(&self, address: std::net::IpAddr, loops: u8, clients: Clients) -> Settings {
        let mut settings = Settings {
            directories: vec!["/disk/store".into()],
            memory: Size::Bytes(4 * base::GIB),
            engine: EngineSettings::default(),
            ..Settings::default()
        };
        settings.nbd.listen = (address, PORT).into();
        settings.api.is_off = true;
        settings.event_loop.count = Some(loops);
        settings.event_loop.gathers_clients = clients == Clients::Gathered;
        settings
    }
}

fn name_of(volume: usize) -> String {
    format!("v{volume}")
}

/// A connection that always has as many writes in flight.
async fn ask(handle: Handle, address: Address, volume: usize, charges: Charges, seed: u64, done: Rc<Cell<u64>>) {
    let connection = Connection::attach(&handle, &address, &name_of(volume)).await;
    let connection = connection.unwrap_or_else(|gone| panic!("a store without accidents answers: {gone:?}"));
    let len = charges.request_bytes;
    let (data, places) = (AlignedBuf::zeroed(len as usize).freeze(), charges.span_bytes / u64::from(len));
    for worker in 0..charges.depth as u64 {
        let (connection, data, done) = (connection.clone(), data.clone(), done.clone());
        let mut prng = Prng::new(seed << 8 | worker);
        let working = async move {
            loop {
                let offset = prng.below(places) * u64::from(len);
                let outcome = connection.ask(Command::Write, 0, offset, len, data.clone()).await;
                assert!(matches!(outcome, Ok(Reply::Done(_))), "a write without accidents: {outcome:?}");
                done.set(done.get() + 1);
            }
        };
        handle.spawn(Class::Io, "writer", working).detach();
    }
}
