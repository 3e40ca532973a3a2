//! Servers that refuse, and what they had taken all the same; logs that are full; agents that are gone in the middle of it.

mod store;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::io::fragment_checksums;
use base::levels::Level;
use base::{Bytes, ErrorKind, Prng, SegmentId};
use policies::burst::{BurstSettings, Cap};
use policies::forwarding::IndexSettings;
use wire::{BlockService, Forwarding, Target};

use self::store::{DISK, Fate, Holder, LOGS, MIB, all, in_a_world, is_entry};
use super::{Forwarder, Mode, Options};

#[test]
fn a_volume_that_never_had_a_burst_has_no_logs() {
    in_a_world(1, |store| async move {
        let holder = Holder::attach(&store, Options { mode: Mode::Auto, ..Options::default() }).await;
        holder.write(0, &[1; 4096]).await.unwrap().unwrap();
        assert_eq!(holder.read(0, 4096).await, [1; 4096]);
        assert!(!store.has_logs.get() && store.direct.get() == 1);
    });
}

/// Servers may have given them up already, of a volume that is being deleted: what was in them is newer than what owners have.
#[test]
fn logs_that_cannot_be_found_are_not_none() {
    in_a_world(4, |store| async move {
        let holder = Holder::attach(&store, all()).await;
        store.set_fate(|target, _| if target.segment.volume == DISK { Fate::Refused } else { Fate::Done });
        holder.write(0, &[1; 4096]).await.unwrap().unwrap();
        store.logs_are_gone.set(true);
        let next = Forwarder::new(&store.handle, store.clone(), store.clone(), Options::default());
        assert!(BlockService::attach(&*next, DISK, store.next(DISK).generation).await.is_err());
        store.logs_are_gone.set(false);
        let holder = Holder::attach(&store, Options::default()).await;
        assert_eq!(holder.read(0, 4096).await, [1; 4096]);
    });
}

/// It was done, though it was refused: whoever looks into the log would find it.
#[test]
fn what_was_refused_does_not_come_back() {
    for done in [Fate::RefusedAndDone, Fate::Refused] {
        in_a_world(2, move |store| async move {
            let holder = Holder::attach(&store, all()).await;
            holder.write(0, &[1; 4096]).await.unwrap().unwrap();
            holder.settle().await;
            store.set_fate(move |target, offset| if is_entry(target, offset) { done } else { Fate::Done });
            // The owner has it instead.
            holder.write(0, &[2; 4096]).await.unwrap().unwrap();
            assert_eq!(holder.read(0, 4096).await, [2; 4096]);
            store.set_fate(|_, _| Fate::Done);
            holder.write(0, &[3; 4096]).await.unwrap().unwrap();
            drop(holder);
            let holder = Holder::attach(&store, all()).await;
            assert_eq!(holder.read(0, 4096).await, [3; 4096]);
            holder.settle().await;
            assert_eq!(holder.read(0, 4096).await, [3; 4096]);
        });
    }
}

/// What it overlaps is in a log: the owner must not have it, and its client is told.
#[test]
fn a_refusal_over_an_entry_is_an_error() {
    in_a_world(3, |store| async move {
        let holder = Holder::attach(&store, all()).await;
        // Nothing comes home.
        store.set_fate(|target, _| if target.segment.volume == DISK { Fate::Refused } else { Fate::Done });
        holder.write(0, &[1; 4096]).await.unwrap().unwrap();
        store.set_fate(|target, offset| match target.segment.volume {
            DISK => Fate::Refused,
            _ if is_entry(target, offset) => Fate::RefusedAndDone,
            _ => Fate::Done,
        });
        assert_eq!(holder.write(0, &[2; 8192]).await.unwrap().unwrap_err().kind, ErrorKind::Io);
        assert_eq!(holder.read(0, 8192).await[..4096], [1; 4096]);
        store.set_fate(|_, _| Fate::Done);
        // It holds up nothing behind it.
        holder.write(4096, &[4; 4096]).await.unwrap().unwrap();
        holder.settle().await;
        assert_eq!(holder.read(0, 8192).await, [[1; 4096], [4; 4096]].concat());
        drop(holder);
        let holder = Holder::attach(&store, Options::default()).await;
        assert_eq!(holder.read(0, 8192).await, [[1; 4096], [4; 4096]].concat());
    });
}

#[test]
fn nothing_is_sent_when_an_outcome_is_unknown() {
    for unknown in [Fate::Lost, Fate::RefusedAndDone] {
        in_a_world(4, move |store| async move {
            let holder = Holder::attach(&store, all()).await;
            holder.write(MIB, &[5; 4096]).await.unwrap().unwrap();
            holder.settle().await;
            // Of an entry; or of the book, without which an entry that failed is not void.
            store.set_fate(move |target, offset| match target.segment.volume {
                LOGS if is_entry(target, offset) => unknown,
                LOGS => Fate::Refused,
                _ => Fate::Done,
            });
            holder.write(0, &[1; 4096]).await.unwrap_err();
            store.set_fate(|_, _| Fate::Done);
            let direct = store.direct.get();
            holder.write(8192, &[1; 4096]).await.unwrap_err();
            assert_eq!(store.direct.get(), direct);
            // What it did counts for whoever comes next, or does not.
            let next = Holder::attach(&store, all()).await;
            let found = next.read(0, 4096).await;
            assert!(found == [1; 4096] || found == [0; 4096]);
            next.settle().await;
            assert_eq!(next.read(0, 4096).await, found);
        });
    }
}

/// The logs are full, and nothing comes home for a while: what may goes to owners, what may not waits, nothing is lost.
#[test]
fn logs_that_are_full_make_writes_slow_and_not_dead() {
    in_a_world(5, |store| async move {
        let index = IndexSettings { entries_max: 100, ..IndexSettings::default() };
        let holder = Holder::attach(&store, Options { index, ..all() }).await;
        let is_away = Rc::new(Cell::new(true));
        let away = is_away.clone();
        store.set_fate(move |target, offset| match target.segment.volume {
            DISK if away.get() && offset < MIB => Fate::Refused,
            _ => Fate::Done,
        });
        for round in 0..60u8 {
            for at in 0..2 {
                holder.write(at * 4096, &[round; 4096]).await.unwrap().unwrap();
            }
            if holder.forwarder.waiting().1 >= 100 {
                break;
            }
        }
        assert!(holder.forwarder.waiting().1 >= 100, "{:?}", holder.forwarder.waiting());
        // What is free goes to its owner.
        let before = store.direct.get();
        holder.write(2 * MIB, &[7; 4096]).await.unwrap().unwrap();
        assert!(store.direct.get() > before);
        let handle = store.handle.clone();
        let late = handle.spawn(runtime::Class::Io, "owner comes back", {
            let (handle, is_away) = (handle.clone(), is_away.clone());
            async move {
                handle.sleep(Duration::from_secs(3)).await;
                is_away.set(false);
            }
        });
        let begun = handle.now();
        holder.write(0, &[9; 4096]).await.unwrap().unwrap();
        assert!(handle.now() - begun >= Duration::from_secs(2), "it waits: {:?}", holder.forwarder.counted());
        late.await;
        holder.settle().await;
        assert_eq!(holder.read(0, 4096).await, [9; 4096]);
        let counted = holder.forwarder.counted();
        assert!(counted.failed_merges > 0 && counted.waits > 0, "{counted:?}");
    });
}

/// Writes, discards and reads of one client after the other, refusals, and agents that are gone, against a list.
#[test]
fn a_random_life_agrees_with_a_list() {
    const SECTORS: u64 = 600;
    let (mut refused, mut lives) = (0, 0);
    for seed in 0..60 {
        let counts = Rc::new(Cell::new((0, 0)));
        let counted = counts.clone();
        in_a_world(seed, move |store| async move {
            let mut prng = Prng::new(seed);
            let mut expected = vec![0u8; SECTORS as usize];
            let mode = |prng: &mut Prng| match prng.below(4) {
                0 => Options { mode: Mode::Off, ..all() },
                1 => all(),
                _ => Options { mode: Mode::Mixed, ..all() },
            };
            let mut holder = Holder::attach(&store, mode(&mut prng)).await;
            for step in 0..400u64 {
                let len = if prng.one_in(10) { prng.between(1, 590) } else { prng.between(1, 12) };
                let at = prng.below(SECTORS - len);
                let range = at as usize..(at + len) as usize;
                match prng.below(12) {
                    0..6 => {
                        let value = (step % 255) as u8 + 1;
                        if let Ok(()) = holder.write(at * 512, &vec![value; len as usize * 512]).await.unwrap() {
                            expected[range].fill(value);
                        } else {
                            counted.set((counted.get().0 + 1, counted.get().1));
                            // Each sector has it, or has it not, from here on.
                            let found = holder.read(at * 512, len * 512).await;
                            for (sector, bytes) in range.zip(found.chunks(512)) {
                                assert!([expected[sector], value].contains(&bytes[0]), "seed {seed}");
                                expected[sector] = bytes[0];
                            }
                        }
                    }
                    6 => {
                        if let Ok(()) = holder.discard(at * 512, len * 512).await.unwrap() {
                            expected[range].fill(0);
                        } else {
                            let found = holder.read(at * 512, len * 512).await;
                            for (sector, bytes) in range.zip(found.chunks(512)) {
                                assert!([expected[sector], 0].contains(&bytes[0]), "seed {seed}");
                                expected[sector] = bytes[0];
                            }
                        }
                    }
                    7..10 => {
                        let found = holder.read(at * 512, len * 512).await;
                        for (sector, bytes) in range.zip(found.chunks(512)) {
                            assert_eq!(bytes, [expected[sector]; 512], "seed {seed}, step {step}, sector {sector}");
                        }
                    }
                    10 => {
                        let fate = *prng.pick(&[Fate::Done, Fate::Done, Fate::Refused, Fate::RefusedAndDone]);
                        let one_in = prng.between(1, 8);
                        let handle = store.handle.clone();
                        store.set_fate(move |target, offset| {
                            match is_entry(target, offset) && handle.random_u64().is_multiple_of(one_in) {
                                true => fate,
                                false => Fate::Done,
                            }
                        });
                    }
                    _ => {
                        if prng.one_in(3) {
                            if prng.one_in(2) {
                                holder.forwarder.detach(holder.session).await.unwrap();
                            }
                            holder = Holder::attach(&store, mode(&mut prng)).await;
                            counted.set((counted.get().0, counted.get().1 + 1));
                        } else {
                            store.handle.sleep(Duration::from_millis(prng.below(40))).await;
                        }
                    }
                }
                holder.forwarder.check_invariants();
            }
        });
        refused += counts.get().0;
        lives += counts.get().1;
    }
    assert!(refused > 50 && lives > 300, "{refused} writes were refused, {lives} lives");
}

#[test]
fn a_discard_of_much_is_one_entry() {
    in_a_world(6, |store| async move {
        let holder = Holder::attach(&store, Options { mode: Mode::On, ..all() }).await;
        holder.settle().await;
        // Nothing comes home.
        store.set_fate(|target, _| if target.segment.volume == DISK { Fate::Refused } else { Fate::Done });
        for at in 0..10 {
            holder.write(at * 8192, &[1; 4096]).await.unwrap().unwrap();
        }
        let before = holder.forwarder.waiting().1;
        holder.discard(0, MIB).await.unwrap().unwrap();
        assert_eq!(holder.forwarder.waiting().1, before + 1);
        assert_eq!(holder.read(0, 81_920).await, [0; 81_920]);
        let extents = holder.forwarder.allocation(holder.target(), 0, 2 * MIB, 10).await.unwrap().result.unwrap();
        let found: Vec<(u64, bool)> = extents.iter().map(|extent| (extent.len, extent.allocated)).collect();
        assert_eq!(found, [(MIB, false), (MIB, true)], "what the owner says, and what it does not know yet");
        store.set_fate(|_, _| Fate::Done);
        holder.settle().await;
        assert_eq!(holder.read(0, 81_920).await, [0; 81_920]);
    });
}

/// What it is about to read comes home meanwhile, and something else is where it was.
#[test]
fn a_read_of_what_is_merged_meanwhile_is_done_again() {
    in_a_world(7, |store| async move {
        let holder = Rc::new(Holder::attach(&store, all()).await);
        holder.settle().await;
        store.set_fate(|target, _| if target.segment.volume == DISK { Fate::Refused } else { Fate::Done });
        holder.write(0, &[1; 4096]).await.unwrap().unwrap();
        store.log_reads_take.set(Duration::from_secs(60));
        let (reader, inside) = (holder.clone(), store.handle.clone());
        let reading = store.handle.spawn(runtime::Class::Io, "slow read", async move {
            let begun = inside.now();
            (reader.read(0, 4096).await, inside.now() - begun)
        });
        store.handle.sleep(Duration::from_millis(50)).await;
        store.log_reads_take.set(Duration::ZERO);
        store.set_fate(|_, _| Fate::Done);
        holder.settle().await;
        // Four logs of a MiB begin anew.
        for at in 0..48 {
            holder.write(2 * MIB + at * (MIB / 8), &[2; (MIB / 8) as usize]).await.unwrap().unwrap();
            // A part of the time is for merging, whoever wants what.
            store.handle.sleep(Duration::from_millis(50)).await;
        }
        let (found, took) = reading.await;
        assert!(took >= Duration::from_secs(60) && found == [1; 4096], "{took:?}, {}", found[0]);
        assert_eq!(holder.forwarder.counted().repeated_reads, 1);
    });
}

/// What was on its way home when the volume was given back must not arrive after what is newer.
#[test]
fn what_is_on_its_way_when_a_volume_is_given_back_comes_home_once() {
    in_a_world(9, |store| async move {
        let holder = Holder::attach(&store, all()).await;
        holder.settle().await;
        store.owner_takes.set(Duration::from_millis(100));
        holder.write(0, &[1; 8192]).await.unwrap().unwrap();
        store.handle.sleep(Duration::from_millis(20)).await;
        store.owner_takes.set(Duration::ZERO);
        holder.write(4096, &[2; 4096]).await.unwrap().unwrap();
        holder.forwarder.detach(holder.session).await.unwrap();
        store.handle.sleep(Duration::from_millis(200)).await;
        let holder = Holder::attach(&store, all()).await;
        assert_eq!(holder.forwarder.waiting(), (0, 0));
        assert_eq!(holder.read(0, 8192).await, [[1; 4096], [2; 4096]].concat());
    });
}

/// A log that is longer has to wait.
#[test]
fn what_a_write_waits_for_comes_home_first() {
    in_a_world(11, |store| async move {
        let index = IndexSettings { reschedules_max: 0, ..IndexSettings::default() };
        let holder = Holder::attach(&store, Options { index, log_bytes: 16 * MIB, ..all() }).await;
        holder.settle().await;
        store.owner_takes.set(Duration::from_millis(20));
        for at in 0..160 {
            holder.write(at * (MIB / 8), &[1; (MIB / 8) as usize]).await.unwrap().unwrap();
        }
        let other = Target { segment: SegmentId { volume: DISK, index: 1 }, ..holder.target() };
        let data = Bytes::from_static(&[2; 4096]);
        let checksums = fragment_checksums(other.segment, 0, &data);
        holder.forwarder.write(other, 0, data, checksums, holder.stamp()).await.unwrap().result.unwrap();
        let waiting = holder.forwarder.waiting().0;
        assert!(waiting > 15 * MIB, "{waiting}");
        // No burst, and over what is in a log.
        holder.forwarder.discard(other, 0, 4096, holder.stamp()).await.unwrap().result.unwrap();
        assert!(holder.forwarder.counted().waits > 0);
        assert!(waiting - holder.forwarder.waiting().0 < 3 * MIB, "{waiting} {:?}", holder.forwarder.waiting());
    });
}

/// Servers that clients want let nothing come home, but for what one of them waits for, or what is left of a volume that is given
/// back.
#[test]
fn what_comes_home_is_marked_unless_somebody_waits_for_it() {
    in_a_world(12, |store| async move {
        let index = IndexSettings { reschedules_max: 0, ..IndexSettings::default() };
        let holder = Holder::attach(&store, Options { index, ..all() }).await;
        holder.settle().await;
        store.set_fate(|target, _| if target.level == Level::Merge { Fate::Busy } else { Fate::Done });
        holder.write(0, &[1; 4096]).await.unwrap().unwrap();
        store.handle.sleep(Duration::from_secs(5)).await;
        assert_eq!(holder.forwarder.waiting(), (4096, 1));
        assert_eq!(holder.forwarder.counted().failed_merges, 0, "that is no failure");
        holder.discard(0, 4096).await.unwrap().unwrap();
        assert!(holder.forwarder.counted().waits > 0);
        assert_eq!(holder.read(0, 4096).await, [0; 4096]);
        holder.write(MIB, &[2; 4096]).await.unwrap().unwrap();
        let direct = store.direct.get();
        holder.forwarder.detach(holder.session).await.unwrap();
        assert!(store.direct.get() > direct);
    });
}

/// At a server that is hardly ever idle: each piece is sent away some times, and no other one is carried again for that.
#[test]
fn a_batch_goes_on_where_it_was_sent_away() {
    in_a_world(13, |store| async move {
        let holder = Holder::attach(&store, all()).await;
        holder.settle().await;
        for at in 0..48 {
            holder.write(at * 8192, &[at as u8; 4096]).await.unwrap().unwrap();
        }
        holder.settle().await;
        store.direct.set(0);
        let asked = Cell::new(0u64);
        store.set_fate(move |target, _| {
            asked.set(asked.get() + u64::from(target.level == Level::Merge));
            if target.level == Level::Merge && !asked.get().is_multiple_of(4) { Fate::Busy } else { Fate::Done }
        });
        for at in 0..48 {
            holder.write(at * 8192, &[at as u8 + 1; 4096]).await.unwrap().unwrap();
        }
        holder.settle().await;
        assert!((48 * 3..48 * 5).contains(&store.direct.get()), "{}", store.direct.get());
        assert_eq!(holder.forwarder.counted().failed_merges, 0);
    });
}

/// What is set for a volume comes before what is set for its agent, also while it is attached.
#[test]
fn a_volume_is_spread_as_it_is_set() {
    in_a_world(10, |store| async move {
        let bursts = |holder: &Holder| holder.forwarder.counted().burst_bytes;
        let holder = Holder::attach(&store, Options { mode: Mode::Off, ..all() }).await;
        let set = |forwarding| {
            store.forwarding.set(forwarding);
            holder.forwarder.learn(&store.described(DISK));
        };
        for (forwarding, expected) in [
            (Forwarding::Default, false),
            (Forwarding::On, true),
            (Forwarding::Off, false),
            (Forwarding::Auto, true),
            (Forwarding::Default, false),
        ] {
            set(forwarding);
            // The first burst of all has logs made.
            holder.write(30 * MIB, &[0; 512]).await.unwrap().unwrap();
            store.handle.sleep(Duration::from_millis(20)).await;
            let before = bursts(&holder);
            // With `auto` most of it, as chance has it.
            for at in (0..16).map(|number| number * 4096) {
                store.handle.sleep(Duration::from_millis(20)).await;
                holder.write(at, &[forwarding as u8 + 1; 4096]).await.unwrap().unwrap();
            }
            assert_eq!(bursts(&holder) > before, expected, "{forwarding:?}");
            assert_eq!(store.has_logs.get(), forwarding != Forwarding::Default || before > 0);
            assert_eq!(holder.read(0, 4096).await, [forwarding as u8 + 1; 4096]);
            holder.settle().await;
        }
        // What was logged comes home all the same.
        holder.settle().await;
        let state = holder.forwarder.state(DISK).unwrap();
        assert!(state.mode == Mode::Off && state.has_logs && state.waiting_entries == 0, "{state:?}");
        assert_eq!(state.counted.merged_bytes, state.counted.burst_bytes + state.counted.rescheduled_bytes);
        store.forwarding.set(Forwarding::On);
        let holder = Holder::attach(&store, Options { mode: Mode::Off, ..all() }).await;
        holder.write(0, &[9; 4096]).await.unwrap().unwrap();
        assert!(bursts(&holder) == 4096 && holder.forwarder.state(LOGS).is_none());
    });
}

#[test]
fn bursts_are_spread_by_auto_only_where_logs_answer_sooner() {
    in_a_world(11, |store| async move {
        let holder = Holder::attach(&store, Options { mode: Mode::Auto, ..all() }).await;
        let mut at = 0;
        for (owner_takes, percent) in [(0, 0..=10), (5_000, 85..=100), (0, 0..=10)] {
            store.owner_takes.set(Duration::from_micros(owner_takes));
            let mut before = 0;
            for number in 0..240_000 {
                if number == 239_000 {
                    before = holder.forwarder.counted().burst_bytes;
                }
                store.handle.sleep(Duration::from_millis(1)).await;
                // Where nothing waits in a log.
                at = (at + 4096) % (30 * MIB);
                holder.write(at, &[number as u8; 512]).await.unwrap().unwrap();
            }
            let logged = (holder.forwarder.counted().burst_bytes - before) / 512 / 10;
            assert!(percent.contains(&logged), "an owner that takes {owner_takes} us more: {logged}");
        }
    });
}

/// Each log was tried once then; what is more of a burst goes to all of them.
#[test]
fn a_mild_burst_goes_to_the_nearest_log() {
    in_a_world(9, |store| async move {
        store.near.set(Some(2));
        let appends = Rc::new(RefCell::new(vec![0u32; 4]));
        let counted = appends.clone();
        store.set_fate(move |target, offset| {
            if is_entry(target, offset) {
                counted.borrow_mut()[target.segment.index as usize] += 1;
            }
            Fate::Done
        });
        // Behind the 512 bytes of the first write 3 of 8 parts of 4 KiB have room, of 16 KiB a tenth, and no burst is added.
        let options = all();
        let burst = BurstSettings { threshold_bytes: 2048, cap: Cap::Before, mild_below: 70, ..options.burst };
        let holder = Holder::attach(&store, Options { burst, ..options }).await;
        let write = async |number: u64, len: usize| {
            holder.write(number * MIB / 4, &vec![1; len]).await.unwrap().unwrap();
        };
        // The first one that is a burst has logs made.
        write(0, 4096).await;
        store.handle.sleep(Duration::from_millis(20)).await;
        for number in 1..31 {
            write(number, 4096).await;
        }
        assert_eq!(*appends.borrow(), [1, 1, 27, 1]);
        for number in 31..71 {
            write(number, 16384).await;
        }
        assert_eq!(*appends.borrow(), [11, 11, 37, 11]);
    });
}

/// What is in its logs comes home no more, so whoever waits for that hears it.
#[test]
fn a_volume_that_was_deleted_is_lost() {
    in_a_world(9, |store| async move {
        let holder = Holder::attach(&store, all()).await;
        holder.write(0, &[1; 4096]).await.unwrap().unwrap();
        store.set_fate(|target, _| if target.segment.volume == DISK { Fate::Gone } else { Fate::Done });
        store.handle.sleep(Duration::from_secs(5)).await;
        assert!(holder.write(0, &[2; 4096]).await.is_err());
    });
}

/// The store is full: no write has room, in logs as with owners, and no disk is lost for that.
#[test]
fn a_full_store_says_so() {
    in_a_world(8, |store| async move {
        let holder = Holder::attach(&store, all()).await;
        holder.write(0, &[1; 4096]).await.unwrap().unwrap();
        holder.settle().await;
        for is_clean in [false, true] {
            if is_clean {
                // Nothing is in the logs, as the book says: it has to be written first.
                holder.forwarder.detach(holder.session).await.unwrap();
            }
            let holder = Holder::attach(&store, all()).await;
            store.set_fate(|_, _| Fate::Full);
            for at in [0, MIB] {
                let refused = holder.write(at, &[2; 4096]).await.unwrap().unwrap_err();
                assert_eq!(refused.kind, ErrorKind::Full);
            }
            // Of all discards that need no log.
            store.set_fate(|target, _| if target.segment.volume == LOGS { Fate::Full } else { Fate::Done });
            holder.discard(MIB, MIB).await.unwrap().unwrap();
            assert_eq!(holder.read(0, 4096).await, [1; 4096]);
            holder.write(2 * MIB, &[3; 4096]).await.unwrap().unwrap();
            store.set_fate(|_, _| Fate::Done);
            holder.write(3 * MIB, &[4; 4096]).await.unwrap().unwrap();
            holder.settle().await;
        }
    });
}
