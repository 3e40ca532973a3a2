//! The network: who listens where, how connections come about, and what the links between nodes are like.
//!
//! A connection attempt travels to the other node and back. Where a link is cut, a node is without power or a
//! listener's line is full, it is repeated until it gives up. Everything that happens here becomes *effects*:
//! outcomes for loops, and events at later times, which the world's state carries out.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Map, Prng, Set};

use super::errno::{EADDRINUSE, EADDRNOTAVAIL, EBADF, ECANCELED, ECONNREFUSED, EHOSTUNREACH, ENOENT, ETIMEDOUT, fail};
use super::links::Links;
use super::node::NodeId;
use super::state::LoopId;
use super::stream::{Caller, Streams, Wires};
use crate::driver::{Address, Op, Outcome, Payload, Token};
use crate::guest::{self, Port, Visitor};

/// Connections that wait to be accepted, per listener.
const BACKLOG: usize = 128;
/// Where free ports begin.
const FREE_PORTS: u16 = 32_768;

/// What a step of the network leads to.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) outcomes: Vec<(Caller, Outcome)>,
    pub(super) events: Vec<(u64, NetEvent)>,
}

/// What the network does at a later time.
#[derive(Clone, Copy, Debug)]
pub(super) enum NetEvent {
    /// The request of a connection attempt reaches its node.
    Request { attempt: u64 },
    /// The answer to it comes back.
    Answer { attempt: u64 },
    /// The next packet reaches the end of a stream.
    Arrival { to: u64, to_node: NodeId, from: u64, from_node: NodeId },
    /// An end of a stream learns that the other one does not exist.
    Reset { to: u64 },
    /// An end learns that the other application has received something.
    Window { to: u64 },
}

/// The network of a world.
#[derive(Default)]
pub(super) struct Network {
    pub(super) links: Links,
    streams: Streams,
    listeners: BTreeMap<u64, Listener>,
    attempts: BTreeMap<u64, Attempt>,
    /// Where an operation waits that can be cancelled.
    waiting: Map<Caller, u64>,
    next_port: u16,
    /// Streams that were dropped on their way from one loop to another.
    pub(super) strays: Strays,
    /// The files of Unix sockets. One goes with its listener, and stays behind when that is killed.
    socket_files: Set<(NodeId, PathBuf)>,
    /// Ends of hypervisors' connections, for whoever has the end of a stream with that number: there is such an end.
    halves: BTreeMap<u64, Half>,
}

/// One end of a hypervisor's connection, of which the other one was taken.
enum Half {
    Device(Port),
    Hypervisor(Visitor),
}

/// Streams that nobody has any more, whoever dropped them.
#[derive(Clone, Default)]
pub(super) struct Strays(Arc<Mutex<Vec<u64>>>);

impl Strays {
    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

/// A stream between two loops: the loop that had it owns it until another one adopts it, and dies with it.
struct OnTheWay {
    id: u64,
    strays: Strays,
    is_adopted: bool,
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        if !self.is_adopted {
            self.strays.lock().push(self.id);
        }
    }
}

struct Listener {
    owner: LoopId,
    node: NodeId,
    address: Address,
    accepting: VecDeque<Caller>,
    backlog: VecDeque<u64>,
}

struct Attempt {
    caller: Caller,
    from: NodeId,
    to: NodeId,
    address: Address,
    give_up_ns: u64,
    answer: Option<io::Result<u64>>,
}

impl Effects {
    pub(super) fn outcome(&mut self, caller: Caller, value: io::Result<u64>, payload: Payload) {
        self.outcomes.push((caller, Outcome { value, payload }));
    }
}

/// A step of the network: the present, the dice and what comes of it.
pub(super) struct Step<'a> {
    pub(super) now_ns: u64,
    pub(super) prng: &'a mut Prng,
    pub(super) next_resource: &'a mut u64,
    pub(super) effects: &'a mut Effects,
}

impl Network {
    /// Whether `id` is a listener or a stream.
    pub(super) fn knows(&self, id: u64) -> bool {
        self.listeners.contains_key(&id) || self.streams.knows(id)
    }

    /// Takes an operation on a socket.
    pub(super) fn submit(&mut self, step: &mut Step<'_>, node: NodeId, caller: Caller, op: Op) {
        match op {
            Op::Listen { address } => match self.listen(node, caller.0, address, step.next_resource) {
                Ok((id, address)) => step.effects.outcome(caller, Ok(id), Payload::Address(address)),
                Err(error) => step.effects.outcome(caller, Err(error), Payload::None),
            },
            Op::Connect { address } => self.connect(step, node, caller, address),
            Op::Accept { id } => match self.listeners.get_mut(&id.0) {
                None => step.effects.outcome(caller, fail(EBADF), Payload::None),
                Some(listener) => {
                    listener.accepting.push_back(caller);
                    self.waiting.insert(caller, id.0);
                    self.serve_accepts(id.0, step.effects);
                }
            },
            Op::Receive { id, buffer, .. } if !self.streams.knows(id.0) => {
                step.effects.outcome(caller, fail(EBADF), Payload::Buffer(buffer));
            }
            Op::Receive { id, buffer, range } => {
                self.waiting.insert(caller, id.0);
                self.on_streams(step, |streams, now_ns, wires| {
                    streams.receive(now_ns, id.0, caller, buffer, range, wires)
                });
            }
            Op::Send { id, .. } | Op::Shutdown { id } | Op::Release { id } if !self.streams.knows(id.0) => {
                step.effects.outcome(caller, fail(EBADF), Payload::None);
            }
            Op::Send { id, data } => {
                self.waiting.insert(caller, id.0);
                self.on_streams(step, |streams, now_ns, wires| streams.send(now_ns, id.0, caller, data, wires));
            }
            Op::Shutdown { id } => {
                self.on_streams(step, |streams, now_ns, wires| streams.shutdown(now_ns, id.0, wires));
                step.effects.outcome(caller, Ok(0), Payload::None);
            }
            Op::Release { id } => {
                let token = OnTheWay { id: id.0, strays: self.strays.clone(), is_adopted: false };
                step.effects.outcome(caller, Ok(0), Payload::Token(Box::new(token)));
            }
            Op::Adopt { token } => match token.downcast::<OnTheWay>() {
                Ok(mut stream) if self.streams.knows(stream.id) => {
                    stream.is_adopted = true;
                    self.streams.on_accept(stream.id, caller.0);
                    step.effects.outcome(caller, Ok(stream.id), Payload::None);
                }
                _ => step.effects.outcome(caller, fail(EBADF), Payload::None),
            },
            Op::Close { id } => {
                self.close(step, id.0, false);
                step.effects.outcome(caller, Ok(0), Payload::None);
            }
            _ => step.effects.outcome(caller, fail(EBADF), Payload::None),
        }
        self.forget_finished(step.effects);
    }

    /// The device's end of a connection, in the place of a stream.
    pub(super) fn attend(&mut self, stream: Token) -> io::Result<Port> {
        let (id, peer) = self.leave_stream(stream)?;
        if let Some(Half::Device(port)) = self.halves.remove(&id) {
            return Ok(port);
        }
        let (visitor, port) = guest::pair();
        self.keep_half(peer, Half::Hypervisor(visitor));
        Ok(port)
    }

    /// The hypervisor's end of a connection, in the place of a stream.
    pub(super) fn visit(&mut self, stream: Token) -> io::Result<Visitor> {
        let (id, peer) = self.leave_stream(stream)?;
        if let Some(Half::Hypervisor(visitor)) = self.halves.remove(&id) {
            return Ok(visitor);
        }
        let (visitor, port) = guest::pair();
        self.keep_half(peer, Half::Device(port));
        Ok(visitor)
    }

    /// Keeps an end of a hypervisor's connection for whoever has that end of the stream. If nobody has it any more, the
    /// connection has ended.
    fn keep_half(&mut self, id: u64, half: Half) {
        if self.streams.knows(id) {
            self.halves.insert(id, half);
        }
    }

    /// The number of a stream that goes, and of its other end.
    fn leave_stream(&mut self, stream: Token) -> io::Result<(u64, u64)> {
        let stream = stream.downcast::<OnTheWay>().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        match self.streams.peer_of(stream.id) {
            Some(peer) => Ok((stream.id, peer)),
            None => fail(EBADF),
        }
    }

    /// Takes an operation back that still waits.
    pub(super) fn cancel(&mut self, step: &mut Step<'_>, caller: Caller) {
        let Some(id) = self.waiting.remove(&caller) else { return };
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.accepting.retain(|accepting| *accepting != caller);
            step.effects.outcome(caller, fail(ECANCELED), Payload::None);
        } else if let Some(attempt) = self.attempts.remove(&id) {
            if let Some(Ok(stream)) = attempt.answer {
                self.close(step, stream, true);
            }
            step.effects.outcome(caller, fail(ECANCELED), Payload::None);
        } else {
            self.on_streams(step, |streams, _, wires| streams.cancel(id, caller, wires));
        }
    }

    pub(super) fn on_event(&mut self, step: &mut Step<'_>, event: NetEvent) {
        match event {
            NetEvent::Request { attempt } => self.on_request(step, attempt),
            NetEvent::Answer { attempt } => self.on_answer(step, attempt),
            NetEvent::Arrival { to, to_node, from, from_node } => self.on_streams(step, |streams, now_ns, wires| {
                streams.on_arrival(now_ns, to, (from, from_node), to_node, wires);
            }),
            NetEvent::Reset { to } => {
                self.on_streams(step, |streams, now_ns, wires| streams.on_reset(now_ns, to, wires))
            }
            NetEvent::Window { to } => {
                self.on_streams(step, |streams, now_ns, wires| streams.on_window(now_ns, to, wires));
            }
        }
        self.forget_finished(step.effects);
    }

    /// A loop was killed: its kernel ends what it had open.
    pub(super) fn kill(&mut self, step: &mut Step<'_>, owner: LoopId) {
        let of_loop = |(id, listener): (&u64, &Listener)| (listener.owner == owner).then_some(*id);
        let listeners: Vec<u64> = self.listeners.iter().filter_map(of_loop).collect();
        let attempts: Vec<Caller> =
            self.attempts.values().map(|attempt| attempt.caller).filter(|caller| caller.0 == owner).collect();
        attempts.into_iter().for_each(|caller| self.cancel(step, caller));
        for id in self.streams.of_loop(owner) {
            let abruptly = step.prng.one_in(2);
            self.close(step, id, abruptly);
        }
        listeners.into_iter().for_each(|id| self.close(step, id, true));
        self.forget_finished(step.effects);
    }

    /// A node lost its power: it says nothing more, to nobody.
    pub(super) fn lose_power(&mut self, node: NodeId) {
        self.links.dark.insert(node);
        self.listeners.retain(|_, listener| listener.node != node);
        self.attempts.retain(|_, attempt| attempt.from != node);
        self.streams.vanish(node);
        self.halves.retain(|id, _| self.streams.knows(*id));
    }

    /// A node has its power back.
    pub(super) fn on_power(&mut self, step: &mut Step<'_>, node: NodeId) {
        if self.links.dark.remove(&node) {
            self.on_streams(step, |streams, now_ns, wires| streams.on_power(now_ns, node, wires));
        }
    }

    /// Cuts or mends the link from one node to another.
    pub(super) fn set_cut(&mut self, step: &mut Step<'_>, from: NodeId, to: NodeId, cut: bool) {
        match cut {
            true => drop(self.links.cut.insert((from, to))),
            false => {
                self.links.cut.remove(&(from, to));
                self.on_streams(step, |streams, now_ns, wires| streams.on_heal(now_ns, wires));
            }
        }
    }

    /// Resets every connection between two nodes, as a middlebox that lost its state does.
    pub(super) fn reset(&mut self, step: &mut Step<'_>, a: NodeId, b: NodeId) {
        for id in self.streams.between(a, b) {
            self.on_streams(step, |streams, now_ns, wires| streams.on_reset(now_ns, id, wires));
        }
        self.forget_finished(step.effects);
    }

    fn listen(
        &mut self,
        node: NodeId,
        owner: LoopId,
        address: Address,
        next_resource: &mut u64,
    ) -> io::Result<(u64, Address)> {
        let address = match address {
            Address::Unix(path) => Address::Unix(path),
            Address::Tcp(socket) => {
                let ip = socket.ip();
                if !ip.is_unspecified() && !ip.is_loopback() && !self.links.addresses[node.0].contains(&ip) {
                    return fail(EADDRNOTAVAIL);
                }
                Address::Tcp(SocketAddr::new(ip, if socket.port() == 0 { self.free_port(node) } else { socket.port() }))
            }
        };
        let clashes = |listener: &Listener| listener.node == node && overlap(&listener.address, &address);
        if self.listeners.values().any(clashes) {
            return fail(EADDRINUSE);
        }
        if let Address::Unix(path) = &address {
            self.socket_files.insert((node, path.clone()));
        }
        let id = take(next_resource);
        let listener =
            Listener { owner, node, address: address.clone(), accepting: VecDeque::new(), backlog: VecDeque::new() };
        self.listeners.insert(id, listener);
        Ok((id, address))
    }

    fn free_port(&mut self, node: NodeId) -> u16 {
        let taken = |port: u16, network: &Network| {
            let is_here = |listener: &Listener| {
                listener.node == node && matches!(listener.address, Address::Tcp(socket) if socket.port() == port)
            };
            network.listeners.values().any(is_here)
        };
        loop {
            self.next_port = self.next_port.checked_add(1).unwrap_or(0).max(FREE_PORTS);
            if !taken(self.next_port, self) {
                return self.next_port;
            }
        }
    }

    fn connect(&mut self, step: &mut Step<'_>, from: NodeId, caller: Caller, address: Address) {
        let to = match &address {
            Address::Unix(_) => Some(from),
            Address::Tcp(socket) => self.links.node_at(from, socket.ip()),
        };
        let give_up_ns = step.now_ns + self.links.options.connect_timeout.as_nanos() as u64;
        let id = take(step.next_resource);
        let unreachable = to.is_none().then(|| fail(EHOSTUNREACH));
        let to = to.unwrap_or(from);
        let at_ns = step.now_ns + self.links.delay(from, to, step.prng);
        let event = match unreachable {
            None => NetEvent::Request { attempt: id },
            Some(_) => NetEvent::Answer { attempt: id },
        };
        self.attempts.insert(id, Attempt { caller, from, to, address, give_up_ns, answer: unreachable });
        self.waiting.insert(caller, id);
        step.effects.events.push((at_ns, event));
    }

    fn on_request(&mut self, step: &mut Step<'_>, id: u64) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let (from, to) = (attempt.from, attempt.to);
        let meets = |listener: &Listener| listener.node == to && answers(&listener.address, &attempt.address);
        let listener = self.listeners.values_mut().find(|listener| meets(listener));
        let lost = self.links.is_cut(from, to) || self.links.dark.contains(&to);
        match listener {
            _ if lost => return self.repeat(step, id, NetEvent::Request { attempt: id }),
            Some(listener) if listener.backlog.len() >= BACKLOG => {
                return self.repeat(step, id, NetEvent::Request { attempt: id });
            }
            None => {
                let missing = match &attempt.address {
                    Address::Unix(path) => !self.socket_files.contains(&(to, path.clone())),
                    Address::Tcp(_) => false,
                };
                attempt.answer = Some(fail(if missing { ENOENT } else { ECONNREFUSED }));
            }
            Some(listener) => {
                let (client, server) = (take(step.next_resource), take(step.next_resource));
                self.streams.connect((client, from, attempt.caller.0), (server, to));
                listener.backlog.push_back(server);
                attempt.answer = Some(Ok(client));
            }
        }
        let at_ns = step.now_ns + self.links.delay(to, from, step.prng);
        step.effects.events.push((at_ns, NetEvent::Answer { attempt: id }));
        let waiting: Vec<u64> = self.listeners.keys().copied().collect();
        waiting.into_iter().for_each(|id| self.serve_accepts(id, step.effects));
    }

    fn on_answer(&mut self, step: &mut Step<'_>, id: u64) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        if self.links.is_cut(attempt.to, attempt.from) {
            return self.repeat(step, id, NetEvent::Answer { attempt: id });
        }
        let attempt = self.attempts.remove(&id).expect("just seen");
        let answer = attempt.answer.expect("an answer was given");
        step.effects.outcome(attempt.caller, answer, Payload::None);
    }

    /// Tries again later, or gives up.
    fn repeat(&mut self, step: &mut Step<'_>, id: u64, event: NetEvent) {
        let at_ns = step.now_ns + self.links.retransmit_ns();
        let Some(attempt) = self.attempts.get(&id) else { return };
        if at_ns < attempt.give_up_ns {
            step.effects.events.push((at_ns, event));
            return;
        }
        let attempt = self.attempts.remove(&id).expect("just seen");
        if let Some(Ok(stream)) = attempt.answer {
            self.close(step, stream, true);
        }
        step.effects.outcome(attempt.caller, fail(ETIMEDOUT), Payload::None);
    }

    fn serve_accepts(&mut self, id: u64, effects: &mut Effects) {
        let Some(listener) = self.listeners.get_mut(&id) else { return };
        while !listener.accepting.is_empty() && !listener.backlog.is_empty() {
            let (Some(caller), Some(stream)) = (listener.accepting.pop_front(), listener.backlog.pop_front()) else {
                return;
            };
            self.streams.on_accept(stream, caller.0);
            effects.outcome(caller, Ok(stream), Payload::None);
        }
    }

    fn close(&mut self, step: &mut Step<'_>, id: u64, abruptly: bool) {
        match self.listeners.remove(&id) {
            None => {
                // Whoever closes a stream ends what the other end has begun for it.
                self.halves.remove(&id);
                self.on_streams(step, |streams, now_ns, wires| streams.close(now_ns, id, abruptly, wires));
            }
            Some(listener) => {
                if let (false, Address::Unix(path)) = (abruptly, listener.address) {
                    self.socket_files.remove(&(listener.node, path));
                }
                for caller in listener.accepting {
                    step.effects.outcome(caller, fail(ECANCELED), Payload::None);
                }
                listener.backlog.into_iter().for_each(|stream| self.close(step, stream, true));
            }
        }
    }

    /// See [`Strays`].
    pub(super) fn close_strays(&mut self, step: &mut Step<'_>) {
        let strays = std::mem::take(&mut *self.strays.lock());
        strays.into_iter().for_each(|id| self.close(step, id, false));
    }

    fn on_streams(&mut self, step: &mut Step<'_>, act: impl FnOnce(&mut Streams, u64, &mut Wires<'_>)) {
        let mut wires = Wires { links: &mut self.links, prng: &mut *step.prng, effects: &mut *step.effects };
        act(&mut self.streams, step.now_ns, &mut wires);
    }

    fn forget_finished(&mut self, effects: &Effects) {
        for (caller, _) in &effects.outcomes {
            self.waiting.remove(caller);
        }
    }
}

/// Whether two listeners would be in each other's way.
fn overlap(a: &Address, b: &Address) -> bool {
    match (a, b) {
        (Address::Tcp(a), Address::Tcp(b)) => {
            a.port() == b.port() && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
        }
        (a, b) => a == b,
    }
}

/// Whether a listener at `address` takes a connection to `wanted`, which has reached its node.
fn answers(address: &Address, wanted: &Address) -> bool {
    match (address, wanted) {
        (Address::Tcp(address), Address::Tcp(wanted)) => {
            let (here, there) = (address.ip(), wanted.ip());
            address.port() == wanted.port()
                && (here == there || here.is_unspecified() || there.is_unspecified() && here.is_loopback())
        }
        (address, wanted) => address == wanted,
    }
}

fn take(next: &mut u64) -> u64 {
    *next += 1;
    *next - 1
}
