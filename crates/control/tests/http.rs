//! The control API as a client meets it: the real thread and real sockets, the real manager over files in memory.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::time::Duration;

use base::{Error, ErrorKind, Histogram, Instant, Passage, Result, SegmentId, Stage, VolumeId};
use control::Manager;
use control::http::{Listener, OPENAPI, Options, ROUTES, Server};
use control::observe;
use control::service::{self, Call, Request};
use files::Redundancy;
use files::memory::{Memory, MemoryOptions};
use policies::admission::{self, Admission, AdmissionSettings};
use policies::slow_requests::{self, Direction, SlowRequests, SlowSettings};
use runtime::sim::{NodeOptions, World};
use serde_json::{Value, json};
use wire::observe::{Detail, Distribution, Explained, RequestCounters, Snapshot, Timed, VolumeCounters};
use wire::{LocalBoxFuture, Observer, VolumeOwner, VolumeUser, api};

#[derive(Default)]
struct Others {
    scrubs: Cell<u64>,
}

impl VolumeOwner for Others {
    fn set_levels(&self, _volume: &wire::VolumeDescriptor) {}

    fn begin_scrub(&self) -> LocalBoxFuture<'_, Result<()>> {
        self.scrubs.set(self.scrubs.get() + 1);
        Box::pin(std::future::ready(Ok(())))
    }

    fn drop_volume(&self, _volume: VolumeId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl VolumeUser for Others {
    fn release(&self, _volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The first volume has clients.
    fn users(&self, volume: VolumeId) -> usize {
        usize::from(volume == VolumeId(1))
    }
}

impl Observer for Others {
    fn observe(&self, _detail: Detail) -> LocalBoxFuture<'_, base::Result<Snapshot>> {
        Box::pin(async {
            let scrub = api::Scrub { is_running: self.scrubs.get() > 0, read_bytes: 4096, ..api::Scrub::default() };
            let store = "00ff".into();
            let write = RequestCounters {
                operation: "write".into(),
                requests: 3,
                bytes: 12_288,
                errors: 1,
                latency: Distribution::default(),
                latency_ns: vec![(1_023, 2)],
            };
            let (volume, name) = (VolumeId(1), "a".into());
            let (requests, waits, slow) = (vec![write], vec![], vec![]);
            let traffic = vec![VolumeCounters { volume, name, clients: 1, requests, waits, slow }];
            Ok(Snapshot {
                store,
                incarnation: 1,
                memory: api::Memory { limit_bytes: 512 << 20, ..api::Memory::default() },
                scrub,
                traffic,
                connections: 1,
                space: api::Space { garbage_bytes: 8192, ..api::Space::default() },
                full_engines: 1,
                ..Snapshot::default()
            })
        })
    }

    /// A volume of which two requests wait, and one has waited.
    fn explain(&self, volume: VolumeId) -> LocalBoxFuture<'_, base::Result<Explained>> {
        let settings = AdmissionSettings { limit_bytes_per_sec: 409_600, ..AdmissionSettings::default() };
        let mut admission = Admission::new(settings.clone(), Instant::ZERO);
        let request = admission::Request {
            segment: SegmentId { volume, index: 3 },
            bytes: 4096,
            direction: Direction::Write,
            level: base::levels::Level::Open,
        };
        for _ in 0..5 {
            admission.submit(Instant::ZERO, request, || ()).unwrap();
        }
        let now = Instant(20_000_000);
        assert!(admission.next_grant(now).is_some() && admission.next_grant(now).is_none());
        let mut latency = Histogram::new();
        [1_000, 1_000, 1_000_000].into_iter().for_each(|ns| latency.record(ns));
        let (slow, known) = (slow_writes(), admission.volume(volume, now).unwrap());
        let slow_ns = |direction| slow.threshold_ns(direction);
        let explained = Explained {
            admission: Some(observe::admission(&settings, &admission.status(now))),
            started_requests: known.started,
            waits: observe::waits(&known.waits),
            hot_segments: known.hot_segments.iter().map(|segment| segment.index).collect(),
            latency: vec![
                Timed::of("read", &Histogram::new(), slow_ns(Direction::Read)),
                Timed::of("write", &latency, slow_ns(Direction::Write)),
            ],
            slow_reasons: observe::slow_reasons(&slow),
            slow_requests: observe::slow_requests(&slow, now),
            ..Explained::default()
        };
        Box::pin(std::future::ready(Ok(explained)))
    }
}

/// 32 writes, and one that waited for tokens.
fn slow_writes() -> SlowRequests {
    let mut slow = SlowRequests::new(SlowSettings::default(), Instant::ZERO);
    for stage in [Stage::Append; 32].into_iter().chain([Stage::Tokens]) {
        let mut passage = Passage::default();
        passage.tokens = "burst_level";
        passage.add(stage, if stage == Stage::Tokens { 9_000_000 } else { 1_000 });
        let request = slow_requests::Request { direction: Direction::Write, offset: 8192, len: 4096, passage };
        slow.on_request(Instant(10_000_000), &request);
    }
    slow
}

/// Answers calls with the real manager, until the last sender is gone.
fn answer(mailbox: async_channel::Receiver<Call>) {
    let world = World::new(1);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let store = Memory::new(1, MemoryOptions::default()).open_untimed();
    let options = service::Options { redundancy: Redundancy::Copies(1), accept_data_loss: false };
    let inside = handle.clone();
    let manager = world.block_on(&handle, async move { Manager::open(&inside, &store, options).await }).unwrap();
    let others = Rc::new(Others::default());
    let _connection = manager.connect(others.clone(), others.clone(), Some(others));
    while let Ok(call) = mailbox.recv_blocking() {
        let manager = manager.clone();
        let reply = world.block_on(&handle, async move { manager.handle(call.request).await });
        let _ = call.reply.send(reply);
    }
}

struct Api {
    server: Server,
    token: String,
    agent: ureq::Agent,
    _directory: tempfile::TempDir,
}

fn serve(calls: async_channel::Sender<Call>) -> Api {
    let directory = tempfile::tempdir().unwrap();
    let token_file = directory.path().join("api.token");
    let options = Options {
        token_file: token_file.clone(),
        token_seed: [1, 2, 3, 4],
        host_names: Vec::new(),
        nbd: vec!["nbd+unix:///?socket=/store/nbd.sock".into()],
        is_one_of_several: false,
    };
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let server = listener.serve(options, calls).unwrap();
    let token = control::http::read_token(&token_file).unwrap();
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    Api { server, token, agent, _directory: directory }
}

fn start() -> Api {
    let (calls, mailbox) = runtime::sync::mailbox(base::limits::API_CALLS_MAX);
    std::thread::Builder::new().spawn(move || answer(mailbox)).unwrap();
    serve(calls)
}

impl Api {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let mut response = self.agent.get(self.url(path)).call().unwrap();
        (response.status().as_u16(), json_of(&response.body_mut().read_to_string().unwrap()))
    }

    fn post(&self, body: &str) -> (u16, Value) {
        let request =
            self.agent.post(self.url("/v1/volumes")).header("authorization", format!("Bearer {}", self.token));
        let mut response = request.header("content-type", "application/json").send(body).unwrap();
        (response.status().as_u16(), json_of(&response.body_mut().read_to_string().unwrap()))
    }

    fn post_to(&self, path: &str, token: &str) -> (u16, Value) {
        let request = self.agent.post(self.url(path)).header("authorization", format!("Bearer {token}"));
        let mut response = request.send_empty().unwrap();
        (response.status().as_u16(), json_of(&response.body_mut().read_to_string().unwrap()))
    }

    fn patch(&self, path: &str, body: &str) -> (u16, Value) {
        let request = self.agent.patch(self.url(path)).header("authorization", format!("Bearer {}", self.token));
        let mut response = request.header("content-type", "application/json").send(body).unwrap();
        (response.status().as_u16(), json_of(&response.body_mut().read_to_string().unwrap()))
    }

    fn delete(&self, path: &str) -> (u16, Value) {
        let request = self.agent.delete(self.url(path)).header("authorization", format!("Bearer {}", self.token));
        let mut response = request.call().unwrap();
        (response.status().as_u16(), json_of(&response.body_mut().read_to_string().unwrap()))
    }

    /// Bytes as they are, for requests that no client library sends.
    fn raw(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request).unwrap();
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        String::from_utf8_lossy(&response).into_owned()
    }
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

fn kind(body: &Value) -> &str {
    body["error"]["kind"].as_str().unwrap_or_else(|| panic!("not an error: {body}"))
}

#[test]
fn a_volume_from_creation_to_deletion() {
    let api = start();
    assert_eq!(api.get("/v1/volumes"), (200, json!({"volumes": []})));
    let (status, created) = api.post(r#"{"name": "vm-1", "size": "10G", "owner": "ops"}"#);
    assert_eq!(status, 201);
    let expected = json!({
        "id": 1, "name": "vm-1", "size_bytes": 10737418240u64, "data_sector_bytes": 131072, "segments": 4,
        "state": "active", "generation": 0, "clients": 1, "owner": "ops", "created_ms": created["created_ms"], "levels": levels(&[]),
        "forwarding": "default",
        "uris": ["nbd+unix:///vm-1?socket=/store/nbd.sock"],
    });
    assert_eq!(created, expected);
    assert_eq!(api.get("/v1/volumes/vm-1"), (200, expected.clone()));
    assert_eq!(api.get("/v1/volumes"), (200, json!({"volumes": [expected.clone()]})));

    let (status, body) = api.post(r#"{"name": "vm-1", "size": "10G"}"#);
    assert_eq!((status, kind(&body)), (409, "conflict"));
    assert_eq!(api.post(r#"{"name": "vm-1", "size": 10737418240, "allow_existing": true}"#), (200, expected.clone()));

    let (status, body) = api.delete("/v1/volumes/vm-1");
    assert_eq!((status, kind(&body)), (409, "conflict"));
    assert_eq!(api.delete("/v1/volumes/vm-1?force=true"), (200, json!({"volume": expected, "is_dropped": true})));
    let (status, body) = api.get("/v1/volumes/vm-1");
    assert_eq!((status, kind(&body)), (404, "not_found"));
}

/// Levels of which only some are given.
fn levels(given: &[(&str, u64)]) -> Value {
    let mut levels = json!({
        "base_iops": null, "base_bytes_per_second": null, "burst_iops": null, "burst_bytes_per_second": null,
        "credit_seconds": null, "credit_percent": null,
    });
    given.iter().for_each(|(key, value)| levels[key] = json!(value));
    levels
}

#[test]
fn levels_are_given_changed_and_taken_away() {
    let api = start();
    let (_, created) = api.post(
        r#"{"name": "a", "size": "1G", "base_iops": 100, "base_bandwidth": "1M", "burst_iops": 200,
            "credit_seconds": 60, "credit_percent": 50}"#,
    );
    let mut expected = levels(&[
        ("base_iops", 100),
        ("base_bytes_per_second", 1 << 20),
        ("burst_iops", 200),
        ("credit_seconds", 60),
        ("credit_percent", 50),
    ]);
    assert_eq!(created["levels"], expected);
    let (status, changed) =
        api.patch("/v1/volumes/a", r#"{"base_bandwidth": null, "burst_iops": 0, "burst_bandwidth": 4096}"#);
    (expected["base_bytes_per_second"], expected["burst_iops"]) = (Value::Null, Value::Null);
    expected["burst_bytes_per_second"] = json!(4096);
    assert_eq!((status, &changed["levels"], &changed["size_bytes"]), (200, &expected, &created["size_bytes"]));
    assert_eq!(api.get("/v1/volumes/a").1, changed);
    for (path, body, status, part) in [
        ("/v1/volumes/a", "{}", 400, "nothing is to change"),
        ("/v1/volumes/a", r#"{"size": "2G"}"#, 400, "there is no field \"size\""),
        ("/v1/volumes/a", r#"{"burst_iops": 99}"#, 400, "choose 100 or more"),
        ("/v1/volumes/b", r#"{"base_iops": 1}"#, 404, "there is no volume"),
    ] {
        let (found, answer) = api.patch(path, body);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(found == status && message.contains(part), "{body}: {found} {message}");
    }
    assert_eq!(api.get("/v1/volumes/a").1, changed, "what is refused changes nothing");
}

#[test]
fn waiting_is_explained() {
    let api = start();
    api.post(r#"{"name": "a", "size": "1G", "base_iops": 5}"#);
    let (status, found) = api.get("/v1/volumes/a/explain");
    let expected = json!({
        "volume": "a", "clients": 1, "levels": levels(&[("base_iops", 5)]), "started_requests": 3,
        "waits": [{
            "reason": "main_bucket_empty", "requests": 1, "total_ns": 20_000_000, "longest_ns": 20_000_000,
            "waiting_requests": 2,
        }],
        "hot_segments": [],
                "engines": [],
        "latency": [
            {"operation": "read", "requests": 0, "p50_ns": 0, "p99_ns": 0, "slow_ns": null},
            {"operation": "write", "requests": 3, "p50_ns": found["latency"][1]["p50_ns"],
             "p99_ns": found["latency"][1]["p99_ns"], "slow_ns": 9_000_000},
        ],
        "slow_reasons": [{
            "operation": "write", "reason": "tokens", "requests": 1, "total_ns": 9_000_000, "longest_ns": 9_000_000,
        }],
        "slow_requests": [{
            "operation": "write", "offset": 8192, "bytes": 4096, "ago_ns": 10_000_000, "total_ns": 9_000_000,
            "reason": "tokens", "beyond_ns": 9_000_000, "detail": "burst_level",
            "stages": [{"stage": "tokens", "ns": 9_000_000}],
        }],
        "server": {
            "throttle": "dual-buckets", "bandwidth_bytes_per_second": 409_600, "is_learned": false,
            "cap_bytes_per_second": null,
            "main_bytes": found["server"]["main_bytes"], "main_size_bytes": 4096,
            "cheque_bytes": found["server"]["cheque_bytes"], "cheque_size_bytes": 819,
            "waiting_requests": 2, "active_segments": 1, "hot_segments": 0, "started_bytes": 12_288,
            "overdrawn_bytes": 4096, "p95_ns": null, "p99999_ns": null, "available_bytes_per_second": null,
        },
        "forwarding": null,
    });
    assert_eq!((status, &found), (200, &expected));
    let [p50, p99] = ["p50_ns", "p99_ns"].map(|key| found["latency"][1][key].as_u64().unwrap());
    assert!((1_000..2_000).contains(&p50) && p99 >= 1_000_000, "{p50} {p99}");
    assert_eq!(kind(&api.get("/v1/volumes/b/explain").1), "not_found");
}

/// All is on one machine.
#[test]
fn bursts_are_not_spread_over_one_server() {
    let api = start();
    for forwarding in ["auto", "on"] {
        let wanted = json!({"name": "a", "size": "1G", "forwarding": forwarding});
        let (status, body) = api.post(&wanted.to_string());
        assert_eq!((status, kind(&body)), (400, "invalid"));
        assert!(body["error"]["message"].as_str().unwrap().contains("has one server"), "{body}");
    }
    assert_eq!(api.post(r#"{"name": "a", "size": "1G", "forwarding": "off"}"#).1["forwarding"], json!("off"));
    assert_eq!(api.patch("/v1/volumes/a", r#"{"base_iops": 7, "forwarding": "on"}"#).0, 400);
    let unchanged = api.get("/v1/volumes/a").1;
    assert_eq!((&unchanged["forwarding"], &unchanged["levels"]), (&json!("off"), &levels(&[])));
    assert_eq!(api.patch("/v1/volumes/a", r#"{"forwarding": null}"#).1["forwarding"], json!("default"));
}

#[test]
fn status_metrics_and_health() {
    let api = start();
    api.post(r#"{"name": "a", "size": "1G"}"#);
    let (status, body) = api.get("/v1/status");
    assert_eq!((status, &body["store"], &body["volumes"]), (200, &json!("00ff"), &json!(1)));
    assert!(body["token_file"].as_str().unwrap().ends_with("api.token"));
    assert_eq!((&body["is_healthy"], &body["problems"][0]["kind"]), (&json!(false), &json!("full")));
    assert_eq!((&body["connections"], &body["space"]["garbage_bytes"]), (&json!(1), &json!(8192)));
    let write = json!({"operation": "write", "requests": 3, "bytes": 12_288, "errors": 1, "latency_ns": [[1_023, 2]]});
    let used = json!({"volume": "a", "size_bytes": 1 << 30, "clients": 1, "waits": [], "operations": [write]});
    assert_eq!(body["traffic"], json!([used]));
    let (status, page) = api.get("/metrics");
    assert!(status == 200 && page.as_str().unwrap().contains("\nlevee_volumes 1\n"), "{page}");
    assert_eq!(api.get("/healthz"), (200, json!("ok\n")));
}

#[test]
fn scrubbing_is_begun_by_who_may_and_seen_by_everybody() {
    let api = start();
    let (status, idle) = api.get("/v1/scrub");
    assert_eq!((status, &idle["is_running"], &idle["read_bytes"]), (200, &json!(false), &json!(4096)));
    assert_eq!(api.post_to("/v1/scrub", "wrong").0, 401);
    assert_eq!(api.get("/v1/scrub").1, idle);
    let (status, begun) = api.post_to("/v1/scrub", &api.token.clone());
    assert_eq!((status, &begun["is_running"]), (202, &json!(true)));
    assert_eq!(api.get("/v1/scrub").1, begun);
}

#[test]
fn bad_requests_get_one_clear_error_each() {
    let api = start();
    for (body, status, part) in [
        (r#"{"name": "a b", "size": "1G"}"#, 400, "is not a volume name"),
        (r#"{"name": "a", "size": "1"}"#, 400, "choose from 1 MiB to 64 TiB"),
        (r#"{"name": "a", "sise": "1G"}"#, 400, "did you mean"),
        ("{", 400, "not a JSON object"),
        (&format!("{{\"name\": \"{}\"}}", "x".repeat(100_000)), 413, "more than 65536 bytes"),
    ] {
        let (found, answer) = api.post(body);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(found == status && message.contains(part), "{body:.60}: {found} {message}");
    }
    assert_eq!(api.get("/v1/volume").0, 404);
    assert!(api.get("/v1/volume").1["error"]["message"].as_str().unwrap().contains("/v1/volumes"));
    assert_eq!(api.delete("/v1/volumes").0, 405);
    assert_eq!(kind(&api.delete("/v1/volumes").1), "method_not_allowed");
    assert_eq!(api.delete("/v1/volumes/a?froce=true").0, 400);
    assert_eq!(api.get("/healthz").0, 200, "the service goes on");
}

#[test]
fn hostile_requests_end_their_connection_only() {
    let api = start();
    assert!(api.raw(b"GET /v1/volumes HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").contains(" 403 "));
    let post = |headers: &str| {
        let body = r#"{"name": "a", "size": "1G"}"#;
        format!(
            "POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        )
    };
    assert!(api.raw(post("Content-Type: application/json\r\n").as_bytes()).contains(" 401 "), "no token");
    let plain = format!("Authorization: Bearer {}\r\nContent-Type: text/plain\r\n", api.token);
    assert!(api.raw(post(&plain).as_bytes()).contains(" 415 "), "not JSON");
    assert!(api.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").contains(" 400 "), "TLS where none is");
    assert!(
        api.raw(&[b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", &vec![b'x'; 1 << 20][..], b"\r\n\r\n"].concat()).len()
            < 4096
    );
    assert_eq!(api.get("/v1/volumes"), (200, json!({"volumes": []})));
}

#[test]
fn a_full_mailbox_is_answered_at_once() {
    let (calls, mailbox) = runtime::sync::mailbox(1);
    let (reply, _) = futures_channel::oneshot::channel();
    calls.try_send(Call { request: Request::Health, reply }).unwrap_or_else(|_| panic!("an empty mailbox is full"));
    let api = serve(calls);
    let answer = api.agent.get(api.url("/healthz")).call().unwrap();
    let (parts, mut body) = answer.into_parts();
    assert_eq!((parts.status.as_u16(), &parts.headers["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(kind(&json_of(&body.read_to_string().unwrap())), "retry");

    let _ = mailbox.recv_blocking();
    let (url, agent) = (api.url("/healthz"), api.agent.clone());
    let waiting = std::thread::Builder::new().spawn(move || agent.get(url).call().unwrap().status().as_u16()).unwrap();
    let call = mailbox.recv_blocking().unwrap();
    let _ = call.reply.send(Err(Error::full("no room")));
    assert_eq!(waiting.join().unwrap(), 507);
    drop(mailbox);
    assert_eq!(kind(&api.get("/healthz").1), "retry", "the store is gone");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let api = start();
    let taken = Listener::bind(api.server.address()).err().unwrap();
    assert_eq!(taken.kind, ErrorKind::Conflict);
    assert!(taken.message.contains("--api-listen"), "{taken}");
    let address = api.server.address();
    futures(api.server.stop());
    Listener::bind(address).expect("a stopped service gives its address back");
}

/// Waits for a future on this thread.
fn futures<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

/// What a store of one server has not.
fn of_several(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn the_openapi_document_says_what_the_routes_do() {
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    let documented = document["paths"].as_object().unwrap();
    assert_eq!(documented.len(), ROUTES.len());
    for (path, methods) in ROUTES {
        let entry = documented.get(path).unwrap_or_else(|| panic!("{path} is not documented"));
        let mut found: Vec<&str> = entry.as_object().unwrap().keys().map(String::as_str).collect();
        found.retain(|key| *key != "parameters");
        let mut expected = methods.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{path}");
    }

    // What is served has exactly the documented fields.
    let api = start();
    assert_eq!(api.get("/v1/openapi.json").1, document);
    let volume = api.post(r#"{"name": "a", "size": "1G"}"#).1;
    let list = api.get("/v1/volumes").1;
    let status = api.get("/v1/status").1;
    let failure = api.get("/v1/volumes/none").1;
    let explained = api.get("/v1/volumes/a/explain").1;
    let deleted = api.delete("/v1/volumes/a?force=true").1;
    let schemas = &document["components"]["schemas"];
    for (name, value) in [
        ("Volume", &volume),
        ("VolumeList", &list),
        ("Status", &status),
        ("Space", &status["space"]),
        ("Scrub", &status["scrub"]),
        ("VolumeTraffic", &status["traffic"][0]),
        ("OperationTraffic", &status["traffic"][0]["operations"][0]),
        ("Problem", &status["problems"][0]),
        ("Memory", &status["memory"]),
        ("Failure", &failure),
        ("FailureDetail", &failure["error"]),
        ("Deleted", &deleted),
        ("Levels", &volume["levels"]),
        ("Explanation", &explained),
        ("Waiting", &explained["waits"][0]),
        ("Latency", &explained["latency"][0]),
        ("SlowReason", &explained["slow_reasons"][0]),
        ("SlowRequest", &explained["slow_requests"][0]),
        ("StageTime", &explained["slow_requests"][0]["stages"][0]),
        ("Admission", &explained["server"]),
        ("Cluster", &of_several(api::Cluster::default())),
        ("ManagerInCharge", &of_several(api::ManagerInCharge::default())),
        ("Server", &of_several(api::Server::default())),
        ("Engine", &of_several(api::Engine::default())),
        ("SlowFor", &of_several(api::SlowFor::default())),
        ("EngineWork", &of_several(api::EngineWork::default())),
        ("GoneServer", &of_several(api::GoneServer::default())),
        ("Agent", &of_several(api::Agent::default())),
        ("SegmentMove", &of_several(api::SegmentMove::default())),
        ("ExplainedEngine", &of_several(api::ExplainedEngine::default())),
        ("ForwardedBursts", &of_several(api::ForwardedBursts::default())),
    ] {
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let mut required: Vec<String> = serde_json::from_value(schemas[name]["required"].clone()).unwrap();
        let mut properties = keys(&schemas[name]["properties"]);
        let mut found = keys(value);
        for names in [&mut required, &mut properties, &mut found] {
            names.sort();
        }
        assert_eq!((&found, &found), (&required, &properties), "{name}");
    }
    // What is taken is what is documented: a body with every field of the document is read.
    let fields = schemas["SetVolume"]["properties"].as_object().unwrap();
    let value = |key: &str| if key == "forwarding" { json!("off") } else { json!(1) };
    let all: Value = fields.keys().map(|key| (key.clone(), value(key))).collect();
    assert_eq!(fields.len(), 7);
    let created = api.post(&json!({"name": "b", "size": "1G"}).to_string()).0;
    assert_eq!((created, api.patch("/v1/volumes/b", &all.to_string()).0), (201, 200));
    assert!(fields.keys().all(|key| schemas["CreateVolume"]["properties"][key] == fields[key]));
}
