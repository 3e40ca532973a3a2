//! Admission at a server: [`policies::admission`] decides, this keeps its clock and its waiting requests.
//!
//! A request that may start at once costs a few counters. One that has to wait leaves a sender in line; one task of all
//! loops hands out what may start, sleeps until the next refill, and ends when nobody waits: an idle server has no
//! timer.
//!
//! Tokens belong to a server, not to a loop (NSDI 2026, §4.2), and a volume's levels to the volume, wherever its
//! segments are. So the loops of a process share one set of [`Buckets`] behind a lock that is held for some tens of
//! nanoseconds: exact, where shares that loops draw in advance would leave tokens with those that have no use for them.
//!
//! What comes home from logs asks for its turn before that ([`policies::forwarding::Coordination`]): it goes while no client wants
//! the server, whichever loop it comes to.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::levels::Level;
use base::units::format_size;
use base::{Error, Instant, Result, VolumeId};
use futures_channel::oneshot::Sender;
use policies::admission::{
    Admission, AdmissionSettings, AdmissionStatus, ClientId, Outcome, Reason, Request, Verdict, VolumeStatus, Waits,
};
use policies::background::{Left, Work};
use policies::forwarding::{Asked, Coordination, CoordinationSettings, Turn};
use runtime::sync::foreign;
use runtime::{Class, Handle, Lock};
use wire::VolumeDescriptor;

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
    policy: Admission<Ticket>,
    coordination: Coordination<Sender<Option<Turn>>>,
    /// The latest moment that the policy was told. Loops look at the clock before they have the lock.
    latest: Instant,
    /// Whether a task hands out grants.
    is_serving: bool,
}

/// What a request is found by that waits for tokens.
struct Ticket {
    sender: Sender<Reason>,
    pass: Pass,
}

/// Whose a request is that is let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// A client's.
    Client,
    /// It carries home what is in a log.
    Merge(Turn),
}

/// Where a request comes from: a number of its agent, and how many more waited there to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub agent: u64,
    pub behind: u32,
}

impl Books {
    /// The policy, and a time that does not run backwards.
    fn at(&mut self, now: Instant) -> (&mut Admission<Ticket>, Instant) {
        self.latest = self.latest.max(now);
        (&mut self.policy, self.latest)
    }

    /// A request that was let in is not here any more.
    fn leave(&mut self, now: Instant, pass: Pass) {
        match pass {
            Pass::Client => self.coordination.on_client_done(),
            Pass::Merge(turn) => self.coordination.on_done(now, turn),
        }
    }

    /// When somebody has to look again; none: nobody waits.
    fn next_look(&mut self, now: Instant) -> Option<Instant> {
        let (policy, now) = self.at(now);
        let granted = policy.next_look(now);
        granted.into_iter().chain(self.coordination.next_look(now)).min()
    }
}

impl Buckets {
    /// Full ones, for servers on so many loops.
    pub fn new(settings: AdmissionSettings, now: Instant, loops: usize) -> Buckets {
        let policy = Admission::new(settings, now);
        let coordination = Coordination::new(CoordinationSettings::default());
        let books = Books { policy, coordination, latest: now, is_serving: false };
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
    fn ask_at<T>(&self, now: Instant, question: impl FnOnce(&mut Admission<Ticket>, Instant) -> T) -> T {
        self.look(|books| {
            let (policy, now) = books.at(now);
            question(policy, now)
        })
    }

    /// The policy's answer at this moment.
    fn ask<T>(&self, question: impl FnOnce(&mut Admission<Ticket>, Instant) -> T) -> T {
        self.ask_at(self.0.handle.now(), question)
    }

    /// Returns when an I/O may start. Gives what was missing, if it had to wait.
    ///
    /// # Errors
    /// `Retry` where more wait than may: agents bound what they have in flight, so that it should not happen. What merges
    /// hears that, too, when it had no turn for long.
    #[inline]
    pub async fn pass(&self, now: Instant, request: Request, origin: Origin) -> Result<(Pass, Option<Reason>)> {
        let (pass, now) = match request.level {
            Level::Merge => (Pass::Merge(self.turn(now).await?), self.0.handle.now()),
            _ => (Pass::Client, now),
        };
        let mut granted = None;
        let ticket = || {
            let (sender, receiver) = foreign();
            granted = Some(receiver);
            Ticket { sender, pass }
        };
        let verdict = self.look(|books| {
            let (policy, now) = books.at(now);
            let verdict = policy.submit(now, request, ticket);
            match pass {
                Pass::Client if verdict.is_ok() => books.coordination.on_client(now, origin.agent, origin.behind),
                Pass::Merge(_) if verdict.is_err() => books.leave(now, pass),
                _ => {}
            }
            verdict
        });
        match verdict {
            Ok(Verdict::Start) => Ok((pass, None)),
            Ok(Verdict::Wait) => {
                self.serve();
                match granted {
                    // The sender is gone with the loops only.
                    Some(granted) => {
                        let reason = granted.await.map_err(|_| Error::internal("the block server went away"))?;
                        Ok((pass, Some(reason)))
                    }
                    None => Ok((pass, None)),
                }
            }
            Err(overload) => Err(Error::retry(format!("{} requests wait already", overload.waiting_max))),
        }
    }

    /// The turn of something that merges.
    async fn turn(&self, now: Instant) -> Result<Turn> {
        let mut granted = None;
        let asked = self.look(|books| {
            let (_, now) = books.at(now);
            books.coordination.ask(now, || {
                let (sender, receiver) = foreign();
                granted = Some(receiver);
                sender
            })
        });
        let turn = match (asked, granted) {
            (Asked::Goes(turn), _) => Some(turn),
            (Asked::Waits, Some(granted)) => {
                self.serve();
                granted.await.map_err(|_| Error::internal("the block server went away"))?
            }
            _ => None,
        };
        turn.ok_or_else(|| Error::retry("clients want this server, and what is in logs waits"))
    }

    /// An I/O that passed is done. Now and then the policy hears of the `work` that was done in the background of this loop,
    /// and who does it of what clients leave of the store's bandwidth.
    #[inline]
    pub fn on_done(&self, now: Instant, pass: Pass, outcome: Outcome, work: impl FnOnce() -> Work) -> Option<Left> {
        let shared = &self.0.buckets.0;
        let (left, may_merge) = self.look(|books| {
            let (policy, now) = books.at(now);
            policy.on_done(now, outcome);
            books.leave(now, pass);
            (self.look_at_background(&mut books.policy, now, work), books.coordination.is_due(now))
        });
        if may_merge {
            self.let_home(GRANTS_PER_POLL);
        }
        left.map(|spare| spare.map_or(Left::Unknown, |spare| Left::Bytes(spare / shared.loops)))
    }

    /// What clients leave, if it is known, as often as that is to be said.
    fn look_at_background(
        &self,
        policy: &mut Admission<Ticket>,
        now: Instant,
        work: impl FnOnce() -> Work,
    ) -> Option<Option<u64>> {
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
        Some(policy.available())
    }

    /// An I/O that passed is gone without an outcome.
    pub fn on_gone(&self, pass: Pass) {
        let now = self.0.handle.now();
        let may_merge = self.look(|books| {
            let (policy, now) = books.at(now);
            policy.on_gone();
            books.leave(now, pass);
            books.coordination.is_due(now)
        });
        if may_merge {
            self.let_home(GRANTS_PER_POLL);
        }
    }

    /// Says whose a volume is, and what it was promised.
    pub fn set_volume(&self, volume: &VolumeDescriptor) {
        let client = ClientId::of(&volume.owner);
        self.ask(|policy, now| {
            policy.set_volume(now, volume.id, client, volume.levels);
            policy.set_part_of(now, volume.id, volume.logs_of().unwrap_or(volume.id));
        });
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
            let is_needed = books.next_look(now).is_some();
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
            let Ticket { sender, pass } = grant.ticket;
            // Whoever waited may have gone.
            if sender.send(grant.reason).is_err() {
                self.on_gone(pass);
            }
        }
    }

    /// Lets those go that merge, and may now, so many at most; sends those away that waited too long.
    fn let_home(&self, most: usize) {
        let now = self.0.handle.now();
        for _ in 0..most {
            let next = self.look(|books| {
                let (_, now) = books.at(now);
                books.coordination.next(now)
            });
            let Some((sender, turn)) = next else { break };
            if let (Err(_), Some(turn)) = (sender.send(turn), turn) {
                self.look(|books| books.leave(now, Pass::Merge(turn)));
            }
        }
    }

    async fn hand_out(self) {
        let handle = &self.0.handle;
        loop {
            self.grant(GRANTS_PER_POLL);
            self.let_home(GRANTS_PER_POLL);
            let now = handle.now();
            let next = self.look(|books| {
                let next = books.next_look(now);
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
