//! Which writes stand in which journal file: what decides when a file may go, what to dump first, and where a replay
//! starts.
//!
//! Intuition: a journal file is needed as long as one segment has a write in it that is not dumped. To know that it is
//! enough to remember, for each segment, the last sequence in the file. The same is kept for each *chapter* of a
//! file, a few MiB, so that a replay can start in the middle of one.
//!
//! Invariants: files are in journal order; they leave from the front only, so that the journal on disk has no gap;
//! only confirmed writes are in the ledger.

use std::collections::VecDeque;

use base::seeded::is_on;
use base::{FileId, LogSequence, Map, SegmentId, SegmentSequence};

use super::{JournalPosition, OldestUndumped};

/// Chapters of a full file.
const CHAPTERS_PER_FILE: u64 = 16;

/// The files of one journal that exist, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    files: VecDeque<LedgerFile>,
}

/// What is known of one file.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    pub(crate) file: FileId,
    chapter_bytes: u64,
    chapters: Vec<Chapter>,
    /// Where its confirmed content ends: the next append would stand here.
    end: u64,
    next: LogSequence,
    stage: Stage,
}

/// A file's life, from its first append to its deletion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It may get appends, or some of them are in flight.
    Open,
    /// It is being sealed.
    Ending,
    /// It waits for its writes to be dumped.
    Finished,
    /// It is being deleted.
    Leaving,
}

#[derive(Debug)]
struct Chapter {
    offset: u64,
    sequence: LogSequence,
    /// The last sequence of each segment in it.
    last: Map<SegmentId, SegmentSequence>,
}

impl LedgerFile {
    /// A file without writes whose next append is `next`, at `start`.
    pub(crate) fn new(file: FileId, capacity: u64, start: u64, next: LogSequence) -> Self {
        let chapter_bytes = (capacity / CHAPTERS_PER_FILE).max(1);
        LedgerFile { file, chapter_bytes, chapters: Vec::new(), end: start, next, stage: Stage::Open }
    }

    /// Where its confirmed content ends.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The log sequence of the append that would stand there.
    pub(crate) fn next(&self) -> LogSequence {
        self.next
    }

    /// What lies before `offset` is lost.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        assert!(offset >= self.end, "a replay goes forward");
        self.end = offset;
    }

    /// It is sealed, or could not be: it is as it stays.
    pub(crate) fn on_ended(&mut self) {
        self.stage = Stage::Finished;
    }

    /// Takes in an append of `len` bytes at its end.
    pub(crate) fn on_append(
        &mut self,
        sequence: LogSequence,
        len: u64,
        writes: impl Iterator<Item = (SegmentId, SegmentSequence)>,
    ) {
        let fits = self.chapters.last().is_some_and(|chapter| self.end - chapter.offset < self.chapter_bytes);
        if !fits {
            self.chapters.push(Chapter { offset: self.end, sequence, last: Map::default() });
        }
        let chapter = self.chapters.last_mut().expect("a chapter was just made");
        for (segment, write) in writes {
            let last = chapter.last.entry(segment).or_default();
            *last = write.max(*last);
        }
        self.end += len;
        self.next = LogSequence(sequence.0 + 1);
    }

    fn first_undumped(&self, dumped_through: &impl Fn(SegmentId) -> SegmentSequence) -> Option<JournalPosition> {
        let chapter = self.chapters.iter().find(|chapter| chapter.undumped(dumped_through).next().is_some())?;
        Some(JournalPosition { file: self.file, offset: chapter.offset, sequence: chapter.sequence })
    }
}

impl Chapter {
    fn undumped<'a>(
        &'a self,
        dumped_through: &'a impl Fn(SegmentId) -> SegmentSequence,
    ) -> impl Iterator<Item = SegmentId> + 'a {
        self.last.iter().filter(move |(segment, last)| dumped_through(**segment) < **last).map(|(segment, _)| *segment)
    }
}

impl Ledger {
    /// A ledger of the files of earlier incarnations, in journal order.
    pub(crate) fn new(files: impl IntoIterator<Item = LedgerFile>) -> Self {
        Ledger { files: files.into_iter().collect() }
    }

    /// How many files exist.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Files that take no more appends.
    pub(crate) fn finished(&self) -> usize {
        self.files.iter().filter(|file| file.stage != Stage::Open).count()
    }

    /// Adds the newest file.
    pub(crate) fn push(&mut self, file: LedgerFile) {
        self.files.push_back(file);
    }

    /// A file that exists.
    pub(crate) fn file(&mut self, file: FileId) -> Option<&mut LedgerFile> {
        // Nearly always the newest one.
        self.files.iter_mut().rev().find(|known| known.file == file)
    }

    /// Forgets a file that was deleted.
    pub(crate) fn remove(&mut self, file: FileId) {
        self.files.retain(|known| known.file != file);
    }

    /// Whether no file gets appends, is being sealed or deleted.
    pub(crate) fn is_quiet(&self) -> bool {
        self.files.iter().all(|file| file.stage == Stage::Finished)
    }

    /// The files that are not in use any more and have to be sealed now.
    pub(crate) fn plan_end(&mut self, in_use: impl Fn(FileId) -> bool) -> Vec<FileId> {
        let ending = self.files.iter_mut().filter(|file| file.stage == Stage::Open && !in_use(file.file));
        ending
            .map(|file| {
                file.stage = Stage::Ending;
                file.file
            })
            .collect()
    }

    /// The oldest file, if it is finished and nothing in it is needed any more: it is to be deleted.
    pub(crate) fn plan_trim(&mut self, dumped_through: &impl Fn(SegmentId) -> SegmentSequence) -> Option<FileId> {
        let oldest = self.files.front_mut()?;
        let is_dumped = oldest.first_undumped(dumped_through).is_none() || is_on("journal-trimmed-early");
        let needless = oldest.stage == Stage::Finished && is_dumped;
        needless.then(|| {
            oldest.stage = Stage::Leaving;
            oldest.file
        })
    }

    /// The oldest files, as far as they take no more appends and nothing in them is needed any more.
    pub(crate) fn dumped_files(&self, dumped_through: &impl Fn(SegmentId) -> SegmentSequence) -> Vec<FileId> {
        let is_ended = |file: &&LedgerFile| matches!(file.stage, Stage::Finished | Stage::Leaving);
        let is_dumped = |file: &&LedgerFile| is_ended(file) && file.first_undumped(dumped_through).is_none();
        self.files.iter().take_while(is_dumped).map(|file| file.file).collect()
    }

    /// See [`OldestUndumped`].
    pub(crate) fn oldest_undumped(
        &self,
        dumped_through: &impl Fn(SegmentId) -> SegmentSequence,
    ) -> Option<OldestUndumped> {
        let (file, position) = self.files.iter().find_map(|file| Some((file, file.first_undumped(dumped_through)?)))?;
        let mut segments: Vec<SegmentId> =
            file.chapters.iter().flat_map(|chapter| chapter.undumped(dumped_through)).collect();
        segments.sort_unstable();
        segments.dedup();
        Some(OldestUndumped { position, segments })
    }

    /// Where a replay would start now: at the oldest write that is not dumped, or at the journal's end.
    pub(crate) fn replay_start(
        &self,
        dumped_through: &impl Fn(SegmentId) -> SegmentSequence,
    ) -> Option<JournalPosition> {
        let oldest = self.files.iter().find_map(|file| file.first_undumped(dumped_through));
        let oldest = oldest.filter(|_| !is_on("replay-starts-late"));
        let end = |file: &LedgerFile| JournalPosition { file: file.file, offset: file.end, sequence: file.next };
        // A file that still may change can get writes that are confirmed later: a replay must not start behind them.
        oldest.or_else(|| self.files.iter().find(|file| file.stage == Stage::Open).or(self.files.back()).map(end))
    }
}

#[cfg(test)]
mod tests {
    use base::{MIB, VolumeId};

    use super::*;

    fn segment(index: u32) -> SegmentId {
        SegmentId { volume: VolumeId(1), index }
    }

    fn through(dumped: [u64; 2]) -> impl Fn(SegmentId) -> SegmentSequence {
        move |segment| SegmentSequence(dumped[segment.index as usize])
    }

    fn at(file: u64, offset: u64, sequence: u64) -> Option<JournalPosition> {
        Some(JournalPosition { file: FileId(file), offset, sequence: LogSequence(sequence) })
    }

    /// Two files of 1 MiB, so with chapters of 64 KiB: six appends of 32 KiB to segment 0, then three to segment 1.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        let mut next = 1;
        for (file, index, appends) in [(1, 0, 6), (2, 1, 3)] {
            ledger.push(LedgerFile::new(FileId(file), MIB, 0, LogSequence(next)));
            for write in 1..=appends {
                let writes = std::iter::once((segment(index), SegmentSequence(write)));
                ledger.file(FileId(file)).unwrap().on_append(LogSequence(next), 32 * 1024, writes);
                next += 1;
            }
        }
        ledger
    }

    #[test]
    fn a_replay_starts_at_the_chapter_of_the_oldest_undumped_write() {
        let ledger = ledger();
        assert_eq!(ledger.replay_start(&through([0, 0])), at(1, 0, 1));
        assert_eq!(ledger.replay_start(&through([1, 9])), at(1, 0, 1), "write 2 is in the first chapter");
        assert_eq!(ledger.replay_start(&through([2, 0])), at(1, 64 * 1024, 3));
        assert_eq!(ledger.replay_start(&through([6, 0])), at(2, 0, 7));
        let oldest = ledger.oldest_undumped(&through([5, 0])).unwrap();
        assert_eq!((Some(oldest.position), oldest.segments), (at(1, 128 * 1024, 5), vec![segment(0)]));
        assert_eq!(ledger.oldest_undumped(&through([6, 3])), None);
    }

    #[test]
    fn a_replay_never_starts_behind_what_may_still_be_confirmed() {
        let mut ledger = ledger();
        let dumped = through([9, 9]);
        // The last appends of the first file are still in flight.
        assert_eq!(ledger.replay_start(&dumped), at(1, 192 * 1024, 7));
        ledger.file(FileId(1)).unwrap().on_ended();
        assert_eq!(ledger.replay_start(&dumped), at(2, 96 * 1024, 10));
        ledger.file(FileId(2)).unwrap().on_ended();
        assert_eq!(ledger.replay_start(&dumped), at(2, 96 * 1024, 10));
    }

    #[test]
    fn files_leave_from_the_front_when_they_are_finished_and_dumped() {
        let mut ledger = ledger();
        assert_eq!(ledger.plan_trim(&through([9, 9])), None, "it may get appends");
        assert_eq!(ledger.plan_end(|file| file == FileId(2)), [FileId(1)]);
        assert_eq!((ledger.plan_trim(&through([9, 9])), ledger.finished()), (None, 1), "it is being sealed");
        ledger.file(FileId(1)).unwrap().on_ended();
        assert_eq!(ledger.plan_trim(&through([5, 9])), None);
        assert_eq!(ledger.plan_trim(&through([6, 0])), Some(FileId(1)));
        assert_eq!(ledger.plan_trim(&through([6, 0])), None, "once");
        ledger.remove(FileId(1));
        assert_eq!(ledger.len(), 1);
    }
}
