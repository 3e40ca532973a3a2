//! What a dead engine had: its log and journals, read by those who take its segments over (rules 39 and 41 of
//! docs/SAFETY.md).
//!
//! **Intuition.** The recovery of a log is the same whoever does it. So the dead engine is recovered once more, in
//! memory, over its own files, which nobody changes any more ([`files::estate`]); and each segment is released from
//! it as a living engine releases one: what its journals still held goes to tables and data files of the one who
//! adopts. Nothing of that is known to anybody before Adopt is durable; who dies before has changed nothing.
//!
//! **Flow.** *Fence* the life, so that nothing is added to what it left. *One* recoverer decides where log and journals
//! end, and makes that durable ([`Estate::seal`]). Then adopters open the estate, each by itself, find the same, and
//! take the segments that they were given ([`Estate::take`]), several at once where there are several. They look at nothing
//! else: other segments may be somebody's already, whose files change.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, Incarnation, MIB, Result, SegmentId};
use files::dry_run::Change;
use files::{FileInfo, FileKind, Store};
use runtime::{Class, Handle, Task};

use super::rests;
use crate::options::{Options, Ownership};
use crate::recovery::{self, Recovered};
use crate::statistics::RecoveryStatistics;
use crate::transaction::{SegmentCheckpoint, Tenure};

/// Largest data file that is made for what is copied.
const COPY_FILE_BYTES: u64 = MIB;

/// The estate of one dead engine, open in memory.
pub struct Estate {
    dead: Incarnation,
    own: Store,
    recovered: Recovered,
    /// What the recovery decided about files of the dead, in that order.
    decided: Vec<Change>,
    /// Memtables and log are emptied before dumps have to wait for that. They end with this.
    _emptying: Vec<Task<()>>,
}

/// What a log says of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holding {
    /// The engine had it.
    Owned(Tenure),
    /// The engine had released it.
    Released(Tenure),
}

impl Estate {
    /// Recovers in memory all that `dead` left, for the life that `own` is the store of. Fences it first. For the one
    /// recoverer.
    ///
    /// # Errors
    /// `Corrupt`, `Io` as [`crate::Engine::open`].
    pub async fn open(handle: &Handle, own: &Store, dead: Incarnation, options: &Options) -> Result<Estate> {
        Self::open_in_part(handle, own, dead, options, None).await
    }

    /// The same of the segments that somebody is to have, after the one recoverer is done.
    ///
    /// # Errors
    /// `Retry` where nobody has sealed the logs yet; `Corrupt`, `Io` as [`crate::Engine::open`].
    pub async fn open_sealed(
        handle: &Handle,
        own: &Store,
        dead: Incarnation,
        options: &Options,
        wanted: &BTreeSet<SegmentId>,
    ) -> Result<Estate> {
        check_sealed(own, dead).await?;
        let estate = Self::open_in_part(handle, own, dead, options, Some(wanted)).await?;
        let core = &estate.recovered.core;
        let flusher = core.index.spawn_flusher(Rc::new(core.log.clone()));
        let checkpoints = handle.spawn(Class::Background, "checkpoint", core.clone().keep_checkpointing());
        Ok(Estate { _emptying: vec![flusher, checkpoints], ..estate })
    }

    async fn open_in_part(
        handle: &Handle,
        own: &Store,
        dead: Incarnation,
        options: &Options,
        wanted: Option<&BTreeSet<SegmentId>>,
    ) -> Result<Estate> {
        if dead == own.incarnation() {
            return Err(Error::invalid(format!("incarnation {dead} lives, and does not inherit from itself")));
        }
        own.fence(dead).await?;
        let files = files::estate::Estate::open(own, dead).await?;
        // What is copied is not more than journals and memory had: small files leave little of a reserve unused.
        let data_file_bytes = options.data_file_bytes.min(COPY_FILE_BYTES);
        let options = Options { ownership: Ownership::Given, data_file_bytes, ..options.clone() };
        let recovered = recovery::recover(handle, &files.store(), options, wanted).await?;
        let decided = files.changes();
        recovered.begin_log().await?;
        recovered.close_files();
        Ok(Estate { dead, own: own.clone(), recovered, decided, _emptying: vec![] })
    }

    /// What the recovery found.
    pub fn recovery(&self) -> RecoveryStatistics {
        *self.recovered.core.counters.recovery.borrow()
    }

    /// What the log of the dead engine says of each segment.
    pub fn holdings(&self) -> BTreeMap<SegmentId, Holding> {
        let core = &self.recovered.core;
        let released = core.released.borrow();
        let released = released.iter().map(|(id, left)| (*id, Holding::Released(left.tenure)));
        let owned = core.all_segments().into_iter().map(|segment| (segment.id(), Holding::Owned(segment.tenure())));
        released.chain(owned).collect()
    }

    /// For the one recoverer: makes durable where the log and the journals of the dead engine end.
    ///
    /// # Errors
    /// `Io`: whoever does it again finds the same.
    pub async fn seal(&self) -> Result<()> {
        if base::seeded::is_on("estate-not-sealed") {
            return Ok(());
        }
        for change in &self.decided {
            match change {
                Change::Repaired(repair, bytes) => {
                    self.own.repair_copy(repair.file, repair.copy, repair.offset, bytes.clone()).await?;
                }
                Change::Sealed(file, length) => self.own.seal(*file, *length).await?,
                Change::Deleted(file) => self.own.delete(*file).await?,
            }
        }
        // Journals behind which everything is dumped were not looked at: nothing of them counts.
        for info in self.own.files_of(self.dead).await? {
            if matches!(info.kind, FileKind::Journal | FileKind::Transaction) && info.sealed.is_none() {
                self.own.delete(info.id).await?;
            }
        }
        tracing::trace!(target: "levee::segment", dead = %self.dead, "sealed");
        self.remove_rests().await;
        Ok(())
    }

    /// What the dead engine dropped and did not live to remove, nobody else looks for.
    async fn remove_rests(&self) {
        let rests = self.recovered.core.rests.borrow().clone();
        for (segment, epoch) in rests {
            let removing = async {
                for file in rests::rest(&self.own, segment, epoch).await? {
                    self.own.delete(file).await?;
                }
                Ok::<_, Error>(())
            };
            // Segments that live do not wait for what nobody has.
            if let Err(error) = removing.await {
                tracing::warn!(%segment, "files of a segment that was dropped may stay: {error}");
            }
        }
    }

    /// Takes a segment as the dead engine left it: what journals and memory held of it goes to files of the one who
    /// takes it. Several can be taken at once.
    ///
    /// # Errors
    /// `NotFound` where the dead engine did not have it; `Io`, `Full`, `Corrupt`.
    pub async fn take(&self, segment: SegmentId) -> Result<SegmentCheckpoint> {
        let core = &self.recovered.core;
        let holding = self.holdings().get(&segment).copied();
        match holding {
            Some(Holding::Released(tenure) | Holding::Owned(tenure)) => core.release(segment, tenure.epoch).await,
            None => Err(Error::not_found(format!("incarnation {} did not have {segment}", self.dead))),
        }
    }
}

async fn check_sealed(own: &Store, dead: Incarnation) -> Result<()> {
    let files = own.files_of(dead).await?;
    let is_open =
        |info: &&FileInfo| matches!(info.kind, FileKind::Journal | FileKind::Transaction) && info.sealed.is_none();
    match files.iter().find(is_open) {
        None => Ok(()),
        Some(info) => Err(Error::retry(format!(
            "{} is not sealed yet: the recovery of incarnation {dead} is not over",
            own.locate(info.id, 0)
        ))),
    }
}
