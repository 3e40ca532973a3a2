//! `levee agent profile` and who finds what it has measured: numbers are of no importance here.

use std::fs;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::store::{Store, output, refused, text};

/// What a start says that ends at once.
fn said_at_start(directory: &Path, more: &[&str]) -> String {
    let mut store = Store::start(directory, &[&["--log", "levee=info"], more].concat());
    let mut error = store.child.stderr.take().unwrap();
    assert_eq!(store.stop("TERM").code(), Some(0));
    let mut said = String::new();
    error.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn what_was_measured_is_found_by_the_next_start() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("new/store");
    assert!(!said_at_start(&directory, &[]).contains("measured"), "nobody has to measure");
    // What one that was killed has left.
    fs::create_dir(directory.join("profile.scratch")).unwrap();
    fs::write(directory.join("profile.scratch/left"), "over").unwrap();
    let done = output(&["agent", "profile", "--dir", directory.to_str().unwrap(), "--seconds", "2", "--json"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let profile: Value = serde_json::from_slice(&done.stdout).unwrap();
    let requests = profile["request"].as_array().unwrap();
    assert_eq!(requests.len(), 12, "two frontends, reads and writes, three sizes");
    assert!(requests.iter().all(|one| one["processor_ns"].as_f64().is_some_and(|ns| ns > 100.0)), "{profile}");
    assert!(!directory.join("profile.scratch").exists());
    let said = said_at_start(&directory, &[]);
    assert!(said.contains("priced by what was measured on this machine"), "{said}");

    let file = directory.join("profile.toml");
    let written = fs::read_to_string(&file).unwrap();
    fs::write(&file, written.replace("machine = \"", "machine = \"An older ")).unwrap();
    let said = said_at_start(&directory, &[]);
    assert!(said.contains("was measured on another machine (An older ") && !said.contains("priced"), "{said}");
    fs::write(&file, &written[..written.len() / 2]).unwrap();
    let said = said_at_start(&directory, &[]);
    assert!(said.contains("note: what requests take was not read, measure again with levee agent profile"), "{said}");

    // A file that somebody has named has to be there.
    let config = scratch.path().join("levee.toml");
    fs::write(&config, format!("[tenants]\nprofile = \"{}\"\n", scratch.path().join("named.toml").display())).unwrap();
    let named = ["--config", config.to_str().unwrap()];
    let start = ["up", "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--dir", directory.to_str().unwrap()];
    let error = refused(1, &[&start[..], &named].concat());
    assert!(error.contains("tenants.profile (measure again with levee agent profile)"), "{error}");
    fs::write(scratch.path().join("named.toml"), &written).unwrap();
    assert!(said_at_start(&directory, &named).contains("priced"));
}
