//! What a request means, from the copy of its descriptors and of its header.
//!
//! A request has a header of 16 bytes to be read (its kind, and the sector where it begins), what is written to the disk
//! behind that, room for what is read, and one byte for its status at the very end. Where these lie in the pieces does not
//! matter. A request that could be answered is answered, with an error if it makes no sense; one that has no header or no
//! room for a status is a [`Violation`].

use std::ops::Range;

use base::SECTOR;
use base::limits::REQUEST_SIZE_MAX;
use runtime::guest::Memory;

use super::chain::{Chain, Pieces};
use super::protocol::{Disk, ID_LEN, Status, Violation, kind};

/// Length of a header.
const HEADER_LEN: u32 = 16;
/// Length of what a discard says: sector, count, flags.
const RANGE_LEN: u32 = 16;
/// The flag of zeroes that may become a hole.
const UNMAP: u32 = 1;

/// What is to be done. Ranges are bytes, within the disk and not empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Read into what is writable.
    Read(Range<u64>),
    /// Write what is readable.
    Write(Range<u64>),
    /// Say whether all that was answered is durable.
    Flush,
    /// Make a range read as zeros, and free it.
    Discard(Range<u64>),
    /// Make a range read as zeros; as a hole, or written.
    WriteZeroes(Range<u64>, bool),
    /// Say what the disk calls itself.
    Identify,
}

/// What becomes of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// It runs.
    Run(Command),
    /// It is answered at once.
    Answer(Status),
}

/// A request whose descriptors were copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// What becomes of it.
    pub plan: Plan,
    /// What is to be read, behind the header.
    pub input: Pieces,
    /// Where the answer goes, before the status.
    pub output: Pieces,
    /// Where the status goes, in guest memory.
    pub status: u64,
}

/// Decides what becomes of the request that `chain` describes.
///
/// # Errors
/// It cannot be answered.
pub fn plan_request(memory: &Memory, mut chain: Chain, disk: &Disk) -> Result<Request, Violation> {
    if chain.readable.len() < u64::from(HEADER_LEN) {
        return Err(Violation::NoHeader);
    }
    let status = chain.writable.pop_byte().ok_or(Violation::NoStatus)?;
    let mut header = [0; HEADER_LEN as usize];
    chain.readable.split_to(HEADER_LEN).copy_to(memory, &mut header)?;
    let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let sector = le64(&header[8..]);
    let (input, output) = (chain.readable, chain.writable);
    let plan = match kind {
        kind::IN => range(disk, sector, output.len()).map(Command::Read),
        kind::OUT if disk.read_only => Err(Status::IoError),
        kind::OUT => range(disk, sector, input.len()).map(Command::Write),
        kind::FLUSH => Ok(Command::Flush),
        kind::GET_ID if output.len() < ID_LEN as u64 => Err(Status::IoError),
        kind::GET_ID => Ok(Command::Identify),
        kind::DISCARD | kind::WRITE_ZEROES => plan_range(memory, &input, disk, kind == kind::WRITE_ZEROES)?,
        _ => Err(Status::Unsupported),
    };
    let plan = plan.map_or_else(Plan::Answer, Plan::Run);
    Ok(Request { plan, input, output, status })
}

/// The range of a read or write.
fn range(disk: &Disk, sector: u64, len: u64) -> Result<Range<u64>, Status> {
    let start = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
    let end = start.checked_add(len).filter(|end| *end <= disk.size).ok_or(Status::IoError)?;
    match len > 0 && len.is_multiple_of(SECTOR) && len <= REQUEST_SIZE_MAX {
        true => Ok(start..end),
        false => Err(Status::IoError),
    }
}

/// The range of a discard, or of zeroes: one of them.
fn plan_range(
    memory: &Memory,
    input: &Pieces,
    disk: &Disk,
    zeroes: bool,
) -> Result<Result<Command, Status>, Violation> {
    if disk.read_only || input.len() != u64::from(RANGE_LEN) {
        return Ok(Err(Status::IoError));
    }
    let mut said = [0; RANGE_LEN as usize];
    input.copy_to(memory, &mut said)?;
    let (sector, word) = (le64(&said), le64(&said[8..]));
    let (count, flags) = (word as u32, (word >> 32) as u32);
    let start = sector.checked_mul(SECTOR);
    let end = start.and_then(|start| start.checked_add(u64::from(count) * SECTOR)).filter(|end| *end <= disk.size);
    Ok(match (start, end) {
        _ if flags & !UNMAP != 0 || (!zeroes && flags != 0) => Err(Status::Unsupported),
        (Some(start), Some(end)) if count > 0 && count <= Disk::sectors_max(zeroes) => match zeroes {
            true => Ok(Command::WriteZeroes(start..end, flags & UNMAP != 0)),
            false => Ok(Command::Discard(start..end)),
        },
        _ => Err(Status::IoError),
    })
}

/// The first eight bytes as a number.
fn le64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
