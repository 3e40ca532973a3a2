//! The one who decides who has what, as the model of ownership says: `lab/src/protocol/ownership`.

use std::collections::BTreeMap;

use base::{Epoch, ErrorKind, Incarnation, SegmentId, Term};
use wire::{Assignment, Holding, LeftSegment, SegmentOwner, Source};

use crate::bed::{Bed, Member, SEGMENTS, VOLUME};

const MEMBERS: usize = 3;
/// It is in charge once, and for ever.
const TERM: Term = Term(1);

/// See the module.
pub struct Manager {
    bed: Bed,
    living: Vec<Member>,
    /// Who was declared dead, and what its log says; nothing before its end was decided.
    dead: BTreeMap<Incarnation, Option<Vec<Holding>>>,
    table: BTreeMap<SegmentId, Entry>,
}

/// What the table says of a segment.
#[derive(Clone)]
struct Entry {
    epoch: Epoch,
    /// In whose log it is.
    holder: Incarnation,
    /// As it was left there, if it was released.
    left: Option<LeftSegment>,
}

impl Manager {
    /// Gives every segment its first owner.
    pub async fn begin(bed: &Bed) -> Manager {
        let (living, table) = (Vec::new(), BTreeMap::new());
        let mut manager = Manager { bed: bed.clone(), living, dead: BTreeMap::new(), table };
        for _ in 0..MEMBERS {
            manager.living.push(bed.join().await);
        }
        for index in 0..SEGMENTS {
            let (segment, member, epoch) = (SegmentId { volume: VOLUME, index }, manager.pick(), Epoch(1 << 32));
            let outcome = member.owner.assign(TERM, vec![manager.assignment(segment, epoch, Source::Nobody)]).await;
            outcome.into_iter().for_each(|outcome| outcome.unwrap());
            manager.on_owned(segment, &member, epoch);
        }
        manager
    }

    fn assignment(&self, segment: SegmentId, epoch: Epoch, source: Source) -> Assignment {
        Assignment { volume: self.bed.share.borrow().volume.clone(), segment, epoch, source }
    }

    fn pick(&self) -> Member {
        self.bed.prng(|prng| prng.pick(&self.living).clone())
    }

    fn member(&self, incarnation: Incarnation) -> Option<Member> {
        self.living.iter().find(|member| member.incarnation() == incarnation).cloned()
    }

    fn withdraw(&self, segment: SegmentId) {
        self.bed.share.borrow_mut().owners.insert(segment, None);
    }

    fn on_owned(&mut self, segment: SegmentId, member: &Member, epoch: Epoch) {
        let holder = member.incarnation();
        self.table.insert(segment, Entry { epoch, holder, left: None });
        self.bed.share.borrow_mut().owners.insert(segment, Some((holder, epoch)));
    }

    /// Does one thing.
    pub async fn act(&mut self) {
        match self.bed.prng(|prng| prng.below(16)) {
            0..=8 => self.move_one().await,
            9..=11 => {
                let victim = self.pick().incarnation();
                self.declare_dead(victim).await;
            }
            12 => self.attach().await,
            _ => self.bed.pause(2_000).await,
        }
        self.settle().await;
    }

    async fn move_one(&mut self) {
        let segment = SegmentId { volume: VOLUME, index: self.bed.prng(|prng| prng.below(SEGMENTS.into())) as u32 };
        let Entry { epoch, holder, .. } = self.table[&segment];
        let Some(from) = self.member(holder) else { return };
        match from.owner.release(TERM, segment, epoch).await {
            Ok(left) => {
                self.bed.count("moves");
                self.withdraw(segment);
                if let Some(entry) = self.table.get_mut(&segment) {
                    entry.left = Some(left);
                }
            }
            Err(error) => self.bed.fail(format!("release of {segment} by {holder}: {error} ({:?})", error.kind)),
        }
    }

    /// Attaches the volume anew: it returns when every present owner has that.
    async fn attach(&mut self) {
        let volume = {
            let mut state = self.bed.share.borrow_mut();
            state.volume.generation.0 += 1;
            state.volume.clone()
        };
        for (segment, Entry { holder, epoch, .. }) in &self.table {
            let Some(owner) = self.member(*holder) else { continue };
            if let Err(error) = owner.owner.begin_attachment(TERM, volume.clone(), *segment, *epoch).await {
                self.bed.fail(format!("attachment at {holder}: {error} ({:?})", error.kind));
            }
        }
        let hold = self.bed.attach(volume.generation).await;
        self.bed.on_attached(hold);
    }

    /// It is fenced, and nobody stops it. Another one joins.
    async fn declare_dead(&mut self, victim: Incarnation) {
        self.living.retain(|member| member.incarnation() != victim);
        self.bed.count("deaths");
        self.bed.shared.fence(victim).await.unwrap();
        self.dead.insert(victim, None);
        let held: Vec<SegmentId> =
            self.table.iter().filter(|(_, entry)| entry.holder == victim).map(|(id, _)| *id).collect();
        held.into_iter().for_each(|segment| self.withdraw(segment));
        self.living.push(self.bed.join().await);
    }

    /// Goes on until every segment is where it belongs.
    async fn settle(&mut self) {
        while !self.bed.has_failed() {
            let unrecovered = self.dead.iter().find(|(_, holdings)| holdings.is_none()).map(|(id, _)| *id);
            if let Some(dead) = unrecovered {
                match self.pick().owner.recover(TERM, dead).await {
                    Ok(holdings) => drop(self.dead.insert(dead, Some(holdings))),
                    Err(error) => self.bed.fail(format!("recovery of {dead}: {error} ({:?})", error.kind)),
                }
                continue;
            }
            let is_homeless = |entry: &Entry| entry.left.is_some() || self.dead.contains_key(&entry.holder);
            let homeless: Vec<SegmentId> =
                self.table.iter().filter(|(_, entry)| is_homeless(entry)).map(|(id, _)| *id).collect();
            if homeless.is_empty() {
                break;
            }
            self.assign(homeless).await;
        }
        self.dead.clear();
    }

    /// Gives segments that nobody serves to somebody, each under an epoch of its own, some of them together.
    async fn assign(&mut self, mut segments: Vec<SegmentId>) {
        let to = self.pick();
        segments.truncate(self.bed.prng(|prng| prng.between(1, 4)) as usize);
        let (mut assignments, mut sources) = (Vec::new(), Vec::new());
        for segment in segments {
            let Some(entry) = self.table.get_mut(&segment) else { continue };
            let (before, holder, left) = (entry.epoch, entry.holder, entry.left.clone());
            entry.epoch.0 += 1;
            let epoch = entry.epoch;
            let is_held = |holdings: &Vec<Holding>| holdings.iter().any(|held| held.segment == segment);
            if left.is_none() && !self.dead[&holder].as_ref().is_some_and(is_held) {
                return self.bed.fail(format!("{segment} is not in the log of {holder}"));
            }
            let source = left.map_or(Source::Estate(holder), Source::Left);
            sources.push((segment, epoch, holder, before));
            assignments.push(self.assignment(segment, epoch, source));
        }
        let outcomes = to.owner.assign(TERM, assignments).await;
        for ((segment, epoch, holder, before), outcome) in sources.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => {
                    match self.member(holder) {
                        Some(source) => source.owner.forget_release(TERM, segment, before).await.unwrap(),
                        None => self.bed.count("inherited"),
                    }
                    self.on_owned(segment, &to, epoch);
                }
                Err(error) if error.kind == ErrorKind::Retry => {}
                Err(error) => {
                    let to = to.incarnation();
                    return self.bed.fail(format!("adoption of {segment} by {to}: {error} ({:?})", error.kind));
                }
            }
        }
    }
}
