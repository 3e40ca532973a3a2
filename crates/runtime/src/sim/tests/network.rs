//! Sockets of the simulated world: order, back-pressure, ends, and links that are cut.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, Prng};

use crate::driver::Address;
use crate::guest::{Answer, Ask};
use crate::sim::{NetworkOptions, NodeId, NodeOptions, World};
use crate::{Class, Handle, Listener, Stream};

struct Pair {
    world: World,
    nodes: [NodeId; 2],
    loops: [Handle; 2],
    address: Address,
}

/// Two nodes; the first one listens.
fn pair(seed: u64) -> (Pair, Rc<Listener>) {
    let world = World::new(seed);
    let nodes = [0, 1].map(|_| world.add_node(NodeOptions::default()));
    let loops = nodes.map(|node| world.start_loop(node));
    let (pair, listener) = {
        let inside = loops[0].clone();
        let any = Address::Tcp((world.address(nodes[0]), 0).into());
        let listener = world.block_on(&loops[0], async move { inside.listen(&any).await.unwrap() });
        (Pair { world, nodes, loops, address: listener.address().clone() }, listener)
    };
    (pair, Rc::new(listener))
}

/// And a connection between them: the accepted end, the connected end.
fn connected(seed: u64) -> (Pair, [Stream; 2]) {
    let (pair, listener) = pair(seed);
    let accept = pair.loops[0].spawn(Class::Io, "accept", async move { listener.accept().await.unwrap() });
    let (inside, address) = (pair.loops[1].clone(), pair.address.clone());
    let client = pair.world.block_on(&pair.loops[1], async move { inside.connect(&address).await.unwrap() });
    let server = pair.world.block_on(&pair.loops[0], accept);
    (pair, [server, client])
}

async fn receive_all(stream: Stream) -> Result<Vec<u8>, ErrorKind> {
    let mut all = Vec::new();
    let mut buffer = AlignedBuf::zeroed(8192);
    loop {
        let (count, back) = stream.receive(buffer, 0).await;
        buffer = back;
        match count {
            Ok(0) => return Ok(all),
            Ok(count) => all.extend_from_slice(&buffer[..count]),
            Err(error) => return Err(error.kind()),
        }
    }
}

async fn receive_once(stream: Stream) -> Result<usize, ErrorKind> {
    stream.receive(AlignedBuf::zeroed(100), 0).await.0.map_err(|error| error.kind())
}

#[test]
fn bytes_arrive_in_order_however_they_are_cut() {
    for seed in 0..20 {
        let (pair, [server, client]) = connected(seed);
        pair.world.set_network(NetworkOptions { loss_one_in: 50, split_one_in: 2, ..NetworkOptions::default() });
        let mut data = vec![0; 700_000];
        Prng::new(seed).fill(&mut data);
        let sent = data.clone();
        let sender = pair.loops[1].spawn(Class::Io, "sender", async move {
            for part in sent.chunks(33_333) {
                let (a, b) = part.split_at(part.len() / 3);
                client.send(vec![a.to_vec().into(), b.to_vec().into()]).await.unwrap();
            }
        });
        sender.detach();
        let received = pair.world.block_on(&pair.loops[0], receive_all(server));
        assert!(received.unwrap() == data, "seed {seed}");
    }
}

#[test]
fn a_sender_waits_for_a_receiver_that_does_not_read() {
    let (pair, [server, client]) = connected(1);
    let sent = Rc::new(Cell::new(0));
    let count = sent.clone();
    let sender = pair.loops[1].spawn(Class::Io, "sender", async move {
        loop {
            client.send(vec![vec![7; 10_000].into()]).await.unwrap();
            count.set(count.get() + 10_000);
        }
    });
    sender.detach();
    pair.world.run_for(Duration::from_secs(1));
    let before = sent.get();
    assert!((200_000..=256 * 1024).contains(&before), "{before} bytes are in the pipe");
    let received = pair.world.block_on(&pair.loops[0], async move {
        let mut received = 0;
        let mut buffer = AlignedBuf::zeroed(10_000);
        while received < 100_000 {
            let (count, back) = server.receive(buffer, 0).await;
            buffer = back;
            received += count.unwrap();
        }
        (received, server)
    });
    pair.world.run_for(Duration::from_secs(1));
    assert!(sent.get() >= before + 90_000 && sent.get() <= before + received.0 + 10_000);
}

#[test]
fn addresses_are_refused_taken_or_unreachable() {
    let (pair, listener) = pair(2);
    let server = pair.loops[0].clone();
    let (taken, everywhere) = (pair.address.clone(), "0.0.0.0:0".parse().map(Address::Tcp).unwrap());
    let _listener = pair.world.block_on(&pair.loops[0], async move {
        let kind = |result: std::io::Result<Listener>| result.err().map(|error| error.kind());
        assert_eq!(kind(server.listen(&taken).await), Some(ErrorKind::AddrInUse));
        let foreign = Address::Tcp("10.9.9.9:80".parse().unwrap());
        assert_eq!(kind(server.listen(&foreign).await), Some(ErrorKind::AddrNotAvailable));
        let listener = server.listen(&everywhere).await.unwrap();
        let Address::Tcp(bound) = listener.address() else { panic!("not TCP") };
        assert_ne!(bound.port(), 0);
        let near = Address::Tcp(([127, 0, 0, 1], bound.port()).into());
        server.connect(&near).await.unwrap();
        listener.accept().await.unwrap();
        let path = Address::Unix(PathBuf::from("/disk/nbd.sock"));
        let unix = server.listen(&path).await.unwrap();
        assert_eq!(kind(server.listen(&path).await), Some(ErrorKind::AddrInUse));
        server.connect(&path).await.unwrap();
        drop(unix);
        server.sleep(Duration::from_micros(100)).await;
        assert_eq!(server.connect(&path).await.err().map(|error| error.kind()), Some(ErrorKind::NotFound));
        server.listen(&path).await.unwrap()
    });
    let (client, address) = (pair.loops[1].clone(), pair.address.clone());
    pair.world.block_on(&pair.loops[1], async move {
        client.connect(&address).await.unwrap();
        drop(listener);
        let nobody = Address::Tcp("10.9.9.9:80".parse().unwrap());
        let error = client.connect(&nobody).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::HostUnreachable);
        let unix = client.connect(&Address::Unix(PathBuf::from("/disk/nbd.sock"))).await.err().unwrap();
        assert_eq!(unix.kind(), ErrorKind::NotFound, "a Unix socket stays on its node");
    });
    let restarted = pair.world.restart(pair.nodes[0]);
    let inside = restarted.clone();
    pair.world.block_on(&restarted, async move {
        let path = Address::Unix(PathBuf::from("/disk/nbd.sock"));
        let stale = inside.connect(&path).await.err().unwrap();
        assert_eq!(stale.kind(), ErrorKind::ConnectionRefused, "its file stays behind");
        inside.listen(&path).await.unwrap();
    });
}

#[test]
fn a_dropped_receive_loses_no_bytes() {
    let (pair, [server, client]) = connected(3);
    let (inside, other) = (pair.loops[0].clone(), pair.loops[1].clone());
    let sender = pair.loops[1].spawn(Class::Io, "sender", async move {
        other.sleep(Duration::from_millis(2)).await;
        client.send(vec![b"levee"[..].into()]).await.unwrap();
        client
    });
    let received = pair.world.block_on(&pair.loops[0], async move {
        let impatient = inside.spawn(Class::Io, "impatient", receive_once(server.clone()));
        inside.sleep(Duration::from_millis(1)).await;
        drop(impatient);
        let mut received = 0;
        while received < 5 {
            received += receive_once(server.clone()).await.unwrap();
        }
        received
    });
    drop(sender);
    assert_eq!(received, 5);
}

#[test]
fn shutdown_and_close_end_both_sides() {
    let (pair, [server, client]) = connected(4);
    let here = server.clone();
    let waiting = pair.loops[0].spawn(Class::Io, "waiting", receive_once(server.clone()));
    let got = pair.world.block_on(&pair.loops[0], async move {
        here.shutdown();
        let sending = here.send(vec![b"x"[..].into()]).await;
        (waiting.await, sending.err().unwrap().kind())
    });
    assert_eq!(got, (Ok(0), ErrorKind::BrokenPipe));
    let there = client.clone();
    let got = pair.world.block_on(&pair.loops[1], async move { receive_once(there).await });
    assert_eq!(got, Ok(0));
    drop(server);
    pair.world.run_for(Duration::from_millis(1));
    let (inside, there) = (pair.loops[1].clone(), client.clone());
    let kind = pair.world.block_on(&pair.loops[1], async move {
        // The first one finds out; the next ones know.
        let _ = there.send(vec![b"x"[..].into()]).await;
        inside.sleep(Duration::from_millis(1)).await;
        there.send(vec![b"x"[..].into()]).await.err().unwrap().kind()
    });
    assert_eq!(kind, ErrorKind::BrokenPipe);
}

#[test]
fn a_cut_link_holds_back_and_a_mended_one_delivers() {
    for (cut, other) in [(0, 1), (1, 0)] {
        let (pair, [server, client]) = connected(5);
        pair.world.cut_link(pair.nodes[cut], pair.nodes[other]);
        let streams = [server, client];
        let received: [Rc<Cell<usize>>; 2] = Default::default();
        for side in [0, 1] {
            let (stream, received) = (streams[side].clone(), received[side].clone());
            let task = pair.loops[side].spawn(Class::Io, "peer", async move {
                stream.send(vec![b"levee"[..].into()]).await.unwrap();
                while received.get() < 5 {
                    received.set(received.get() + receive_once(stream.clone()).await.unwrap());
                }
                std::future::pending::<()>().await;
            });
            task.detach();
        }
        pair.world.run_for(Duration::from_secs(60));
        assert_eq!((received[cut].get(), received[other].get()), (5, 0), "one way only");
        pair.world.mend_link(pair.nodes[cut], pair.nodes[other]);
        pair.world.run_for(Duration::from_secs(1));
        assert_eq!(received[other].get(), 5);
    }
}

/// How long three nodes take that send so many bytes to each other, as said: from whom, to whom.
fn took(cards: &[(usize, u64)], ways: &[(usize, usize)], bytes: usize) -> Duration {
    let world = World::new(1);
    let nodes = [0, 1, 2].map(|_| world.add_node(NodeOptions::default()));
    let loops = nodes.map(|node| world.start_loop(node));
    cards.iter().for_each(|(node, bytes_per_sec)| world.set_card(nodes[*node], Some(*bytes_per_sec)));
    let mut receivers = Vec::new();
    let begun = loops[0].now();
    for (from, to) in ways {
        let inside = loops[*to].clone();
        let any = Address::Tcp((world.address(nodes[*to]), 0).into());
        let listener = world.block_on(&loops[*to], async move { inside.listen(&any).await.unwrap() });
        let (address, inside) = (listener.address().clone(), loops[*from].clone());
        let receiver = async move { receive_all(listener.accept().await.unwrap()).await.unwrap().len() };
        receivers.push((*to, loops[*to].spawn(Class::Io, "receive", receiver)));
        let sender = async move {
            let stream = inside.connect(&address).await.unwrap();
            stream.send(vec![vec![7; bytes].into()]).await.unwrap();
        };
        loops[*from].spawn(Class::Io, "send", sender).detach();
    }
    for (at, receiver) in receivers {
        assert_eq!(world.block_on(&loops[at], receiver), bytes);
    }
    loops[0].now() - begun
}

/// Ten megabytes: 100 ms on a card of 100 MB/s, and 3 on a link.
#[test]
fn links_share_the_card_of_their_node() {
    const CARD: u64 = 100_000_000;
    const BYTES: usize = 10_000_000;
    let close_to = |found: Duration, ms: u64| {
        let wanted = Duration::from_millis(ms);
        assert!(
            found > wanted * 9 / 10 && found < wanted * 12 / 10 + Duration::from_millis(5),
            "{found:?} for {ms} ms"
        );
    };
    close_to(took(&[], &[(1, 0), (2, 0)], BYTES), 3);
    close_to(took(&[(0, CARD)], &[(1, 0)], BYTES), 100);
    // Two that send to one share what it receives, and one that sends to two shares what it sends.
    close_to(took(&[(0, CARD)], &[(1, 0), (2, 0)], BYTES), 200);
    close_to(took(&[(0, CARD)], &[(0, 1), (0, 2)], BYTES), 200);
    // Each way by itself; a card at both ends is as slow as the slower one; a third one's is of no concern.
    close_to(took(&[(0, CARD)], &[(1, 0), (0, 2)], BYTES), 100);
    close_to(took(&[(0, CARD), (1, CARD / 2)], &[(1, 0)], BYTES), 200);
    close_to(took(&[(2, CARD)], &[(1, 0), (0, 1)], BYTES), 3);
    // Within a node nothing goes through it.
    close_to(took(&[(0, CARD)], &[(0, 0)], BYTES), 3);
}

/// One that is paused in the middle of its turn sends seconds later: until then the card is everybody else's.
#[test]
fn who_is_held_up_keeps_no_card() {
    let world = World::new(1);
    let nodes = [0, 1, 2].map(|_| world.add_node(NodeOptions::default()));
    let loops = nodes.map(|node| world.start_loop(node));
    world.set_card(nodes[0], Some(100_000_000));
    let mut connected = [1, 2].map(|from| {
        let (inside, any) = (loops[0].clone(), Address::Tcp((world.address(nodes[0]), 0).into()));
        let listener = world.block_on(&loops[0], async move { inside.listen(&any).await.unwrap() });
        let (address, inside) = (listener.address().clone(), loops[from].clone());
        let sender = world.block_on(&loops[from], async move { inside.connect(&address).await.unwrap() });
        Some((sender, world.block_on(&loops[0], async move { listener.accept().await.unwrap() })))
    });
    let mut take = |from: usize| connected[from - 1].take().unwrap();
    let ((held_up, late), (sender, receiver)) = (take(1), take(2));
    let inside = loops[1].clone();
    let sending = async move {
        inside.charge(Duration::from_secs(3));
        held_up.send(vec![vec![7; 1000].into()]).await.unwrap();
    };
    loops[1].spawn(Class::Io, "held up", sending).detach();
    let (begun, inside) = (world.now(), loops[2].clone());
    let sending = async move {
        inside.sleep(Duration::from_millis(1)).await;
        sender.send(vec![vec![8; 1000].into()]).await.unwrap();
    };
    loops[2].spawn(Class::Io, "send", sending).detach();
    let receiving = async move { receive_all(receiver).await.unwrap().len() };
    assert_eq!(world.block_on(&loops[0], receiving), 1000);
    assert!(world.now() - begun < Duration::from_millis(10), "{:?}", world.now() - begun);
    assert_eq!(world.block_on(&loops[0], async move { receive_all(late).await.unwrap().len() }), 1000);
    assert!(world.now() - begun > Duration::from_secs(3));
}

#[test]
fn connecting_into_a_partition_waits_or_gives_up() {
    let (pair, listener) = pair(6);
    let connect = |address: &Address| {
        let (inside, address) = (pair.loops[1].clone(), address.clone());
        async move { inside.connect(&address).await.map_err(|error| error.kind()) }
    };
    pair.world.partition(pair.nodes[0], pair.nodes[1]);
    let before = pair.world.now();
    assert_eq!(pair.world.block_on(&pair.loops[1], connect(&pair.address)).err(), Some(ErrorKind::TimedOut));
    assert_eq!((pair.world.now() - before).as_secs(), 9);
    let (a, b) = (pair.nodes[0], pair.nodes[1]);
    pair.world.after(Duration::from_secs(3), move |world| world.heal(a, b));
    assert!(pair.world.block_on(&pair.loops[1], connect(&pair.address)).is_ok());
    drop(listener);
}

#[test]
fn a_killed_peer_ends_its_connections() {
    let mut seen = [0; 2];
    for seed in 0..20 {
        let (pair, [_server, client]) = connected(seed);
        let node = pair.nodes[0];
        pair.world.after(Duration::from_millis(1), move |world| world.kill(node));
        match pair.world.block_on(&pair.loops[1], receive_once(client)) {
            Ok(0) => seen[0] += 1,
            Err(ErrorKind::ConnectionReset) => seen[1] += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "both ends are seen: {seen:?}");
}

#[test]
fn a_peer_without_power_is_silent_until_it_is_back() {
    let (pair, [_server, client]) = connected(8);
    pair.world.power_loss(pair.nodes[0]);
    let result = Rc::new(Cell::new(None));
    let slot = result.clone();
    let task = pair.loops[1].spawn(Class::Io, "client", async move {
        client.send(vec![b"levee"[..].into()]).await.unwrap();
        slot.set(Some(receive_once(client).await));
    });
    task.detach();
    pair.world.run_for(Duration::from_secs(60));
    assert_eq!(result.get(), None);
    let _handle = pair.world.restart(pair.nodes[0]);
    pair.world.run_for(Duration::from_secs(1));
    assert_eq!(result.get(), Some(Err(ErrorKind::ConnectionReset)));
}

/// A connection of a hypervisor to a device that has gone, one way or another, before it was visited.
fn visit_after(seed: u64, go: impl FnOnce(&Pair, Rc<Listener>)) -> io::Result<Answer> {
    let (pair, listener) = pair(seed);
    let (inside, address) = (pair.loops[1].clone(), pair.address.clone());
    let client = pair.world.block_on(&pair.loops[1], async move { inside.connect(&address).await.unwrap() });
    go(&pair, listener);
    pair.world.run_for(Duration::from_secs(1));
    let inside = pair.loops[1].clone();
    pair.world.block_on(&pair.loops[1], async move {
        let visitor = inside.visit(client.release().await?)?;
        visitor.ask(Ask::Features).await
    })
}

#[test]
fn a_hypervisor_learns_that_its_device_was_gone_before_it_asked() {
    for seed in 0..10 {
        let closed = visit_after(seed, |_, listener| drop(listener));
        let killed = visit_after(seed, |pair, _listener| pair.world.kill(pair.nodes[0]));
        let dark = visit_after(seed, |pair, _listener| pair.world.power_loss(pair.nodes[0]));
        for outcome in [closed, killed, dark] {
            assert_eq!(outcome.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset), "seed {seed}");
        }
    }
}

#[test]
fn a_device_learns_that_its_hypervisor_was_gone_before_it_asked() {
    let (pair, [server, client]) = connected(9);
    drop(client);
    pair.world.run_for(Duration::from_secs(1));
    let inside = pair.loops[0].clone();
    let question = pair.world.block_on(&pair.loops[0], async move {
        let port = inside.attend(server.release().await.unwrap()).unwrap();
        port.next().await.map(|question| question.ask)
    });
    assert!(question.is_none(), "{question:?}");
}

#[test]
fn a_hypervisor_learns_that_its_device_has_lost_its_power() {
    let (pair, listener) = pair(10);
    let (inside, address) = (pair.loops[1].clone(), pair.address.clone());
    let visitor = pair.world.block_on(&pair.loops[1], async move {
        let stream = inside.connect(&address).await.unwrap();
        inside.visit(stream.release().await.unwrap()).unwrap()
    });
    pair.world.power_loss(pair.nodes[0]);
    let outcome = pair.world.block_on(&pair.loops[1], async move { visitor.ask(Ask::Features).await });
    assert_eq!(outcome.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    drop(listener);
}
