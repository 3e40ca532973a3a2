//! A life in a shared store that another process has.
//!
//! **Intuition.** [`shared`](crate::shared) gives each writer in one process a store of its own. Here the writer is in
//! another process than the store, and asks it over a link ([`wire::FileService`], which [`served`](crate::served)
//! answers). The life goes on as long as nobody fences it: a connection that breaks, and a store that starts anew, are
//! waited for. What is new is that an answer may be lost, and nobody knows then whether what was asked was done.
//!
//! **Names.** The *session* (`session`) is how the life stands with the store: it has *entered*, it is *out* and enters
//! again, or it is *over*. *Known* (`known`) is what can be said of files and space without asking.
//!
//! **Invariants.**
//! - After an answer was lost the life enters anew before it asks anything else in its own name. What was asked before is
//!   done then, or never will be: so what the store says next is the truth about it.
//! - What may be done twice is asked again: to seal, delete, repair, fence, read. An append is not: its file takes no more
//!   (rule 12 of docs/SAFETY.md), and its writer goes on in a new one. A creation without an answer may have made a file
//!   that nobody knows of: it is found among the files of the life, deleted, and the file is created again.
//! - Nobody waits for a store that cannot be reached for longer than [`RemoteOptions::patience`]; for one that is slow, as
//!   for a disk.
//! - A life that is over does nothing any more, and says `Fenced`.
//! - What is known of files and space is what the store has said. Of files of others it is what was true when somebody
//!   asked.
//!
//! **Flow.** of an append: a task, started at the call -> the session, if it has entered -> the service -> the answer ->
//! known. Appends go out in the order of the calls, many at a time.

mod engine;
mod known;
mod session;

use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, Result};
use runtime::Handle;
use wire::FileService;

use self::engine::Remote;
use self::session::Session;
use crate::Store;

/// How a store in another process is used.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// What the store is called in messages: its address.
    pub name: String,
    /// How long operations wait for a store that cannot be reached. By default 30 s: several times what it takes to notice
    /// that a connection is dead, and what a store takes to start again, and no longer than a client of a volume has
    /// patience with its disk.
    pub patience: Duration,
}

impl RemoteOptions {
    /// The usual ones, for a store of this name.
    pub fn new(name: impl Into<String>) -> RemoteOptions {
        RemoteOptions { name: name.into(), patience: Duration::from_secs(30) }
    }
}

/// Begins one more life in the store that `service` stands for. It ends when it is fenced, whatever becomes of this process.
///
/// # Errors
/// `Io`: the store cannot be reached. `Full`: it has nothing to grant. What the store says.
pub async fn join(handle: &Handle, service: Rc<dyn FileService>, options: RemoteOptions) -> Result<Store> {
    let deadline = handle.now() + options.patience;
    loop {
        let session = Session::join(handle, service.clone(), options.clone(), deadline).await?;
        match session.entered(deadline).await {
            Ok(_) => return Ok(Store::new(Rc::new(Remote::new(session)))),
            // The store has forgotten the number, because it started anew: another one does as well.
            Err(error) if error.kind == ErrorKind::Fenced && handle.now() < deadline => {}
            Err(error) => return Err(error),
        }
    }
}
