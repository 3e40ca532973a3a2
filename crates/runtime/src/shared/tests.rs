use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::sim::{CpuOptions, NodeOptions, World};
use crate::{Class, Handle};

fn two_loops(lock_ns: u64) -> (World, [Handle; 2]) {
    let world = World::new(1);
    let cpu = CpuOptions { lock_ns, ..CpuOptions::default() };
    let node = world.add_node(NodeOptions { cpu, ..NodeOptions::default() });
    let handles = [world.start_loop(node), world.start_loop(node)];
    (world, handles)
}

#[test]
fn units_are_waited_for_in_order_across_loops() {
    let (world, [first, second]) = two_loops(0);
    let budget = SharedBudget::new(4);
    let log: Rc<RefCell<Vec<(usize, u64)>>> = Rc::default();
    // Each waits longer than the one before, on the loops in turns; the third wants all of it.
    for (index, units) in [3, 2, 4, 1].into_iter().enumerate() {
        let handle = [&first, &second][index % 2].clone();
        let (budget, log, inside) = (budget.clone(), log.clone(), handle.clone());
        let work = async move {
            inside.sleep(Duration::from_micros(index as u64 + 1)).await;
            let permit = budget.take(&inside, units).await;
            log.borrow_mut().push((index, 4 - budget.available(&inside)));
            inside.sleep(Duration::from_millis(1)).await;
            drop(permit);
        };
        handle.spawn(Class::Io, "taker", work).detach();
    }
    world.run_for(Duration::from_millis(10));
    assert_eq!(*log.borrow(), [(0, 3), (1, 2), (2, 4), (3, 1)]);
    assert_eq!((budget.available(&first), budget.total()), (4, 4));
}

#[test]
fn who_gives_up_leaves_its_units_to_the_next() {
    let (world, [first, second]) = two_loops(0);
    let budget = SharedBudget::new(2);
    let (inside, other) = (first.clone(), second.clone());
    world.block_on(&first, async move {
        let held = budget.try_take(&inside, 1).unwrap();
        let large = budget.take(&inside, 2);
        assert!(budget.try_take(&inside, 1).is_none(), "nobody overtakes");
        let small = budget.take(&other, 1);
        drop(large);
        let granted = small.await;
        assert_eq!(budget.available(&inside), 0);
        drop((held, granted));
        // Granted, and given up before anybody looked.
        drop(budget.take(&inside, 2));
        assert_eq!(budget.available(&inside), 2);
    });
}

/// A lock serves one loop after another; two that are held by one loop each cost no more than their own time.
#[test]
fn a_lock_that_two_loops_want_makes_one_wait() {
    let spent = |shared: bool| {
        let (world, handles) = two_loops(1_000);
        let locks = [Lock::<u64>::default(), Lock::default()];
        for (index, handle) in handles.iter().enumerate() {
            let (lock, inside) = (locks[if shared { 0 } else { index }].clone(), handle.clone());
            let work = async move {
                for _ in 0..100 {
                    lock.with(&inside, |count| *count += 1);
                    inside.charge(Duration::from_nanos(100));
                    inside.yield_now().await;
                }
            };
            handle.spawn(Class::Io, "taker", work).detach();
        }
        let (all, inside) = (locks.clone(), handles[0].clone());
        world.run_until(move || all.iter().map(|lock| lock.with(&inside, |count| *count)).sum::<u64>() == 200);
        world.now().0
    };
    let (apart, together) = (spent(false), spent(true));
    assert!(together > apart * 3 / 2, "{apart} ns apart, {together} ns together");
}
