//! Attaching, letting go, and what happens when the owner of a volume goes away.

use base::{Epoch, MIB, VolumeId};
use wire::VolumeUser;

use super::*;
use crate::nbd::protocol::*;

const DISK: VolumeId = VolumeId(1);

#[test]
fn a_volume_is_attached_by_the_first_connection_and_released_by_the_last() {
    let fixture = Fixture::new(1);
    fixture.run(|handle, address| async move {
        let attach = || Client::attach(&handle, &address, "disk");
        let first = attach().await.unwrap();
        let second = attach().await.unwrap();
        drop(first);
        handle.sleep(Duration::from_millis(10)).await;
        drop(second);
        handle.sleep(Duration::from_millis(10)).await;
        attach().await.unwrap();
    });
    fixture.settle();
    let expected = ["attached v1 g1", "released v1 g1", "attached v1 g2", "released v1 g2"];
    assert_eq!(*fixture.store.log.borrow(), expected);
    assert_eq!(fixture.agent.users(DISK), 0);
}

#[test]
fn connections_that_come_at_once_share_one_attachment() {
    for seed in 0..20 {
        let fixture = Fixture::new(seed);
        fixture.run(|handle, address| async move {
            let tasks: Vec<_> = (0..10)
                .map(|_| {
                    let (inside, address) = (handle.clone(), address.clone());
                    handle.spawn(Class::Io, "client", async move { Client::attach(&inside, &address, "disk").await })
                })
                .collect();
            let mut clients = Vec::new();
            for task in tasks {
                clients.push(task.await.unwrap());
            }
        });
        fixture.settle();
        let log = fixture.store.log.borrow();
        assert!(log.len() == 2, "seed {seed}: {log:?}");
    }
}

#[test]
fn a_stop_answers_what_is_in_flight() {
    for seed in 0..20 {
        let fixture = Fixture::new(seed);
        fixture.store.delay.set(Duration::from_millis(20));
        let answered = fixture.client.spawn(Class::Io, "client", {
            let (handle, address) = (fixture.client.clone(), fixture.address.clone());
            async move {
                let mut client = Client::attach(&handle, &address, "disk").await.unwrap();
                for n in 0..40 {
                    client.request(command::WRITE, 0, n * 512, 512, &[1; 512]).await.unwrap();
                }
                let mut answered = 0;
                while let Ok(response) = client.response().await {
                    assert_eq!(response.errno, 0);
                    answered += 1;
                }
                answered
            }
        });
        let idle = fixture.attached(|client| async move { client });
        fixture.world.run_for(Duration::from_millis(50));
        fixture.stop();
        assert_eq!(fixture.world.block_on(&fixture.client, answered), 40, "seed {seed}");
        assert_eq!(fixture.agent.statistics().connections_open, 0);
        assert!(fixture.store.log.borrow().last().unwrap().starts_with("released"));
        drop(idle);
        let refused = fixture.run(|handle, address| async move { Client::connect(&handle, &address).await.is_err() });
        assert!(refused, "nobody listens any more");
    }
}

#[test]
fn a_stop_does_not_wait_for_ever_for_a_client_that_does_not_read() {
    let fixture = Fixture::new(2);
    let client = fixture.attached(|mut client| async move {
        client.write(0, &vec![1; 4 * MIB as usize]).await.unwrap();
        for _ in 0..20 {
            client.request(command::READ, 0, 0, 4 * MIB as u32, b"").await.unwrap();
        }
        client
    });
    fixture.world.run_for(Duration::from_millis(100));
    fixture.stop();
    assert_eq!(fixture.agent.statistics().connections_open, 0);
    drop(client);
}

#[test]
fn a_release_does_not_wait_for_ever_either() {
    let fixture = Fixture::new(7);
    let client = fixture.attached(|mut client| async move {
        client.write(0, &vec![1; 4 * MIB as usize]).await.unwrap();
        for _ in 0..20 {
            client.request(command::READ, 0, 0, 4 * MIB as u32, b"").await.unwrap();
        }
        client
    });
    let agent = fixture.agent.clone();
    fixture.world.block_on(&fixture.server, async move { agent.release(DISK).await });
    drop(client);
}

#[test]
fn a_release_ends_the_connections_of_one_volume() {
    let fixture = Fixture::new(3);
    fixture.store.add_volume("other", MIB);
    let (mut released, mut other) = fixture.run(|handle, address| async move {
        let released = Client::attach(&handle, &address, "disk").await.unwrap();
        (released, Client::attach(&handle, &address, "other").await.unwrap())
    });
    assert_eq!(fixture.agent.users(DISK), 1);
    let agent = fixture.agent.clone();
    fixture.world.block_on(&fixture.server, async move { agent.release(DISK).await });
    assert_eq!(fixture.agent.users(DISK), 0);
    assert!(fixture.store.log.borrow().contains(&"released v1 g1".into()));
    assert!(fixture.agent.volume_statistics().iter().all(|(id, ..)| *id != DISK), "its counters are gone");
    fixture.world.block_on(&fixture.client, async move {
        assert!(released.is_ended().await);
        assert_eq!(other.read(0, 512).await.unwrap().errno, 0);
    });
}

#[test]
fn a_lost_link_ends_the_connections_and_the_next_attachment_is_a_new_generation() {
    let fixture = Fixture::new(4);
    let store = fixture.store.clone();
    fixture.run(|handle, address| async move {
        let mut one = Client::attach(&handle, &address, "disk").await.unwrap();
        let mut two = Client::attach(&handle, &address, "disk").await.unwrap();
        one.write(0, &[1; 512]).await.unwrap();
        store.lose_link.set(true);
        assert_eq!(one.write(0, &[2; 512]).await.unwrap().errno, Errno::Shutdown as u32);
        assert!(one.is_ended().await && two.is_ended().await);
        store.lose_link.set(false);
        let mut again = Client::attach(&handle, &address, "disk").await.unwrap();
        assert_eq!(again.read(0, 512).await.unwrap().content, [1; 512]);
    });
    let log = fixture.store.log.borrow();
    assert_eq!(log[..3], ["attached v1 g1", "released v1 g1", "attached v1 g2"]);
}

/// Its owner has not heard either that the attachment is over, and would still answer it with what was there before.
#[test]
fn who_comes_anew_does_not_enter_an_attachment_that_is_over() {
    for seed in 0..6 {
        let fixture = Fixture::new(seed);
        let store = fixture.store.clone();
        fixture.run(|handle, address| async move {
            let mut before = Client::attach(&handle, &address, "disk").await.unwrap();
            assert_eq!(before.read(0, 512).await.unwrap().errno, 0);
            store.attach_elsewhere("disk");
            let mut after = Client::attach(&handle, &address, "disk").await.unwrap();
            assert!(before.is_ended().await, "whoever used it is told");
            assert_eq!(after.read(0, 512).await.unwrap().errno, 0);
        });
        let log = fixture.store.log.borrow();
        assert_eq!(log[..3], ["attached v1 g1", "released v1 g1", "attached v1 g3"], "seed {seed}");
    }
}

#[test]
fn nothing_is_sent_after_an_outcome_that_nobody_knows() {
    let fixture = Fixture::new(5);
    let store = fixture.store.clone();
    fixture.store.delay.set(Duration::from_millis(5));
    fixture.attached(|mut client| async move {
        store.lose_link.set(true);
        for n in 0..20u8 {
            client.request(command::WRITE, 0, 0, 512, &[n; 512]).await.unwrap();
        }
        // The first is in flight, the others wait for its outcome, which never comes. The store asserts that no two
        // overlap; here the later ones must not even be tried.
        for _ in 0..20 {
            assert_eq!(client.response().await.unwrap().errno, Errno::Shutdown as u32);
        }
        assert!(client.is_ended().await);
    });
}

#[test]
fn a_fenced_owner_is_not_believed() {
    let fixture = Fixture::new(6);
    let store = fixture.store.clone();
    fixture.attached(|mut client| async move {
        store.epoch.set(Epoch(5));
        assert_eq!(client.write(0, &[1; 512]).await.unwrap().errno, 0, "a newer owner is");
        store.epoch.set(Epoch(4));
        assert_eq!(client.read(0, 512).await.unwrap().errno, Errno::Shutdown as u32);
        assert!(client.is_ended().await);
    });
}
