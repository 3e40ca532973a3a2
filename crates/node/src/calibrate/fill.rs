//! Writes the scratch files over in full: a disk that was never written to is faster than it will be.

use std::path::Path;

use base::{AlignedBuf, Bytes, Error, Instant, MIB, Prng, Result};
use files::local::scratch::Scratch;
use runtime::{Class, File, Handle, Task};

/// Bytes of one write, and how many are in flight in each directory.
const PIECE: u64 = MIB;
const DEPTH: u64 = 8;

/// Fills each scratch file from its beginning until `until`; how far all of them came. `on_filled` hears how many bytes
/// are written in all.
///
/// # Errors
/// `Io`.
pub(super) async fn fill(
    handle: &Handle,
    scratches: &[Scratch],
    size: u64,
    until: Instant,
    mut prng: Prng,
    mut on_filled: impl FnMut(u64),
) -> Result<u64> {
    let content = random_bytes(&mut prng, 2 * PIECE);
    let mut done = 0;
    // Rounds of a few pieces in every directory: none comes further than the others, and the time is looked at.
    while done < size && (done == 0 || handle.now() < until) {
        let end = (done + DEPTH * PIECE).min(size);
        let mut writes: Vec<(&Scratch, Task<std::io::Result<()>>)> = Vec::new();
        for scratch in scratches {
            for offset in (done..end).step_by(PIECE as usize) {
                let from = (prng.below(PIECE / base::BLOCK) * base::BLOCK) as usize;
                let piece = content.slice(from..from + PIECE as usize);
                writes.push((scratch, spawn_write(handle, scratch.unsynced(), offset, piece)));
            }
        }
        for (scratch, write) in writes {
            write.await.map_err(|error| failed(scratch.path(), &error))?;
        }
        done = end;
        on_filled(done * scratches.len() as u64);
    }
    for scratch in scratches {
        scratch.unsynced().sync().await.map_err(|error| failed(scratch.path(), &error))?;
    }
    Ok(done)
}

fn spawn_write(handle: &Handle, file: &File, offset: u64, piece: Bytes) -> Task<std::io::Result<()>> {
    handle.spawn(Class::Io, "calibration fill", file.write_at(offset, piece))
}

/// What no disk can make smaller.
pub(super) fn random_bytes(prng: &mut Prng, len: u64) -> Bytes {
    let mut buffer = AlignedBuf::zeroed(len as usize);
    prng.fill(&mut buffer);
    buffer.freeze()
}

/// What an error of a disk means.
pub(super) fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::from_io(format!("{} cannot be measured: its disk failed", path.display()), error)
}
