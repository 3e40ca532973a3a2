//! How fast parts of files answer.
//!
//! A pool knows which of its OSDs are dead. One that is slow it goes on using, and whoever reads what is there, or writes with
//! a copy there, waits for it. So reads that take too long are asked of another copy as well, those of parts that are slow from
//! the beginning, and a file whose part is slow takes no more appends: the next one lies elsewhere. What is slow, and how much
//! may be asked for twice, is decided in [`policies::fail_slow`].
//!
//! A part is slow to read because of the OSD that answers for it, and slow to append to because of any of those that have a
//! copy. Who these are is asked of the pool once for each slow part. People are told of those named most often, once parts
//! of them have been slow over [`NAMED_AFTER`]: what is left at once is slow for a moment only, and so is a burst of work.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::{FileId, Instant};
use policies::fail_slow::{FailSlow, NAMED_AFTER};
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
            let slow: BTreeSet<Part> = this.slow().into_iter().map(|(part, _)| part).collect();
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

    /// What is slow, and over which time.
    fn slow(&self) -> Vec<(Part, Range<Instant>)> {
        let now = self.0.handle.now();
        let (reads, appends) = (self.0.reads.borrow(), self.0.appends.borrow());
        reads.slow(now).chain(appends.slow(now)).collect()
    }

    /// Who is slow: those that are blamed for most of what is.
    pub(super) fn culprits(&self) -> Vec<String> {
        let blamed = self.0.blamed.borrow();
        let mut found: BTreeMap<&str, Blame> = BTreeMap::new();
        for (part, time) in self.slow() {
            for name in blamed.get(&part).into_iter().flatten() {
                let blame = found.entry(name).or_insert(Blame { parts: 0, since: time.start, until: time.end });
                blame.parts += 1;
                blame.since = blame.since.min(time.start);
                blame.until = blame.until.max(time.end);
            }
        }
        found.retain(|_, blame| blame.until.since(blame.since) >= NAMED_AFTER);
        let most = found.values().map(|blame| blame.parts).max().unwrap_or(0);
        found.into_iter().filter(|(_, blame)| blame.parts == most).map(|(name, _)| name.to_owned()).collect()
    }
}

/// What of somebody is slow: how many parts, and from when to when.
struct Blame {
    parts: usize,
    since: Instant,
    until: Instant,
}
