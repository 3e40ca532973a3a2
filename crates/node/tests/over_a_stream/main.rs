//! A whole store in one process, and its agent in another: block server and manager are reached over a stream.
//!
//! Clients speak NBD to the agent while connections between the two processes break, are delayed, carry one way only, and
//! the store is killed. Every sector that a client reads is what was written last, or may have been written since by a
//! request whose outcome nobody knows.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod model;
mod nbd;
mod store;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use agent::Agent;
use base::{GIB, KIB, Prng};
use link::stream::{NearEnd, Services};
use runtime::sim::{DiskOptions, NetworkOptions, NodeId, NodeOptions, World};
use runtime::{Address, Class, Handle};
use wire::frame::{HEADER_LEN, Header, Kind, Message, VERSION, Value};
use wire::{BlockService, VolumeDirectory};

use self::model::Model;
use self::nbd::Nbd;
use self::store::{Store, stream_options};

const SILENCE: Duration = store::SILENCE;

/// Two machines: the store's, and the agent's.
struct Pair {
    world: World,
    nodes: [NodeId; 2],
    /// The loop of the agent.
    agent: Handle,
    /// Where the store is reached.
    address: Address,
    /// Where the agent serves NBD.
    nbd: Address,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let world = World::new(seed);
        let nodes = [
            world.add_node(NodeOptions::with_disks(["/disk"], &DiskOptions::default())),
            world.add_node(NodeOptions::default()),
        ];
        let address = Address::Tcp((world.address(nodes[0]), 7000).into());
        let nbd = Address::Tcp((world.address(nodes[1]), 10809).into());
        let agent = world.start_loop(nodes[1]);
        Pair { world, nodes, agent, address, nbd }
    }

    /// Starts the store's process, with a volume.
    fn start_store(&self) -> (Handle, Rc<Store>) {
        let handle = self.world.restart(self.nodes[0]);
        let (inside, address) = (handle.clone(), self.address.clone());
        let store = self.world.block_on(&handle, async move { Store::open(&inside, &address).await });
        (handle, Rc::new(store))
    }

    /// Starts the agent, which knows no more than an address.
    fn start_agent(&self) -> Agent {
        let near = NearEnd::dial(&self.agent, self.address.clone(), Services::default(), stream_options("an agent"));
        self.serve(Rc::new(near.clone()), Rc::new(near))
    }

    fn serve(&self, directory: Rc<NearEnd>, service: Rc<NearEnd>) -> Agent {
        let agent = Agent::new(&self.agent, directory, service, agent::Options::default(), 1);
        let (inside, address) = (self.agent.clone(), self.nbd.clone());
        let listener = self.world.block_on(&self.agent, async move { inside.listen(&address).await.unwrap() });
        agent.serve(listener);
        agent
    }

    fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(&self.agent, work)
    }
}

#[test]
fn clients_write_and_read_over_a_stream() {
    let pair = Pair::new(1);
    let (handle, store) = pair.start_store();
    let agent = pair.start_agent();
    let (inside, address) = (pair.agent.clone(), pair.nbd.clone());
    pair.run(async move {
        let client = Nbd::attach(&inside, &address).await.unwrap();
        // Small, across two segments, and large.
        for (offset, len) in [(4096, 4096), (128 * KIB - 512, 1024), (1 << 20, 256 * KIB), (9 << 20, 4 << 20)] {
            let mut data = vec![0; len as usize];
            Prng::new(offset).fill(&mut data);
            client.write(offset, &data).await.unwrap();
            assert!(client.read(offset, len).await.unwrap() == data, "{len} bytes at {offset}");
        }
        assert!(client.read(GIB - 4096, 4096).await.unwrap() == [0; 4096]);
    });
    let statistics = store.server.statistics();
    assert!(statistics.write.bytes > 4 << 20 && statistics.sessions == 1, "{statistics:?}");
    pair.run(async move { agent.stop().await });
    assert_eq!(store.server.statistics().sessions, 0, "what the agent detaches is ended at the server");
    // Where its time went at the owner comes back with a reply: a small write waits for the disk.
    let near = NearEnd::dial(&pair.agent, pair.address.clone(), Services::default(), stream_options("an agent"));
    let passage = pair.run(async move {
        let volume = VolumeDirectory::attach(&near, near.resolve("disk").await.unwrap().id).await.unwrap();
        let attached = BlockService::attach(&near, volume.id, volume.generation).await.unwrap();
        let segment = base::SegmentId { volume: volume.id, index: 0 };
        let target = wire::Target {
            session: attached.session,
            segment,
            epoch: attached.epoch,
            level: base::levels::Level::Open,
            behind: 0,
        };
        let (data, stamp) = (
            base::Bytes::from(vec![9; 4096]),
            base::WriteStamp { generation: volume.generation, ..Default::default() },
        );
        let checksums = base::io::fragment_checksums(segment, 0, &data);
        near.write(target, 0, data, checksums, stamp).await.unwrap().passage
    });
    assert!(passage.of(base::Stage::Append) > 0 && passage.crossed, "{passage:?}");
    pair.world.block_on(&handle, async move {
        assert_eq!(store.engine.audit().await.unwrap(), Vec::<String>::new());
        Rc::into_inner(store).unwrap().close().await;
    });
}

/// The manager, on the store's side, asks an agent that has dialled it to let go of a volume that is deleted.
#[test]
fn a_volume_is_taken_from_an_agent_over_the_connection_that_it_made() {
    let pair = Pair::new(2);
    let (handle, store) = pair.start_store();
    // The agent is made before its near end can offer it: what it does for others is known when it dials.
    let later = Rc::new(store::Later::default());
    let services = Services { user: Some(later.clone()), ..Services::default() };
    let near = Rc::new(NearEnd::dial(&pair.agent, pair.address.clone(), services, stream_options("an agent")));
    let agent = pair.serve(near.clone(), near);
    later.set(agent.clone());
    let (inside, address) = (pair.agent.clone(), pair.nbd.clone());
    let client = pair.run(async move {
        let client = Nbd::attach(&inside, &address).await.unwrap();
        client.write(0, &[1; 512]).await.unwrap();
        client
    });
    let deleting = store.clone();
    let is_done = pair.world.block_on(&handle, async move {
        let (view, is_done) = deleting.manager.delete("disk", true).await.unwrap();
        assert_eq!(view.row.name, "disk");
        is_done
    });
    assert!(is_done);
    let (inside, address) = (pair.agent.clone(), pair.nbd.clone());
    pair.run(async move {
        assert!(client.read(0, 512).await.is_none(), "its client was sent away");
        assert!(Nbd::attach(&inside, &address).await.is_none(), "there is no such volume");
    });
    assert_eq!(store.server.statistics().sessions, 0);
}

/// What goes wrong between the two processes, and with the store's, while clients work.
fn trouble(pair: &Pair, prng: &mut Prng, kills: &Rc<Cell<u32>>) -> Duration {
    let (a, b) = (pair.nodes[0], pair.nodes[1]);
    let mut at = Duration::from_millis(50);
    for _ in 0..12 {
        at += Duration::from_millis(prng.between(20, 1500));
        let lasts = Duration::from_millis(*prng.pick(&[2, 40, 700, 5000]));
        let (from, to) = if prng.one_in(2) { (a, b) } else { (b, a) };
        let kills = kills.clone();
        let what = prng.below(5);
        pair.world.after(at, move |world| match what {
            0 => world.reset_connections(a, b),
            1 => {
                world.partition(a, b);
                world.after(lasts, move |world| world.heal(a, b));
            }
            // Half open: what one says arrives, and it hears nothing.
            2 => {
                world.cut_link(from, to);
                world.after(lasts, move |world| world.mend_link(from, to));
            }
            3 => {
                world.set_extra_delay(from, to, lasts.min(SILENCE / 4));
                world.after(2 * lasts, move |world| world.set_extra_delay(from, to, Duration::ZERO));
            }
            _ => {
                world.kill(a);
                kills.set(kills.get() + 1);
            }
        });
    }
    at + Duration::from_secs(6)
}

#[test]
fn answers_stay_right_whatever_happens_to_the_connection() {
    let (mut broken, mut answered, mut killed) = (0, 0, 0);
    for seed in 0..12 {
        let pair = Pair::new(seed);
        pair.world.set_network(NetworkOptions { loss_one_in: 300, ..NetworkOptions::default() });
        let mut prng = pair.world.fork_prng();
        let (_, mut store) = pair.start_store();
        let agent = pair.start_agent();
        let kills = Rc::new(Cell::new(0));
        let ends = pair.world.now() + trouble(&pair, &mut prng, &kills);
        let models: Vec<Rc<Model>> = (0..6).map(|client| Rc::new(Model::new(client, prng.next_u64()))).collect();
        let clients: Vec<_> = models
            .iter()
            .map(|model| {
                let life = model.clone().live(pair.agent.clone(), pair.nbd.clone());
                pair.agent.spawn(Class::Io, "client", life)
            })
            .collect();
        while pair.world.now() < ends {
            pair.world.run_for(Duration::from_millis(100));
            if kills.take() > 0 {
                // Its next life has the disk of the last one, and gives out the same session numbers.
                std::mem::forget(store);
                store = pair.start_store().1;
                killed += 1;
            }
            store.server.audit_order().unwrap();
        }
        models.iter().for_each(|model| model.stop());
        pair.run(async move {
            for client in clients {
                client.await;
            }
        });
        for model in models {
            // Nothing is wrong any more: all of it can be read, and is what it may be.
            let (inside, address) = (pair.agent.clone(), pair.nbd.clone());
            let checking = model.clone();
            pair.run(async move { checking.check_all(&inside, &address).await });
            broken += model.broken.get();
            answered += model.answered.get();
        }
        pair.run(async move { agent.stop().await });
        pair.world.run_for(2 * SILENCE);
        assert_eq!(store.server.statistics().sessions, 0, "seed {seed}: no session is left");
        assert_eq!(store.far.statistics().violations, 0, "seed {seed}: nobody said what cannot be right");
    }
    assert!(broken > 100 && killed > 5, "{broken} requests without an outcome, {killed} kills");
    assert!(answered > 5_000, "{answered} answers");
}

/// Names of what a request may have missed at admission travel as codes: none is without one.
#[test]
fn every_reason_of_admission_crosses() {
    for reason in policies::admission::Reason::ALL {
        let mut passage = base::Passage::default();
        passage.tokens = reason.name();
        passage.add(base::Stage::Tokens, 1);
        let reply = wire::Reply { epoch: base::Epoch(1), result: Ok(Value::Done), passage };
        let frame = Message::Reply { sequence: 1, kind: Kind::Write, reply }.encode(VERSION);
        let header = Header::decode(frame.head.first_chunk().unwrap()).unwrap();
        let message = Message::decode(&header, &frame.head[HEADER_LEN..], base::Bytes::new()).unwrap();
        assert!(matches!(message, Message::Reply { reply, .. } if reply.passage == passage), "{}", reason.name());
    }
}
