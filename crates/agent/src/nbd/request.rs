//! Requests of the transmission phase without I/O: 28 bytes in, a decision out.
//!
//! [`plan_request`] decides everything that depends on the request and the export alone: which errors are due, in
//! the order flags, permission, alignment, range, and whether a payload follows that must be skipped.

use base::{SECTOR, units::is_aligned};
use bytes::Buf;

use super::protocol::*;

/// Payloads up to this length are skipped to answer an oversized WRITE with an error; a longer one ends the
/// connection.
pub const PAYLOAD_SKIP_MAX: u32 = 2 * PAYLOAD_MAX;

/// A request as it stands on the wire, without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// See [`command_flag`].
    pub flags: u16,
    /// See [`command`].
    pub kind: u16,
    /// The client's name for the request, repeated in the reply.
    pub cookie: u64,
    /// Byte in the export.
    pub offset: u64,
    /// Length in bytes; of the payload, too, in a WRITE.
    pub len: u32,
}

impl Header {
    /// Length on the wire, in bytes.
    pub const SIZE: usize = 28;

    /// Reads the first request of `input`; `None` if it is not all there. The magic
    /// is judged as soon as it is.
    ///
    /// # Errors
    /// A wrong magic: there is no telling where the next request begins.
    pub fn parse(input: &[u8]) -> Result<Option<Header>, Violation> {
        let Some(mut magic) = input.get(..4) else { return Ok(None) };
        let magic = magic.get_u32();
        if magic != REQUEST_MAGIC {
            return Err(Violation(format!("a request begins with {magic:#010x}")));
        }
        let Some(mut input) = input.get(4..Self::SIZE) else { return Ok(None) };
        Ok(Some(Header {
            flags: input.get_u16(),
            kind: input.get_u16(),
            cookie: input.get_u64(),
            offset: input.get_u64(),
            len: input.get_u32(),
        }))
    }
}

/// What was agreed on in the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether structured replies were negotiated.
    pub structured: bool,
    /// Whether base:allocation was negotiated.
    pub block_status: bool,
}

impl Export {
    /// What a client is told that it can do.
    pub fn flags(&self) -> u16 {
        use export_flag::*;
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
        flags |= match self.read_only {
            true => READ_ONLY,
            false => SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO,
        };
        if self.structured {
            flags |= SEND_DF;
        }
        flags
    }
}

/// A request that passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Read a range; with `whole`, as one piece of content.
    Read {
        /// The flag DF.
        whole: bool,
    },
    /// Write the payload.
    Write,
    /// Make answered writes durable.
    Flush,
    /// Free the space of a range, which then reads as zeros.
    Trim,
    /// Make a range read as zeros; with `allocate`, as data that takes space.
    WriteZeroes {
        /// The flag NO_HOLE.
        allocate: bool,
    },
    /// Prepare to read a range.
    Cache,
    /// What is a range made of; with `one`, only its first extent.
    BlockStatus {
        /// The flag REQ_ONE.
        one: bool,
    },
}

/// What to do with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Run it.
    Run(Command),
    /// Answer with success; there is nothing to do.
    Nothing,
    /// Skip the payload, if one follows, and answer with an error.
    Refuse {
        /// The error.
        errno: Errno,
        /// For a person.
        reason: &'static str,
    },
    /// Answer what is in flight, then end the connection.
    Disconnect,
}

/// Decides about one request.
///
/// # Errors
/// A payload so long that skipping it would serve nobody.
pub fn plan_request(header: &Header, export: &Export) -> Result<Plan, Violation> {
    if header.kind == command::WRITE && header.len > PAYLOAD_SKIP_MAX {
        return Err(Violation(format!("a write with a payload of {} bytes", header.len)));
    }
    Ok(decide(header, export).unwrap_or_else(|(errno, reason)| Plan::Refuse { errno, reason }))
}

fn decide(header: &Header, export: &Export) -> Result<Plan, (Errno, &'static str)> {
    use command_flag::*;
    let flag = |flag| header.flags & flag != 0;
    let mut known = FUA;
    let command = match header.kind {
        command::READ => {
            known |= if export.structured { DF } else { 0 };
            Command::Read { whole: flag(DF) }
        }
        command::WRITE => Command::Write,
        command::DISC => return Ok(Plan::Disconnect),
        command::FLUSH => Command::Flush,
        command::TRIM => Command::Trim,
        command::CACHE => Command::Cache,
        command::WRITE_ZEROES => {
            known |= NO_HOLE | FAST_ZERO;
            Command::WriteZeroes { allocate: flag(NO_HOLE) }
        }
        command::BLOCK_STATUS => {
            known |= REQ_ONE;
            Command::BlockStatus { one: flag(REQ_ONE) }
        }
        _ => return Err((Errno::Inval, "the command is not known")),
    };
    if header.flags & !known != 0 {
        return Err((Errno::Inval, "a flag is not known or not valid for the command"));
    }
    let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes { .. });
    if writes && export.read_only {
        return Err((Errno::Perm, "the volume is read-only"));
    }
    check_range(header, export, command)?;
    if command == (Command::WriteZeroes { allocate: true }) && flag(FAST_ZERO) {
        return Err((Errno::NotSup, "zeros without a hole are no faster than a write"));
    }
    Ok(if header.len == 0 && command != Command::Flush { Plan::Nothing } else { Plan::Run(command) })
}

/// The errors of offset and length.
fn check_range(header: &Header, export: &Export, command: Command) -> Result<(), (Errno, &'static str)> {
    let (offset, len) = (header.offset, u64::from(header.len));
    if command == Command::Flush {
        let zero = offset == 0 && len == 0;
        return if zero { Ok(()) } else { Err((Errno::Inval, "a flush has no range")) };
    }
    if !is_aligned(offset, SECTOR) || !is_aligned(len, SECTOR) {
        return Err((Errno::Inval, "offset and length must be multiples of 512"));
    }
    if offset.checked_add(len).is_none_or(|end| end > export.size) {
        let errno = match command {
            Command::Write | Command::WriteZeroes { .. } => Errno::NoSpc,
            _ => Errno::Inval,
        };
        return Err((errno, "the range goes beyond the end of the volume"));
    }
    match command {
        Command::Read { whole: true } if header.len > PAYLOAD_MAX => {
            Err((Errno::Overflow, "a read of more than 32 MiB cannot be answered in one piece"))
        }
        Command::Read { .. } | Command::Write | Command::Cache if header.len > PAYLOAD_MAX => {
            Err((Errno::Inval, "the request is larger than 32 MiB"))
        }
        Command::BlockStatus { .. } if !export.block_status => {
            Err((Errno::Inval, "base:allocation was not negotiated"))
        }
        Command::BlockStatus { .. } if len == 0 => Err((Errno::Inval, "the status of nothing is not defined")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
