//! Replies of the transmission phase as bytes: headers are gathered in one buffer, payloads are passed on as they are.
//!
//! A [`Frames`] is what will go out on one connection, in order. Consecutive headers share one allocation, and the
//! bytes of a read travel from the disk's buffer to the socket without a copy.

use std::collections::VecDeque;

use base::{AllocationExtent, Bytes, ReadPart, buffer};
use bytes::{BufMut, BytesMut};

use super::protocol::*;

/// Holes below this are sent as zeros between the data: a chunk of their own would cost the client more.
const HOLE_MIN: u64 = base::BLOCK;
/// Zeros that are sent in one part.
const ZEROS_MAX: u64 = 256 * base::KIB;
/// Longest message of an error chunk that we send, in bytes.
const MESSAGE_MAX: usize = 512;
/// A header buffer is replaced when it has less room than this.
const HEADER_ROOM: usize = 64;
/// Size of a fresh header buffer.
const HEADER_BUFFER: usize = 4096;

/// Bytes on their way out.
#[derive(Debug, Default)]
pub struct Frames {
    parts: VecDeque<Bytes>,
    /// Headers that nothing has been put behind yet.
    tail: BytesMut,
    /// Bytes that were ever put in, the position of what comes next.
    put: u64,
}

impl Frames {
    /// Nothing to send.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.tail.is_empty()
    }

    /// The position behind everything that was put in since the beginning.
    pub fn position(&self) -> u64 {
        self.put
    }

    /// Forgets what was not taken.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.tail.clear();
    }

    /// Takes the next bytes to send: at most `bytes_max` (at least one byte if there is one) in at most `parts_max`
    /// parts. Returns them with their length.
    pub fn take(&mut self, bytes_max: u64, parts_max: usize) -> (Vec<Bytes>, u64) {
        self.close_tail();
        let (mut taken, mut len) = (Vec::with_capacity(self.parts.len().min(parts_max)), 0);
        while taken.len() < parts_max && len < bytes_max {
            let Some(mut part) = self.parts.pop_front() else { break };
            let room = usize::try_from(bytes_max - len).unwrap_or(usize::MAX);
            if part.len() > room {
                self.parts.push_front(part.split_off(room));
            }
            len += part.len() as u64;
            taken.push(part);
        }
        (taken, len)
    }

    /// A simple reply without payload.
    pub fn put_simple(&mut self, cookie: u64, errno: u32) {
        let header = self.header(16);
        header.put_u32(SIMPLE_REPLY_MAGIC);
        header.put_u32(errno);
        header.put_u64(cookie);
    }

    /// An error, with a message where the client can take one.
    pub fn put_error(&mut self, structured: bool, cookie: u64, errno: Errno, message: &str) {
        if !structured {
            return self.put_simple(cookie, errno as u32);
        }
        let message = shortened(message);
        self.put_chunk(cookie, chunk::ERROR, true, 6 + message.len() as u32);
        let out = self.header(6 + message.len());
        out.put_u32(errno as u32);
        out.put_u16(message.len() as u16);
        out.put_slice(message.as_bytes());
    }

    /// The last chunk of a successful reply that has nothing to say.
    pub fn put_done(&mut self, cookie: u64) {
        self.put_chunk(cookie, chunk::NONE, true, 0);
    }

    /// What a read found, as a simple reply: zeros are spelt out.
    pub fn put_read_simple(&mut self, cookie: u64, parts: Vec<ReadPart>) {
        self.put_simple(cookie, 0);
        parts.into_iter().for_each(|part| self.put_part(part));
    }

    /// What a read at `offset` found, as chunks; `whole` allows one chunk only.
    pub fn put_read_chunks(&mut self, cookie: u64, offset: u64, whole: bool, parts: Vec<ReadPart>) {
        let mut at = offset;
        let mut rest = parts.into_iter().peekable();
        while let Some(first) = rest.next() {
            let start = at;
            at += first.len();
            if is_hole(&first) && !(whole && rest.peek().is_some()) {
                while let Some(next) = rest.next_if(|next| matches!(next, ReadPart::Zeros(_))) {
                    at += next.len();
                }
                self.put_chunk(cookie, chunk::OFFSET_HOLE, rest.peek().is_none(), 12);
                let out = self.header(12);
                out.put_u64(start);
                out.put_u32((at - start) as u32);
                continue;
            }
            let mut run = vec![first];
            while let Some(next) = rest.next_if(|next| whole || !is_hole(next)) {
                at += next.len();
                run.push(next);
            }
            self.put_chunk(cookie, chunk::OFFSET_DATA, rest.peek().is_none(), 8 + (at - start) as u32);
            self.header(8).put_u64(start);
            run.into_iter().for_each(|part| self.put_part(part));
        }
    }

    /// What a range is made of. `extents` must not be empty.
    pub fn put_block_status(&mut self, cookie: u64, extents: &[AllocationExtent]) {
        assert!(!extents.is_empty(), "a block status reply has at least one extent");
        let len = 4 + 8 * extents.len();
        self.put_chunk(cookie, chunk::BLOCK_STATUS, true, len as u32);
        let out = self.header(len);
        out.put_u32(CONTEXT_ID);
        for extent in extents {
            out.put_u32(extent.len as u32);
            out.put_u32(if extent.allocated { STATE_DATA } else { STATE_HOLE_ZERO });
        }
    }

    fn put_chunk(&mut self, cookie: u64, kind: u16, done: bool, len: u32) {
        let out = self.header(20);
        out.put_u32(CHUNK_MAGIC);
        out.put_u16(if done { chunk::FLAG_DONE } else { 0 });
        out.put_u16(kind);
        out.put_u64(cookie);
        out.put_u32(len);
    }

    fn put_part(&mut self, part: ReadPart) {
        match part {
            ReadPart::Data(data) => self.put_payload(data),
            ReadPart::Zeros(mut left) => {
                while left > 0 {
                    let len = left.min(ZEROS_MAX);
                    self.put_payload(buffer::zeros(len as usize));
                    left -= len;
                }
            }
        }
    }

    fn put_payload(&mut self, data: Bytes) {
        self.put += data.len() as u64;
        self.close_tail();
        self.parts.push_back(data);
    }

    /// Room for `len` bytes of headers, all of which the caller fills.
    fn header(&mut self, len: usize) -> &mut BytesMut {
        self.put += len as u64;
        if self.tail.capacity() - self.tail.len() < len {
            self.close_tail();
            self.tail.reserve(len.max(HEADER_BUFFER));
        }
        &mut self.tail
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.parts.push_back(self.tail.split().freeze());
            if self.tail.capacity() < HEADER_ROOM {
                self.tail = BytesMut::new();
            }
        }
    }
}

/// The beginning of a message that an error chunk has room for.
fn shortened(message: &str) -> &str {
    let end = (0..=MESSAGE_MAX.min(message.len())).rev().find(|&end| message.is_char_boundary(end));
    &message[..end.unwrap_or(0)]
}

/// Whether a part is worth a chunk of its own as a hole.
fn is_hole(part: &ReadPart) -> bool {
    matches!(part, ReadPart::Zeros(len) if *len >= HOLE_MIN)
}

#[cfg(test)]
mod tests;
