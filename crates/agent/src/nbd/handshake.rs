//! The handshake without I/O: bytes of a client in, options out; replies to options as bytes.
//!
//! Only fixed newstyle is spoken. A client may send what it likes: an option that is unknown, malformed or too large
//! is skipped and answered with an error, and only what leaves no common ground (a wrong magic, unknown client flags,
//! an option of more than [`OPTION_SKIP_MAX`] bytes) ends its connection.

use bytes::{Buf, BufMut};

use super::protocol::*;

/// Most bytes of an option's data that are read. Two longest names and a few queries fit.
pub const OPTION_DATA_MAX: usize = 12 * 1024;
/// Most bytes of an option's data that are skipped to answer it with an error.
pub const OPTION_SKIP_MAX: u32 = 1 << 20;
/// Most options of one handshake.
pub const OPTIONS_MAX: u32 = 1024;
/// Length of an option's header.
const OPTION_HEADER: usize = 16;

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientOption {
    /// Take an export; there is no way to refuse but to end the connection.
    ExportName(String),
    /// End the connection after an acknowledgement.
    Abort,
    /// Name all exports.
    List,
    /// Describe an export, and with `go` take it.
    Info {
        /// Whether transmission follows.
        go: bool,
        /// The export's name; empty for the default one.
        export: String,
        /// Items that the client wants to know.
        wanted: Vec<u16>,
    },
    /// Go on under TLS.
    StartTls,
    /// Use structured replies.
    StructuredReply,
    /// List or set metadata contexts.
    MetaContext {
        /// Whether they are to be used, not only listed.
        set: bool,
        /// The export's name.
        export: String,
        /// Patterns of contexts.
        queries: Vec<String>,
    },
    /// Something to be answered with an error, whatever the state of things is.
    Refused {
        /// The option as sent.
        option: u32,
        /// The error reply.
        reply: u32,
        /// For a person.
        reason: &'static str,
    },
}

impl ClientOption {
    /// The option as it is sent.
    pub fn number(&self) -> u32 {
        match self {
            ClientOption::ExportName(_) => option::EXPORT_NAME,
            ClientOption::Abort => option::ABORT,
            ClientOption::List => option::LIST,
            ClientOption::Info { go: false, .. } => option::INFO,
            ClientOption::Info { go: true, .. } => option::GO,
            ClientOption::StartTls => option::STARTTLS,
            ClientOption::StructuredReply => option::STRUCTURED_REPLY,
            ClientOption::MetaContext { set: false, .. } => option::LIST_META_CONTEXT,
            ClientOption::MetaContext { set: true, .. } => option::SET_META_CONTEXT,
            ClientOption::Refused { option, .. } => *option,
        }
    }
}

/// Reads a client's side of the handshake.
#[derive(Debug, Default)]
pub struct HandshakeParser {
    greeted: bool,
    no_zeroes: bool,
    options: u32,
    /// An option whose data is being skipped: bytes to go, and what to say then.
    skipping: Option<(usize, ClientOption)>,
}

impl HandshakeParser {
    /// A parser at the start of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the client wants no zeros after the reply to EXPORT_NAME.
    pub fn no_zeroes(&self) -> bool {
        self.no_zeroes
    }

    /// Reads one step from `input`: how many bytes it took, and the option that they completed. Nothing taken and no
    /// option means that more bytes are needed; what they are is kept by the caller.
    ///
    /// # Errors
    /// A violation that ends the connection.
    pub fn parse(&mut self, input: &[u8]) -> Result<(usize, Option<ClientOption>), Violation> {
        if let Some((left, option)) = &mut self.skipping {
            let taken = input.len().min(*left);
            *left -= taken;
            let done = *left == 0;
            let option = done.then(|| option.clone());
            if done {
                self.skipping = None;
            }
            return Ok((taken, option));
        }
        match self.greeted {
            false => self.parse_flags(input),
            true => self.parse_option(input),
        }
    }

    fn parse_flags(&mut self, mut input: &[u8]) -> Result<(usize, Option<ClientOption>), Violation> {
        if input.len() < 4 {
            return Ok((0, None));
        }
        let flags = input.get_u32();
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        if flags & !known != 0 {
            return Err(Violation(format!("unknown client flags {flags:#x}")));
        }
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.greeted = true;
        Ok((4, None))
    }

    fn parse_option(&mut self, input: &[u8]) -> Result<(usize, Option<ClientOption>), Violation> {
        let Some(mut header) = input.get(..OPTION_HEADER) else { return Ok((0, None)) };
        let (magic, option, len) = (header.get_u64(), header.get_u32(), header.get_u32());
        if magic != OPTION_MAGIC {
            return Err(Violation(format!("an option begins with {magic:#018x}")));
        }
        if len > OPTION_SKIP_MAX {
            return Err(Violation(format!("option {option} has {len} bytes of data")));
        }
        let data_end = OPTION_HEADER + len as usize;
        if len as usize <= OPTION_DATA_MAX && input.len() < data_end {
            return Ok((0, None));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(Violation(format!("more than {OPTIONS_MAX} options in one handshake")));
        }
        if len as usize > OPTION_DATA_MAX {
            let (reply, reason) = match is_known(option) {
                true => (option_reply::ERR_TOO_BIG, "the option is too large"),
                false => (option_reply::ERR_UNSUP, "the option is not known"),
            };
            if option == option::EXPORT_NAME {
                return Err(Violation(format!("an export name of {len} bytes")));
            }
            self.skipping = Some((len as usize, ClientOption::Refused { option, reply, reason }));
            return Ok((OPTION_HEADER, None));
        }
        let data = &input[OPTION_HEADER..data_end];
        match read_option(option, data) {
            Ok(read) => Ok((data_end, Some(read))),
            Err(reason) if option == option::EXPORT_NAME => Err(Violation(reason.into())),
            Err(reason) => {
                Ok((data_end, Some(ClientOption::Refused { option, reply: option_reply::ERR_INVALID, reason })))
            }
        }
    }
}

fn is_known(option: u32) -> bool {
    matches!(option, option::EXPORT_NAME..=option::LIST | option::STARTTLS..=option::SET_META_CONTEXT)
}

/// What the data of an option says, or why it is invalid.
fn read_option(option: u32, data: &[u8]) -> Result<ClientOption, &'static str> {
    let refused = |reply, reason| Ok(ClientOption::Refused { option, reply, reason });
    match option {
        option::EXPORT_NAME => string(data).map(ClientOption::ExportName),
        option::ABORT => Ok(ClientOption::Abort),
        option::LIST => empty(data).map(|()| ClientOption::List),
        option::STRUCTURED_REPLY => empty(data).map(|()| ClientOption::StructuredReply),
        option::INFO | option::GO => read_info(option == option::GO, data),
        option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
            read_meta_context(option == option::SET_META_CONTEXT, data)
        }
        option::STARTTLS => empty(data).map(|()| ClientOption::StartTls),
        option::EXTENDED_HEADERS => refused(option_reply::ERR_UNSUP, "extended headers are not supported"),
        _ => refused(option_reply::ERR_UNSUP, "the option is not known"),
    }
}

fn read_info(go: bool, mut data: &[u8]) -> Result<ClientOption, &'static str> {
    let export = prefixed_string(&mut data)?;
    let count = data.try_get_u16().map_err(|_| "the count of information requests is missing")?;
    if data.len() != usize::from(count) * 2 {
        return Err("the information requests are not as many as announced");
    }
    let wanted = (0..count).map(|_| data.get_u16()).collect();
    Ok(ClientOption::Info { go, export, wanted })
}

fn read_meta_context(set: bool, mut data: &[u8]) -> Result<ClientOption, &'static str> {
    let export = prefixed_string(&mut data)?;
    let count = data.try_get_u32().map_err(|_| "the count of queries is missing")?;
    // Each query takes at least its length field, so a large count cannot make the loop long.
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(prefixed_string(&mut data)?);
    }
    empty(data)?;
    Ok(ClientOption::MetaContext { set, export, queries })
}

fn empty(data: &[u8]) -> Result<(), &'static str> {
    if data.is_empty() { Ok(()) } else { Err("the option has more data than it should") }
}

fn prefixed_string(data: &mut &[u8]) -> Result<String, &'static str> {
    let len = data.try_get_u32().map_err(|_| "a length is missing")? as usize;
    let (text, rest) = data.split_at_checked(len).ok_or("a string is longer than the option")?;
    *data = rest;
    string(text)
}

fn string(bytes: &[u8]) -> Result<String, &'static str> {
    if bytes.len() > STRING_MAX {
        return Err("a string is longer than 4096 bytes");
    }
    if bytes.contains(&0) {
        return Err("a string contains a zero byte");
    }
    Ok(std::str::from_utf8(bytes).map_err(|_| "a string is not UTF-8")?.to_owned())
}

/// Whether the queries of a client name [`CONTEXT_NAME`]: `base:` is a wildcard in a list only, and so is no query.
pub fn selects_allocation(set: bool, queries: &[String]) -> bool {
    let wildcard = !set && (queries.is_empty() || queries.iter().any(|query| query == "base:"));
    wildcard || queries.iter().any(|query| query == CONTEXT_NAME)
}

/// The server's first words.
pub fn greeting() -> [u8; 18] {
    let mut out = [0; 18];
    let mut rest = &mut out[..];
    rest.put_u64(GREETING_MAGIC);
    rest.put_u64(OPTION_MAGIC);
    rest.put_u16(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    out
}

/// Appends one reply to an option.
pub fn put_reply(out: &mut Vec<u8>, option: u32, reply: u32, data: &[u8]) {
    out.put_u64(OPTION_REPLY_MAGIC);
    out.put_u32(option);
    out.put_u32(reply);
    out.put_u32(data.len() as u32);
    out.put_slice(data);
}

/// Appends a reply of type SERVER.
pub fn put_server(out: &mut Vec<u8>, name: &str) {
    let mut data = Vec::with_capacity(4 + name.len());
    data.put_u32(name.len() as u32);
    data.put_slice(name.as_bytes());
    put_reply(out, option::LIST, option_reply::SERVER, &data);
}

/// Appends one item of an export's description.
pub fn put_info(out: &mut Vec<u8>, option: u32, item: u16, content: &[u8]) {
    let mut data = Vec::with_capacity(2 + content.len());
    data.put_u16(item);
    data.put_slice(content);
    put_reply(out, option, option_reply::INFO, &data);
}

/// Appends size and flags of an export: the item EXPORT.
pub fn put_info_export(out: &mut Vec<u8>, option: u32, size: u64, flags: u16) {
    let mut content = [0; 10];
    content[..8].copy_from_slice(&size.to_be_bytes());
    content[8..].copy_from_slice(&flags.to_be_bytes());
    put_info(out, option, info::EXPORT, &content);
}

/// Appends the smallest, preferred and largest request: the item BLOCK_SIZE.
pub fn put_info_block_size(out: &mut Vec<u8>, option: u32) {
    let content = [BLOCK_SIZE_MIN, BLOCK_SIZE_PREFERRED, PAYLOAD_MAX].map(u32::to_be_bytes).concat();
    put_info(out, option, info::BLOCK_SIZE, &content);
}

/// Appends the one metadata context; a list gives it the number 0, as the protocol wants it.
pub fn put_meta_context(out: &mut Vec<u8>, set: bool) {
    let (option, id) = match set {
        true => (option::SET_META_CONTEXT, CONTEXT_ID),
        false => (option::LIST_META_CONTEXT, 0),
    };
    put_reply(out, option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), CONTEXT_NAME.as_bytes()].concat());
}

/// Appends the answer to EXPORT_NAME.
pub fn put_export(out: &mut Vec<u8>, size: u64, flags: u16, no_zeroes: bool) {
    out.put_u64(size);
    out.put_u16(flags);
    if !no_zeroes {
        out.put_bytes(0, 124);
    }
}

#[cfg(test)]
mod tests;
