//! A store of leases that is an etcd cluster.
//!
//! **Intuition.** What [`wire::lease`] asks of a store is what etcd has: leases, keys that go with them, writes under the
//! condition of a revision, watches. It is asked over its JSON gateway, which every etcd has at the address where its clients
//! are answered, so that a call is one HTTP request (`call`) over the streams of `runtime`, and runs in the simulated world.
//!
//! **Names.** An *endpoint* is the address of a member. The *prefix* is before all keys: several clusters of Levee can share
//! an etcd.
//!
//! **Invariants.** What may be done twice is asked of the next endpoint if one does not answer. A write is not, once it was
//! sent: nobody knows whether it was done (`Io`). A lease lives for as long as etcd says, which is 2 s at least with its
//! usual settings; it counts from when the call began here. etcd remembers leases over a restart, so that nothing is quiet
//! when it begins; when its leader changes, leases live longer, never shorter.
//!
//! **Flow** of a watch: what there is now, if nothing is known; else etcd's watch from the next revision on, until it says
//! anything or a while has passed, and then what there is.

mod account;
mod call;
mod place;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use runtime::sync::first;
use runtime::{Address, Handle};
use serde_json::{Value, json};
use wire::lease::{Entry, Lease, LeaseId, Revision, Snapshot, Swapped, Write, check_key, check_write};
use wire::{LeaseStore, LocalBoxFuture};

use self::account::{Account, Failed};
use self::call::{Answer, Answers, Gone, call};
pub use self::place::{Place, User};

/// A member that has not answered for so long is given up, for this call. A choice of a leader takes somewhat more.
const PATIENCE: Duration = Duration::from_millis(700);
/// A watch returns after so long, whether or not anything has happened: its member may have fallen silent, and then another
/// one is asked.
const WATCH: Duration = Duration::from_secs(2);
/// Codes of gRPC: what is not there, who may not, and whose token does not hold.
const NOT_FOUND: u64 = 5;
const PERMISSION_DENIED: u64 = 7;
const UNAUTHENTICATED: u64 = 16;

/// See the module.
pub struct Etcd {
    handle: Handle,
    place: Place,
    /// The endpoint that has answered last.
    current: Cell<usize>,
    account: Account,
}

impl Etcd {
    /// The store at `place`. Nobody is asked yet.
    pub fn new(handle: &Handle, place: Place) -> Rc<Etcd> {
        Rc::new(Etcd { handle: handle.clone(), place, current: Cell::default(), account: Account::default() })
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.place.prefix)
    }

    /// Asks one member after the other until one answers. `is_repeatable`: also one that may have been asked before.
    async fn ask(&self, path: &str, body: &Value, is_repeatable: bool) -> Result<Value> {
        let mut is_second = false;
        loop {
            match self.ask_members(path, body, is_repeatable).await {
                // What was refused so was not done.
                Err(Refused { is_stale: true, .. }) if !is_second && self.place.user.is_some() => {
                    self.account.forget();
                    is_second = true;
                }
                answered => return answered.map_err(|refused| refused.error),
            }
        }
    }

    async fn ask_members(&self, path: &str, body: &Value, is_repeatable: bool) -> std::result::Result<Value, Refused> {
        let mut why = Error::io("there is no etcd");
        for _ in 0..self.place.endpoints.len() {
            let endpoint = &self.place.endpoints[self.current.get()];
            let asked = async { self.call(endpoint, path, body).await?.next().await.map_err(Failed::Gone) };
            let gone = match first(asked, self.handle.sleep(PATIENCE)).await {
                Ok(Ok(Some(answer))) => return refused(answer, endpoint),
                Ok(Err(Failed::Here(error))) => return Err(error.into()),
                Ok(Ok(None)) => Gone { was_sent: true, why: "it said nothing".into() },
                Ok(Err(Failed::Gone(gone))) => gone,
                Err(()) => Gone { was_sent: true, why: format!("it has not answered for {PATIENCE:?}") },
            };
            self.turn();
            why = Error::io(format!("etcd at {}: {}", shown(endpoint), gone.why));
            if gone.was_sent && !is_repeatable {
                break;
            }
        }
        Err(why.into())
    }

    /// Calls a member as whom it is asked.
    async fn call(&self, endpoint: &Address, path: &str, body: &Value) -> std::result::Result<Answers, Failed> {
        let signed_in = self.account.sign_in(&self.handle, &self.place, endpoint).await;
        signed_in.map_err(|failed| match failed {
            // Whatever was sent, it was not the request.
            Failed::Gone(gone) => Failed::Gone(Gone { was_sent: false, ..gone }),
            here => here,
        })?;
        let stream = self.account.connect(&self.handle, &self.place, endpoint).await.map_err(Failed::Gone)?;
        let token = self.account.token();
        call(&self.handle, stream, endpoint, token.as_deref(), path, body).await.map_err(Failed::Gone)
    }

    /// The next call asks another member.
    fn turn(&self) {
        self.current.set((self.current.get() + 1) % self.place.endpoints.len());
    }

    async fn grant_one(&self, ttl_ms: u32) -> Result<Lease> {
        let answer = self.ask("/v3/lease/grant", &json!({"TTL": ttl_ms.div_ceil(1000)}), true).await?;
        // One that was granted twice ends by itself.
        lease_of(&answer)
    }

    async fn keep_one_alive(&self, id: LeaseId) -> Result<Lease> {
        let answer = self.ask("/v3/lease/keepalive", &json!({"ID": id.0.to_string()}), true).await?;
        let answer = answer.get("result").ok_or_else(|| odd(&answer))?;
        match number(answer, "TTL") {
            0 => Err(ended(id)),
            _ => lease_of(answer),
        }
    }

    async fn swap(&self, key: &str, expected: Revision, write: Write) -> Result<Swapped> {
        check_key(key)?;
        check_write(&write)?;
        let name = encoded(&self.key(key));
        let then = match &write {
            Write::Put { value, lease } => json!({"request_put": {
                "key": name, "value": BASE64_STANDARD.encode(value), "lease": lease.0.to_string()
            }}),
            Write::Delete => json!({"request_delete_range": {"key": name}}),
        };
        let body = json!({
            "compare": [{"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": expected.0.to_string()}],
            "success": [then],
            "failure": [{"request_range": {"key": name}}],
        });
        let answer = self.ask("/v3/kv/txn", &body, false).await.map_err(|error| match (&write, error.kind) {
            (Write::Put { lease, .. }, ErrorKind::NotFound) => ended(*lease),
            _ => error,
        })?;
        if answer.get("succeeded").and_then(Value::as_bool) == Some(true) {
            return Ok(Swapped::Yes(revision_of(&answer)?));
        }
        let range = answer.pointer("/responses/0/response_range").ok_or_else(|| odd(&answer))?;
        Ok(Swapped::No(self.entries_of(range)?.into_iter().next()))
    }

    async fn look(&self, prefix: &str) -> Result<Snapshot> {
        let (from, to) = range(&self.key(prefix));
        let answer = self.ask("/v3/kv/range", &json!({"key": from, "range_end": to}), true).await?;
        Ok(Snapshot { revision: revision_of(&answer)?, entries: self.entries_of(&answer)? })
    }

    async fn wait_for(&self, prefix: &str, seen: Revision) -> Result<Snapshot> {
        check_key(prefix)?;
        if seen != Revision(0) {
            // What comes of it is looked up: one that has forgotten so old a revision says so, and that is a change, too.
            let watched = first(self.until_changed(prefix, seen), self.handle.sleep(WATCH)).await;
            if let Ok(Err(gone)) = watched {
                self.turn();
                tracing::debug!(why = gone.why, "a watch of etcd has ended");
            }
        }
        self.look(prefix).await
    }

    /// Until a member says that something has changed behind `seen`.
    async fn until_changed(&self, prefix: &str, seen: Revision) -> std::result::Result<(), Gone> {
        let (from, to) = range(&self.key(prefix));
        let start = (seen.0 + 1).to_string();
        let body = json!({"create_request": {"key": from, "range_end": to, "start_revision": start}});
        let endpoint = &self.place.endpoints[self.current.get()];
        let begun = async {
            let mut watch = self.call(endpoint, "/v3/watch", &body).await.map_err(Failed::into_gone)?;
            watch.next().await.map(|first| (watch, first))
        };
        let late = || Gone { was_sent: true, why: format!("it has not answered for {PATIENCE:?}") };
        let (mut watch, mut answer) =
            first(begun, self.handle.sleep(PATIENCE)).await.unwrap_or_else(|()| Err(late()))?;
        loop {
            let Some(said) = answer else { return Err(Gone { was_sent: true, why: "it ended a watch".into() }) };
            let result = said.value.get("result");
            let has = |name| result.and_then(|result| result.get(name)).is_some();
            if result.is_none() || has("events") || has("canceled") {
                return Ok(());
            }
            answer = watch.next().await?;
        }
    }

    fn entries_of(&self, range: &Value) -> Result<Vec<Entry>> {
        let kvs = range.get("kvs").and_then(Value::as_array);
        let entry = |kv: &Value| {
            let key = String::from_utf8(bytes(kv, "key")?).ok();
            let key = key.as_deref().and_then(|key| key.strip_prefix(&self.place.prefix)?.strip_prefix('/'));
            Ok(Entry {
                key: key.ok_or_else(|| odd(kv))?.to_owned(),
                value: bytes(kv, "value")?,
                revision: Revision(number(kv, "mod_revision")),
                lease: LeaseId(number(kv, "lease")),
            })
        };
        kvs.into_iter().flatten().map(entry).collect()
    }
}

/// Why a member did not do something.
struct Refused {
    error: Error,
    /// The token does not hold any more; another one may.
    is_stale: bool,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, is_stale: false }
    }
}

/// What a member refused, as an error.
fn refused(answer: Answer, endpoint: &Address) -> std::result::Result<Value, Refused> {
    let Answer { is_good, value } = answer;
    let error = value.get("error").filter(|error| !error.is_null());
    if is_good && error.is_none() {
        return Ok(value);
    }
    let said = value.get("message").or(error.and_then(|error| error.get("message"))).or(error);
    let said = said.and_then(Value::as_str).map_or_else(|| value.to_string(), str::to_owned);
    let code = value.get("code").and_then(Value::as_u64);
    let is_stale = code == Some(UNAUTHENTICATED) || said.contains("auth store is old");
    // As etcd says that a user has to be named, and that this one may not.
    let hint = match () {
        () if said.contains("user name is empty") => ": name a user with ?user=NAME&password=FILE",
        () if code == Some(PERMISSION_DENIED) => {
            ": give the user's role readwrite on the prefix, and see docs/CLUSTER.md"
        }
        () => "",
    };
    let message = format!("etcd at {} says: {said}{hint}", shown(endpoint));
    let error = match code {
        Some(NOT_FOUND) => Error::not_found(message),
        // No leader, too slow, no room: it may have been done.
        _ => Error::io(message),
    };
    Err(Refused { error, is_stale })
}

fn shown(endpoint: &Address) -> String {
    match endpoint {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => path.display().to_string(),
    }
}

fn encoded(key: &str) -> String {
    BASE64_STANDARD.encode(key)
}

/// The first key under a prefix, and the first one behind all of them.
fn range(prefix: &str) -> (String, String) {
    let mut end = prefix.as_bytes().to_vec();
    // A prefix of ours is ASCII: its last byte has a next one.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (encoded(prefix), BASE64_STANDARD.encode(end))
}

/// A number of etcd: a text, or nothing for zero.
fn number(value: &Value, name: &str) -> u64 {
    let found = value.get(name);
    let signed = found.and_then(|found| found.as_str().and_then(|text| text.parse().ok()).or(found.as_i64()));
    signed.map_or(0, i64::cast_unsigned)
}

fn bytes(value: &Value, name: &str) -> Result<Vec<u8>> {
    let text = value.get(name).and_then(Value::as_str).unwrap_or_default();
    BASE64_STANDARD.decode(text).map_err(|_| odd(value))
}

fn revision_of(answer: &Value) -> Result<Revision> {
    match answer.get("header").map(|header| number(header, "revision")) {
        Some(revision) if revision > 0 => Ok(Revision(revision)),
        _ => Err(odd(answer)),
    }
}

fn lease_of(answer: &Value) -> Result<Lease> {
    let (id, seconds) = (LeaseId(number(answer, "ID")), number(answer, "TTL"));
    match id != LeaseId(0) && seconds > 0 {
        true => Ok(Lease { id, ttl_ms: u32::try_from(seconds.saturating_mul(1000)).unwrap_or(u32::MAX) }),
        false => Err(odd(answer)),
    }
}

fn odd(answer: &Value) -> Error {
    let mut shown = answer.to_string();
    shown.truncate(200);
    Error::io(format!("an answer of etcd makes no sense ({shown}): it has to be etcd 3.4 or newer"))
}

fn ended(id: LeaseId) -> Error {
    Error::not_found(format!("lease {:x} has ended: ask for another one", id.0))
}

impl LeaseStore for Etcd {
    fn grant(&self, ttl_ms: u32) -> LocalBoxFuture<'_, Result<Lease>> {
        Box::pin(self.grant_one(ttl_ms))
    }

    fn keep_alive(&self, lease: LeaseId) -> LocalBoxFuture<'_, Result<Lease>> {
        Box::pin(self.keep_one_alive(lease))
    }

    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        expected: Revision,
        write: Write,
    ) -> LocalBoxFuture<'a, Result<Swapped>> {
        Box::pin(self.swap(key, expected, write))
    }

    fn watch<'a>(&'a self, prefix: &'a str, seen: Revision) -> LocalBoxFuture<'a, Result<Snapshot>> {
        Box::pin(self.wait_for(prefix, seen))
    }
}
