//! Who seems dead, and whether to believe it.
//!
//! **Intuition.** A lost connection is a suspicion: it comes back, or its engine's lease ends. A refused connection and a
//! lease that ended are a death. But a manager behind a broken link sees many of them at once. So who misses more than a
//! third of the servers renews its own lease and asks the other managers; of the missing only those die then that all who
//! answer miss, too: one of them may be behind the same link.
//!
//! **Names.** An engine is *missing* that is suspected or gone; a server is missing of which every living engine is, or
//! whose last one was declared dead a short while ago: servers that seem to go one by one count together.
//!
//! **Invariants.** Nobody dies of a suspicion, and nobody who is in touch; with more than a third missing nobody dies whom
//! nobody else misses, nor for a while after that has ended. It ends when engines come back or new ones begin: so they are
//! counted before that, also if none of them was more than suspected, and whenever somebody may die.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use base::{Incarnation, Instant};

use super::table::Table;

/// Servers that were declared dead within this time count as missing, and who missed many within it doubts itself.
const RECENT: Duration = Duration::from_secs(10);
/// Who has just seen that many are missing does not count again for so long: they come back by the thousand.
const COUNTED: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// Whether it is gone, for sure as far as this manager can tell.
    missing: BTreeMap<Incarnation, bool>,
    /// Those that the others miss, too.
    confirmed: BTreeSet<Incarnation>,
    /// Servers of engines that were declared dead, and when.
    declared: VecDeque<(Instant, String)>,
    /// When so many were missing last that somebody else had to be asked.
    missed_many: Option<Instant>,
}

/// What to do about those that seem dead.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// They are declared dead.
    pub(super) dead: Vec<Incarnation>,
    /// The others are to be asked of these; nobody, if there is no doubt.
    pub(super) ask: Vec<Incarnation>,
}

impl Doubt {
    /// The connection with `engine` was lost.
    pub(super) fn on_lost(&mut self, engine: Incarnation) {
        self.missing.entry(engine).or_insert(false);
    }

    /// It refused a connection, or its lease ended.
    pub(super) fn on_gone(&mut self, engine: Incarnation) {
        self.missing.insert(engine, true);
    }

    /// It is there, or is about to be in `table` for the first time.
    pub(super) fn on_touch(&mut self, now: Instant, engine: Incarnation, table: &Table) {
        if self.is_missing(engine) || !table.lives(engine) {
            self.note_many(now, table);
        }
        self.forget(engine);
    }

    /// Own lease renewed, the others miss these, too.
    pub(super) fn on_confirmed(&mut self, engines: &[Incarnation]) {
        self.confirmed.extend(engines.iter().filter(|engine| self.missing.contains_key(engine)));
    }

    /// It was declared dead, and is nobody's concern here any more.
    pub(super) fn on_declared(&mut self, now: Instant, engine: Incarnation, server: &str) {
        self.forget(engine);
        self.declared.push_back((now, server.to_owned()));
    }

    fn forget(&mut self, engine: Incarnation) {
        self.missing.remove(&engine);
        self.confirmed.remove(&engine);
    }

    /// Whether it is out of touch.
    pub(super) fn is_missing(&self, engine: Incarnation) -> bool {
        self.missing.contains_key(&engine)
    }

    /// Who is dead.
    pub(super) fn plan(&mut self, now: Instant, table: &Table) -> Verdict {
        if !self.missing.iter().any(|(engine, is_gone)| *is_gone && table.lives(*engine)) {
            return Verdict { dead: vec![], ask: vec![] };
        }
        self.note_many(now, table);
        // They come back one by one, too: the last ones are not dead because the others were faster.
        let in_doubt = self.missed_many.is_some_and(|then| now.since(then) <= RECENT);
        let gone = self.missing.iter().filter(|(engine, is_gone)| **is_gone && table.lives(**engine));
        let (dead, ask) =
            gone.map(|(engine, _)| *engine).partition(|engine| !in_doubt || self.confirmed.contains(engine));
        Verdict { dead, ask }
    }

    /// Keeps in mind if many are missing now.
    fn note_many(&mut self, now: Instant, table: &Table) {
        if self.missed_many.is_some_and(|then| now.since(then) < COUNTED) {
            return;
        }
        while self.declared.front().is_some_and(|(at, _)| now.since(*at) > RECENT) {
            self.declared.pop_front();
        }
        if self.misses_many(table) {
            self.missed_many = Some(now);
        }
    }

    /// Whether more than a third of the servers are missing.
    fn misses_many(&self, table: &Table) -> bool {
        let mut is_there: BTreeMap<&str, bool> = self.declared.iter().map(|(_, server)| (&server[..], false)).collect();
        for (engine, server) in table.living() {
            *is_there.entry(server).or_default() |= !self.is_missing(engine);
        }
        let missing = is_there.values().filter(|is_there| !**is_there).count();
        3 * missing > is_there.len() && !base::seeded::is_on("manager-never-doubts")
    }
}
