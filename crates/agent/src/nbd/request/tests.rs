use base::{GIB, MIB, Prng};
use bytes::BufMut;

use super::*;

const EXPORT: Export = Export { size: 8 * GIB, read_only: false, structured: true, block_status: true };

fn header(kind: u16, flags: u16, offset: u64, len: u32) -> Header {
    Header { flags, kind, cookie: 7, offset, len }
}

#[test]
fn the_header_on_the_wire() {
    let bytes = b"\x25\x60\x95\x13\0\x01\0\x06cookie88\0\0\0\0\0\0\x10\0\0\0\x02\0rest";
    let parsed = Header::parse(bytes).unwrap().unwrap();
    let cookie = u64::from_be_bytes(*b"cookie88");
    assert_eq!(parsed, Header { flags: 1, kind: command::WRITE_ZEROES, cookie, offset: 4096, len: 512 });
    assert_eq!(Header::parse(&bytes[..27]), Ok(None));
    assert!(Header::parse(&[0; 28]).is_err());
}

#[test]
fn every_refusal_has_the_right_error() {
    use command::*;
    use command_flag::*;
    let read_only = Export { read_only: true, ..EXPORT };
    let simple = Export { structured: false, block_status: false, ..EXPORT };
    let end = EXPORT.size;
    let big = PAYLOAD_MAX + 512;
    let table = [
        // Alignment: one unaligned end is enough.
        (EXPORT, header(READ, 0, 1, 512), Errno::Inval),
        (EXPORT, header(WRITE, 0, 0, 511), Errno::Inval),
        (EXPORT, header(TRIM, 0, 512, 100), Errno::Inval),
        (EXPORT, header(WRITE_ZEROES, 0, 100, 512), Errno::Inval),
        (EXPORT, header(BLOCK_STATUS, 0, 100, 512), Errno::Inval),
        (EXPORT, header(CACHE, 0, 0, 1), Errno::Inval),
        // Beyond the end: no space for writes, no sense for the others.
        (EXPORT, header(READ, 0, end, 512), Errno::Inval),
        (EXPORT, header(WRITE, 0, end, 512), Errno::NoSpc),
        (EXPORT, header(WRITE, 0, end - 512, 1024), Errno::NoSpc),
        (EXPORT, header(WRITE_ZEROES, 0, end, 512), Errno::NoSpc),
        (EXPORT, header(TRIM, 0, end, 512), Errno::Inval),
        (EXPORT, header(CACHE, 0, end, 512), Errno::Inval),
        (EXPORT, header(BLOCK_STATUS, 0, end, 512), Errno::Inval),
        (EXPORT, header(READ, 0, u64::MAX - 511, 512), Errno::Inval),
        (EXPORT, header(WRITE, 0, u64::MAX - 511, 1024), Errno::NoSpc),
        // Read-only volumes.
        (read_only, header(WRITE, 0, 0, 512), Errno::Perm),
        (read_only, header(TRIM, 0, 0, 512), Errno::Perm),
        (read_only, header(WRITE_ZEROES, 0, 0, 512), Errno::Perm),
        // Sizes.
        (EXPORT, header(READ, 0, 0, big), Errno::Inval),
        (EXPORT, header(READ, DF, 0, big), Errno::Overflow),
        (EXPORT, header(WRITE, 0, 0, big), Errno::Inval),
        (EXPORT, header(CACHE, 0, 0, big), Errno::Inval),
        // Flags that are unknown, of another command, or not negotiated.
        (EXPORT, header(READ, 1 << 5, 0, 512), Errno::Inval),
        (EXPORT, header(WRITE, DF, 0, 512), Errno::Inval),
        (EXPORT, header(TRIM, NO_HOLE, 0, 512), Errno::Inval),
        (EXPORT, header(FLUSH, REQ_ONE, 0, 0), Errno::Inval),
        (EXPORT, header(CACHE, FAST_ZERO, 0, 512), Errno::Inval),
        (EXPORT, header(BLOCK_STATUS, NO_HOLE, 0, 512), Errno::Inval),
        (simple, header(READ, DF, 0, 512), Errno::Inval),
        (simple, header(BLOCK_STATUS, 0, 0, 512), Errno::Inval),
        // The rest.
        (EXPORT, header(FLUSH, 0, 0, 512), Errno::Inval),
        (EXPORT, header(FLUSH, 0, 512, 0), Errno::Inval),
        (EXPORT, header(BLOCK_STATUS, 0, 0, 0), Errno::Inval),
        (EXPORT, header(WRITE_ZEROES, NO_HOLE | FAST_ZERO, 0, 512), Errno::NotSup),
        (EXPORT, header(8, 0, 0, 0), Errno::Inval),
        (EXPORT, header(u16::MAX, 0, 0, 0), Errno::Inval),
    ];
    for (export, header, expected) in table {
        match plan_request(&header, &export).unwrap() {
            Plan::Refuse { errno, .. } => assert_eq!(errno, expected, "{header:?}"),
            other => panic!("{header:?} gave {other:?}"),
        }
    }
}

#[test]
fn what_is_allowed_runs() {
    use command::*;
    use command_flag::*;
    let end = EXPORT.size;
    let table = [
        (header(READ, FUA, 0, 512), Command::Read { whole: false }),
        (header(READ, DF, end - 512, 512), Command::Read { whole: true }),
        (header(READ, DF, 0, PAYLOAD_MAX), Command::Read { whole: true }),
        (header(WRITE, FUA, 512, PAYLOAD_MAX), Command::Write),
        (header(FLUSH, FUA, 0, 0), Command::Flush),
        (header(TRIM, FUA, 0, u32::MAX - 511), Command::Trim),
        (header(WRITE_ZEROES, FAST_ZERO | FUA, 0, u32::MAX - 511), Command::WriteZeroes { allocate: false }),
        (header(WRITE_ZEROES, NO_HOLE, 0, 64 * MIB as u32), Command::WriteZeroes { allocate: true }),
        (header(CACHE, FUA, 0, 4096), Command::Cache),
        (header(BLOCK_STATUS, REQ_ONE, 0, u32::MAX - 511), Command::BlockStatus { one: true }),
    ];
    for (header, command) in table {
        assert_eq!(plan_request(&header, &EXPORT), Ok(Plan::Run(command)), "{header:?}");
    }
    for kind in [READ, WRITE, TRIM, CACHE, WRITE_ZEROES] {
        assert_eq!(plan_request(&header(kind, 0, end, 0), &EXPORT), Ok(Plan::Nothing));
    }
    assert_eq!(plan_request(&header(DISC, 0, 0, 0), &EXPORT), Ok(Plan::Disconnect));
    assert!(plan_request(&header(WRITE, 0, 0, PAYLOAD_SKIP_MAX + 1), &EXPORT).is_err());
}

#[test]
fn whatever_runs_is_aligned_and_in_range() {
    let seed = 1;
    let mut prng = Prng::new(seed);
    let mut ran = 0;
    for _ in 0..100_000 {
        let mut bytes = Vec::new();
        bytes.put_u32(REQUEST_MAGIC);
        bytes.put_u16(if prng.one_in(2) { 0 } else { prng.below(64) as u16 });
        bytes.put_u16(prng.below(10) as u16);
        bytes.put_u64(1);
        bytes.put_u64(prng.below(EXPORT.size + MIB) & !if prng.one_in(2) { 511 } else { 0 });
        bytes.put_u32((prng.next_u64() as u32 >> prng.below(32)) & !511);
        let header = Header::parse(&bytes).unwrap().unwrap();
        let export = Export { read_only: prng.one_in(4), ..EXPORT };
        if let Ok(Plan::Run(command)) = plan_request(&header, &export) {
            ran += 1;
            assert!(header.offset.is_multiple_of(512) && header.len.is_multiple_of(512), "seed {seed}");
            assert!(header.offset + u64::from(header.len) <= EXPORT.size, "seed {seed}: {header:?}");
            let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes { .. });
            assert!(!(writes && export.read_only), "seed {seed}");
        }
    }
    assert!(ran > 1_000, "the test reaches what it checks: {ran}");
}

#[test]
fn flags_of_exports() {
    assert_eq!(EXPORT.flags(), 0b1101_1110_1101);
    assert_eq!(Export { structured: false, ..EXPORT }.flags(), 0b1101_0110_1101);
    assert_eq!(Export { read_only: true, ..EXPORT }.flags(), 0b0101_1000_1111);
}
