//! The model holds as it is, and breaks with each flaw.

use super::*;
use crate::protocol::tests::{breaks, has_time, holds};

/// Nothing may happen but one start.
const QUIET: Left = Left { starts: 1, failures: 0, writes: 0, deletions: 0, seals: 0, overrides: 0, backups: 0 };
/// Two directories with two copies of each file.
const PAIR: Membership =
    Membership { directories: 2, empty: 0, copies: 2, before: Before::Made, left: QUIET, flaw: None };

fn bounds() -> Vec<(&'static str, Membership)> {
    let failures = Left { starts: 2, failures: 1, writes: 1, ..QUIET };
    let alone = Left { starts: 3, writes: 1, overrides: 1, ..QUIET };
    let excluded = Membership { before: Before::Excluded, ..PAIR };
    let mut bounds = vec![
        ("failures", Membership { left: Left { failures: 2, ..failures }, ..PAIR }),
        ("starts", Membership { left: Left { starts: 3, ..failures }, ..PAIR }),
        ("deletions", Membership { left: Left { deletions: 1, seals: 1, ..failures }, ..PAIR }),
        ("one copy", Membership { copies: 1, left: Left { deletions: 1, ..failures }, ..PAIR }),
        ("one excluded", Membership { left: failures, ..excluded }),
        ("overrides", Membership { left: Left { overrides: 2, ..alone }, before: Before::MissedAWrite, ..PAIR }),
        ("names", Membership { left: Left { writes: 2, seals: 1, ..alone }, ..excluded }),
        ("backups", Membership { left: Left { backups: 1, ..failures }, ..PAIR }),
        ("one joins", Membership { empty: 1, left: failures, ..PAIR }),
        ("three", Membership { directories: 3, left: failures, ..PAIR }),
    ];
    if has_time() {
        let both = Left { starts: 3, failures: 2, ..failures };
        bounds.extend([
            ("more failures", Membership { left: both, ..PAIR }),
            ("more deletions", Membership { left: Left { deletions: 1, seals: 1, writes: 2, ..failures }, ..PAIR }),
            ("two excluded", Membership { left: both, ..excluded }),
            ("more starts", Membership { left: Left { starts: 4, ..alone }, before: Before::MissedAWrite, ..PAIR }),
            ("backups and deletions", Membership { left: Left { backups: 1, deletions: 1, ..failures }, ..PAIR }),
            ("one joins, failures", Membership { empty: 1, left: Left { failures: 2, writes: 0, ..failures }, ..PAIR }),
            (
                "three, failures",
                Membership { directories: 3, left: Left { failures: 2, writes: 0, ..failures }, ..PAIR },
            ),
        ]);
    }
    bounds
}

#[test]
fn the_model_holds() {
    for (what, model) in bounds() {
        holds(&format!("membership, {what}"), &model);
    }
}

/// What each flaw breaks, after how many steps, and within which bounds.
fn expected(flaw: Flaw) -> (&'static str, usize, Membership) {
    let failures = Left { starts: 2, failures: 1, writes: 1, ..QUIET };
    let overrides = Left { starts: 3, overrides: 2, writes: 2, ..QUIET };
    let left = Left { starts: 3, overrides: 1, ..QUIET };
    let apart = Membership { before: Before::Excluded, left, flaw: Some(flaw), ..PAIR };
    let with = |left: Left| Membership { left, flaw: Some(flaw), ..PAIR };
    match flaw {
        Flaw::ConfirmsBeforeExclusion => (DELETED, 24, with(Left { deletions: 1, ..failures })),
        Flaw::StartsWithoutMembers => (ACKNOWLEDGED, 16, with(failures)),
        Flaw::NoLineage => (ACKNOWLEDGED, 19, with(overrides)),
        Flaw::SameIdsAfterLeaving => (ONE_FILE, 24, Membership { left: Left { writes: 2, seals: 1, ..left }, ..apart }),
        Flaw::CountsWhatMembersDoNotKnow => {
            let left = Left { starts: 3, ..failures };
            (ACKNOWLEDGED, 29, Membership { before: Before::Excluded, ..with(left) })
        }
        Flaw::LooksTooEarly => {
            let left = Left { failures: 2, ..failures };
            (STARTS, 22, Membership { directories: 3, before: Before::Excluded, ..with(left) })
        }
        Flaw::ReadBeforeResync => (CONVERGES, 16, with(failures)),
        Flaw::CountsCopiesFromBefore => {
            let left = Left { starts: 1, ..failures };
            (ACKNOWLEDGED, 34, Membership { directories: 3, before: Before::Excluded, ..with(left) })
        }
        Flaw::KeepsUnknownFiles => (CONVERGES, 23, with(Left { deletions: 1, ..failures })),
        Flaw::RemovesWhatOnlyItHas => (NOTHING_LOST, 21, Membership { left: Left { writes: 1, ..left }, ..apart }),
        Flaw::RemovesBeforeTelling => (ACKNOWLEDGED, 18, Membership { before: Before::MissedAWrite, ..apart }),
        Flaw::NothingAgreed => (ACKNOWLEDGED, 35, with(Left { backups: 1, ..failures })),
        Flaw::ExcludesOnlyCopies => (ACKNOWLEDGED, 20, Membership { copies: 1, ..with(failures) }),
        Flaw::NoRepair => (CONVERGES, 24, with(failures)),
        Flaw::DemandsEverything => (STARTS, 7, with(failures)),
    }
}

#[test]
fn each_flaw_is_noticed() {
    for flaw in Flaw::ALL {
        let (invariant, steps, model) = expected(flaw);
        // Almost a million states.
        if flaw == Flaw::LooksTooEarly && !has_time() {
            continue;
        }
        let found = breaks(&format!("membership, {flaw:?}"), &model, invariant);
        assert_eq!(found, steps, "{flaw:?}");
    }
}
