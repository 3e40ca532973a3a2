//! What each path answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_channel::TrySendError;
use axum::body::Body;
use axum::extract::{Path, RawQuery, Request as HttpRequest, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};
use base::limits::{API_BODY_MAX, DATA_SECTOR_DEFAULT};
use base::{Error, ErrorKind};
use serde_json::{Map, Value};
use wire::api::{self, Size};

use super::guard;
use crate::metrics;
use crate::observe::Snapshot;
use crate::rules;
use crate::service::{Call, CreateVolume, Reply, Request, VolumeView};
use crate::table::VolumeState;

/// The OpenAPI 3.1 document, kept by hand next to the routes; a test compares the two.
pub const OPENAPI: &str = include_str!("openapi.json");

/// Every path with its methods.
pub const ROUTES: [(&str, &[&str]); 6] = [
    ("/v1/volumes", &["get", "post"]),
    ("/v1/volumes/{name}", &["get", "delete"]),
    ("/v1/status", &["get"]),
    ("/v1/openapi.json", &["get"]),
    ("/metrics", &["get"]),
    ("/healthz", &["get"]),
];

/// How long a request waits for the manager's reply.
const REPLY_PATIENCE: Duration = Duration::from_secs(30);

/// What every handler needs.
pub struct Api {
    /// The manager's mailbox.
    pub calls: async_channel::Sender<Call>,
    /// What changes must show.
    pub token: String,
    /// Whether the address can be reached from elsewhere.
    pub is_public: bool,
    /// Where the token stands.
    pub token_file: PathBuf,
    /// Names that may stand in `Host`.
    pub host_names: Vec<String>,
    /// URIs of the NBD listeners.
    pub nbd: Vec<String>,
}

/// An answer that is an error.
#[derive(Debug)]
pub struct Refusal {
    /// The HTTP status.
    pub status: StatusCode,
    kind: &'static str,
    message: String,
}

impl Refusal {
    /// An error with a kind of its own.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Refusal { status, kind, message: message.into() }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (status, kind) = match error.kind {
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "invalid"),
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            ErrorKind::Conflict => (StatusCode::CONFLICT, "conflict"),
            ErrorKind::Fenced => (StatusCode::CONFLICT, "fenced"),
            ErrorKind::Full => (StatusCode::INSUFFICIENT_STORAGE, "full"),
            ErrorKind::Retry => (StatusCode::SERVICE_UNAVAILABLE, "retry"),
            ErrorKind::Io => (StatusCode::INTERNAL_SERVER_ERROR, "io"),
            ErrorKind::Corrupt => (StatusCode::INTERNAL_SERVER_ERROR, "corrupt"),
            ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        Refusal::new(status, kind, error.message)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = api::Failure { error: api::FailureDetail { kind: self.kind.into(), message: self.message } };
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

type Answer<T> = Result<T, Refusal>;

/// All routes, behind the guard.
pub fn router(api: Arc<Api>) -> Router {
    // A method that a path does not have is an error in JSON, as every other.
    let only = |methods: MethodRouter<Arc<Api>>| methods.fallback(wrong_method);
    Router::new()
        .route("/v1/volumes", only(get(list_volumes).post(create_volume)))
        .route("/v1/volumes/{name}", only(get(show_volume).delete(delete_volume)))
        .route("/v1/status", only(get(status)))
        .route("/v1/openapi.json", only(get(openapi)))
        .route("/metrics", only(get(prometheus)))
        .route("/healthz", only(get(health)))
        .fallback(no_such_path)
        .layer(middleware::from_fn_with_state(api.clone(), checked))
        .with_state(api)
}

async fn checked(State(api): State<Arc<Api>>, request: HttpRequest, next: Next) -> Response {
    match guard::check(&api, request.method(), request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

async fn wrong_method(method: Method) -> Refusal {
    let message = format!("{method} is not for this path: GET /v1/openapi.json lists what is");
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

async fn no_such_path(request: HttpRequest) -> Refusal {
    let path = request.uri().path();
    let near = rules::nearest(path, ROUTES.iter().map(|(route, _)| *route));
    let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    Refusal::new(StatusCode::NOT_FOUND, "not_found", format!("there is no path {path:?}{hint}"))
}

async fn list_volumes(State(api): State<Arc<Api>>) -> Answer<Json<api::VolumeList>> {
    let Reply::Volumes(views) = api.ask(Request::List).await? else { return Err(mixed_up()) };
    Ok(Json(api::VolumeList { volumes: views.into_iter().map(|view| api.volume(view)).collect() }))
}

async fn create_volume(State(api): State<Arc<Api>>, body: Body) -> Answer<Response> {
    let body = axum::body::to_bytes(body, API_BODY_MAX).await.map_err(|_| {
        let message = format!("the body cannot be read, or has more than {API_BODY_MAX} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    })?;
    let wanted = parse_create(&body)?;
    let Reply::Created(view, existed) = api.ask(Request::Create(wanted)).await? else { return Err(mixed_up()) };
    let location = format!("/v1/volumes/{}", view.row.name);
    let status = if existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, [(header::LOCATION, location)], Json(api.volume(view))).into_response())
}

async fn show_volume(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Answer<Json<api::Volume>> {
    let Reply::Volume(view) = api.ask(Request::Show(name)).await? else { return Err(mixed_up()) };
    Ok(Json(api.volume(view)))
}

async fn delete_volume(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<Json<api::Deleted>> {
    let force = parse_force(query.as_deref().unwrap_or_default())?;
    let Reply::Deleted(view, is_dropped) = api.ask(Request::Delete { name, force }).await? else {
        return Err(mixed_up());
    };
    Ok(Json(api::Deleted { volume: api.volume(view), is_dropped }))
}

async fn status(State(api): State<Arc<Api>>) -> Answer<Json<api::Status>> {
    api.snapshot().await.map(|snapshot| Json(api.status(&snapshot)))
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

async fn prometheus(State(api): State<Arc<Api>>) -> Answer<impl IntoResponse> {
    let snapshot = api.snapshot().await?;
    let page = metrics::render(&snapshot);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page))
}

async fn health(State(api): State<Arc<Api>>) -> Answer<&'static str> {
    match api.ask(Request::Health).await? {
        Reply::Healthy => Ok("ok\n"),
        _ => Err(mixed_up()),
    }
}

fn mixed_up() -> Refusal {
    Error::internal("the manager answered another question").into()
}

impl Api {
    /// One question to the manager's loop.
    async fn ask(&self, request: Request) -> Answer<Reply> {
        let (reply, answer) = futures_channel::oneshot::channel();
        self.calls.try_send(Call { request, reply }).map_err(|error| match error {
            TrySendError::Full(_) => Error::retry("the store has many calls to answer: try again in a moment"),
            TrySendError::Closed(_) => Error::retry("the store is shutting down"),
        })?;
        match tokio::time::timeout(REPLY_PATIENCE, answer).await {
            Ok(Ok(answer)) => answer.map_err(Refusal::from),
            Ok(Err(_)) => Err(Error::retry("the store is shutting down").into()),
            Err(_) => {
                let message = format!(
                    "the store did not answer within {} s; what was asked may still happen",
                    REPLY_PATIENCE.as_secs()
                );
                Err(Refusal::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message))
            }
        }
    }

    async fn snapshot(&self) -> Answer<Box<Snapshot>> {
        match self.ask(Request::Observe).await? {
            Reply::Snapshot(snapshot) => Ok(snapshot),
            _ => Err(mixed_up()),
        }
    }

    fn volume(&self, view: VolumeView) -> api::Volume {
        let is_active = view.row.state == VolumeState::Active;
        let uris = self.nbd.iter().filter(|_| is_active).map(|uri| volume_uri(uri, &view.row.name)).collect();
        api::Volume {
            id: view.row.id.0,
            segments: view.row.descriptor().segments,
            size_bytes: view.row.size,
            data_sector_bytes: view.row.data_sector_bytes,
            state: if is_active { "active" } else { "deleting" }.into(),
            generation: view.row.generation.0,
            clients: view.clients,
            created_ms: view.row.created_wall_ms,
            uris,
            name: view.row.name,
            owner: view.row.owner,
        }
    }

    fn status(&self, snapshot: &Snapshot) -> api::Status {
        api::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            store: snapshot.store.clone(),
            incarnation: snapshot.incarnation,
            uptime_seconds: snapshot.uptime_seconds,
            volumes: snapshot.volumes,
            space: api::Space {
                capacity_bytes: snapshot.space.capacity,
                used_bytes: snapshot.space.used,
                free_bytes: snapshot.space.free,
            },
            memory: api::Memory { used_bytes: snapshot.memory_bytes, limit_bytes: snapshot.memory_bytes_max },
            directories: snapshot
                .files
                .directories
                .iter()
                .map(|directory| api::Directory {
                    path: directory.path.clone(),
                    state: directory.state.into(),
                    free_bytes: directory.free_bytes,
                    behind_bytes: directory.behind_bytes,
                })
                .collect(),
            nbd: self.nbd.clone(),
            token_file: self.token_file.display().to_string(),
        }
    }
}

/// Where a client attaches a volume, given the listener's URI: `nbd://HOST:PORT` or `nbd+unix:///?socket=PATH`.
pub fn volume_uri(listener: &str, volume: &str) -> String {
    match listener.split_once("/?") {
        Some((base, query)) => format!("{base}/{volume}?{query}"),
        None => format!("{listener}/{volume}"),
    }
}

/// Reads the body of a creation; the error names the field, and the nearest known one for an unknown field.
fn parse_create(body: &[u8]) -> Result<CreateVolume, Error> {
    const FIELDS: [&str; 5] = ["name", "size", "data_sector", "owner", "allow_existing"];
    let fields: Map<String, Value> = serde_json::from_slice(body)
        .map_err(|error| Error::invalid(format!("the body is not a JSON object: {error}")))?;
    if let Some(unknown) = fields.keys().find(|key| !FIELDS.contains(&key.as_str())) {
        let near = rules::nearest(unknown, FIELDS).map(|near| format!("did you mean {near:?}?"));
        let hint = near.unwrap_or_else(|| format!("known are {}", FIELDS.join(", ")));
        return Err(Error::invalid(format!("there is no field {unknown:?}; {hint}")));
    }
    let text = |key: &str| match fields.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(Error::invalid(format!("{key:?} is text, not {other}"))),
    };
    let size = |key: &str| match fields.get(key) {
        None => Ok(None),
        Some(value) => serde_json::from_value::<Size>(value.clone())
            .map_err(|_| format!("{value} is not a size; write a number of bytes or text such as \"10G\""))
            .and_then(|size| size.bytes())
            .map(Some)
            .map_err(|message| Error::invalid(format!("{key:?}: {message}"))),
    };
    let missing =
        |key: &str| Error::invalid(format!("{key:?} is missing; send {{\"name\": \"vm-1\", \"size\": \"10G\"}}"));
    Ok(CreateVolume {
        name: text("name")?.ok_or_else(|| missing("name"))?,
        size: size("size")?.ok_or_else(|| missing("size"))?,
        data_sector_bytes: size("data_sector")?.unwrap_or(DATA_SECTOR_DEFAULT),
        owner: text("owner")?.unwrap_or_default(),
        allow_existing: match fields.get("allow_existing") {
            None => false,
            Some(Value::Bool(allow)) => *allow,
            Some(other) => return Err(Error::invalid(format!("\"allow_existing\" is true or false, not {other}"))),
        },
    })
}

fn parse_force(query: &str) -> Result<bool, Error> {
    let mut force = false;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        force = match pair {
            "force" | "force=true" => true,
            "force=false" => false,
            _ => return Err(Error::invalid(format!("the query {pair:?} is not known; known is force=true"))),
        };
    }
    Ok(force)
}

#[cfg(test)]
mod tests {
    use base::{GIB, KIB};

    use super::*;

    #[test]
    fn a_body_is_read_or_refused_with_what_was_wrong() {
        let full = br#"{"name": "a", "size": "1.5G", "data_sector": 131072, "owner": "x", "allow_existing": true}"#;
        let wanted = parse_create(full).unwrap();
        assert_eq!((wanted.size, wanted.data_sector_bytes, wanted.allow_existing), (3 * GIB / 2, 128 * KIB, true));
        for (body, part) in [
            ("", "not a JSON object"),
            ("[]", "not a JSON object"),
            (r#"{"name": "a"}"#, r#""size" is missing"#),
            (r#"{"size": 1}"#, r#""name" is missing"#),
            (r#"{"name": "a", "sise": 1}"#, r#"did you mean "size"?"#),
            (r#"{"name": "a", "size": 1, "zzzzzzzzzzzz": 1}"#, "known are name, size"),
            (r#"{"name": 7, "size": 1}"#, r#""name" is text, not 7"#),
            (r#"{"name": "a", "size": -1}"#, "-1 is not a size"),
            (r#"{"name": "a", "size": "x"}"#, "'x' is not a size"),
            (r#"{"name": "a", "size": 1, "allow_existing": 1}"#, "true or false"),
        ] {
            let error = parse_create(body.as_bytes()).unwrap_err();
            assert!(error.kind == ErrorKind::Invalid && error.message.contains(part), "{body}: {error}");
        }
    }

    /// A fuzz target of bodies and queries: JSON with edits, and noise.
    #[test]
    fn a_request_is_read_or_refused() {
        type Input = (u8, Vec<(u16, u8)>, Vec<u8>);
        let examples = [
            r#"{"name": "a", "size": "1.5G", "data_sector": 131072, "owner": "x", "allow_existing": true}"#,
            r#"{"name": "vm-1", "size": 1073741824}"#,
            r#"{"name": "\u00e9", "size": "9999999999999999999T"}"#,
            r#"{"name": "a", "size": "1e308P", "data_sector": "0.1K"}"#,
        ];
        bolero::check!().with_iterations(20_000).with_type().for_each(|(example, edits, noise): &Input| {
            let mut body = examples[usize::from(*example) % examples.len()].as_bytes().to_vec();
            for (at, value) in edits.iter().take(3) {
                let at = usize::from(*at) % body.len();
                match value % 4 {
                    0 => body[at] = *value,
                    1 => body.insert(at, b"0123456789.eE-\"{}[],"[usize::from(*value) % 20]),
                    2 => drop(body.remove(at)),
                    _ => body[at] = b"0123456789.KMGTPi\" "[usize::from(*value) % 19],
                }
            }
            for body in [&body, noise] {
                match parse_create(body) {
                    Ok(wanted) => drop(rules::check_size(wanted.size)),
                    Err(error) => assert!(error.kind == ErrorKind::Invalid && !error.message.is_empty()),
                }
            }
            drop(parse_force(&String::from_utf8_lossy(noise)));
        });
    }

    #[test]
    fn a_query_is_known_or_refused() {
        assert!(
            !parse_force("").unwrap() && parse_force("force=true").unwrap() && !parse_force("force=false").unwrap()
        );
        assert!(parse_force("froce=true").is_err() && parse_force("force=1").is_err());
    }

    #[test]
    fn a_volume_has_a_uri_on_each_listener() {
        assert_eq!(volume_uri("nbd://127.0.0.1:10809", "a"), "nbd://127.0.0.1:10809/a");
        assert_eq!(volume_uri("nbd+unix:///?socket=/s/nbd.sock", "a"), "nbd+unix:///a?socket=/s/nbd.sock");
    }
}
