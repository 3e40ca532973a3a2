//! Which tables of a segment's index are merged: size-tiered, newest first.
//!
//! A flush makes a small table. Tables of about one size are merged into one of the next size, so that an entry is
//! written again about once for each factor of [`MergeSettings::width`] by which the index is larger than a memtable,
//! and a lookup asks few tables. Only a run that begins with the newest table is merged: then later tables hold later
//! writes, and a lookup that found a recent entry can skip the older ones.

/// Settings of [`plan_merge`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeSettings {
    /// Tables of about one size that are worth a merge, at least 2.
    pub width: usize,
    /// A table joins the run while it is not larger than this many hundredths of what the run holds already.
    pub size_ratio_percent: u64,
    /// Above this number of tables something is merged in any case, at least 2.
    pub tables_max: usize,
}

impl Default for MergeSettings {
    fn default() -> Self {
        MergeSettings { width: 4, size_ratio_percent: 100, tables_max: 8 }
    }
}

/// How many of the newest tables to merge now, given the size of each (any unit), newest first; 0: none.
pub fn plan_merge(sizes: &[u64], settings: &MergeSettings) -> usize {
    let mut run = 0;
    let mut held = 0u64;
    for (index, &size) in sizes.iter().enumerate() {
        let limit = held.saturating_mul(settings.size_ratio_percent) / 100;
        if index > 0 && size > limit {
            break;
        }
        held = held.saturating_add(size);
        run = index + 1;
    }
    let too_many = sizes.len() > settings.tables_max;
    if run >= settings.width || (too_many && run >= 2) {
        return run;
    }
    match too_many {
        true => cheapest_run(sizes),
        false => 0,
    }
}

/// The run of at least two that writes least for each table that it removes.
fn cheapest_run(sizes: &[u64]) -> usize {
    let mut written = sizes.first().copied().unwrap_or(0);
    let mut best = (u64::MAX, 0);
    for (index, &size) in sizes.iter().enumerate().skip(1) {
        written = written.saturating_add(size);
        let cost = written / index as u64;
        if cost < best.0 {
            best = (cost, index + 1);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tables_are_merged_and_a_large_one_is_left_alone() {
        let settings = MergeSettings::default();
        assert_eq!(plan_merge(&[], &settings), 0);
        assert_eq!(plan_merge(&[1, 1, 1], &settings), 0);
        assert_eq!(plan_merge(&[1, 1, 1, 1], &settings), 4);
        assert_eq!(plan_merge(&[1, 1, 1, 1, 100], &settings), 4);
        assert_eq!(plan_merge(&[1, 1, 1, 1, 4, 8, 100], &settings), 6);
        assert_eq!(plan_merge(&[1, 100, 100], &settings), 0);
    }

    #[test]
    fn too_many_tables_are_merged_in_any_case() {
        let settings = MergeSettings::default();
        let growing = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
        assert_eq!(plan_merge(&growing, &settings), 2);
        assert_eq!(plan_merge(&growing[1..], &settings), 0);
    }

    #[test]
    fn few_tables_and_little_rewriting_in_the_long_run() {
        let settings = MergeSettings::default();
        let (mut tables, mut written, flushes) = (Vec::<u64>::new(), 0u64, 4096u64);
        for _ in 0..flushes {
            tables.insert(0, 1);
            written += 1;
            while let run @ 1.. = plan_merge(&tables, &settings) {
                let merged: u64 = tables.drain(..run).sum();
                tables.insert(0, merged);
                written += merged;
            }
            assert!(tables.len() <= settings.tables_max, "{tables:?}");
        }
        assert_eq!(tables.iter().sum::<u64>(), flushes);
        let rewrites = written as f64 / flushes as f64;
        assert!(rewrites < 12.0, "an entry is written {rewrites} times");
    }
}
