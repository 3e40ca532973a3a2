//! Every seeded bug has its place in the code that is shipped, and every place its bug.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{here, read};

/// The names of the seeded bugs that the sources below `directory` ask for.
fn names_in(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).expect("a source directory") {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            names_in(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("base/src/seeded.rs") {
            let text = read(&path);
            let calls = text.split("is_on(\"").skip(1).filter_map(|rest| rest.split('"').next());
            names.extend(calls.map(str::to_owned));
        }
    }
}

#[test]
fn every_seeded_bug_is_in_the_shipped_code() {
    let mut placed = BTreeSet::new();
    for name in ["base", "policies", "wire", "runtime", "link", "files", "engine", "server", "agent", "control", "node"]
    {
        names_in(&here().join("..").join(name).join("src"), &mut placed);
    }
    let listed: BTreeSet<String> = base::seeded::ALL.iter().map(|bug| bug.name.to_owned()).collect();
    let missing: Vec<_> = listed.difference(&placed).collect();
    let unknown: Vec<_> = placed.difference(&listed).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "without a place: {missing:?}; without a bug: {unknown:?}");
}
