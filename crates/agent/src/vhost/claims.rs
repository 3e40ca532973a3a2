//! What the loops that serve one queue know of it together: its rings, what is in flight, and who looks at it.
//!
//! All of it is behind one lock ([`runtime::Lock`]), which is held for a look at the rings: to claim some requests, to put one
//! back that was used. What lies in between (descriptors, payload, the volume) is done without it, on the loop that claimed.
//!
//! **Who looks.** A loop is awake at a queue, or it sleeps there. Awake loops claim in each of their turns. One that finds
//! nothing goes to sleep; the last one awake asks the guest to ring first, and is the one that waits for the bell. So there is
//! one loop at most that listens, and while loops look anyway the guest need not ring. One that listened before, and was
//! woken, may still hear the bell in its place: then it listens. Whom a claim leaves a lot for is
//! woken by who claimed ([`policies::queues::plan_batch`]). Somebody who was woken, and has not looked yet, may be a while
//! about it: nobody relies on him.
//!
//! **Who rests.** A loop on which what was claimed waits for the tenant's share of that loop claims nothing more for a while: it
//! *rests*, and others look in its place, as long as there are others that do not. It looks again by itself.
//!
//! **Baselines.** With other ways than the shared one ([`Queues`]) only the loop that a queue belongs to looks. What it hands
//! over to another one is claimed already, and lies here until that takes it; such a loop sleeps while nothing does. What
//! messages between loops cost is charged where they are sent and taken ([`super::part`]).
//!
//! Invariants: what is available is claimed once, by a loop that runs it to its end; it is marked as in flight in the order
//! of the ring, before anybody sees it; while something is available that nobody has claimed, a loop is awake, the guest
//! rings, or all loops rest; what was handed over is run, unless its guest broke the rules before; who stops a queue hears of
//! that when nothing of it is in flight on any loop, what a former life has left is done, too, and every bell was rung.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use futures_channel::oneshot::Sender;
use policies::queues::{Other, Plan, Queues, plan_batch};
use runtime::guest::Memory;
use runtime::sync::foreign;
use runtime::{Handle, Lock};

use super::protocol::Violation;
use super::ring::{Places, Ring};

/// See the module. Clones are the same queue.
#[derive(Clone)]
pub(super) struct Claims(Lock<Books>);

struct Books {
    ring: Ring,
    memory: Memory,
    is_stopped: bool,
    queues: Queues,
    /// The loop that it belongs to.
    owner: usize,
    /// By loop; none of those that do not serve it.
    stands: Vec<Option<Stand>>,
    /// By loop, what was claimed for it by another one.
    handed: Vec<VecDeque<u16>>,
    /// The loop that runs what was claimed last.
    last: usize,
    /// The one that waits for the guest to ring, or was woken and will see to it.
    listener: Option<usize>,
    /// The guest broke the rules behind what was claimed last.
    violation: Option<Violation>,
    /// Loops that have not told the guest yet what they used in this turn.
    untold: usize,
    /// Waits until nothing is in flight.
    idle: Option<Sender<()>>,
}

enum Stand {
    Awake,
    Woken,
    Resting,
    Asleep {
        /// Whom to wake, once it waits: before that it looks by itself whether it was woken.
        waker: Option<Waker>,
        /// It wants something to be handed over.
        asks: bool,
    },
}

impl Stand {
    const ASLEEP: Stand = Stand::Asleep { waker: None, asks: false };
}

/// What a loop finds.
pub(super) enum Claim {
    /// Requests, in the order in which they were made available.
    Taken(Batch),
    /// Requests, which another loop has now: the loop to wake.
    HandedOver(Option<Waker>),
    /// Nothing was handed over, and other loops look: sleep until woken.
    Await,
    /// Nothing, and other loops look: sleep until woken.
    Sleep,
    /// Nothing, and nobody looks: sleep until woken, or until the guest rings.
    Listen,
    /// The queue is stopped.
    Over,
}

/// What was claimed.
pub(super) struct Batch {
    /// The guest's memory, and where the descriptors of this queue lie in it.
    pub(super) memory: Memory,
    pub(super) table: u64,
    pub(super) size: u16,
    /// Whether more is there.
    pub(super) is_more: bool,
    /// Whether another loop claimed it.
    pub(super) is_handed: bool,
    /// The loop to wake.
    pub(super) wake: Option<Waker>,
}

impl Books {
    /// Nothing is in flight; what a former life has left, and the ring is past, is.
    fn is_idle(&self) -> bool {
        self.ring.in_flight() == 0 && self.ring.left() == 0 && self.untold == 0
    }

    /// Whom to tell that nothing is in flight, if that is so.
    fn notice_idle(&mut self) -> Option<Sender<()>> {
        if self.is_idle() { self.idle.take() } else { None }
    }

    /// Wakes the loop of that index, if it sleeps.
    fn wake(&mut self, index: usize) -> Option<Waker> {
        match &mut self.stands[index] {
            Some(stand @ Stand::Asleep { .. }) => match std::mem::replace(stand, Stand::Woken) {
                Stand::Asleep { waker, .. } => waker,
                Stand::Awake | Stand::Woken | Stand::Resting => None,
            },
            _ => None,
        }
    }

    fn wake_all(&mut self) -> Vec<Waker> {
        (0..self.stands.len()).filter_map(|index| self.wake(index)).collect()
    }

    /// Loop `me` looks no more: wakes another one, if nobody looks.
    fn pass_on(&mut self, me: usize) -> Option<Waker> {
        if self.listener == Some(me) {
            self.listener = None;
        }
        let is_looked_at = self.listener.is_some() || (0..self.stands.len()).any(|other| self.is_looking(other));
        // Somebody else is to wait for the bell.
        if is_looked_at { None } else { (0..self.stands.len()).find_map(|other| self.wake(other)) }
    }

    /// Whether the loop of that index looks into the rings in each of its turns.
    fn is_looking(&self, index: usize) -> bool {
        self.queues.looks(index, self.owner) && matches!(self.stands[index], Some(Stand::Awake))
    }

    fn batch(&self, is_more: bool, is_handed: bool, wake: Option<Waker>) -> Batch {
        let (memory, table, size) = (self.memory.clone(), self.ring.table(), self.ring.size());
        Batch { memory, table, size, is_more, is_handed, wake }
    }

    /// Puts requests into `heads`, at most `most`.
    fn fill(&mut self, most: usize, heads: &mut VecDeque<u16>) -> Result<(), Violation> {
        while heads.len() < most {
            match self.ring.take(&self.memory) {
                Ok(Some(head)) => heads.push_back(head),
                Ok(None) => break,
                Err(violation) if heads.is_empty() => return Err(violation),
                // What came before it was right, and is run.
                Err(violation) => {
                    self.violation = Some(violation);
                    break;
                }
            }
        }
        Ok(())
    }

    fn claim(
        &mut self,
        me: usize,
        most: usize,
        heads: &mut VecDeque<u16>,
        is_over: bool,
        running: impl Fn(usize) -> usize,
    ) -> Result<Claim, Violation> {
        // That is in flight, and is run whatever came after it.
        let handed = self.handed[me].len().min(most);
        if handed > 0 {
            self.stands[me] = Some(Stand::Awake);
            heads.extend(self.handed[me].drain(..handed));
            return Ok(Claim::Taken(self.batch(!self.handed[me].is_empty(), true, None)));
        }
        let looks = self.queues.looks(me, self.owner);
        let left = self.ring.left();
        if is_over || self.is_stopped && (left == 0 || !looks) {
            // From here on nobody hands anything over.
            self.stands[me] = None;
            return Ok(Claim::Over);
        }
        // Of a queue that was stopped nothing but what was left.
        let most = if self.is_stopped { most.min(left) } else { most };
        if !looks {
            self.stands[me] = Some(Stand::ASLEEP);
            return Ok(Claim::Await);
        }
        self.stands[me] = Some(Stand::Awake);
        if self.listener == Some(me) {
            self.listener = None;
            self.ring.stop_listening(&self.memory)?;
        }
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        self.fill(most, heads)?;
        if heads.is_empty() {
            let is_last =
                self.listener.is_none() && !(0..self.stands.len()).any(|other| other != me && self.is_looking(other));
            if is_last {
                if self.ring.listen(&self.memory)? {
                    self.ring.stop_listening(&self.memory)?;
                    self.fill(most, heads)?;
                } else {
                    self.listener = Some(me);
                }
            }
        }
        if heads.is_empty() {
            self.stands[me] = Some(Stand::ASLEEP);
            return Ok(if self.listener == Some(me) { Claim::Listen } else { Claim::Sleep });
        }
        let remaining = self.ring.remaining(&self.memory)?;
        let other = |(index, stand): (usize, &Option<Stand>)| {
            let stand = stand.as_ref().filter(|_| index != me)?;
            let (is_asleep, asks) = match stand {
                Stand::Asleep { asks, .. } => (true, *asks),
                Stand::Awake | Stand::Woken | Stand::Resting => (false, false),
            };
            Some(Other { index, running: running(index), is_asleep, asks })
        };
        let others = self.stands.iter().enumerate().filter_map(other);
        match plan_batch(self.queues, remaining, me, self.last, others) {
            Plan::Run { wakes } => {
                self.last = me;
                let wake = wakes.and_then(|index| self.wake(index));
                Ok(Claim::Taken(self.batch(remaining > 0 || self.violation.is_some(), false, wake)))
            }
            Plan::HandOver(to) => {
                self.last = to;
                self.handed[to].append(heads);
                Ok(Claim::HandedOver(self.wake(to)))
            }
        }
    }
}

impl Claims {
    /// The queue of that ring, which belongs to loop `owner` of `loops`: that one listens first.
    pub(super) fn new(ring: Ring, memory: Memory, queues: Queues, owner: usize, loops: usize) -> Claims {
        Claims(Lock::new(Books {
            ring,
            memory,
            is_stopped: false,
            queues,
            owner,
            stands: (0..loops).map(|index| queues.serves(index, owner).then_some(Stand::Woken)).collect(),
            handed: vec![VecDeque::new(); loops],
            last: owner,
            listener: Some(owner),
            violation: None,
            untold: 0,
            idle: None,
        }))
    }

    /// Claims at most `most` requests for loop `me`: their heads are put into `heads`. `is_over`: it runs what was handed over to
    /// it, and claims nothing. `running`: requests that a loop runs.
    ///
    /// # Errors
    /// The guest broke the rules, and nothing was claimed.
    pub(super) fn claim(
        &self,
        handle: &Handle,
        me: usize,
        most: usize,
        heads: &mut VecDeque<u16>,
        is_over: bool,
        running: impl Fn(usize) -> usize,
    ) -> Result<Claim, Violation> {
        self.0.with(handle, |books| books.claim(me, most, heads, is_over, running))
    }

    /// A loop to which nothing was handed over wants something. The one that the queue belongs to sees that when it claims.
    pub(super) fn ask(&self, handle: &Handle, me: usize) {
        self.0.with(handle, |books| {
            if let Some(Stand::Asleep { asks, .. }) = &mut books.stands[me] {
                *asks = true;
            }
        });
    }

    /// Returns when a loop that sleeps was woken.
    pub(super) async fn woken(&self, handle: &Handle, me: usize) {
        poll_fn(|cx| {
            let old = self.0.with(handle, |books| match &mut books.stands[me] {
                Some(Stand::Asleep { waker: Some(waker), .. }) if waker.will_wake(cx.waker()) => Some(None),
                Some(Stand::Asleep { waker, .. }) => Some(waker.replace(cx.waker().clone())),
                _ => None,
            });
            // The old one is dropped without the lock.
            if old.is_some() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// A loop has heard the bell, maybe in place of the one that listens: what that one would have done is its to do. Who
    /// listened before hears nothing of it, and the guest does not ring again for what it has rung for.
    pub(super) fn hear(&self, handle: &Handle, me: usize) {
        self.0.with(handle, |books| books.listener = Some(me));
    }

    /// A loop has claimed enough for now, and rests: it claims again when it wants more. The loop to wake.
    pub(super) fn rest(&self, handle: &Handle, me: usize) -> Option<Waker> {
        self.0.with(handle, |books| {
            books.stands[me] = Some(Stand::Resting);
            books.pass_on(me)
        })
    }

    /// A loop serves the queue no more. What was handed over to it, and it has not taken, came after what it found wrong.
    pub(super) fn depart(&self, handle: &Handle, me: usize) {
        let (heir, idle) = self.0.with(handle, |books| {
            books.stands[me] = None;
            std::mem::take(&mut books.handed[me]).into_iter().for_each(|head| books.ring.give_up(head));
            if books.stands.iter().all(Option::is_none) {
                books.ring.leave();
            }
            (books.pass_on(me), books.notice_idle())
        });
        heir.into_iter().for_each(Waker::wake);
        // Who has stopped to wait does not want to know.
        idle.map(|sender| sender.send(()));
    }

    /// Gives a request back to the guest, with `len` bytes written. `is_first`: the guest has been told of all that this loop
    /// used before, and will be told of this with [`Self::tell`].
    ///
    /// # Errors
    /// The ring is not there any more.
    pub(super) fn put_used(&self, handle: &Handle, head: u16, len: u32, is_first: bool) -> Result<(), Violation> {
        self.0.with(handle, |books| {
            books.untold += usize::from(is_first);
            books.ring.put_used(&books.memory, head, len)
        })
    }

    /// The turn is over in which something was used: whether the guest wants to be told. To be followed by
    /// [`Self::notice_told`].
    ///
    /// # Errors
    /// The ring is not there any more.
    pub(super) fn wants_call(&self, handle: &Handle) -> Result<bool, Violation> {
        self.0.with(handle, |books| books.ring.wants_call(&books.memory))
    }

    /// The guest was told, or did not want to be.
    pub(super) fn notice_told(&self, handle: &Handle) {
        self.finish(handle, |books| books.untold -= 1);
    }

    /// Requests that were claimed will not be answered by this life.
    pub(super) fn give_up(&self, handle: &Handle, heads: impl IntoIterator<Item = u16>) {
        self.finish(handle, |books| heads.into_iter().for_each(|head| books.ring.give_up(head)));
    }

    fn finish(&self, handle: &Handle, act: impl FnOnce(&mut Books)) {
        let idle = self.0.with(handle, |books| {
            act(books);
            books.notice_idle()
        });
        // Who has stopped to wait does not want to know.
        idle.map(|sender| sender.send(()));
    }

    /// Claims nothing more but what a former life has left, which was in flight then; what is in flight goes on. Every loop looks
    /// once more.
    pub(super) fn stop(&self, handle: &Handle) {
        self.0.with(handle, |books| books.is_stopped = true);
        self.wake(handle);
    }

    /// Returns when nothing of a queue that was stopped is in flight: the next place of its available ring.
    pub(super) async fn wait_until_idle(&self, handle: &Handle) -> u16 {
        loop {
            let busy = self.0.with(handle, |books| {
                if books.is_idle() {
                    return Ok(books.ring.next());
                }
                let (sender, receiver) = foreign();
                books.idle = Some(sender);
                Err(receiver)
            });
            match busy {
                Ok(next) => return next,
                Err(receiver) => drop(receiver.await),
            }
        }
    }

    /// The guest's memory is another one from now on, or the rings lie elsewhere. Every loop looks once more.
    ///
    /// # Errors
    /// They cannot lie there.
    pub(super) fn place(&self, handle: &Handle, memory: &Memory, places: Places) -> Result<(), Violation> {
        let placed = self.0.with(handle, |books| {
            books.ring.place(memory, places)?;
            books.memory = memory.clone();
            Ok(())
        });
        self.wake(handle);
        placed
    }

    /// Lets every loop look once more.
    pub(super) fn wake(&self, handle: &Handle) {
        let wakers = self.0.with(handle, Books::wake_all);
        wakers.into_iter().for_each(Waker::wake);
    }
}
