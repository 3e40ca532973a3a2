//! Those who use the volume: each does one thing after the other. What does not come through in time is a failure, and so
//! is any error but that a newer attachment exists.

use std::ops::Range;
use std::time::Duration;

use base::io::fragment_checksums;
use base::{AlignedBuf, Error, ErrorKind, ReadPart, Result, SECTOR, SegmentId, WriteSequence, WriteStamp};
use wire::{Answer, BlockService, Target};

use crate::bed::{Bed, CLIENTS, Hold, SECTORS, SEGMENTS, VOLUME};
use crate::sectors::encode;

/// Works until the operations are done, or something is wrong. It keeps its hold of the volume until it is told that there
/// is a newer one.
pub async fn client(bed: Bed, number: u64) {
    let mut hold = newest(&bed);
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
        let (kind, index, len) = bed.prng(|prng| {
            let len = if prng.one_in(3) { prng.between(16, 160) } else { prng.between(1, 24) };
            (prng.below(8), prng.below(SEGMENTS.into()) as u32, len)
        });
        let segment = SegmentId { volume: VOLUME, index };
        match kind {
            0..=4 => change(&bed, &mut hold, segment, own_range(&bed, number, len), kind == 4).await,
            _ => read(&bed, &mut hold, segment, range(&bed, 0..SECTORS, len)).await,
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

fn newest(bed: &Bed) -> Hold {
    bed.share.borrow().hold.clone().unwrap()
}

fn target(hold: &Hold, segment: SegmentId) -> Target {
    Target { session: hold.session, segment, epoch: base::Epoch(1), level: base::levels::Level::Open, behind: 0 }
}

fn outcome<T>(answer: Answer<T>) -> Result<T> {
    answer.map_err(|lost| Error::io(lost.message))?.result
}

/// Writes or discards once: it is done, or a newer attachment exists.
async fn change(bed: &Bed, hold: &mut Hold, segment: SegmentId, sectors: Range<u64>, is_discard: bool) {
    let is_over = bed.share.borrow().attached > hold.generation;
    let (op, stamp) = {
        let mut state = bed.share.borrow_mut();
        state.next_write += 1;
        let sequence = WriteSequence(state.next_write);
        let stamp = WriteStamp { generation: hold.generation, sequence, ..WriteStamp::default() };
        (state.sectors.begin_write(segment, sectors.clone(), is_discard), stamp)
    };
    let (offset, len) = (sectors.start * SECTOR, (sectors.end - sectors.start) * SECTOR);
    let answer = match is_discard {
        true => hold.router.discard(target(hold, segment), offset, len, stamp).await,
        false => {
            let mut data = AlignedBuf::zeroed(len as usize);
            for (sector, bytes) in sectors.clone().zip(data.chunks_mut(SECTOR as usize)) {
                encode(op, segment, sector, bytes);
            }
            let data = data.freeze();
            let checksums = fragment_checksums(segment, offset, &data);
            hold.router.write(target(hold, segment), offset, data, checksums, stamp).await
        }
    };
    match outcome(answer) {
        Ok(()) if is_over => bed.fail(format!("a write of {} was taken after a newer attachment", hold.generation)),
        Ok(()) => bed.share.borrow_mut().sectors.on_acknowledged(op),
        Err(error) if error.kind == ErrorKind::Fenced => {
            bed.count("fenced_requests");
            {
                let mut state = bed.share.borrow_mut();
                if state.attached > hold.generation {
                    state.sectors.on_settled(op);
                } else {
                    state.in_doubt.push((hold.generation, op));
                }
            }
            take_newer(bed, hold, &error).await;
        }
        Err(error) => bed.fail(format!("a write to {segment}: {error} ({:?})", error.kind)),
    }
}

async fn take_newer(bed: &Bed, hold: &mut Hold, why: &Error) {
    for _ in 0..60_000 {
        let newest = newest(bed);
        if newest.generation > hold.generation || bed.has_failed() {
            *hold = newest;
            return;
        }
        bed.handle.sleep(Duration::from_millis(1)).await;
    }
    bed.fail(format!("{} was fenced, and nobody holds the volume: {why}", hold.generation));
}

/// Reads, and says what is wrong with what comes.
async fn read(bed: &Bed, hold: &mut Hold, segment: SegmentId, sectors: Range<u64>) {
    let (offset, len) = (sectors.start * SECTOR, (sectors.end - sectors.start) * SECTOR);
    let token = bed.share.borrow_mut().sectors.begin_read(segment, sectors);
    let answer = hold.router.read(target(hold, segment), offset, len).await;
    match outcome(answer) {
        Ok(parts) => {
            let mut data = Vec::with_capacity(len as usize);
            for part in parts {
                match part {
                    ReadPart::Data(bytes) => data.extend_from_slice(&bytes),
                    ReadPart::Zeros(count) => data.resize(data.len() + count as usize, 0),
                }
            }
            // A holder that has not heard of the newer one yet may read what was: nobody promised it more.
            let mut state = bed.share.borrow_mut();
            if state.attached > hold.generation {
                return state.sectors.give_up_read(&token);
            }
            let wrong = state.sectors.end_read(&token, &data);
            drop(state);
            if let Err(wrong) = wrong {
                bed.fail(wrong);
            }
        }
        Err(error) if error.kind == ErrorKind::Fenced => {
            bed.share.borrow_mut().sectors.give_up_read(&token);
            take_newer(bed, hold, &error).await;
        }
        Err(error) => bed.fail(format!("a read of {segment}: {error} ({:?})", error.kind)),
    }
}

/// Reads all of every segment, once nothing changes any more.
pub async fn read_everything(bed: &Bed) {
    let mut hold = newest(bed);
    for index in 0..SEGMENTS {
        for start in (0..SECTORS).step_by(128) {
            read(bed, &mut hold, SegmentId { volume: VOLUME, index }, start..start + 128).await;
        }
    }
}
