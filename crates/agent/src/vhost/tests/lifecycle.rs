//! Devices come and go, and so do their hypervisors and the process itself.

use std::time::Duration;

use base::{ErrorKind, Prng, SECTOR, VolumeId};
use runtime::guest::{Answer, Ask, Memory, Region};
use vm_memory::Bytes;
use wire::{VolumeDescriptor, VolumeUser};

use super::*;
use crate::vhost::driver::{Asked, HIGH, PLAIN, REGION, Shape, USER};
use crate::vhost::protocol::{feature, kind};

/// A guest whose process of the agent dies again and again, with requests in flight.
#[test]
fn a_guest_notices_nothing_when_the_agent_is_killed() {
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let mut fixture = Fixture::new(seed);
        let mut guest = Guest::new(path("disk"), 2, 256);
        // What each sector has: of the last write that was answered, or of one that is under way.
        let mut written: Vec<u8> = vec![0; 64];
        let mut under_way: Vec<(usize, Asked, u64, u8)> = Vec::new();
        let mut answered = 0;
        for life in 0..4u8 {
            fixture.store.delay.set(Duration::from_millis(prng.between(1, 5)));
            let pause = Duration::from_micros(prng.between(1, 20_000));
            let fresh: Vec<(usize, u64, u8)> =
                (0..60).map(|n| (n as usize % 2, prng.below(64), life * 60 + n + 1)).collect();
            let taken =
                (std::mem::replace(&mut guest, Guest::new(path("disk"), 2, 256)), std::mem::take(&mut under_way));
            let (handle, guests) = (fixture.guests.clone(), fixture.guests.clone());
            let working = async move {
                let (mut guest, mut under_way) = taken;
                guest.connect(&handle).await.unwrap();
                // One write of a sector at a time, so that its last one is known.
                for (queue, sector, value) in fresh {
                    if under_way.iter().all(|(_, _, other, _)| *other != sector) {
                        let asked = guest.request(queue, kind::OUT, sector, &[value; 512], 0, PLAIN);
                        under_way.push((queue, asked, sector, value));
                    }
                }
                handle.sleep(pause).await;
                (guest, under_way)
            };
            (guest, under_way) = fixture.world.block_on(&guests, working);
            let (world, node, store) = (fixture.world.clone(), fixture.node, fixture.store.clone());
            drop(fixture);
            world.kill(node);
            for queue in 0..2 {
                while let Some((head, _)) = guest.next_used(queue) {
                    let at = under_way.iter().position(|(of, asked, ..)| *of == queue && asked.head == head).unwrap();
                    let (_, asked, sector, value) = under_way.remove(at);
                    assert_eq!(guest.answer(&asked).0, 0, "no error");
                    written[sector as usize] = value;
                    answered += 1;
                }
            }
            let handle = world.start_loop(node);
            // What it had of the former life is over: what was under way there landed, or never will.
            let store = store.reborn(&handle);
            fixture = Fixture::start(world, node, handle, store, Options::default(), 1 + seed as usize % 3);
        }
        assert!(answered > 0, "seed {seed}: something was answered before a death");
        let guests = fixture.guests.clone();
        fixture.run(|_| async move {
            guest.connect(&guests).await.unwrap();
            for _ in 0..under_way.len() {
                let queue = under_way[0].0;
                let (head, _) = guest.wait_used(queue).await;
                let at = under_way.iter().position(|(of, asked, ..)| *of == queue && asked.head == head).unwrap();
                let (_, asked, sector, value) = under_way.remove(at);
                assert_eq!(guest.answer(&asked).0, 0, "no error");
                written[sector as usize] = value;
            }
            let (status, bytes) = guest.read(0, 0, 64 * SECTOR, PLAIN).await;
            assert_eq!(status, 0);
            for (sector, value) in written.iter().enumerate() {
                assert_eq!(bytes[sector * 512..(sector + 1) * 512], [*value; 512], "seed {seed}, sector {sector}");
            }
        });
    }
}

/// The hypervisor goes in the middle and comes back: what it had under way is answered, once.
#[test]
fn a_hypervisor_that_connects_again_in_the_middle_goes_on() {
    for seed in 0..20 {
        let fixture = Fixture::new(seed);
        fixture.store.delay.set(Duration::from_millis(3));
        fixture.run(|handle| async move {
            let mut guest = started(&handle, path("disk")).await;
            let mut heads = Vec::new();
            for n in 0..40u64 {
                let shape = Shape { is_indirect: true, piece: 4096 };
                heads.push(guest.request(0, kind::OUT, n, &[n as u8 + 1; 512], 0, shape).head);
                if n % 10 == 9 {
                    handle.sleep(Duration::from_micros(500)).await;
                    guest.visitor = None;
                    guest.connect(&handle).await.unwrap();
                }
            }
            while !heads.is_empty() {
                let (head, _) = guest.wait_used(0).await;
                heads.retain(|other| *other != head);
            }
            assert_eq!(guest.next_used(0), None);
            let (_, bytes) = guest.read(1, 0, 40 * SECTOR, PLAIN).await;
            assert!((0..40).all(|n| bytes[n * 512] == n as u8 + 1));
        });
    }
}

#[test]
fn a_queue_stops_when_nothing_of_it_is_in_flight() {
    let fixture = Fixture::new(2);
    fixture.store.delay.set(Duration::from_millis(3));
    fixture.attached(|mut guest| async move {
        for n in 0..10 {
            guest.request(0, kind::OUT, n, &[1; 512], 0, Shape { is_indirect: true, piece: 4096 });
        }
        assert_eq!(guest.write(1, 100, &[1; 512], PLAIN).await, 0);
        let Answer::Number(next) = guest.ask(Ask::Stop { queue: 0 }).await.unwrap() else { panic!() };
        assert_eq!(guest.used_index(0), next as u16, "all that was taken was used");
        assert_eq!(guest.write(1, 100, &[2; 512], PLAIN).await, 0, "the other queue goes on");
        guest.set_up_queue(0).await.unwrap();
        for _ in 0..10 {
            guest.wait_used(0).await;
        }
    });
}

#[test]
fn a_queue_that_is_not_enabled_is_not_served() {
    let fixture = Fixture::new(3);
    fixture.attached(|mut guest| async move {
        guest.ask(Ask::SetEnabled { queue: 0, is_enabled: false }).await.unwrap();
        let asked = guest.request(0, kind::OUT, 0, &[1; 512], 0, PLAIN);
        assert_eq!(guest.write(1, 1, &[1; 512], PLAIN).await, 0);
        assert_eq!(guest.next_used(0), None);
        guest.ask(Ask::SetEnabled { queue: 0, is_enabled: true }).await.unwrap();
        assert_eq!(guest.outcome(0, &asked).await.0, 0);
    });
}

/// Memory is plugged in while requests run.
#[test]
fn memory_that_changes_is_used_from_then_on() {
    let fixture = Fixture::new(4);
    fixture.attached(|mut guest| async move {
        assert_eq!(guest.write(0, 0, &[1; 512], PLAIN).await, 0);
        let third = HIGH * 2;
        let regions = [0, HIGH, third].map(|guest| Region { guest, len: REGION, user: USER + guest });
        let larger = Memory::plain(regions.to_vec()).unwrap();
        for start in [0, HIGH] {
            let mut all = vec![0; REGION as usize];
            guest.memory.map().read_slice(&mut all, vm_memory::GuestAddress(start)).unwrap();
            larger.map().write_slice(&all, vm_memory::GuestAddress(start)).unwrap();
        }
        guest.memory = larger.clone();
        guest.ask(Ask::SetMemory(larger)).await.unwrap();
        assert_eq!(guest.write(0, 1, &[2; 512], PLAIN).await, 0);
        let header = [kind::IN.to_le_bytes(), [0; 4], [0; 4], [0; 4]].concat();
        guest.memory.map().write_slice(&header, vm_memory::GuestAddress(third)).unwrap();
        let before = guest.queues[1].available;
        guest.put_chain(1, &[(third, 16, 0), (third + 4096, 1024, 2), (third + 8192, 1, 2)]);
        guest.kick(1, before);
        guest.wait_used(1).await;
        assert_eq!((guest.get::<u8>(third + 4096), guest.get::<u8>(third + 4096 + 512)), (1, 2));
    });
}

#[test]
fn a_device_has_one_connection_at_a_time() {
    let fixture = Fixture::new(5);
    fixture.run(|handle| async move {
        let mut first = started(&handle, path("disk")).await;
        let mut second = Guest::new(path("disk"), 1, 16);
        second.dial(&handle).await.unwrap();
        let visitor = second.visitor.take().unwrap();
        let waiting = handle.spawn(Class::Io, "second", async move { (visitor.ask(Ask::Features).await, visitor) });
        handle.sleep(Duration::from_millis(50)).await;
        assert!(!waiting.is_finished());
        assert_eq!(first.write(0, 0, &[1; 512], PLAIN).await, 0);
        drop(first);
        let (answer, visitor) = waiting.await;
        assert!(answer.is_ok());
        second.visitor = Some(visitor);
        second.set_up().await.unwrap();
        assert_eq!(second.read(0, 0, 512, PLAIN).await, (0, vec![1; 512]));
    });
}

#[test]
fn a_stop_lets_requests_finish() {
    for seed in 0..6 {
        let fixture = Fixture::new(seed);
        fixture.store.delay.set(Duration::from_millis(3));
        let guest = fixture.run(|handle| async move {
            let mut guest = started(&handle, path("disk")).await;
            for n in 0..10 {
                guest.request(0, kind::OUT, n, &[1; 512], 0, Shape { is_indirect: true, piece: 4096 });
            }
            handle.sleep(Duration::from_micros(800)).await;
            guest
        });
        let agent = fixture.agent.clone();
        fixture.world.block_on(&fixture.handle, async move { agent.stop().await });
        let used = guest.used_index(0);
        fixture.run(|handle| async move {
            handle.sleep(Duration::from_millis(50)).await;
            assert_eq!(guest.used_index(0), used, "nothing is written after a stop");
            assert!(guest.ask(Ask::Features).await.is_err());
            assert!(handle.connect(&runtime::Address::Unix(path("disk"))).await.is_err());
        });
        assert_eq!(fixture.agent.statistics().connections_open, 0);
        assert!(fixture.store.log.borrow().iter().any(|line| line.starts_with("released")), "it was detached");
    }
}

#[test]
fn a_device_goes_when_it_is_removed() {
    let fixture = Fixture::new(7);
    let guest = fixture.attached(|guest| async move { guest });
    let connected = || fixture.agent.devices().iter().map(|device| device.is_connected).collect::<Vec<_>>();
    assert_eq!(connected(), [true, false]);
    fixture.with_agent(|agent| async move {
        agent.remove_device(&path("disk")).await.unwrap();
        assert_eq!(agent.remove_device(&path("disk")).await.unwrap_err().kind, ErrorKind::NotFound);
        agent.remove_device(&path("other")).await.unwrap();
    });
    fixture.run(|handle| async move {
        assert!(guest.ask(Ask::Features).await.is_err());
        assert!(handle.connect(&runtime::Address::Unix(path("disk"))).await.is_err());
        assert!(handle.connect(&runtime::Address::Unix(path("other"))).await.is_err());
    });
    assert_eq!(connected(), [false; 0]);
}

/// With a guest at work: in the simulated world many agents die in one process.
#[test]
fn nothing_is_kept_of_an_agent_that_was_killed() {
    let fixture = Fixture::with(1, Options::default(), 3);
    let guest = fixture.run(|handle| async move {
        let mut guest = started(&handle, path("disk")).await;
        assert_eq!(guest.write(0, 0, &[1; 512], PLAIN).await, 0);
        guest
    });
    let Fixture { world, node, store, agent, .. } = fixture;
    drop(agent);
    world.kill(node);
    assert_eq!(Rc::strong_count(&store), 1);
    drop(guest);
}

#[test]
fn a_device_goes_with_its_volume() {
    let fixture = Fixture::new(8);
    let mut guest = fixture.attached(|guest| async move { guest });
    let id = fixture.store.volumes.borrow()["disk"].id;
    assert_eq!(fixture.agent.users(id), 1);
    fixture.store.volumes.borrow_mut().remove("disk");
    fixture.with_agent(move |agent| async move { agent.release(id).await });
    fixture.run(|handle| async move {
        assert!(guest.ask(Ask::Features).await.is_err());
        // Whoever comes again finds that out, and then nobody is there any more.
        guest.dial(&handle).await.unwrap();
        assert!(guest.ask(Ask::Features).await.is_err());
        handle.sleep(Duration::from_millis(10)).await;
        assert!(guest.dial(&handle).await.is_err());
    });
    assert_eq!(fixture.agent.devices().len(), 1);
}

/// A machine that was started with a volume has requests in flight that were meant for it, and what it has read of it: it does
/// not get another one that has the same name.
#[test]
fn a_volume_of_the_same_name_is_another_one() {
    for comes_between in [true, false] {
        let fixture = Fixture::new(8);
        let mut guest = fixture.attached(|guest| async move { guest });
        let id = fixture.store.volumes.borrow()["disk"].id;
        fixture.store.volumes.borrow_mut().remove("disk");
        fixture.with_agent(move |agent| async move { agent.release(id).await });
        let other = VolumeDescriptor::new(VolumeId(77), "disk", 8 * GIB);
        fixture.store.volumes.borrow_mut().insert("disk".into(), other);
        if comes_between {
            guest = fixture.run(|handle| async move {
                assert!(guest.connect(&handle).await.is_err(), "its volume is gone");
                handle.sleep(Duration::from_millis(10)).await;
                assert!(guest.dial(&handle).await.is_err(), "and the device with it");
                guest
            });
        }
        fixture.with_agent(|agent| async move { agent.add_device("disk", &path("disk")).await.unwrap() });
        fixture.run(|handle| async move {
            drop(guest);
            let mut fresh = started(&handle, path("disk")).await;
            assert_eq!(fresh.write(0, 0, &[1; 512], PLAIN).await, 0, "a machine that is started for it has it");
        });
        assert_eq!(fixture.agent.devices().len(), 2);
    }
}

#[test]
fn a_path_is_one_devices_only() {
    let fixture = Fixture::new(8);
    let handle = fixture.handle.clone();
    fixture.with_agent(|agent| async move {
        let refused = |volume: &'static str, at: &'static str| {
            let agent = agent.clone();
            async move { agent.add_device(volume, std::path::Path::new(at)).await.map_err(|error| error.kind) }
        };
        assert_eq!(refused("disk", "/run/disk.sock").await, Ok(()), "it is there already");
        assert_eq!(refused("other", "/run/disk.sock").await, Err(ErrorKind::Conflict));
        assert_eq!(refused("none", "/run/none.sock").await, Err(ErrorKind::NotFound));
        assert_eq!(refused("disk", "none.sock").await, Err(ErrorKind::Invalid));
        let busy = handle.listen(&runtime::Address::Unix("/run/busy.sock".into())).await.unwrap();
        assert_eq!(refused("disk", "/run/busy.sock").await, Err(ErrorKind::Conflict));
        drop(busy);
    });
}

/// Two devices of one volume share its attachment, as two clients do.
#[test]
fn what_one_device_writes_the_other_one_reads() {
    let fixture = Fixture::new(9);
    fixture.with_agent(|agent| async move {
        agent.remove_device(&path("other")).await.unwrap();
        agent.add_device("disk", &path("other")).await.unwrap();
    });
    fixture.run(|handle| async move {
        let mut guest = started(&handle, path("disk")).await;
        let mut twin = Guest::new(path("other"), 1, 32);
        twin.features &= !feature::INDIRECT;
        twin.connect(&handle).await.unwrap();
        assert_eq!(guest.write(0, 5, &[3; 512], PLAIN).await, 0);
        assert_eq!(twin.read(0, 5, 512, PLAIN).await, (0, vec![3; 512]));
    });
}

/// What was used, and not told before a connection or a process ended, is told when the next one begins.
#[test]
fn a_guest_is_told_again_by_the_next_connection() {
    let fixture = Fixture::new(10);
    fixture.run(|handle| async move {
        let mut guest = started(&handle, path("disk")).await;
        let asked = guest.request(0, kind::OUT, 5, &[3; 512], 0, PLAIN);
        while guest.used_index(0) == 0 {
            handle.sleep(Duration::from_micros(100)).await;
        }
        guest.visitor = None;
        // The hypervisor has stopped to listen to this one.
        guest.queues[0].call = runtime::guest::Bell::plain();
        guest.connect(&handle).await.unwrap();
        guest.queues[0].call.clone().wait().await;
        assert_eq!(guest.outcome(0, &asked).await.0, 0);
    });
}

/// What a loop of a connection that is over may hear of the guest's bell is for the next connection: it rings once more.
#[test]
fn what_a_former_connection_has_heard_is_passed_on() {
    for loops in [1, 2] {
        let fixture = Fixture::with(11, Options::default(), loops);
        fixture.run(move |handle| async move {
            let mut guest = started(&handle, path("disk")).await;
            assert_eq!(guest.write(0, 5, &[3; 512], PLAIN).await, 0);
            let kick = guest.queues[0].kick.clone();
            guest.visitor = None;
            let passed_on = runtime::sync::first(kick.wait(), handle.sleep(Duration::from_secs(1))).await;
            assert!(passed_on.is_ok(), "{loops} loops");
        });
    }
}
