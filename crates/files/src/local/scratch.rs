//! A scratch file in a directory, for measurements of its disk: `levee calibrate`.
//!
//! **What keeps a store safe.** A directory is used only if it is one of a store that nobody runs, whose lock is held
//! meanwhile, or an empty one. The scratch file has a name that no store uses, in the directory itself, and nothing else
//! is written. It is locked as long as somebody uses it: a start, and the next measurement, remove one that is left over
//! from a process that died, and refuse where it is in use.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use runtime::{File, Handle, OpenOptions, Space};

use super::LocalOptions;
use super::directory::{MAKE_UNSYNCED, WRITE};
use super::guard::{Probe, SCRATCH, explain, hold_lock, probe_directory, remove_left_over, take_scratch};

/// What a directory has to offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Whether it is one of a store; else it is empty.
    pub is_store: bool,
    /// Room in its file system, with what a left-over scratch file takes up counted as free.
    pub space: Space,
}

/// A scratch file. It is to be removed: a drop leaves it to whoever comes next.
pub struct Scratch {
    handle: Handle,
    path: PathBuf,
    /// Locked. What is written through it is durable after a sync.
    unsynced: File,
    /// What is written through it is durable when the write completes, as a store's journal has it.
    durable: File,
    _store: Option<File>,
}

/// Looks at the directory of `options`, which must be the only one, and read-only. Nothing is changed.
///
/// # Errors
/// `NotFound`, `Conflict` where the store or another measurement runs, `Invalid` for a directory of others, `Io`.
pub async fn look(handle: &Handle, options: &LocalOptions) -> Result<Place> {
    let path = &options.directories[0];
    hold_lock(handle, path, options.lock_wait).await?;
    let is_store = match probe_directory(handle, path, options).await? {
        Probe::Nothing => {
            return Err(Error::not_found(format!(
                "there is no directory {}: make it on the disk that is to be measured",
                path.display()
            )));
        }
        Probe::Failing(error) => return Err(error),
        Probe::Empty => false,
        Probe::Store(_) => true,
    };
    let failed = |error: std::io::Error| explain(path, &error);
    let mut space = handle.space(path).await.map_err(failed)?;
    if let Ok(left_over) = handle.open(&path.join(SCRATCH), OpenOptions::default()).await {
        take_scratch(handle, path, &left_over, options.lock_wait).await?;
        space.free += left_over.length().await.map_err(failed)?;
    }
    Ok(Place { is_store, space })
}

impl Scratch {
    /// Makes one of `len` bytes, all of them set aside, after a [`look`].
    ///
    /// # Errors
    /// As [`look`], and `Full`.
    pub async fn create(handle: &Handle, options: &LocalOptions, len: u64) -> Result<Scratch> {
        let directory = &options.directories[0];
        let store = hold_lock(handle, directory, options.lock_wait).await?;
        remove_left_over(handle, directory, options.lock_wait).await?;
        let path = directory.join(SCRATCH);
        let failed = |error: std::io::Error| explain(directory, &error);
        let unsynced = handle.open(&path, MAKE_UNSYNCED).await.map_err(failed)?;
        let prepared = async {
            take_scratch(handle, directory, &unsynced, options.lock_wait).await?;
            unsynced.allocate(0, len).await.map_err(failed)?;
            handle.open(&path, WRITE).await.map_err(failed)
        };
        match prepared.await {
            Ok(durable) => Ok(Scratch { handle: handle.clone(), path, unsynced, durable, _store: store }),
            Err(error) => {
                let _ = handle.remove(&path).await;
                Err(error)
            }
        }
    }

    /// To fill it quickly: durable after a sync.
    pub fn unsynced(&self) -> &File {
        &self.unsynced
    }

    /// To measure: past the page cache, durable when a write completes.
    pub fn durable(&self) -> &File {
        &self.durable
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it.
    ///
    /// # Errors
    /// `Io`: then it is left over.
    pub async fn remove(self) -> Result<()> {
        let removed = self.handle.remove(&self.path).await;
        removed.map_err(|error| Error::from_io(format!("cannot remove {}", self.path.display()), &error))
    }
}
