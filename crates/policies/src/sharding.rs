//! Which shard of a store has a segment.
//!
//! Segments of a group take turns over the shards, as data sectors take turns over the segments (EBS, FAST 2024, §2.2),
//! so that one busy volume keeps several loops busy; volumes begin at different shards. It is decided once for all: the
//! data of a segment lies in the files of its shard.

use base::SegmentId;

/// Most shards of a store.
const SHARDS_MAX: u8 = 8;

/// The shard of a segment, of `count`.
pub fn shard_of(segment: SegmentId, count: u8) -> u8 {
    ((segment.volume.0 % u64::from(count) + u64::from(segment.index)) % u64::from(count)) as u8
}

/// Whether a store can have so many shards: powers of two, so that each gets as many segments of a group.
pub fn is_count(count: u8) -> bool {
    count.is_power_of_two() && count <= SHARDS_MAX
}

#[cfg(test)]
mod tests {
    use base::VolumeId;

    use super::*;

    /// Golden: another answer would look for data where it is not.
    #[test]
    fn segments_take_turns() {
        let shards = |volume, count| -> Vec<u8> {
            (0..8).map(|index| shard_of(SegmentId { volume: VolumeId(volume), index }, count)).collect()
        };
        assert_eq!(shards(1, 1), [0; 8]);
        assert_eq!(shards(1, 2), [1, 0, 1, 0, 1, 0, 1, 0]);
        assert_eq!(shards(2, 4), [2, 3, 0, 1, 2, 3, 0, 1]);
        assert_eq!(shards(u64::MAX, 8), [7, 0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn counts_are_powers_of_two() {
        let counts: Vec<u8> = (0..=u8::MAX).filter(|count| is_count(*count)).collect();
        assert_eq!(counts, [1, 2, 4, 8]);
    }
}
