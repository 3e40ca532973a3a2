//! The way from what a manager has decided to engines and to the store, and back.
//!
//! **Intuition.** An [`Order`] says what is wanted; an engine is asked for it ([`SegmentOwner`]), and what it answers
//! becomes a [`Report`]. An order that nobody answers is said again by the manager, so nothing is lost here that matters:
//! what is under way is not begun a second time, and what failed is forgotten.
//!
//! **Names.** An engine is *known* from when it registered until it is dismissed. *Adoptions* from one dead engine by one
//! adopter are asked for together, so that each reads the log of the dead once.
//!
//! **Invariants.** An order goes out under the term that it was given under, and an engine that knows a newer manager does
//! not follow it: nothing is reported of it then. A report is made of an answer, or of a refusal that the engine has promised to keep (rule 40): that an
//! engine could not do something says nothing. What is adopted from an engine that lives is what that engine says it has
//! released, asked for at that moment; from a dead one, what its sealed logs say. As many orders are under way as the table
//! has segments, volumes and dead engines, at most.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::{Epoch, Error, ErrorKind, Generation, Incarnation, Result, SegmentId, Set, Term, VolumeId};
use files::{FileKind, Store};
use policies::ownership::{Message, Order, Report};
use runtime::sync::Event;
use runtime::{Class, Handle};
use wire::{Assignment, LocalBoxFuture, SegmentOwner, Source, VolumeDescriptor};

use super::keeper::{Keeper, Outlet};

/// How often engines are asked what they have released.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// What somebody else knows of a volume: its newest attachment is the manager's to say.
pub type Describe = Rc<dyn Fn(VolumeId) -> Option<VolumeDescriptor>>;

/// The store as the present life of this process sees it: one that is over is followed by another one.
pub type StoreOf = Rc<dyn Fn() -> Store>;

/// Who else can be asked which engines are missing.
pub type AskOthers = Rc<dyn Fn(Vec<Incarnation>) -> LocalBoxFuture<'static, Result<Vec<Incarnation>>>>;

/// See the module.
pub struct Dispatch {
    handle: Handle,
    store: StoreOf,
    describe: Describe,
    others_miss: AskOthers,
    engines: RefCell<BTreeMap<Incarnation, Rc<dyn SegmentOwner>>>,
    keeper: RefCell<Weak<Keeper>>,
    under_way: RefCell<Set<Order>>,
    /// Engines that are being asked what they have released.
    asked: RefCell<Set<Incarnation>>,
    /// Adoptions from dead engines that wait for those before them: by adopter and source.
    adoptions: RefCell<BTreeMap<(Incarnation, Incarnation), Vec<Message>>>,
    /// Something was attached, or is gone.
    done: Event,
    this: Weak<Dispatch>,
}

impl Dispatch {
    /// The way to engines that share the store of `store`, in which this process has a life of its own.
    pub fn new(handle: &Handle, store: StoreOf, describe: Describe, others_miss: AskOthers) -> Rc<Dispatch> {
        Rc::new_cyclic(|this| Dispatch {
            handle: handle.clone(),
            store,
            describe,
            others_miss,
            engines: RefCell::default(),
            keeper: RefCell::default(),
            under_way: RefCell::default(),
            asked: RefCell::default(),
            adoptions: RefCell::default(),
            done: Event::new(),
            this: this.clone(),
        })
    }

    /// Whom reports are for. While that one is in charge, engines are asked from time to time what they have released: a
    /// release may come about after the order for it was taken back.
    pub fn set_keeper(&self, keeper: &Rc<Keeper>) {
        *self.keeper.borrow_mut() = Rc::downgrade(keeper);
        let (dispatch, handle) = (self.this.clone(), self.handle.clone());
        let asking = async move {
            while let Some(dispatch) = dispatch.upgrade().filter(|dispatch| dispatch.has_keeper()) {
                dispatch.ask_for_releases();
                drop(dispatch);
                handle.sleep(ASK_AGAIN).await;
            }
        };
        self.handle.spawn(Class::Background, "ask for releases", asking).detach();
    }

    fn has_keeper(&self) -> bool {
        self.keeper.borrow().strong_count() > 0
    }

    /// Asks every engine, each by itself: one that does not answer holds nobody up.
    fn ask_for_releases(self: &Rc<Self>) {
        let engines: Vec<Incarnation> = self.engines.borrow().keys().copied().collect();
        for engine in engines.into_iter().filter(|engine| self.is_dead(*engine) == Some(false)) {
            let Some(owner) = self.owner(engine).filter(|_| self.asked.borrow_mut().insert(engine)) else { continue };
            let this = self.clone();
            let asking = async move {
                for (segment, epoch) in owner.released().await.unwrap_or_default() {
                    this.report(&Report::Released { engine, segment, epoch });
                }
                this.asked.borrow_mut().remove(&engine);
            };
            self.handle.spawn(Class::Background, "ask for releases", asking).detach();
        }
    }

    /// An engine can be asked from now on.
    pub fn add(&self, engine: Incarnation, owner: Rc<dyn SegmentOwner>) {
        self.engines.borrow_mut().insert(engine, owner);
    }

    /// Notified when an attachment or a deletion is done: whoever waits for one looks at the table.
    pub fn done(&self) -> &Event {
        &self.done
    }

    fn owner(&self, engine: Incarnation) -> Option<Rc<dyn SegmentOwner>> {
        self.engines.borrow().get(&engine).cloned()
    }

    fn report(&self, report: &Report) {
        let keeper = self.keeper.borrow().upgrade();
        if let Some(keeper) = keeper {
            keeper.report(report);
        }
    }

    fn descriptor(&self, volume: VolumeId, generation: Generation) -> Option<VolumeDescriptor> {
        (self.describe)(volume).map(|volume| VolumeDescriptor { generation, ..volume })
    }

    /// Does what an order wants; the report that comes of it, if one does.
    async fn carry_out(&self, Message { term, order }: &Message) -> Result<Option<Report>> {
        let term = *term;
        let known = |engine: Incarnation| {
            self.owner(engine).ok_or_else(|| Error::io(format!("nobody is in touch with engine {engine}")))
        };
        Ok(match *order {
            Order::Create { engine, segment, epoch, generation } => {
                let owner = known(engine)?;
                let Some(volume) = self.descriptor(segment.volume, generation) else { return Ok(None) };
                let assignment = Assignment { volume, segment, epoch, source: Source::Nobody };
                let done = owner.assign(term, vec![assignment]).await.pop().unwrap_or(Ok(()));
                self.on_assigned(term, engine, segment, epoch, generation, done).await
            }
            Order::Adopt { engine, segment, epoch, source, source_epoch, generation } => {
                let (owner, source) = (known(engine)?, known(source)?);
                let Some(volume) = self.descriptor(segment.volume, generation) else { return Ok(None) };
                let left = match source.release(term, segment, source_epoch).await {
                    Ok(left) => left,
                    // Its next owner may be itself, which has adopted it when nobody heard of that.
                    Err(_) if owner.held(segment).await? == Some(epoch) => {
                        owner.begin_attachment(term, volume, segment, epoch).await?;
                        return Ok(Some(Report::Adopted { engine, segment, epoch, generation }));
                    }
                    Err(error) => return Err(error),
                };
                let assignment = Assignment { volume, segment, epoch, source: Source::Left(left) };
                let done = owner.assign(term, vec![assignment]).await.pop().unwrap_or(Ok(()));
                self.on_assigned(term, engine, segment, epoch, generation, done).await
            }
            Order::Release { engine, segment, epoch, .. } => {
                known(engine)?.release(term, segment, epoch).await?;
                Some(Report::Released { engine, segment, epoch })
            }
            Order::Forget { engine, segment, epoch } => {
                known(engine)?.forget_release(term, segment, epoch).await?;
                None
            }
            Order::Reattach { engine, segment, epoch, generation } => {
                let owner = known(engine)?;
                let Some(volume) = self.descriptor(segment.volume, generation) else { return Ok(None) };
                owner.begin_attachment(term, volume, segment, epoch).await?;
                Some(Report::Recorded { engine, segment, epoch, generation })
            }
            Order::Drop { engine, segment, epoch } => {
                known(engine)?.drop_segment(term, segment, epoch).await?;
                Some(Report::Dropped { engine, segment, epoch })
            }
            Order::Fence { dead } => {
                (self.store)().fence(dead).await?;
                tracing::trace!(target: "levee::segment", %dead, "fenced");
                Some(Report::Fenced { dead })
            }
            Order::Recover { dead, recoverer } => {
                let held = known(recoverer)?.recover(term, dead).await?;
                if base::seeded::is_on("source-deleted-early") {
                    self.delete_logs(dead).await?;
                }
                let has = held.iter().map(|held| (held.segment, held.epoch)).collect();
                Some(Report::Recovered { dead, recoverer, has })
            }
            Order::Delete { dead } => {
                self.delete_logs(dead).await?;
                self.engines.borrow_mut().remove(&dead);
                Some(Report::Deleted { dead })
            }
            Order::Dismiss { engine } => {
                self.engines.borrow_mut().remove(&engine);
                None
            }
            Order::Attached { .. } | Order::Gone { .. } => {
                self.done.notify();
                None
            }
            Order::Doubt { .. } => None,
        })
    }

    /// What came of an assignment. An engine that could not take it promises never to, or nothing is known.
    async fn on_assigned(
        &self,
        term: Term,
        engine: Incarnation,
        segment: SegmentId,
        epoch: Epoch,
        generation: Generation,
        done: Result<()>,
    ) -> Option<Report> {
        match done {
            Ok(()) => Some(Report::Adopted { engine, segment, epoch, generation }),
            Err(error) if matches!(error.kind, ErrorKind::Retry | ErrorKind::Io | ErrorKind::Fenced) => {
                tracing::debug!(%segment, %engine, %epoch, "an assignment waits: {error}");
                None
            }
            Err(error) => {
                tracing::warn!(%segment, %engine, %epoch, "an assignment is refused: {error}");
                let refused = self.owner(engine)?.refuse(term, segment, epoch).await;
                refused.is_ok().then_some(Report::Refused { engine, segment, epoch })
            }
        }
    }

    /// The logs and journals of a dead engine. Its data files and tables belong to their segments.
    async fn delete_logs(&self, dead: Incarnation) -> Result<()> {
        let store = (self.store)();
        for info in store.files_of(dead).await? {
            if matches!(info.kind, FileKind::Journal | FileKind::Transaction) {
                store.delete(info.id).await?;
            }
        }
        Ok(())
    }

    /// Carries an order out, and says what came of it.
    async fn begin(&self, message: Message) {
        let order = &message.order;
        tracing::debug!(?order, "an order");
        match self.carry_out(&message).await {
            Ok(Some(report)) => self.report(&report),
            Ok(None) => {}
            Err(error) => tracing::debug!(?order, "an order was not carried out, and will be said again: {error}"),
        }
        tracing::debug!(?order, "the end of an order");
        self.under_way.borrow_mut().remove(order);
    }

    /// Has `engine` adopt from the dead `source`, together with what else is asked for until it gets to it.
    fn gather(self: Rc<Self>, engine: Incarnation, source: Incarnation, message: Message) {
        let key = (engine, source);
        let is_first = !self.adoptions.borrow().contains_key(&key);
        self.adoptions.borrow_mut().entry(key).or_default().push(message);
        if !is_first {
            return;
        }
        let handle = self.handle.clone();
        let adopting = async move {
            loop {
                self.handle.yield_now().await;
                let messages = self.adoptions.borrow_mut().get_mut(&key).map(std::mem::take).unwrap_or_default();
                if messages.is_empty() {
                    self.adoptions.borrow_mut().remove(&key);
                    return;
                }
                // Each under its own term: this manager may have been in charge before.
                for messages in messages.chunk_by(|a, b| a.term == b.term) {
                    self.adopt_together(engine, source, messages).await;
                    let mut under_way = self.under_way.borrow_mut();
                    messages.iter().for_each(|message| {
                        under_way.remove(&message.order);
                    });
                }
            }
        };
        handle.spawn(Class::Io, "adoptions", adopting).detach();
    }

    /// Has `engine` adopt what these orders say, which have the same term.
    async fn adopt_together(&self, engine: Incarnation, dead: Incarnation, messages: &[Message]) {
        let (Some(owner), Some(term)) = (self.owner(engine), messages.first().map(|message| message.term)) else {
            return;
        };
        let (mut assignments, mut asked) = (Vec::new(), Vec::new());
        for message in messages {
            let Order::Adopt { segment, epoch, generation, .. } = message.order else { continue };
            let Some(volume) = self.descriptor(segment.volume, generation) else { continue };
            assignments.push(Assignment { volume, segment, epoch, source: Source::Estate(dead) });
            asked.push((segment, epoch, generation));
        }
        let outcomes = owner.assign(term, assignments).await;
        for ((segment, epoch, generation), done) in asked.into_iter().zip(outcomes) {
            if let Some(report) = self.on_assigned(term, engine, segment, epoch, generation, done).await {
                self.report(&report);
            }
        }
    }

    /// Whether the table says that an engine is dead; nothing is known while this manager is not in charge.
    fn is_dead(&self, engine: Incarnation) -> Option<bool> {
        let keeper = self.keeper.borrow().upgrade()?;
        keeper.look(|table, _| !table.lives(engine))
    }
}

impl Outlet for Dispatch {
    fn send(&self, message: Message) {
        let Some(this) = self.this.upgrade() else { return };
        if !self.under_way.borrow_mut().insert(message.order.clone()) {
            return;
        }
        let dead = match message.order {
            Order::Adopt { engine, source, .. } if self.is_dead(source) == Some(true) => Some((engine, source)),
            _ => None,
        };
        match dead {
            Some((engine, source)) => this.gather(engine, source, message),
            None => self.handle.spawn(Class::Io, "an order", async move { this.begin(message).await }).detach(),
        }
    }

    fn ask_others(&self, missing: Vec<Incarnation>) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>> {
        (self.others_miss)(missing)
    }
}
