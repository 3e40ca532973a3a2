//! Frames on their way out: whatever is ready goes out in one send, headers and payloads from where they are.
//!
//! One task sends, and runs ahead of those that are ready: the first frame leaves at once, and those that come until the
//! loop's next look at the world share the next send. Invariant: what waits here is bounded by what may be in flight. Of
//! what this end asks its credit bounds it; of what it answers a peer might ask on and never read, so whoever receives
//! waits while the outbox is *behind*: more replies lie here than the peer may have asked for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;

use base::Bytes;
use runtime::sync::Event;
use wire::frame::Frame;

use crate::tls::Channel;

/// Most bytes of one send: the unit in which a peer's progress is judged.
const SEND_BYTES_MAX: usize = 256 * 1024;
/// Most parts of one send (the kernel takes 1,024).
const SEND_PARTS_MAX: usize = 512;

/// The sending side of a connection.
#[derive(Default)]
pub(super) struct Outbox {
    queue: RefCell<Queue>,
    /// Notified when something was put in.
    ready: Event,
    /// Notified when something was sent.
    sent: Event,
}

#[derive(Default)]
struct Queue {
    parts: VecDeque<Bytes>,
    /// Bytes that were ever put in, and sent.
    put: u64,
    sent: u64,
    /// The replies that are not sent: where each ends, and what its request took of the peer's credit.
    replies: VecDeque<(u64, u64)>,
    reply_credit: u64,
    /// Nothing is taken any more.
    is_closed: bool,
}

impl Queue {
    /// As much as one send takes.
    fn take(&mut self) -> Vec<Bytes> {
        let (mut taken, mut room) = (Vec::new(), SEND_BYTES_MAX);
        while room > 0
            && taken.len() < SEND_PARTS_MAX
            && let Some(part) = self.parts.front_mut()
        {
            let part = part.split_to(part.len().min(room));
            room -= part.len();
            taken.push(part);
            if self.parts.front().is_some_and(Bytes::is_empty) {
                self.parts.pop_front();
            }
        }
        taken
    }

    fn on_sent(&mut self, bytes: u64) {
        self.sent += bytes;
        while let Some(&(end, bytes)) = self.replies.front()
            && end <= self.sent
        {
            self.replies.pop_front();
            self.reply_credit -= bytes;
        }
    }
}

impl Outbox {
    /// Queues a frame; with it, if it is a reply, how many bytes its request took of the peer's credit.
    pub(super) fn put(&self, frame: Frame, credit: Option<u64>) {
        let mut queue = self.queue.borrow_mut();
        if queue.is_closed {
            return;
        }
        queue.put += frame.len() as u64;
        if let Some(bytes) = credit {
            let end = queue.put;
            queue.replies.push_back((end, bytes));
            queue.reply_credit += bytes;
        }
        queue.parts.push_back(frame.head);
        queue.parts.extend(frame.payload.into_iter().filter(|part| !part.is_empty()));
        drop(queue);
        self.ready.notify();
    }

    /// Whether more replies wait to be sent than a peer with this credit may have asked for.
    pub(super) fn is_behind(&self, requests_max: u32, bytes_max: u64) -> bool {
        let queue = self.queue.borrow();
        queue.replies.len() > requests_max as usize || queue.reply_credit > bytes_max
    }

    /// Waits until that is over.
    pub(super) async fn catch_up(&self, requests_max: u32, bytes_max: u64) {
        loop {
            let sent = self.sent.wait();
            if !self.is_behind(requests_max, bytes_max) {
                return;
            }
            sent.await;
        }
    }

    /// Waits until all that was put in was sent.
    pub(super) async fn drained(&self) {
        loop {
            let sent = self.sent.wait();
            if self.is_empty() {
                return;
            }
            sent.await;
        }
    }

    /// Takes nothing any more, and forgets what is left.
    pub(super) fn close(&self) {
        let left = std::mem::replace(&mut *self.queue.borrow_mut(), Queue { is_closed: true, ..Queue::default() });
        drop(left);
        self.sent.notify();
    }

    fn is_empty(&self) -> bool {
        let queue = self.queue.borrow();
        queue.sent == queue.put
    }

    /// Sends what is put in until the stream fails. `on_sending` hears when a send begins, and when all of it was taken.
    pub(super) async fn send(&self, stream: &Channel, on_sending: impl Fn(bool)) -> io::Error {
        let is_sending = Cell::new(false);
        loop {
            let ready = self.ready.wait();
            let parts = self.queue.borrow_mut().take();
            if parts.is_empty() {
                if is_sending.replace(false) {
                    on_sending(false);
                }
                ready.await;
                continue;
            }
            is_sending.set(true);
            on_sending(true);
            let bytes = parts.iter().map(|part| part.len() as u64).sum();
            if let Err(error) = stream.send(parts).await {
                return error;
            }
            self.queue.borrow_mut().on_sent(bytes);
            self.sent.notify();
        }
    }
}
