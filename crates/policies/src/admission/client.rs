//! Clients, as a server tells them apart.

use std::hash::BuildHasher;

use base::Map;

/// Who a volume belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ClientId(pub u64);

impl ClientId {
    /// The client of that name: a hash, so that nobody keeps a table of every name that ever was.
    pub fn of(owner: &str) -> ClientId {
        ClientId(Map::<(), ()>::default().hasher().hash_one(owner))
    }
}
