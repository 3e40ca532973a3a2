//! How fast parts of files answer.
//!
//! A pool knows which of its OSDs are dead. One that is slow it goes on using, and whoever reads what is there, or writes with
//! a copy there, waits for it. So reads that take too long are asked of another copy as well, those of parts that are slow from
//! the beginning, and a file whose part is slow takes no more appends: the next one lies elsewhere. What is slow, and how much
//! may be asked for twice, is decided in [`policies::fail_slow`].
//!
//! A part is slow to read because of the OSD that answers for it, and slow to append to because of any of those that have a
//! copy. Who these are is asked of the pool once for each slow part; those named most often are told to people.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::{FileId, Instant};
use policies::fail_slow::FailSlow;
use runtime::sync::Event;
use runtime::{Class, Handle};

use super::objects::Objects;
use super::records::part_object;

/// A part of a file.
pub(super) type Part = (FileId, u64);

/// See the module.
#[derive(Clone)]
pub(super) struct Pace(Rc<Inner>);

struct Inner {
    handle: Handle,
    objects: Rc<dyn Objects>,
    reads: RefCell<FailSlow<Part>>,
    appends: RefCell<FailSlow<Part>>,
    /// For each slow part those of whom one is to blame, as far as the pool has said.
    blamed: RefCell<BTreeMap<Part, Vec<String>>>,
    /// The file to which nothing should be appended any more, the last one.
    left: Cell<Option<FileId>>,
    renewal: Event,
}

impl Pace {
    pub(super) fn new(handle: &Handle, objects: Rc<dyn Objects>) -> Pace {
        Pace(Rc::new(Inner {
            handle: handle.clone(),
            objects,
            reads: RefCell::default(),
            appends: RefCell::default(),
            blamed: RefCell::default(),
            left: Cell::new(None),
            renewal: Event::new(),
        }))
    }

    /// A read of a part begins: after how long it may be asked of another copy, if that is known.
    pub(super) fn on_read_begun(&self, len: usize) -> Option<Duration> {
        let mut reads = self.0.reads.borrow_mut();
        reads.on_read();
        reads.patience(len as u64)
    }

    /// Whether a read may be asked of another copy, too.
    pub(super) fn may_hedge(&self) -> bool {
        self.0.reads.borrow_mut().plan_hedge()
    }

    /// Whether reads of a part are better asked of any copy.
    pub(super) fn is_slow_to_read(&self, part: Part) -> bool {
        self.0.reads.borrow().is_slow(self.0.handle.now(), part)
    }

    /// A read was answered by whoever answers for the part, or has not been yet.
    pub(super) fn on_read(&self, part: Part, len: usize, begun: Instant) {
        let now = self.0.handle.now();
        if self.0.reads.borrow_mut().on_done(now, part, len as u64, now.since(begun)) {
            self.on_slow(part, 1);
        }
    }

    /// An append is in every copy.
    pub(super) fn on_appended(&self, part: Part, len: usize, begun: Instant) {
        let now = self.0.handle.now();
        if !self.0.appends.borrow_mut().on_done(now, part, len as u64, now.since(begun)) {
            return;
        }
        self.on_slow(part, usize::MAX);
        if self.0.appends.borrow_mut().plan_leave(now) {
            self.0.left.set(Some(part.0));
            self.0.renewal.notify();
        }
    }

    /// See [`crate::Store::is_inferior`].
    pub(super) fn is_left(&self, file: FileId) -> bool {
        self.0.left.get() == Some(file)
    }

    /// See [`crate::Store::renewal`].
    pub(super) fn renewal(&self) -> impl Future<Output = ()> + use<> {
        self.0.renewal.wait()
    }

    /// One of the first `count` that have a part is slow.
    fn on_slow(&self, part: Part, count: usize) {
        let this = self.clone();
        let asking = async move {
            let Inner { objects, blamed, .. } = &*this.0;
            let object = part_object(part.0, part.1);
            let holders = match objects.holders(&object).await {
                Ok(holders) if !holders.is_empty() => holders.into_iter().take(count).collect(),
                _ => vec![object.clone()],
            };
            let slow = this.slow();
            let mut blamed = blamed.borrow_mut();
            blamed.retain(|part, _| slow.contains(part));
            let (pool, by) = (objects.name(), holders.join(" or "));
            // Of an OSD there are many objects.
            match blamed.values().any(|known| *known == holders) {
                true => tracing::debug!(pool, object, by, "an object answers slowly"),
                false => tracing::warn!(pool, object, by, "an object answers slowly"),
            }
            blamed.insert(part, holders);
        };
        self.0.handle.spawn(Class::Background, "rados: who is slow", asking).detach();
    }

    fn slow(&self) -> Vec<Part> {
        let now = self.0.handle.now();
        let (reads, appends) = (self.0.reads.borrow(), self.0.appends.borrow());
        reads.slow(now).chain(appends.slow(now)).collect()
    }

    /// Who is slow: those that are blamed for most of what is.
    pub(super) fn culprits(&self) -> Vec<String> {
        let slow = self.slow();
        let blamed = self.0.blamed.borrow();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let of_slow = blamed.iter().filter(|(part, _)| slow.contains(part));
        for name in of_slow.flat_map(|(_, names)| names) {
            *counts.entry(name).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        counts.into_iter().filter(|(_, count)| *count == most).map(|(name, _)| name.to_owned()).collect()
    }
}
