//! The server over an engine that takes its time, in the simulated world.

use std::collections::BTreeMap;
use std::time::Duration;

use base::levels::{Level, Levels, Rate};
use base::{Epoch, MIB, Prng, SegmentId, WriteSequence};
use policies::admission::{Reason, Throttle, Waits};
use runtime::sim::{NodeOptions, World};
use runtime::{Class, Task};

use super::*;

/// An engine that forgets what it is told, after a random time, and watches who writes.
struct Slow {
    handle: Handle,
    delay_us_max: u64,
    in_flight: RefCell<BTreeMap<Generation, usize>>,
    in_flight_max: Cell<usize>,
    log: RefCell<Vec<String>>,
    fails: Cell<Option<ErrorKind>>,
    epoch: Cell<Option<Epoch>>,
}

impl Slow {
    async fn work(&self, what: String, stamp: Option<WriteStamp>) -> Result<()> {
        self.log.borrow_mut().push(what);
        if let Some(stamp) = stamp {
            *self.in_flight.borrow_mut().entry(stamp.generation).or_default() += 1;
            let in_flight = self.in_flight.borrow();
            assert!(in_flight.values().filter(|&&n| n > 0).count() <= 1, "two generations at once: {in_flight:?}");
            self.in_flight_max.set(self.in_flight_max.get().max(in_flight.values().sum()));
        }
        let micros = self.handle.random_u64() % self.delay_us_max;
        self.handle.sleep(Duration::from_micros(micros)).await;
        if let Some(stamp) = stamp {
            *self.in_flight.borrow_mut().get_mut(&stamp.generation).unwrap() -= 1;
        }
        match self.fails.get() {
            Some(kind) => Err(Error { kind, message: "as the test wants it".into() }),
            None => Ok(()),
        }
    }
}

impl Backend for Rc<Slow> {
    async fn read(&self, segment: SegmentId, offset: u64, len: u64, _: &mut Passage) -> Result<Vec<ReadPart>> {
        self.work(format!("read {segment} {offset} {len}"), None).await?;
        Ok(vec![ReadPart::Zeros(len)])
    }

    async fn write(
        &self,
        segment: SegmentId,
        offset: u64,
        data: Bytes,
        _checksums: Vec<u32>,
        stamp: WriteStamp,
        _: &mut Passage,
    ) -> Result<()> {
        self.work(format!("write {segment} {offset} {}", data.len()), Some(stamp)).await
    }

    async fn discard(&self, segment: SegmentId, offset: u64, len: u64, stamp: WriteStamp) -> Result<()> {
        self.work(format!("discard {segment} {offset} {len}"), Some(stamp)).await
    }

    async fn allocation(
        &self,
        _segment: SegmentId,
        _offset: u64,
        len: u64,
        _extents_max: usize,
    ) -> Result<Vec<AllocationExtent>> {
        Ok(vec![AllocationExtent { len, allocated: false }])
    }

    fn epoch(&self, _segment: SegmentId) -> Option<Epoch> {
        self.epoch.get()
    }

    async fn drop_volume(&self, volume: VolumeId) -> Result<()> {
        self.work(format!("drop {volume}"), None).await
    }
}

/// Volumes of a table that a test changes.
#[derive(Default)]
struct Volumes(RefCell<BTreeMap<VolumeId, VolumeDescriptor>>);

impl Volumes {
    fn add(&self, id: u64) -> VolumeId {
        let id = VolumeId(id);
        self.0.borrow_mut().insert(id, VolumeDescriptor::new(id, format!("disk{}", id.0), MIB));
        id
    }

    fn next_generation(&self, id: VolumeId) -> Generation {
        let mut volumes = self.0.borrow_mut();
        let volume = volumes.get_mut(&id).unwrap();
        volume.generation.0 += 1;
        volume.generation
    }

    fn get(&self, id: VolumeId) -> Result<VolumeDescriptor> {
        self.0.borrow().get(&id).cloned().ok_or_else(|| Error::not_found(format!("no volume {id}")))
    }
}

impl VolumeDirectory for Volumes {
    fn resolve<'a>(&'a self, _name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        unimplemented!("a server knows ids only")
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move { self.get(volume) })
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        unimplemented!("a server knows ids only")
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move {
            self.next_generation(volume);
            self.get(volume)
        })
    }

    fn detach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

struct Fixture {
    world: World,
    handle: Handle,
    engine: Rc<Slow>,
    volumes: Rc<Volumes>,
    server: Rc<Server<Rc<Slow>>>,
}

fn fixture(seed: u64, options: Options) -> Fixture {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let engine = Rc::new(Slow {
        handle: handle.clone(),
        delay_us_max: 500,
        in_flight: RefCell::default(),
        in_flight_max: Cell::default(),
        log: RefCell::default(),
        fails: Cell::default(),
        epoch: Cell::new(Some(engine::EPOCH)),
    });
    let volumes = Rc::new(Volumes::default());
    let server = Server::new(&handle, engine.clone(), volumes.clone(), options);
    Fixture { world, handle, engine, volumes, server }
}

fn target(session: SessionId, volume: VolumeId, index: u32) -> Target {
    Target {
        session,
        segment: SegmentId { volume, index },
        epoch: engine::EPOCH,
        level: base::levels::Level::Open,
        behind: 0,
    }
}

fn stamp(generation: u64) -> WriteStamp {
    WriteStamp { generation: Generation(generation), sequence: WriteSequence(1), ..WriteStamp::default() }
}

fn spawn_write(fixture: &Fixture, target: Target, generation: Generation) -> Task<Result<()>> {
    let server = fixture.server.clone();
    fixture.handle.spawn(Class::Io, "test write", async move {
        let data = Bytes::from_static(&[7; 512]);
        server.write(target, 0, data, vec![0], stamp(generation.0)).await.unwrap().result
    })
}

#[test]
fn a_request_reaches_the_engine_only_by_right() {
    let fixture = fixture(1, Options::default());
    let (server, engine, volumes) = (fixture.server.clone(), fixture.engine.clone(), fixture.volumes.clone());
    fixture.world.block_on(&fixture.handle, async move {
        let (mine, other) = (volumes.add(1), volumes.add(2));
        assert_eq!(server.attach(VolumeId(9), Generation(1)).await.unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(server.attach(mine, Generation(1)).await.unwrap_err().kind, ErrorKind::Fenced, "not recorded");
        let generation = volumes.next_generation(mine);
        let session = server.attach(mine, generation).await.unwrap().session;
        let good = target(session, mine, 3);
        let refusals = [
            (target(SessionId(99), mine, 0), 0, 512, ErrorKind::Fenced),
            (target(session, other, 0), 0, 512, ErrorKind::Invalid),
            (target(session, mine, 4), 0, 512, ErrorKind::Invalid),
            (Target { epoch: Epoch(2), ..good }, 0, 512, ErrorKind::Moved),
            (Target { epoch: Epoch(0), ..good }, 0, 512, ErrorKind::Moved),
            (good, 0, 0, ErrorKind::Invalid),
            (good, 1, 512, ErrorKind::Invalid),
            (good, 0, 100, ErrorKind::Invalid),
            (good, base::limits::SEGMENT_SIZE, 512, ErrorKind::Invalid),
            (good, u64::MAX - 511, 512, ErrorKind::Invalid),
        ];
        for (target, offset, len, kind) in refusals {
            let read = server.read(target, offset, len).await.unwrap();
            assert_eq!((read.epoch, read.result.unwrap_err().kind), (engine::EPOCH, kind), "{target:?} {offset} {len}");
            let discard = server.discard(target, offset, len, stamp(1)).await.unwrap();
            assert_eq!(discard.result.unwrap_err().kind, kind);
        }
        let stale = server.write(good, 0, Bytes::from_static(&[0; 512]), vec![0], stamp(0)).await.unwrap();
        assert_eq!(stale.result.unwrap_err().kind, ErrorKind::Fenced, "the stamp of another generation");
        let sums = server.write(good, 0, Bytes::from_static(&[0; 512]), vec![], stamp(1)).await.unwrap();
        assert_eq!(sums.result.unwrap_err().kind, ErrorKind::Invalid, "a checksum is missing");
        assert_eq!(*engine.log.borrow(), [""; 0], "nothing of this reached the engine");

        server.write(good, 512, Bytes::from_static(&[0; 512]), vec![0], stamp(1)).await.unwrap().result.unwrap();
        server.read(good, 0, 4096).await.unwrap().result.unwrap();
        server.discard(good, 0, 4096, stamp(1)).await.unwrap().result.unwrap();
        server.flush(good).await.unwrap().result.unwrap();
        assert_eq!(server.allocation(good, 0, 4096, 1).await.unwrap().result.unwrap().len(), 1);
        assert_eq!(*engine.log.borrow(), ["write v1/3 512 512", "read v1/3 0 4096", "discard v1/3 0 4096"]);
        let statistics = server.statistics();
        assert_eq!((statistics.refused, statistics.sessions, statistics.in_flight), (20, 1, 0));
        assert_eq!((statistics.read.bytes, statistics.write.bytes, statistics.write.errors), (4096, 512, 1));
        server.detach(session).await.unwrap();
        assert_eq!(server.flush(good).await.unwrap().result.unwrap_err().kind, ErrorKind::Fenced);
    });
}

#[test]
fn a_read_only_volume_takes_no_writes() {
    let fixture = fixture(2, Options::default());
    let (server, volumes) = (fixture.server.clone(), fixture.volumes.clone());
    fixture.world.block_on(&fixture.handle, async move {
        let volume = volumes.add(1);
        volumes.0.borrow_mut().get_mut(&volume).unwrap().read_only = true;
        let session = server.attach(volume, volumes.next_generation(volume)).await.unwrap().session;
        let write = server.discard(target(session, volume, 0), 0, 512, stamp(1)).await.unwrap();
        assert_eq!(write.result.unwrap_err().kind, ErrorKind::Invalid);
        assert!(server.read(target(session, volume, 0), 0, 512).await.unwrap().result.is_ok());
    });
}

#[test]
fn errors_of_the_engine_are_answered_and_counted() {
    let fixture = fixture(3, Options::default());
    let (server, engine, volumes) = (fixture.server.clone(), fixture.engine.clone(), fixture.volumes.clone());
    fixture.world.block_on(&fixture.handle, async move {
        let volume = volumes.add(1);
        let session = server.attach(volume, volumes.next_generation(volume)).await.unwrap().session;
        for kind in [ErrorKind::Corrupt, ErrorKind::Full, ErrorKind::Io] {
            engine.fails.set(Some(kind));
            let reply = server.read(target(session, volume, 0), 0, 512).await.unwrap();
            assert_eq!(reply.result.unwrap_err().kind, kind);
        }
        let statistics = server.statistics();
        assert_eq!((statistics.corrupt, statistics.full, statistics.read.errors), (1, 1, 3));
    });
}

#[test]
fn a_new_session_waits_for_what_the_older_one_has_in_flight() {
    for seed in 0..50 {
        let fixture = fixture(seed, Options { requests_max: 2, ..Options::default() });
        let volume = fixture.volumes.add(1);
        let first = fixture.volumes.next_generation(volume);
        let server = fixture.server.clone();
        let session =
            fixture.world.block_on(&fixture.handle, async move { server.attach(volume, first).await.unwrap().session });
        // Five writes, three of them in line for a slot, then a takeover.
        let writes: Vec<_> = (0..5).map(|_| spawn_write(&fixture, target(session, volume, 0), first)).collect();
        let (server, volumes, engine) = (fixture.server.clone(), fixture.volumes.clone(), fixture.engine.clone());
        let handle = fixture.handle.clone();
        fixture.world.block_on(&fixture.handle, async move {
            handle.yield_now().await;
            let second = volumes.next_generation(volume);
            server.attach(volume, second).await.unwrap();
            assert_eq!(engine.in_flight.borrow()[&first], 0, "seed {seed}: drained");
            assert_eq!(engine.log.borrow().len(), 5, "seed {seed}: what was admitted ran");
            let late = server.read(target(session, volume, 0), 0, 512).await.unwrap();
            assert_eq!(late.result.unwrap_err().kind, ErrorKind::Fenced);
            for write in writes {
                write.await.unwrap();
            }
        });
        assert_eq!(fixture.engine.in_flight_max.get(), 2, "seed {seed}: no more at once than allowed");
    }
}

/// One agent of the random test: attaches, writes for a while, and starts over when it is fenced.
async fn agent_life(server: Rc<Server<Rc<Slow>>>, volumes: Rc<Volumes>, volume: VolumeId, seed: u64) -> u64 {
    let (mut prng, mut wrote) = (Prng::new(seed), 0);
    for _ in 0..10 {
        let generation = volumes.next_generation(volume);
        let Ok(attachment) = server.attach(volume, generation).await else { continue };
        for _ in 0..prng.below(20) {
            let index = prng.below(4) as u32;
            let data = Bytes::from_static(&[1; 512]);
            let target = target(attachment.session, volume, index);
            let reply = server.write(target, 0, data, vec![0], stamp(generation.0)).await.unwrap();
            match reply.result {
                Ok(()) => wrote += 1,
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Fenced);
                    break;
                }
            }
        }
        if prng.one_in(3) {
            server.detach(attachment.session).await.unwrap();
        }
    }
    wrote
}

#[test]
fn however_agents_compete_one_generation_writes_at_a_time() {
    let mut wrote = 0;
    for seed in 0..100 {
        let fixture = fixture(seed, Options { requests_max: 3, ..Options::default() });
        let volume = fixture.volumes.add(1);
        let agents: Vec<_> = (0..4)
            .map(|n| {
                let life = agent_life(fixture.server.clone(), fixture.volumes.clone(), volume, seed * 10 + n);
                fixture.handle.spawn(Class::Io, "agent", life)
            })
            .collect();
        // The engine of this test asserts that no two generations write at once.
        wrote += fixture.world.block_on(&fixture.handle, async move {
            let mut wrote = 0;
            for agent in agents {
                wrote += agent.await;
            }
            wrote
        });
    }
    assert!(wrote > 1_000, "the test reaches what it checks: {wrote}");
}

/// While a request waits, its segment may go to somebody else, get newer writes there, and come back.
#[test]
fn what_waited_is_for_the_ownership_that_it_came_for() {
    let fixture = fixture(6, Options { requests_max: 1, ..Options::default() });
    let volume = fixture.volumes.add(1);
    let (server, volumes) = (fixture.server.clone(), fixture.volumes.clone());
    let session = fixture.world.block_on(&fixture.handle, async move {
        server.attach(volume, volumes.next_generation(volume)).await.unwrap().session
    });
    let in_engine = spawn_write(&fixture, target(session, volume, 0), Generation(1));
    let waiting = spawn_write(&fixture, target(session, volume, 0), Generation(1));
    let (engine, handle) = (fixture.engine.clone(), fixture.handle.clone());
    fixture.world.block_on(&fixture.handle, async move {
        handle.sleep(Duration::from_nanos(1)).await;
        assert_eq!(engine.log.borrow().len(), 1, "the other one waits");
        engine.epoch.set(Some(Epoch(3)));
        in_engine.await.unwrap();
        assert_eq!(waiting.await.unwrap_err().kind, ErrorKind::Moved);
        assert_eq!(engine.log.borrow().len(), 1, "it never came to the engine");
    });
}

#[test]
fn dropping_a_volume_and_stopping_drain_first() {
    let fixture = fixture(5, Options::default());
    let (one, two) = (fixture.volumes.add(1), fixture.volumes.add(2));
    let (server, volumes) = (fixture.server.clone(), fixture.volumes.clone());
    let (first, second) = fixture.world.block_on(&fixture.handle, async move {
        let first = server.attach(one, volumes.next_generation(one)).await.unwrap().session;
        (first, server.attach(two, volumes.next_generation(two)).await.unwrap().session)
    });
    let writes = [
        spawn_write(&fixture, target(first, one, 0), Generation(1)),
        spawn_write(&fixture, target(second, two, 0), Generation(1)),
    ];
    let (server, engine, handle) = (fixture.server.clone(), fixture.engine.clone(), fixture.handle.clone());
    fixture.world.block_on(&fixture.handle, async move {
        handle.yield_now().await;
        server.drop_volume(one).await.unwrap();
        assert_eq!(engine.log.borrow().last().unwrap(), "drop v1");
        server.stop().await;
        assert!(writes.iter().all(Task::is_finished));
        let late = server.read(target(second, two, 0), 0, 512).await.unwrap();
        assert_eq!(late.result.unwrap_err().kind, ErrorKind::Internal);
        assert_eq!(server.attach(two, Generation(1)).await.unwrap_err().kind, ErrorKind::Internal);
        assert_eq!(server.statistics().sessions, 0);
    });
}

/// 100 requests of 4 KiB in each interval of 10 ms.
fn throttled(throttle: Throttle) -> Options {
    let admission = AdmissionSettings { throttle, limit_bytes_per_sec: 40_960_000, ..AdmissionSettings::default() };
    Options { admission, ..Options::default() }
}

/// Two volumes, of which one asks for 50 ms worth of tokens at once and the other now and then for a little; how long
/// the other one waited at most.
fn wait_beside_a_burst(throttle: Throttle) -> Duration {
    let fixture = fixture(11, throttled(throttle));
    let (burst, calm) = (fixture.volumes.add(1), fixture.volumes.add(2));
    let (server, volumes, handle) = (fixture.server.clone(), fixture.volumes.clone(), fixture.handle.clone());
    fixture.world.block_on(&fixture.handle, async move {
        let loud = server.attach(burst, volumes.next_generation(burst)).await.unwrap().session;
        let quiet = server.attach(calm, volumes.next_generation(calm)).await.unwrap().session;
        let reads: Vec<_> = (0..500)
            .map(|_| {
                let server = server.clone();
                handle.spawn(Class::Io, "burst", async move {
                    server.read(target(loud, burst, 0), 0, 4096).await.unwrap().result.map(drop)
                })
            })
            .collect();
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            handle.sleep(Duration::from_millis(1)).await;
            let begun = handle.now();
            server.read(target(quiet, calm, 0), 0, 4096).await.unwrap().result.unwrap();
            longest = longest.max(handle.now().since(begun));
        }
        for read in reads {
            read.await.unwrap();
        }
        let (settings, status) = server.admission();
        assert!(settings.throttle == throttle && status.waiting == 0, "{status:?}");
        let waits = server.admission_of(burst).unwrap().waits;
        let reason = if throttle == Throttle::DualBuckets { Reason::HotSegment } else { Reason::MainBucketEmpty };
        assert!(waits.of(reason).requests >= 400 && waits.of(reason).now == 0, "{waits:?}");
        longest
    })
}

#[test]
fn a_burst_holds_others_up_in_one_bucket_and_not_in_two() {
    let one = wait_beside_a_burst(Throttle::OneBucket);
    assert!(one > Duration::from_millis(30), "it stood behind the burst: {one:?}");
    let two = wait_beside_a_burst(Throttle::DualBuckets);
    assert!(two < Duration::from_millis(2), "it did not notice: {two:?}");
}

#[test]
fn levels_hold_from_the_next_request_on() {
    let fixture = fixture(12, Options::default());
    let volume = fixture.volumes.add(1);
    let (server, volumes, handle) = (fixture.server.clone(), fixture.volumes.clone(), fixture.handle.clone());
    fixture.world.block_on(&fixture.handle, async move {
        let session = server.attach(volume, volumes.next_generation(volume)).await.unwrap().session;
        let begun = handle.now();
        let mut descriptor = volumes.get(volume).unwrap();
        descriptor.levels.burst = Rate { iops: 1000, bytes_per_sec: 0 };
        server.set_levels(&descriptor);
        let reads: Vec<_> = (0..200)
            .map(|_| {
                let server = server.clone();
                handle.spawn(Class::Io, "reader", async move {
                    server.read(target(session, volume, 0), 0, 512).await.unwrap().result.map(drop)
                })
            })
            .collect();
        handle.sleep(Duration::from_millis(95)).await;
        let waits = server.admission_of(volume).unwrap().waits;
        assert_eq!(waits.of(Reason::BurstLevel).now, 100, "1,000 in a second");
        // Without a level nothing holds the rest up.
        descriptor.levels = Levels::default();
        server.set_levels(&descriptor);
        for read in reads {
            read.await.unwrap();
        }
        assert!(handle.now().since(begun) < Duration::from_millis(97));
        server.drop_volume(volume).await.unwrap();
        assert!(server.admission_of(volume).is_none());
    });
}

#[test]
fn what_an_agent_has_marked_waits_for_no_level_again() {
    let fixture = fixture(13, Options::default());
    let volume = fixture.volumes.add(1);
    let (server, volumes, handle) = (fixture.server.clone(), fixture.volumes.clone(), fixture.handle.clone());
    fixture.world.block_on(&fixture.handle, async move {
        let session = server.attach(volume, volumes.next_generation(volume)).await.unwrap().session;
        let mut descriptor = volumes.get(volume).unwrap();
        descriptor.levels.burst = Rate { iops: 1000, bytes_per_sec: 0 };
        server.set_levels(&descriptor);
        let reads: Vec<_> =
            (0..200)
                .map(|number| {
                    let server = server.clone();
                    let level = if number % 2 == 0 { Level::Base } else { Level::Burst };
                    let marked = Target { level, ..target(session, volume, 0) };
                    handle.spawn(Class::Io, "reader", async move {
                        server.read(marked, 0, 512).await.unwrap().result.map(drop)
                    })
                })
                .collect();
        for read in reads {
            read.await.unwrap();
        }
        let status = server.admission_of(volume).unwrap();
        assert_eq!((status.started, status.waits), (200, Waits::default()));
        server.audit_admission().unwrap();
    });
}

/// A link broke while a session was being opened, and who asked has asked again: that ends no attachment.
#[test]
fn two_sessions_of_one_attachment_do_not_fence_it() {
    let fixture = fixture(7, Options::default());
    let volume = fixture.volumes.add(1);
    let (server, volumes) = (fixture.server.clone(), fixture.volumes.clone());
    let session = fixture.world.block_on(&fixture.handle, async move {
        server.attach(volume, volumes.next_generation(volume)).await.unwrap().session
    });
    let writing = spawn_write(&fixture, target(session, volume, 0), Generation(1));
    let open = |generation: u64| {
        let server = fixture.server.clone();
        let opening = async move { server.attach(volume, Generation(generation)).await };
        fixture.handle.spawn(Class::Io, "open", opening)
    };
    let (first, second) = (open(1), open(1));
    fixture.world.block_on(&fixture.handle, async move {
        writing.await.unwrap();
        assert_eq!(first.await.unwrap_err().kind, ErrorKind::Retry);
        second.await.unwrap();
    });
    let session = fixture.world.block_on(&fixture.handle, {
        let server = fixture.server.clone();
        async move { server.attach(volume, Generation(1)).await.unwrap().session }
    });
    let writing = spawn_write(&fixture, target(session, volume, 0), Generation(1));
    let first = open(1);
    fixture.world.run_for(Duration::from_nanos(1));
    fixture.volumes.next_generation(volume);
    let second = open(2);
    fixture.world.block_on(&fixture.handle, async move {
        writing.await.unwrap();
        assert_eq!(first.await.unwrap_err().kind, ErrorKind::Fenced);
        second.await.unwrap();
    });
}
