//! The log of the volume table against kills, power losses, failing appends, full disks and rot.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::levels::{Levels, Rate};
use base::{ErrorKind, FileId, GIB, Generation, KIB, Prng, VolumeId};
use files::memory::{AppendFault, Memory, MemoryOptions};
use files::{FileKind, Redundancy, Store};
use runtime::sim::{NodeOptions, World};
use runtime::{Class, Handle};
use wire::Forwarding;

use super::log::{RESERVE, TableLog};
use super::{Change, Row, VolumeState, VolumeTable};
use crate::table::recovery;

const COPIES: Redundancy = Redundancy::Copies(2);

fn wanted(name: String) -> Row {
    Row {
        id: VolumeId(0),
        name,
        size: GIB,
        data_sector_bytes: 128 * KIB,
        owner: "tests".into(),
        created_wall_ms: 1,
        generation: Generation(0),
        state: VolumeState::Active,
        levels: Levels::default(),
        forwarding: Forwarding::default(),
    }
}

/// A change that the table allows.
fn random_change(table: &VolumeTable, prng: &mut Prng) -> Change {
    let pick = |prng: &mut Prng, state| {
        let rows: Vec<&Row> = table.rows().filter(|row| row.state == state).collect();
        (!rows.is_empty()).then(|| prng.pick(&rows).id)
    };
    let planned = match prng.below(5) {
        0 => pick(prng, VolumeState::Active).map(|volume| table.plan_attach(volume).unwrap()),
        1 => pick(prng, VolumeState::Active).map(|volume| table.plan_delete(volume).unwrap()),
        2 => pick(prng, VolumeState::Deleting).map(Change::Forget),
        3 => pick(prng, VolumeState::Active).map(|volume| {
            let burst = Rate { iops: prng.below(1_000), bytes_per_sec: prng.below(1_000) };
            let forwarding = prng.pick(&Forwarding::NAMES).0;
            Change::Set { volume, levels: Levels { burst, ..Levels::default() }, forwarding }
        }),
        _ => None,
    };
    planned.unwrap_or_else(|| {
        let name = format!("volume-{}", table.next_id().0);
        table.plan_create(wanted(name)).unwrap()
    })
}

fn in_a_world<T: 'static, F: Future<Output = T> + 'static>(seed: u64, test: impl FnOnce(Handle) -> F) -> T {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    world.block_on(&handle, test(handle.clone()))
}

fn memory(seed: u64) -> Memory {
    Memory::new(seed, MemoryOptions { directories: 2, ..MemoryOptions::default() })
}

/// What a test knows of the table: what was confirmed, and the one change whose outcome nobody knows.
#[derive(Clone, Default)]
struct Known {
    confirmed: VolumeTable,
    in_doubt: Option<Change>,
}

impl Known {
    fn allows(&self, found: &VolumeTable) -> bool {
        let rows = |table: &VolumeTable| table.rows().cloned().collect::<Vec<_>>();
        let with_doubt = self.in_doubt.as_ref().map(|change| {
            let mut table = self.confirmed.clone();
            table.apply(change.clone());
            table
        });
        let highest = self.confirmed.rows().map(|row| row.id).max();
        Some(found.next_id()) > highest
            && (rows(found) == rows(&self.confirmed) || with_doubt.is_some_and(|table| rows(&table) == rows(found)))
    }
}

impl Known {
    fn difference(&self, found: &VolumeTable) -> String {
        let lost = self.confirmed.rows().filter(|row| !found.rows().any(|other| other == *row)).collect::<Vec<_>>();
        let new = found.rows().filter(|row| !self.confirmed.rows().any(|other| other == *row)).collect::<Vec<_>>();
        format!(
            "lost or changed: {lost:?}\nnot confirmed: {new:?}\nin doubt: {:?}\nnext id: {} then {}",
            self.in_doubt,
            self.confirmed.next_id(),
            found.next_id()
        )
    }
}

/// Changes until the life ends, each noted before and after.
async fn live(store: Store, mut log: TableLog, known: Rc<RefCell<Known>>, mut prng: Prng) {
    loop {
        let table = known.borrow().confirmed.clone();
        let change = random_change(&table, &mut prng);
        known.borrow_mut().in_doubt = Some(change.clone());
        match log.append(|| table.clone(), &change).await {
            Ok(()) => {
                let mut known = known.borrow_mut();
                known.confirmed.apply(change);
                known.in_doubt = None;
            }
            Err(error) if error.kind == ErrorKind::Io => known.borrow_mut().confirmed.burn_id(),
            Err(_) => return drop(store),
        }
    }
}

#[test]
fn what_was_confirmed_survives_every_end_of_a_life() {
    let base_seed = 7_000;
    let (mut torn, mut rotated) = (0, 0);
    for seed in base_seed..base_seed + 150 {
        let (torn_here, rotated_here) = in_a_world(seed, move |handle| async move {
            let memory = memory(seed);
            let known = Rc::new(RefCell::new(Known::default()));
            let mut prng = Prng::new(seed);
            let (mut torn, mut rotated) = (0, 0);
            for life in 0..6 {
                let store = memory.open(&handle);
                let (recovered, log) = TableLog::open(&store, COPIES, false).await.unwrap();
                assert!(
                    known.borrow().allows(&recovered.table),
                    "seed {seed}, life {life}:\n{}",
                    known.borrow().difference(&recovered.table)
                );
                torn += usize::from(!recovered.bad_copies.is_empty());
                known.replace(Known { confirmed: recovered.table, in_doubt: None });
                let logs = |store: &Store| store.list().iter().filter(|info| info.kind == FileKind::Log).count();
                assert_eq!(logs(&store), 1, "older files are gone");
                if prng.one_in(2) {
                    let fault = *prng.pick(&[AppendFault::Lost, AppendFault::Landed, AppendFault::Torn]);
                    memory.fail_appends(Some(FileKind::Log), prng.between(1, 3) as usize, fault);
                    rotated += 1;
                }
                let changes = live(store, log, known.clone(), prng.fork());
                let task = handle.spawn(Class::Io, "life", changes);
                handle.sleep(Duration::from_micros(prng.below(30_000))).await;
                match prng.one_in(2) {
                    true => memory.kill(),
                    false => memory.power_loss(),
                }
                memory.clear_faults();
                drop(task);
            }
            (torn, rotated)
        });
        torn += torn_here;
        rotated += rotated_here;
    }
    assert!(torn > 10 && rotated > 50, "coverage: {torn} torn, {rotated} with failing appends");
}

#[test]
fn a_full_file_gives_way_to_a_new_one() {
    in_a_world(1, |handle| async move {
        let memory = memory(1);
        let store = memory.open(&handle);
        let (_, mut log) = TableLog::open(&store, COPIES, false).await.unwrap();
        let mut table = VolumeTable::default();
        let first = store.list()[0].id;
        let mut prng = Prng::new(1);
        for _ in 0..600 {
            let change = random_change(&table, &mut prng);
            log.append(|| table.clone(), &change).await.unwrap();
            table.apply(change);
        }
        assert!(store.list().len() == 1 && store.list()[0].id > first);
        let (recovered, _) = TableLog::open(&memory.open(&handle), COPIES, false).await.unwrap();
        assert_eq!(recovered.table, table);
    });
}

#[test]
fn a_full_disk_can_be_emptied() {
    in_a_world(2, |handle| async move {
        let memory = memory(2);
        let store = memory.open(&handle);
        let (_, mut log) = TableLog::open(&store, COPIES, false).await.unwrap();
        memory.set_capacity(0);
        let mut table = VolumeTable::default();
        let refused = loop {
            let change = table.plan_create(wanted(format!("v{}", table.next_id().0))).unwrap();
            match log.append(|| table.clone(), &change).await {
                Ok(()) => table.apply(change),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind, ErrorKind::Full);
        for volume in 1..RESERVE / 4096 / 2 {
            for change in [Change::MarkDeleted(VolumeId(volume)), Change::Forget(VolumeId(volume))] {
                log.append(|| table.clone(), &change).await.unwrap();
                table.apply(change);
            }
        }
        let recovered = recovery::recover(&store, false).await.unwrap();
        assert_eq!(recovered.table, table);
    });
}

/// A store with 5 volumes whose writer was killed, and its file.
async fn five_volumes(handle: &Handle, memory: &Memory) -> FileId {
    five_volumes_that_end(handle, memory, false).await
}

/// The same; `cleanly`: the writer was closed.
async fn five_volumes_that_end(handle: &Handle, memory: &Memory, cleanly: bool) -> FileId {
    let store = memory.open(handle);
    let (_, mut log) = TableLog::open(&store, COPIES, false).await.unwrap();
    let mut table = VolumeTable::default();
    for number in 1..=5 {
        let change = table.plan_create(wanted(format!("v{number}"))).unwrap();
        log.append(|| table.clone(), &change).await.unwrap();
        table.apply(change);
    }
    if cleanly {
        log.close().await.unwrap();
    }
    memory.kill();
    store.list()[0].id
}

/// Behind a clean stop nothing is torn: whichever record is missing, the last one and the only ones included, has
/// rotted. After a kill the last one may be torn.
#[test]
fn after_a_clean_stop_the_last_record_is_no_torn_tail() {
    in_a_world(7, |handle| async move {
        for first in 0..6u64 {
            let memory = memory(7);
            let file = five_volumes_that_end(&handle, &memory, true).await;
            (0..2).for_each(|copy| memory.corrupt(file, copy, first * 4096..6 * 4096));
            let store = memory.open(&handle);
            let Err(refused) = TableLog::open(&store, COPIES, false).await else { panic!("{first}: it went on") };
            assert_eq!(refused.kind, ErrorKind::Corrupt);
            assert!(refused.message.contains(&store.locate(file, 0)), "{refused}");
            if first == 0 {
                assert!(refused.message.contains("checkpoint"), "{refused}");
                continue;
            }
            assert!(refused.message.contains(&format!("at {}, ", first * 4096)), "{refused}");
            let (found, mut log) = TableLog::open(&store, COPIES, true).await.unwrap();
            assert_eq!((found.table.rows().count() as u64, found.lost_records), (first - 1, 6 - first));
            assert!(found.table.next_id() > VolumeId(5), "no id of a lost record is given out again");
            let change = found.table.plan_create(wanted("new".into())).unwrap();
            log.append(|| found.table.clone(), &change).await.unwrap();
        }
        let memory = memory(7);
        let file = five_volumes(&handle, &memory).await;
        (0..2).for_each(|copy| memory.corrupt(file, copy, 5 * 4096..6 * 4096));
        assert_eq!(TableLog::open(&memory.open(&handle), COPIES, false).await.unwrap().0.table.rows().count(), 4);
    });
}

#[test]
fn rot_in_one_copy_is_mended_from_the_other() {
    in_a_world(3, |handle| async move {
        let memory = memory(3);
        let file = five_volumes(&handle, &memory).await;
        memory.corrupt(file, 0, 0..4096);
        memory.corrupt(file, 1, 8192..12_288);
        memory.corrupt(file, 0, 5 * 4096..6 * 4096);
        let store = memory.open(&handle);
        let found = recovery::recover(&store, false).await.unwrap();
        assert_eq!((found.table.rows().count(), found.bad_copies.len(), found.lost_records), (5, 3, 0));
        assert_eq!(TableLog::open(&store, COPIES, false).await.unwrap().0.table.rows().count(), 5);
    });
}

/// A disk that puts records where they do not belong hides nothing, and proves nothing.
#[test]
fn records_that_went_astray_on_one_disk_do_no_harm() {
    in_a_world(8, |handle| async move {
        let names = |store: Store| async move {
            let (found, _) = TableLog::open(&store, COPIES, false).await.unwrap();
            found.table.rows().map(|row| row.name.clone()).collect::<Vec<_>>()
        };
        let all = ["v1", "v2", "v3", "v4", "v5"];
        for (from, to) in [(2u64, 4u64), (4, 2), (1, 0), (0, 3), (3, 9)] {
            for copy in 0..2 {
                let memory = memory(8);
                let file = five_volumes(&handle, &memory).await;
                memory.misdirect(file, copy, from * 4096..(from + 1) * 4096, to * 4096);
                assert_eq!(names(memory.open(&handle)).await, all, "{from} over {to} in copy {copy}");
            }
        }
        // The last one is torn in one copy, and elsewhere in the other; an older one lies behind the end.
        let memory = memory(8);
        let file = five_volumes(&handle, &memory).await;
        memory.misdirect(file, 1, 5 * 4096..6 * 4096, 8 * 4096);
        (0..2).for_each(|copy| memory.corrupt(file, copy, 5 * 4096..6 * 4096));
        memory.misdirect(file, 1, 2 * 4096..3 * 4096, 9 * 4096);
        assert_eq!(names(memory.open(&handle)).await, all);
    });
}

#[test]
fn a_lost_record_that_was_confirmed_stops_the_start_unless_accepted() {
    in_a_world(4, |handle| async move {
        let memory = memory(4);
        let file = five_volumes(&handle, &memory).await;
        (0..2).for_each(|copy| memory.corrupt(file, copy, 3 * 4096..4 * 4096));
        let store = memory.open(&handle);
        let Err(refused) = TableLog::open(&store, COPIES, false).await else { panic!("it went on") };
        assert_eq!(refused.kind, ErrorKind::Corrupt);
        assert!(refused.message.contains("--accept-data-loss") && refused.message.contains("12288"), "{refused}");
        let (found, _) = TableLog::open(&store, COPIES, true).await.unwrap();
        assert_eq!(found.lost_records, 1);
        let names: Vec<&str> = found.table.rows().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["v1", "v2", "v4", "v5"]);
        assert!(found.table.next_id() > VolumeId(5));
    });
}

#[test]
fn a_lost_checkpoint_is_never_taken_for_an_empty_store() {
    in_a_world(5, |handle| async move {
        for with_records in [true, false] {
            let memory = memory(5);
            let file = five_volumes(&handle, &memory).await;
            let range = if with_records { 0..4096 } else { 0..6 * 4096 };
            (0..2).for_each(|copy| memory.corrupt(file, copy, range.clone()));
            let store = memory.open(&handle);
            let options = files::CreateOptions {
                kind: FileKind::Data,
                capacity: 4096,
                redundancy: COPIES,
                prepared: false,
                epoch: base::Epoch(1),
                segment: None,
                claim: files::Claim::Use,
            };
            store.create(options).await.unwrap();
            let refused = recovery::recover(&store, true).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Corrupt, "{refused}");
        }
    });
}

#[test]
fn an_end_that_cannot_be_read_is_not_an_end() {
    in_a_world(6, |handle| async move {
        let memory = memory(6);
        let file = five_volumes(&handle, &memory).await;
        memory.fail_reads(file, None, 5 * 4096..6 * 4096);
        let refused = recovery::recover(&memory.open(&handle), false).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Io, "{refused}");
        memory.clear_faults();
        memory.fail_reads(file, Some(1), 5 * 4096..6 * 4096);
        let found = recovery::recover(&memory.open(&handle), false).await.unwrap();
        assert_eq!(found.table.rows().count(), 5, "the other copy serves");
    });
}
