//! A shared store over disks that lose power at any moment.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::{Incarnation, Prng};
use files::shared::{Shared, SharedOptions};
use runtime::Class;

use crate::bench::{Bench, blocks, options};

/// What a run was told.
#[derive(Default)]
struct Told {
    joined: Vec<Incarnation>,
    /// Asked for: without an answer nobody knows whether it stands.
    fencing: Vec<Incarnation>,
    fenced: Vec<Incarnation>,
}

/// Lives join, write, and fence each other, as fast as they can.
async fn live(shared: Shared, told: Rc<RefCell<Told>>, mut prng: Prng) {
    loop {
        let life = shared.join().await.expect("there is room");
        told.borrow_mut().joined.push(life.incarnation());
        let mut writer = life.create(options(1)).await.expect("there is room");
        writer.append(blocks(1, 1)).await.expect("nothing fails");
        let victim = *prng.pick(&told.borrow().joined);
        // Itself, too.
        told.borrow_mut().fencing.push(victim);
        life.fence(victim).await.expect("nothing fails");
        told.borrow_mut().fenced.push(victim);
    }
}

#[test]
fn a_fence_and_a_number_outlive_power() {
    let (mut fences, mut lives) = (0, 0);
    for seed in 0..60 {
        let mut bench = Bench::new(5000 + seed, 2);
        let mut prng = Prng::new(seed);
        let told: Rc<RefCell<Told>> = Rc::default();
        for _ in 0..4 {
            let below = bench.open();
            let handle = bench.handle.clone();
            let shared = bench.run(async move {
                let options = SharedOptions { grant_bytes: 64 << 10, ..SharedOptions::default() };
                Shared::open(&handle, below, options).await.expect("it was a good store before")
            });
            let known = shared.lives();
            for fenced in &told.borrow().fenced {
                let life = known.iter().find(|life| life.incarnation == *fenced);
                assert!(life.is_none_or(|life| life.is_fenced), "seed {seed}: {fenced} was fenced");
            }
            for joined in told.borrow().joined.iter().filter(|joined| !told.borrow().fencing.contains(joined)) {
                assert!(known.iter().any(|life| life.incarnation == *joined), "seed {seed}: {joined} had joined");
            }
            let live = live(shared, told.clone(), prng.fork());
            bench.handle.spawn(Class::Io, "lives", live).detach();
            bench.world.run_for(Duration::from_micros(prng.between(100, 20_000)));
            match prng.one_in(3) {
                true => bench.restart(),
                false => bench.power_loss(),
            }
        }
        let mut joined = told.borrow().joined.clone();
        (fences, lives) = (fences + told.borrow().fenced.len(), lives + joined.len());
        joined.dedup();
        assert_eq!(joined, told.borrow().joined, "seed {seed}: a number was given twice");
        assert!(joined.is_sorted(), "seed {seed}");
    }
    assert!(fences > 500 && lives > 500, "{fences} fences, {lives} lives");
}
