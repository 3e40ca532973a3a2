//! What people ask of a manager of several servers: the calls of [`crate::service`].

use std::rc::Rc;

use std::time::Duration;

use base::{Error, Result, SegmentId};
use runtime::Task;
use runtime::sync::first;
use wire::lease::{Revision, Snapshot};

use super::{API, ClusterManager, PARTITION};
use crate::charge;
use crate::service::{Call, InCharge, Reply, Request, serve_calls};

/// How long the store of leases may take to say who is in charge.
const LEASES_PATIENCE: Duration = Duration::from_secs(2);

impl ClusterManager {
    /// Answers one request.
    ///
    /// # Errors
    /// Those of each request; `Moved`: another manager is in charge.
    pub async fn handle(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Create(wanted) => self.create(wanted).await.map(|(view, existed)| Reply::Created(view, existed)),
            Request::List => self.volumes().await.map(Reply::Volumes),
            Request::Show(name) => self.show(&name).await.map(Reply::Volume),
            Request::Delete { name, force } => {
                self.delete(&name, force).await.map(|(view, is_done)| Reply::Deleted(view, is_done))
            }
            Request::Set { name, change } => self.set(&name, change).await.map(Reply::Volume),
            Request::Explain(name) => {
                let view = self.show(&name).await?;
                let explained = self.explained(view.row.id).await?;
                Ok(Reply::Explained(view, Box::new(explained)))
            }
            Request::Scrub => {
                let living = self.look(|owners, _| owners.living().map(|(engine, _)| engine).collect())?;
                self.engines.begin_scrub(living).await?;
                self.snapshot().await.map(|snapshot| Reply::Snapshot(Box::new(snapshot)))
            }
            Request::Observe => self.snapshot().await.map(|snapshot| Reply::Snapshot(Box::new(snapshot))),
            Request::Status => {
                let (snapshot, volumes) = self.status().await?;
                Ok(Reply::Status(Box::new(snapshot), volumes))
            }
            Request::Drain { server, is_drained } => self.drain(&server, is_drained).await.map(|()| Reply::Done),
            Request::MoveSegment { volume, index, to } => {
                self.move_segment(&volume, index, to.as_deref()).await.map(|()| Reply::Done)
            }
            Request::Devices | Request::AttachDevice { .. } | Request::DetachDevice { .. } => Err(Error::invalid(
                "with several servers, disks of virtual machines are an agent's: start it with levee agent --vhost-user \
                 VOLUME=PATH",
            )),
            Request::InCharge => Ok(Reply::InCharge(self.who_is_in_charge().await)),
            Request::Health => Ok(Reply::Healthy),
        }
    }

    /// Answers the calls of a mailbox until its senders are gone.
    pub fn serve(self: &Rc<Self>, calls: async_channel::Receiver<Call>) -> Task<()> {
        let this = self.clone();
        serve_calls(&self.handle, calls, move |request| {
            let manager = this.clone();
            Box::pin(async move { manager.handle(request).await })
        })
    }

    /// Who is in charge, as the store of leases has it.
    async fn who_is_in_charge(&self) -> InCharge {
        if self.is_in_charge() {
            return InCharge::Here;
        }
        let key = charge::key(PARTITION);
        let asking = first(self.leases.watch(&key, Revision(0)), self.handle.sleep(LEASES_PATIENCE));
        let Ok(Ok(Snapshot { entries, .. })) = asking.await else { return InCharge::Nobody };
        let holder = entries.into_iter().find(|entry| entry.key == key).map(|entry| entry.value);
        let address = holder.and_then(|value| String::from_utf8(value).ok()?.rsplit_once(API)?.1.parse().ok());
        address.map_or(InCharge::Nobody, InCharge::At)
    }

    async fn drain(&self, server: &str, is_drained: bool) -> Result<()> {
        self.look(|owners, _| check_server(owners, server))??;
        self.keeper.decide(|manager, now, random| manager.drain(now, random, server, is_drained)).await?
    }

    /// Has a segment moved to a server, or to wherever there is room.
    async fn move_segment(&self, volume: &str, index: u32, to_server: Option<&str>) -> Result<()> {
        let (segment, to) = self.look(|owners, volumes| {
            let row = volumes.find(volume)?;
            let segments = row.descriptor().segments;
            if index >= segments {
                return Err(Error::invalid(format!("{volume:?} has the segments 0 to {}", segments - 1)));
            }
            if let Some(server) = to_server {
                check_server(owners, server)?;
            }
            let of_server = owners.living().filter(|(_, server)| Some(*server) == to_server);
            let least = of_server.min_by_key(|(engine, _)| (owners.load(*engine), *engine)).map(|(engine, _)| engine);
            Ok((SegmentId { volume: row.id, index }, least))
        })??;
        let server = to_server.map(str::to_owned);
        let decided = self.keeper.decide(move |manager, now, random| {
            let is_there = to.is_some() && manager.table().segment(segment).and_then(|row| row.owner_to_be()) == to;
            match server.filter(|server| !is_there && !manager.has_room(server)) {
                Some(server) => Err(Error::conflict(format!(
                    "{server:?} is drained, or has its share of the segments: what is more would be moved away again"
                ))),
                None => manager.move_segment(now, random, segment, to),
            }
        });
        decided.await?
    }
}

/// # Errors
/// `NotFound`: no server of this name lives.
fn check_server(owners: &policies::ownership::Table, server: &str) -> Result<()> {
    match owners.living().any(|(_, name)| name == server) {
        true => Ok(()),
        false => Err(Error::not_found(format!("there is no server {server:?} in touch: see `levee server list`"))),
    }
}
