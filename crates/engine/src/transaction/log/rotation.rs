//! The files of the transaction log: opened ahead of need, left behind when they are full or failed, deleted when a
//! checkpoint has made them unneeded.
//!
//! Files are begun in the order of their ids, which is how a recovery knows what is older than all that it needs.
//!
//! A file that failed takes no more: it is sealed at the end of the last record that retired from it, and the
//! records behind that are written again to a new file under the same sequences. The seal makes their first try
//! invisible, so no record is ever there twice. Only when that fails again and again is the log **broken**.

use std::time::Duration;

use base::{Error, ErrorKind, LogSequence, Result};
use files::{Claim, CreateOptions, FileKind, FileWriter, Redundancy};
use runtime::Class;

use super::{LogFile, Progress, TransactionLog};

/// How often a new file is tried before the log is broken; the pauses between double from [`RETRY_PAUSE`].
const ATTEMPTS_MAX: u32 = 10;
const RETRY_PAUSE: Duration = Duration::from_millis(10);

impl TransactionLog {
    /// Opens the first file, and the spare one if there is space, so that no later call has to wait for them.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub async fn prepare(&self) -> Result<()> {
        let writer = self.create(self.0.options.file_bytes).await?;
        self.begin_file(writer);
        self.refill_spare().await;
        Ok(())
    }

    /// Goes on in a new file with room for a record of `len` bytes, once the present one is quiet.
    pub(super) async fn rotate(&self, len: u64) {
        while self.0.state.borrow().in_flight > 0 {
            self.0.changed.wait().await;
        }
        let mut pause = RETRY_PAUSE;
        for attempt in 1.. {
            match self.try_rotate(len).await {
                Ok(writer) => {
                    self.begin_file(writer);
                    self.0.state.borrow_mut().opening = false;
                    break;
                }
                Err(error) if error.kind == ErrorKind::Fenced => return self.on_fenced(&error),
                Err(error) if attempt < ATTEMPTS_MAX => {
                    tracing::warn!(%error, attempt, "the transaction log cannot go on yet");
                    self.0.handle.sleep(pause).await;
                    pause *= 2;
                }
                // Whatever the reason was, no discard mends it.
                Err(error) => {
                    return self
                        .on_broken(Error::io(format!("the transaction log is broken, restart the store: {error}")));
                }
            }
        }
        self.0.changed.notify();
        self.write_waiting();
        self.refill_spare().await;
    }

    /// If a new file would be better than the present one, the log goes on in a new one, and a checkpoint makes the old one
    /// unneeded.
    pub(crate) fn renew_file(&self) {
        {
            let mut state = self.0.state.borrow_mut();
            let is_inferior = state.writer.as_ref().is_some_and(|writer| self.0.store.is_inferior(writer.id()));
            if !is_inferior || state.opening || state.closed || state.broken.is_some() {
                return;
            }
            state.opening = true;
        }
        let this = self.clone();
        self.0.handle.spawn(Class::Io, "transaction file", async move { this.rotate(0).await }).detach();
    }

    async fn try_rotate(&self, len: u64) -> Result<FileWriter> {
        let failed = {
            let mut state = self.0.state.borrow_mut();
            // What landed behind a hole is cut off by the seal, and written again.
            for slot in &mut state.slots {
                slot.progress = Progress::Waiting;
            }
            let end = state.retired_end;
            state.writer.as_ref().filter(|writer| writer.has_failed()).map(|writer| (writer.id(), end))
        };
        if let Some((file, end)) = failed {
            self.0.store.seal(file, end).await?;
            self.0.state.borrow_mut().writer = None;
        }
        let spare = {
            let mut state = self.0.state.borrow_mut();
            let last = state.files.back().map(|file| file.file);
            let is_fit = |spare: &FileWriter| {
                spare.room() >= len && Some(spare.id()) > last && !self.0.store.is_inferior(spare.id())
            };
            state.spare.take().map(|spare| (is_fit(&spare), spare))
        };
        match spare {
            Some((true, spare)) => return Ok(spare),
            // Too small, made while a file with a higher id was begun, or no good.
            Some((false, unfit)) => self.0.store.delete(unfit.id()).await?,
            None => {}
        }
        self.create(self.0.options.file_bytes.max(len)).await
    }

    async fn refill_spare(&self) {
        if self.0.state.borrow().spare.is_some() || self.0.state.borrow().closed {
            return;
        }
        match self.create(self.0.options.file_bytes).await {
            Ok(spare) => {
                let surplus = self.0.state.borrow_mut().spare.replace(spare);
                if let Some(surplus) = surplus {
                    drop(self.0.store.delete(surplus.id()).await);
                }
            }
            Err(error) => tracing::debug!(%error, "no spare transaction file"),
        }
    }

    async fn create(&self, capacity: u64) -> Result<FileWriter> {
        let options = CreateOptions {
            kind: FileKind::Transaction,
            capacity,
            redundancy: Redundancy::Copies(self.0.options.copies),
            prepared: true,
            epoch: crate::options::EPOCH,
            segment: None,
            claim: Claim::Log,
        };
        self.0.store.create(options).await.map_err(|error| error.context("opening a transaction file"))
    }

    fn begin_file(&self, writer: FileWriter) {
        let mut state = self.0.state.borrow_mut();
        assert_eq!(state.in_flight, 0, "a new file begins when the old one is quiet");
        assert!(
            state.files.back().is_none_or(|file| file.file < writer.id()),
            "files are begun in the order of their ids"
        );
        let first = state.slots.front().map_or(state.next, |slot| slot.sequence);
        state.files.push_back(LogFile { file: writer.id(), first });
        state.retired_end = 0;
        state.writer = Some(writer);
        state.rotations += 1;
        drop(state);
        self.0.rotated.notify();
    }

    /// This life was ended from outside: whoever noticed it says so, and nobody tries anything again.
    pub(crate) fn on_fenced(&self, error: &Error) {
        if self.broken().is_none() {
            self.on_broken(error.clone());
        }
    }

    fn on_broken(&self, error: Error) {
        tracing::error!(%error, "no more writes");
        let slots = {
            let mut state = self.0.state.borrow_mut();
            state.broken = Some(error.clone());
            std::mem::take(&mut state.slots)
        };
        slots.into_iter().for_each(|slot| slot.waiter.send(Err(error.clone())));
        self.0.changed.notify();
        self.0.broke.notify();
    }

    /// Deletes the files whose records are all below `position`, which a durable checkpoint made unneeded. Nobody waits
    /// for one that cannot be deleted, because its directory is away: the next call tries it again, or the next start.
    pub async fn trim(&self, position: LogSequence) {
        let unneeded = {
            let mut state = self.0.state.borrow_mut();
            let state = &mut *state;
            while state.files.get(1).is_some_and(|second| second.first <= position) {
                state.unneeded.extend(state.files.pop_front().map(|oldest| oldest.file));
            }
            std::mem::take(&mut state.unneeded)
        };
        self.0.changed.notify();
        for file in unneeded {
            if let Err(error) = self.0.store.delete(file).await {
                tracing::warn!(%error, "a transaction file that is not needed any more could not be deleted");
                self.0.state.borrow_mut().unneeded.push(file);
            }
        }
    }
}
