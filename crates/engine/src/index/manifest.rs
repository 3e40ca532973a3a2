//! Which tables a segment has, and what is known of each without reading it.

use base::{FileId, LogSequence, SegmentSequence};

use super::entry::{MOVES_MAX, SEQUENCE_MAX};

/// The tables of one segment: what a checkpoint keeps of its index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SegmentTables {
    /// Tables, newest first.
    pub tables: Vec<TableInfo>,
    /// The tables hold the effect of every transaction record of the segment below this log sequence.
    pub covers: LogSequence,
}

impl SegmentTables {
    /// What a flush or a merge did: `added` take the place of `removed`, at the front if nothing was removed.
    pub fn apply(&mut self, added: &[TableInfo], removed: &[FileId], covers: LogSequence) {
        let at = self.tables.iter().position(|table| removed.contains(&table.file)).unwrap_or(0);
        self.tables.retain(|table| !removed.contains(&table.file) && !added.iter().any(|new| new.file == table.file));
        let at = at.min(self.tables.len());
        self.tables.splice(at..at, added.iter().copied());
        self.covers = self.covers.max(covers);
    }
}

/// What is known of a table without reading it. Kept in transaction records, and repeated in the table's footer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableInfo {
    /// The table's file.
    pub file: FileId,
    /// Leaf pages.
    pub leaves: u32,
    /// Entries, tombstones included.
    pub entries: u32,
    /// Tombstones among them.
    pub tombstones: u32,
    /// Data files that its entries name.
    pub data_files: u32,
    /// First block that an entry covers.
    pub first_block: u32,
    /// The block after the last one that an entry covers.
    pub end_block: u32,
    /// The highest number of moves of an entry; above zero, the table holds relocated entries.
    pub moves_max: u32,
    /// The lowest sequence of an entry.
    pub sequence_min: SegmentSequence,
    /// The highest sequence of an entry.
    pub sequence_max: SegmentSequence,
    /// Nothing of the segment was in flight when the newest part of this table was frozen: an entry that is older
    /// than what it holds for the same block cannot arrive any more.
    pub quiet: bool,
}

impl TableInfo {
    /// Bytes of the encoded form.
    pub const ENCODED_LEN: usize = 64;

    /// The encoded form (docs/formats/table.md, "Table information").
    pub fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..8].copy_from_slice(&self.file.0.to_le_bytes());
        let counts = [self.leaves, self.entries, self.tombstones, self.data_files, self.first_block, self.end_block];
        for (i, count) in counts.into_iter().enumerate() {
            bytes[8 + 4 * i..][..4].copy_from_slice(&count.to_le_bytes());
        }
        let sequences = [self.sequence_min, self.sequence_max];
        for (i, sequence) in sequences.into_iter().enumerate() {
            bytes[32 + 8 * i..][..8].copy_from_slice(&sequence.0.to_le_bytes());
        }
        bytes[48..52].copy_from_slice(&self.moves_max.to_le_bytes());
        bytes[52] = u8::from(self.quiet);
        bytes
    }

    /// Reads the encoded form; `None` where the fields contradict each other or reserved bytes are not zero.
    pub fn decode(bytes: &[u8; Self::ENCODED_LEN]) -> Option<TableInfo> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let info = TableInfo {
            file: FileId(u64_at(0)),
            leaves: u32_at(8),
            entries: u32_at(12),
            tombstones: u32_at(16),
            data_files: u32_at(20),
            first_block: u32_at(24),
            end_block: u32_at(28),
            sequence_min: SegmentSequence(u64_at(32)),
            sequence_max: SegmentSequence(u64_at(40)),
            moves_max: u32_at(48),
            quiet: bytes[52] == 1,
        };
        (info.is_valid() && bytes[52] <= 1 && bytes[53..].iter().all(|&b| b == 0)).then_some(info)
    }

    fn is_valid(&self) -> bool {
        let blocks_fit = u64::from(self.end_block) <= base::limits::SEGMENT_BLOCKS;
        // Entries do not overlap, so there are no more than blocks; what is computed from them fits its type.
        let counts_fit = u64::from(self.entries) <= base::limits::SEGMENT_BLOCKS
            && self.tombstones <= self.entries
            && self.data_files <= self.entries
            && self.leaves <= self.entries
            && self.leaves > 0;
        self.file != FileId(0)
            && counts_fit
            && blocks_fit
            && self.first_block < self.end_block
            && self.sequence_min <= self.sequence_max
            && self.sequence_max <= SEQUENCE_MAX
            && self.moves_max <= MOVES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(file: u64) -> TableInfo {
        TableInfo {
            file: FileId(file),
            leaves: 2,
            entries: 200,
            tombstones: 3,
            data_files: 4,
            first_block: 5,
            end_block: 600,
            moves_max: 7,
            sequence_min: SegmentSequence(8),
            sequence_max: SegmentSequence(9),
            quiet: true,
        }
    }

    #[test]
    fn table_info_survives_encoding() {
        let encoded = info(1).encode();
        assert_eq!(TableInfo::decode(&encoded), Some(info(1)));
        let mut reserved = encoded;
        reserved[63] = 1;
        assert_eq!(TableInfo::decode(&reserved), None);
        assert_eq!(TableInfo::decode(&[0; 64]), None);
    }

    #[test]
    fn a_merge_takes_the_place_of_its_inputs() {
        let mut tables = SegmentTables::default();
        for file in 1..=4 {
            tables.apply(&[info(file)], &[], LogSequence(file));
        }
        let files = |tables: &SegmentTables| tables.tables.iter().map(|t| t.file.0).collect::<Vec<_>>();
        assert_eq!(files(&tables), [4, 3, 2, 1]);
        tables.apply(&[info(5)], &[FileId(3), FileId(2)], LogSequence(4));
        tables.apply(&[info(5)], &[FileId(3), FileId(2)], LogSequence(4));
        assert!(files(&tables) == [4, 5, 1] || files(&tables) == [5, 4, 1]);
        assert_eq!(tables.covers, LogSequence(4));
    }
}
