//! How a life stands with its store, and how it comes back after it has lost touch.
//!
//! One task enters, while somebody waits for that: it asks under the next generation, waits until what was in flight here
//! has an answer or none, looks which files the store has of this life, deletes those that nobody knows, and says that the
//! life has entered. Between two tries it pauses, longer each time.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use base::{Error, ErrorKind, FileId, Generation, Incarnation, Instant, Result, SegmentId, StoreId};
use runtime::sync::Event;
use runtime::{Class, Handle};
use wire::files::{FileAnswer, FileDescriptor, FileService, LISTED_MAX, Life};

use super::RemoteOptions;
use super::known::{Known, info_of};
use crate::FileInfo;

/// The pause after a first try, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// Within the patience of one who waits there are so many tries at least.
const TRIES_MIN: u32 = 8;

/// See the module.
pub(super) struct Session {
    pub(super) handle: Handle,
    pub(super) service: Rc<dyn FileService>,
    pub(super) options: RemoteOptions,
    pub(super) store: StoreId,
    pub(super) incarnation: Incarnation,
    pub(super) known: Rc<Known>,
    generation: Cell<Generation>,
    state: RefCell<State>,
    /// Notified when the state has changed, and when a try has failed.
    changed: Event,
    waiting: Cell<usize>,
    is_entering: Cell<bool>,
}

enum State {
    /// It has to enter (again), because of this.
    Out(Error),
    Entered(Life),
    /// It is fenced.
    Over(Error),
}

/// One who waits for the life to enter.
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Pauses between tries.
struct Pauses {
    next: Duration,
    most: Duration,
}

impl Pauses {
    fn new(options: &RemoteOptions) -> Pauses {
        let most = PAUSES.1.min(options.patience / TRIES_MIN).max(PAUSES.0);
        Pauses { next: PAUSES.0, most }
    }

    /// Waits, longer each time, and not just as long as others who wait for the same.
    async fn pause(&mut self, handle: &Handle) {
        let half = self.next / 2;
        handle.sleep(half + Duration::from_nanos(handle.random_u64() % half.as_nanos() as u64)).await;
        self.next = (2 * self.next).min(self.most);
    }
}

impl Session {
    /// A number for one more life, which has not entered yet.
    ///
    /// # Errors
    /// `Io`: the store cannot be reached. What it says.
    pub(super) async fn join(
        handle: &Handle,
        service: Rc<dyn FileService>,
        options: RemoteOptions,
        deadline: Instant,
    ) -> Result<Rc<Session>> {
        let mut pauses = Pauses::new(&options);
        let (store, incarnation) = loop {
            // A number that nobody hears of is worth nothing to anybody.
            let why = match service.join().await {
                Ok(Err(error)) if error.kind == ErrorKind::Retry => error.message,
                Ok(joined) => break joined?,
                Err(lost) => lost.message,
            };
            if handle.now() >= deadline {
                return Err(unreachable(&options, &why));
            }
            pauses.pause(handle).await;
        };
        Ok(Rc::new(Session {
            handle: handle.clone(),
            service,
            options,
            store,
            incarnation,
            known: Known::new(incarnation),
            // One that is in no other store by chance, if another one is reached at the same address some day.
            generation: Cell::new(Generation(handle.random_u64() >> 1)),
            state: RefCell::new(State::Out(Error::io("it has not entered yet"))),
            changed: Event::new(),
            waiting: Cell::default(),
            is_entering: Cell::default(),
        }))
    }

    pub(super) fn has_entered(&self) -> bool {
        matches!(&*self.state.borrow(), State::Entered(_))
    }

    /// Whether the life goes on.
    ///
    /// # Errors
    /// `Fenced`.
    fn check_alive(&self) -> Result<()> {
        match &*self.state.borrow() {
            State::Over(error) => Err(error.clone()),
            State::Out(_) | State::Entered(_) => Ok(()),
        }
    }

    /// Waits until the life has entered.
    ///
    /// # Errors
    /// `Fenced`; `Io`: the store cannot be reached until then; what it says, where time will not mend it.
    pub(super) async fn entered(self: &Rc<Self>, deadline: Instant) -> Result<Life> {
        let _waiting = Waiting::new(&self.waiting);
        let mut was_tried = false;
        loop {
            let changed = self.changed.wait();
            match &*self.state.borrow() {
                State::Entered(life) => return Ok(*life),
                State::Over(error) => return Err(error.clone()),
                State::Out(error) if was_tried && !may_pass(error) => return Err(error.clone()),
                State::Out(error) if self.handle.now() >= deadline => {
                    return Err(unreachable(&self.options, &error.message));
                }
                State::Out(_) => {}
            }
            self.begin_entering();
            before(self.handle.sleep_until(deadline), changed).await;
            was_tried = true;
        }
    }

    /// An answer to what was asked under `life` was lost, or the store says that it has to enter.
    pub(super) fn on_lost(self: &Rc<Self>, life: Life, why: &str) {
        let is_news = matches!(&*self.state.borrow(), State::Entered(entered) if *entered == life);
        if is_news {
            tracing::info!(store = self.options.name, incarnation = %self.incarnation, why, "a life enters anew");
            self.state.replace(State::Out(Error::io(why)));
            self.begin_entering();
        }
    }

    /// The life is over: somebody has fenced it.
    pub(super) fn on_fenced(&self, error: Error) {
        self.state.replace(State::Over(error));
        self.changed.notify();
    }

    fn begin_entering(self: &Rc<Self>) {
        if self.is_entering.replace(true) {
            return;
        }
        let session = self.clone();
        let entering = async move {
            let mut pauses = Pauses::new(&session.options);
            while !session.conclude(session.enter().await) && session.waiting.get() > 0 {
                pauses.pause(&session.handle).await;
            }
            session.is_entering.set(false);
        };
        self.handle.spawn(Class::Io, "remote: enter", entering).detach();
    }

    /// What came of a try. Whether there is no use in another one.
    fn conclude(&self, tried: Result<Life>) -> bool {
        let (state, is_decided) = match tried {
            Ok(life) => (State::Entered(life), true),
            Err(error) if matches!(error.kind, ErrorKind::Fenced | ErrorKind::NotFound) => {
                let over = error.context(format!("the life of incarnation {} is over", self.incarnation));
                (State::Over(Error::fenced(over.message)), true)
            }
            Err(error) => {
                let is_decided = !may_pass(&error);
                (State::Out(error), is_decided)
            }
        };
        // A fence may have been faster.
        if self.check_alive().is_ok() {
            self.state.replace(state);
        }
        self.changed.notify();
        is_decided
    }

    /// One try.
    async fn enter(&self) -> Result<Life> {
        let generation = Generation(self.generation.get().0 + 1);
        self.generation.set(generation);
        let life = Life { incarnation: self.incarnation, generation };
        let space = or_lost(self.service.enter(self.store, life).await)?;
        // What was asked before is done or will never be, and who asked has heard of it or never will.
        self.known.at_rest().await;
        let files = or_lost(self.files_of(self.incarnation).await)?;
        or_lost(self.take_over(life, &files).await)?;
        self.known.on_space(space);
        Ok(life)
    }

    /// Takes over what the store says about the files of this life, while nothing is being changed.
    async fn take_over(&self, life: Life, files: &[FileInfo]) -> FileAnswer<()> {
        for file in self.known.settle(files) {
            tracing::info!(%file, incarnation = %self.incarnation, "a file was created for nobody: it is deleted");
            match self.service.delete(life, file).await? {
                Ok(()) => {}
                Err(error) if error.kind == ErrorKind::Retry => return Ok(Err(error)),
                // It is found again when the life enters next, or looks at its space.
                Err(error) => tracing::warn!(%file, "a file that was created for nobody stays for now: {error}"),
            }
        }
        Ok(Ok(()))
    }
}

/// Asking.
impl Session {
    /// Asks in the name of the life until there is an answer. What is asked may be done twice.
    ///
    /// # Errors
    /// `Fenced`; `Io`: the store cannot be reached; what it says.
    pub(super) async fn ask<T>(self: &Rc<Self>, ask: impl AsyncFn(Life) -> FileAnswer<T>) -> Result<T> {
        let (mut deadline, mut pauses) = (self.handle.now() + self.options.patience, Pauses::new(&self.options));
        let mut was_lost = false;
        loop {
            let life = self.entered(deadline).await?;
            let why = match ask(life).await {
                Ok(Err(error)) if error.kind == ErrorKind::Retry => error.message,
                Ok(answer) => return answer,
                Err(lost) => lost.message,
            };
            self.on_lost(life, &why);
            if !std::mem::replace(&mut was_lost, true) {
                // It may have been in flight for long.
                deadline = self.handle.now() + self.options.patience;
            } else if self.handle.now() >= deadline {
                return Err(unreachable(&self.options, &why));
            } else {
                pauses.pause(&self.handle).await;
            }
        }
    }

    /// Asks what anybody may ask, until there is an answer.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) async fn ask_as_anybody<T>(&self, ask: impl AsyncFn() -> FileAnswer<T>) -> Result<T> {
        let (mut deadline, mut pauses) = (None, Pauses::new(&self.options));
        loop {
            self.check_alive()?;
            let why = match ask().await {
                Ok(Err(error)) if error.kind == ErrorKind::Retry => error.message,
                Ok(answer) => return answer,
                Err(lost) => lost.message,
            };
            let now = self.handle.now();
            if now >= *deadline.get_or_insert(now + self.options.patience) {
                return Err(unreachable(&self.options, &why));
            }
            pauses.pause(&self.handle).await;
        }
    }

    /// The lives of which there is something.
    pub(super) async fn lives(&self) -> FileAnswer<Vec<Incarnation>> {
        let mut lives = Vec::new();
        loop {
            let after = lives.last().copied().unwrap_or(Incarnation(0));
            let listed = match self.service.lives(after).await? {
                Ok(listed) => listed,
                Err(error) => return Ok(Err(error)),
            };
            let is_last = listed.len() < LISTED_MAX;
            lives.extend(listed.iter().map(|life| life.incarnation));
            if is_last {
                return Ok(Ok(lives));
            }
        }
    }

    /// The files that the store has of a life.
    pub(super) async fn files_of(&self, incarnation: Incarnation) -> FileAnswer<Vec<FileInfo>> {
        listed(async |after| self.service.files_of(self.store, incarnation, after).await).await
    }

    /// The files that name a segment.
    pub(super) async fn files_of_segment(&self, segment: SegmentId) -> FileAnswer<Vec<FileInfo>> {
        listed(async |after| self.service.files_of_segment(self.store, segment, after).await).await
    }

    /// Looks which files the store has of this life: others may have deleted some that belong to a segment.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) async fn look_again(self: &Rc<Self>) -> Result<()> {
        self.ask(async |life| {
            let before = self.known.moment();
            let files = match self.files_of(self.incarnation).await? {
                Ok(files) => files,
                Err(error) => return Ok(Err(error)),
            };
            match before.is_some() && self.known.moment() == before {
                true => self.take_over(life, &files).await,
                false => Ok(Ok(())),
            }
        })
        .await
    }
}

/// A list of files, part by part: `ask` gives those behind an id.
async fn listed(ask: impl AsyncFn(FileId) -> FileAnswer<Vec<FileDescriptor>>) -> FileAnswer<Vec<FileInfo>> {
    let mut files: Vec<FileInfo> = Vec::new();
    loop {
        let after = files.last().map_or(FileId(0), |info| info.id);
        let part = match ask(after).await? {
            Ok(part) => part,
            Err(error) => return Ok(Err(error)),
        };
        let is_all = part.len() < LISTED_MAX;
        match part.iter().map(info_of).collect::<Result<Vec<_>>>() {
            Ok(part) => files.extend(part),
            Err(error) => return Ok(Err(error)),
        }
        if is_all {
            return Ok(Ok(files));
        }
    }
}

/// Whether the same may have another outcome later.
fn may_pass(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Retry | ErrorKind::Io | ErrorKind::Internal)
}

/// What the store said; where that was lost, it may come next time.
fn or_lost<T>(answer: FileAnswer<T>) -> Result<T> {
    answer.unwrap_or_else(|lost| Err(Error::io(lost.message)))
}

fn unreachable(options: &RemoteOptions, why: &str) -> Error {
    let RemoteOptions { name, patience } = options;
    Error::io(format!("the shared store {name} could not be reached for {patience:?}: {why}"))
}

/// Waits for `wanted`, but only until `end`.
async fn before(end: impl Future<Output = ()>, wanted: impl Future<Output = ()>) {
    let (mut end, mut wanted) = (pin!(end), pin!(wanted));
    poll_fn(|cx| match wanted.as_mut().poll(cx).is_ready() || end.as_mut().poll(cx).is_ready() {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}
