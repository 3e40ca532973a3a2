//! A fuzz target of the journal's bytes: appends with edits, their checksums made right again.

use base::io::fragment_checksums;
use base::{
    AlignedBuf, Epoch, FileId, Generation, Incarnation, LogSequence, Prng, SECTOR, SegmentId, SegmentSequence,
    SnapshotNumber, VolumeId, WriteSequence, WriteStamp,
};

use super::batch::{Batch, Place, Submitted};
use super::format::{AppendHeader, HEADER_LEN, decode_records, header_checksum, records_checksum};
use super::{JournalRecord, Operation};

/// A seed of something valid, edits of it, and noise.
type Input = (u64, Vec<(u16, u8)>, Vec<u8>);

const FILE: FileId = FileId(0x77);

fn record(prng: &mut Prng) -> JournalRecord {
    let segment = SegmentId { volume: VolumeId(prng.between(1, 9)), index: prng.below(4) as u32 };
    let (offset, len) = (prng.below(1000) * SECTOR, prng.between(1, 20) * SECTOR);
    let operation = match prng.one_in(4) {
        true => Operation::Discard,
        false => {
            let mut data = vec![0; len as usize];
            prng.fill(&mut data);
            Operation::Write { checksums: fragment_checksums(segment, offset, &data), data: data.into() }
        }
    };
    let stamp = WriteStamp {
        generation: Generation(prng.below(5)),
        sequence: WriteSequence(prng.next_u64()),
        snapshot: SnapshotNumber(0),
    };
    JournalRecord { segment, epoch: Epoch(1), sequence: SegmentSequence(prng.below(99)), stamp, offset, len, operation }
}

fn encode(records: &[JournalRecord], header: &AppendHeader) -> Vec<u8> {
    let AppendHeader { file, incarnation, log, ordinal, base, sequence, durable_through, offset, .. } = *header;
    let place = Place { file, incarnation, log, ordinal, base, sequence, durable_through, offset };
    let submitted = records.iter().map(|record| Submitted::new(record.clone(), |_| ()));
    Batch::new(submitted.collect()).encode(&place).to_vec()
}

/// The records of the append at the start of `bytes`.
fn decode(bytes: &[u8]) -> Option<(AppendHeader, Vec<JournalRecord>)> {
    let header = AppendHeader::decode(bytes, FILE).ok()??;
    let append = bytes.get(..header.len as usize)?;
    let records = decode_records(&header, &AlignedBuf::copy_of(append).freeze()).ok()?;
    Some((header, records))
}

/// Makes the checksums right, as far as the lengths make sense.
fn reseal(bytes: &mut [u8]) {
    let headers_len = u32::from_le_bytes([bytes[92], bytes[93], bytes[94], bytes[95]]) as usize;
    if let Some(headers) = bytes.get(HEADER_LEN..headers_len) {
        let sum = records_checksum(headers);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = header_checksum(bytes.first_chunk().unwrap());
    bytes[8..12].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn an_append_is_refused_or_means_what_it_says() {
    let header = AppendHeader {
        file: FILE,
        incarnation: Incarnation(3),
        log: 0,
        ordinal: 1,
        base: LogSequence(1),
        sequence: LogSequence(5),
        durable_through: LogSequence(4),
        offset: 8192,
        len: 0,
        headers_len: 0,
        data_len: 0,
        record_count: 0,
        records_checksum: 0,
    };
    let mut accepted = 0;
    bolero::check!().with_iterations(20_000).with_type().for_each(|(seed, edits, noise): &Input| {
        assert!(decode(noise).is_none(), "noise has no checksum");
        let mut prng = Prng::new(*seed);
        let records: Vec<JournalRecord> = (0..prng.below(4)).map(|_| record(&mut prng)).collect();
        let mut bytes = encode(&records, &header);
        let (decoded, found) = decode(&bytes).expect("an append is read again");
        assert!(found == records && decoded.sequence == header.sequence);
        // Mostly the headers, where there is something to misunderstand.
        let region = if prng.one_in(4) { bytes.len() } else { decoded.headers_len as usize };
        edits.iter().for_each(|(at, value)| bytes[usize::from(*at) % region] ^= value);
        if let Some((_, found)) = decode(&bytes) {
            assert_eq!(found, records, "what was changed is noticed, or was padding");
        }
        reseal(&mut bytes);
        let Some((decoded, found)) = decode(&bytes) else { return };
        accepted += 1;
        let again = encode(&found, &decoded);
        let used = (decoded.headers_len + decoded.data_len) as usize;
        // Flags of compatible features are passed over; the checksums cover them, and the length may have more
        // padding than it needs.
        let same = |range: std::ops::Range<usize>| again[range.clone()] == bytes[range];
        assert!(same(16..24) && same(32..88) && same(92..used), "{decoded:?}");
    });
    assert!(accepted > 0, "nothing was ever accepted: the target tests nothing");
}
