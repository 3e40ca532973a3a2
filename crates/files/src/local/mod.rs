//! The local engine: append-only files in directories, ideally one per disk, with copies over them.
//!
//! **Intuition.** A file is a file of the file system: 4 KiB of header, then content that is written once, in order,
//! past the page cache, durable when the write completes. Everything that must not go wrong is decided by a name or
//! by one sector: a file exists when it has its name, it is sealed when its seal record is there, a directory counts
//! when the newest superblocks name it.
//!
//! **Names.** A *directory* is one of those that a person gave; those that hold all that was confirmed are *members*.
//! A *life* is the time from one start to its end, numbered by the incarnation. A *spare* is prepared space without a
//! file. docs/formats/files.md describes every byte.
//!
//! **Map.** [`open`] starts a store: [`guard`] takes the locks, [`plan`] decides who is a member. [`membership`] keeps
//! the directories in agreement, deciding by [`agreement`]. [`lifecycle`] creates, seals and deletes, with space from
//! [`pool`], which [`ready`] fills ahead of need; [`access`] appends and reads. [`resync`] brings copies back in the
//! background. [`catalogue`] and [`directory`] hold what is known of files and directories; [`layout`], [`superblock`],
//! [`header`] and [`names`] are the formats; [`space`] is arithmetic. [`scratch`] lends room to measurements.
//!
//! **Invariants.**
//! - What an append confirmed is durable in every copy of the file in a member directory.
//! - A directory that missed something is no member in any superblock that counts, before anything is confirmed
//!   without it; it becomes one again only when it holds the same as the others.
//! - A name is durable before the file behind it is used, and gone durably before its space is used again.
//! - Nothing is appended to a file of an earlier life.
//!
//! An idle store costs nothing once its space is ready: no task has a timer unless a directory is away.

mod access;
pub mod agreement;
mod catalogue;
mod directory;
mod engine;
#[cfg(test)]
mod fuzz;
mod guard;
mod header;

mod lifecycle;
mod membership;
mod names;
mod open;
pub mod plan;
mod pool;
mod ready;
mod resync;
pub mod scratch;
mod scrub;
mod space;
mod spares;
pub mod superblock;
mod wait;

use std::cell::Cell;
use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::{Error, Incarnation, Instant, MIB, Result, StoreId};
use policies::background::{Spare, Work};
use policies::ready::ReadySettings;
use runtime::{Class, Handle};

use self::catalogue::Catalogue;
use self::directory::{Directory, State};
use self::header::HEADER;
use self::membership::Membership;
use self::superblock::{MEMBERS_MAX, Shard, StoreRecord};
use crate::{DirectoryStatus, Statistics, StoreSpace};

pub use self::guard::{SCRATCH, hold_lock};
pub use self::open::{open, shards};

/// How long the room of the file systems, as they last said, is believed while files come and go.
const SPACE_AGE_MAX: Duration = Duration::from_secs(1);
/// The same before a file is refused: whoever has no room tries again and again.
const LOOK_AGE_MAX: Duration = Duration::from_millis(10);

/// How to open a store.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Its directories, ideally one per disk. Empty ones are added to the store; all of them empty make a new one.
    pub directories: Vec<PathBuf>,
    /// Most bytes of files of this shard, one copy counted; as much as the file systems hold, if none.
    pub capacity: Option<u64>,
    /// Copies by which space is counted: the default redundancy of the store.
    pub copies: u8,
    /// Look only: nothing on the disk is changed, and no lock is taken.
    pub read_only: bool,
    /// Start although members are missing, and give up what only they hold.
    pub accept_missing: bool,
    /// Who we are, for a second process that finds the directory in use: a command and a process id.
    pub holder: String,
    /// Which part of the store is opened: its directories are those of this shard alone.
    pub shard: Shard,
    /// The store that it must be, or be made as; any, and a new id, if none.
    pub store: Option<StoreId>,
    /// Whether it may be made: not where the other shards of the store are known to be there.
    pub may_create: bool,
    /// Names besides ours that may be in an empty directory.
    pub neighbours: Vec<String>,
    /// How long to wait for locks: a process that was killed may still be dying.
    pub lock_wait: Duration,
    /// Pace of resynchronization and of copying, in bytes per second, if foreground work leaves as much.
    pub resync_bytes_per_sec: u64,
    /// The same, however little foreground work leaves.
    pub resync_floor_bytes_per_sec: u64,
    /// Pace of zero-writing journals ahead of need, in bytes per second.
    pub prepare_bytes_per_sec: u64,
    /// How much space for data files is zero-written ahead of need, and when.
    pub ready: ReadySettings,
}

impl LocalOptions {
    /// The usual options for these directories.
    pub fn new(directories: Vec<PathBuf>) -> Self {
        LocalOptions {
            directories,
            capacity: None,
            copies: 1,
            read_only: false,
            accept_missing: false,
            holder: String::new(),
            shard: Shard::WHOLE,
            store: None,
            may_create: true,
            neighbours: Vec::new(),
            lock_wait: Duration::from_secs(2),
            resync_bytes_per_sec: 64 * MIB,
            // 100 GiB in an hour.
            resync_floor_bytes_per_sec: 29 * MIB,
            prepare_bytes_per_sec: 128 * MIB,
            ready: ReadySettings::default(),
        }
    }
}

/// What a start found.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// Whether the store was made by it.
    pub created: bool,
    /// Copies that files get: one per directory at most.
    pub copies: u8,
    /// Every directory that was given.
    pub directories: Vec<DirectoryStatus>,
    /// Copies of files whose header cannot be believed and, for reading only, slots of superblocks.
    pub damaged: Vec<Damaged>,
    /// Unfinished files that were removed.
    pub swept: u64,
    /// Seals that had reached some copies only, and were completed.
    pub seals_completed: u64,
    /// Directories from before a start that went on without them: they come back as they were then.
    pub left_behind: Vec<PathBuf>,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// A part of a directory that does not hold what it should.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damaged {
    /// The path of the file.
    pub path: PathBuf,
    /// Where in it, in bytes.
    pub offset: u64,
    /// What is wrong with it.
    pub why: String,
}

impl Display for Damaged {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

/// An open store.
struct Local {
    this: Weak<Local>,
    handle: Handle,
    options: LocalOptions,
    store: StoreId,
    /// Final once the headers of all files are read.
    incarnation: Cell<Incarnation>,
    directories: Vec<Rc<Directory>>,
    catalogue: Catalogue,
    membership: Membership,
    readers: access::Readers,
    preparing: pool::Preparing,
    readiness: ready::Readiness,
    resync: resync::Resync,
    counters: Counters,
    /// What copies may be made of.
    spare: Rc<Cell<Spare>>,
    fenced: Cell<bool>,
    refreshing: Cell<bool>,
    refreshed: Cell<Instant>,
}

/// What was done since the start. Index: number of the kind of file, 0 for superblocks.
#[derive(Default)]
struct Counters {
    written_bytes: [Cell<u64>; 7],
    read_bytes: [Cell<u64>; 7],
    copy_errors: Cell<u64>,
    background: Cell<Work>,
}

impl Counters {
    /// Nobody asked for these reads and writes.
    fn on_background(&self, read_bytes: u64, written_bytes: u64) {
        let before = self.background.get();
        self.background.set(Work {
            read_bytes: before.read_bytes + read_bytes,
            written_bytes: before.written_bytes + written_bytes,
        });
    }

    fn on_written(&self, kind: usize, bytes: u64) {
        self.written_bytes[kind].set(self.written_bytes[kind].get() + bytes);
    }

    fn on_read(&self, kind: usize, bytes: u64) {
        self.read_bytes[kind].set(self.read_bytes[kind].get() + bytes);
    }
}

impl Local {
    fn new(handle: &Handle, options: LocalOptions, directories: Vec<Rc<Directory>>, record: StoreRecord) -> Rc<Local> {
        Rc::new_cyclic(|this| Local {
            this: this.clone(),
            handle: handle.clone(),
            options,
            store: record.store,
            incarnation: Cell::new(record.incarnation),
            directories,
            catalogue: Catalogue::default(),
            membership: Membership::new(record, handle.now()),
            readers: access::Readers::default(),
            preparing: pool::Preparing::default(),
            readiness: ready::Readiness::default(),
            resync: resync::Resync::default(),
            counters: Counters::default(),
            spare: Rc::default(),
            fenced: Cell::new(false),
            refreshing: Cell::new(false),
            refreshed: Cell::new(handle.now()),
        })
    }

    /// The directories that are read from and written to.
    fn members(&self) -> Vec<Rc<Directory>> {
        self.each_member().cloned().collect()
    }

    fn each_member(&self) -> impl Iterator<Item = &Rc<Directory>> {
        self.directories.iter().filter(|directory| directory.is_member())
    }

    fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::invalid("the store was opened for reading only"));
        }
        match self.fenced.get() {
            true => Err(Error::fenced(format!("incarnation {} was fenced", self.incarnation.get()))),
            false => Ok(()),
        }
    }

    /// See `FileEngine::begin_incarnation`.
    async fn number_a_life(&self) -> Result<Incarnation> {
        self.check_writable()?;
        let incarnation = self.membership.next_incarnation();
        self.publish().await?;
        Ok(incarnation)
    }

    /// Refuses what this life still wants to write, if it is among those fenced, and makes sure that every later
    /// life has a higher number.
    async fn fence_through(&self, incarnation: Incarnation) -> Result<()> {
        if self.options.read_only {
            return Err(Error::invalid("the store was opened for reading only"));
        }
        if incarnation < self.incarnation.get() {
            // Earlier lives are over: their locks are ours.
            return Ok(());
        }
        self.fenced.set(true);
        self.membership.raise_incarnation(incarnation);
        self.publish().await
    }
}

/// Space.
impl Local {
    /// Copies that a file of the default redundancy gets now.
    fn copies_effective(&self) -> u8 {
        self.options.copies.min(self.each_member().count() as u8).max(1)
    }

    /// What files take up in all members.
    fn allocated_bytes(&self) -> u64 {
        self.each_member().map(|directory| directory.space.allocated.get()).sum()
    }

    /// What spares take up in all members.
    fn spare_bytes(&self) -> u64 {
        self.each_member().map(|directory| directory.spare_bytes()).sum()
    }

    /// Asked for each write that is admitted: allocates nothing.
    fn space(&self) -> StoreSpace {
        let copies = self.copies_effective();
        let mut rooms = [0; MEMBERS_MAX];
        let mut count = 0;
        for directory in self.each_member() {
            rooms[count] = self.room(directory);
            count += 1;
        }
        // The header of one more file is not room for content.
        let free = space::plan_usable(&mut rooms[..count], copies as usize).saturating_sub(HEADER);
        let used = self.allocated_bytes() / u64::from(copies);
        let capacity = self.options.capacity.unwrap_or(u64::MAX).min(used + free);
        StoreSpace { capacity, used, free: free.min(capacity.saturating_sub(used)) }
    }

    /// Bytes that may still be set aside in a directory. Of what the file systems have left every shard of the store
    /// takes no more than its part, so that none lives on what another one keeps for its garbage collection.
    fn room(&self, directory: &Directory) -> u64 {
        self.unclaimed(directory) + directory.spare_bytes()
    }

    /// The same without what spares take up.
    fn unclaimed(&self, directory: &Directory) -> u64 {
        directory.unclaimed() / u64::from(self.options.shard.count)
    }

    /// Files came or went: makes more space ready, if that is lacking; asks the file systems for their room again, in the
    /// background, if that is a while ago, and publishes, if that is a longer while ago.
    fn touch_space(&self) {
        self.touch_membership();
        self.zero_ahead();
        let age = self.handle.now() - self.refreshed.get();
        if age < SPACE_AGE_MAX || self.refreshing.replace(true) {
            return;
        }
        let weak = self.this.clone();
        let task = async move {
            let Some(local) = weak.upgrade() else { return };
            local.refresh_space().await;
            local.refreshing.set(false);
        };
        self.handle.spawn(Class::Background, "files: space", task).detach();
    }

    /// Asks the file systems for their room, unless that was a moment ago: before anybody is told that there is none.
    async fn look_at_space(&self) {
        if self.handle.now() - self.refreshed.get() >= LOOK_AGE_MAX {
            self.refresh_space().await;
        }
    }

    async fn refresh_space(&self) {
        for directory in self.members() {
            let looked = async {
                directory.check_presence().await?;
                directory.refresh_space().await
            };
            if let Err(error) = looked.await {
                self.on_directory_failure(&directory, "looking for the directory", &error);
            }
        }
        self.refreshed.set(self.handle.now());
    }
}

/// What a person sees.
impl Local {
    fn directory_statuses(&self) -> Vec<DirectoryStatus> {
        let mut behind = self.directories.iter().map(|directory| directory.behind_bytes.get()).collect::<Vec<_>>();
        if !self.resync.is_complete() {
            let members = self.each_member().count();
            for entry in self.catalogue.all() {
                let info = entry.info();
                let missing = members.min(info.copies_wanted as usize).saturating_sub(info.copies as usize);
                let lacks = |directory: &Directory| directory.is_member() && !entry.is_in(directory);
                let lacking = (0..behind.len()).filter(|index| lacks(&self.directories[*index])).take(missing);
                lacking.for_each(|index| behind[index] += info.sealed.unwrap_or(info.capacity));
            }
        }
        let status = |(directory, behind_bytes): (&Rc<Directory>, u64)| DirectoryStatus {
            path: directory.path.display().to_string(),
            state: match directory.state.get() {
                State::Member if directory.suspect.get() => "failed",
                State::Member => "healthy",
                State::Joining | State::Resynchronizing => "resynchronizing",
                State::Failed => "failed",
                State::Missing => "missing",
            },
            free_bytes: directory.space.fs_free.get(),
            behind_bytes,
        };
        self.directories.iter().zip(behind).map(status).collect()
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            written_bytes: self.counters.written_bytes.each_ref().map(Cell::get),
            read_bytes: self.counters.read_bytes.each_ref().map(Cell::get),
            copy_errors: self.counters.copy_errors.get(),
            kept_bytes: self.spare_bytes() / u64::from(self.copies_effective()),
            zeroed_bytes: self.readiness.zeroed_bytes(),
            directories: self.directory_statuses(),
        }
    }
}
