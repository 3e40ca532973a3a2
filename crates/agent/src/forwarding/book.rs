//! What is written down of the logs of a volume: docs/formats/burst-log.md.
//!
//! The *book* says through which entry each segment is merged, which entries are void, and where a traversal begins in each log.
//! It is in front of the first log, in two places that are written in turns, so that there is always one that is whole.

use base::buffer::AlignedBuf;
use base::checksum::crc32c;
use base::{Bytes, Error, Result};
use bytes::BufMut;
use policies::forwarding::{Address, Serial};

use super::LOG_BYTES;

/// Bytes of one of the two places.
pub(super) const PLACE: u64 = 64 << 10;
/// Bytes in front of each log, of which the first one's are the book.
pub(super) const FRONT: u64 = 2 * PLACE;
/// Logs of a volume at most.
pub(super) const LOGS_MAX: usize = 8;

const MAGIC: [u8; 8] = *b"LVBOOK\x00\x01";
const HEAD: usize = 48;
const SECTOR: usize = base::SECTOR as usize;

/// What is known of one segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Watermark {
    pub(super) segment: u32,
    /// All is merged through this one.
    pub(super) merged: Serial,
    /// Entries after it that count for nothing, wherever they are.
    pub(super) void: Vec<Serial>,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Book {
    /// Of these logs, and of no others.
    pub(super) key: u64,
    /// The newer one counts.
    pub(super) edition: u64,
    /// Nothing is in the logs: there is nothing to look for.
    pub(super) is_clean: bool,
    /// Bytes of each log, after which its addresses begin anew.
    pub(super) log_bytes: u64,
    /// Of each log, where there may be something.
    pub(super) lows: Vec<Address>,
    /// By segment; of others there never was anything.
    pub(super) segments: Vec<Watermark>,
}

impl Book {
    /// Which of the two places it is written to.
    pub(super) fn place(&self) -> u64 {
        self.edition % 2 * PLACE
    }

    /// # Errors
    /// `Full`: more is to be said than there is room for.
    pub(super) fn bytes(&self) -> Result<Bytes> {
        let mut out = Vec::with_capacity(4096);
        out.put_slice(&MAGIC);
        out.put_u64_le(self.key);
        out.put_u64_le(self.edition);
        out.put_u8(self.is_clean.into());
        out.put_u8(self.lows.len() as u8);
        out.put_u16_le(0);
        out.put_u32_le(self.segments.len() as u32);
        // The length and the checksum, when they are known.
        out.put_u64_le(0);
        out.put_u64_le(self.log_bytes);
        self.lows.iter().for_each(|low| out.put_u64_le(low.0));
        for Watermark { segment, merged, void } in &self.segments {
            out.put_u32_le(*segment);
            out.put_u32_le(void.len() as u32);
            out.put_u64_le(merged.0);
            void.iter().for_each(|serial| out.put_u64_le(serial.0));
        }
        if out.len() as u64 > PLACE {
            return Err(Error::full(format!(
                "the book of a volume's logs takes {} bytes of {PLACE}: too many entries are void",
                out.len()
            )));
        }
        let len = out.len() as u32;
        out[32..36].copy_from_slice(&len.to_le_bytes());
        let checksum = crc32c(&out);
        out[36..40].copy_from_slice(&checksum.to_le_bytes());
        out.resize(out.len().next_multiple_of(SECTOR), 0);
        Ok(AlignedBuf::copy_of(&out).freeze())
    }

    /// The book in one of the places, if there is a whole one.
    pub(super) fn parse(place: &[u8]) -> Option<Book> {
        let head: &[u8; HEAD] = place.get(..HEAD)?.try_into().ok()?;
        let long = |from: usize| u64::from_le_bytes(head[from..from + 8].try_into().expect("eight bytes"));
        let short = |from: usize| u32::from_le_bytes(head[from..from + 4].try_into().expect("four bytes"));
        if head[..8] != MAGIC {
            return None;
        }
        let body = place.get(..short(32) as usize).filter(|body| body.len() >= HEAD)?;
        let mut unchecked = body.to_vec();
        unchecked[36..40].fill(0);
        if crc32c(&unchecked) != short(36) {
            return None;
        }
        let mut rest = &body[HEAD..];
        let mut take = |len: usize| -> Option<&[u8]> {
            let (taken, left) = rest.split_at_checked(len)?;
            rest = left;
            Some(taken)
        };
        let mut long_at = || take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        let logs = usize::from(head[25]);
        let lows = (0..logs).map(|_| long_at().map(Address)).collect::<Option<Vec<Address>>>()?;
        let mut segments = Vec::new();
        for _ in 0..short(28) {
            // Both are one word: the segment, and how many are void.
            let word = long_at()?;
            let merged = Serial(long_at()?);
            let void = (0..word >> 32).map(|_| long_at().map(Serial)).collect::<Option<Vec<Serial>>>()?;
            segments.push(Watermark { segment: word as u32, merged, void });
        }
        let log_bytes = long(40);
        let is_possible = (1..=LOGS_MAX).contains(&logs) && rest.is_empty() && LOG_BYTES.contains(&log_bytes);
        let (key, edition, is_clean) = (long(8), long(16), head[24] == 1);
        is_possible.then_some(Book { key, edition, is_clean, log_bytes, lows, segments })
    }

    /// The newer one of both places, if anything was ever written there.
    ///
    /// # Errors
    /// `Corrupt`: there were books, and none is whole. The second edition is the first one in place 0, when the other place has one.
    pub(super) fn newest(front: &[u8]) -> Result<Option<Book>> {
        let places = front.chunks(PLACE as usize).filter_map(Book::parse);
        let newest = places.max_by_key(|book| book.edition);
        match newest.is_none() && front[..HEAD].iter().any(|byte| *byte != 0) {
            true => Err(Error::corrupt("neither place of the book of a volume's logs is whole")),
            false => Ok(newest),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    fn book(edition: u64) -> Book {
        Book {
            key: 0x0102_0304_0506_0708,
            edition,
            is_clean: edition.is_multiple_of(2),
            log_bytes: 64 << 20,
            lows: [0x1000, 0x2000].map(Address).to_vec(),
            segments: vec![
                Watermark { segment: 1, merged: Serial(0x55), void: vec![Serial(0x57), Serial(0x59)] },
                Watermark { segment: 2000, merged: Serial(0), void: vec![] },
            ],
        }
    }

    /// The bytes of docs/formats/burst-log.md.
    #[test]
    fn a_book_is_these_bytes() {
        let bytes = book(3).bytes().unwrap();
        assert_eq!(bytes.len(), SECTOR);
        let words: Vec<String> =
            bytes[..112].chunks(8).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
        assert_eq!(
            words,
            [
                "4c56424f4f4b0001",
                "0807060504030201",
                "0300000000000000",
                "0002000002000000",
                "70000000e64b2d3e",
                "0000000400000000",
                "0010000000000000",
                "0020000000000000",
                "0100000002000000",
                "5500000000000000",
                "5700000000000000",
                "5900000000000000",
                "d007000000000000",
                "0000000000000000",
            ]
        );
    }

    #[test]
    fn the_newer_one_that_is_whole_counts() {
        let mut front = vec![0; FRONT as usize];
        assert_eq!(Book::newest(&front).unwrap(), None);
        for edition in 1..5 {
            let book = book(edition);
            let bytes = book.bytes().unwrap();
            front[book.place() as usize..][..bytes.len()].copy_from_slice(&bytes);
            assert_eq!(Book::newest(&front).unwrap(), Some(book));
        }
        let mut prng = Prng::new(1);
        for _ in 0..2_000 {
            let mut torn = front.clone();
            let bit = prng.below(112 * 8) as usize;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Book::newest(&torn).unwrap(), Some(book(3)), "bit {bit} of edition 4");
        }
        // Whatever was acknowledged with these books: that there was nothing would be wrong.
        front[20] ^= 1;
        front[PLACE as usize + 20] ^= 1;
        assert_eq!(Book::newest(&front).unwrap_err().kind, base::ErrorKind::Corrupt);
    }

    /// Whatever is in a place, it is a book or none.
    #[test]
    fn what_is_no_book_is_refused() {
        let mut prng = Prng::new(2);
        for _ in 0..2_000 {
            let mut place = book(1).bytes().unwrap().to_vec();
            for _ in 0..prng.below(4) {
                let at = prng.below(place.len() as u64) as usize;
                place[at] = prng.below(256) as u8;
            }
            // Lengths and counts that are wrong by themselves, under a checksum that is right.
            let at = [25, 28, 32, 42, 68][prng.below(5) as usize];
            place[at] = prng.below(256) as u8;
            place[36..40].fill(0);
            let len = (u32::from_le_bytes(place[32..36].try_into().unwrap()) as usize).min(place.len());
            let checksum = crc32c(&place[..len]);
            place[36..40].copy_from_slice(&checksum.to_le_bytes());
            let _ = Book::parse(&place);
        }
        let many = Watermark { void: vec![Serial(9); 9_000], ..Watermark::default() };
        let error = Book { segments: vec![many], ..book(1) }.bytes().unwrap_err();
        assert_eq!(error.kind, base::ErrorKind::Full);
    }
}
