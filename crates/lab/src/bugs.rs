//! The mutation check: does a simulated run notice when a safety rule is broken?
//!
//! For each bug of [`base::seeded`] a **hunt** switches it on and runs plans as `make test` runs them
//! ([`crate::verify`]), of one server or of several, as the rule needs it, seed after seed, until one ends with a
//! violation. What counts is how many seeds that takes: a rule whose bug is found in the tenth run is guarded, one whose
//! bug needs ten thousand is guarded by luck. A violation counts only if the same plan without the bug has none.

use std::fmt::Write;

use base::seeded::{self, SeededBug};

use node::cluster::settings::Forwarding;

use crate::verify::{FaultKind, Plan, run};

/// Seeds between two starts of a survey, so that their plans have nothing in common.
const START_STRIDE: u64 = 1_000_000;

/// Seeds after which a hunt is given up, where nobody says otherwise.
pub const SEEDS_MAX: u64 = 20_000;

/// What came of a hunt.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// Seeds until the bug was caught, the last one included; `None`: it was not.
    pub seeds: Option<u64>,
    /// How often the runs came by it.
    pub reached: u64,
    /// What gave it away.
    pub violation: Option<String>,
}

/// Runs seeds from `start` on with `bug` on, at most `seeds_max` of them, until it is caught.
pub fn hunt(bug: &SeededBug, start: u64, seeds_max: u64) -> Hunt {
    let mut reached = 0;
    for count in 1..=seeds_max {
        let seed = start + count - 1;
        let mut plan = match bug.is_of_several() {
            true => Plan::draw_several(seed, &FaultKind::ALL),
            false => Plan::draw_alone(seed, &FaultKind::ALL),
        };
        if bug.is_of_forwarding() {
            plan.shape.forwarding = Forwarding::Mixed;
        }
        if bug.is_of_pools() {
            plan.shape.pool.get_or_insert_default();
        }
        seeded::choose(Some(bug.name));
        let violation = run(&plan).violation;
        reached += seeded::reached();
        seeded::choose(None);
        if violation.is_some() && run(&plan).violation.is_none() {
            return Hunt { seeds: Some(count), reached, violation };
        }
    }
    Hunt { seeds: None, reached, violation: None }
}

/// The hunts for one bug, from several starts.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The bug.
    pub bug: &'static SeededBug,
    /// From each start.
    pub hunts: Vec<Hunt>,
}

impl Survey {
    /// Hunts for `bug` from `starts` places, the first at `base`.
    pub fn of(bug: &'static SeededBug, base: u64, starts: u64, seeds_max: u64) -> Survey {
        let hunts = (0..starts).map(|start| hunt(bug, base + start * START_STRIDE, seeds_max)).collect();
        Survey { bug, hunts }
    }

    /// Whether it was caught from every start.
    pub fn is_caught(&self) -> bool {
        self.hunts.iter().all(|hunt| hunt.seeds.is_some())
    }

    /// Seeds until it was caught from the middle one of the starts, if it was caught there.
    pub fn median(&self) -> Option<u64> {
        let mut seeds: Vec<u64> = self.hunts.iter().map(|hunt| hunt.seeds.unwrap_or(u64::MAX)).collect();
        seeds.sort_unstable();
        seeds.get(seeds.len() / 2).copied().filter(|median| *median < u64::MAX)
    }

    /// Its row of [`table_head`].
    pub fn row(&self) -> String {
        let number = |seeds: Option<u64>| seeds.map_or("not caught".to_owned(), |seeds| seeds.to_string());
        let needs = match self.bug.needs {
            [] => "nothing".to_owned(),
            needs => needs.join(" and "),
        };
        let mut row = format!("| {} | {} | {} | {needs} |", self.bug.rule, self.bug.name, self.bug.what);
        for hunt in &self.hunts {
            let _ = write!(row, " {} |", number(hunt.seeds));
        }
        row + &format!(" {} |", number(self.median()))
    }

    /// What gave it away, hunt by hunt.
    pub fn explanation(&self) -> String {
        let mut text = format!("\n{}", self.bug.name);
        for hunt in &self.hunts {
            let what = hunt.violation.as_deref().unwrap_or("nothing gave it away");
            let _ = write!(text, "\n  come by {} times: {}", hunt.reached, what.lines().next().unwrap_or_default());
        }
        text
    }
}

/// The head of a Markdown table of surveys with so many starts.
pub fn table_head(starts: u64) -> String {
    let columns: String = (1..=starts).map(|start| format!(" start {start} |")).collect();
    let lines = "---: | ".repeat(starts as usize + 1);
    format!(
        "| rule | bug | what goes wrong | needs |{columns} median |\n| ---: | --- | --- | --- | {}",
        lines.trim_end()
    )
}

/// Some of the bugs, chosen by `seed`: each run of the tests takes others. None of the rare ones.
pub fn subset(count: usize, seed: u64) -> Vec<&'static SeededBug> {
    let mut rest: Vec<&'static SeededBug> = seeded::ALL.iter().filter(|bug| !bug.is_rare).collect();
    let mut prng = base::Prng::new(seed);
    (0..count.min(rest.len())).map(|_| rest.swap_remove(prng.below(rest.len() as u64) as usize)).collect()
}
