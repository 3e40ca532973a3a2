//! Servers whose segments change hands, and clients that do not notice: they write and read through a router, over links
//! that lose requests and answers and deliver late, while segments are moved, servers are declared dead and live on, and
//! the volume is attached anew.
//!
//! Each seed is one world: a shared store in memory, a few servers over engines with small files, one volume, and one who
//! decides who has what, or managers as they are. Every request comes through in the end; what one attachment was told is done stays done; what an
//! older attachment has in flight takes effect before a newer one returns, or never.
//!
//! `LEVEE_SEEDS` is the number of seeds, `LEVEE_BASE` the first one (otherwise it is new in each run, and printed),
//! `LEVEE_SEED` replays one, with `LEVEE_LOG` to see what the servers say and `LEVEE_SECTOR` to see what happened to one
//! sector. A test fails if something that it is there for never happened in all of its seeds.
#![allow(clippy::unwrap_used, reason = "a test panics where something is not as it should be")]

mod bed;
mod clients;
mod links;
mod managed;
mod manager;
#[allow(dead_code, reason = "the model of one engine uses more of it")]
#[path = "../../../engine/tests/model/sectors.rs"]
mod sectors;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};

use bed::{Who, run_seed};

/// How often things happened.
#[derive(Default, Debug)]
pub struct Coverage(BTreeMap<&'static str, u64>);

/// What happens whoever decides.
const ALWAYS: &[&str] = &[
    "moves",
    "deaths",
    "attachments",
    "fenced_requests",
    "requests_lost",
    "answers_lost",
    "late_requests",
    "late_requests_refused",
    "slow_answers",
    "routes_moved",
    "routes_broken",
    "replies_stale",
];

#[test]
fn clients_do_not_notice_who_has_their_segments() {
    test("one", Who::One, 200, &["inherited"]);
}

#[test]
fn nor_which_manager_decides_that() {
    let required = &["managers_stopped", "orders_lost", "reports_lost", "orders_twice", "late_orders_refused"];
    test("managers", Who::Managers, 100, required);
}

fn test(name: &str, who: Who, seeds_default: u64, required: &[&str]) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if std::env::var("LEVEE_LOG").is_ok() {
        let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).without_time().try_init();
    }
    let mut coverage = Coverage::default();
    if let Some(seed) = number("LEVEE_SEED") {
        run_seed(seed, who, &mut coverage);
        return println!("{name}, seed {seed}: {coverage:?}");
    }
    let fresh = || std::hash::RandomState::new().build_hasher().finish() >> 16;
    let (seeds, base) = (number("LEVEE_SEEDS").unwrap_or(seeds_default), number("LEVEE_BASE").unwrap_or_else(fresh));
    println!("{name}: {seeds} seeds from {base}");
    for seed in base..base + seeds {
        run_seed(seed, who, &mut coverage);
    }
    println!("{name}: {coverage:?}");
    let count = |name: &&&str| coverage.0.get(**name).copied().unwrap_or(0);
    let never: Vec<&&str> = ALWAYS.iter().chain(required).filter(|name| count(name) == 0).collect();
    assert!(seeds < seeds_default || never.is_empty(), "{seeds} seeds, and never: {never:?}");
}
