//! Guests that are virtual machines: each with several queues, which the agent serves on several loops through its vhost-user
//! frontend, as it is shipped.
//!
//! Machines, their drivers and their hypervisors run on processors of their own. Each loop has the store beside it, so that
//! nothing crosses between loops but what the frontend sends: what that costs, and locks, is in the parameters.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use agent::vhost::driver::{Guest as Machine, Shape};
use agent::vhost::protocol::kind;
use agent::{Agent, Options};
use base::{Instant, KIB, Prng, SECTOR};
use runtime::sim::{CpuOptions, NodeOptions, World};
use runtime::{Class, Handle};
use wire::DeviceHost;

use super::{Guest, LEAN, Loops, Measured, Point, Progress, VOLUME_BYTES, payload};

/// Descriptors of a queue, one for each request.
const QUEUE_SIZE: u16 = 256;
/// One piece for the payload, in a table of its own.
const SHAPE: Shape = Shape { is_indirect: true, piece: 1 << 20 };

/// Runs a point.
pub(super) fn measure(point: &Point, loops: &Loops) -> Measured {
    let world = World::new(point.seed);
    let parameters = &point.parameters;
    let cpu = CpuOptions { crossing_ns: parameters.crossing_ns, lock_ns: parameters.lock_ns, ..LEAN };
    let host = world.add_node(NodeOptions { cpu, ..NodeOptions::default() });
    let handle = world.start_loop(host);
    let store = point.store(&handle);
    let options = Options { queues: loops.queues, ..point.options() };
    let agent = Agent::new(&handle, store.clone(), store.clone(), options, loops.count);
    for _ in 1..loops.count {
        let other = world.start_loop(host);
        let beside = store.beside(&other);
        agent.invite().accept(&other, beside.clone(), beside);
    }
    let progress: Vec<Rc<Progress>> = point.guests.iter().map(|_| Rc::default()).collect();
    for (number, (guest, progress)) in point.guests.iter().zip(&progress).enumerate() {
        let path = PathBuf::from(format!("/run/{}.sock", guest.name));
        let (adding, name, at) = (agent.clone(), guest.name.clone(), path.clone());
        let added = world.block_on(&handle, async move { adding.add_device(&name, &at).await });
        added.unwrap_or_else(|error| panic!("a volume can be a disk: {error}"));
        let machine = world.start_loop(host);
        // One connection after the other: which loop has a machine's first queue follows from that.
        let (inside, queues) = (machine.clone(), guest.queue_depths.len());
        let connected = world.block_on(&machine, async move {
            let mut connecting = Machine::new(path, queues, QUEUE_SIZE);
            connecting.connect(&inside).await.map(|()| connecting)
        });
        let connected = connected.unwrap_or_else(|error| panic!("an agent without accidents answers: {error}"));
        let shared = Rc::new(RefCell::new(connected));
        for (queue, depth) in guest.queue_depths.iter().copied().enumerate() {
            let load = Load {
                machine: shared.clone(),
                queue,
                depth,
                guest: guest.clone(),
                is_write: point.is_write,
                prng: Prng::new(point.seed << 16 | (number << 8 | queue) as u64),
                progress: progress.clone(),
            };
            machine.spawn(Class::Io, "queue of a machine", load.run(machine.clone())).detach();
        }
    }
    point.observe(&world, &handle, &agent, &progress, Duration::from_micros(parameters.machines_warm_up_us))
}

/// What a machine asks for in one of its queues.
struct Load {
    machine: Rc<RefCell<Machine>>,
    queue: usize,
    depth: usize,
    guest: Guest,
    is_write: bool,
    prng: Prng,
    progress: Rc<Progress>,
}

impl Load {
    /// Asks for ever: for the next as soon as one is answered.
    async fn run(mut self, handle: Handle) {
        let data = payload(&self.guest.sizes_kib);
        // Of each head in flight, since when, and its bytes.
        let mut since = vec![(Instant::ZERO, 0); usize::from(QUEUE_SIZE)];
        let mut due = self.depth;
        loop {
            self.put(due, &data, &mut since, handle.now());
            let call = {
                let machine = self.machine.borrow();
                (!machine.listen(self.queue)).then(|| machine.queues[self.queue].call.clone())
            };
            if let Some(call) = call {
                call.wait().await;
            }
            due = self.take(&since, handle.now());
        }
    }

    /// Makes so many requests, with one kick.
    fn put(&mut self, count: usize, data: &[u8], since: &mut [(Instant, u64)], now: Instant) {
        let mut machine = self.machine.borrow_mut();
        let before = machine.queues[self.queue].available;
        for _ in 0..count {
            let bytes = self.guest.sizes_kib[self.prng.below(self.guest.sizes_kib.len() as u64) as usize] * KIB;
            let place = self.prng.below(VOLUME_BYTES / bytes.next_power_of_two()) * bytes.next_power_of_two();
            let (of, data, room) = match self.is_write {
                true => (kind::OUT, &data[..bytes as usize], 0),
                false => (kind::IN, &data[..0], bytes),
            };
            let asked = machine.put_request(self.queue, of, place / SECTOR, data, room, SHAPE);
            since[usize::from(asked.head)] = (now, bytes);
        }
        if count > 0 {
            machine.kick(self.queue, before);
        }
    }

    /// Takes what was answered: how many.
    fn take(&mut self, since: &[(Instant, u64)], now: Instant) -> usize {
        let (mut machine, mut asked) = (self.machine.borrow_mut(), self.progress.asked.borrow_mut());
        let mut count = 0;
        while let Some((head, _)) = machine.next_used(self.queue) {
            let (began, bytes) = since[usize::from(head)];
            asked.requests += 1;
            asked.bytes += bytes;
            asked.latency_ns += now.nanos_since(began);
            count += 1;
        }
        count
    }
}
