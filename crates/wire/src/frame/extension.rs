//! Extensions: what a frame says beyond its fields, as type, length and value. Whoever does not know a type skips it, so
//! they hold what a peer may do without; what it must understand is a feature, agreed on in the hello.
//!
//! Version 1 has one: the **stage times** of a reply, where the time of the request went at its owner.

use base::{Passage, Stage};
use bytes::BufMut;

use super::fields::Fields;

/// Stage times: a byte for what was missing when it waited for tokens, then for each stage that took any time its code
/// and nanoseconds.
const STAGES: u16 = 1;

/// What a request may have missed when it waited for tokens, by code from 1: the reasons of `policies::waits`.
const TOKENS: [&str; 8] = [
    "hot_segment",
    "main_bucket_empty",
    "base_level",
    "burst_level",
    "client_cap",
    "segment_cap",
    "tenant_level",
    "tenant_share",
];

/// The code of a stage, which stays when others come.
fn code(stage: Stage) -> u8 {
    match stage {
        Stage::Intake => 1,
        Stage::Payload => 2,
        Stage::Order => 3,
        Stage::Crossing => 4,
        Stage::Tokens => 5,
        Stage::Slot => 6,
        Stage::Memory => 7,
        Stage::Space => 8,
        Stage::Room => 9,
        Stage::JournalFile => 10,
        Stage::Gather => 11,
        Stage::Retry => 12,
        Stage::Append => 13,
        Stage::JournalOrder => 14,
        Stage::Apply => 15,
        Stage::Index => 16,
        Stage::Disk => 17,
        Stage::Repair => 18,
        Stage::Turn => 19,
        Stage::Reply => 20,
        Stage::Busy => 21,
    }
}

/// Appends the stage times of a request, if there are any. The name of the task that kept a loop busy stays where that
/// loop is.
pub(super) fn put_passage(out: &mut Vec<u8>, passage: &Passage) {
    let taken = || Stage::ALL.into_iter().filter(|&stage| passage.of(stage) > 0);
    let count = taken().count();
    if count == 0 {
        return;
    }
    out.put_u16_le(STAGES);
    out.put_u16_le((1 + 9 * count) as u16);
    let tokens = TOKENS.iter().position(|&reason| reason == passage.tokens);
    out.put_u8(tokens.map_or(0, |index| index as u8 + 1));
    for stage in taken() {
        out.put_u8(code(stage));
        out.put_u64_le(passage.of(stage));
    }
}

/// The stage times among extensions; none where nobody says any. `None`: the extensions do not add up.
pub(super) fn passage(extensions: &[u8]) -> Option<Passage> {
    let mut fields = Fields(extensions);
    let mut passage = Passage::default();
    while fields.end().is_none() {
        let (kind, len) = (fields.u16()?, fields.u16()?);
        let mut value = Fields(fields.slice(len.into())?);
        if kind != STAGES {
            continue;
        }
        passage = Passage::default();
        let tokens = usize::from(value.u8()?);
        passage.tokens = TOKENS.get(tokens.wrapping_sub(1)).copied().unwrap_or_default();
        while value.end().is_none() {
            let (number, ns) = (value.u8()?, value.u64()?);
            // One that a later version has is a part of the way, here.
            let stage = Stage::ALL.into_iter().find(|&stage| code(stage) == number).unwrap_or(Stage::Crossing);
            passage.add(stage, ns.min(NS_MAX));
        }
    }
    Some(passage)
}

/// Nobody waits longer than a day, and sums of what a peer says do not overflow.
const NS_MAX: u64 = 86_400_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_has_a_code_of_its_own() {
        let codes: std::collections::BTreeSet<u8> = Stage::ALL.into_iter().map(code).collect();
        assert_eq!(codes.len(), Stage::ALL.len());
        assert!(!codes.contains(&0));
    }

    #[test]
    fn what_is_unknown_is_skipped_or_part_of_the_way() {
        let mut known = Passage::default();
        known.tokens = "base_level";
        known.add(Stage::Append, 700);
        let mut bytes = vec![];
        put_passage(&mut bytes, &known);
        let mut later = vec![];
        later.put_u16_le(999);
        later.put_u16_le(3);
        later.put_slice(b"new");
        assert_eq!(passage(&[&later[..], &bytes, &later].concat()), Some(known));
        // A stage that this version does not know.
        bytes[5] = 200;
        assert_eq!(passage(&bytes).map(|passage| passage.of(Stage::Crossing)), Some(700));
        assert_eq!(passage(&bytes[..bytes.len() - 1]), None);
    }
}
