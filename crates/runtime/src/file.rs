//! Files and directories.

use std::io;
use std::path::Path;
use std::rc::Rc;

use base::{AlignedBuf, Gathered};

use crate::Handle;
use crate::driver::{DirectoryEntry, Op, OpenOptions, Payload, ResourceId, Space};

/// An open file. Clones share it; it is closed when the last one is dropped.
#[derive(Clone)]
pub struct File(Rc<Inner>);

struct Inner {
    handle: Handle,
    id: ResourceId,
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.handle.operate(Op::Close { id: self.id }));
    }
}

impl File {
    /// Reads exactly `len` bytes at `offset`.
    ///
    /// # Errors
    /// The disk's, and `UnexpectedEof` where the file ends before.
    pub async fn read_at(&self, offset: u64, len: usize) -> io::Result<AlignedBuf> {
        let buffer = self.read_up_to(offset, len).await?;
        match buffer.len() == len {
            true => Ok(buffer),
            false => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    }

    /// Reads up to `len` bytes at `offset`; fewer only where the file ends.
    ///
    /// # Errors
    /// The disk's.
    pub async fn read_up_to(&self, offset: u64, len: usize) -> io::Result<AlignedBuf> {
        let buffer = AlignedBuf::with_capacity(len);
        let outcome = self.0.handle.operate(Op::Read { id: self.0.id, offset, buffer, len }).await;
        outcome.value?;
        match outcome.payload {
            Payload::Buffer(buffer) => Ok(buffer),
            _ => Err(io::Error::other("the driver kept a read's buffer")),
        }
    }

    /// Writes all of `data` at `offset`. Queued at the call: a later call's write is never submitted before it.
    ///
    /// # Errors
    /// The disk's. What is on the disk then is unknown.
    pub fn write_at<D: Into<Gathered>>(&self, offset: u64, data: D) -> impl Future<Output = io::Result<()>> + use<D> {
        let (this, data) = (self.0.clone(), data.into());
        let first = this.handle.operate(Op::Write { id: this.id, offset, data: data.clone() });
        async move {
            let mut done = first.await.value?;
            while done < data.len() as u64 {
                if done == 0 {
                    return Err(io::Error::from(io::ErrorKind::WriteZero));
                }
                let rest = Op::Write { id: this.id, offset: offset + done, data: data.starting_at(done as usize) };
                match this.handle.operate(rest).await.value? {
                    0 => return Err(io::Error::from(io::ErrorKind::WriteZero)),
                    count => done += count,
                }
            }
            Ok(())
        }
    }

    /// Makes completed writes durable.
    ///
    /// # Errors
    /// The disk's: then nothing since the last good sync may be taken as durable.
    pub async fn sync(&self) -> io::Result<()> {
        self.run(Op::Sync { id: self.0.id }).await.map(drop)
    }

    /// Reserves space for a range and extends the file to its end.
    ///
    /// # Errors
    /// `StorageFull`, and the disk's.
    pub async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(Op::Allocate { id: self.0.id, offset, len }).await.map(drop)
    }

    /// Truncates or extends.
    ///
    /// # Errors
    /// The disk's.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        self.run(Op::SetLen { id: self.0.id, len }).await.map(drop)
    }

    /// The length in bytes.
    ///
    /// # Errors
    /// The disk's.
    pub async fn length(&self) -> io::Result<u64> {
        self.run(Op::Length { id: self.0.id }).await
    }

    /// Takes the exclusive lock of the file; false if another open file has it (also of this process).
    ///
    /// # Errors
    /// The disk's.
    pub async fn try_lock(&self) -> io::Result<bool> {
        Ok(self.run(Op::Lock { id: self.0.id }).await? == 1)
    }

    async fn run(&self, op: Op) -> io::Result<u64> {
        self.0.handle.operate(op).await.value
    }
}

/// Calls on names rather than on open files. Changes of names count only after [`Handle::sync_directory`].
impl Handle {
    /// Opens a file.
    ///
    /// # Errors
    /// The world's, such as `NotFound`, `AlreadyExists`, `PermissionDenied`.
    pub async fn open(&self, path: &Path, options: OpenOptions) -> io::Result<File> {
        let id = ResourceId(self.operate(Op::Open { path: path.to_owned(), options }).await.value?);
        Ok(File(Rc::new(Inner { handle: self.clone(), id })))
    }

    /// Renames a file, replacing the target.
    ///
    /// # Errors
    /// The world's.
    pub async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(Op::Rename { from: from.to_owned(), to: to.to_owned() }).await.value.map(drop)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The world's.
    pub async fn remove(&self, path: &Path) -> io::Result<()> {
        self.operate(Op::Remove { path: path.to_owned() }).await.value.map(drop)
    }

    /// Makes a directory and its missing parents.
    ///
    /// # Errors
    /// The world's.
    pub async fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.operate(Op::CreateDirectory { path: path.to_owned() }).await.value.map(drop)
    }

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// The world's.
    pub async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.operate(Op::SyncDirectory { path: path.to_owned() }).await.value.map(drop)
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// The world's.
    pub async fn read_directory(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let outcome = self.operate(Op::ReadDirectory { path: path.to_owned() }).await;
        outcome.value?;
        match outcome.payload {
            Payload::Entries(entries) => Ok(entries),
            _ => Err(io::Error::other("the driver kept a directory's entries")),
        }
    }

    /// Room in the file system of `path`.
    ///
    /// # Errors
    /// The world's.
    pub async fn space(&self, path: &Path) -> io::Result<Space> {
        let outcome = self.operate(Op::Space { path: path.to_owned() }).await;
        outcome.value?;
        match outcome.payload {
            Payload::Space(space) => Ok(space),
            _ => Err(io::Error::other("the driver kept a file system's room")),
        }
    }
}
