//! What servers and agents tell a manager when somebody asks it.
//!
//! **Intuition.** Nobody tells anything unasked. All who are in touch are asked at once, and whoever has not answered within
//! a second is shown without numbers: one that hangs holds nobody up.
//!
//! **Invariants.** An answer is believed only of the engine that was meant: another one may live at its address by now.
//! What is added up is for people; of metrics each process's own are shown ([`wire::observe::Source`]), because a sum would
//! go backwards when one is missing.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, Incarnation, Result, VolumeId};
use runtime::sync::first;
use runtime::{Class, Handle};
use wire::observe::{Detail, Explained, Role, Snapshot, Source};
use wire::{LocalBoxFuture, Observer, api};

use super::ClusterManager;
use crate::service::VolumeView;
use crate::table::Row;

/// How long whoever is asked may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// What came of asking all who are in touch.
pub(super) struct Told<T> {
    /// Engines that live, by server and number. Those that are not in touch were not asked.
    engines: Vec<(Engine, Result<T>)>,
    /// Agents that have answered.
    agents: Vec<T>,
}

#[derive(Clone)]
struct Engine {
    server: String,
    engine: Incarnation,
    observer: Option<Rc<dyn Observer>>,
}

impl ClusterManager {
    /// The state of everything.
    ///
    /// # Errors
    /// `Moved`: another manager is in charge.
    pub(super) async fn snapshot(&self) -> Result<Snapshot> {
        let told = self.ask_all(Detail::Full).await?;
        self.put_together(told)
    }

    /// The same, with every volume.
    ///
    /// # Errors
    /// `Moved`.
    pub(super) async fn status(&self) -> Result<(Snapshot, Vec<VolumeView>)> {
        let told = self.ask_all(Detail::Full).await?;
        let rows = self.rows().await?;
        let views = views(rows, &told.agents);
        Ok((self.put_together(told)?, views))
    }

    /// Every volume by name, those that are being deleted last.
    ///
    /// # Errors
    /// `Moved`.
    pub(super) async fn volumes(&self) -> Result<Vec<VolumeView>> {
        let rows = self.rows().await?;
        Ok(views(rows, &self.ask_agents(Detail::Full).await))
    }

    /// Where NBD clients connect.
    pub(super) async fn listeners(&self) -> Arc<[String]> {
        listeners(&self.ask_agents(Detail::WithoutVolumes).await)
    }

    /// Why I/O of a volume waits.
    ///
    /// # Errors
    /// `Moved`.
    pub(super) async fn explained(&self, volume: VolumeId) -> Result<Explained> {
        let ask = move |observer: Rc<dyn Observer>| -> LocalBoxFuture<'static, Result<Explained>> {
            Box::pin(async move { observer.explain(volume).await })
        };
        let engines = self.engines_to_ask()?;
        let (engines, agents) = self.gather(engines, ask, |explained| explained.incarnation).await;
        let mut segments: BTreeMap<Incarnation, usize> = BTreeMap::new();
        self.look(|owners, _| {
            let of_volume = owners.segments().filter(|(id, row)| id.volume == volume && !row.is_dropped);
            of_volume.filter_map(|(_, row)| row.holder).for_each(|holder| *segments.entry(holder).or_default() += 1);
        })?;
        let mut all = Explained::default();
        agents.iter().for_each(|agent| all.add(agent));
        for (engine, said) in engines {
            let segments = segments.remove(&engine.engine).unwrap_or_default();
            let row = api::ExplainedEngine {
                server: engine.server,
                engine: engine.engine.0,
                segments,
                ..api::ExplainedEngine::default()
            };
            match said {
                Err(error) if segments > 0 => {
                    all.engines.push(api::ExplainedEngine { silent: Some(error.message), ..row });
                }
                Err(_) => {}
                // It has nothing to do with the volume, and its state says nothing of it.
                Ok(said) if segments == 0 && said.started_requests == 0 => {}
                Ok(said) => {
                    all.add(&said);
                    all.engines.push(api::ExplainedEngine {
                        started_requests: said.started_requests,
                        waits: said.waits,
                        admission: said.admission,
                        ..row
                    });
                }
            }
        }
        // What is left are those that live no more.
        let silent = Some("it is dead, and its segments go to others".to_owned());
        let row = |(engine, segments): (Incarnation, usize)| {
            self.look(|owners, _| api::ExplainedEngine {
                server: owners.server(engine).unwrap_or_default().to_owned(),
                engine: engine.0,
                segments,
                silent: silent.clone(),
                ..api::ExplainedEngine::default()
            })
        };
        for dead in segments.into_iter().map(row) {
            all.engines.push(dead?);
        }
        Ok(all)
    }

    async fn ask_all(&self, detail: Detail) -> Result<Told<Snapshot>> {
        let engines = self.engines_to_ask()?;
        let (engines, agents) = self.gather(engines, how_it_stands(detail), |snapshot| snapshot.incarnation).await;
        Ok(Told { engines, agents })
    }

    async fn ask_agents(&self, detail: Detail) -> Vec<Snapshot> {
        self.gather(vec![], how_it_stands(detail), |snapshot| snapshot.incarnation).await.1
    }

    /// Asks engines, and all agents in touch. `is_of` gives the number of the engine that has answered.
    async fn gather<T: 'static>(
        &self,
        engines: Vec<Engine>,
        ask: impl Fn(Rc<dyn Observer>) -> LocalBoxFuture<'static, Result<T>>,
        is_of: impl Fn(&T) -> u64,
    ) -> (Vec<(Engine, Result<T>)>, Vec<T>) {
        let asked = engines.iter().filter_map(|engine| engine.observer.clone());
        let asked: Vec<Rc<dyn Observer>> = asked.chain(self.others.agents.observers()).collect();
        let mut answers = at_once(&self.handle, asked, ask).await.into_iter();
        let told = engines.into_iter().map(|engine| {
            let said = match engine.observer {
                Some(_) => answers.next().unwrap_or_else(|| Err(Error::internal("it was not asked"))),
                None => Err(Error::io("it was not heard of lately")),
            };
            let said = said.and_then(|said| match is_of(&said) == engine.engine.0 {
                true => Ok(said),
                false => Err(Error::io("another engine answers at its address")),
            });
            (engine, said)
        });
        let told = told.collect();
        (told, answers.filter_map(|answer| answer.inspect_err(unanswered).ok()).collect())
    }

    /// Engines that live, by server; each with the way to it if it is in touch.
    fn engines_to_ask(&self) -> Result<Vec<Engine>> {
        let living = self
            .look(|owners, _| owners.living().map(|(engine, server)| (server.to_owned(), engine)).collect::<Vec<_>>());
        let mut living = living?;
        living.sort();
        let with_ways = living.into_iter().map(|(server, engine)| {
            let observer = self.engines.observer(engine);
            Engine { server, engine, observer }
        });
        Ok(with_ways.collect())
    }

    fn put_together(&self, told: Told<Snapshot>) -> Result<Snapshot> {
        let mut all = self.own()?;
        let mut cluster = self.cluster()?;
        for (engine, said) in told.engines {
            let Engine { server, engine, .. } = engine;
            let row = row_of(&mut cluster, engine.0);
            match said {
                Ok(snapshot) => {
                    if let Some(row) = row {
                        row.work = Some(work(&snapshot));
                    }
                    all.add(&snapshot);
                    all.sources.push(Source { role: Role::Engine { server, engine: engine.0 }, snapshot });
                }
                Err(error) => {
                    all.scrub.silent_engines += 1;
                    // That it is silent is said already.
                    if let Some(row) = row.filter(|row| row.state == "healthy") {
                        row.no_answer = Some(error.message);
                    }
                }
            }
        }
        for snapshot in told.agents {
            let agent = fresh_name(&snapshot.name, &cluster.agents);
            let (nbd, uptime_seconds, connections) =
                (snapshot.nbd.clone(), snapshot.uptime_seconds, snapshot.connections);
            cluster.agents.push(api::Agent { name: agent.clone(), nbd, uptime_seconds, connections });
            for slow in &snapshot.slow_engines {
                // It may know one that is dead by now.
                if let Some(row) = row_of(&mut cluster, slow.engine) {
                    row.slow.push(api::SlowFor { agent: agent.clone(), part: slow.part.to_string() });
                }
            }
            all.add(&snapshot);
            all.sources.push(Source { role: Role::Agent { agent }, snapshot });
        }
        cluster.agents.sort_by(|one, other| one.name.cmp(&other.name));
        all.cluster = Some(cluster);
        self.name_volumes(&mut all)?;
        Ok(all)
    }

    /// Servers know volumes by number, and agents have counted some that are gone.
    fn name_volumes(&self, all: &mut Snapshot) -> Result<()> {
        self.look(|_, volumes| {
            let names: BTreeMap<VolumeId, &str> = volumes.shown().map(|row| (row.id, row.name.as_str())).collect();
            let sources = all.sources.iter_mut().map(|source| &mut source.snapshot.traffic);
            for traffic in sources.chain([&mut all.traffic]) {
                traffic.retain_mut(|volume| match names.get(&volume.volume) {
                    Some(name) => {
                        volume.name = (*name).to_owned();
                        true
                    }
                    None => false,
                });
            }
        })
    }
}

/// Asks all at the same time, each for at most [`PATIENCE`]. The answers in their order.
async fn at_once<T: 'static>(
    handle: &Handle,
    observers: Vec<Rc<dyn Observer>>,
    ask: impl Fn(Rc<dyn Observer>) -> LocalBoxFuture<'static, Result<T>>,
) -> Vec<Result<T>> {
    let deadline = handle.now() + PATIENCE;
    let begin = |observer| {
        let (asking, patience) = (ask(observer), handle.sleep_until(deadline));
        let answer = async move {
            let late = || Error::io(format!("it has not answered within {} s", PATIENCE.as_secs()));
            first(asking, patience).await.unwrap_or_else(|()| Err(late()))
        };
        handle.spawn(Class::Io, "ask how it stands", answer)
    };
    let asking: Vec<_> = observers.into_iter().map(begin).collect();
    let mut answers = Vec::with_capacity(asking.len());
    for task in asking {
        answers.push(task.await);
    }
    answers
}

fn how_it_stands(detail: Detail) -> impl Fn(Rc<dyn Observer>) -> LocalBoxFuture<'static, Result<Snapshot>> {
    move |observer| Box::pin(async move { observer.observe(detail).await })
}

fn unanswered(error: &Error) {
    tracing::debug!(%error, "an agent has not told how it stands");
}

fn row_of(cluster: &mut api::Cluster, engine: u64) -> Option<&mut api::Engine> {
    cluster.servers.iter_mut().flat_map(|server| &mut server.engines).find(|row| row.id == engine)
}

fn work(snapshot: &Snapshot) -> api::EngineWork {
    api::EngineWork {
        uptime_seconds: snapshot.uptime_seconds,
        operations: snapshot.served.iter().map(|counters| counters.traffic()).collect(),
        waiting_requests: snapshot.admission.as_ref().map_or(0, |admission| admission.waiting_requests),
        used_bytes: snapshot.space.used_bytes,
        memory: snapshot.memory.clone(),
    }
}

/// Two agents of one name are a mistake, and their metrics are told apart all the same.
fn fresh_name(name: &str, taken: &[api::Agent]) -> String {
    let is_free = |name: &str| taken.iter().all(|agent| agent.name != name);
    let numbered = (2..).map(|number| format!("{name}#{number}"));
    std::iter::once(name.to_owned()).chain(numbered).find(|name| is_free(name)).unwrap_or_default()
}

fn listeners(agents: &[Snapshot]) -> Arc<[String]> {
    let mut all: Vec<String> = agents.iter().flat_map(|agent| agent.nbd.iter().cloned()).collect();
    all.sort();
    all.dedup();
    all.into()
}

fn views(rows: Vec<Row>, agents: &[Snapshot]) -> Vec<VolumeView> {
    let nbd = listeners(agents);
    let mut clients: BTreeMap<VolumeId, u64> = BTreeMap::new();
    for volume in agents.iter().flat_map(|agent| &agent.traffic) {
        let count = clients.entry(volume.volume).or_default();
        *count = count.saturating_add(volume.clients);
    }
    let view = |row: Row| {
        let clients = clients.get(&row.id).map_or(0, |count| usize::try_from(*count).unwrap_or(usize::MAX));
        VolumeView { row, clients, nbd: nbd.clone() }
    };
    let mut views: Vec<VolumeView> = rows.into_iter().map(view).collect();
    VolumeView::sort(&mut views);
    views
}
