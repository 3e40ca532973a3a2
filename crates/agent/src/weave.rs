//! Puts what the segments answered back into the volume's order. Pure functions of layout and answers.

use std::collections::VecDeque;
use std::ops::Range;

use base::limits::{GROUP_SIZE, SEGMENTS_PER_GROUP};
use base::{AllocationExtent, ReadPart};
use wire::{Layout, Piece};

/// The parts of a range of the volume, from the parts of its pieces.
pub(crate) fn weave_parts(
    layout: Layout,
    range: Range<u64>,
    pieces: impl Iterator<Item = (Piece, Vec<ReadPart>)>,
) -> Vec<ReadPart> {
    let mut pieces: Vec<(u32, VecDeque<ReadPart>)> =
        pieces.map(|(piece, parts)| (piece.segment, parts.into())).collect();
    let mut woven = Vec::new();
    for stripe in layout.stripes_of_range(range) {
        let queue = pieces.iter_mut().find(|(segment, _)| *segment == stripe.piece.segment);
        let (_, queue) = queue.expect("every stripe belongs to a piece");
        let mut left = stripe.piece.len;
        while left > 0 {
            let part = queue.pop_front().expect("the parts of a piece add up to its length");
            let taken = match part.len() > left {
                true => split_part(part, left, queue),
                false => part,
            };
            left -= taken.len();
            match (woven.last_mut(), &taken) {
                (Some(ReadPart::Zeros(before)), ReadPart::Zeros(len)) => *before += len,
                _ => woven.push(taken),
            }
        }
    }
    woven
}

/// The first `len` bytes of a part; the rest goes back to the front of the queue.
fn split_part(part: ReadPart, len: u64, queue: &mut VecDeque<ReadPart>) -> ReadPart {
    match part {
        ReadPart::Data(mut data) => {
            let first = data.split_to(len as usize);
            queue.push_front(ReadPart::Data(data));
            ReadPart::Data(first)
        }
        ReadPart::Zeros(all) => {
            queue.push_front(ReadPart::Zeros(all - len));
            ReadPart::Zeros(len)
        }
    }
}

/// What one piece is made of, consumed from its start.
struct Cursor {
    segment: u32,
    extents: VecDeque<AllocationExtent>,
}

impl Cursor {
    fn new(piece: Piece, extents: Vec<AllocationExtent>) -> Self {
        let mut extents: VecDeque<_> = extents.into_iter().filter(|extent| extent.len > 0).collect();
        if extents.is_empty() {
            // To call something data is always safe.
            extents.push_back(AllocationExtent { len: piece.len, allocated: true });
        }
        Cursor { segment: piece.segment, extents }
    }

    fn advance(&mut self, len: u64) {
        let first = self.extents.front_mut().expect("only what is there is consumed");
        first.len -= len;
        if first.len == 0 {
            self.extents.pop_front();
        }
    }
}

/// The extents of a range of the volume from its start on, at least one and at most `extents_max`, from those of its
/// pieces. It ends where the first piece's answer ends.
pub(crate) fn weave_extents(
    layout: Layout,
    range: Range<u64>,
    pieces: impl Iterator<Item = (Piece, Vec<AllocationExtent>)>,
    extents_max: usize,
) -> Vec<AllocationExtent> {
    let mut cursors: Vec<Cursor> = pieces.map(|(piece, extents)| Cursor::new(piece, extents)).collect();
    let mut woven: Vec<AllocationExtent> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let next = match whole_rows(layout, at..range.end, &mut cursors) {
            Some(rows) => rows,
            None => match one_stripe(layout, at..range.end, &mut cursors) {
                Some(stripe) => stripe,
                None => break,
            },
        };
        at += next.len;
        let full = woven.len() == extents_max.max(1);
        match woven.last_mut() {
            Some(last) if last.allocated == next.allocated => last.len += next.len,
            Some(_) if full => break,
            _ => woven.push(next),
        }
    }
    woven
}

/// As many whole rows of data sectors as are of one kind in all four segments: most ranges are a few such steps.
fn whole_rows(layout: Layout, range: Range<u64>, cursors: &mut [Cursor]) -> Option<AllocationExtent> {
    let row = layout.data_sector_bytes() * SEGMENTS_PER_GROUP;
    let group = range.start / GROUP_SIZE;
    if !(range.start % GROUP_SIZE).is_multiple_of(row) {
        return None;
    }
    let segments = (group * SEGMENTS_PER_GROUP) as u32..((group + 1) * SEGMENTS_PER_GROUP) as u32;
    let mut rows = (range.end.min((group + 1) * GROUP_SIZE) - range.start) / row;
    let (mut allocated, mut found) = (None, 0);
    for cursor in cursors.iter().filter(|cursor| segments.contains(&cursor.segment)) {
        let first = cursor.extents.front()?;
        if *allocated.get_or_insert(first.allocated) != first.allocated {
            return None;
        }
        rows = rows.min(first.len / layout.data_sector_bytes());
        found += 1;
    }
    if rows == 0 || found != SEGMENTS_PER_GROUP {
        return None;
    }
    for cursor in cursors.iter_mut().filter(|cursor| segments.contains(&cursor.segment)) {
        cursor.advance(rows * layout.data_sector_bytes());
    }
    Some(AllocationExtent { len: rows * row, allocated: allocated? })
}

/// What is known about the data sector at the start of the range.
fn one_stripe(layout: Layout, range: Range<u64>, cursors: &mut [Cursor]) -> Option<AllocationExtent> {
    let stripe = layout.stripes_of_range(range).next()?;
    let cursor = cursors.iter_mut().find(|cursor| cursor.segment == stripe.piece.segment)?;
    let first = *cursor.extents.front()?;
    let len = first.len.min(stripe.piece.len);
    cursor.advance(len);
    Some(AllocationExtent { len, allocated: first.allocated })
}

#[cfg(test)]
mod tests {
    use base::{Bytes, KIB, Prng};

    use super::*;

    /// A volume as the test knows it: which of its 512-byte sectors hold data.
    fn is_data(seed: u64, address: u64) -> bool {
        let run = 1 << (seed % 9);
        Prng::new(seed ^ (address / 512 / run)).one_in(2)
    }

    /// What an owner would answer for a piece, cut at random, and possibly short.
    fn extents_of(layout: Layout, piece: Piece, seed: u64, most: usize) -> Vec<AllocationExtent> {
        let mut extents: Vec<AllocationExtent> = Vec::new();
        for offset in (piece.offset..piece.offset + piece.len).step_by(512) {
            let allocated = is_data(seed, layout.volume_offset(piece.segment, offset));
            let count = extents.len();
            match extents.last_mut() {
                Some(last) if last.allocated == allocated => last.len += 512,
                _ if count == most => break,
                _ => extents.push(AllocationExtent { len: 512, allocated }),
            }
        }
        extents
    }

    #[test]
    fn extents_are_those_of_the_volume() {
        let mut short = 0;
        for seed in 0..2_000 {
            let mut prng = Prng::new(seed);
            let layout = Layout::new((4 * KIB) << prng.below(4));
            let start = (GROUP_SIZE - 256 * KIB) + 512 * prng.below(512);
            let range = start..start + 512 * prng.between(1, 600);
            let (most, asked) = (prng.between(1, 12) as usize, prng.between(1, 30) as usize);
            let pieces = layout.pieces(range.clone()).map(|piece| (piece, extents_of(layout, piece, seed, asked)));
            let woven = weave_extents(layout, range.clone(), pieces, most);
            assert!(!woven.is_empty() && woven.len() <= most, "seed {seed}");
            assert!(woven.windows(2).all(|pair| pair[0].allocated != pair[1].allocated), "seed {seed}: merged");
            let mut at = range.start;
            for extent in &woven {
                for address in (at..at + extent.len).step_by(512) {
                    assert_eq!(is_data(seed, address), extent.allocated, "seed {seed} at {address}");
                }
                at += extent.len;
            }
            assert!(at <= range.end);
            short += usize::from(at < range.end);
            assert!(at == range.end || woven.len() == most || asked < 30, "seed {seed}: short for a reason");
        }
        assert!(short > 100, "the test reaches what it checks: {short}");
    }

    #[test]
    fn a_huge_hole_is_one_extent_in_few_steps() {
        let layout = Layout::new(4 * KIB);
        let range = 4 * KIB..3 * GROUP_SIZE + 512;
        let pieces = layout
            .pieces(range.clone())
            .map(|piece| (piece, vec![AllocationExtent { len: piece.len, allocated: false }]));
        let woven = weave_extents(layout, range.clone(), pieces, 1);
        assert_eq!(woven, [AllocationExtent { len: range.end - range.start, allocated: false }]);
    }

    #[test]
    fn parts_are_those_of_the_volume() {
        for seed in 0..1_000 {
            let mut prng = Prng::new(seed);
            let layout = Layout::new((4 * KIB) << prng.below(3));
            let start = (GROUP_SIZE - 64 * KIB) + 512 * prng.below(128);
            let range = start..start + 512 * prng.between(1, 400);
            let mut content = vec![0u8; (range.end - range.start) as usize];
            prng.fill(&mut content);
            for (n, sector) in content.chunks_mut(512).enumerate() {
                if !is_data(seed, start + n as u64 * 512) {
                    sector.fill(0);
                }
            }
            let content = Bytes::from(content);
            let pieces = layout.pieces(range.clone()).map(|piece| {
                let parts = layout.stripes(piece).flat_map(|stripe| {
                    let from = (stripe.volume_offset - start) as usize;
                    (from..from + stripe.piece.len as usize).step_by(512).map(|at| {
                        match is_data(seed, start + at as u64) {
                            true => ReadPart::Data(content.slice(at..at + 512)),
                            false => ReadPart::Zeros(512),
                        }
                    })
                });
                // Neighbours are merged, so that a part may span stripes.
                let mut merged: Vec<ReadPart> = Vec::new();
                for part in parts {
                    match (merged.last_mut(), part) {
                        (Some(ReadPart::Zeros(len)), ReadPart::Zeros(more)) => *len += more,
                        (Some(ReadPart::Data(data)), ReadPart::Data(more)) => {
                            *data = [&data[..], &more].concat().into()
                        }
                        (_, part) => merged.push(part),
                    }
                }
                (piece, merged)
            });
            let pieces: Vec<_> = pieces.collect();
            let read: Vec<u8> = weave_parts(layout, range, pieces.into_iter())
                .into_iter()
                .flat_map(|part| match part {
                    ReadPart::Data(data) => data.to_vec(),
                    ReadPart::Zeros(len) => vec![0; len as usize],
                })
                .collect();
            assert!(read == content, "seed {seed}");
        }
    }
}
