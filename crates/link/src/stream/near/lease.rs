//! The near end as a store of leases.

use base::Result;
use wire::frame::{Request, Value};
use wire::lease::{Lease, LeaseId, Revision, Snapshot, Swapped, Write};
use wire::{LeaseStore, LocalBoxFuture};

use super::{NearEnd, other};

impl LeaseStore for NearEnd {
    fn grant(&self, ttl_ms: u32) -> LocalBoxFuture<'_, Result<Lease>> {
        Box::pin(async move {
            match self.0.ask_any(Request::Grant { ttl_ms }).await? {
                Value::Lease(lease) => Ok(lease),
                value => other(&value),
            }
        })
    }

    fn keep_alive(&self, lease: LeaseId) -> LocalBoxFuture<'_, Result<Lease>> {
        Box::pin(async move {
            match self.0.ask_any(Request::KeepAlive { lease }).await? {
                Value::Lease(lease) => Ok(lease),
                value => other(&value),
            }
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        expected: Revision,
        write: Write,
    ) -> LocalBoxFuture<'a, Result<Swapped>> {
        Box::pin(async move {
            match self.0.ask_any(Request::Swap { key: key.to_owned(), expected, write }).await? {
                Value::Swapped(swapped) => Ok(swapped),
                value => other(&value),
            }
        })
    }

    fn watch<'a>(&'a self, prefix: &'a str, seen: Revision) -> LocalBoxFuture<'a, Result<Snapshot>> {
        Box::pin(async move {
            match self.0.ask_any(Request::Watch { prefix: prefix.to_owned(), seen }).await? {
                Value::Snapshot(snapshot) => Ok(snapshot),
                value => other(&value),
            }
        })
    }
}
