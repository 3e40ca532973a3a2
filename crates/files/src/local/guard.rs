//! One directory at the start: is it one of a store, may we use it, does somebody else.
//!
//! **What the locks are for.** A process that was killed may still write: its io_uring is torn down after it is gone,
//! and a write that the kernel has is carried out. A lock (flock) belongs to the open file, and an operation in flight
//! keeps its file open. So the lock of a file that is written to comes free only when nothing can land in it any
//! more; the lock of a file beside it comes free earlier. Therefore
//! - `lock` is locked to keep a second living process out, and says who holds it. Renames and removals in flight are
//!   carried out by threads that share the process's open files, so they end before this lock comes free;
//! - `superblock` is locked before it is read, because it is written to;
//! - each file that an earlier life may have been writing to is locked before its header is read ([`super::open`]),
//!   and each spare before it is used again ([`super::pool`]).
//!
//! Where bytes of an earlier life land in spite of that, three things remain: nobody appends to a file of an earlier
//! life; every record names its file, so bytes of another file do not pass for this one's; and a file is sealed
//! before its content is believed, so what lands beyond the end is never read.

use std::io;
use std::path::Path;
use std::time::Duration;

use base::Bytes;
use base::{Error, ErrorKind, Result};
use runtime::{DirectoryEntry, File, Handle, OpenOptions};

use super::LocalOptions;
use super::access::is_full;
use super::directory::{Guards, READ, WRITE, aligned, lock_within};
use super::names::Name;
use super::superblock::{SLOT, SLOTS, Superblock};
use crate::layout::Unreadable;

/// The scratch file of a measurement of the disk ([`super::scratch`]).
pub const SCRATCH: &str = "calibration.scratch";
/// Names that may be in a directory before it becomes one of a store.
const NEIGHBOURS: [&str; 4] = ["lock", "lost+found", "nbd.sock", SCRATCH];

/// A directory that is ours alone from now on (or, for reading only, that we look at).
pub(crate) struct Guarded {
    pub(crate) guards: Guards,
    pub(crate) superblock: Superblock,
    /// Where the superblock's other slot is, if it is damaged.
    pub(crate) damaged_slot: Option<u64>,
}

/// What is under a path.
pub(crate) enum Probe {
    /// Nothing.
    Nothing,
    /// A directory that is empty, or was never part of a store.
    Empty,
    /// A directory of a store, guarded.
    Store(Guarded),
    /// A disk that answers with errors.
    Failing(Error),
}

/// Takes the locks of a directory and reads its superblock.
///
/// # Errors
/// `Conflict` if another process has it, `Invalid` if it cannot be one of a store, `Corrupt`.
pub(crate) async fn probe_directory(handle: &Handle, path: &Path, options: &LocalOptions) -> Result<Probe> {
    match try_probe(handle, path, options).await {
        Err(error) if error.kind == ErrorKind::Io => Ok(Probe::Failing(error)),
        result => result,
    }
}

async fn try_probe(handle: &Handle, path: &Path, options: &LocalOptions) -> Result<Probe> {
    let Some(entries) = list(handle, path).await? else { return Ok(Probe::Nothing) };
    if !options.read_only && entries.iter().any(|entry| entry.name == SCRATCH) {
        remove_left_over(handle, path, options.lock_wait).await?;
    }
    if !entries.iter().any(|entry| entry.name == "superblock") {
        check_empty(handle, path, &entries, options).await?;
        return Ok(Probe::Empty);
    }
    let guards = match options.read_only {
        false => take_guards(handle, path, options, WRITE).await?,
        true => {
            let superblock = handle.open(&path.join("superblock"), READ).await.map_err(|e| explain(path, &e))?;
            Guards { _lock: superblock.clone(), superblock }
        }
    };
    let superblock = read_superblock(path, &guards.superblock, options).await?;
    match superblock {
        Some((superblock, damaged_slot)) => Ok(Probe::Store(Guarded { guards, superblock, damaged_slot })),
        None => {
            check_empty(handle, path, &entries, options).await?;
            Ok(Probe::Empty)
        }
    }
}

/// Makes an empty directory ready to join a store: folders and files that exist durably, and are ours alone.
///
/// # Errors
/// As [`probe_directory`], and `Io`.
pub(crate) async fn form_directory(handle: &Handle, path: &Path, options: &LocalOptions) -> Result<Guards> {
    let files = path.join("files");
    handle.create_directory(&files).await.map_err(|error| explain(path, &error))?;
    let guards = take_guards(handle, path, options, OpenOptions { create: true, ..WRITE }).await?;
    if read_superblock(path, &guards.superblock, options).await?.is_some_and(|(found, _)| found.record.generation > 0) {
        return Err(Error::conflict(format!("{} became part of a store just now: start again", path.display())));
    }
    let zeros = aligned(&vec![0; (SLOT * SLOTS) as usize]);
    let written = async {
        guards.superblock.write_at(0, zeros).await?;
        handle.sync_directory(path).await?;
        // Folders that are there already may have been made by a try that did not come this far.
        for parent in path.ancestors().skip(1) {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            match handle.sync_directory(parent).await {
                Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) => {
                    break;
                }
                synced => synced?,
            }
        }
        Ok(())
    };
    written.await.map_err(|error: io::Error| explain(path, &error))?;
    Ok(guards)
}

/// Holds the lock of a directory that is only looked at, if it has one: a running store has it already. Nothing is
/// changed.
///
/// # Errors
/// `Conflict` if a running store has it, `Io`.
pub async fn hold_lock(handle: &Handle, directory: &Path, wait: Duration) -> Result<Option<File>> {
    let Ok(lock) = handle.open(&directory.join("lock"), OpenOptions::default()).await else { return Ok(None) };
    let failed = |error| Error::from_io(format!("the lock of {}", directory.display()), &error);
    if lock_within(handle, &lock, wait).await.map_err(failed)? {
        return Ok(Some(lock));
    }
    if let Ok(scratch) = handle.open(&directory.join(SCRATCH), OpenOptions::default()).await {
        // Who measures a disk does not write its name into the lock, which belongs to the store.
        take_scratch(handle, directory, &scratch, Duration::ZERO).await?;
    }
    let holder = holder_of(&lock).await.map_err(failed)?;
    Err(Error::conflict(format!("{} is in use by {holder}: stop it first", directory.display())))
}

/// Who has the lock, as it says itself.
async fn holder_of(lock: &File) -> io::Result<String> {
    let holder = lock.read_up_to(0, 256).await?;
    let holder = String::from_utf8_lossy(&holder).trim().to_owned();
    Ok(if holder.is_empty() { "another process".into() } else { holder })
}

/// Removes the scratch file that a process which died has left in `directory`, if anything.
///
/// # Errors
/// `Conflict` if somebody uses it, `Io`.
pub(crate) async fn remove_left_over(handle: &Handle, directory: &Path, wait: Duration) -> Result<()> {
    let path = directory.join(SCRATCH);
    let failed = |error: io::Error| explain(directory, &error);
    let left_over = match handle.open(&path, OpenOptions::default()).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(failed)?,
    };
    take_scratch(handle, directory, &left_over, wait).await?;
    handle.remove(&path).await.map_err(failed)?;
    tracing::info!(path = %path.display(), "removed what an interrupted calibration has left");
    Ok(())
}

/// Locks a scratch file.
pub(crate) async fn take_scratch(handle: &Handle, directory: &Path, file: &File, wait: Duration) -> Result<()> {
    match lock_within(handle, file, wait).await.map_err(|error| explain(directory, &error))? {
        true => Ok(()),
        false => Err(Error::conflict(format!(
            "{} is in use by levee calibrate: wait until that is done, or stop it",
            directory.display()
        ))),
    }
}

async fn take_guards(handle: &Handle, path: &Path, options: &LocalOptions, open: OpenOptions) -> Result<Guards> {
    let lock_path = path.join("lock");
    let create = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    let lock = handle.open(&lock_path, create).await.map_err(|error| explain(path, &error))?;
    if !lock_within(handle, &lock, options.lock_wait).await.map_err(|error| explain(path, &error))? {
        let holder = holder_of(&lock).await.map_err(|error| explain(path, &error))?;
        return Err(Error::conflict(format!(
            "{} is in use by {holder}: stop it, or give another directory",
            path.display()
        )));
    }
    let named = async {
        let name = format!("{}\n", options.holder).into_bytes();
        let len = name.len() as u64;
        match lock.write_at(0, Bytes::from(name)).await {
            Ok(()) => lock.set_len(len).await,
            // A store on a full disk must start, so that something can be deleted. Who has it remains unsaid.
            Err(error) if is_full(&error) => lock.set_len(0).await,
            Err(error) => Err(error),
        }
    };
    named.await.map_err(|error| explain(path, &error))?;
    let superblock = handle.open(&path.join("superblock"), open).await.map_err(|error| explain(path, &error))?;
    match lock_within(handle, &superblock, options.lock_wait).await {
        Ok(true) => Ok(Guards { _lock: lock, superblock }),
        Ok(false) => Err(Error::conflict(format!(
            "{} is still being written to by a process that has ended: try again in a moment",
            path.join("superblock").display()
        ))),
        Err(error) => Err(explain(path, &error)),
    }
}

/// The superblock, and where its other slot is if that is damaged.
async fn read_superblock(
    path: &Path,
    file: &File,
    options: &LocalOptions,
) -> Result<Option<(Superblock, Option<u64>)>> {
    let bytes = file.read_up_to(0, (SLOT * SLOTS) as usize).await.map_err(|error| explain(path, &error))?;
    let path = path.display();
    match Superblock::choose(&bytes) {
        Ok(found) if found.writable || options.read_only => {
            let damaged = bytes
                .chunks_exact(SLOT as usize)
                .position(|slot| matches!(Superblock::decode(slot), Err(Unreadable::Damaged)));
            Ok(Some((found.record, damaged.map(|slot| slot as u64 * SLOT))))
        }
        Ok(_) | Err(Unreadable::Newer) => Err(Error::invalid(format!(
            "{path} was written by a newer version of levee, with features that this one does not know: use that one"
        ))),
        Err(Unreadable::Blank) => Ok(None),
        Err(Unreadable::Damaged) => Err(Error::corrupt(format!(
            "both slots of {path}/superblock are damaged. If other directories hold copies of everything, leave this \
             one out and start with --accept-missing-directories; otherwise restore the file"
        ))),
    }
}

async fn list(handle: &Handle, path: &Path) -> Result<Option<Vec<DirectoryEntry>>> {
    match handle.read_directory(path).await {
        Ok(entries) => Ok(Some(entries)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(explain(path, &error)),
    }
}

/// Only an empty directory may become one of a store.
async fn check_empty(handle: &Handle, path: &Path, entries: &[DirectoryEntry], options: &LocalOptions) -> Result<()> {
    let allowed = |name: &str| {
        name == "superblock" || NEIGHBOURS.contains(&name) || options.neighbours.iter().any(|other| other == name)
    };
    let foreign = entries.iter().find(|entry| entry.name != "files" && !allowed(&entry.name));
    if let Some(foreign) = foreign {
        return Err(Error::invalid(format!(
            "{} is not a directory of Levee, and not empty (it contains '{}'): give an empty or a new directory",
            path.display(),
            foreign.name
        )));
    }
    let Some(files) = list(handle, &path.join("files")).await? else { return Ok(()) };
    match files.iter().find(|entry| !matches!(Name::parse(&entry.name), Some(Name::Making(_) | Name::Spare(..)))) {
        None => Ok(()),
        Some(file) => Err(Error::corrupt(format!(
            "{} has lost its superblock but contains files/{}: restore the superblock, or give an empty directory",
            path.display(),
            file.name
        ))),
    }
}

/// What an error of the operating system means for a directory, and what to do.
pub(crate) fn explain(path: &Path, error: &io::Error) -> Error {
    use io::ErrorKind as K;
    let path = path.display();
    match error.kind() {
        K::NotADirectory => Error::invalid(format!("{path} is not a directory: give a directory")),
        K::PermissionDenied => Error::invalid(format!(
            "no permission to use {path}: make it (or its parent) readable and writable for this user, or give another \
             directory"
        )),
        K::ReadOnlyFilesystem => Error::invalid(format!(
            "{path} is on a read-only file system: remount it for writing, or give another directory; 'levee inspect' \
             works without writing"
        )),
        K::StorageFull | K::QuotaExceeded => {
            Error::full(format!("no room in {path}: free some, or give another directory"))
        }
        _ => Error::from_io(path, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_the_system_says_what_to_do() {
        let says = |kind: io::ErrorKind| explain(Path::new("/srv/levee"), &io::Error::from(kind));
        for (kind, expected, hint) in [
            (io::ErrorKind::NotADirectory, ErrorKind::Invalid, "give a directory"),
            (io::ErrorKind::PermissionDenied, ErrorKind::Invalid, "readable and writable for this user"),
            (io::ErrorKind::ReadOnlyFilesystem, ErrorKind::Invalid, "remount it for writing"),
            (io::ErrorKind::StorageFull, ErrorKind::Full, "free some"),
            (io::ErrorKind::Other, ErrorKind::Io, "/srv/levee"),
        ] {
            let error = says(kind);
            assert!(error.kind == expected && error.message.contains(hint), "{kind}: {error}");
            assert!(error.message.contains("/srv/levee"));
        }
    }
}
