//! The links between nodes: how long packets travel, what is cut, and which node an address leads to.
//!
//! A link goes one way between two nodes: it has a delay, a bandwidth that all its streams share, and may be cut. Cut
//! links lose nothing for good: TCP repeats. A node may have a *card*, which bounds what all its links carry together, each way:
//! what is sent first has it first. Within a node, by loopback or a Unix socket, another, faster link is used.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use base::{Map, Prng, Set};

use super::node::NodeId;

/// What the links between nodes are like.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// How long a packet travels between nodes.
    pub delay: Duration,
    /// How long it takes within a node.
    pub local_delay: Duration,
    /// How far delays vary upwards, in percent.
    pub jitter_percent: u64,
    /// What one link carries in a second, in bytes.
    pub transfer_bytes_per_sec: u64,
    /// Bytes that may be on their way, or wait to be received, per direction of a stream.
    pub pipe_bytes: usize,
    /// How often a send is short or a receive returns a part of what is there: one in so many; 0 is never.
    pub split_one_in: u64,
    /// How often a packet is lost, and with it time for its repetition: one in so many; 0 is never.
    pub loss_one_in: u64,
    /// When something that was lost is repeated.
    pub retransmit: Duration,
    /// When a connection attempt gives up.
    pub connect_timeout: Duration,
}

impl Default for NetworkOptions {
    /// A data center: 30 us, 25 Gbit/s.
    fn default() -> Self {
        NetworkOptions {
            delay: Duration::from_micros(30),
            local_delay: Duration::from_micros(5),
            jitter_percent: 20,
            transfer_bytes_per_sec: 3_125_000_000,
            pipe_bytes: 256 * 1024,
            split_one_in: 4,
            loss_one_in: 0,
            retransmit: Duration::from_millis(200),
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// The links between nodes, and where nodes are.
#[derive(Default)]
pub(super) struct Links {
    pub(super) options: NetworkOptions,
    pub(super) addresses: Vec<Vec<IpAddr>>,
    /// Nodes without power.
    pub(super) dark: Set<NodeId>,
    pub(super) cut: Set<(NodeId, NodeId)>,
    extra_delay_ns: Map<(NodeId, NodeId), u64>,
    free_ns: Map<(NodeId, NodeId), u64>,
    cards: Map<NodeId, Card>,
    /// The time of the world. Who sends may be ahead of it.
    pub(super) world_ns: u64,
}

/// How far who sends is ahead of the world if its turn was held up in the middle, and does not just take a while.
const HELD_UP_NS: u64 = 1_000_000;

/// The network card of a node.
struct Card {
    bytes_per_sec: u64,
    /// When everything is sent that was given to it.
    sent_ns: u64,
    /// When everything is received that is on its way to it.
    received_ns: u64,
}

impl Card {
    fn takes(&self, len: u64) -> u64 {
        len * 1_000_000_000 / self.bytes_per_sec
    }
}

impl Links {
    /// Adds a node with these addresses; without any it gets one.
    pub(super) fn add_node(&mut self, mut addresses: Vec<IpAddr>) {
        let number = self.addresses.len() as u32;
        if addresses.is_empty() {
            addresses.push(IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 1).to_bits() + number)));
        }
        self.addresses.push(addresses);
    }

    /// The first address of a node.
    pub(super) fn address(&self, node: NodeId) -> IpAddr {
        self.addresses[node.0][0]
    }

    pub(super) fn set_extra_delay(&mut self, from: NodeId, to: NodeId, delay: Duration) {
        self.extra_delay_ns.insert((from, to), delay.as_nanos() as u64);
    }

    pub(super) fn set_card(&mut self, node: NodeId, bytes_per_sec: Option<u64>) {
        match bytes_per_sec {
            None => drop(self.cards.remove(&node)),
            Some(bytes_per_sec) => {
                let card = self.cards.entry(node).or_insert(Card { bytes_per_sec, sent_ns: 0, received_ns: 0 });
                card.bytes_per_sec = bytes_per_sec;
            }
        }
    }

    pub(super) fn has_power(&self, node: NodeId) -> bool {
        !self.dark.contains(&node)
    }

    pub(super) fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.cut.contains(&(from, to))
    }

    pub(super) fn pipe_bytes(&self) -> usize {
        self.options.pipe_bytes
    }

    pub(super) fn retransmit_ns(&self) -> u64 {
        self.options.retransmit.as_nanos() as u64
    }

    /// Whether a send or a receive moves less than it could.
    pub(super) fn splits(&self, prng: &mut Prng) -> bool {
        self.options.split_one_in > 0 && prng.one_in(self.options.split_one_in)
    }

    /// How long a small packet travels.
    pub(super) fn delay(&self, from: NodeId, to: NodeId, prng: &mut Prng) -> u64 {
        let options = &self.options;
        let delay = if from == to { options.local_delay } else { options.delay };
        let delay_ns = delay.as_nanos() as u64;
        let lost = options.loss_one_in > 0 && from != to && prng.one_in(options.loss_one_in);
        delay_ns
            + prng.below(delay_ns * options.jitter_percent / 100 + 1)
            + self.extra_delay_ns.get(&(from, to)).unwrap_or(&0)
            + if lost { self.retransmit_ns() } else { 0 }
    }

    /// When `len` bytes that are sent now arrive, behind what the link and the cards at its ends carry already.
    pub(super) fn transfer(&mut self, now_ns: u64, from: NodeId, to: NodeId, len: u64, prng: &mut Prng) -> u64 {
        let delay_ns = self.delay(from, to, prng);
        let free_ns = self.free_ns.entry((from, to)).or_insert(0);
        let transfer_ns = len * 1_000_000_000 / self.options.transfer_bytes_per_sec;
        *free_ns = now_ns.max(*free_ns) + transfer_ns;
        let (mut begun_ns, mut done_ns) = (now_ns, *free_ns);
        let [sender, receiver] = [from, to].map(|node| (from != to).then_some(node));
        // What is sent so much later cannot keep cards that others use until then: it finds them idle.
        if now_ns > self.world_ns + HELD_UP_NS {
            let cards = [sender, receiver].into_iter().flatten().filter_map(|node| self.cards.get(&node));
            let slowest_ns = cards.map(|card| card.takes(len)).max().unwrap_or(0);
            return done_ns.max(now_ns + slowest_ns) + delay_ns;
        }
        if let Some(card) = sender.and_then(|node| self.cards.get_mut(&node)) {
            begun_ns = now_ns.max(card.sent_ns);
            card.sent_ns = begun_ns + card.takes(len);
            done_ns = done_ns.max(card.sent_ns);
        }
        // It receives while the other one sends.
        if let Some(card) = receiver.and_then(|node| self.cards.get_mut(&node)) {
            card.received_ns = begun_ns.max(card.received_ns) + card.takes(len);
            done_ns = done_ns.max(card.received_ns);
        }
        done_ns + delay_ns
    }

    /// The node that `ip` leads to from a node.
    pub(super) fn node_at(&self, from: NodeId, ip: IpAddr) -> Option<NodeId> {
        match ip.is_loopback() || ip.is_unspecified() {
            true => Some(from),
            false => self.addresses.iter().position(|addresses| addresses.contains(&ip)).map(NodeId),
        }
    }
}
