//! The same lives in a pool of objects, while changes of it have no answer: they were done, or never will be, or will be
//! later, when the life that asked may be over.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, ErrorKind, FileId, MIB};
use files::rados::simulated::{Pool, PoolOptions};
use files::rados::{self, RadosOptions, StorePools};
use files::{FileInfo, FileKind, Store};
use runtime::sim::{NodeOptions, World};
use runtime::{Class, Handle};

use crate::Counts;
use crate::life::{Way, Writer, options};
use crate::model::Model;
use crate::site::CAPACITY;

/// Late changes have been done by then.
const LATE: Duration = Duration::from_secs(2);

fn run(seed: u64, counts: &mut Counts) {
    let world = World::new(seed);
    let handles = [0, 1].map(|_| world.start_loop(world.add_node(NodeOptions::default())));
    let mut prng = world.fork_prng();
    let lost_one_in = *prng.pick(&[0, 60, 300]);
    let pool = Pool::new(&world, PoolOptions { capacity: CAPACITY, lost_one_in, ..PoolOptions::default() });
    let of_data = PoolOptions { capacity: CAPACITY, lost_one_in, is_erasure_coded: true, ..PoolOptions::default() };
    // Drawn apart, so that the others are what they were.
    let data = (seed % 3 == 1).then(|| Pool::new(&world, of_data));
    let pools = |handle: &Handle| StorePools {
        main: pool.reached_from(handle),
        data: data.as_ref().map(|data| data.reached_from(handle)),
    };
    let options = RadosOptions { grant_bytes: MIB / 2, reserve_bytes: MIB };
    let model = Rc::new(Model::default());
    let writers: Vec<_> = (0..4)
        .map(|index: usize| {
            let handle = handles[index % 2].clone();
            let way = Way::Pool { pools: pools(&handle), options };
            let writer = Writer { handle: handle.clone(), way, model: model.clone(), prng: prng.fork() };
            handle.spawn(Class::Io, "writer", writer.live())
        })
        .collect();
    world.run_for(Duration::from_millis(prng.between(100, 600)));
    [Some(&pool), data.as_ref()].iter().flatten().for_each(|pool| pool.set_lost_one_in(0));
    model.stop();
    let ended = world.block_on(&handles[0], async move {
        let mut ended = Vec::new();
        for writer in writers {
            ended.extend(writer.await);
        }
        ended
    });
    world.run_for(LATE);
    let (inside, pools, checked) = (handles[0].clone(), pools(&handles[0]), model.clone());
    world.block_on(&handles[0], async move {
        let reader = rados::join(&inside, pools, options).await.unwrap();
        check_all(&reader, &ended, &checked, seed).await;
    });
    counts.confirmed += model.confirmed.get();
    counts.failed += model.failed.get();
    counts.files += model.files.borrow().len() as u64;
    counts.fences += model.fenced.borrow().len() as u64;
    counts.refused += model.refused.get();
    counts.full += model.full.get();
    counts.lives += model.lives.get();
}

/// Reads everything that was ever confirmed.
async fn check_all(reader: &Store, ended: &[Store], model: &Model, seed: u64) {
    for store in ended.iter().filter(|store| !model.fencing.borrow().contains(&store.incarnation())) {
        let ids = |infos: Vec<FileInfo>| infos.iter().map(|info| info.id).collect::<BTreeSet<FileId>>();
        let there = ids(reader.files_of(store.incarnation()).await.unwrap());
        let gone: Vec<FileId> = ids(store.list()).difference(&there).copied().collect();
        // Another life may have removed what a segment does not need any more.
        let is_wanted = |file: &&FileId| !model.files.borrow()[file].is_to_be_deleted;
        assert_eq!(gone.iter().find(is_wanted), None, "seed {seed}: files of {} are gone", store.incarnation());
        let heard_of = |file: &&FileId| model.files.borrow().contains_key(file);
        let unknown = there.iter().filter(|file| !heard_of(file)).count();
        assert!(unknown <= 4, "seed {seed}: {unknown} files of {} were made for nobody", store.incarnation());
    }
    let files = model.files.borrow().clone();
    for (id, file) in &files {
        let what = format!("seed {seed}: file {id}");
        let found = reader.find(*id).await.unwrap();
        assert!(found.is_none() || !file.is_deleted, "{what} was deleted");
        assert!(found.is_some() || file.is_to_be_deleted, "{what}: nobody asked that it be deleted: {file:?}");
        let Some(info) = found else { continue };
        if file.sealed.is_some() {
            assert_eq!(info.sealed, file.sealed, "{what}");
        }
        // Of one that is being written to only the writer knows how much there is.
        let end = file.confirmed.keys().last().map_or(0, |last| (last + 1) * base::BLOCK);
        let len = info.sealed.unwrap_or(if model.is_over(file.life) { info.capacity } else { end });
        let content = reader.read(*id, 0, len as usize).await.unwrap();
        file.check(&content, &what);
        if let Some(left) = model.left.borrow().get(&(*id, 0)).filter(|_| info.sealed.is_none()) {
            assert!(left[..] == content[..], "{what} changed after its life was fenced");
        }
    }
}

/// It is the segment's, and so whoever has that may remove it: the life that made it goes on.
#[test]
fn a_file_that_another_life_has_removed_takes_no_appends_and_ends_no_life() {
    let world = World::new(1);
    let handle = world.start_loop(world.add_node(NodeOptions::default()));
    let objects = Pool::new(&world, PoolOptions::default()).reached_from(&handle);
    let inside = handle.clone();
    world.block_on(&handle, async move {
        let join = async || rados::join(&inside, objects.clone(), RadosOptions::default()).await.unwrap();
        let (maker, owner) = (join().await, join().await);
        let mut writer = maker.create(options(FileKind::Data, false)).await.unwrap();
        let block = || AlignedBuf::zeroed(base::BLOCK as usize).freeze();
        writer.append(block()).await.unwrap();
        owner.delete(writer.id()).await.unwrap();
        assert_eq!(writer.append(block()).await.unwrap_err().kind, ErrorKind::Io);
        maker.create(options(FileKind::Data, false)).await.unwrap();
        owner.fence(maker.incarnation()).await.unwrap();
        assert_eq!(maker.create(options(FileKind::Log, false)).await.map(drop).unwrap_err().kind, ErrorKind::Fenced);
    });
}

/// What has no answer may be done when it was given up: then no record is left of which the parts are gone.
#[test]
fn a_record_that_comes_late_is_refused() {
    for seed in 0..400 {
        let world = World::new(seed);
        let handle = world.start_loop(world.add_node(NodeOptions::default()));
        let pool = Pool::new(&world, PoolOptions { lost_one_in: 8, ..PoolOptions::default() });
        let (objects, inside, lost) = (pool.reached_from(&handle), handle.clone(), pool.clone());
        world.block_on(&handle, async move {
            let join = async || loop {
                if let Ok(store) = rados::join(&inside, objects.clone(), RadosOptions::default()).await {
                    break store;
                }
            };
            let (maker, heir) = (join().await, join().await);
            for _ in 0..6 {
                let _ = maker.create(options(FileKind::Transaction, false)).await;
            }
            inside.sleep(LATE).await;
            lost.set_lost_one_in(0);
            heir.fence(maker.incarnation()).await.unwrap();
            for info in heir.files_of(maker.incarnation()).await.unwrap() {
                heir.read(info.id, 0, base::BLOCK as usize)
                    .await
                    .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
        });
    }
}

#[test]
fn lives_in_a_pool_keep_what_was_confirmed_whatever_has_no_answer() {
    let mut counts = Counts::default();
    let seeds = std::env::var("LEVEE_SEEDS").map_or(200, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut counts)));
        if let Err(panic) = run {
            eprintln!("failed with seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{counts:?}");
    let Counts { confirmed, failed, files, fences, refused, full, lives, .. } = counts;
    assert!([confirmed, failed, files, fences, refused, full, lives].iter().all(|count| *count > 0), "{counts:?}");
    assert!(confirmed > 10_000, "{counts:?}");
}
