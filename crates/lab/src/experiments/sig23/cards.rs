//! Servers that are their network cards: each carries so many bytes in a second each way, in the order in which they were asked
//! for. Whoever comes waits for all that came before, and then for his own bytes to pass.

use std::ops::Range;
use std::time::Duration;

use base::Instant;

use super::workload::Traffic;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Into a server.
    Received = 0,
    /// Out of it.
    Sent = 1,
}

/// How long a card took with something, from when it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carried {
    /// For those before.
    pub waited: Duration,
    /// For the bytes themselves.
    pub passed: Duration,
    /// When it was done.
    pub at: Instant,
}

/// See the module.
pub struct Cards {
    bytes_per_sec: u64,
    /// When each card has received and sent what it was asked for.
    free: Vec<[Instant; 2]>,
}

impl Cards {
    /// Of so many servers, of which the traffic takes so much on average, if it arrives in them once.
    pub fn of(traffic: &Traffic, servers: usize, utilization: f64) -> Cards {
        let bytes: u64 = traffic.writes.iter().map(|write| write.bytes).sum();
        let seconds = traffic.writes.last().map_or(1.0, |last| last.at_ns as f64 / 1e9);
        let bytes_per_sec = (bytes as f64 / seconds / servers as f64 / utilization).max(1.0) as u64;
        Cards { bytes_per_sec, free: vec![[Instant::ZERO; 2]; servers] }
    }

    /// Asks a card to carry something, behind all that it was asked for before.
    pub fn carry(&mut self, now: Instant, server: usize, way: Way, bytes: u64) -> Carried {
        let free = &mut self.free[server][way as usize];
        let begun = now.max(*free);
        let passed = Duration::from_nanos(bytes * 1_000_000_000 / self.bytes_per_sec);
        *free = begun + passed;
        Carried { waited: begun.since(now), passed, at: *free }
    }
}

/// What of each volume is being written. A write that overlaps another one on its way waits for it, and is looked at again after
/// [`UnderWay::AGAIN`].
pub struct UnderWay(Vec<Vec<Range<u64>>>);

impl UnderWay {
    /// See the type.
    pub const AGAIN: Duration = Duration::from_micros(100);

    /// Nothing is, of so many volumes.
    pub fn new(volumes: usize) -> UnderWay {
        UnderWay(vec![Vec::new(); volumes])
    }

    /// Whether a write may begin; then it has.
    pub fn begin(&mut self, volume: usize, range: Range<u64>) -> bool {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        let is_free = !self.0[volume].iter().any(overlaps);
        if is_free {
            self.0[volume].push(range);
        }
        is_free
    }

    /// It is done.
    pub fn end(&mut self, volume: usize, range: Range<u64>) {
        self.0[volume].retain(|other| *other != range);
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::Write;
    use super::*;

    #[test]
    fn a_card_has_a_queue_each_way() {
        let write = Write { at_ns: 1_000_000_000, volume: 0, offset: 0, bytes: 1_000, is_burst: false };
        let traffic = Traffic { writes: vec![write], sizes: vec![1 << 30] };
        // A thousand bytes in a second, for two servers, of which half is used: a byte takes a millisecond.
        let mut cards = Cards::of(&traffic, 2, 0.5);
        let ms = Duration::from_millis;
        let at = |after| Instant::ZERO + ms(after);
        let mut carry = |now, server, way| cards.carry(at(now), server, way, 10);
        assert_eq!(carry(0, 0, Way::Received), Carried { waited: ms(0), passed: ms(10), at: at(10) });
        assert_eq!(carry(4, 0, Way::Received), Carried { waited: ms(6), passed: ms(10), at: at(20) });
        assert_eq!(carry(4, 0, Way::Sent).at, at(14));
        assert_eq!(carry(4, 1, Way::Received).at, at(14));
        assert_eq!(carry(50, 0, Way::Received).waited, ms(0));
    }

    #[test]
    fn what_overlaps_waits() {
        let mut under_way = UnderWay::new(2);
        assert!(under_way.begin(0, 0..10) && under_way.begin(1, 0..10) && under_way.begin(0, 10..20));
        assert!(!under_way.begin(0, 9..11));
        under_way.end(0, 0..10);
        assert!(!under_way.begin(0, 9..11));
        under_way.end(0, 10..20);
        assert!(under_way.begin(0, 9..11));
    }
}
