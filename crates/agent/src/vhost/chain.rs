//! The descriptors of one request: copied out of the guest's memory once, and checked.
//!
//! A request is a chain of descriptors, each a piece of memory that the device reads or writes; first those that it reads.
//! The chain lies in the table of its queue, or from some descriptor on in a table of its own. Whatever is there is walked
//! through in a bounded number of steps, each descriptor is read once, and each piece lies within the guest's memory.

use runtime::guest::{Map, Memory};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::protocol::{DESCRIPTORS_MAX, Violation};

const DESCRIPTOR_LEN: u64 = size_of::<Descriptor>() as u64;

/// Pieces of guest memory, one behind the other. None is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pieces(Vec<(u64, u32)>);

/// The pieces of one request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// What the device reads.
    pub readable: Pieces,
    /// What it writes.
    pub writable: Pieces,
}

impl Pieces {
    /// Their length in bytes.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(_, len)| u64::from(*len)).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Takes the first `count` bytes off, of which there are so many.
    pub fn split_to(&mut self, count: u32) -> Pieces {
        let (mut taken, mut missing) = (Vec::new(), count);
        while missing > 0 {
            let (address, len) = &mut self.0[0];
            let part = missing.min(*len);
            taken.push((*address, part));
            missing -= part;
            (*address, *len) = (*address + u64::from(part), *len - part);
            if *len == 0 {
                self.0.remove(0);
            }
        }
        Pieces(taken)
    }

    /// Takes the last byte off: its address.
    pub fn pop_byte(&mut self) -> Option<u64> {
        let (address, len) = self.0.last_mut()?;
        *len -= 1;
        let last = *address + u64::from(*len);
        if *len == 0 {
            self.0.pop();
        }
        Some(last)
    }

    /// Copies all of them into `to`, which is as long.
    ///
    /// # Errors
    /// [`Violation::Unreachable`]
    pub fn copy_to(&self, memory: &Memory, to: &mut [u8]) -> Result<(), Violation> {
        let mut rest = to;
        for &(address, len) in &self.0 {
            let (part, others) = rest.split_at_mut(len as usize);
            memory.map().read_slice(part, GuestAddress(address)).map_err(|_| unreachable(address, len))?;
            rest = others;
        }
        Ok(())
    }

    /// A place to write to, from the first byte on.
    pub fn writer<'a>(&'a self, memory: &'a Memory) -> Writer<'a> {
        Writer { memory, pieces: &self.0, at: 0 }
    }
}

/// Writes into pieces of guest memory, one part behind the other.
pub struct Writer<'a> {
    memory: &'a Memory,
    pieces: &'a [(u64, u32)],
    /// Within the first piece.
    at: u32,
}

impl Writer<'_> {
    /// Writes `bytes`, for which there is room.
    ///
    /// # Errors
    /// [`Violation::Unreachable`], also where there is no room.
    pub fn put(&mut self, mut bytes: &[u8]) -> Result<(), Violation> {
        while !bytes.is_empty() {
            let Some(&(address, len)) = self.pieces.first() else { return Err(unreachable(0, bytes.len() as u32)) };
            let room = (len - self.at) as usize;
            let (part, rest) = bytes.split_at(room.min(bytes.len()));
            let to = GuestAddress(address + u64::from(self.at));
            self.memory.map().write_slice(part, to).map_err(|_| unreachable(address, len))?;
            self.at += part.len() as u32;
            if self.at == len {
                (self.pieces, self.at) = (&self.pieces[1..], 0);
            }
            bytes = rest;
        }
        Ok(())
    }
}

fn unreachable(address: u64, len: u32) -> Violation {
    Violation::Unreachable { address, len: u64::from(len) }
}

/// Whether the guest has so many bytes of memory there, in one region or in several that touch.
pub fn is_reachable(map: &Map, address: u64, len: u64) -> bool {
    map.check_range(GuestAddress(address), len as usize)
}

/// Copies the chain that begins at `head` of the table at `table`, which has `size` descriptors.
///
/// # Errors
/// What is wrong with it.
pub fn copy_chain(memory: &Memory, table: u64, size: u16, head: u16) -> Result<Chain, Violation> {
    let mut chain = Chain::default();
    let (mut table, mut size, mut index) = (table, u32::from(size), u32::from(head));
    let (mut left, mut is_indirect, mut seen) = (size, false, 0);
    loop {
        if index >= size {
            return Err(Violation::OutOfTable);
        }
        left = left.checked_sub(1).ok_or(Violation::Loop)?;
        seen += 1;
        if seen > DESCRIPTORS_MAX {
            return Err(Violation::TooManyDescriptors);
        }
        let place = u64::from(index) * DESCRIPTOR_LEN;
        let unread = Violation::Unreachable { address: table, len: place + DESCRIPTOR_LEN };
        let address = table.checked_add(place).ok_or(unread)?;
        let descriptor: Descriptor = memory.map().read_obj(GuestAddress(address)).map_err(|_| unread)?;
        let (address, len) = (descriptor.addr().0, descriptor.len());
        if descriptor.refers_to_indirect_table() {
            let count = u64::from(len) / DESCRIPTOR_LEN;
            let is_whole = u64::from(len).is_multiple_of(DESCRIPTOR_LEN) && count > 0 && count <= u64::from(u16::MAX);
            if is_indirect || !is_whole || descriptor.has_next() {
                return Err(Violation::IndirectTable);
            }
            (table, size, index, left, is_indirect) = (address, count as u32, 0, count as u32, true);
            continue;
        }
        if len > 0 && !is_reachable(memory.map(), address, u64::from(len)) {
            return Err(unreachable(address, len));
        }
        let pieces = match descriptor.is_write_only() {
            true => &mut chain.writable,
            false if !chain.writable.is_empty() => return Err(Violation::Order),
            false => &mut chain.readable,
        };
        if len > 0 {
            pieces.0.push((address, len));
        }
        if !descriptor.has_next() {
            return Ok(chain);
        }
        index = u32::from(descriptor.next());
    }
}
