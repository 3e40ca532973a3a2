//! Why a connection ended.

use std::io;

use base::Error;

use super::protocol::Violation;

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The client said so.
    Clean,
    /// The agent said so.
    Drained,
    /// The stream ended or failed.
    Stream(io::Error),
    /// The client asked for something that only the end of the connection can refuse.
    Refused(Error),
    /// The client is not let in: its certificate, or that it has none.
    Distrusted(Error),
    /// The client broke the protocol.
    Violation(Violation),
}
