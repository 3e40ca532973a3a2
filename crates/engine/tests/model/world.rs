//! One seed: lives of an engine over one store, and clients who check what they read.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::io::fragment_checksums;
use base::{AlignedBuf, ErrorKind, Generation, Prng, ReadPart, SECTOR, SegmentId, VolumeId, WriteSequence, WriteStamp};
use engine::Engine;
use files::memory::{Memory, MemoryOptions};
use runtime::sim::{NodeOptions, World};
use runtime::{Class, Handle};

use super::coverage::Coverage;
use super::scenario::{Scenario, Settings};
use super::sectors::{Sectors, encode};

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Close,
    Kill,
    PowerLoss,
}

/// What clients share, and what outlives them.
struct Shared {
    sectors: Sectors,
    prng: Prng,
    volumes: Vec<VolumeId>,
    next_volume: u64,
    next_write: u64,
    operations_left: u64,
    running: usize,
    failure: Option<String>,
    settings: Settings,
    full_replies: u64,
}

type Share = Rc<RefCell<Shared>>;

/// Names the seed of a panic that comes from deep inside.
struct NameSeed(Scenario, u64);

impl Drop for NameSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the panic was in {:?} seed {}: run with ENGINE_MODEL_SEED={}", self.0, self.1, self.1);
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

/// Runs one seed; panics with the seed if the engine answered wrongly.
pub fn run_seed(scenario: Scenario, seed: u64, coverage: &mut Coverage) {
    let _name = NameSeed(scenario, seed);
    let mut prng = Prng::new(seed);
    let settings = scenario.settings(&mut prng);
    let world = World::new(prng.next_u64());
    let node = world.add_node(NodeOptions::default());
    let memory_options = MemoryOptions {
        capacity: settings.capacity,
        directories: settings.directories,
        latency_ns: settings.latency_ns.clone(),
    };
    let memory = Memory::new(prng.next_u64(), memory_options);
    let share = Rc::new(RefCell::new(Shared {
        sectors: Sectors::new(),
        prng: prng.fork(),
        volumes: (1..=settings.volumes as u64).map(VolumeId).collect(),
        next_volume: settings.volumes as u64 + 1,
        next_write: 1,
        operations_left: 0,
        running: 0,
        failure: None,
        settings: settings.clone(),
        full_replies: 0,
    }));
    let fail = |what: String| -> ! { panic!("{scenario:?} seed {seed}: {what}\n{settings:#?}") };
    for life in 0..settings.lives {
        let handle = world.restart(node);
        let store = memory.open(&handle);
        let (inside, options) = (handle.clone(), settings.options.clone());
        let engine = world.block_on(&handle, async move { Engine::open(&inside, &store, options).await });
        let engine = match engine {
            Ok(engine) => engine,
            Err(error) => fail(format!("life {life} does not start: {error}")),
        };
        share.borrow_mut().sectors.on_recovered();
        if life > 0 {
            coverage.add("recoveries", 1);
            check_all(&world, &handle, &engine, &share);
        }
        let diagnose = Diagnose(engine.clone());
        let end = match prng.below(5) {
            0 => End::Close,
            1 | 2 => End::Kill,
            _ => End::PowerLoss,
        };
        live(&world, &handle, &engine, &share, &mut prng, end);
        if let Some(failure) = share.borrow_mut().failure.take() {
            fail(format!("life {life}: {failure}"));
        }
        if end == End::Close {
            check_all(&world, &handle, &engine, &share);
            let closing = engine.clone();
            if let Err(error) = world.block_on(&handle, async move { closing.close().await }) {
                fail(format!("life {life} does not close: {error}"));
            }
            let dirty = engine.statistics().dirty_bytes;
            if dirty != 0 {
                fail(format!("life {life}: {dirty} dirty bytes after the close"));
            }
        }
        if let Some(failure) = share.borrow_mut().failure.take() {
            fail(format!("life {life}: {failure}"));
        }
        coverage.add_life(&engine.statistics());
        drop((engine, diagnose));
        match end {
            End::Close => coverage.add("closes", 1),
            End::Kill => {
                coverage.add("kills", 1);
                memory.kill();
                world.kill(node);
            }
            End::PowerLoss => {
                coverage.add("power_losses", 1);
                memory.power_loss();
                world.power_loss(node);
            }
        }
    }
    coverage.add("full_replies", share.borrow().full_replies);
}

/// Clients work until their operations are done, or until the life ends in the middle of them.
fn live(world: &World, handle: &Handle, engine: &Engine, share: &Share, prng: &mut Prng, end: End) {
    let (clients, operations) = {
        let mut shared = share.borrow_mut();
        shared.operations_left = prng.between(1, shared.settings.operations);
        shared.running = shared.settings.clients;
        (shared.settings.clients, shared.operations_left)
    };
    for _ in 0..clients {
        let (engine, share, handle_inside) = (engine.clone(), share.clone(), handle.clone());
        let work = async move { client(engine, share, handle_inside).await };
        handle.spawn(Class::Io, "client", work).detach();
    }
    let stop_at = match end {
        End::Close => 0,
        _ => prng.below(operations),
    };
    let done = || {
        let shared = share.borrow();
        shared.running == 0 || shared.failure.is_some() || (end != End::Close && shared.operations_left <= stop_at)
    };
    world.run_until(done);
    if end != End::Close && share.borrow().failure.is_none() {
        world.run_for(Duration::from_nanos(prng.below(3_000_000)));
    }
}

async fn client(engine: Engine, share: Share, handle: Handle) {
    loop {
        let pause = {
            let mut shared = share.borrow_mut();
            if shared.operations_left == 0 || shared.failure.is_some() {
                break;
            }
            shared.operations_left -= 1;
            shared.prng.one_in(8).then(|| shared.prng.below(5_000_000))
        };
        if let Some(pause) = pause {
            handle.sleep(Duration::from_nanos(pause)).await;
        }
        if let Err(failure) = operate(&engine, &share).await {
            share.borrow_mut().failure.get_or_insert(failure);
        }
    }
    share.borrow_mut().running -= 1;
}

enum Operation {
    Read,
    Write { sectors: u64 },
    Discard,
    DropVolume,
}

impl Shared {
    fn pick(&mut self) -> Operation {
        let mix = self.settings.mix;
        let weights = [mix.read * 8, mix.small_write * 8, mix.large_write * 8, mix.discard * 8, mix.drop_volume];
        let mut at = self.prng.below(weights.iter().sum());
        let index = weights.iter().position(|&weight| {
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        });
        match index {
            Some(0) => Operation::Read,
            Some(1) => Operation::Write { sectors: self.prng.between(1, 24) },
            Some(2) => Operation::Write { sectors: self.prng.between(16, 320) },
            Some(3) => Operation::Discard,
            _ => Operation::DropVolume,
        }
    }

    fn segment(&mut self) -> SegmentId {
        let volume = *self.prng.pick(&self.volumes);
        SegmentId { volume, index: self.prng.below(u64::from(self.settings.segments)) as u32 }
    }

    /// A range of sectors, often of whole blocks.
    fn range(&mut self, len: u64) -> std::ops::Range<u64> {
        let all = self.settings.sectors;
        let mut len = len.min(all);
        let mut start = self.prng.below(all - len + 1);
        if self.prng.one_in(2) {
            start = start / 8 * 8;
            len = len.next_multiple_of(8).min(all - start);
        }
        start..start + len
    }

    fn stamp(&mut self) -> WriteStamp {
        self.next_write += 1;
        WriteStamp { generation: Generation(1), sequence: WriteSequence(self.next_write), ..WriteStamp::default() }
    }
}

async fn operate(engine: &Engine, share: &Share) -> Result<(), String> {
    let operation = share.borrow_mut().pick();
    match operation {
        Operation::Read => {
            let (segment, range) = {
                let mut shared = share.borrow_mut();
                let len = shared.prng.between(1, 128);
                (shared.segment(), shared.range(len))
            };
            read(engine, share, segment, range).await
        }
        Operation::Write { sectors } => {
            let (segment, range) = {
                let mut shared = share.borrow_mut();
                (shared.segment(), shared.range(sectors))
            };
            write(engine, share, segment, range).await
        }
        Operation::Discard => discard(engine, share).await,
        Operation::DropVolume => drop_volume(engine, share).await,
    }
}

async fn write(engine: &Engine, share: &Share, segment: SegmentId, range: std::ops::Range<u64>) -> Result<(), String> {
    let (op, stamp) = {
        let mut shared = share.borrow_mut();
        (shared.sectors.begin_write(segment, range.clone(), false), shared.stamp())
    };
    let mut data = AlignedBuf::zeroed(((range.end - range.start) * SECTOR) as usize);
    for (sector, out) in range.clone().zip(data.chunks_exact_mut(SECTOR as usize)) {
        encode(op, segment, sector, out);
    }
    let checksums = fragment_checksums(segment, range.start * SECTOR, &data);
    let outcome = engine.write(segment, range.start * SECTOR, data.freeze(), checksums, stamp).await;
    on_outcome(share, op, segment, "write", outcome)
}

async fn discard(engine: &Engine, share: &Share) -> Result<(), String> {
    let (op, segment, range, stamp) = {
        let mut shared = share.borrow_mut();
        let len = match shared.prng.one_in(4) {
            true => shared.settings.sectors,
            false => shared.prng.between(1, 128),
        };
        let (segment, range) = (shared.segment(), shared.range(len));
        (shared.sectors.begin_write(segment, range.clone(), true), segment, range, shared.stamp())
    };
    let len = (range.end - range.start) * SECTOR;
    let outcome = engine.discard(segment, range.start * SECTOR, len, stamp).await;
    on_outcome(share, op, segment, "discard", outcome)
}

fn on_outcome(share: &Share, op: u64, segment: SegmentId, what: &str, outcome: base::Result<()>) -> Result<(), String> {
    let mut shared = share.borrow_mut();
    match outcome {
        Ok(()) => shared.sectors.on_acknowledged(op),
        Err(error) if error.kind == ErrorKind::Full && what == "write" => shared.full_replies += 1,
        Err(error) if error.kind == ErrorKind::NotFound && !shared.volumes.contains(&segment.volume) => {}
        Err(error) => return Err(format!("a {what} to {segment} failed: {error}")),
    }
    Ok(())
}

async fn read(engine: &Engine, share: &Share, segment: SegmentId, range: std::ops::Range<u64>) -> Result<(), String> {
    let token = share.borrow_mut().sectors.begin_read(segment, range.clone());
    let len = (range.end - range.start) * SECTOR;
    let outcome = engine.read(segment, range.start * SECTOR, len).await;
    let mut shared = share.borrow_mut();
    if !shared.volumes.contains(&segment.volume) {
        return Ok(());
    }
    let parts = outcome.map_err(|error| format!("a read of {segment} failed: {error}"))?;
    let mut data = Vec::with_capacity(len as usize);
    for part in parts {
        match part {
            ReadPart::Data(bytes) => data.extend_from_slice(&bytes),
            ReadPart::Zeros(len) => data.resize(data.len() + len as usize, 0),
        }
    }
    shared.sectors.end_read(&token, &data)
}

async fn drop_volume(engine: &Engine, share: &Share) -> Result<(), String> {
    let volume = {
        let mut shared = share.borrow_mut();
        let count = shared.volumes.len() as u64;
        let index = shared.prng.below(count) as usize;
        let new = VolumeId(shared.next_volume);
        shared.next_volume += 1;
        std::mem::replace(&mut shared.volumes[index], new)
    };
    share.borrow_mut().sectors.forget_volume(volume);
    engine.drop_volume(volume).await.map_err(|error| format!("volume {volume} was not dropped: {error}"))
}

/// Reads everything.
fn check_all(world: &World, handle: &Handle, engine: &Engine, share: &Share) {
    let (engine, share) = (engine.clone(), share.clone());
    world.block_on(handle, async move {
        let (volumes, settings) = {
            let shared = share.borrow();
            (shared.volumes.clone(), shared.settings.clone())
        };
        for volume in volumes {
            for index in 0..settings.segments {
                let segment = SegmentId { volume, index };
                for start in (0..settings.sectors).step_by(128) {
                    let end = (start + 128).min(settings.sectors);
                    if let Err(failure) = read(&engine, &share, segment, start..end).await {
                        share.borrow_mut().failure.get_or_insert(failure);
                    }
                }
            }
        }
    });
}
