//! The near end as an owner of segments. Its sessions are named anew here: the owner may give out a number again in its
//! next life, and a request must never reach a session that it was not made in.

use std::rc::Rc;

use base::{AllocationExtent, Bytes, Error, Generation, Passage, ReadPart, Result, VolumeId, WriteStamp};
use wire::frame::{Request, Value};
use wire::{Answer, Attachment, BlockService, LinkLost, LocalBoxFuture, Reply, SessionId, Target};

use super::super::live::Live;
use super::{Inner, NearEnd, other};

impl Inner {
    /// A session was opened over this connection: what it is called here.
    fn begin(&self, live: &Rc<Live>, there: SessionId) -> SessionId {
        let session = SessionId(self.last_session.get() + 1);
        self.last_session.set(session.0);
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(|_, (live, _)| !live.has_ended());
        sessions.insert(session, (live.clone(), there));
        session
    }

    /// Where a session was opened, if that connection is there still.
    fn session(&self, session: SessionId) -> Option<(Rc<Live>, SessionId)> {
        self.sessions.borrow().get(&session).filter(|(live, _)| !live.has_ended()).cloned()
    }

    async fn attach(self: Rc<Self>, volume: VolumeId, generation: Generation) -> Result<Attachment> {
        let live = self.live().await?;
        match live.ask(Request::Attach { volume, generation }).await {
            Ok(Reply { result: Ok(Value::Attached(Attachment { session, epoch })), .. }) => {
                Ok(Attachment { session: self.begin(&live, session), epoch })
            }
            Ok(Reply { result: Ok(value), .. }) => other(&value),
            Ok(Reply { result: Err(error), .. }) => Err(error),
            Err(LinkLost { message }) => Err(Error::io(message)),
        }
    }

    async fn detach(self: Rc<Self>, session: SessionId) -> Result<()> {
        let found = self.sessions.borrow_mut().remove(&session);
        // A session ends with its connection.
        let Some((live, there)) = found.filter(|(live, _)| !live.has_ended()) else { return Ok(()) };
        match live.ask(Request::Detach { session: there }).await {
            Ok(Reply { result, .. }) => result.map(drop),
            Err(LinkLost { message }) => Err(Error::io(message)),
        }
    }

    /// Makes a request in the session of `target`, and takes from the answer what `value` says.
    async fn request<T>(
        self: Rc<Self>,
        target: Target,
        request: impl FnOnce(Target) -> Request,
        value: impl FnOnce(Value) -> T,
    ) -> Answer<T> {
        let Some((live, session)) = self.session(target.session) else {
            // It was not sent: that is no doubt about its outcome.
            let result = Err(Error::fenced(format!("{} has ended with its connection: attach again", target.session)));
            return Ok(Reply { epoch: target.epoch, result, passage: Passage::default() });
        };
        let reply = live.ask(request(Target { session, ..target })).await?;
        match reply {
            Reply { result: Ok(Value::Lost(message)), .. } => Err(LinkLost { message }),
            Reply { epoch, result, mut passage } => {
                passage.crossed = true;
                Ok(Reply { epoch, result: result.map(value), passage })
            }
        }
    }
}

fn done(value: Value) {
    match value {
        Value::Done => {}
        value => other(&value),
    }
}

impl BlockService for NearEnd {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(self.0.clone().attach(volume, generation))
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.0.clone().detach(session))
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        let read = move |target| Request::Read { target, offset, len };
        Box::pin(self.0.clone().request(target, read, |value| match value {
            Value::Parts(parts) => parts,
            value => other(&value),
        }))
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        let write = move |target| Request::Write { target, offset, data, checksums, stamp };
        Box::pin(self.0.clone().request(target, write, done))
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        let discard = move |target| Request::Discard { target, offset, len, stamp };
        Box::pin(self.0.clone().request(target, discard, done))
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(self.0.clone().request(target, |target| Request::Flush { target }, done))
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        let extents_max = u32::try_from(extents_max).unwrap_or(u32::MAX);
        let allocation = move |target| Request::Allocation { target, offset, len, extents_max };
        Box::pin(self.0.clone().request(target, allocation, |value| match value {
            Value::Extents(extents) => extents,
            value => other(&value),
        }))
    }
}
