//! Orders of managers of which one follows another.

use base::{ErrorKind, GIB, MIB, WriteStamp};
use engine::Ownership;
use files::memory::{Memory, MemoryOptions};
use files::shared::{Shared, SharedOptions};
use runtime::sim::{NodeOptions, World};

use super::*;

const VOLUME: VolumeId = VolumeId(1);

fn segment(index: u32) -> SegmentId {
    SegmentId { volume: VOLUME, index }
}

fn volume(generation: u64) -> VolumeDescriptor {
    VolumeDescriptor { generation: Generation(generation), ..VolumeDescriptor::new(VOLUME, "disk", 128 * GIB) }
}

fn create(index: u32, epoch: Epoch) -> Assignment {
    Assignment { volume: volume(1), segment: segment(index), epoch, source: Source::Nobody }
}

async fn open(handle: &Handle, shared: &Shared) -> Rc<Owner> {
    let store = shared.join().await.unwrap();
    let options = engine::Options { copies: 1, ownership: Ownership::Given, ..engine::Options::default() };
    let engine = Engine::open(handle, &store, options.clone()).await.unwrap();
    Owner::new(handle, Server::told(handle, engine, crate::Options::default()), &store, options)
}

fn refused<T>(outcome: Result<T>) {
    let error = outcome.err().unwrap();
    assert!(error.kind == ErrorKind::Fenced && error.message.contains("one under t5, which is newer"), "{error}");
}

/// What a manager has said that is in charge no more comes late, and changes nothing.
#[test]
fn an_order_under_a_lower_term_is_refused() {
    let world = World::new(1);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let inside = handle.clone();
    world.block_on(&handle, async move {
        let memory = Memory::new(1, MemoryOptions { directories: 1, capacity: 4 * GIB, ..MemoryOptions::default() });
        let options = SharedOptions { grant_bytes: 512 * MIB, copies: 1, ..SharedOptions::default() };
        let shared = Shared::open(&inside, memory.open(&inside), options).await.unwrap();
        let (owner, other) = (open(&inside, &shared).await, open(&inside, &shared).await);
        let (old, new) = (Term(4), Term(5));
        let (first, second) = (Epoch::of(old, 1), Epoch::of(new, 1));
        for outcome in owner.assign(old, vec![create(0, first), create(1, first)]).await {
            outcome.unwrap();
        }
        owner.release(old, segment(1), first).await.unwrap();
        // Whichever order it is: from here on the term is known.
        owner.begin_attachment(new, volume(2), segment(0), first).await.unwrap();

        let late = owner.assign(old, vec![create(2, first), create(3, first)]).await;
        assert_eq!(late.len(), 2, "each of them has its answer");
        late.into_iter().for_each(refused);
        refused(owner.refuse(old, segment(3), second).await);
        refused(owner.release(old, segment(0), first).await);
        refused(owner.forget_release(old, segment(1), first).await);
        let living = other.store.incarnation();
        refused(owner.recover(old, living).await);
        refused(owner.begin_attachment(old, volume(3), segment(0), first).await);
        refused(owner.drop_segment(old, segment(0), first).await);

        assert_eq!(owner.engine().tenure(segment(0)), Some(Tenure { epoch: first, generation: Generation(2) }));
        assert_eq!(owner.held(segment(2)).await.unwrap(), None);
        assert_eq!(owner.released().await.unwrap(), [(segment(1), first)]);
        // The one who was to be recovered is not dead.
        for outcome in other.assign(old, vec![create(2, first)]).await {
            outcome.unwrap();
        }
        let data = Bytes::from(vec![7; 512]);
        let checksums = base::io::fragment_checksums(segment(2), 0, &data);
        other.engine().write(segment(2), 0, data, checksums, WriteStamp::default()).await.unwrap();

        // What was refused under the old term was not refused for good.
        for outcome in owner.assign(new, vec![create(3, second)]).await {
            outcome.unwrap();
        }
        owner.forget_release(new, segment(1), first).await.unwrap();
        owner.drop_segment(new, segment(0), first).await.unwrap();
        assert_eq!((owner.released().await.unwrap(), owner.held(segment(3)).await.unwrap()), (vec![], Some(second)));
    });
}
