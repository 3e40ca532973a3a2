//! Which files of a crate import each other in circles, read from the sources.
//!
//! A file is a module. It imports the file in which a thing that it names is defined: a path is followed through
//! modules, through `pub use`, and through what a parent imports for `use super::*`. Counted are `use` trees and paths
//! in code, macros included, that begin with `crate`, `self` or `super`, or with a module that was imported or declared
//! by its name. A child may name what its parents define: it is a part of them, and is read with them. So a circle is
//! always one of modules that look independent, and are not. Methods have no path: `impl Parent` in a child is free.
//! Tests (`#[cfg(test)]` items and files named `tests.rs`, or below `tests/`) do not count, nor do fuzz targets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::sources::{attributes, is_test};
use crate::{Layers, read};

/// A circle that is known: the crate, its files, and why it still stands. One that is gone must be taken off the list.
pub type Known = (&'static str, &'static [&'static str], &'static str);

/// The circles of this house that still wait to be untied.
pub const KNOWN: &[Known] = &[
    (
        "runtime",
        &["driver.rs", "executor.rs", "executor/operations.rs", "executor/queue.rs", "handle.rs"],
        "a driver that starts a loop hands its main function the loop's handle",
    ),
    (
        "runtime",
        &[
            "sim/driver.rs",
            "sim/links.rs",
            "sim/loops.rs",
            "sim/network.rs",
            "sim/node.rs",
            "sim/state.rs",
            "sim/storage.rs",
            "sim/storage/file.rs",
            "sim/stream.rs",
        ],
        "the parts of a world name the ids and events that its state defines",
    ),
];

/// Reads every source of every crate in `layers`; `known` circles are no fault, as long as they are there.
pub fn check(root: &Path, layers: &Layers, known: &[Known]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut met = BTreeSet::new();
    for layer in &layers.crates {
        let sources = root.join("crates").join(&layer.name).join("src");
        if !sources.exists() {
            continue;
        }
        let house = House::read(&sources);
        for circle in house.circles() {
            let files: Vec<_> = circle.iter().map(|module| house.files[module].as_str()).collect();
            match known.iter().position(|(name, listed, _)| *name == layer.name && *listed == files) {
                Some(place) => _ = met.insert(place),
                None => wrong.push(house.sentence(&layer.name, &circle)),
            }
        }
    }
    for (_, (name, files, reason)) in known.iter().enumerate().filter(|(place, _)| !met.contains(place)) {
        wrong.push(format!("{name}: no circle of {} any more ({reason}): take it off the list", files.join(", ")));
    }
    wrong
}

/// A module's path within its crate; the root's is empty.
type Module = Vec<String>;

/// The sources of one crate.
#[derive(Default)]
struct House {
    /// File modules, with their paths below `src`.
    files: BTreeMap<Module, String>,
    /// What `use` brings into a module: the name, and its whole path from the root; globs under `*`.
    imports: BTreeMap<Module, Vec<(String, Vec<String>)>>,
    /// Modules in files, by the module whose file they are in: themselves, and inline ones within.
    homes: BTreeMap<Module, Module>,
    /// Paths from the root that a module's file names, with their lines.
    named: BTreeMap<Module, Vec<(Vec<String>, usize)>>,
}

impl House {
    fn read(sources: &Path) -> House {
        let mut house = House::default();
        house.read_directory(sources, sources, &[]);
        house
    }

    fn read_directory(&mut self, sources: &Path, directory: &Path, module: &[String]) {
        for entry in std::fs::read_dir(directory).expect("a source directory") {
            let path = entry.expect("a directory entry").path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let inner = match stem.as_str() {
                "tests" | "fuzz" => continue,
                "lib" | "main" | "mod" => module.to_vec(),
                _ => [module, &[stem]].concat(),
            };
            if path.is_dir() {
                self.read_directory(sources, &path, &inner);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = syn::parse_file(&read(&path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let shown = path.strip_prefix(sources).unwrap_or(&path).display().to_string();
                self.files.insert(inner.clone(), shown);
                self.homes.insert(inner.clone(), inner.clone());
                Reader { house: self, file: inner.clone(), module: inner }.visit_file(&file);
            }
        }
    }

    /// The file in which `path`, from the root, is defined, and none if that is no longer to be told.
    fn home_of(&self, path: &[String], hops: usize) -> Option<&Module> {
        let mut known = path.len();
        while !self.homes.contains_key(&path[..known]) {
            known -= 1;
        }
        let (module, rest) = path.split_at(known);
        let home = &self.homes[module];
        // A path that ends at a module names no thing of it.
        let (name, below) = rest.split_first()?;
        if hops == 0 {
            return Some(home);
        }
        let imports = self.imports.get(module).map(Vec::as_slice).unwrap_or_default();
        if let Some((_, whole)) = imports.iter().find(|(known, whole)| known == name && !whole.is_empty()) {
            // What is not of this crate has no file here.
            return match whole.first().is_some_and(|first| first == "crate") {
                true => self.home_of(&[&whole[1..], below].concat(), hops - 1),
                false => None,
            };
        }
        Some(home)
    }

    /// The files that each file imports, with the first line that does.
    fn edges(&self) -> BTreeMap<&Module, BTreeMap<&Module, usize>> {
        let mut edges: BTreeMap<&Module, BTreeMap<&Module, usize>> = BTreeMap::new();
        for (file, named) in &self.named {
            for (path, line) in named {
                if let Some(home) = self.home_of(path, HOPS_MAX).filter(|home| !file.starts_with(home)) {
                    let first = edges.entry(file).or_default().entry(home).or_insert(*line);
                    *first = (*first).min(*line);
                }
            }
        }
        edges
    }

    /// Sets of files each of which leads to every other one.
    fn circles(&self) -> Vec<Vec<Module>> {
        let edges = self.edges();
        let reach: BTreeMap<&Module, BTreeSet<&Module>> = self
            .files
            .keys()
            .map(|from| {
                let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
                while let Some(file) = next.pop() {
                    let new = edges.get(file).into_iter().flat_map(BTreeMap::keys).filter(|to| seen.insert(**to));
                    next.extend(new.copied());
                }
                (from, seen)
            })
            .collect();
        let mut circles = BTreeSet::new();
        for (from, seen) in reach.iter().filter(|(from, seen)| seen.contains(*from)) {
            let circle = seen.iter().filter(|to| reach[**to].contains(from));
            circles.insert(circle.map(|file| (*file).clone()).collect::<Vec<_>>());
        }
        circles.into_iter().collect()
    }

    fn sentence(&self, name: &str, circle: &[Module]) -> String {
        let edges = self.edges();
        let lines = circle.iter().flat_map(|from| {
            let within = edges[from].iter().filter(|(to, _)| circle.contains(to));
            within.map(|(to, line)| {
                format!("\n  crates/{name}/src/{}:{line} imports {}", self.files[from], self.files[*to])
            })
        });
        let files: Vec<_> = circle.iter().map(|module| self.files[module].as_str()).collect();
        format!("{name}: {} import each other in a circle:{}", files.join(", "), lines.collect::<String>())
    }
}

/// Re-exports of re-exports that are followed.
const HOPS_MAX: usize = 8;

/// Walks one file and keeps what it names.
struct Reader<'a> {
    house: &'a mut House,
    file: Module,
    module: Module,
}

impl Reader<'_> {
    /// The path from the root, with `crate` at its head, if `path` is one of this crate.
    fn whole(&self, path: &[String]) -> Option<Vec<String>> {
        let mut at = self.module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (at, rest) = (Module::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {}
            _ => return None,
        }
        while rest.first().is_some_and(|first| first == "super") {
            at.pop();
            rest = &rest[1..];
        }
        Some([&["crate".to_owned()], at.as_slice(), rest].concat())
    }

    fn on_path(&mut self, path: &[String], span: Span) {
        let whole = self.whole(path).or_else(|| {
            // A module that was imported by its name: `routes::router`.
            let (first, rest) = path.split_first().filter(|(_, rest)| !rest.is_empty())?;
            let imports = self.house.imports.get(&self.module)?;
            let (_, whole) = imports
                .iter()
                .find(|(name, whole)| name == first && whole.first().is_some_and(|head| head == "crate"))?;
            Some([whole, rest].concat())
        });
        let whole = whole.or_else(|| {
            // A child that is named as it is declared: `child::thing`.
            let (first, rest) = path.split_first().filter(|(_, rest)| !rest.is_empty())?;
            let child = [self.module.as_slice(), std::slice::from_ref(first)].concat();
            let is_module = self.children().contains(first);
            is_module.then(|| [&["crate".to_owned()], child.as_slice(), rest].concat())
        });
        if let Some(whole) = whole {
            self.house.named.entry(self.file.clone()).or_default().push((whole[1..].to_vec(), span.start().line));
        }
    }

    /// Modules that were declared here.
    fn children(&self) -> Vec<String> {
        let imports = self.house.imports.get(&self.module).map(Vec::as_slice).unwrap_or_default();
        imports.iter().filter(|(_, whole)| whole.is_empty()).map(|(name, _)| name.clone()).collect()
    }

    fn on_use_tree(&mut self, before: &[String], tree: &syn::UseTree, is_export: bool) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        let (name, path, span) = match tree {
            syn::UseTree::Path(path) => return self.on_use_tree(&with(&path.ident), &path.tree, is_export),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.on_use_tree(before, item, is_export));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                (before.last().cloned().unwrap_or_default(), before.to_vec(), name.ident.span())
            }
            syn::UseTree::Name(name) => (name.ident.to_string(), with(&name.ident), name.ident.span()),
            syn::UseTree::Rename(rename) => (rename.rename.to_string(), with(&rename.ident), rename.ident.span()),
            syn::UseTree::Glob(glob) => {
                ("*".to_owned(), with(&syn::Ident::new("glob", glob.star_token.spans[0])), glob.star_token.spans[0])
            }
        };
        if !is_export {
            self.on_path(&path, span);
        }
        let is_child = path.first().is_some_and(|first| self.children().contains(first));
        let whole = match self.whole(&path) {
            Some(whole) => whole,
            None if is_child => [&["crate".to_owned()], self.module.as_slice(), &path].concat(),
            None => path,
        };
        self.house.imports.entry(self.module.clone()).or_default().push((name, whole));
    }

    /// Macro bodies are not parsed: every run of `a::b::c` in them counts as a path.
    fn on_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut at = Span::call_site();
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.on_path(&std::mem::take(&mut path), at);
                    }
                    at = ident.span();
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.on_path(&std::mem::take(&mut path), at);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.on_tokens(group.stream());
                    }
                }
            }
        }
        self.on_path(&path, at);
    }

    /// Declarations first: they may stand below what names them.
    fn declare(&mut self, items: &[syn::Item]) {
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            if let syn::Item::Mod(item) = item {
                let name = item.ident.to_string();
                if item.content.is_some() {
                    let inner = [self.module.as_slice(), std::slice::from_ref(&name)].concat();
                    self.house.homes.insert(inner, self.file.clone());
                }
                self.house.imports.entry(self.module.clone()).or_default().push((name, Vec::new()));
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_file(&mut self, file: &'ast syn::File) {
        self.declare(&file.items);
        visit::visit_file(self, file);
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        if let Some((_, items)) = &item.content {
            self.declare(items);
        }
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.on_use_tree(&[], &item.tree, !matches!(item.vis, syn::Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1
            && let Some(first) = path.segments.first()
        {
            self.on_path(&names, first.ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        self.on_tokens(item.tokens.clone());
    }

    // `pub(in path)` is no import.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}
