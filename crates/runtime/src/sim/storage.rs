//! Operations on files: when they are submitted, and what they do when they complete.
//!
//! An operation is checked and given its duration by the disk when it is submitted; it takes effect in one step when
//! it completes. So of operations in flight together any order may win, a read may see a write that has not been
//! reported yet, and a sync covers exactly the writes that had completed when it was submitted.
//!
//! An open file is a *description*, as in Linux: it owns the advisory lock, and it lives until it was closed **and**
//! its last operation in flight is done. So the lock of a file that a killed process was writing to comes free only
//! after these writes have landed, while a separate lock file is free at once (docs/SAFETY.md, rule 14).

mod file;

use std::io;
use std::path::{Path, PathBuf};

use base::{Map, Prng};

use self::file::{DIRECT_UNIT, Description, tear};
use super::content::SyncPoint;
use super::disk::{Disk, DiskId, Fault};
use super::errno::{EBADF, EINVAL, EIO, ENOENT, EXDEV, fail};
use super::state::LoopId;
use crate::driver::{Op, Outcome, Payload, ResourceId, Space};

/// The disks of the world and the files that are open on them.
#[derive(Default)]
pub(super) struct Storage {
    pub(super) disks: Vec<Disk>,
    descriptions: Map<u64, Description>,
}

/// Where a node's paths lead: the longest mount that a path begins with.
pub(super) type Mounts = Vec<(PathBuf, DiskId)>;

/// An operation on a file, between its submission and its completion.
pub(super) struct FileOp {
    op: Op,
    target: Target,
}

enum Target {
    /// A path that leads to no disk, or an unknown resource.
    Nowhere(i32),
    /// A directory above a mount. It is always there.
    Above,
    /// A path below the root of a disk, and how many changes of names a sync covers.
    Path { disk: DiskId, path: PathBuf, changes: u64 },
    /// Two paths on one disk.
    Paths { disk: DiskId, from: PathBuf, to: PathBuf },
    /// An open file, and what a sync covers.
    Description { id: u64, sync: Option<SyncPoint> },
}

impl FileOp {
    pub(super) fn is_write(&self) -> bool {
        matches!(self.op, Op::Write { .. })
    }
}

impl Storage {
    pub(super) fn add_disk(&mut self, disk: Disk) -> DiskId {
        self.disks.push(disk);
        DiskId(self.disks.len() - 1)
    }

    /// Whether `id` is an open file.
    pub(super) fn knows(&self, id: ResourceId) -> bool {
        self.descriptions.contains_key(&id.0)
    }

    /// Takes an operation at `now_ns` and says when it is done.
    pub(super) fn submit(&mut self, now_ns: u64, mounts: &Mounts, op: Op, prng: &mut Prng) -> (u64, FileOp) {
        let mut target = self.target(mounts, &op);
        if let (Target::Description { id, sync }, Op::Sync { .. }) = (&mut target, &op)
            && let Some(description) = self.descriptions.get(id)
            && self.is_alive(description)
        {
            let names = &mut self.disks[description.disk.0].names;
            *sync = Some(names.file_mut(description.inode).content.start_sync());
        }
        let done_ns = match &target {
            Target::Nowhere(_) | Target::Above => now_ns + 1_000,
            Target::Path { disk, path, .. } => {
                let disk = &mut self.disks[disk.0];
                match op {
                    Op::SyncDirectory { .. } => {
                        let slow = disk.happens(Fault::Slow, path, prng);
                        disk.serve(now_ns, DIRECT_UNIT, true, slow, prng)
                    }
                    _ => disk.serve_cached(now_ns, 0, prng),
                }
            }
            Target::Paths { disk, .. } => self.disks[disk.0].serve_cached(now_ns, 0, prng),
            Target::Description { id, .. } => self.serve_file(now_ns, *id, &op, prng),
        };
        if let Target::Description { id, .. } = &target
            && let Some(description) = self.descriptions.get_mut(id)
        {
            description.in_flight += 1;
            description.closed |= matches!(op, Op::Close { .. });
        }
        (done_ns, FileOp { op, target })
    }

    /// Lets an operation take effect. `next_id` names a description that it opens.
    pub(super) fn complete(
        &mut self,
        operation: FileOp,
        caller: LoopId,
        next_id: &mut u64,
        prng: &mut Prng,
    ) -> Outcome {
        let FileOp { op, target } = operation;
        let mut payload = Payload::None;
        let value = match (&target, op) {
            (Target::Nowhere(number), op) => {
                payload = buffer_of(op);
                fail(*number)
            }
            (Target::Above, _) => Ok(0),
            (Target::Description { id, sync }, op) => self.complete_on_file(*id, *sync, op, &mut payload, prng),
            (Target::Path { disk, path, changes }, op) => {
                let life = self.disks[disk.0].life;
                match op {
                    Op::Open { options, .. } => self.open(*disk, life, path, options, caller, next_id),
                    op => complete_on_path(&mut self.disks[disk.0], path, *changes, op, &mut payload, prng),
                }
            }
            (Target::Paths { disk, from, to }, _) => rename(&mut self.disks[disk.0], from, to),
        };
        if let Target::Description { id, .. } = target {
            self.release(id);
        }
        Outcome { value, payload }
    }

    /// Whether the device itself works on an operation: a write past the page cache.
    pub(super) fn is_on_device(&self, operation: &FileOp) -> bool {
        match operation.target {
            Target::Description { id, .. } if operation.is_write() => {
                self.descriptions.get(&id).is_some_and(|description| description.options.direct)
            }
            _ => false,
        }
    }

    /// Ends an operation without effect: its process or its machine died before it reached the disk.
    pub(super) fn abandon(&mut self, operation: FileOp) {
        if let Target::Description { id, .. } = operation.target {
            self.release(id);
        }
    }

    /// Lets some sectors of a write in flight to `disk` reach it.
    pub(super) fn tear(&mut self, operation: &FileOp, disk: DiskId, prng: &mut Prng) {
        if let (Target::Description { id, .. }, Op::Write { offset, data, .. }) = (&operation.target, &operation.op)
            && let Some(description) = self.descriptions.get(id)
            && description.disk == disk
            && description.options.write
            && self.is_alive(description)
        {
            tear(&mut self.disks[disk.0], description.inode, *offset, &data.joined(), prng);
        }
    }

    /// Closes the files that a dead loop had open. They stay open while operations on them are in flight.
    pub(super) fn close_all(&mut self, owner: LoopId) {
        for id in self.of_loop(owner) {
            if let Some(description) = self.descriptions.get_mut(&id) {
                description.closed = true;
                description.in_flight += 1;
                self.release(id);
            }
        }
    }

    /// A durable write is a write and then a flush of the disk's cache. Where a process is killed between the two, what
    /// it wrote can be seen, and a loss of power takes it away.
    pub(super) fn forget_flushes(&mut self, owner: LoopId, prng: &mut Prng) {
        for id in self.of_loop(owner) {
            if let Some(description) = self.descriptions.get_mut(&id) {
                description.options.dsync &= prng.one_in(2);
            }
        }
    }

    /// What a loop has open, in order.
    fn of_loop(&self, owner: LoopId) -> Vec<u64> {
        let of_owner = |(id, description): (&u64, &Description)| (description.owner == owner).then_some(*id);
        let mut ids: Vec<u64> = self.descriptions.iter().filter_map(of_owner).collect();
        ids.sort_unstable();
        ids
    }

    /// Forgets every description of a disk that lost its power.
    pub(super) fn forget_disk(&mut self, disk: DiskId) {
        self.descriptions.retain(|_, description| description.disk != disk);
    }

    fn target(&self, mounts: &Mounts, op: &Op) -> Target {
        let resolve = |path: &Path| {
            mounts
                .iter()
                .filter_map(|(mount, disk)| Some((mount.as_os_str().len(), *disk, path.strip_prefix(mount).ok()?)))
                .max_by_key(|(len, ..)| *len)
                .map(|(_, disk, rest)| (disk, rest.to_owned()))
        };
        match op {
            Op::CreateDirectory { path } | Op::SyncDirectory { path }
                if resolve(path).is_none() && mounts.iter().any(|(mount, _)| mount.starts_with(path)) =>
            {
                Target::Above
            }
            Op::Open { path, .. }
            | Op::Remove { path }
            | Op::CreateDirectory { path }
            | Op::SyncDirectory { path }
            | Op::ReadDirectory { path }
            | Op::Space { path } => match resolve(path) {
                None => Target::Nowhere(ENOENT),
                Some((disk, path)) => Target::Path { disk, path, changes: self.disks[disk.0].names.changes_made() },
            },
            Op::Rename { from, to } => match (resolve(from), resolve(to)) {
                (Some((disk, from)), Some((to_disk, to))) if disk == to_disk => Target::Paths { disk, from, to },
                (Some(_), Some(_)) => Target::Nowhere(EXDEV),
                _ => Target::Nowhere(ENOENT),
            },
            op => match resource_of(op) {
                Some(id) if self.descriptions.get(&id).is_some_and(|description| !description.closed) => {
                    Target::Description { id, sync: None }
                }
                _ => Target::Nowhere(EBADF),
            },
        }
    }

    fn is_alive(&self, description: &Description) -> bool {
        let disk = &self.disks[description.disk.0];
        disk.present && disk.life == description.life
    }
}

fn complete_on_path(
    disk: &mut Disk,
    path: &Path,
    changes: u64,
    op: Op,
    payload: &mut Payload,
    prng: &mut Prng,
) -> io::Result<u64> {
    if !disk.present {
        return fail(ENOENT);
    }
    match op {
        Op::Remove { .. } => {
            let freed = disk.names.remove(path)?;
            disk.release(freed);
        }
        Op::CreateDirectory { .. } => disk.names.create_directory(path)?,
        Op::SyncDirectory { .. } => {
            disk.counters.syncs += 1;
            if disk.happens(Fault::SyncError, path, prng) {
                return fail(EIO);
            }
            disk.names.sync_directory(path, changes)?;
        }
        Op::ReadDirectory { .. } => *payload = Payload::Entries(disk.names.read_directory(path)?),
        Op::Space { .. } if !disk.names.exists(path) => return fail(ENOENT),
        Op::Space { .. } => *payload = Payload::Space(Space { total: disk.options.capacity, free: disk.free() }),
        _ => return fail(EINVAL),
    }
    Ok(0)
}

fn rename(disk: &mut Disk, from: &Path, to: &Path) -> io::Result<u64> {
    if !disk.present {
        return fail(ENOENT);
    }
    let freed = disk.names.rename(from, to)?;
    disk.release(freed);
    Ok(0)
}

/// The buffer that an operation brought, to be given back.
fn buffer_of(op: Op) -> Payload {
    match op {
        Op::Read { buffer, .. } => Payload::Buffer(buffer),
        _ => Payload::None,
    }
}

fn resource_of(op: &Op) -> Option<u64> {
    match op {
        Op::Close { id }
        | Op::Read { id, .. }
        | Op::Write { id, .. }
        | Op::Sync { id }
        | Op::Allocate { id, .. }
        | Op::SetLen { id, .. }
        | Op::Length { id }
        | Op::Lock { id } => Some(id.0),
        _ => None,
    }
}
