//! `levee scrub`: a round of scrubbing now, and what it found.

#![allow(clippy::disallowed_methods, reason = "the clock outside of the simulated worlds")]

use std::time::Duration;

use base::units::format_size;
use base::{Error, Result};
use ureq::http::Method;
use wire::api;

use crate::cli::Scrub;
use crate::client::Client;
use crate::console;

const PATH: &str = "/v1/scrub";
/// Between two looks at how far it is.
const PAUSE: Duration = Duration::from_millis(500);
/// Looks one after the other in which a server has not answered.
const UNHEARD_MAX: u32 = 20;

/// Has a round begun, and waits for its end.
///
/// # Errors
/// What the store answers, and `Corrupt` if something is in no copy any more.
pub fn run(options: Scrub) -> Result<()> {
    let client = Client::new(&options.api)?;
    let before: api::Scrub = client.get(PATH)?;
    check_heard(&before)?;
    let mut now: api::Scrub = client.change(Method::POST, PATH, "")?;
    let mut unheard = 0;
    while is_to_come(&now, unheard) && !options.no_wait {
        std::thread::sleep(PAUSE);
        now = client.get(PATH)?;
        unheard = if now.silent_engines > 0 { unheard + 1 } else { 0 };
    }
    check_heard(&now)?;
    if is_cut_short(&before, &now) {
        return Err(Error::retry("the store was started anew, and the round is not over: levee scrub begins another"));
    }
    match options.api.json {
        true => console::print_json(&now)?,
        false => console::print(&said(&before, &now)),
    }
    match now.lost_blocks.saturating_sub(before.lost_blocks) {
        0 => Ok(()),
        lost => Err(Error::corrupt(format!(
            "{lost} blocks are in no copy any more: stop the store, and levee inspect names them with their volumes"
        ))),
    }
}

/// Whether to look again: a round is under way, or a server may only be slow to answer.
fn is_to_come(now: &api::Scrub, unheard: u32) -> bool {
    match now.silent_engines {
        0 => now.is_running,
        _ => unheard < UNHEARD_MAX,
    }
}

/// # Errors
/// `Retry`: what servers found that have not answered is not known.
fn check_heard(scrub: &api::Scrub) -> Result<()> {
    match scrub.silent_engines {
        0 => Ok(()),
        count => Err(Error::retry(format!(
            "{count} of the servers did not answer, so what scrubbing found there is not known: see levee status, and ask again"
        ))),
    }
}

/// Whether no round goes on, and none came through: counters begin anew with the store.
fn is_cut_short(before: &api::Scrub, now: &api::Scrub) -> bool {
    !now.is_running && now.rounds <= before.rounds
}

/// What happened between two looks.
fn said(before: &api::Scrub, now: &api::Scrub) -> String {
    if now.is_running {
        let (done, all) = (now.segments_done, now.segments);
        return format!(
            "A round is under way: {done} of {all} segments are done. Look again: levee scrub, or GET {PATH}"
        );
    }
    // After a start counters begin anew.
    let since = |count: fn(&api::Scrub) -> u64| count(now).saturating_sub(count(before));
    let read = format_size(since(|scrub| scrub.read_bytes));
    let (damaged, repaired) = (since(|scrub| scrub.damaged_copies), since(|scrub| scrub.repaired_copies));
    format!(
        "{read} were read, all copies counted: {damaged} blocks were wrong in a copy, and {repaired} were repaired."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_what_came_meanwhile() {
        let before = api::Scrub { read_bytes: 1 << 20, damaged_copies: 2, repaired_copies: 2, ..api::Scrub::default() };
        let now = api::Scrub { read_bytes: 3 << 20, damaged_copies: 5, repaired_copies: 4, ..before };
        assert_eq!(
            said(&before, &now),
            "2 MiB were read, all copies counted: 3 blocks were wrong in a copy, and 2 were repaired."
        );
        let cut_short = |is_running, rounds| is_cut_short(&before, &api::Scrub { is_running, rounds, ..now });
        assert_eq!(
            [(true, 0), (false, 0), (false, 1)].map(|(running, rounds)| cut_short(running, rounds)),
            [false, true, false]
        );
        // The store was started anew, and had less to read.
        assert!(said(&now, &before).starts_with("0 B were read"), "{}", said(&now, &before));
        let unheard = api::Scrub { silent_engines: 1, ..now };
        assert!(check_heard(&now).is_ok() && check_heard(&unheard).unwrap_err().message.contains("not known"));
        let looks = [0, UNHEARD_MAX - 1, UNHEARD_MAX].map(|count| is_to_come(&unheard, count));
        assert_eq!((looks, is_to_come(&now, 0)), ([true, true, false], false));
        let running = api::Scrub { is_running: true, segments: 4, segments_done: 1, ..before };
        assert!(said(&before, &running).starts_with("A round is under way: 1 of 4 segments are done."));
    }
}
