//! The model holds as it is, and breaks with each flaw.

use super::*;
use crate::protocol::tests::{breaks, has_time, holds};

const FEW: Left = Left { writes: 3, deaths: 1, refusals: 0, silences: 0 };

fn bounds() -> Vec<(&'static str, Left)> {
    let mut bounds = vec![
        ("three writes and a death", FEW),
        ("a refusal", Left { refusals: 1, ..FEW }),
        ("no answer", Left { silences: 1, ..FEW }),
        ("two writes, two deaths, a refusal, no answer", Left { writes: 2, deaths: 2, refusals: 1, silences: 1 }),
    ];
    if has_time() {
        bounds.extend([
            ("four writes and a death", Left { writes: 4, ..FEW }),
            ("three writes, two deaths, a refusal, no answer", Left { deaths: 2, refusals: 1, silences: 1, ..FEW }),
        ]);
    }
    bounds
}

#[test]
fn the_model_holds() {
    for (what, left) in bounds() {
        holds(&format!("forwarding, {what}"), &Forwarding { left, flaw: None });
    }
}

/// What each flaw breaks, and after how many steps.
fn expected(flaw: Flaw) -> (&'static str, usize, Left) {
    match flaw {
        Flaw::TrimsBeforeWatermark => (FRESH, 8, FEW),
        Flaw::RetriesElsewhere => (FRESH, 6, Left { silences: 1, ..FEW }),
        Flaw::AttachesUntraversed => (FRESH, 4, FEW),
        Flaw::WritesOverLogged => (FRESH, 4, FEW),
        Flaw::StopsAtHoles => (HOME, 6, Left { refusals: 1, deaths: 0, ..FEW }),
        Flaw::LosesOrder => (FRESH, 5, FEW),
        Flaw::ForgetsVoids => (FRESH, 5, Left { refusals: 1, silences: 1, ..FEW }),
    }
}

#[test]
fn each_flaw_is_noticed() {
    let all = Flaw::ALL.map(|flaw| {
        let (invariant, steps, left) = expected(flaw);
        let found = breaks(&format!("forwarding, {flaw:?}"), &Forwarding { left, flaw: Some(flaw) }, invariant);
        (flaw, found, steps)
    });
    assert!(all.iter().all(|(_, found, steps)| found == steps), "{all:?}");
}
