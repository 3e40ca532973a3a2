//! Space for data files that is zero-written ahead of need, while nobody wants the store.
//!
//! **Intuition.** The first durable write to a block that is only set aside converts it in the file system's metadata,
//! beside what a client waits for. So spares for data files ([`super::spares`]) are made before anybody asks, and zeros
//! are written to them in steps; files take them as they take what deleted ones left. How many, of which sizes, and when
//! a step is in order: [`policies::ready`].
//!
//! **Flow.** One task for each member directory that lacks spares, none where nothing is lacking: `making-N` is
//! allocated, becomes `vacant-M`, durably, and is the *unfinished* spare of its directory. It is taken in hand, opened and
//! locked; zeros go to it, step by step, until it is finished or somebody wants the store: then it is closed and put
//! back, to be gone on with when it is quiet again.
//!
//! **Why it is safe.** No file takes the unfinished spare, and it is written to by nobody but who holds its lock; that of a
//! killed process is held until its last write is done, and whoever makes a file of a spare has to have it. What a
//! crash leaves is a `vacant-M`, which promises nothing of what is in it. What is set aside counts as free from the
//! moment on that it is allocated, and gives way before anything else does.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use base::{Instant, Set, buffer};
use policies::ready::{Step, ZeroPace, plan_spare};
use runtime::sync::Event;
use runtime::{Class, File, OpenOptions};

use super::Local;
use super::directory::{Directory, WRITE, lock_within};
use super::header::HEADER;
use super::names::{Name, SpareKind};
use super::pool::RECYCLE_WAIT;
use super::spares::Unfinished;
use crate::FileKind;

/// Opens an unfinished spare: what is written to it is made durable together.
const ZERO: OpenOptions = OpenOptions { dsync: false, ..WRITE };
/// A spare stays in hand for a pause that is no longer than this.
const HOLD_MAX: Duration = Duration::from_millis(10);

/// What is known of this work.
#[derive(Default)]
pub(crate) struct Readiness {
    /// Capacities that are kept ready; none: nothing is.
    sizes: RefCell<Vec<u64>>,
    /// Bytes that files may come to hold, one copy counted.
    expected: Cell<u64>,
    /// Directories that are being worked on.
    running: RefCell<Set<u128>>,
    /// Grows with whatever is done for anybody.
    activity: Cell<u64>,
    /// Zeros that were written.
    zeroed_bytes: Cell<u64>,
    /// A spare is not in hand any more.
    put_back: Event,
}

impl Readiness {
    /// Somebody wants the store.
    pub(crate) fn on_activity(&self) {
        self.activity.set(self.activity.get() + 1);
    }

    /// Zeros that were written ahead since the start.
    pub(crate) fn zeroed_bytes(&self) -> u64 {
        self.zeroed_bytes.get()
    }
}

/// What is to be done in a directory.
enum Lack {
    Nothing,
    /// The unfinished spare is to be gone on with.
    Zeros,
    /// One more is wanted.
    Spare(u64),
    /// There is no room for the unfinished one any more.
    Room,
}

/// The unfinished spare of a directory, in hand: locked, and open for writes.
struct InHand {
    spare: Unfinished,
    file: File,
}

impl Local {
    /// See `Store::keep_ready`.
    pub(crate) fn keep_space_ready(&self, sizes: &[u64], bytes: u64) {
        *self.readiness.sizes.borrow_mut() = sizes.to_vec();
        self.readiness.expected.set(bytes);
        self.readiness.on_activity();
        self.zero_ahead();
    }

    /// Has spares made in every member that lacks some.
    pub(crate) fn zero_ahead(&self) {
        for directory in self.each_member() {
            let id = directory.id.get().0;
            let is_done = matches!(self.lack_of(directory), Lack::Nothing);
            if is_done || self.options.read_only || !self.readiness.running.borrow_mut().insert(id) {
                continue;
            }
            let (weak, handle, directory) = (self.this.clone(), self.handle.clone(), directory.clone());
            let mut pace = ZeroPace::new(self.options.ready, handle.now(), self.readiness.activity.get());
            let task = async move {
                // While it waits the store may go.
                while let Some(local) = weak.upgrade() {
                    let next = local.zero_while_quiet(&directory, &mut pace).await;
                    let Some(at) = next else {
                        local.readiness.running.borrow_mut().remove(&id);
                        return;
                    };
                    drop(local);
                    handle.sleep_until(at).await;
                }
            };
            self.handle.spawn(Class::Background, "files: zero ahead", task).detach();
        }
    }

    fn lack_of(&self, directory: &Directory) -> Lack {
        let sizes = self.readiness.sizes.borrow();
        if sizes.is_empty() || !directory.is_member() || directory.suspect.get() {
            return Lack::Nothing;
        }
        let spares = directory.spares.borrow();
        let bytes = spares.bytes_of(SpareKind::Allocated);
        let target = self.ready_target(directory);
        let count = |capacity| spares.count(SpareKind::Allocated, capacity) as u64;
        match (spares.has_unfinished(), bytes <= target) {
            (true, true) => Lack::Zeros,
            (true, false) => Lack::Room,
            (false, _) => plan_spare(target, &sizes, bytes, count).map_or(Lack::Nothing, Lack::Spare),
        }
    }

    /// Bytes of spares for data files that are to be ready in a directory.
    pub(crate) fn ready_target(&self, directory: &Directory) -> u64 {
        let space = self.space();
        let (copies, members) = (u64::from(self.copies_effective()), self.each_member().count() as u64);
        let part = |bytes: u64| (u128::from(bytes) * u128::from(copies) / u128::from(members.max(1))) as u64;
        let room = self.room(directory).min(space.free);
        self.options.ready.target(room, part(space.used), part(self.readiness.expected.get()))
    }

    /// Writes zeros until somebody wants the store. When to look again; none if there is nothing to be done.
    async fn zero_while_quiet(&self, directory: &Rc<Directory>, pace: &mut ZeroPace) -> Option<Instant> {
        let failures = directory.failures.get();
        let mut in_hand: Option<InHand> = None;
        loop {
            let now = self.handle.now();
            if directory.failures.get() != failures {
                // What it held is nobody's any more. If it is a member again, all begins anew.
                self.put_back(directory, failures, |_| ());
                return Some(now);
            }
            let again_at = match pace.plan_step(now, self.readiness.activity.get()) {
                Step::Zero(bytes) => {
                    in_hand = match self.zero_step(directory, failures, in_hand.take(), bytes).await {
                        Ok(Some(in_hand)) => Some(in_hand),
                        Ok(None) if matches!(self.lack_of(directory), Lack::Nothing) => return None,
                        Ok(None) => None,
                        Err(error) => {
                            // Nobody waits for it: the next file to be created finds out what is wrong.
                            tracing::warn!("preparing space in {} failed: {error}", directory.path.display());
                            return None;
                        }
                    };
                    continue;
                }
                Step::Pause(at) if at - now <= HOLD_MAX => {
                    self.handle.sleep_until(at).await;
                    continue;
                }
                Step::Pause(at) | Step::GiveWay(at) => at,
            };
            if let Some(InHand { spare, file }) = in_hand {
                drop(file);
                self.put_back(directory, failures, |spares| spares.put_back(spare));
            }
            return match self.lack_of(directory) {
                Lack::Nothing => None,
                _ => Some(again_at),
            };
        }
    }

    /// Takes the unfinished spare in hand, or a new one, if none is, and writes the next zeros to it. None if it is
    /// finished, or nothing is to be done.
    async fn zero_step(
        &self,
        directory: &Rc<Directory>,
        failures: u32,
        in_hand: Option<InHand>,
        bytes: u64,
    ) -> io::Result<Option<InHand>> {
        let Some(InHand { mut spare, file }) = in_hand else { return self.take_in_hand(directory, failures).await };
        let end = HEADER + spare.capacity;
        let part = buffer::zeros(bytes.min(end - spare.zeroed) as usize);
        let len = part.len() as u64;
        self.counters.on_written(FileKind::Data as usize, len);
        self.readiness.zeroed_bytes.set(self.readiness.zeroed_bytes.get() + len);
        let mut written = file.write_at(spare.zeroed, part).await;
        spare.zeroed += len;
        if written.is_ok() && spare.zeroed == end {
            // What the file system noted of the blocks becomes durable now, and not beside a client's first write.
            written = file.sync().await;
        }
        match written {
            Err(error) => {
                drop(file);
                self.give_up(directory, failures, &spare).await;
                Err(error)
            }
            Ok(()) if spare.zeroed < end => Ok(Some(InHand { spare, file })),
            Ok(()) => {
                drop(file);
                tracing::trace!(capacity = spare.capacity, "space is ready in {}", directory.path.display());
                self.put_back(directory, failures, |spares| spares.finish(&spare));
                Ok(None)
            }
        }
    }

    async fn take_in_hand(&self, directory: &Rc<Directory>, failures: u32) -> io::Result<Option<InHand>> {
        match self.lack_of(directory) {
            Lack::Nothing => Ok(None),
            Lack::Spare(capacity) => self.begin_spare(directory, failures, capacity).await.map(Some),
            lack @ (Lack::Room | Lack::Zeros) => {
                let Some(spare) = directory.spares.borrow_mut().take_in_hand() else { return Ok(None) };
                let opened = async {
                    let file = self.handle.open(&directory.path_of(spare.name()), ZERO).await?;
                    // Ours may still be on its way out.
                    match lock_within(&self.handle, &file, RECYCLE_WAIT).await? {
                        true => Ok(file),
                        false => Err(io::Error::from(io::ErrorKind::WouldBlock)),
                    }
                };
                let opened = match lack {
                    Lack::Room => Ok(None),
                    _ => opened.await.map(Some),
                };
                match opened {
                    Ok(Some(file)) => Ok(Some(InHand { spare, file })),
                    outcome => {
                        self.give_up(directory, failures, &spare).await;
                        outcome.map(|_| None)
                    }
                }
            }
        }
    }

    /// Makes a spare without zeros, in hand. Its name is durable when this returns.
    async fn begin_spare(&self, directory: &Rc<Directory>, failures: u32, capacity: u64) -> io::Result<InHand> {
        let vacancy = self.make_allocated(directory, capacity, ZERO).await?;
        let spare = Unfinished { number: directory.take_number(), capacity, zeroed: 0 };
        if directory.failures.get() != failures {
            drop(self.handle.remove(&directory.path_of(vacancy.name)).await);
            return Err(io::Error::other("the directory failed"));
        }
        directory.spares.borrow_mut().begin(&spare);
        let named = async {
            self.handle.rename(&directory.path_of(vacancy.name), &directory.path_of(spare.name())).await?;
            directory.sync_names().await
        };
        match named.await {
            Ok(()) => {
                self.touch_space();
                Ok(InHand { spare, file: vacancy.file })
            }
            Err(error) => {
                drop(self.handle.remove(&directory.path_of(vacancy.name)).await);
                self.give_up(directory, failures, &spare).await;
                Err(error)
            }
        }
    }

    /// Removes the spare in hand.
    async fn give_up(&self, directory: &Directory, failures: u32, spare: &Unfinished) {
        let removed = self.handle.remove(&directory.path_of(spare.name())).await;
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("removing unfinished space in {} failed: {error}", directory.path.display());
        }
        if directory.failures.get() == failures {
            directory.space.on_released(HEADER + spare.capacity);
        }
        self.put_back(directory, failures, |spares| spares.lose(spare));
    }

    /// The spare in hand is not so any more, and `how` says what it is; unless its directory has failed meanwhile, and
    /// with it all that was known of its spares.
    fn put_back(&self, directory: &Directory, failures: u32, how: impl FnOnce(&mut super::spares::Spares)) {
        if directory.failures.get() == failures {
            how(&mut directory.spares.borrow_mut());
        }
        self.readiness.put_back.notify();
    }

    /// Takes a spare of a directory to make room, with its capacity; waits for one that is in hand, if it is the last.
    pub(crate) async fn take_spare_for_room(&self, directory: &Directory) -> Option<(Name, u64)> {
        loop {
            let put_back = self.readiness.put_back.wait();
            let taken = directory.spares.borrow_mut().take_for_room();
            if taken.is_some() || !directory.spares.borrow().is_in_hand() {
                return taken;
            }
            // Who has it sees that somebody wants the store.
            self.readiness.on_activity();
            put_back.await;
        }
    }
}
