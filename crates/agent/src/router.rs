//! The way to segments that move: a [`BlockService`] in front of as many servers as there are.
//!
//! **Intuition.** Who uses a volume wants its requests done, wherever its segments are at the moment. So a request looks
//! for the owner of its segment, goes there, and if the owner has moved, is dead, or cannot be reached, looks again and
//! goes on. Its client sees a request that took a little longer. What one server is slow with costs the segments of
//! others nothing.
//!
//! **Names.** A *hold* is one attachment of a volume here; to the agent it is a session. Behind it stand *doors*: a
//! session with each owner that was needed so far. A *route* says who has a segment, and under which epoch.
//!
//! **Invariants** (rules 46 and 48 of docs/SAFETY.md).
//! - A request is tried again with the same bytes and the same stamp. At the same owner that is after it was answered, or
//!   after its session, which the request may still be on its way in, was closed by a newer one; at another owner after that
//!   has adopted the segment, and so after what the former one had in flight has landed, or never will.
//! - A reply under an epoch below the one of the route counts for nothing: who gave it may have been followed by others.
//! - All who use an attachment share one router, also from other loops: so what begins after a write was acknowledged goes to
//!   whoever acknowledged it, or to a later owner, and never to a former one that does not know that it is over.
//! - Routes only go forward: one of a lower epoch than is known is not taken.
//! - An attachment ends when an owner says that a newer one is recorded; nothing else ends it.
//! - Nobody waits for longer than the patience; then the request is answered with an error, and its outcome is unknown.
//!
//! **Flow.** of a request: `route (known, or the directory is asked) -> door (open, or a session is opened) -> owner`. After
//! `Moved`: the route is forgotten. After a broken link: the door is. After `Io` nothing is: what the owner stands on has
//! failed, or did not answer in its time, as a pool with too few servers; it may be back, or have another owner. All look
//! again after a pause that grows. The machine of a process that is stopped takes connections, and answers nothing: whoever
//! waits for a door to open asks the directory meanwhile whether somebody else has the segment by now.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{
    AllocationExtent, Bytes, Epoch, Error, ErrorKind, Generation, Incarnation, Instant, Map, Passage, ReadPart, Result,
    SegmentId, Stage, VolumeId, WriteStamp,
};
use policies::slow_requests::Direction;
use runtime::Handle;
use runtime::sync::{Budget, first};
use wire::{
    Answer, Attachment, BlockService, LinkLost, LocalBoxFuture, Located, Reply, SegmentDirectory, SessionId, Target,
};

use crate::slow_engines::{Load, SlowEngines, SlowPart};

/// The way to a server. It goes on with a request that nobody waits for any more, as a stream does.
pub type Connect = Rc<dyn Fn(&Located) -> Rc<dyn BlockService>>;

/// How long an owner may take to open a door before the directory is asked whether it still is the owner, and how long
/// until it is asked again at first; each later pause is longer by a quarter.
const LOOK: Duration = Duration::from_millis(100);
/// The longest of these pauses.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// The longest pause before an owner is asked again that said it could not do it.
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Settings of a router.
#[derive(Clone, Copy, Debug)]
pub struct RouterOptions {
    /// How long a request waits for somebody to have its segment, and to answer.
    pub patience: Duration,
    /// The first pause before a request looks again; each later one is twice as long.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

impl Default for RouterOptions {
    fn default() -> Self {
        RouterOptions {
            patience: Duration::from_secs(60),
            pause: Duration::from_millis(1),
            pause_max: Duration::from_millis(50),
        }
    }
}

/// What happened since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RouterStatistics {
    /// Times that the directory was asked.
    pub located: u64,
    /// Sessions that were opened with owners.
    pub opened: u64,
    /// Times that a request was tried again because its segment had moved.
    pub moved: u64,
    /// Times that one was tried again because a link broke.
    pub broken: u64,
    /// Times that one was tried again because its owner could not do it.
    pub failed: u64,
    /// Replies of former owners that were dropped.
    pub stale: u64,
    /// Requests that found nobody in time who answered, and could do it.
    pub given_up: u64,
}

/// See the module.
pub struct Router {
    handle: Handle,
    directory: Rc<dyn SegmentDirectory>,
    connect: Connect,
    options: RouterOptions,
    holds: RefCell<Map<SessionId, Rc<Hold>>>,
    last: Cell<u64>,
    statistics: Cell<RouterStatistics>,
    slow: SlowEngines,
}

/// One attachment of a volume.
struct Hold {
    volume: VolumeId,
    generation: Generation,
    routes: RefCell<Map<u32, Route>>,
    doors: RefCell<Map<Incarnation, Door>>,
    /// Of each segment one request at a time asks the directory, and of each owner one opens the door: the others find
    /// what it found. Who waits for one owner holds nobody up who wants another one.
    asking: RefCell<Map<u32, Rc<Budget>>>,
    opening: RefCell<Map<Incarnation, Rc<Budget>>>,
    /// A newer attachment is recorded, or it was given back.
    ended: RefCell<Option<Error>>,
}

#[derive(Clone)]
struct Route {
    to: Located,
    /// Whether it is believed: of one that is not, only the epoch counts.
    is_good: bool,
}

/// A session with an owner.
#[derive(Clone)]
struct Door {
    service: Rc<dyn BlockService>,
    session: SessionId,
}

/// Why a request did not come through.
enum Obstacle {
    /// Another way may be found after a pause.
    Passing,
    /// The owner could not do it: it may after a pause.
    Failed(Error),
    /// There is none.
    Final(Error),
}

/// What has come of a request so far.
#[derive(Default)]
struct Tried {
    /// Somebody may have done it, or may do it yet.
    is_in_doubt: Cell<bool>,
    /// What the last owner said that could not do it.
    failure: RefCell<Option<Error>>,
}

impl Router {
    /// A router that asks `directory` where segments are, and goes there by `connect`.
    pub fn new(
        handle: &Handle,
        directory: Rc<dyn SegmentDirectory>,
        connect: Connect,
        options: RouterOptions,
    ) -> Rc<Router> {
        Rc::new(Router {
            handle: handle.clone(),
            directory,
            connect,
            options,
            holds: RefCell::default(),
            last: Cell::new(0),
            statistics: Cell::default(),
            slow: SlowEngines::default(),
        })
    }

    /// Engines that have been slow for some seconds, and what of them.
    pub fn slow(&self) -> Vec<(Incarnation, SlowPart)> {
        self.slow.slow(self.handle.now())
    }

    /// What happened since it started.
    pub fn statistics(&self) -> RouterStatistics {
        self.statistics.get()
    }

    fn count(&self, change: impl FnOnce(&mut RouterStatistics)) {
        let mut statistics = self.statistics.get();
        change(&mut statistics);
        self.statistics.set(statistics);
    }

    fn hold(&self, session: SessionId) -> Result<Rc<Hold>> {
        let hold = self.holds.borrow().get(&session).cloned();
        let hold = hold.ok_or_else(|| Error::fenced(format!("{session} has ended")))?;
        hold.check()?;
        Ok(hold)
    }

    /// Sends a request to the owner of its segment, wherever that goes meanwhile, and waits for no longer than the patience:
    /// also for an owner that has the request and does not answer, as one whose store is away.
    async fn send<T>(
        &self,
        target: Target,
        load: Option<Load>,
        request: impl Fn(Rc<dyn BlockService>, Target) -> LocalBoxFuture<'static, Answer<T>>,
    ) -> Answer<T> {
        let begun = self.handle.now();
        let tried = Tried::default();
        let tries = self.tries(target, load, begun, &tried, request);
        match first(tries, self.handle.sleep(self.options.patience)).await {
            Ok(answer) => Ok(answer),
            Err(()) => self.give_up(target, begun, &tried),
        }
    }

    /// Tries until it comes through, or never will.
    async fn tries<T>(
        &self,
        target: Target,
        load: Option<Load>,
        begun: Instant,
        tried: &Tried,
        request: impl Fn(Rc<dyn BlockService>, Target) -> LocalBoxFuture<'static, Answer<T>>,
    ) -> Reply<T> {
        let mut pause = self.options.pause;
        loop {
            let obstacle = match self.way(target).await {
                Ok((hold, route, door)) => {
                    tried.is_in_doubt.set(true);
                    let there = Target { session: door.session, epoch: route.epoch, ..target };
                    let sent = self.handle.now();
                    let answer = request(door.service.clone(), there).await;
                    match self.judge(&hold, &route, &door, target.segment, answer) {
                        Ok(mut reply) => {
                            let now = self.handle.now();
                            if let Some(load) = load.filter(|_| reply.result.is_ok()) {
                                self.slow.on_answer(now, route.owner, load, now.nanos_since(sent), &reply.passage);
                            }
                            // To the agent an attachment is as it was.
                            reply.epoch = target.epoch;
                            let took = reply.passage.total_ns();
                            let waited = now.nanos_since(begun).saturating_sub(took);
                            if pause > self.options.pause {
                                reply.passage.add(Stage::Retry, waited);
                            }
                            return reply;
                        }
                        Err(obstacle) => obstacle,
                    }
                }
                Err(obstacle) => obstacle,
            };
            let pause_max = match obstacle {
                Obstacle::Passing => self.options.pause_max,
                Obstacle::Failed(error) => {
                    // It was answered: it is on its way no more.
                    tried.is_in_doubt.set(false);
                    tried.failure.replace(Some(error));
                    FAILED_PAUSE_MAX
                }
                Obstacle::Final(error) => {
                    return Reply { epoch: target.epoch, result: Err(error), passage: Passage::default() };
                }
            };
            pause = pause.min(pause_max);
            self.handle.sleep(pause).await;
            pause = (pause * 2).min(pause_max);
        }
    }

    fn give_up<T>(&self, target: Target, begun: Instant, tried: &Tried) -> Answer<T> {
        self.count(|statistics| statistics.given_up += 1);
        let seconds = (self.handle.now() - begun).as_secs();
        let segment = target.segment;
        let (is_in_doubt, failure) = (tried.is_in_doubt.get(), tried.failure.take());
        let message = match &failure {
            Some(error) => format!("no owner of segment {segment} could do this for {seconds} s: {error}"),
            None if is_in_doubt => {
                format!("no owner of segment {segment} answered for {seconds} s: see `levee status`")
            }
            None => format!("nobody was found who has segment {segment} for {seconds} s: see `levee status`"),
        };
        match is_in_doubt {
            // Until a new session has closed the one that it came by.
            true => Err(LinkLost { message }),
            false => Ok(Reply { epoch: target.epoch, result: Err(Error::io(message)), passage: Passage::default() }),
        }
    }

    /// The owner of a request's segment, as far as is known, and the session with it.
    async fn way(&self, target: Target) -> Result<(Rc<Hold>, Located, Door), Obstacle> {
        let hold = self.hold(target.session).map_err(Obstacle::Final)?;
        let index = target.segment.index;
        if let Some((route, door)) = hold.way(index) {
            return Ok((hold, route, door));
        }
        let route = self.find(&hold, target.segment).await?;
        let door = self.enter(&hold, target.segment, &route).await?;
        Ok((hold, route, door))
    }

    /// Who has a segment.
    async fn find(&self, hold: &Hold, segment: SegmentId) -> Result<Located, Obstacle> {
        let turn = hold.asking.borrow_mut().entry(segment.index).or_insert_with(one_at_a_time).clone();
        let _alone = turn.take(1).await;
        if let Some(route) = hold.route(segment.index) {
            return Ok(route);
        }
        hold.check().map_err(Obstacle::Final)?;
        self.count(|statistics| statistics.located += 1);
        let located = self.directory.locate(segment).await.map_err(obstacle)?;
        tracing::trace!(target: "levee::segment", %segment, owner = %located.owner, "found");
        hold.learn(segment.index, located).ok_or(Obstacle::Passing)
    }

    /// The session with an owner; a new one if there is none. What an older one of this hold has in flight there lands
    /// before. Nobody waits for an owner that has been followed by another one.
    async fn enter(&self, hold: &Hold, segment: SegmentId, route: &Located) -> Result<Door, Obstacle> {
        let turn = hold.opening.borrow_mut().entry(route.owner).or_insert_with(one_at_a_time).clone();
        let _alone = turn.take(1).await;
        if let Some(door) = hold.door(route.owner) {
            return Ok(door);
        }
        hold.check().map_err(Obstacle::Final)?;
        if !hold.leads_to(segment.index, route.owner) {
            return Err(Obstacle::Passing);
        }
        let service = (self.connect)(route);
        let opening = service.attach(hold.volume, hold.generation);
        let Ok(opened) = first(opening, self.followed(hold, segment, route.epoch)).await else {
            hold.doubt(route.owner);
            return Err(Obstacle::Passing);
        };
        match opened {
            Ok(Attachment { session, .. }) => {
                self.count(|statistics| statistics.opened += 1);
                let door = Door { service, session };
                hold.doors.borrow_mut().insert(route.owner, door.clone());
                Ok(door)
            }
            Err(error) if error.kind == ErrorKind::Fenced => {
                hold.end(&error);
                Err(Obstacle::Final(error))
            }
            Err(_) => {
                // It is dead, or has nothing of this volume any more.
                hold.forget(segment.index, route.epoch);
                Err(Obstacle::Passing)
            }
        }
    }

    /// Returns when the directory knows of an owner after the one of `epoch`.
    async fn followed(&self, hold: &Hold, segment: SegmentId, epoch: Epoch) {
        let mut pause = LOOK;
        loop {
            self.handle.sleep(pause).await;
            pause = (pause * 5 / 4).min(LOOK_MAX);
            self.count(|statistics| statistics.located += 1);
            if let Ok(located) = self.directory.locate(segment).await
                && located.epoch > epoch
            {
                tracing::trace!(target: "levee::segment", %segment, owner = %located.owner, "found");
                hold.learn(segment.index, located);
                return;
            }
        }
    }

    /// What an answer means that came over `door`.
    fn judge<T>(
        &self,
        hold: &Hold,
        route: &Located,
        door: &Door,
        segment: SegmentId,
        answer: Answer<T>,
    ) -> Result<Reply<T>, Obstacle> {
        hold.check().map_err(Obstacle::Final)?;
        let reply = match answer {
            Ok(reply) => reply,
            Err(_) => {
                self.count(|statistics| statistics.broken += 1);
                hold.close(route.owner, door.session);
                hold.forget(segment.index, route.epoch);
                return Err(Obstacle::Passing);
            }
        };
        match &reply.result {
            Err(error) if error.kind == ErrorKind::Moved => {
                self.count(|statistics| statistics.moved += 1);
                hold.forget(segment.index, route.epoch);
                Err(Obstacle::Passing)
            }
            // The session ended: by a newer one of this hold, or of a newer attachment. Opening another one tells.
            Err(error) if error.kind == ErrorKind::Fenced => {
                hold.close(route.owner, door.session);
                Err(Obstacle::Passing)
            }
            _ if hold.newest(segment.index) > reply.epoch => {
                self.count(|statistics| statistics.stale += 1);
                Err(Obstacle::Passing)
            }
            Err(error) if error.kind == ErrorKind::Io => {
                self.count(|statistics| statistics.failed += 1);
                Err(Obstacle::Failed(error.clone()))
            }
            _ => Ok(reply),
        }
    }
}

fn one_at_a_time() -> Rc<Budget> {
    Rc::new(Budget::new(1))
}

fn obstacle(error: Error) -> Obstacle {
    match error.kind {
        ErrorKind::NotFound | ErrorKind::Invalid => Obstacle::Final(error),
        _ => Obstacle::Passing,
    }
}

impl Hold {
    /// # Errors
    /// Why nothing is sent any more.
    fn check(&self) -> Result<()> {
        self.ended.borrow().clone().map_or(Ok(()), Err)
    }

    fn end(&self, why: &Error) {
        self.ended.borrow_mut().get_or_insert_with(|| why.clone());
    }

    fn way(&self, index: u32) -> Option<(Located, Door)> {
        let route = self.route(index)?;
        let door = self.door(route.owner)?;
        Some((route, door))
    }

    fn route(&self, index: u32) -> Option<Located> {
        self.routes.borrow().get(&index).filter(|route| route.is_good).map(|route| route.to.clone())
    }

    /// Whether `owner` has the segment, as far as is known.
    fn leads_to(&self, index: u32, owner: Incarnation) -> bool {
        self.routes.borrow().get(&index).is_some_and(|route| route.is_good && route.to.owner == owner)
    }

    fn door(&self, owner: Incarnation) -> Option<Door> {
        self.doors.borrow().get(&owner).cloned()
    }

    /// The newest epoch that is known of a segment.
    fn newest(&self, index: u32) -> Epoch {
        if is_on("epoch-of-another-segment") {
            return self.routes.borrow().values().map(|route| route.to.epoch).max().unwrap_or(Epoch(0));
        }
        self.routes.borrow().get(&index).map_or(Epoch(0), |route| route.to.epoch)
    }

    /// Takes a route that is not older than what is known.
    fn learn(&self, index: u32, to: Located) -> Option<Located> {
        if self.newest(index) > to.epoch {
            return None;
        }
        self.routes.borrow_mut().insert(index, Route { to: to.clone(), is_good: true });
        Some(to)
    }

    /// The route under this epoch leads nowhere; it is asked for again.
    fn forget(&self, index: u32, epoch: Epoch) {
        if let Some(route) = self.routes.borrow_mut().get_mut(&index).filter(|route| route.to.epoch == epoch) {
            route.is_good = false;
        }
    }

    /// Nothing that `owner` is said to have is believed any more: all of it is asked for again.
    fn doubt(&self, owner: Incarnation) {
        let mut routes = self.routes.borrow_mut();
        routes.values_mut().filter(|route| route.to.owner == owner).for_each(|route| route.is_good = false);
    }

    /// This session with an owner has ended.
    fn close(&self, owner: Incarnation, session: SessionId) {
        let mut doors = self.doors.borrow_mut();
        if doors.get(&owner).is_some_and(|door| door.session == session) {
            doors.remove(&owner);
            // Owners come and go: nobody waits for one that nobody enters.
            self.opening.borrow_mut().retain(|_, turn| Rc::strong_count(turn) > 1);
        }
    }
}

impl BlockService for Router {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        self.last.set(self.last.get() + 1);
        let session = SessionId(self.last.get());
        let hold = Hold {
            volume,
            generation,
            routes: RefCell::default(),
            doors: RefCell::default(),
            asking: RefCell::default(),
            opening: RefCell::default(),
            ended: RefCell::default(),
        };
        let mut holds = self.holds.borrow_mut();
        // One that was lost was not given back; nothing is sent by it any more.
        holds.retain(|_, other| other.volume != volume || other.generation >= generation);
        holds.insert(session, Rc::new(hold));
        drop(holds);
        // The attachment is recorded at the owners: doors are opened when they are needed.
        Box::pin(std::future::ready(Ok(Attachment { session, epoch: Epoch(1) })))
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        let hold = self.holds.borrow_mut().remove(&session);
        Box::pin(async move {
            let Some(hold) = hold else { return Ok(()) };
            hold.end(&Error::fenced(format!("{session} has ended")));
            let doors: Vec<Door> = hold.doors.borrow_mut().drain().map(|(_, door)| door).collect();
            let mut outcome = Ok(());
            for door in doors {
                outcome = outcome.and(door.service.detach(door.session).await);
            }
            outcome
        })
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        let load = Load { direction: Direction::Read, bytes: len };
        let read = move |owner: Rc<dyn BlockService>, target| -> LocalBoxFuture<'static, _> {
            Box::pin(async move { owner.read(target, offset, len).await })
        };
        Box::pin(self.send(target, Some(load), read))
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        let load = Load { direction: Direction::Write, bytes: data.len() as u64 };
        Box::pin(self.send(target, Some(load), move |owner, target| {
            let (data, checksums) = (data.clone(), checksums.clone());
            Box::pin(async move {
                match owner.write(target, offset, data, checksums, stamp).await {
                    Err(_) if is_on("lost-write-not-retried") => {
                        Ok(Reply { epoch: target.epoch, result: Ok(()), passage: Passage::default() })
                    }
                    answer => answer,
                }
            })
        }))
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(self.send(target, None, move |owner, target| {
            Box::pin(async move { owner.discard(target, offset, len, stamp).await })
        }))
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(self.send(target, None, move |owner, target| Box::pin(async move { owner.flush(target).await })))
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        Box::pin(self.send(target, None, move |owner, target| {
            Box::pin(async move { owner.allocation(target, offset, len, extents_max).await })
        }))
    }

    /// The server's address: its engines share a network card.
    fn server(&self, target: Target, _offset: u64) -> u64 {
        let holds = self.holds.borrow();
        let route = holds.get(&target.session).and_then(|hold| hold.route(target.segment.index));
        route.map_or(0, |to| BuildHasherDefault::<DefaultHasher>::default().hash_one(&to.address))
    }
}

#[cfg(test)]
mod tests;
