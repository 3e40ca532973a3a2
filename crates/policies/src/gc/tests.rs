use std::collections::BTreeMap;

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
        written_at: Instant(NOW.0 - age_ms * 1_000_000),
        generation: 0,
    }
}

fn view<'a>(free_permille: u64, files: &'a [GcFile], segments: &'a [GcSegment]) -> GcView<'a> {
    let (capacity_bytes, reserve_bytes) = (100_000 * MIB, 2_000 * MIB);
    let free_bytes = reserve_bytes + (capacity_bytes - reserve_bytes) / 1000 * free_permille;
    GcView { capacity_bytes, free_bytes, reserve_bytes, kept_bytes: 0, writers_wait: false, files, segments }
}

fn plan(view: &GcView<'_>) -> GcDecision {
    plan_gc(view, &GcSettings::default(), NOW)
}

#[test]
fn the_threshold_falls_when_room_is_scarce() {
    let files = [file(1, 60, 0)];
    assert_eq!(plan(&view(30, &files, &[])), GcDecision::Rest);
    let collect = GcDecision::Collect { segment: segment(0), files: vec![FileId(1)] };
    assert_eq!(plan(&view(29, &files, &[])), collect);
    assert_eq!(plan(&view(500, &[file(1, 10, 0)], &[])), collect);
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
    let files = [
        file(1, 9, 5),
        file(3, 5, 5),
        file(4, 10, 4_000),
        GcFile { segment: segment(1), ..file(5, 5, 1) },
        GcFile { generation: 1, ..file(6, 5, 1) },
    ];
    // The old one wins over dirtier young ones; another segment, another generation waits for its own pass.
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
    // What is kept for logs is no place to copy to.
    let GcDecision::Collect { files: taken, .. } = plan(&GcView { kept_bytes: 40 * MIB, ..tight }) else {
        panic!("collect")
    };
    assert_eq!(taken.len(), 3);
    assert_eq!(plan(&GcView { kept_bytes: 90 * MIB, ..tight }), GcDecision::Rest);
    let files: Vec<GcFile> = (1..=40).map(|id| GcFile { capacity_bytes: 2_000 * MIB, ..file(id, 190, id) }).collect();
    let GcDecision::Collect { files: taken, .. } = plan(&view(900, &files, &[])) else { panic!("collect") };
    assert_eq!(taken.len(), 2);
}

#[test]
fn a_segment_is_counted_when_much_may_be_unseen() {
    let seen = |index, stale| GcSegment { segment: segment(index), stale_bytes: stale * MIB, written_bytes: 100 * MIB };
    let dirty = [file(1, 5, 0)];
    let collect = GcDecision::Collect { segment: segment(0), files: vec![FileId(1)] };
    assert_eq!(plan(&view(500, &[], &[seen(0, 49), seen(1, 30)])), GcDecision::Rest);
    assert_eq!(plan(&view(500, &[], &[seen(0, 30), seen(1, 50)])), GcDecision::Count(segment(1)));
    assert_eq!(plan(&view(500, &dirty, &[seen(1, 50)])), collect);
    // Where room is scarce, what is known should be known well.
    assert_eq!(plan(&view(20, &dirty, &[seen(0, 15)])), GcDecision::Count(segment(0)));
    assert_eq!(plan(&view(20, &dirty, &[seen(0, 14)])), collect);
    assert_eq!(plan(&GcView { writers_wait: true, ..view(0, &dirty, &[seen(0, 14)]) }), collect);
}

#[test]
fn the_pace_rises_until_nothing_holds_it() {
    let settings = GcSettings::default();
    assert_eq!(settings.pace_bytes_per_sec(1000, Left::All), Some(64 * MIB));
    assert_eq!(settings.pace_bytes_per_sec(30, Left::All), Some(64 * MIB));
    assert_eq!(settings.pace_bytes_per_sec(20, Left::All), Some(192 * MIB));
    assert_eq!(settings.pace_bytes_per_sec(15, Left::All), None);
    let beside = |spare| settings.pace_bytes_per_sec(1000, Left::Bytes(spare));
    assert_eq!(
        [0, 32 * MIB, 1 << 40].map(beside),
        [4 * MIB, 16 * MIB, 64 * MIB].map(Some),
        "what is left of the disks"
    );
    assert_eq!(settings.pace_bytes_per_sec(20, Left::Bytes(0)), Some(192 * MIB), "room comes first");
    let paces: Vec<Option<u64>> = (0..=1000).rev().map(|room| settings.pace_bytes_per_sec(room, Left::All)).collect();
    assert!(paces.windows(2).all(|pair| pair[1].is_none() || pair[0] <= pair[1]));
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
            written_at: Instant(any(prng)),
            generation: prng.below(3) as u8,
        };
        let files: Vec<GcFile> = (0..prng.below(20)).map(|_| random_file(&mut prng)).collect();
        let segments = [GcSegment { segment: segment(0), stale_bytes: any(&mut prng), written_bytes: any(&mut prng) }];
        let view = GcView {
            capacity_bytes: any(&mut prng),
            free_bytes: any(&mut prng),
            reserve_bytes: any(&mut prng),
            kept_bytes: any(&mut prng),
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

/// A store of one segment without bytes: which block is in which file, and everything is known exactly.
struct Model {
    file_blocks: u64,
    capacity_files: u64,
    file_of: Vec<u64>,
    files: BTreeMap<u64, ModelFile>,
    next_file: u64,
    /// The file that writes go to.
    open: u64,
    clock: u64,
    written: u64,
    moved: u64,
}

#[derive(Default)]
struct ModelFile {
    live: u64,
    blocks: Vec<usize>,
    closed: bool,
    written_at: u64,
    generation: u8,
}

impl Model {
    fn open(&mut self, generation: u8, written_at: u64) -> u64 {
        self.next_file += 1;
        self.files.insert(self.next_file, ModelFile { generation, written_at, ..ModelFile::default() });
        self.next_file
    }

    fn put(&mut self, block: usize, file: u64) {
        if let Some(old) = self.files.get_mut(&self.file_of[block]) {
            old.live -= 1;
        }
        self.file_of[block] = file;
        let file = self.files.get_mut(&file).unwrap();
        file.live += 1;
        file.blocks.push(block);
    }

    fn write(&mut self, block: usize) {
        if self.files[&self.open].blocks.len() as u64 == self.file_blocks {
            self.files.get_mut(&self.open).unwrap().closed = true;
            self.open = self.open(0, self.clock);
        }
        self.put(block, self.open);
        self.written += 1;
    }

    fn collect(&mut self, settings: &GcSettings, reserve_files: u64) -> bool {
        let file_bytes = self.file_blocks * 4096;
        let file = |(&id, file): (&u64, &ModelFile)| GcFile {
            file: FileId(id),
            segment: segment(0),
            capacity_bytes: file.blocks.len() as u64 * 4096,
            live_bytes_max: file.live * 4096,
            written_at: Instant(file.written_at),
            generation: file.generation,
        };
        let files: Vec<GcFile> = self.files.iter().filter(|(_, file)| file.closed).map(file).collect();
        let used: u64 =
            self.files.values().map(|file| if file.closed { file.blocks.len() as u64 } else { self.file_blocks }).sum();
        let free = (self.capacity_files * self.file_blocks).saturating_sub(used);
        let view = GcView {
            capacity_bytes: self.capacity_files * file_bytes,
            free_bytes: free * 4096,
            reserve_bytes: reserve_files * file_bytes,
            kept_bytes: 0,
            writers_wait: free <= reserve_files * self.file_blocks,
            files: &files,
            segments: &[],
        };
        let removed = match plan_gc(&view, settings, Instant(self.clock)) {
            GcDecision::Remove(files) => files,
            GcDecision::Collect { files, .. } => {
                self.move_live(&files);
                files
            }
            _ => return false,
        };
        for file in removed {
            assert_eq!(self.files.remove(&file.0).unwrap().live, 0);
        }
        true
    }

    fn move_live(&mut self, victims: &[FileId]) {
        let generation = (self.files[&victims[0].0].generation + 1).min(GENERATION_MAX);
        let live: u64 = victims.iter().map(|file| self.files[&file.0].live).sum();
        let aged: u64 = victims.iter().map(|file| self.files[&file.0].live * self.files[&file.0].written_at).sum();
        let mut destination = self.open(generation, aged / live.max(1));
        for victim in victims {
            for block in self.files[&victim.0].blocks.clone() {
                if self.file_of[block] != victim.0 {
                    continue;
                }
                if self.files[&destination].blocks.len() as u64 == self.file_blocks {
                    self.files.get_mut(&destination).unwrap().closed = true;
                    destination = self.open(generation, aged / live.max(1));
                }
                self.put(block, destination);
                self.moved += 1;
            }
        }
        self.files.get_mut(&destination).unwrap().closed = true;
    }
}

fn amplification(settings: &GcSettings, live_percent: u64, next: impl Fn(&mut Prng, u64) -> u64) -> f64 {
    let (blocks, file_blocks, reserve_files) = (60_000u64, 256u64, 4u64);
    let capacity_files = blocks * 100 / live_percent / file_blocks + reserve_files;
    let mut model = Model {
        file_blocks,
        capacity_files,
        file_of: vec![0; blocks as usize],
        files: BTreeMap::new(),
        next_file: 0,
        open: 0,
        clock: 0,
        written: 0,
        moved: 0,
    };
    model.open = model.open(0, 0);
    let mut prng = Prng::new(1);
    for i in 0..blocks * 8 {
        if i == blocks * 4 {
            (model.written, model.moved) = (0, 0);
        }
        let block = if i < blocks { i } else { next(&mut prng, blocks) };
        model.clock += 100_000;
        model.write(block as usize);
        if i % file_blocks == 0 {
            while model.collect(settings, reserve_files) {}
        }
    }
    (model.written + model.moved) as f64 / model.written as f64
}

/// EBS asks for less than 1.5 on its most stressed clusters (FAST 2024, §2.2). Greedy collection of one stream under
/// uniform writes cannot be below 1.9 at 70% live; skewed writes are what disks see.
#[test]
fn amplification_of_the_model_stays_low() {
    let uniform = |prng: &mut Prng, blocks: u64| prng.below(blocks);
    // Nine of ten writes go to a tenth of the blocks.
    let skewed = |prng: &mut Prng, blocks: u64| match prng.below(10) {
        0 => prng.below(blocks),
        _ => prng.below(blocks / 10) * 10,
    };
    for (live_percent, uniform_max, skewed_max) in [(50, 1.45, 1.25), (70, 2.3, 1.5)] {
        let settings = GcSettings::default();
        let uniform = amplification(&settings, live_percent, uniform);
        let skewed = amplification(&settings, live_percent, skewed);
        println!("{live_percent}% live: uniform {uniform:.2}, skewed {skewed:.2}");
        assert!(uniform < uniform_max && skewed < skewed_max, "{live_percent}%: {uniform:.2}, {skewed:.2}");
    }
}
