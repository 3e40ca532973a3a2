//! What garbage collection does next: which data files it takes, when it only counts, how fast it may go (EBS, FAST
//! 2024, §2.2: the dirtiest files first, above a threshold that depends on how full the cluster is).
//!
//! **Intuition.** Copying live blocks is the price of the space that a file's garbage occupies; the longer one waits,
//! the more of a file is garbage and the lower the price. So while there is room, only files that are nearly all
//! garbage are collected. When room is scarce, those with the best benefit for their cost are, with age on the side of
//! the benefit (Rosenblum and Ousterhout, TOCS 1992, §3.6): garbage in old files stays as it is, that in young ones
//! still grows by itself. The threshold has two steps and nothing between them, and age counts with its root only:
//! in the model of a store beside the tests, a threshold that falls slowly collects young files too early (1.99
//! against 1.47 at 70% live and skewed writes), and full age is dearer under uniform ones (2.38 against 2.13).
//!
//! **Names.** *Room*: free space beyond the reserve, in thousandths of all space beyond the reserve. *Reserve*: what
//! writes may not take, so that GC always has a place to copy to. *Kept*: what GC may not take, either. *Stale*: blocks
//! of a segment written or discarded since its last count; so much garbage may be unseen. *Generation*: how often GC
//! has moved what a file holds.

use base::{FileId, Instant, MIB, SegmentId};

use crate::background::{Left, copy_pace};

/// Settings of garbage collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GcSettings {
    /// Garbage of a file in percent from which on it is collected while there is room.
    pub garbage_percent_ample: u64,
    /// The same while room is scarce.
    pub garbage_percent_scarce: u64,
    /// Room in thousandths below which it is scarce.
    pub scarce_permille: u64,
    /// Bytes that GC may copy in a second while there is room; more and more while it is scarce, without bound below
    /// half of that.
    pub copy_bytes_per_sec: u64,
    /// Live bytes that one pass over a segment copies at most (but at least one file); never more than half of the
    /// free space that is not kept for something else.
    pub pass_bytes_max: u64,
    /// Files that one pass takes at most.
    pub pass_files_max: usize,
    /// A segment is counted when this share of its blocks, in percent, may be unseen garbage, and there is room.
    pub stale_percent_ample: u64,
    /// The same while room is scarce; then a count comes before the choice that depends on it.
    pub stale_percent_scarce: u64,
}

impl Default for GcSettings {
    fn default() -> Self {
        GcSettings {
            garbage_percent_ample: 90,
            garbage_percent_scarce: 10,
            scarce_permille: 30,
            copy_bytes_per_sec: 64 * MIB,
            pass_bytes_max: 512 * MIB,
            pass_files_max: 16,
            stale_percent_ample: 50,
            stale_percent_scarce: 15,
        }
    }
}

/// Generations of files that are told apart.
pub const GENERATION_MAX: u8 = 3;

/// Space that writes may not take: at least four data files, and 2% of all.
pub fn reserve_bytes(capacity_bytes: u64, data_file_bytes: u64) -> u64 {
    (4 * data_file_bytes).max(capacity_bytes / 50)
}

/// A data file that nothing is appended to any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GcFile {
    /// The file.
    pub file: FileId,
    /// Its segment: a pass works within one.
    pub segment: SegmentId,
    /// Bytes that its removal frees.
    pub capacity_bytes: u64,
    /// Bytes that may be live, at most.
    pub live_bytes_max: u64,
    /// When what it holds was written, about: for a file that GC made, when its victims' content was.
    pub written_at: Instant,
    /// How often GC has moved what it holds, about: 0 for a file that writes made.
    pub generation: u8,
}

/// A segment with data files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GcSegment {
    /// The segment.
    pub segment: SegmentId,
    /// Bytes written or discarded since its last count.
    pub stale_bytes: u64,
    /// Bytes that are in its data files.
    pub written_bytes: u64,
}

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct GcView<'a> {
    /// Space of the store.
    pub capacity_bytes: u64,
    /// Space that can still be given to files.
    pub free_bytes: u64,
    /// What writes may not take of it: what is kept, and the place that GC copies to ([`reserve_bytes`]).
    pub reserve_bytes: u64,
    /// What GC may not take of it either: it is kept for journals, logs and tables that are to come, and promised to
    /// writes that were acknowledged.
    pub kept_bytes: u64,
    /// Whether writes wait for space.
    pub writers_wait: bool,
    /// Closed data files.
    pub files: &'a [GcFile],
    /// Segments.
    pub segments: &'a [GcSegment],
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GcDecision {
    /// Nothing is worth its price now.
    Rest,
    /// Remove files in which nothing is live.
    Remove(Vec<FileId>),
    /// Copy what is live out of these files of a segment, then remove them.
    Collect {
        /// The segment.
        segment: SegmentId,
        /// The files, best first.
        files: Vec<FileId>,
    },
    /// Scan a segment's index to learn what is garbage.
    Count(SegmentId),
}

impl GcView<'_> {
    /// Free space beyond the reserve, in thousandths of all space beyond the reserve.
    pub fn room_permille(&self) -> u64 {
        let usable = self.capacity_bytes.saturating_sub(self.reserve_bytes).max(1);
        let free = self.free_bytes.saturating_sub(self.reserve_bytes).min(usable);
        (u128::from(free) * 1000 / u128::from(usable)) as u64
    }
}

impl GcSettings {
    /// Garbage in percent from which on a file is collected at this much room.
    pub fn garbage_percent(&self, room_permille: u64) -> u64 {
        match room_permille >= self.scarce_permille {
            true => self.garbage_percent_ample,
            false => self.garbage_percent_scarce,
        }
    }

    /// Bytes that GC may copy in a second at this much room; `None`: as fast as it can. GC takes what it needs when room
    /// is scarce, whatever foreground work leaves.
    pub fn pace_bytes_per_sec(&self, room_permille: u64, left: Left) -> Option<u64> {
        let half = self.scarce_permille / 2;
        if room_permille >= self.scarce_permille && left != Left::All {
            return Some(copy_pace(self.copy_bytes_per_sec, left));
        }
        if room_permille <= half {
            return None;
        }
        // The way from scarce to half of it, and how much of it is left.
        let (way, left) = (self.scarce_permille - half, room_permille.min(self.scarce_permille) - half);
        Some(self.copy_bytes_per_sec.saturating_mul(way) / left.max(1))
    }
}

/// What to do now.
pub fn plan_gc(view: &GcView<'_>, settings: &GcSettings, now: Instant) -> GcDecision {
    let dead: Vec<FileId> = view.files.iter().filter(|file| file.live_bytes_max == 0).map(|file| file.file).collect();
    if !dead.is_empty() {
        return GcDecision::Remove(dead);
    }
    let room = view.room_permille();
    let is_scarce = view.writers_wait || room < settings.scarce_permille;
    let count = plan_count(view, settings, is_scarce);
    if is_scarce && let Some(segment) = count {
        return GcDecision::Count(segment);
    }
    let garbage_percent = match view.writers_wait {
        true => 0,
        false => settings.garbage_percent(room),
    };
    // What is copied needs a place before anything is freed. A pass that took what is kept for a log could not record
    // its moves any more, and nothing would ever free space again.
    let copied_max = view.free_bytes.saturating_sub(view.kept_bytes) / 2;
    let fits = |file: &&GcFile| file.live_bytes_max <= copied_max && file.is_worth(garbage_percent);
    let mut candidates: Vec<&GcFile> = view.files.iter().filter(fits).collect();
    if candidates.is_empty() {
        return count.map_or(GcDecision::Rest, GcDecision::Count);
    }
    // The best first; ties by id, so that the choice depends on nothing else.
    candidates.sort_by_key(|file| (std::cmp::Reverse(file.score(now)), file.file));
    // One generation at a time: what has survived equally often will live about equally long, and so will the file
    // that it goes to (as SepBIT separates blocks by their inferred lifetime; FAST 2022).
    let GcFile { segment, generation, .. } = *candidates[0];
    let (mut files, mut copied) = (Vec::new(), 0u64);
    for file in candidates.into_iter().filter(|file| file.segment == segment && file.generation == generation) {
        copied = copied.saturating_add(file.live_bytes_max);
        let is_too_much = copied > settings.pass_bytes_max.min(copied_max) || files.len() == settings.pass_files_max;
        if is_too_much && !files.is_empty() {
            break;
        }
        files.push(file.file);
    }
    GcDecision::Collect { segment, files }
}

/// The segment with the largest share of possibly unseen garbage, if that is large enough.
fn plan_count(view: &GcView<'_>, settings: &GcSettings, is_scarce: bool) -> Option<SegmentId> {
    let percent_min = match is_scarce {
        true => settings.stale_percent_scarce,
        false => settings.stale_percent_ample,
    };
    let share = |segment: &GcSegment| percent(segment.stale_bytes, segment.written_bytes);
    let worth = view.segments.iter().filter(|segment| segment.written_bytes > 0 && share(segment) >= percent_min);
    worth.max_by_key(|segment| (share(segment), std::cmp::Reverse(segment.segment))).map(|segment| segment.segment)
}

impl GcFile {
    fn garbage_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.live_bytes_max)
    }

    fn is_worth(&self, garbage_percent: u64) -> bool {
        self.garbage_bytes() > 0 && percent(self.garbage_bytes(), self.capacity_bytes) >= garbage_percent
    }

    /// Benefit over cost: garbage freed, by what is read and written, times the root of its age.
    fn score(&self, now: Instant) -> u128 {
        let age_ms = u128::from(now.nanos_since(self.written_at) / 1_000_000 + 1);
        let cost = u128::from(self.capacity_bytes.saturating_add(self.live_bytes_max).max(1));
        // In steps of a thousandth of a root of a millisecond.
        u128::from(self.garbage_bytes()) * (age_ms * 1_000_000).isqrt() / cost
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100 / u128::from(whole.max(1))).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests;
