//! Streams of bytes between two ends.
//!
//! What an end sends becomes *packets* that queue up for the other end in order; an event per packet says when the
//! next one arrives. So order never depends on timing: a late packet delays those behind it, as in TCP. Bytes count
//! against the sender's bounded *pipe* from `Send` until the other side's application has received them; a sender
//! without room waits. Sends may be short and receives may return any prefix of what has arrived, at random.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use base::{AlignedBuf, Bytes, Prng};

use super::errno::{ECANCELED, ECONNRESET, EPIPE, fail};
use super::links::Links;
use super::network::{Effects, NetEvent};
use super::node::NodeId;
use super::state::LoopId;
use crate::driver::{OpId, Payload};

/// Who waits for an operation's outcome.
pub(super) type Caller = (LoopId, OpId);

/// All ends of all streams, by the number that is their resource's id.
#[derive(Default)]
pub(super) struct Streams {
    ends: BTreeMap<u64, End>,
}

struct End {
    /// `None` until the connection was accepted.
    owner: Option<LoopId>,
    node: NodeId,
    peer: u64,
    peer_node: NodeId,
    /// Packets on their way to this end.
    incoming: VecDeque<Packet>,
    /// Packets that came due while the link was cut.
    stalled: u32,
    arrived: VecDeque<Bytes>,
    arrived_len: usize,
    /// Nothing comes after the bytes that have arrived.
    ended: bool,
    receiving: VecDeque<Receiving>,
    /// Bytes that this end sent and the other application has not received.
    in_pipe: usize,
    sending: VecDeque<(Caller, Vec<Bytes>)>,
    /// When the last packet that this end sent arrives.
    last_arrival_ns: u64,
    /// This end can send no more.
    broken: bool,
    /// What the next operation that finds nothing to do fails with: told once, as a kernel does.
    error: Option<i32>,
}

struct Receiving {
    caller: Caller,
    buffer: AlignedBuf,
    range: Range<usize>,
}

enum Packet {
    Data(Vec<Bytes>),
    Ending(Ending),
}

/// How a direction ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Finished,
    Reset,
}

impl Streams {
    /// Makes the two ends of a connection.
    pub(super) fn connect(&mut self, client: (u64, NodeId, LoopId), server: (u64, NodeId)) {
        let end = |node, peer, peer_node, owner| End {
            owner,
            node,
            peer,
            peer_node,
            incoming: VecDeque::new(),
            stalled: 0,
            arrived: VecDeque::new(),
            arrived_len: 0,
            ended: false,
            receiving: VecDeque::new(),
            in_pipe: 0,
            sending: VecDeque::new(),
            last_arrival_ns: 0,
            broken: false,
            error: None,
        };
        self.ends.insert(client.0, end(client.1, server.0, server.1, Some(client.2)));
        self.ends.insert(server.0, end(server.1, client.0, client.1, None));
    }

    pub(super) fn knows(&self, id: u64) -> bool {
        self.ends.contains_key(&id)
    }

    /// The other end of a stream.
    pub(super) fn peer_of(&self, id: u64) -> Option<u64> {
        self.ends.get(&id).map(|end| end.peer)
    }

    /// The end was accepted by this loop.
    pub(super) fn on_accept(&mut self, id: u64, owner: LoopId) {
        if let Some(end) = self.ends.get_mut(&id) {
            end.owner = Some(owner);
        }
    }

    /// The ends that a loop has.
    pub(super) fn of_loop(&self, owner: LoopId) -> Vec<u64> {
        self.ends.iter().filter(|(_, end)| end.owner == Some(owner)).map(|(id, _)| *id).collect()
    }

    pub(super) fn receive(
        &mut self,
        now_ns: u64,
        id: u64,
        caller: Caller,
        buffer: AlignedBuf,
        range: Range<usize>,
        wires: &mut Wires<'_>,
    ) {
        let end = self.ends.get_mut(&id).expect("the caller checked");
        assert!(range.start <= buffer.len() && range.end <= buffer.capacity(), "a receive lies in its buffer");
        end.receiving.push_back(Receiving { caller, buffer, range });
        self.serve_receivers(now_ns, id, wires);
    }

    pub(super) fn send(&mut self, now_ns: u64, id: u64, caller: Caller, data: Vec<Bytes>, wires: &mut Wires<'_>) {
        let end = self.ends.get_mut(&id).expect("the caller checked");
        end.sending.push_back((caller, data));
        self.serve_senders(now_ns, id, wires);
    }

    /// Ends both directions; the end itself stays until it is closed.
    pub(super) fn shutdown(&mut self, now_ns: u64, id: u64, wires: &mut Wires<'_>) {
        let end = self.ends.get_mut(&id).expect("the caller checked");
        if !end.broken {
            end.broken = true;
            transmit(&mut self.ends, now_ns, id, Packet::Ending(Ending::Finished), wires);
        }
        let end = self.ends.get_mut(&id).expect("just seen");
        end.ended = true;
        self.serve_receivers(now_ns, id, wires);
        self.serve_senders(now_ns, id, wires);
    }

    /// Removes an end: the other one sees the stream end, or a reset where this one had not received everything.
    pub(super) fn close(&mut self, now_ns: u64, id: u64, abruptly: bool, wires: &mut Wires<'_>) {
        let Some(end) = self.ends.get(&id) else { return };
        let ending = match abruptly || end.arrived_len > 0 {
            true => Ending::Reset,
            false => Ending::Finished,
        };
        if !end.broken || ending == Ending::Reset {
            transmit(&mut self.ends, now_ns, id, Packet::Ending(ending), wires);
        }
        self.cancel_all(id, wires);
        self.ends.remove(&id);
    }

    /// Removes the ends of a node that lost its power. Nobody is told.
    pub(super) fn vanish(&mut self, node: NodeId) {
        self.ends.retain(|_, end| end.node != node);
    }

    /// Takes back an operation that waits at an end.
    pub(super) fn cancel(&mut self, id: u64, caller: Caller, wires: &mut Wires<'_>) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        if let Some(index) = end.receiving.iter().position(|receiving| receiving.caller == caller)
            && let Some(receiving) = end.receiving.remove(index)
        {
            wires.effects.outcome(caller, fail(ECANCELED), Payload::Buffer(receiving.buffer));
        } else if let Some(index) = end.sending.iter().position(|(sending, _)| *sending == caller) {
            end.sending.remove(index);
            wires.effects.outcome(caller, fail(ECANCELED), Payload::None);
        }
    }

    /// The next packet for an end is due.
    pub(super) fn on_arrival(
        &mut self,
        now_ns: u64,
        to: u64,
        from: (u64, NodeId),
        to_node: NodeId,
        wires: &mut Wires<'_>,
    ) {
        let Some(end) = self.ends.get_mut(&to) else {
            // Nobody is there any more. A machine that runs says so.
            if wires.links.has_power(to_node) {
                let at_ns = now_ns + wires.links.delay(to_node, from.1, wires.prng);
                wires.effects.events.push((at_ns, NetEvent::Reset { to: from.0 }));
            }
            return;
        };
        if wires.links.is_cut(end.peer_node, end.node) {
            end.stalled += 1;
            return;
        }
        match end.incoming.pop_front() {
            None => {}
            Some(Packet::Data(parts)) if !end.ended => {
                end.arrived_len += parts.iter().map(Bytes::len).sum::<usize>();
                end.arrived.extend(parts);
                self.serve_receivers(now_ns, to, wires);
            }
            // It was shut down here: what comes in is not wanted.
            Some(Packet::Data(_)) => {
                let at_ns = now_ns + wires.links.delay(to_node, from.1, wires.prng);
                wires.effects.events.push((at_ns, NetEvent::Reset { to: from.0 }));
            }
            Some(Packet::Ending(Ending::Reset)) => self.on_reset(now_ns, to, wires),
            Some(Packet::Ending(Ending::Finished)) => {
                end.ended = true;
                self.serve_receivers(now_ns, to, wires);
            }
        }
    }

    /// The other side said that it knows nothing of this stream (any more).
    pub(super) fn on_reset(&mut self, now_ns: u64, id: u64, wires: &mut Wires<'_>) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        // A peer that had finished is known to be gone: that is what a sender is told then.
        end.error = Some(if end.ended { EPIPE } else { ECONNRESET });
        (end.ended, end.broken) = (true, true);
        end.incoming.clear();
        self.serve_receivers(now_ns, id, wires);
        self.serve_senders(now_ns, id, wires);
    }

    /// The other application has received something: there may be room again.
    pub(super) fn on_window(&mut self, now_ns: u64, id: u64, wires: &mut Wires<'_>) {
        let Some(end) = self.ends.get(&id) else { return };
        match wires.links.is_cut(end.peer_node, end.node) {
            true => wires.effects.events.push((now_ns + wires.links.retransmit_ns(), NetEvent::Window { to: id })),
            false => self.serve_senders(now_ns, id, wires),
        }
    }

    /// Links were mended: what they held back arrives after a moment.
    pub(super) fn on_heal(&mut self, now_ns: u64, wires: &mut Wires<'_>) {
        for (id, end) in &mut self.ends {
            if wires.links.is_cut(end.peer_node, end.node) {
                continue;
            }
            for _ in 0..std::mem::take(&mut end.stalled) {
                let at_ns = now_ns + wires.links.delay(end.peer_node, end.node, wires.prng);
                let event = NetEvent::Arrival { to: *id, to_node: end.node, from: end.peer, from_node: end.peer_node };
                wires.effects.events.push((at_ns, event));
            }
        }
    }

    /// A machine runs again that knew streams once: whoever waits for its acknowledgements is told.
    pub(super) fn on_power(&mut self, now_ns: u64, node: NodeId, wires: &mut Wires<'_>) {
        for (id, end) in &self.ends {
            if end.peer_node == node && end.in_pipe > 0 && !self.ends.contains_key(&end.peer) {
                let at_ns = now_ns + wires.prng.below(wires.links.retransmit_ns() + 1);
                wires.effects.events.push((at_ns, NetEvent::Reset { to: *id }));
            }
        }
    }

    /// The ends of streams between two nodes.
    pub(super) fn between(&self, a: NodeId, b: NodeId) -> Vec<u64> {
        let between = |end: &End| (end.node, end.peer_node) == (a, b) || (end.node, end.peer_node) == (b, a);
        self.ends.iter().filter(|(_, end)| between(end)).map(|(id, _)| *id).collect()
    }

    fn serve_receivers(&mut self, now_ns: u64, id: u64, wires: &mut Wires<'_>) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        let mut received = 0;
        while let Some(Receiving { range, .. }) = end.receiving.front() {
            let room = range.len();
            let value = match (room, end.arrived_len) {
                (0, _) => Ok(0),
                (_, 0) if !end.ended => break,
                (_, 0) => match end.error.take_if(|number| *number == ECONNRESET) {
                    Some(number) => fail(number),
                    None => Ok(0),
                },
                (room, arrived) => Ok(wires.portion(room.min(arrived))),
            };
            let Receiving { caller, mut buffer, range } = end.receiving.pop_front().expect("just seen");
            let count = *value.as_ref().unwrap_or(&0);
            // What was shown behind the place stays: it is written over from there on.
            let shown = buffer.len();
            buffer.set_len(range.start);
            end.take_arrived(count, &mut buffer);
            buffer.set_len(shown.max(range.start + count));
            received += count;
            wires.effects.outcome(caller, value.map(|count| count as u64), Payload::Buffer(buffer));
        }
        let (peer, node, peer_node) = (end.peer, end.node, end.peer_node);
        if received > 0
            && let Some(peer_end) = self.ends.get_mut(&peer)
        {
            peer_end.in_pipe -= received;
            if !peer_end.sending.is_empty() {
                let at_ns = now_ns + wires.links.delay(node, peer_node, wires.prng);
                wires.effects.events.push((at_ns, NetEvent::Window { to: peer }));
            }
        }
    }

    fn serve_senders(&mut self, now_ns: u64, id: u64, wires: &mut Wires<'_>) {
        loop {
            let Some(end) = self.ends.get_mut(&id) else { return };
            let Some((_, data)) = end.sending.front() else { return };
            let wanted: usize = data.iter().map(Bytes::len).sum();
            let room = wires.links.pipe_bytes().saturating_sub(end.in_pipe);
            let value = match (end.broken, wanted, room) {
                (true, ..) => fail(end.error.take().unwrap_or(EPIPE)),
                (false, 0, _) => Ok(0),
                (false, _, 0) => return,
                (false, wanted, room) => Ok(wires.portion(wanted.min(room))),
            };
            let (caller, mut data) = end.sending.pop_front().expect("just seen");
            if let Ok(count @ 1..) = value {
                cut_to(&mut data, count);
                end.in_pipe += count;
                transmit(&mut self.ends, now_ns, id, Packet::Data(data), wires);
            }
            wires.effects.outcome(caller, value.map(|count| count as u64), Payload::None);
        }
    }

    fn cancel_all(&mut self, id: u64, wires: &mut Wires<'_>) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        for Receiving { caller, buffer, .. } in end.receiving.drain(..) {
            wires.effects.outcome(caller, fail(ECANCELED), Payload::Buffer(buffer));
        }
        for (caller, _) in end.sending.drain(..) {
            wires.effects.outcome(caller, fail(ECANCELED), Payload::None);
        }
    }
}

/// What streams need of the world for one step.
pub(super) struct Wires<'a> {
    pub(super) links: &'a mut Links,
    pub(super) prng: &'a mut Prng,
    pub(super) effects: &'a mut Effects,
}

impl Wires<'_> {
    /// How many of `count` bytes the kernel moves at once: all of them, or now and then any part.
    fn portion(&mut self, count: usize) -> usize {
        match self.links.splits(self.prng) {
            true => self.prng.between(1, count as u64) as usize,
            false => count,
        }
    }
}

impl End {
    fn take_arrived(&mut self, mut wanted: usize, into: &mut AlignedBuf) {
        self.arrived_len -= wanted;
        while wanted > 0 {
            let part = self.arrived.front_mut().expect("as many bytes have arrived");
            let count = part.len().min(wanted);
            into.extend_from_slice(&part[..count]);
            wanted -= count;
            match count == part.len() {
                true => drop(self.arrived.pop_front()),
                false => *part = part.slice(count..),
            }
        }
    }
}

/// Sends a packet to the other end of `from`, behind those already on their way.
fn transmit(ends: &mut BTreeMap<u64, End>, now_ns: u64, from: u64, packet: Packet, wires: &mut Wires<'_>) {
    let len = match &packet {
        Packet::Data(parts) => parts.iter().map(Bytes::len).sum(),
        Packet::Ending(_) => 0,
    };
    let end = ends.get_mut(&from).expect("an end that sends exists");
    let arrival_ns = wires.links.transfer(now_ns, end.node, end.peer_node, len as u64, wires.prng);
    end.last_arrival_ns = end.last_arrival_ns.max(arrival_ns);
    let event = NetEvent::Arrival { to: end.peer, to_node: end.peer_node, from, from_node: end.node };
    wires.effects.events.push((end.last_arrival_ns, event));
    let peer = end.peer;
    if let Some(peer) = ends.get_mut(&peer) {
        // A reset may overtake what the killed side had not yet put on the wire.
        if matches!(packet, Packet::Ending(Ending::Reset)) && wires.prng.one_in(2) {
            peer.incoming.clear();
        }
        peer.incoming.push_back(packet);
    }
}

/// Shortens gathered bytes to `count`.
fn cut_to(data: &mut Vec<Bytes>, count: usize) {
    let mut left = count;
    data.retain_mut(|part| {
        *part = part.slice(..part.len().min(left));
        left -= part.len();
        !part.is_empty()
    });
}
