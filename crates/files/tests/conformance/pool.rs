//! Lives in a pool of objects, simulated or real, by themselves and with another pool for data files.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use base::{Bytes, ErrorKind, MIB};
use files::rados::librados::{self, Place};
use files::rados::objects::{Change, Condition, Copy, Effect, Failure, Objects};
use files::rados::simulated::{Pool, PoolOptions};
use files::rados::{self, RadosOptions, StorePools};
use files::{FileKind, Store};
use runtime::Handle;

use crate::{BLOCK, Bed, a_life_is_told_that_it_is_over, blocks, cases_of_one_life, options, world};

/// The same in a pool of objects, where each life is by itself.
fn rados_bed(handle: &Handle, pools: impl Into<StorePools>) -> Bed {
    let (handle, pools) = (handle.clone(), pools.into());
    let open = Rc::new(move || -> Pin<Box<dyn Future<Output = Store>>> {
        let (handle, pools) = (handle.clone(), pools.clone());
        // A pool for tests is small.
        let options = RadosOptions { grant_bytes: 64 * MIB, reserve_bytes: 64 * MIB };
        Box::pin(async move { rados::join(&handle, pools, options).await.unwrap() })
    });
    Bed { open, copies: 1 }
}

/// What was confirmed is read from any copy, and the pool says who has one.
async fn every_copy_has_what_was_confirmed(objects: &dyn Objects) {
    let content: Bytes = (0..64 * BLOCK).map(|at| (at / 512) as u8).collect::<Vec<u8>>().into();
    let write = Change::of_absent().and(Effect::Write { offset: 0, data: content.clone().into() });
    objects.change("copies", write).await.unwrap();
    let holders = objects.holders("copies").await.unwrap();
    assert!(!holders.is_empty() && holders.iter().all(|name| name.starts_with("osd.")), "{holders:?}");
    for at in 0..16 {
        let (from, len) = (at * 4 * BLOCK, 4 * BLOCK);
        for copy in [Copy::First, Copy::Any, Copy::Any, Copy::Any] {
            let read = objects.read("copies", from as u64, len, copy).await.unwrap();
            assert!(read[..] == content[from..from + len], "{copy:?} at {from}");
        }
    }
    // Behind the end there is nothing, and of nothing there is no copy.
    let end = objects.read("copies", content.len() as u64 - 512, BLOCK, Copy::Any).await.unwrap();
    assert_eq!(end.len(), 512);
    assert_eq!(objects.read("none", 0, BLOCK, Copy::Any).await.unwrap_err(), Failure::Absent);
}

/// An entry that is not there is compared as one without a value.
async fn an_entry_is_made_once(objects: &dyn Objects) {
    let with = |condition: Condition, value: &[u8]| {
        Change::default().only_if(condition).and(Effect::SetEntry("key".into(), value.to_vec()))
    };
    let set = Change::of_absent().and(Effect::SetAttribute("there", b"yes".to_vec()));
    objects.change("entries", set).await.unwrap();
    let none = || Condition::NoEntry("key".into());
    assert_eq!(objects.change("no entries", with(none(), b"one")).await.unwrap_err(), Failure::Absent);
    objects.change("entries", with(none(), b"one")).await.unwrap();
    assert_eq!(objects.change("entries", with(none(), b"two")).await.unwrap_err(), Failure::Changed);
    objects.change("entries", with(Condition::Entry("key".into(), b"one".to_vec()), b"two")).await.unwrap();
    let look = objects.look("entries", "", 8).await.unwrap();
    assert_eq!(look.entries, [("key".to_owned(), b"two".to_vec())]);
}

#[test]
fn rados() {
    let (world, handle) = world(1);
    let objects = Pool::new(&world, PoolOptions::default()).reached_from(&handle);
    let bed = rados_bed(&handle, objects.clone());
    world.block_on(&handle, async move {
        every_copy_has_what_was_confirmed(&*objects).await;
        an_entry_is_made_once(&*objects).await;
        cases_of_one_life(&bed).await;
        a_life_is_told_that_it_is_over(&bed).await;
    });
}

/// Data files in a pool with erasure coding.
#[test]
fn rados_with_a_pool_for_data_files() {
    let (world, handle) = world(1);
    let coded = PoolOptions { is_erasure_coded: true, ..PoolOptions::default() };
    let pools = [PoolOptions::default(), coded].map(|options| Pool::new(&world, options));
    let [main, data] = pools.each_ref().map(|pool| pool.reached_from(&handle));
    let bed = rados_bed(&handle, StorePools { main, data: Some(data) });
    world.block_on(&handle, async move {
        cases_of_one_life(&bed).await;
        a_life_is_told_that_it_is_over(&bed).await;
    });
    let changes = pools.map(|pool| pool.changes());
    assert!(changes.iter().all(|changes| *changes > 20), "both have files: {changes:?}");
}

/// What is said of the pool for data files has to be what the store knows.
#[test]
fn a_store_keeps_to_one_pool_for_data_files() {
    let (world, handle) = world(1);
    let pools: Vec<Pool> = (0..4)
        .map(|index| Pool::new(&world, PoolOptions { is_erasure_coded: index > 1, ..PoolOptions::default() }))
        .collect();
    let inside = handle.clone();
    world.block_on(&handle, async move {
        let join = async |main: usize, data: Option<usize>| {
            let reached = |index: usize| pools[index].reached_from(&inside);
            let pools = StorePools { main: reached(main), data: data.map(reached) };
            rados::join(&inside, pools, RadosOptions::default()).await
        };
        let refused = async |main, data, what: &str| {
            let error = join(main, data).await.map(drop).unwrap_err();
            assert!(error.kind == ErrorKind::Invalid && error.message.contains(what), "{error}");
        };
        let data_file = || options(FileKind::Data, false, 1);
        // From before it had one: what is there stays where it is.
        let early = join(0, None).await.unwrap();
        let mut first = early.create(data_file()).await.unwrap();
        first.append(blocks(1, 1)).await.unwrap();
        let life = join(0, Some(2)).await.unwrap();
        let mut second = life.create(data_file()).await.unwrap();
        second.append(blocks(2, 1)).await.unwrap();
        for (file, byte) in [(first.id(), 1), (second.id(), 2)] {
            let read = life.read(file, 0, BLOCK).await.unwrap();
            assert!(read.iter().all(|found| *found == byte), "{file}");
        }
        // Who began without does not take it for lost.
        let error = early.read(second.id(), 0, BLOCK).await.unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains("?data=POOL"), "{error}");
        refused(0, None, "?data=POOL").await;
        refused(0, Some(3), "in another pool").await;
        refused(1, Some(2), "of another store").await;
        refused(2, None, "keeps no entries").await;
        join(0, Some(2)).await.unwrap();
    });
}

/// On a real cluster, where one is: `LEVEE_TEST_POOL=rados:POOL?conf=FILE`, and a pool for data files is
/// `LEVEE_TEST_DATA_POOL`.
#[test]
fn rados_on_a_real_pool() {
    let Ok(named) = std::env::var("LEVEE_TEST_POOL") else {
        eprintln!("skipped: LEVEE_TEST_POOL names no pool (make test-cluster starts a cluster that has one)");
        return;
    };
    let mut place = Place::parse(&named).unwrap();
    place.namespace = format!("conformance-{}", std::process::id());
    let run = runtime::uring::run(runtime::uring::Options::default(), move |handle| async move {
        let pools = librados::open(&handle, place.clone()).await.unwrap();
        every_copy_has_what_was_confirmed(&*pools.main).await;
        an_entry_is_made_once(&*pools.main).await;
        let mut beds = vec![rados_bed(&handle, pools)];
        if let Ok(data) = std::env::var("LEVEE_TEST_DATA_POOL") {
            let place = Place { namespace: format!("{}-data", place.namespace), data: Some(data), ..place };
            let pools = librados::open(&handle, place).await.unwrap();
            every_copy_has_what_was_confirmed(&**pools.data.as_ref().unwrap()).await;
            beds.push(rados_bed(&handle, pools));
        }
        for bed in &beds {
            cases_of_one_life(bed).await;
            a_life_is_told_that_it_is_over(bed).await;
        }
    });
    run.unwrap();
}
