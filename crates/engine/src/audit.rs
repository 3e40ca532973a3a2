//! Whether the engine's accounts agree with what they count.
//!
//! Garbage collection removes files that the ledger takes for dead, admission promises space that the ledger says is
//! there: a wrong account is lost data or a store that is full too early. The audit scans the index of every segment
//! and the list of files, and compares. Work that goes on meanwhile moves files between the two looks: what it finds
//! counts only if it is found again a moment later, as it is for [`crate::Engine::audit`]'s callers to decide.

use std::collections::{BTreeMap, BTreeSet};

use base::limits::SEGMENT_BLOCKS;
use base::{FileId, Result, SegmentId};
use files::FileKind;

use crate::core::Core;
use crate::garbage::FileGarbage;

/// Index entries that one look takes.
const SCAN_ENTRIES: usize = 4096;

impl Core {
    /// See [`crate::Engine::audit`].
    pub(crate) async fn audit(&self) -> Result<Vec<String>> {
        let mut wrong = self.audit_files();
        for segment in self.index.segments() {
            if !self.index.references_are_known(segment) {
                continue;
            }
            // Live blocks of a closed file only become fewer: what the ledger says now bounds what the scan finds.
            let before: BTreeMap<FileId, FileGarbage> =
                self.garbage.files(segment).into_iter().map(|file| (file.file, file)).collect();
            let live = self.count_live(segment).await?;
            for (file, blocks) in live {
                match before.get(&file).copied().or_else(|| self.garbage.file(file)) {
                    None => {
                        wrong.push(format!("{segment}: {blocks} blocks are in file {file}, which is in no account"))
                    }
                    Some(known) if known.segment != segment => {
                        wrong.push(format!("{segment}: {blocks} blocks are in file {file} of {}", known.segment));
                    }
                    Some(known) if known.is_closed && blocks > known.live_blocks_max => wrong.push(format!(
                        "{segment}: file {file} holds {blocks} live blocks, and is taken for one with at most {}",
                        known.live_blocks_max
                    )),
                    Some(_) => {}
                }
            }
        }
        Ok(wrong)
    }

    /// Live blocks of each data file of a segment, from its index.
    async fn count_live(&self, segment: SegmentId) -> Result<BTreeMap<FileId, u64>> {
        let (mut live, mut at) = (BTreeMap::new(), 0);
        while u64::from(at) < SEGMENT_BLOCKS {
            let scan = self.index.scan(segment, at, SCAN_ENTRIES).await?;
            for entry in scan.entries {
                if let Some(file) = entry.file() {
                    *live.entry(file).or_default() += u64::from(entry.count);
                }
            }
            at = scan.end;
        }
        Ok(live)
    }

    /// Data files that nobody accounts for, and accounts without a file or a segment.
    fn audit_files(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let segments: BTreeSet<SegmentId> = self.segments.borrow().keys().copied().collect();
        let mut known = BTreeSet::new();
        for (segment, _) in self.garbage.segments() {
            let files: Vec<FileId> = self.garbage.files(segment).into_iter().map(|file| file.file).collect();
            if !segments.contains(&segment) {
                wrong.push(format!("{segment} does not exist, and has the data files {files:?}"));
            }
            let gone = files.iter().filter(|file| self.store.info(**file).is_none());
            wrong.extend(gone.map(|file| format!("{segment}: data file {file} is in the account, and not there")));
            known.extend(files);
        }
        let data = self.store.list().into_iter().filter(|info| info.kind == FileKind::Data);
        let nobodys = data.filter(|info| !known.contains(&info.id));
        wrong.extend(nobodys.map(|info| format!("data file {} belongs to no segment", info.id)));
        wrong
    }
}

#[cfg(test)]
mod tests {
    use base::io::fragment_checksums;
    use base::{Bytes, KIB, MIB, VolumeId, WriteStamp};
    use files::memory::{Memory, MemoryOptions};
    use runtime::sim::{NodeOptions, World};

    use super::*;
    use crate::{Engine, Options};

    const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

    /// What an audit says after somebody did something to the engine.
    fn found(meddle: impl FnOnce(&Core, FileId)) -> Vec<String> {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        let store = Memory::new(1, MemoryOptions { capacity: 256 * MIB, ..MemoryOptions::default() }).open(&handle);
        let inside = handle.clone();
        let options = Options { journal_file_bytes: MIB, transaction_file_bytes: MIB, ..Options::default() };
        let engine = world.block_on(&handle, async move {
            let engine = Engine::open(&inside, &store, options).await.unwrap();
            let data = Bytes::from(vec![1; 128 << 10]);
            let checksums = fragment_checksums(SEGMENT, 0, &data);
            engine.write(SEGMENT, 0, data, checksums, WriteStamp::default()).await.unwrap();
            engine.discard(SEGMENT, 0, 64 * KIB, WriteStamp::default()).await.unwrap();
            engine
        });
        let file = engine.0.garbage.files(SEGMENT)[0].file;
        engine.0.all_segments().iter().for_each(|segment| segment.larges.close());
        world.run_for(std::time::Duration::from_secs(60));
        meddle(&engine.0, file);
        world.block_on(&handle, async move { engine.audit().await }).unwrap()
    }

    #[test]
    fn accounts_that_are_right_pass() {
        assert_eq!(found(|_, _| ()), Vec::<String>::new());
    }

    #[test]
    fn a_file_that_is_taken_for_dead_is_found() {
        let live = [(FileId(0), 0)].into_iter().collect();
        let found = found(|core, file| core.garbage.counted(SEGMENT, 0, &[file], &live));
        assert!(found[0].contains("holds 16 live blocks, and is taken for one with at most 0"), "{found:?}");
    }

    #[test]
    fn a_file_that_nobody_knows_is_found() {
        let found = found(|core, file| core.garbage.removed(file));
        assert!(found.iter().any(|what| what.contains("belongs to no segment")), "{found:?}");
        assert!(found.iter().any(|what| what.contains("in no account")), "{found:?}");
    }

    #[test]
    fn a_segment_that_does_not_exist_is_found() {
        let gone = SegmentId { volume: VolumeId(9), index: 0 };
        let found = found(|core, _| core.garbage.opened(gone, FileId(999), 4096));
        assert!(found.iter().any(|what| what.contains("does not exist")), "{found:?}");
    }
}
