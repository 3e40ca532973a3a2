//! The model holds as it is, and breaks with each flaw.

use super::*;
use crate::protocol::recovery::{ACKNOWLEDGED, CUT, SHOWN, STARTS, WHOLE};
use crate::protocol::tests::{breaks, has_time, holds};

/// One copy, two appends in flight, nothing that may happen.
const QUIET: Bounds = Bounds {
    copies: 1,
    file_blocks: 4,
    in_flight: 2,
    left: Left { starts: 2, writes: 0, failures: 0, markers: 0, dumps: 0, losses: 0 },
    flaw: None,
};

fn bounds() -> Vec<(&'static str, Bounds)> {
    let left = Left { starts: 3, writes: 3, failures: 1, ..QUIET.left };
    let two = Bounds { copies: 2, left: Left { losses: 1, ..left }, ..QUIET };
    let mut bounds = vec![
        ("a failure", Bounds { left: Left { writes: 4, ..left }, ..QUIET }),
        ("failures", Bounds { left: Left { failures: 2, ..left }, ..QUIET }),
        ("two copies", two),
        ("dumps", Bounds { left: Left { dumps: 1, markers: 1, failures: 0, ..left }, ..QUIET }),
        ("two copies, dumps", Bounds { left: Left { writes: 2, dumps: 1, ..two.left }, ..two }),
    ];
    if has_time() {
        bounds.extend([
            ("dumps, failures", Bounds { left: Left { dumps: 1, markers: 1, ..left }, ..QUIET }),
            ("more starts", Bounds { left: Left { starts: 4, ..two.left }, ..two }),
            ("more in flight", Bounds { in_flight: 3, ..two }),
        ]);
    }
    bounds
}

#[test]
fn the_model_holds() {
    for (what, bounds) in bounds() {
        let model = Journal::new(bounds);
        holds(&format!("journal, {what}"), &model);
        println!("  recoveries of {} different disks", model.recoveries());
    }
}

/// What each flaw breaks, after how many steps, and within which bounds.
fn expected(flaw: Flaw) -> (&'static str, usize, Bounds) {
    let left = Left { starts: 3, writes: 3, ..QUIET.left };
    let one = Bounds { left, flaw: Some(flaw), ..QUIET };
    let failing = Bounds { left: Left { failures: 1, ..left }, ..one };
    let two = Bounds { copies: 2, left: Left { losses: 1, ..left }, ..one };
    match flaw {
        Flaw::AcknowledgesOutOfOrder => (ACKNOWLEDGED, 9, one),
        Flaw::GoesOnBehindAHole => (WHOLE, 6, failing),
        Flaw::FailedAppendsStayValid => (STARTS, 8, failing),
        Flaw::RepairsNothing => (STARTS, 9, two),
        Flaw::ChangesNothing => (SHOWN, 11, two),
        Flaw::NeitherWaitsNorSeals => (CUT, 12, one),
        Flaw::CutsNothing => (STARTS, 5, one),
    }
}

#[test]
fn each_flaw_is_noticed() {
    for flaw in Flaw::ALL {
        let (invariant, steps, bounds) = expected(flaw);
        let found = breaks(&format!("journal, {flaw:?}"), &Journal::new(bounds), invariant);
        assert_eq!(found, steps, "{flaw:?}");
    }
}
