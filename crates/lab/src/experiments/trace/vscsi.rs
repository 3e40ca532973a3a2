//! Traces of VMware's virtual SCSI layer, version 1: records of 32 bytes, little-endian.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..4 | serial number |
//! | 4..8 | size in bytes |
//! | 8..12 | elements of the scatter-gather list |
//! | 12..14 | command: 0x28 read, 0x2a write |
//! | 14..16 | version: 0x0100 |
//! | 16..24 | address in sectors of 512 bytes |
//! | 24..32 | time in microseconds |

use super::Request;

/// Bytes of a record.
pub(super) const RECORD: usize = 32;
const VERSION: u16 = 0x0100;
const READ: u16 = 0x28;
const WRITE: u16 = 0x2a;
const SECTOR: u64 = 512;

/// The request of a record.
pub(super) fn request(record: &[u8; RECORD]) -> Result<Request, String> {
    let half = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
    let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 2)) << 16;
    let long = |at: usize| word(at) | word(at + 4) << 32;
    let (command, version) = (half(12), half(14));
    if version != VERSION {
        return Err(format!(
            "version {version:#06x}, not {VERSION:#06x}: neither text nor VSCSI version 1, which are what can be read"
        ));
    }
    let is_write = match command {
        READ => false,
        WRITE => true,
        other => return Err(format!("command {other:#04x} is neither a read (0x28) nor a write (0x2a); leave it out")),
    };
    let offset = long(16).checked_mul(SECTOR).ok_or("its address is beyond what 64 bits can say")?;
    let at_ns = long(24).checked_mul(1000).ok_or("its time is beyond what 64 bits can say")?;
    Ok(Request { at_ns, device: 0, offset, bytes: word(4), is_write })
}

#[cfg(test)]
mod tests {
    use super::super::reader::Reader;
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Vec<Request>, String> {
        Reader::new(bytes)?.collect()
    }

    fn record(bytes: u32, command: u16, version: u16, sector: u64, us: u64) -> Vec<u8> {
        let mut record = 7u32.to_le_bytes().to_vec();
        record.extend(bytes.to_le_bytes());
        record.extend(1u32.to_le_bytes());
        record.extend(command.to_le_bytes());
        record.extend(version.to_le_bytes());
        record.extend(sector.to_le_bytes());
        record.extend(us.to_le_bytes());
        record
    }

    #[test]
    fn records_are_requests() {
        let file = [record(4096, 0x2a, 0x0100, 8, 5_000_000), record(512, 0x28, 0x0100, 1 << 33, 5_000_001)].concat();
        let first = Request { at_ns: 5_000_000_000, device: 0, offset: 4096, bytes: 4096, is_write: true };
        let second = Request { at_ns: 5_000_001_000, device: 0, offset: 1 << 42, bytes: 512, is_write: false };
        assert_eq!(parse(&file).unwrap(), [first, second]);
    }

    #[test]
    fn what_is_no_record_is_named() {
        let good = record(4096, 0x2a, 0x0100, 8, 0);
        let wrong = |record: Vec<u8>| parse(&[good.clone(), record].concat()).unwrap_err();
        assert!(wrong(good[..31].to_vec()).contains("31 bytes of 32: the file was cut off"));
        assert!(wrong(record(1, 0x2a, 0x0200, 0, 0)).contains("record 2: version 0x0200"));
        assert!(wrong(record(1, 0x12, 0x0100, 0, 0)).contains("command 0x12 is neither"));
        assert!(wrong(record(1, 0x2a, 0x0100, u64::MAX / 2, 0)).contains("address"));
        assert!(wrong(record(1, 0x2a, 0x0100, 0, u64::MAX)).contains("time"));
    }
}
