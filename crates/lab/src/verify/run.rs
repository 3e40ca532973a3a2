//! One run: a world with a server and its clients, a plan, and the questions at its end.
//!
//! Flow: the store starts; workers take the steps of the plan; accidents are carried out from here, between two events
//! of the world, each followed by its own end (a restart, a mended link). When the steps are done everything is healed,
//! and the store must prove itself: it takes requests again, survives a clean restart, returns every sector as its
//! history demands, looks intact to an offline inspection, and gives back all files when its volumes are deleted.
//!
//! Everything that is random comes from the plan or from the world's seed: the same plan gives the same history.

mod hands;
mod proof;
mod rot;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use node::settings::EngineSettings;
use node::{Node, Settings};
use runtime::sim::{DiskOptions, DiskSnapshot, NetworkOptions, NodeId, NodeOptions, SimDisk, World};
use runtime::{Address, Class};
use wire::api::Size;

use self::hands::Hands;
use self::rot::rot;
use super::clients::Client;
use super::coverage::Coverage;
use super::plan::{Fault, Plan, Promise};
use super::shared::{Share, Shared};

/// The port of the server.
const PORT: u16 = 10809;
/// How long a start may take when nothing is wrong any more.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// How long a clean stop may take.
const STOP_PATIENCE: Duration = Duration::from_secs(120);
/// The pause before a start that was refused is tried again: each further one is twice as long, up to a limit.
const START_PAUSE: Duration = Duration::from_millis(50);
const START_PAUSE_MAX: Duration = Duration::from_secs(5);
/// So many refusals in a row, over half a minute, are for good.
const REFUSED_MAX: u32 = 12;
/// So long after it began, every accident is over.
const QUIET: Duration = Duration::from_secs(10);
/// Journal files that the engine may have.
const JOURNAL_FILES: usize = 4;
/// How fast copies are read to see whether they are right: a world holds a few MiB.
const SCRUB_BYTES_PER_SEC: u64 = 64 * base::MIB;

/// Carries the plan of one server out in a fresh world.
pub fn run(world: &World, plan: &Plan) -> (Coverage, Option<String>) {
    let mut run = Run::new(world, plan);
    run.work();
    run.prove();
    let mut shared = run.share.borrow_mut();
    shared.coverage.alone = 1;
    shared.conclude(world.now())
}

/// The server's process.
enum Server {
    Down,
    /// Which life it is, and when it began.
    Starting,
    Up(Box<Node>),
}

/// What callbacks of the world share with the run.
struct State {
    server: Server,
    /// Counts starts, so that an accident meant for one life does not end another.
    life: u64,
    /// Why the last start was refused.
    refusal: Option<String>,
    /// Whether it was the last one that began.
    is_refused: bool,
    /// The pause before the next try, and how many were refused in a row.
    pause: Duration,
    refused: u32,
    /// What the disk that may misbehave held some time ago.
    snapshot: Option<DiskSnapshot>,
    /// A disk returned as it was some time ago.
    is_stale: bool,
    /// The next start brings an older directory up to date.
    override_next: bool,
    /// What goes wrong when the store has been stopped.
    at_rest: Option<Fault>,
}

struct Run {
    world: World,
    plan: Plan,
    server: NodeId,
    clients: NodeId,
    settings: Rc<Settings>,
    disks: Rc<Vec<SimDisk>>,
    share: Share,
    state: Rc<RefCell<State>>,
    users: Rc<[Rc<Client>]>,
}

impl Run {
    fn new(world: &World, plan: &Plan) -> Run {
        let shape = &plan.shape;
        world.set_network(NetworkOptions { loss_one_in: shape.packet_loss_one_in, ..NetworkOptions::default() });
        let disk = DiskOptions {
            latency: shape.disk_latency,
            jitter_percent: shape.disk_jitter_percent,
            capacity: shape.disk_bytes,
            ..DiskOptions::default()
        };
        let paths: Vec<PathBuf> = (0..shape.disks).map(|i| format!("/disk{i}").into()).collect();
        let server = world.add_node(NodeOptions::with_disks(paths.clone(), &disk));
        let clients = world.add_node(NodeOptions::default());
        let address = world.address(server);
        let mut settings = Settings {
            directories: paths.iter().map(|path| path.join("levee")).collect(),
            copies: Some(shape.copies),
            memory: Size::Bytes(base::limits::MEMORY_MIN * u64::from(shape.loops)),
            engine: EngineSettings {
                journal_file: Size::Bytes(shape.journal_file_bytes),
                journal_files: JOURNAL_FILES,
                data_file: Size::Bytes(shape.data_file_bytes),
                segment_cache: Size::Bytes(shape.segment_cache_bytes),
                memtable_bytes: Some(shape.memtable_bytes),
                transaction_file_bytes: Some(shape.transaction_file_bytes),
                large_write: Size::Bytes(shape.large_write_bytes),
                scrub_rate: Size::Bytes(SCRUB_BYTES_PER_SEC),
                scrub_period: shape.scrub_period,
                zero_ahead: Size::Bytes(shape.zero_ahead.0),
                zero_quiet: Some(shape.zero_ahead.1),
                ..EngineSettings::default()
            },
            ..Settings::default()
        };
        settings.admission.throttle = shape.throttle;
        settings.admission.bandwidth = shape.bandwidth.map(Size::Bytes);
        settings.nbd.listen = (address, PORT).into();
        settings.api.is_off = true;
        settings.event_loop.count = Some(shape.loops);
        settings.vhost.queues = shape.queues;
        settings.tenants.limit = shape.limit.map(Size::Bytes);
        let nbd = Address::Tcp((address, PORT).into());
        let share = Rc::new(RefCell::new(Shared::new(plan, [nbd])));
        let handle = world.start_loop(clients);
        let state = State {
            server: Server::Down,
            life: 0,
            refusal: None,
            is_refused: false,
            pause: START_PAUSE,
            refused: 0,
            snapshot: None,
            is_stale: false,
            override_next: false,
            at_rest: None,
        };
        Run {
            world: world.clone(),
            server,
            clients,
            settings: Rc::new(settings),
            disks: Rc::new(paths.iter().map(|path| world.disk(server, path)).collect()),
            users: (0..shape.clients).map(|number| Client::new(&handle, &share, number)).collect(),
            share,
            state: Rc::new(RefCell::new(state)),
            plan: plan.clone(),
        }
    }

    /// The steps of the plan.
    fn work(&mut self) {
        self.hands().start(&self.world);
        self.wait_until_up();
        for client in self.users.iter() {
            for _ in 0..client.depth() {
                self.share.borrow_mut().workers += 1;
                client.handle().spawn(Class::Io, "lab worker", client.clone().work()).detach();
            }
        }
        loop {
            let share = self.share.clone();
            self.world.run_until(|| {
                let shared = share.borrow();
                shared.workers == 0 || !shared.accidents.is_empty() || shared.restart_wanted
            });
            let accidents = std::mem::take(&mut self.share.borrow_mut().accidents);
            for (fault, after) in accidents {
                let hands = self.hands();
                self.world.after(after, move |world| hands.cause(world, &fault));
            }
            if std::mem::take(&mut self.share.borrow_mut().restart_wanted) {
                self.restart_cleanly();
            }
            if self.share.borrow().workers == 0 {
                break;
            }
        }
    }

    fn promise(&self) -> Promise {
        self.plan.shape.promise
    }

    fn is_over(&self) -> bool {
        self.share.borrow().violation.is_some()
    }

    fn hands(&self) -> Hands {
        Hands {
            server: self.server,
            clients: self.clients,
            client_handle: self.users[0].handle().clone(),
            users: self.users.clone(),
            settings: self.settings.clone(),
            disks: self.disks.clone(),
            bad_disk: self.plan.shape.bad_disk,
            disk_bytes: self.plan.shape.disk_bytes,
            promise: self.plan.shape.promise,
            share: self.share.clone(),
            state: self.state.clone(),
        }
    }

    /// Ends everything that is wrong.
    fn heal(&self) {
        // Accidents that were still to come, and the ends of others.
        self.world.run_for(Duration::from_secs(5));
        self.state.borrow_mut().at_rest = None;
        self.world.heal(self.server, self.clients);
        self.world.set_clock_drift(self.server, 0);
        for disk in &*self.disks {
            disk.stop_injections();
            disk.set_slowness(1);
            disk.set_capacity(self.plan.shape.disk_bytes);
            disk.come_back();
        }
        self.world.set_network(NetworkOptions::default());
    }

    /// Waits for the store; says whether it came up. Where it may refuse to start for good, it need not.
    fn wait_until_up(&self) -> bool {
        let deadline = self.world.now() + START_PATIENCE;
        let (state, world, share) = (self.state.clone(), self.world.clone(), self.share.clone());
        self.world.run_until(|| {
            matches!(state.borrow().server, Server::Up(_))
                || world.now() > deadline
                || share.borrow().violation.is_some()
        });
        if matches!(self.state.borrow().server, Server::Up(_)) {
            return true;
        }
        let refusal = self.state.borrow().refusal.clone();
        let mut shared = self.share.borrow_mut();
        match refusal {
            Some(_) if shared.may_refuse => shared.coverage.refused_starts += 1,
            Some(refusal) => shared.fail(format!("the store does not start although nothing is wrong: {refusal}")),
            None => shared.fail(format!("a start did not end within {START_PATIENCE:?}")),
        }
        false
    }

    /// Stops the store; says whether it did.
    fn stop(&self) -> bool {
        let node = {
            let mut state = self.state.borrow_mut();
            match std::mem::replace(&mut state.server, Server::Down) {
                Server::Up(node) => node,
                other => {
                    // A crash came first.
                    state.server = other;
                    return false;
                }
            }
        };
        let handle = self.share.borrow_mut().store.take().map(|store| store.handle);
        let Some(handle) = handle else { return false };
        self.hands().set_door(None);
        let stopped = Rc::new(RefCell::new(None));
        let result = stopped.clone();
        let stopping = async move { *result.borrow_mut() = Some(node.stop().await) };
        handle.spawn(Class::Io, "lab stop", stopping).detach();
        let (life, state) = (self.state.borrow().life, self.state.clone());
        // A kill that was on its way may come first; its restart then makes another life.
        let (world, deadline) = (&self.world, self.world.now() + STOP_PATIENCE);
        world.run_until(|| stopped.borrow().is_some() || state.borrow().life != life || world.now() > deadline);
        let Some(result) = stopped.borrow_mut().take() else {
            if state.borrow().life == life {
                if self.promise() != Promise::NeverWrong {
                    self.share.borrow_mut().fail(format!("a clean stop did not end within {STOP_PATIENCE:?}"));
                }
                // The operator loses patience.
                self.world.kill(self.server);
                return true;
            }
            return false;
        };
        let mut shared = self.share.borrow_mut();
        match result {
            Err(error) if !shared.errors_allowed && !shared.full_allowed => {
                shared.fail(format!("a clean stop failed: {error}"));
            }
            Err(_) => shared.coverage.restarts += 1,
            Ok(()) => {
                shared.coverage.restarts += 1;
                if let Some(Fault::Rot { disk, reach, places, seed }) = state.borrow_mut().at_rest.take() {
                    rot(&self.disks[disk], reach, places, seed);
                }
            }
        }
        true
    }

    fn restart_cleanly(&self) {
        if self.stop() {
            self.hands().start(&self.world);
        }
    }
}
