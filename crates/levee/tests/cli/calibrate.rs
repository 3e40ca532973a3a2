//! `levee calibrate` on real directories: what it refuses, what it says before, and that nothing is left of it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::inspect::{snapshot, written};
use crate::store::{Store, levee, output, refused, text};

const SCRATCH: &str = "calibration.scratch";

/// Small, and as short as can be: what it finds then is of no importance.
const SHORT: [&str; 6] = ["--size", "16M", "--seconds", "10", "--mix", "4K-8K:50"];

fn calibrate<'a>(directory: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    [&["calibrate", "--dir", directory.to_str().unwrap()], more].concat()
}

#[test]
fn a_store_with_data_is_measured_and_left_as_it_was() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("store");
    let store = written(&directory);
    let running = refused(1, &calibrate(&directory, &["--yes"]));
    assert!(running.contains("in use by levee up") && running.contains("stop it first"), "{running}");
    assert_eq!(store.stop("TERM").code(), Some(0));
    let before = snapshot(&directory);

    let dry = output(&calibrate(&directory, &["--dry-run", "--size", "16M", "--json"]));
    let plan: Value = serde_json::from_slice(&dry.stdout).unwrap();
    assert_eq!((&plan["scratch_bytes"], &plan["directories"][0]["is_store"]), (&(16 << 20).into(), &true.into()));
    assert!(snapshot(&directory) == before, "a dry run changes nothing");

    // What one that was killed has left.
    fs::write(directory.join(SCRATCH), "left over").unwrap();
    let dry = output(&calibrate(&directory, &["--dry-run"]));
    let said = text(&dry.stdout);
    for part in ["a store that does not run", "a scratch file of 1 GiB", "This writes 1 GiB first", "about 60 s"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(directory.join(SCRATCH).exists() && dry.stderr.is_empty());

    let out = scratch.path().join("new/out");
    let done =
        output(&calibrate(&directory, &[&SHORT[..], &["--yes", "--json", "--out", out.to_str().unwrap()]].concat()));
    let error = text(&done.stderr);
    let report: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{error}"));
    assert!(snapshot(&directory) == before, "byte for byte, and no scratch file");
    // On a busy machine there may be no knee.
    assert_eq!(done.status.success(), !report["knee"].is_null(), "{error}");
    assert_eq!(report["mix"], "4 KiB to 8 KiB, 50% reads");
    assert_eq!(report["alone"].as_array().unwrap().len(), 4);
    let points = report["points"].as_array().unwrap();
    let lines = error.lines().filter(|line| line.contains(" offered, ")).count();
    assert!(!points.is_empty() && lines == points.len(), "a line for each: {error}");
    let plot = fs::read_to_string(out.join("levee-calibration.svg")).unwrap();
    assert!(plot.starts_with("<svg ") && plot.matches("<circle ").count() == 2 * points.len());

    let inspected = output(&["inspect", directory.to_str().unwrap()]);
    assert!(inspected.status.success() && text(&inspected.stdout).contains("everything is intact"));
    let store = Store::start(&directory, &["--volume", "vm-1", "--size", "1G"]);
    assert_eq!(store.stop("TERM").code(), Some(0));
}

#[test]
fn one_that_is_stopped_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    for signal in ["INT", "TERM"] {
        let mut command = levee(&calibrate(scratch.path(), &["--size", "16M", "--seconds", "600", "--yes"]));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "requests alone"));
        assert!(scratch.path().join(SCRATCH).exists());
        let second = refused(1, &calibrate(scratch.path(), &["--yes"]));
        assert!(second.contains("in use by levee calibrate"), "{second}");
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert!(lines.last().unwrap().starts_with("error: stopped: nothing was found"));
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_start_is_not_disturbed_by_what_a_killed_one_left() {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join(SCRATCH), "left over").unwrap();
    let store = Store::start(scratch.path(), &[]);
    assert!(!scratch.path().join(SCRATCH).exists());
    assert_eq!(store.stop("TERM").code(), Some(0));
}

#[test]
fn what_cannot_be_measured_is_said_with_what_to_do() {
    let scratch = tempfile::tempdir().unwrap();
    let here = scratch.path();
    let full = refused(1, &calibrate(here, &["--yes", "--size", "900T"]));
    assert!(full.contains(" free; the scratch file needs 900 TiB, and "), "{full}");
    assert!(full.contains("are to stay free: free some, or choose less with --size"), "{full}");
    let none = refused(1, &calibrate(&here.join("none"), &["--yes"]));
    assert!(none.contains("there is no directory") && none.contains("make it"), "{none}");
    let small = refused(1, &calibrate(here, &["--yes", "--size", "1M"]));
    assert!(small.contains("at least 16 MiB"), "{small}");

    // Nobody can be asked.
    let asked = output(&calibrate(here, &[]));
    let said = text(&asked.stderr);
    assert!(asked.status.code() == Some(1) && said.contains("say --yes to go on"), "{said}");
    assert_eq!(fs::read_dir(here).unwrap().count(), 0, "nothing was changed");

    fs::write(here.join("photo.jpg"), "content").unwrap();
    assert!(refused(1, &calibrate(here, &["--yes"])).contains("photo.jpg"));
    for wrong in [
        &["--size", "ten"][..],
        &["--seconds", "5"],
        &["--seconds", "1h"],
        &["--mix", "fast"],
        &["--mix", "4K-64K:101"],
        &["--mix", "5K:50"],
        &["--dry-run", "--yes"],
        &["--seed", "x"],
    ] {
        assert_eq!(output(&calibrate(here, wrong)).status.code(), Some(2), "{wrong:?}");
    }
    let mix = refused(2, &calibrate(here, &["--mix", "fast"]));
    assert!(mix.contains("such as 4K-64K:50"), "{mix}");
}
