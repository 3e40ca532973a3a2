//! How a store starts.
//!
//! 1. Guard every directory: locks, superblocks ([`super::guard`]).
//! 2. Decide which of them are members, join or return ([`super::plan`]).
//! 3. Publish the next incarnation, before anything else is written.
//! 4. Read the header of every file; one that an earlier life may have been writing to is locked first, so that
//!    nothing lands in it any more, and read again.
//! 5. Put the copies together; make a seal that reached one copy durable in all.
//! 6. Remove what never became a file; start the work in the background.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use base::{DirectoryId, Error, FileId, Incarnation, Result, StoreId, units};
use runtime::Handle;

use super::catalogue::{Copy, Entry};
use super::directory::{Directory, READ, State, WRITE, lock_within};
use super::guard::{Guarded, form_directory, guard_directory};
use super::header::{HEADER, Header};
use super::layout::Unreadable;
use super::names::Name;
use super::plan::{Found, Plan, Role, plan_open};
use super::pool::add_spare;
use super::superblock::StoreRecord;
use super::wait::bounded;
use super::{Local, LocalOptions, OpenReport};
use crate::Store;

/// Headers that are read at once.
const SCANS_AT_ONCE: usize = 32;

/// Opens the store in `options.directories`; makes it, if all of them are empty.
///
/// # Errors
/// `Invalid`, `Conflict`, `Corrupt`, `Full` or `Io`: one sentence that says which directory, what is wrong with it
/// and what to do.
pub async fn open(handle: &Handle, options: LocalOptions) -> Result<(Store, OpenReport)> {
    check_options(&options)?;
    let mut guarded = Vec::new();
    for path in &options.directories {
        guarded.push(guard_directory(handle, path, &options).await?);
    }
    let found = options.directories.iter().zip(&guarded).map(|(path, guarded)| Found {
        path: path.clone(),
        superblock: guarded.as_ref().map(|guarded| guarded.superblock.clone()),
    });
    let found = found.collect::<Vec<_>>();
    let random_u128 = || u128::from(handle.random_u64()) << 64 | u128::from(handle.random_u64());
    let fresh = (StoreId(random_u128()), handle.random_u64());
    let plan = plan_open(&found, options.accept_missing || options.read_only, fresh)?;
    if options.read_only && plan.created {
        return Err(Error::not_found(format!("there is no store in {}", options.directories[0].display())));
    }
    let mut report = OpenReport { created: plan.created, ..OpenReport::default() };
    let mut returning = Vec::new();
    let mut directories = Vec::new();
    for ((path, role), guarded) in options.directories.iter().zip(&plan.roles).zip(&mut guarded) {
        let id = DirectoryId(random_u128());
        let directory = Rc::new(Directory::new(handle, path, id, State::Missing));
        directories.push(directory.clone());
        match (role, guarded.take()) {
            (Role::Member, Some(Guarded { guards, superblock })) => {
                directory.id.set(superblock.directory);
                directory.guard(guards, superblock.sequence);
                directory.state.set(State::Member);
            }
            (Role::Returns, Some(Guarded { guards, superblock })) if !options.read_only => {
                directory.id.set(superblock.directory);
                directory.guard(guards, superblock.sequence);
                directory.state.set(State::Resynchronizing);
                let left_behind = superblock.record.lineages.last() != plan.record.lineages.last();
                returning.push((directory, left_behind));
                report.notes.push(format!("{} was away: it is being resynchronized", path.display()));
            }
            (Role::Joins, before) if !options.read_only => {
                // Its locks come free before they are taken again.
                let sequence = before.map_or(0, |guarded| guarded.superblock.sequence);
                let guards = form_directory(handle, path, &options).await?;
                directory.guard(guards, sequence);
                let record = StoreRecord { generation: 0, members: Vec::new(), ..plan.record.clone() };
                let written = directory.publish(&record).await;
                written.map_err(|error| Error::from_io(format!("preparing {}", path.display()), &error))?;
                directory.state.set(State::Joining);
            }
            _ => report.notes.push(format!("{} is not read: it is empty, or was away", path.display())),
        }
    }
    note_missing(&plan, &mut report);
    let local = start(handle, options, directories, plan.record).await?;
    local.scan(&mut report).await?;
    for directory in local.members() {
        let refreshed = directory.refresh_space().await;
        refreshed.map_err(|error| Error::from_io(directory.path.display(), &error))?;
    }
    if !local.options.read_only {
        returning.iter().for_each(|(directory, left_behind)| local.spawn_resynchronization(directory, *left_behind));
        local.request_repair();
        if local.directories.iter().any(|directory| directory.state.get() == State::Missing) {
            local.request_watch();
        }
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

fn note_missing(plan: &Plan, report: &mut OpenReport) {
    for member in &plan.missing {
        report.notes.push(format!("{} (id {}) is missing, and its content given up", member.path, member.id));
    }
}

/// Begins a life: the incarnation is durable in every member before anything else is written.
async fn start(
    handle: &Handle,
    options: LocalOptions,
    directories: Vec<Rc<Directory>>,
    mut record: StoreRecord,
) -> Result<Rc<Local>> {
    if !options.read_only {
        record.incarnation = Incarnation(record.incarnation.0 + 1);
    }
    let read_only = options.read_only;
    let local = Local::new(handle, options, directories, record);
    if !read_only {
        local.publish().await?;
    }
    Ok(local)
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

impl Local {
    async fn scan(self: &Rc<Self>, report: &mut OpenReport) -> Result<()> {
        let mut names = Vec::new();
        for directory in self.members() {
            let entries = self.handle.read_directory(&directory.files()).await;
            let entries = entries.map_err(|error| Error::from_io(directory.files().display(), &error))?;
            names.extend(entries.into_iter().map(|entry| (directory.clone(), entry.name)));
        }
        let seen = bounded(names, SCANS_AT_ONCE, |(directory, text)| async move {
            let name = Name::parse(&text);
            let content = self.look_at(&directory, name).await?;
            Ok(Seen { directory, text, name, content })
        });
        let seen = seen.await.into_iter().collect::<Result<Vec<_>>>()?;
        let mut seals: BTreeMap<FileId, Vec<(Copy, Option<u64>)>> = BTreeMap::new();
        let mut damaged = Vec::new();
        for Seen { directory, text, name, content } in seen {
            match (name, content) {
                (Some(Name::File(_, id)), Content::File(header)) => {
                    let (number, sealed) = (header.birth.copy, header.sealed);
                    let copy = Copy { number, directory, birth: Rc::new(header.birth), writer: None };
                    seals.entry(id).or_default().push((copy, sealed));
                }
                (Some(Name::File(_, id)), Content::Damaged(why)) => {
                    damaged.push((id, format!("{}: {why}", directory.files().join(text).display())));
                }
                (Some(Name::Spare(number)), Content::Spare(capacity)) => add_spare(&directory, number, capacity),
                (Some(name), _) if !self.options.read_only => {
                    report.swept += 1;
                    let removed = self.handle.remove(&directory.path_of(name)).await;
                    removed.map_err(|error| Error::from_io(directory.path_of(name).display(), &error))?;
                }
                (Some(_), _) => {}
                (None, _) => report.notes.push(format!("{}/{text} is not ours", directory.files().display())),
            }
        }
        for (id, copies) in seals {
            self.membership.on_file(id);
            self.adopt(id, copies, report).await?;
        }
        for (id, why) in damaged {
            self.membership.on_file(id);
            report.damaged.push(why.clone());
            if self.catalogue.get_any(id).is_none() {
                self.catalogue.damaged.borrow_mut().insert(id, why);
            }
        }
        self.settle().await
    }

    /// What is behind a name. A file that may have been written to is locked first.
    async fn look_at(&self, directory: &Rc<Directory>, name: Option<Name>) -> Result<Content> {
        let Some(name) = name else { return Ok(Content::Rubbish) };
        let path = directory.path_of(name);
        let fail = |error: io::Error| Error::from_io(path.display(), &error);
        match name {
            Name::Making(number) => {
                directory.on_number(number);
                Ok(Content::Rubbish)
            }
            Name::Spare(number) => {
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
                if self.options.read_only || !matches!(&content, Content::File(header) if header.sealed.is_none()) {
                    return Ok(content);
                }
                let file = self.handle.open(&path, WRITE).await.map_err(fail)?;
                if !lock_within(&self.handle, &file, self.options.lock_wait).await.map_err(fail)? {
                    return Err(Error::conflict(format!(
                        "{} is still being written to by a process that has ended: try again in a moment",
                        path.display()
                    )));
                }
                // A seal may have landed while we waited.
                self.read_header(directory, name, &file).await
            }
        }
    }

    async fn read_header(&self, directory: &Directory, name: Name, file: &runtime::File) -> Result<Content> {
        let block = match file.read_at(0, HEADER as usize).await {
            Ok(block) => block,
            Err(error) => return Ok(Content::Damaged(format!("its header cannot be read: {error}"))),
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
        match name == Name::File(birth.kind, birth.file) && birth.store == self.store && born_here {
            true => Ok(Content::File(header)),
            false => Ok(Content::Damaged(format!(
                "it is a copy of {} of store {}",
                Name::File(birth.kind, birth.file),
                birth.store
            ))),
        }
    }

    /// Puts the copies of a file together.
    async fn adopt(
        self: &Rc<Self>,
        id: FileId,
        copies: Vec<(Copy, Option<u64>)>,
        report: &mut OpenReport,
    ) -> Result<()> {
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
        let entry = Rc::new(Entry::new(&Header { birth: (*copies[0].0.birth).clone(), sealed }));
        let unsealed = copies.iter().filter(|(_, own)| own.is_none()).map(|(copy, _)| copy.clone()).collect::<Vec<_>>();
        copies.into_iter().for_each(|(copy, _)| entry.attach(copy));
        self.catalogue.insert(entry);
        if let (Some(length), false) = (sealed, self.options.read_only) {
            // Whoever sealed it found the same content in all copies; only the record is missing.
            for copy in unsealed {
                report.seals_completed += 1;
                if let Err(error) = self.seal_copy(&copy, length).await {
                    self.on_directory_failure(&copy.directory, &format!("sealing file {id}"), &error);
                }
            }
        }
        Ok(())
    }
}
