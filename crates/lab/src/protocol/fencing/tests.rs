//! The model holds as it is, and breaks with each flaw.

use super::*;
use crate::protocol::tests::{breaks, has_time, holds};

/// One write by one agent, nothing else.
const QUIET: Left = Left { writes: 1, reads: 0, moves: 0, rotations: 0, timeouts: 0, restarts: 0, detours: 0 };
/// Two servers, one agent.
const ONE_AGENT: Fencing = Fencing { servers: 2, agents: 1, left: QUIET, flaw: None };

fn bounds() -> Vec<(&'static str, Fencing)> {
    let moves = Left { writes: 2, reads: 1, moves: 1, timeouts: 1, ..QUIET };
    let mut bounds = vec![
        ("a move", Fencing { left: moves, ..ONE_AGENT }),
        ("rotations", Fencing { left: Left { rotations: 1, reads: 0, ..moves }, ..ONE_AGENT }),
        ("two agents", Fencing { agents: 2, left: Left { timeouts: 0, ..moves }, ..ONE_AGENT }),
        ("three servers", Fencing { servers: 3, left: Left { moves: 2, ..moves }, ..ONE_AGENT }),
    ];
    if has_time() {
        bounds.extend([("larger", Fencing { agents: 2, left: moves, ..ONE_AGENT })]);
    }
    bounds
}

#[test]
fn the_model_holds() {
    for (what, model) in bounds() {
        holds(&format!("fencing, {what}"), &model);
    }
}

/// What each flaw breaks, after how many steps, and within which bounds.
fn expected(flaw: Flaw) -> (&'static str, usize, Fencing) {
    let moves = Left { writes: 2, reads: 1, moves: 1, timeouts: 1, ..QUIET };
    let one = Fencing { left: moves, flaw: Some(flaw), ..ONE_AGENT };
    let two = Fencing { agents: 2, left: Left { writes: 1, ..QUIET }, ..one };
    let three = Fencing { servers: 3, left: Left { moves: 2, ..moves }, ..one };
    match flaw {
        Flaw::FencesFilesOnly => (NOTHING_LOST, 10, Fencing { left: Left { rotations: 1, ..moves }, ..one }),
        Flaw::FencesLastOwnerOnly => (NOTHING_LOST, 11, three),
        Flaw::ReadsBeforeFencing => (NOTHING_LOST, 12, one),
        Flaw::WritesBeforeRegistering => (NOTHING_LOST, 9, one),
        Flaw::AppendsUnguarded => (NOTHING_LOST, 12, one),
        Flaw::AcknowledgesBlindly => (NOTHING_LOST, 10, one),
        Flaw::EpochNotDurable => (ONE_OWNER, 8, Fencing { left: Left { restarts: 1, ..three.left }, ..three }),
        Flaw::BelievesOldReplies => {
            let left = Left { writes: 1, timeouts: 2, detours: 1, ..moves };
            (FRESH, 19, Fencing { left, ..one })
        }
        Flaw::AdmitsOldGenerations => (FENCED, 10, two),
        Flaw::AttachReturnsEarly => (FENCED, 9, two),
        Flaw::AttachDrainsNothing => (FENCED, 10, two),
        Flaw::GenerationNotDurable => (FENCED, 16, Fencing { left: Left { moves: 1, ..two.left }, ..two }),
    }
}

#[test]
fn each_flaw_is_noticed() {
    for flaw in Flaw::ALL {
        let (invariant, steps, model) = expected(flaw);
        let found = breaks(&format!("fencing, {flaw:?}"), &model, invariant);
        assert_eq!(found, steps, "{flaw:?}");
    }
}
