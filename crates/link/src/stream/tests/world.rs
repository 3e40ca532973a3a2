//! Two nodes, a far end on one of them, near ends on the other, and what stands between.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::io::fragment_checksums;
use base::{AlignedBuf, Bytes, Generation, ReadPart, SegmentId, VolumeId, WriteStamp};
use runtime::sim::{NodeId, NodeOptions, World};
use runtime::{Address, Class, Handle, Stream};
use wire::{Answer, Attachment, BlockService, LinkLost, Target};

use super::engine::Engine;
use super::store::Store;
use crate::stream::{FarEnd, NearEnd, Options, Services};

pub const SILENCE: Duration = Duration::from_secs(2);
pub const DISK: VolumeId = VolumeId(1);

pub struct Fixture {
    pub world: World,
    pub nodes: [NodeId; 2],
    /// The loop of the near ends, and of the far end.
    pub near: Handle,
    pub far: Handle,
    pub store: Rc<Store>,
    pub engine: Rc<Engine>,
    pub end: Rc<FarEnd>,
    pub address: Address,
}

pub fn options(name: &str) -> Options {
    Options { requests_max: 8, bytes_max: 32 << 20, silence: SILENCE, streams_max: 4, ..Options::new(name) }
}

impl Fixture {
    pub fn new(seed: u64) -> Fixture {
        let world = World::new(seed);
        let nodes = [0, 1].map(|_| world.add_node(NodeOptions::default()));
        let [near, far] = nodes.map(|node| world.start_loop(node));
        let (store, engine) = (Store::new(&far), Engine::new(&far));
        let end = FarEnd::new(&far, engine.and(store.services()), options("the store"));
        let address = listen(&world, &far, &end, Address::Tcp((world.address(nodes[1]), 0).into()));
        Fixture { world, nodes, near, far, store, engine, end, address }
    }

    /// A near end of the far one.
    pub fn dial(&self) -> NearEnd {
        NearEnd::dial(&self.near, self.address.clone(), Services::default(), options("an agent"))
    }

    /// Does something on the loop of the near ends.
    pub fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(&self.near, work)
    }

    /// Connections that something is left of.
    pub fn open(&self) -> usize {
        self.end.statistics().open
    }

    /// Lets the far end notice what there is to notice, and sees that nothing is left.
    pub fn settle(&self) {
        self.world.run_for(4 * SILENCE);
        assert_eq!(self.open(), 0, "no connection is left");
        assert!(self.store.sessions.borrow().is_empty(), "no session is left");
        assert_eq!(self.store.in_flight.get() + self.engine.in_flight.get(), 0, "no request is left");
    }
}

/// Serves `end` at an address.
pub fn listen(world: &World, handle: &Handle, end: &Rc<FarEnd>, address: Address) -> Address {
    let inside = handle.clone();
    let listener = world.block_on(handle, async move { inside.listen(&address).await.unwrap() });
    let address = listener.address().clone();
    end.serve(listener);
    address
}

pub fn segment() -> SegmentId {
    SegmentId { volume: DISK, index: 2 }
}

pub async fn attach(near: &NearEnd) -> base::Result<Target> {
    let Attachment { session, epoch } = BlockService::attach(near, DISK, Generation(4)).await?;
    Ok(Target { session, segment: segment(), epoch, level: base::levels::Level::Open, behind: 0 })
}

pub fn write(near: &NearEnd, target: Target, offset: u64, data: Vec<u8>) -> impl Future<Output = Answer<()>> + use<> {
    let near = near.clone();
    let checksums = fragment_checksums(target.segment, offset, &data);
    async move { near.write(target, offset, data.into(), checksums, WriteStamp::default()).await }
}

pub async fn read(near: &NearEnd, target: Target, offset: u64, len: u64) -> Result<base::Result<Vec<u8>>, LinkLost> {
    let reply = near.read(target, offset, len).await?;
    Ok(reply.result.map(|parts| {
        parts.into_iter().fold(Vec::new(), |mut all, part| {
            match part {
                ReadPart::Data(data) => all.extend_from_slice(&data),
                ReadPart::Zeros(len) => all.resize(all.len() + len as usize, 0),
            }
            all
        })
    }))
}

/// What stands between two processes and changes a bit: of what goes to the far end, or comes from it, at a position.
#[derive(Clone, Copy)]
pub struct Flip {
    pub to_far: bool,
    pub at: u64,
    pub bit: u8,
}

/// A middlebox on the near node that passes on what it gets, and once changes a bit. Its address, and whether it has.
pub fn middlebox(fixture: &Fixture, flip: Flip) -> (Address, Rc<Cell<bool>>) {
    let handle = fixture.near.clone();
    let any = Address::Tcp((fixture.world.address(fixture.nodes[0]), 0).into());
    let inside = handle.clone();
    let listener = fixture.run(async move { inside.listen(&any).await.unwrap() });
    let address = listener.address().clone();
    let (flipped, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (behind, result) = (fixture.address.clone(), flipped.clone());
    let inside = handle.clone();
    let accepting = async move {
        loop {
            let Ok(client) = listener.accept().await else { return };
            let Ok(server) = inside.connect(&behind).await else { continue };
            for (from, to, to_far) in [(client.clone(), server.clone(), true), (server, client, false)] {
                // Only the first connection is hit.
                let wanted = (to_far == flip.to_far && !done.get()).then_some(flip);
                inside.spawn(Class::Io, "pass on", pass_on(from, to, wanted, flipped.clone())).detach();
            }
            done.set(true);
        }
    };
    handle.spawn(Class::Io, "middlebox", accepting).detach();
    (address, result)
}

async fn pass_on(from: Stream, to: Stream, flip: Option<Flip>, flipped: Rc<Cell<bool>>) {
    let mut passed = 0;
    loop {
        let (count, buffer) = from.receive(AlignedBuf::zeroed(4096), 0).await;
        let Ok(count @ 1..) = count else { break };
        let mut bytes = buffer[..count].to_vec();
        if let Some(flip) = flip.filter(|flip| (passed..passed + count as u64).contains(&flip.at)) {
            bytes[(flip.at - passed) as usize] ^= 1 << flip.bit;
            flipped.set(true);
        }
        passed += count as u64;
        if to.send(vec![Bytes::from(bytes)]).await.is_err() {
            break;
        }
    }
    from.shutdown();
    to.shutdown();
}
