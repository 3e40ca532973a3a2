//! What must hold of an admission at any time, for whoever wants to know: the simulated store asks after every request.

use base::Instant;
use base::levels::Level;

use super::admit::{Admission, Round};
use super::line::{Line, Place};
use super::settings::Throttle;
use crate::waits::Reason;

impl<T> Admission<T> {
    /// Whether all is well now, and how many requests wait. It looks at every line.
    ///
    /// # Errors
    /// One sentence for the first invariant of [`super`] that does not hold.
    pub fn audit(&self, now: Instant) -> Result<usize, String> {
        if self.settings.throttle == Throttle::Off {
            return Ok(0);
        }
        self.audit_tokens()?;
        self.volumes.iter().try_for_each(|volume| volume.allowance.audit())?;
        let waiting: usize = self.lines.used().map(|line| line.waiting.len()).sum();
        if waiting != self.waiting {
            return Err(format!("{} requests are said to wait, and {waiting} are in line", self.waiting));
        }
        // Whoever may start now is about to.
        let is_settled = self.round == Round::Done && self.next_look(now).is_none_or(|look| now < look);
        if is_settled {
            let mut lines = self.lines.used().filter(|line| !line.waiting.is_empty());
            lines.try_for_each(|line| self.audit_line(line, now))?;
        }
        Ok(waiting)
    }

    /// No token comes from nothing: what was drawn and what is there is at most what was issued.
    fn audit_tokens(&self) -> Result<(), String> {
        let buckets = &self.buckets;
        let drawn = self.drawn + i128::from(buckets.main()) + i128::from(buckets.cheque());
        match drawn > buckets.issued_at_most() {
            true => Err(format!(
                "{} tokens were drawn, and {} and {} are left, of {} that were issued",
                self.drawn,
                buckets.main(),
                buckets.cheque(),
                buckets.issued_at_most()
            )),
            false => Ok(()),
        }
    }

    /// Nobody waits for what is there.
    fn audit_line(&self, line: &Line<T>, now: Instant) -> Result<(), String> {
        let Some(first) = line.waiting.front() else { return Ok(()) };
        let waits = |what: String| Err(format!("{:?} waits for {:?} although {what}", line.key, first.reason));
        let cheque = self.buckets.cheque();
        let open = if self.is_hot(line, now) { self.buckets.for_hot() } else { self.buckets.main() };
        let mut volume = self.volumes[first.volume as usize].clone();
        let level = line.level_of_first();
        let is_held = match first.reason {
            Reason::HotSegment | Reason::MainBucketEmpty | Reason::TenantLevel | Reason::TenantShare => false,
            Reason::BaseLevel | Reason::BurstLevel => level == Level::Open && volume.allowance.plan(now).is_err(),
            Reason::ClientCap | Reason::SegmentCap => line.cap.clone().is_some_and(|mut cap| !cap.has_burst(now)),
        };
        match line.place {
            Place::Nowhere => return waits("it has no turn".into()),
            _ if is_held => return Ok(()),
            _ if open > 0 => return waits(format!("the main bucket has {open} tokens for it")),
            _ => {}
        }
        if self.settings.throttle != Throttle::DualBuckets {
            return Ok(());
        }
        if cheque > 0 && !self.is_hot(line, now) {
            return waits(format!("it is steady, and the cheque bucket has {cheque} tokens"));
        }
        // The base levels come first: what waited when the interval began is before anybody's burst in it.
        let begun = self.buckets.interval_begun();
        let is_base = volume.is_base(now, line.level_of_first_before(begun));
        if first.arrived < begun && self.burst_at >= begun && is_base {
            return waits("its volume has base tokens, and others burst".into());
        }
        Ok(())
    }
}
