//! The layer check: the house of docs/ARCHITECTURE.md stands as crates/layers.toml draws it.
//!
//! Five parts, each a list of sentences that say what is wrong (empty: nothing):
//! - [`graph`]: `cargo metadata` against `uses` of each crate, imports strictly downward;
//! - [`sources`]: only the modules in `[os] allowed` touch files, sockets, threads, clocks, tokio or libc;
//! - [`circles`]: no files of a crate import each other in a circle;
//! - [`lints`]: each crate takes the workspace's lints, and clippy.toml forbids what it must;
//! - [`corpora`]: each fuzz target has a stored corpus, where `cargo test` replays it.
//!
//! [`seeded`] asks besides that the mutation check and the code name the same bugs.
//!
//! Two small trees under `tests/fixtures/layers` keep the check itself honest: `good` has nothing wrong, `bad` has one
//! of everything.

mod circles;
mod corpora;
mod graph;
mod lints;
mod seeded;
mod sources;

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// crates/layers.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Layers {
    #[serde(rename = "crate")]
    crates: Vec<Layer>,
    os: OperatingSystem,
}

/// One crate and the crates that it may import.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    name: String,
    uses: Vec<String>,
}

/// Which modules may touch the operating system.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperatingSystem {
    allowed: Vec<String>,
}

/// Everything that is wrong with the tree at `root`.
fn check(root: &Path, known_circles: &[circles::Known]) -> Vec<String> {
    let text = read(&root.join("crates/layers.toml"));
    let layers: Layers = toml::from_str(&text).expect("crates/layers.toml is well formed");
    let mut wrong = graph::check(root, &layers);
    wrong.extend(sources::check(root, &layers));
    wrong.extend(circles::check(root, &layers, known_circles));
    wrong.extend(lints::check(root, &layers));
    wrong.extend(corpora::check(root, &layers));
    wrong
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_house_stands_as_drawn() {
    let root = here().join("../..").canonicalize().expect("the workspace's root");
    let wrong = check(&root, circles::KNOWN);
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn a_sound_tree_passes() {
    assert_eq!(check(&here().join("tests/fixtures/layers/good"), &[]), Vec::<String>::new());
}

#[test]
fn a_tree_that_breaks_every_rule_fails_for_each() {
    let gone: circles::Known = ("base", &["clock.rs", "lib.rs"], "time is short");
    let wrong = check(&here().join("tests/fixtures/layers/bad"), &[gone]);
    let expected = [
        "layers.toml: base uses roof, which does not stand below it",
        "layers.toml: attic is not a crate of the workspace",
        "cellar is not in layers.toml",
        "roof imports cellar, which layers.toml does not allow",
        "base (crates/base/src/lib.rs): std::fs is for the modules in layers.toml [os] only",
        "base (crates/base/src/lib.rs): std::thread::sleep is for the modules in layers.toml [os] only",
        "base::clock (crates/base/src/clock.rs): std::time::Instant is for the modules in layers.toml [os] only",
        "base::clock (crates/base/src/clock.rs): tokio is for the modules in layers.toml [os] only",
        "base::clock (crates/base/src/clock.rs): std::net::TcpStream is for the modules in layers.toml [os] only",
        "base::clock (crates/base/src/clock.rs): std::time::SystemTime is for the modules in layers.toml [os] only",
        "base::inner (crates/base/src/lib.rs): libc is for the modules in layers.toml [os] only",
        "roof: chimney.rs, gutter.rs import each other in a circle:\
            \n  crates/roof/src/chimney.rs:4 imports gutter.rs\
            \n  crates/roof/src/gutter.rs:3 imports chimney.rs",
        "base: no circle of clock.rs, lib.rs any more (time is short): take it off the list",
        "base does not take the workspace's lints: [lints] workspace = true is missing",
        "clippy.toml does not forbid the method std::thread::sleep",
        "clippy.toml does not forbid the type std::collections::HashMap",
        "clippy.toml gives no reason for std::time::Instant::now",
        "Cargo.toml: [workspace.lints] must deny clippy.disallowed_types",
        "roof: fuzz::anything_holds has no corpus in crates/roof/src/__fuzz__/fuzz__anything_holds; \
            make one: scripts/fuzz roof fuzz::anything_holds",
        "crates/roof/src/__fuzz__/fuzz__gone belongs to no fuzz target: move it to where its target is",
    ];
    for sentence in expected {
        assert!(wrong.iter().any(|found| found == sentence), "missing: {sentence}\nfound:\n{}", wrong.join("\n"));
    }
    assert_eq!(wrong.len(), expected.len(), "more than expected:\n{}", wrong.join("\n"));
}
