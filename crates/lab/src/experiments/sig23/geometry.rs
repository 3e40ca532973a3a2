//! How volumes are cut into segments (EBS, FAST 2024, §2.2): a volume is a row of groups of segments, over which its bytes go
//! round in strips of 64 KiB.

use base::limits::{SEGMENT_SIZE, SEGMENTS_PER_GROUP};
use base::{GIB, KIB};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of a segment; none: a volume is one.
    pub segment_bytes: Option<u64>,
    /// Segments over which the bytes of a group go round.
    pub segments_per_group: u64,
}

const STRIP: u64 = 64 * KIB;

impl Geometry {
    /// Volumes are not cut.
    pub const WHOLE: Geometry = Geometry { segment_bytes: None, segments_per_group: 1 };
    /// Levee's own: four segments of 32 GiB.
    pub const LEVEE: Geometry = Geometry { segment_bytes: Some(SEGMENT_SIZE), segments_per_group: SEGMENTS_PER_GROUP };

    /// The paper's (DiffForward, SIGMETRICS 2023, §2.4 and §5.1): groups of two segments of so many GiB.
    pub const fn paper(segment_gib: u64) -> Geometry {
        Geometry { segment_bytes: Some(segment_gib * GIB), segments_per_group: 2 }
    }

    /// The parts of a write: which segment of the volume, and how many bytes.
    pub fn parts(self, offset: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let (mut at, end) = (offset, offset + bytes);
        std::iter::from_fn(move || {
            let (begin, last) = (
                at,
                match self.segment_bytes {
                    None => end,
                    Some(_) => end.min((at / STRIP + 1) * STRIP),
                },
            );
            at = last;
            (begin < last).then(|| (self.segment_of(begin), last - begin))
        })
    }

    /// The segment that has this byte of the volume.
    pub fn segment_of(self, offset: u64) -> u64 {
        let of = self.segments_per_group;
        self.segment_bytes.map_or(0, |bytes| offset / (bytes * of) * of + offset / STRIP % of)
    }

    /// How many segments a volume of so many bytes has, in whole groups.
    pub fn segments(self, volume_bytes: u64) -> u64 {
        let of = self.segments_per_group;
        self.segment_bytes.map_or(1, |bytes| volume_bytes.div_ceil(bytes * of) * of)
    }

    /// As tables have it.
    pub fn name(self) -> String {
        self.segment_bytes.map_or("volumes not cut".to_owned(), |bytes| format!("segments of {} GiB", bytes / GIB))
    }
}

#[cfg(test)]
mod tests {
    use base::MIB;
    use wire::Layout;

    use super::*;

    #[test]
    fn bytes_go_round_over_the_segments_of_a_group() {
        let parts = |offset, bytes| Geometry::paper(64).parts(offset, bytes).collect::<Vec<_>>();
        assert_eq!(parts(0, 4096), [(0, 4096)]);
        assert_eq!(parts(60 * KIB, 72 * KIB), [(0, 4 * KIB), (1, 64 * KIB), (0, 4 * KIB)]);
        assert_eq!(parts(128 * GIB, 4096), [(2, 4096)]);
        assert_eq!(parts(128 * GIB + 64 * KIB, 4096), [(3, 4096)]);
        assert_eq!(Geometry::WHOLE.parts(200 * GIB, MIB).collect::<Vec<_>>(), [(0, MIB)]);
        let segments = |gib| Geometry::paper(64).segments(gib * GIB);
        assert_eq!([segments(20), segments(128), segments(129)], [2, 2, 4]);
        assert_eq!(Geometry::WHOLE.segments(500 * GIB), 1);
    }

    #[test]
    fn that_of_levee_is_its_layout() {
        for offset in (0..1000).map(|step| step * (300 * MIB + 4096)) {
            let (segment, _) = Layout::new(STRIP).locate(offset);
            assert_eq!(Geometry::LEVEE.segment_of(offset), u64::from(segment), "{offset}");
        }
    }
}
