//! Reads, and what is asked of allocation: pieces of logs and of the owner, put together.

use std::ops::Range;
use std::rc::Rc;

use base::levels::Level;
use base::{AllocationExtent, Error, Passage, ReadPart};
use policies::forwarding::{Content, Part, Place};
use runtime::sync::join_all;
use wire::{Answer, Reply, Target};

use super::super::logs::Trouble;
use super::Forwarded;

impl Forwarded {
    /// A read of a client.
    pub(in crate::forwarding) async fn read(
        self: Rc<Self>,
        target: Target,
        offset: u64,
        len: u64,
    ) -> Answer<Vec<ReadPart>> {
        loop {
            self.check()?;
            let parts = self.find(target.segment.index, offset..offset + len);
            if let [Part { place: None, .. }] = parts.as_slice() {
                return self.service().read(target, offset, len).await;
            }
            let reads = parts.iter().map(|part| self.read_part(target, part));
            let (mut read, mut passage) = (Vec::new(), Passage::default());
            let mut problem = None;
            for answer in join_all(reads).await {
                let reply = answer?;
                if reply.passage.total_ns() > passage.total_ns() {
                    passage = reply.passage;
                }
                match reply.result {
                    Ok(mut parts) => read.append(&mut parts),
                    Err(error) => problem = Some(error),
                }
            }
            // What was merged meanwhile may have been written over in its log.
            let is_there = |part: &Part| match part.place {
                Some(place) => self.with(target.segment.index, |known| known.index.watermark() < place.serial),
                None => true,
            };
            if !parts.iter().all(is_there) {
                self.counted.borrow_mut().repeated_reads += 1;
                continue;
            }
            let result = problem.map_or(Ok(read), Err);
            return Ok(Reply { epoch: target.epoch, result, passage });
        }
    }

    fn find(&self, segment: u32, range: Range<u64>) -> Vec<Part> {
        match self.segments.borrow().get(&segment) {
            Some(known) if !known.index.is_empty() => known.index.find(range),
            _ => vec![Part { range, place: None }],
        }
    }

    async fn read_part(&self, target: Target, part: &Part) -> Answer<Vec<ReadPart>> {
        let len = part.range.end - part.range.start;
        let Some(place) = part.place else { return self.service().read(target, part.range.start, len).await };
        let (parts, passage) = match place.content {
            Content::Zeros(_) => (Ok(vec![ReadPart::Zeros(len)]), Passage::default()),
            Content::Data(at) => match self.read_log(place, at, len, target.level).await {
                Ok((parts, passage)) => (Ok(parts), passage),
                Err(Trouble::Refused(error)) => (Err(error), Passage::default()),
                Err(Trouble::Lost(lost)) => return Err(self.lose(lost.message)),
            },
        };
        Ok(Reply { epoch: target.epoch, result: parts, passage })
    }

    pub(super) async fn read_log(
        &self,
        place: Place,
        at: u64,
        len: u64,
        level: Level,
    ) -> Result<(Vec<ReadPart>, Passage), Trouble> {
        let Some(logs) = self.opened() else {
            return Err(Trouble::Refused(Error::internal("something is in a log, and there are none")));
        };
        self.counted.borrow_mut().log_reads += 1;
        logs.read(place.log, at, len, level).await
    }

    /// What a client asks of allocation.
    pub(in crate::forwarding) async fn allocation(
        self: Rc<Self>,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Answer<Vec<AllocationExtent>> {
        self.check()?;
        let mut extents: Vec<AllocationExtent> = Vec::new();
        let mut passage = Passage::default();
        for part in self.find(target.segment.index, offset..offset + len) {
            if extents.len() >= extents_max.max(1) {
                break;
            }
            let len = part.range.end - part.range.start;
            let Some(place) = part.place else {
                let most = extents_max.saturating_sub(extents.len()).max(1);
                let reply = self.service().allocation(target, part.range.start, len, most).await?;
                passage.absorb(&reply.passage);
                let mut more = match reply.result {
                    Ok(more) => more,
                    Err(error) => return Ok(Reply { epoch: target.epoch, result: Err(error), passage }),
                };
                let is_all = more.iter().map(|extent| extent.len).sum::<u64>() >= len;
                extents.append(&mut more);
                if !is_all {
                    break;
                }
                continue;
            };
            extents.push(AllocationExtent { len, allocated: matches!(place.content, Content::Data(_)) });
        }
        Ok(Reply { epoch: target.epoch, result: Ok(extents), passage })
    }
}
