//! Who may ask what: checks on a request's head, before its body is read.
//!
//! A web page in a browser on the same machine can send requests to loopback. It cannot choose `Host` to be an
//! address after a DNS rebinding, cannot send JSON across origins without asking first, and cannot read the token.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, Method, StatusCode, header};

use super::api::Api;
use super::refusal::Refusal;
use super::token::Right;

/// A POST that says everything with its path; the token keeps web pages out.
const WITHOUT_BODY: &str = "/v1/scrub";

/// Checks one request.
///
/// # Errors
/// What the client is told.
pub fn check(api: &Api, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    check_host(api, headers)?;
    let is_change = !matches!(*method, Method::GET | Method::HEAD);
    if (is_change || api.is_public) && path != "/healthz" {
        check_token(api, headers, wanted(is_change, path))?;
    }
    match matches!(*method, Method::POST | Method::PATCH) && path != WITHOUT_BODY {
        true => check_content_type(headers),
        false => Ok(()),
    }
}

fn check_host(api: &Api, headers: &HeaderMap) -> Result<(), Refusal> {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_address = host.parse::<SocketAddr>().is_ok() || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    if is_address || name == "localhost" || api.host_names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::FORBIDDEN,
        "forbidden",
        format!("the Host {host:?} is not this store: use its address or localhost, or add the name to api.host_names"),
    ))
}

/// What a token has to be for.
fn wanted(is_change: bool, path: &str) -> Right {
    match path {
        _ if !is_change => Right::Read,
        "/v1/devices" | "/v1/devices/detach" => Right::Attach,
        _ => Right::Operate,
    }
}

fn check_token(api: &Api, headers: &HeaderMap, wanted: Right) -> Result<(), Refusal> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    match given.and_then(|given| api.tokens.right_of(given.trim())) {
        Some(right) if right >= wanted => Ok(()),
        Some(right) => Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            format!(
                "this is the token to {}, and not enough: send one to {}; that of {} does everything",
                right.name(),
                wanted.name(),
                api.token_file.display()
            ),
        )),
        None => Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            format!(
                "{}: send the content of {} in the header Authorization, after 'Bearer '",
                if given.is_some() { "the token is not this store's" } else { "this needs a token" },
                api.token_file.display()
            ),
        )),
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    match essence.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            format!("the body must be JSON: send Content-Type: application/json instead of {given:?}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::Tokens;
    use super::*;

    fn api(is_public: bool) -> Api {
        let (calls, _) = async_channel::bounded(1);
        Api {
            calls,
            tokens: Tokens::of("secret".into()),
            is_public,
            token_file: "/store/api.token".into(),
            host_names: vec!["disks.example".into()],
            nbd: Vec::new(),
            is_one_of_several: false,
        }
    }

    fn status(is_public: bool, method: Method, path: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().unwrap();
            map.insert(name, value.parse().unwrap());
        }
        check(&api(is_public), &method, path, &map).err().map(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn a_host_is_an_address_or_a_name_that_was_given() {
        for good in
            ["127.0.0.1:7400", "[::1]:7400", "[::1]", "10.0.0.1", "localhost", "localhost:1", "Disks.Example:80"]
        {
            assert_eq!(status(false, Method::GET, "/v1/volumes", &[("host", good)]), None, "{good}");
        }
        for bad in ["evil.example", "evil.example:7400", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
            assert_eq!(status(false, Method::GET, "/healthz", &[("host", bad)]), Some(403), "{bad}");
        }
        assert_eq!(status(false, Method::GET, "/healthz", &[]), Some(403));
    }

    #[test]
    fn a_change_needs_the_token_and_json() {
        let host = ("host", "localhost");
        let (right, json) = (("authorization", "Bearer secret"), ("content-type", "application/json; charset=utf-8"));
        assert_eq!(status(false, Method::POST, "/v1/volumes", &[host, right, json]), None);
        assert_eq!(status(false, Method::POST, "/v1/volumes", &[host, json]), Some(401));
        assert_eq!(status(false, Method::PATCH, "/v1/volumes/a", &[host, right, json]), None);
        assert_eq!(status(false, Method::PATCH, "/v1/volumes/a", &[host, json]), Some(401));
        assert_eq!(status(false, Method::PATCH, "/v1/volumes/a", &[host, right]), Some(415));
        assert_eq!(
            status(false, Method::DELETE, "/v1/volumes/a", &[host, ("authorization", "Bearer wrong!")]),
            Some(401)
        );
        assert_eq!(status(false, Method::DELETE, "/v1/volumes/a", &[host, ("authorization", "secret")]), Some(401));
        assert_eq!(status(false, Method::DELETE, "/v1/volumes/a", &[host, right]), None);
        for bad in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
            let headers = [host, right, ("content-type", bad)];
            assert_eq!(status(false, Method::POST, "/v1/volumes", &headers), Some(415), "{bad}");
        }
    }

    #[test]
    fn a_token_does_what_it_is_for() {
        let directory = tempfile::tempdir().unwrap();
        Tokens::of("secret".into()).write_beside(&directory.path().join("api.token")).unwrap();
        let bearer = |name: &str| {
            let token = std::fs::read_to_string(directory.path().join(name)).unwrap();
            format!("Bearer {}", token.trim())
        };
        let (look, attach) = (bearer("read.token"), bearer("attach.token"));
        let ask = |method: Method, path: &str, token: &str| {
            let headers = [("host", "10.0.0.1"), ("content-type", "application/json"), ("authorization", token)];
            status(true, method, path, &headers)
        };
        for (path, method) in [("/metrics", Method::GET), ("/v1/status", Method::GET), ("/v1/devices", Method::GET)] {
            assert_eq!(ask(method.clone(), path, &look), None, "{path}");
            assert_eq!(ask(method, path, &attach), None, "{path}");
        }
        for path in ["/v1/devices", "/v1/devices/detach"] {
            assert_eq!(ask(Method::POST, path, &attach), None);
            assert_eq!(ask(Method::POST, path, &look), Some(403));
        }
        for (method, path) in [
            (Method::POST, "/v1/volumes"),
            (Method::DELETE, "/v1/volumes/a"),
            (Method::PATCH, "/v1/volumes/devices"),
            (Method::POST, "/v1/scrub"),
            (Method::PATCH, "/v1/servers/s1"),
        ] {
            assert_eq!(ask(method.clone(), path, &attach), Some(403), "{path}");
            assert_eq!(ask(method.clone(), path, &look), Some(403), "{path}");
            assert_eq!(ask(method, path, "Bearer secret"), None, "{path}");
        }
    }

    #[test]
    fn beyond_loopback_reading_needs_the_token_too() {
        let host = ("host", "10.0.0.1");
        assert_eq!(status(true, Method::GET, "/v1/volumes", &[host]), Some(401));
        assert_eq!(status(true, Method::GET, "/metrics", &[host, ("authorization", "Bearer secret")]), None);
        assert_eq!(status(true, Method::GET, "/healthz", &[host]), None);
    }
}
