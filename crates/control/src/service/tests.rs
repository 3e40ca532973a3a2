//! The manager in the simulated world: what it answers, and that a deletion ends whatever interrupts it.

use std::collections::BTreeSet;

use base::levels::Rate;
use base::{GIB, Prng};
use files::memory::{AppendFault, Memory, MemoryOptions};
use runtime::sim::{NodeOptions, World};

use super::*;

/// The side of the store that owns data, and the side that has clients.
#[derive(Default)]
struct Others {
    connection: RefCell<Option<Connection>>,
    /// Volumes with data: outlives a crash.
    data: RefCell<BTreeSet<VolumeId>>,
    /// Volumes that the manager asked to drop.
    dropped: RefCell<Vec<VolumeId>>,
    clients: Cell<usize>,
    drops_that_fail: Cell<usize>,
    /// What the manager said of levels, in order.
    levels: RefCell<Vec<(String, Levels)>>,
    /// What it said of the size of all volumes.
    provisioned: Cell<Option<u64>>,
}

/// [`Others`] as one life sees them.
struct Connected {
    others: Rc<Others>,
    handle: Handle,
}

impl VolumeOwner for Connected {
    fn set_levels(&self, volume: &VolumeDescriptor) {
        self.others.levels.borrow_mut().push((volume.name.clone(), volume.levels));
    }

    fn set_provisioned(&self, bytes: u64) {
        self.others.provisioned.set(Some(bytes));
    }

    fn begin_scrub(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn drop_volume(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.handle.sleep(Duration::from_micros(200)).await;
            if let Some(left) = self.others.drops_that_fail.get().checked_sub(1) {
                self.others.drops_that_fail.set(left);
                return Err(Error::io("the disk failed"));
            }
            assert_eq!(self.others.clients.get(), 0, "clients are let go before the data is");
            self.others.data.borrow_mut().remove(&volume);
            self.others.dropped.borrow_mut().push(volume);
            Ok(())
        })
    }
}

impl VolumeUser for Connected {
    fn release(&self, _volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            self.handle.sleep(Duration::from_micros(100)).await;
            self.others.clients.set(0);
        })
    }

    fn users(&self, _volume: VolumeId) -> usize {
        self.others.clients.get()
    }
}

async fn open(handle: &Handle, memory: &Memory, others: &Rc<Others>) -> Manager {
    let options = Options { redundancy: Redundancy::Copies(1), accept_data_loss: false };
    let manager = Manager::open(handle, &memory.open(handle), options).await.unwrap();
    let connected = Rc::new(Connected { others: others.clone(), handle: handle.clone() });
    *others.connection.borrow_mut() = Some(manager.connect(connected.clone(), connected, None));
    manager
}

fn in_a_world<F: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Handle, Memory, Rc<Others>) -> F) {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let memory = Memory::new(seed, MemoryOptions::default());
    world.block_on(&handle, test(handle.clone(), memory, Rc::default()));
}

#[test]
fn a_volume_from_creation_to_deletion() {
    in_a_world(1, |handle, memory, others| async move {
        let manager = open(&handle, &memory, &others).await;
        let (created, existed) = manager.create(CreateVolume::new("vm-1", 10 * GIB)).await.unwrap();
        assert!(!existed && created.row.id == VolumeId(1) && created.row.created_wall_ms > 0);
        assert_eq!(VolumeDirectory::list(&manager).await.unwrap(), ["vm-1"]);

        let found = manager.resolve("vm-1").await.unwrap();
        assert_eq!((found.id, found.size, found.segments, found.generation), (VolumeId(1), 10 * GIB, 4, Generation(0)));
        assert_eq!(manager.attach(found.id).await.unwrap().generation, Generation(1));
        assert_eq!(manager.attach(found.id).await.unwrap().generation, Generation(2));
        manager.detach(found.id, Generation(1)).await.unwrap();
        assert_eq!(manager.describe(found.id).await.unwrap().generation, Generation(2));

        others.clients.set(2);
        let refused = manager.delete("vm-1", false).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Conflict);
        assert!(refused.message.contains("2 clients"), "{refused}");
        assert_eq!(manager.show("vm-1").unwrap().clients, 2, "a refused deletion changes nothing");
        let (_, is_done) = manager.delete("vm-1", true).await.unwrap();
        assert!(is_done && manager.volumes().is_empty());
        assert_eq!(*others.dropped.borrow(), [VolumeId(1)]);
        assert_eq!(manager.resolve("vm-1").await.unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(manager.delete("vm-1", false).await.unwrap_err().kind, ErrorKind::NotFound);
    });
}

#[test]
fn creating_twice_is_a_conflict_unless_it_is_allowed_and_the_same() {
    in_a_world(2, |handle, memory, others| async move {
        let manager = open(&handle, &memory, &others).await;
        manager.create(CreateVolume::new("a", GIB)).await.unwrap();
        let again = |size, allow_existing| CreateVolume { allow_existing, ..CreateVolume::new("a", size) };
        assert_eq!(manager.create(again(GIB, false)).await.unwrap_err().kind, ErrorKind::Conflict);
        assert!(manager.create(again(GIB, true)).await.unwrap().1);
        let other = manager.create(again(2 * GIB, true)).await.unwrap_err();
        assert_eq!(other.kind, ErrorKind::Conflict);
        assert!(other.message.contains("1073741824 bytes instead of 2147483648"), "{other}");
        // Two at once: one makes it, the other finds it.
        let both = CreateVolume { allow_existing: true, ..CreateVolume::new("b", GIB) };
        let other_manager = manager.clone();
        let wanted = both.clone();
        let first = handle.spawn(Class::Io, "create", async move { other_manager.create(wanted).await });
        let (second, existed) = manager.create(both).await.unwrap();
        let (first, first_existed) = first.await.unwrap();
        assert_eq!(first, second);
        assert!(existed != first_existed, "exactly one of them made it");
    });
}

#[test]
fn levels_are_durable_before_the_owner_hears_of_them() {
    in_a_world(7, |handle, memory, others| async move {
        let manager = open(&handle, &memory, &others).await;
        let base = |iops| LevelsChange { base_iops: Some(iops), ..LevelsChange::default() };
        let iops = |base, burst| Levels {
            base: Rate { iops: base, bytes_per_sec: 0 },
            burst: Rate { iops: burst, bytes_per_sec: 0 },
            ..Levels::default()
        };
        let wanted = CreateVolume { levels: base(100), ..CreateVolume::new("a", GIB) };
        assert_eq!(manager.create(wanted).await.unwrap().0.row.levels, iops(100, 0));
        let burst = LevelsChange { burst_iops: Some(200), ..LevelsChange::default() };
        assert_eq!(manager.set("a", burst.into()).await.unwrap().row.levels, iops(100, 200));
        assert_eq!(*others.levels.borrow(), [("a".to_owned(), iops(100, 200))]);

        // What is refused or fails changes nothing, and nobody hears of it.
        assert_eq!(manager.set("a", base(201).into()).await.unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(manager.set("b", base(1).into()).await.unwrap_err().kind, ErrorKind::NotFound);
        memory.fail_appends(None, 1, AppendFault::Lost);
        assert_eq!(manager.set("a", base(7).into()).await.unwrap_err().kind, ErrorKind::Io);
        assert_eq!((others.levels.borrow().len(), manager.show("a").unwrap().row.levels), (1, iops(100, 200)));

        // Two at once, of which one has nobody waiting: both happen, in order.
        let impatient = manager.clone();
        let change = base(50);
        let first = handle.spawn(Class::Io, "levels", async move { impatient.set("a", change.into()).await.map(drop) });
        handle.yield_now().await;
        drop(first);
        let none = LevelsChange { burst_iops: Some(0), ..LevelsChange::default() };
        manager.set("a", none.into()).await.unwrap();
        assert_eq!(others.levels.borrow()[1..], [("a".to_owned(), iops(50, 200)), ("a".to_owned(), iops(50, 0))]);
        let existing = CreateVolume { allow_existing: true, ..CreateVolume::new("a", GIB) };
        assert_eq!(manager.create(existing).await.unwrap().0.row.levels, iops(50, 0));

        drop(manager);
        let manager = open(&handle, &memory, &others).await;
        let found = manager.resolve("a").await.unwrap();
        assert_eq!((found.levels, found.owner.as_str()), (iops(50, 0), ""));
    });
}

#[test]
fn the_owner_hears_how_much_volumes_may_come_to_hold() {
    in_a_world(8, |handle, memory, others| async move {
        let manager = open(&handle, &memory, &others).await;
        assert_eq!(others.provisioned.get(), Some(0));
        manager.create(CreateVolume::new("a", GIB)).await.unwrap();
        manager.create(CreateVolume::new("b", 2 * GIB)).await.unwrap();
        assert_eq!(others.provisioned.get(), Some(3 * GIB));
        manager.delete("a", false).await.unwrap();
        assert_eq!(others.provisioned.get(), Some(2 * GIB));
        others.provisioned.set(None);
        drop(others.connection.take());
        manager.close().await.unwrap();
        let _manager = open(&handle, &memory, &others).await;
        assert_eq!(others.provisioned.get(), Some(2 * GIB), "a start says so, too");
    });
}

#[test]
fn attaching_goes_on_where_the_caller_stops_waiting() {
    in_a_world(3, |handle, memory, others| async move {
        let manager = open(&handle, &memory, &others).await;
        let volume = manager.create(CreateVolume::new("a", GIB)).await.unwrap().0.row.id;
        let impatient = manager.clone();
        let attaching = handle.spawn(Class::Io, "attach", async move { impatient.attach(volume).await.map(drop) });
        handle.yield_now().await;
        drop(attaching);
        assert_eq!(manager.attach(volume).await.unwrap().generation, Generation(2));
    });
}

#[test]
fn a_deletion_that_fails_is_tried_again() {
    in_a_world(4, |handle, memory, others| async move {
        let manager = open(&handle, &memory, &others).await;
        manager.create(CreateVolume::new("a", GIB)).await.unwrap();
        others.drops_that_fail.set(3);
        let (_, is_done) = manager.delete("a", false).await.unwrap();
        assert!(!is_done);
        assert_eq!(manager.volumes()[0].row.state, VolumeState::Deleting);
        manager.create(CreateVolume::new("a", GIB)).await.unwrap();
        handle.sleep(Duration::from_secs(60)).await;
        assert_eq!(*others.dropped.borrow(), [VolumeId(1)]);
        assert_eq!(manager.volumes().len(), 1, "only the new volume is left");
        manager.close().await.unwrap();
        assert_eq!(manager.create(CreateVolume::new("c", GIB)).await.unwrap_err().kind, ErrorKind::Internal);
    });
}

#[test]
fn an_append_that_fails_gives_an_error_and_the_next_one_succeeds() {
    in_a_world(5, |handle, memory, others| async move {
        let manager = open(&handle, &memory, &others).await;
        for (index, fault) in [AppendFault::Lost, AppendFault::Torn, AppendFault::Landed].into_iter().enumerate() {
            memory.fail_appends(None, 1, fault);
            let failed = manager.create(CreateVolume::new("a", GIB)).await.unwrap_err();
            assert_eq!(failed.kind, ErrorKind::Io);
            let name = format!("b{index}");
            manager.create(CreateVolume::new(name, GIB)).await.unwrap();
        }
        drop(manager);
        let manager = open(&handle, &memory, &others).await;
        assert_eq!(VolumeDirectory::list(&manager).await.unwrap(), ["b0", "b1", "b2"]);
        let ids: Vec<u64> = manager.volumes().iter().map(|view| view.row.id.0).collect();
        assert_eq!(ids, [2, 4, 6], "the ids of the failed ones are not given out");
    });
}

/// What one life confirmed.
#[derive(Default)]
struct Confirmed {
    created: BTreeSet<VolumeId>,
    deleting: BTreeSet<VolumeId>,
    deleted: BTreeSet<VolumeId>,
}

/// Creates, attaches and deletes until the life ends.
async fn live(manager: Manager, others: Rc<Others>, confirmed: Rc<RefCell<Confirmed>>, mut prng: Prng) {
    loop {
        let views = manager.volumes();
        let active: Vec<_> = views.iter().filter(|view| view.row.state == VolumeState::Active).collect();
        if active.len() < 2 || prng.one_in(3) {
            let name = format!("volume-{}", prng.next_u64());
            let Ok((view, _)) = manager.create(CreateVolume::new(name, GIB)).await else { return };
            confirmed.borrow_mut().created.insert(view.row.id);
            others.data.borrow_mut().insert(view.row.id);
        } else {
            let row = prng.pick(&active).row.clone();
            others.clients.set(prng.below(2) as usize);
            confirmed.borrow_mut().deleting.insert(row.id);
            match manager.delete(&row.name, true).await {
                Ok(_) => confirmed.borrow_mut().deleted.insert(row.id),
                Err(_) => return,
            };
        }
    }
}

#[test]
fn clients_are_let_go_when_a_deletion_fails_and_an_attachment_settles_that_it_did() {
    for (seed, fault) in [AppendFault::Lost, AppendFault::Landed].into_iter().enumerate() {
        in_a_world(seed as u64, move |handle, memory, others| async move {
            let manager = open(&handle, &memory, &others).await;
            let volume = manager.create(CreateVolume::new("a", GIB)).await.unwrap().0.row.id;
            others.clients.set(1);
            manager.delete("a", false).await.unwrap_err();
            assert_eq!(others.clients.get(), 1, "a refused deletion changes nothing");
            memory.fail_appends(None, 1, fault);
            assert_eq!(manager.delete("a", true).await.unwrap_err().kind, ErrorKind::Io);
            assert_eq!(others.clients.get(), 0, "nobody writes to what may be deleted");
            manager.attach(volume).await.unwrap();
            drop(manager);
            memory.kill();
            let manager = open(&handle, &memory, &others).await;
            assert_eq!(manager.show("a").unwrap().row.id, volume);
        });
    }
}

#[test]
fn a_deletion_survives_a_crash_at_any_point() {
    let (mut resumed, mut restored) = (0, 0);
    for seed in 900..1_100 {
        let world = World::new(seed);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        let outcome = world.block_on(&handle, {
            let handle = handle.clone();
            async move {
                let memory = Memory::new(seed, MemoryOptions::default());
                let (others, confirmed) = (Rc::new(Others::default()), Rc::new(RefCell::new(Confirmed::default())));
                let mut prng = Prng::new(seed);
                let manager = open(&handle, &memory, &others).await;
                let steps = live(manager.clone(), others.clone(), confirmed.clone(), prng.fork());
                let life = handle.spawn(Class::Io, "life", steps);
                handle.sleep(Duration::from_micros(prng.between(100, 5_000))).await;
                memory.kill();
                drop(life);
                let _ = manager.close().await;
                others.clients.set(0);

                let manager = open(&handle, &memory, &others).await;
                let unfinished = manager.volumes().iter().filter(|v| v.row.state == VolumeState::Deleting).count();
                manager.resume();
                handle.sleep(Duration::from_secs(5)).await;
                let confirmed = confirmed.borrow();
                let left: BTreeSet<VolumeId> = manager.volumes().iter().map(|view| view.row.id).collect();
                assert!(manager.volumes().iter().all(|view| view.row.state == VolumeState::Active), "seed {seed}");
                assert!(confirmed.deleted.is_disjoint(&left), "seed {seed}: a deleted volume is back");
                let kept = confirmed.created.difference(&confirmed.deleting);
                assert!(kept.clone().all(|volume| left.contains(volume)), "seed {seed}: a volume is lost");
                assert!(others.data.borrow().is_subset(&left), "seed {seed}: data without a volume");
                let dropped: BTreeSet<VolumeId> = others.dropped.borrow().iter().copied().collect();
                assert!(dropped.is_disjoint(&left), "seed {seed}: a volume without its data");
                let came_back = confirmed.deleting.difference(&confirmed.deleted).filter(|v| left.contains(v)).count();
                (unfinished, came_back)
            }
        });
        resumed += outcome.0;
        restored += outcome.1;
    }
    assert!(resumed > 20 && restored > 10, "coverage: {resumed} resumed, {restored} undecided deletions undone");
}

#[test]
fn calls_from_another_thread_are_answered_in_bounded_numbers() {
    in_a_world(6, |handle, memory, others| async move {
        let manager = open(&handle, &memory, &others).await;
        let (calls, mailbox) = runtime::sync::mailbox(2);
        let serving = manager.serve(mailbox);
        let mut answers = Vec::new();
        for number in 0..3 * API_CALLS_MAX {
            let (reply, answer) = futures_channel::oneshot::channel();
            let request = Request::Create(CreateVolume::new(format!("v{number}"), GIB));
            calls.send(Call { request, reply }).await.unwrap();
            match number % 5 {
                0 => drop(answer), // a client that went away
                _ => answers.push(answer),
            }
        }
        for answer in answers {
            assert!(matches!(answer.await.unwrap(), Ok(Reply::Created(_, false))));
        }
        drop(calls);
        serving.await;
        let Reply::Volumes(volumes) = manager.handle(Request::List).await.unwrap() else { panic!("another reply") };
        assert_eq!(volumes.len(), 3 * API_CALLS_MAX);
        assert_eq!(manager.handle(Request::Observe).await.unwrap_err().kind, ErrorKind::Retry);
    });
}

struct Broken;

impl Observer for Broken {
    fn observe(&self, _detail: Detail) -> LocalBoxFuture<'_, Result<Snapshot>> {
        Box::pin(async { panic!("a counter that makes no sense") })
    }

    fn explain(&self, _volume: VolumeId) -> LocalBoxFuture<'_, Result<Explained>> {
        panic!("a volume that makes no sense")
    }
}

#[test]
fn a_bug_in_what_is_only_looked_at_ends_one_call() {
    in_a_world(9, |handle, memory, others| async move {
        let manager = open(&handle, &memory, &others).await;
        let connected = Rc::new(Connected { others: others.clone(), handle: handle.clone() });
        let _connection = manager.connect(connected.clone(), connected, Some(Rc::new(Broken)));
        let (calls, mailbox) = async_channel::bounded(4);
        manager.serve(mailbox).detach();
        manager.create(CreateVolume::new("known", GIB)).await.unwrap();
        for request in [Request::Observe, Request::Explain("known".into()), Request::Observe] {
            let (reply, answer) = futures_channel::oneshot::channel();
            calls.send(Call { request, reply }).await.unwrap();
            let error = answer.await.unwrap().expect_err("there is nothing to tell");
            assert!(error.kind == ErrorKind::Internal && error.message.contains("its disks go on"), "{error}");
        }
        manager.create(CreateVolume::new("a", GIB)).await.unwrap();
        assert!(matches!(manager.handle(Request::Health).await, Ok(Reply::Healthy)));
    });
}
