//! The head of a store: which lives there are, and what each may set aside.
//!
//! Whoever changes it says which head it has seen, in the same operation; if another one was faster, it looks again. Lives
//! are few, and the head changes when one begins or ends, and when one needs another gigabyte.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::{Error, Incarnation, Result, StoreId};
use runtime::Handle;

use super::failed;
use super::objects::{Change, Condition, Effect, Failure, LOOK_MAX, Objects};
use super::records::{
    DATA_HEAD, DATA_HEAD_ATTRIBUTE, DataHead, HEAD, HEAD_ATTRIBUTE, Head, LIFE_MAX, LifeRecord, OPEN, STATE, key,
    life_object, number,
};

/// Tries of one change, with pauses of up to [`PAUSE_MAX`]: many more than there are processes that begin at once.
const TRIES: u32 = 200;
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// The reserve is at most this part of the store.
const RESERVE_PART: u64 = 16;
/// This part of what the reserve would be in a large store is had by each life for its logs and for adoption in any case. A pool
/// can have become smaller than what is in it: others fill it, too, and its quota can be lowered. Who starts then, or takes
/// over, has to, so that what is there can be read and removed.
const ANYWAY_PART: u64 = 8;

/// See the module.
pub(super) struct Heads {
    pub(super) handle: Handle,
    pub(super) objects: Rc<dyn Objects>,
    /// See [`RadosOptions::reserve_bytes`](super::RadosOptions::reserve_bytes).
    pub(super) reserve_bytes: u64,
}

/// What a life may claim at most ([`LifeRecord::claim`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// With the reserve.
    pub(super) in_all: u64,
    /// Without it.
    pub(super) for_use: u64,
}

/// The head at one moment.
pub(super) struct Seen {
    pub(super) head: Head,
    bytes: Vec<u8>,
    pub(super) lives: BTreeMap<Incarnation, LifeRecord>,
}

/// A change of the head: lives that are as this says, or are no more.
type Lives = Vec<(Incarnation, Option<LifeRecord>)>;

impl Heads {
    /// The head, which is made where there is none.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Invalid`: it is of a newer version.
    pub(super) async fn open(&self) -> Result<Seen> {
        loop {
            if let Some(seen) = self.look().await? {
                return Ok(seen);
            }
            let head = Head { store: StoreId(self.random()), turn: 1, last: Incarnation(0), data: None };
            let first = Change::of_absent().and(Effect::SetAttribute(HEAD_ATTRIBUTE, head.encode()));
            match self.objects.change(HEAD, first).await {
                Ok(()) | Err(Failure::Exists) => {}
                Err(failure) => return Err(failed(failure, || "the store could not be made".into())),
            }
        }
    }

    async fn look(&self) -> Result<Option<Seen>> {
        'again: loop {
            let (mut seen, mut after) = (None::<Seen>, String::new());
            loop {
                let look = match self.objects.look(HEAD, &after, LOOK_MAX).await {
                    Ok(look) => look,
                    Err(Failure::Absent) => return Ok(None),
                    Err(failure) => return Err(failed(failure, || "the head of the store cannot be read".into())),
                };
                let bytes = look.attribute(HEAD_ATTRIBUTE).ok_or_else(|| self.no_head())?.to_vec();
                let seen = seen.get_or_insert(Seen { head: Head::decode(&bytes)?, bytes, lives: BTreeMap::new() });
                if look.attribute(HEAD_ATTRIBUTE) != Some(&seen.bytes) {
                    continue 'again;
                }
                for (key, value) in &look.entries {
                    seen.lives.insert(Incarnation(number(key)?), LifeRecord::decode(value)?);
                }
                match look.entries.last() {
                    Some((last, _)) if look.has_more => after.clone_from(last),
                    _ => break,
                }
            }
            return Ok(seen);
        }
    }

    fn random(&self) -> u128 {
        u128::from(self.handle.random_u64()) << 64 | u128::from(self.handle.random_u64())
    }

    fn no_head(&self) -> Error {
        Error::corrupt(format!("the object {HEAD} in {} is no head of a store of Levee", self.objects.name()))
    }

    /// Holds the store to one pool for data files: the first that is named, which is refused to other stores from then on.
    ///
    /// # Errors
    /// `Invalid`: the store has another one than `data`, or `data` has the files of another store. `Io`, `Corrupt`.
    pub(super) async fn bind(&self, data: Option<&dyn Objects>) -> Result<()> {
        let head = self.open().await?.head;
        let Some(data) = data else {
            return match head.data {
                None => Ok(()),
                Some(_) => Err(Error::invalid(format!(
                    "the store in {} keeps data files in a pool of their own: name it, as in rados:POOL?data=POOL",
                    self.objects.name()
                ))),
            };
        };
        let found = self.data_head(head.store, data).await?;
        if found.store != head.store {
            return Err(Error::invalid(format!(
                "{} has data files of another store, and not of {}: name another pool or namespace",
                data.name(),
                self.objects.name()
            )));
        }
        self.change(|seen| match seen.head.data {
            None => Ok(Some((Head { data: Some(found.id), ..seen.head }, vec![]))),
            Some(id) if id == found.id => Ok(None),
            Some(_) => Err(Error::invalid(format!(
                "the store in {} keeps data files in another pool than {}: name that one",
                self.objects.name(),
                data.name()
            ))),
        })
        .await
        .map(drop)
    }

    /// What a pool for data files says of itself, `store`'s if it has not said anything yet.
    async fn data_head(&self, store: StoreId, data: &dyn Objects) -> Result<DataHead> {
        let what = || format!("the pool for data files, {}", data.name());
        loop {
            match data.look(DATA_HEAD, "", 0).await {
                Ok(look) => {
                    let bytes = look.attribute(DATA_HEAD_ATTRIBUTE);
                    return DataHead::decode(bytes.unwrap_or_default()).map_err(|error| error.context(what()));
                }
                Err(Failure::Absent) => {}
                Err(failure) => return Err(failed(failure, what)),
            }
            let first = DataHead { store, id: self.random() }.encode();
            let first = Change::of_absent().and(Effect::SetAttribute(DATA_HEAD_ATTRIBUTE, first));
            match data.change(DATA_HEAD, first).await {
                Ok(()) | Err(Failure::Exists) => {}
                Err(failure) => return Err(failed(failure, what)),
            }
        }
    }

    /// Changes the head: `decide` says what to do with what there is, nothing or what it is to be and lives that change. Gives
    /// the head as it is then.
    ///
    /// # Errors
    /// What `decide` says; `Io`: nobody knows whether it was done.
    async fn change(&self, mut decide: impl FnMut(&Seen) -> Result<Option<(Head, Lives)>>) -> Result<Seen> {
        for _ in 0..TRIES {
            let mut seen = self.seen().await?;
            let Some((next, lives)) = decide(&seen)? else { return Ok(seen) };
            let next = Head { turn: seen.head.turn + 1, ..next };
            let mut change = Change::of_present()
                .only_if(Condition::Attribute(HEAD_ATTRIBUTE, seen.bytes.clone()))
                .and(Effect::SetAttribute(HEAD_ATTRIBUTE, next.encode()));
            for (life, record) in lives {
                match record {
                    Some(record) => {
                        change = change.and(Effect::SetEntry(key(life.0), record.encode()));
                        seen.lives.insert(life, record);
                    }
                    None => {
                        change = change.and(Effect::RemoveEntry(key(life.0)));
                        seen.lives.remove(&life);
                    }
                }
            }
            match self.objects.change(HEAD, change).await {
                Ok(()) => return Ok(Seen { head: next, ..seen }),
                Err(Failure::Changed) => {
                    let pause = self.handle.random_u64() % PAUSE_MAX.as_nanos() as u64;
                    self.handle.sleep(Duration::from_nanos(pause)).await;
                }
                Err(failure) => return Err(failed(failure, || "the head of the store could not be changed".into())),
            }
        }
        Err(Error::retry("others change the head of the store all the time: try again"))
    }

    /// Begins one more life: its object, then its number in the head. An object of that name that is there already is that
    /// of a life that was fenced before it began, or of one that began at the same time.
    ///
    /// # Errors
    /// `Io`, `Invalid`.
    pub(super) async fn begin_life(&self) -> Result<(StoreId, Incarnation)> {
        let mut begun = None;
        let mut candidate = self.open().await?.head.last;
        loop {
            let life = match begun {
                Some(life) => life,
                None => {
                    candidate.0 += 1;
                    if candidate.0 > LIFE_MAX {
                        return Err(Error::invalid("this store has had all lives that it can have: make another one"));
                    }
                    let first = Change::of_absent().and(Effect::SetAttribute(STATE, OPEN.to_vec()));
                    match self.objects.change(&life_object(candidate), first).await {
                        Ok(()) => {}
                        Err(Failure::Exists) => continue,
                        Err(failure) => return Err(failed(failure, || "a life could not begin".into())),
                    }
                    *begun.insert(candidate)
                }
            };
            let entered = self.change(|seen| {
                // It may have been done by a try of which nobody heard.
                let is_free = life > seen.head.last && !seen.lives.contains_key(&life);
                let next = Head { last: life, ..seen.head };
                Ok(is_free.then(|| (next, vec![(life, Some(LifeRecord::default()))])))
            });
            let seen = entered.await?;
            if seen.lives.get(&life) == Some(&LifeRecord::default()) {
                return Ok((seen.head.store, life));
            }
            // A higher one was faster. Nobody has heard of this one.
            let _ = self.objects.change(&life_object(life), Change::of_present().and(Effect::Remove)).await;
            (begun, candidate) = (None, seen.head.last);
        }
    }

    /// Changes what a life may set aside, as `decide` says, who is told what that may be at most.
    ///
    /// # Errors
    /// `Fenced`; `Io`: nobody knows whether it was done.
    pub(super) async fn grant(
        &self,
        life: Incarnation,
        capacity: u64,
        decide: impl Fn(LifeRecord, Room) -> LifeRecord,
    ) -> Result<LifeRecord> {
        let granted = self.change(|seen| {
            let record = seen.lives.get(&life).filter(|record| !record.is_fenced);
            let record = *record.ok_or_else(|| Error::fenced(format!("incarnation {life} was fenced")))?;
            let others = seen.lives.iter().filter(|(id, _)| **id != life).map(|(_, other)| other.claim());
            // What the store has for itself: records.
            let left = capacity.saturating_sub(others.sum::<u64>() + capacity / 64);
            let room = Room {
                in_all: left.max(self.reserve_bytes / ANYWAY_PART),
                for_use: left.saturating_sub(self.reserve_of(capacity)),
            };
            let next = decide(record, room);
            Ok((next != record).then(|| (seen.head, vec![(life, Some(next))])))
        });
        let seen = granted.await?;
        Ok(seen.lives.get(&life).copied().unwrap_or_default())
    }

    fn reserve_of(&self, capacity: u64) -> u64 {
        self.reserve_bytes.min(capacity / RESERVE_PART)
    }

    /// A life is over, and has left this much.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn end_life(&self, life: Incarnation, left: Option<u64>) -> Result<()> {
        self.change(|seen| {
            let record = seen.lives.get(&life);
            let over = left.map(|left| LifeRecord { is_fenced: true, granted: 0, used: left });
            Ok((record.is_some() && record != over.as_ref()).then(|| (seen.head, vec![(life, over)])))
        })
        .await
        .map(drop)
    }

    /// The head as it is.
    ///
    /// # Errors
    /// `Io`, `NotFound`.
    pub(super) async fn seen(&self) -> Result<Seen> {
        let seen = self.look().await?;
        seen.ok_or_else(|| Error::not_found(format!("there is no store in {} any more", self.objects.name())))
    }
}
