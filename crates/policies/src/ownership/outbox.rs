//! What was decided and is not durable yet, and what waits for that.
//!
//! A message may depend on any change that was made before it. So it is numbered with the last one, and comes out when
//! that is durable; there is no other way out.

use std::collections::VecDeque;

use super::message::Message;
use super::table::Change;

/// Messages that wait at most, but for those that are said once.
const WAITING_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    unlogged: Vec<Change>,
    /// Messages, each with the number of changes that must be durable before.
    waiting: VecDeque<(u64, Message)>,
    made: u64,
    logged: u64,
}

impl Outbox {
    pub(super) fn log(&mut self, change: Change) {
        self.made += 1;
        self.unlogged.push(change);
    }

    /// What is said again anyway is left out where too much waits.
    pub(super) fn say(&mut self, message: Message) {
        if self.waiting.len() >= WAITING_MAX && message.order.is_repeated() {
            return;
        }
        let after = if base::seeded::is_on("orders-before-durable") { 0 } else { self.made };
        self.waiting.push_back((after, message));
    }

    pub(super) fn unlogged(&self) -> &[Change] {
        &self.unlogged
    }

    /// Whether a message waits.
    pub(super) fn has_messages(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The first `count` of the changes are durable: what may be said now.
    pub(super) fn on_logged(&mut self, count: usize) -> Vec<Message> {
        self.unlogged.drain(..count);
        self.logged += count as u64;
        let ready = self.waiting.partition_point(|(after, _)| *after <= self.logged);
        self.waiting.drain(..ready).map(|(_, message)| message).collect()
    }
}

#[cfg(test)]
mod tests {
    use base::{Incarnation, Term};

    use super::super::message::Order;
    use super::*;

    #[test]
    fn what_is_said_again_anyway_does_not_pile_up() {
        let message = |order| Message { term: Term(1), order };
        let mut outbox = Outbox::default();
        outbox.log(Change::Declare(Incarnation(2)));
        for _ in 0..WAITING_MAX + 9 {
            outbox.say(message(Order::Dismiss { engine: Incarnation(2) }));
        }
        outbox.say(message(Order::Gone { volume: base::VolumeId(1) }));
        let said = outbox.on_logged(1);
        assert_eq!(said.len(), WAITING_MAX + 1);
        assert_eq!(said.last(), Some(&message(Order::Gone { volume: base::VolumeId(1) })));
    }

    #[test]
    fn nothing_is_said_before_what_it_depends_on_is_durable() {
        let message = |engine| Message { term: Term(1), order: Order::Dismiss { engine: Incarnation(engine) } };
        let mut outbox = Outbox::default();
        outbox.say(message(1));
        outbox.log(Change::Declare(Incarnation(2)));
        outbox.log(Change::Declare(Incarnation(3)));
        outbox.say(message(2));
        outbox.log(Change::Declare(Incarnation(4)));
        outbox.say(message(3));
        assert_eq!(outbox.on_logged(0), [message(1)]);
        assert_eq!(outbox.on_logged(1), []);
        assert_eq!(outbox.on_logged(1), [message(2)]);
        assert_eq!(outbox.unlogged().len(), 1);
        assert!(outbox.has_messages());
        assert_eq!(outbox.on_logged(1), [message(3)]);
        assert!(!outbox.has_messages());
    }
}
