//! One pass over the index of a segment: moves the live blocks of victims, counts those of all other files.

use std::rc::Rc;

use base::limits::SEGMENT_BLOCKS;
use base::units::round_up;
use base::{AlignedBuf, BLOCK, Bytes, Error, ErrorKind, FileId, Instant, MIB, Map, Result, SegmentId, Set};
use files::{Claim, CreateOptions, FileKind, FileWriter, Redundancy};
use policies::gc::GENERATION_MAX;

use super::Gc;
use crate::data::{RUN_BLOCKS_MAX, run_len};
use crate::index::Entry;
use crate::index::entry::MOVES_MAX;
use crate::transaction::Record;
use runtime::sync::join_all;

/// Index entries of one step.
const SCAN_ENTRIES: usize = 2048;
/// Blocks moved by one append and one record: 1 MiB.
const MOVE_BLOCKS: usize = RUN_BLOCKS_MAX;
/// Runs read at a time.
const READS_IN_FLIGHT: usize = 16;

/// A pass under way.
pub(super) struct Pass {
    gc: Gc,
    segment: SegmentId,
    victims: Set<FileId>,
    /// Files that were closed when the pass began: what it counts of them is an upper bound for ever.
    closed: Vec<FileId>,
    stale_before: u64,
    /// The block at which the scan goes on.
    at: u32,
    live_blocks: Map<FileId, u64>,
    /// Victims with blocks that could not be moved.
    stuck: Set<FileId>,
    /// Live blocks that the victims may still hold.
    expected_blocks: u64,
    /// What the destination's content is like; see `Garbage::set_origin`.
    generation: u8,
    written_at: Instant,
    destination: Option<Destination>,
    moved_bytes: u64,
}

/// The file that live blocks are moved to.
struct Destination {
    writer: FileWriter,
    /// Where what has landed in it ends.
    landed: u64,
    /// A record that names it may or may not be in the log: it must outlive this life of the engine.
    is_in_doubt: bool,
}

impl Pass {
    pub fn new(gc: &Gc, segment: SegmentId, victims: Vec<FileId>) -> Pass {
        let files = gc.0.garbage.files(segment);
        let closed: Vec<FileId> = files.iter().filter(|file| file.is_closed).map(|file| file.file).collect();
        let victims: Set<FileId> = victims.into_iter().filter(|victim| closed.contains(victim)).collect();
        let of_victims = || files.iter().filter(|file| victims.contains(&file.file));
        let expected_blocks: u64 = of_victims().map(|file| file.live_blocks_max).sum();
        // The mean of when the victims' content was written, weighed by how much of it is live.
        let written: u128 =
            of_victims().map(|file| u128::from(file.live_blocks_max) * u128::from(file.written_at.0)).sum();
        let generation = of_victims().map(|file| file.generation + 1).max().unwrap_or(0).min(GENERATION_MAX);
        let written_at = Instant((written / u128::from(expected_blocks.max(1))) as u64);
        Pass {
            gc: gc.clone(),
            segment,
            expected_blocks,
            generation,
            written_at,
            victims,
            closed,
            stale_before: gc.0.garbage.stale_blocks(segment),
            at: 0,
            live_blocks: Map::default(),
            stuck: Set::default(),
            destination: None,
            moved_bytes: 0,
        }
    }

    pub fn is_done(&self) -> bool {
        u64::from(self.at) >= SEGMENT_BLOCKS
    }

    /// Bytes moved since the last call.
    pub fn take_moved_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.moved_bytes)
    }

    /// Looks at the next part of the index and moves what is live there.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`: the pass cannot go on.
    pub async fn step(&mut self) -> Result<()> {
        let gc = self.gc.clone();
        // GC does not wait for room among the memtables, because they may wait for the space that it frees.
        if gc.0.index.is_overfull() {
            return Err(Error::retry("memtables are not flushed"));
        }
        // From before the look until the moves are applied.
        let _relocating = (!self.victims.is_empty()).then(|| gc.0.sink.relocating(self.segment));
        let _pin = gc.0.index.files().pin();
        let scan = gc.0.index.scan(self.segment, self.at, SCAN_ENTRIES).await?;
        let mut to_move = Vec::new();
        for entry in scan.entries {
            let Some(file) = entry.file() else { continue };
            *self.live_blocks.entry(file).or_default() += 1;
            if self.victims.contains(&file) {
                to_move.push(entry);
            }
        }
        for blocks in to_move.chunks(MOVE_BLOCKS) {
            self.move_blocks(blocks).await?;
        }
        self.at = scan.end;
        Ok(())
    }

    /// Copies up to [`MOVE_BLOCKS`] blocks to the destination and logs their new places.
    async fn move_blocks(&mut self, entries: &[Entry]) -> Result<()> {
        let (movable, mut content) = self.read_blocks(entries).await;
        let mut rest = &movable[..];
        while !rest.is_empty() {
            self.prepare_destination(rest.len() as u64 * BLOCK).await?;
            let Some(destination) = &mut self.destination else { return Ok(()) };
            let count = rest.len().min((destination.writer.room() / BLOCK) as usize);
            let part = content.split_to(count * BLOCK as usize);
            self.append(&rest[..count], part).await?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Appends the blocks of `entries` to the destination, which has room, and logs where they are now.
    async fn append(&mut self, entries: &[Entry], content: Bytes) -> Result<()> {
        let (gc, segment) = (self.gc.clone(), self.segment);
        let Some(destination) = &mut self.destination else { return Ok(()) };
        let file = destination.writer.id();
        gc.0.garbage.appended(file, entries.len() as u64);
        let bytes = content.len() as u64;
        let offset = match destination.writer.append(content).await {
            Ok(offset) => offset,
            Err(error) => {
                destination.writer.fail();
                return Err(error.context("moving live blocks"));
            }
        };
        destination.landed = offset + bytes;
        check_segment(&gc, segment)?;
        let place = |(index, entry): (u64, &Entry)| entry.relocated(file, offset + index * BLOCK);
        let moved: Vec<Entry> = (0..).zip(entries).map(place).collect();
        let record = Record::Relocate { segment, epoch: gc.0.index.epoch(segment), entries: moved.clone() };
        let index = gc.0.index.clone();
        let apply = Box::new(move |_| index.apply_relocated(segment, &moved));
        // Until the answer is there; also if this future is dropped before.
        destination.is_in_doubt = true;
        gc.0.sink.log(record, apply).await?;
        destination.is_in_doubt = false;
        self.expected_blocks = self.expected_blocks.saturating_sub(entries.len() as u64);
        self.moved_bytes += bytes;
        gc.count(|statistics| statistics.moved_bytes += bytes);
        Ok(())
    }

    /// Reads blocks, in large pieces where they lie together. Returns the entries that could be read with proof, and
    /// their content one after the other, by block: so blocks that belong together come to lie together.
    async fn read_blocks(&mut self, entries: &[Entry]) -> (Vec<Entry>, Bytes) {
        let (mut by_place, at_end): (Vec<Entry>, Vec<Entry>) =
            entries.iter().partition(|entry| entry.version.moves < MOVES_MAX);
        at_end.iter().for_each(|entry| self.leave(entry, &Error::internal("a block was moved too often")));
        by_place.sort_unstable_by_key(|entry| entry.mapping);
        let mut runs: Vec<&[Entry]> = Vec::new();
        let mut rest = &by_place[..];
        while !rest.is_empty() {
            let (run, others) = rest.split_at(run_len(rest));
            runs.push(run);
            rest = others;
        }
        let mut blocks: Vec<Block> = Vec::with_capacity(entries.len());
        for some in runs.chunks(READS_IN_FLIGHT) {
            let reads = some.iter().map(|run| self.gc.0.data.read_run(self.segment, run));
            for (run, read) in some.iter().zip(join_all(reads).await) {
                match read {
                    Ok(buffer) => blocks.extend(Block::of_run(run, buffer)),
                    Err(error) => self.read_one_by_one(run, error, &mut blocks).await,
                }
            }
        }
        blocks.sort_unstable_by_key(|block| block.entry.block);
        let mut content = AlignedBuf::with_capacity(blocks.len() * BLOCK as usize);
        for block in &blocks {
            content.extend_from_slice(&block.run[block.at..block.at + BLOCK as usize]);
        }
        (blocks.into_iter().map(|block| block.entry).collect(), content.freeze())
    }

    /// A run with a block that no copy has: the others are moved, and the file stays.
    async fn read_one_by_one(&mut self, run: &[Entry], error: Error, blocks: &mut Vec<Block>) {
        for entry in run {
            match self.gc.0.data.read_block(self.segment, entry).await {
                Ok(buffer) => blocks.extend(Block::of_run(std::slice::from_ref(entry), buffer)),
                Err(_) => self.leave(entry, &error),
            }
        }
    }

    /// A block that stays where it is, and its file with it.
    fn leave(&mut self, entry: &Entry, why: &Error) {
        let Some(file) = entry.file() else { return };
        if self.stuck.insert(file) && self.gc.0.stuck.borrow_mut().insert(file) {
            tracing::error!(%file, segment = %self.segment, "a data file cannot be collected: {why}");
            self.gc.count(|statistics| statistics.stuck_files += 1);
        }
    }

    /// Makes sure that the destination has room for a block; best for all that is still to come.
    async fn prepare_destination(&mut self, len: u64) -> Result<()> {
        let has_room = |destination: &Destination| !destination.writer.has_failed() && destination.writer.room() > 0;
        if self.destination.as_ref().is_some_and(has_room) {
            return Ok(());
        }
        self.close_destination().await;
        let options = &self.gc.0.options;
        let expected = round_up((self.expected_blocks * BLOCK).max(len), MIB).min(options.data_file_bytes_max);
        let create = |capacity| CreateOptions {
            kind: FileKind::Data,
            capacity,
            redundancy: Redundancy::Copies(options.copies),
            prepared: false,
            epoch: self.gc.0.index.epoch(self.segment),
            segment: self.gc.0.index.named(self.segment),
            claim: Claim::Use,
        };
        let store = self.gc.0.index.files().store();
        let (writer, capacity) = match store.create(create(expected)).await {
            // Space is short: just what is in hand.
            Err(error) if error.kind == ErrorKind::Full && len < expected => (store.create(create(len)).await?, len),
            created => (created?, expected),
        };
        let file = writer.id();
        if let Err(gone) = check_segment(&self.gc, self.segment) {
            // Nothing names it yet.
            self.gc.0.index.files().delete_in_background(vec![file]);
            return Err(gone);
        }
        self.gc.0.garbage.opened(self.segment, file, capacity);
        self.gc.0.garbage.set_origin(file, self.generation, self.written_at);
        self.destination = Some(Destination { writer, landed: 0, is_in_doubt: false });
        let record = Record::DataFile { segment: self.segment, file };
        self.gc.0.sink.log(record, Box::new(|_| ())).await.map(drop)
    }

    async fn close_destination(&mut self) {
        let Some(destination) = self.destination.take() else { return };
        let (file, length) = (destination.writer.id(), destination.landed);
        let store = self.gc.0.index.files().store();
        self.gc.0.garbage.ended(file, length / BLOCK);
        if let Err(error) = store.seal(file, length).await {
            tracing::warn!(%file, "a data file could not be sealed: {error}");
        }
        // A file in doubt stays open in the ledger, so that nothing takes it for dead: after a restart it may not be.
        if !destination.is_in_doubt {
            let capacity = store.info(file).map_or(length, |info| info.capacity);
            self.gc.0.garbage.closed(file, capacity, self.gc.0.handle.now());
        }
    }

    /// Ends a pass that could not go on.
    pub async fn abandon(mut self) {
        self.close_destination().await;
    }

    /// Ends a pass that came through: reports what it counted, and returns the victims that are dead now.
    pub async fn finish(mut self) -> Vec<FileId> {
        self.close_destination().await;
        self.gc.0.garbage.counted(self.segment, self.stale_before, &self.closed, &self.live_blocks);
        let dead = self.closed.iter().filter(|file| self.victims.contains(file) && !self.stuck.contains(file));
        dead.copied().collect()
    }
}

/// To be asked after each await before something is logged: a record of a segment that was dropped would bring it back
/// at a start, when a checkpoint has forgotten the volume.
///
/// # Errors
/// `NotFound`: it was dropped, with all of its files.
fn check_segment(gc: &Gc, segment: SegmentId) -> Result<()> {
    match gc.0.index.contains(segment) {
        true => Ok(()),
        false => Err(Error::not_found(format!("segment {segment} was dropped"))),
    }
}

/// A block that was read.
struct Block {
    entry: Entry,
    run: Rc<AlignedBuf>,
    /// Where it begins in the run.
    at: usize,
}

impl Block {
    fn of_run(entries: &[Entry], buffer: AlignedBuf) -> impl Iterator<Item = Block> {
        let run = Rc::new(buffer);
        let place = move |(index, entry): (usize, &Entry)| Block {
            entry: *entry,
            run: run.clone(),
            at: index * BLOCK as usize,
        };
        entries.iter().enumerate().map(place)
    }
}
