//! The manager drives engines that obey the protocol, through everything that can go wrong; and breaks with each flaw.

mod drive;
mod small;
mod world;

use base::Prng;

use super::flaw::Flaw;
use super::*;

/// What is wrong with what the manager relies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WorldFlaw {
    /// 40: messages leave before what they depend on is durable.
    SaysTooEarly,
    /// 40: an engine takes what it has refused.
    ForgetsRefusals,
    /// 45: a manager that is not in charge any more believes that it can write to the table.
    OldManagerWrites,
}

#[derive(Clone, Copy, Default, Debug)]
struct Flaws {
    manager: Option<Flaw>,
    world: Option<WorldFlaw>,
}

#[test]
fn whatever_happens_segments_have_one_owner_and_lose_nothing() {
    let mut seen = drive::Seen::default();
    for seed in 0..4_000 {
        match drive::run(seed, Flaws::default()) {
            Ok(run) => seen.add(&run),
            Err(broken) => panic!("seed {seed}: {broken}"),
        }
    }
    // What never happens is not tested.
    seen.assert_all();
}

/// How many of so many seeds notice.
fn noticed(flaws: Flaws) -> usize {
    (0..600).filter(|seed| drive::run(*seed, flaws).is_err()).count()
}

#[test]
fn every_flaw_is_noticed() {
    let managers =
        [Flaw::ReassignsSilent, Flaw::TwoRecoverers, Flaw::ForgetsReleases, Flaw::AttachesBeside, Flaw::DropsBeside];
    let worlds = [WorldFlaw::SaysTooEarly, WorldFlaw::ForgetsRefusals, WorldFlaw::OldManagerWrites];
    let flaws = managers.map(|flaw| Flaws { manager: Some(flaw), world: None });
    let more = worlds.map(|flaw| Flaws { manager: None, world: Some(flaw) });
    let counts: Vec<_> = flaws.into_iter().chain(more).map(|flaws| (flaws, noticed(flaws))).collect();
    for (flaws, count) in &counts {
        println!("{flaws:?}: {count} of 600 seeds");
    }
    assert!(counts.iter().all(|(_, count)| *count > 0), "{counts:?}");
}
