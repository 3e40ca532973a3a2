//! The check against a brute force, on tiny histories with everything that makes them hard.

use base::Prng;

use super::random::Shape;
use super::*;

const HISTORIES: u64 = 40_000;

/// A tiny history: more zeros, more overlap and more unknown outcomes than a real one.
fn tiny(prng: &mut Prng) -> (Vec<Operation>, Vec<Value>) {
    let shape = Shape {
        operations: prng.between(3, 8) as usize,
        overlap: prng.between(1, 9),
        one_in_zeros: prng.between(1, 4),
        one_in_unanswered: prng.below(4),
        one_in_wrong: *prng.pick(&[0, 1, 1, 2]),
    };
    let initial = *prng.pick(&[0, 3, 100]);
    let operations = random::history(prng, &shape, initial);
    let others = (0..prng.below(3)).map(|_| *prng.pick(&[0, 1, 2, 3, 100]));
    (operations, others.chain([initial]).collect())
}

#[test]
fn same_answer_as_every_order() {
    let mut prng = Prng::new(1);
    let (mut accepted, mut refused, mut ambiguous) = (0, 0, 0);
    for number in 0..HISTORIES {
        let (operations, initial) = tiny(&mut prng);
        let expected = oracle::last_values(&operations, &initial);
        match check_register(&operations, &initial) {
            Ok(values) => {
                assert_eq!(values, expected, "history {number} from {initial:?}: {operations:#?}");
                accepted += 1;
                ambiguous += u64::from(values.len() > 1);
            }
            Err(Violation::Unexplained(unexplained)) => {
                assert!(expected.is_empty(), "history {number} from {initial:?}: {operations:#?} {unexplained}");
                refused += 1;
            }
            Err(too_concurrent) => panic!("history {number}: {too_concurrent}"),
        }
    }
    let few = HISTORIES / 5;
    assert!(accepted > few && refused > few, "{accepted} accepted, {refused} refused");
    assert!(ambiguous > HISTORIES / 10, "{ambiguous} with several values in the end");
}

/// The read that is blamed is the first that is wrong, what it might have seen is exact, and the operations that are
/// shown with it are enough.
#[test]
fn explanations_are_true() {
    let mut prng = Prng::new(2);
    let (mut explained, mut with_few) = (0, 0);
    for number in 0..HISTORIES / 4 {
        let (operations, initial) = tiny(&mut prng);
        let Err(Violation::Unexplained(unexplained)) = check_register(&operations, &initial) else { continue };
        let Unexplained { read, possible, involved, .. } = *unexplained;
        let returned = read.ended().expect("a read that says something returned");
        let history =
            || panic!("history {number} from {initial:?}: {operations:#?}, blamed {read}, shown {involved:?}");
        let known = known(&operations, returned);
        if !oracle::last_values(&known, &initial).is_empty() {
            history();
        }
        let before: Vec<Operation> = known.iter().filter(|other| other.id != read.id).copied().collect();
        if oracle::last_values(&before, &initial).is_empty() {
            history();
        }
        let mut every: Vec<Value> = operations.iter().map(Operation::value).chain(initial.iter().copied()).collect();
        every.sort_unstable();
        every.dedup();
        every.retain(|&value| {
            let instead = Operation { action: Action::Read(value), ..read };
            !oracle::last_values(&[&before[..], &[instead]].concat(), &initial).is_empty()
        });
        if possible != every || check_register(&[&involved[..], &[read]].concat(), &initial).is_ok() {
            history();
        }
        explained += 1;
        with_few += u64::from(involved.len() < before.len());
    }
    assert!(explained > HISTORIES / 20 && with_few > explained / 3, "{explained} explained, {with_few} with few");
}

/// What was known of `operations` at `at`.
fn known(operations: &[Operation], at: Moment) -> Vec<Operation> {
    let mut known = Vec::new();
    for operation in operations.iter().filter(|operation| operation.invoked <= at) {
        let is_over = operation.ended().is_none_or(|ended| ended <= at);
        known.push(Operation { end: if is_over { operation.end } else { End::Open }, ..*operation });
    }
    known
}
