//! Dumps: a full segment cache becomes blocks of a data file and entries of the index (EBS, FAST 2024, §2.3).
//!
//! **Flow.** The active cache of a segment becomes its dumping cache (still readable); its extents are cut into
//! blocks, those that are covered in part are merged with their base, which is read and proven through the index;
//! blocks go to the data file in contiguous appends; one `Dump` record names their places and the last write that is
//! part of them; when it retires, index and segment switch over in one step, and the journal can be trimmed.
//!
//! **When.** At its size; at its age; when writers wait for memory or for a journal file
//! ([`crate::background`]). Dumps are background work, and foreground work while writers wait or soon will.
//!
//! **Errors.** A dump that fails is tried again: its cache stays readable, its journal records stay. A block whose
//! base cannot be read intact from any copy is *poisoned*: what was written is stored, zeros around it, under a
//! checksum that can never match, so that reading it is an error and not wrong bytes, until it is overwritten whole.
//! The alternative, to keep it in the cache, would pin the journal for ever, and with it all other segments' writes.
//! Where the disk says that it cannot read (`Io`), that may pass: only after [`BASE_TRIES_MAX`] tries it counts.

use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{AlignedBuf, BLOCK, ErrorKind, FileId, Result, SegmentSequence};
use runtime::Class;
use runtime::sync::oneshot;

use crate::cache::{DumpBlock, DumpItem};
use crate::core::{Core, Stage, Trimming};
use crate::data_writer::Placed;
use crate::index::Entry;
use crate::patience::Patience;
use crate::segment::Segment;
use crate::transaction::Record;
use runtime::sync::join_all;

/// Blocks of one append: 512 KiB.
const CHUNK_BLOCKS: usize = 128;
/// Bases read at the same time.
const BASES_IN_FLIGHT: usize = 16;
/// Blocks filled between two steps: a step of a background task takes at most about 20 us.
const STEP_BLOCKS: usize = 16;
const RETRY_PAUSE: Duration = Duration::from_millis(10);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Tries of a dump that finds no space, within a second, before writers are refused that wait for it.
const FULL_TRIES_MAX: u32 = 7;
/// Tries of a dump while the engine is being closed, within a few seconds: a stop does not wait for a disk.
const CLOSING_TRIES_MAX: u32 = 8;
/// Tries of a dump before a base that no disk can read is given up: half a minute, with their pauses.
const BASE_TRIES_MAX: u32 = 36;

impl Core {
    /// Starts a dump of the segment unless one is under way or nothing is cached.
    pub(crate) fn want_dump(self: &Rc<Self>, segment: &Rc<Segment>) {
        if segment.want_dump() {
            let (core, segment) = (self.clone(), segment.clone());
            self.handle.spawn(self.dump_class(), "dump", async move { core.dump(segment).await }).detach();
        }
    }

    async fn dump(self: Rc<Self>, segment: Rc<Segment>) {
        let slot = self.dump_slots.take(1).await;
        let Some(through) = segment.begin_dump() else { return self.dumped.notify() };
        let started = self.handle.now();
        let (mut pause, mut tries, patience) = (RETRY_PAUSE, 1, Patience::default());
        while let Err(error) = self.try_dump(&segment, through, tries).await {
            if segment.is_dropped() {
                // Not after a dump that came through: then the next one may be wanted already.
                segment.apply_dumped(through);
                break;
            }
            let gone = self.stage.get() == Stage::Closed || error.kind == ErrorKind::Fenced;
            let is_hopeless = self.stage.get() == Stage::Closing && tries >= CLOSING_TRIES_MAX;
            if error.kind == ErrorKind::Fenced {
                self.log.on_fenced(&error);
            }
            if gone || is_hopeless || self.log.broken().is_some() {
                tracing::error!(segment = %segment.id(), %error, "a dump was given up; a restart replays the journal");
                segment.give_up_dump(self.handle.now());
                self.undumped.borrow_mut().get_or_insert(error);
                return self.dumped.notify();
            }
            tracing::warn!(segment = %segment.id(), %error, "a dump failed and is tried again");
            if error.kind == ErrorKind::Full && tries >= FULL_TRIES_MAX {
                self.admission.set_stuck(Some(&error));
                self.fusion.refuse_waiting(&error);
                // Whoever waits to release a segment is told, too.
                self.dumped.notify();
            } else if patience.on_failure(self.handle.now(), &error) {
                self.admission.set_stuck(Some(&error));
                self.fusion.refuse_starved(&error);
            }
            self.counters.dump_retries.set(self.counters.dump_retries.get() + 1);
            self.handle.sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
            tries += 1;
        }
        drop(slot);
        self.admission.set_stuck(None);
        self.counters.dumps.set(self.counters.dumps.get() + 1);
        self.counters.dump.borrow_mut().record(self.handle.now().nanos_since(started));
        self.copy_sparse_out();
        self.admission.on_freed();
        if self.admission.has_space_waiters() {
            // What the dump hides is garbage now.
            self.garbage.changed().notify();
        }
        self.dumped.notify();
        // What came during the dump has an age, too.
        self.dirtied.notify();
        if segment.active_bytes() >= self.options.segment_cache_bytes {
            self.want_dump(&segment);
        }
        self.trim_journal().await;
    }

    async fn try_dump(self: &Rc<Self>, segment: &Rc<Segment>, through: SegmentSequence, tries: u32) -> Result<()> {
        let items = segment.with_dumping(|cache| cache.plan_dump()).unwrap_or_default();
        let mut entries = Vec::with_capacity(items.len());
        let mut places = Vec::new();
        let mut blocks = Vec::new();
        for item in items {
            match item {
                DumpItem::Zeros { blocks, sequence } => {
                    entries.push(Entry::zeros(blocks.start, blocks.end - blocks.start, sequence));
                }
                DumpItem::Block(block) => blocks.push(block),
            }
        }
        for chunk in blocks.chunks(CHUNK_BLOCKS) {
            self.dump_chunk(segment, chunk, tries, &mut entries, &mut places).await?;
        }
        drop(blocks);
        self.index.room().await?;
        self.log.room_for_dump().await?;
        let id = segment.id();
        let replay = self.fusion.replay_start(|of| if of == id { through } else { self.dumped_through(of) });
        // A record of a segment that was dropped would bring it back at a start, when a checkpoint has forgotten it.
        segment.check_exists()?;
        let record = Record::Dump { segment: id, epoch: segment.epoch(), through, replay, entries: entries.clone() };
        let (core, owner) = (Rc::downgrade(self), segment.clone());
        let apply = Box::new(move |_| {
            let Some(core) = core.upgrade() else { return };
            // What was dumping becomes visible through the index in the same step as it leaves the cache.
            if !owner.is_dropped() {
                core.index.apply(owner.id(), &entries);
            }
            owner.apply_dumped(through);
            drop(places);
        });
        self.log.append(&record, apply).1.await.map(drop)
    }

    /// Writes some blocks and adds their entries.
    async fn dump_chunk(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        chunk: &[DumpBlock],
        tries: u32,
        entries: &mut Vec<Entry>,
        places: &mut Vec<Placed>,
    ) -> Result<()> {
        let mut buffer = AlignedBuf::with_capacity(chunk.len() * BLOCK as usize);
        let mut filled: Vec<(&DumpBlock, u32)> = Vec::with_capacity(chunk.len());
        for step in chunk.chunks(STEP_BLOCKS) {
            for (block, base) in step.iter().zip(self.read_bases(segment, step, tries).await?) {
                if block.only_zeros() && matches!(base, Base::Zeros) {
                    entries.push(Entry::zeros(block.block(), 1, block.sequence()));
                    continue;
                }
                let below = match &base {
                    Base::Data(bytes) => Some(&bytes[..]),
                    Base::Zeros | Base::Lost => None,
                };
                let mut checksum = block.append_to(&mut buffer, segment.id(), below)?;
                if matches!(base, Base::Lost) {
                    checksum = !checksum;
                }
                filled.push((block, checksum));
            }
            self.handle.yield_now().await;
        }
        let mut data = buffer.freeze();
        let mut rest = &filled[..];
        while !rest.is_empty() {
            self.prepare_dump(segment, rest.len() as u64 * BLOCK).await?;
            let count = rest.len().min((segment.dumps.room() / BLOCK) as usize);
            let (placed, landed) = segment.dumps.append(data.split_to(count * BLOCK as usize));
            match is_on("dump-before-data") {
                true => drop(landed),
                false => landed.await?,
            }
            for (i, (block, checksum)) in rest[..count].iter().enumerate() {
                let offset = placed.offset + i as u64 * BLOCK;
                entries.push(Entry::data(block.block(), block.sequence(), placed.file, offset, *checksum));
            }
            places.push(placed);
            self.counters.dumped_blocks.set(self.counters.dumped_blocks.get() + count as u64);
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Makes room for at least one block, and best for `len` bytes: every byte of an open file is used before the
    /// next one is opened, as the promises of [`crate::admission`] assume.
    async fn prepare_dump(self: &Rc<Self>, segment: &Rc<Segment>, len: u64) -> Result<()> {
        let capacity = || {
            let wanted = self.factory.capacity_for(segment.id());
            let promised = segment.space.promised().min(self.factory.options().bytes_max);
            Ok(match self.admission.has_space(wanted) {
                true => wanted.max(promised),
                false => promised.max(len.min(self.factory.options().bytes_max)),
            })
        };
        let opened = segment.dumps.prepare(&self.factory, segment.id(), BLOCK, capacity).await?;
        segment.space.on_opened(opened);
        Ok(())
    }

    /// What the index has for blocks that are not covered whole.
    async fn read_bases(self: &Rc<Self>, segment: &Rc<Segment>, step: &[DumpBlock], tries: u32) -> Result<Vec<Base>> {
        let mut bases = Vec::with_capacity(step.len());
        for group in step.chunks(BASES_IN_FLIGHT) {
            let reads = group.iter().map(|block| self.read_base(segment, block, tries));
            for base in join_all(reads).await {
                bases.push(base?);
            }
        }
        Ok(bases)
    }

    async fn read_base(self: &Rc<Self>, segment: &Rc<Segment>, block: &DumpBlock, tries: u32) -> Result<Base> {
        if !block.needs_base() || is_on("base-not-merged") {
            return Ok(Base::Zeros);
        }
        self.counters.merged_blocks.set(self.counters.merged_blocks.get() + 1);
        let _pin = self.files.pin();
        let base = async {
            let entry = self.index.lookup_block(segment.id(), block.block()).await?;
            match entry.filter(|entry| entry.file().is_some()) {
                Some(entry) => self.data.read_block(segment.id(), &entry).await.map(Base::Data),
                None => Ok(Base::Zeros),
            }
        };
        match base.await {
            Ok(base) => Ok(base),
            Err(error) if error.kind == ErrorKind::Corrupt || tries >= BASE_TRIES_MAX => {
                tracing::error!(
                    segment = %segment.id(), block = block.block(), %error,
                    "a partly overwritten block cannot be read; it reads as an error until it is overwritten whole"
                );
                self.counters.poisoned_blocks.set(self.counters.poisoned_blocks.get() + 1);
                Ok(Base::Lost)
            }
            Err(error) => Err(error),
        }
    }

    /// Copies what is live out of buffers that are mostly dead.
    fn copy_sparse_out(&self) {
        while let Some(sparse) = self.memory.next_sparse() {
            for id in sparse.segments() {
                if let Some(segment) = self.segments.borrow().get(id) {
                    segment.copy_out(&sparse);
                }
            }
        }
    }

    /// Makes durable that a journal file is not needed any more. See [`FusionWriteEngine::trim`].
    ///
    /// [`FusionWriteEngine::trim`]: crate::fusion::FusionWriteEngine::trim
    pub(crate) async fn intend_to_drop(&self, file: FileId) -> Result<()> {
        self.log.append(&Record::DropJournal { file }, Box::new(|_| ())).1.await.map(drop)
    }

    /// As [`Core::trim_journal`], for those whose callers may stop waiting: a file that is on its way out has to go.
    pub(crate) async fn trim_journal_apart(self: &Rc<Self>) {
        let (core, (done, trimmed)) = (self.clone(), oneshot());
        let trimming = async move {
            core.trim_journal().await;
            done.send(());
        };
        self.handle.spawn(Class::Io, "trim the journal", trimming).detach();
        // A store that ends has no journal to trim.
        let _ = trimmed.await;
    }

    /// Deletes journal files that nobody needs any more. Not to be dropped before it is done.
    pub(crate) async fn trim_journal(self: &Rc<Self>) {
        if self.trimming.get() != Trimming::No {
            return self.trimming.set(Trimming::Again);
        }
        loop {
            self.trimming.set(Trimming::Once);
            self.fusion.trim(|id| self.dumped_through(id), async |file| self.intend_to_drop(file).await).await;
            if self.trimming.replace(Trimming::No) == Trimming::Once {
                return;
            }
        }
    }
}

/// What lies below a block that is covered in part.
enum Base {
    Zeros,
    Data(AlignedBuf),
    Lost,
}
