//! What a run, or many, have really exercised: a checker that never saw a crash proves nothing about crashes.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Instant;
use serde::Serialize;

use super::plan::{FaultKind, Role};

/// Counts of one run or of many.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Coverage {
    /// Worlds with one server, and with several.
    pub alone: u64,
    /// See `alone`.
    pub several: u64,
    /// Those of several whose files were in a pool.
    pub pooled: u64,
    /// Those of them whose data files were in a pool with erasure coding.
    pub coded: u64,
    /// Those of several whose servers had cards that carry little.
    pub carded: u64,
    /// Requests that were answered with success.
    pub requests: u64,
    /// Requests that were answered with an error.
    pub failed_requests: u64,
    /// Requests whose connection broke.
    pub broken_requests: u64,
    /// Requests that were answered while others had to wait for their turn.
    pub throttled: u64,
    /// Requests that were answered while something of a volume was in a log.
    pub logged: u64,
    /// Requests that were answered while more than one write was in flight at a session.
    pub ordered: u64,
    /// Requests that were answered while several loops had connections.
    pub spread: u64,
    /// Clients that were virtual machines.
    pub guests: u64,
    /// Requests that were answered to them.
    pub guest_requests: u64,
    /// Those of them that were asked for during an earlier connection.
    pub carried_over: u64,
    /// Resets by their drivers.
    pub driver_resets: u64,
    /// Attachments.
    pub attachments: u64,
    /// Volumes that were deleted.
    pub deletions: u64,
    /// Recoveries that ended.
    pub recoveries: u64,
    /// Starts that were refused, where that is allowed.
    pub refused_starts: u64,
    /// Crashes, and those with requests in flight.
    pub crashes: u64,
    /// See `crashes`.
    pub crashes_in_flight: u64,
    /// Clean restarts.
    pub restarts: u64,
    /// Comparisons of the accounts of space with a full scan.
    pub audits: u64,
    /// Sectors whose history was checked.
    pub sectors: u64,
    /// Time of the world in which a request or a recovery was in progress.
    #[serde(skip)]
    pub busy: Duration,
    /// Time of the world.
    #[serde(skip)]
    pub elapsed: Duration,
    /// Accidents by kind.
    #[serde(skip)]
    pub faults: BTreeMap<FaultKind, u64>,
    /// What happened to several servers.
    #[serde(skip)]
    pub events: BTreeMap<Event, u64>,
}

impl Coverage {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Coverage) {
        self.alone += other.alone;
        self.several += other.several;
        self.pooled += other.pooled;
        self.coded += other.coded;
        self.carded += other.carded;
        self.requests += other.requests;
        self.failed_requests += other.failed_requests;
        self.broken_requests += other.broken_requests;
        self.throttled += other.throttled;
        self.logged += other.logged;
        self.ordered += other.ordered;
        self.spread += other.spread;
        self.guests += other.guests;
        self.guest_requests += other.guest_requests;
        self.carried_over += other.carried_over;
        self.driver_resets += other.driver_resets;
        self.attachments += other.attachments;
        self.deletions += other.deletions;
        self.recoveries += other.recoveries;
        self.refused_starts += other.refused_starts;
        self.crashes += other.crashes;
        self.crashes_in_flight += other.crashes_in_flight;
        self.restarts += other.restarts;
        self.audits += other.audits;
        self.sectors += other.sectors;
        self.elapsed += other.elapsed;
        self.busy += other.busy;
        for (&kind, &count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (&event, &count) in &other.events {
            self.count(event, count);
        }
    }
}

/// What can happen where there are several servers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// A machine's process died.
    Death(Role),
    /// One did not run for a while.
    Pause(Role),
    /// One was cut off from another one or from all, in one direction or both.
    Cut(Role),
    /// A segment was ordered to another server.
    Move,
    /// A server was told to give all away.
    Drain,
    /// It may have segments again.
    Undrain,
    /// Clients of a volume went to another agent, while requests were in flight.
    Elsewhere,
    /// A volume was deleted and made anew.
    Replacement,
    /// A segment has another owner.
    Handover,
    /// A server that lived was declared dead, and began another life.
    Dismissal,
    /// Another manager is in charge, or the same one anew.
    Term,
}

impl Event {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Event> {
        let with_role: [fn(Role) -> Event; 3] = [Event::Death, Event::Pause, Event::Cut];
        let with_role = with_role.into_iter().flat_map(|event| Role::ALL.into_iter().map(event));
        let others = [
            Event::Move,
            Event::Drain,
            Event::Undrain,
            Event::Elsewhere,
            Event::Replacement,
            Event::Handover,
            Event::Dismissal,
            Event::Term,
        ];
        with_role.chain(others)
    }

    /// What a report calls it.
    pub fn name(self) -> String {
        match self {
            Event::Death(role) => format!("{} dies", role.name()),
            Event::Pause(role) => format!("{} pauses", role.name()),
            Event::Cut(role) => format!("{} is cut off", role.name()),
            Event::Move => "move".into(),
            Event::Drain => "drain".into(),
            Event::Undrain => "undrain".into(),
            Event::Elsewhere => "attached elsewhere".into(),
            Event::Replacement => "volume replaced".into(),
            Event::Handover => "another owner".into(),
            Event::Dismissal => "server dismissed".into(),
            Event::Term => "term".into(),
        }
    }
}

impl Coverage {
    /// Something happened to several servers, so many times.
    pub fn count(&mut self, event: Event, times: u64) {
        *self.events.entry(event).or_default() += times;
    }
}

/// Measures the time in which something is in progress.
#[derive(Clone, Default, Debug)]
pub struct BusyTime {
    active: u64,
    since: Instant,
    total: Duration,
}

impl BusyTime {
    /// One more thing is in progress.
    pub fn begin(&mut self, now: Instant) {
        if self.active == 0 {
            self.since = now;
        }
        self.active += 1;
    }

    /// One thing is no longer.
    pub fn end(&mut self, now: Instant) {
        self.active -= 1;
        if self.active == 0 {
            self.total += now.since(self.since);
        }
    }

    /// The sum of what is over.
    pub fn total(&self) -> Duration {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once_however_much_goes_on() {
        let mut busy = BusyTime::default();
        busy.begin(Instant(10));
        busy.begin(Instant(20));
        busy.end(Instant(30));
        busy.end(Instant(50));
        busy.begin(Instant(100));
        busy.end(Instant(101));
        assert_eq!(busy.total(), Duration::from_nanos(41));
    }
}
