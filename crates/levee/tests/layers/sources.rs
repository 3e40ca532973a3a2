//! Which modules touch the operating system, read from the sources.
//!
//! A module is named by its file (and inline modules within it); it may touch the operating system if `[os] allowed`
//! names it or a module above it. Tests (`#[cfg(test)]` items and files named `tests.rs` or below `tests/`) are free.
//! Paths are found in `use` trees, expressions, types and inside macros, and followed through what a file imports
//! (`use std::time; time::Instant::now()`), whatever the scope.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::{Layers, read};

/// What belongs to the edges. A path is forbidden if it equals one of these or lies below it.
const FORBIDDEN: [&str; 31] = [
    "std::env",
    "std::fs",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::ToSocketAddrs",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread::Builder",
    "std::thread::scope",
    "std::thread::sleep",
    "std::thread::spawn",
    "std::time::Instant",
    "std::time::SystemTime",
    "axum",
    "crossbeam",
    "hyper",
    "indicatif",
    "io_uring",
    "libc",
    "mio",
    "nix",
    "rand",
    "rayon",
    "rustix",
    "signal_hook",
    "socket2",
    "tokio",
    "ureq",
    "vhost",
    "vmm_sys_util",
];

/// Reads every source of every crate in `layers`.
pub fn check(root: &Path, layers: &Layers) -> Vec<String> {
    let mut wrong = Vec::new();
    for layer in &layers.crates {
        let sources = root.join("crates").join(&layer.name).join("src");
        if sources.exists() {
            check_directory(root, &sources, std::slice::from_ref(&layer.name), layers, &mut wrong);
        }
    }
    wrong
}

fn check_directory(root: &Path, directory: &Path, module: &[String], layers: &Layers, wrong: &mut Vec<String>) {
    let mut entries: Vec<_> = std::fs::read_dir(directory)
        .expect("a source directory")
        .map(|entry| entry.expect("a directory entry"))
        .collect();
    entries.sort_by_key(|entry| entry.file_name());
    for path in entries.into_iter().map(|entry| entry.path()) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let inner = match stem.as_str() {
            "tests" => continue,
            "lib" | "main" | "mod" => module.to_vec(),
            _ => [module, &[stem]].concat(),
        };
        if path.is_dir() {
            check_directory(root, &path, &inner, layers, wrong);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            check_file(root, &path, inner, layers, wrong);
        }
    }
}

fn check_file(root: &Path, path: &Path, module: Vec<String>, layers: &Layers, wrong: &mut Vec<String>) {
    let file = syn::parse_file(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut finder = Finder { module, allowed: &layers.os.allowed, imported: BTreeMap::new(), found: BTreeSet::new() };
    finder.visit_file(&file);
    let shown = path.strip_prefix(root).unwrap_or(path).display();
    wrong.extend(finder.found.into_iter().map(|(module, forbidden)| {
        format!("{module} ({shown}): {forbidden} is for the modules in layers.toml [os] only")
    }));
}

/// Walks one file and keeps what it should not name.
struct Finder<'a> {
    module: Vec<String>,
    allowed: &'a [String],
    /// Names that `use` brought in so far, with their whole paths.
    imported: BTreeMap<String, Vec<String>>,
    found: BTreeSet<(String, &'static str)>,
}

impl Finder<'_> {
    fn on_path(&mut self, path: &[String]) {
        let path = match path.split_first().and_then(|(first, rest)| Some((self.imported.get(first)?, rest))) {
            Some((whole, rest)) => [whole, rest].concat().join("::"),
            None => path.join("::"),
        };
        let within = |whole: &str, part: &str| whole == part || whole.starts_with(&format!("{part}::"));
        let module = self.module.join("::");
        if self.allowed.iter().any(|allowed| within(&module, allowed)) {
            return;
        }
        if let Some(forbidden) = FORBIDDEN.iter().find(|forbidden| within(&path, forbidden)) {
            self.found.insert((module, forbidden));
        }
    }

    fn on_import(&mut self, name: String, whole: Vec<String>) {
        self.on_path(&whole);
        // `use tokio;` would stand for itself, and `use crate::x` leads to a module that is read by itself.
        if whole.len() > 1 {
            self.imported.insert(name, whole);
        }
    }

    fn on_use_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.on_use_tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let last = before.last().cloned().unwrap_or_default();
                self.on_import(last, before.to_vec());
            }
            syn::UseTree::Name(name) => self.on_import(name.ident.to_string(), with(&name.ident)),
            syn::UseTree::Rename(rename) => self.on_import(rename.rename.to_string(), with(&rename.ident)),
            syn::UseTree::Glob(_) => self.on_path(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.on_use_tree(before, item)),
        }
    }

    /// Macro bodies are not parsed: every run of `a::b::c` in them counts as a path.
    fn on_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.on_path(&std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.on_path(&std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.on_tokens(group.stream());
                    }
                }
            }
        }
        self.on_path(&path);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.on_use_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        // A lone name is a local one: `rand` the variable is not `rand` the crate.
        if names.len() > 1 {
            self.on_path(&names);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        self.on_tokens(item.tokens.clone());
    }
}

/// Whether an item is there for tests only.
pub fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

/// The attributes of an item.
pub fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
