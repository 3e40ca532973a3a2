use base::Prng;
use bytes::Buf;

use super::*;

/// Everything that is to be sent, as one byte string.
fn drain(frames: &mut Frames) -> Vec<u8> {
    let (parts, len) = frames.take(u64::MAX, usize::MAX);
    let bytes = parts.concat();
    assert_eq!(bytes.len() as u64, len);
    assert!(frames.is_empty());
    bytes
}

/// Reads the chunks of one reply and assembles the range that they describe.
fn assemble(mut bytes: &[u8], cookie: u64, offset: u64, len: usize) -> (Vec<u8>, usize) {
    let (mut content, mut covered, mut chunks) = (vec![0xee; len], 0, 0);
    loop {
        assert_eq!(bytes.get_u32(), CHUNK_MAGIC);
        let (flags, kind) = (bytes.get_u16(), bytes.get_u16());
        assert_eq!(bytes.get_u64(), cookie);
        let (mut payload, rest) = bytes.split_at_checked(4 + bytes[..4].as_ref().get_u32() as usize).unwrap();
        payload.advance(4);
        bytes = rest;
        chunks += 1;
        let at = (payload.get_u64() - offset) as usize;
        assert_eq!(at, covered, "chunks come in order without a gap");
        match kind {
            chunk::OFFSET_DATA => {
                content[at..at + payload.len()].copy_from_slice(payload);
                covered += payload.len();
            }
            chunk::OFFSET_HOLE => {
                let hole = payload.get_u32() as usize;
                assert!(hole > 0 && payload.is_empty());
                content[at..at + hole].fill(0);
                covered += hole;
            }
            other => panic!("chunk type {other}"),
        }
        if flags == chunk::FLAG_DONE {
            assert!(bytes.is_empty(), "nothing follows the last chunk");
            assert_eq!(covered, len);
            return (content, chunks);
        }
        assert_eq!(flags, 0);
    }
}

#[test]
fn golden_bytes_of_replies() {
    let mut frames = Frames::new();
    frames.put_simple(0x0102_0304_0506_0708, 0);
    frames.put_simple(9, 28);
    assert_eq!(
        drain(&mut frames),
        b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x67\x44\x66\x98\0\0\0\x1c\0\0\0\0\0\0\0\x09"
    );
    frames.put_done(1);
    assert_eq!(drain(&mut frames), b"\x66\x8e\x33\xef\0\x01\0\0\0\0\0\0\0\0\0\x01\0\0\0\0");
    frames.put_error(true, 1, Errno::Inval, "no");
    assert_eq!(drain(&mut frames)[4..], *b"\0\x01\x80\x01\0\0\0\0\0\0\0\x01\0\0\0\x08\0\0\0\x16\0\x02no");
    frames.put_error(false, 1, Errno::Inval, "no");
    assert_eq!(drain(&mut frames).len(), 16);
    frames.put_block_status(
        1,
        &[AllocationExtent { len: 4096, allocated: true }, AllocationExtent { len: 512, allocated: false }],
    );
    assert_eq!(
        drain(&mut frames)[4..],
        *b"\0\x01\0\x05\0\0\0\0\0\0\0\x01\0\0\0\x14\0\0\0\x01\0\0\x10\0\0\0\0\0\0\0\x02\0\0\0\0\x03"
    );
    assert_eq!(frames.position(), 32 + 20 + 28 + 16 + 40);
}

#[test]
fn long_messages_are_cut_at_a_character() {
    let mut frames = Frames::new();
    frames.put_error(true, 1, Errno::Io, &"ü".repeat(4000));
    let bytes = drain(&mut frames);
    assert!(std::str::from_utf8(&bytes[26..]).is_ok() && bytes.len() <= 26 + MESSAGE_MAX);
}

#[test]
fn reads_of_any_shape_arrive_whole() {
    for seed in 0..1_000 {
        let mut prng = Prng::new(seed);
        let (mut parts, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..prng.between(1, 12) {
            let len = 512 * prng.between(1, 40);
            match prng.one_in(2) {
                true => {
                    expected.extend(std::iter::repeat_n(0, len as usize));
                    parts.push(ReadPart::Zeros(len));
                }
                false => {
                    let mut data = vec![0; len as usize];
                    prng.fill(&mut data);
                    expected.extend_from_slice(&data);
                    parts.push(ReadPart::Data(Bytes::from(data)));
                }
            }
        }
        let mut frames = Frames::new();
        frames.put_read_simple(5, parts.clone());
        assert_eq!(drain(&mut frames)[16..], expected, "seed {seed}");
        let whole = prng.one_in(2);
        frames.put_read_chunks(5, 1 << 40, whole, parts);
        let (content, chunks) = assemble(&drain(&mut frames), 5, 1 << 40, expected.len());
        assert_eq!(content, expected, "seed {seed}");
        assert!(!whole || chunks == 1, "seed {seed}: not fragmented");
    }
}

#[test]
fn a_hole_is_not_spelt_out() {
    let mut frames = Frames::new();
    frames.put_read_chunks(5, 0, false, vec![ReadPart::Zeros(1 << 20), ReadPart::Zeros(1 << 20)]);
    assert_eq!(drain(&mut frames).len(), 32);
}

#[test]
fn replies_are_taken_in_bounded_portions() {
    for seed in 0..200 {
        let mut prng = Prng::new(seed);
        let (mut frames, mut expected, mut sent) = (Frames::new(), Frames::new(), Vec::new());
        for cookie in 0..200 {
            let data = Bytes::from(vec![cookie as u8; prng.between(1, 3000) as usize]);
            for out in [&mut frames, &mut expected] {
                match cookie % 3 {
                    0 => out.put_simple(cookie, 0),
                    _ => out.put_read_simple(cookie, vec![ReadPart::Data(data.clone())]),
                }
            }
            if prng.one_in(4) {
                let (bytes_max, parts_max) = (prng.between(1, 9000), prng.between(1, 9) as usize);
                let (parts, len) = frames.take(bytes_max, parts_max);
                assert!(len <= bytes_max && parts.len() <= parts_max && len > 0, "seed {seed}");
                sent.extend(parts.concat());
            }
        }
        sent.extend(drain(&mut frames));
        assert_eq!(sent, drain(&mut expected), "seed {seed}");
        assert_eq!(frames.position(), sent.len() as u64);
    }
}
