//! Calls that another manager answers: of several, only the one in charge knows what is so.
//!
//! Whoever is asked and is not in charge sends the call on to the one who is, as it came, and gives its answer back; so
//! people and programs may ask any of them. A call is sent on once: a manager that is not in charge either says so.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request as HttpRequest;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use base::Error;
use base::limits::API_BODY_MAX;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;

use super::api::Api;
use super::refusal::Refusal;
use crate::service::{InCharge, Reply, Request};

/// Says that a call was sent on.
const SENT_ON: HeaderName = HeaderName::from_static("levee-sent-on");
/// How long the other manager may take to be reached; its answer has the patience of every call.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longer than the other one takes before it gives up.
const ANSWER_PATIENCE: Duration = Duration::from_secs(35);
/// Paths that every manager answers itself.
const OWN: [&str; 2] = ["/healthz", "/v1/openapi.json"];

/// Whether a call was sent on.
pub fn is_sent_on(request: &HttpRequest) -> bool {
    request.headers().contains_key(SENT_ON)
}

/// Where a call is to be sent on to; nowhere, if it is answered here.
pub async fn elsewhere(api: &Api, path: &str, is_sent_on: bool) -> Result<Option<SocketAddr>, Refusal> {
    if !api.is_one_of_several || OWN.contains(&path) {
        return Ok(None);
    }
    match api.ask(Request::InCharge).await? {
        Reply::InCharge(in_charge) => place(in_charge, is_sent_on).map_err(Refusal::from),
        other => Err(Error::internal(format!("an odd answer: {other:?}")).into()),
    }
}

fn place(in_charge: InCharge, is_sent_on: bool) -> Result<Option<SocketAddr>, Error> {
    match in_charge {
        InCharge::Here => Ok(None),
        InCharge::At(address) if !is_sent_on => Ok(Some(address)),
        InCharge::At(address) => Err(Error::retry(format!(
            "a call for the manager in charge, at {address}, came to another one: try again; if it stays so, that address is of each \
             manager's own machine only, so have each listen where others reach it (api.listen)"
        ))),
        InCharge::Nobody => Err(Error::retry("no manager is in charge at this moment: try again in a second")),
    }
}

/// The answer of the manager at `address`.
pub async fn send_on(address: SocketAddr, request: HttpRequest) -> Result<Response, Refusal> {
    let lost =
        |why: String| Refusal::from(Error::retry(format!("the manager in charge, at {address}, {why}: try again")));
    let (mut head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, API_BODY_MAX).await.map_err(|_| {
        let message = format!("the body cannot be read, or has more than {API_BODY_MAX} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    })?;
    head.headers.insert(SENT_ON, HeaderValue::from_static("1"));
    let connecting = tokio::time::timeout(PATIENCE, tokio::net::TcpStream::connect(address));
    let stream = match connecting.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(lost(format!("cannot be reached ({error})"))),
        Err(_) => return Err(lost("does not answer".into())),
    };
    let asking = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the answer.
        tokio::spawn(connection);
        let answer = sender.send_request(HttpRequest::from_parts(head, Full::new(body))).await?;
        let (head, body) = answer.into_parts();
        Ok::<_, hyper::Error>((head, body.collect().await?.to_bytes()))
    };
    match tokio::time::timeout(ANSWER_PATIENCE, asking).await {
        Ok(Ok((head, body))) => Ok(Response::from_parts(head, Body::from(body))),
        Ok(Err(error)) => Err(lost(format!("broke off ({error})"))),
        Err(_) => Err(lost("does not answer".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_sent_on_once() {
        let at: SocketAddr = "127.0.0.1:7400".parse().unwrap();
        for is_sent_on in [false, true] {
            assert_eq!(place(InCharge::Here, is_sent_on), Ok(None));
            assert!(place(InCharge::Nobody, is_sent_on).unwrap_err().message.contains("no manager is in charge"));
        }
        assert_eq!(place(InCharge::At(at), false), Ok(Some(at)));
        // Managers of several machines that all have their API at loopback send a call on to themselves.
        let error = place(InCharge::At(at), true).unwrap_err();
        assert!(error.message.contains("api.listen"), "{error}");
    }
}
