//! What garbage collection does next: which data files it takes, when it only counts, how fast it may go (EBS, FAST
//! 2024, §2.2: the dirtiest files first, above a threshold that depends on how full the cluster is).
//!
//! **Intuition.** Copying live blocks is the price of the space that a file's garbage occupies; the longer one waits,
//! the more of a file is garbage and the lower the price. So while there is room, only files that are nearly all
//! garbage are collected; the threshold falls as the free space does. Among the files above it the score is benefit
//! over cost with age (Rosenblum and Ousterhout, TOCS 1992, §3.6): the garbage of an old file is there to stay, that
//! of a young one still grows by itself.
//!
//! **Names.** *Room*: free space beyond the reserve, in thousandths of all space beyond the reserve. *Reserve*: what
//! writes may not take, so that GC always has a place to copy to. *Stale*: blocks of a segment written or discarded
//! since its last count; so much garbage may be unseen.

use base::{FileId, Instant, MIB, SegmentId};

/// Settings of garbage collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GcSettings {
    /// Garbage of a file in percent from which on it is collected while there is ample room.
    pub garbage_percent_ample: u64,
    /// The same when room gets scarce; from there it falls to [`GcSettings::garbage_percent_none`].
    pub garbage_percent_scarce: u64,
    /// The same when there is no room left.
    pub garbage_percent_none: u64,
    /// Room in thousandths from which on it is ample.
    pub ample_permille: u64,
    /// Room in thousandths at which it is scarce: from here on down GC is not throttled.
    pub scarce_permille: u64,
    /// Bytes that GC may copy in a second while room is ample; twice as much half way to scarce, and so on.
    pub copy_bytes_per_sec: u64,
    /// Live bytes that one pass over a segment copies at most (but at least one file); never more than half of the
    /// free space.
    pub pass_bytes_max: u64,
    /// Files that one pass takes at most.
    pub pass_files_max: usize,
    /// A segment is counted when this share of its blocks, in percent, may be unseen garbage and room is scarce; twice
    /// the share is needed while it is ample.
    pub stale_percent: u64,
}

impl Default for GcSettings {
    fn default() -> Self {
        GcSettings {
            garbage_percent_ample: 80,
            garbage_percent_scarce: 50,
            garbage_percent_none: 5,
            ample_permille: 200,
            scarce_permille: 60,
            copy_bytes_per_sec: 64 * MIB,
            pass_bytes_max: 512 * MIB,
            pass_files_max: 16,
            stale_percent: 25,
        }
    }
}

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
    /// When it was closed.
    pub closed_at: Instant,
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
    /// See [`reserve_bytes`].
    pub reserve_bytes: u64,
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
        let between = |low: u64, high: u64, at: u64, span: u64| low + (high - low) * at / span.max(1);
        match room_permille {
            room if room >= self.ample_permille => self.garbage_percent_ample,
            room if room >= self.scarce_permille => between(
                self.garbage_percent_scarce,
                self.garbage_percent_ample,
                room - self.scarce_permille,
                self.ample_permille - self.scarce_permille,
            ),
            room => between(self.garbage_percent_none, self.garbage_percent_scarce, room, self.scarce_permille),
        }
    }

    /// Bytes that GC may copy in a second at this much room; `None`: as fast as it can.
    pub fn pace_bytes_per_sec(&self, room_permille: u64) -> Option<u64> {
        if room_permille < self.scarce_permille {
            return None;
        }
        let span = self.ample_permille.saturating_sub(self.scarce_permille).max(1);
        let above = (room_permille - self.scarce_permille).clamp(span / 16 + 1, span);
        Some(self.copy_bytes_per_sec.saturating_mul(span) / above)
    }
}

/// What to do now.
pub fn plan_gc(view: &GcView<'_>, settings: &GcSettings, now: Instant) -> GcDecision {
    let dead: Vec<FileId> = view.files.iter().filter(|file| file.live_bytes_max == 0).map(|file| file.file).collect();
    if !dead.is_empty() {
        return GcDecision::Remove(dead);
    }
    let room = view.room_permille();
    let garbage_percent = match view.writers_wait {
        true => 0,
        false => settings.garbage_percent(room),
    };
    // What is copied needs a place before anything is freed; tables and logs need some, too.
    let copied_max = view.free_bytes / 2;
    let fits = |file: &&GcFile| file.live_bytes_max <= copied_max && file.is_worth(garbage_percent);
    let mut candidates: Vec<&GcFile> = view.files.iter().filter(fits).collect();
    if candidates.is_empty() {
        return plan_count(view, settings, room);
    }
    // The best first; ties by id, so that the choice depends on nothing else.
    candidates.sort_by_key(|file| (std::cmp::Reverse(file.score(now)), file.file));
    let segment = candidates[0].segment;
    let (mut files, mut copied) = (Vec::new(), 0u64);
    for file in candidates.into_iter().filter(|file| file.segment == segment) {
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
fn plan_count(view: &GcView<'_>, settings: &GcSettings, room_permille: u64) -> GcDecision {
    let percent_min = match room_permille {
        _ if view.writers_wait => 1,
        room if room >= settings.ample_permille => 2 * settings.stale_percent,
        _ => settings.stale_percent,
    };
    let share = |segment: &GcSegment| percent(segment.stale_bytes, segment.written_bytes);
    let worth = view.segments.iter().filter(|segment| segment.written_bytes > 0 && share(segment) >= percent_min);
    match worth.max_by_key(|segment| (share(segment), std::cmp::Reverse(segment.segment))) {
        Some(segment) => GcDecision::Count(segment.segment),
        None => GcDecision::Rest,
    }
}

impl GcFile {
    fn garbage_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.live_bytes_max)
    }

    fn is_worth(&self, garbage_percent: u64) -> bool {
        self.garbage_bytes() > 0 && percent(self.garbage_bytes(), self.capacity_bytes) >= garbage_percent
    }

    /// Benefit over cost: garbage freed, times its age, by what is read and written.
    fn score(&self, now: Instant) -> u128 {
        let age_ms = now.nanos_since(self.closed_at) / 1_000_000 + 1;
        let cost = self.capacity_bytes.saturating_add(self.live_bytes_max).max(1);
        u128::from(self.garbage_bytes()) * u128::from(age_ms) * 1000 / u128::from(cost)
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100 / u128::from(whole.max(1))).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use base::{Prng, VolumeId};

    use super::*;

    const NOW: Instant = Instant(10_000_000_000);

    fn segment(index: u32) -> SegmentId {
        SegmentId { volume: VolumeId(1), index }
    }

    fn file(id: u64, live_percent: u64, age_ms: u64) -> GcFile {
        GcFile {
            file: FileId(id),
            segment: segment(0),
            capacity_bytes: 100 * MIB,
            live_bytes_max: live_percent * MIB,
            closed_at: Instant(NOW.0 - age_ms * 1_000_000),
        }
    }

    fn view<'a>(free_permille: u64, files: &'a [GcFile], segments: &'a [GcSegment]) -> GcView<'a> {
        let (capacity_bytes, reserve_bytes) = (100_000 * MIB, 2_000 * MIB);
        let free_bytes = reserve_bytes + (capacity_bytes - reserve_bytes) / 1000 * free_permille;
        GcView { capacity_bytes, free_bytes, reserve_bytes, writers_wait: false, files, segments }
    }

    fn plan(view: &GcView<'_>) -> GcDecision {
        plan_gc(view, &GcSettings::default(), NOW)
    }

    #[test]
    fn the_threshold_falls_as_the_disk_fills() {
        let settings = GcSettings::default();
        let thresholds: Vec<u64> = [1000, 200, 130, 60, 30, 0].map(|room| settings.garbage_percent(room)).into();
        assert_eq!(thresholds, [80, 80, 65, 50, 27, 5]);
        let files = [file(1, 40, 0)];
        assert_eq!(plan(&view(500, &files, &[])), GcDecision::Rest);
        let collect = GcDecision::Collect { segment: segment(0), files: vec![FileId(1)] };
        assert_eq!(plan(&view(60, &files, &[])), collect);
        let nearly_full = [file(1, 99, 0)];
        assert_eq!(plan(&view(0, &nearly_full, &[])), GcDecision::Rest);
        assert_eq!(plan(&GcView { writers_wait: true, ..view(0, &nearly_full, &[]) }), collect);
        let full = [file(1, 100, 0)];
        assert_eq!(plan(&GcView { writers_wait: true, ..view(0, &full, &[]) }), GcDecision::Rest);
    }

    #[test]
    fn dead_files_first_then_benefit_over_cost() {
        let files = [file(1, 10, 5), file(2, 0, 0), file(3, 5, 5)];
        assert_eq!(plan(&view(900, &files, &[])), GcDecision::Remove(vec![FileId(2)]));
        let files =
            [file(1, 10, 5), file(3, 5, 5), file(4, 15, 4_000), GcFile { segment: segment(1), ..file(5, 15, 1) }];
        // The old one wins over dirtier young ones; another segment waits for its own pass.
        let expected = GcDecision::Collect { segment: segment(0), files: [4, 3, 1].map(FileId).into() };
        assert_eq!(plan(&view(900, &files, &[])), expected);
    }

    #[test]
    fn a_pass_is_bounded_also_by_the_space_it_needs() {
        let files: Vec<GcFile> = (1..=40).map(|id| file(id, 10, id)).collect();
        let GcDecision::Collect { files: taken, .. } = plan(&view(900, &files, &[])) else { panic!("collect") };
        assert_eq!(taken.len(), 16);
        let tight = GcView { writers_wait: true, free_bytes: 100 * MIB, ..view(0, &files, &[]) };
        let GcDecision::Collect { files: taken, .. } = plan(&tight) else { panic!("collect") };
        assert_eq!(taken.len(), 5);
        assert_eq!(plan(&GcView { free_bytes: 19 * MIB, ..tight }), GcDecision::Rest);
        let files: Vec<GcFile> =
            (1..=40).map(|id| GcFile { capacity_bytes: 2_000 * MIB, ..file(id, 300, id) }).collect();
        let GcDecision::Collect { files: taken, .. } = plan(&view(900, &files, &[])) else { panic!("collect") };
        assert_eq!(taken.len(), 1);
    }

    #[test]
    fn a_segment_is_counted_when_much_may_be_unseen() {
        let seen =
            |index, stale| GcSegment { segment: segment(index), stale_bytes: stale * MIB, written_bytes: 100 * MIB };
        assert_eq!(plan(&view(500, &[], &[seen(0, 49), seen(1, 30)])), GcDecision::Rest);
        assert_eq!(plan(&view(500, &[], &[seen(0, 30), seen(1, 50)])), GcDecision::Count(segment(1)));
        assert_eq!(plan(&view(100, &[], &[seen(0, 30), seen(1, 29)])), GcDecision::Count(segment(0)));
        for (stale, expected) in [(1, GcDecision::Count(segment(0))), (0, GcDecision::Rest)] {
            let segments = [seen(0, stale)];
            assert_eq!(plan(&GcView { writers_wait: true, ..view(0, &[], &segments) }), expected);
        }
    }

    #[test]
    fn the_pace_rises_until_nothing_holds_it() {
        let settings = GcSettings::default();
        assert_eq!(settings.pace_bytes_per_sec(1000), Some(64 * MIB));
        let paces: Vec<Option<u64>> = (0..=1000).rev().map(|room| settings.pace_bytes_per_sec(room)).collect();
        assert!(paces.windows(2).all(|pair| pair[1].is_none() || pair[0] <= pair[1]));
        assert_eq!(settings.pace_bytes_per_sec(59), None);
    }

    #[test]
    fn any_view_gives_a_decision() {
        let mut prng = Prng::new(1);
        for _ in 0..2000 {
            let any = |prng: &mut Prng| prng.next_u64() >> prng.below(64);
            let random_file = |prng: &mut Prng| GcFile {
                file: FileId(prng.below(100)),
                segment: segment(prng.below(3) as u32),
                capacity_bytes: any(prng),
                live_bytes_max: any(prng),
                closed_at: Instant(any(prng)),
            };
            let files: Vec<GcFile> = (0..prng.below(20)).map(|_| random_file(&mut prng)).collect();
            let segments =
                [GcSegment { segment: segment(0), stale_bytes: any(&mut prng), written_bytes: any(&mut prng) }];
            let view = GcView {
                capacity_bytes: any(&mut prng),
                free_bytes: any(&mut prng),
                reserve_bytes: any(&mut prng),
                writers_wait: prng.one_in(2),
                files: &files,
                segments: &segments,
            };
            if let GcDecision::Collect { segment, files: taken } = plan(&view) {
                assert!(!taken.is_empty());
                assert!(taken.iter().all(|id| files.iter().any(|file| file.file == *id && file.segment == segment)));
            }
        }
    }
}
