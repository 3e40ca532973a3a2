//! How several servers stand, for people.

use std::collections::BTreeMap;

use base::{Incarnation, Result, SegmentId};
use policies::ownership::{Death, Segment, Table};
use wire::api;
use wire::observe::Snapshot;

use crate::table::VolumeTable;

use super::ClusterManager;

/// Segments on their way that are named; of the others there is a count.
const NAMED_MAX: usize = 100;

impl ClusterManager {
    /// What this manager knows by itself, without what is in the tables of servers and segments.
    ///
    /// # Errors
    /// `Moved`: another manager is in charge.
    pub(super) fn own(&self) -> Result<Snapshot> {
        Ok(Snapshot {
            name: self.name.clone(),
            store: self.store.id().to_string(),
            incarnation: self.store.incarnation().0,
            uptime_seconds: (self.handle.now() - self.begun).as_secs_f64(),
            volumes: self.look(|_, volumes| volumes.shown().count())?,
            ..Snapshot::default()
        })
    }

    /// How servers and segments stand, as the tables have it. Nobody is asked.
    ///
    /// # Errors
    /// `Moved`: another manager is in charge.
    pub fn cluster(&self) -> Result<api::Cluster> {
        let term = self.keeper.term().unwrap_or_default().0;
        let manager = api::ManagerInCharge { name: self.name.clone(), term };
        let cluster = self.look(|owners, volumes| self.in_tables(owners, volumes))?;
        Ok(api::Cluster { manager: Some(manager), ..cluster })
    }

    fn in_tables(&self, owners: &Table, volumes: &VolumeTable) -> api::Cluster {
        let mut servers: BTreeMap<&str, api::Server> = BTreeMap::new();
        let mut of_server = |engine: Incarnation, name| {
            let is_drained = owners.is_drained(name);
            let fresh = || api::Server { name: name.to_owned(), is_drained, ..api::Server::default() };
            let server: &mut api::Server = servers.entry(name).or_insert_with(fresh);
            let row = self.engine(owners, engine);
            server.segments += row.segments;
            server.engines.push(row);
        };
        for (engine, name) in owners.living() {
            of_server(engine, name);
        }
        for (engine, _) in owners.deaths() {
            if let Some(name) = owners.server(engine) {
                of_server(engine, name);
            }
        }
        let rows = || owners.segments().filter(|(_, row)| !row.is_dropped);
        let is_settled = |row: &Segment| {
            row.assignment.is_none() && !row.is_released && row.holder.is_some_and(|holder| owners.lives(holder))
        };
        let on_the_way = || rows().filter(|(_, row)| !is_settled(row));
        let moving = on_the_way().take(NAMED_MAX).map(|(id, row)| on_its_way(owners, volumes, id, &row));
        let gone = self.engines.lately().into_iter().filter(|(name, _)| !servers.contains_key(name.as_str()));
        let gone = gone.map(|(name, silent)| api::GoneServer { name, silent_seconds: silent.as_secs_f64() });
        let gone = gone.collect();
        api::Cluster {
            gone,
            servers: servers.into_values().collect(),
            segments: rows().count(),
            segments_on_the_way: on_the_way().count(),
            moving: moving.collect(),
            ..api::Cluster::default()
        }
    }

    fn engine(&self, owners: &Table, engine: Incarnation) -> api::Engine {
        let state = match owners.death(engine) {
            None if self.engines.missing(vec![engine]).is_empty() => "healthy",
            None => "silent",
            Some(Death { is_fenced: false, .. }) => "dead",
            Some(Death { is_recovered: false, .. }) => "recovering",
            Some(_) => "recovered",
        };
        api::Engine {
            id: engine.0,
            address: self.engines.address(engine).unwrap_or_default(),
            state: state.into(),
            silent_seconds: self.engines.silent_for(engine).map(|silent| silent.as_secs_f64()),
            segments: owners.held_by(engine).count(),
            ..api::Engine::default()
        }
    }
}

/// What a segment waits for.
fn on_its_way(owners: &Table, volumes: &VolumeTable, id: SegmentId, row: &Segment) -> api::SegmentMove {
    let name = |engine: Incarnation| owners.server(engine).unwrap_or("a server that is forgotten").to_owned();
    let to = row.assignment.map(|assignment| name(assignment.engine));
    let from = row.holder.map(name);
    let waits_for = match (row.holder, &to) {
        (Some(holder), _) if !owners.lives(holder) && !owners.is_recovered(holder) => {
            format!("{} is dead, and its log is being recovered", name(holder))
        }
        (_, None) => "a server that may have it".to_owned(),
        (None, Some(to)) => format!("{to} to create it"),
        (Some(_), Some(to)) if row.is_released => format!("{to} to adopt it"),
        (Some(holder), Some(to)) if !owners.lives(holder) => format!("{to} to adopt it"),
        (Some(holder), Some(_)) => format!("{} to release it", name(holder)),
    };
    let volume = volumes.row(id.volume).map_or_else(|| id.volume.to_string(), |row| row.name.clone());
    api::SegmentMove { volume, index: id.index, from, to, waits_for }
}
