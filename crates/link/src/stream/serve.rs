//! What a peer asks, done: each request goes to the service that it is for, unless its session is that of another
//! connection.

use base::{Epoch, Error, Passage, Result};
use wire::frame::{Request, Value};
use wire::{Answer, Reply, SessionId};

use super::live::Live;

/// Does what `request` asks. The connection has seen to it that this end has the service.
pub(super) async fn serve(live: &Live, request: Request) -> Reply<Value> {
    let epoch = request.epoch();
    if let Some(session) = request.session().filter(|session| !live.sessions.borrow().contains(session)) {
        return refused(epoch, another_connection(session));
    }
    let done = match request {
        Request::Attach { .. }
        | Request::Detach { .. }
        | Request::Read { .. }
        | Request::Write { .. }
        | Request::Discard { .. }
        | Request::Flush { .. }
        | Request::Allocation { .. } => block(live, request).await,
        Request::Resolve { .. }
        | Request::Describe { .. }
        | Request::List
        | Request::Take { .. }
        | Request::GiveBack { .. } => directory(live, request).await.map(|value| reply(epoch, value)),
        Request::DropVolume { .. } | Request::BeginScrub | Request::SetLevels(_) | Request::SetProvisioned { .. } => {
            owner(live, request).await.map(|value| reply(epoch, value))
        }
        Request::Release { .. } | Request::Users { .. } => user(live, request).await.map(|value| reply(epoch, value)),
    };
    done.unwrap_or_else(|| refused(epoch, Error::internal("nobody here does that")))
}

async fn block(live: &Live, request: Request) -> Option<Reply<Value>> {
    let block = live.services.block.clone()?;
    Some(match request {
        Request::Attach { volume, generation } => {
            let attached = block.attach(volume, generation).await;
            if let Ok(attachment) = &attached {
                if live.has_ended() {
                    // Whoever asked will never hear of it.
                    let ended = block.detach(attachment.session).await;
                    return Some(reply(attachment.epoch, ended.map(|()| Value::Done)));
                }
                live.sessions.borrow_mut().insert(attachment.session);
            }
            let epoch = attached.as_ref().map_or(Epoch::default(), |attachment| attachment.epoch);
            reply(epoch, attached.map(Value::Attached))
        }
        Request::Detach { session } => {
            let ended = block.detach(session).await;
            live.sessions.borrow_mut().remove(&session);
            reply(Epoch::default(), ended.map(|()| Value::Done))
        }
        Request::Read { target, offset, len } => answered(block.read(target, offset, len).await, Value::Parts),
        Request::Write { target, offset, data, checksums, stamp } => {
            answered(block.write(target, offset, data, checksums, stamp).await, done)
        }
        Request::Discard { target, offset, len, stamp } => {
            answered(block.discard(target, offset, len, stamp).await, done)
        }
        Request::Flush { target } => answered(block.flush(target).await, done),
        Request::Allocation { target, offset, len, extents_max } => {
            answered(block.allocation(target, offset, len, extents_max as usize).await, Value::Extents)
        }
        _ => return None,
    })
}

async fn directory(live: &Live, request: Request) -> Option<Result<Value>> {
    let directory = live.services.directory.clone()?;
    let volume = |volume| Value::Volume(Box::new(volume));
    Some(match request {
        Request::Resolve { name } => directory.resolve(&name).await.map(volume),
        Request::Describe { volume: id } => directory.describe(id).await.map(volume),
        Request::List => directory.list().await.map(Value::Names),
        Request::Take { volume: id } => directory.attach(id).await.map(volume),
        Request::GiveBack { volume: id, generation } => directory.detach(id, generation).await.map(done),
        _ => return None,
    })
}

async fn owner(live: &Live, request: Request) -> Option<Result<Value>> {
    let owner = live.services.owner.clone()?;
    Some(match request {
        Request::DropVolume { volume } => owner.drop_volume(volume).await.map(done),
        Request::BeginScrub => owner.begin_scrub().await.map(done),
        Request::SetLevels(volume) => {
            owner.set_levels(&volume);
            Ok(Value::Done)
        }
        Request::SetProvisioned { bytes } => {
            owner.set_provisioned(bytes);
            Ok(Value::Done)
        }
        _ => return None,
    })
}

async fn user(live: &Live, request: Request) -> Option<Result<Value>> {
    let user = live.services.user.clone()?;
    Some(match request {
        Request::Release { volume } => {
            user.release(volume).await;
            Ok(Value::Done)
        }
        Request::Users { volume } => Ok(Value::Count(user.users(volume) as u64)),
        _ => return None,
    })
}

fn done((): ()) -> Value {
    Value::Done
}

fn reply(epoch: Epoch, result: Result<Value>) -> Reply<Value> {
    Reply { epoch, result, passage: Passage::default() }
}

fn refused(epoch: Epoch, error: Error) -> Reply<Value> {
    reply(epoch, Err(error))
}

/// What the owner answered.
fn answered<T>(answer: Answer<T>, value: impl FnOnce(T) -> Value) -> Reply<Value> {
    match answer {
        Ok(Reply { epoch, result, passage }) => Reply { epoch, result: result.map(value), passage },
        Err(lost) => reply(Epoch::default(), Ok(Value::Lost(lost.message))),
    }
}

fn another_connection(session: SessionId) -> Error {
    Error::fenced(format!("{session} was not opened over this connection, or has ended: attach again"))
}
