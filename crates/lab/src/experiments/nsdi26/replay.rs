//! A trace as the load of an experiment.
//!
//! One trace is of one or a few disks, an experiment has many segments on several servers:
//! - *segments*: the addresses that each device uses, from the first to the last, are cut into equal ranges, as many as a
//!   server has segments. Ranges are numbered by their traffic, so that the busiest are what the experiment calls hot;
//! - *servers*: each plays the whole trace, and begins at another place: the second of four servers after a quarter of it;
//!   what is at its end goes on at its begin;
//! - *clients*: volumes of four neighbouring segments, as without a trace; a segment has as many requests in flight as
//!   `depth` says, and more wait at the client;
//! - *rate*: time is stretched by one factor, so that the mean is what the experiment asks for: `underload_bytes_per_sec`, or
//!   the middle of `burst_percent` and `calm_percent` of the limit. What is a burst in the trace stays one;
//! - *sizes* are the trace's, in whole blocks of 4 KiB. The figures' own sizes and mixes do not count.

use super::super::trace::{Request, Trace, whole_blocks};
use super::Parameters;
use super::ask::{Ask, Shape};

/// What the clients of one server ask for.
pub struct Replay {
    asks: Vec<Ask>,
    /// When each is asked for, and when the first one is again, in nanoseconds.
    at: Vec<f64>,
    length: f64,
    next: usize,
    /// What is subtracted from those times, so that the first is at once.
    begun: f64,
}

impl Replay {
    /// The trace as server `number` of an experiment plays it.
    pub fn new(trace: &Trace, parameters: &Parameters, shape: Shape, number: u64) -> Replay {
        let segments = segments_of(trace.requests(), parameters.segments as usize);
        let asks = trace.requests().iter().zip(segments).map(|(request, segment)| Ask {
            segment,
            is_write: request.is_write,
            bytes: whole_blocks(request.bytes) as u32,
        });
        let sum: u64 = trace.requests().iter().map(|request| whole_blocks(request.bytes)).sum();
        let length = sum as f64 / rate(parameters, shape) * 1e9;
        let stretch = length / trace.length_ns();
        let at: Vec<f64> = trace.requests().iter().map(|request| request.at_ns as f64 * stretch).collect();
        let next = (at.len() as u64 * number / parameters.servers) as usize;
        Replay { asks: asks.collect(), begun: at[next], at, length, next }
    }

    /// When the next request is asked for, in nanoseconds after the begin.
    pub fn next_at(&self) -> f64 {
        self.at[self.next] - self.begun
    }

    /// That request.
    pub fn take(&mut self) -> Ask {
        let ask = self.asks[self.next];
        self.next += 1;
        if self.next == self.at.len() {
            self.next = 0;
            self.begun -= self.length;
        }
        ask
    }
}

/// Bytes per second that an experiment asks for in the mean.
pub fn rate(parameters: &Parameters, shape: Shape) -> f64 {
    match shape {
        Shape::Steady | Shape::Taught => parameters.underload_bytes_per_sec as f64,
        Shape::Bursts => {
            let ends = parameters.burst_percent.iter().chain(&parameters.calm_percent);
            parameters.limit_bytes_per_sec as f64 * ends.sum::<u64>() as f64 / 400.0
        }
    }
}

/// The segment of each request: see the module's header.
fn segments_of(requests: &[Request], segments: usize) -> Vec<u32> {
    let mut devices: Vec<u64> = requests.iter().map(|request| request.device).collect();
    devices.sort_unstable();
    devices.dedup();
    // First address, and what all devices before this one use together.
    let mut spans = Vec::new();
    let mut used = 0u128;
    for device in &devices {
        let own = || requests.iter().filter(|request| request.device == *device);
        let first = own().map(|request| request.offset).min().unwrap_or(0);
        let last = own().map(|request| request.offset).max().unwrap_or(0);
        spans.push((first, used));
        used += u128::from(last - first) + 1;
    }
    let range_of = |request: &Request| {
        let (first, before) = spans[devices.binary_search(&request.device).unwrap_or(0)];
        ((before + u128::from(request.offset - first)) * segments as u128 / used) as usize
    };
    let mut traffic: Vec<(u64, usize)> = (0..segments).map(|range| (0, range)).collect();
    for request in requests {
        traffic[range_of(request)].0 += request.bytes;
    }
    traffic.sort_by_key(|(bytes, range)| (std::cmp::Reverse(*bytes), *range));
    let mut number_of = vec![0; segments];
    for (number, (_, range)) in traffic.iter().enumerate() {
        number_of[*range] = number as u32;
    }
    requests.iter().map(|request| number_of[range_of(request)]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::FromFile;
    use super::*;

    fn request(at_ns: u64, offset: u64, bytes: u64) -> Request {
        Request { at_ns, device: 0, offset, bytes, is_write: true }
    }

    #[test]
    fn busy_ranges_have_the_lowest_numbers() {
        // Addresses 0 to 399 in four ranges; the third has most, then the first.
        let requests = [request(0, 0, 10), request(1, 250, 50), request(2, 399, 1), request(3, 299, 1)];
        assert_eq!(segments_of(&requests, 4), [1, 0, 2, 0]);
        let other = Request { device: 7, ..request(4, 1000, 5) };
        let both = segments_of(&[requests[0], requests[2], other], 4);
        assert!(both[0] == 0 && both[1] != both[0], "{both:?}");
    }

    /// Sixty seconds of the wanted rate have that many bytes, whatever the trace's own rate is, and the loop has no seam.
    #[test]
    fn a_replay_has_the_wanted_rate_and_goes_round() {
        let line = |number: u64| format!("{} 0 {} 6000 1\n", number * 5, number << 20);
        let trace = Trace::parse("x", (0..1000).map(line).collect::<String>().as_bytes()).unwrap();
        assert_eq!(trace.sizes(), (8192, 8192));
        let parameters = Parameters { servers: 4, ..Parameters::from_file().unwrap() };
        for number in 0..4 {
            let mut replay = Replay::new(&trace, &parameters, Shape::Steady, number);
            assert_eq!(replay.next_at(), 0.0);
            let (mut bytes, mut before) = (0, 0.0);
            while replay.next_at() < 1e9 {
                assert!(replay.next_at() >= before && replay.next_at() < before + 50_000.0);
                before = replay.next_at();
                bytes += u64::from(replay.take().bytes);
            }
            assert!((199_000_000..201_000_000).contains(&bytes), "{bytes}");
        }
        let bursts = rate(&parameters, Shape::Bursts) / parameters.limit_bytes_per_sec as f64;
        assert!((0.78..0.80).contains(&bursts), "{bursts}");
    }
}
