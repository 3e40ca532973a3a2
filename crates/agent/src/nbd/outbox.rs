//! Replies on their way out: whatever is ready goes out in one send, and what they held is given back behind it.
//!
//! One sender task per connection takes everything that has gathered. It runs ahead of the tasks that are ready, one
//! send at a time: the first reply goes out at once, and those that come until the loop's next look at the world share
//! the next send, so that the client works on the first ones while the last ones are being made. A reply keeps
//! its slot and its memory until the kernel has it; a peer that does not read thus stops itself, after its 256
//! requests, and nobody else.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use base::{Instant, Stage};
use link::tls::Channel;
use policies::slow_requests::Request;
use runtime::sync::{Event, Permit};
use runtime::{Handle, SharedPermit};

use super::reply::Frames;
use crate::accounts::account;
use crate::peers::Peer;
use crate::statistics::Counters;

/// Most bytes of one send: the unit in which a peer's progress is judged.
const SEND_BYTES_MAX: u64 = base::MIB;
/// Most parts of one send (the kernel takes 1,024).
const SEND_PARTS_MAX: usize = 512;

/// The sending side of a connection.
#[derive(Default)]
pub(super) struct Outbox {
    queue: RefCell<Queue>,
    /// Notified when something was put in.
    ready: Event,
    /// The stream takes nothing any more.
    broken: Cell<bool>,
}

#[derive(Default)]
struct Queue {
    frames: Frames,
    /// What each reply holds, by the position of its end.
    held: VecDeque<Held>,
}

struct Held {
    end: u64,
    queued_at: Instant,
    /// The request, if it is one whose time is accounted for.
    noted: Option<Request>,
    _permits: Permits,
}

/// What a request holds until its reply is sent.
pub(super) struct Permits {
    pub(super) _slot: Permit,
    /// Bytes of its payload, of the connection's share and of all.
    pub(super) memory: Option<(Permit, SharedPermit)>,
}

impl Outbox {
    /// Queues a reply that `put` writes.
    pub(super) fn put(&self, now: Instant, permits: Permits, noted: Option<Request>, put: impl FnOnce(&mut Frames)) {
        if self.broken.get() {
            return;
        }
        let mut queue = self.queue.borrow_mut();
        put(&mut queue.frames);
        let end = queue.frames.position();
        queue.held.push_back(Held { end, queued_at: now, noted, _permits: permits });
        drop(queue);
        self.ready.notify();
    }

    /// Sends what is put in until the stream fails or the task is dropped.
    pub(super) async fn send(&self, handle: &Handle, peer: &Peer, stream: &Channel, counters: &Counters) {
        let mut sent = 0;
        loop {
            let ready = self.ready.wait();
            let (parts, len) = self.queue.borrow_mut().frames.take(SEND_BYTES_MAX, SEND_PARTS_MAX);
            if parts.is_empty() {
                ready.await;
                continue;
            }
            tracing::trace!(target: "levee::stage", connection = peer.id, bytes = len, "replies sent");
            peer.sends_since.set(Some(handle.now()));
            let result = stream.send(parts).await;
            peer.sends_since.set(None);
            if result.is_err() {
                self.broken.set(true);
                let dropped = std::mem::take(&mut *self.queue.borrow_mut());
                drop(dropped);
                return stream.shutdown();
            }
            sent += len;
            self.release(handle, sent, counters);
        }
    }

    /// Gives back what the replies before position `sent` held.
    fn release(&self, handle: &Handle, sent: u64, counters: &Counters) {
        let now = handle.now();
        let done: Vec<Held> = {
            let held = &mut self.queue.borrow_mut().held;
            let count = held.iter().take_while(|reply| reply.end <= sent).count();
            held.drain(..count).collect()
        };
        counters.with(|statistics| {
            for Held { queued_at, mut noted, .. } in done {
                let waited_ns = now.nanos_since(queued_at);
                statistics.reply_ns.record(waited_ns);
                if let Some(request) = &mut noted {
                    request.passage.add(Stage::Reply, waited_ns);
                    account(handle, now, request, statistics);
                }
            }
        });
    }
}
