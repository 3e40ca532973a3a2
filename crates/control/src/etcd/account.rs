//! As whom an etcd is asked: over TLS, with a token that a password was given for.

use std::cell::RefCell;
use std::rc::Rc;

use base::{Error, Result};
use link::tls::{Channel, Credentials};
use runtime::{Address, Handle, OpenOptions};
use serde_json::{Value, json};

use super::call::{Gone, call};
use super::place::{Place, User};
use super::{Refused, refused, shown};

/// Most bytes of a password's file.
const PASSWORD_MAX: u64 = 4096;

/// See the module.
#[derive(Default)]
pub(super) struct Account {
    credentials: RefCell<Option<Rc<Credentials>>>,
    token: RefCell<Option<String>>,
}

impl Account {
    /// A stream to a member, over TLS if that is wanted.
    pub(super) async fn connect(
        &self,
        handle: &Handle,
        place: &Place,
        endpoint: &Address,
    ) -> std::result::Result<Channel, Gone> {
        let unsent = |why: String| Gone { was_sent: false, why };
        let stream = handle.connect(endpoint).await.map_err(|error| unsent(error.to_string()))?;
        let (Some(directory), Address::Tcp(address)) = (&place.tls, endpoint) else { return Ok(stream.into()) };
        let known = self.credentials.borrow().clone();
        let credentials = match known {
            Some(credentials) => credentials,
            None => {
                let opened = Credentials::open_to_ask(handle, directory).await;
                let opened = opened.map_err(|error| unsent(error.to_string()))?;
                self.credentials.borrow_mut().insert(opened).clone()
            }
        };
        credentials.connect_at(stream, address.ip()).await.map_err(|error| unsent(error.to_string()))
    }

    /// The token, if there is one.
    pub(super) fn token(&self) -> Option<String> {
        self.token.borrow().clone()
    }

    /// The token does not hold any more.
    pub(super) fn forget(&self) {
        self.token.take();
    }

    /// Gets a token from a member, if a user was named and there is none.
    pub(super) async fn sign_in(
        &self,
        handle: &Handle,
        place: &Place,
        endpoint: &Address,
    ) -> std::result::Result<(), Failed> {
        let Some(user) = place.user.as_ref().filter(|_| self.token.borrow().is_none()) else { return Ok(()) };
        let password = password(handle, user).await.map_err(Failed::Here)?;
        let stream = self.connect(handle, place, endpoint).await.map_err(Failed::Gone)?;
        let body = json!({"name": user.name, "password": password});
        let mut answers =
            call(handle, stream, endpoint, None, "/v3/auth/authenticate", &body).await.map_err(Failed::Gone)?;
        let nothing = || Failed::Gone(Gone { was_sent: false, why: "it said nothing".into() });
        let answer = answers.next().await.map_err(Failed::Gone)?.ok_or_else(nothing)?;
        let answer = refused(answer, endpoint).map_err(|Refused { error, .. }| Failed::Here(error))?;
        let token = answer.get("token").and_then(Value::as_str);
        let token =
            token.ok_or_else(|| Failed::Here(Error::io(format!("etcd at {} gives no token", shown(endpoint)))))?;
        self.token.replace(Some(token.to_owned()));
        Ok(())
    }
}

/// Why nothing was asked, or not answered.
pub(super) enum Failed {
    /// The member did not answer: another one may.
    Gone(Gone),
    /// No member would.
    Here(Error),
}

impl Failed {
    pub(super) fn into_gone(self) -> Gone {
        match self {
            Failed::Gone(gone) => gone,
            Failed::Here(error) => Gone { was_sent: false, why: error.message },
        }
    }
}

async fn password(handle: &Handle, user: &User) -> Result<String> {
    let failed = |error| Error::from_io(format!("the password of etcd's user, {}", user.password.display()), &error);
    let file = handle.open(&user.password, OpenOptions::default()).await.map_err(failed)?;
    let length = file.length().await.map_err(failed)?.min(PASSWORD_MAX) as usize;
    let content = file.read_up_to(0, length).await.map_err(failed)?;
    let text = std::str::from_utf8(&content).unwrap_or_default().trim_end();
    match text.is_empty() {
        true => Err(Error::invalid(format!("{} holds no password", user.password.display()))),
        false => Ok(text.to_owned()),
    }
}
