//! A client of the NBD protocol that keeps a server busy, and blocks.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use base::{Error, KIB, Prng, Result};
use node::profile::Asked;

use super::Client;

/// Bytes of a request of [`Nbd::fill`].
const FILL_BYTES: u64 = 128 * KIB;
const FILL_DEPTH: usize = 8;
/// A reply that does not come.
const TIMEOUT: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Nbd {
    stream: UnixStream,
    replies: BufReader<UnixStream>,
    size: u64,
    depth: usize,
    places: Prng,
    /// What is written, and what is read into.
    data: Vec<u8>,
    frames: Vec<u8>,
}

fn lost(error: std::io::Error) -> Error {
    Error::from_io("the NBD connection of the measurement was lost", &error)
}

impl Nbd {
    pub(super) fn connect(socket: &Path, volume: &str, size: u64, depth: usize) -> Result<Nbd> {
        let stream = UnixStream::connect(socket).map_err(lost)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(lost)?;
        let mut replies = BufReader::with_capacity(1 << 20, stream.try_clone().map_err(lost)?);
        let mut nbd = {
            replies.read_exact(&mut [0; 18]).map_err(lost)?;
            // Fixed newstyle, no zeros; then EXPORT_NAME.
            let mut hello = vec![0, 0, 0, 3];
            hello.extend_from_slice(b"IHAVEOPT");
            hello.extend_from_slice(&1u32.to_be_bytes());
            hello.extend_from_slice(&(volume.len() as u32).to_be_bytes());
            hello.extend_from_slice(volume.as_bytes());
            let data = vec![0x5a; FILL_BYTES as usize];
            Nbd { stream, replies, size, depth, places: Prng::new(1), data, frames: hello }
        };
        nbd.send()?;
        nbd.replies.read_exact(&mut [0; 10]).map_err(lost)?;
        Ok(nbd)
    }

    /// Writes all of the volume.
    pub(super) fn fill(&mut self) -> Result<()> {
        let mut in_flight = 0;
        for offset in (0..self.size).step_by(FILL_BYTES as usize) {
            if in_flight == FILL_DEPTH {
                self.receive(Asked::Write, FILL_BYTES)?;
                in_flight -= 1;
            }
            self.put(Asked::Write, offset, FILL_BYTES);
            self.send()?;
            in_flight += 1;
        }
        (0..in_flight).try_for_each(|_| self.receive(Asked::Write, FILL_BYTES))
    }

    fn put(&mut self, asked: Asked, offset: u64, bytes: u64) {
        self.frames.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        self.frames.extend_from_slice(&u32::from(asked == Asked::Write).to_be_bytes());
        self.frames.extend_from_slice(&offset.to_be_bytes());
        self.frames.extend_from_slice(&offset.to_be_bytes());
        self.frames.extend_from_slice(&(bytes as u32).to_be_bytes());
        if asked == Asked::Write {
            self.frames.extend_from_slice(&self.data[..bytes as usize]);
        }
    }

    fn send(&mut self) -> Result<()> {
        self.stream.write_all(&self.frames).map_err(lost)?;
        self.frames.clear();
        Ok(())
    }

    fn receive(&mut self, asked: Asked, bytes: u64) -> Result<()> {
        let mut head = [0; 16];
        self.replies.read_exact(&mut head).map_err(lost)?;
        if head[..8] != [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0] {
            return Err(Error::internal("a request of the measurement failed: the log says why"));
        }
        match asked {
            Asked::Read => self.replies.read_exact(&mut self.data[..bytes as usize]).map_err(lost),
            Asked::Write => Ok(()),
        }
    }
}

impl Client for Nbd {
    fn ask(&mut self, asked: Asked, bytes: u64, span: Duration) -> Result<u64> {
        let (begun, mut in_flight, mut count) = (Instant::now(), 0, 0);
        loop {
            if begun.elapsed() < span {
                for _ in in_flight..self.depth {
                    let place = self.places.below(self.size / bytes) * bytes;
                    self.put(asked, place, bytes);
                }
                in_flight = self.depth;
                self.send()?;
            }
            if in_flight == 0 {
                return Ok(count);
            }
            // What has come already is asked for again with one send.
            loop {
                self.receive(asked, bytes)?;
                (in_flight, count) = (in_flight - 1, count + 1);
                let whole = 16 + if asked == Asked::Read { bytes as usize } else { 0 };
                if in_flight == 0 || self.replies.buffer().len() < whole {
                    break;
                }
            }
        }
    }
}
