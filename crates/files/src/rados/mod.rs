//! A life in a store that is a pool of objects: Ceph RADOS.
//!
//! **Intuition.** [`shared`](crate::shared) lets several writers have one store, because one process sees all that they do.
//! Here nobody does: each writer is a process that changes objects of a pool by itself, and the pool keeps copies, mends and
//! scrubs them. What keeps writers apart is that each change of an object is done as a whole, and only under conditions
//! ([`objects`]). So a writer that was declared dead is kept out by the objects themselves, whatever it still has on its way.
//!
//! **Names.** A *life* is one writer, with a number. Its *object* has a record of each of its files, and whether it is
//! *fenced* (`directory`). The *head* has all lives and what each may set aside (`head`). A file is one object for each 64 MiB,
//! its *parts* (`contents`), in the one pool or in another one for data files (`pools`). `life` does with them what the file
//! layer is asked for. `records` has the names of objects and what is in them, `known` what one need not ask, and `pace` how
//! fast parts answer.
//!
//! **Invariants** (rules 58 to 61 of docs/SAFETY.md, and those of [`shared`](crate::shared) that are not said otherwise).
//! - A file has its parts, empty and open, before it has a record, and a record before it has bytes. The record is made only
//!   while the life is not fenced, a part never later, and each append is done only while its part is there and open. A fence
//!   first ends the life's object, then the parts of each file that is not sealed; when it returns, nothing of that life is
//!   confirmed any more. (Parts that the first append makes would not do: of a file that nobody has appended to yet, and that
//!   was removed after the fence, they could be made again.)
//! - An append says where its bytes go, and is never done twice. One without an answer may be done, now or later: its file
//!   takes no more.
//! - A number is given to one life only: whoever makes the life's object has it, and it is in the head before anybody hears of
//!   it.
//! - What a record says changes under the condition that it is what was read: of two that seal a file differently, one fails.
//! - A file that is removed is marked first, then its bytes go, then its record: what a removal that was interrupted left is
//!   found in the record. Of one that could not be made the mark stays, because its record may still be on its way. Of a creation that was interrupted nothing is left but parts without bytes.
//! - Copies and scrubbing are the pool's: a file has one copy here.
//!
//! **What cannot be asked of a pool**: to change a file of another life only while one's own goes on, since those are two
//! objects. A life looks whether it goes on before it seals or removes what another one made. It may be fenced just after
//! that; what it does then is harmless, because it was decided in its log before: a file that it removes is one that nothing
//! refers to, whoever goes on from that log, and a length that it chose excludes any other one.
//!
//! **Flow** of an append: the engine, at the call -> a change of the part, under the condition that it is open -> all copies
//! of the pool -> the answer.

mod contents;
mod directory;
mod engine;
mod head;
mod known;
pub mod librados;
mod life;
pub mod objects;
mod pace;
mod pools;
mod records;
pub mod simulated;
mod space;

use std::rc::Rc;

use base::{Error, ErrorKind, GIB, Result};
use runtime::Handle;

use self::engine::Rados;
use self::life::Life;
use self::objects::Failure;
pub use self::pools::StorePools;
use crate::Store;

/// How a store in a pool is used.
#[derive(Clone, Copy, Debug)]
pub struct RadosOptions {
    /// What a life is granted at a time.
    pub grant_bytes: u64,
    /// What only logs and adoption may take ([`Claim`](crate::Claim)); a sixteenth of the store at most.
    pub reserve_bytes: u64,
}

impl Default for RadosOptions {
    fn default() -> Self {
        RadosOptions { grant_bytes: GIB, reserve_bytes: 2 * GIB }
    }
}

/// Begins one more life in the store that is in `pools`, which is made if there is none. It ends when it is fenced, whatever
/// becomes of this process.
///
/// # Errors
/// `Io`: the pool cannot be reached. `Invalid`: the store is of a newer version, or keeps data files in another pool than what
/// is named. `Corrupt`.
pub async fn join(handle: &Handle, pools: impl Into<StorePools>, options: RadosOptions) -> Result<Store> {
    let life = Life::begin(handle, pools.into(), options).await?;
    Ok(Store::new(Rc::new(Rados::new(life))))
}

/// What a failure is to whoever asked for `what`.
fn failed(failure: Failure, what: impl FnOnce() -> String) -> Error {
    match failure {
        Failure::Other(error) => error.context(what()),
        Failure::Exists => Error { kind: ErrorKind::Conflict, message: format!("{}: it is there already", what()) },
        Failure::Absent => Error::not_found(format!("{}: there is no such object", what())),
        Failure::Changed => Error::retry(format!("{}: somebody else was faster", what())),
    }
}
