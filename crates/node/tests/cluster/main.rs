//! A shared store, managers, servers and agents, each on a machine of its own in the simulated world, as the commands start
//! them: NBD clients write and read while machines of each role are killed, cut off, and come back.
//!
//! Clients of an agent that lives see no error, whatever happens to servers and managers; every sector that is read is what
//! was written last.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod bed;
mod forwarding;
mod grants;
mod levels;
#[path = "../over_a_stream/model.rs"]
mod model;
#[path = "../over_a_stream/nbd.rs"]
mod nbd;
mod observing;

use std::rc::Rc;
use std::time::Duration;

use base::{GIB, VolumeId};
use control::cluster::ClusterManager;
use control::service::{Reply, Request};
use runtime::Class;
use runtime::sim::NetworkOptions;
use wire::VolumeDirectory;

use self::bed::{Bed, Role};
use self::model::Model;

const MS: Duration = Duration::from_millis(1);

/// Clients of one agent, until they are stopped.
struct Clients {
    /// Where they run.
    handle: runtime::Handle,
    models: Vec<Rc<Model>>,
    tasks: Vec<runtime::Task<()>>,
}

impl Clients {
    fn start(bed: &Bed, count: u64) -> Clients {
        Clients::start_on(bed, 0, count)
    }

    /// On the machine of another agent, which may live while the one that serves them does not.
    fn start_on(bed: &Bed, machine: usize, count: u64) -> Clients {
        let mut prng = bed.world.fork_prng();
        let models: Vec<Rc<Model>> = (0..count).map(|client| Rc::new(Model::new(client, prng.next_u64()))).collect();
        let handle = bed.handle(Role::Agent, machine);
        let start = |model: &Rc<Model>| {
            let life = model.clone().live(handle.clone(), bed.nbd(0));
            handle.spawn(Class::Io, "client", life)
        };
        let tasks = models.iter().map(start).collect();
        Clients { handle, models, tasks }
    }

    fn answered(&self) -> u64 {
        self.models.iter().map(|model| model.answered.get()).sum()
    }

    fn broken(&self) -> u64 {
        self.models.iter().map(|model| model.broken.get()).sum()
    }

    /// Stops them, and reads everything.
    fn end(self, bed: &Bed) {
        self.models.iter().for_each(|model| model.stop());
        let (handle, address) = (self.handle, bed.nbd(0));
        let inside = handle.clone();
        bed.world.block_on(&handle, async move {
            for task in self.tasks {
                task.await;
            }
            for model in self.models {
                model.check_all(&inside, &address).await;
            }
        });
    }
}

#[test]
fn a_volume_is_made_used_and_deleted() {
    let mut bed = Bed::new(1, 3, 3, 1);
    bed.start_all();
    bed.create("disk", GIB);
    let clients = Clients::start(&bed, 3);
    bed.world.run_for(500 * MS);
    let status = bed.ask(Request::Status);
    let Reply::Status(snapshot, volumes) = status.unwrap() else { panic!("a status") };
    assert_eq!((volumes.len(), volumes[0].clients), (1, 3));
    let cluster = snapshot.cluster.unwrap();
    let placed: Vec<usize> = cluster.servers.iter().map(|server| server.segments).collect();
    assert_eq!((cluster.segments, placed.iter().sum::<usize>(), cluster.segments_on_the_way), (4, 4, 0));
    assert!(placed.iter().all(|segments| (1..=2).contains(segments)), "{placed:?}");
    let refused = bed.ask(Request::Delete { name: "disk".into(), force: false }).unwrap_err();
    assert!(refused.message.contains("3 clients"), "{refused}");
    assert!(clients.answered() > 100 && clients.broken() == 0, "{} {}", clients.answered(), clients.broken());
    clients.end(&bed);
    bed.world.run_for(500 * MS);
    let Reply::Deleted(_, is_done) = bed.ask(Request::Delete { name: "disk".into(), force: false }).unwrap() else {
        panic!("it was deleted")
    };
    assert!(is_done);
    let Reply::Volumes(left) = bed.ask(Request::List).unwrap() else { panic!("a list") };
    assert!(left.is_empty(), "{left:?}");
}

/// An attachment that is decided and not durable may be lost with its manager, and is nothing that an agent may hear of.
#[test]
fn what_a_manager_says_of_a_volume_is_durable() {
    let mut bed = Bed::new(1, 1, 2, 1);
    bed.start_all();
    bed.create("disk", GIB);
    let (index, manager) = bed.in_charge().unwrap();
    let handle = bed.handle(Role::Manager, index);
    let disk = VolumeId(1);
    let ask = |manager: &Rc<ClusterManager>| {
        let manager = manager.clone();
        handle.spawn(Class::Io, "describe", async move { VolumeDirectory::describe(&*manager, disk).await })
    };
    let before = bed.world.block_on(&handle, ask(&manager)).unwrap().generation;
    bed.cut_off_from(Role::Manager, index, Role::Store);
    let attaching = manager.clone();
    let attaching = async move { VolumeDirectory::attach(&*attaching, disk).await };
    let attaching = handle.spawn(Class::Io, "attach", attaching);
    bed.world.run_for(MS);
    let asked = ask(&manager);
    bed.world.run_for(20 * MS);
    // It holds nobody up either.
    assert!(asked.is_finished() && !attaching.is_finished() && manager.is_in_charge());
    assert_eq!(bed.world.block_on(&handle, asked).unwrap().generation, before);
    bed.reconnect(Role::Manager, index);
    if let Ok(attached) = bed.world.block_on(&handle, attaching) {
        let after = bed.world.block_on(&handle, ask(&manager)).unwrap();
        assert!(after.generation == attached.generation && after.generation > before);
    }
}

#[test]
fn a_drained_server_owns_nothing_and_clients_notice_nothing() {
    let mut bed = Bed::new(2, 1, 3, 1);
    bed.start_all();
    bed.create("disk", GIB);
    let clients = Clients::start(&bed, 3);
    bed.world.run_for(500 * MS);
    let drain = |is_drained| Request::Drain { server: "server-1".into(), is_drained };
    bed.ask(drain(true)).unwrap();
    let segments = |bed: &Bed| {
        let cluster = bed.cluster();
        let of = cluster.servers.iter().find(|server| server.name == "server-1").map(|server| server.segments);
        (of.unwrap(), cluster.segments_on_the_way)
    };
    bed.wait("it has nothing", |bed| segments(bed) == (0, 0));
    bed.ask(drain(false)).unwrap();
    let to_it = |index| Request::MoveSegment { volume: "disk".into(), index, to: Some("server-1".into()) };
    bed.ask(to_it(0)).unwrap();
    bed.wait("it has one", |bed| segments(bed).0 >= 1);
    bed.settle();
    // Of four segments on three servers one may have two.
    for index in 1..4 {
        let _ = bed.ask(to_it(index));
    }
    bed.wait("it has its share", |bed| segments(bed) == (2, 0));
    let refused = (0..4).filter_map(|index| bed.ask(to_it(index)).err()).next().unwrap();
    assert!(refused.message.contains("its share"), "{refused}");
    assert!(clients.answered() > 100 && clients.broken() == 0, "{} {}", clients.answered(), clients.broken());
    clients.end(&bed);
    assert!(bed.ask(Request::Drain { server: "nobody".into(), is_drained: true }).is_err());
}

/// With two servers one is half of them: a manager that is alone has nobody to ask whether it is the one that is cut off.
#[test]
fn a_manager_that_is_alone_believes_its_eyes() {
    let mut bed = Bed::new(5, 1, 2, 1);
    bed.start_all();
    bed.create("disk", GIB);
    let clients = Clients::start(&bed, 2);
    bed.world.run_for(300 * MS);
    bed.kill(Role::Server, 0);
    bed.wait("the other one has all", |bed| {
        let cluster = bed.cluster();
        cluster.servers.len() == 1 && cluster.servers[0].segments == 4 && cluster.segments_on_the_way == 0
    });
    assert_eq!(clients.broken(), 0);
    clients.end(&bed);
}

/// Their leases end one after the other: it knows before the first one ends that it misses all of them.
#[test]
fn a_manager_that_is_cut_off_from_the_servers_declares_none_of_them_dead() {
    let mut bed = Bed::new(6, 2, 5, 1);
    bed.start_all();
    for index in 0..5 {
        bed.kill(Role::Server, index);
        bed.world.run_for(130 * MS);
        bed.start(Role::Server, index);
        bed.settle();
    }
    bed.create("disk", GIB);
    // Until nobody remembers those deaths.
    bed.world.run_for(Duration::from_secs(11));
    let engines = |bed: &Bed| -> Vec<u64> {
        bed.cluster().servers.into_iter().flat_map(|server| server.engines).map(|engine| engine.id).collect()
    };
    let before = engines(&bed);
    let (index, _) = bed.in_charge().unwrap();
    bed.cut_off_from(Role::Manager, index, Role::Server);
    bed.world.run_for(Duration::from_secs(5));
    bed.reconnect(Role::Manager, index);
    bed.settle();
    assert_eq!(engines(&bed), before);
}

/// It asks the other one whom it misses, too, again and again while leases end. Whenever that one begins anew meanwhile, it
/// has heard of nobody for a moment.
#[test]
fn a_manager_that_has_just_begun_confirms_no_death() {
    for millis in (1_500..2_100).step_by(100) {
        let mut bed = Bed::new(7, 2, 5, 1);
        bed.start_all();
        bed.create("disk", GIB);
        let engines = |bed: &Bed| -> Vec<u64> {
            bed.cluster().servers.into_iter().flat_map(|server| server.engines).map(|engine| engine.id).collect()
        };
        let before = engines(&bed);
        assert_eq!(before.len(), 5);
        let (index, _) = bed.in_charge().unwrap();
        bed.cut_off_from(Role::Manager, index, Role::Server);
        bed.world.run_for(millis * MS);
        bed.kill(Role::Manager, 1 - index);
        bed.start(Role::Manager, 1 - index);
        bed.world.run_for(Duration::from_secs(3));
        bed.reconnect(Role::Manager, index);
        bed.settle();
        assert_eq!(engines(&bed), before, "begun anew after {millis} ms");
    }
}

#[test]
fn a_later_attachment_ends_the_earlier_one() {
    let mut bed = Bed::new(3, 1, 2, 2);
    bed.start_all();
    bed.create("disk", GIB);
    let [first, second] = [0, 1].map(|index| {
        let (handle, address) = (bed.handle(Role::Agent, index), bed.nbd(index));
        let inside = handle.clone();
        bed.world.block_on(&handle, async move {
            let client = nbd::Nbd::attach(&inside, &address).await.unwrap();
            client.write(0, &[index as u8 + 1; 4096]).await.unwrap();
            client
        })
    });
    let handle = bed.handle(Role::Agent, 0);
    bed.world.block_on(&handle, async move {
        assert!(first.write(0, &[9; 4096]).await.is_none(), "a former holder writes nothing");
    });
    let handle = bed.handle(Role::Agent, 1);
    bed.world.block_on(&handle, async move {
        assert_eq!(second.read(0, 4096).await.unwrap(), [2; 4096]);
    });
}

/// So long that clients meet errors; and everything is well when it is back.
#[test]
fn all_goes_on_when_the_store_was_away_for_long() {
    for seed in bed::seeds(6) {
        let mut bed = Bed::new(seed, 1, 3, 1);
        bed.start_all();
        bed.create("disk", GIB);
        let clients = Clients::start(&bed, 3);
        bed.world.run_for(500 * MS);
        bed.kill(Role::Store, 0);
        // A server that is asked waits for its store for a part of a minute by itself, and is asked again.
        bed.world.run_for(Duration::from_secs(62));
        assert!(clients.broken() > 0, "seed {seed}: no request waits for longer than its agent's patience");
        bed.world.run_for(Duration::from_secs(38));
        bed.start(Role::Store, 0);
        bed.settle();
        bed.world.run_for(Duration::from_secs(2));
        clients.end(&bed);
    }
}

/// A server that nobody reaches any more is dead when its lease has ended: soon after that its segments are found elsewhere,
/// also by an agent that is about to connect with it again.
#[test]
fn a_silent_server_costs_its_lease_and_little_more() {
    for seed in bed::seeds(4) {
        let mut bed = Bed::new(seed, 3, 4, 1);
        bed.start_all();
        bed.create("disk", GIB);
        let clients = Clients::start(&bed, 4);
        bed.world.run_for(Duration::from_millis(500));
        let begun = bed.world.now();
        let before: Vec<u64> = clients.models.iter().map(|model| model.answered.get()).collect();
        bed.cut_off(Role::Server, seed as usize % 4);
        // So many requests of a client go to every segment, the one that nobody has among them.
        let goes_on = || clients.models.iter().zip(&before).all(|(model, before)| model.answered.get() >= before + 40);
        bed.world.run_until(goes_on);
        let took = bed.world.now() - begun;
        assert!(took >= MS * 1_000, "seed {seed}: nothing was held up: {took:?}");
        assert!(took <= MS * 2_500, "seed {seed}: I/O went on after {took:?}");
        assert_eq!(clients.broken(), 0, "seed {seed}");
        bed.reconnect(Role::Server, seed as usize % 4);
        bed.settle();
        clients.end(&bed);
    }
}

/// One of each role dies at a time, again and again, or is cut off for a while.
#[test]
fn clients_notice_nothing_whoever_dies_but_their_agent() {
    let (mut answered, mut deaths) = (0, 0);
    for seed in bed::seeds(8) {
        let mut bed = Bed::new(seed, 3, 4, 1);
        bed.world.set_network(NetworkOptions { loss_one_in: 1000, ..NetworkOptions::default() });
        bed.start_all();
        bed.create("disk", GIB);
        let clients = Clients::start(&bed, 4);
        let mut prng = bed.world.fork_prng();
        for _ in 0..10 {
            bed.world.run_for(prng.between(50, 1_500) as u32 * MS);
            let (role, index) = match prng.below(8) {
                0..=3 => (Role::Server, prng.below(4) as usize),
                4..=6 => (Role::Manager, prng.below(3) as usize),
                _ => (Role::Store, 0),
            };
            let lasts = *prng.pick(&[0, 20, 400, 4_000]) as u32 * MS;
            deaths += 1;
            if prng.one_in(3) && role != Role::Store {
                bed.cut_off(role, index);
                bed.world.run_for(lasts);
                bed.reconnect(role, index);
            } else {
                bed.kill(role, index);
                bed.world.run_for(lasts);
                bed.start(role, index);
            }
        }
        bed.settle();
        answered += clients.answered();
        assert_eq!(clients.broken(), 0, "seed {seed}");
        clients.end(&bed);
    }
    assert!(answered > 3_000 && deaths > 50, "{answered} answers, {deaths} deaths");
}

/// Nobody knows whether an agent that does not answer has clients.
#[test]
fn a_volume_stays_while_an_agent_does_not_say_that_nobody_uses_it() {
    let mut bed = Bed::new(5, 1, 2, 1);
    bed.start_all();
    bed.create("disk", GIB);
    let delete = |bed: &Bed| bed.ask(Request::Delete { name: "disk".into(), force: false });
    bed.cut_off(Role::Agent, 0);
    let refused = delete(&bed).unwrap_err();
    assert!(refused.message.contains("1 agent did not say"), "{refused}");
    bed.reconnect(Role::Agent, 0);
    bed.world.run_for(Duration::from_secs(2));
    delete(&bed).unwrap();
}

/// What a dead server had of it is adopted, to be dropped.
#[test]
fn a_volume_goes_though_segments_of_it_are_on_their_way() {
    let mut bed = Bed::new(4, 1, 2, 1);
    bed.start_all();
    bed.create("disk", GIB);
    bed.kill(Role::Server, 0);
    bed.ask(Request::Delete { name: "disk".into(), force: true }).unwrap();
    bed.wait("nothing of it is left", |bed| bed.cluster().segments == 0);
}
