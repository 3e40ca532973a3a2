//! Those who use segments: each does one thing after the other, tries writes again until they are acknowledged, and
//! believes a reply only under the epoch that it knows.

use std::ops::Range;
use std::time::Duration;

use base::io::fragment_checksums;
use base::{AlignedBuf, Bytes, ErrorKind, Generation, ReadPart, Result, SECTOR, SegmentId, WriteSequence, WriteStamp};

use super::bed::{Bed, CLIENTS, Owner, SECTORS};
use crate::sectors::{ReadToken, encode};

/// Until somebody has a segment that is on its way.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// Works until the operations are done, or something is wrong.
pub async fn client(bed: Bed, number: u64) {
    loop {
        {
            let mut state = bed.share.borrow_mut();
            if state.operations_left == 0 || state.failure.is_some() {
                return;
            }
            state.operations_left -= 1;
        }
        if bed.prng(|prng| prng.one_in(8)) {
            bed.pause(2_000).await;
        }
        let (kind, segment, len) = bed.prng(|prng| {
            let kind = prng.below(8);
            (kind, prng.below(64), if prng.one_in(3) { prng.between(16, 256) } else { prng.between(1, 24) })
        });
        let segment = {
            let state = bed.share.borrow();
            let segments: Vec<SegmentId> = state.owners.keys().copied().collect();
            segments[segment as usize % segments.len()]
        };
        match kind {
            0..=4 => change(&bed, segment, own_range(&bed, number, len), kind == 4).await,
            _ => read(&bed, segment, range(&bed, 0..SECTORS, len)).await,
        }
    }
}

fn own_range(bed: &Bed, number: u64, len: u64) -> Range<u64> {
    let each = SECTORS / CLIENTS / 8 * 8;
    range(bed, number * each..(number + 1) * each, len)
}

/// A range of up to `len` sectors, often of whole blocks.
fn range(bed: &Bed, all: Range<u64>, len: u64) -> Range<u64> {
    bed.prng(|prng| {
        let most = all.end - all.start;
        let mut len = len.min(most);
        let mut start = prng.below(most - len + 1);
        if prng.one_in(2) {
            start = start / 8 * 8;
            len = len.next_multiple_of(8).min(most - start);
        }
        all.start + start..all.start + start + len
    })
}

/// Writes or discards, and tries again until that is done.
async fn change(bed: &Bed, segment: SegmentId, sectors: Range<u64>, is_discard: bool) {
    let (op, stamp) = {
        let mut state = bed.share.borrow_mut();
        state.next_write += 1;
        let sequence = WriteSequence(state.next_write);
        let stamp = WriteStamp { generation: Generation(1), sequence, ..WriteStamp::default() };
        (state.sectors.begin_write(segment, sectors.clone(), is_discard), stamp)
    };
    let (offset, len) = (sectors.start * SECTOR, (sectors.end - sectors.start) * SECTOR);
    let mut data = AlignedBuf::zeroed(len as usize);
    for (sector, bytes) in sectors.clone().zip(data.chunks_mut(SECTOR as usize)) {
        encode(op, segment, sector, bytes);
    }
    let data = data.freeze();
    let mut tries = 0;
    loop {
        let owner = owner(bed, segment).await;
        let done = match is_discard {
            true => owner.member.engine.discard(segment, offset, len, stamp).await,
            false => write(&owner, segment, offset, data.clone(), stamp).await,
        };
        match done {
            Ok(()) => break,
            Err(error) => {
                let is_newer = bed.share.borrow().owner(segment).is_none_or(|now| now.epoch > owner.epoch);
                // A fault of the store is answered; what has moved or is dead is answered otherwise.
                if !matches!(error.kind, ErrorKind::Moved | ErrorKind::Fenced | ErrorKind::Io) {
                    let failure = format!("a write to {segment}: {error} ({:?})", error.kind);
                    bed.share.borrow_mut().failure.get_or_insert(failure);
                    return;
                }
                if error.kind == ErrorKind::Fenced && is_newer {
                    bed.count("late_writes_refused");
                }
            }
        }
        bed.count("tried_again");
        tries += 1;
        if tries > 20_000 {
            let failure = format!("a write to {segment} is tried for ever, last by {:?}", owner.member.incarnation());
            bed.share.borrow_mut().failure.get_or_insert(failure);
            return;
        }
        bed.handle.sleep(LOOK_AGAIN).await;
    }
    let mut state = bed.share.borrow_mut();
    state.sectors.on_acknowledged(op);
    if is_discard {
        state.count("discards");
    } else if len >= bed.options.large_write_bytes {
        state.count("large_writes");
    }
}

async fn write(owner: &Owner, segment: SegmentId, offset: u64, data: Bytes, stamp: WriteStamp) -> Result<()> {
    let checksums = fragment_checksums(segment, offset, &data);
    owner.member.engine.write(segment, offset, data, checksums, stamp).await
}

/// Waits until somebody has the segment.
async fn owner(bed: &Bed, segment: SegmentId) -> Owner {
    loop {
        let owner = bed.share.borrow().owner(segment);
        match owner {
            Some(owner) => return owner,
            None => bed.handle.sleep(LOOK_AGAIN).await,
        }
    }
}

/// Reads, and says what is wrong with what comes.
async fn read(bed: &Bed, segment: SegmentId, sectors: Range<u64>) {
    let (offset, len) = (sectors.start * SECTOR, (sectors.end - sectors.start) * SECTOR);
    let token = bed.share.borrow_mut().sectors.begin_read(segment, sectors);
    for _ in 0..20_000 {
        let asked = owner(bed, segment).await;
        let answer = asked.member.engine.read(segment, offset, len).await;
        if is_answered(bed, segment, &token, &asked, answer) {
            return;
        }
        bed.handle.sleep(LOOK_AGAIN).await;
    }
    bed.share.borrow_mut().failure.get_or_insert(format!("a read of {segment} is tried for ever"));
}

/// Whether an answer counts; says what is wrong with it.
fn is_answered(bed: &Bed, segment: SegmentId, token: &ReadToken, asked: &Owner, answer: Result<Vec<ReadPart>>) -> bool {
    let mut state = bed.share.borrow_mut();
    let is_present = state.owner(segment).is_some_and(|now| now.epoch == asked.epoch);
    match answer {
        Ok(parts) if is_present => {
            let mut data = Vec::new();
            for part in parts {
                match part {
                    ReadPart::Data(bytes) => data.extend_from_slice(&bytes),
                    ReadPart::Zeros(count) => data.resize(data.len() + count as usize, 0),
                }
            }
            if let Err(wrong) = state.sectors.end_read(token, &data) {
                let failure = format!("{wrong} (read from {} under {})", asked.member.incarnation(), asked.epoch);
                state.failure.get_or_insert(failure);
            }
            true
        }
        Err(error) if matches!(error.kind, ErrorKind::Moved | ErrorKind::Fenced) => false,
        Err(error) if is_present => {
            state.failure.get_or_insert(format!("a read of {segment}: {error} ({:?})", error.kind));
            true
        }
        // A former owner: files go when another one has the segment.
        Ok(_) | Err(_) => {
            state.count("stale_reads_dropped");
            false
        }
    }
}

/// Reads all of every segment, once nothing changes any more.
pub async fn read_everything(bed: &Bed) {
    let segments: Vec<SegmentId> = bed.share.borrow().owners.keys().copied().collect();
    for segment in segments {
        for start in (0..SECTORS).step_by(256) {
            read(bed, segment, start..(start + 256).min(SECTORS)).await;
        }
    }
}
