//! The numbers of the NBD protocol (docs/formats/nbd.md), and the errors of both its phases.

use base::{Error, ErrorKind};

/// Opens the server's greeting.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Opens every option of a client, and follows the greeting's magic.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Opens every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Opens every request of the transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Opens a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Opens a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Longest string of the protocol (names, queries, messages), in bytes.
pub const STRING_MAX: usize = 4096;
/// Smallest request and its alignment, in bytes.
pub const BLOCK_SIZE_MIN: u32 = base::SECTOR as u32;
/// Alignment from which on a request costs no merging, in bytes.
pub const BLOCK_SIZE_PREFERRED: u32 = base::BLOCK as u32;
/// Largest payload of a request or a reply, in bytes.
pub const PAYLOAD_MAX: u32 = base::limits::REQUEST_SIZE_MAX as u32;

/// Flags of the greeting, and what a client answers: the same two bits.
pub mod handshake_flag {
    /// Options are answered, unknown ones with an error.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No 124 zeros after the reply to EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// What an export can do.
pub mod export_flag {
    /// The others mean something.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is known.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The flag FUA is known.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is known.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES and its flag NO_HOLE are known.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The flag DF of READ is known.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see each other's completed writes.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is known.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The flag FAST_ZERO of WRITE_ZEROES is known.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// What a client asks for in the handshake.
pub mod option {
    /// Take this export and go on without a reply.
    pub const EXPORT_NAME: u32 = 1;
    /// End the connection.
    pub const ABORT: u32 = 2;
    /// Name all exports.
    pub const LIST: u32 = 3;
    /// Speak TLS from here on.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and take it.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Which metadata contexts are there.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Use these metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// What a server answers to an option; errors have the highest bit set.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// The name of an export.
    pub const SERVER: u32 = 2;
    /// One item of an export's description.
    pub const INFO: u32 = 3;
    /// A metadata context and its number.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    /// The option is known and not allowed.
    pub const ERR_POLICY: u32 = 1 << 31 | 2;
    /// The option is malformed or comes at the wrong time.
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    /// TLS comes first.
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = 1 << 31 | 7;
    /// The option is larger than the server reads.
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Items of an export's description.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Its canonical name.
    pub const NAME: u16 = 1;
    /// A sentence for a person.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Requests of the transmission phase.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write the payload that follows.
    pub const WRITE: u16 = 1;
    /// End the connection when everything in flight is done.
    pub const DISC: u16 = 2;
    /// Make answered writes durable.
    pub const FLUSH: u16 = 3;
    /// Free the space of a range.
    pub const TRIM: u16 = 4;
    /// Prepare to read a range.
    pub const CACHE: u16 = 5;
    /// Make a range read as zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// What is a range made of.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// Durable before the reply: always so here. Every command may carry it.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES: leave no hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ: one piece of content in the reply.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS: one extent in the reply.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES: fail at once if it is no faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of a structured reply.
pub mod chunk {
    /// The flag of the last chunk of a reply.
    pub const FLAG_DONE: u16 = 1;
    /// Nothing more to say.
    pub const NONE: u16 = 0;
    /// Bytes at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// What a range is made of.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error for the whole request.
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// The one metadata context of this server, and its number.
pub const CONTEXT_NAME: &str = "base:allocation";
/// The number under which BLOCK_STATUS replies name it.
pub const CONTEXT_ID: u32 = 1;
/// The extent is a hole and reads as zeros.
pub const STATE_HOLE_ZERO: u32 = 0b11;
/// The extent holds data.
pub const STATE_DATA: u32 = 0;

/// Errors of the transmission phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Errno {
    /// The volume is read-only.
    Perm = 1,
    /// The store could not do it.
    Io = 5,
    /// The request makes no sense.
    Inval = 22,
    /// No space is left, or a write goes beyond the end.
    NoSpc = 28,
    /// A read that must not be fragmented is too large.
    Overflow = 75,
    /// Zeroing would be no faster than writing.
    NotSup = 95,
    /// The volume or the server is going away.
    Shutdown = 108,
}

impl Errno {
    /// What a client is told about an error of the store.
    pub fn of(error: &Error) -> Errno {
        match error.kind {
            ErrorKind::Full => Errno::NoSpc,
            ErrorKind::Invalid => Errno::Inval,
            ErrorKind::Fenced | ErrorKind::NotFound => Errno::Shutdown,
            ErrorKind::Corrupt
            | ErrorKind::Io
            | ErrorKind::Retry
            | ErrorKind::Moved
            | ErrorKind::Conflict
            | ErrorKind::Internal => Errno::Io,
        }
    }
}

/// The peer broke the protocol in a way that leaves no common ground: its connection ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation(pub String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
