//! Plans of several servers: which machines there are, what happens to each, and what a person asks of them.
//!
//! Nothing here loses what was synced, so the promise is the strictest: clients learn of the end of their agent, of their
//! attachment or of their volume, and of nothing else. Accidents last for seconds at most, several may be there at once, and
//! of what a person orders nothing leaves the segments without a server that may have them.

use std::time::Duration;

use base::{GIB, KIB, MIB, Prng, SECTOR};

use node::cluster::settings::Forwarding;

use super::machines::{Harm, Machine, Role};
use super::{Fault, FaultKind, Plan, Promise, Request, Shape, Step, guests, micros};

/// How many machines of each role there are. The shared store is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Several {
    /// Managers.
    pub managers: usize,
    /// Servers.
    pub servers: usize,
    /// Agents.
    pub agents: usize,
}

impl Several {
    /// How many machines of a role there are.
    pub fn count(&self, role: Role) -> usize {
        match role {
            Role::Store => 1,
            Role::Manager => self.managers,
            Role::Server => self.servers,
            Role::Agent => self.agents,
        }
    }

    /// All machines, in the order in which they start.
    pub fn machines(&self) -> impl Iterator<Item = Machine> + use<> {
        let several = *self;
        let of = move |role| (0..several.count(role)).map(move |index| Machine { role, index });
        Role::ALL.into_iter().flat_map(of)
    }

    fn draw(prng: &mut Prng) -> Several {
        Several {
            managers: prng.between(1, 3) as usize,
            servers: prng.between(2, 6) as usize,
            agents: prng.between(1, 4) as usize,
        }
    }

    fn draw_machine(&self, prng: &mut Prng) -> Machine {
        let role = match prng.below(10) {
            0 => Role::Store,
            1..=3 => Role::Manager,
            4 => Role::Agent,
            _ => Role::Server,
        };
        Machine { role, index: prng.below(self.count(role) as u64) as usize }
    }
}

/// A pool of objects, where servers and managers have their files in one instead of a process ([`files::rados`]).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pooled {
    /// One change of so many has no answer; 0: none.
    pub lost_one_in: u64,
    /// Data files are in another pool, with erasure coding.
    pub is_coded: bool,
}

impl Pooled {
    /// That of the worlds of a seed: a third of them have one.
    fn draw(seed: u64) -> Option<Pooled> {
        let mut prng = Prng::new(seed ^ 0x706f_6f6c);
        prng.one_in(3).then(|| Pooled { lost_one_in: *prng.pick(&[0, 0, 3_000]), is_coded: prng.one_in(3) })
    }
}

/// What a person asks of several servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// A segment of a volume is to go to a server, or anywhere.
    Move {
        /// The number of the volume.
        volume: usize,
        /// The segment.
        index: u32,
        /// To whom.
        to: Option<usize>,
    },
    /// A server is to have no segments. With fewer than two others that may have some, all may have some again.
    Drain(usize),
    /// All servers may have segments.
    UndrainAll,
    /// The volume is used through another agent from now on. What is in flight goes on through the former one.
    Elsewhere {
        /// The number of the volume.
        volume: usize,
        /// The agent.
        agent: usize,
    },
}

impl Plan {
    /// The plan of a seed, of several servers, with accidents of `kinds` only.
    pub fn draw_several(seed: u64, kinds: &[FaultKind]) -> Plan {
        let mut prng = Prng::new(seed ^ 0x6c61_6223);
        let several = Several::draw(&mut prng);
        let shape = Shape::draw_several(&mut prng, several);
        let mut allowed: Vec<FaultKind> = kinds.iter().copied().filter(|kind| KINDS.contains(kind)).collect();
        // As with one server, most runs have a few kinds of accidents, and deaths among them.
        let few = *prng.pick(&[2, 4, KINDS.len()]);
        while allowed.len() > few {
            let at = prng.below(allowed.len() as u64) as usize;
            if allowed[at] != FaultKind::Kill {
                allowed.swap_remove(at);
            }
        }
        let count = prng.between(60, 400);
        let accident_one_in = *prng.pick(&[15, 30, 60]);
        let order_one_in = *prng.pick(&[10, 25, 80]);
        let idle_one_in = *prng.pick(&[4, 8]);
        let flurry_one_in = *prng.pick(&[20, 60, 1_000]);
        // How long it lasts that something is wrong: about a lease of a manager, of a server, or longer.
        let longest_ms = *prng.pick(&[300, 2_000, 5_000]);
        let mut steps = Vec::new();
        for _ in 0..count {
            if prng.one_in(flurry_one_in) {
                shape.draw_flurry(several, &allowed, longest_ms, &mut prng, &mut steps);
            } else if !allowed.is_empty() && prng.one_in(accident_one_in) {
                let kind = *prng.pick(&allowed);
                let machine = several.draw_machine(&mut prng);
                let (machine, harm) = shape.draw_harm(kind, machine, longest_ms, &mut prng);
                let after = Duration::from_nanos(prng.below(5_000_000));
                steps.push(Step::Accident { fault: Fault::At { machine, harm }, after });
            } else if prng.one_in(order_one_in) {
                steps.push(shape.draw_order(several, &mut prng));
            } else if prng.one_in(idle_one_in) {
                let longest_ms = *prng.pick(&[20, 200, 1_000]);
                steps.push(Step::Idle(Duration::from_millis(prng.below(longest_ms))));
            } else {
                match shape.draw_step(&mut prng) {
                    // Nobody stops all of them at once: each is killed now and then.
                    Step::Restart => {}
                    step => steps.push(step),
                }
            }
        }
        let (vms, queues) = guests::draw(seed, shape.clients);
        let limit = guests::draw_limit(seed);
        let (forwarding, pool, card) = (draw_forwarding(seed), Pooled::draw(seed), draw_card(seed));
        Plan { seed, shape: Shape { vms, queues, limit, forwarding, pool, card, ..shape }, steps }
    }
}

/// Whether writes go to logs: many of them in a third of the worlds, and bursts, as by default, in half of the others.
fn draw_forwarding(seed: u64) -> Forwarding {
    let mut prng = Prng::new(seed ^ 0x6c6f_6773);
    match (prng.one_in(3), prng.one_in(2)) {
        (true, _) => Forwarding::Mixed,
        (false, true) => Forwarding::default(),
        (false, false) => Forwarding::Off,
    }
}

/// What the card of a server carries, in a third of the worlds: so little that requests, what comes home from logs and what is
/// stored wait for each other there, and enough for who keeps a lease.
fn draw_card(seed: u64) -> Option<u64> {
    let mut prng = Prng::new(seed ^ 0x6361_7264);
    prng.one_in(3).then(|| *prng.pick(&[8 * MIB, 32 * MIB, 128 * MIB]))
}

/// What may go wrong with several machines.
const KINDS: [FaultKind; 9] = [
    FaultKind::Kill,
    FaultKind::PowerLoss,
    FaultKind::Pause,
    FaultKind::ClockJump,
    FaultKind::ClockDrift,
    FaultKind::Partition,
    FaultKind::Reset,
    FaultKind::SlowLink,
    FaultKind::SlowDisk,
];

impl Shape {
    fn draw_several(prng: &mut Prng, several: Several) -> Shape {
        let alone = Shape::draw(prng);
        let volume_bytes = *prng.pick(&[MIB, 64 * MIB, 10 * GIB]);
        // From one segment on; most of the time all four of the first group.
        let used = (*prng.pick(&[64, 512, 2048, 2048])).min(volume_bytes / SECTOR);
        let (disks, copies) = *prng.pick(&[(1, 1), (2, 1), (2, 2)]);
        Shape {
            promise: Promise::Flawless,
            disks,
            copies,
            bad_disk: 0,
            disk_latency: micros(prng, 5, 500),
            // Each life is granted a part of it.
            disk_bytes: 64 * GIB,
            volume_bytes,
            sectors: 0..used,
            bandwidth: None,
            levels: Default::default(),
            loops: 1,
            // Logs are full soon, so that checkpoints are made while segments are on their way.
            transaction_file_bytes: *prng.pick(&[64 * KIB, 64 * KIB, 256 * KIB]),
            several: Some(several),
            ..alone
        }
    }

    fn draw_order(&self, several: Several, prng: &mut Prng) -> Step {
        let volume = prng.below(self.volumes as u64) as usize;
        let server = prng.below(several.servers as u64) as usize;
        Step::Order(match prng.below(10) {
            0..=4 => Order::Move { volume, index: prng.below(4) as u32, to: Some(server).filter(|_| !prng.one_in(3)) },
            5 => Order::Drain(server),
            6 => Order::UndrainAll,
            _ => Order::Elsewhere { volume, agent: prng.below(several.agents as u64) as usize },
        })
    }

    /// Much at once with one volume: segments are on their way while it is attached elsewhere or deleted, whoever orders it
    /// is hurt before it has heard of the outcome, whoever is to take something is slow and whoever gives it away dies, and
    /// one whom managers miss is asked for much.
    fn draw_flurry(
        &self,
        several: Several,
        allowed: &[FaultKind],
        longest_ms: u64,
        prng: &mut Prng,
        steps: &mut Vec<Step>,
    ) {
        let volume = prng.below(self.volumes as u64) as usize;
        let index = prng.below(4) as u32;
        let taker = prng.below(several.servers as u64) as usize;
        let soon = |prng: &mut Prng| Duration::from_micros(prng.below(3_000));
        let millis = |prng: &mut Prng, low, high| Duration::from_millis(prng.between(low, high));
        let kind = (!allowed.is_empty()).then(|| *prng.pick(allowed));
        let asks = |prng: &mut Prng, steps: &mut Vec<Step>, count: u64| {
            for _ in 0..count {
                let len = prng.between(1, 24);
                let sectors = self.draw_range(prng, len);
                let request = if prng.one_in(4) { Request::Read(sectors) } else { Request::Write(sectors) };
                steps.push(Step::Ask { volume, request });
            }
        };
        let server = Machine { role: Role::Server, index: taker };
        let has = |kind| allowed.contains(&kind);
        match prng.below(8) {
            // Whoever gives the orders is hurt.
            0 if kind.is_some() => {
                let manager = Machine { role: Role::Manager, index: 0 };
                let Some(kind) = kind else { return };
                let (machine, harm) = self.draw_harm(kind, manager, longest_ms, prng);
                let fault = if machine == manager { Fault::InCharge { harm } } else { Fault::At { machine, harm } };
                steps.push(Step::Accident { fault, after: soon(prng) });
                steps.push(Step::Order(Order::Move { volume, index, to: Some(taker) }));
            }
            // It goes on giving orders, for as long as it may be in charge without a word of the store; what it sends there
            // arrives when another one is.
            1 | 2 if has(FaultKind::Partition) => {
                let longest = *prng.pick(&[1_000, 2_000]);
                let harm = Harm::CutOff { role: Role::Store, span: millis(prng, 600, longest) };
                steps.push(Step::Accident { fault: Fault::InCharge { harm }, after: soon(prng) });
                steps.push(Step::Order(Order::Move { volume, index, to: Some(taker) }));
                if prng.one_in(3) {
                    steps.push(Step::Replace(volume));
                }
            }
            // Or it misses the servers, and the store does not miss it.
            3 if has(FaultKind::Partition) => {
                let harm = Harm::CutOff { role: Role::Server, span: millis(prng, 2_200, 5_000) };
                steps.push(Step::Accident { fault: Fault::InCharge { harm }, after: soon(prng) });
            }
            // Whoever is to have the segment is slow; meanwhile the one who gives it away goes on with others, and dies.
            4 | 5 if has(FaultKind::Kill) => {
                let span = millis(prng, 100, 2_500);
                let harm = if prng.one_in(2) { Harm::Pause(span) } else { Harm::CutOff { role: Role::Manager, span } };
                steps.push(Step::Order(Order::Move { volume, index, to: Some(taker) }));
                steps.push(Step::Accident { fault: Fault::At { machine: server, harm }, after: soon(prng) });
                asks(prng, steps, 8);
                let down = millis(prng, 0, 500);
                let fault = Fault::Giver { volume, index, harm: Harm::Death { power: false, down } };
                steps.push(Step::Accident { fault, after: millis(prng, 1, 1_000) });
            }
            // Managers miss a server that serves.
            6 if has(FaultKind::Partition) => {
                let harm = Harm::CutOff { role: Role::Manager, span: millis(prng, 2_000, 5_000) };
                let fault = Fault::Giver { volume, index, harm };
                steps.push(Step::Accident { fault, after: Duration::ZERO });
                // Everybody waits until it is about to be declared dead.
                let workers = self.clients * self.depth;
                (0..workers).for_each(|_| steps.push(Step::Idle(millis(prng, 1_800, 2_200))));
            }
            _ => {
                steps.push(Step::Order(Order::Move { volume, index, to: Some(taker) }));
            }
        }
        match prng.below(4) {
            0 | 1 => {
                let agent = prng.below(several.agents as u64) as usize;
                steps.push(Step::Order(Order::Elsewhere { volume, agent }));
                // It goes while the other agent still looks for what former ones left.
                if prng.one_in(4) {
                    asks(prng, steps, 2);
                    steps.push(Step::Replace(volume));
                }
            }
            2 if prng.one_in(3) => steps.push(Step::Replace(volume)),
            _ => {}
        }
        let count = prng.between(2, 10);
        asks(prng, steps, count);
        if prng.one_in(2) {
            let index = prng.below(4) as u32;
            steps.push(Step::Order(Order::Move { volume, index, to: Some(taker).filter(|_| prng.one_in(2)) }));
            asks(prng, steps, 2);
        }
        if let Some(kind) = kind.filter(|_| prng.one_in(2)) {
            let (machine, harm) = self.draw_harm(kind, server, longest_ms, prng);
            steps.push(Step::Accident { fault: Fault::At { machine, harm }, after: soon(prng) });
            asks(prng, steps, 1);
        }
    }

    fn draw_harm(&self, kind: FaultKind, machine: Machine, longest_ms: u64, prng: &mut Prng) -> (Machine, Harm) {
        let several = self.several.unwrap_or(Several { managers: 1, servers: 2, agents: 1 });
        let store = Machine { role: Role::Store, index: 0 };
        let span = Duration::from_millis(prng.between(1, longest_ms));
        let harm = match kind {
            FaultKind::PowerLoss => Harm::Death { power: true, down: span },
            FaultKind::Pause => Harm::Pause(span),
            FaultKind::ClockJump => Harm::ClockJump(span),
            // As much as leases stand.
            FaultKind::ClockDrift => Harm::ClockDrift(prng.below(20_000) as i64 - 10_000),
            // Whom managers have lost touch with serves clients and writes; whoever has lost touch with all doubts itself.
            FaultKind::Partition if matches!(machine.role, Role::Server | Role::Manager) && prng.one_in(3) => {
                let role = if machine.role == Role::Server { Role::Manager } else { Role::Server };
                Harm::CutOff { role, span }
            }
            FaultKind::Partition => {
                let other = several.draw_machine(prng);
                let direction = prng.below(4);
                let from = Some(other).filter(|other| *other != machine && prng.one_in(2));
                Harm::Cut { from, there: direction != 0, back: direction != 1, span }
            }
            FaultKind::Reset => Harm::Reset,
            FaultKind::SlowLink => {
                let delay = Duration::from_micros(*prng.pick(&[500, 20_000, 300_000, 800_000]));
                Harm::SlowLink { delay, span }
            }
            FaultKind::SlowDisk => {
                let disk = prng.below(self.disks as u64) as usize;
                return (store, Harm::SlowDisk { disk, factor: *prng.pick(&[10, 100]), span });
            }
            _ => {
                let down = if prng.one_in(3) { Duration::ZERO } else { span };
                Harm::Death { power: false, down }
            }
        };
        (machine, harm)
    }
}
