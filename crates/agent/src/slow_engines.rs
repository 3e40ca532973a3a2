//! How fast those answer who have segments, and how fast their answers come.
//!
//! **Intuition.** A server that fails slowly does not fail, nor does a link that loses one packet in ten: whoever has a segment
//! there waits. An answer says what held its request up at the server; what is left of its time is the way there and back.
//! Both are compared with what others took a moment ago ([`policies::fail_slow`]), and who is slow for long is told to people,
//! by name. Nobody here acts on it: an owner cannot be asked in another one's place.
//!
//! **Invariants.**
//! - Waiting for tokens is no slowness: that is what a volume is held to, and what neighbours are given.
//! - Nobody is named for a pause, or for a burst of requests that met one.
//! - Memory is that of three [`FailSlow`].

use std::cell::RefCell;
use std::time::Duration;

use base::{Incarnation, Instant, Passage, Stage};
use policies::fail_slow::{FailSlow, NAMED_AFTER};
use policies::slow_requests::Direction;

/// What of an engine is slow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SlowPart {
    /// It takes long to answer reads or writes.
    Server,
    /// Requests and answers are long on their way.
    Link,
}

/// What a request moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) direction: Direction,
    pub(crate) bytes: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct SlowEngines {
    reads: RefCell<FailSlow<Incarnation>>,
    writes: RefCell<FailSlow<Incarnation>>,
    links: RefCell<FailSlow<Incarnation>>,
}

impl SlowEngines {
    /// An engine has answered a request `took_ns` after it was sent.
    pub(crate) fn on_answer(&self, now: Instant, engine: Incarnation, load: Load, took_ns: u64, passage: &Passage) {
        let there_ns = passage.total_ns();
        let servers = match load.direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        };
        let span = |ns| Duration::from_nanos(ns);
        let own_ns = there_ns.saturating_sub(passage.of(Stage::Tokens));
        servers.borrow_mut().on_done(now, engine, load.bytes, span(own_ns));
        self.links.borrow_mut().on_done(now, engine, load.bytes, span(took_ns.saturating_sub(there_ns)));
    }

    /// Those that are slow for long, in order.
    pub(crate) fn slow(&self, now: Instant) -> Vec<(Incarnation, SlowPart)> {
        let of = |kind: &RefCell<FailSlow<Incarnation>>, part| {
            let kind = kind.borrow();
            kind.slow_for(now, NAMED_AFTER).map(|engine| (engine, part)).collect::<Vec<_>>()
        };
        let servers = [of(&self.reads, SlowPart::Server), of(&self.writes, SlowPart::Server)].concat();
        let mut slow = [servers, of(&self.links, SlowPart::Link)].concat();
        slow.sort();
        slow.dedup();
        slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// What two engines take for so many milliseconds of writes, one each millisecond: at the server, of that for tokens, and in
    /// all.
    fn after(millis: u64, of: impl Fn(Incarnation) -> [u64; 3]) -> Vec<(Incarnation, SlowPart)> {
        let engines = SlowEngines::default();
        let load = Load { direction: Direction::Write, bytes: 4096 };
        let at = |millis: u64| Instant::ZERO + Duration::from_millis(millis);
        for milli in 0..millis {
            // The second one is asked less often: its clients wait.
            let engine = Incarnation(1 + u64::from(milli.is_multiple_of(5)));
            // At first all are alike.
            let [there_ns, tokens_ns, took_ns] = if milli < 500 { [MS, 0, 2 * MS] } else { of(engine) };
            let mut passage = Passage::default();
            passage.add(Stage::Tokens, tokens_ns);
            passage.add(Stage::Append, there_ns - tokens_ns);
            engines.on_answer(at(milli), engine, load, took_ns, &passage);
        }
        engines.slow(at(millis))
    }

    #[test]
    fn a_server_and_a_link_that_are_slow_for_long_are_named_each_for_what_it_is() {
        let second = |slow: [u64; 3]| move |engine| if engine == Incarnation(2) { slow } else { [MS, 0, 2 * MS] };
        assert_eq!(after(8_000, second([MS, 0, 2 * MS])), []);
        assert_eq!(after(8_000, second([30 * MS, 0, 31 * MS])), [(Incarnation(2), SlowPart::Server)]);
        assert_eq!(after(8_000, second([MS, 0, 31 * MS])), [(Incarnation(2), SlowPart::Link)]);
        let both = [(Incarnation(2), SlowPart::Server), (Incarnation(2), SlowPart::Link)];
        assert_eq!(after(8_000, second([30 * MS, 0, 60 * MS])), both);
        assert_eq!(after(2_000, second([30 * MS, 0, 60 * MS])), [], "not for long");
        assert_eq!(after(8_000, second([30 * MS, 29 * MS, 31 * MS])), [], "it is held to a level");
    }
}
