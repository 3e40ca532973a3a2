//! One seed: lives of an engine over one store, and clients who check what they are told.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::{Error, Prng, Result, SECTOR, SegmentId};
use engine::Engine;
use files::{FileInfo, FileKind, Store};
use runtime::sim::{NodeId, World};
use runtime::{Class, Handle};

use super::bed::Bed;
use super::clients::{Share, Shared, check_all, client, discard, drop_again, write};
use super::coverage::Coverage;
use super::scenario::{Scenario, Settings};

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Close,
    Kill,
    PowerLoss,
}

/// Names the seed of a panic, also of one that comes from deep inside.
struct NameSeed(Scenario, u64);

impl Drop for NameSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (name, seed) = (self.0.name(), self.1);
            eprintln!("failed with LEVEE_SEED={seed} cargo test -p engine --test model {name}");
        }
    }
}

/// Says what the engine was waiting for when the world stood still.
struct Diagnose(Engine);

impl Drop for Diagnose {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0.diagnose());
        }
    }
}

/// One seed's world.
struct Run<'a> {
    scenario: Scenario,
    settings: Settings,
    world: World,
    node: NodeId,
    bed: Bed,
    share: Share,
    prng: Prng,
    /// Files that there were when somebody looked last.
    files: Vec<FileInfo>,
    coverage: &'a mut Coverage,
}

/// A life that has begun.
struct Life {
    handle: Handle,
    engine: Engine,
    store: Store,
    _diagnose: Diagnose,
}

type Opened = Result<(Engine, Store)>;

/// Runs one seed; panics if the engine answered wrongly.
pub fn run_seed(scenario: Scenario, seed: u64, coverage: &mut Coverage) {
    let _name = NameSeed(scenario, seed);
    let mut prng = Prng::new(seed);
    let settings = scenario.settings(&mut prng);
    let world = World::new(prng.next_u64());
    let (bed, node) = Bed::new(&world, &settings, &mut prng);
    let share = Rc::new(RefCell::new(Shared::new(&settings, prng.fork())));
    let mut run = Run { scenario, settings, world, node, bed, share, prng, files: Vec::new(), coverage };
    for life in 0..run.settings.lives {
        run.live(life);
    }
    if run.prng.one_in(4) {
        run.empty_the_store();
    }
    let shared = run.share.borrow();
    run.coverage.add("full_replies", shared.full_replies);
    run.coverage.add("failed_replies", shared.failed_replies);
    run.coverage.add("lost_replies", shared.lost_replies);
}

impl Run<'_> {
    fn fail(&self, what: &str) -> ! {
        panic!("{what}\n{:#?}", self.settings)
    }

    /// Does something with an engine, and fails with what is wrong.
    fn within<F: Future<Output = std::result::Result<(), String>> + 'static>(&self, handle: &Handle, act: F) {
        if let Err(failure) = self.world.block_on(handle, act) {
            self.fail(&failure);
        }
    }

    fn live(&mut self, number: usize) {
        self.share.borrow_mut().faulty = false;
        if self.scenario == Scenario::Faults && number > 0 && self.prng.one_in(2) {
            (0..self.prng.between(1, 4)).for_each(|_| self.inject());
        }
        // Now and then a life ends before it has begun.
        let patience = (number > 0 && self.prng.one_in(5)).then(|| 1 << self.prng.between(10, 23));
        let Some(life) = self.open(patience) else {
            let end = if self.prng.one_in(2) { End::Kill } else { End::PowerLoss };
            return self.end(end);
        };
        self.coverage.add("recoveries", u64::from(number > 0));
        self.share.borrow_mut().sectors.on_recovered();
        self.drop_again(&life);
        self.check(&life);
        if self.settings.loses_content && self.prng.one_in(2) && self.bed.lose(&life.store, &mut self.prng) {
            self.share.borrow_mut().lost = true;
            self.coverage.add("lost_ranges", 1);
        }
        let end = match self.prng.below(5) {
            0 => End::Close,
            1 | 2 => End::Kill,
            _ => End::PowerLoss,
        };
        self.work(&life, end);
        if end == End::Close {
            self.end_faults();
            self.check(&life);
            self.close(&life);
        }
        self.share.borrow_mut().on_life(&life.engine);
        let verify = life.engine.statistics().verify;
        if self.scenario.is_sound() && (verify.lost > 0 || verify.mismatches > 0) {
            self.fail(&format!("nothing is wrong with any file, but: {verify:?}"));
        }
        self.coverage.add_life(&life.engine.statistics());
        drop(life);
        self.end(end);
    }

    /// Starts a life; gives up after `patience` nanoseconds, or where something that was made to fail is in the way.
    fn open(&mut self, patience: Option<u64>) -> Option<Life> {
        let handle = self.world.restart(self.node);
        let slot: Rc<RefCell<Option<Opened>>> = Rc::default();
        let (inside, bed, options, opened) =
            (handle.clone(), self.bed.clone(), self.settings.options.clone(), slot.clone());
        let open = async move {
            let result = async {
                let store = bed.open(&inside, options.copies).await?;
                let engine = Engine::open(&inside, &store, options).await?;
                engine.set_provisioned(store.space().capacity);
                Ok::<_, Error>((engine, store))
            };
            let result = result.await;
            *opened.borrow_mut() = Some(result);
        };
        handle.spawn(Class::Io, "open", open).detach();
        match patience {
            Some(nanos) => self.world.run_for(Duration::from_nanos(nanos)),
            None => self.world.run_until(|| slot.borrow().is_some()),
        }
        let opened = slot.borrow_mut().take();
        match opened {
            None => self.coverage.add("ended_while_opening", 1),
            Some(Ok((engine, store))) => {
                let _diagnose = Diagnose(engine.clone());
                return Some(Life { handle, engine, store, _diagnose });
            }
            Some(Err(_)) if self.share.borrow().faulty => self.coverage.add("failed_opens", 1),
            // What the killed process has in flight takes longer on a slow disk than a start waits.
            Some(Err(error)) if error.message.contains("try again in a moment") => self.coverage.add("early_opens", 1),
            Some(Err(error)) => self.fail(&format!("the engine does not open: {error}")),
        }
        None
    }

    /// See [`drop_again`].
    fn drop_again(&self, life: &Life) {
        let (engine, share) = (life.engine.clone(), self.share.clone());
        self.within(&life.handle, async move { drop_again(&engine, &share).await });
    }

    /// Reads everything.
    fn check(&self, life: &Life) {
        let (engine, share) = (life.engine.clone(), self.share.clone());
        self.within(&life.handle, async move { check_all(&engine, &share).await });
    }

    /// Clients work until their operations are done, or until the life ends in the middle of them.
    fn work(&mut self, life: &Life, end: End) {
        let (clients, operations) = {
            let mut shared = self.share.borrow_mut();
            shared.operations_left = self.prng.between(1, shared.settings.operations);
            shared.running = shared.settings.clients;
            (shared.settings.clients, shared.operations_left)
        };
        for _ in 0..clients {
            let work = client(life.engine.clone(), self.share.clone(), life.handle.clone());
            life.handle.spawn(Class::Io, "client", work).detach();
        }
        let stop_at = if end == End::Close { 0 } else { self.prng.below(operations) };
        loop {
            // In pieces, with something wrong between them.
            let next = self.share.borrow().operations_left.saturating_sub(self.prng.between(1, 40)).max(stop_at);
            let share = self.share.clone();
            self.world.run_until(|| {
                let shared = share.borrow();
                shared.running == 0 || shared.failure.is_some() || (shared.operations_left <= next && next > 0)
            });
            self.check_failure();
            self.files = life.store.list();
            let journals = self.files.iter().filter(|file| file.kind == FileKind::Journal).count();
            if journals > self.settings.options.journal_files {
                self.fail(&format!("{journals} journal files"));
            }
            if share.borrow().running == 0 || (end != End::Close && share.borrow().operations_left <= stop_at) {
                break;
            }
            match self.scenario {
                Scenario::Faults if self.prng.one_in(2) => self.inject(),
                Scenario::BadCopies => {
                    let spoiled = self.bed.spoil(&life.store, &mut self.prng);
                    self.coverage.add("spoiled", u64::from(spoiled));
                }
                _ => {}
            }
        }
        if end != End::Close {
            self.world.run_for(Duration::from_nanos(self.prng.below(3_000_000)));
            self.files = life.store.list();
            self.check_failure();
        }
    }

    fn check_failure(&self) {
        let failure = self.share.borrow_mut().failure.take();
        if let Some(failure) = failure {
            self.fail(&failure);
        }
    }

    /// Something fails from now on.
    fn inject(&mut self) {
        self.share.borrow_mut().faulty = true;
        let name = self.bed.fail(&self.files, &mut self.prng);
        self.coverage.add(name, 1);
    }

    fn close(&self, life: &Life) {
        let engine = life.engine.clone();
        match self.world.block_on(&life.handle, async move { engine.close().await }) {
            Ok(()) => {
                // Dumps of volumes that are gone give up by themselves.
                self.world.run_for(Duration::from_secs(10));
                let dirty = life.engine.statistics().dirty_bytes;
                if dirty != 0 {
                    self.fail(&format!("{dirty} dirty bytes after the close"));
                }
            }
            Err(_) if self.share.borrow().faulty => {}
            Err(error) => self.fail(&format!("the engine does not close: {error}")),
        }
    }

    fn end(&mut self, end: End) {
        self.check_failure();
        match end {
            End::Close => self.coverage.add("closes", 1),
            End::Kill => {
                self.coverage.add("kills", 1);
                self.bed.kill(&self.world, self.node);
            }
            End::PowerLoss => {
                self.coverage.add("power_losses", 1);
                self.bed.power_loss(&self.world, self.node);
            }
        }
        self.end_faults();
    }

    fn end_faults(&self) {
        // What is bad in one copy stays bad.
        if self.scenario == Scenario::Faults {
            self.bed.end_faults();
        }
    }

    /// Discards everything: then there is room to write again, whatever the store was filled with before.
    fn empty_the_store(&mut self) {
        self.share.borrow_mut().faulty = false;
        let Some(life) = self.open(None) else { return };
        self.share.borrow_mut().sectors.on_recovered();
        self.drop_again(&life);
        let (engine, share) = (life.engine.clone(), self.share.clone());
        self.within(&life.handle, async move {
            let (segments, sectors) = (share.borrow().segments(), share.borrow().settings.sectors.clone());
            for segment in &segments {
                discard(&engine, &share, *segment, sectors.clone()).await?;
            }
            for segment in segments {
                fill(&engine, &share, segment).await?;
            }
            Ok(())
        });
        self.check(&life);
        self.coverage.add("emptied", 1);
        self.coverage.add_life(&life.engine.statistics());
    }
}

/// Writes to a segment, up to half of what certainly fits into the store.
async fn fill(engine: &Engine, share: &Share, segment: SegmentId) -> std::result::Result<(), String> {
    const STEP: u64 = 64;
    let sectors = share.borrow().settings.sectors.clone();
    for start in sectors.clone().step_by(STEP as usize) {
        let (written, room) = (share.borrow().sectors.data_blocks() * base::BLOCK, share.borrow().settings.room);
        if written + STEP * SECTOR > room / 2 {
            return Ok(());
        }
        write(engine, share, segment, start..(start + STEP).min(sectors.end)).await?;
    }
    Ok(())
}
