//! What an engine does while nobody asks: dumps by age and pressure, checkpoints, flushes and
//! merges of the index, garbage collection, scrubbing.
//!
//! Once space for the next data files is zero-written ([`policies::ready`]), an idle engine has no timer but that of the
//! next round of scrubbing, days ahead: the task that dumps by age sleeps
//! until the oldest cache is due, and waits for an event while everything is clean.

use std::rc::Rc;

use base::Instant;
use policies::dump::{Candidate, plan_age, plan_pressure};
use runtime::Class;

use crate::core::Core;
use crate::journal::JournalPressure;
use crate::options::Ownership;
use crate::segment::DumpStage;

impl Core {
    /// Starts the tasks that end with the engine.
    pub(crate) fn start_background(self: &Rc<Self>) {
        let mut maintenance = self.maintenance.borrow_mut();
        maintenance.extend(self.index.spawn_maintenance(Rc::new(self.log.clone())));
        maintenance.push(self.gc.spawn());
        maintenance.extend(self.scrub.spawn());
        if self.options.ownership == Ownership::Given {
            let core = self.clone();
            maintenance.push(self.handle.spawn(Class::Background, "remove strays", core.keep_removing_strays()));
        }
        let core = self.clone();
        maintenance.push(self.handle.spawn(Class::Background, "renew files", async move { core.renew_files().await }));
        let core = self.clone();
        maintenance.push(self.handle.spawn(Class::Io, "end writes", async move { core.end_writes().await }));
        drop(maintenance);
        let core = self.clone();
        self.handle.spawn(Class::Background, "dump by age", async move { core.dump_by_age().await }).detach();
        let core = self.clone();
        self.handle.spawn(Class::Io, "dump for memory", async move { core.dump_for_memory().await }).detach();
        let core = self.clone();
        self.handle.spawn(Class::Io, "dump for journal", async move { core.dump_for_journal().await }).detach();
        let core = self.clone();
        self.handle.spawn(Class::Background, "checkpoint", async move { core.keep_checkpointing().await }).detach();
    }

    /// Once no dump can come through, neither memory nor journal files come back: who waits for them is told.
    async fn end_writes(self: Rc<Self>) {
        let error = self.log.when_broken().await;
        self.admission.end();
        self.index.end();
        self.fusion.end(&error);
        self.dumped.notify();
    }

    /// Whenever new files may be better than present ones, what is written goes on in such.
    async fn renew_files(self: Rc<Self>) {
        loop {
            let renewal = self.index.files().store().renewal();
            self.fusion.renew_file();
            self.log.renew_file();
            for segment in self.all_segments() {
                segment.dumps.renew();
                segment.larges.renew();
            }
            renewal.await;
        }
    }

    async fn dump_by_age(self: Rc<Self>) {
        while self.can_log() {
            let changed = self.dirtied.wait();
            let plan = plan_age(self.candidates(), self.handle.now(), self.options.dump_age);
            for id in plan.due {
                self.dump_candidate(id);
            }
            match plan.next_at {
                Some(at) => self.handle.sleep_until(at).await,
                None => changed.await,
            }
        }
    }

    async fn dump_for_memory(self: Rc<Self>) {
        while self.can_log() {
            self.admission.wanted().wait().await;
            for id in plan_pressure(self.candidates(), self.admission.excess()) {
                self.dump_candidate(id);
            }
        }
    }

    async fn dump_for_journal(self: Rc<Self>) {
        let pressed = self.fusion.pressure_event();
        while self.can_log() {
            let (risen, dumped) = (pressed.wait(), self.dumped.wait());
            if self.fusion.pressure() == JournalPressure::Low {
                risen.await;
                continue;
            }
            self.trim_journal().await;
            match self.fusion.oldest_undumped(|id| self.dumped_through(id)) {
                Some(oldest) => {
                    self.dump_all_of(oldest.segments);
                    dumped.await;
                }
                None => risen.await,
            }
        }
    }

    /// Wants a dump of each of these segments, which keep the oldest journal file.
    fn dump_all_of(self: &Rc<Self>, ids: impl IntoIterator<Item = base::SegmentId>) {
        let mut wants = self.journal_wants.borrow_mut();
        *wants = ids.into_iter().collect();
        let segments = self.segments.borrow();
        wants.iter().filter_map(|id| segments.get(id)).for_each(|segment| self.want_dump(segment));
    }

    /// Every segment with an active cache that no dump is wanted for.
    fn candidates(&self) -> impl Iterator<Item = Candidate<base::SegmentId>> {
        let segments = self.all_segments();
        segments.into_iter().filter(|segment| segment.dump_stage() == DumpStage::Idle).filter_map(|segment| {
            let dirty_since: Instant = segment.dirty_since()?;
            Some(Candidate { key: segment.id(), bytes: segment.active_bytes(), dirty_since })
        })
    }

    fn dump_candidate(self: &Rc<Self>, id: base::SegmentId) {
        let segment = self.segments.borrow().get(&id).cloned();
        if let Some(segment) = segment {
            self.want_dump(&segment);
        }
    }
}
