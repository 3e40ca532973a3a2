//! One who asks for whatever a frame can say: it gets an answer, the store goes on, and others notice nothing.

use std::rc::Rc;
use std::time::Duration;

use base::limits::FILE_SIZE_MAX;
use base::{
    AlignedBuf, BLOCK, Bytes, Epoch, FileId, Generation, Incarnation, KIB, MIB, Prng, SegmentId, StoreId, VolumeId,
};
use files::local::LocalOptions;
use files::memory::{Memory, MemoryOptions};
use files::remote::{self, RemoteOptions};
use files::{CreateOptions, FileKind, Redundancy};
use link::stream::{NearEnd, Services};
use wire::FileService;
use wire::files::{Life, NewFile};

use crate::site::{Below, CAPACITY, Site, stream_options};

/// Numbers at which something ends, and others.
fn number(prng: &mut Prng) -> u64 {
    match prng.below(4) {
        0 => prng.below(64),
        1 => *prng.pick(&[0, 1, u64::MAX, u64::MAX - 1, 1 << 63, FILE_SIZE_MAX, FILE_SIZE_MAX - BLOCK]),
        2 => prng.below(64) * BLOCK,
        _ => prng.next_u64() >> prng.below(64),
    }
}

fn blocks(prng: &mut Prng) -> Bytes {
    AlignedBuf::zeroed(prng.below(20) as usize * BLOCK as usize).freeze()
}

/// Asks something; how it was answered: done, refused, or not at all.
async fn ask(near: &NearEnd, store: StoreId, life: Life, prng: &mut Prng) -> usize {
    let life = match prng.below(8) {
        0 => Life { incarnation: Incarnation(number(prng)), ..life },
        1 => Life { generation: Generation(number(prng)), ..life },
        _ => life,
    };
    let store = if prng.one_in(8) { StoreId(number(prng).into()) } else { store };
    // Mostly those that there may be.
    let file = FileId(if prng.one_in(3) { number(prng) } else { prng.below(40) });
    let (copy, offset) = (prng.below(256) as u8, number(prng));
    let outcome = |is_done: Result<bool, wire::LinkLost>| is_done.map_or(2, |is_done| usize::from(!is_done));
    outcome(match prng.below(13) {
        0 => near.enter(store, life).await.map(|answer| answer.is_ok()),
        1 | 2 => {
            let capacity = if prng.one_in(2) { prng.between(1, 64) * BLOCK } else { number(prng) };
            let (kind, copies) = (prng.below(9) as u8, if prng.one_in(2) { 2 } else { copy });
            let segment =
                prng.one_in(2).then(|| SegmentId { volume: VolumeId(prng.below(9)), index: prng.below(9) as u32 });
            let (prepared, epoch, claim) = (prng.one_in(2), Epoch(number(prng)), prng.below(5) as u8);
            let file = NewFile { kind, capacity, copies, prepared, epoch, segment, claim };
            near.create(life, file).await.map(|answer| answer.is_ok())
        }
        3 => near.append(life, file, offset, blocks(prng).into()).await.map(|answer| answer.is_ok()),
        4 => near.append(life, file, prng.below(8) * BLOCK, blocks(prng).into()).await.map(|answer| answer.is_ok()),
        5 => {
            let copy = (!prng.one_in(3)).then_some(copy % 4);
            near.read(life, file, copy, offset, prng.below(9) * BLOCK).await.map(|answer| answer.is_ok())
        }
        6 => near.repair_copy(life, file, copy % 4, offset, blocks(prng)).await.map(|answer| answer.is_ok()),
        7 => near.check_headers(life, file).await.map(|answer| answer.is_ok()),
        8 => near.seal(life, file, offset).await.map(|answer| answer.is_ok()),
        9 => near.delete(life, file).await.map(|answer| answer.is_ok()),
        10 => near.need_space(life, number(prng)).await.map(|answer| answer.is_ok()),
        11 => near.files_of(store, Incarnation(number(prng)), file).await.map(|answer| answer.is_ok()),
        _ => match prng.below(4) {
            3 => {
                let segment = SegmentId { volume: VolumeId(prng.below(9)), index: prng.below(9) as u32 };
                near.files_of_segment(store, segment, file).await.map(|answer| answer.is_ok())
            }
            0 => near.find(store, file).await.map(|answer| answer.is_ok()),
            1 => near.lives(Incarnation(number(prng))).await.map(|answer| answer.is_ok()),
            // Far above all that live.
            _ => near.fence(store, Incarnation(1000 + prng.below(8))).await.map(|answer| answer.is_ok()),
        },
    })
}

#[test]
fn whatever_is_asked_is_answered_and_others_notice_nothing() {
    let mut outcomes = [0; 3];
    for seed in 0..12 {
        let site = Site::new(seed);
        let below = match seed % 2 {
            0 => {
                let options = MemoryOptions { directories: 2, capacity: CAPACITY, ..MemoryOptions::default() };
                Below::Memory(Memory::new(seed, options))
            }
            _ => {
                let directories = vec!["/0/levee".into(), "/1/levee".into()];
                Below::Local(LocalOptions { copies: 2, capacity: Some(CAPACITY), ..LocalOptions::new(directories) })
            }
        };
        let running = site.start_store(&below);
        let (handle, address) = (site.handles[0].clone(), site.address.clone());
        let mut prng = site.world.fork_prng();
        let counted = site.world.block_on(&site.handles[0], async move {
            let dial = |name| NearEnd::dial(&handle, address.clone(), Services::default(), stream_options(name));
            let decent = remote::join(&handle, Rc::new(dial("a life")), RemoteOptions::new("the store")).await.unwrap();
            let options = CreateOptions {
                kind: FileKind::Journal,
                capacity: 2 * MIB,
                redundancy: Redundancy::Copies(2),
                prepared: false,
                epoch: Epoch(1),
                segment: None,
                claim: files::Claim::Use,
            };
            let mut writer = decent.create(options).await.unwrap();
            let near = dial("a stranger");
            let (store, incarnation) = near.join().await.unwrap().unwrap();
            let life = Life { incarnation, generation: Generation(1) };
            near.enter(store, life).await.unwrap().unwrap();
            let mut outcomes = [0; 3];
            for round in 0..400u64 {
                // Its own life may have entered anew by what it asked.
                let _ = near.enter(store, Life { generation: Generation(round + 2), ..life }).await;
                let life = Life { generation: Generation(round + 2), ..life };
                for _ in 0..3 {
                    outcomes[ask(&near, store, life, &mut prng).await] += 1;
                }
                let block = AlignedBuf::copy_of(&round.to_le_bytes().repeat(BLOCK as usize / 8)).freeze();
                let offset = writer.append(block.clone()).await.unwrap();
                assert!(decent.read(writer.id(), offset, BLOCK as usize).await.unwrap()[..] == block[..]);
            }
            handle.sleep(Duration::from_millis(1)).await;
            decent.seal(writer.id(), 400 * BLOCK).await.unwrap();
            outcomes
        });
        outcomes.iter_mut().zip(counted).for_each(|(all, more)| *all += more);
        let claimed: u64 = running.shared.lives().iter().map(|life| life.granted_bytes.max(life.used_bytes)).sum();
        assert!(claimed <= CAPACITY && claimed > 64 * KIB, "seed {seed}");
    }
    println!("{outcomes:?}");
    assert!(outcomes[0] > 1000 && outcomes[1] > 1000 && outcomes[2] == 0, "{outcomes:?}");
}
