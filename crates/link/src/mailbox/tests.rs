//! The mailbox between two loops of a simulated machine.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use base::{Epoch, SegmentId};
use runtime::sim::{NodeOptions, World};
use wire::Reply;

use super::*;

const TARGET: Target = Target {
    session: SessionId(3),
    segment: SegmentId { volume: VolumeId(1), index: 2 },
    epoch: Epoch(1),
    level: base::levels::Level::Open,
    behind: 0,
};

/// An owner that takes its time and remembers what it was asked.
struct Slow {
    handle: Handle,
    takes: Duration,
    log: RefCell<Vec<String>>,
    in_flight: Cell<usize>,
    in_flight_max: Cell<usize>,
}

impl Slow {
    fn new(handle: &Handle, takes: Duration) -> Rc<Self> {
        Rc::new(Slow {
            handle: handle.clone(),
            takes,
            log: RefCell::default(),
            in_flight: Cell::default(),
            in_flight_max: Cell::default(),
        })
    }

    fn done<T: 'static>(&self, what: String, value: T) -> LocalBoxFuture<'_, T> {
        self.log.borrow_mut().push(what);
        self.in_flight.set(self.in_flight.get() + 1);
        self.in_flight_max.set(self.in_flight_max.get().max(self.in_flight.get()));
        Box::pin(async move {
            self.handle.sleep(self.takes).await;
            self.in_flight.set(self.in_flight.get() - 1);
            value
        })
    }
}

fn reply<T>(value: T) -> Answer<T> {
    Ok(Reply { epoch: Epoch(7), result: Ok(value), passage: base::Passage::default() })
}

impl BlockService for Slow {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        self.done(format!("attach {volume} {generation}"), Ok(Attachment { session: SessionId(3), epoch: Epoch(7) }))
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        self.done(format!("detach {session}"), Err(Error::internal("no")))
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        self.done(format!("read {} {offset} {len}", target.segment), reply(vec![ReadPart::Zeros(len)]))
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        let text = format!("write {} {offset} {data:?} {checksums:?} {}", target.segment, stamp.sequence);
        self.done(text, reply(()))
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        self.done(format!("discard {} {offset} {len} {}", target.segment, stamp.sequence), reply(()))
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        self.done(format!("flush {}", target.segment), reply(()))
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        let extents = vec![AllocationExtent { len, allocated: true }];
        self.done(format!("allocation {} {offset} {len} {extents_max}", target.segment), reply(extents))
    }
}

fn two_loops(seed: u64) -> (World, Handle, Handle) {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let (near, far) = (world.start_loop(node), world.start_loop(node));
    (world, near, far)
}

#[test]
fn every_request_crosses_with_its_arguments_and_its_answer() {
    let (world, near_loop, far_loop) = two_loops(1);
    let owner = Slow::new(&far_loop, Duration::from_micros(10));
    let (near, far) = mailbox::<dyn BlockService>(4);
    far_loop.spawn(Class::Io, "serve", far.serve(far_loop.clone(), owner.clone(), 4)).detach();
    world.block_on(&near_loop, async move {
        let attachment = near.attach(VolumeId(1), Generation(5)).await.unwrap();
        assert_eq!(attachment, Attachment { session: SessionId(3), epoch: Epoch(7) });
        let read = near.read(TARGET, 512, 1024).await.unwrap();
        assert_eq!((read.epoch, read.result.unwrap()), (Epoch(7), vec![ReadPart::Zeros(1024)]));
        let stamp = WriteStamp { sequence: base::WriteSequence(9), ..WriteStamp::default() };
        near.write(TARGET, 0, Bytes::from_static(b"data"), vec![1, 2], stamp).await.unwrap().result.unwrap();
        near.discard(TARGET, 4096, 8192, stamp).await.unwrap().result.unwrap();
        near.flush(TARGET).await.unwrap().result.unwrap();
        assert_eq!(near.allocation(TARGET, 0, 64, 3).await.unwrap().result.unwrap()[0].len, 64);
        assert_eq!(near.detach(SessionId(3)).await.unwrap_err().kind, base::ErrorKind::Internal);
    });
    let log = owner.log.borrow();
    let expected = [
        "attach v1 g5",
        "read v1/2 512 1024",
        "write v1/2 0 b\"data\" [1, 2] w9",
        "discard v1/2 4096 8192 w9",
        "flush v1/2",
        "allocation v1/2 0 64 3",
        "detach session 3",
    ];
    assert_eq!(*log, expected);
}

#[test]
fn a_full_mailbox_makes_the_near_end_wait() {
    let (world, near_loop, far_loop) = two_loops(2);
    let owner = Slow::new(&far_loop, Duration::from_millis(1));
    let (near, far) = mailbox::<dyn BlockService>(4);
    far_loop.spawn(Class::Io, "serve", far.serve(far_loop.clone(), owner.clone(), 4)).detach();
    let inside = near_loop.clone();
    world.block_on(&near_loop, async move {
        let tasks: Vec<_> = (0..100)
            .map(|n| {
                let near = near.clone();
                inside.spawn(Class::Io, "reader", async move { near.read(TARGET, n * 512, 512).await.is_ok() })
            })
            .collect();
        for task in tasks {
            assert!(task.await);
        }
    });
    assert_eq!(owner.in_flight_max.get(), 4, "no more run at once than the bound");
    assert_eq!(owner.log.borrow().len(), 100);
}

#[test]
fn a_far_end_that_ends_is_a_lost_link() {
    let (world, near_loop, far_loop) = two_loops(3);
    let owner = Slow::new(&far_loop, Duration::from_secs(1));
    let (near, far) = mailbox::<dyn BlockService>(4);
    let serving = far_loop.spawn(Class::Io, "serve", far.serve(far_loop.clone(), owner, 4));
    world.block_on(&near_loop, async move {
        let in_flight = near.read(TARGET, 0, 512);
        drop(serving);
        assert!(in_flight.await.is_err());
        assert!(near.flush(TARGET).await.is_err());
        assert_eq!(near.attach(VolumeId(1), Generation(5)).await.unwrap_err().kind, base::ErrorKind::Io);
    });
}
