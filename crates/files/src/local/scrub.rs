//! Headers that are looked at while the store runs: a start gives a copy up whose header rotted.

use std::io;
use std::rc::Rc;

use base::{FileId, Result};

use super::Local;
use super::catalogue::{Copy, Entry};
use super::directory::aligned;
use super::header::{HEADER, Header};
use crate::layout::Unreadable;

impl Local {
    /// See `Store::check_headers`. What a header must say is known from the start, or from the file's birth; which of
    /// two copies is right that differ is not for this to decide.
    pub(crate) async fn check_headers(self: &Rc<Self>, file: FileId) -> Result<u64> {
        self.check_writable()?;
        let entry = self.catalogue.get(file)?;
        let _gate = entry.gate.take(1).await;
        let (sealed, is_between) = {
            let state = entry.state.borrow();
            (state.sealed, state.deleted || (state.sealing.is_some() && state.sealed.is_none()))
        };
        let mut repaired = 0;
        for copy in entry.live_copies().iter().filter(|copy| !is_between && !copy.is_doubtful()) {
            if self.has_header(&entry, copy).await {
                continue;
            }
            tracing::warn!(path = %copy.path().display(), "a header that cannot be read is written anew");
            match self.write_anew(copy, sealed).await {
                Ok(()) => repaired += 1,
                Err(error) => self.on_directory_failure(&copy.directory, &format!("a header of file {file}"), &error),
            }
        }
        self.settle().await?;
        Ok(repaired)
    }

    /// Whether the header of a copy can be read, by this version or by a newer one.
    async fn has_header(&self, entry: &Entry, copy: &Copy) -> bool {
        let block = async { self.reader_of(entry, copy).await?.read_at(0, HEADER as usize).await };
        match block.await.map(|block| Header::decode(&block)) {
            Ok(Ok(found)) => found.record.birth.file == entry.id,
            Ok(Err(unreadable)) => unreadable == Unreadable::Newer,
            Err(_) => false,
        }
    }

    async fn write_anew(&self, copy: &Copy, sealed: Option<u64>) -> io::Result<()> {
        let header = Header { birth: (*copy.birth).clone(), sealed };
        let writer = self.open_writer(copy).await?;
        writer.write_at(0, aligned(&header.encode())).await?;
        self.counters.on_written(copy.birth.kind as usize, HEADER);
        Ok(())
    }
}
