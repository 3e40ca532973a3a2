//! The bytes of files: parts of 64 MiB, an object each.
//!
//! **Gathering.** A pool does changes under conditions one after the other for each object: the next one begins when the one
//! before is in every copy. So appends to a part that come while one is in flight wait here, and go together, as one change
//! ([`GATHERED_MAX`]): that costs the pool about as much as a single one.
//!
//! **Copies.** A read that takes too long is asked of another copy as well (`pace`). That may be behind; but files only grow, so
//! what it has is right, and an answer that is not whole does not count. Only bytes that are known to be in every copy are read
//! so: of the end that a dead life's file has, one copy may say something else than another one.
//!
//! All parts are made before there is a record of the file, and none later; each append says that the part must be there, open,
//! and where its bytes go. So what a fenced life still has on its way is refused by the object itself, whenever it arrives,
//! also when the file was removed meanwhile.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use base::{AlignedBuf, Bytes, Error, FileId, Gathered, Map, Result};
use runtime::sync::{Sender, first, join_all, oneshot};
use runtime::{Class, Handle};

use super::directory::{AT_ONCE, fenced, there_or_not};
use super::failed;
use super::objects::{Change, Condition, Copy, Effect, Failure, Objects};
use super::pace::{Pace, Part};
use super::records::{FENCED, FileRecord, OPEN, PART_BYTES, STATE, creator, part_object};
use crate::{Claim, LocalBoxFuture};

/// Bytes of one change at most, unless one append has more.
const GATHERED_MAX: usize = 2 << 20;

/// See the module.
pub(super) struct Contents {
    handle: Handle,
    objects: Rc<dyn Objects>,
    pace: Pace,
    /// What waits, of each part that has an append in flight.
    waiting: Rc<RefCell<Waiting>>,
}

type Waiting = Map<Part, VecDeque<Append>>;

/// An append to one part.
struct Append {
    /// Where it goes in the part.
    at: u64,
    data: Gathered,
    sender: Sender<Result<()>>,
}

/// A piece of a range that lies in one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    part: u64,
    /// Where it begins in the part.
    at: u64,
    /// Where it begins in the range.
    from: usize,
    len: usize,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = offset + from as u64;
        let (part, at) = (start / PART_BYTES, start % PART_BYTES);
        let piece = Piece { part, at, from, len: (len - from).min((PART_BYTES - at) as usize) };
        from += piece.len;
        (piece.len > 0).then_some(piece)
    })
}

/// The appends to a part that go next; none: nobody waits there any more.
fn gather(waiting: &mut Waiting, part: Part) -> Vec<Append> {
    let Some(queue) = waiting.get_mut(&part) else { return vec![] };
    let mut bytes = 0;
    let fits = queue.iter().take_while(|append| {
        bytes += append.data.len();
        bytes <= GATHERED_MAX
    });
    let count = fits.count().max(1).min(queue.len());
    let gathered: Vec<Append> = queue.drain(..count).collect();
    if gathered.is_empty() {
        waiting.remove(&part);
    }
    gathered
}

/// Submits appends to a part as one change.
fn submit(
    objects: &dyn Objects,
    (file, part): Part,
    claim: Claim,
    places: &[u64],
    data: &[Gathered],
) -> impl Future<Output = Result<()>> + use<> {
    let guarded = Change::of_present().only_if(Condition::Attribute(STATE, OPEN.to_vec()));
    let change = if base::seeded::is_on("append-unguarded") { Change::default() } else { guarded };
    let mut change = change.for_use(claim == Claim::Use);
    for (at, data) in places.iter().zip(data) {
        change = change.and(Effect::Write { offset: *at, data: data.clone() });
    }
    let changed = objects.change(&part_object(file, part), change);
    async move {
        changed.await.map_err(|failure| match failure {
            // Somebody has fenced this life, and removed the file perhaps.
            Failure::Absent | Failure::Changed => fenced(creator(file)),
            failure => failed(failure, || format!("an append to file {file}")),
        })
    }
}

impl Contents {
    pub(super) fn new(handle: &Handle, objects: Rc<dyn Objects>) -> Contents {
        let pace = Pace::new(handle, objects.clone());
        Contents { handle: handle.clone(), objects, pace, waiting: Rc::default() }
    }

    /// What the pool is called in messages.
    pub(super) fn name(&self) -> String {
        self.objects.name()
    }

    /// How fast parts answer.
    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Makes the parts of a file, which are open.
    ///
    /// # Errors
    /// `Full`; `Io`: nobody knows which are there.
    pub(super) async fn make(&self, record: &FileRecord, claim: Claim) -> Result<()> {
        let file = record.info.id;
        let make_part = async |part: u64| {
            let change = Change::of_absent().for_use(claim == Claim::Use);
            let change = change.and(Effect::SetAttribute(STATE, OPEN.to_vec()));
            let made = self.objects.change(&part_object(file, part), change).await;
            made.map_err(|failure| failed(failure, || format!("file {file} could not be made")))
        };
        all(record.parts(), make_part).await
    }

    /// Appends to a file of one's own. All is submitted at the call, or waits in that order.
    ///
    /// # Errors
    /// `Fenced`, `Full`; `Io`: nobody knows what is there.
    pub(super) fn append(
        &self,
        file: FileId,
        claim: Claim,
        offset: u64,
        data: &Gathered,
    ) -> LocalBoxFuture<'static, Result<()>> {
        let mut appended = Vec::with_capacity(1);
        for piece in pieces(offset, data.len()) {
            let data = match piece.len == data.len() {
                true => data.clone(),
                false => data.joined().slice(piece.from..piece.from + piece.len).into(),
            };
            let (sender, receiver) = oneshot();
            self.queue((file, piece.part), claim, Append { at: piece.at, data, sender });
            appended.push(receiver);
        }
        Box::pin(async move {
            for appended in join_all(appended).await {
                appended.unwrap_or_else(|| Err(Error::internal("the loop is shutting down")))?;
            }
            Ok(())
        })
    }

    /// An append goes out now, or with the next ones to the same part.
    fn queue(&self, part: Part, claim: Claim, append: Append) {
        if let Some(waiting) = self.waiting.borrow_mut().get_mut(&part) {
            return waiting.push_back(append);
        }
        self.waiting.borrow_mut().insert(part, VecDeque::new());
        let (objects, waiting) = (self.objects.clone(), self.waiting.clone());
        let (pace, handle) = (self.pace.clone(), self.handle.clone());
        let (mut begun, mut len) = (handle.now(), append.data.len());
        let first = submit(&*objects, part, claim, &[append.at], std::slice::from_ref(&append.data));
        let going_on = async move {
            let mut outcome = first.await;
            let mut senders = vec![append.sender];
            loop {
                if outcome.is_ok() {
                    pace.on_appended(part, len, begun);
                }
                senders.drain(..).for_each(|sender| sender.send(outcome.clone()));
                let gathered = gather(&mut waiting.borrow_mut(), part);
                if gathered.is_empty() {
                    return;
                }
                let (mut places, mut data) = (Vec::new(), Vec::new());
                for append in gathered {
                    places.push(append.at);
                    data.push(append.data);
                    senders.push(append.sender);
                }
                (begun, len) = (handle.now(), data.iter().map(Gathered::len).sum());
                outcome = submit(&*objects, part, claim, &places, &data).await;
            }
        };
        self.handle.spawn(Class::Io, "rados: appends to a part", going_on).detach();
    }

    /// Reads a range, as far as each part has it: the rest is zeros. Gives also whether all of it was there. What `is_settled` is
    /// in every copy.
    ///
    /// # Errors
    /// `Io`; `NotFound`: a part is not there.
    pub(super) async fn read(
        &self,
        file: FileId,
        offset: u64,
        len: usize,
        is_settled: bool,
    ) -> Result<(AlignedBuf, bool)> {
        let reads =
            pieces(offset, len).map(|piece| async move { (piece, self.read_piece(file, piece, is_settled).await) });
        let (mut all, mut is_all) = (AlignedBuf::with_capacity(len), true);
        for (piece, read) in join_all(reads).await {
            let read = read.map_err(|failure| match failure {
                Failure::Absent => Error::not_found(format!("file {file} has no part {}", piece.part)),
                failure => failed(failure, || format!("a read of file {file}")),
            })?;
            is_all &= read.len() == piece.len;
            if read.len() == len {
                return Ok((read, true));
            }
            all.extend_from_slice(&read);
            all.extend_zeros(piece.from + piece.len - all.len());
        }
        Ok((all, is_all))
    }

    /// Reads a piece of the copy that answers first, where it is settled.
    async fn read_piece(&self, file: FileId, piece: Piece, is_settled: bool) -> Result<AlignedBuf, Failure> {
        let is_settled = is_settled && self.objects.has_copies();
        let (part, object) = ((file, piece.part), part_object(file, piece.part));
        let read = |copy| self.objects.read(&object, piece.at, piece.len, copy);
        let is_whole = |read: &Result<AlignedBuf, Failure>| read.as_ref().is_ok_and(|read| read.len() == piece.len);
        let of_any = is_settled && self.pace.is_slow_to_read(part);
        let patience = self.pace.on_read_begun(piece.len).filter(|_| is_settled);
        let (begun, mut asked) = (self.handle.now(), read(if of_any { Copy::Any } else { Copy::First }));
        let in_time = match patience {
            Some(patience) => first(&mut asked, self.handle.sleep(patience)).await.ok(),
            None => Some((&mut asked).await),
        };
        let answered = match in_time {
            Some(answered) => answered,
            None if self.pace.may_hedge() => match first(&mut asked, read(Copy::Any)).await {
                Ok(answered) => answered,
                Err(other) if is_whole(&other) => {
                    // It has not answered yet, and has taken too long already.
                    if !of_any {
                        self.pace.on_read(part, piece.len, begun);
                    }
                    return other;
                }
                Err(_) => asked.await,
            },
            None => asked.await,
        };
        match of_any {
            false => self.pace.on_read(part, piece.len, begun),
            true if is_whole(&answered) => {}
            true => return read(Copy::First).await,
        }
        answered
    }

    /// Writes over bytes that are there. Of a file that its life may still append to only that life does so.
    ///
    /// # Errors
    /// `Io`; `NotFound`: there is no such part; `Fenced`.
    pub(super) async fn repair(&self, file: FileId, offset: u64, data: &Bytes, is_own: bool) -> Result<()> {
        for piece in pieces(offset, data.len()) {
            let mut change = Change::of_present();
            if is_own {
                change = change.only_if(Condition::Attribute(STATE, OPEN.to_vec()));
            }
            let data = data.slice(piece.from..piece.from + piece.len).into();
            let change = change.and(Effect::Write { offset: piece.at, data });
            let repaired = self.objects.change(&part_object(file, piece.part), change).await;
            repaired.map_err(|failure| match failure {
                Failure::Changed => fenced(creator(file)),
                Failure::Absent => Error::not_found(format!("file {file} has no part {}", piece.part)),
                failure => failed(failure, || format!("a repair of file {file}")),
            })?;
        }
        Ok(())
    }

    /// No append to a file is taken any more.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn fence(&self, record: &FileRecord) -> Result<()> {
        let file = record.info.id;
        let fence_part = async |part: u64| {
            let change = Change::of_present().and(Effect::SetAttribute(STATE, FENCED.to_vec()));
            // One that is not there was removed.
            let done = there_or_not(self.objects.change(&part_object(file, part), change).await);
            done.map_err(|failure| failed(failure, || format!("file {file} could not be fenced")))
        };
        all(record.parts(), fence_part).await
    }

    /// The bytes of a file go.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn remove(&self, record: &FileRecord) -> Result<()> {
        let file = record.info.id;
        let remove_part = async |part: u64| {
            let removed = self.objects.change(&part_object(file, part), Change::of_present().and(Effect::Remove)).await;
            there_or_not(removed).map_err(|failure| failed(failure, || format!("file {file} could not be removed")))
        };
        all(record.parts(), remove_part).await
    }
}

/// Does something with each part, some at a time.
async fn all(parts: u64, each: impl AsyncFn(u64) -> Result<()>) -> Result<()> {
    let parts: Vec<u64> = (0..parts).collect();
    for some in parts.chunks(AT_ONCE) {
        for done in join_all(some.iter().map(|part| each(*part))).await {
            done?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use runtime::sim::{NodeOptions, World};

    use super::*;
    use crate::rados::simulated::{Pool, PoolOptions};

    #[test]
    fn appends_that_come_while_one_is_in_flight_go_together() {
        let world = World::new(3);
        let handle = world.start_loop(world.add_node(NodeOptions::default()));
        let pool = Pool::new(&world, PoolOptions::default());
        let contents = Contents::new(&handle, pool.reached_from(&handle));
        let file = FileId(1 << 32 | 1);
        let (objects, measured, inside) = (pool.reached_from(&handle), pool.clone(), handle.clone());
        world.block_on(&inside, async move {
            for part in [0, 1] {
                let made = Change::of_absent().and(Effect::SetAttribute(STATE, OPEN.to_vec()));
                objects.change(&part_object(file, part), made).await.unwrap();
            }
            let before = measured.changes();
            let block = |byte: u8| Gathered::from(Bytes::from(vec![byte; 4096]));
            let first = PART_BYTES - 20 * 4096;
            let appends: Vec<_> = (0..40)
                .map(|index| contents.append(file, Claim::Use, first + index * 4096, &block(index as u8)))
                .collect();
            assert!(join_all(appends).await.iter().all(|appended| appended.is_ok()));
            // Of each part the first one, and all others together.
            assert_eq!(measured.changes() - before, 4);
            let (read, is_all) = contents.read(file, first, 40 * 4096, true).await.unwrap();
            assert!(is_all && read.chunks(4096).zip(0..).all(|(found, byte)| found.iter().all(|found| *found == byte)));
            // What is refused is refused to all of them.
            let fenced = Change::of_present().and(Effect::SetAttribute(STATE, FENCED.to_vec()));
            objects.change(&part_object(file, 1), fenced).await.unwrap();
            let late: Vec<_> = (0..3)
                .map(|index| contents.append(file, Claim::Use, PART_BYTES + (40 + index) * 4096, &block(1)))
                .collect();
            let is_fenced = |done: &Result<()>| matches!(done, Err(error) if error.kind == base::ErrorKind::Fenced);
            assert!(join_all(late).await.iter().all(is_fenced));
            handle.yield_now().await;
            assert!(contents.waiting.borrow().is_empty(), "nothing is kept of parts at rest");
        });
    }

    #[test]
    fn a_range_is_cut_where_parts_end() {
        let cut = |offset, len| pieces(offset, len).map(|piece| (piece.part, piece.at, piece.from, piece.len));
        assert_eq!(cut(4096, 8192).collect::<Vec<_>>(), [(0, 4096, 0, 8192)]);
        let end = PART_BYTES - 4096;
        assert_eq!(cut(end, 8192).collect::<Vec<_>>(), [(0, end, 0, 4096), (1, 0, 4096, 4096)]);
        assert_eq!(cut(3 * PART_BYTES, 4096).collect::<Vec<_>>(), [(3, 0, 0, 4096)]);
        assert_eq!(cut(0, 0).count(), 0);
    }
}
