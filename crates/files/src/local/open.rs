//! How a store starts.
//!
//! 1. Guard every directory: locks, superblocks ([`super::guard`]).
//! 2. Decide which of them are members, join or return ([`super::plan`]).
//! 3. Read the header of every file; one that an earlier life may have been writing to is locked first, so that
//!    nothing lands in it any more, synced, and read again. Put the copies together.
//! 4. Where some copies of a file are sealed and others are not, compare them: one that differs is read last, one that
//!    cannot be read is set aside.
//! 5. Publish the next incarnation, with the members as they are now, and that all of them know.
//! 6. Make a seal that reached one copy durable in all; remove what never became a file.
//! 7. Start the work in the background.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{DirectoryId, Error, ErrorKind, FileId, Incarnation, MIB, Result, Set, StoreId, units};
use runtime::Handle;

use super::agreement::was_left_behind;
use super::catalogue::{Copy, Entry};
use super::directory::{Directory, READ, State, WRITE, lock_within};
use super::guard::{Guarded, Probe, explain, form_directory, probe_directory};
use super::header::{HEADER, Header};
use super::names::Name;
use super::plan::{Found, Plan, Role, plan_open};
use super::superblock::{Member, StoreRecord};
use super::wait::bounded;
use super::{Damaged, Local, LocalOptions, OpenReport};
use crate::Store;
use crate::layout::Unreadable;

/// Headers that are read at once.
const SCANS_AT_ONCE: usize = 32;
/// Bytes of two copies that are compared in one step.
const COMPARE_STEP: u64 = MIB;
/// How often a header is asked for, and the pause between: a disk whose path changes over in this moment must not cost
/// a file its only copy for a whole life.
const HEADER_TRIES: u32 = 3;
const HEADER_PAUSE: Duration = Duration::from_millis(20);

/// How many shards the store has whose first shard is in these directories, and its id; none where nothing is. Looks
/// only, takes no lock, and tells of no error: whoever opens the store then does.
pub async fn shards(handle: &Handle, directories: &[PathBuf]) -> Option<(StoreId, u8)> {
    let options = LocalOptions { read_only: true, ..LocalOptions::new(directories.to_vec()) };
    let mut newest: Option<StoreRecord> = None;
    for path in directories {
        if let Ok(Probe::Store(Guarded { superblock, .. })) = probe_directory(handle, path, &options).await
            && superblock.record.generation > newest.as_ref().map_or(0, |record| record.generation)
        {
            newest = Some(superblock.record);
        }
    }
    newest.map(|record| (record.store, record.shard.count))
}

/// Opens the store in `options.directories`; makes it, if all of them are empty.
///
/// # Errors
/// `Invalid`, `Conflict`, `Corrupt`, `Full` or `Io`: one sentence that says which directory, what is wrong with it
/// and what to do.
pub async fn open(handle: &Handle, options: LocalOptions) -> Result<(Store, OpenReport)> {
    check_options(&options)?;
    let mut probes = Vec::new();
    for path in &options.directories {
        if options.shard.index > 0 && !options.read_only {
            make_folder(handle, path).await;
        }
        probes.push(probe_directory(handle, path, &options).await?);
    }
    let found = options.directories.iter().zip(&probes).map(|(path, probe)| Found {
        path: path.clone(),
        exists: matches!(probe, Probe::Empty | Probe::Store(_)),
        superblock: match probe {
            Probe::Store(guarded) => Some(guarded.superblock.clone()),
            _ => None,
        },
    });
    let found = found.collect::<Vec<_>>();
    let random_u128 = || u128::from(handle.random_u64()) << 64 | u128::from(handle.random_u64());
    let fresh = (StoreId(random_u128()), handle.random_u64());
    let mut plan = plan_open(&found, options.accept_missing || options.read_only, fresh)?;
    if plan.created {
        refuse_to_create(&options, &probes)?;
        plan.record.store = options.store.unwrap_or(plan.record.store);
        plan.record.shard = options.shard;
    }
    check_identity(&plan.record, &options)?;
    let mut report = OpenReport { created: plan.created, ..OpenReport::default() };
    note_missing(&plan, &options, &mut report);
    if options.read_only {
        // A start writes such a slot anew.
        let guarded = options.directories.iter().zip(&probes).filter_map(|(path, probe)| match probe {
            Probe::Store(guarded) => Some((path, guarded)),
            _ => None,
        });
        for (path, guarded) in guarded {
            report.damaged.extend(guarded.damaged_slot.map(|offset| {
                let why = "one of its two slots is damaged".into();
                Damaged { path: path.join("superblock"), offset, why }
            }));
        }
    }
    let mut directories = Vec::new();
    let mut returning = Vec::new();
    for ((path, role), probe) in options.directories.iter().zip(&plan.roles).zip(probes) {
        let directory = Rc::new(Directory::new(handle, path, DirectoryId(random_u128()), State::Missing));
        directories.push(directory.clone());
        match (role, probe) {
            (Role::Member, Probe::Store(Guarded { guards, superblock, .. })) => {
                directory.id.set(superblock.directory);
                directory.guard(guards, superblock.sequence);
                directory.state.set(State::Member);
            }
            (Role::Returns, Probe::Store(Guarded { guards, superblock, .. })) if !options.read_only => {
                directory.id.set(superblock.directory);
                directory.guard(guards, superblock.sequence);
                directory.state.set(State::Resynchronizing);
                let left_behind = was_left_behind(&superblock.record, &plan.record);
                returning.push((directory, left_behind));
                report.left_behind.extend(left_behind.then(|| path.clone()));
                report.notes.push(format!("{} was away: it is being resynchronized", path.display()));
            }
            (Role::Joins, probe) if !options.read_only => {
                join(handle, &options, &directory, probe, &plan.record).await?;
            }
            (_, Probe::Failing(error)) => report.notes.push(format!("{} is left out: {error}", path.display())),
            _ => report.notes.push(format!(
                "{} is left out: it is empty, does not exist, or was away. If it is new, make it and start again when \
                 nothing is missing",
                path.display()
            )),
        }
    }
    let mut record = plan.record;
    record.incarnation.0 += u64::from(!options.read_only);
    let local = Local::new(handle, options, directories, record);
    let mut scan = local.scan(&mut report).await?;
    local.compare_unsealed(&mut scan, &mut report).await;
    if !local.options.read_only {
        // The first makes this life known to every member, the second says so: see `plan`. And with both, either slot
        // of a new directory says that it is a member.
        local.publish().await?;
        local.publish().await?;
        local.finish(scan, &mut report).await?;
    }
    for directory in local.members() {
        let refreshed = directory.refresh_space().await;
        refreshed.map_err(|error| unusable(&directory.path, &error))?;
    }
    if !local.options.read_only {
        returning.iter().for_each(|(directory, left_behind)| local.spawn_resynchronization(directory, *left_behind));
        local.request_repair();
        local.request_watch();
    }
    report.copies = local.copies_effective();
    if report.copies < local.options.copies {
        report.notes.push(format!(
            "there is one copy per directory: {} instead of the {} that are wanted",
            report.copies, local.options.copies
        ));
    }
    report.directories = local.directory_statuses();
    Ok((Store::new(Rc::new(local)), report))
}

/// Where a directory is new to the store, a shard has no folder in it yet. That of a directory which is not there is
/// not made: its disk may not be mounted. What goes wrong is told by whoever looks into the folder.
async fn make_folder(handle: &Handle, path: &Path) {
    if let Some(parent) = path.parent()
        && handle.read_directory(parent).await.is_ok()
    {
        drop(handle.create_directory(path).await);
    }
}

fn check_options(options: &LocalOptions) -> Result<()> {
    if options.directories.is_empty() {
        return Err(Error::invalid("no directory was given: a store needs at least one"));
    }
    for (index, path) in options.directories.iter().enumerate() {
        if options.directories[..index].contains(path) {
            return Err(Error::invalid(format!("{} was given twice: give each directory once", path.display())));
        }
    }
    match options.copies as usize {
        1..=super::header::COPIES_MAX => Ok(()),
        copies => {
            Err(Error::invalid(format!("{copies} copies are not possible: choose 1 to {}", super::header::COPIES_MAX)))
        }
    }
}

/// Refuses a store, or a shard of it, that is not the one that is wanted.
fn check_identity(record: &StoreRecord, options: &LocalOptions) -> Result<()> {
    let path = options.directories[0].display();
    match options.store {
        Some(wanted) if wanted != record.store => {
            return Err(Error::conflict(format!(
                "{path} belongs to store {} and the shards beside it to store {wanted}: put back what belongs together",
                record.store
            )));
        }
        _ => {}
    }
    match (record.shard == options.shard, record.shard.count == options.shard.count) {
        (true, _) => Ok(()),
        (false, true) => Err(Error::conflict(format!(
            "{path} holds {} instead of {}: put the directories back where they were",
            record.shard, options.shard
        ))),
        (false, false) => Err(Error::conflict(format!(
            "the store in {path} was made for {0} loops, which stays so: start it with --loops {0} (loop.count in \
             --config), or without that setting",
            record.shard.count
        ))),
    }
}

fn note_missing(plan: &Plan, options: &LocalOptions, report: &mut OpenReport) {
    let consequence = match options.read_only {
        true => "what only it holds is not shown",
        false => "what only it held is given up",
    };
    for Member { path, id } in &plan.missing {
        report.notes.push(format!("{path} (id {id}) is missing, or was put back to an older state: {consequence}"));
    }
}

/// Nothing that was given is part of a store. Whether that means a new one.
fn refuse_to_create(options: &LocalOptions, probes: &[Probe]) -> Result<()> {
    for probe in probes {
        if let Probe::Failing(error) = probe {
            return Err(error.clone());
        }
    }
    if !options.may_create {
        return Err(Error::corrupt(format!(
            "{} and its like in the other directories hold nothing, but the store has {} shards, and this is one of \
             them: bring back what was in them",
            options.directories[0].display(),
            options.shard.count
        )));
    }
    match options.read_only {
        true => Err(Error::not_found(format!("there is no store in {}", options.directories[0].display()))),
        false => Ok(()),
    }
}

/// Prepares an empty directory to become a member with the next generation.
async fn join(
    handle: &Handle,
    options: &LocalOptions,
    directory: &Directory,
    probe: Probe,
    record: &StoreRecord,
) -> Result<()> {
    // Locks that it has from an earlier try come free before they are taken again.
    drop(probe);
    let guards = form_directory(handle, &directory.path, options).await?;
    directory.guard(guards, 0);
    let record = StoreRecord { generation: 0, members: Vec::new(), ..record.clone() };
    let written = directory.publish(&record).await;
    written.map_err(|error| explain(&directory.path, &error))?;
    directory.state.set(State::Joining);
    Ok(())
}

/// Something in a member directory cannot be used, and what to do.
fn unusable(path: &Path, error: &io::Error) -> Error {
    match explain(path, error) {
        Error { kind: ErrorKind::Io | ErrorKind::NotFound, message } => Error::io(format!(
            "{message}. Look after the disk and start again; or, if other directories hold copies of everything, leave \
             this one out and start with --accept-missing-directories"
        )),
        explained => explained,
    }
}

/// What was found under one name.
struct Seen {
    directory: Rc<Directory>,
    text: String,
    name: Option<Name>,
    content: Content,
}

enum Content {
    File(Header),
    /// A file without a header that can be believed, and why.
    Damaged(String),
    /// Prepared space, with its capacity.
    Spare(u64),
    /// Nothing that matters.
    Rubbish,
}

/// Copies, by file and directory.
type Sealed = Set<(FileId, DirectoryId)>;

/// How a copy without a seal differs from one with it, and where.
enum Difference {
    None,
    Content(u64),
    Unreadable(u64),
}

/// What a scan leaves to be done once this life may write.
#[derive(Default)]
struct Scan {
    /// Copies that lack the seal that another copy of the file has.
    unsealed: Vec<(Copy, u64)>,
    /// Copies of such files that have it.
    sealed: Sealed,
    /// Names that mean nothing any more.
    rubbish: Vec<(Rc<Directory>, Name)>,
}

impl Local {
    /// Fills the catalogue and the pools, without changing anything that can be seen.
    async fn scan(self: &Rc<Self>, report: &mut OpenReport) -> Result<Scan> {
        let mut names = Vec::new();
        for directory in self.members() {
            if !self.options.read_only {
                // A killed process may have changed names that a loss of power would change back. What this life
                // sees must stay.
                let synced = directory.sync_names().await;
                synced.map_err(|error| unusable(&directory.files(), &error))?;
            }
            let entries = self.handle.read_directory(&directory.files()).await;
            let entries = entries.map_err(|error| unusable(&directory.files(), &error))?;
            names.extend(entries.into_iter().map(|entry| (directory.clone(), entry.name)));
        }
        let seen = bounded(names, SCANS_AT_ONCE, |(directory, text)| async move {
            let name = Name::parse(&text);
            let content = self.look_at(&directory, name).await?;
            Ok(Seen { directory, text, name, content })
        });
        let mut scan = Scan::default();
        let mut files: BTreeMap<FileId, Vec<(Copy, Option<u64>)>> = BTreeMap::new();
        for seen in seen.await {
            let Seen { directory, text, name, content } = seen?;
            match (name, content) {
                (Some(Name::File(_, id)), Content::File(header)) => {
                    let sealed = header.sealed;
                    files.entry(id).or_default().push((Copy::new(&directory, header.birth, None), sealed));
                }
                (Some(Name::File(kind, id)), Content::Damaged(why)) => {
                    self.membership.on_file(id);
                    let path = directory.path_of(Name::File(kind, id));
                    let damaged = Damaged { path, offset: 0, why };
                    self.catalogue.on_damaged(&directory, kind, id, damaged.to_string());
                    report.damaged.push(damaged);
                }
                (Some(Name::Spare(kind, number)), Content::Spare(capacity)) => {
                    directory.spares.borrow_mut().add(kind, capacity, number);
                }
                (Some(name), _) => scan.rubbish.push((directory, name)),
                (None, _) => report.notes.push(format!("{}/{text} is not ours", directory.files().display())),
            }
        }
        for (id, copies) in files {
            self.membership.on_file(id);
            self.adopt(id, copies, &mut scan)?;
        }
        Ok(scan)
    }

    /// Whoever sealed a file had made its copies the same up to its end. So where a copy without the seal differs, its
    /// directory was put back to an older state, or one of the two rotted since: nothing here can tell. Both are kept,
    /// and the sealed one is read first; to make this one anew from that could destroy the last good copy. Only what
    /// cannot be read is set aside.
    async fn compare_unsealed(&self, scan: &mut Scan, report: &mut OpenReport) {
        let mut kept = Vec::new();
        for (copy, length) in std::mem::take(&mut scan.unsealed) {
            let Ok(entry) = self.catalogue.get(copy.birth.file) else { continue };
            let found = self.first_difference(&entry, &copy, length, &scan.sealed).await;
            let damaged = |offset, why: &str| Damaged { path: copy.path(), offset: HEADER + offset, why: why.into() };
            match found {
                Difference::None => {}
                Difference::Content(offset) => {
                    let damaged = damaged(offset, "it differs from the copy that was sealed: one of them is damaged");
                    tracing::error!(%damaged, "both copies are kept, and this one is read last");
                    copy.doubt();
                    self.counters.copy_errors.set(self.counters.copy_errors.get() + 1);
                    report.damaged.push(damaged);
                }
                Difference::Unreadable(offset) => {
                    let damaged = damaged(offset, "it cannot be read, and another copy was sealed");
                    tracing::warn!(%damaged, "a copy without a seal is set aside");
                    entry.detach(copy.directory.id.get());
                    self.readers.forget_copy(copy.key());
                    self.catalogue.on_damaged(&copy.directory, entry.kind, entry.id, damaged.to_string());
                    report.damaged.push(damaged);
                    continue;
                }
            }
            kept.push((copy, length));
        }
        scan.unsealed = kept;
    }

    /// Where a copy without a seal differs first from those with one. What cannot be read in any of these is no
    /// difference.
    async fn first_difference(&self, entry: &Entry, copy: &Copy, length: u64, sealed: &Sealed) -> Difference {
        let others = entry.live_copies().into_iter().filter(|other| sealed.contains(&other.key())).collect::<Vec<_>>();
        let mut difference = Difference::None;
        let mut offset = 0;
        while offset < length {
            let len = COMPARE_STEP.min(length - offset) as usize;
            for other in &others {
                let Ok(theirs) = self.read_copy_of(entry, other, offset, len).await else { continue };
                match self.read_copy_of(entry, copy, offset, len).await {
                    Err(_) => return Difference::Unreadable(offset),
                    Ok(ours) if ours[..] != theirs[..] && matches!(difference, Difference::None) => {
                        let same = ours.iter().zip(theirs.iter()).take_while(|(ours, theirs)| ours == theirs);
                        difference = Difference::Content(offset + same.count() as u64);
                    }
                    Ok(_) => {}
                }
                break;
            }
            offset += len as u64;
        }
        difference
    }

    /// Does what the scan found to be done.
    async fn finish(self: &Rc<Self>, scan: Scan, report: &mut OpenReport) -> Result<()> {
        for (copy, length) in scan.unsealed {
            report.seals_completed += 1;
            if let Err(error) = self.seal_copy(&copy, length).await {
                self.on_directory_failure(&copy.directory, &format!("sealing {}", copy.path().display()), &error);
                if copy.directory.is_member() {
                    return Err(Error::from_io(format!("sealing {}", copy.path().display()), &error));
                }
            }
        }
        for (directory, name) in scan.rubbish {
            report.swept += 1;
            if let Err(error) = self.handle.remove(&directory.path_of(name)).await {
                self.on_directory_failure(&directory, &format!("removing {name}"), &error);
            }
        }
        self.settle().await
    }

    /// What is behind a name. A file that may have been written to is locked first.
    async fn look_at(&self, directory: &Rc<Directory>, name: Option<Name>) -> Result<Content> {
        let Some(name) = name else { return Ok(Content::Rubbish) };
        let path = directory.path_of(name);
        let fail = |error: io::Error| unusable(&path, &error);
        match name {
            Name::Making(number) => {
                directory.on_number(number);
                Ok(Content::Rubbish)
            }
            Name::Spare(_, number) => {
                directory.on_number(number);
                let file = self.handle.open(&path, READ).await.map_err(fail)?;
                let length = file.length().await.map_err(fail)?;
                match length.checked_sub(HEADER).filter(|len| *len > 0 && units::is_aligned(*len, units::BLOCK)) {
                    Some(capacity) => Ok(Content::Spare(capacity)),
                    None => Ok(Content::Rubbish),
                }
            }
            Name::File(..) => {
                let file = self.handle.open(&path, READ).await.map_err(fail)?;
                let content = self.read_header(directory, name, &file).await?;
                let Content::File(header) = &content else { return Ok(content) };
                if self.options.read_only {
                    return Ok(content);
                }
                // What a killed process wrote may be in a cache still. What this life reads must stay: a seal, too.
                if header.sealed.is_some() {
                    file.sync().await.map_err(fail)?;
                    return Ok(content);
                }
                let file = self.handle.open(&path, WRITE).await.map_err(fail)?;
                if !lock_within(&self.handle, &file, self.options.lock_wait).await.map_err(fail)? {
                    return Err(Error::conflict(format!(
                        "{} is still being written to by a process that has ended: try again in a moment",
                        path.display()
                    )));
                }
                if !is_on("seen-not-synced") {
                    file.sync().await.map_err(fail)?;
                }
                // A seal may have landed while we waited.
                self.read_header(directory, name, &file).await
            }
        }
    }

    async fn read_header(&self, directory: &Directory, name: Name, file: &runtime::File) -> Result<Content> {
        let mut tries = 1;
        let block = loop {
            match file.read_at(0, HEADER as usize).await {
                Ok(block) => break block,
                Err(_) if tries < HEADER_TRIES => tries += 1,
                Err(error) => return Ok(Content::Damaged(format!("its header cannot be read: {error}"))),
            }
            self.handle.sleep(HEADER_PAUSE).await;
        };
        let header = match Header::decode(&block) {
            Ok(header) if header.writable || self.options.read_only => header.record,
            Ok(_) | Err(Unreadable::Newer) => {
                return Err(Error::invalid(format!(
                    "{} was written by a newer version of levee: use that one",
                    directory.path_of(name).display()
                )));
            }
            Err(Unreadable::Blank) => return Ok(Content::Damaged("its header is blank".into())),
            Err(Unreadable::Damaged) => return Ok(Content::Damaged("its header is damaged".into())),
        };
        let birth = &header.birth;
        let born_here = birth.directories.get(birth.copy as usize).is_none_or(|id| *id == directory.id.get());
        if name != Name::File(birth.kind, birth.file) || birth.store != self.store || !born_here {
            return Ok(Content::Damaged(format!(
                "it is a copy of {} of store {}",
                Name::File(birth.kind, birth.file),
                birth.store
            )));
        }
        // Its length was durable before its seal.
        match (header.sealed, file.length().await) {
            (Some(sealed), Ok(length)) if length < HEADER + sealed => {
                Ok(Content::Damaged(format!("it was cut off: {length} bytes are left of {}", HEADER + sealed)))
            }
            _ => Ok(Content::File(header)),
        }
    }

    /// Makes this life a later one than that of a file. Superblocks say which the last life was, unless the newest
    /// slot of the only directory has rotted: then its files know better, and no two lives have one number.
    fn outlive(&self, earlier: Incarnation) {
        let at_least = Incarnation(earlier.0 + u64::from(!self.options.read_only));
        self.incarnation.set(self.incarnation.get().max(at_least));
        self.membership.raise_incarnation(at_least);
    }

    /// Puts the copies of a file together.
    fn adopt(&self, id: FileId, copies: Vec<(Copy, Option<u64>)>, scan: &mut Scan) -> Result<()> {
        self.outlive(copies[0].0.birth.incarnation);
        let mut lengths = copies.iter().filter_map(|(_, sealed)| *sealed).collect::<Vec<_>>();
        lengths.dedup();
        let sealed = match lengths[..] {
            [] => None,
            [length] => Some(length),
            _ => {
                let paths = copies.iter().map(|(copy, _)| copy.path().display().to_string()).collect::<Vec<_>>();
                return Err(Error::corrupt(format!(
                    "the copies {} of file {id} end at different lengths {lengths:?}: remove the wrong ones, or \
                     restore them from a backup",
                    paths.join(", ")
                )));
            }
        };
        let entry = Rc::new(Entry::new(&Header { birth: (*copies[0].0.birth).clone(), sealed }, false));
        let is_partly_sealed = copies.iter().any(|(_, own)| own.is_none());
        for (copy, own) in copies {
            // Whoever sealed the others found the same content in all of them; only the record is missing.
            match (sealed, own) {
                (Some(length), None) => scan.unsealed.push((copy.clone(), length)),
                (Some(_), Some(_)) if is_partly_sealed => drop(scan.sealed.insert(copy.key())),
                _ => {}
            }
            entry.attach(copy);
        }
        self.catalogue.insert(entry);
        Ok(())
    }
}
