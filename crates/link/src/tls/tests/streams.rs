//! Streams under TLS: what crosses, who is believed, and what who is not hears.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, Bytes, Prng};
use runtime::sim::{NodeId, NodeOptions, World};
use runtime::{Address, Class, Handle, Stream};
use wire::VolumeDirectory;

use super::authority::{ALWAYS, Authority, put};
use crate::stream::tests::store::Store;
use crate::stream::tests::world::{SILENCE, attach, listen, options, read, write};
use crate::stream::{FarEnd, NearEnd, Options, Services, Tls};
use crate::tls::{Credentials, Role};

/// A server, and one who asks it.
struct Pair {
    world: World,
    nodes: [NodeId; 2],
    near: Handle,
    far: Handle,
    store: Rc<Store>,
    end: Rc<FarEnd>,
    address: Address,
}

fn under(name: &str, credentials: &Rc<Credentials>, dialled: Role) -> Options {
    Options { tls: Some(Tls { credentials: credentials.clone(), dialled }), ..options(name) }
}

impl Pair {
    /// The server shows these, if any.
    fn new(seed: u64, shows: impl FnOnce(&World, &Handle) -> Option<Rc<Credentials>>) -> Pair {
        let world = World::new(seed);
        let nodes = [0, 1].map(|_| world.add_node(NodeOptions::default()));
        let [near, far] = nodes.map(|node| world.start_loop(node));
        let store = Store::new(&far);
        let options = match shows(&world, &far) {
            Some(credentials) => under("a server", &credentials, Role::Manager),
            None => options("a server"),
        };
        let end = FarEnd::new(&far, store.services(), options);
        let address = listen(&world, &far, &end, Address::Tcp((world.address(nodes[1]), 0).into()));
        Pair { world, nodes, near, far, store, end, address }
    }

    fn of(seed: u64, authority: &Authority, role: Role, years: [i32; 2]) -> Pair {
        Pair::new(seed, |world, far| Some(authority.credentials(world, far, role, years)))
    }

    /// Whoever asks shows that it is a `role`, and asks one that has to be a server.
    fn dial(&self, authority: &Authority, role: Role, years: [i32; 2]) -> NearEnd {
        let credentials = authority.credentials(&self.world, &self.near, role, years);
        self.dial_with(under("an agent", &credentials, Role::Server))
    }

    fn dial_with(&self, options: Options) -> NearEnd {
        NearEnd::dial(&self.near, self.address.clone(), Services::default(), options)
    }

    fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(&self.near, work)
    }

    /// Why a question has no answer, after a pause.
    fn refusal(&self, near: &NearEnd) -> String {
        self.world.run_for(Duration::from_secs(1));
        let near = near.clone();
        self.run(async move { near.list().await.unwrap_err().message })
    }

    fn is_answered(&self, near: &NearEnd) -> bool {
        self.world.run_for(Duration::from_secs(1));
        let near = near.clone();
        self.run(async move { near.list().await.is_ok() })
    }
}

/// Passes on what it gets between the two, and keeps what it saw. With a position, it changes one bit of what goes there.
fn tap(pair: &Pair, flip: Option<(bool, u64)>) -> (Address, Rc<RefCell<Vec<u8>>>) {
    let handle = pair.near.clone();
    let (inside, any) = (handle.clone(), Address::Tcp((pair.world.address(pair.nodes[0]), 0).into()));
    let listener = pair.run(async move { inside.listen(&any).await.unwrap() });
    let (address, behind, seen) = (listener.address().clone(), pair.address.clone(), Rc::new(RefCell::default()));
    let (inside, keeps) = (handle.clone(), seen.clone());
    let mut flip = flip;
    let accepting = async move {
        loop {
            let Ok(client) = listener.accept().await else { return };
            let Ok(server) = inside.connect(&behind).await else { continue };
            let (is_to_server, at) = flip.take().unzip();
            for (from, to, here) in [(client.clone(), server.clone(), true), (server, client, false)] {
                let at = at.filter(|_| is_to_server == Some(here));
                inside.spawn(Class::Io, "tap", pass_on(from, to, at, keeps.clone())).detach();
            }
        }
    };
    handle.spawn(Class::Io, "taps", accepting).detach();
    (address, seen)
}

async fn pass_on(from: Stream, to: Stream, flip: Option<u64>, seen: Rc<RefCell<Vec<u8>>>) {
    let mut passed = 0;
    loop {
        let (count, buffer) = from.receive(AlignedBuf::zeroed(4096), 0).await;
        let Ok(count @ 1..) = count else { break };
        let mut bytes = buffer[..count].to_vec();
        if let Some(at) = flip.and_then(|at| at.checked_sub(passed)).filter(|at| *at < count as u64) {
            bytes[at as usize] ^= 4;
        }
        passed += count as u64;
        seen.borrow_mut().extend_from_slice(&bytes);
        if to.send(vec![Bytes::from(bytes)]).await.is_err() {
            break;
        }
    }
    from.shutdown();
    to.shutdown();
}

#[test]
fn what_is_written_is_read_and_nobody_in_between_sees_it() {
    let authority = Authority::new();
    for seed in 0..4 {
        let pair = Pair::of(seed, &authority, Role::Server, ALWAYS);
        let (address, seen) = tap(&pair, None);
        let credentials = authority.credentials(&pair.world, &pair.near, Role::Agent, ALWAYS);
        let near =
            NearEnd::dial(&pair.near, address, Services::default(), under("an agent", &credentials, Role::Server));
        let wanted: Vec<u8> = (0..2_u32 << 20).map(|at| (at / 512 * 7 % 251) as u8).collect();
        let (written, from) = (wanted.clone(), near.clone());
        let found = pair.run(async move {
            let target = attach(&from).await.unwrap();
            // Many at once, small and large.
            let mut writes: Vec<_> = Vec::new();
            let (small, large) = written.split_at(64 << 10);
            for (at, part) in small.chunks(4096).enumerate() {
                writes.push(Box::pin(write(&from, target, at as u64 * 4096, part.to_vec())));
            }
            writes.push(Box::pin(write(&from, target, 64 << 10, large.to_vec())));
            for write in writes {
                write.await.unwrap().result.unwrap();
            }
            read(&from, target, 0, written.len() as u64).await.unwrap().unwrap()
        });
        assert!(found == wanted, "seed {seed}");
        let seen = seen.borrow();
        assert!(seen.len() > 4 << 20, "all of it went through the tap");
        assert!(!seen.windows(512).any(|window| window == &wanted[512..1024]), "nobody reads what is written");
        assert!(!seen.windows(4).any(|window| window == b"Levw"), "no frame is to be seen");
    }
}

#[test]
fn a_changed_bit_ends_the_connection_and_nobody_reads_it() {
    let authority = Authority::new();
    let (mut broken, mut unhurt) = (0, 0);
    for seed in 0..60 {
        let pair = Pair::of(seed, &authority, Role::Server, ALWAYS);
        let mut prng = Prng::new(seed);
        let (address, _) = tap(&pair, Some((prng.one_in(2), prng.below(40_000))));
        let credentials = authority.credentials(&pair.world, &pair.near, Role::Agent, ALWAYS);
        let near =
            NearEnd::dial(&pair.near, address, Services::default(), under("an agent", &credentials, Role::Server));
        let outcome = pair.run(async move {
            let target = attach(&near).await.map_err(|error| error.message)?;
            let lost = |lost: wire::LinkLost| lost.message;
            write(&near, target, 0, vec![9; 32 << 10]).await.map_err(lost)?.result.unwrap();
            let found = read(&near, target, 0, 32 << 10).await.map_err(lost)?.unwrap();
            assert!(found == vec![9; 32 << 10], "seed {seed}: what is read is right");
            Ok::<_, String>(())
        });
        match outcome {
            Ok(()) => unhurt += 1,
            Err(_) => broken += 1,
        }
    }
    assert!(broken > 30, "{broken} broken, {unhurt} not");
}

#[test]
fn a_certificate_says_what_may_be_asked() {
    let authority = Authority::new();
    let pair = Pair::of(1, &authority, Role::Server, ALWAYS);
    let agent = pair.dial(&authority, Role::Agent, ALWAYS);
    assert!(pair.is_answered(&agent));
    // A manager owns no volumes, and asks for none here; it may ask an owner to drop one.
    let manager = pair.dial(&authority, Role::Manager, ALWAYS);
    let refusal = pair.refusal(&manager);
    assert!(refusal.contains("does no"), "{refusal}");
    assert!(pair.store.log.borrow().is_empty(), "nothing was asked but for names");
    for role in [Role::Client, Role::Store] {
        let refusal = pair.refusal(&pair.dial(&authority, role, ALWAYS));
        assert!(refusal.contains("makes it none of those that may ask here"), "{refusal}");
        assert!(refusal.contains("agent (agent.levee.internal)"), "{refusal}");
    }
    // Who was to be a server and is none hears nothing at all.
    let pair = Pair::of(2, &authority, Role::Agent, ALWAYS);
    let refusal = pair.refusal(&pair.dial(&authority, Role::Agent, ALWAYS));
    assert!(refusal.contains("of another role"), "{refusal}");
    pair.world.run_for(4 * SILENCE);
    assert_eq!(pair.end.statistics().open, 0);
}

#[test]
fn who_is_not_believed_hears_why() {
    let (authority, other) = (Authority::new(), Authority::new());
    let past = [2000, 2020];
    let future = [2150, 2200];
    let refused = |server: (&Authority, [i32; 2]), agent: (&Authority, [i32; 2])| {
        let pair = Pair::of(3, server.0, Role::Server, server.1);
        let refusal = pair.refusal(&pair.dial(agent.0, Role::Agent, agent.1));
        pair.world.run_for(4 * SILENCE);
        assert_eq!(pair.end.statistics().open, 0, "{refusal}");
        refusal
    };
    let (good, another) = ((&authority, ALWAYS), (&other, ALWAYS));
    let found = refused((&authority, past), good);
    assert!(found.contains("its certificate has expired") && found.contains("levee pki issue"), "{found}");
    let found = refused((&authority, future), good);
    assert!(found.contains("not valid yet") && found.contains("compare the clocks"), "{found}");
    let found = refused(another, good);
    assert!(found.contains("of another authority"), "{found}");
    let found = refused(good, (&authority, past));
    assert!(found.contains("this process's certificate has expired"), "{found}");
    let found = refused(good, another);
    assert!(found.contains("another authority"), "{found}");
}

#[test]
fn who_speaks_no_tls_is_told_so() {
    let authority = Authority::new();
    let pair = Pair::of(4, &authority, Role::Server, ALWAYS);
    let refusal = pair.refusal(&pair.dial_with(options("an agent")));
    assert!(refusal.contains("start it with --tls DIR"), "{refusal}");
    let pair = Pair::new(5, |_, _| None);
    let refusal = pair.refusal(&pair.dial(&authority, Role::Agent, ALWAYS));
    assert!(refusal.contains("it does not speak TLS, and this process does"), "{refusal}");
}

#[test]
fn files_that_were_replaced_hold_for_the_next_connection() {
    let authority = Authority::new();
    let pair = Pair::of(6, &authority, Role::Server, [2000, 2100]);
    let near = pair.dial(&authority, Role::Agent, ALWAYS);
    assert!(pair.is_answered(&near));
    // A hundred years later.
    let century = Duration::from_secs(3_200_000_000).as_millis() as i64;
    pair.nodes.iter().for_each(|node| pair.world.set_wall_offset(*node, century));
    assert!(pair.is_answered(&near), "a connection that is there goes on");
    pair.world.reset_connections(pair.nodes[0], pair.nodes[1]);
    let refusal = pair.refusal(&near);
    assert!(refusal.contains("has expired"), "{refusal}");
    // Files that are no certificates change nothing; the process lives.
    put(&pair.world, &pair.far, "/disk/tls", &[("cert.pem", "nonsense".into())]);
    pair.world.run_for(Duration::from_secs(11));
    let refusal = pair.refusal(&near);
    assert!(refusal.contains("has expired"), "{refusal}");
    put(&pair.world, &pair.far, "/disk/tls", &authority.issue(Role::Server, ALWAYS));
    pair.world.run_for(Duration::from_secs(11));
    assert!(pair.is_answered(&near), "the new one is shown without a restart");
}

#[test]
fn nonsense_ends_its_connection_only() {
    let authority = Authority::new();
    for seed in 0..40 {
        let pair = Pair::of(seed, &authority, Role::Server, ALWAYS);
        let (mut prng, inside, address) = (Prng::new(seed), pair.near.clone(), pair.address.clone());
        pair.run(async move {
            for _ in 0..4 {
                let stream = inside.connect(&address).await.unwrap();
                let len = prng.between(1, 3000) as usize;
                let mut bytes: Vec<u8> = (0..len).map(|_| prng.below(256) as u8).collect();
                // Sometimes what begins as a handshake does.
                if prng.one_in(2) {
                    let body = (len as u16).to_be_bytes();
                    bytes.splice(0..0, [22, 3, 1, body[0], body[1], 1]);
                }
                let _ = stream.send(vec![bytes.into()]).await;
                inside.sleep(Duration::from_millis(prng.below(50))).await;
            }
        });
        pair.world.run_for(Duration::from_secs(10));
        assert_eq!(pair.end.statistics().open, 0, "seed {seed}: nothing is left of them");
        assert!(pair.is_answered(&pair.dial(&authority, Role::Agent, ALWAYS)), "seed {seed}: others are served");
    }
}
