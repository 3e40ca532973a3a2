//! Tables that are written and read again.

use base::{ErrorKind, Prng};
use policies::ownership::{Manager, Settings};

use super::format::tests::{FILE, changes, header};
use super::format::{Found, checkpoint, decode, encode};
use super::*;

fn through_bytes(sequence: u64, term: Term, kind: Kind, changes: Vec<Change>) -> Record {
    let record = Record { header: Header { term, ..header(sequence) }, kind, changes };
    let Found::Record(again, _) = decode(FILE, &encode(&record)).unwrap() else { panic!("{record:?}") };
    again
}

/// A table as a manager makes it, and its changes.
fn some_table(seed: u64) -> (Table, Vec<Change>) {
    let mut prng = Prng::new(seed);
    let now = base::Instant::ZERO;
    let mut manager = Manager::take_over(Settings::default(), Table::default(), Term(1), now, seed).unwrap();
    for engine in 1..=prng.between(1, 9) {
        manager.on_registered(now, seed, base::Incarnation(engine), &format!("s{engine}")).unwrap();
    }
    for volume in 1..=prng.between(1, 9) {
        manager.create(now, seed, base::VolumeId(volume), 4 * prng.between(1, 60) as u32).unwrap();
    }
    manager.on_gone(now, seed, base::Incarnation(1));
    (manager.table().clone(), manager.unlogged().to_vec())
}

#[test]
fn a_checkpoint_and_changes_give_the_table() {
    for seed in 0..100 {
        let (table, changes) = some_table(seed);
        let mut replay = Replay::default();
        let mut sequence = 5;
        let mut next = |kind, changes| {
            sequence += 1;
            through_bytes(sequence, Term(1), kind, changes)
        };
        let floor = Change::Floor { engine: base::Incarnation(0), epoch: base::Epoch(0) };
        replay.take(&next(Kind::Checkpoint, vec![changes[0].clone(), floor])).unwrap();
        for some in changes[1..].chunks(7) {
            replay.take(&next(Kind::Changes, some.to_vec())).unwrap();
        }
        let (again, last) = replay.end().unwrap();
        assert_eq!(again, table);
        let mut replay = Replay::default();
        for (index, part) in checkpoint(&again).into_iter().enumerate() {
            let sequence = last.0 + 1 + index as u64;
            replay.take(&through_bytes(sequence, Term(1), Kind::Checkpoint, part)).unwrap();
        }
        assert_eq!(replay.end().unwrap().0, table);
    }
}

#[test]
fn what_does_not_follow_is_refused() {
    let first = || vec![changes()[0].clone(), changes()[1].clone()];
    let begun = || {
        let mut replay = Replay::default();
        replay.take(&through_bytes(42, Term(3), Kind::Checkpoint, first())).unwrap();
        replay
    };
    let engine = vec![changes()[2].clone()];
    let refused = [
        begun().take(&through_bytes(44, Term(3), Kind::Changes, engine.clone())),
        begun().take(&through_bytes(43, Term(3), Kind::Checkpoint, engine.clone())),
        begun().take(&through_bytes(43, Term(2), Kind::Changes, engine.clone())),
        begun().take(&through_bytes(43, Term(2), Kind::Changes, vec![Change::Term(Term(2))])),
        begun().take(&through_bytes(43, Term(3), Kind::Changes, vec![changes()[9].clone()])),
        Replay::default().take(&through_bytes(1, Term(3), Kind::Changes, engine.clone())),
    ];
    use ErrorKind::{Corrupt, Fenced};
    let kinds = refused.map(|result| result.unwrap_err().kind);
    assert_eq!(kinds, [Corrupt, Corrupt, Fenced, Fenced, Corrupt, Corrupt]);
    begun().take(&through_bytes(43, Term(3), Kind::Changes, engine.clone())).unwrap();
    let mut torn = Replay::default();
    torn.take(&through_bytes(42, Term(3), Kind::Checkpoint, vec![changes()[0].clone()])).unwrap();
    assert_eq!(torn.end().unwrap_err().kind, Corrupt);
    assert_eq!(Replay::default().end().unwrap_err().kind, Corrupt);
}
