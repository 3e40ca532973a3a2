//! Which engine gets a segment.
//!
//! The least loaded server that is in touch and not being drained, and its least loaded engine; before that, one that stays
//! within the bound over the mean, and that has no other segment of the group. Whoever has refused the segment is not
//! offered it again before its time, and one that is missing gets nothing while anybody is in touch: a segment that all
//! who could take it have refused waits.

use std::collections::{BTreeMap, BTreeSet};

use base::limits::SEGMENTS_PER_GROUP;
use base::{Incarnation, Prng, SegmentId};

use super::doubt::Doubt;
use super::table::Table;

/// What a server may have, where segments and servers are so many: the mean, and so many percent more, rounded up.
pub(super) fn bound(segments: usize, servers: usize, over_mean_percent: usize) -> usize {
    (segments * (100 + over_mean_percent)).div_ceil(100 * servers.max(1))
}

/// The servers as they are when some segments are given away; kept up while they are.
pub(super) struct Places {
    servers: Vec<Place>,
    /// What a server may have.
    bound: usize,
}

pub(super) struct Place {
    pub(super) name: String,
    pub(super) load: usize,
    /// The engines in touch, or all where none is, each with its load.
    engines: Vec<(Incarnation, usize)>,
    is_missing: bool,
    is_drained: bool,
}

impl Place {
    /// Whether it may own segments.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_missing && !self.is_drained
    }
}

impl Places {
    /// `more` segments that nobody has are to come.
    pub(super) fn new(table: &Table, doubt: &Doubt, more: usize, over_mean_percent: usize) -> Places {
        let mut by_name: BTreeMap<&str, Vec<(Incarnation, usize)>> = BTreeMap::new();
        for (engine, server) in table.living() {
            by_name.entry(server).or_default().push((engine, table.load(engine)));
        }
        let place = |(name, engines): (&str, Vec<(Incarnation, usize)>)| {
            let load = engines.iter().map(|(_, load)| load).sum();
            let in_touch = |(engine, _): &(Incarnation, usize)| !doubt.is_missing(*engine);
            let is_missing = !engines.iter().any(in_touch);
            let engines = engines.into_iter().filter(|engine| is_missing || in_touch(engine)).collect();
            Place { name: name.to_owned(), load, engines, is_missing, is_drained: table.is_drained(name) }
        };
        let servers: Vec<Place> = by_name.into_iter().map(place).collect();
        let usable = servers.iter().filter(|place| place.is_usable()).count();
        let segments = servers.iter().map(|place| place.load).sum::<usize>() + more;
        let bound = bound(segments, usable, over_mean_percent);
        Places { servers, bound }
    }

    /// The servers.
    pub(super) fn servers(&self) -> &[Place] {
        &self.servers
    }

    /// What a server may have.
    pub(super) fn bound(&self) -> usize {
        self.bound
    }

    /// Who gets `segment`; it counts as its own from here on. Engines in `except` do not. Where `only` some may have it, it
    /// goes to none of them beyond the bound. Nobody, if nobody is left.
    pub(super) fn choose(
        &mut self,
        table: &Table,
        segment: SegmentId,
        except: &BTreeSet<Incarnation>,
        only: Option<&BTreeSet<Incarnation>>,
        prng: &mut Prng,
    ) -> Option<Incarnation> {
        let may_have = |engine: &Incarnation| !except.contains(engine) && only.is_none_or(|only| only.contains(engine));
        let mates = mates(table, segment);
        let has_mate = |place: &Place| {
            let is_there = |mate: &&Incarnation| table.server(**mate) == Some(&place.name[..]);
            mates.iter().filter(is_there).count()
        };
        let mut rank = |place: &Place| {
            let is_full = place.load >= self.bound;
            let draw = prng.next_u64();
            (place.is_drained, is_full, has_mate(place), place.load, draw)
        };
        let ranks: Vec<_> = self.servers.iter().map(&mut rank).collect();
        let all_missing = self.servers.iter().all(|place| place.is_missing);
        let is_open = |index: &usize| {
            let place = &self.servers[*index];
            (all_missing || !place.is_missing)
                && (only.is_none() || place.load < self.bound)
                && place.engines.iter().any(|(engine, _)| may_have(engine))
        };
        let best = (0..ranks.len()).filter(is_open).min_by_key(|index| ranks[*index])?;
        let place = &mut self.servers[best];
        place.load += 1;
        let rank = |(engine, load): &&mut (Incarnation, usize)| (*load, *engine);
        let (engine, load) = place.engines.iter_mut().filter(|(engine, _)| may_have(engine)).min_by_key(rank)?;
        *load += 1;
        Some(*engine)
    }
}

/// Who has, or is to have, the other segments of the group.
fn mates(table: &Table, segment: SegmentId) -> Vec<Incarnation> {
    let group = SEGMENTS_PER_GROUP as u32;
    let first = segment.index / group * group;
    let others = (first..first + group).filter(|index| *index != segment.index);
    others.filter_map(|index| table.segment(SegmentId { index, ..segment })?.owner_to_be()).collect()
}
