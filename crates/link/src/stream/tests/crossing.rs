//! What crosses when nothing is wrong.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use base::levels::{Level, Levels, Rate};
use base::{Bytes, ErrorKind, Generation, Prng, SnapshotNumber, Stage, VolumeId, WriteSequence, WriteStamp};
use runtime::{Address, Class};
use wire::{BlockService, SessionId, Target, VolumeDescriptor, VolumeDirectory, VolumeOwner, VolumeUser};

use super::store::{EPOCH, Store};
use super::world::{DISK, Fixture, attach, listen, options, read, segment, write};
use crate::stream::{FarEnd, NearEnd, Options, Services};

#[test]
fn every_request_crosses_with_its_arguments_and_its_answer() {
    let fixture = Fixture::new(1);
    let near = fixture.dial();
    let stamp = WriteStamp { generation: Generation(4), sequence: WriteSequence(9), snapshot: SnapshotNumber(2) };
    fixture.run(async move {
        let target = attach(&near).await.unwrap();
        assert_eq!((target.session, target.epoch), (SessionId(1), EPOCH));
        let reply = write(&near, target, 512, vec![5; 8192]).await.unwrap();
        assert!(reply.epoch == EPOCH && reply.passage.crossed && reply.result.is_ok());
        assert_eq!((reply.passage.of(Stage::Append), reply.passage.total_ns()), (700, 700), "stage times come back");
        let bytes = read(&near, target, 0, 9216).await.unwrap().unwrap();
        assert!(bytes[..512] == [0; 512] && bytes[512..8704] == [5; 8192] && bytes[8704..] == [0; 512]);
        near.discard(target, 4096, 8192, stamp).await.unwrap().result.unwrap();
        near.flush(target).await.unwrap().result.unwrap();
        assert_eq!(near.allocation(target, 0, 64 << 10, 3).await.unwrap().result.unwrap()[0].len, 64 << 10);
        assert_eq!(near.resolve("disk").await.unwrap().id, DISK);
        let missing = near.resolve("none").await.unwrap_err();
        assert_eq!((missing.kind, &*missing.message), (ErrorKind::NotFound, "there is no volume 'none'"));
        let described = near.describe(VolumeId(5)).await.unwrap();
        assert_eq!((described.id, described.generation, &*described.owner), (VolumeId(5), Generation(4), "somebody"));
        assert_eq!(near.list().await.unwrap(), ["disk", "other"]);
        VolumeDirectory::attach(&near, DISK).await.unwrap();
        VolumeDirectory::detach(&near, DISK, Generation(4)).await.unwrap();
        assert_eq!(near.drop_volume(DISK).await.unwrap_err().kind, ErrorKind::Full);
        near.begin_scrub().await.unwrap();
        near.release(DISK).await;
        BlockService::detach(&near, target.session).await.unwrap();
        let ended = near.flush(target).await.unwrap();
        assert_eq!((ended.epoch, ended.result.unwrap_err().kind), (target.epoch, ErrorKind::Fenced));
    });
    let expected = [
        "attach v1 g4",
        "discard v1/2 4096 8192 w9",
        "flush v1/2",
        "allocation v1/2 0 65536 3",
        "take v1",
        "give back v1 g4",
        "drop v1",
        "scrub",
        "release v1",
        "detach session 1",
    ];
    assert_eq!(*fixture.store.log.borrow(), expected);
    fixture.settle();
}

#[test]
fn what_is_said_without_waiting_arrives_in_its_newest_form() {
    let fixture = Fixture::new(2);
    let near = fixture.dial();
    let volume = |id, iops| {
        let levels = Levels { base: Rate { iops, bytes_per_sec: 0 }, ..Levels::default() };
        VolumeDescriptor { levels, ..VolumeDescriptor::new(VolumeId(id), "disk", 1 << 30) }
    };
    for iops in 1..100 {
        near.set_levels(&volume(1, iops));
        near.set_levels(&volume(2, 1000 + iops));
        near.set_provisioned(iops);
        near.learn_levels(&volume(3, 2000 + iops));
    }
    assert_eq!(near.users(DISK), 0, "nobody was asked so far");
    fixture.world.run_for(Duration::from_secs(1));
    assert_eq!(near.users(DISK), 3);
    let log = fixture.store.log.borrow();
    assert!(log.len() < 20, "what was replaced before it was said is not said: {log:?}");
    for last in ["levels v1 99", "levels v2 1099", "learned v3 2099", "provisioned 99"] {
        let kind = last.rsplit_once(' ').unwrap().0;
        assert_eq!(log.iter().rfind(|text| text.starts_with(kind)).unwrap(), last);
    }
}

#[test]
fn a_request_keeps_the_mark_of_its_agent() {
    let fixture = Fixture::new(12);
    let near = fixture.dial();
    fixture.run(async move {
        let target = attach(&near).await.unwrap();
        for level in [Level::Base, Level::Burst, Level::Merge, Level::Open] {
            near.flush(Target { level, ..target }).await.unwrap().result.unwrap();
        }
    });
    let log = fixture.store.log.borrow();
    let flushes: Vec<&str> = log.iter().filter_map(|text| text.strip_prefix("flush ")).collect();
    let marks: Vec<&str> = flushes.iter().map(|text| text.split_once(' ').map_or("", |(_, mark)| mark)).collect();
    assert_eq!(marks, ["as base", "as burst", "as merge", ""]);
}

#[test]
fn a_unix_socket_carries_the_same() {
    let fixture = Fixture::new(3);
    let path = Address::Unix("/disk/levee.sock".into());
    let address = listen(&fixture.world, &fixture.far, &fixture.end, path);
    let near = NearEnd::dial(&fixture.far, address, Services::default(), options("an agent"));
    fixture.world.block_on(&fixture.far, async move {
        let target = attach(&near).await.unwrap();
        write(&near, target, 0, vec![6; 512]).await.unwrap().result.unwrap();
        assert_eq!(read(&near, target, 0, 512).await.unwrap().unwrap(), [6; 512]);
    });
    fixture.settle();
}

/// Sizes around every boundary, many at a time, in whichever order they are answered.
#[test]
fn bytes_of_every_size_come_through() {
    for seed in 0..10 {
        let fixture = Fixture::new(seed);
        let (near, handle) = (fixture.dial(), fixture.near.clone());
        fixture.run(async move {
            let target = attach(&near).await.unwrap();
            let sizes = [512, 4096, 15_872, 16_384, 16_896, 32_768, 65_536, 131_072, 1 << 20, 8 << 20, 32 << 20];
            let tasks: Vec<_> = sizes
                .into_iter()
                .enumerate()
                .map(|(index, size)| {
                    let near = near.clone();
                    let offset = ((index as u64) << 26) + 512 * (index as u64 % 3);
                    handle.spawn(Class::Io, "writer", async move {
                        let mut data = vec![0; size];
                        Prng::new(seed * 100 + index as u64).fill(&mut data);
                        write(&near, target, offset, data.clone()).await.unwrap().result.unwrap();
                        assert!(read(&near, target, offset, size as u64).await.unwrap().unwrap() == data, "{size}");
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
        });
        let alignments = fixture.store.alignments.borrow();
        assert!(alignments.iter().filter(|&&at| at == 0).count() >= 8, "large payloads are aligned: {alignments:?}");
        assert!(fixture.store.in_flight_max.get() > 1);
    }
}

#[test]
fn no_more_is_in_flight_than_the_credit_and_all_of_it_is_served() {
    let fixture = Fixture::new(4);
    fixture.store.takes.set(Duration::from_millis(1));
    let (near, handle) = (fixture.dial(), fixture.near.clone());
    fixture.run(async move {
        let target = attach(&near).await.unwrap();
        // A reader that stops waiting gives its credit back only with the reply.
        for _ in 0..20 {
            let near = near.clone();
            let reader = handle.spawn(Class::Io, "impatient", async move { near.read(target, 0, 512).await.is_ok() });
            handle.sleep(Duration::from_micros(300)).await;
            drop(reader);
        }
        let mut data = vec![0; 512];
        let tasks: Vec<_> = (0..200u64)
            .map(|n| {
                let near = near.clone();
                data.fill(n as u8);
                let data = Bytes::copy_from_slice(&data);
                handle.spawn(Class::Io, "writer", async move {
                    write(&near, target, n * 512, data.to_vec()).await.unwrap().result.unwrap();
                    // Three such reads do not fit at a time.
                    read(&near, target, 0, 12 << 20).await.unwrap().unwrap()[n as usize * 512]
                })
            })
            .collect();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await, n as u8);
        }
    });
    assert_eq!(fixture.store.in_flight_max.get(), 8);
}

#[test]
fn nobody_asks_for_more_than_it_has_room_for_however_much_is_granted() {
    let fixture = Fixture::new(9);
    fixture.store.takes.set(Duration::from_millis(1));
    let modest = Options { requests_max: 3, bytes_max: 0, ..options("an agent") };
    let near = NearEnd::dial(&fixture.near, fixture.address.clone(), Services::default(), modest);
    let handle = fixture.near.clone();
    fixture.run(async move {
        let target = attach(&near).await.unwrap();
        let readers: Vec<_> = (0..20)
            .map(|_| {
                let near = near.clone();
                handle.spawn(
                    Class::Io,
                    "reader",
                    async move { read(&near, target, 0, 16 << 20).await.unwrap().is_ok() },
                )
            })
            .collect();
        for reader in readers {
            assert!(reader.await);
        }
    });
    assert_eq!(fixture.store.in_flight_max.get(), 2, "two such reads are the least that fits");
}

#[test]
fn whoever_was_dialled_may_ask_back() {
    let fixture = Fixture::new(5);
    let agent = Store::new(&fixture.near);
    let services = Services { user: Some(agent.clone()), ..Services::default() };
    let near = NearEnd::dial(&fixture.near, fixture.address.clone(), services, options("an agent"));
    let keeps = near.clone();
    assert!(fixture.end.peers().is_empty());
    let silent = fixture.dial();
    fixture.run(async move { drop((near.list().await.unwrap(), silent.list().await.unwrap(), silent.hang_up())) });
    let peers = fixture.end.peers();
    let [peer] = &peers[..] else { panic!("{} peers", peers.len()) };
    let asking = peer.clone();
    fixture.world.block_on(&fixture.far, async move {
        asking.release(DISK).await;
        let refused = asking.list().await.unwrap_err();
        assert!(refused.kind == ErrorKind::Invalid && refused.message.contains("an agent does no list"), "{refused}");
    });
    assert_eq!(*agent.log.borrow(), ["release v1"]);
    keeps.hang_up();
    fixture.world.run_for(Duration::from_millis(1));
    let asking = peer.clone();
    let gone = fixture.world.block_on(&fixture.far, async move { asking.resolve("disk").await.unwrap_err() });
    assert!(gone.kind == ErrorKind::Io && gone.message.contains("has to connect again"), "{gone}");
}

#[test]
fn what_no_frame_can_say_is_refused_before_it_is_sent() {
    let fixture = Fixture::new(6);
    let near = fixture.dial();
    fixture.run(async move {
        let target = attach(&near).await.unwrap();
        for (offset, len) in [(0, 0), (1, 512), (0, (32 << 20) + 512), (32 << 30, 512)] {
            let refused = near.read(target, offset, len).await.unwrap();
            assert_eq!((refused.epoch, refused.result.unwrap_err().kind), (EPOCH, ErrorKind::Invalid));
        }
        let short = near.write(target, 0, Bytes::from(vec![0; 512]), vec![], WriteStamp::default()).await.unwrap();
        assert_eq!(short.result.unwrap_err().kind, ErrorKind::Invalid);
        assert!(near.flush(target).await.unwrap().result.is_ok(), "the connection goes on");
        // What the owner refuses is no concern of the connection either.
        let old = Target { epoch: base::Epoch(6), ..target };
        assert_eq!(near.flush(old).await.unwrap().result.unwrap_err().kind, ErrorKind::Fenced);
        assert!(near.flush(target).await.unwrap().result.is_ok());
        assert_eq!(target.segment, segment());
    });
}

#[test]
fn a_link_that_is_lost_behind_the_far_end_is_lost_for_the_near_one() {
    let fixture = Fixture::new(7);
    let near = fixture.dial();
    let store = fixture.store.clone();
    fixture.run(async move {
        let target = attach(&near).await.unwrap();
        store.loses_link.set(true);
        let lost = write(&near, target, 0, vec![1; 512]).await.unwrap_err();
        assert_eq!(lost.message, "another loop has ended");
        assert!(near.flush(target).await.unwrap().result.is_ok(), "the connection goes on");
    });
}

#[test]
fn an_end_that_stops_finishes_what_it_took() {
    let fixture = Fixture::new(8);
    fixture.store.takes.set(Duration::from_millis(50));
    let near = fixture.dial();
    let outcome = Rc::new(Cell::new(None));
    let (asking, slot) = (near.clone(), outcome.clone());
    let asking = async move {
        let target = attach(&asking).await.unwrap();
        slot.set(Some(write(&asking, target, 0, vec![1; 512]).await.map(drop).map_err(|lost| lost.message)));
    };
    fixture.near.spawn(Class::Io, "writer", asking).detach();
    fixture.world.run_for(Duration::from_millis(60));
    let end: Rc<FarEnd> = fixture.end.clone();
    fixture.world.block_on(&fixture.far, async move { end.stop().await });
    assert_eq!((fixture.store.in_flight.get(), fixture.store.sessions.borrow().len()), (0, 0));
    fixture.world.run_for(Duration::from_millis(1));
    let lost = outcome.take().unwrap().unwrap_err();
    assert!(lost.contains("the store has ended the connection: the store is stopping"), "{lost}");
    let refused = fixture.run(async move { near.list().await.unwrap_err() });
    assert!(refused.kind == ErrorKind::Io && refused.message.contains("cannot be reached"), "{refused}");
}

/// Who waits for credit is not overtaken, also if there is enough of it by the time that another one comes.
#[test]
fn who_asked_first_is_sent_first() {
    let fixture = Fixture::new(21);
    let two = Options { requests_max: 2, ..options("an agent") };
    let near = NearEnd::dial(&fixture.near, fixture.address.clone(), Services::default(), two);
    let (handle, store) = (fixture.near.clone(), fixture.store.clone());
    fixture.run(async move {
        let target = attach(&near).await.unwrap();
        let mut asked: Vec<_> = (0..4).map(|n| near.discard(target, n << 20, 4096, WriteStamp::default())).collect();
        let mut look = async |index: usize| poll_fn(|cx| Poll::Ready(asked[index].as_mut().poll(cx).is_ready())).await;
        for index in 0..3 {
            assert!(!look(index).await);
        }
        // The answers to the first two are there: the third one may go, and a fourth one could, too.
        handle.sleep(Duration::from_millis(100)).await;
        for index in [3, 2, 3] {
            assert!(!look(index).await);
        }
        handle.sleep(Duration::from_millis(100)).await;
        for index in 0..4 {
            assert!(look(index).await);
        }
        let log = store.log.borrow();
        let offsets = log.iter().filter_map(|said| said.strip_prefix("discard ")?.split(' ').nth(1)?.parse().ok());
        assert_eq!(offsets.collect::<Vec<u64>>(), [0, 1, 2, 3].map(|n| n << 20));
    });
    fixture.settle();
}

/// What merges waits as well, and counts for nothing.
#[test]
fn a_request_says_how_many_of_clients_wait_behind_it() {
    let fixture = Fixture::new(22);
    let two = Options { requests_max: 2, ..options("an agent") };
    let near = NearEnd::dial(&fixture.near, fixture.address.clone(), Services::default(), two);
    fixture.run(async move {
        let target = attach(&near).await.unwrap();
        let levels = [Level::Open, Level::Merge, Level::Base, Level::Burst, Level::Merge, Level::Open];
        let asked = levels.map(|level| near.discard(Target { level, ..target }, 0, 4096, WriteStamp::default()));
        for answer in runtime::sync::join_all(asked).await {
            answer.unwrap().result.unwrap();
        }
    });
    assert_eq!(*fixture.store.behind.borrow(), [0, 0, 2, 1, 1, 0]);
    fixture.settle();
}
