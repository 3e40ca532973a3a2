//! Admission at a server: [`policies::admission`] decides, this keeps its clock and its waiting requests.
//!
//! A request that may start at once costs a few counters. One that has to wait leaves a sender in line; one task per
//! server hands out what may start, sleeps until the next refill, and ends when nobody waits: an idle server has no
//! timer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::levels::Levels;
use base::{Error, Instant, Result, SegmentId, VolumeId};
use policies::admission::{Admission, AdmissionSettings, AdmissionStatus, ClientId, Request, Verdict, VolumeStatus};
use runtime::sync::{Sender, oneshot};
use runtime::{Class, Handle};

/// Grants that are handed out before other tasks have their turn.
const GRANTS_PER_POLL: usize = 256;

/// The gate of a server. Clones share it.
#[derive(Clone)]
pub(crate) struct Gate(Rc<Inner>);

struct Inner {
    handle: Handle,
    policy: RefCell<Admission<Sender<()>>>,
    /// Whether the task that hands out grants runs.
    is_serving: Cell<bool>,
    /// Whether it is known what the store below takes.
    is_limited: bool,
    /// When background work is told next what is left.
    spare_due: Cell<Instant>,
}

/// How often background work is told what is left for it.
const SPARE_EVERY: Duration = Duration::from_millis(100);

impl Gate {
    pub fn new(handle: &Handle, settings: AdmissionSettings) -> Gate {
        let is_limited = settings.limit_bytes_per_sec < u64::MAX;
        Gate(Rc::new(Inner {
            handle: handle.clone(),
            policy: RefCell::new(Admission::new(settings, handle.now())),
            is_serving: Cell::default(),
            is_limited,
            spare_due: Cell::default(),
        }))
    }

    /// Returns when an I/O may start.
    ///
    /// # Errors
    /// `Retry` where more wait than may: agents bound what they have in flight, so that it should not happen.
    #[inline]
    pub async fn pass(&self, now: Instant, segment: SegmentId, bytes: u64) -> Result<()> {
        let mut granted = None;
        let ticket = || {
            let (ticket, receiver) = oneshot();
            granted = Some(receiver);
            ticket
        };
        let verdict = self.0.policy.borrow_mut().submit(now, Request { segment, bytes }, ticket);
        match verdict {
            Ok(Verdict::Start) => Ok(()),
            Ok(Verdict::Wait) => {
                self.serve();
                match granted {
                    // The sender is gone with the loop only.
                    Some(granted) => granted.await.ok_or_else(|| Error::internal("the block server went away")),
                    None => Ok(()),
                }
            }
            Err(overload) => Err(Error::retry(format!("{} requests wait already", overload.waiting_max))),
        }
    }

    /// An I/O that passed at `since` is done. Now and then: what foreground leaves of the store's bandwidth, for those
    /// who work in the background.
    #[inline]
    pub fn on_done(&self, now: Instant, since: Instant, bytes: u64) -> Option<u64> {
        self.0.policy.borrow_mut().on_done(now, since, bytes);
        if !self.0.is_limited || now < self.0.spare_due.get() {
            return None;
        }
        self.0.spare_due.set(now + SPARE_EVERY);
        self.0.policy.borrow().available()
    }

    /// Says whose a volume is, and what it was promised.
    pub fn set_volume(&self, volume: VolumeId, owner: &str, levels: Levels) {
        let client = ClientId::of(owner);
        self.0.policy.borrow_mut().set_volume(self.0.handle.now(), volume, client, levels);
        // Whoever waited for the old levels only goes on at once; the task sleeps until the next refill.
        self.grant(usize::MAX);
    }

    /// Forgets a volume.
    pub fn remove_volume(&self, volume: VolumeId) {
        self.0.policy.borrow_mut().remove_volume(volume);
    }

    pub fn settings(&self) -> AdmissionSettings {
        self.0.policy.borrow().settings().clone()
    }

    pub fn status(&self) -> AdmissionStatus {
        self.0.policy.borrow().status(self.0.handle.now())
    }

    pub fn volume(&self, volume: VolumeId) -> Option<VolumeStatus> {
        self.0.policy.borrow().volume(volume, self.0.handle.now())
    }

    /// See [`Admission::audit`].
    pub fn audit(&self) -> std::result::Result<usize, String> {
        self.0.policy.borrow().audit(self.0.handle.now())
    }

    /// Makes sure that somebody hands out grants while anybody waits.
    fn serve(&self) {
        let is_needed = self.0.policy.borrow().next_look(self.0.handle.now()).is_some();
        if is_needed && !self.0.is_serving.replace(true) {
            let this = self.clone();
            self.0.handle.spawn(Class::Io, "admission", async move { this.hand_out().await }).detach();
        }
    }

    /// Lets those go that may start now, so many at most.
    fn grant(&self, most: usize) {
        for _ in 0..most {
            let grant = self.0.policy.borrow_mut().next_grant(self.0.handle.now());
            let Some(grant) = grant else { break };
            grant.ticket.send(());
        }
    }

    async fn hand_out(self) {
        let handle = &self.0.handle;
        loop {
            self.grant(GRANTS_PER_POLL);
            let now = handle.now();
            let next = self.0.policy.borrow().next_look(now);
            match next {
                None => break,
                Some(at) if at > now => handle.sleep_until(at).await,
                Some(_) => handle.yield_now().await,
            }
        }
        self.0.is_serving.set(false);
    }
}
