//! A pool in memory, for tests: no cluster, but a cluster's ways to fail.
//!
//! The pool is a machine of its own in the simulated world. A change takes some time to get there, is done there whether or
//! not whoever asked still lives, and is answered some time after that. Those of one client to one object are done in the order
//! in which they were submitted; between clients, and between objects, there is none. While a link is cut changes wait, as the
//! client's kernel and library would repeat them. One that is made to fail has no answer that helps (`Io`): it was done, or
//! never will be, or still will be later, whatever was submitted behind it.
//!
//! It has [`OSDS`] OSDs, of which [`COPIES`] have each object. All of them are asked for each change, and the first one for reads.
//! One with erasure coding keeps no entries, and no OSD has all of an object.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, BLOCK, Error, Incarnation, Prng, Result as Outcome, TIB};
use runtime::sim::{Link, NodeOptions, World};
use runtime::{Class, Handle};

use super::objects::{Change, Condition, Copy, Effect, Failure, Look, Objects};
use super::records::{HEAD, HEAD_ATTRIBUTE, Head, LifeRecord, creator, file_of_part, number};
use crate::LocalBoxFuture;
use crate::shared::LifeInfo;

/// OSDs of a pool.
pub const OSDS: u64 = 6;
/// Copies of each object.
const COPIES: u64 = 3;
/// How often somebody looks whether a link is mended.
const LOOK: Duration = Duration::from_millis(20);

/// What a pool is like.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Bytes that it takes.
    pub capacity: u64,
    /// How long it takes until a change is done, and again until there is an answer, drawn evenly.
    pub latency_ns: Range<u64>,
    /// One change of so many has no answer; 0: none.
    pub lost_one_in: u64,
    /// It has erasure coding.
    pub is_erasure_coded: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions { capacity: TIB, latency_ns: 10_000..200_000, lost_one_in: 0, is_erasure_coded: false }
    }
}

/// The objects of a pool. Clones share them.
#[derive(Clone)]
pub struct Pool {
    /// The loop of the pool's machine.
    handle: Handle,
    state: Rc<RefCell<State>>,
}

struct State {
    options: PoolOptions,
    prng: Prng,
    objects: BTreeMap<String, Object>,
    /// Bytes of all of them.
    used: u64,
    changes: u64,
    /// How many times slower than usual it is.
    slowness: u64,
    /// The OSD that is so many times slower than the others.
    slow_osd: Option<(u64, u32)>,
}

#[derive(Default)]
struct Object {
    bytes: Vec<u8>,
    attributes: BTreeMap<String, Vec<u8>>,
    entries: BTreeMap<String, Vec<u8>>,
}

impl Pool {
    /// An empty pool, on a machine of its own.
    pub fn new(world: &World, options: PoolOptions) -> Pool {
        let state = State {
            options,
            prng: world.fork_prng(),
            objects: BTreeMap::new(),
            used: 0,
            changes: 0,
            slowness: 1,
            slow_osd: None,
        };
        let handle = world.start_loop(world.add_node(NodeOptions::default()));
        Pool { handle, state: Rc::new(RefCell::new(state)) }
    }

    /// The pool as it is reached from a loop: one client of it.
    pub fn reached_from(&self, handle: &Handle) -> Rc<dyn Objects> {
        Rc::new(Client { pool: self.clone(), handle: handle.clone(), links: None, queues: Rc::default() })
    }

    /// The same over links, the one there and the one back: no further than these carry anything.
    pub fn reached_over(&self, handle: &Handle, there: Link, back: Link) -> Rc<dyn Objects> {
        let links = Some([there, back]);
        Rc::new(Client { pool: self.clone(), handle: handle.clone(), links, queues: Rc::default() })
    }

    /// Loses answers from now on, or no more.
    pub fn set_lost_one_in(&self, lost_one_in: u64) {
        self.state.borrow_mut().options.lost_one_in = lost_one_in;
    }

    /// Everything takes so many times as long as usual from now on.
    pub fn set_slowness(&self, factor: u64) {
        self.state.borrow_mut().slowness = factor;
    }

    /// One OSD is so many times slower than others from now on; none: no more.
    pub fn set_slow_osd(&self, osd: Option<(u64, u32)>) {
        self.state.borrow_mut().slow_osd = osd;
    }

    /// Changes that were asked for so far.
    pub fn changes(&self) -> u64 {
        self.state.borrow().changes
    }

    /// Every life of which the store has anything, by number, with the bytes that are in its files, here or in the pool for data
    /// files. One that the store has forgotten is over.
    ///
    /// # Errors
    /// `Corrupt`: an object that the pool has under a name of Levee's is none of its.
    pub fn lives(&self, data: Option<&Pool>) -> Outcome<Vec<LifeInfo>> {
        let state = self.state.borrow();
        let Some(head) = state.objects.get(HEAD) else { return Ok(vec![]) };
        let last = head.attributes.get(HEAD_ATTRIBUTE).map(|bytes| Head::decode(bytes)).transpose()?;
        let of =
            |incarnation, is_fenced, granted_bytes| LifeInfo { incarnation, is_fenced, granted_bytes, used_bytes: 0 };
        let mut lives = BTreeMap::new();
        for (key, value) in &head.entries {
            let (life, record) = (Incarnation(number(key)?), LifeRecord::decode(value)?);
            lives.insert(life, of(life, record.is_fenced, record.granted));
        }
        let data = data.map(|data| data.state.borrow());
        for (name, object) in state.objects.iter().chain(data.iter().flat_map(|data| &data.objects)) {
            let Some(file) = file_of_part(name) else { continue };
            let life = creator(file);
            let is_over = last.is_some_and(|head| life <= head.last);
            lives.entry(life).or_insert_with(|| of(life, is_over, 0)).used_bytes += object.bytes.len() as u64;
        }
        Ok(lives.into_values().collect())
    }
}

impl State {
    fn delay(&mut self) -> Duration {
        let Range { start, end } = self.options.latency_ns;
        Duration::from_nanos(self.prng.between(start, end.max(start + 1) - 1) * self.slowness)
    }

    /// The same where these OSDs are asked.
    fn delay_of(&mut self, mut osds: impl Iterator<Item = u64>) -> Duration {
        let delay = self.delay();
        match self.slow_osd {
            Some((slow, factor)) if osds.any(|osd| osd == slow) => delay * factor,
            _ => delay,
        }
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
                (Condition::NoEntry(key), Some(object)) => {
                    if object.entries.get(key).is_some_and(|value| !value.is_empty()) {
                        return Err(Failure::Changed);
                    }
                }
            }
        }
        let is_of_entry = |effect: &Effect| matches!(effect, Effect::SetEntry(..) | Effect::RemoveEntry(_));
        if self.options.is_erasure_coded && change.effects.iter().any(is_of_entry) {
            return Err(no_entries());
        }
        let had = object.map_or(0, |object| object.bytes.len());
        let ends = change.effects.iter().map(|effect| match effect {
            Effect::Write { offset, data } => *offset as usize + data.len(),
            _ => 0,
        });
        let more = ends.max().unwrap_or(0).saturating_sub(had) as u64;
        if change.is_for_use && more > 0 && self.used + more > self.options.capacity {
            return Err(Failure::Other(Error::full("the pool is full")));
        }
        self.used += more;
        for effect in &change.effects {
            if let Effect::Remove = effect {
                let Some(object) = self.objects.remove(name) else { return Err(Failure::Absent) };
                self.used -= object.bytes.len() as u64;
                continue;
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

/// A client of a pool, as each process is one.
struct Client {
    pool: Pool,
    handle: Handle,
    /// To the pool, and back.
    links: Option<[Link; 2]>,
    /// What is on its way to each object, in order.
    queues: Rc<RefCell<Queues>>,
}

type Queues = BTreeMap<String, VecDeque<Rc<Asked>>>;

/// A change that was asked for.
struct Asked {
    object: String,
    change: Change,
    loss: Option<Loss>,
    outcome: Cell<Option<Result<(), Failure>>>,
}

/// What becomes of a change without an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// It is done.
    OfAnswer,
    /// It never is.
    OfChange,
    /// It is, when others may have come.
    Late,
}

fn no_entries() -> Failure {
    Failure::Other(Error::invalid("the simulated pool keeps no entries"))
}

/// The OSDs that have an object, first who answers for it.
fn osds_of(object: &str) -> impl Iterator<Item = u64> + use<> {
    let first = u64::from(base::checksum::crc32c(object.as_bytes()));
    (0..COPIES).map(move |copy| (first + copy) % OSDS)
}

/// A packet travels over a link, once that is mended.
async fn travel(handle: &Handle, link: Option<&Link>) {
    let Some(link) = link else { return };
    loop {
        match link.delay() {
            Some(delay) => return handle.sleep(delay).await,
            None => handle.sleep(LOOK).await,
        }
    }
}

/// The first change that is on its way to an object.
fn next_of(queues: &mut Queues, object: &str) -> Option<Rc<Asked>> {
    let queue = queues.get_mut(object)?;
    let first = queue.pop_front();
    if queue.is_empty() {
        queues.remove(object);
    }
    first
}

impl Client {
    fn links(&self) -> [Option<Link>; 2] {
        match &self.links {
            Some([there, back]) => [Some(there.clone()), Some(back.clone())],
            None => [None, None],
        }
    }

    /// Looks after a while, of which `delay` is the first half.
    fn after<T: 'static>(
        &self,
        delay: Duration,
        look: impl FnOnce(&State) -> Result<T, Failure> + 'static,
    ) -> LocalBoxFuture<'static, Result<T, Failure>> {
        let (state, handle, [there, back]) = (self.pool.state.clone(), self.handle.clone(), self.links());
        Box::pin(async move {
            travel(&handle, there.as_ref()).await;
            handle.sleep(delay).await;
            let looked = look(&state.borrow());
            let until = state.borrow_mut().delay();
            handle.sleep(until).await;
            travel(&handle, back.as_ref()).await;
            looked
        })
    }
}

impl Objects for Client {
    fn name(&self) -> String {
        "the simulated pool".into()
    }

    fn change(&self, object: &str, change: Change) -> LocalBoxFuture<'static, Result<(), Failure>> {
        let (loss, before, answer, late) = {
            let mut state = self.pool.state.borrow_mut();
            state.changes += 1;
            let lost = state.options.lost_one_in;
            let is_lost = lost > 0 && state.prng.one_in(lost);
            let loss = is_lost.then(|| *state.prng.pick(&[Loss::OfAnswer, Loss::OfChange, Loss::Late]));
            (loss, state.delay_of(osds_of(object)), state.delay(), 20 * state.delay())
        };
        let asked = Rc::new(Asked { object: object.to_owned(), change, loss, outcome: Cell::default() });
        if loss != Some(Loss::Late) {
            self.queues.borrow_mut().entry(object.to_owned()).or_default().push_back(asked.clone());
        }
        let (at_the_pool, state, [there, back]) = (self.pool.handle.clone(), self.pool.state.clone(), self.links());
        let (queues, submitted) = (self.queues.clone(), asked.clone());
        let doing = async move {
            at_the_pool.sleep(before).await;
            travel(&at_the_pool, there.as_ref()).await;
            if submitted.loss == Some(Loss::Late) {
                at_the_pool.sleep(late).await;
                let _ = state.borrow_mut().apply(&submitted.object, &submitted.change);
                return;
            }
            // The first that arrives is the first that was submitted, whose it was.
            let Some(first) = next_of(&mut queues.borrow_mut(), &submitted.object) else { return };
            if first.loss != Some(Loss::OfChange) {
                let done = state.borrow_mut().apply(&first.object, &first.change);
                first.outcome.set(Some(done));
            }
        };
        self.pool.handle.spawn(Class::Io, "a change of an object", doing).detach();
        let handle = self.handle.clone();
        Box::pin(async move {
            handle.sleep(before + answer).await;
            if asked.loss.is_some() {
                return Err(Failure::Other(Error::io("the pool gave no answer")));
            }
            let mut pause = answer;
            loop {
                if let Some(done) = asked.outcome.take() {
                    travel(&handle, back.as_ref()).await;
                    return done;
                }
                handle.sleep(pause).await;
                pause = (2 * pause).min(LOOK);
            }
        })
    }

    fn read(
        &self,
        object: &str,
        offset: u64,
        len: usize,
        copy: Copy,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf, Failure>> {
        let delay = {
            let mut state = self.pool.state.borrow_mut();
            let which = if copy == Copy::Any { state.prng.below(COPIES) } else { 0 };
            state.delay_of(osds_of(object).skip(which as usize).take(1))
        };
        let name = object.to_owned();
        self.after(delay, move |state| {
            let bytes = &state.objects.get(&name).ok_or(Failure::Absent)?.bytes;
            let there = bytes.get(offset as usize..).unwrap_or_default();
            Ok(AlignedBuf::copy_of(&there[..there.len().min(len)]))
        })
    }

    fn holders(&self, object: &str) -> LocalBoxFuture<'static, Result<Vec<String>, Failure>> {
        let delay = self.pool.state.borrow_mut().delay();
        let holders = osds_of(object).map(|osd| format!("osd.{osd}")).collect();
        self.after(delay, move |_| Ok(holders))
    }

    fn look(&self, object: &str, after: &str, max: usize) -> LocalBoxFuture<'static, Result<Look, Failure>> {
        let delay = self.pool.state.borrow_mut().delay_of(osds_of(object).take(1));
        let (name, after) = (object.to_owned(), after.to_owned());
        self.after(delay, move |state| {
            let object = state.objects.get(&name).ok_or(Failure::Absent)?;
            if max > 0 && state.options.is_erasure_coded {
                return Err(no_entries());
            }
            let mut behind = object.entries.iter().filter(|(key, _)| **key > after);
            let entries = behind.by_ref().take(max).map(|(key, value)| (key.clone(), value.clone())).collect();
            let attributes = object.attributes.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            Ok(Look { attributes, entries, has_more: behind.next().is_some() })
        })
    }

    fn has_copies(&self) -> bool {
        !self.pool.state.borrow().options.is_erasure_coded
    }

    fn capacity(&self) -> LocalBoxFuture<'static, Result<u64, Failure>> {
        let delay = self.pool.state.borrow_mut().delay();
        self.after(delay, move |state| Ok(state.options.capacity / BLOCK * BLOCK))
    }
}
