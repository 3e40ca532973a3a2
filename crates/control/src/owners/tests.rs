//! Tables that are written and read again.

use base::{ErrorKind, Prng};
use policies::ownership::{self, Manager, Settings};

use super::format::tests::{FILE, changes, header};
use super::format::{Found, checkpoint, decode, encode};
use super::*;
use crate::table::{self, Row, VolumeState, VolumeTable};

fn through_bytes(sequence: u64, term: Term, kind: Kind, changes: Vec<impl Into<Entry>>) -> Record {
    let changes = changes.into_iter().map(Into::into).collect();
    let record = Record { header: Header { term, ..header(sequence) }, kind, changes };
    let Found::Record(again, _) = decode(FILE, &encode(&record)).unwrap() else { panic!("{record:?}") };
    again
}

/// Tables as a manager makes them, and their changes.
fn some_tables(seed: u64) -> (Tables, Vec<Entry>) {
    let mut prng = Prng::new(seed);
    let now = base::Instant::ZERO;
    let mut manager = Manager::take_over(Settings::default(), ownership::Table::default(), Term(1), now, seed).unwrap();
    for engine in 1..=prng.between(1, 9) {
        manager.on_registered(now, seed, base::Incarnation(engine), &format!("s{engine}")).unwrap();
    }
    for volume in 1..=prng.between(1, 9) {
        manager.create(now, seed, base::VolumeId(volume), 4 * prng.between(1, 60) as u32).unwrap();
    }
    manager.on_gone(now, seed, base::Incarnation(1));
    let mut tables = Tables { owners: manager.table().clone(), volumes: VolumeTable::default() };
    let mut entries: Vec<Entry> = manager.unlogged().iter().cloned().map(Entry::Owners).collect();
    for index in 0..prng.below(9) {
        let row = Row {
            id: base::VolumeId(0),
            name: format!("v{index}"),
            size: 1 << 30,
            data_sector_bytes: 128 << 10,
            owner: String::new(),
            created_wall_ms: index,
            generation: base::Generation(0),
            state: VolumeState::Active,
            levels: base::levels::Levels::default(),
            forwarding: wire::Forwarding::default(),
        };
        let mut planned = vec![tables.volumes.plan_create(row).unwrap()];
        let id = tables.volumes.next_id();
        planned.extend(prng.one_in(2).then_some(table::Change::MarkDeleted(id)));
        planned.extend((planned.len() == 2 && prng.one_in(2)).then_some(table::Change::Forget(id)));
        for change in planned {
            tables.volumes.apply(change.clone());
            entries.push(Entry::Volumes(change));
        }
    }
    (tables, entries)
}

#[test]
fn a_checkpoint_and_changes_give_the_table() {
    for seed in 0..100 {
        let (tables, changes) = some_tables(seed);
        let mut replay = Replay::default();
        let mut sequence = 5;
        let mut next = |kind, changes| {
            sequence += 1;
            through_bytes(sequence, Term(1), kind, changes)
        };
        let floor = Change::Floor { engine: base::Incarnation(0), epoch: base::Epoch(0) };
        replay.take(&next(Kind::Checkpoint, vec![changes[0].clone(), floor.into()])).unwrap();
        for some in changes[1..].chunks(7) {
            replay.take(&next(Kind::Changes, some.to_vec())).unwrap();
        }
        let (again, last) = replay.end().unwrap();
        assert_eq!(again, tables);
        let mut replay = Replay::default();
        for (index, part) in checkpoint(&again).into_iter().enumerate() {
            let sequence = last.0 + 1 + index as u64;
            replay.take(&through_bytes(sequence, Term(1), Kind::Checkpoint, part)).unwrap();
        }
        assert_eq!(replay.end().unwrap().0, tables);
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
