//! Owners that cannot do what they are asked for, in front of the store for tests, which watches order and stamps.

use base::io::fragment_checksums;
use base::levels::Level;
use base::{Generation, WriteSequence};
use runtime::sim::{NodeOptions, World};

use super::*;
use crate::nbd::tests::store::Store;

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };
const PATIENCE: Duration = Duration::from_secs(60);

/// One engine has everything.
struct Places;

impl SegmentDirectory for Places {
    fn locate(&self, _: SegmentId) -> LocalBoxFuture<'_, Result<Located>> {
        let located = Located { owner: Incarnation(1), address: String::new(), epoch: Epoch(1) };
        Box::pin(std::future::ready(Ok(located)))
    }
}

struct Bed {
    handle: Handle,
    store: Rc<Store>,
    router: Rc<Router>,
    session: SessionId,
}

impl Bed {
    /// A write of one sector: how long it took, and what came of it. A link that is lost is an error without a kind.
    async fn write(&self, sequence: u64) -> (Duration, Result<(), (Option<ErrorKind>, String)>) {
        let data = Bytes::from(vec![sequence as u8; 512]);
        let checksums = fragment_checksums(SEGMENT, 0, &data);
        let stamp = WriteStamp { sequence: WriteSequence(sequence), ..WriteStamp::default() };
        let target = Target { session: self.session, segment: SEGMENT, epoch: Epoch(1), level: Level::Open, behind: 0 };
        let begun = self.handle.now();
        let outcome = match self.router.write(target, 0, data, checksums, stamp).await {
            Ok(reply) => reply.result.map_err(|error| (Some(error.kind), error.message)),
            Err(lost) => Err((None, lost.message)),
        };
        (self.handle.now() - begun, outcome)
    }
}

fn run(act: impl AsyncFnOnce(Bed) + 'static) {
    let world = World::new(1);
    let handle = world.start_loop(world.add_node(NodeOptions::default()));
    let inside = handle.clone();
    world.block_on(&handle, async move {
        let store = Store::new(&inside);
        store.add_volume("disk", 1 << 20);
        let service: Rc<dyn BlockService> = store.clone();
        let connect: Connect = Rc::new(move |_| service.clone());
        let router = Router::new(&inside, Rc::new(Places), connect, RouterOptions::default());
        let session = router.attach(SEGMENT.volume, Generation(0)).await.unwrap().session;
        act(Bed { handle: inside, store, router, session }).await;
    });
}

#[test]
fn what_an_owner_could_not_do_it_is_asked_again() {
    run(async |bed| {
        bed.store.fails.set(Some((ErrorKind::Io, 20)));
        let (took, outcome) = bed.write(1).await;
        assert_eq!(outcome, Ok(()));
        // Of 20 pauses the first eleven are 2 s together, and the others a second each.
        assert!(took > Duration::from_secs(10) && took < Duration::from_secs(12), "{took:?}");
        let RouterStatistics { failed, opened, given_up, .. } = bed.router.statistics();
        assert_eq!((failed, opened, given_up), (20, 1, 0), "in the same session");
        let (took, outcome) = bed.write(2).await;
        assert!(outcome.is_ok() && took < Duration::from_millis(1), "{took:?}");
    });
}

#[test]
fn an_owner_that_cannot_do_it_for_long_is_an_error_that_says_why() {
    run(async |bed| {
        bed.store.fails.set(Some((ErrorKind::Io, u32::MAX)));
        let (took, outcome) = bed.write(1).await;
        let (kind, why) = outcome.unwrap_err();
        assert!(
            took.as_secs() == PATIENCE.as_secs() && why.contains("could do this for 60 s: as the test wants it"),
            "{took:?}: {why}"
        );
        assert_eq!(kind, Some(ErrorKind::Io), "nothing is on its way: the session goes on");
        // One that has it when the time is over may do it yet.
        bed.store.delay.set(200 * PATIENCE);
        assert_eq!(bed.write(2).await.1.unwrap_err().0, None);
    });
}

#[test]
fn what_no_waiting_mends_is_an_error_at_once() {
    run(async |bed| {
        for (sequence, kind) in
            (1..).zip([ErrorKind::Full, ErrorKind::Corrupt, ErrorKind::Internal, ErrorKind::Invalid])
        {
            bed.store.fails.set(Some((kind, 1)));
            let (took, outcome) = bed.write(sequence).await;
            assert_eq!(outcome.unwrap_err().0, Some(kind));
            assert!(took < Duration::from_millis(1), "{took:?}");
        }
    });
}
