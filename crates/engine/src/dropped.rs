//! Volumes that were dropped, as long as records of them may be met.

use std::collections::{BTreeMap, BTreeSet};

use base::seeded::is_on;
use base::{FileId, LogSequence, VolumeId};
use files::{FileInfo, FileKind, Store};

/// Volumes that were dropped and whose records may still stand in a journal or in the transaction log.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    volumes: BTreeMap<VolumeId, Remains>,
}

/// Where records of a dropped volume may stand: with the last of these it is forgotten.
#[derive(Debug)]
struct Remains {
    /// The journals that existed when it was dropped.
    journals: BTreeSet<FileId>,
    /// The first record of the transaction log that knows of the drop. One before it may name the volume and come
    /// after the drop in the log: it was on its way when the drop became durable.
    known_from: LogSequence,
}

impl Dropped {
    /// What a recovery found: any of the journals among `files` may name the volumes.
    pub(crate) fn restore(
        &mut self,
        volumes: impl Iterator<Item = VolumeId>,
        files: &[FileInfo],
        known_from: LogSequence,
    ) {
        let journals = journals(files);
        self.volumes.extend(volumes.map(|volume| (volume, Remains { journals: journals.clone(), known_from })));
    }

    /// Whether the volume was dropped.
    pub(crate) fn contains(&self, volume: VolumeId) -> bool {
        self.volumes.contains_key(&volume)
    }

    /// All of them.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        self.volumes.keys().copied()
    }

    /// The volume was dropped: the journals that exist now may name it.
    pub(crate) fn add(&mut self, volume: VolumeId, store: &Store, known_from: LogSequence) {
        self.volumes.insert(volume, Remains { journals: journals(&store.list()), known_from });
    }

    /// The volumes that a checkpoint has to name, after which the log is replayed from `from` on.
    pub(crate) fn still_needed(&mut self, store: &Store, from: LogSequence) -> Vec<VolumeId> {
        if is_on("dropped-volume-forgotten") {
            self.volumes.clear();
        }
        self.volumes.retain(|_, Remains { journals, known_from }| {
            journals.retain(|journal| store.info(*journal).is_some());
            !journals.is_empty() || from < *known_from
        });
        self.volumes.keys().copied().collect()
    }
}

fn journals(files: &[FileInfo]) -> BTreeSet<FileId> {
    files.iter().filter(|info| info.kind == FileKind::Journal).map(|info| info.id).collect()
}
