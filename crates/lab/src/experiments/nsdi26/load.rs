//! What clients ask for: open arrivals, bounded by what a client may have in flight.
//!
//! Arrivals are a Poisson process whose rate goes up and down with bursts and pauses. A segment has a bounded number of
//! requests in flight; what arrives beyond waits at the client, as it does in a real one, and its time there is not the
//! server's. In place of the model a trace can say what arrives ([`super::replay`]); the bound is the same.

use std::collections::VecDeque;

use base::Prng;

use super::Parameters;
use super::ask::{Ask, Shape};
use super::replay::Replay;

/// A time with this mean.
pub fn exponential(prng: &mut Prng, mean: f64) -> f64 {
    -mean * (1.0 - uniform(prng)).ln()
}

/// From 0 to 1, without 1.
pub fn uniform(prng: &mut Prng) -> f64 {
    prng.below(1 << 53) as f64 / (1u64 << 53) as f64
}

fn normal(prng: &mut Prng) -> f64 {
    (-2.0 * (1.0 - uniform(prng)).ln()).sqrt() * (std::f64::consts::TAU * uniform(prng)).cos()
}

/// Loads in parts of what the store serves, each until some nanosecond: next to none, then one that is no strain.
const LESSONS: [(f64, f64); 2] = [(0.01, 1e9), (0.25, LESSONS_END_NS)];
/// When the last one ends.
pub const LESSONS_END_NS: f64 = 9e9;

/// The clients of one server.
pub struct Load {
    parameters: Parameters,
    shape: Shape,
    bytes: u64,
    write_percent: u64,
    prng: Prng,
    /// Bytes per second that are asked for at present, until `phase_ends`, in nanoseconds.
    rate: f64,
    is_burst: bool,
    phase_ends: f64,
    /// The next arrival.
    pub next_at: f64,
    in_flight: Vec<u32>,
    /// By segment: what waits at the client.
    waiting: Vec<VecDeque<Ask>>,
    /// What arrives in place of the model's.
    replay: Option<Replay>,
}

/// Requests of a segment that may wait at the client: more are not asked for.
const WAITING_MAX: usize = 4096;

impl Load {
    /// Nothing asked for yet.
    pub fn new(parameters: &Parameters, shape: Shape, bytes: u64, write_percent: u64, seed: u64) -> Load {
        Load {
            shape,
            bytes,
            write_percent,
            prng: Prng::new(seed),
            rate: 0.0,
            is_burst: true,
            phase_ends: 0.0,
            next_at: 0.0,
            in_flight: vec![0; parameters.segments as usize],
            waiting: (0..parameters.segments).map(|_| VecDeque::new()).collect(),
            parameters: parameters.clone(),
            replay: None,
        }
    }

    /// The same segments and bounds, with what a trace says.
    pub fn replaying(self, replay: Replay) -> Load {
        Load { next_at: replay.next_at(), replay: Some(replay), ..self }
    }

    /// The arrival at `next_at`; what goes out at once. Sets the next arrival.
    pub fn arrive(&mut self) -> Option<Ask> {
        let ask = match &mut self.replay {
            Some(replay) => {
                let ask = replay.take();
                self.next_at = replay.next_at();
                ask
            }
            None => self.next_of_model(),
        };
        let segment = ask.segment as usize;
        if self.in_flight[segment] < self.parameters.depth {
            self.in_flight[segment] += 1;
            return Some(ask);
        }
        if self.waiting[segment].len() < WAITING_MAX {
            self.waiting[segment].push_back(ask);
        }
        None
    }

    /// A request of this segment is answered; what goes out in its place.
    pub fn on_reply(&mut self, segment: u32) -> Option<Ask> {
        let next = self.waiting[segment as usize].pop_front();
        if next.is_none() {
            self.in_flight[segment as usize] -= 1;
        }
        next
    }

    fn next_of_model(&mut self) -> Ask {
        if self.next_at >= self.phase_ends {
            self.begin_phase(self.next_at);
        }
        self.next_at += exponential(&mut self.prng, self.bytes as f64 / (self.rate / 1e9));
        self.draw()
    }

    fn begin_phase(&mut self, now: f64) {
        let (parameters, prng) = (&self.parameters, &mut self.prng);
        if self.shape != Shape::Bursts {
            let lesson = LESSONS.iter().find(|(_, until)| self.shape == Shape::Taught && now < *until);
            (self.rate, self.phase_ends) = match lesson {
                Some((part, until)) => (parameters.service_bytes_per_sec as f64 * part, *until),
                None => (parameters.underload_bytes_per_sec as f64, f64::INFINITY),
            };
            return;
        }
        self.is_burst = !self.is_burst;
        let [low, high] = if self.is_burst { parameters.burst_percent } else { parameters.calm_percent };
        let percent = low as f64 + (high - low) as f64 * uniform(prng);
        self.rate = parameters.limit_bytes_per_sec as f64 * percent / 100.0;
        let is_long = self.is_burst && prng.below(100) < parameters.long_burst_percent;
        let ms = match is_long {
            true => prng.between(parameters.long_burst_ms[0], parameters.long_burst_ms[1]) as f64,
            false => parameters.burst_median_ms as f64 * (parameters.burst_sigma * normal(prng)).exp(),
        };
        let ms = if self.is_burst { ms } else { ms * parameters.pause_factor };
        self.phase_ends = now + ms * 1e6;
    }

    fn draw(&mut self) -> Ask {
        let (segments, hot) = (self.parameters.segments, self.parameters.hot_segments());
        let is_write = self.prng.below(100) < self.write_percent;
        let segment = match self.shape {
            Shape::Steady | Shape::Taught => self.prng.below(u64::from(segments)) as u32,
            Shape::Bursts if self.prng.below(100) < u64::from(self.parameters.hot_load_percent) => {
                self.prng.below(u64::from(hot)) as u32
            }
            Shape::Bursts => hot + self.prng.below(u64::from(segments - hot)) as u32,
        };
        Ask { segment, is_write, bytes: self.bytes as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::FromFile;
    use super::*;

    #[test]
    fn shares_and_rates_are_as_asked_for() {
        let parameters = Parameters { depth: u32::MAX, ..Parameters::from_file().unwrap() };
        let mut load = Load::new(&parameters, Shape::Bursts, 4096, 75, 1);
        let (mut hot, mut writes, mut per_interval) = (0, 0, vec![0u64; 3000]);
        while load.next_at < 30e9 {
            let at = load.next_at;
            let ask = load.arrive().unwrap();
            hot += u64::from(ask.segment < parameters.hot_segments());
            writes += u64::from(ask.is_write);
            per_interval[(at / 1e7) as usize] += 4096;
        }
        let all: u64 = per_interval.iter().sum::<u64>() / 4096;
        assert!((79..=81).contains(&(hot * 100 / all)) && (74..=76).contains(&(writes * 100 / all)));
        let beyond = per_interval.iter().filter(|bytes| **bytes > 12_000_000).count();
        assert!((1000..=2700).contains(&beyond), "{beyond} of 3000 intervals above the limit");
    }

    #[test]
    fn a_segment_has_so_many_in_flight_and_no_more() {
        let parameters = Parameters { depth: 3, segments: 4, ..Parameters::from_file().unwrap() };
        let mut load = Load::new(&parameters, Shape::Steady, 4096, 0, 2);
        let sent: Vec<Ask> = (0..1000).filter_map(|_| load.arrive()).collect();
        assert_eq!(sent.len(), 12);
        assert!(load.on_reply(0).is_some_and(|ask| ask.segment == 0));
    }
}
