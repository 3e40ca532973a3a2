//! Where the bytes of a volume lie: segments, segment groups and data sectors (EBS, FAST 2024, §2.2, figure 4).
//!
//! A volume is a row of *groups* of 128 GiB. A group is cut into *data sectors* (the stripe unit), dealt out
//! round-robin to its 4 segments, each a part of 32 GiB:
//!
//! ```text
//! volume:    | d0 | d1 | d2 | d3 | d4 | d5 | d6 | d7 | ...
//! segment 0: | d0 | d4 | ...     segment 1: | d1 | d5 | ...     segment 2: | d2 | d6 | ...     ...
//! ```
//!
//! So a hot range is spread over 4 owners. A contiguous range of the volume is one contiguous range in each segment
//! that it touches, a [`Piece`], however many data sectors it spans: a discard of a whole volume is one request per
//! segment. What a piece is in the volume is a row of *stripes*, one per data sector.

use std::ops::Range;

use base::limits::{GROUP_SIZE, SEGMENT_SIZE, SEGMENTS_PER_GROUP};
use base::units::BLOCK;

/// The mapping of one volume, defined by its data sector size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Binary logarithm of the data sector in bytes.
    shift: u32,
}

/// The part of a volume's range that lies in one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Index of the segment in the volume.
    pub segment: u32,
    /// Byte in the segment.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A part of a piece that is contiguous in the volume, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stripe {
    /// Where it lies, within one data sector.
    pub piece: Piece,
    /// Byte in the volume.
    pub volume_offset: u64,
}

impl Layout {
    /// The layout with data sectors of this many bytes.
    pub fn new(data_sector_bytes: u64) -> Self {
        assert!(Self::is_data_sector(data_sector_bytes), "{data_sector_bytes} is not a data sector size");
        Layout { shift: data_sector_bytes.trailing_zeros() }
    }

    /// Whether a data sector may have this many bytes: a power of two from a block to a segment.
    pub fn is_data_sector(bytes: u64) -> bool {
        bytes.is_power_of_two() && (BLOCK..=SEGMENT_SIZE).contains(&bytes)
    }

    /// The data sector in bytes.
    pub fn data_sector_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// The segment and the byte in it that holds byte `volume_offset` of the volume.
    pub fn locate(&self, volume_offset: u64) -> (u32, u64) {
        let (group, in_group) = (volume_offset / GROUP_SIZE, volume_offset % GROUP_SIZE);
        let data_sector = in_group >> self.shift;
        let segment = group * SEGMENTS_PER_GROUP + data_sector % SEGMENTS_PER_GROUP;
        let row = data_sector / SEGMENTS_PER_GROUP;
        (segment as u32, row << self.shift | in_group & self.mask())
    }

    /// The byte of the volume that byte `offset` of a segment holds: the inverse of [`Layout::locate`].
    pub fn volume_offset(&self, segment: u32, offset: u64) -> u64 {
        debug_assert!(offset < SEGMENT_SIZE);
        let (group, column) = (u64::from(segment) / SEGMENTS_PER_GROUP, u64::from(segment) % SEGMENTS_PER_GROUP);
        let data_sector = (offset >> self.shift) * SEGMENTS_PER_GROUP + column;
        group * GROUP_SIZE + (data_sector << self.shift | offset & self.mask())
    }

    /// The whole range as one piece, where it lies within one data sector: the common case, without an iterator.
    pub fn single(&self, offset: u64, len: u64) -> Option<Piece> {
        ((offset & self.mask()) + len <= self.data_sector_bytes()).then(|| {
            let (segment, offset) = self.locate(offset);
            Piece { segment, offset, len }
        })
    }

    /// The pieces of a range: at most one per segment, in the order of their first bytes.
    pub fn pieces(self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            (at < range.end).then(|| {
                let group_end = (at / GROUP_SIZE + 1) * GROUP_SIZE;
                let part = at..range.end.min(group_end);
                at = part.end;
                part
            })
        })
        .flat_map(move |part| self.pieces_in_group(part))
    }

    fn pieces_in_group(self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let first = range.start >> self.shift;
        let last = (range.end - 1) >> self.shift;
        (first..=last.min(first + SEGMENTS_PER_GROUP - 1)).map(move |sector| {
            let (segment, offset) = self.locate((sector << self.shift).max(range.start));
            // The last data sector of the range that lies in the same segment as this one.
            let final_sector = last - (last - sector) % SEGMENTS_PER_GROUP;
            let (_, final_offset) = self.locate((((final_sector + 1) << self.shift).min(range.end)) - 1);
            Piece { segment, offset, len: final_offset + 1 - offset }
        })
    }

    /// The stripes of a piece, in address order (which is the volume's order, too).
    pub fn stripes(self, piece: Piece) -> impl Iterator<Item = Stripe> {
        let end = piece.offset + piece.len;
        let mut at = piece.offset;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let offset = at;
                at = ((offset | self.mask()) + 1).min(end);
                Stripe {
                    piece: Piece { segment: piece.segment, offset, len: at - offset },
                    volume_offset: self.volume_offset(piece.segment, offset),
                }
            })
        })
    }

    /// The stripes of a range of the volume, in the volume's order: one per data sector that it touches.
    pub fn stripes_of_range(self, range: Range<u64>) -> impl Iterator<Item = Stripe> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            (at < range.end).then(|| {
                let volume_offset = at;
                at = ((volume_offset | self.mask()) + 1).min(range.end);
                let (segment, offset) = self.locate(volume_offset);
                Stripe { piece: Piece { segment, offset, len: at - volume_offset }, volume_offset }
            })
        })
    }

    fn mask(&self) -> u64 {
        self.data_sector_bytes() - 1
    }
}

#[cfg(test)]
mod tests {
    use base::{GIB, KIB, MIB, Prng, TIB};

    use super::*;

    #[test]
    fn data_sectors_go_round_robin_over_the_segments_of_a_group() {
        let layout = Layout::new(128 * KIB);
        assert_eq!(layout.locate(0), (0, 0));
        assert_eq!(layout.locate(128 * KIB + 512), (1, 512));
        assert_eq!(layout.locate(4 * 128 * KIB), (0, 128 * KIB));
        assert_eq!(layout.locate(128 * GIB - 1), (3, 32 * GIB - 1));
        assert_eq!(layout.locate(128 * GIB), (4, 0));
        assert_eq!(layout.locate(64 * TIB - 1), (2047, 32 * GIB - 1));
    }

    #[test]
    fn locate_is_a_bijection() {
        let seed = 20240227;
        let mut prng = Prng::new(seed);
        for _ in 0..20_000 {
            let layout = Layout::new(BLOCK << prng.below(24));
            let address = prng.below(64 * TIB);
            let (segment, offset) = layout.locate(address);
            assert!(segment < 2048 && offset < SEGMENT_SIZE);
            assert_eq!(layout.volume_offset(segment, offset), address, "seed {seed}");
            let (segment, offset) = (prng.below(2048) as u32, prng.below(SEGMENT_SIZE));
            assert_eq!(layout.locate(layout.volume_offset(segment, offset)), (segment, offset), "seed {seed}");
        }
    }

    #[test]
    fn pieces_cover_a_range_once_with_one_contiguous_range_per_segment() {
        for seed in 0..3_000 {
            let mut prng = Prng::new(seed);
            let layout = Layout::new(BLOCK << prng.below(12));
            let start = match prng.one_in(3) {
                true => GROUP_SIZE * prng.between(1, 3) - prng.below(8 * MIB).min(GROUP_SIZE),
                false => prng.below(3 * GROUP_SIZE),
            };
            let end = start + prng.between(1, 40 * layout.data_sector_bytes());
            let pieces: Vec<Piece> = layout.pieces(start..end).collect();
            let mut segments: Vec<u32> = pieces.iter().map(|p| p.segment).collect();
            segments.sort_unstable();
            segments.dedup();
            assert_eq!(segments.len(), pieces.len(), "seed {seed}: one piece per segment");
            let mut stripes: Vec<Stripe> = pieces.iter().flat_map(|&p| layout.stripes(p)).collect();
            stripes.sort_by_key(|s| s.volume_offset);
            assert_eq!(stripes, layout.stripes_of_range(start..end).collect::<Vec<_>>(), "seed {seed}");
            let mut at = start;
            for stripe in stripes {
                assert_eq!(stripe.volume_offset, at, "seed {seed}: no gap, no overlap");
                assert_eq!(layout.locate(at), (stripe.piece.segment, stripe.piece.offset), "seed {seed}");
                at += stripe.piece.len;
            }
            assert_eq!(at, end, "seed {seed}");
            match layout.single(start, end - start) {
                Some(piece) => assert_eq!(pieces, [piece], "seed {seed}"),
                None => assert!(start / layout.data_sector_bytes() != (end - 1) / layout.data_sector_bytes()),
            }
        }
    }

    #[test]
    fn a_whole_volume_is_one_piece_per_segment() {
        let layout = Layout::new(128 * KIB);
        let pieces: Vec<Piece> = layout.pieces(0..256 * GIB).collect();
        assert_eq!(pieces.len(), 8);
        assert!(pieces.iter().all(|p| p.offset == 0 && p.len == SEGMENT_SIZE));
        assert_eq!(layout.pieces(7..7).count(), 0);
    }
}
