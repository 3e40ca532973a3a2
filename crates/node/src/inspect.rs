//! Looks at a store that nobody runs: what is in it, and whether every checksum holds. Nothing is changed.
//!
//! Flow, shard by shard: the locks are looked at (and held meanwhile, so that nobody starts the store) -> its
//! directories are opened for reading only -> volume table and engine are recovered as by a start, over a dry run ->
//! every live byte is read in every copy.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use base::Result;
use control::table::VolumeState;
use control::table::recovery::{self, Recovered};
use engine::Inspection;
use files::dry_run::DryRun;
use files::local::superblock::Shard;
use files::local::{self, LocalOptions, OpenReport};
use files::{FileInfo, FileKind, Store};
use runtime::Handle;
use serde::Serialize;

use crate::shards;

/// How long to wait for locks: a process that was killed may still be dying.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The store's id.
    pub store: String,
    /// The number of its last life.
    pub incarnation: u64,
    /// Its directories.
    pub directories: Vec<Directory>,
    /// Its volumes, as far as the table could be read.
    pub volumes: Vec<Volume>,
    /// Every segment that was ever written.
    pub segments: Vec<Segment>,
    /// Every file.
    pub files: Vec<StoreFile>,
    /// Records that a start would replay.
    pub replay: Replay,
    /// Blocks, pages and records whose checksum was compared, each copy counted.
    pub verified: u64,
    /// What a person should know that is no damage.
    pub notes: Vec<String>,
    /// What is wrong.
    pub damage: Vec<Damage>,
    /// How much is wrong in all; more than is listed, if it is very much.
    pub damage_count: u64,
    /// Why a start would refuse, in its words.
    pub refusals: Vec<String>,
}

/// Something that is not as it was written.
#[derive(Clone, Debug, Serialize)]
pub struct Damage {
    /// The path of the file.
    pub path: String,
    /// Where in its content, in bytes: behind the 4 KiB of its header.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
    /// What that means and what to do.
    pub advice: String,
}

/// A directory.
#[derive(Clone, Debug, Serialize)]
pub struct Directory {
    /// Its path.
    pub path: String,
    /// `healthy`, `failed`, `missing` or `resynchronizing`.
    pub state: String,
    /// Free bytes of its file system.
    pub free_bytes: u64,
}

/// A volume.
#[derive(Clone, Debug, Serialize)]
pub struct Volume {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// `active` or `deleting`.
    pub state: &'static str,
    /// Bytes of blocks with data.
    pub data_bytes: u64,
    /// Bytes of writes that are in the journal only.
    pub journal_bytes: u64,
}

/// A segment.
#[derive(Clone, Debug, Serialize)]
pub struct Segment {
    /// The volume's id.
    pub volume: u64,
    /// Its index in the volume.
    pub index: u32,
    /// Bytes of blocks with data.
    pub data_bytes: u64,
    /// Bytes of writes that are in the journal only.
    pub journal_bytes: u64,
    /// Tables of its index.
    pub tables: usize,
}

/// A file.
#[derive(Clone, Debug, Serialize)]
pub struct StoreFile {
    /// Its id, in hexadecimal digits.
    pub id: String,
    /// `journal`, `transaction`, `data`, `table` or `log`.
    pub kind: &'static str,
    /// The life that made it.
    pub incarnation: u64,
    /// Bytes set aside for it, per copy.
    pub capacity_bytes: u64,
    /// Its length, if it was ended.
    pub sealed_bytes: Option<u64>,
    /// Bytes of live blocks, of a data file.
    pub live_bytes: Option<u64>,
    /// Where its copies are.
    pub paths: Vec<String>,
}

/// What a start would replay.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Replay {
    /// Transaction records.
    pub transaction_records: u64,
    /// Journal records.
    pub journal_records: u64,
    /// Logs that end in writes that were never acknowledged.
    pub torn_tails: u64,
    /// Large writes at the end of the log whose data is not complete: not acknowledged, or damaged since.
    pub rejected_large_writes: u64,
    /// Ranges of single copies that it brings in line with the others after a crash.
    pub mends: u64,
}

/// Inspects the store in `directories`. `on_progress` hears how many bytes were verified, and how many there are at
/// most.
///
/// # Errors
/// `NotFound` where there is no store, `Conflict` where it is running, `Io`.
pub async fn inspect(
    handle: &Handle,
    directories: &[PathBuf],
    mut on_progress: impl FnMut(u64, u64),
) -> Result<Report> {
    let found = local::shards(handle, directories).await;
    let (id, count) = found.map_or((None, 1), |(id, count)| (Some(id), count));
    let mut locks = Vec::new();
    let mut report = Report::default();
    let mut table = Recovered::default();
    for shard in Shard::all(count) {
        let directories = shards::directories(directories, shard.index);
        for directory in &directories {
            locks.push(local::hold_lock(handle, directory, LOCK_WAIT).await?);
        }
        let options = LocalOptions { read_only: true, shard, store: id, ..LocalOptions::new(directories) };
        let (store, opened) = match local::open(handle, options).await {
            Err(error) if shard.index > 0 => {
                report.refusals.push(error.message);
                continue;
            }
            opened => opened?,
        };
        report.begin(&store, &opened);
        let dry_run = DryRun::over(&store);
        let mut mends = 0;
        if shard.index == 0 {
            (table, mends) = report.recover_table(&store, &dry_run).await;
        }
        let inspection = engine::inspect(handle, &dry_run, &mut on_progress).await;
        let mut inspection = inspection.unwrap_or_else(|error| {
            report.refusals.push(error.message);
            Inspection::default()
        });
        inspection.mends += mends;
        report.add(&store, &table, inspection);
    }
    report.add_volumes(&table);
    Ok(report)
}

impl Report {
    /// Whether a start finds everything that was ever acknowledged.
    pub fn is_intact(&self) -> bool {
        self.damage_count == 0 && self.refusals.is_empty()
    }

    /// Adds what opening a shard told.
    fn begin(&mut self, store: &Store, opened: &OpenReport) {
        let directories = opened.directories.iter().map(|directory| Directory {
            path: directory.path.clone(),
            state: directory.state.into(),
            free_bytes: directory.free_bytes,
        });
        self.store = store.id().to_string();
        self.incarnation = self.incarnation.max(store.incarnation().0);
        self.directories.extend(directories);
        self.notes.extend(opened.notes.iter().cloned());
        for damaged in &opened.damaged {
            let path = damaged.path.display().to_string();
            let advice = match damaged.path.ends_with("superblock") {
                true => "the other slot is intact and is used: the next start writes this one anew",
                false => "a start makes it anew from another copy, if there is one; otherwise restore it from a backup",
            };
            let (offset, what) = (Some(damaged.offset), damaged.why.clone());
            self.on_damage(Damage { path, offset, what, advice: advice.into() });
        }
    }

    /// The volume table, and how many ranges of single copies of it a start mends.
    async fn recover_table(&mut self, store: &Store, dry_run: &DryRun) -> (Recovered, u64) {
        let table = recovery::recover(&dry_run.store(), false).await;
        let table = table.unwrap_or_else(|error| {
            self.refusals.push(error.message);
            Recovered::default()
        });
        let mut mends = 0;
        for bad in &table.bad_copies {
            // The last record may have been on its way when its process died, unless the file was ended behind it.
            let was_ended = store.info(bad.file).is_some_and(|info| info.sealed.is_some());
            if !was_ended && table.source == Some((bad.file, bad.offset + bad.len)) {
                mends += 1;
                continue;
            }
            let what = "a record of the volume table is damaged".into();
            let advice = "another copy is intact and is used instead: nothing is lost".into();
            self.on_damage(Damage { path: store.locate(bad.file, bad.copy), offset: Some(bad.offset), what, advice });
        }
        self.verified += table.intact_records;
        (table, mends)
    }

    fn on_damage(&mut self, damage: Damage) {
        self.damage_count += 1;
        self.damage.push(damage);
    }

    /// Adds what the engine of a shard found.
    fn add(&mut self, store: &Store, table: &Recovered, inspection: Inspection) {
        for segment in &inspection.segments {
            let found = Segment {
                volume: segment.segment.volume.0,
                index: segment.segment.index,
                data_bytes: segment.blocks * base::BLOCK,
                journal_bytes: segment.journal_bytes,
                tables: segment.tables,
            };
            self.segments.push(found);
        }
        let lost = table.table.never_created(inspection.volumes.iter().copied());
        // Without a table everything would be unknown, and that is said already.
        if table.source.is_some() && !lost.is_empty() {
            self.refusals.push(recovery::creation_lost(&lost).message);
        }
        self.files.extend(store.list().iter().map(|info| describe(store, info, &inspection)));
        self.replay.transaction_records += inspection.recovery.transaction_records;
        self.replay.journal_records += inspection.recovery.journal_records;
        self.replay.torn_tails += inspection.recovery.torn_tails;
        self.replay.rejected_large_writes += inspection.recovery.rejected_large_writes;
        self.replay.mends += inspection.mends;
        self.verified += inspection.verified;
        self.damage_count += inspection.damage_count;
        self.damage.extend(inspection.damage.into_iter().map(|damage| {
            let engine::Damage { path, offset, what, advice } = damage;
            Damage { path, offset, what, advice }
        }));
        self.refusals.extend(inspection.refusals);
    }

    /// Adds the volumes, with what was found of them in all shards.
    fn add_volumes(&mut self, table: &Recovered) {
        let mut by_volume: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for segment in &self.segments {
            let sums = by_volume.entry(segment.volume).or_default();
            *sums = (sums.0 + segment.data_bytes, sums.1 + segment.journal_bytes);
        }
        for row in table.table.rows() {
            let (data_bytes, journal_bytes) = by_volume.remove(&row.id.0).unwrap_or_default();
            let state = if row.state == VolumeState::Active { "active" } else { "deleting" };
            let (id, name, size_bytes) = (row.id.0, row.name.clone(), row.size);
            self.volumes.push(Volume { id, name, size_bytes, state, data_bytes, journal_bytes });
        }
        for volume in by_volume.keys() {
            self.notes.push(format!("there is data of the volume with id {volume}, which is not in the volume table"));
        }
    }
}

fn describe(store: &Store, info: &FileInfo, inspection: &Inspection) -> StoreFile {
    let live = || inspection.live_bytes.get(&info.id).copied().unwrap_or(0);
    StoreFile {
        id: info.id.to_string(),
        kind: info.kind.name(),
        incarnation: info.incarnation.0,
        capacity_bytes: info.capacity,
        sealed_bytes: info.sealed,
        live_bytes: (info.kind == FileKind::Data).then(live),
        paths: (0..info.copies_wanted).map(|copy| store.locate(info.id, copy)).collect(),
    }
}
