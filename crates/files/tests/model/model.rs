//! The model: which files there may be, and what they may hold.
//!
//! A block of a file has one content that it may ever have. What is open is which blocks are there: those that were
//! confirmed must be, those after them may be. The same goes for a seal, a creation and a deletion that were asked
//! for: confirmed, it has happened; otherwise the next life tells, and from then on it stays.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::{AlignedBuf, Bytes, ErrorKind, FileId, Incarnation, Prng, Result};
use files::{CreateOptions, FileInfo, Store};

use crate::coverage::Coverage;

pub const BLOCK: u64 = 4096;

#[derive(Default)]
pub struct Model {
    pub files: BTreeMap<FileId, ModelFile>,
    seen: BTreeSet<FileId>,
    creating: u32,
    /// Files that nobody heard of, and that are not deleted for sure yet.
    unheard: BTreeSet<FileId>,
    incarnation: Incarnation,
    pub coverage: Coverage,
}

/// What is known of a file.
pub struct ModelFile {
    options: CreateOptions,
    born: Incarnation,
    /// Of each block that was appended, whether that was confirmed.
    blocks: Vec<bool>,
    /// The length that a seal chose, and whether it was confirmed.
    seal: Option<(u64, bool)>,
    /// A deletion was asked for.
    pub deleting: bool,
}

impl Model {
    /// The next life has opened its store: it lists nothing that cannot be, and it tells what became of what was
    /// open.
    pub fn on_opened(&mut self, store: &Store) {
        assert!(store.incarnation() > self.incarnation, "an incarnation was used again");
        self.incarnation = store.incarnation();
        self.take_in_unknown(store);
        let ids = self.files.keys().copied().collect::<Vec<_>>();
        for id in ids {
            let file = self.files.get_mut(&id).unwrap();
            match store.info(id) {
                None => {
                    assert!(file.deleting, "file {id} is lost; it has {} bytes confirmed", file.confirmed());
                    self.files.remove(&id);
                }
                Some(info) => {
                    self.coverage.deletions_found_undone += u32::from(file.deleting);
                    file.on_found(&info);
                }
            }
        }
    }

    /// Files whose creation was not confirmed.
    fn take_in_unknown(&mut self, store: &Store) {
        let listed = store.list();
        let is_known = |id| self.files.contains_key(id) || self.unheard.contains(id);
        let unknown = listed.iter().filter(|info| !is_known(&info.id)).collect::<Vec<_>>();
        for info in &unknown {
            let place =
                || (0..info.copies_wanted).map(|copy| store.locate(info.id, copy)).collect::<Vec<_>>().join(", ");
            assert!(!self.seen.contains(&info.id), "deleted file {} is back: {}", info.id, place());
            assert_eq!(info.sealed, None, "nobody sealed {}", info.id);
        }
        // A creation that a failing disk made to try again may have left several behind.
        let begun = self.creating + 4 * self.coverage.disks_failed;
        assert!(unknown.len() as u32 <= begun, "more files than anybody began to create: {unknown:?}");
        let unknown = unknown.into_iter().map(|info| info.id).collect::<Vec<_>>();
        self.seen.extend(unknown.iter().copied());
        self.unheard.extend(unknown);
        self.creating = 0;
    }

    /// A file that nobody heard of is deleted.
    pub fn on_unheard_deleted(&mut self, id: FileId) {
        self.unheard.remove(&id);
    }

    /// A file may exist from now on; whoever asked for it does not know yet.
    pub fn on_creating(&mut self) {
        self.creating += 1;
    }

    /// What [`Model::on_creating`] announced is there. If it failed instead, the file may be found later.
    pub fn on_created(&mut self, id: FileId, options: CreateOptions, born: Incarnation) {
        self.creating -= 1;
        assert!(self.seen.insert(id), "id {id} was used again");
        let file = ModelFile { options, born, blocks: Vec::new(), seal: None, deleting: false };
        self.files.insert(id, file);
    }

    /// Bytes from the beginning that were confirmed; none if the file is deleted.
    pub fn confirmed(&self, id: FileId) -> u64 {
        self.files.get(&id).map_or(0, ModelFile::confirmed)
    }

    /// How many blocks from the beginning can be read for sure.
    pub fn readable_blocks(&self, id: FileId) -> u64 {
        let Some(file) = self.files.get(&id) else { return 0 };
        let end = file.seal.map_or(u64::MAX, |(length, _)| length);
        file.confirmed().min(end) / BLOCK
    }

    /// What was just read of a block that was confirmed, in one copy or in any, is what it may be. `faulty`: errors
    /// are to be expected.
    pub fn check_read(
        &self,
        store: &Store,
        (id, block, copy): (FileId, u64, Option<u8>),
        read: &Result<AlignedBuf>,
        faulty: bool,
    ) {
        if self.files.get(&id).is_none_or(|file| file.deleting) {
            return;
        }
        match read {
            Ok(read) => assert!(
                read[..] == content(id, block)[..],
                "block {block} of {id} (copy {copy:?}) is not what was confirmed: {:?}",
                store.info(id)
            ),
            Err(error) => {
                // A copy is away only where the store says, at this very moment, that one is.
                let info = store.info(id);
                let lacks = info.as_ref().is_none_or(|info| info.copies < info.copies_wanted);
                let expected = match error.kind {
                    ErrorKind::NotFound => copy.is_some() && lacks,
                    ErrorKind::Io => faulty,
                    _ => false,
                };
                let places = || (0..8).map(|copy| store.locate(id, copy)).collect::<Vec<_>>();
                assert!(expected, "block {block} of {id} (copy {copy:?}): {error} {info:?} {:?}", places());
            }
        }
    }
}

impl ModelFile {
    /// Bytes from the beginning that were confirmed.
    pub fn confirmed(&self) -> u64 {
        self.blocks.iter().take_while(|confirmed| **confirmed).count() as u64 * BLOCK
    }

    /// The length that a seal chose, confirmed or not.
    pub fn chosen_end(&self) -> Option<u64> {
        self.seal.map(|(length, _)| length)
    }

    fn on_found(&mut self, info: &FileInfo) {
        let id = info.id;
        assert_eq!((info.kind, info.incarnation), (self.options.kind, self.born));
        match (self.seal, info.sealed) {
            (Some((length, true)), sealed) => assert_eq!(sealed, Some(length), "the end of {id} changed"),
            (Some((length, false)), Some(sealed)) => {
                assert_eq!(sealed, length);
                self.seal = Some((length, true));
            }
            (None, sealed) => assert_eq!(sealed, None, "nobody sealed {id}"),
            (Some((_, false)), None) => {}
        }
    }

    /// So many blocks more may be there from now on.
    pub fn on_append(&mut self, count: u64) {
        self.blocks.extend((0..count).map(|_| false));
    }

    /// They are.
    pub fn on_appended(&mut self, blocks: Range<u64>) {
        self.blocks[blocks.start as usize..blocks.end as usize].fill(true);
    }

    /// A block after the confirmed ones was found, and is in every copy now.
    pub fn on_tail_kept(&mut self, block: u64) {
        self.blocks.resize(self.blocks.len().max(block as usize + 1), false);
    }

    /// It may end at `length` from now on; nowhere else, unless an earlier seal said so.
    pub fn on_seal(&mut self, length: u64) {
        self.seal.get_or_insert((length, false));
    }

    /// It does.
    pub fn on_sealed(&mut self, length: u64) {
        self.seal = Some((length, true));
        // What lies before a confirmed end is confirmed.
        self.blocks.truncate((length / BLOCK) as usize);
        self.blocks.fill(true);
    }
}

/// The one content that a block of a file may have.
pub fn content(file: FileId, block: u64) -> Vec<u8> {
    let mut prng = Prng::new(file.0 << 20 | block);
    let mut bytes = vec![0; BLOCK as usize];
    prng.fill(&mut bytes);
    bytes
}

/// That of several blocks.
pub fn payload(file: FileId, blocks: Range<u64>) -> Bytes {
    let mut buffer = AlignedBuf::with_capacity(((blocks.end - blocks.start) * BLOCK) as usize);
    blocks.for_each(|block| buffer.extend_from_slice(&content(file, block)));
    buffer.freeze()
}
