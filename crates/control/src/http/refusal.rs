//! Answers that are errors, in JSON.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base::{Error, ErrorKind};
use wire::api;

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
            ErrorKind::Moved => (StatusCode::SERVICE_UNAVAILABLE, "moved"),
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
