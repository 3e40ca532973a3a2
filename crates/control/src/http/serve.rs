//! The thread: a bounded number of connections, each with a bounded patience.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use base::limits::API_CONNECTIONS_MAX;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;

use super::api::Api;
use super::routes;

/// How long a client may take to send the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long requests in progress may take when the store stops.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait after a failed accept: the process has no free descriptor, and may have one soon.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Serves until `stop` resolves, because something was sent or because its sender is gone.
pub fn run(listener: TcpListener, api: Arc<Api>, stop: oneshot::Receiver<()>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "the control API has no event loop and is not served"),
    };
    runtime.block_on(async move {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => accept(listener, api, stop).await,
            Err(error) => tracing::error!(%error, "the control API cannot be served"),
        }
    });
}

async fn accept(listener: tokio::net::TcpListener, api: Arc<Api>, mut stop: oneshot::Receiver<()>) {
    let router = routes::router(api);
    let slots = Arc::new(Semaphore::new(API_CONNECTIONS_MAX));
    let (closing, closed) = watch::channel(false);
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // The semaphore is never closed, so this always gives a permit.
            let slot = slots.clone().acquire_owned().await;
            (listener.accept().await, slot)
        };
        let (accepted, slot) = tokio::select! {
            _ = &mut stop => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accepted => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the control API cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let mut closed = closed.clone();
        connections.spawn(async move {
            let _slot = slot;
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            tokio::pin!(connection);
            tokio::select! {
                // A connection that breaks is the client's affair.
                _ = &mut connection => {}
                _ = closed.changed() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        });
    }
    drop(listener);
    let _ = closing.send(true);
    let _ = tokio::time::timeout(STOP_PATIENCE, async { while connections.join_next().await.is_some() {} }).await;
}
