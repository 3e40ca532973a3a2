//! What each path answers.

use std::sync::Arc;
use std::time::Duration;

use async_channel::TrySendError;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, Request as HttpRequest, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, patch, post};
use axum::{Json, Router};
use base::Error;
use base::limits::API_BODY_MAX;
use wire::api;
use wire::observe::Snapshot;

use super::api::Api;
use super::bodies::{parse_attach, parse_change, parse_create, parse_detach, parse_drained, parse_force, parse_move};
use super::refusal::Refusal;
use super::{explain, guard, relay, status};
use crate::metrics;
use crate::rules;
use crate::service::{Call, Reply, Request, VolumeView};
use crate::table::VolumeState;

/// The OpenAPI 3.1 document, kept by hand next to the routes; a test compares the two.
pub const OPENAPI: &str = include_str!("openapi.json");

/// Every path with its methods.
pub const ROUTES: [(&str, &[&str]); 12] = [
    ("/v1/volumes", &["get", "post"]),
    ("/v1/volumes/{name}", &["get", "patch", "delete"]),
    ("/v1/volumes/{name}/explain", &["get"]),
    ("/v1/volumes/{name}/segments/{index}/move", &["post"]),
    ("/v1/servers/{name}", &["patch"]),
    ("/v1/devices", &["get", "post"]),
    ("/v1/devices/detach", &["post"]),
    ("/v1/scrub", &["get", "post"]),
    ("/v1/status", &["get"]),
    ("/v1/openapi.json", &["get"]),
    ("/metrics", &["get"]),
    ("/healthz", &["get"]),
];

/// How long a request waits for the manager's reply.
const REPLY_PATIENCE: Duration = Duration::from_secs(30);

type Answer<T> = Result<T, Refusal>;

/// All routes, behind the guard.
pub fn router(api: Arc<Api>) -> Router {
    // A method that a path does not have is an error in JSON, as every other.
    let only = |methods: MethodRouter<Arc<Api>>| methods.fallback(wrong_method);
    Router::new()
        .route("/v1/volumes", only(get(list_volumes).post(create_volume)))
        .route("/v1/volumes/{name}", only(get(show_volume).patch(change_volume).delete(delete_volume)))
        .route("/v1/volumes/{name}/explain", only(get(explain_volume)))
        .route("/v1/volumes/{name}/segments/{index}/move", only(post(move_segment)))
        .route("/v1/servers/{name}", only(patch(change_server)))
        .route("/v1/devices", only(get(list_devices).post(attach_device)))
        .route("/v1/devices/detach", only(post(detach_device)))
        .route("/v1/scrub", only(get(scrub).post(begin_scrub)))
        .route("/v1/status", only(get(show_status)))
        .route("/v1/openapi.json", only(get(openapi)))
        .route("/metrics", only(get(prometheus)))
        .route("/healthz", only(get(health)))
        .fallback(no_such_path)
        .layer(middleware::from_fn_with_state(api.clone(), checked))
        .with_state(api)
}

async fn checked(State(api): State<Arc<Api>>, request: HttpRequest, next: Next) -> Response {
    if let Err(refusal) = guard::check(&api, request.method(), request.uri().path(), request.headers()) {
        return refusal.into_response();
    }
    let (path, is_sent_on) = (request.uri().path().to_owned(), relay::is_sent_on(&request));
    let answer = match relay::elsewhere(&api, &path, is_sent_on).await {
        Ok(None) => return next.run(request).await,
        Ok(Some(address)) => relay::send_on(address, request).await,
        Err(refusal) => Err(refusal),
    };
    answer.unwrap_or_else(IntoResponse::into_response)
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
    let wanted = parse_create(&read(body).await?)?;
    let Reply::Created(view, existed) = api.ask(Request::Create(wanted)).await? else { return Err(mixed_up()) };
    let location = format!("/v1/volumes/{}", view.row.name);
    let status = if existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, [(header::LOCATION, location)], Json(api.volume(view))).into_response())
}

async fn show_volume(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Answer<Json<api::Volume>> {
    let Reply::Volume(view) = api.ask(Request::Show(name)).await? else { return Err(mixed_up()) };
    Ok(Json(api.volume(view)))
}

async fn change_volume(State(api): State<Arc<Api>>, Path(name): Path<String>, body: Body) -> Answer<Json<api::Volume>> {
    let change = parse_change(&read(body).await?)?;
    let Reply::Volume(view) = api.ask(Request::Set { name, change }).await? else { return Err(mixed_up()) };
    Ok(Json(api.volume(view)))
}

async fn explain_volume(State(api): State<Arc<Api>>, Path(name): Path<String>) -> Answer<Json<api::Explanation>> {
    let Reply::Explained(view, explained) = api.ask(Request::Explain(name)).await? else { return Err(mixed_up()) };
    Ok(Json(explain::explanation(view, *explained)))
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

async fn move_segment(
    State(api): State<Arc<Api>>,
    Path((volume, index)): Path<(String, String)>,
    body: Body,
) -> Answer<Response> {
    let to = parse_move(&read(body).await?)?;
    let index =
        index.parse().map_err(|_| Error::invalid(format!("{index:?} is no segment: they are 0, 1, and so on")))?;
    decided(api.ask(Request::MoveSegment { volume, index, to }).await?)
}

async fn change_server(State(api): State<Arc<Api>>, Path(server): Path<String>, body: Body) -> Answer<Response> {
    let is_drained = parse_drained(&read(body).await?)?;
    decided(api.ask(Request::Drain { server, is_drained }).await?)
}

async fn list_devices(State(api): State<Arc<Api>>) -> Answer<Json<api::DeviceList>> {
    devices(api.ask(Request::Devices).await?)
}

async fn attach_device(State(api): State<Arc<Api>>, body: Body) -> Answer<Json<api::DeviceList>> {
    let (volume, path) = parse_attach(&read(body).await?)?;
    devices(api.ask(Request::AttachDevice { volume, path }).await?)
}

async fn detach_device(State(api): State<Arc<Api>>, body: Body) -> Answer<Json<api::DeviceList>> {
    let path = parse_detach(&read(body).await?)?;
    devices(api.ask(Request::DetachDevice { path }).await?)
}

fn devices(reply: Reply) -> Answer<Json<api::DeviceList>> {
    let Reply::Devices(all) = reply else { return Err(mixed_up()) };
    let device = |device: wire::Device| api::Device {
        volume: device.volume,
        path: device.path.display().to_string(),
        is_connected: device.is_connected,
    };
    Ok(Json(api::DeviceList { devices: all.into_iter().map(device).collect() }))
}

/// It will come about: the status says when.
fn decided(reply: Reply) -> Answer<Response> {
    match reply {
        Reply::Done => Ok((StatusCode::ACCEPTED, Json(api::Decided { is_decided: true })).into_response()),
        _ => Err(mixed_up()),
    }
}

async fn read(body: Body) -> Answer<Bytes> {
    axum::body::to_bytes(body, API_BODY_MAX).await.map_err(|_| {
        let message = format!("the body cannot be read, or has more than {API_BODY_MAX} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    })
}

async fn show_status(State(api): State<Arc<Api>>) -> Answer<Json<api::Status>> {
    let Reply::Status(snapshot, volumes) = api.ask(Request::Status).await? else { return Err(mixed_up()) };
    let token_file = api.token_file.display().to_string();
    Ok(Json(status::status(&snapshot, &volumes, api.nbd.clone(), token_file)))
}

async fn scrub(State(api): State<Arc<Api>>) -> Answer<Json<api::Scrub>> {
    api.snapshot().await.map(|snapshot| Json(snapshot.scrub))
}

async fn begin_scrub(State(api): State<Arc<Api>>) -> Answer<Response> {
    let Reply::Snapshot(snapshot) = api.ask(Request::Scrub).await? else { return Err(mixed_up()) };
    Ok((StatusCode::ACCEPTED, Json(snapshot.scrub)).into_response())
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
    pub(super) async fn ask(&self, request: Request) -> Answer<Reply> {
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
        let listeners = self.nbd.iter().chain(view.nbd.iter());
        let uris = listeners.filter(|_| is_active).map(|uri| volume_uri(uri, &view.row.name)).collect();
        api::Volume {
            id: view.row.id.0,
            segments: view.row.descriptor().segments,
            size_bytes: view.row.size,
            data_sector_bytes: view.row.data_sector_bytes,
            state: if is_active { "active" } else { "deleting" }.into(),
            generation: view.row.generation.0,
            clients: view.clients,
            levels: view.row.levels.into(),
            forwarding: view.row.forwarding.name().into(),
            created_ms: view.row.created_wall_ms,
            uris,
            name: view.row.name,
            owner: view.row.owner,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_a_uri_on_each_listener() {
        assert_eq!(volume_uri("nbd://127.0.0.1:10809", "a"), "nbd://127.0.0.1:10809/a");
        assert_eq!(volume_uri("nbd+unix:///?socket=/s/nbd.sock", "a"), "nbd+unix:///a?socket=/s/nbd.sock");
    }
}
