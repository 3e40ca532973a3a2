//! Admission at a server: [`policies::admission`] decides, this keeps its clock and its waiting requests.
//!
//! A request that may start at once costs a few counters. One that has to wait leaves a sender in line; one task of all
//! loops hands out what may start, sleeps until the next refill, and ends when nobody waits: an idle server has no
//! timer.
//!
//! Tokens belong to a server, not to a loop (NSDI 2026, §4.2), and a volume's levels to the volume, wherever its
//! segments are. So the loops of a process share one set of [`Buckets`] behind a lock that is held for some tens of
//! nanoseconds: exact, where shares that loops draw in advance would leave tokens with those that have no use for them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::levels::Levels;
use base::units::format_size;
use base::{Error, Instant, Result, VolumeId};
use futures_channel::oneshot::Sender;
use policies::admission::{
    Admission, AdmissionSettings, AdmissionStatus, ClientId, Outcome, Reason, Request, Verdict, VolumeStatus, Waits,
};
use policies::background::{Left, Work};
use runtime::sync::foreign;
use runtime::{Class, Handle, Lock};

/// Grants that are handed out before other tasks have their turn.
const GRANTS_PER_POLL: usize = 256;
/// How often background work is told what is left for it.
const SPARE_EVERY: Duration = Duration::from_millis(100);

/// The tokens of the servers in one process, for each loop that has one. Clones share them.
#[derive(Clone)]
pub struct Buckets(Arc<Shared>);

struct Shared {
    books: Lock<Books>,
    /// How many loops there are.
    loops: u64,
}

struct Books {
    policy: Admission<Sender<Reason>>,
    /// The latest moment that the policy was told. Loops look at the clock before they have the lock.
    latest: Instant,
    /// Whether a task hands out grants.
    is_serving: bool,
}

impl Books {
    /// The policy, and a time that does not run backwards.
    fn at(&mut self, now: Instant) -> (&mut Admission<Sender<Reason>>, Instant) {
        self.latest = self.latest.max(now);
        (&mut self.policy, self.latest)
    }
}

impl Buckets {
    /// Full ones, for servers on so many loops.
    pub fn new(settings: AdmissionSettings, now: Instant, loops: usize) -> Buckets {
        let books = Books { policy: Admission::new(settings, now), latest: now, is_serving: false };
        Buckets(Arc::new(Shared { books: Lock::new(books), loops: loops.max(1) as u64 }))
    }
}

/// The gate of a server: how the requests of one loop get tokens. Clones share it.
#[derive(Clone)]
pub(crate) struct Gate(Rc<Inner>);

struct Inner {
    handle: Handle,
    buckets: Buckets,
    /// When background work is told next what is left, and what it had done when it was told last.
    spare_due: Cell<Instant>,
    worked: Cell<Work>,
}

impl Gate {
    pub fn new(handle: &Handle, buckets: Buckets) -> Gate {
        Gate(Rc::new(Inner { handle: handle.clone(), buckets, spare_due: Cell::default(), worked: Cell::default() }))
    }

    /// Looks at the books that all loops share.
    #[inline]
    fn look<T>(&self, act: impl FnOnce(&mut Books) -> T) -> T {
        self.0.buckets.0.books.with(&self.0.handle, act)
    }

    /// The policy's answer at `now`.
    #[inline]
    fn ask_at<T>(&self, now: Instant, question: impl FnOnce(&mut Admission<Sender<Reason>>, Instant) -> T) -> T {
        self.look(|books| {
            let (policy, now) = books.at(now);
            question(policy, now)
        })
    }

    /// The policy's answer at this moment.
    fn ask<T>(&self, question: impl FnOnce(&mut Admission<Sender<Reason>>, Instant) -> T) -> T {
        self.ask_at(self.0.handle.now(), question)
    }

    /// Returns when an I/O may start. Gives what was missing, if it had to wait.
    ///
    /// # Errors
    /// `Retry` where more wait than may: agents bound what they have in flight, so that it should not happen.
    #[inline]
    pub async fn pass(&self, now: Instant, request: Request) -> Result<Option<Reason>> {
        let mut granted = None;
        let ticket = || {
            let (ticket, receiver) = foreign();
            granted = Some(receiver);
            ticket
        };
        let verdict = self.ask_at(now, |policy, now| policy.submit(now, request, ticket));
        match verdict {
            Ok(Verdict::Start) => Ok(None),
            Ok(Verdict::Wait) => {
                self.serve();
                match granted {
                    // The sender is gone with the loops only.
                    Some(granted) => granted.await.map(Some).map_err(|_| Error::internal("the block server went away")),
                    None => Ok(None),
                }
            }
            Err(overload) => Err(Error::retry(format!("{} requests wait already", overload.waiting_max))),
        }
    }

    /// An I/O that passed is done. Now and then the policy hears of the `work` that was done in the background of this loop,
    /// and who does it of what clients leave of the store's bandwidth.
    #[inline]
    pub fn on_done(&self, now: Instant, outcome: Outcome, work: impl FnOnce() -> Work) -> Option<Left> {
        let shared = &self.0.buckets.0;
        self.ask_at(now, |policy, now| {
            policy.on_done(now, outcome);
            if now < self.0.spare_due.get() {
                return None;
            }
            self.0.spare_due.set(now + SPARE_EVERY);
            let work = work();
            policy.on_background(&work.since(&self.0.worked.replace(work)));
            if let Some(measured) = policy.take_excess() {
                let (limit, measured) = (policy.settings().limit_bytes_per_sec, format_size(measured));
                tracing::warn!(
                    "admission.bandwidth = {} per second is more than the disks take: with {measured} latency has taken off \
                     already. Set less, or leave it out, and it is learned",
                    format_size(limit)
                );
            }
            Some(policy.available().map_or(Left::Unknown, |spare| Left::Bytes(spare / shared.loops)))
        })
    }

    /// An I/O that passed is gone without an outcome.
    pub fn on_gone(&self) {
        self.ask(|policy, _| policy.on_gone());
    }

    /// Says whose a volume is, and what it was promised.
    pub fn set_volume(&self, volume: VolumeId, owner: &str, levels: Levels) {
        let client = ClientId::of(owner);
        self.ask(|policy, now| policy.set_volume(now, volume, client, levels));
        // Whoever waited for the old levels only goes on at once; the task sleeps until the next refill.
        self.grant(usize::MAX);
    }

    /// For so long what requests take says nothing of the disks: something else than requests keeps them, or this server,
    /// busy.
    pub fn disturb(&self, span: Duration) {
        self.ask(|policy, now| policy.disturb(now + span));
    }

    /// Forgets a volume.
    pub fn remove_volume(&self, volume: VolumeId) {
        self.ask(|policy, _| policy.remove_volume(volume));
    }

    pub fn settings(&self) -> AdmissionSettings {
        self.ask(|policy, _| policy.settings().clone())
    }

    pub fn status(&self) -> AdmissionStatus {
        self.ask(|policy, now| policy.status(now))
    }

    pub fn volume(&self, volume: VolumeId) -> Option<VolumeStatus> {
        self.ask(|policy, now| policy.volume(volume, now))
    }

    pub fn waits(&self) -> Vec<(VolumeId, Waits)> {
        self.ask(|policy, _| policy.waits())
    }

    /// See [`Admission::audit`].
    pub fn audit(&self) -> std::result::Result<usize, String> {
        self.ask(|policy, now| policy.audit(now))
    }

    /// Makes sure that somebody hands out grants while anybody waits.
    fn serve(&self) {
        let now = self.0.handle.now();
        let is_up_to_us = self.look(|books| {
            let (policy, now) = books.at(now);
            let is_needed = policy.next_look(now).is_some();
            is_needed && !std::mem::replace(&mut books.is_serving, true)
        });
        if is_up_to_us {
            let this = self.clone();
            self.0.handle.spawn(Class::Io, "admission", async move { this.hand_out().await }).detach();
        }
    }

    /// Lets those go that may start now, so many at most.
    fn grant(&self, most: usize) {
        for _ in 0..most {
            let Some(grant) = self.ask(|policy, now| policy.next_grant(now)) else { break };
            // Whoever waited may have gone.
            if grant.ticket.send(grant.reason).is_err() {
                self.on_gone();
            }
        }
    }

    async fn hand_out(self) {
        let handle = &self.0.handle;
        loop {
            self.grant(GRANTS_PER_POLL);
            let now = handle.now();
            let next = self.look(|books| {
                let (policy, now) = books.at(now);
                let next = policy.next_look(now);
                // Under the same lock: whoever begins to wait after this finds that nobody serves.
                books.is_serving = next.is_some();
                next
            });
            match next {
                None => break,
                Some(at) if at > now => handle.sleep_until(at).await,
                Some(_) => handle.yield_now().await,
            }
        }
    }
}

#[cfg(test)]
mod tests;
