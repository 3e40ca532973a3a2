//! Operations on files: when they are submitted, and what they do when they complete.
//!
//! An operation is checked and given its duration by the disk when it is submitted; it takes effect in one step when
//! it completes. So of operations in flight together any order may win, a read may see a write that has not been
//! reported yet, and a sync covers exactly the writes that had completed when it was submitted.
//!
//! An open file is a *description*, as in Linux: it owns the advisory lock, and it lives until it was closed **and**
//! its last operation in flight is done. So the lock of a file that a killed process was writing to comes free only
//! after these writes have landed, while a separate lock file is free at once (SAFETY.md, rule 10).

use std::io;
use std::path::{Path, PathBuf};

use base::{Map, Prng};

use super::content::{Fate, Reach, SECTOR, SyncPoint};
use super::disk::{Disk, DiskId, Fault};
use super::errno::{EBADF, EINVAL, EIO, ENOENT, ENOSPC, EXDEV, error, fail};
use super::namespace::InodeId;
use super::state::LoopId;
use crate::driver::{Op, OpenOptions, Outcome, Payload, ResourceId, Space};

/// What O_DIRECT asks of offsets and lengths, in bytes.
const DIRECT_UNIT: u64 = 4096;
/// What O_DIRECT asks of memory, in bytes.
const DIRECT_MEMORY: usize = 512;

/// The disks of the world and the files that are open on them.
#[derive(Default)]
pub(super) struct Storage {
    pub(super) disks: Vec<Disk>,
    descriptions: Map<u64, Description>,
}

/// Where a node's paths lead: the longest mount that a path begins with.
pub(super) type Mounts = Vec<(PathBuf, DiskId)>;

struct Description {
    owner: LoopId,
    disk: DiskId,
    life: u64,
    inode: InodeId,
    path: PathBuf,
    options: OpenOptions,
    in_flight: u32,
    closed: bool,
}

/// An operation on a file, between its submission and its completion.
pub(super) struct FileOp {
    op: Op,
    target: Target,
}

enum Target {
    /// A path that leads to no disk, or an unknown resource.
    Nowhere(i32),
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
            Target::Nowhere(_) => now_ns + 1_000,
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
            tear(&mut self.disks[disk.0], description.inode, *offset, data, prng);
        }
    }

    /// Closes the files that a dead loop had open. They stay open while operations on them are in flight.
    pub(super) fn close_all(&mut self, owner: LoopId) {
        let of_owner = |(id, description): (&u64, &Description)| (description.owner == owner).then_some(*id);
        let mut ids: Vec<u64> = self.descriptions.iter().filter_map(of_owner).collect();
        ids.sort_unstable();
        for id in ids {
            if let Some(description) = self.descriptions.get_mut(&id) {
                description.closed = true;
                description.in_flight += 1;
                self.release(id);
            }
        }
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

/// What happens to one file.
impl Storage {
    fn serve_file(&mut self, now_ns: u64, id: u64, op: &Op, prng: &mut Prng) -> u64 {
        let description = &self.descriptions[&id];
        let alive = self.is_alive(description);
        let disk = &mut self.disks[description.disk.0];
        let (path, options) = (&description.path, &description.options);
        let mut serve = |len: u64, durable: bool| {
            let slow = disk.happens(Fault::Slow, path, prng);
            disk.serve(now_ns, len, durable, slow, prng)
        };
        match op {
            _ if !alive => now_ns + 1_000,
            Op::Read { buffer, .. } => serve(buffer.len() as u64, false),
            Op::Write { data, .. } if options.direct || options.dsync => serve(data.len() as u64, options.dsync),
            Op::Write { data, .. } => disk.serve_cached(now_ns, data.len() as u64, prng),
            Op::Sync { .. } => {
                let dirty = disk.names.file(description.inode).content.dirty();
                let slow = disk.happens(Fault::Slow, path, prng);
                disk.serve(now_ns, dirty, true, slow, prng)
            }
            _ => disk.serve_cached(now_ns, 0, prng),
        }
    }

    fn open(
        &mut self,
        disk: DiskId,
        life: u64,
        path: &Path,
        options: OpenOptions,
        owner: LoopId,
        next_id: &mut u64,
    ) -> io::Result<u64> {
        let state = &mut self.disks[disk.0];
        if !state.present {
            return fail(ENOENT);
        }
        let inode = state.names.open(path, options.create && options.write, options.exclusive)?;
        state.names.file_mut(inode).opens += 1;
        let id = *next_id;
        *next_id += 1;
        let description =
            Description { owner, disk, life, inode, path: path.to_owned(), options, in_flight: 0, closed: false };
        self.descriptions.insert(id, description);
        Ok(id)
    }

    /// An operation on a description is over. The last one of a closed description takes it along.
    fn release(&mut self, id: u64) {
        let Some(description) = self.descriptions.get_mut(&id) else { return };
        description.in_flight -= 1;
        if !description.closed || description.in_flight > 0 {
            return;
        }
        let description = self.descriptions.remove(&id).expect("found above");
        let disk = &mut self.disks[description.disk.0];
        if disk.life != description.life {
            return;
        }
        let file = disk.names.file_mut(description.inode);
        file.opens -= 1;
        if file.lock == Some(id) {
            file.lock = None;
        }
        if disk.names.on_close(description.inode) {
            disk.recount();
        }
    }

    fn complete_on_file(
        &mut self,
        id: u64,
        sync: Option<SyncPoint>,
        op: Op,
        payload: &mut Payload,
        prng: &mut Prng,
    ) -> io::Result<u64> {
        // A description that lost its disk to a power loss is gone before its operations are.
        let Some(description) = self.descriptions.get(&id) else {
            *payload = buffer_of(op);
            return fail(EIO);
        };
        let alive = self.is_alive(description);
        let Description { inode, path, options, .. } = description;
        let disk = &mut self.disks[description.disk.0];
        match op {
            Op::Close { .. } => Ok(0),
            op if !alive => {
                *payload = buffer_of(op);
                fail(EIO)
            }
            Op::Read { offset, mut buffer, .. } => {
                let value = read(disk, description, offset, &mut buffer, prng);
                *payload = Payload::Buffer(buffer);
                value
            }
            Op::Write { .. } | Op::Allocate { .. } | Op::SetLen { .. } if !options.write => fail(EBADF),
            Op::Write { offset, data, .. } => write(disk, description, offset, &data, prng),
            Op::Sync { .. } => {
                disk.counters.syncs += 1;
                let fails = disk.happens(Fault::SyncError, path, prng);
                let content = &mut disk.names.file_mut(*inode).content;
                match (fails, sync) {
                    (false, Some(point)) => content.finish_sync(point),
                    _ => {
                        content.fail_sync(prng);
                        return fail(EIO);
                    }
                }
                Ok(0)
            }
            Op::Allocate { offset, len, .. } => {
                let end = offset.checked_add(len).filter(|_| len > 0).ok_or_else(|| error(EINVAL))?;
                let content = &mut disk.names.file_mut(*inode).content;
                let missing = content.missing(offset, end - offset);
                if !disk.reserve(missing) {
                    return fail(ENOSPC);
                }
                disk.names.file_mut(*inode).content.allocate(offset, len);
                Ok(0)
            }
            Op::SetLen { len, .. } => {
                disk.names.file_mut(*inode).content.set_len(len, prng);
                disk.recount();
                Ok(0)
            }
            Op::Length { .. } => Ok(disk.names.file(*inode).content.size()),
            Op::Lock { .. } => {
                let lock = &mut disk.names.file_mut(*inode).lock;
                Ok(u64::from(*lock.get_or_insert(id) == id))
            }
            _ => fail(EINVAL),
        }
    }
}

fn read(
    disk: &mut Disk,
    description: &Description,
    offset: u64,
    buffer: &mut [u8],
    prng: &mut Prng,
) -> io::Result<u64> {
    let Description { inode, path, options, .. } = description;
    if options.direct && !is_direct(offset, buffer) {
        return fail(EINVAL);
    }
    disk.counters.reads += 1;
    if disk.happens(Fault::ReadError, path, prng) {
        return fail(EIO);
    }
    let content = &mut disk.names.file_mut(*inode).content;
    let mut count = content.read(offset, buffer);
    if count > 0 && disk.happens(Fault::Rot, path, prng) {
        let at = prng.below(count as u64);
        let flipped = [buffer[at as usize] ^ (1 << prng.below(8))];
        let content = &mut disk.names.file_mut(*inode).content;
        content.poke(offset + at, &flipped);
        count = content.read(offset, buffer);
    }
    disk.counters.read_bytes += count as u64;
    Ok(count as u64)
}

fn write(disk: &mut Disk, description: &Description, offset: u64, data: &[u8], prng: &mut Prng) -> io::Result<u64> {
    let Description { inode, path, options, .. } = description;
    if options.direct && !is_direct(offset, data) || offset.checked_add(data.len() as u64).is_none() {
        return fail(EINVAL);
    }
    disk.counters.writes += 1;
    if disk.happens(Fault::WriteError, path, prng) {
        tear(disk, *inode, offset, data, prng);
        return fail(EIO);
    }
    let mut data = data;
    if data.len() as u64 > DIRECT_UNIT && disk.happens(Fault::ShortWrite, path, prng) {
        let blocks = (data.len() as u64).div_ceil(DIRECT_UNIT);
        data = &data[..(prng.between(1, blocks - 1) * DIRECT_UNIT) as usize];
    }
    let missing = disk.names.file(*inode).content.missing(offset, data.len() as u64);
    if !disk.reserve(missing) {
        return fail(ENOSPC);
    }
    disk.counters.written_bytes += data.len() as u64;
    let reach = if options.dsync { Reach::Medium } else { Reach::Cache };
    let lost = disk.happens(Fault::LostWrite, path, prng);
    let misdirected = !lost && disk.happens(Fault::MisdirectedWrite, path, prng);
    let content = &mut disk.names.file_mut(*inode).content;
    match (lost, misdirected) {
        (false, false) => content.write(offset, data, reach, prng),
        (true, _) => content.allocate(offset, data.len() as u64),
        (false, true) => {
            content.allocate(offset, data.len() as u64);
            let blocks = content.size().div_ceil(DIRECT_UNIT);
            let elsewhere = (offset / DIRECT_UNIT + prng.between(1, blocks.max(2) - 1)) % blocks;
            content.poke(elsewhere * DIRECT_UNIT, data);
        }
    }
    Ok(data.len() as u64)
}

/// Lets some sectors of a write reach the medium, as its fate has it.
fn tear(disk: &mut Disk, inode: InodeId, offset: u64, data: &[u8], prng: &mut Prng) {
    let sectors = (data.len() as u64).div_ceil(SECTOR);
    let fate = Fate::draw(prng, sectors);
    for sector in 0..sectors {
        let range = (sector * SECTOR) as usize..data.len().min(((sector + 1) * SECTOR) as usize);
        let at = offset + sector * SECTOR;
        if !fate.survives(prng, sector) || !disk.names.contains(inode) {
            continue;
        }
        let missing = disk.names.file(inode).content.missing(at, range.len() as u64);
        if disk.reserve(missing) {
            disk.names.file_mut(inode).content.write(at, &data[range], Reach::Medium, prng);
        }
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
            disk.names.remove(path)?;
            disk.recount();
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
        Op::Space { .. } => *payload = Payload::Space(Space { total: disk.options.capacity, free: disk.free() }),
        _ => return fail(EINVAL),
    }
    Ok(0)
}

fn rename(disk: &mut Disk, from: &Path, to: &Path) -> io::Result<u64> {
    if !disk.present {
        return fail(ENOENT);
    }
    disk.names.rename(from, to)?;
    disk.recount();
    Ok(0)
}

fn is_direct(offset: u64, memory: &[u8]) -> bool {
    let len = memory.len() as u64;
    offset.is_multiple_of(DIRECT_UNIT)
        && len.is_multiple_of(DIRECT_UNIT)
        && (memory.as_ptr() as usize).is_multiple_of(DIRECT_MEMORY)
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
