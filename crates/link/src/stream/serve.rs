//! What a peer asks, done: each request goes to the service that it is for, unless its session is that of another
//! connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Bytes, Epoch, Error, Passage, ReadPart, Result, Set};
use runtime::{Class, Handle};
use wire::files::FileAnswer;
use wire::frame::{Request, Value};
use wire::observe::Detail;
use wire::observe::bytes::{self, NO_VOLUMES};
use wire::{Answer, Reply, SessionId};

use super::offer::Offer;

mod segments;

/// What this end does over one connection.
pub(super) struct Duties {
    offer: Rc<Offer>,
    /// The sessions that the peer has opened over it.
    sessions: RefCell<Set<SessionId>>,
    /// The connection has ended: no session is opened over it any more.
    has_ended: Cell<bool>,
}

impl Duties {
    pub(super) fn new(offer: Rc<Offer>) -> Duties {
        Duties { offer, sessions: RefCell::default(), has_ended: Cell::default() }
    }

    /// Does what `request` asks. The connection has seen to it that this end has the service.
    pub(super) async fn serve(&self, request: Request) -> Reply<Value> {
        let epoch = request.epoch();
        if let Some(session) = request.session().filter(|session| !self.sessions.borrow().contains(session)) {
            return refused(epoch, another_connection(session));
        }
        let done = match request {
            Request::Attach { .. }
            | Request::Detach { .. }
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::Discard { .. }
            | Request::Flush { .. }
            | Request::Allocation { .. } => self.block(request).await,
            Request::Resolve { .. }
            | Request::Describe { .. }
            | Request::List
            | Request::Take { .. }
            | Request::GiveBack { .. }
            | Request::TakeLogs { .. } => self.directory(request).await.map(|value| reply(epoch, value)),
            Request::DropVolume { .. }
            | Request::BeginScrub
            | Request::SetLevels(_)
            | Request::SetProvisioned { .. } => self.owner(request).await.map(|value| reply(epoch, value)),
            Request::Release { .. } | Request::Users { .. } | Request::LearnLevels(_) => {
                self.user(request).await.map(|value| reply(epoch, value))
            }
            Request::Join
            | Request::Enter { .. }
            | Request::CreateFile { .. }
            | Request::Append { .. }
            | Request::ReadFile { .. }
            | Request::RepairCopy { .. }
            | Request::CheckHeaders { .. }
            | Request::Seal { .. }
            | Request::DeleteFile { .. }
            | Request::NeedSpace { .. }
            | Request::Fence { .. }
            | Request::FilesOf { .. }
            | Request::FindFile { .. }
            | Request::Lives { .. }
            | Request::FilesOfSegment { .. } => self.files(request).await.map(|value| reply(epoch, value)),
            Request::Grant { .. } | Request::KeepAlive { .. } | Request::Swap { .. } | Request::Watch { .. } => {
                self.lease(request).await.map(|value| reply(epoch, value))
            }
            Request::Observe { .. } | Request::Explain { .. } => {
                self.observer(request).await.map(|value| reply(epoch, value))
            }
            Request::Locate { .. }
            | Request::Register { .. }
            | Request::Missing { .. }
            | Request::Assign { .. }
            | Request::Refuse { .. }
            | Request::ReleaseSegment { .. }
            | Request::Held { .. }
            | Request::Released { .. }
            | Request::ForgetRelease { .. }
            | Request::Recover { .. }
            | Request::BeginAttachment { .. }
            | Request::DropSegment { .. } => self.segments(request).await.map(|value| reply(epoch, value)),
        };
        done.unwrap_or_else(|| refused(epoch, Error::internal("nobody here does that")))
    }

    /// The connection has ended: from here on an attachment that was under way is taken back.
    pub(super) fn end(&self) {
        self.has_ended.set(true);
    }

    /// Ends the sessions that were opened over the connection, which has ended.
    pub(super) async fn close_sessions(&self, handle: &Handle) {
        let sessions = std::mem::take(&mut *self.sessions.borrow_mut());
        let close = |session: SessionId| {
            let block = self.offer.get(|services| services.block.clone())?;
            let close = async move { (session, block.detach(session).await) };
            Some(handle.spawn(Class::Io, "close a session", close))
        };
        // None of them waits for another one's requests.
        let closing: Vec<_> = sessions.into_iter().filter_map(close).collect();
        for task in closing {
            if let (session, Err(error)) = task.await {
                tracing::warn!(%session, %error, "a session could not be ended with its connection; the next one closes it");
            }
        }
    }

    async fn block(&self, request: Request) -> Option<Reply<Value>> {
        let block = self.offer.get(|services| services.block.clone())?;
        Some(match request {
            Request::Attach { volume, generation } => {
                let attached = block.attach(volume, generation).await;
                if let Ok(attachment) = &attached {
                    if self.has_ended.get() {
                        // Whoever asked will never hear of it.
                        let ended = block.detach(attachment.session).await;
                        return Some(reply(attachment.epoch, ended.map(|()| Value::Done)));
                    }
                    self.sessions.borrow_mut().insert(attachment.session);
                }
                let epoch = attached.as_ref().map_or(Epoch::default(), |attachment| attachment.epoch);
                reply(epoch, attached.map(Value::Attached))
            }
            Request::Detach { session } => {
                let ended = block.detach(session).await;
                self.sessions.borrow_mut().remove(&session);
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

    async fn directory(&self, request: Request) -> Option<Result<Value>> {
        let directory = self.offer.get(|services| services.directory.clone())?;
        let volume = |volume| Value::Volume(Box::new(volume));
        Some(match request {
            Request::Resolve { name } => directory.resolve(&name).await.map(volume),
            Request::Describe { volume: id } => directory.describe(id).await.map(volume),
            Request::List => directory.list().await.map(Value::Names),
            Request::Take { volume: id } => directory.attach(id).await.map(volume),
            Request::GiveBack { volume: id, generation } => directory.detach(id, generation).await.map(done),
            Request::TakeLogs { volume: id, generation, make } => {
                directory.take_logs(id, generation, make).await.map(volume)
            }
            _ => return None,
        })
    }

    async fn owner(&self, request: Request) -> Option<Result<Value>> {
        let owner = self.offer.get(|services| services.owner.clone())?;
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

    async fn user(&self, request: Request) -> Option<Result<Value>> {
        let user = self.offer.get(|services| services.user.clone())?;
        Some(match request {
            Request::Release { volume } => {
                user.release(volume).await;
                Ok(Value::Done)
            }
            Request::LearnLevels(volume) => {
                user.learn_levels(&volume);
                Ok(Value::Done)
            }
            Request::Users { volume } => Ok(Value::Count(user.users(volume) as u64)),
            _ => return None,
        })
    }

    async fn files(&self, request: Request) -> Option<Result<Value>> {
        let files = self.offer.get(|services| services.files.clone())?;
        Some(match request {
            Request::Join => told(files.join().await, |(store, incarnation)| Value::Joined(store, incarnation)),
            Request::Enter { store, life } => told(files.enter(store, life).await, Value::Space),
            Request::CreateFile { life, file } => {
                told(files.create(life, file).await, |(file, space)| Value::Created(file, space))
            }
            Request::Append { life, file, offset, data } => told(files.append(life, file, offset, data).await, done),
            Request::ReadFile { life, file, copy, offset, len } => {
                let parts = |data: Bytes| {
                    Value::Parts((!data.is_empty()).then_some(ReadPart::Data(data)).into_iter().collect())
                };
                told(files.read(life, file, copy, offset, len).await, parts)
            }
            Request::RepairCopy { life, file, copy, offset, data } => {
                told(files.repair_copy(life, file, copy, offset, data).await, done)
            }
            Request::CheckHeaders { life, file } => told(files.check_headers(life, file).await, Value::Count),
            Request::Seal { life, file, length } => told(files.seal(life, file, length).await, Value::File),
            Request::DeleteFile { life, file } => told(files.delete(life, file).await, done),
            Request::NeedSpace { life, bytes } => told(files.need_space(life, bytes).await, Value::Space),
            Request::Fence { store, incarnation } => told(files.fence(store, incarnation).await, done),
            Request::FilesOf { store, incarnation, after } => {
                told(files.files_of(store, incarnation, after).await, Value::Files)
            }
            Request::FilesOfSegment { store, segment, after } => {
                told(files.files_of_segment(store, segment, after).await, Value::Files)
            }
            Request::FindFile { store, file } => told(files.find(store, file).await, Value::File),
            Request::Lives { after } => told(files.lives(after).await, Value::Lives),
            _ => return None,
        })
    }
}

/// A store of leases is asked.
impl Duties {
    async fn lease(&self, request: Request) -> Option<Result<Value>> {
        let store = self.offer.get(|services| services.lease.clone())?;
        Some(match request {
            Request::Grant { ttl_ms } => store.grant(ttl_ms).await.map(Value::Lease),
            Request::KeepAlive { lease } => store.keep_alive(lease).await.map(Value::Lease),
            Request::Swap { key, expected, write } => {
                store.compare_and_swap(&key, expected, write).await.map(Value::Swapped)
            }
            Request::Watch { prefix, seen } => store.watch(&prefix, seen).await.map(Value::Snapshot),
            _ => return None,
        })
    }
}

/// Whoever tells of itself is asked.
impl Duties {
    async fn observer(&self, request: Request) -> Option<Result<Value>> {
        let observer = self.offer.get(|services| services.observer.clone())?;
        Some(match request {
            Request::Observe { after } => {
                let detail = if after == NO_VOLUMES { Detail::WithoutVolumes } else { Detail::Full };
                let snapshot = observer.observe(detail).await;
                snapshot.and_then(|snapshot| bytes::part_of(snapshot, after)).map(Value::Observed)
            }
            Request::Explain { volume } => {
                let explained = observer.explain(volume).await;
                explained.and_then(|explained| bytes::of_explained(&explained)).map(Value::Observed)
            }
            _ => return None,
        })
    }
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

/// What a store of files said.
fn told<T>(answer: FileAnswer<T>, value: impl FnOnce(T) -> Value) -> Result<Value> {
    match answer {
        Ok(result) => result.map(value),
        Err(lost) => Ok(Value::Lost(lost.message)),
    }
}

fn another_connection(session: SessionId) -> Error {
    Error::fenced(format!("{session} was not opened over this connection, or has ended: attach again"))
}
