//! Lives on several machines in one shared store, while connections break and the store's machine does; and in a pool of
//! objects (`pool`), which each of them changes by itself.
//!
//! What must hold whatever happens: what an append confirmed is there; a life that was fenced confirms nothing that it
//! began afterwards, and what it left does not change any more; the store has no file that its life does not know of, and
//! lacks none that nobody asked it to delete; what lives were granted is never more than there is.
#![allow(clippy::unwrap_used, reason = "a test panics where something is not as it should be")]

mod cases;
mod forgetful;
mod hostile;
mod life;
mod model;
mod pool;
mod site;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use base::{FileId, Prng};
use files::Store;
use files::local::LocalOptions;
use files::memory::{Memory, MemoryOptions};
use runtime::Class;
use runtime::sim::NetworkOptions;

use self::forgetful::Lost;
use self::life::{Way, Writer};
use self::model::Model;
use self::site::{Below, CAPACITY, SILENCE, Site};

/// What a number of seeds came to.
#[derive(Default, Debug)]
struct Counts {
    confirmed: u64,
    failed: u64,
    files: u64,
    fences: u64,
    refused: u64,
    full: u64,
    lives: u64,
    kills: u64,
    created_for_nobody: u64,
}

/// What goes wrong between lives and store, until it ends.
fn trouble(site: &Site, prng: &mut Prng, kills: &Rc<Cell<u32>>) -> Duration {
    let (mut at, mut ends) = (Duration::from_millis(5), Duration::ZERO);
    for _ in 0..prng.between(3, 7) {
        at += Duration::from_millis(prng.between(1, 60));
        let (store, other) = (site.nodes[0], site.nodes[prng.between(1, 2) as usize]);
        let lasts = Duration::from_millis(*prng.pick(&[1, 20, 150, 500]));
        let (from, to) = if prng.one_in(2) { (store, other) } else { (other, store) };
        ends = ends.max(at + 2 * lasts);
        let kills = kills.clone();
        let what = prng.below(7);
        site.world.after(at, move |world| match what {
            0 | 1 => world.reset_connections(store, other),
            2 => {
                world.partition(store, other);
                world.after(lasts, move |world| world.heal(store, other));
            }
            // Half open: what one says arrives, and it hears nothing.
            3 | 4 => {
                world.cut_link(from, to);
                world.after(lasts, move |world| world.mend_link(from, to));
            }
            5 => {
                world.set_extra_delay(from, to, lasts.min(Duration::from_millis(300)));
                world.after(lasts, move |world| world.set_extra_delay(from, to, Duration::ZERO));
            }
            // By the one who starts it again.
            _ => kills.set(kills.get() + 1),
        });
    }
    // All of it is over then.
    ends.max(at) + Duration::from_millis(100)
}

fn run(seed: u64, below: impl FnOnce(&Site) -> Below, counts: &mut Counts) -> [u64; Lost::KINDS] {
    let site = Site::new(seed);
    site.world.set_network(NetworkOptions { loss_one_in: 300, ..NetworkOptions::default() });
    let below = below(&site);
    let mut prng = site.world.fork_prng();
    let mut running = site.start_store(&below);
    let model = Rc::new(Model::default());
    let lost = Rc::new(Lost::default());
    let kills = Rc::new(Cell::new(0));
    let ends = site.world.now() + trouble(&site, &mut prng, &kills);
    let writers: Vec<_> = (0..4)
        .map(|index: usize| {
            let handle = site.handles[index % 2].clone();
            let writer = Writer {
                handle: handle.clone(),
                way: Way::Remote {
                    address: site.address.clone(),
                    lost: lost.clone(),
                    // Some hear what they are told, as far as connections do.
                    forgets_one_in: *prng.pick(&[0, 10, 40]),
                },
                model: model.clone(),
                prng: prng.fork(),
            };
            handle.spawn(Class::Io, "writer", writer.live())
        })
        .collect();
    let mut restarts_at = None;
    while site.world.now() < ends || restarts_at.is_some() {
        site.world.run_for(Duration::from_millis(5));
        if kills.take() > 0 {
            site.world.kill(site.nodes[0]);
            restarts_at = Some(site.world.now() + Duration::from_millis(prng.between(0, 200)));
            counts.kills += 1;
        }
        if restarts_at.is_some_and(|at| site.world.now() >= at) {
            restarts_at = None;
            running = site.start_store(&below);
        }
        if restarts_at.is_none() {
            let lives = running.shared.lives();
            let claimed: u64 = lives.iter().map(|life| life.granted_bytes.max(life.used_bytes)).sum();
            assert!(claimed <= CAPACITY, "seed {seed}: {claimed} bytes are granted or used: {lives:?}");
        }
    }
    model.stop();
    let ended = site.world.block_on(&site.handles[0], async move {
        let mut ended = Vec::new();
        for writer in writers {
            ended.extend(writer.await);
        }
        ended
    });
    // Frames that were under way arrive at a store that does not want them any more.
    site.world.run_for(2 * SILENCE);
    // One of them may have been fenced by another one's last act.
    let goes_on = |store: &&Store| !model.fencing.borrow().contains(&store.incarnation());
    for store in ended.iter().filter(goes_on) {
        let ids = |infos: Vec<files::FileInfo>| infos.iter().map(|info| info.id).collect::<BTreeSet<FileId>>();
        let (there, known) = (ids(running.shared.files_of(store.incarnation())), ids(store.list()));
        assert_eq!(there, known, "seed {seed}: files of {} in the store, and as it knows them", store.incarnation());
    }
    site.check_all(&running, &model, seed);
    counts.confirmed += model.confirmed.get();
    counts.failed += model.failed.get();
    counts.files += model.files.borrow().len() as u64;
    counts.fences += model.fenced.borrow().len() as u64;
    counts.refused += model.refused.get();
    counts.full += model.full.get();
    counts.lives += model.lives.get();
    counts.created_for_nobody += lost.created.get();
    lost.counts()
}

fn check_coverage(counts: &Counts, lost: [u64; Lost::KINDS]) {
    println!("{counts:?}, lost {lost:?}");
    let Counts { confirmed, failed, files, fences, refused, full, lives, kills, created_for_nobody } = *counts;
    let all = [confirmed, failed, files, fences, refused, full, lives, kills, created_for_nobody];
    assert!(all.iter().all(|count| *count > 0) && lost.iter().all(|count| *count > 0), "something never happened");
}

fn run_all(seeds: std::ops::Range<u64>, below: impl Fn(u64, &Site) -> Below) -> Counts {
    let (mut counts, mut all) = (Counts::default(), [0; Lost::KINDS]);
    for seed in seeds {
        let lost = run(seed, |site| below(seed, site), &mut counts);
        all.iter_mut().zip(lost).for_each(|(all, lost)| *all += lost);
    }
    check_coverage(&counts, all);
    counts
}

#[test]
fn lives_keep_what_was_confirmed_whatever_happens_between_them_and_the_store() {
    let counts = run_all(0..200, |seed, _| {
        // A slow store, too: several seconds of silence are none where it answers at last.
        let latency_ns = if seed % 5 == 0 { 1_000_000..20_000_000 } else { 10_000..200_000 };
        Below::Memory(Memory::new(seed, MemoryOptions { directories: 2, capacity: CAPACITY, latency_ns }))
    });
    assert!(counts.confirmed > 40_000, "{counts:?}");
}

/// The same over directories, whose files are locked and written by a process that was killed.
#[test]
fn so_they_do_over_directories() {
    run_all(1000..1020, |_, _| {
        let directories = vec!["/0/levee".into(), "/1/levee".into()];
        Below::Local(LocalOptions { copies: 2, capacity: Some(CAPACITY), ..LocalOptions::new(directories) })
    });
}
