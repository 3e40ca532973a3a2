//! One writer's life: what it has, what it may set aside, what it has in flight.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, FileId, Incarnation, Result};
use runtime::sync::Event;

use super::LifeInfo;
use super::guard::{Guard, Recovered};
use crate::FileInfo;

/// See the module.
pub(super) struct Life {
    pub(super) incarnation: Incarnation,
    pub(super) guard: Guard,
    stopped: Cell<bool>,
    granted: Cell<u64>,
    used: Cell<u64>,
    files: RefCell<BTreeMap<FileId, Known>>,
    in_flight: Cell<u64>,
    rested: Event,
    growing: Cell<bool>,
    /// What a grant of which nobody knows whether it is durable may have given.
    doubtful: Cell<u64>,
    /// What it did not use of its grant is somebody else's. It is not told: a fence is what it is to notice.
    gave_back: Cell<bool>,
}

/// What is counted of a file.
#[derive(Clone, Copy)]
struct Known {
    capacity: u64,
    /// Whether the store below still appends to it.
    is_new: bool,
}

impl Life {
    pub(super) fn new(incarnation: Incarnation) -> Life {
        Life {
            incarnation,
            guard: Guard::default(),
            stopped: Cell::default(),
            granted: Cell::default(),
            used: Cell::default(),
            files: RefCell::default(),
            in_flight: Cell::default(),
            rested: Event::new(),
            growing: Cell::default(),
            doubtful: Cell::default(),
            gave_back: Cell::default(),
        }
    }

    /// As its guard says.
    pub(super) fn restore(&self, recovered: Recovered) {
        self.stopped.set(recovered.is_sealed);
        self.granted.set(recovered.granted);
        self.guard.restore(recovered);
        if self.is_fenced() {
            self.give_back();
        }
    }

    pub(super) fn info(&self) -> LifeInfo {
        LifeInfo {
            incarnation: self.incarnation,
            is_fenced: self.is_fenced(),
            granted_bytes: if self.gave_back.get() { 0 } else { self.granted.get() },
            used_bytes: self.used.get(),
        }
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.stopped.get()
    }

    /// It begins nothing any more.
    pub(super) fn stop(&self) {
        self.stopped.set(true);
    }

    /// Whether it may do anything.
    ///
    /// # Errors
    /// `Fenced`.
    pub(super) fn check_alive(&self) -> Result<()> {
        match self.is_fenced() {
            true => Err(Error::fenced(format!("incarnation {} was fenced", self.incarnation))),
            false => Ok(()),
        }
    }

    /// Something of it is in flight until the guard is dropped.
    ///
    /// # Errors
    /// `Fenced`.
    pub(super) fn begin(self: &Rc<Self>) -> Result<InFlight> {
        self.check_alive()?;
        self.in_flight.set(self.in_flight.get() + 1);
        Ok(InFlight(self.clone()))
    }

    /// The same for one that makes a file or appends to one.
    ///
    /// # Errors
    /// `Fenced`.
    pub(super) fn begin_file(self: &Rc<Self>) -> Result<InFlight> {
        match self.begin() {
            Err(_) if base::seeded::is_on("fence-misses-files") => {
                self.in_flight.set(self.in_flight.get() + 1);
                Ok(InFlight(self.clone()))
            }
            begun => begun,
        }
    }

    /// Waits until nothing of it is in flight.
    pub(super) async fn at_rest(&self) {
        loop {
            let rested = self.rested.wait();
            if self.in_flight.get() == 0 {
                return;
            }
            rested.await;
        }
    }
}

/// Space.
impl Life {
    pub(super) fn granted(&self) -> u64 {
        self.granted.get()
    }

    /// What it may set aside is about to be written down.
    pub(super) fn begin_grant(&self, bytes: u64) {
        self.doubtful.set(bytes.max(self.doubtful.get()));
    }

    /// It is durable.
    pub(super) fn end_grant(&self, bytes: u64) {
        self.doubtful.set(0);
        // A fence may have been faster.
        if !self.is_fenced() {
            self.granted.set(bytes);
        }
    }

    /// What it may still set aside.
    pub(super) fn free(&self) -> u64 {
        self.granted.get().saturating_sub(self.used.get())
    }

    /// What it lacks of `bytes` that should be free: also what it has beyond its grant.
    pub(super) fn missing(&self, bytes: u64) -> u64 {
        self.used.get().saturating_add(bytes).saturating_sub(self.granted.get())
    }

    pub(super) fn used(&self) -> u64 {
        self.used.get()
    }

    /// What nobody else may have because of it.
    pub(super) fn claim(&self) -> u64 {
        match self.gave_back.get() {
            true => self.used.get(),
            false => self.granted.get().max(self.used.get()).max(self.doubtful.get()),
        }
    }

    /// Sets bytes aside for a file that is about to be created. False: its grant does not allow that.
    pub(super) fn try_claim(&self, bytes: u64) -> bool {
        let fits = bytes <= self.free();
        self.used.set(self.used.get() + if fits { bytes } else { 0 });
        fits
    }

    /// The same beyond the grant, of the `left` bytes that nobody has: what is used counts as the life's, granted or not.
    pub(super) fn try_overdraw(&self, bytes: u64, left: u64) -> bool {
        let used = self.used.get().saturating_add(bytes);
        let fits = used.saturating_sub(self.claim()) <= left;
        self.used.set(if fits { used } else { self.used.get() });
        fits
    }

    /// Sets bytes aside that were just granted for that.
    pub(super) fn take(&self, bytes: u64) {
        self.used.set(self.used.get() + bytes);
    }

    /// The file was not created.
    pub(super) fn unclaim(&self, bytes: u64) {
        self.used.set(self.used.get() - bytes);
    }

    /// What it does not use any more can be given to others.
    pub(super) fn give_back(&self) {
        self.gave_back.set(true);
    }

    /// False if somebody asks for more already.
    pub(super) fn begin_growing(&self) -> bool {
        !self.growing.replace(true)
    }

    pub(super) fn end_growing(&self) {
        self.growing.set(false);
    }
}

/// Files.
impl Life {
    pub(super) fn has_files(&self) -> bool {
        !self.files.borrow().is_empty()
    }

    pub(super) fn files(&self) -> Vec<FileId> {
        self.files.borrow().keys().copied().collect()
    }

    /// A file that it has, of which the space is not counted yet.
    pub(super) fn on_file(&self, info: &FileInfo, is_new: bool) {
        self.used.set(self.used.get() + info.capacity);
        self.files.borrow_mut().insert(info.id, Known { capacity: info.capacity, is_new });
    }

    /// A file takes up this much now; nothing: it is gone.
    pub(super) fn on_changed(&self, file: FileId, info: Option<&FileInfo>) {
        let mut files = self.files.borrow_mut();
        let Some(known) = files.get_mut(&file) else { return };
        let capacity = info.map_or(0, |info| info.capacity);
        self.used.set(self.used.get() - known.capacity + capacity);
        known.capacity = capacity;
        if info.is_none() {
            files.remove(&file);
        }
    }

    /// Whether it may append to a file.
    ///
    /// # Errors
    /// `NotFound`, `Fenced`, `Io`: it takes no more, because the store below was restarted.
    pub(super) fn check_appendable(&self, file: FileId) -> Result<()> {
        match self.files.borrow().get(&file) {
            Some(Known { is_new: true, .. }) => Ok(()),
            Some(_) => Err(Error::io(format!(
                "the store was restarted, and file {file} takes no more appends: seal it and go on in a new one"
            ))),
            None => Err(Error::fenced(format!("file {file} is not of incarnation {}", self.incarnation))),
        }
    }
}

/// See [`Life::begin`].
pub(super) struct InFlight(Rc<Life>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let left = self.0.in_flight.get() - 1;
        self.0.in_flight.set(left);
        if left == 0 {
            self.0.rested.notify();
        }
    }
}
