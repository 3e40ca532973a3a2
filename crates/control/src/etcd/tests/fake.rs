//! An etcd of the simulated world: as much of its gateway as is asked, members that share one memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Bound;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::{Bytes, Instant};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::{Request, Response};
use runtime::sim::{NodeId, World};
use runtime::sync::Event;
use runtime::{Address, Class, Handle};
use serde_json::{Value, json};
use wire::LocalBoxFuture;

use crate::etcd::call::Connection;

/// Shortest life of a lease.
const TTL_MIN: u64 = 2;

#[derive(Clone, Default)]
pub struct Fake(Rc<State>);

#[derive(Default)]
struct State {
    memory: RefCell<Memory>,
    changed: Event,
}

#[derive(Default)]
struct Memory {
    revision: u64,
    kvs: BTreeMap<Vec<u8>, Kv>,
    /// Time to live, and end.
    leases: BTreeMap<u64, (u64, Instant)>,
    next_lease: u64,
    /// Which key changed at which revision.
    changes: Vec<(u64, Vec<u8>)>,
    /// What has to be known, and the number of the token that holds.
    password: Option<(String, u64)>,
}

struct Kv {
    value: Vec<u8>,
    revision: u64,
    lease: u64,
}

fn key(value: &Value, name: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(value[name].as_str().unwrap_or_default()).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_str().map_or_else(|| value.as_u64().unwrap_or(0), |text| text.parse().unwrap())
}

impl Memory {
    fn expire(&mut self, now: Instant) {
        let ended: Vec<u64> = self.leases.iter().filter(|(_, (_, ends))| *ends <= now).map(|(id, _)| *id).collect();
        for lease in ended {
            self.leases.remove(&lease);
            let gone: Vec<_> =
                self.kvs.iter().filter(|(_, kv)| kv.lease == lease).map(|(key, _)| key.clone()).collect();
            for key in gone {
                self.kvs.remove(&key);
                self.change(key);
            }
        }
    }

    fn change(&mut self, key: Vec<u8>) {
        self.revision += 1;
        self.changes.push((self.revision, key));
    }

    fn header(&self) -> Value {
        json!({"revision": (self.revision + 1).to_string()})
    }

    fn range(&self, request: &Value) -> Value {
        let (from, to) = (key(request, "key"), key(request, "range_end"));
        let end = if to.is_empty() { Bound::Included(from.clone()) } else { Bound::Excluded(to) };
        let kvs = self.kvs.range((Bound::Included(from), end)).map(|(key, kv)| {
            let mut shown = json!({
                "key": BASE64_STANDARD.encode(key), "value": BASE64_STANDARD.encode(&kv.value),
                "mod_revision": (kv.revision + 1).to_string(),
            });
            if kv.lease != 0 {
                shown["lease"] = json!(kv.lease.to_string());
            }
            shown
        });
        json!({"header": self.header(), "kvs": kvs.collect::<Vec<_>>()})
    }

    fn swap(&mut self, request: &Value) -> Result<Value, Value> {
        let compare = &request["compare"][0];
        let name = key(compare, "key");
        let revision = self.kvs.get(&name).map_or(0, |kv| kv.revision + 1);
        if revision != number(&compare["mod_revision"]) {
            let range = self.range(&request["failure"][0]["request_range"]);
            return Ok(json!({"header": self.header(), "responses": [{"response_range": range}]}));
        }
        match request["success"][0].get("request_put") {
            Some(put) => {
                let lease = number(&put["lease"]);
                if lease != 0 && !self.leases.contains_key(&lease) {
                    return Err(json!({"message": "etcdserver: requested lease not found", "code": 5}));
                }
                self.change(name.clone());
                self.kvs.insert(name, Kv { value: key(put, "value"), revision: self.revision, lease });
            }
            None => {
                if self.kvs.remove(&name).is_some() {
                    self.change(name);
                }
            }
        }
        Ok(json!({"header": self.header(), "succeeded": true}))
    }

    fn ttl(&mut self, request: &Value, now: Instant) -> Value {
        let ttl = number(&request["TTL"]).max(TTL_MIN);
        self.next_lease += 1;
        let id = self.next_lease | 1 << 50;
        self.leases.insert(id, (ttl, now + Duration::from_secs(ttl)));
        json!({"header": self.header(), "ID": id.to_string(), "TTL": ttl.to_string()})
    }

    fn keep(&mut self, request: &Value, now: Instant) -> Value {
        let id = number(&request["ID"]);
        let mut result = json!({"header": self.header(), "ID": id.to_string()});
        if let Some((ttl, ends)) = self.leases.get_mut(&id) {
            *ends = now + Duration::from_secs(*ttl);
            result["TTL"] = json!(ttl.to_string());
        }
        json!({"result": result})
    }
}

/// Values that come one after the other.
struct Said(LocalBoxFuture<'static, Option<Value>>, Rc<dyn Fn() -> LocalBoxFuture<'static, Option<Value>>>);

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let said = std::task::ready!(self.0.as_mut().poll(cx));
        self.0 = (self.1)();
        Poll::Ready(said.map(|value| Ok(Frame::data(Bytes::from(format!("{value}\n"))))))
    }
}

fn once(value: Value) -> Said {
    let nothing: Rc<dyn Fn() -> LocalBoxFuture<'static, Option<Value>>> = Rc::new(|| Box::pin(async { None }));
    Said(Box::pin(async { Some(value) }), nothing)
}

impl Fake {
    /// Starts a member; gives its address.
    pub fn start(&self, world: &World, node: NodeId, handle: &Handle) -> Address {
        let any = Address::Tcp((world.address(node), 0).into());
        let inside = handle.clone();
        let listener = world.block_on(handle, async move { inside.listen(&any).await.unwrap() });
        let address = listener.address().clone();
        let (fake, inside) = (self.clone(), handle.clone());
        let accepting = async move {
            while let Ok(stream) = listener.accept().await {
                let (fake, handle) = (fake.clone(), inside.clone());
                let serving = async move {
                    let service = hyper::service::service_fn(move |request| {
                        let (fake, handle) = (fake.clone(), handle.clone());
                        async move { Ok::<_, Infallible>(fake.answer(&handle, request).await) }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(Connection::new(stream.into()), service)
                        .await;
                };
                inside.spawn(Class::Io, "a client of etcd", serving).detach();
            }
        };
        handle.spawn(Class::Io, "a member of etcd", accepting).detach();
        address
    }

    /// From here on whoever asks has to show a token, which is given for this password.
    pub fn wants_password(&self, password: &str) {
        self.0.memory.borrow_mut().password = Some((password.into(), 1));
    }

    /// Tokens that were given do not hold any more.
    pub fn end_tokens(&self) {
        if let Some((_, token)) = &mut self.0.memory.borrow_mut().password {
            *token += 1;
        }
    }

    async fn answer(&self, handle: &Handle, request: Request<Incoming>) -> Response<Said> {
        let path = request.uri().path().to_owned();
        let shown = request.headers().get(hyper::header::AUTHORIZATION).map(|token| token.to_str().unwrap().to_owned());
        let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let now = handle.now();
        let mut memory = self.0.memory.borrow_mut();
        memory.expire(now);
        if let Some((password, token)) = &memory.password {
            let refuse = |status: u16, code: u64, why: &str| {
                let said = json!({"error": why, "code": code, "message": why});
                Response::builder().status(status).body(once(said)).unwrap()
            };
            match (path.as_str(), &shown) {
                ("/v3/auth/authenticate", _) if body["password"] == password.as_str() => {
                    return Response::new(once(json!({"token": format!("token.{token}")})));
                }
                ("/v3/auth/authenticate", _) => {
                    return refuse(400, 3, "etcdserver: authentication failed, invalid user ID or password");
                }
                (_, None) => return refuse(400, 3, "etcdserver: user name is empty"),
                (_, Some(shown)) if *shown != format!("token.{token}") => {
                    return refuse(401, 16, "etcdserver: invalid auth token");
                }
                _ => {}
            }
        }
        let answer = match path.as_str() {
            "/v3/lease/grant" => Ok(memory.ttl(&body, now)),
            "/v3/lease/keepalive" => Ok(memory.keep(&body, now)),
            "/v3/kv/range" => Ok(memory.range(&body)),
            "/v3/kv/txn" => memory.swap(&body),
            "/v3/watch" => {
                drop(memory);
                return Response::new(self.watch(handle, &body["create_request"]));
            }
            _ => panic!("etcd has no {path}"),
        };
        self.0.changed.notify();
        match answer {
            Ok(value) => Response::new(once(value)),
            Err(value) => Response::builder().status(404).body(once(value)).unwrap(),
        }
    }

    fn watch(&self, handle: &Handle, request: &Value) -> Said {
        let (from, to) = (key(request, "key"), key(request, "range_end"));
        let start = number(&request["start_revision"]);
        let (state, handle) = (self.0.clone(), handle.clone());
        let next = move || -> LocalBoxFuture<'static, Option<Value>> {
            let (state, handle, from, to) = (state.clone(), handle.clone(), from.clone(), to.clone());
            Box::pin(async move {
                loop {
                    let changed = state.changed.wait();
                    state.memory.borrow_mut().expire(handle.now());
                    let has_changed = state
                        .memory
                        .borrow()
                        .changes
                        .iter()
                        .any(|(revision, key)| revision + 1 >= start && (&from..&to).contains(&key));
                    if has_changed {
                        return Some(json!({"result": {"events": [{}]}}));
                    }
                    let _ = runtime::sync::first(changed, handle.sleep(Duration::from_millis(100))).await;
                }
            })
        };
        Said(Box::pin(async { Some(json!({"result": {"created": true}})) }), Rc::new(next))
    }
}
