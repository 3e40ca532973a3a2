//! What the API knows of its store.

use std::path::PathBuf;

use super::token::Tokens;
use crate::service::Call;

/// What every handler needs.
pub struct Api {
    /// The manager's mailbox.
    pub calls: async_channel::Sender<Call>,
    /// What may be shown, and what for.
    pub tokens: Tokens,
    /// Whether the address can be reached from elsewhere.
    pub is_public: bool,
    /// Where the token stands.
    pub token_file: PathBuf,
    /// Names that may stand in `Host`.
    pub host_names: Vec<String>,
    /// URIs of the NBD listeners.
    pub nbd: Vec<String>,
    /// Whether another manager may be the one who knows.
    pub is_one_of_several: bool,
}
