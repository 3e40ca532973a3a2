//! What stands in a log in front of each entry: docs/formats/burst-log.md.
//!
//! A traversal finds entries by their first bytes, wherever appends left holes. So a header says where it lies, counted from the
//! log's first life on, which one of an earlier round cannot say; and it has the key of its logs, which no client knows, so that
//! nobody's data passes for one.

use std::ops::Range;

use base::buffer::AlignedBuf;
use base::checksum::crc32c;
use base::{Bytes, Generation, SnapshotNumber, WriteSequence, WriteStamp};
use policies::forwarding::{Address, Serial};

/// Bytes of a header: a sector, so that data begins at one.
pub(super) const HEADER: u64 = 512;
/// The most data of one entry; a write of more becomes several.
pub(super) const DATA_MAX: u64 = 256 << 10;

const MAGIC: [u8; 8] = *b"LVENTRY\x01";
/// Where the header's own checksum is.
const CHECKED: usize = HEADER as usize - 4;
const DATA: u8 = 1;
const ZEROS: u8 = 2;

/// What a header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Where it lies.
    pub(super) at: Address,
    /// The segment that was written, and which of its entries this is.
    pub(super) segment: u32,
    pub(super) serial: Serial,
    /// The range in it.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Who wrote.
    pub(super) stamp: WriteStamp,
    /// How many writes in a row were rescheduled, with this one.
    pub(super) reschedules: u8,
    /// The checksum of its data; none: it was discarded, and there is none.
    pub(super) data_checksum: Option<u32>,
}

impl Header {
    /// The range of the segment.
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    /// Bytes of the log.
    pub(super) fn space(&self) -> u64 {
        HEADER + self.data_len()
    }

    /// Bytes behind the header.
    pub(super) fn data_len(&self) -> u64 {
        self.data_checksum.map_or(0, |_| self.len)
    }

    /// The whole entry.
    pub(super) fn with(&self, key: u64, data: &[u8]) -> Bytes {
        debug_assert_eq!(data.len() as u64, self.data_len());
        let mut out = AlignedBuf::with_capacity(self.space() as usize);
        let mut head = [0; HEADER as usize];
        head[..8].copy_from_slice(&MAGIC);
        head[8..16].copy_from_slice(&key.to_le_bytes());
        head[16..24].copy_from_slice(&self.at.0.to_le_bytes());
        head[24..28].copy_from_slice(&self.segment.to_le_bytes());
        head[28] = self.data_checksum.map_or(ZEROS, |_| DATA);
        head[29] = self.reschedules;
        head[32..40].copy_from_slice(&self.serial.0.to_le_bytes());
        head[40..48].copy_from_slice(&self.offset.to_le_bytes());
        head[48..56].copy_from_slice(&self.len.to_le_bytes());
        head[56..64].copy_from_slice(&self.stamp.generation.0.to_le_bytes());
        head[64..72].copy_from_slice(&self.stamp.sequence.0.to_le_bytes());
        head[72..76].copy_from_slice(&self.stamp.snapshot.0.to_le_bytes());
        head[76..80].copy_from_slice(&self.data_checksum.unwrap_or(0).to_le_bytes());
        let checksum = crc32c(&head[..CHECKED]);
        head[CHECKED..].copy_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(data);
        out.freeze()
    }

    /// What stands at this address, if it is a header of these logs.
    pub(super) fn parse(sector: &[u8], key: u64, at: Address) -> Option<Header> {
        let head: &[u8; HEADER as usize] = sector.try_into().ok()?;
        if head[..8] != MAGIC {
            return None;
        }
        let long = |from: usize| u64::from_le_bytes(head[from..from + 8].try_into().expect("eight bytes"));
        let short = |from: usize| u32::from_le_bytes(head[from..from + 4].try_into().expect("four bytes"));
        if short(CHECKED) != crc32c(&head[..CHECKED]) || long(8) != key || long(16) != at.0 {
            return None;
        }
        let data_checksum = match head[28] {
            DATA => Some(short(76)),
            ZEROS => None,
            _ => return None,
        };
        let stamp = WriteStamp {
            generation: Generation(long(56)),
            sequence: WriteSequence(long(64)),
            snapshot: SnapshotNumber(short(72)),
        };
        let (segment, serial, offset, len) = (short(24), Serial(long(32)), long(40), long(48));
        let header = Header { at, segment, serial, offset, len, stamp, reschedules: head[29], data_checksum };
        let is_possible = len > 0 && offset.checked_add(len).is_some() && header.data_len() <= DATA_MAX && serial.0 > 0;
        is_possible.then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    fn header() -> Header {
        Header {
            at: Address(0x1_0000_0200),
            segment: 3,
            serial: Serial(77),
            offset: 0x40_0000,
            len: 1024,
            stamp: WriteStamp { generation: Generation(5), sequence: WriteSequence(6), snapshot: SnapshotNumber(7) },
            reschedules: 2,
            data_checksum: Some(crc32c(&[9; 1024])),
        }
    }

    /// The bytes of docs/formats/burst-log.md.
    #[test]
    fn an_entry_is_these_bytes() {
        let entry = header().with(0x1122_3344_5566_7788, &[9; 1024]);
        let words: Vec<String> = entry[..80].chunks(8).map(hex).collect();
        assert_eq!(
            words,
            [
                "4c56454e54525901",
                "8877665544332211",
                "0002000001000000",
                "0300000001020000",
                "4d00000000000000",
                "0000400000000000",
                "0004000000000000",
                "0500000000000000",
                "0600000000000000",
                "07000000bf690859",
            ]
        );
        assert_eq!(hex(&entry[508..512]), "c3dc68c3");
        assert!(entry[80..508].iter().all(|byte| *byte == 0) && entry[512..] == [9; 1024]);
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_header_is_of_its_place_and_its_logs_only() {
        for header in [header(), Header { data_checksum: None, len: 1 << 35, ..header() }] {
            let data = vec![9; header.data_len() as usize];
            let entry = header.with(8, &data);
            let parse = |bytes: &[u8], key, at| Header::parse(&bytes[..HEADER as usize], key, Address(at));
            assert_eq!(parse(&entry, 8, header.at.0), Some(header));
            assert_eq!(parse(&entry, 9, header.at.0), None, "another key");
            assert_eq!(parse(&entry, 8, header.at.0 + 512), None, "another place");
            let mut prng = Prng::new(1);
            for _ in 0..2_000 {
                let mut spoilt = entry.to_vec();
                let bit = prng.below(HEADER * 8) as usize;
                spoilt[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(parse(&spoilt, 8, header.at.0), None, "bit {bit}");
            }
        }
        assert_eq!(Header::parse(&[0; 512], 0, Address(0)), None);
        assert_eq!(Header::parse(&[0; 100], 0, Address(0)), None);
    }

    /// What is right by its checksum, and cannot be all the same.
    #[test]
    fn what_no_agent_writes_is_no_header() {
        for wrong in [
            Header { len: 0, ..header() },
            Header { offset: u64::MAX, ..header() },
            Header { serial: Serial(0), ..header() },
        ] {
            let entry = wrong.with(8, &vec![0; wrong.data_len() as usize]);
            assert_eq!(Header::parse(&entry[..HEADER as usize], 8, wrong.at), None, "{wrong:?}");
        }
    }
}
