//! Files of a segment that no log names, in a store that many share (rule 43 of docs/SAFETY.md).
//!
//! **Intuition.** Who dies while it adopts a segment leaves the files that it had copied; who dies between creating a file
//! and logging it leaves that one; what somebody was about to remove when it died stays, too. No log names them, so nobody
//! would ever miss or find them. But every data file and table says which segment it is of, and under which epoch it was
//! made. So whoever has the segment asks the store for the files of it, and removes those that it does not name itself.
//!
//! **Names.** A *stray* of a segment that is here under epoch *e* is a file that names the segment and an epoch below *e*,
//! and is neither a table nor a data file of it here. One who adopts from the dead makes files under the epoch that the
//! dead one had, for an Adopt under a later one.
//!
//! **Why nobody will ever name a stray.** Its epoch *x* is below *e*, and *e* is in this log, durably. *e* was given when
//! whatever *x*, or an assignment between the two, could still bring about was over (rules 38 to 41):
//! - *Who had the segment* under *x* has released it, or is fenced. Release waits until nothing that makes files of the
//!   segment is under way (dumps, large writes, flushes, merges, collection), and its record names all that count. What a
//!   former owner still removes is named by nobody; that two remove it does no harm.
//! - *Who was to adopt it* between *x* and *e* has refused, or is fenced. One that refused and lives may still be copying:
//!   what it makes is for an epoch that its engine takes no more (`crate::arrivals`), so it is a stray already, and found
//!   by a later look if it is not there yet. If it is assigned the segment again, that is under an epoch above *e*, from
//!   what this engine leaves: files of that copy are made under *e*, and are left alone here.
//! - *Who was fenced* has nothing in flight when the fence returns (rule 36), so that none of its files appears later; and
//!   whether an Adopt of it is in its log was decided by its recoverer before *e* was given.
//! - *This engine* may have copied the segment twice, because the assignment came twice: the copy that was not adopted is
//!   one of strays.
//!
//! An assignment that may still come true is never in question: as long as there is one, nobody has a later epoch in its
//! log, and who has an earlier one only looks at files that are older still.
//!
//! **Why it is the owner who removes them.** What is named of older files only becomes less, so it does not matter when the
//! store made its list. The segment does not leave while its strays are looked at ([`Work`](crate::index::Work)), and each
//! has an intent in this log first, which fails where this engine is fenced. Removal may come later: nobody misses them.
//!
//! **When.** After each Adopt; every [`LOOK_AGAIN`], for what came later and for those who died having nothing that is
//! adopted; when somebody asks ([`crate::Engine::remove_strays`]). What is left of a segment that was dropped goes with it
//! ([`super::rests`]): then every file that names it is a stray.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{FileId, Result};

use crate::core::Core;
use crate::segment::Segment;
use crate::transaction::Record;

/// How often an engine looks by itself.
const LOOK_AGAIN: Duration = Duration::from_secs(1800);
/// Intents that are logged together.
const INTENTS_MAX: usize = 64;

impl Core {
    /// See [`crate::Engine::remove_strays`].
    pub(crate) async fn remove_strays(&self) -> Result<u64> {
        let mut removed = 0;
        for segment in self.all_segments() {
            removed += self.remove_strays_of(&segment).await?;
        }
        Ok(removed)
    }

    /// Removes the strays of a segment that is here, unless it is leaving. Gives how many.
    pub(super) async fn remove_strays_of(&self, segment: &Segment) -> Result<u64> {
        let (id, epoch) = (segment.id(), segment.epoch());
        // Who has it next looks again.
        let Some(_work) = self.index.begin_work(id).filter(|_| segment.check_exists().is_ok()) else { return Ok(0) };
        let found = self.store.files_of_segment(id).await?;
        let named: BTreeSet<FileId> = self.checkpoint_of(segment).files().collect();
        let is_old = |info: &files::FileInfo| info.epoch < epoch;
        let is_named = |info: &files::FileInfo| named.contains(&info.id) && !is_on("named-files-are-strays");
        let is_stray = |info: &files::FileInfo| is_old(info) && !is_named(info);
        let strays: Vec<FileId> = found.iter().filter(|info| is_stray(info)).map(|info| info.id).collect();
        for some in strays.chunks(INTENTS_MAX) {
            if segment.check_exists().is_err() {
                return Ok(0);
            }
            let intend = |&file| self.log.append(&Record::DropFile { segment: id, file }, Box::new(|_| ())).1;
            for logged in some.iter().map(intend).collect::<Vec<_>>() {
                logged.await?;
            }
            tracing::info!(segment = %id, files = ?some, "no log names these files: they are removed");
            self.files.delete_in_background(some.to_vec());
        }
        self.counters.strays.set(self.counters.strays.get() + strays.len() as u64);
        Ok(strays.len() as u64)
    }

    /// Looks for strays from time to time.
    pub(crate) async fn keep_removing_strays(self: Rc<Self>) {
        while self.can_log() {
            self.handle.sleep(LOOK_AGAIN).await;
            if let Err(error) = self.remove_strays().await {
                tracing::warn!("files that no log names stay for now: {error}");
            }
        }
    }
}
