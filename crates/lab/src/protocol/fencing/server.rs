//! The manager, and servers: taking over, beginning files, appending.

use super::state::{Append, Directory, File, Reply, Request, Stage, What, World};
use super::step::Step;
use super::{FENCED, Fencing, Flaw, NOTHING_LOST, ONE_OWNER};
use crate::protocol::small_set::SmallSet;

impl Fencing {
    /// The manager moves the segment, or forgets what is not durable.
    pub(super) fn manage(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        if world.left.moves > 0 {
            // A life that owned the segment once, or is about to, does not get it again.
            let idle = (0..self.servers).find(|server| world.servers[*server].stage == Stage::Idle);
            if let Some(server) = idle {
                let mut next = world.clone();
                next.left.moves -= 1;
                next.manager.epoch += 1;
                if !self.has(Flaw::EpochNotDurable) {
                    next.manager.durable_epoch = next.manager.epoch;
                }
                let (epoch, before) = (next.manager.epoch, usize::from(next.manager.owner));
                next.manager.owner = server as u8;
                let others = match self.has(Flaw::FencesLastOwnerOnly) {
                    true => SmallSet::of(before),
                    false => (0..self.servers).filter(|other| world.servers[*other].stage != Stage::Idle).collect(),
                };
                next.servers[server].epoch = epoch;
                next.servers[server].stage = Stage::Directories(others);
                lead(Step::Assign(server as u8, epoch), next);
            }
        }
        if world.left.restarts > 0 && world.manager.epoch != world.manager.durable_epoch {
            let mut next = world.clone();
            next.left.restarts -= 1;
            next.manager.epoch = next.manager.durable_epoch;
            lead(Step::ManagerRestarts, next);
        }
    }

    /// A new owner fences and reads what was before it.
    pub(super) fn take_over(&self, world: &World, server: usize, lead: &mut dyn FnMut(Step, World)) {
        let epoch = world.servers[server].epoch;
        match &world.servers[server].stage {
            Stage::Idle | Stage::Serving | Stage::Fenced => {}
            Stage::Directories(others) => {
                for other in others.iter() {
                    let mut next = world.clone();
                    next.servers[server].stage = match self.fence_directory(&mut next, other, epoch) {
                        true => Stage::Directories(others.without(other)),
                        false => Stage::Fenced,
                    };
                    lead(Step::FenceDirectory(server as u8, other as u8), next);
                }
                if others.is_empty() {
                    let mut next = world.clone();
                    let others = (0..self.servers).filter(|other| *other != server);
                    let files = others.flat_map(|other| world.directories[other].files.clone()).collect::<Vec<_>>();
                    next.servers[server].stage = match self.has(Flaw::ReadsBeforeFencing) {
                        true => Stage::Files(Vec::new(), files),
                        false => Stage::Files(files, Vec::new()),
                    };
                    self.take_over(&next, server, lead);
                }
            }
            Stage::Files(to_fence, to_read) => self.take_files(world, server, to_fence, to_read, lead),
        }
    }

    /// False if somebody newer was here.
    fn fence_directory(&self, world: &mut World, other: usize, epoch: u8) -> bool {
        let directory = &mut world.directories[other];
        let is_first = directory.epoch <= epoch;
        if is_first && !self.has(Flaw::FencesFilesOnly) {
            directory.epoch = epoch;
        }
        is_first
    }

    fn take_files(
        &self,
        world: &World,
        server: usize,
        to_fence: &[u8],
        to_read: &[u8],
        lead: &mut dyn FnMut(Step, World),
    ) {
        let epoch = world.servers[server].epoch;
        let reads_first = self.has(Flaw::ReadsBeforeFencing);
        if let Some((file, rest)) = to_fence.split_first() {
            let mut next = world.clone();
            let guard = &mut next.files[usize::from(*file)].epoch;
            let is_newer = *guard > epoch;
            *guard = epoch.max(*guard);
            next.servers[server].stage = match is_newer {
                true => Stage::Fenced,
                false => {
                    let mut to_read = to_read.to_vec();
                    if !reads_first {
                        to_read.push(*file);
                    }
                    Stage::Files(rest.to_vec(), to_read)
                }
            };
            return lead(Step::FenceFile(server as u8, *file), next);
        }
        if let Some((file, rest)) = to_read.split_first() {
            let mut next = world.clone();
            let writes = next.files[usize::from(*file)].writes.clone();
            next.servers[server].applied.extend(writes);
            let to_fence = if reads_first { vec![*file] } else { Vec::new() };
            next.servers[server].stage = Stage::Files(to_fence, rest.to_vec());
            return lead(Step::ReadFile(server as u8, *file), next);
        }
        let mut next = world.clone();
        let generations = next.directories.iter().map(|directory| directory.generation);
        let generation = generations.max().unwrap_or(0);
        let own = &mut next.servers[server];
        // Of two records of one write the second is a repetition.
        let mut applied = Vec::new();
        for write in std::mem::take(&mut own.applied) {
            if !applied.contains(&write) {
                applied.push(write);
            }
        }
        own.applied = applied;
        own.generation = generation;
        own.stage = Stage::Serving;
        let lost = world.acknowledged.minus(own.applied.iter().map(|write| usize::from(*write)).collect());
        if next.directories[server].epoch <= epoch {
            next.directories[server] = Directory { epoch, files: Vec::new(), generation };
        } else {
            next.servers[server].stage = Stage::Fenced;
        }
        let is_same = |other: &usize| *other != server && world.servers[*other].serves_under(epoch);
        if let Some(other) = (0..self.servers).find(is_same).filter(|_| next.servers[server].stage == Stage::Serving) {
            let why = format!("servers {other} and {server} both serve under epoch {epoch}");
            next.break_invariant(ONE_OWNER, why);
        }
        if !lost.is_empty() && next.servers[server].stage == Stage::Serving {
            next.break_invariant(NOTHING_LOST, format!("server {server} serves without writes {lost:?}"));
        }
        lead(Step::Serve(server as u8), next);
    }

    /// A server begins files; its appends arrive, and it is told so.
    pub(super) fn serve(&self, world: &World, server: usize, lead: &mut dyn FnMut(Step, World)) {
        let own = &world.servers[server];
        if own.stage == Stage::Serving && own.pending.is_none() {
            self.begin_file(world, server, lead);
        }
        let Some(append) = own.pending else { return };
        let mut next = world.clone();
        match append.outcome {
            None => {
                let file = &mut next.files[usize::from(append.file)];
                let is_accepted = self.has(Flaw::AppendsUnguarded)
                    || (file.epoch == append.epoch && file.writes.len() == usize::from(append.at));
                if is_accepted {
                    file.writes.push(append.write);
                }
                next.servers[server].pending = Some(Append { outcome: Some(is_accepted), ..append });
                lead(Step::AppendArrives(server as u8, is_accepted), next);
            }
            Some(is_accepted) => {
                next.servers[server].pending = None;
                match is_accepted {
                    true => self.on_appended(&mut next, server, append),
                    // It was fenced: it takes no more requests.
                    false => {
                        next.servers[server].stage = Stage::Fenced;
                        reply(&mut next, server, append, Reply::Refused);
                    }
                }
                lead(Step::AppendReturns(server as u8), next);
            }
        }
    }

    /// A file is made, then registered, then written to. A new one is begun when the one before is full.
    fn begin_file(&self, world: &World, server: usize, lead: &mut dyn FnMut(Step, World)) {
        let own = &world.servers[server];
        let listed = &world.directories[server].files;
        let unregistered = own.file.filter(|(file, _)| !listed.contains(file));
        if let Some((file, _)) = unregistered {
            let mut next = world.clone();
            let directory = &mut next.directories[server];
            match directory.epoch <= own.epoch {
                true => directory.files.push(file),
                false => next.servers[server].stage = Stage::Fenced,
            }
            lead(Step::Register(server as u8, file), next);
        }
        let may_rotate = own.file.is_none() || (world.left.rotations > 0 && unregistered.is_none());
        if may_rotate {
            let mut next = world.clone();
            next.left.rotations -= u8::from(own.file.is_some());
            let file = next.files.len() as u8;
            next.files.push(File { epoch: own.epoch, writes: Vec::new() });
            next.servers[server].file = Some((file, 0));
            lead(Step::Create(server as u8), next);
        }
    }

    /// A write that was admitted goes to the file.
    pub(super) fn append(&self, world: &mut World, server: usize, request: Request, write: u8) {
        let Some((file, at)) = world.servers[server].file else { return };
        let (epoch, agent) = (world.servers[server].epoch, request.agent);
        let append = Append { file, at, write, epoch, agent, outcome: None };
        world.servers[server].pending = Some(append);
        if self.has(Flaw::AcknowledgesBlindly) {
            reply(world, server, append, Reply::Written);
            acknowledge(world, server, write);
        }
    }

    /// Whether a write can be appended now.
    pub(super) fn can_append(&self, world: &World, server: usize) -> bool {
        let own = &world.servers[server];
        let is_listed = |file: u8| world.directories[server].files.contains(&file);
        own.pending.is_none()
            && own.file.is_some_and(|(file, _)| is_listed(file) || self.has(Flaw::WritesBeforeRegistering))
    }

    fn on_appended(&self, world: &mut World, server: usize, append: Append) {
        let own = &mut world.servers[server];
        own.applied.push(append.write);
        if let Some((_, confirmed)) = own.file.as_mut().filter(|(file, _)| *file == append.file) {
            *confirmed += 1;
        }
        let generation = world.writes[usize::from(append.write)];
        let is_fenced = world.agents.iter().any(|agent| agent.generation == generation && agent.fenced);
        if is_fenced && own_is_current(world, server) {
            let why = format!("write {} of generation {generation} takes effect in server {server}", append.write);
            world.break_invariant(FENCED, why);
        }
        if !self.has(Flaw::AcknowledgesBlindly) {
            reply(world, server, append, Reply::Written);
            acknowledge(world, server, append.write);
        }
    }
}

/// Whether a server is the one that agents read from: no newer one serves.
fn own_is_current(world: &World, server: usize) -> bool {
    let epoch = world.servers[server].epoch;
    !world.servers.iter().any(|other| other.stage == Stage::Serving && other.epoch > epoch)
}

pub(super) fn acknowledge(world: &mut World, server: usize, write: u8) {
    let epoch = world.servers[server].epoch;
    // Whoever took over meanwhile must have it.
    let newer =
        world.servers.iter().enumerate().filter(|(_, other)| other.stage == Stage::Serving && other.epoch > epoch);
    let without = newer.filter(|(_, other)| !other.applied.contains(&write)).map(|(other, _)| other).next();
    if let Some(other) = without {
        let why = format!("server {server} acknowledges write {write}, which server {other} does not have");
        world.break_invariant(NOTHING_LOST, why);
    }
    world.acknowledged = world.acknowledged.with(write.into());
    world.newest = world.newest.max(Some(write));
}

fn reply(world: &mut World, server: usize, append: Append, reply: Reply) {
    let generation = world.writes[usize::from(append.write)];
    let (agent, epoch) = (append.agent, append.epoch);
    let what = What::Write(append.write);
    world.send(Request { agent, generation, server: server as u8, epoch, what, reply: Some(reply) });
}
