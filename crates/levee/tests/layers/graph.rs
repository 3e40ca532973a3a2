//! Who imports whom, as cargo sees it.

use std::path::Path;

use cargo_metadata::MetadataCommand;

use crate::Layers;

/// Compares the workspace's imports (of every kind: normal, build and test) with what `layers` allows.
pub fn check(root: &Path, layers: &Layers) -> Vec<String> {
    let mut wrong = Vec::new();
    for (place, layer) in layers.crates.iter().enumerate() {
        let below = &layers.crates[..place];
        for used in layer.uses.iter().filter(|used| !below.iter().any(|lower| lower.name == **used)) {
            wrong.push(format!("layers.toml: {} uses {used}, which does not stand below it", layer.name));
        }
    }

    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".into()])
        .exec()
        .expect("cargo metadata");
    let packages = metadata.workspace_packages();
    let is_ours = |name: &str| packages.iter().any(|package| package.name.as_str() == name);
    for layer in layers.crates.iter().filter(|layer| !is_ours(&layer.name)) {
        wrong.push(format!("layers.toml: {} is not a crate of the workspace", layer.name));
    }
    for package in &packages {
        let Some(layer) = layers.crates.iter().find(|layer| layer.name == package.name.as_str()) else {
            wrong.push(format!("{} is not in layers.toml", package.name));
            continue;
        };
        let imports = package.dependencies.iter().map(|dependency| dependency.name.as_str());
        for import in imports.filter(|name| is_ours(name) && !layer.uses.iter().any(|used| used == name)) {
            wrong.push(format!("{} imports {import}, which layers.toml does not allow", package.name));
        }
    }
    wrong
}
