//! How much that comes home is under way at a time, so that nobody has to wait behind it.
//!
//! **Intuition.** A server has what comes home wait while clients want it ([`super::Coordination`]). But when it decides that, the
//! payload has passed the network card in front of it, and payloads of clients were behind it there. No server sees that; whoever
//! sends does: pieces take longer than they would alone. As long as they do not, one more may be under way; else fewer.
//!
//! It is how a transfer finds its window that nobody waits for (LEDBAT, RFC 6817). **Names** are from there: *base* is the least
//! that a piece took lately, *queueing* what it takes beyond that, and *target* the queueing that is aimed at. As in LEDBAT++, what
//! is above the target takes a part of the window away, and not only one piece.
//!
//! **Chosen.** DiffForward (SIGMETRICS 2023, §3.4) has owners fetch what was logged and says nothing of this. The target is as long
//! as the base: of a piece that waits behind one other, nobody can say that the path is busy. Base is told by size, in powers of
//! two, as cards may be so slow that a piece's own bytes are most of it.
//!
//! A pure decision, for one way out of a server or into one, which all volumes of an agent take together.

use std::time::Duration;

use base::Instant;

/// Settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowSettings {
    /// There are never fewer bytes than these, nor more.
    pub bytes: (u64, u64),
    /// The target is at least this: what machines do to each other on the way is no queue.
    pub target_min: Duration,
    /// The base is the least of the last such span and of the present one.
    pub base_holds: Duration,
}

impl Default for WindowSettings {
    /// From half a data sector of the usual length, as there is one window for each server (a larger piece goes by itself), to sixteen
    /// batches. The least is also what a window grows by while pieces are fast. Writes of figure 20d (seed 0) take 5.5 ms on average with
    /// these, 6.0 with a least of 128 KiB, 6.1 with a target of 2 ms, 6.4 with both, and 4.5 without merging.
    fn default() -> Self {
        WindowSettings {
            bytes: (64 << 10, 16 << 20),
            target_min: Duration::from_millis(1),
            base_holds: Duration::from_secs(60),
        }
    }
}

/// Sizes from 4 KiB to beyond 64 MiB.
const CLASSES: usize = 16;
/// Of the window, if all of it took the target too long or longer.
const CUT: f64 = 0.5;

/// The least of two spans, in nanoseconds: the present one and the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Base([u64; 2]);

/// See the module.
#[derive(Clone, Debug)]
pub struct Window {
    settings: WindowSettings,
    bytes: f64,
    bases: [Base; CLASSES],
    span_begun: Instant,
}

impl Window {
    /// The least there is: nothing is known of the way.
    pub fn new(settings: WindowSettings, now: Instant) -> Window {
        Window { settings, bytes: settings.bytes.0 as f64, bases: [Base([u64::MAX; 2]); CLASSES], span_begun: now }
    }

    /// Bytes that may be under way.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// A piece is home. `is_full`: others wait to be under way; what nobody asks for is no reason to allow it.
    pub fn on_piece(&mut self, now: Instant, bytes: u64, took: Duration, is_full: bool) {
        let base = self.base(now, bytes, took);
        let target = base.max(self.settings.target_min);
        let off = 1.0 - took.saturating_sub(base).as_secs_f64() / target.as_secs_f64();
        let (least, most) = self.settings.bytes;
        let change = match off > 0.0 {
            // All of the window together: the least one more.
            true if is_full => off * bytes as f64 * least as f64 / self.bytes,
            true => 0.0,
            false => off.max(-1.0) * bytes as f64 * CUT,
        };
        self.bytes = (self.bytes + change).clamp(least as f64, most as f64);
    }

    /// A piece was sent away, because clients want a server: however fast that was, it says nothing of the way but that it is busy.
    pub fn on_sent_away(&mut self, bytes: u64) {
        self.bytes = (self.bytes - bytes as f64 * CUT).max(self.settings.bytes.0 as f64);
    }

    /// The least that such a piece took lately, this one included.
    fn base(&mut self, now: Instant, bytes: u64, took: Duration) -> Duration {
        let holds = self.settings.base_holds;
        let passed = now.since(self.span_begun);
        if passed >= holds {
            let before = |base: &Base| if passed < holds * 2 { base.0[0] } else { u64::MAX };
            self.bases = std::array::from_fn(|class| Base([u64::MAX, before(&self.bases[class])]));
            self.span_begun = now;
        }
        let class = (bytes.max(4_096).next_power_of_two().ilog2() - 12) as usize;
        let Base(spans) = &mut self.bases[class.min(CLASSES - 1)];
        spans[0] = spans[0].min(took.as_nanos() as u64);
        Duration::from_nanos(spans[0].min(spans[1]))
    }
}

#[cfg(test)]
mod tests {
    use base::KIB;

    use super::*;

    const PIECE: u64 = 128 * KIB;
    /// A piece at least.
    const SETTINGS: WindowSettings = WindowSettings {
        bytes: (PIECE, 16 << 20),
        target_min: Duration::from_millis(1),
        base_holds: Duration::from_secs(60),
    };

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    /// A card that carries a piece in 9 ms, and pieces that are sent as the window has it, each behind those before and behind
    /// what clients sent. Returns how many clients' bytes waited for, in pieces, and how many pieces came home.
    fn through_a_card(window: &mut Window, from: u64, seconds: u64, clients: impl Fn(u64) -> bool) -> (f64, u64) {
        let (mut free, mut under_way): (u64, std::collections::VecDeque<(u64, u64)>) = (from, Default::default());
        let (mut waited, mut asked, mut home) = (0, 0, 0);
        for ms in from..from + seconds * 1_000 {
            while let Some((sent, done)) = under_way.front().copied().filter(|(_, done)| *done <= ms) {
                under_way.pop_front();
                home += 1;
                window.on_piece(at(done), PIECE, Duration::from_millis(done - sent), true);
            }
            if clients(ms) {
                waited += free.saturating_sub(ms);
                asked += 1;
                free = free.max(ms) + 9;
            }
            while (under_way.len() as u64 + 1) * PIECE <= window.bytes() {
                free = free.max(ms) + 9;
                under_way.push_back((ms, free));
            }
        }
        (waited as f64 / 9.0 / f64::from(asked.max(1)), home)
    }

    #[test]
    fn a_way_that_nobody_else_takes_is_used_and_one_that_clients_take_is_left_to_them() {
        let mut window = Window::new(SETTINGS, at(0));
        let (_, home) = through_a_card(&mut window, 0, 20, |_| false);
        assert!(home > 20_000 / 9 * 9 / 10, "{home} pieces: the card was idle");
        assert!((2 * PIECE..=4 * PIECE).contains(&window.bytes()), "{}: more only makes a queue", window.bytes());
        // A client for two thirds of the card.
        let (waited, _) = through_a_card(&mut window, 20_000, 20, |ms| ms % 13 == 0);
        assert!(waited < 2.5 && window.bytes() < 2 * PIECE, "{waited} before each, {}", window.bytes());
    }

    #[test]
    fn a_fast_way_is_not_given_up_for_noise_and_nobody_is_allowed_what_nobody_asks_for() {
        let mut window = Window::new(SETTINGS, at(0));
        let noisy = |piece: u64| Duration::from_micros(if piece.is_multiple_of(3) { 1_000 } else { 300 });
        for piece in 0..1_000 {
            window.on_piece(at(piece), PIECE, noisy(piece), false);
        }
        assert_eq!(window.bytes(), PIECE);
        for piece in 0..20_000 {
            window.on_piece(at(piece), PIECE, noisy(piece), true);
        }
        assert_eq!(window.bytes(), 16 << 20);
        // One large stall is not the end of it, and many are.
        window.on_piece(at(20_000), PIECE, Duration::from_secs(5), true);
        assert!(window.bytes() > 15 << 20);
        (0..1_000).for_each(|piece| window.on_piece(at(piece), PIECE, Duration::from_millis(100), true));
        assert_eq!(window.bytes(), PIECE);
    }

    #[test]
    fn who_is_sent_away_at_once_has_found_no_fast_way() {
        let mut window = Window::new(SETTINGS, at(0));
        let took = Duration::from_millis(9);
        (0..1_000).for_each(|piece| window.on_piece(at(piece), PIECE, took, true));
        let before = window.bytes();
        window.on_sent_away(PIECE);
        assert_eq!(window.bytes(), before - PIECE / 2);
        assert_eq!(window.base(at(1_000), PIECE, took), took);
        (0..1_000).for_each(|_| window.on_sent_away(PIECE));
        assert_eq!(window.bytes(), PIECE);
    }

    #[test]
    fn what_was_the_least_long_ago_is_forgotten() {
        let mut window = Window::new(SETTINGS, at(0));
        window.on_piece(at(0), PIECE, Duration::from_millis(3), true);
        // The way is another one now, four times as long.
        let mut bytes = Vec::new();
        for second in 1..=300 {
            window.on_piece(at(second * 1_000), PIECE, Duration::from_millis(12), true);
            bytes.push(window.bytes());
        }
        assert_eq!(bytes[58], PIECE, "for a minute it looks like a queue");
        assert!(bytes[299] > 8 * PIECE, "{}", bytes[299]);
        // A small piece is not compared with large ones.
        window.on_piece(at(300_001), 4 * KIB, Duration::from_millis(1), true);
        assert_eq!(window.base(at(300_002), PIECE, Duration::from_millis(13)), Duration::from_millis(12));
    }
}
