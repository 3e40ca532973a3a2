//! The one who decides who has what, as the model of ownership says: `lab/src/protocol/ownership`.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base::{Epoch, ErrorKind, Generation, Incarnation, Result, SegmentId};
use engine::ownership::estate::{Estate, Holding};
use engine::{SegmentCheckpoint, Tenure};
use files::FileKind;
use files::memory::AppendFault;
use runtime::Class;

use super::bed::{Bed, Member, Owner};

const MEMBERS: usize = 3;

/// See the module.
pub struct Manager {
    bed: Bed,
    living: Vec<Member>,
    dead: BTreeMap<Incarnation, Dead>,
    table: BTreeMap<SegmentId, Entry>,
    /// Who has had what.
    had: BTreeSet<(SegmentId, Incarnation)>,
    /// Their volumes are being deleted: whoever has one was asked to drop it, or will be.
    going: BTreeSet<SegmentId>,
}

/// One who was declared dead. Nobody stops it.
struct Dead {
    _member: Member,
    /// What its log says; none before its end was decided.
    holdings: Option<BTreeMap<SegmentId, Holding>>,
}

/// What the table says of a segment.
#[derive(Clone)]
struct Entry {
    epoch: Epoch,
    /// In whose log it is, or was last known to be.
    holder: Incarnation,
    /// As it was left there, if it was released.
    left: Option<SegmentCheckpoint>,
    /// Who was told to have it, and may have it in its log, if that is not known.
    assignee: Option<Incarnation>,
}

fn tenure(epoch: Epoch) -> Tenure {
    Tenure { epoch, generation: Generation(1) }
}

impl Manager {
    /// Gives every segment its first owner.
    pub async fn begin(bed: &Bed) -> Manager {
        let mut manager = Manager {
            bed: bed.clone(),
            living: Vec::new(),
            dead: BTreeMap::new(),
            table: BTreeMap::new(),
            had: BTreeSet::new(),
            going: BTreeSet::new(),
        };
        for _ in 0..MEMBERS {
            manager.living.push(bed.join().await);
        }
        let segments: Vec<SegmentId> = bed.share.borrow().owners.keys().copied().collect();
        for segment in segments {
            let member = manager.pick();
            let epoch = Epoch(1 << 32);
            member.engine.create_segment(segment, tenure(epoch)).await.expect("nothing fails yet");
            manager.on_owned(segment, member, epoch);
        }
        manager
    }

    /// The engines that nobody declared dead.
    pub fn living(&self) -> &[Member] {
        &self.living
    }

    fn pick(&self) -> Member {
        self.bed.prng(|prng| prng.pick(&self.living).clone())
    }

    fn publish(&self, segment: SegmentId, member: Member, epoch: Epoch) {
        self.bed.share.borrow_mut().owners.insert(segment, Some(Owner { member, epoch }));
    }

    fn withdraw(&self, segment: SegmentId) {
        self.bed.share.borrow_mut().owners.insert(segment, None);
    }

    fn fail(&self, what: String) {
        self.bed.share.borrow_mut().failure.get_or_insert(what);
    }

    /// Does one thing.
    pub async fn act(&mut self) {
        match self.bed.prng(|prng| prng.below(16)) {
            0..=8 => self.move_one().await,
            9 | 10 => {
                let (fault, kind) = self.bed.prng(|prng| {
                    let faults = [AppendFault::Lost, AppendFault::Landed, AppendFault::Torn];
                    (*prng.pick(&faults), *prng.pick(&[FileKind::Journal, FileKind::Data, FileKind::Transaction]))
                });
                self.bed.memory.fail_appends(Some(kind), 1, fault);
            }
            11..=13 => {
                let victim = self.pick();
                self.declare_dead(victim.incarnation()).await;
            }
            _ => self.bed.pause(2_000).await,
        }
        self.settle().await;
    }

    /// Does `work`, or gives up in its middle.
    async fn or_die<T: 'static>(&self, work: impl Future<Output = Result<T>> + 'static) -> Option<Result<T>> {
        if !self.bed.prng(|prng| prng.one_in(4)) {
            return Some(work.await);
        }
        let work = self.bed.handle.spawn(Class::Io, "work that may die", work);
        let deadline = Duration::from_micros(self.bed.prng(|prng| prng.below(3_000)));
        self.bed.handle.sleep(deadline).await;
        match work.is_finished() {
            true => Some(work.await),
            false => None,
        }
    }

    /// Takes a segment from its owner. Who is to have it next is for [`Manager::settle`].
    async fn move_one(&mut self) {
        let segments: Vec<SegmentId> = self.table.keys().copied().collect();
        let segment = self.bed.prng(|prng| *prng.pick(&segments));
        let Entry { epoch, holder, .. } = self.table[&segment];
        let Some(from) = self.member(holder) else { return };
        tracing::info!(%segment, %holder, "release");
        let engine = from.engine.clone();
        let released = match self.or_die(async move { engine.release(segment, epoch).await }).await {
            Some(released) => released,
            None => {
                // Nobody knows what came of it: it is asked again.
                self.bed.count("moves_given_up");
                self.bed.pause(5_000).await;
                from.engine.release(segment, epoch).await
            }
        };
        match released {
            Ok(left) => {
                self.bed.count("moves");
                self.withdraw(segment);
                match self.bed.prng(|prng| prng.one_in(4)) {
                    // The answer was lost, and so is the source: its log says what it left.
                    true => self.declare_dead(holder).await,
                    false => {
                        if let Some(entry) = self.table.get_mut(&segment) {
                            entry.left = Some(left);
                        }
                    }
                }
            }
            // The store failed, and perhaps its log.
            Err(error) if matches!(error.kind, ErrorKind::Io | ErrorKind::Moved | ErrorKind::Conflict) => {
                self.declare_dead(holder).await;
            }
            Err(error) => self.fail(format!("release of {segment} by {holder}: {error} ({:?})", error.kind)),
        }
    }

    fn member(&self, incarnation: Incarnation) -> Option<Member> {
        self.living.iter().find(|member| member.incarnation() == incarnation).cloned()
    }

    /// It is fenced, and nobody stops it. Another one joins.
    async fn declare_dead(&mut self, victim: Incarnation) {
        let Some(at) = self.living.iter().position(|member| member.incarnation() == victim) else { return };
        let dead = self.living.swap_remove(at);
        tracing::info!(%victim, "dead");
        if self.bed.prng(|prng| prng.one_in(2)) {
            // What it appends now may be torn, and nobody lives to cut it off.
            let kinds = [FileKind::Journal, FileKind::Data, FileKind::Transaction];
            let kind = self.bed.prng(|prng| *prng.pick(&kinds));
            self.bed.memory.fail_appends(Some(kind), 4, AppendFault::Torn);
            self.bed.pause(500).await;
        }
        self.bed.count("deaths");
        self.bed.shared.fence(victim).await.expect("the store below does not fail");
        self.bed.memory.clear_faults();
        self.bed.count_work(&dead);
        self.dead.insert(victim, Dead { _member: dead, holdings: None });
        let held: Vec<SegmentId> =
            self.table.iter().filter(|(_, entry)| entry.holder == victim).map(|(id, _)| *id).collect();
        held.into_iter().for_each(|segment| self.withdraw(segment));
        self.living.push(self.bed.join().await);
    }

    /// Goes on until every segment is where it belongs, and nothing of the dead is needed.
    pub async fn settle(&mut self) {
        while self.bed.share.borrow().failure.is_none() {
            let unrecovered = self.dead.iter().find(|(_, dead)| dead.holdings.is_none()).map(|(id, _)| *id);
            if let Some(dead) = unrecovered {
                self.recover(dead).await;
                continue;
            }
            let is_homeless = |entry: &Entry| entry.left.is_some() || self.dead.contains_key(&entry.holder);
            match self.table.iter().find(|(_, entry)| is_homeless(entry)).map(|(id, _)| *id) {
                Some(segment) => self.assign(segment).await,
                None => break,
            }
        }
        for dead in std::mem::take(&mut self.dead).into_keys() {
            for info in self.bed.shared.files_of(dead) {
                if matches!(info.kind, FileKind::Journal | FileKind::Transaction) {
                    let deleted = self.living[0].store.delete(info.id).await;
                    deleted.expect("the store below does not fail");
                }
            }
        }
    }

    /// Drops every segment, whoever dies over it.
    pub async fn drop_everything(&mut self) {
        self.going = self.table.keys().copied().collect();
        while self.bed.share.borrow().failure.is_none() {
            self.settle().await;
            let Some((segment, entry)) = self.table.iter().next().map(|(id, entry)| (*id, entry.clone())) else {
                return;
            };
            let Some(owner) = self.member(entry.holder) else { continue };
            let (engine, epoch) = (owner.engine.clone(), entry.epoch);
            tracing::info!(%segment, holder = %entry.holder, %epoch, "drop");
            match self.or_die(async move { engine.drop_segment(segment, epoch).await }).await {
                Some(Ok(())) => drop(self.table.remove(&segment)),
                Some(Err(error)) => return self.fail(format!("drop of {segment} by {}: {error}", entry.holder)),
                None => {
                    self.bed.count("droppers_died");
                    self.declare_dead(entry.holder).await;
                    continue;
                }
            }
            match self.bed.prng(|prng| prng.below(4)) {
                0 => {
                    self.bed.pause(500).await;
                    self.declare_dead(entry.holder).await;
                }
                1 => {
                    // It stops, with a checkpoint at its end.
                    if let Err(error) = owner.engine.close().await {
                        self.fail(format!("{} does not close: {error}", entry.holder));
                    }
                    self.declare_dead(entry.holder).await;
                }
                _ => {}
            }
        }
    }

    /// Has the end of a dead engine's log decided.
    async fn recover(&mut self, dead: Incarnation) {
        let (recoverer, handle, options) = (self.pick(), self.bed.handle.clone(), self.bed.options.clone());
        tracing::info!(%dead, recoverer = %recoverer.incarnation(), "recover");
        let recover = async move {
            let estate = Estate::open(&handle, &recoverer.store, dead, &options).await?;
            estate.seal().await?;
            Ok((estate.holdings(), estate.recovery()))
        };
        let (holdings, found) = match self.or_die(recover).await {
            Some(Ok(found)) => found,
            // A fault of the store.
            Some(Err(error)) if error.kind == ErrorKind::Io => return,
            Some(Err(error)) => return self.fail(format!("the recovery of {dead}: {error} ({:?})", error.kind)),
            None => return self.bed.count("recoverers_died"),
        };
        self.bed.add("torn_tails", found.torn_tails);
        self.bed.add("replayed_writes", found.journal_records);
        self.bed.add("labelled_large_writes", found.labelled_large_writes);
        for (segment, entry) in self.table.iter_mut().filter(|(_, entry)| entry.assignee == Some(dead)) {
            // It was told to have it: does its log?
            entry.assignee = None;
            let has = matches!(holdings.get(segment), Some(Holding::Owned(tenure)) if tenure.epoch == entry.epoch);
            if has {
                (entry.holder, entry.left) = (dead, None);
                self.bed.count("adoptions_in_doubt");
            }
        }
        let is_dropped = |segment: &SegmentId, entry: &Entry| {
            entry.holder == dead && self.going.contains(segment) && !holdings.contains_key(segment)
        };
        self.table.retain(|segment, entry| !is_dropped(segment, entry));
        for (segment, entry) in self.table.iter().filter(|(_, entry)| entry.holder == dead && entry.left.is_none()) {
            if !holdings.contains_key(segment) {
                self.fail(format!("{segment} is not in the log of {dead}, which has it under {}", entry.epoch));
            }
        }
        for (segment, held) in &holdings {
            let Some(entry) = self.table.get(segment) else {
                if matches!(held, Holding::Owned(_)) {
                    self.fail(format!("{dead} holds {segment} as {held:?}, which was dropped"));
                }
                continue;
            };
            let is_its_own =
                matches!(held, Holding::Owned(tenure) if tenure.epoch == entry.epoch && entry.holder == dead);
            if matches!(held, Holding::Owned(_)) && !is_its_own {
                self.fail(format!(
                    "{dead} holds {segment} as {held:?}, which {} has under {}",
                    entry.holder, entry.epoch
                ));
            }
        }
        if let Some(dead) = self.dead.get_mut(&dead) {
            dead.holdings = Some(holdings);
        }
    }

    /// Gives a segment that nobody serves to somebody, under an epoch of its own.
    async fn assign(&mut self, segment: SegmentId) {
        let to = self.pick();
        let Some(entry) = self.table.get_mut(&segment) else { return };
        let before = entry.epoch;
        entry.epoch.0 += 1;
        entry.assignee = Some(to.incarnation());
        let Entry { epoch, holder, left, .. } = entry.clone();
        let is_left = left.is_some();
        // What somebody goes on copying of a segment that was dropped stays: rule 43 of docs/SAFETY.md.
        let is_going = self.going.contains(&segment);
        if !is_left && !is_going && self.bed.prng(|prng| prng.one_in(5)) {
            return self.have_refused(segment, to, holder, epoch).await;
        }
        tracing::info!(%segment, to = %to.incarnation(), %epoch, %holder, is_left, "assign");
        let (member, handle, options) = (to.clone(), self.bed.handle.clone(), self.bed.options.clone());
        let adopt = async move {
            let left = match left {
                Some(left) => left,
                None => {
                    let wanted = [segment].into();
                    let estate = Estate::open_sealed(&handle, &member.store, holder, &options, &wanted).await?;
                    estate.take(segment).await?
                }
            };
            member.engine.adopt(holder, left, tenure(epoch)).await
        };
        match self.or_die(adopt).await {
            Some(Ok(())) => {
                if let Some(source) = self.member(holder) {
                    source.engine.forget_release(segment, before);
                }
                self.bed.count(if is_left { "adopted_as_released" } else { "adopted" });
                if self.had.contains(&(segment, to.incarnation())) {
                    self.bed.count("adopted_back");
                }
                self.on_owned(segment, to, epoch);
            }
            // A fault of the store: nobody knows what its log says.
            Some(Err(error)) if error.kind == ErrorKind::Io => self.declare_dead(to.incarnation()).await,
            Some(Err(error)) => {
                self.fail(format!("adoption of {segment} by {}: {error} ({:?})", to.incarnation(), error.kind));
            }
            None => {
                self.bed.count("adopters_died");
                self.declare_dead(to.incarnation()).await;
            }
        }
    }

    /// An assignment is refused by one who lives, and who copies the segment already: that goes on, and is for nothing.
    async fn have_refused(&mut self, segment: SegmentId, to: Member, dead: Incarnation, epoch: Epoch) {
        tracing::info!(%segment, to = %to.incarnation(), %epoch, %dead, "refused");
        let (bed, member, is_refused) = (self.bed.clone(), to.clone(), Rc::new(Cell::new(false)));
        let may_adopt = is_refused.clone();
        bed.share.borrow_mut().copies += 1;
        let copying = async move {
            let copied = async {
                let wanted = [segment].into();
                let estate = Estate::open_sealed(&bed.handle, &member.store, dead, &bed.options, &wanted).await?;
                bed.pause(3_000).await;
                let left = estate.take(segment).await?;
                while !may_adopt.get() {
                    bed.pause(3_000).await;
                }
                member.engine.adopt(dead, left, tenure(epoch)).await
            };
            if copied.await.is_ok() {
                bed.fail(format!("{} refused {segment} under {epoch}, and has adopted it", member.incarnation()));
            }
            bed.share.borrow_mut().copies -= 1;
        };
        self.bed.handle.spawn(Class::Io, "a copy for nothing", copying).detach();
        self.bed.pause(6_000).await;
        match to.engine.refuse(segment, epoch) {
            Ok(()) => {}
            Err(error) => self.fail(format!("{} did not refuse {segment}: {error}", to.incarnation())),
        }
        is_refused.set(true);
        self.bed.count("refused");
        if let Some(entry) = self.table.get_mut(&segment) {
            entry.assignee = None;
        }
    }

    fn on_owned(&mut self, segment: SegmentId, member: Member, epoch: Epoch) {
        let holder = member.incarnation();
        self.had.insert((segment, holder));
        self.table.insert(segment, Entry { epoch, holder, left: None, assignee: None });
        self.publish(segment, member, epoch);
    }
}
