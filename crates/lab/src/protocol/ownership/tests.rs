//! The model holds as it is, and breaks with each flaw.

use super::*;
use crate::protocol::tests::{breaks, has_time, holds};

/// Two engines with a segment each, and a spare one; one agent; nothing happens.
const QUIET: Ownership = Ownership {
    engines: 3,
    segments: 2,
    agents: 1,
    left: Left { writes: 1, reads: 0, moves: 0, deaths: 0, timeouts: 0, refusals: 0, managers: 0 },
    flaw: None,
};

fn with(agents: usize, segments: usize, left: Left) -> Ownership {
    Ownership { agents, segments, left, ..QUIET }
}

fn bounds() -> Vec<(&'static str, Ownership)> {
    let left = Left { moves: 1, deaths: 1, ..QUIET.left };
    let busy = Left { writes: 2, reads: 1, ..left };
    let mut bounds = vec![
        ("a death and a move", with(2, 2, left)),
        ("two deaths", with(1, 1, Left { deaths: 2, ..left })),
        ("a refusal", with(1, 1, Left { refusals: 1, ..left })),
        ("two managers", with(1, 1, Left { moves: 2, managers: 1, ..left })),
        ("a time-out", with(1, 1, Left { timeouts: 1, deaths: 0, ..busy })),
        ("a time-out and a death", with(1, 1, Left { timeouts: 1, reads: 0, moves: 0, ..busy })),
        ("two agents", with(2, 1, Left { reads: 0, moves: 0, ..busy })),
    ];
    if has_time() {
        bounds.extend([
            ("two segments, reads", with(1, 2, busy)),
            ("a time-out, a death and a move", with(1, 1, Left { timeouts: 1, ..busy })),
            ("two agents, reads", with(2, 1, busy)),
            ("two deaths and a refusal", with(1, 1, Left { deaths: 2, refusals: 1, ..left })),
        ]);
    }
    bounds
}

#[test]
fn the_model_holds() {
    for (what, model) in bounds() {
        holds(&format!("ownership, {what}"), &model);
    }
}

/// What each flaw breaks, after how many steps, and within which bounds.
fn expected(flaw: Flaw) -> (&'static str, usize, Ownership) {
    let left = Left { writes: 1, moves: 1, deaths: 1, ..QUIET.left };
    let one = Ownership { flaw: Some(flaw), ..with(1, 1, left) };
    let two = Ownership { agents: 2, ..one };
    let more = |left: Left| Ownership { left, ..one };
    match flaw {
        Flaw::ReassignsSilent => (ONE_OWNER, 10, one),
        Flaw::TwoRecoverers => (ONE_OWNER, 13, one),
        Flaw::DeletesEarly => (NOTHING_LOST, 5, one),
        Flaw::ReplaysReleased => (ONE_OWNER, 14, one),
        Flaw::ForgetsRelease => (NOTHING_LOST, 5, one),
        Flaw::FencesNothing => (ONE_OWNER, 12, one),
        Flaw::FencesBelow => (LIVING, 2, one),
        Flaw::AttachesBeside => (FENCED, 7, two),
        Flaw::ForgetsGeneration => (FENCED, 20, two),
        Flaw::AdoptsUnsealed => (ONE_OWNER, 5, one),
        Flaw::SendsBeforeDurable => (ONE_OWNER, 11, more(Left { moves: 2, managers: 1, deaths: 0, ..left })),
        Flaw::OldManagerWrites => (ONE_OWNER, 11, more(Left { moves: 2, managers: 1, ..left })),
        Flaw::ForgetsRefusal => (ONE_OWNER, 13, more(Left { refusals: 1, ..left })),
        Flaw::AdmitsOldSessions => {
            (FRESH, 21, more(Left { writes: 2, reads: 1, timeouts: 1, deaths: 0, moves: 0, ..left }))
        }
    }
}

#[test]
fn each_flaw_is_noticed() {
    for flaw in Flaw::ALL {
        let (invariant, steps, model) = expected(flaw);
        let found = breaks(&format!("ownership, {flaw:?}"), &model, invariant);
        assert_eq!(found, steps, "{flaw:?}");
    }
}
