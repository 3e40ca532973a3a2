//! The names and files of one simulated disk, and which of the names a loss of power would keep.
//!
//! A directory has two views: what everybody sees now, and what is durable. Each call that changes names (create,
//! rename, remove, make a directory) is one atomic *change* that waits in a list until a directory that it touches
//! is synced. A loss of power commits some of the waiting changes and forgets the rest: either a prefix of the list,
//! as a journaling file system would, or any choice in which two changes of one name keep their order, which POSIX
//! also allows. Syncing a file does not make its name durable, although many file systems do that, too.
//!
//! A removed file keeps its bytes while it is open or while a loss of power could bring its name back; only then is
//! its inode dropped. It takes up room only while it has a name or is open.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path};

use base::{Prng, Set};

use super::content::Content;
use super::errno::{EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, error, fail};
use crate::driver::DirectoryEntry;

/// The number of a file or directory on its disk; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct InodeId(u64);

const ROOT: InodeId = InodeId(0);

/// All names and files of one disk.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    inodes: BTreeMap<InodeId, Inode>,
    inodes_made: u64,
    changes: Vec<Change>,
    changes_made: u64,
    /// Files without a name that were not dropped yet.
    orphans: Vec<InodeId>,
    /// How many of those there must be before it is worth the while to look which of them may go.
    orphans_max: usize,
}

#[derive(Clone, Debug)]
enum Inode {
    File(Box<FileInode>),
    Directory(Directory),
}

/// A file without its name.
#[derive(Clone, Debug, Default)]
pub(super) struct FileInode {
    /// Its bytes.
    pub(super) content: Content,
    /// How many open descriptions it has.
    pub(super) opens: u32,
    /// The description that holds its lock.
    pub(super) lock: Option<u64>,
    has_name: bool,
}

#[derive(Clone, Debug, Default)]
struct Directory {
    now: BTreeMap<String, InodeId>,
    durable: BTreeMap<String, InodeId>,
}

/// One atomic change of names.
#[derive(Clone, Debug)]
struct Change {
    number: u64,
    /// `(directory, name, what the name means afterwards)`.
    edits: Vec<(InodeId, String, Option<InodeId>)>,
}

/// Fewer files without a name are left alone.
const ORPHANS_MIN: usize = 16;

/// How many changes may wait: a journaling file system commits by itself now and then.
const CHANGES_MAX: usize = 4096;

impl Namespace {
    /// An empty disk: a root directory, durable.
    pub(super) fn new() -> Self {
        let inodes = BTreeMap::from([(ROOT, Inode::Directory(Directory::default()))]);
        Namespace {
            inodes,
            inodes_made: 1,
            changes: Vec::new(),
            changes_made: 0,
            orphans: Vec::new(),
            orphans_max: ORPHANS_MIN,
        }
    }

    /// The file that `path` names.
    pub(super) fn find_file(&self, path: &Path) -> io::Result<InodeId> {
        let id = self.find(path)?.ok_or_else(|| error(ENOENT))?;
        match self.inodes[&id] {
            Inode::File(_) => Ok(id),
            Inode::Directory(_) => fail(EISDIR),
        }
    }

    /// Opens the file that `path` names; creates it where asked to.
    pub(super) fn open(&mut self, path: &Path, create: bool, exclusive: bool) -> io::Result<InodeId> {
        match self.find(path)? {
            Some(_) if create && exclusive => fail(EEXIST),
            Some(_) => self.find_file(path),
            None if !create => fail(ENOENT),
            None => {
                let (directory, name) = self.parent(path)?;
                let file = FileInode { has_name: true, ..FileInode::default() };
                let id = self.add(Inode::File(Box::new(file)));
                self.change(vec![(directory, name, Some(id))]);
                Ok(id)
            }
        }
    }

    /// The file with this number, which must exist: a description keeps it.
    pub(super) fn file(&self, id: InodeId) -> &FileInode {
        match &self.inodes[&id] {
            Inode::File(file) => file,
            Inode::Directory(_) => panic!("a description is of a file"),
        }
    }

    /// The file with this number, to be changed.
    pub(super) fn file_mut(&mut self, id: InodeId) -> &mut FileInode {
        match self.inodes.get_mut(&id) {
            Some(Inode::File(file)) => file,
            _ => panic!("a description is of a file"),
        }
    }

    /// Whether `path` names something.
    pub(super) fn exists(&self, path: &Path) -> bool {
        matches!(self.find(path), Ok(Some(_)))
    }

    /// Whether the inode still exists.
    pub(super) fn contains(&self, id: InodeId) -> bool {
        self.inodes.contains_key(&id)
    }

    /// Files that have a name, with their paths below the root, sorted by path.
    pub(super) fn files(&self) -> Vec<(String, InodeId)> {
        let mut files = Vec::new();
        let mut waiting = vec![(String::new(), ROOT)];
        while let Some((path, id)) = waiting.pop() {
            match &self.inodes[&id] {
                Inode::File(_) => files.push((path, id)),
                Inode::Directory(directory) => {
                    let join = |name: &String| if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                    waiting.extend(directory.now.iter().map(|(name, id)| (join(name), *id)));
                }
            }
        }
        files.sort();
        files
    }

    /// Every file that takes up room: it has a name, or is open.
    pub(super) fn occupants(&self) -> impl Iterator<Item = &FileInode> {
        self.inodes.values().filter_map(|inode| match inode {
            Inode::File(file) if file.occupies() => Some(&**file),
            _ => None,
        })
    }

    /// Makes a directory and its missing parents.
    pub(super) fn create_directory(&mut self, path: &Path) -> io::Result<()> {
        let mut at = ROOT;
        for name in components(path)? {
            let known = self.directory(at)?.now.get(name).copied();
            at = match known {
                Some(id) => id,
                None => {
                    let id = self.add(Inode::Directory(Directory::default()));
                    self.change(vec![(at, name.to_owned(), Some(id))]);
                    id
                }
            };
        }
        match self.inodes[&at] {
            Inode::Directory(_) => Ok(()),
            Inode::File(_) => fail(EEXIST),
        }
    }

    /// The names in a directory, sorted.
    pub(super) fn read_directory(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let id = self.find(path)?.ok_or_else(|| error(ENOENT))?;
        let entry = |(name, id): (&String, &InodeId)| DirectoryEntry {
            name: name.clone(),
            is_directory: matches!(self.inodes[id], Inode::Directory(_)),
        };
        Ok(self.directory(id)?.now.iter().map(entry).collect())
    }

    /// Renames a file or directory; a file that has the new name loses it. Returns the bytes of room that come free.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<u64> {
        let id = self.find(from)?.ok_or_else(|| error(ENOENT))?;
        let target = self.find(to)?;
        if target == Some(id) {
            return Ok(0);
        }
        match (&self.inodes[&id], target.map(|target| &self.inodes[&target])) {
            (_, None) | (Inode::File(_), Some(Inode::File(_))) => {}
            (Inode::File(_), Some(Inode::Directory(_))) => return fail(EISDIR),
            (Inode::Directory(_), Some(Inode::File(_))) => return fail(ENOTDIR),
            (Inode::Directory(_), Some(Inode::Directory(_))) => return fail(ENOTEMPTY),
        }
        if matches!(self.inodes[&id], Inode::Directory(_)) && to.starts_with(from) {
            return fail(EINVAL);
        }
        let (from_directory, from_name) = self.parent(from)?;
        let (to_directory, to_name) = self.parent(to)?;
        self.change(vec![(from_directory, from_name, None), (to_directory, to_name, Some(id))]);
        Ok(target.map_or(0, |target| self.orphan(target)))
    }

    /// Removes the name of a file. Returns the bytes of room that come free.
    pub(super) fn remove(&mut self, path: &Path) -> io::Result<u64> {
        let id = self.find_file(path)?;
        let (directory, name) = self.parent(path)?;
        self.change(vec![(directory, name, None)]);
        Ok(self.orphan(id))
    }

    /// How many changes there have been: what a sync that is submitted now will cover.
    pub(super) fn changes_made(&self) -> u64 {
        self.changes_made
    }

    /// Makes the names in a directory durable as of change number `made`, with the other halves of those changes.
    pub(super) fn sync_directory(&mut self, path: &Path, made: u64) -> io::Result<()> {
        let id = self.find(path)?.ok_or_else(|| error(ENOENT))?;
        self.directory(id)?;
        let touches = |change: &Change| change.edits.iter().any(|(directory, ..)| *directory == id);
        self.commit(|_, change| change.number < made && touches(change));
        self.drop_orphans();
        Ok(())
    }

    /// A description of a file was closed: without a name it may go. Returns the bytes of room that come free.
    pub(super) fn on_close(&mut self, id: InodeId) -> u64 {
        let file = self.file(id);
        if file.occupies() {
            return 0;
        }
        let freed = file.content.allocated();
        self.drop_orphans();
        freed
    }

    /// Power is lost: some waiting changes are found again, the others never happened, and nothing is open.
    pub(super) fn lose_power(&mut self, prng: &mut Prng) {
        let count = self.changes.len() as u64;
        if count > 0 {
            match prng.below(3) {
                0 => {
                    let end = prng.between(0, count);
                    self.commit(|index, _| (index as u64) < end);
                }
                1 => self.commit(|_, _| true),
                _ => {
                    let chosen: Vec<bool> = (0..count).map(|_| prng.one_in(2)).collect();
                    self.commit(|index, _| chosen[index]);
                }
            }
        }
        self.changes.clear();
        self.orphans.clear();
        for inode in self.inodes.values_mut() {
            match inode {
                Inode::Directory(directory) => directory.now = directory.durable.clone(),
                Inode::File(file) => {
                    file.content.lose_power(prng);
                    **file = FileInode { content: std::mem::take(&mut file.content), ..FileInode::default() };
                }
            }
        }
        self.keep_reachable();
    }

    /// A copy in which nothing is open and everything is durable.
    pub(super) fn copy(&self) -> Namespace {
        let mut copy = self.clone();
        copy.changes.clear();
        copy.orphans.clear();
        for inode in copy.inodes.values_mut() {
            match inode {
                Inode::Directory(directory) => directory.durable = directory.now.clone(),
                Inode::File(file) => {
                    let mut content = std::mem::take(&mut file.content);
                    let point = content.start_sync();
                    content.finish_sync(point);
                    **file = FileInode { content, ..FileInode::default() };
                }
            }
        }
        copy.keep_reachable();
        copy
    }

    /// Commits the selected changes, and the earlier changes of the same names that they build on.
    fn commit(&mut self, selected: impl Fn(usize, &Change) -> bool) {
        let mut touched: Set<(InodeId, String)> = Set::default();
        let mut chosen = vec![false; self.changes.len()];
        for (index, change) in self.changes.iter().enumerate().rev() {
            let needed = change.edits.iter().any(|(directory, name, _)| touched.contains(&(*directory, name.clone())));
            if needed || selected(index, change) {
                chosen[index] = true;
                touched.extend(change.edits.iter().map(|(directory, name, _)| (*directory, name.clone())));
            }
        }
        let mut waiting = Vec::new();
        for (change, chosen) in std::mem::take(&mut self.changes).into_iter().zip(chosen) {
            match chosen {
                false => waiting.push(change),
                true => {
                    for (directory, name, meaning) in change.edits {
                        if let Some(Inode::Directory(directory)) = self.inodes.get_mut(&directory) {
                            set(&mut directory.durable, name, meaning);
                        }
                    }
                }
            }
        }
        self.changes = waiting;
    }

    /// Drops what no path from the root reaches, and notes which files have a name.
    fn keep_reachable(&mut self) {
        let mut reached: Set<InodeId> = Set::default();
        let mut waiting = vec![ROOT];
        while let Some(id) = waiting.pop() {
            reached.insert(id);
            match self.inodes.get_mut(&id) {
                Some(Inode::Directory(directory)) => waiting.extend(directory.now.values()),
                Some(Inode::File(file)) => file.has_name = true,
                None => panic!("a durable name has an inode"),
            }
        }
        self.inodes.retain(|id, _| reached.contains(id));
    }

    /// A file lost its name. It stays: until a sync, a loss of power may bring the name back. Returns the bytes of
    /// room that come free, which is none while it is open.
    fn orphan(&mut self, id: InodeId) -> u64 {
        self.orphans.push(id);
        let file = self.file_mut(id);
        file.has_name = false;
        if file.occupies() { 0 } else { file.content.allocated() }
    }

    /// Drops files that nobody has open and that no loss of power could bring back. It looks at every name, and so not
    /// before their number has doubled: nobody can tell the difference.
    fn drop_orphans(&mut self) {
        if self.orphans.len() < self.orphans_max {
            return;
        }
        let mut kept: Set<InodeId> = Set::default();
        for inode in self.inodes.values() {
            if let Inode::Directory(directory) = inode {
                kept.extend(directory.durable.values());
            }
        }
        kept.extend(self.changes.iter().flat_map(|change| &change.edits).filter_map(|(.., meaning)| *meaning));
        for id in std::mem::take(&mut self.orphans) {
            match self.file(id).opens > 0 || kept.contains(&id) {
                true => self.orphans.push(id),
                false => drop(self.inodes.remove(&id)),
            }
        }
        self.orphans_max = (2 * self.orphans.len()).max(ORPHANS_MIN);
    }

    fn change(&mut self, edits: Vec<(InodeId, String, Option<InodeId>)>) {
        for (directory, name, meaning) in &edits {
            match self.inodes.get_mut(directory) {
                Some(Inode::Directory(directory)) => set(&mut directory.now, name.clone(), *meaning),
                _ => panic!("names are in directories"),
            }
        }
        self.changes.push(Change { number: self.changes_made, edits });
        self.changes_made += 1;
        if self.changes.len() > CHANGES_MAX {
            self.commit(|index, _| index < CHANGES_MAX / 2);
            self.drop_orphans();
        }
    }

    fn add(&mut self, inode: Inode) -> InodeId {
        let id = InodeId(self.inodes_made);
        self.inodes_made += 1;
        self.inodes.insert(id, inode);
        id
    }

    fn directory(&self, id: InodeId) -> io::Result<&Directory> {
        match &self.inodes[&id] {
            Inode::Directory(directory) => Ok(directory),
            Inode::File(_) => fail(ENOTDIR),
        }
    }

    /// What `path` means now: `None` if its last component does not exist.
    fn find(&self, path: &Path) -> io::Result<Option<InodeId>> {
        let names = components(path)?;
        let mut at = ROOT;
        for (index, name) in names.iter().enumerate() {
            match self.directory(at)?.now.get(*name) {
                Some(id) => at = *id,
                None if index + 1 == names.len() => return Ok(None),
                None => return fail(ENOENT),
            }
        }
        Ok(Some(at))
    }

    /// The directory that holds the last component of `path`, and that component.
    fn parent(&self, path: &Path) -> io::Result<(InodeId, String)> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| error(EINVAL))?;
        let parent = path.parent().ok_or_else(|| error(EINVAL))?;
        let id = self.find(parent)?.ok_or_else(|| error(ENOENT))?;
        self.directory(id)?;
        Ok((id, name.to_owned()))
    }
}

impl FileInode {
    fn occupies(&self) -> bool {
        self.has_name || self.opens > 0
    }
}

fn set(names: &mut BTreeMap<String, InodeId>, name: String, meaning: Option<InodeId>) {
    match meaning {
        Some(id) => drop(names.insert(name, id)),
        None => drop(names.remove(&name)),
    }
}

/// The components of a path below the root of a disk; `..` is refused.
fn components(path: &Path) -> io::Result<Vec<&str>> {
    path.components()
        .filter(|component| !matches!(component, Component::RootDir | Component::CurDir))
        .map(|component| match component {
            Component::Normal(name) => name.to_str().ok_or_else(|| error(EINVAL)),
            _ => fail(EINVAL),
        })
        .collect()
}
