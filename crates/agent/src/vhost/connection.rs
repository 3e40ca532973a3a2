//! One connection of a hypervisor, from its first question to its last.
//!
//! It is answered on the agent's first loop; its queues are served on all that [`policies::queues`] says, by its parts there
//! ([`super::part`]). A queue runs when all that it needs is known: memory, places, size, a bell, that it is enabled. It stops
//! when it is asked where it stands, and its answer waits until nothing of it is in flight on any loop. The volume is entered
//! once, when the connection begins, because the first questions are about it, and left when nothing of the connection is
//! in flight.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Error, Result, VolumeId};
use policies::queues::{Queues, plan_owner};
use runtime::guest::{Answer, Ask, Bell, Memory, Port, Refusal};
use runtime::sync::{first, foreign, join_all, mailbox};
use runtime::{Class, Handle, Task};
use wire::{LocalBoxFuture, VolumeDescriptor};

use super::claims::Claims;
use super::inflight::{Tracking, area_len};
use super::memory::{Keeper, set_aside};
use super::part::{Device, Order, Part, Told};
use super::protocol::{CONFIG_LEN, Disk, QUEUE_SIZE_MAX, QUEUES_MAX, Violation, feature};
use super::ring::{Places, Ring};
use crate::home::Home;
use crate::peers::{HangUp, Line, Peer};
use crate::registry::Entered;
use crate::shared::{Place, Shared};

/// The longest part of a configuration space that is asked for.
const CONFIG_PART_MAX: u32 = 256;
/// Orders to a part that it has not begun with: each is waited for.
const ORDERS_MAX: usize = 4;

/// Serves one connection to its end, on the agent's first loop, of which `place` says which loop serves its first queue. What is
/// in flight finishes before it is closed: whoever connects next finds nothing of it at work.
///
/// # Errors
/// The volume cannot be had; `NotFound`, if it is gone, also if another one has its name.
pub(crate) async fn serve_guest(
    shared: &Rc<Shared>,
    home: &Rc<Home>,
    (peer, place): (&Rc<Peer>, &Place),
    hang_up: &HangUp,
    port: Port,
    (volume, id): (&str, VolumeId),
) -> Result<()> {
    let connection = peer.id;
    if shared.is_stopping() {
        return Err(Error::internal("the server is stopping"));
    }
    let found = shared.directory.resolve(volume).await?;
    if found.id != id {
        // What the machine has in flight was meant for the one before.
        return Err(Error::not_found(format!("the volume was deleted, and {} has its name since", found.id)));
    }
    let entered = home.enter(found.id, found.generation, shared.index()).await?;
    tracing::debug!(connection, %volume, "a hypervisor attached");
    let disk = Disk::of(&entered.attachment.descriptor);
    let device = Device::new(shared.commons.clone(), connection, volume.to_owned(), 1 + home.others().len());
    let parts = Parts::gather(shared, home, peer, &found, entered, &device);
    let mut session = Session::new((shared, home), device, disk, parts, place.index());
    while let Ok(Some(question)) = first(port.next(), hang_up.wait()).await {
        let answer = session.answer(question.ask).await;
        let refusal = answer.as_ref().err().map(|Refusal(why)| why.clone());
        if let Some(why) = &refusal {
            shared.commons.violations.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(connection, %volume, %why, "a hypervisor's connection was ended");
        }
        question.reply.send(answer);
        if refusal.is_some() {
            break;
        }
    }
    session.end().await;
    drop(port);
    home.registry.leave(found.id).await;
    tracing::debug!(connection, %volume, "a hypervisor's connection ended");
    Ok(())
}

/// The ways to the parts of a connection, by loop.
struct Parts(Vec<(async_channel::Sender<Told>, Task<()>)>);

impl Parts {
    /// A part on each loop, for a connection that has entered the volume.
    fn gather(
        shared: &Rc<Shared>,
        home: &Rc<Home>,
        peer: &Rc<Peer>,
        found: &VolumeDescriptor,
        entered: Entered,
        device: &Arc<Device>,
    ) -> Parts {
        let mut parts = Vec::new();
        for (index, far) in (1..).zip(home.others()) {
            let (orders, received) = mailbox(ORDERS_MAX);
            let counters = home.registry.counters_of(found.id, index);
            let entered = Entered { attachment: entered.attachment.clone(), counters };
            let (id, found, device) = (peer.id, found.clone(), device.clone());
            let joining = move |shared: Rc<Shared>| -> LocalBoxFuture<'static, ()> {
                Box::pin(async move {
                    let peer = Rc::new(Peer::new(id, Line::Port(Rc::default())));
                    shared.peers.insert(peer.clone());
                    Part::new(&shared, &peer, &found, entered, device).follow(received).await;
                    shared.peers.remove(id);
                })
            };
            // Where the loop is gone, the process is about to go.
            let task = async move { drop(far.ask(joining).await) };
            parts.push((orders, shared.handle.spawn(Class::Io, "vhost-user part", task)));
        }
        let (orders, received) = mailbox(ORDERS_MAX);
        let here = Part::new(shared, peer, found, entered, device.clone());
        let following = async move { here.follow(received).await };
        parts.insert(0, (orders, shared.handle.spawn(Class::Io, "vhost-user part", following)));
        Parts(parts)
    }

    fn count(&self) -> usize {
        self.0.len()
    }

    /// Has something done by each of the parts that get an order.
    async fn tell(&self, order: impl Fn(usize) -> std::io::Result<Option<Order>>) -> Result<(), Refusal> {
        let failed = |error: std::io::Error| Refusal(format!("a bell cannot be used: {error}"));
        let gone = || Refusal("a loop of the agent has ended".to_owned());
        let mut answers = Vec::new();
        for (index, (orders, _)) in self.0.iter().enumerate() {
            let Some(order) = order(index).map_err(failed)? else { continue };
            let (done, answer) = foreign();
            orders.send(Told { order, done }).await.map_err(|_| gone())?;
            answers.push(answer);
        }
        for answer in answers {
            answer.await.map_err(|_| gone())?.map_err(failed)?;
        }
        Ok(())
    }

    /// Lets all of them finish what they have in flight, and waits for that.
    async fn end(self) {
        let (orders, tasks): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        drop(orders);
        join_all(tasks).await;
    }
}

/// What is known of a queue.
#[derive(Default)]
struct Setup {
    size: Option<u16>,
    /// In the hypervisor's addresses.
    places: Option<Places>,
    next: u16,
    kick: Option<Bell>,
    call: Option<Bell>,
    is_enabled: bool,
}

/// See the module.
struct Session {
    shared: Rc<Shared>,
    home: Rc<Home>,
    handle: Handle,
    device: Arc<Device>,
    disk: Disk,
    parts: Parts,
    /// Which loop serves the first queue.
    first: usize,
    mode: Queues,
    features: Option<u64>,
    memory: Option<Memory>,
    inflight: Option<(Memory, u16, u16)>,
    setups: BTreeMap<usize, Setup>,
    /// Those that run.
    queues: BTreeMap<usize, Runs>,
}

/// A queue that runs.
struct Runs {
    claims: Claims,
    /// Memory that is set aside for it.
    _memory: Keeper,
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(why.into()))
}

impl Session {
    fn new(
        (shared, home): (&Rc<Shared>, &Rc<Home>),
        device: Arc<Device>,
        disk: Disk,
        parts: Parts,
        first: usize,
    ) -> Session {
        Session {
            shared: shared.clone(),
            home: home.clone(),
            handle: shared.handle.clone(),
            device,
            disk,
            parts,
            first,
            mode: shared.options().queues,
            features: None,
            memory: None,
            inflight: None,
            setups: BTreeMap::new(),
            queues: BTreeMap::new(),
        }
    }

    /// Claims nothing more, on no loop, and returns when nothing is in flight.
    async fn end(self) {
        self.queues.values().for_each(|queue| queue.claims.stop(&self.handle));
        // What was handed over to a loop that has not begun with it holds nothing there that its part could wait for.
        for queue in self.queues.values() {
            queue.claims.wait_until_idle(&self.handle).await;
        }
        self.parts.end().await;
    }

    async fn answer(&mut self, ask: Ask) -> Result<Answer, Refusal> {
        match ask {
            Ask::Features => return Ok(Answer::Number(self.disk.features())),
            Ask::QueuesMax => return Ok(Answer::Number(QUEUES_MAX as u64)),
            Ask::Config { offset, len } => return self.config(offset, len),
            Ask::InflightLen { queues, size } => match area_len(queues, size) {
                Some(len) => return Ok(Answer::Number(len)),
                None => {
                    return refuse(format!(
                        "it wants {queues} queues of {size}: give num-queues up to {QUEUES_MAX}, queue-size up to \
                         {QUEUE_SIZE_MAX}"
                    ));
                }
            },
            Ask::Stop { queue } => return self.stop(queue).await.map(|next| Answer::Number(u64::from(next))),
            Ask::SetFeatures(features) => self.set_features(features)?,
            Ask::SetMemory(memory) => self.set_memory(memory),
            Ask::SetInflight { area, queues, size } => match area_len(queues, size) {
                Some(len) if len <= area.len() => self.inflight = Some((area, queues, size)),
                _ => return refuse("what it keeps of requests in flight is too short"),
            },
            Ask::SetSize { queue, size } => {
                let fits = |size: &u16| size.is_power_of_two() && *size <= QUEUE_SIZE_MAX;
                match u16::try_from(size).ok().filter(fits) {
                    Some(size) => self.setup(queue)?.size = Some(size),
                    None => {
                        return refuse(format!(
                            "a queue has a power of two of descriptors up to {QUEUE_SIZE_MAX}, not {size}: give \
                             queue-size={QUEUE_SIZE_MAX} or less"
                        ));
                    }
                }
            }
            Ask::SetAddresses { queue, descriptors, available, used } => {
                self.setup(queue)?.places = Some(Places { descriptors, available, used });
                self.place(queue);
            }
            Ask::SetNext { queue, next } => self.setup(queue)?.next = next as u16,
            Ask::SetKick { queue, bell: None } => {
                return refuse(format!("queue {queue} has no bell: there is no device that looks all the time"));
            }
            Ask::SetKick { queue, bell: Some(bell) } => {
                if let Some(Runs { claims, .. }) = self.queues.get(&queue) {
                    let set = |part| self.serves(part, queue).then(|| bell.share()).transpose();
                    self.parts.tell(|part| Ok(set(part)?.map(|bell| Order::SetKick { queue, bell }))).await?;
                    // Whoever waits for the former one looks again.
                    claims.wake(&self.handle);
                }
                self.setup(queue)?.kick = Some(bell);
            }
            Ask::SetCall { queue, bell } => {
                if self.queues.contains_key(&queue) {
                    let share = || bell.as_ref().map(Bell::share).transpose();
                    let set = |part| self.serves(part, queue).then(share).transpose();
                    let owner = self.owner(queue);
                    let order = |part| {
                        let set = set(part)?;
                        Ok(set.map(|bell| Order::SetCall { queue, bell, rings: part == owner }))
                    };
                    self.parts.tell(order).await?;
                }
                self.setup(queue)?.call = bell;
            }
            Ask::SetEnabled { queue, is_enabled } => {
                self.setup(queue)?.is_enabled = is_enabled;
                if !is_enabled {
                    let kick = self.setup(queue)?.kick.take();
                    self.stop(queue).await?;
                    // It goes on as it is when it is enabled again.
                    self.setup(queue)?.kick = kick;
                }
            }
            Ask::Reset => {
                for queue in self.queues.keys().copied().collect::<Vec<_>>() {
                    self.stop(queue).await?;
                }
                self.setups.clear();
                (self.features, self.memory, self.inflight) = (None, None, None);
            }
        }
        self.start_what_can().await?;
        Ok(Answer::Done)
    }

    fn setup(&mut self, queue: usize) -> Result<&mut Setup, Refusal> {
        match queue < QUEUES_MAX {
            true => Ok(self.setups.entry(queue).or_default()),
            false => refuse(format!("there is no queue {queue}: give num-queues up to {QUEUES_MAX}")),
        }
    }

    /// The loop that a queue belongs to; where all serve it, the one that is told first.
    fn owner(&self, queue: usize) -> usize {
        plan_owner(self.mode, self.first, queue, self.parts.count())
    }

    /// Whether the part on that loop serves a queue.
    fn serves(&self, part: usize, queue: usize) -> bool {
        self.mode.serves(part, self.owner(queue))
    }

    fn config(&self, offset: u32, len: u32) -> Result<Answer, Refusal> {
        if len > CONFIG_PART_MAX || offset > CONFIG_PART_MAX {
            return refuse("a configuration space is not so long");
        }
        let mut config = vec![0; (offset + len) as usize];
        let known = config.len().min(CONFIG_LEN);
        config[..known].copy_from_slice(&self.disk.config()[..known]);
        Ok(Answer::Bytes(config.split_off(offset as usize)))
    }

    fn set_features(&mut self, features: u64) -> Result<(), Refusal> {
        let unknown = features & !(self.disk.features() | feature::PROTOCOL);
        if unknown != 0 {
            return refuse(format!("it takes features that the disk does not have: {unknown:#x}"));
        }
        self.features = Some(features);
        Ok(())
    }

    fn set_memory(&mut self, memory: Memory) {
        self.memory = Some(memory);
        for queue in self.queues.keys().copied().collect::<Vec<_>>() {
            self.place(queue);
        }
    }

    /// A queue that runs, or not, lies elsewhere.
    fn place(&mut self, queue: usize) {
        let (Some(running), Some(memory)) = (self.queues.get(&queue), &self.memory) else { return };
        let places = self.setups.get(&queue).and_then(|setup| setup.places);
        let places = places.and_then(|places| in_guest(memory, places));
        let placed =
            places.ok_or(Violation::Ring).and_then(|places| running.claims.place(&self.handle, memory, places));
        if let Err(violation) = placed {
            self.device.break_down(queue, violation);
        }
    }

    /// Starts every queue that does not run and lacks nothing.
    async fn start_what_can(&mut self) -> Result<(), Refusal> {
        let (Some(features), Some(memory)) = (self.features, self.memory.clone()) else { return Ok(()) };
        for (&index, setup) in &self.setups {
            let (Some(size), Some(places), Some(kick)) = (setup.size, setup.places, &setup.kick) else {
                continue;
            };
            let is_enabled = setup.is_enabled || features & feature::PROTOCOL == 0;
            if !is_enabled || self.queues.contains_key(&index) || self.device.is_broken() {
                continue;
            }
            let tells = features & feature::EVENT_IDX != 0;
            let ring = match ring(&memory, places, size, setup.next, tells, self.inflight.as_ref(), index) {
                Ok(ring) => ring,
                // It is the guest's driver that says where a queue lies.
                Err(violation) => {
                    self.device.break_down(index, violation);
                    return Ok(());
                }
            };
            let (owner, call) = (self.owner(index), setup.call.as_ref());
            let claims = Claims::new(ring, memory.clone(), self.mode, owner, self.parts.count());
            let (memory, keeper) = set_aside(&self.shared, &self.home);
            let order = |part| {
                if !self.serves(part, index) {
                    return Ok(None);
                }
                let (kick, call) = (kick.share()?, call.map(Bell::share).transpose()?);
                let (claims, memory, rings) = (claims.clone(), memory.clone(), part == owner);
                Ok(Some(Order::Start { queue: index, claims, memory, kick, call, rings }))
            };
            self.parts.tell(order).await?;
            self.queues.insert(index, Runs { claims, _memory: keeper });
        }
        Ok(())
    }

    /// Stops a queue, if it runs: the next place of its available ring. It needs another bell to run again.
    async fn stop(&mut self, queue: usize) -> Result<u16, Refusal> {
        let next = match self.queues.remove(&queue) {
            None => self.setup(queue)?.next,
            Some(running) => {
                running.claims.stop(&self.handle);
                let next = running.claims.wait_until_idle(&self.handle).await;
                self.parts.tell(|part| Ok(self.serves(part, queue).then_some(Order::Forget { queue }))).await?;
                let setup = self.setup(queue)?;
                (setup.next, setup.kick) = (next, None);
                next
            }
        };
        // Its driver begins anew.
        if self.queues.is_empty() {
            self.device.mend();
        }
        Ok(next)
    }
}

/// A queue's rings, with what a former life has left of it.
fn ring(
    memory: &Memory,
    places: Places,
    size: u16,
    next: u16,
    tells: bool,
    inflight: Option<&(Memory, u16, u16)>,
    index: usize,
) -> Result<Ring, Violation> {
    let places = in_guest(memory, places).ok_or(Violation::Ring)?;
    let mut ring = Ring::new(memory, size, places, next, tells)?;
    if let Some((area, queues, of_size)) = inflight {
        if *of_size != size {
            return Err(Violation::Inflight);
        }
        let (tracking, left) = Tracking::open(area.clone(), *queues, size, index, ring.used_index(memory)?)?;
        ring.track(tracking, left);
    }
    Ok(ring)
}

/// Places in the hypervisor's addresses as those of the guest.
fn in_guest(memory: &Memory, places: Places) -> Option<Places> {
    Some(Places {
        descriptors: memory.guest_address(places.descriptors)?,
        available: memory.guest_address(places.available)?,
        used: memory.guest_address(places.used)?,
    })
}
