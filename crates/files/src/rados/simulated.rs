//! A pool in memory, for tests: no cluster, but a cluster's ways to fail.
//!
//! A change takes effect some time after it was submitted, in the order of submission for each object, and is answered some
//! time after that. One that is made to fail has no answer that helps (`Io`): it was done, or never will be, or still will be
//! later, whatever was submitted behind it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, BLOCK, Error, Prng, TIB};
use runtime::{Class, Handle};

use super::objects::{Change, Condition, Effect, Failure, Look, Objects};
use crate::LocalBoxFuture;

/// What a pool is like.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Bytes that it takes.
    pub capacity: u64,
    /// How long it takes until a change is done, and again until there is an answer, drawn evenly.
    pub latency_ns: Range<u64>,
    /// One change of so many has no answer; 0: none.
    pub lost_one_in: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions { capacity: TIB, latency_ns: 10_000..200_000, lost_one_in: 0 }
    }
}

/// The objects of a pool. Clones share them.
#[derive(Clone)]
pub struct Pool(Rc<RefCell<State>>);

struct State {
    options: PoolOptions,
    prng: Prng,
    objects: BTreeMap<String, Object>,
    changes: u64,
    /// When the last change of an object takes effect.
    turns: BTreeMap<String, base::Instant>,
}

#[derive(Default)]
struct Object {
    bytes: Vec<u8>,
    attributes: BTreeMap<String, Vec<u8>>,
    entries: BTreeMap<String, Vec<u8>>,
}

impl Pool {
    /// An empty pool. Everything random in it depends on `seed` only.
    pub fn new(seed: u64, options: PoolOptions) -> Pool {
        Pool(Rc::new(RefCell::new(State {
            options,
            prng: Prng::new(seed),
            objects: BTreeMap::new(),
            changes: 0,
            turns: BTreeMap::new(),
        })))
    }

    /// The pool as it is reached from a loop.
    pub fn reached_from(&self, handle: &Handle) -> Rc<dyn Objects> {
        Rc::new(Reached { pool: self.clone(), handle: handle.clone() })
    }

    /// Loses answers from now on, or no more.
    pub fn set_lost_one_in(&self, lost_one_in: u64) {
        self.0.borrow_mut().options.lost_one_in = lost_one_in;
    }

    /// Changes that were asked for so far.
    pub fn changes(&self) -> u64 {
        self.0.borrow().changes
    }
}

impl State {
    fn delay(&mut self) -> Duration {
        let Range { start, end } = self.options.latency_ns;
        Duration::from_nanos(self.prng.between(start, end.max(start + 1) - 1))
    }

    fn apply(&mut self, name: &str, change: &Change) -> Result<(), Failure> {
        let object = self.objects.get(name);
        for condition in &change.conditions {
            match (condition, object) {
                (Condition::Absent, Some(_)) => return Err(Failure::Exists),
                (Condition::Absent, None) => {}
                (_, None) => return Err(Failure::Absent),
                (Condition::Present, Some(_)) => {}
                (Condition::Attribute(attribute, value), Some(object)) => {
                    if object.attributes.get(*attribute) != Some(value) {
                        return Err(Failure::Changed);
                    }
                }
                (Condition::Entry(key, value), Some(object)) => {
                    if object.entries.get(key) != Some(value) {
                        return Err(Failure::Changed);
                    }
                }
            }
        }
        let used: usize = self.objects.values().map(|object| object.bytes.len()).sum();
        let more = change.effects.iter().map(|effect| match effect {
            Effect::Write { offset, data } => {
                (*offset as usize + data.len()).saturating_sub(object.map_or(0, |object| object.bytes.len()))
            }
            _ => 0,
        });
        if (used + more.sum::<usize>()) as u64 > self.options.capacity {
            return Err(Failure::Other(Error::full("the pool is full")));
        }
        for effect in &change.effects {
            if let Effect::Remove = effect {
                match self.objects.remove(name) {
                    Some(_) => continue,
                    None => return Err(Failure::Absent),
                }
            }
            let object = self.objects.entry(name.to_owned()).or_default();
            match effect.clone() {
                Effect::Write { offset, data } => {
                    let (from, to) = (offset as usize, offset as usize + data.len());
                    object.bytes.resize(object.bytes.len().max(to), 0);
                    object.bytes[from..to].copy_from_slice(&data.joined());
                }
                Effect::SetAttribute(attribute, value) => drop(object.attributes.insert(attribute.into(), value)),
                Effect::SetEntry(key, value) => drop(object.entries.insert(key, value)),
                Effect::RemoveEntry(key) => drop(object.entries.remove(&key)),
                Effect::Remove => {}
            }
        }
        Ok(())
    }
}

struct Reached {
    pool: Pool,
    handle: Handle,
}

impl Reached {
    fn after_a_while<T: 'static>(
        &self,
        look: impl FnOnce(&State) -> Result<T, Failure> + 'static,
    ) -> LocalBoxFuture<'static, Result<T, Failure>> {
        let (state, handle) = (self.pool.0.clone(), self.handle.clone());
        Box::pin(async move {
            let until = state.borrow_mut().delay();
            handle.sleep(until).await;
            let looked = look(&state.borrow());
            let until = state.borrow_mut().delay();
            handle.sleep(until).await;
            looked
        })
    }
}

impl Objects for Reached {
    fn name(&self) -> String {
        "the simulated pool".into()
    }

    fn change(&self, object: &str, change: Change) -> LocalBoxFuture<'static, Result<(), Failure>> {
        let mut state = self.pool.0.borrow_mut();
        state.changes += 1;
        let lost = state.options.lost_one_in;
        // Done, not done, or done later, when others may have come.
        let loss = (lost > 0 && state.prng.one_in(lost)).then(|| state.prng.below(3));
        let (before, answer, late) = (state.delay(), state.delay(), 20 * state.delay());
        let last = state.turns.get(object).copied().unwrap_or_default();
        let turn = last.max(self.handle.now() + before);
        if loss != Some(2) {
            state.turns.insert(object.to_owned(), turn);
        }
        let (name, handle, pool) = (object.to_owned(), self.handle.clone(), self.pool.clone());
        let (sender, receiver) = runtime::sync::oneshot();
        // What was submitted is done whether or not its process lives: the timer below goes with the loop, and a change that
        // does is one that the network lost.
        let doing = async move {
            handle.sleep_until(turn).await;
            if loss == Some(2) {
                sender.send(Err(Failure::Other(Error::io("the pool gave no answer"))));
                handle.sleep(late).await;
                let _ = pool.0.borrow_mut().apply(&name, &change);
                return;
            }
            let done = if loss == Some(1) { Ok(()) } else { pool.0.borrow_mut().apply(&name, &change) };
            handle.sleep(answer).await;
            sender.send(match loss {
                None => done,
                Some(_) => Err(Failure::Other(Error::io("the pool gave no answer"))),
            });
        };
        self.handle.spawn(Class::Io, "a change of an object", doing).detach();
        Box::pin(async move {
            receiver.await.unwrap_or_else(|| Err(Failure::Other(Error::internal("the loop is shutting down"))))
        })
    }

    fn read(&self, object: &str, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf, Failure>> {
        let name = object.to_owned();
        self.after_a_while(move |state| {
            let bytes = &state.objects.get(&name).ok_or(Failure::Absent)?.bytes;
            let there = bytes.get(offset as usize..).unwrap_or_default();
            Ok(AlignedBuf::copy_of(&there[..there.len().min(len)]))
        })
    }

    fn look(&self, object: &str, after: &str, max: usize) -> LocalBoxFuture<'static, Result<Look, Failure>> {
        let (name, after) = (object.to_owned(), after.to_owned());
        self.after_a_while(move |state| {
            let object = state.objects.get(&name).ok_or(Failure::Absent)?;
            let mut behind = object.entries.iter().filter(|(key, _)| **key > after);
            let entries = behind.by_ref().take(max).map(|(key, value)| (key.clone(), value.clone())).collect();
            let attributes = object.attributes.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            Ok(Look { attributes, entries, has_more: behind.next().is_some() })
        })
    }

    fn capacity(&self) -> LocalBoxFuture<'static, Result<u64, Failure>> {
        self.after_a_while(|state| Ok(state.options.capacity / BLOCK * BLOCK))
    }
}
