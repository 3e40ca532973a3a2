//! The content of a file against a model: an array of sectors, and for each the values that power may leave.

use std::collections::BTreeSet;

use super::*;

const SECTORS: usize = 100;

struct Model {
    now: Vec<u8>,
    /// What a loss of power may leave in each sector.
    possible: Vec<BTreeSet<u8>>,
    size: u64,
    sizes: (u64, u64),
}

impl Model {
    fn new() -> Self {
        Model { now: vec![0; SECTORS], possible: vec![BTreeSet::from([0]); SECTORS], size: 0, sizes: (0, 0) }
    }

    fn write(&mut self, sectors: std::ops::Range<usize>, value: u8, reach: Reach) {
        self.grow_to(sectors.end as u64 * SECTOR, reach);
        for sector in sectors {
            self.now[sector] = value;
            if reach == Reach::Medium {
                self.possible[sector].clear();
            }
            self.possible[sector].insert(value);
        }
    }

    fn grow_to(&mut self, size: u64, reach: Reach) {
        self.size = self.size.max(size);
        self.sizes.1 = self.sizes.1.max(size);
        if reach == Reach::Medium {
            self.sizes.0 = self.sizes.0.max(size);
        }
    }

    fn set_len(&mut self, size: u64) {
        for sector in (size / SECTOR) as usize..SECTORS {
            self.now[sector] = 0;
            self.possible[sector].insert(0);
        }
        self.size = size;
        self.sizes = (self.sizes.0.min(size), self.sizes.1.max(size));
    }

    fn sync(&mut self) {
        self.sizes = (self.size, self.size);
        for (possible, now) in self.possible.iter_mut().zip(&self.now) {
            *possible = BTreeSet::from([*now]);
        }
    }

    fn check(&self, content: &Content, seed: u64) {
        assert_eq!(content.size(), self.size, "seed {seed}");
        let mut bytes = vec![1; SECTORS * SECTOR as usize];
        let count = content.read(0, &mut bytes);
        assert_eq!(count as u64, self.size, "seed {seed}");
        for (sector, bytes) in bytes[..count].chunks(SECTOR as usize).enumerate() {
            assert!(bytes.iter().all(|&byte| byte == self.now[sector]), "seed {seed}: sector {sector}");
        }
        let counted: u32 = content.chunks.values().map(|chunk| chunk.allocated.count_ones()).sum();
        assert_eq!(content.allocated(), u64::from(counted) * PAGE, "seed {seed}");
    }

    /// Takes what power left as the new truth, if it was possible. Returns how many sectors went back in time.
    fn lose_power(&mut self, content: &Content, seed: u64) -> u64 {
        let size = content.size();
        assert!((self.sizes.0..=self.sizes.1).contains(&size), "seed {seed}: {size} is not within {:?}", self.sizes);
        let mut lost = 0;
        for sector in 0..SECTORS {
            let mut bytes = [0; SECTOR as usize];
            content.read(sector as u64 * SECTOR, &mut bytes);
            assert!(bytes.iter().all(|&byte| byte == bytes[0]), "seed {seed}: sector {sector} is torn");
            let beyond = sector as u64 * SECTOR >= size;
            assert!(
                beyond || self.possible[sector].contains(&bytes[0]),
                "seed {seed}: sector {sector} holds {}, not one of {:?}",
                bytes[0],
                self.possible[sector]
            );
            lost += u64::from(bytes[0] != self.now[sector]);
            self.now[sector] = bytes[0];
        }
        self.size = size;
        self.sync();
        lost
    }
}

#[test]
fn readers_see_the_last_write_and_power_leaves_what_it_may() {
    let (mut losses, mut survivals) = (0, 0);
    for seed in 0..500 {
        let mut prng = Prng::new(seed);
        let mut content = Content::default();
        let mut model = Model::new();
        let mut value = 0;
        for _ in 0..40 {
            let start = prng.below(SECTORS as u64) as usize;
            let end = start + prng.between(1, (SECTORS - start).min(20) as u64) as usize;
            value += 1;
            match prng.below(12) {
                kind @ 0..7 => {
                    let reach = if kind < 5 { Reach::Cache } else { Reach::Medium };
                    let data = vec![value; (end - start) * SECTOR as usize];
                    content.write(start as u64 * SECTOR, &data, reach, &mut prng);
                    model.write(start..end, value, reach);
                }
                7 => {
                    let data = base::buffer::zeros((end - start) * SECTOR as usize);
                    content.write(start as u64 * SECTOR, &data, Reach::Cache, &mut prng);
                    model.write(start..end, 0, Reach::Cache);
                }
                8 => {
                    content.set_len(end as u64 * SECTOR, &mut prng);
                    model.set_len(end as u64 * SECTOR);
                }
                9 => {
                    let point = content.start_sync();
                    content.finish_sync(point);
                    model.sync();
                }
                10 => {
                    content.allocate(start as u64 * SECTOR, (end - start) as u64 * SECTOR);
                    model.grow_to(end as u64 * SECTOR, Reach::Cache);
                }
                _ => {
                    let dirty = model.possible.iter().any(|possible| possible.len() > 1);
                    content.lose_power(&mut prng);
                    let lost = model.lose_power(&content, seed);
                    losses += u64::from(dirty && lost > 0);
                    survivals += u64::from(dirty && lost == 0);
                }
            }
            model.check(&content, seed);
        }
    }
    assert!(losses > 100 && survivals > 100, "{losses} losses, {survivals} survivals");
}

#[test]
fn a_sync_covers_what_was_written_before_it_was_submitted() {
    let (mut kept, mut lost, mut short) = (0, 0, 0);
    for seed in 0..200 {
        let mut prng = Prng::new(seed);
        let mut content = Content::default();
        content.write(0, &[1; 2048], Reach::Cache, &mut prng);
        let point = content.start_sync();
        content.write(1024, &[2; 2048], Reach::Cache, &mut prng);
        content.finish_sync(point);
        content.lose_power(&mut prng);
        let mut bytes = [0; 3072];
        content.read(0, &mut bytes);
        assert!(bytes[..1024].iter().all(|&byte| byte == 1), "seed {seed}");
        assert!(bytes[1024..2048].iter().all(|&byte| byte == 1 || byte == 2), "seed {seed}");
        assert!(content.size() >= 2048, "seed {seed}");
        short += u64::from(content.size() == 2048);
        match bytes[1024] {
            2 => kept += 1,
            _ => lost += 1,
        }
    }
    assert!(kept > 20 && lost > 20 && short > 20, "{kept} kept, {lost} lost, {short} short");
}

#[test]
fn a_failed_sync_loses_some_and_leaves_nothing_dirty() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut prng = Prng::new(seed);
        let mut content = Content::default();
        content.write(0, &[1; 8192], Reach::Medium, &mut prng);
        content.write(0, &[2; 8192], Reach::Cache, &mut prng);
        content.fail_sync(&mut prng);
        let mut after = [0; 8192];
        content.read(0, &mut after);
        lost += u64::from(after.contains(&1));
        let mut later = [0; 8192];
        content.lose_power(&mut prng);
        content.read(0, &mut later);
        assert_eq!(after, later, "seed {seed}: nothing was left to lose");
    }
    assert!((20..90).contains(&lost), "{lost} of 100 lost something");
}

#[test]
fn zeros_take_up_room_but_no_memory() {
    let mut prng = Prng::new(1);
    let mut content = Content::default();
    let zeros = base::buffer::zeros(1 << 20);
    for at in 0..64 {
        content.write(at << 20, &zeros, Reach::Cache, &mut prng);
    }
    assert_eq!((content.size(), content.allocated()), (64 << 20, 64 << 20));
    let copy = content.clone();
    content.write(5 << 20, &[9; 4096], Reach::Medium, &mut prng);
    let pages = |content: &Content| {
        content.chunks.values().flat_map(|chunk| &chunk.pages).filter(|page| page.now.is_some()).count()
    };
    assert_eq!((pages(&content), pages(&copy)), (1, 0));
}

#[test]
fn holes_read_as_zeros_and_cost_nothing() {
    let mut prng = Prng::new(1);
    let mut content = Content::default();
    content.write(1 << 40, &[7; 100], Reach::Cache, &mut prng);
    assert_eq!((content.size(), content.allocated()), ((1 << 40) + 100, 4096));
    let mut bytes = [1; 200];
    assert_eq!(content.read((1 << 40) - 100, &mut bytes), 200);
    assert_eq!((bytes[99], bytes[100]), (0, 7));
    assert_eq!(content.missing(0, 8192), 8192);
    assert_eq!(content.missing((1 << 40) - 1, 2), 4096);
}
