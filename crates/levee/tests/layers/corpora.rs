//! Every fuzz target has a stored corpus, where bolero replays it.
//!
//! The corpus of the target `inner::fuzz::holds` lies in `__fuzz__/inner__fuzz__holds/corpus`, beside the source that
//! it is in. A directory there that no target answers to is one that was renamed: nothing replays it any more.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use crate::{Layers, read};

/// A test that calls `bolero::check!()`.
struct Target {
    package: String,
    /// Its name, as cargo prints it.
    test: String,
    /// Where bolero looks for its corpus.
    directory: PathBuf,
}

/// Compares the targets of every crate in `layers` with the corpora that are stored.
pub fn check(root: &Path, layers: &Layers) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut sources = Sources::default();
    for layer in &layers.crates {
        sources.read_crate(&root.join("crates").join(&layer.name), &layer.name);
    }
    for Target { package, test, directory } in &sources.targets {
        if files_in(&directory.join("corpus")) == 0 {
            wrong.push(format!(
                "{package}: {test} has no corpus in {}; make one: scripts/fuzz {package} {test}",
                shown(root, directory)
            ));
        }
    }
    for stored in &sources.stored {
        if !sources.targets.iter().any(|target| target.directory == *stored) {
            wrong.push(format!("{} belongs to no fuzz target: move it to where its target is", shown(root, stored)));
        }
    }
    wrong
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

fn files_in(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, |entries| entries.count())
}

/// What is found on a walk through the sources.
#[derive(Default)]
struct Sources {
    targets: Vec<Target>,
    stored: BTreeSet<PathBuf>,
}

impl Sources {
    fn read_crate(&mut self, directory: &Path, package: &str) {
        self.read_directory(&directory.join("src"), &[], package);
        // Each entry of `tests` is a crate of its own, except what only tests read.
        for path in entries(&directory.join("tests")) {
            match path.is_dir() {
                true if path.ends_with("fixtures") => (),
                true => self.read_directory(&path, &[], package),
                false => self.read_file(&path, Vec::new(), package),
            }
        }
    }

    fn read_directory(&mut self, directory: &Path, module: &[String], package: &str) {
        for path in entries(directory) {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let inner = match stem.as_str() {
                "lib" | "main" | "mod" => module.to_vec(),
                _ => [module, &[stem]].concat(),
            };
            match path.is_dir() {
                true if path.ends_with("__fuzz__") => self.stored.extend(entries(&path)),
                true => self.read_directory(&path, &inner, package),
                false => self.read_file(&path, inner, package),
            }
        }
    }

    fn read_file(&mut self, path: &Path, module: Vec<String>, package: &str) {
        if path.extension().is_none_or(|extension| extension != "rs") {
            return;
        }
        let file = syn::parse_file(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut finder = Finder { names: module, found: BTreeSet::new() };
        finder.visit_file(&file);
        let beside = path.with_file_name("__fuzz__");
        self.targets.extend(finder.found.into_iter().map(|names| Target {
            package: package.into(),
            test: names.join("::"),
            directory: beside.join(names.join("__")),
        }));
    }
}

/// What is in `directory`, in order; nothing if it is not there.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a directory entry").path()).collect();
    paths.sort();
    paths
}

/// Finds the functions of one file that call `bolero::check!()`.
struct Finder {
    /// The modules, and the function, that are being walked through.
    names: Vec<String>,
    found: BTreeSet<Vec<String>>,
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.names.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.names.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.names.push(item.sig.ident.to_string());
        visit::visit_item_fn(self, item);
        self.names.pop();
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let path: Vec<String> = item.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path == ["bolero", "check"] {
            self.found.insert(self.names.clone());
        }
    }
}

/// Keeps the place and the replay honest: this target has one stored input, and passes only if it is replayed.
#[test]
fn a_stored_input_is_replayed() {
    let mut replayed = false;
    bolero::check!().with_iterations(1).for_each(|input: &[u8]| replayed |= input == b"a stored input\n");
    assert!(replayed, "bolero looks for corpora in another place: have a look at its TargetLocation::work_dir");
}
