//! What all directories of the store agree on: who is a member, which ids were given out. Rule 14 of docs/SAFETY.md.
//!
//! One task at a time writes superblocks. Whoever changed something takes a *ticket* and waits until what was wanted
//! at that time is **published**: durable in every member. A directory that fails stops being a member at once in
//! memory; from then on nothing is confirmed until a generation without it is published, because otherwise a start
//! with only that directory could take its older content for all there is.
//!
//! Publications are numbered, and each says which one before it every member knows (*agreed*). So a directory that was
//! put back to an older state gives itself away at the next start, provided that its state is older than what was
//! agreed: a life publishes twice before it confirms anything, and again while files come and go.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use base::{Error, FileId, Instant, Result};
use runtime::Class;
use runtime::sync::Event;

use super::Local;
use super::agreement::{Conclusion, Fate, ID_BATCH, Written, plan_conclusion, plan_failure, plan_publication};
use super::directory::{Directory, State};
use super::superblock::{Member, StoreRecord};
use super::wait::all;

/// How often at most superblocks are written only because files come and go. A directory that is put back to a state
/// from longer ago than two of these is found out, even within one life.
const PUBLICATION_INTERVAL: Duration = Duration::from_secs(30);

/// The state of the agreement.
pub(crate) struct Membership {
    /// As it was last published, or is being published. Generation and members follow from the directories' states.
    record: RefCell<StoreRecord>,
    wanted: Cell<u64>,
    published: Cell<u64>,
    /// The ticket up to which publishing failed, and why.
    failed: RefCell<Option<(u64, Error)>>,
    running: Cell<bool>,
    changed: Event,
    /// The last publication of this life that every one of its members knows.
    agreed: RefCell<Option<StoreRecord>>,
    /// The generation that every one of its members knows; 0 until this life has published one.
    agreed_generation: Cell<u64>,
    /// When something was published last.
    published_at: Cell<Instant>,
    /// The ticket that must be published before anything is confirmed.
    confirm_after: Cell<u64>,
    next_file: Cell<u64>,
    /// The first id that is not durably reserved.
    reserved: Cell<u64>,
}

impl Membership {
    /// The agreement as a plan found it, not published yet.
    pub(crate) fn new(record: StoreRecord, now: Instant) -> Self {
        Membership {
            next_file: Cell::new(record.next_file),
            reserved: Cell::new(record.next_file),
            record: RefCell::new(record),
            wanted: Cell::new(0),
            published: Cell::new(0),
            failed: RefCell::new(None),
            running: Cell::new(false),
            changed: Event::new(),
            agreed: RefCell::new(None),
            agreed_generation: Cell::new(0),
            published_at: Cell::new(now),
            confirm_after: Cell::new(0),
        }
    }

    /// What was agreed on last.
    pub(crate) fn record(&self) -> StoreRecord {
        self.record.borrow().clone()
    }

    /// Whether everything that happened to the members so far is published.
    pub(crate) fn is_settled(&self) -> bool {
        self.published.get() >= self.confirm_after.get()
    }

    /// The last publication of this life that every member knows.
    pub(crate) fn agreed(&self) -> Option<StoreRecord> {
        self.agreed.borrow().clone()
    }

    /// Raises the incarnation, to be published.
    pub(crate) fn raise_incarnation(&self, to: base::Incarnation) {
        let mut record = self.record.borrow_mut();
        record.incarnation = record.incarnation.max(to);
    }

    /// One more than every incarnation so far, to be published before it is used.
    pub(crate) fn next_incarnation(&self) -> base::Incarnation {
        let mut record = self.record.borrow_mut();
        record.incarnation.0 += 1;
        record.incarnation
    }

    /// Makes sure that no id up to this one is given out: a file has it.
    pub(crate) fn on_file(&self, id: FileId) {
        self.next_file.set(self.next_file.get().max(id.0 + 1));
    }
}

/// Publishing.
impl Local {
    /// Publishes the present state and waits for it.
    pub(crate) async fn publish(&self) -> Result<()> {
        let ticket = self.request_publication();
        self.published(ticket).await
    }

    /// Waits until everything that happened to the members so far is published: before anything is confirmed.
    pub(crate) async fn settle(&self) -> Result<()> {
        let membership = &self.membership;
        if membership.is_settled() {
            return Ok(());
        }
        // A publication that failed is tried again by the next one who needs it.
        let ticket = match membership.running.get() {
            true => membership.confirm_after.get(),
            false => self.request_publication(),
        };
        self.published(ticket).await
    }

    /// Gives out an id that was never used and never will be.
    pub(crate) async fn take_file_id(&self) -> Result<FileId> {
        let membership = &self.membership;
        while membership.next_file.get() >= membership.reserved.get() {
            self.publish().await?;
        }
        let id = membership.next_file.get();
        membership.next_file.set(id + 1);
        if membership.reserved.get() - id == ID_BATCH / 4 {
            // The next batch, before anybody has to wait for it.
            self.request_publication();
        }
        Ok(FileId(id))
    }

    /// A write to `directory` failed, or it vanished: it is a member no more, if every file has a copy elsewhere.
    ///
    /// A suspect stays a member ([`plan_failure`]): it gets no new files, what cannot be written to it is an error,
    /// and its files are copied to other directories where that is wanted.
    pub(crate) fn on_directory_failure(&self, directory: &Rc<Directory>, what: &str, error: &io::Error) {
        self.counters.copy_errors.set(self.counters.copy_errors.get() + 1);
        let path = directory.path.display();
        let fate = match directory.state.get() {
            State::Failed | State::Missing => return,
            State::Member => plan_failure(self.members().len() == 1, self.catalogue.needs(directory)),
            State::Joining | State::Resynchronizing => Fate::Excluded,
        };
        if fate == Fate::Suspect {
            tracing::error!("{what} in {path} failed: {error}. The directory holds files that are nowhere else");
            directory.suspect.set(true);
            self.request_repair();
            self.request_watch();
            return;
        }
        tracing::error!("{what} in {path} failed: {error}. The store goes on without this directory");
        directory.state.set(State::Failed);
        directory.failures.set(directory.failures.get() + 1);
        drop(directory.spares.take());
        directory.unguard();
        self.readers.forget_directory(directory.id.get());
        self.catalogue.detach_all(directory);
        let ticket = self.request_publication();
        self.membership.confirm_after.set(ticket);
        self.request_repair();
        self.request_watch();
    }

    /// Has the present state published; gives the ticket to wait for.
    pub(crate) fn request_publication(&self) -> u64 {
        let membership = &self.membership;
        membership.wanted.set(membership.wanted.get() + 1);
        if !membership.running.replace(true)
            && let Some(local) = self.this.upgrade()
        {
            self.handle.spawn(Class::Io, "files: publish", async move { local.run_publications().await }).detach();
        }
        membership.wanted.get()
    }

    /// Files came or went: publishes in the background, if the last time is a while ago.
    pub(crate) fn touch_membership(&self) {
        if self.handle.now() - self.membership.published_at.get() >= PUBLICATION_INTERVAL {
            self.membership.published_at.set(self.handle.now());
            self.request_publication();
        }
    }

    async fn published(&self, ticket: u64) -> Result<()> {
        let membership = &self.membership;
        loop {
            let changed = membership.changed.wait();
            if membership.published.get() >= ticket {
                return Ok(());
            }
            if let Some((_, error)) = membership.failed.borrow().as_ref().filter(|(failed, _)| *failed >= ticket) {
                return Err(error.clone());
            }
            changed.await;
        }
    }

    async fn run_publications(&self) {
        let membership = &self.membership;
        loop {
            let (ticket, result) = self.publish_once().await;
            match result {
                Ok(()) => membership.published.set(ticket),
                Err(error) => *membership.failed.borrow_mut() = Some((ticket, error)),
            }
            membership.changed.notify();
            if membership.wanted.get() == ticket {
                membership.running.set(false);
                return;
            }
        }
    }

    /// Writes what was agreed on to those who are about to join, before anybody names them as members: if this life
    /// ends in between, they must not look older than they are.
    async fn introduce_joining(&self) -> Vec<Rc<Directory>> {
        let joining = self.directories.iter().filter(|directory| directory.state.get() == State::Joining);
        let joining = joining.cloned().collect::<Vec<_>>();
        // In the first publication of a life, whoever joins was formed with what was agreed on before.
        if let Some(agreed) = self.membership.agreed() {
            for directory in &joining {
                if let Err(error) = directory.publish(&agreed).await {
                    self.on_directory_failure(directory, "writing the superblock", &error);
                }
            }
        }
        joining
    }

    /// Writes the present state to every member, going on without those that fail. Gives the last ticket that was
    /// taken before that state was looked at.
    async fn publish_once(&self) -> (u64, Result<()>) {
        let membership = &self.membership;
        loop {
            let ticket = membership.wanted.get();
            let joining = self.introduce_joining().await;
            let joins = |directory: &Rc<Directory>| {
                directory.state.get() == State::Joining && joining.iter().any(|other| Rc::ptr_eq(other, directory))
            };
            let to = self.directories.iter().filter(|directory| directory.is_member() || joins(directory));
            let to = to.cloned().collect::<Vec<_>>();
            let record = {
                let mut record = membership.record.borrow_mut();
                let member = |directory: &Rc<Directory>| Member {
                    id: directory.id.get(),
                    path: super::superblock::path_end(&directory.path.to_string_lossy()).to_owned(),
                };
                let members = to.iter().map(member).collect();
                *record = plan_publication(&record, members, membership.next_file.get());
                record.clone()
            };
            membership.published_at.set(self.handle.now());
            let written = all(to.iter().map(|directory| directory.publish(&record))).await;
            let same = record.generation == membership.agreed_generation.get();
            let mut outcomes = Vec::with_capacity(to.len());
            let mut failure = None;
            for (directory, result) in to.iter().zip(written) {
                let Err(error) = result else {
                    self.counters.on_written(0, super::superblock::SLOT);
                    outcomes.push(Written::Yes);
                    continue;
                };
                self.on_directory_failure(directory, "writing the superblock", &error);
                if directory.is_member() {
                    let what = format!("writing the superblock of {}", directory.path.display());
                    failure = failure.or(Some(Error::from_io(what, &error)));
                    outcomes.push(Written::StillMember);
                } else {
                    outcomes.push(Written::Excluded);
                }
            }
            let complete = match (plan_conclusion(&outcomes, same), failure) {
                (Conclusion::Published { complete }, _) => complete,
                (Conclusion::Again, _) => continue,
                (Conclusion::Failed, failure) => {
                    return (ticket, Err(failure.unwrap_or_else(|| Error::internal("no directory failed"))));
                }
            };
            let joining = to.iter().filter(|directory| directory.state.get() == State::Joining);
            joining.for_each(|directory| directory.state.set(State::Member));
            membership.agreed_generation.set(record.generation);
            if complete {
                membership.record.borrow_mut().agreed_publication = record.publication;
                *membership.agreed.borrow_mut() = Some(record.clone());
            }
            membership.reserved.set(record.next_file);
            return (ticket, Ok(()));
        }
    }
}
