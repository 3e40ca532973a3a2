//! The near end as whoever tells how it stands: a manager asks an engine or an agent.
//!
//! Of what is longer than a frame the next part is asked for by the last volume of the part before.

use base::limits::VOLUMES_MAX;
use base::{Bytes, Error, Result, VolumeId};
use wire::frame::{Request, Value};
use wire::observe::bytes::{self, NO_VOLUMES};
use wire::observe::{Detail, Explained, Snapshot};
use wire::{LocalBoxFuture, Observer};

use super::{NearEnd, other};

impl NearEnd {
    async fn observed(&self, request: Request) -> Result<Bytes> {
        match self.0.ask_any(request).await? {
            Value::Observed(content) => Ok(content),
            value => other(&value),
        }
    }

    async fn part(&self, after: VolumeId) -> Result<Snapshot> {
        let part = bytes::snapshot(&self.observed(Request::Observe { after }).await?)?;
        match part.traffic.iter().all(|volume| volume.volume > after) {
            true => Ok(part),
            false => Err(Error::io("a process tells again of volumes that it has told of: it has a bug")),
        }
    }
}

impl Observer for NearEnd {
    fn observe(&self, detail: Detail) -> LocalBoxFuture<'_, Result<Snapshot>> {
        Box::pin(async move {
            let from = if detail == Detail::Full { VolumeId::default() } else { NO_VOLUMES };
            let mut all = self.part(from).await?;
            while let Some(last) = all.traffic.last().map(|volume| volume.volume).filter(|_| all.has_more) {
                if all.traffic.len() > VOLUMES_MAX {
                    return Err(Error::io("a process tells of more volumes than there are: it has a bug"));
                }
                let next = self.part(last).await?;
                all.traffic.extend(next.traffic);
                all.has_more = next.has_more;
            }
            Ok(all)
        })
    }

    fn explain(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<Explained>> {
        Box::pin(async move { bytes::explained(&self.observed(Request::Explain { volume }).await?) })
    }
}
