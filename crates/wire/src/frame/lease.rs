//! Leases and entries in bodies. A key or value longer than any may be is refused where it is read.

use bytes::BufMut;

use super::fields::{Fields, put_text};
use crate::lease::{Entry, Lease, LeaseId, Revision, Snapshot, Swapped, Write, check_key, check_write};

/// The first byte of a write.
const DELETE: u8 = 0;
const PUT: u8 = 1;
/// The first byte of what came of it.
const NO_ENTRY: u8 = 0;
const OTHER_ENTRY: u8 = 1;
const SWAPPED: u8 = 2;

pub(super) fn put_change(out: &mut Vec<u8>, key: &str, expected: Revision, write: &Write) {
    out.put_u64_le(expected.0);
    put_text(out, key);
    match write {
        Write::Delete => out.put_u8(DELETE),
        Write::Put { value, lease } => {
            out.put_u8(PUT);
            out.put_u64_le(lease.0);
            put_value(out, value);
        }
    }
}

pub(super) fn change(body: &mut Fields<'_>) -> Option<(String, Revision, Write)> {
    let (expected, key) = (Revision(body.u64()?), body.text()?);
    let write = match body.u8()? {
        DELETE => Write::Delete,
        PUT => Write::Put { lease: LeaseId(body.u64()?), value: value(body)? },
        _ => return None,
    };
    Some((key, expected, write))
}

pub(super) fn put_lease(out: &mut Vec<u8>, lease: &Lease) {
    out.put_u64_le(lease.id.0);
    out.put_u32_le(lease.ttl_ms);
}

pub(super) fn lease(body: &mut Fields<'_>) -> Option<Lease> {
    Some(Lease { id: LeaseId(body.u64()?), ttl_ms: body.u32()? })
}

pub(super) fn put_swapped(out: &mut Vec<u8>, swapped: &Swapped) {
    match swapped {
        Swapped::Yes(revision) => {
            out.put_u8(SWAPPED);
            out.put_u64_le(revision.0);
        }
        Swapped::No(None) => out.put_u8(NO_ENTRY),
        Swapped::No(Some(entry)) => {
            out.put_u8(OTHER_ENTRY);
            put_entry(out, entry);
        }
    }
}

pub(super) fn swapped(body: &mut Fields<'_>) -> Option<Swapped> {
    Some(match body.u8()? {
        NO_ENTRY => Swapped::No(None),
        OTHER_ENTRY => Swapped::No(Some(entry(body)?)),
        SWAPPED => Swapped::Yes(Revision(body.u64()?)),
        _ => return None,
    })
}

pub(super) fn put_snapshot(out: &mut Vec<u8>, snapshot: &Snapshot) {
    out.put_u64_le(snapshot.revision.0);
    snapshot.entries.iter().for_each(|entry| put_entry(out, entry));
}

pub(super) fn snapshot(body: &mut Fields<'_>) -> Option<Snapshot> {
    Some(Snapshot { revision: Revision(body.u64()?), entries: body.all(entry)? })
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    out.put_u64_le(entry.revision.0);
    out.put_u64_le(entry.lease.0);
    put_text(out, &entry.key);
    put_value(out, &entry.value);
}

fn entry(body: &mut Fields<'_>) -> Option<Entry> {
    let (revision, lease) = (Revision(body.u64()?), LeaseId(body.u64()?));
    let (key, value) = (body.text()?, value(body)?);
    let write = Write::Put { value, lease };
    (check_key(&key).is_ok() && check_write(&write).is_ok()).then_some(())?;
    let Write::Put { value, .. } = write else { return None };
    Some(Entry { key, value, revision, lease })
}

fn put_value(out: &mut Vec<u8>, value: &[u8]) {
    out.put_u16_le(value.len() as u16);
    out.put_slice(value);
}

fn value(body: &mut Fields<'_>) -> Option<Vec<u8>> {
    let len = body.u16()?;
    body.slice(len.into()).map(<[u8]>::to_vec)
}
