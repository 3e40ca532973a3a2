//! What operations do to one open file.

use std::io;
use std::path::{Path, PathBuf};

use base::{AlignedBuf, Prng};

use super::{Storage, buffer_of};
use crate::driver::{Op, OpenOptions, Payload};
use crate::sim::content::{Fate, Piece, Reach, SECTOR, SyncPoint};
use crate::sim::disk::{Disk, DiskId, Fault};
use crate::sim::errno::{EBADF, EINVAL, EIO, ENOENT, ENOSPC, error, fail};
use crate::sim::namespace::InodeId;
use crate::sim::state::LoopId;

/// What O_DIRECT asks of offsets and lengths, in bytes.
pub(super) const DIRECT_UNIT: u64 = 4096;
/// What O_DIRECT asks of memory, in bytes.
const DIRECT_MEMORY: usize = 512;

/// An open file.
pub(super) struct Description {
    pub(super) owner: LoopId,
    pub(super) disk: DiskId,
    pub(super) life: u64,
    pub(super) inode: InodeId,
    pub(super) path: PathBuf,
    pub(super) options: OpenOptions,
    pub(super) in_flight: u32,
    pub(super) closed: bool,
}

/// What happens to one file.
impl Storage {
    pub(super) fn serve_file(&mut self, now_ns: u64, id: u64, op: &Op, prng: &mut Prng) -> u64 {
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
            Op::Read { len, .. } => serve(*len as u64, false),
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

    pub(super) fn open(
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
    pub(super) fn release(&mut self, id: u64) {
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
        let freed = disk.names.on_close(description.inode);
        disk.release(freed);
    }

    pub(super) fn complete_on_file(
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
            Op::Read { offset, mut buffer, len, .. } => {
                let value = read(disk, description, offset, len, &mut buffer, prng);
                *payload = Payload::Buffer(buffer);
                value
            }
            Op::SetLen { .. } if !options.write => fail(EINVAL),
            Op::Write { .. } | Op::Allocate { .. } if !options.write => fail(EBADF),
            Op::Write { offset, data, .. } => write(disk, description, offset, &data.joined(), prng),
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
                let content = &mut disk.names.file_mut(*inode).content;
                let before = content.allocated();
                content.set_len(len, prng);
                let freed = before - content.allocated();
                disk.release(freed);
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

/// Reads up to `len` bytes into `buffer`, whatever it held.
fn read(
    disk: &mut Disk,
    description: &Description,
    offset: u64,
    len: usize,
    buffer: &mut AlignedBuf,
    prng: &mut Prng,
) -> io::Result<u64> {
    let Description { inode, path, options, .. } = description;
    buffer.set_len(0);
    if options.direct && !is_direct(offset, len as u64, buffer.as_ptr()) {
        return fail(EINVAL);
    }
    disk.counters.reads += 1;
    if disk.happens(Fault::ReadError, path, prng) {
        return fail(EIO);
    }
    let count = disk.names.file(*inode).content.read_pieces(offset, len, |piece| match piece {
        Piece::Bytes(bytes) => buffer.extend_from_slice(bytes),
        Piece::Zeros(count) => buffer.extend_zeros(count),
    });
    if count > 0 && disk.happens(Fault::Rot, path, prng) {
        let at = prng.below(count as u64);
        let flipped = [buffer[at as usize] ^ (1 << prng.below(8))];
        let content = &mut disk.names.file_mut(*inode).content;
        content.poke(offset + at, &flipped);
        buffer[at as usize] = flipped[0];
    }
    disk.counters.read_bytes += count as u64;
    Ok(count as u64)
}

fn write(disk: &mut Disk, description: &Description, offset: u64, data: &[u8], prng: &mut Prng) -> io::Result<u64> {
    let Description { inode, path, options, .. } = description;
    if options.direct && !is_direct(offset, data.len() as u64, data.as_ptr())
        || offset.checked_add(data.len() as u64).is_none()
    {
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
            // Beyond the end, if there is only one block.
            let blocks = content.size().div_ceil(DIRECT_UNIT).max(2);
            let elsewhere = (offset / DIRECT_UNIT + prng.between(1, blocks - 1)) % blocks;
            content.poke(elsewhere * DIRECT_UNIT, data);
        }
    }
    Ok(data.len() as u64)
}

/// Lets some sectors of a write reach the medium, as its fate has it.
pub(super) fn tear(disk: &mut Disk, inode: InodeId, offset: u64, data: &[u8], prng: &mut Prng) {
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

fn is_direct(offset: u64, len: u64, memory: *const u8) -> bool {
    offset.is_multiple_of(DIRECT_UNIT)
        && len.is_multiple_of(DIRECT_UNIT)
        && (memory as usize).is_multiple_of(DIRECT_MEMORY)
}
