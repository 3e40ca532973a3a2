//! What must be true in the end, whatever happened before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use files::DirectoryStatus;
use runtime::sim::SimDisk;

use super::super::agents;
use super::super::plan::Promise;
use super::super::shared::{Running, name_of};
use super::{JOURNAL_FILES, Run, Server};

/// How long repairs and collection may take: a directory that was away is looked for every 15 seconds.
const SETTLE: Duration = Duration::from_secs(30);
/// How long space may take to come back.
const SPACE_PATIENCE: Duration = Duration::from_secs(120);

impl Run {
    /// What must be true in the end.
    pub(super) fn prove(&mut self) {
        self.heal();
        if !self.wait_until_up() || self.is_over() {
            return;
        }
        self.settle_down();
        self.count_journals();
        self.audit();
        self.restart_cleanly();
        if !self.wait_until_up() || self.is_over() {
            return;
        }
        self.read_everything();
        agents::leave(&self.world, &self.share, &self.users);
        let scrubbed = self.scrub();
        if self.is_over() || !self.stop() {
            return;
        }
        self.inspect(&scrubbed);
        if self.is_over() {
            return;
        }
        self.hands().start(&self.world);
        if !self.wait_until_up() || self.is_over() {
            return;
        }
        self.delete_everything();
        let mut shared = self.share.borrow_mut();
        if shared.may_be_older {
            // That every byte is one that was written there has been checked at each read.
            return;
        }
        let checked = shared.history.check();
        shared.coverage.sectors += shared.history.registers();
        if let Err(what) = checked {
            shared.fail(what);
        }
    }

    /// Gives repairs and collection some time, then takes nothing for excuse any more.
    fn settle_down(&self) {
        self.world.run_for(SETTLE);
        let mut shared = self.share.borrow_mut();
        shared.errors_allowed &= self.promise() == Promise::NeverWrong;
        shared.full_allowed = false;
    }

    /// The disks that the store serves from, without one on which writes were lost or put elsewhere: what it does not
    /// know of stays there. It leaves others alone, with all that is on them: one that was put back to an older state,
    /// or one that failed so often that it is looked for only now and then.
    fn member_disks(&self) -> impl Iterator<Item = &SimDisk> {
        let stale = self.state.borrow().is_stale.then_some(self.plan.shape.bad_disk);
        let directories = self.directories();
        // Every shard has a directory there; it is enough that one is left alone.
        let is_member = move |path: &Path| {
            let mut here =
                directories.iter().filter(|directory| Path::new(&directory.path).starts_with(path)).peekable();
            here.peek().is_some() && here.all(|directory| directory.state == "healthy")
        };
        let disks = self.settings.directories.iter().zip(&*self.disks).enumerate();
        let trusted = disks.filter(move |(number, (path, _))| Some(*number) != stale && is_member(path));
        trusted.map(|(_, (_, disk))| disk)
    }

    fn directories(&self) -> Vec<DirectoryStatus> {
        let Some(Running { handle, .. }) = self.share.borrow().store.clone() else { return Vec::new() };
        let asking = match &self.state.borrow().server {
            Server::Up(node) => node.directories(),
            _ => return Vec::new(),
        };
        self.world.block_on(&handle, asking)
    }

    /// The journal is bounded, however often the store came and went.
    pub(super) fn count_journals(&self) {
        let paths = self.member_disks().flat_map(SimDisk::files).map(|(path, _)| path);
        // The copies of a file have the same name in the same folder of their disks.
        let journals: BTreeSet<_> = paths.filter(|path| named(path, "journal-").is_some()).collect();
        let allowed = JOURNAL_FILES * usize::from(self.plan.shape.loops);
        if journals.len() > allowed && self.promise() != Promise::NeverWrong {
            self.share.borrow_mut().fail(format!("{} journal files, at most {allowed} are allowed", journals.len()));
        }
    }

    /// The accounts of space agree with a full scan. Work in the background moves files between two looks: only what
    /// is wrong twice is wrong.
    fn audit(&self) {
        if self.promise() == Promise::NeverWrong {
            // With no good disk a file may stay that nobody needs; the next start removes it.
            return;
        }
        let mut wrong: Option<BTreeSet<String>> = None;
        for _ in 0..3 {
            let Some(found) = self.look() else { return };
            let found: BTreeSet<String> = found.into_iter().collect();
            let both = wrong.map_or(found.clone(), |before| before.intersection(&found).cloned().collect());
            if both.is_empty() {
                return;
            }
            wrong = Some(both);
            self.world.run_for(Duration::from_secs(2));
        }
        if let Some(wrong) = wrong {
            self.share.borrow_mut().fail(format!("the accounts are wrong: {wrong:?}"));
        }
    }

    fn look(&self) -> Option<Vec<String>> {
        let handle = self.share.borrow().store.clone()?.handle;
        let auditing = match &self.state.borrow().server {
            Server::Up(node) => node.audit(),
            _ => return None,
        };
        let found = self.world.block_on(&handle, auditing);
        let mut shared = self.share.borrow_mut();
        match found {
            Ok(found) => {
                shared.coverage.audits += 1;
                Some(found)
            }
            Err(_) if shared.errors_allowed => None,
            Err(error) => {
                shared.fail(format!("the index cannot be read: {error}"));
                None
            }
        }
    }

    /// Reads all that was ever written, and writes once more.
    pub(super) fn read_everything(&self) {
        for client in self.users.iter() {
            let reader = client.clone();
            self.world.block_on(client.handle(), async move { reader.read_everything().await });
        }
    }

    /// Where a disk may have damaged something, reads all copies of everything. Gives the directories in which nothing is
    /// wrong any more. Elsewhere nothing is wrong, and scrubbing would hide that something is.
    pub(super) fn scrub(&self) -> Vec<PathBuf> {
        if self.promise() != Promise::NothingLost {
            return Vec::new();
        }
        let Some(Running { handle, .. }) = self.share.borrow().store.clone() else { return Vec::new() };
        let scrubbing = match &self.state.borrow().server {
            Server::Up(node) => node.scrub(),
            _ => return Vec::new(),
        };
        match self.world.block_on(&handle, scrubbing) {
            Ok(0) => {}
            Ok(lost) => self.share.borrow_mut().fail(format!("scrubbing finds {lost} blocks in no copy")),
            Err(error) => self.share.borrow_mut().fail(format!("the store cannot be scrubbed: {error}")),
        }
        let healthy = self.directories().into_iter().filter(|directory| directory.state == "healthy");
        healthy.map(|directory| PathBuf::from(directory.path)).collect()
    }

    /// Looks at the stopped store from outside. In the directories that were `scrubbed` everything is right.
    pub(super) fn inspect(&self, scrubbed: &[PathBuf]) {
        let handle = self.world.restart(self.server);
        let (inside, directories) = (handle.clone(), self.settings.directories.clone());
        let inspecting = async move { node::inspect::inspect(&inside, &directories, |_, _| ()).await };
        let report = self.world.block_on(&handle, inspecting);
        let mut shared = self.share.borrow_mut();
        match (report, self.promise()) {
            (_, Promise::NeverWrong) => {}
            (Err(error), _) => shared.fail(format!("the stopped store cannot be inspected: {error}")),
            (Ok(report), Promise::Flawless) if !report.is_intact() => {
                shared.fail(format!("the stopped store is damaged: {:?} {:?}", report.damage, report.refusals));
            }
            (Ok(report), _) if !report.refusals.is_empty() => {
                shared.fail(format!("the stopped store would not start: {:?}", report.refusals));
            }
            (Ok(report), _) => {
                let was_read = |path: &Path| named(path, "data-").or_else(|| named(path, "table-")).is_some();
                let is_scrubbed = |path: &Path| scrubbed.iter().any(|one| path.starts_with(one.join("files")));
                // A name whose header was damaged at a start is no copy any more; it goes with the file.
                let mut damage = report.damage.iter().filter(|damage| !damage.what.contains("header"));
                let left = damage.find(|damage| was_read(damage.path.as_ref()) && is_scrubbed(damage.path.as_ref()));
                if let Some(left) = left {
                    shared.fail(format!("damage is left after everything was scrubbed: {left:?}"));
                }
            }
        }
    }

    /// Deletes all volumes; their space must come back.
    pub(super) fn delete_everything(&self) {
        let Some(Running { handle, manager, .. }) = self.share.borrow().store.clone() else { return };
        let volumes = self.plan.shape.volumes;
        let failed = self.world.block_on(&handle, async move {
            for volume in 0..volumes {
                if let Err(error) = manager.delete(&name_of(volume), true).await {
                    return Some(error);
                }
            }
            None
        });
        if self.promise() == Promise::NeverWrong {
            return;
        }
        if let Some(error) = failed {
            return self.share.borrow_mut().fail(format!("a volume cannot be deleted: {error}"));
        }
        let deadline = self.world.now() + SPACE_PATIENCE;
        let left = || files_left(self.member_disks());
        while !left().is_empty() && self.world.now() < deadline {
            self.world.run_for(Duration::from_millis(500));
        }
        let left = left();
        if !left.is_empty() {
            self.share.borrow_mut().fail(format!("files are left although every volume was deleted: {left:?}"));
        }
    }
}

/// Files that hold data of volumes.
fn files_left<'a>(disks: impl Iterator<Item = &'a SimDisk>) -> Vec<PathBuf> {
    let paths = disks.flat_map(SimDisk::files).map(|(path, _)| path);
    paths.filter(|path| named(path, "data-").or_else(|| named(path, "table-")).is_some()).collect()
}

/// The rest of a file's name that begins so.
fn named(path: &Path, prefix: &str) -> Option<String> {
    path.file_name()?.to_str()?.strip_prefix(prefix).map(str::to_owned)
}
