//! The same world under managers as they are: three candidates over one store of leases and one log, of which any may be
//! stopped; orders to engines and their answers are lost, late, or come twice.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::{Epoch, Error, ErrorKind, Generation, Incarnation, Instant, Result, SegmentId, Term, VolumeId};
use control::charge::{self, Candidate};
use control::lease::{self, Leases};
use control::owners::OwnersLog;
use control::owners::dispatch::Dispatch;
use control::owners::keeper::Keeper;
use control::owners::log::{self, FileLog};
use control::owners::tables::{Entry, Tables};
use policies::ownership::{Manager, Settings, Table};
use runtime::Class;
use wire::{Assignment, Holding, LeftSegment, LocalBoxFuture, SegmentOwner, VolumeDescriptor};

use crate::bed::{Bed, Locate, Member, SEGMENTS, VOLUME};

const MANAGERS: usize = 3;
const MEMBERS: usize = 4;
/// Until something that was decided has come about.
const PATIENCE: Duration = Duration::from_secs(60);

/// Managers, and what they have in common.
pub struct Managed {
    bed: Bed,
    leases: Rc<Leases>,
    log: Rc<RefCell<Log>>,
    managers: Vec<Option<One>>,
    living: Vec<Member>,
    dead: Vec<Incarnation>,
}

struct One {
    keeper: Rc<Keeper>,
    dispatch: Rc<Dispatch>,
}

/// What the log of the table came to, for those who look from outside.
#[derive(Default)]
struct Log {
    term: Term,
    table: Table,
}

/// The log in the store that all share, which tells of what is durable.
struct LogOf(FileLog, Rc<RefCell<Log>>);

impl OwnersLog for LogOf {
    fn term(&self) -> LocalBoxFuture<'_, Result<Term>> {
        self.0.term()
    }

    fn begin(&self, term: Term) -> LocalBoxFuture<'_, Result<Tables>> {
        Box::pin(async move {
            let tables = self.0.begin(term).await?;
            let mut log = self.1.borrow_mut();
            assert!(term > log.term, "{term} begins after {:?}", log.term);
            *log = Log { term, table: tables.owners.clone() };
            Ok(tables)
        })
    }

    fn append(&self, term: Term, changes: Vec<Entry>) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.0.append(term, changes.clone()).await?;
            let mut log = self.1.borrow_mut();
            assert_eq!(term, log.term, "confirmed after a later term has begun");
            let owners = changes.iter().filter_map(|entry| match entry {
                Entry::Owners(change) => Some(change),
                _ => None,
            });
            for change in owners {
                log.table.check(change)?;
                log.table.apply(change);
            }
            Ok(())
        })
    }
}

/// The way to an engine: an order is lost, or its answer, or it comes once more after a while.
struct Unreliable {
    bed: Bed,
    owner: Rc<dyn SegmentOwner>,
}

/// What an engine answers to an order.
trait Outcome: 'static {
    /// It was refused because a newer manager has ordered something.
    fn is_refused(&self) -> bool;
}

impl<T: 'static> Outcome for Result<T> {
    fn is_refused(&self) -> bool {
        self.as_ref().is_err_and(|error| error.kind == ErrorKind::Fenced && error.message.contains("in charge no more"))
    }
}

impl Outcome for Vec<Result<()>> {
    fn is_refused(&self) -> bool {
        self.iter().any(Outcome::is_refused)
    }
}

impl Unreliable {
    fn carry<T: Outcome>(
        &self,
        order: impl Fn(Rc<dyn SegmentOwner>) -> LocalBoxFuture<'static, T> + 'static,
        lost: impl FnOnce() -> T + 'static,
    ) -> LocalBoxFuture<'static, T> {
        let (bed, owner) = (self.bed.clone(), self.owner.clone());
        let is_over = bed.share.borrow().is_over;
        let fate = bed.prng(|prng| if is_over { 9 } else { prng.below(30) });
        Box::pin(async move {
            bed.pause(300).await;
            match fate {
                0 => {
                    bed.count("orders_lost");
                    return lost();
                }
                1 => {
                    drop(order(owner).await);
                    bed.count("reports_lost");
                    return lost();
                }
                2 | 3 => {
                    bed.count("orders_twice");
                    let (again, owner) = (bed.clone(), owner.clone());
                    let first = order(owner.clone());
                    let late = async move {
                        // Long enough for another manager to be in charge by then, or soon.
                        let most = again.prng(|prng| *prng.pick(&[400_000, 4_000_000]));
                        again.pause(most).await;
                        if order(owner).await.is_refused() {
                            again.count("late_orders_refused");
                        }
                    };
                    bed.handle.spawn(Class::Io, "an order that comes late", late).detach();
                    return first.await;
                }
                _ => {}
            }
            let done = order(owner).await;
            bed.pause(300).await;
            done
        })
    }
}

fn lost<T>() -> Result<T> {
    Err(Error::io("the link broke"))
}

impl SegmentOwner for Unreliable {
    fn assign(&self, term: Term, assignments: Vec<Assignment>) -> LocalBoxFuture<'_, Vec<Result<()>>> {
        let count = assignments.len();
        self.carry(
            move |owner| {
                let assignments = assignments.clone();
                Box::pin(async move { owner.assign(term, assignments).await })
            },
            move || (0..count).map(|_| lost()).collect(),
        )
    }

    fn refuse(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        self.carry(move |owner| Box::pin(async move { owner.refuse(term, segment, epoch).await }), lost)
    }

    fn release(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<LeftSegment>> {
        self.carry(move |owner| Box::pin(async move { owner.release(term, segment, epoch).await }), lost)
    }

    fn held(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Option<Epoch>>> {
        self.carry(move |owner| Box::pin(async move { owner.held(segment).await }), lost)
    }

    fn released(&self) -> LocalBoxFuture<'_, Result<Vec<(SegmentId, Epoch)>>> {
        self.carry(|owner| Box::pin(async move { owner.released().await }), lost)
    }

    fn forget_release(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        self.carry(move |owner| Box::pin(async move { owner.forget_release(term, segment, epoch).await }), lost)
    }

    fn recover(&self, term: Term, dead: Incarnation) -> LocalBoxFuture<'_, Result<Vec<Holding>>> {
        self.carry(move |owner| Box::pin(async move { owner.recover(term, dead).await }), lost)
    }

    fn begin_attachment(
        &self,
        term: Term,
        volume: VolumeDescriptor,
        segment: SegmentId,
        epoch: Epoch,
    ) -> LocalBoxFuture<'_, Result<()>> {
        self.carry(
            move |owner| {
                let volume = volume.clone();
                Box::pin(async move { owner.begin_attachment(term, volume, segment, epoch).await })
            },
            lost,
        )
    }

    fn drop_segment(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        self.carry(move |owner| Box::pin(async move { owner.drop_segment(term, segment, epoch).await }), lost)
    }
}

impl Managed {
    /// Starts managers and servers, and has the volume created.
    pub async fn begin(bed: &Bed) -> Managed {
        let leases = Leases::new(&bed.handle, lease::Options::default());
        let mut managed = Managed {
            bed: bed.clone(),
            leases,
            log: Rc::default(),
            managers: Vec::new(),
            living: Vec::new(),
            dead: Vec::new(),
        };
        for index in 0..MANAGERS {
            let one = managed.start(index).await;
            managed.managers.push(Some(one));
        }
        for _ in 0..MEMBERS {
            managed.join().await;
        }
        managed.decide(|manager, now, random| manager.create(now, random, VOLUME, SEGMENTS)).await;
        managed.attached(Generation(1)).await;
        managed
    }

    async fn start(&self, index: usize) -> One {
        let bed = self.bed.clone();
        let describe = move |volume: VolumeId| {
            let known = bed.share.borrow().volume.clone();
            (volume == VOLUME).then_some(known)
        };
        let another = |missing: Vec<Incarnation>| -> LocalBoxFuture<'static, Result<Vec<Incarnation>>> {
            Box::pin(async move { Ok(missing) })
        };
        let store = self.bed.shared.join().await.unwrap();
        let present = store.clone();
        let present = move || present.clone();
        let dispatch = Dispatch::new(&self.bed.handle, Rc::new(present), Rc::new(describe), Rc::new(another));
        for member in self.bed.share.borrow().members.values() {
            dispatch.add(member.incarnation(), self.link(member));
        }
        let options = log::Options { file_bytes: 16 << 10, ..log::Options::default() };
        let log = Rc::new(LogOf(FileLog::new(&store, options), self.log.clone()));
        let options = charge::Options { name: format!("manager {index}"), partition: 0 };
        let candidate = Candidate::stand(&self.bed.handle, self.leases.clone(), log.clone(), options);
        let keeper = Keeper::start(&self.bed.handle, candidate, log, dispatch.clone(), Settings::default());
        let keeper = Rc::new(keeper);
        dispatch.set_keeper(&keeper);
        One { keeper, dispatch }
    }

    fn link(&self, member: &Member) -> Rc<dyn SegmentOwner> {
        Rc::new(Unreliable { bed: self.bed.clone(), owner: member.owner.clone() })
    }

    /// Decides with whoever is in charge, until somebody has.
    async fn decide(&self, decide: impl Fn(&mut Manager, Instant, u64) -> Result<()>) {
        let begun = self.bed.handle.now();
        while self.bed.handle.now() - begun < PATIENCE {
            let in_charge = self.managers.iter().flatten().find(|one| one.keeper.term().is_some());
            if let Some(one) = in_charge
                && let Ok(decided) = one.keeper.decide(&decide).await
            {
                // What makes no sense any more was perhaps decided by the one before.
                if let Err(error) = decided {
                    tracing::debug!("{error}");
                }
                return;
            }
            self.bed.pause(10_000).await;
        }
        self.bed.fail("nobody is in charge".into());
    }

    /// One more server, which says so to whoever is in charge.
    async fn join(&mut self) {
        let member = self.bed.join().await;
        for one in self.managers.iter().flatten() {
            one.dispatch.add(member.incarnation(), self.link(&member));
        }
        let (engine, name) = (member.incarnation(), format!("server {}", member.incarnation().0 % 5));
        self.living.push(member);
        self.decide(move |manager, now, random| manager.on_registered(now, random, engine, &name)).await;
    }

    /// Waits until every segment has an owner that knows of this attachment.
    async fn attached(&self, generation: Generation) {
        let begun = self.bed.handle.now();
        while self.bed.handle.now() - begun < PATIENCE && !self.bed.has_failed() {
            let is_attached = {
                let log = self.log.borrow();
                let is_owned = (0..SEGMENTS).all(|index| {
                    let row = log.table.segment(SegmentId { volume: VOLUME, index });
                    row.is_some_and(|row| row.holder.is_some())
                });
                is_owned && log.table.volume(VOLUME).is_some_and(|row| row.attached >= generation || generation.0 == 1)
            };
            if is_attached {
                return;
            }
            self.bed.pause(5_000).await;
        }
        self.bed.fail(format!("{generation} is not attached: {:?}", self.log.borrow().table));
    }

    /// Does one thing.
    pub async fn act(&mut self) {
        self.bed.share.borrow_mut().locate = Some(self.locate());
        match self.bed.prng(|prng| prng.below(16)) {
            0..=6 => {
                let index = self.bed.prng(|prng| prng.below(SEGMENTS.into())) as u32;
                let segment = SegmentId { volume: VOLUME, index };
                let to = self.bed.prng(|prng| prng.pick(&self.living).incarnation());
                self.bed.count("moves");
                self.decide(move |manager, now, random| manager.move_segment(now, random, segment, Some(to))).await;
            }
            7..=8 => {
                let at = self.bed.prng(|prng| prng.below(MEMBERS as u64)) as usize;
                let victim = self.living.swap_remove(at).incarnation();
                self.dead.push(victim);
                self.bed.count("deaths");
                // It lives on; nobody hears of it any more.
                self.decide(move |manager, now, random| {
                    manager.on_gone(now, random, victim);
                    Ok(())
                })
                .await;
                self.join().await;
            }
            9 | 10 => {
                let index = self.bed.prng(|prng| prng.below(MANAGERS as u64)) as usize;
                self.managers[index] = None;
                self.bed.count("managers_stopped");
                self.bed.pause(100_000).await;
                let one = self.start(index).await;
                self.managers[index] = Some(one);
                // The one before may have died with the word of a death on its lips.
                for victim in self.dead.clone() {
                    self.decide(move |manager, now, random| {
                        manager.on_gone(now, random, victim);
                        Ok(())
                    })
                    .await;
                }
            }
            11 => self.attach().await,
            _ => self.bed.pause(20_000).await,
        }
        self.bed.share.borrow_mut().locate = Some(self.locate());
    }

    /// How clients find a segment: in what is durable.
    fn locate(&self) -> Locate {
        let log = self.log.clone();
        Rc::new(move |segment| {
            let log = log.borrow();
            let row = log.table.segment(segment)?;
            let holder = row.holder.filter(|holder| log.table.lives(*holder) && !row.is_released)?;
            Some((holder, row.epoch))
        })
    }

    async fn attach(&mut self) {
        let generation = {
            let mut state = self.bed.share.borrow_mut();
            state.volume.generation.0 += 1;
            state.volume.generation
        };
        self.decide(move |manager, now, random| manager.attach(now, random, VOLUME, generation)).await;
        self.attached(generation).await;
        let hold = self.bed.attach(generation).await;
        self.bed.on_attached(hold);
    }

    /// Everything that was begun comes to its end.
    pub async fn settle(&mut self) {
        let begun = self.bed.handle.now();
        while self.bed.handle.now() - begun < PATIENCE && !self.bed.has_failed() {
            for victim in self.dead.clone() {
                self.decide(move |manager, now, random| {
                    manager.on_gone(now, random, victim);
                    Ok(())
                })
                .await;
            }
            let is_settled = {
                let log = self.log.borrow();
                let mut rows = log.table.segments();
                rows.all(|(_, row)| {
                    row.assignment.is_none() && row.holder.is_some_and(|holder| log.table.lives(holder))
                }) && log.table.deaths().next().is_none()
            };
            if is_settled {
                break;
            }
            self.bed.pause(50_000).await;
        }
        let log = self.log.borrow();
        log.table.check_invariants();
        let held: BTreeMap<Incarnation, usize> =
            self.living.iter().map(|member| (member.incarnation(), log.table.load(member.incarnation()))).collect();
        if held.values().sum::<usize>() != SEGMENTS as usize {
            self.bed.fail(format!("in the end {held:?}, and dead {:?}", log.table.deaths().collect::<Vec<_>>()));
        }
    }
}
