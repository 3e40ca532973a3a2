//! An engine and a manager in one, which answer what they are asked for and remember it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{Bytes, Epoch, Error, Generation, Incarnation, Result, SegmentId, Term, VolumeId};
use runtime::Handle;
use wire::{
    Assignment, EngineRegistry, Holding, LeftSegment, LocalBoxFuture, Located, Registered, SegmentDirectory,
    SegmentOwner, Source, VolumeDescriptor,
};

use crate::stream::Services;

pub const ENGINE: Incarnation = Incarnation(7);
pub const EPOCH: Epoch = Epoch(9);

/// See the module.
pub struct Engine {
    handle: Handle,
    /// What was asked.
    pub log: RefCell<Vec<String>>,
    pub takes: Cell<Duration>,
    /// How many segments a dead engine had, and this one has released.
    pub segments: Cell<u32>,
    /// How many bytes it takes to say what was left of a segment.
    pub left_len: Cell<usize>,
    pub in_flight: Cell<usize>,
}

/// The segment of this number among many.
pub fn segment(number: u32) -> SegmentId {
    SegmentId { volume: VolumeId(1 + u64::from(number / 1000)), index: number % 1000 }
}

/// What was left of a segment that takes so many bytes to say.
pub fn content(segment: SegmentId, len: usize) -> Bytes {
    Bytes::from((0..len).map(|at| (at as u32 * 31 + segment.index) as u8).collect::<Vec<u8>>())
}

pub fn holding(number: u32) -> Holding {
    let generation = Generation(u64::from(number) + 2);
    Holding { segment: segment(number), epoch: EPOCH, generation, is_released: number.is_multiple_of(3) }
}

impl Engine {
    pub fn new(handle: &Handle) -> Rc<Engine> {
        Rc::new(Engine {
            handle: handle.clone(),
            log: RefCell::default(),
            takes: Cell::new(Duration::from_micros(20)),
            segments: Cell::new(3),
            left_len: Cell::new(100),
            in_flight: Cell::new(0),
        })
    }

    /// Everything that it does, and what another one does beside it.
    pub fn and(self: &Rc<Self>, others: Services) -> Services {
        Services {
            places: Some(self.clone()),
            registry: Some(self.clone()),
            segments: Some((ENGINE, self.clone())),
            ..others
        }
    }

    /// Notes what is asked, and takes its time.
    async fn work(&self, text: String) {
        self.log.borrow_mut().push(text);
        self.in_flight.set(self.in_flight.get() + 1);
        self.handle.sleep(self.takes.get()).await;
        self.in_flight.set(self.in_flight.get() - 1);
    }

    /// Does what is asked, unless it is of a segment that it does not have.
    fn done(&self, text: String, segment: SegmentId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.work(text).await;
            match segment.index {
                999 => Err(Error::moved(format!("{segment} is not here"))),
                _ => Ok(()),
            }
        })
    }
}

impl SegmentOwner for Engine {
    fn assign(&self, term: Term, assignments: Vec<Assignment>) -> LocalBoxFuture<'_, Vec<Result<()>>> {
        Box::pin(async move {
            self.work(format!("assign {term} {}", assignments.len())).await;
            let outcome = |assignment: &Assignment| {
                let Assignment { segment, epoch, source, volume } = assignment;
                let source = match source {
                    Source::Nobody => "nobody".to_owned(),
                    Source::Estate(dead) => format!("dead {dead}"),
                    Source::Left(left) => {
                        assert_eq!(
                            left.content,
                            content(*segment, left.content.len()),
                            "wrong bytes reached the engine"
                        );
                        format!("{} left {} bytes", left.incarnation, left.content.len())
                    }
                };
                if assignments.len() < 10 {
                    self.log.borrow_mut().push(format!("{segment} {epoch} {} {source}", volume.generation));
                }
                match segment.index {
                    998 => Err(Error::conflict(format!("{segment} was refused here"))),
                    _ => Ok(()),
                }
            };
            assignments.iter().map(outcome).collect()
        })
    }

    fn refuse(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        self.done(format!("refuse {term} {segment} {epoch}"), segment)
    }

    fn release(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<LeftSegment>> {
        Box::pin(async move {
            self.done(format!("release {term} {segment} {epoch}"), segment).await?;
            Ok(LeftSegment { incarnation: ENGINE, content: content(segment, self.left_len.get()) })
        })
    }

    fn held(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Option<Epoch>>> {
        Box::pin(async move {
            self.work(format!("held {segment}")).await;
            Ok((segment.index < 900).then_some(Epoch(u64::from(segment.index))))
        })
    }

    fn released(&self) -> LocalBoxFuture<'_, Result<Vec<(SegmentId, Epoch)>>> {
        Box::pin(async move {
            self.work("released".into()).await;
            // In no order: whoever carries it gives it one.
            Ok((0..self.segments.get()).rev().map(|number| (segment(number), Epoch(number.into()))).collect())
        })
    }

    fn forget_release(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        self.done(format!("forget {term} {segment} {epoch}"), segment)
    }

    fn recover(&self, term: Term, dead: Incarnation) -> LocalBoxFuture<'_, Result<Vec<Holding>>> {
        Box::pin(async move {
            self.work(format!("recover {term} {dead}")).await;
            Ok((0..self.segments.get()).map(holding).collect())
        })
    }

    fn begin_attachment(
        &self,
        term: Term,
        volume: VolumeDescriptor,
        segment: SegmentId,
        epoch: Epoch,
    ) -> LocalBoxFuture<'_, Result<()>> {
        let (name, generation) = (volume.name, volume.generation);
        self.done(format!("attach {term} {name} {generation} {segment} {epoch}"), segment)
    }

    fn drop_segment(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        self.done(format!("drop {term} {segment} {epoch}"), segment)
    }
}

impl SegmentDirectory for Engine {
    fn locate(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Located>> {
        Box::pin(async move {
            self.work(format!("locate {segment}")).await;
            match segment.index {
                999 => Err(Error::retry(format!("{segment} is on its way"))),
                _ => Ok(Located { owner: ENGINE, address: "left.example:7000".into(), epoch: EPOCH }),
            }
        })
    }
}

impl EngineRegistry for Engine {
    fn register<'a>(
        &'a self,
        engine: Incarnation,
        server: &'a str,
        address: &'a str,
    ) -> LocalBoxFuture<'a, Result<Registered>> {
        Box::pin(async move {
            self.work(format!("register {engine} {server} {address}")).await;
            match engine {
                ENGINE => Ok(Registered { lease_ms: 2000, is_in_charge: true }),
                _ => Err(Error::fenced(format!("{engine} was declared dead: it must start as another one"))),
            }
        })
    }

    fn missing(&self, engines: Vec<Incarnation>) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>> {
        Box::pin(async move {
            self.work(format!("missing {}", engines.len())).await;
            Ok(engines.into_iter().filter(|engine| engine.0.is_multiple_of(2)).collect())
        })
    }
}
