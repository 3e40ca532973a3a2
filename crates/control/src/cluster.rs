//! A manager of several servers, as agents, engines, other managers and people see it.
//!
//! **Intuition.** There are several managers and one is in charge. All of them hear from engines that they live
//! ([`engines`]), so that whoever takes over knows whom there is to ask; only the one in charge answers for volumes
//! ([`volumes`]) and segments, out of the tables that it keeps ([`Keeper`]). Who asks another one is told so, and asks the
//! next.
//!
//! **Invariants.** What was answered of a volume is durable. An attachment returns when the owners of all segments have
//! recorded it (rule 47 of docs/SAFETY.md); a volume is gone when all of them have dropped theirs (rule 49).
//!
//! **Flow.** *Engine*: `register -> Engines -> Keeper: on_registered`, and from then on orders go to it ([`Dispatch`]). *Agent*:
//! `resolve -> attach -> locate`, and `locate` again when a segment has moved. *Person*: the calls of [`crate::service`],
//! from the same API as that of one server; how all of it stands is asked of everybody then ([`observing`]).

mod calls;
mod engines;
mod observing;
mod show;
mod volumes;

use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::{Error, Incarnation, Instant, Result, SegmentId, Term, VolumeId};
use files::Store;
use policies::ownership::{Settings, Table};
use runtime::Handle;
use runtime::sync::{first, join_all};
use wire::{
    EngineRegistry, LeaseStore, LocalBoxFuture, Located, Observer, Registered, SegmentDirectory, SegmentOwner,
    VolumeDescriptor, VolumeOwner,
};

use self::engines::Engines;
use self::volumes::Takings;
use crate::charge::{self, Candidate};
use crate::owners::dispatch::Dispatch;
use crate::owners::keeper::Keeper;
use crate::owners::log::{self, FileLog, Join};
use crate::table::{Row, VolumeTable};

/// How long somebody waits for what engines have to do first: record an attachment, drop a segment.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the tables are looked at meanwhile, besides when something has happened.
const LOOK: Duration = Duration::from_millis(50);

/// There is one partition so far.
const PARTITION: u32 = 0;
/// Between the name of a manager and the address of its API, in what others see of who is in charge.
const API: &str = " API ";

/// What a manager is told.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// An engine that was not heard of for so long is dead.
    pub lease: Duration,
    /// How the log of the tables is kept.
    pub log: log::Options,
    /// How segments are placed and moved.
    pub ownership: Settings,
    /// Where its API is, for other managers.
    pub api: Option<SocketAddr>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lease: Duration::from_secs(2),
            log: log::Options::default(),
            ownership: Settings::default(),
            api: None,
        }
    }
}

/// The way to an engine.
#[derive(Clone)]
pub struct Way {
    /// To ask it for segments.
    pub segments: Rc<dyn SegmentOwner>,
    /// To tell it of volumes.
    pub volumes: Rc<dyn VolumeOwner>,
    /// To ask it how it stands.
    pub observer: Rc<dyn Observer>,
    /// Returns when the connection with it was lost, which is made if there is none; an error if it cannot be made.
    pub lost: Lost,
    /// Whether its machine says that nobody listens there any more.
    pub is_refused: Rc<dyn Fn() -> bool>,
}

/// Who uses a volume, as far as agents say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Users {
    /// Clients.
    pub clients: usize,
    /// Agents that are in touch and did not answer in time: they may have more.
    pub silent_agents: usize,
}

/// Agents that are in touch.
pub trait Agents {
    /// Who uses a volume. Waits for nobody for longer than `patience`.
    fn users(&self, volume: VolumeId, patience: Duration) -> LocalBoxFuture<'_, Users>;

    /// To ask each of them how it stands.
    fn observers(&self) -> Vec<Rc<dyn Observer>>;

    /// Tells them what a volume was promised.
    fn learn_levels(&self, volume: &VolumeDescriptor);

    /// Has them let go of a volume.
    fn release(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()>;
}

/// The way to an engine at an address.
pub type Connect = Rc<dyn Fn(Incarnation, &str) -> Way>;

/// Returns when a connection was lost.
pub type Lost = Rc<dyn Fn() -> LocalBoxFuture<'static, Result<()>>>;

/// Who else there is.
#[derive(Clone)]
pub struct Others {
    /// The way to an engine at an address.
    pub connect: Connect,
    /// The other managers.
    pub managers: Vec<Rc<dyn EngineRegistry>>,
    /// Agents.
    pub agents: Rc<dyn Agents>,
}

/// A manager of several servers. Dropped, it is one no more.
pub struct ClusterManager {
    handle: Handle,
    name: String,
    store: Store,
    leases: Rc<dyn LeaseStore>,
    begun: Instant,
    keeper: Rc<Keeper>,
    dispatch: Rc<Dispatch>,
    engines: Rc<Engines>,
    takings: Takings,
    others: Others,
}

impl ClusterManager {
    /// A manager of this name, which stands for being in charge from now on. It has a life of its own in `store`; when that
    /// is over, it begins another one by `join`.
    pub fn start(
        handle: &Handle,
        name: &str,
        store: &Store,
        join: Join,
        leases: Rc<dyn LeaseStore>,
        others: Others,
        options: Options,
    ) -> Rc<ClusterManager> {
        Rc::new_cyclic(|this: &Weak<ClusterManager>| {
            let describe = this.clone();
            let describe = move |volume| describe.upgrade().and_then(|manager| manager.description(volume));
            let managers = others.managers.clone();
            let others_miss = move |missing: Vec<Incarnation>| -> LocalBoxFuture<'static, Result<Vec<Incarnation>>> {
                Box::pin(ask_others(managers.clone(), missing))
            };
            let log = Rc::new(FileLog::joining(store, join, options.log));
            let present = log.clone();
            let present = move || present.store();
            let dispatch = Dispatch::new(handle, Rc::new(present), Rc::new(describe), Rc::new(others_miss));
            let shown = options.api.map_or(name.to_owned(), |api| format!("{name}{API}{api}"));
            let candidate = charge::Options { name: shown, partition: PARTITION };
            let candidate = Candidate::stand(handle, leases.clone(), log.clone(), candidate);
            let keeper = Rc::new(Keeper::start(handle, candidate, log, dispatch.clone(), options.ownership));
            dispatch.set_keeper(&keeper);
            let engines = Engines::new(handle, keeper.clone(), dispatch.clone(), others.connect.clone(), options.lease);
            let (handle, name) = (handle.clone(), name.to_owned());
            let (store, begun) = (store.clone(), handle.now());
            let takings = Takings::default();
            ClusterManager { handle, name, store, leases, begun, keeper, dispatch, engines, takings, others }
        })
    }

    /// Whether it is in charge.
    pub fn is_in_charge(&self) -> bool {
        self.keeper.term().is_some()
    }

    /// How many servers are in touch; none while it is not in charge.
    pub fn servers_in_touch(&self) -> usize {
        let servers = self.keeper.look(|owners, _| {
            let names = owners.living().filter(|(engine, _)| self.engines.missing(vec![*engine]).is_empty());
            names.map(|(_, server)| server.to_owned()).collect::<std::collections::BTreeSet<_>>().len()
        });
        servers.unwrap_or_default()
    }

    /// The term in which it is in charge, if it is.
    pub fn term(&self) -> Option<Term> {
        self.keeper.term()
    }

    /// # Errors
    /// `Moved`: it is not in charge.
    fn look<T>(&self, look: impl FnOnce(&Table, &VolumeTable) -> T) -> Result<T> {
        self.keeper.look(look).ok_or_else(|| self.not_in_charge())
    }

    fn not_in_charge(&self) -> Error {
        Error::moved(format!("the manager {} is not in charge: ask the others", self.name))
    }

    /// What an engine needs to know of a volume to have a segment of it: also of one that is being deleted, of which a segment
    /// on its way is dropped when it has arrived.
    fn description(&self, volume: VolumeId) -> Option<VolumeDescriptor> {
        self.look(|owners, volumes| volumes.row(volume).map(|row| described(owners, row))).ok().flatten()
    }

    /// Waits until the tables have what `look` looks for. Engines have to do something first, which may take long if one of
    /// them is dead.
    ///
    /// # Errors
    /// `Retry`: that takes too long. `Moved`: it is not in charge any more.
    async fn wait<T>(&self, what: &str, look: impl Fn(&Table, &VolumeTable) -> Option<T>) -> Result<T> {
        let begun = self.handle.now();
        loop {
            let done = self.dispatch.done().wait();
            if let Some(found) = self.look(&look)? {
                return Ok(found);
            }
            if self.handle.now() - begun >= PATIENCE {
                let seconds = PATIENCE.as_secs();
                return Err(Error::retry(format!(
                    "{what} takes longer than {seconds} s: see `levee status` for who is missing"
                )));
            }
            let _ = first(done, self.handle.sleep(LOOK)).await;
        }
    }
}

/// What agents and engines need to know of a volume.
fn described(owners: &Table, row: &Row) -> VolumeDescriptor {
    let generation = owners.volume(row.id).map_or(row.generation, |volume| volume.generation);
    VolumeDescriptor { generation, ..row.descriptor() }
}

/// Asks the other managers which of these engines they miss, too: those that all who answer miss. One of them may have lost
/// touch, too. One who is alone has renewed its own lease, and can do no more.
async fn ask_others(managers: Vec<Rc<dyn EngineRegistry>>, missing: Vec<Incarnation>) -> Result<Vec<Incarnation>> {
    if managers.is_empty() {
        return Ok(missing);
    }
    let asked = join_all(managers.iter().map(|manager| manager.missing(missing.clone()))).await;
    let (mut agreed, mut answers, mut last) = (missing, 0, Error::io("no other manager answers"));
    for answer in asked {
        match answer {
            Ok(theirs) => {
                agreed.retain(|engine| theirs.contains(engine));
                answers += 1;
            }
            Err(error) => last = error,
        }
    }
    if answers > 0 { Ok(agreed) } else { Err(last) }
}

impl SegmentDirectory for ClusterManager {
    fn locate(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Located>> {
        Box::pin(std::future::ready(self.place_of(segment)))
    }
}

impl ClusterManager {
    fn place_of(&self, segment: SegmentId) -> Result<Located> {
        let (owner, epoch) = self.look(|owners, _| {
            let row = owners.segment(segment).filter(|row| !row.is_dropped);
            let row = row.ok_or_else(|| Error::not_found(format!("there is no segment {segment}")))?;
            let holder = row.holder.filter(|holder| owners.lives(*holder) && !row.is_released);
            holder.map(|holder| (holder, row.epoch)).ok_or_else(|| Error::retry(format!("{segment} is on its way")))
        })??;
        let address = self.engines.address(owner);
        let address =
            address.ok_or_else(|| Error::retry(format!("{owner} has {segment}, and was not heard of yet")))?;
        Ok(Located { owner, address, epoch })
    }
}

impl EngineRegistry for ClusterManager {
    fn register<'a>(
        &'a self,
        engine: Incarnation,
        server: &'a str,
        address: &'a str,
    ) -> LocalBoxFuture<'a, Result<Registered>> {
        Box::pin(self.engines.register(engine, server, address))
    }

    fn missing(&self, engines: Vec<Incarnation>) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>> {
        Box::pin(std::future::ready(self.engines.missing_too(engines)))
    }
}

#[cfg(test)]
mod tests {
    use runtime::sim::{NodeOptions, World};

    use super::*;

    /// A manager that misses these, or does not answer.
    struct Other(Option<Vec<u64>>);

    impl EngineRegistry for Other {
        fn register<'a>(&'a self, _: Incarnation, _: &'a str, _: &'a str) -> LocalBoxFuture<'a, Result<Registered>> {
            Box::pin(async { Err(Error::io("it is only asked")) })
        }

        fn missing(&self, engines: Vec<Incarnation>) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>> {
            Box::pin(async move {
                let missing = self.0.as_ref().ok_or_else(|| Error::io("it does not answer"))?;
                Ok(engines.into_iter().filter(|engine| missing.contains(&engine.0)).collect())
            })
        }
    }

    fn agreed(others: &[Option<&[u64]>]) -> Option<Vec<u64>> {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        let registry =
            |missing: &Option<&[u64]>| -> Rc<dyn EngineRegistry> { Rc::new(Other(missing.map(<[u64]>::to_vec))) };
        let others = others.iter().map(registry).collect();
        let asked = ask_others(others, [1, 2, 3].map(Incarnation).to_vec());
        let agreed = world.block_on(&handle, asked).ok()?;
        Some(agreed.into_iter().map(|engine| engine.0).collect())
    }

    /// The first of them may be behind the same broken link.
    #[test]
    fn nobody_is_missing_whom_another_manager_hears() {
        assert_eq!(agreed(&[Some(&[1, 2, 3]), Some(&[2])]), Some(vec![2]));
        assert_eq!(agreed(&[Some(&[1, 2, 3]), None]), Some(vec![1, 2, 3]));
        assert_eq!(agreed(&[None, Some(&[])]), Some(vec![]));
        assert_eq!(agreed(&[None, None]), None);
        assert_eq!(agreed(&[]), Some(vec![1, 2, 3]));
    }
}
