//! Power lost at every step of what a store does.

use std::time::Duration;

use base::FileId;
use files::{CreateOptions, Store};
use runtime::sim::Fault;

use crate::bench::{BLOCK, Bench, blocks, maybe_prepared, options, read_all, sealed_file};

/// Runs `work` on a store again and again, each time losing power one operation later, until it gets to its end;
/// `check` looks at what the next life finds, knowing whether the work was done.
fn at_every_step<W: Future<Output = ()> + 'static>(
    disks: usize,
    prepare: impl Fn(Store) -> std::pin::Pin<Box<dyn Future<Output = FileId>>>,
    work: impl Fn(Store, FileId) -> W,
    check: impl Fn(&Bench, Store, FileId, bool),
) {
    for step in 0.. {
        let mut done = false;
        for seed in 0..4 {
            let mut bench = Bench::new(step * 10 + seed, disks);
            let store = bench.open();
            let file = bench.run(prepare(store.clone()));
            let start = bench.world.operations_done();
            let task = bench.handle.spawn(runtime::Class::Io, "work", work(store.clone(), file));
            let world = bench.world.clone();
            bench.world.run_until(|| task.is_finished() || world.operations_done() >= start + step);
            done = task.is_finished();
            drop((task, store));
            bench.power_loss();
            let store = bench.open();
            check(&bench, store, file, done);
        }
        if done {
            assert!(step > 3, "there were steps in between");
            return;
        }
    }
}

#[test]
fn power_is_lost_at_every_step_of_a_creation() {
    for prepared in [false, true] {
        at_every_step(
            2,
            |store| Box::pin(async move { store.create(options(2)).await.unwrap().id() }),
            move |store, _| async move {
                store.create(CreateOptions { prepared, ..options(2) }).await.unwrap();
            },
            |bench, store, file, done| {
                let others = store.list().into_iter().filter(|info| info.id != file).collect::<Vec<_>>();
                assert!(others.len() <= 1 && (!done || others.len() == 1), "{others:?}");
                assert!(!done || others[0].copies == 2);
                assert!(others.iter().all(|info| info.sealed.is_none() && info.id > file));
                // The next one is another one, and whole.
                let next = bench.run(sealed_file(store, 2, 3));
                assert!(others.iter().all(|info| info.id < next));
            },
        );
    }
}

#[test]
fn power_is_lost_at_every_step_of_a_seal() {
    for prepared in [false, true] {
        at_every_step(
            2,
            move |store| {
                Box::pin(async move {
                    let mut writer = store.create(maybe_prepared(prepared, 2)).await.unwrap();
                    writer.append(blocks(1, 4)).await.unwrap();
                    writer.id()
                })
            },
            |store, file| async move { store.seal(file, 4 * BLOCK as u64).await.unwrap() },
            |bench, store, file, done| {
                let sealed = store.info(file).unwrap().sealed;
                assert!(sealed == Some(4 * BLOCK as u64) || (sealed.is_none() && !done), "{sealed:?}");
                assert_eq!(bench.run(read_all(store.clone(), file)), blocks(1, 4));
                // Sealed in one copy is sealed in both.
                bench.disk(0).vanish();
                assert_eq!(store.info(file).unwrap().sealed, sealed);
                assert_eq!(bench.run(read_all(store, file)), blocks(1, 4));
            },
        );
    }
}

#[test]
fn a_seal_that_a_start_saw_stays_when_power_is_lost() {
    const END: u64 = 4 * BLOCK as u64;
    let mut seen = 0;
    for step in 0..12 {
        for seed in 0..8 {
            let mut bench = Bench::new(step * 10 + seed, 1);
            let store = bench.open();
            let file = bench.run({
                let store = store.clone();
                async move {
                    let mut writer = store.create(options(1)).await.unwrap();
                    writer.append(blocks(1, 4)).await.unwrap();
                    writer.id()
                }
            });
            bench.handle.spawn(runtime::Class::Io, "seal", async move { drop(store.seal(file, END).await) }).detach();
            bench.world.run_for(Duration::from_micros(step * 10));
            // What the killed process had in flight lands, but perhaps in the disk's cache only.
            bench.restart();
            bench.world.run_for(Duration::from_secs(1));
            let found = bench.open().info(file).unwrap().sealed;
            bench.power_loss();
            if found == Some(END) {
                seen += 1;
                assert_eq!(bench.open().info(file).unwrap().sealed, found, "step {step}, seed {seed}");
            }
        }
    }
    assert!((8..96).contains(&seen), "{seen} of 96 kills came after the seal");
}

#[test]
fn power_is_lost_at_every_step_of_a_deletion_and_the_birth_in_its_place() {
    for prepared in [false, true] {
        at_every_step(
            2,
            move |store| {
                Box::pin(async move {
                    let mut writer = store.create(CreateOptions { prepared, ..options(2) }).await.unwrap();
                    writer.append(blocks(1, 4)).await.unwrap();
                    store.seal(writer.id(), 4 * BLOCK as u64).await.unwrap();
                    writer.id()
                })
            },
            move |store, file| async move {
                store.delete(file).await.unwrap();
                let mut writer = store.create(CreateOptions { prepared, ..options(2) }).await.unwrap();
                writer.append(blocks(2, 4)).await.unwrap();
            },
            |bench, store, file, done| {
                assert!(!done || store.info(file).is_none());
                if store.info(file).is_some() {
                    assert_eq!(store.info(file).unwrap().sealed, Some(4 * BLOCK as u64));
                    assert_eq!(bench.run(read_all(store.clone(), file)), blocks(1, 4), "the old state as a whole");
                }
                for info in store.list().into_iter().filter(|info| info.id != file) {
                    assert_eq!(info.sealed, None, "a seal of the file before");
                    if done {
                        assert_eq!(bench.run(read_all(store.clone(), info.id)), blocks(2, 4));
                    }
                }
            },
        );
    }
}

#[test]
fn power_is_lost_at_every_step_of_a_change_of_members() {
    for step in 0..60 {
        for seed in 0..4 {
            let mut bench = Bench::new(1000 + step * 10 + seed, 3);
            let store = bench.open();
            let mut writer = bench.run({
                let store = store.clone();
                async move { store.create(options(3)).await.unwrap() }
            });
            let (id, disk) = (writer.id(), bench.disk(1));
            let confirmed = std::rc::Rc::new(std::cell::Cell::new(0));
            let count = confirmed.clone();
            let start = bench.world.operations_done();
            let task = bench.handle.spawn(runtime::Class::Io, "appends", async move {
                for byte in 0..4 {
                    if byte == 1 {
                        disk.inject(Fault::WriteError, 1);
                    }
                    writer.append(blocks(byte, 1)).await.unwrap();
                    count.set(byte + 1);
                }
            });
            let world = bench.world.clone();
            bench.world.run_until(|| task.is_finished() || world.operations_done() >= start + step);
            drop((task, store));
            bench.power_loss();
            // Whichever directories are there: what was confirmed is, or the start is refused.
            for given in [[0, 2].as_slice(), &[1], &[0, 1, 2]] {
                let Ok((store, _)) = bench.open_with(given) else {
                    assert!(given.len() < 3);
                    continue;
                };
                assert!(given.len() > 1, "the one that failed never starts alone");
                for byte in 0..confirmed.get() {
                    let store = store.clone();
                    let read = bench.run(async move { store.read(id, u64::from(byte) * BLOCK as u64, BLOCK).await });
                    assert_eq!(read.unwrap()[..], blocks(byte, 1)[..], "step {step}, given {given:?}");
                }
                drop(store);
                bench.restart();
            }
        }
    }
}
