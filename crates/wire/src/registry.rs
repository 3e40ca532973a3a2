//! What a manager is to engines, wherever they are: they say that they live, and where.
//!
//! An engine asks every manager that it knows, again and again. What it is answered is how often it has to: whoever was not
//! heard of for a lease is missing, which is a reason to doubt and not yet a death (docs/SAFETY.md, rule 50).

use base::limits::{ADDRESS_MAX, ENGINES_MAX, SERVER_NAME_MAX};
use base::{Error, Incarnation, Result};

use crate::service::LocalBoxFuture;

/// What an engine hears that has said that it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registered {
    /// It is to say so again within so many milliseconds, several times.
    pub lease_ms: u32,
    /// Whether this manager is in charge, and will give it segments.
    pub is_in_charge: bool,
}

/// A manager, as engines and other managers see it.
pub trait EngineRegistry {
    /// An engine says that it lives, on the server of this name, and where it listens ("host:port" or the path of a
    /// socket). To be said several times within each lease.
    ///
    /// # Errors
    /// `Fenced`: it was declared dead, and must start as another one. `Invalid`: there can be no such name or address, or
    /// there are too many engines. `Conflict`: it is another server's. `Io`: nobody is in charge, or it cannot be written
    /// now; it is to be said again.
    fn register<'a>(
        &'a self,
        engine: Incarnation,
        server: &'a str,
        address: &'a str,
    ) -> LocalBoxFuture<'a, Result<Registered>>;

    /// Which of these engines it has not heard of for a lease. At most [`ENGINES_MAX`] are asked for.
    ///
    /// # Errors
    /// `Io`: it does not know.
    fn missing(&self, engines: Vec<Incarnation>) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>>;
}

/// Whether an engine can have such a server and address.
///
/// # Errors
/// `Invalid`.
pub fn check_registration(server: &str, address: &str) -> Result<()> {
    let lengths = [("name of a server", server, SERVER_NAME_MAX), ("address", address, ADDRESS_MAX)];
    match lengths.iter().find(|(_, text, most)| !(1..=*most).contains(&text.len())) {
        None => Ok(()),
        Some((what, text, most)) => {
            Err(Error::invalid(format!("the {what} has 1 to {most} bytes, not {}: give it another one", text.len())))
        }
    }
}

/// Whether so many engines can be asked for at a time.
///
/// # Errors
/// `Invalid`.
pub fn check_engines(engines: &[Incarnation]) -> Result<()> {
    match engines.len() <= ENGINES_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!("at most {ENGINES_MAX} engines are asked for, not {}", engines.len()))),
    }
}
