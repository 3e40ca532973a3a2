//! An OSD of a pool gets slow, and goes on answering: what is written goes on elsewhere, what is read is asked of others, and
//! the OSD is named.

use std::time::Duration;

use base::io::fragment_checksums;
use base::{Bytes, KIB, MIB, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options};
use files::rados::simulated::{OSDS, Pool, PoolOptions};
use files::rados::{self, RadosOptions};
use files::{FileKind, Store};
use runtime::Handle;
use runtime::sim::{NodeOptions, World};

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };
/// What is written at a time, and how much of it there is.
const WRITTEN: u64 = 4 * KIB;
const BLOCKS: u64 = 4_096;
/// A slow OSD takes so many times as long as others.
const FACTOR: u32 = 200;

struct Bed {
    handle: Handle,
    pool: Pool,
    store: Store,
    engine: Engine,
    sequence: u64,
}

impl Bed {
    /// A write to the next block, and how long it took.
    async fn write(&mut self) -> Duration {
        let (begun, offset) = (self.handle.now(), self.sequence % BLOCKS * WRITTEN);
        self.sequence += 1;
        let data = Bytes::from(vec![self.sequence as u8; WRITTEN as usize]);
        let checksums = fragment_checksums(SEGMENT, offset, &data);
        let stamp = WriteStamp { sequence: base::WriteSequence(self.sequence), ..WriteStamp::default() };
        self.engine.write(SEGMENT, offset, data, checksums, stamp).await.unwrap();
        self.handle.now().since(begun)
    }

    /// The median of so many writes.
    async fn writes(&mut self, count: usize) -> Duration {
        let mut took = Vec::new();
        for _ in 0..count {
            took.push(self.write().await);
        }
        took.sort_unstable();
        took[count / 2]
    }

    /// The present journal file, the last one that was made and has bytes in it.
    async fn holders(&self) -> Vec<u64> {
        let journals =
            self.store.list().into_iter().filter(|info| info.kind == FileKind::Journal && info.sealed.is_none());
        // The one behind it is prepared already.
        let file = journals.map(|info| info.id).min().unwrap();
        let object = format!("file.{:016x}.0000", file.0);
        let holders = self.pool.reached_from(&self.handle).holders(&object).await.unwrap();
        holders.iter().map(|name| name.trim_start_matches("osd.").parse().unwrap()).collect()
    }
}

fn with_engine(seed: u64, act: impl AsyncFnOnce(Bed) + 'static) {
    let world = World::new(seed);
    let handle = world.start_loop(world.add_node(NodeOptions::default()));
    let pool = Pool::new(&world, PoolOptions::default());
    let inside = handle.clone();
    world.block_on(&handle, async move {
        let store = rados::join(&inside, pool.reached_from(&inside), RadosOptions::default()).await.unwrap();
        let options = Options { journal_file_bytes: 64 * MIB, data_file_bytes: MIB, ..Options::default() };
        let engine = Engine::open(&inside, &store, options).await.unwrap();
        act(Bed { handle: inside, pool, store, engine, sequence: 0 }).await;
    });
}

#[test]
fn writes_go_on_in_files_that_have_no_copy_at_a_slow_osd() {
    for seed in 1..4 {
        with_engine(seed, async move |mut bed| {
            let calm = bed.writes(1_000).await;
            let slow = bed.holders().await[1];
            bed.pool.set_slow_osd(Some((slow, FACTOR)));
            let first = bed.writes(5).await;
            assert!(first > 10 * calm, "seed {seed}: nothing is slow: {first:?} after {calm:?}");
            // A new file has a copy there in half of all cases, and then another one is begun after a while.
            let until = bed.handle.now() + Duration::from_secs(60);
            while bed.handle.now() < until && bed.holders().await.contains(&slow) {
                bed.write().await;
            }
            assert!(!bed.holders().await.contains(&slow), "seed {seed}: osd.{slow} has a copy still");
            let after = bed.writes(1_000).await;
            assert!(after < 2 * calm, "seed {seed}: {after:?} after {calm:?}");
            // A moment does not count: it is named once others of its objects have been slow as well.
            let named = |bed: &Bed| bed.store.statistics().directories[0].clone();
            assert_eq!(named(&bed).state, "healthy");
            let until = bed.handle.now() + Duration::from_secs(60);
            while bed.handle.now() < until && named(&bed).state == "healthy" {
                bed.write().await;
                bed.handle.sleep(Duration::from_millis(2)).await;
            }
            let named = named(&bed);
            assert!(named.state == "slow" && named.path.contains(&format!("osd.{slow}")), "seed {seed}: {named:?}");
            println!("seed {seed}: named at {:?}", bed.handle.now());
            // Long ago: nobody has asked it for anything since.
            bed.pool.set_slow_osd(None);
            bed.handle.sleep(Duration::from_secs(60)).await;
            assert_eq!(bed.store.statistics().directories[0].state, "healthy");
        });
    }
}

#[test]
fn reads_do_not_wait_for_a_slow_osd() {
    for slow in 0..OSDS {
        with_engine(1 + slow, async move |mut bed| {
            // What is read is in data files, and in no cache.
            bed.writes(3 * BLOCKS as usize).await;
            let mut prng = base::Prng::new(slow);
            let mut read = async |count: usize| {
                let mut took = Vec::new();
                for _ in 0..count {
                    let begun = bed.handle.now();
                    bed.engine.read(SEGMENT, prng.below(BLOCKS) * WRITTEN, WRITTEN).await.unwrap();
                    took.push(bed.handle.now().since(begun));
                }
                took.sort_unstable();
                (took[count / 2], took[count * 19 / 20])
            };
            let (calm, _) = read(4_000).await;
            bed.pool.set_slow_osd(Some((slow, FACTOR)));
            // It takes some reads until it is known which objects are slow.
            read(2_000).await;
            let (usual, late) = read(2_000).await;
            println!("osd.{slow}: half {usual:?}, 95% {late:?}; before {calm:?}");
            assert!(usual < 2 * calm, "osd.{slow}: half of all reads take {usual:?}");
            // Without all this: some 150 times.
            assert!(late < 40 * calm, "osd.{slow}: 95% of all reads take up to {late:?}");
        });
    }
}
