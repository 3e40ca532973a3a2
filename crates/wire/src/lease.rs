//! Leases, and what is bound to them: how processes find out who lives, and who is in charge.
//!
//! The shape is that of etcd, so that etcd can be one engine of it. A **lease** is kept alive by its holder, or ends when
//! its time to live is over by the clock of the store. An **entry** is a key with a value; one that is bound to a lease goes
//! with it. Each write has a **revision**, higher than every one before; a write happens only if the key is still at the
//! revision that the writer knows. A **watch** tells that something has changed, and what there is now: not what happened in
//! between.
//!
//! Invariants: a lease does not end before its time to live has passed since its holder *began* the last call that was
//! answered with it, by the clock of the store. An answer that was lost leaves the outcome unknown: whoever has written
//! looks whether its lease is in the entry.

use base::limits::{LEASE_KEY_MAX, LEASE_VALUE_MAX};
use base::{Error, Result};

use crate::service::LocalBoxFuture;

/// A lease. Never used again; zero is none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LeaseId(pub u64);

/// The number of a write. Zero: there is no such key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u64);

/// A lease that was granted, or kept alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Which.
    pub id: LeaseId,
    /// It lives so long from the call on, in milliseconds; not always what was asked for.
    pub ttl_ms: u32,
}

/// A key and what it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// Its last write.
    pub revision: Revision,
    /// The lease that it goes with; zero: it stays.
    pub lease: LeaseId,
}

/// What to write to a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// A value, which goes with a lease, or stays if that is zero.
    Put {
        /// The value.
        value: Vec<u8>,
        /// The lease.
        lease: LeaseId,
    },
    /// The key is to be no more.
    Delete,
}

/// Whether a write has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Swapped {
    /// It has, with this revision.
    Yes(Revision),
    /// It has not, because this is what there is.
    No(Option<Entry>),
}

/// All entries under a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The last write of the store.
    pub revision: Revision,
    /// In the order of keys.
    pub entries: Vec<Entry>,
}

/// A store of leases.
pub trait LeaseStore {
    /// A new lease, with about this time to live in milliseconds.
    ///
    /// # Errors
    /// `Full`: there are too many. `Retry`: the store has begun a while ago, and waits for leases that it may have
    /// forgotten to end. `Io`.
    fn grant(&self, ttl_ms: u32) -> LocalBoxFuture<'_, Result<Lease>>;

    /// The lease lives for its time to live from now on.
    ///
    /// # Errors
    /// `NotFound`: it has ended. `Io`: nobody knows.
    fn keep_alive(&self, lease: LeaseId) -> LocalBoxFuture<'_, Result<Lease>>;

    /// Writes to `key` if its revision is `expected`; zero: if there is no such key.
    ///
    /// # Errors
    /// `Invalid` for a key or value that cannot be, `NotFound`: the lease has ended, `Full`, `Retry` as for a grant. `Io`:
    /// nobody knows whether it was written.
    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        expected: Revision,
        write: Write,
    ) -> LocalBoxFuture<'a, Result<Swapped>>;

    /// What there is under `prefix`, at once if anything has changed there since revision `seen` of the store, else when
    /// something does, or after a while. With `seen` zero: at once. It may return without a change.
    ///
    /// # Errors
    /// `Invalid`, `Io`, `Retry` as for a grant, or because too many watch.
    fn watch<'a>(&'a self, prefix: &'a str, seen: Revision) -> LocalBoxFuture<'a, Result<Snapshot>>;
}

/// Whether there can be such a key, or prefix of keys.
///
/// # Errors
/// `Invalid`.
pub fn check_key(key: &str) -> Result<()> {
    match (1..=LEASE_KEY_MAX).contains(&key.len()) {
        true => Ok(()),
        false => Err(Error::invalid(format!("a key has 1 to {LEASE_KEY_MAX} bytes, not {}", key.len()))),
    }
}

/// Whether such a thing can be written.
///
/// # Errors
/// `Invalid`.
pub fn check_write(write: &Write) -> Result<()> {
    match write {
        Write::Put { value, .. } if value.len() > LEASE_VALUE_MAX => {
            Err(Error::invalid(format!("a value has at most {LEASE_VALUE_MAX} bytes, not {}", value.len())))
        }
        _ => Ok(()),
    }
}
