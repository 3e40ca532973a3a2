//! One connection of a hypervisor, from its first question to its last.
//!
//! A queue runs when all that it needs is known: memory, places, size, a bell, that it is enabled. It stops when it is asked
//! where it stands, and its answer waits until nothing of it is in flight. The volume is entered when the connection
//! begins, because the first questions are about it, and left when nothing of the connection is in flight.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use base::{Error, Result};
use policies::tenants::Frontend;
use runtime::guest::{Answer, Ask, Bell, Memory, Port, Refusal};
use runtime::sync::first;
use runtime::{Doorbell, Task};

use super::inflight::{Tracking, area_len};
use super::protocol::{CONFIG_LEN, QUEUE_SIZE_MAX, QUEUES_MAX, Violation, feature};
use super::queue::{Device, Queue};
use super::ring::{Places, Ring};
use crate::peers::{HangUp, Peer};
use crate::shared::Shared;

/// The longest part of a configuration space that is asked for.
const CONFIG_PART_MAX: u32 = 256;

/// Serves one connection to its end. What is in flight finishes before it is closed: whoever connects next finds nothing of
/// it at work.
///
/// # Errors
/// The volume cannot be had; `NotFound`, if there is none of that name.
pub(crate) async fn serve_guest(
    shared: &Rc<Shared>,
    peer: &Rc<Peer>,
    hang_up: &HangUp,
    port: Port,
    volume: &str,
) -> Result<()> {
    let connection = peer.id;
    let device = enter(shared, peer, volume).await?;
    tracing::debug!(connection, %volume, "a hypervisor attached");
    let id = device.volume.descriptor().id;
    let mut session = Session::new(device);
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
    session.queues.values().for_each(|(queue, _)| queue.stop());
    // Every slot back means that every request was answered.
    peer.slots.take(peer.slots.total()).await;
    // What was used last is told at the end of the turn: before the hypervisor stops to listen.
    shared.handle.yield_now().await;
    drop(session);
    drop(port);
    shared.leave(id).await;
    tracing::debug!(connection, %volume, "a hypervisor's connection ended");
    Ok(())
}

async fn enter(shared: &Rc<Shared>, peer: &Rc<Peer>, volume: &str) -> Result<Rc<Device>> {
    if shared.is_stopping() {
        return Err(Error::internal("the server is stopping"));
    }
    let found = shared.directory.resolve(volume).await?;
    let volume = shared.enter(&found, Frontend::VhostUser).await?;
    peer.volume.set(Some(volume.descriptor().id));
    if volume.turns_away() {
        shared.drain(peer.volume.get());
    }
    Ok(Device::new(shared.clone(), peer.clone(), volume))
}

/// What is known of a queue.
#[derive(Default)]
struct Setup {
    size: Option<u16>,
    /// In the hypervisor's addresses.
    places: Option<Places>,
    next: u16,
    kick: Option<Rc<Doorbell>>,
    /// Until the queue has it.
    call: Option<Doorbell>,
    is_enabled: bool,
}

/// See the module.
struct Session {
    device: Rc<Device>,
    features: Option<u64>,
    memory: Option<Memory>,
    inflight: Option<(Memory, u16, u16)>,
    setups: BTreeMap<usize, Setup>,
    /// Those that run.
    queues: BTreeMap<usize, (Rc<Queue>, Task<()>)>,
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(why.into()))
}

impl Session {
    fn new(device: Rc<Device>) -> Session {
        Session {
            device,
            features: None,
            memory: None,
            inflight: None,
            setups: BTreeMap::new(),
            queues: BTreeMap::new(),
        }
    }

    async fn answer(&mut self, ask: Ask) -> Result<Answer, Refusal> {
        match ask {
            Ask::Features => return Ok(Answer::Number(self.device.disk.features())),
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
                let kick = Rc::new(self.hang(bell).await?);
                self.setup(queue)?.kick = Some(kick.clone());
                if let Some((queue, _)) = self.queues.get(&queue) {
                    queue.change(move |_, _, bell| {
                        *bell = kick;
                        Ok(())
                    });
                }
            }
            Ask::SetCall { queue, bell } => {
                let call = match bell {
                    Some(bell) => Some(self.hang(bell).await?),
                    None => None,
                };
                match self.queues.get(&queue) {
                    Some((running, _)) => running.set_call(call),
                    None => self.setup(queue)?.call = call,
                }
            }
            Ask::SetEnabled { queue, is_enabled } => {
                self.setup(queue)?.is_enabled = is_enabled;
                if !is_enabled {
                    let kick = self.setup(queue)?.kick.clone();
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
        self.start_what_can();
        Ok(Answer::Done)
    }

    fn setup(&mut self, queue: usize) -> Result<&mut Setup, Refusal> {
        match queue < QUEUES_MAX {
            true => Ok(self.setups.entry(queue).or_default()),
            false => refuse(format!("there is no queue {queue}: give num-queues up to {QUEUES_MAX}")),
        }
    }

    async fn hang(&self, bell: Bell) -> Result<Doorbell, Refusal> {
        let hung = self.device.shared.handle.hang(bell).await;
        hung.map_err(|error| Refusal(format!("a bell cannot be used: {error}")))
    }

    fn config(&self, offset: u32, len: u32) -> Result<Answer, Refusal> {
        if len > CONFIG_PART_MAX || offset > CONFIG_PART_MAX {
            return refuse("a configuration space is not so long");
        }
        let mut config = vec![0; (offset + len) as usize];
        let known = config.len().min(CONFIG_LEN);
        config[..known].copy_from_slice(&self.device.disk.config()[..known]);
        Ok(Answer::Bytes(config.split_off(offset as usize)))
    }

    fn set_features(&mut self, features: u64) -> Result<(), Refusal> {
        let unknown = features & !(self.device.disk.features() | feature::PROTOCOL);
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
        let (Some((running, _)), Some(memory)) = (self.queues.get(&queue), &self.memory) else { return };
        let places = self.setups.get(&queue).and_then(|setup| setup.places);
        let places = places.and_then(|places| in_guest(memory, places));
        let memory = memory.clone();
        running.change(move |ring, of_queue, _| {
            ring.place(&memory, places.ok_or(Violation::Ring)?)?;
            *of_queue = memory;
            Ok(())
        });
    }

    /// Starts every queue that does not run and lacks nothing.
    fn start_what_can(&mut self) {
        let (Some(features), Some(memory)) = (self.features, &self.memory) else { return };
        for (&index, setup) in &mut self.setups {
            let (Some(size), Some(places), Some(kick)) = (setup.size, setup.places, setup.kick.clone()) else {
                continue;
            };
            let is_enabled = setup.is_enabled || features & feature::PROTOCOL == 0;
            if !is_enabled || self.queues.contains_key(&index) || self.device.is_broken.get() {
                continue;
            }
            let tells = features & feature::EVENT_IDX != 0;
            let ring = match ring(memory, places, size, setup.next, tells, self.inflight.as_ref(), index) {
                Ok(ring) => ring,
                // It is the guest's driver that says where a queue lies.
                Err(violation) => {
                    self.device.break_down(index, violation);
                    return;
                }
            };
            let queue = Queue::new(&self.device, index, ring, memory.clone(), kick, setup.call.take());
            let task = queue.start();
            self.queues.insert(index, (queue, task));
        }
    }

    /// Stops a queue, if it runs: the next place of its available ring. It needs another bell to run again.
    async fn stop(&mut self, queue: usize) -> Result<u16, Refusal> {
        let next = match self.queues.remove(&queue) {
            None => self.setup(queue)?.next,
            Some((running, task)) => {
                running.stop();
                task.await;
                let next = running.wait_until_idle().await;
                let setup = self.setup(queue)?;
                (setup.next, setup.kick, setup.call) = (next, None, running.take_call());
                next
            }
        };
        // Its driver begins anew.
        if self.queues.is_empty() {
            self.device.is_broken.set(false);
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
