//! The model holds as it is, and breaks with each flaw.

use super::*;
use crate::protocol::recovery::{ACKNOWLEDGED, STARTS, WHOLE};
use crate::protocol::tests::{breaks, has_time, holds};

/// One copy, two records in flight, nothing that may happen.
const QUIET: Bounds = Bounds {
    copies: 1,
    file_records: 4,
    in_flight: 2,
    left: Left { starts: 2, writes: 0, large: 0, failures: 0, checkpoints: 0, losses: 0 },
    flaw: None,
};

fn bounds() -> Vec<(&'static str, Bounds)> {
    let left = Left { starts: 3, writes: 2, large: 1, ..QUIET.left };
    let mut bounds = vec![
        ("a failure", Bounds { left: Left { failures: 1, ..left }, ..QUIET }),
        ("two copies", Bounds { copies: 2, left: Left { losses: 1, ..left }, ..QUIET }),
        ("checkpoints", Bounds { left: Left { checkpoints: 1, ..left }, ..QUIET }),
    ];
    if has_time() {
        bounds.extend([("larger", Bounds { left: Left { failures: 1, checkpoints: 1, ..left }, ..QUIET })]);
    }
    bounds
}

#[test]
fn the_model_holds() {
    for (what, bounds) in bounds() {
        let model = Log::new(bounds);
        holds(&format!("log, {what}"), &model);
        println!("  recoveries of {} different disks", model.recoveries());
    }
}

/// What each flaw breaks, after how many steps, and within which bounds.
fn expected(flaw: Flaw) -> (&'static str, usize, Bounds) {
    let left = Left { starts: 3, writes: 2, large: 1, ..QUIET.left };
    let one = Bounds { left, flaw: Some(flaw), ..QUIET };
    let failing = Bounds { left: Left { failures: 1, ..left }, ..one };
    let two = Bounds { copies: 2, left: Left { losses: 1, ..left }, ..one };
    match flaw {
        Flaw::RetiresOutOfOrder => (ACKNOWLEDGED, 13, one),
        Flaw::AcknowledgesWithoutData => (ACKNOWLEDGED, 12, one),
        Flaw::VouchesWithoutData => (WHOLE, 9, one),
        Flaw::ForgetsRejected => (WHOLE, 12, one),
        Flaw::RotatesWithoutSeal => (STARTS, 9, failing),
        Flaw::TrimsBeforeCheckpoint => (STARTS, 13, Bounds { left: Left { checkpoints: 1, ..left }, ..one }),
        Flaw::RepairsNothing => (STARTS, 9, two),
        Flaw::ChangesNothing => (STARTS, 10, two),
        Flaw::NeitherWaitsNorSeals => (STARTS, 12, one),
    }
}

#[test]
fn each_flaw_is_noticed() {
    for flaw in Flaw::ALL {
        let (invariant, steps, bounds) = expected(flaw);
        let found = breaks(&format!("log, {flaw:?}"), &Log::new(bounds), invariant);
        assert_eq!(found, steps, "{flaw:?}");
    }
}
