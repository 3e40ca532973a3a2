use base::Prng;

use super::*;

fn numbers(count: u32) -> Vec<u32> {
    (0..count).collect()
}

#[test]
fn two_items_far_apart_are_found() {
    let shrunk = shrink(numbers(1000), 1000, |list| list.contains(&3) && list.contains(&990));
    assert_eq!(shrunk.items, [3, 990]);
    assert!(shrunk.minimal);
    assert!(shrunk.runs < 100, "{} runs", shrunk.runs);
}

#[test]
fn one_item_takes_a_few_runs() {
    for wanted in [0, 1, 511, 998, 999] {
        let shrunk = shrink(numbers(1000), 1000, |list| list.contains(&wanted));
        assert_eq!(shrunk.items, [wanted]);
        assert!(shrunk.minimal);
        assert!(shrunk.runs <= 22, "{} runs", shrunk.runs);
    }
}

#[test]
fn the_order_stays() {
    let items = vec!["write", "kill", "read", "kill", "start", "read"];
    let kill_before_start = |list: &[&str]| {
        let kill = list.iter().position(|&item| item == "kill");
        let start = list.iter().position(|&item| item == "start");
        kill.zip(start).is_some_and(|(kill, start)| kill < start)
    };
    assert_eq!(shrink(items, 1000, kill_before_start).items, ["kill", "start"]);
}

#[test]
fn what_fails_always_shrinks_to_nothing() {
    for count in [0, 1, 2, 3, 64, 100] {
        let shrunk = shrink(numbers(count), 1000, |_| true);
        assert_eq!((shrunk.items.len(), shrunk.minimal), (0, true));
    }
}

#[test]
fn what_needs_every_item_stays_whole() {
    for count in [1, 2, 3, 7, 16] {
        let shrunk = shrink(numbers(count), 1000, |list| list.len() == count as usize);
        assert_eq!(shrunk.items, numbers(count));
        assert!(shrunk.minimal);
    }
}

#[test]
fn the_budget_ends_it() {
    let needed = [17, 400, 401, 900];
    let fails = |list: &[u32]| needed.iter().all(|number| list.contains(number));
    let whole = shrink(numbers(1000), usize::MAX, fails);
    assert_eq!((whole.items.as_slice(), whole.minimal), (needed.as_slice(), true));
    let mut lengths = Vec::new();
    for runs_max in 0..whole.runs {
        let shrunk = shrink(numbers(1000), runs_max, fails);
        assert_eq!(shrunk.runs, runs_max);
        assert!(fails(&shrunk.items));
        assert!(!shrunk.minimal, "{runs_max} of {} runs", whole.runs);
        lengths.push(shrunk.items.len());
    }
    assert_eq!(lengths[0], 1000);
    assert!(lengths.is_sorted_by(|a, b| a >= b), "a larger budget leaves less");
}

/// Failures that come and go as items are left out: each list fails or not by a number drawn from it.
#[test]
fn what_is_called_minimal_is() {
    let (mut minimal, mut several) = (0, 0);
    for seed in 0..2000 {
        let whole = numbers(4 + seed % 20);
        let fails = |list: &[u32]| {
            let drawn = list.iter().fold(u64::from(seed), |hash, &item| Prng::new(hash ^ u64::from(item)).next_u64());
            list.len() == whole.len() || drawn.is_multiple_of(6)
        };
        let mut runs = 0;
        let shrunk = shrink(whole.clone(), 60, |list| {
            runs += 1;
            fails(list)
        });
        assert_eq!(shrunk.runs, runs);
        assert!(shrunk.runs <= 60);
        assert!(fails(&shrunk.items));
        assert!(shrunk.items.is_sorted());
        if shrunk.minimal {
            minimal += 1;
            several += u32::from(shrunk.items.len() > 1);
            for left_out in 0..shrunk.items.len() {
                let mut rest = shrunk.items.clone();
                rest.remove(left_out);
                assert!(!fails(&rest), "seed {seed}: {:?} is not 1-minimal", shrunk.items);
            }
        }
    }
    assert!(minimal > 1000 && several > 500, "{minimal} minimal, {several} of them with several items");
}
