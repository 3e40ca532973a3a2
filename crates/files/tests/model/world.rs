//! One seed: a world with disks, and lives of a store over them that end at any moment.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use base::{Error, Prng};
use files::Store;
use files::local::{self, LocalOptions};
use policies::ready::ReadySettings;
use runtime::sim::{DiskOptions, Fault, NodeId, NodeOptions, World};
use runtime::{Class, Handle};

use crate::clients::{CLIENTS, Client, Shared};
use crate::coverage::Coverage;
use crate::model::Model;

/// Lives of one store.
const LIVES: usize = 12;

/// Runs the lives of one seed, and adds what happened to `total`.
pub fn run_seed(seed: u64, total: &mut Coverage) {
    let mut prng = Prng::new(seed);
    let setup = Setup::new(seed, &mut prng);
    let mut gone = None;
    for _ in 0..LIVES {
        gone = setup.one_life(&mut prng, gone);
        for path in &setup.paths {
            setup.world.disk(setup.node, path).stop_injections();
        }
    }
    total.add(&setup.model.borrow().coverage);
}

/// Says what happens, if one seed is repeated.
pub fn trace(handle: &Handle, text: impl FnOnce() -> String) {
    if std::env::var("LEVEE_SEED").is_ok() {
        eprintln!("{:>12} {}", handle.now().0 / 1000, text());
    }
}

struct Setup {
    world: World,
    node: NodeId,
    paths: Vec<String>,
    copies: u8,
    /// How long nobody must have wanted the store before zeros are written ahead.
    quiet: Duration,
    model: Rc<RefCell<Model>>,
}

/// What a life shows to the outside.
#[derive(Clone, Default)]
struct Life {
    opened: Rc<RefCell<Option<Store>>>,
    refused: Rc<RefCell<Option<Error>>>,
    faulty: Rc<Cell<bool>>,
    resting: Rc<Cell<bool>>,
}

impl Life {
    /// The life of a process: opens, compares, recovers, then lets clients work.
    async fn live(self, handle: Handle, options: LocalOptions, model: Rc<RefCell<Model>>, mut prng: Prng) {
        let (store, report) = match local::open(&handle, options).await {
            Ok(opened) => opened,
            Err(error) => {
                *self.refused.borrow_mut() = Some(error);
                return;
            }
        };
        trace(&handle, || format!("life {} {report:?}", store.incarnation()));
        let shared = Shared { handle, store, model, faulty: self.faulty, resting: self.resting };
        shared.store.keep_ready(&[64 << 10, 32 << 10], u64::MAX);
        shared.compare().await;
        {
            let coverage = &mut shared.model.borrow_mut().coverage;
            coverage.swept += u32::from(report.swept > 0);
            coverage.seals_completed += u32::from(report.seals_completed > 0);
            coverage.returns += u32::from(report.notes.iter().any(|note| note.contains("resynchronized")));
        }
        shared.recover(&mut prng).await;
        *self.opened.borrow_mut() = Some(shared.store.clone());
        for number in 0..CLIENTS {
            let client = Client::new(shared.clone(), number, prng.fork());
            shared.handle.spawn(Class::Io, "client", client.work()).detach();
        }
    }

    fn is_open(&self) -> bool {
        self.opened.borrow().is_some()
    }
}

impl Setup {
    fn new(seed: u64, prng: &mut Prng) -> Setup {
        let world = World::new(seed);
        let disks = *prng.pick(&[1, 2, 2, 3]);
        let paths = (0..disks).map(|disk| format!("/{disk}")).collect::<Vec<_>>();
        let disk = DiskOptions { capacity: *prng.pick(&[1 << 20, 4 << 20]), ..DiskOptions::default() };
        let node = world.add_node(NodeOptions::with_disks(&paths, &disk));
        let quiet = Duration::from_micros(*prng.pick(&[0, 100, 10_000]));
        Setup { world, node, paths, copies: if disks > 1 { 2 } else { 1 }, quiet, model: Rc::default() }
    }

    fn options(&self) -> LocalOptions {
        let directories = self.paths.iter().map(|path| PathBuf::from(path).join("levee")).collect();
        let ready = ReadySettings { bytes_max: 1 << 20, bytes_per_sec: 1 << 30, quiet: self.quiet };
        LocalOptions { copies: self.copies, resync_bytes_per_sec: 1 << 30, ready, ..LocalOptions::new(directories) }
    }

    /// One life, with a fault in the middle perhaps. Gives the disk that vanished, if one is gone at its end.
    fn one_life(&self, prng: &mut Prng, mut gone: Option<usize>) -> Option<usize> {
        let world = &self.world;
        let handle = world.restart(self.node);
        let life = Life::default();
        life.faulty.set(gone.is_some());
        let process = life.clone().live(handle.clone(), self.options(), self.model.clone(), prng.fork());
        handle.spawn(Class::Io, "process", process).detach();
        let long = prng.one_in(8);
        if prng.one_in(5) {
            world.run_for(Duration::from_micros(1 << prng.between(5, 11)));
        } else {
            world.run_until(|| life.is_open() || life.refused.borrow().is_some());
            world.run_for(Duration::from_micros(if long { 20_000 } else { 1 << prng.between(5, 14) }));
        }
        if let Some(error) = &*life.refused.borrow() {
            trace(&handle, || format!("refused: {error}"));
            // Only because the disk that is gone was a member still, and nobody knows otherwise.
            assert!(gone.is_some() && error.message.contains("missing"), "{error}");
            self.model.borrow_mut().coverage.refused_starts += 1;
            self.bring_back(&mut gone);
            return None;
        }
        if self.may_fail(&life, gone) && prng.one_in(2) {
            gone = self.fail_a_disk(&handle, prng, &life);
            world.run_for(Duration::from_micros(1 << prng.between(5, 14)));
        }
        if long && life.is_open() {
            self.bring_back(&mut gone);
            self.rest(&life);
        }
        self.end_life(&handle, prng, &life);
        if gone.is_some() && prng.one_in(2) {
            self.bring_back(&mut gone);
        }
        gone
    }

    /// The disk that is gone, if one is, comes back.
    fn bring_back(&self, gone: &mut Option<usize>) {
        if let Some(disk) = gone.take() {
            self.world.disk(self.node, &self.paths[disk]).come_back();
        }
    }

    /// With no more work, and every disk there, the store gets well.
    fn rest(&self, life: &Life) {
        life.resting.set(true);
        self.world.run_for(Duration::from_secs(60));
        let opened = life.opened.borrow();
        let statistics = opened.as_ref().unwrap().statistics();
        let healthy = statistics.directories.iter().all(|directory| directory.state == "healthy");
        assert!(healthy, "{statistics:?}");
        self.model.borrow_mut().coverage.healthy_again += u32::from(life.faulty.get());
    }

    fn end_life(&self, handle: &Handle, prng: &mut Prng, life: &Life) {
        let kill = prng.one_in(2);
        trace(handle, || if kill { "kill".into() } else { "power loss".into() });
        {
            let coverage = &mut self.model.borrow_mut().coverage;
            coverage.lives += 1;
            coverage.ended_while_opening += u32::from(!life.is_open());
            coverage.kills += u32::from(kill);
            coverage.power_losses += u32::from(!kill);
        }
        match kill {
            true => self.world.kill(self.node),
            false => self.world.power_loss(self.node),
        }
    }

    /// Whether one more disk may fail: everything has all its copies.
    fn may_fail(&self, life: &Life, gone: Option<usize>) -> bool {
        let opened = life.opened.borrow();
        let Some(store) = &*opened else { return false };
        gone.is_none()
            && store.statistics().directories.iter().all(|directory| directory.state == "healthy")
            && store.list().iter().all(|info| info.copies == info.copies_wanted)
    }

    fn fail_a_disk(&self, handle: &Handle, prng: &mut Prng, life: &Life) -> Option<usize> {
        self.model.borrow_mut().coverage.disks_failed += 1;
        let index = prng.below(self.paths.len() as u64) as usize;
        let disk = self.world.disk(self.node, &self.paths[index]);
        life.faulty.set(true);
        let manner = if self.paths.len() > 1 { prng.below(4) } else { prng.between(1, 3) };
        trace(handle, || format!("disk {index} fails, manner {manner}"));
        match manner {
            0 => {
                disk.vanish();
                return Some(index);
            }
            1 => disk.inject(Fault::WriteError, prng.between(1, 3)),
            2 => disk.inject(Fault::SyncError, 1),
            _ => disk.inject(Fault::ReadError, prng.between(1, 3)),
        }
        None
    }
}
