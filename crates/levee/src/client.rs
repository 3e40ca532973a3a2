//! Asks a running store through its control API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Error, Result};
use node::http;
use serde::de::DeserializeOwned;
use ureq::http::{Method, Request};
use wire::api;

use crate::cli::Api;

/// Where the state of a store is asked for.
pub const STATUS: &str = "/v1/status";

/// Longer than the store itself takes before it gives up.
const PATIENCE: Duration = Duration::from_secs(40);

/// Largest answer in bytes: the state of a store with all the volumes that there can be.
const ANSWER_MAX: u64 = 64 << 20;

/// A store at a URL.
pub struct Client {
    url: String,
    token_file: Option<PathBuf>,
    agent: ureq::Agent,
}

impl Client {
    /// The store that the command line names.
    ///
    /// # Errors
    /// `Invalid` for a URL that is none.
    pub fn new(options: &Api) -> Result<Client> {
        if !options.url.starts_with("http://") {
            let url = &options.url;
            return Err(Error::invalid(format!("'{url}' is not a control address; write http://127.0.0.1:7400")));
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .timeout_connect(Some(Duration::from_secs(5)));
        Ok(Client {
            url: options.url.trim_end_matches('/').to_owned(),
            token_file: options.token_file.clone(),
            agent: config.build().into(),
        })
    }

    /// Reads, with the token that somebody has named: beyond loopback that needs one, too.
    ///
    /// # Errors
    /// What the store answers, or that nothing answers; a file without a token.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.send(Method::GET, path, "", self.named_token()?.as_deref())
    }

    /// Changes something.
    ///
    /// # Errors
    /// As [`Client::get`], and for a token that cannot be found.
    pub fn change<T: DeserializeOwned>(&self, method: Method, path: &str, body: &str) -> Result<T> {
        let token = self.token()?;
        self.send(method, path, body, Some(&token))
    }

    fn send<T: DeserializeOwned>(&self, method: Method, path: &str, body: &str, token: Option<&str>) -> Result<T> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let request = request
            .body(body.to_owned())
            .map_err(|error| Error::invalid(format!("'{}' is not a control address: {error}", self.url)))?;
        let mut response = self.agent.run(request).map_err(|error| {
            Error::io(format!("no store answers at {} ({error}); start one with: levee up", self.url))
        })?;
        let status = response.status();
        let text = response.body_mut().with_config().limit(ANSWER_MAX).read_to_string();
        let text = text.map_err(|error| Error::io(format!("{} broke off: {error}", self.url)))?;
        if !status.is_success() {
            let failure: Option<api::Failure> = serde_json::from_str(&text).ok();
            let message = failure.map(|failure| failure.error.message);
            return Err(Error::io(message.unwrap_or_else(|| format!("{} answered {status}", self.url))));
        }
        serde_json::from_str(&text).map_err(|error| Error::io(format!("{} is no Levee store: {error}", self.url)))
    }

    /// The token from --token-file, or from LEVEE_TOKEN.
    fn named_token(&self) -> Result<Option<String>> {
        match &self.token_file {
            Some(path) => http::read_token(path).map(Some),
            None => Ok(std::env::var("LEVEE_TOKEN").ok().map(|token| token.trim().to_owned())),
        }
    }

    /// That, or what is in the file that a store on this machine names.
    fn token(&self) -> Result<String> {
        if let Some(token) = self.named_token()? {
            return Ok(token);
        }
        let status: api::Status = self.get(STATUS)?;
        let path = Path::new(&status.token_file);
        // Whatever answers there could name any file of ours: only one that is called and looks like a token is sent.
        if path.file_name() != Some(http::TOKEN_FILE.as_ref()) {
            return Err(Error::invalid(format!("{} names an odd token file: {}", self.url, path.display())));
        }
        http::read_token(path).map_err(|error| {
            Error::invalid(format!("{error}; give the store's token with --token-file or LEVEE_TOKEN"))
        })
    }
}
