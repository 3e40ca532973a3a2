//! What the check takes, and what it does when that would be too much.

use super::*;

/// Every write is pending at once, and none was seen: nothing branches.
#[test]
fn unique_values_never_branch() {
    let count = 200;
    let writes: Vec<Operation> = (1..=count).map(|value| write(value, value, 1000 + value)).collect();
    let everything: Vec<Value> = (1..=count).collect();
    let values = Search::new(History::new(&writes, &[0]), 2 * count as usize).run();
    assert_eq!(values, Ok(everything));
    // Readers see half of them.
    let reads = (1..=count / 2).map(|value| read(value, 500 + 2 * value, 501 + 2 * value));
    let seen: Vec<Operation> = writes.iter().copied().chain(reads).collect();
    let unseen: Vec<Value> = (count / 2..=count).collect();
    assert_eq!(Search::new(History::new(&seen, &[0]), 2 * count as usize).run(), Ok(unseen));
}

#[test]
fn open_writes_that_nobody_saw_take_no_room() {
    let mut operations: Vec<Operation> = (1..=10_000).map(|value| write_that(End::Open, value % 3, value)).collect();
    operations.extend([write(3, 20_001, 20_004), write(4, 20_002, 20_003), read(0, 20_005, 20_006)]);
    assert_eq!(check_register(&operations, &[0]), Ok(vec![0, 1, 2]));
}

#[test]
fn too_many_pending_operations_are_an_error() {
    let count = PENDING_MAX as u64;
    let writes = |count: u64| (1..=count).map(|value| write(value, value, 1000 + value)).collect::<Vec<_>>();
    assert!(check_register(&writes(count), &[0]).is_ok());
    let Err(Violation::TooConcurrent(how)) = check_register(&writes(count + 1), &[0]) else { panic!("no bound") };
    assert_eq!((how.at, how.pending), (count + 1, PENDING_MAX));
    assert!(Violation::TooConcurrent(how).to_string().starts_with("too concurrent to be checked: at 257"));
}

/// Zeros that many discards may explain are what branches.
#[test]
fn too_many_configurations_are_an_error() {
    let mut operations: Vec<Operation> = (1..=40).map(|number| discard(number, 1000 + number)).collect();
    operations.extend((1..=40).map(|value| write(value, 100 + value, 500 + value)));
    operations.push(read(0, 2000, 2001));
    let search = |configurations_max| Search::new(History::new(&operations, &[0]), configurations_max).run();
    let Err(Failure::TooConcurrent(how)) = search(20) else { panic!("no bound") };
    assert!(how.configurations > 20);
    assert_eq!(search(CONFIGURATIONS_MAX), Ok(vec![0]));
}
