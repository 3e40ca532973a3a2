//! What a manager asks of a server: to have segments and to give them up.
//!
//! **Flow** of an assignment: the volume is made known, so that sessions can be opened the moment the segment is here;
//! what a dead engine had is read once for all segments of it that are asked for together; then they are adopted, a few
//! at a time, and each serves from its record on. Of a release: the engine refuses what comes, lets land what is in
//! flight, and logs it. While what a dead engine had is read and copied, and while those who waited for it come all at
//! once, requests take longer than the disks need: admission learns nothing from that.
//!
//! **Invariant.** An order is taken only from the newest manager that this life has heard: one under a lower term may have
//! been on its way since before that one was in charge (docs/SAFETY.md, rule 45). What was begun under it goes on: epochs
//! decide what comes of that.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base::{Bytes, Epoch, Error, Generation, Incarnation, Result, SegmentId, Term, VolumeId};
use engine::ownership::estate::{self, Estate};
use engine::{Engine, SegmentCheckpoint, Tenure};
use files::Store;
use runtime::Handle;
use runtime::sync::join_all;
use wire::{Assignment, Holding, LeftSegment, LocalBoxFuture, SegmentOwner, Source, VolumeDescriptor};

use crate::server::Server;

/// Segments that are taken from estates and begun at the same time: for each, files are made, written and sealed.
const BEGUN_AT_ONCE: usize = 8;
/// For how long admission learns nothing at most, because something is inherited.
const INHERITS_MAX: Duration = Duration::from_secs(60);
/// And for how long afterwards.
const SETTLES: Duration = Duration::from_secs(1);

/// A server whose segments are given to it, as a manager sees it.
pub struct Owner {
    handle: Handle,
    server: Rc<Server<Engine>>,
    store: Store,
    options: engine::Options,
    /// The highest term that somebody has ordered under.
    term: Cell<Term>,
    /// How often something of a dead engine is being read.
    heirs: Cell<u32>,
}

/// Something of a dead engine is being read, until it is dropped.
struct Heir<'a>(&'a Owner);

impl Drop for Heir<'_> {
    fn drop(&mut self) {
        let left = self.0.heirs.get() - 1;
        self.0.heirs.set(left);
        if left == 0 {
            self.0.server.disturb(SETTLES);
        }
    }
}

impl Owner {
    /// The manager's side of `server`, whose engine lives in `store` and was opened with `options`.
    pub fn new(handle: &Handle, server: Rc<Server<Engine>>, store: &Store, options: engine::Options) -> Rc<Owner> {
        let term = Cell::new(Term::default());
        Rc::new(Owner { handle: handle.clone(), server, store: store.clone(), options, term, heirs: Cell::new(0) })
    }

    fn begin_to_inherit(&self) -> Heir<'_> {
        self.heirs.set(self.heirs.get() + 1);
        self.server.disturb(INHERITS_MAX);
        Heir(self)
    }

    /// The term that the newest order was taken under; 0 before the first.
    pub fn term(&self) -> Term {
        self.term.get()
    }

    /// Takes an order under `term`, unless a newer manager has ordered something here.
    fn check_term(&self, term: Term) -> Result<()> {
        let newest = self.term.get();
        if term < newest && !base::seeded::is_on("old-manager-obeyed") {
            let engine = self.store.incarnation();
            return Err(Error::fenced(format!(
                "an order under term {term} came to engine {engine} after one under {newest}, which is newer: whoever gave \
                 it is in charge no more"
            )));
        }
        self.term.set(term);
        Ok(())
    }

    fn engine(&self) -> &Engine {
        self.server.backend()
    }

    async fn assign_one(&self, assignment: &Assignment, estates: &BTreeMap<Incarnation, Estate>) -> Result<()> {
        let Assignment { volume, segment, epoch, source } = assignment;
        let tenure = Tenure { epoch: *epoch, generation: self.server.on_volume(volume).await };
        if let Some(held) = self.engine().tenure(*segment).filter(|held| held.epoch == *epoch) {
            return self.record(volume.id, held, tenure.generation).await;
        }
        match source {
            Source::Nobody => self.engine().create_segment(*segment, tenure).await,
            Source::Left(left) => {
                let what = || Error::invalid(format!("what was left of {segment} makes no sense: upgrade this server"));
                let content = SegmentCheckpoint::decode(&left.content).filter(|content| content.segment == *segment);
                self.engine().adopt(left.incarnation, content.ok_or_else(what)?, tenure).await
            }
            Source::Estate(dead) => {
                let estate = estates.get(dead).ok_or_else(|| Error::internal("an estate was not opened"))?;
                let left = estate.take(*segment).await?;
                self.engine().adopt(*dead, left, tenure).await
            }
        }
    }

    /// Has the log know of an attachment, if it does not.
    async fn record(&self, volume: VolumeId, held: Tenure, generation: Generation) -> Result<()> {
        match held.generation < generation {
            true => self.engine().record_attachment(volume, generation).await,
            false => Ok(()),
        }
    }

    fn check_held(&self, segment: SegmentId, epoch: Epoch) -> Result<()> {
        match self.engine().tenure(segment) {
            Some(held) if held.epoch == epoch => Ok(()),
            _ => Err(Error::moved(format!("{segment} is not here under {epoch}"))),
        }
    }

    /// Opens what is needed of each dead engine.
    async fn estates(&self, assignments: &[Assignment]) -> Result<BTreeMap<Incarnation, Estate>> {
        let mut wanted: BTreeMap<Incarnation, BTreeSet<SegmentId>> = BTreeMap::new();
        for assignment in assignments {
            let is_here = self.engine().tenure(assignment.segment).is_some();
            if let Source::Estate(dead) = assignment.source
                && !is_here
            {
                wanted.entry(dead).or_default().insert(assignment.segment);
            }
        }
        let mut estates = BTreeMap::new();
        for (dead, segments) in wanted {
            let estate = Estate::open_sealed(&self.handle, &self.store, dead, &self.options, &segments).await?;
            estates.insert(dead, estate);
        }
        Ok(estates)
    }
}

impl SegmentOwner for Owner {
    fn assign(&self, term: Term, assignments: Vec<Assignment>) -> LocalBoxFuture<'_, Vec<Result<()>>> {
        Box::pin(async move {
            let all = |error: Error| assignments.iter().map(|_| Err(error.clone())).collect();
            if let Err(error) = self.check_term(term) {
                return all(error);
            }
            let is_of_dead = |assignment: &Assignment| matches!(assignment.source, Source::Estate(_));
            let _heir = assignments.iter().any(is_of_dead).then(|| self.begin_to_inherit());
            let estates = match self.estates(&assignments).await {
                Ok(estates) => estates,
                Err(error) => return all(error),
            };
            let mut outcomes = Vec::with_capacity(assignments.len());
            for some in assignments.chunks(BEGUN_AT_ONCE) {
                let begun = some.iter().map(|assignment| self.assign_one(assignment, &estates));
                outcomes.extend(join_all(begun).await);
            }
            outcomes
        })
    }

    fn refuse(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check_term(term)?;
            self.engine().refuse(segment, epoch)
        })
    }

    fn release(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<LeftSegment>> {
        Box::pin(async move {
            self.check_term(term)?;
            let left = self.engine().release(segment, epoch).await?;
            Ok(LeftSegment { incarnation: self.store.incarnation(), content: Bytes::from(left.encode()) })
        })
    }

    fn held(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Option<Epoch>>> {
        let held = self.engine().tenure(segment).map(|held| held.epoch);
        Box::pin(std::future::ready(Ok(held)))
    }

    fn released(&self) -> LocalBoxFuture<'_, Result<Vec<(SegmentId, Epoch)>>> {
        let released = self.engine().released();
        Box::pin(std::future::ready(Ok(released)))
    }

    fn forget_release(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check_term(term)?;
            self.engine().forget_release(segment, epoch);
            Ok(())
        })
    }

    fn recover(&self, term: Term, dead: Incarnation) -> LocalBoxFuture<'_, Result<Vec<Holding>>> {
        Box::pin(async move {
            self.check_term(term)?;
            let _heir = self.begin_to_inherit();
            let estate = Estate::open(&self.handle, &self.store, dead, &self.options).await?;
            estate.seal().await?;
            let holdings = estate.holdings().into_iter().map(|(segment, holding)| {
                let (Tenure { epoch, generation }, is_released) = match holding {
                    estate::Holding::Owned(tenure) => (tenure, false),
                    estate::Holding::Released(tenure) => (tenure, true),
                };
                Holding { segment, epoch, generation, is_released }
            });
            Ok(holdings.collect())
        })
    }

    fn begin_attachment(
        &self,
        term: Term,
        volume: VolumeDescriptor,
        segment: SegmentId,
        epoch: Epoch,
    ) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check_term(term)?;
            self.check_held(segment, epoch)?;
            let known = self.server.on_volume(&volume).await;
            if known > volume.generation {
                let (volume, theirs) = (volume.id, volume.generation);
                return Err(Error::fenced(format!("{volume} is attached under {known}, which is newer than {theirs}")));
            }
            if let Some(held) = self.engine().tenure(segment) {
                self.record(volume.id, held, volume.generation).await?;
            }
            // It may have left meanwhile, without that.
            self.check_held(segment, epoch)
        })
    }

    fn drop_segment(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check_term(term)?;
            self.server.on_dropped(segment.volume).await;
            self.engine().drop_segment(segment, epoch).await
        })
    }
}

#[cfg(test)]
mod tests;
