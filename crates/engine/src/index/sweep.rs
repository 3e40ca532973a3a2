//! One pass over several sorted sources at once: what the join of them says, from left to right.
//!
//! The sweep stands at a block. Of the sources whose next entry covers it, the newest entry wins; it is given out up
//! to the next block where any source has something else to say. Entries that lose are reported, so that references
//! to data files are counted down when a merge drops them.

use super::entry::Entry;

/// Entries by block, without overlaps, of which a prefix can be passed.
pub trait Source {
    /// The next entry, or what is left of it.
    fn peek(&self) -> Option<Entry>;

    /// Passes everything below `block`.
    fn skip_to(&mut self, block: u32);
}

/// Entries in memory that are still to be passed.
#[derive(Default)]
pub struct Pending {
    /// Last first, so that passing one is popping.
    entries: Vec<Entry>,
}

impl Pending {
    /// A source of `entries`, which are sorted and do not overlap.
    pub fn new(mut entries: Vec<Entry>) -> Self {
        debug_assert!(entries.windows(2).all(|pair| pair[0].end() <= pair[1].block));
        entries.reverse();
        Pending { entries }
    }

    /// Whether all were passed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Source for Pending {
    fn peek(&self) -> Option<Entry> {
        self.entries.last().copied()
    }

    fn skip_to(&mut self, block: u32) {
        while let Some(entry) = self.entries.last_mut() {
            if entry.end() > block {
                if entry.block < block {
                    *entry = entry.clipped(block, entry.end());
                }
                return;
            }
            self.entries.pop();
        }
    }
}

/// The next piece of the join of `sources`, and past it in all of them; `None` at the end of all. The pieces come by
/// block and do not overlap; two neighbours may be of one entry. `on_loser` hears of each entry, or part of one, that
/// is hidden by the piece.
///
/// No source may be starved: one that has nothing to show counts as ended.
pub fn next_piece<S: Source>(sources: &mut [S], mut on_loser: impl FnMut(&Entry)) -> Option<Entry> {
    let at = sources.iter().filter_map(|source| source.peek()).map(|entry| entry.block).min()?;
    let (mut end, mut winner) = (u32::MAX, None::<Entry>);
    for source in sources.iter() {
        let Some(entry) = source.peek() else { continue };
        if entry.block > at {
            end = end.min(entry.block);
            continue;
        }
        end = end.min(entry.end());
        if winner.is_none_or(|best| entry.wins_over(&best)) {
            winner = Some(entry);
        }
    }
    let winner = winner?;
    let mut winner_seen = false;
    for source in sources.iter_mut() {
        let Some(entry) = source.peek() else { continue };
        if entry.block > at {
            continue;
        }
        // The same entry in two sources is one winner and one loser.
        match !winner_seen && entry.version == winner.version && entry.mapping == winner.mapping {
            true => winner_seen = true,
            false => on_loser(&entry.clipped(at, end)),
        }
        source.skip_to(end);
    }
    Some(winner.clipped(at, end))
}

/// Puts neighbouring pieces of equal tombstones together again.
#[derive(Default)]
pub struct Coalesce {
    pending: Option<Entry>,
}

impl Coalesce {
    /// Takes the next piece, and returns the one before it if it is complete.
    pub fn push(&mut self, piece: Entry) -> Option<Entry> {
        if self.continues(&piece)
            && let Some(pending) = &mut self.pending
        {
            pending.count += piece.count;
            return None;
        }
        self.pending.replace(piece)
    }

    /// Whether `piece` belongs to the piece that is still held.
    pub fn continues(&self, piece: &Entry) -> bool {
        self.pending.is_some_and(|pending| {
            pending.file().is_none()
                && piece.file().is_none()
                && pending.version == piece.version
                && pending.end() == piece.block
        })
    }

    /// Whether a piece is still held.
    pub fn has_piece(&self) -> bool {
        self.pending.is_some()
    }

    /// The last piece.
    pub fn finish(&mut self) -> Option<Entry> {
        self.pending.take()
    }
}

#[cfg(test)]
mod tests {
    use base::{FileId, Prng, SegmentSequence};

    use super::*;
    use crate::index::memtable::Memtable;

    #[test]
    fn a_sweep_is_the_join() {
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let mut parts: Vec<Memtable> = (0..prng.between(1, 5)).map(|_| Memtable::default()).collect();
            let mut all = Memtable::default();
            let mut entries = 0u64;
            for sequence in 1..=prng.between(1, 60) {
                let block = prng.below(80) as u32;
                let sequence = SegmentSequence(sequence);
                let entry = match prng.one_in(3) {
                    true => Entry::zeros(block, prng.between(1, 20) as u32, sequence),
                    false => Entry::data(block, sequence, FileId(1), block as u64 * 4096, 0),
                };
                for _ in 0..prng.between(1, 2) {
                    let part = prng.below(parts.len() as u64) as usize;
                    parts[part].join(entry, &mut ());
                }
                all.join(entry, &mut ());
            }
            let lists: Vec<Vec<Entry>> = parts.iter().map(|part| part.iter().copied().collect()).collect();
            entries += lists.iter().flatten().filter(|e| e.file().is_some()).count() as u64;
            let mut sources: Vec<Pending> = lists.into_iter().map(Pending::new).collect();
            let (mut out, mut coalesce, mut losers) = (Vec::new(), Coalesce::default(), 0);
            while let Some(piece) = next_piece(&mut sources, |loser| losers += u64::from(loser.file().is_some())) {
                out.extend(coalesce.push(piece));
            }
            out.extend(coalesce.finish());
            let winners = out.iter().filter(|e| e.file().is_some()).count() as u64;
            assert_eq!(winners + losers, entries, "seed {seed}: every data entry wins or loses once");
            for block in 0..110 {
                let found = out.iter().find(|e| e.covers(block)).map(|e| e.clipped(block, block + 1));
                assert_eq!(found, all.get(block).map(|e| e.clipped(block, block + 1)), "seed {seed}, block {block}");
            }
        }
    }
}
