//! What the compiler is asked to guard.

use std::path::Path;

use toml::{Table, Value};

use crate::{Layers, read};

/// Methods that clippy.toml forbids, with the reason that it gives to whoever calls one.
const METHODS: [&str; 4] =
    ["std::time::Instant::now", "std::time::SystemTime::now", "std::thread::sleep", "std::thread::spawn"];
/// Types that clippy.toml forbids.
const TYPES: [&str; 2] = ["std::collections::HashMap", "std::collections::HashSet"];
/// Lints of clippy that the workspace denies, because the lists above hang on them.
const DENIED: [&str; 2] = ["disallowed_methods", "disallowed_types"];

/// Checks that the lists of clippy.toml are complete and reach every crate.
pub fn check(root: &Path, layers: &Layers) -> Vec<String> {
    let mut wrong = Vec::new();
    for layer in &layers.crates {
        let manifest = root.join("crates").join(&layer.name).join("Cargo.toml");
        if manifest.exists() && !takes_workspace_lints(&table(&manifest)) {
            wrong.push(format!(
                "{} does not take the workspace's lints: [lints] workspace = true is missing",
                layer.name
            ));
        }
    }

    let clippy = table(&root.join("clippy.toml"));
    for (kind, list, key) in [("method", &METHODS[..], "disallowed-methods"), ("type", &TYPES, "disallowed-types")] {
        let forbidden = clippy.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        for path in list {
            match forbidden.iter().find(|entry| entry.get("path").and_then(Value::as_str) == Some(path)) {
                None => wrong.push(format!("clippy.toml does not forbid the {kind} {path}")),
                Some(entry) if entry.get("reason").is_none() => {
                    wrong.push(format!("clippy.toml gives no reason for {path}"))
                }
                Some(_) => {}
            }
        }
    }

    let workspace = table(&root.join("Cargo.toml"));
    let lints = &workspace["workspace"]["lints"]["clippy"];
    for lint in DENIED.iter().filter(|lint| lints.get(lint).and_then(Value::as_str) != Some("deny")) {
        wrong.push(format!("Cargo.toml: [workspace.lints] must deny clippy.{lint}"));
    }
    wrong
}

fn takes_workspace_lints(manifest: &Table) -> bool {
    manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(Value::as_bool) == Some(true)
}

fn table(path: &Path) -> Table {
    read(path).parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
