//! Traces of real disks as the load of an experiment.
//!
//! **Formats** ([`Trace::parse`] tells them apart): VSCSI version 1 ([`vscsi`]), and lines of text as the cuts of the MSR
//! Cambridge traces have them ([`text`]). A file that is damaged is refused as a whole: half a trace is another load.
//!
//! **Mapping** ([`Replay`]). One trace is of one or a few disks, an experiment has many segments on several servers:
//! - *segments*: the addresses that each device uses, from the first to the last, are cut into equal ranges, as many as a
//!   server has segments. Ranges are numbered by their traffic, so that the busiest are what the experiment calls hot;
//! - *servers*: each plays the whole trace, and begins at another place: the second of four servers after a quarter of it;
//!   what is at its end goes on at its begin;
//! - *clients*: volumes of four neighbouring segments, as without a trace; a segment has as many requests in flight as
//!   `depth` says, and more wait at the client;
//! - *rate*: time is stretched by one factor, so that the mean is what the experiment asks for: `underload_bytes_per_sec`, or
//!   the middle of `burst_percent` and `calm_percent` of the limit. What is a burst in the trace stays one;
//! - *sizes* are the trace's, in whole blocks of 4 KiB. The figures' own sizes and mixes do not count.

mod text;
mod vscsi;

use std::fmt;

use base::limits::REQUEST_SIZE_MAX;
use base::{BLOCK, Error, Result};

use super::Parameters;
use super::ask::{Ask, Shape};

/// One request of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When, in nanoseconds after the first one.
    pub at_ns: u64,
    /// Of which disk.
    pub device: u64,
    /// From where, in bytes.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// Whether it is a write.
    pub is_write: bool,
}

/// A trace: requests in the order of their times.
#[derive(PartialEq, Eq)]
pub struct Trace {
    name: String,
    requests: Vec<Request>,
}

impl Trace {
    /// Reads a trace; `name` is for errors and tables.
    ///
    /// # Errors
    /// `Invalid`, with the place and what to do: empty, in no known format, damaged, or with requests that no disk has.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Trace> {
        let wrong = |what: String| Error::invalid(format!("{name} is no trace that can be replayed: {what}"));
        if bytes.is_empty() {
            return Err(wrong("it is empty".into()));
        }
        let parsed = match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => text::parse(text),
            _ => vscsi::parse(bytes),
        };
        let mut requests = parsed.map_err(&wrong)?;
        check(&requests).map_err(wrong)?;
        let begun = requests[0].at_ns;
        requests.iter_mut().for_each(|request| request.at_ns -= begun);
        Ok(Trace { name: name.to_owned(), requests })
    }

    /// In the order of their times, the first one at 0.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Bytes of a request in the mean, and of the largest one, in whole blocks.
    pub fn sizes(&self) -> (u64, u64) {
        let sizes = self.requests.iter().map(|request| whole_blocks(request.bytes));
        (sizes.clone().sum::<u64>() / self.requests.len() as u64, sizes.max().unwrap_or(BLOCK))
    }

    /// From the first request to that after the last one.
    fn length_ns(&self) -> f64 {
        let (count, last) = (self.requests.len() as f64, self.requests.last().map_or(0, |request| request.at_ns));
        (last.max(1) as f64) * count / (count - 1.0)
    }
}

/// What a key of a point needs, not a hundred thousand requests.
impl fmt::Debug for Trace {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{} with {} requests", self.name, self.requests.len())
    }
}

/// What no disk could have been asked for.
fn check(requests: &[Request]) -> std::result::Result<(), String> {
    if requests.len() < 2 {
        return Err(format!("it has {} requests; a rate needs two at least", requests.len()));
    }
    let mut before = requests[0].at_ns;
    for (number, request) in requests.iter().enumerate() {
        let Request { at_ns, offset, bytes, .. } = *request;
        let number = number + 1;
        match () {
            () if bytes == 0 => return Err(format!("request {number} has no bytes; leave such requests out")),
            () if bytes > REQUEST_SIZE_MAX => {
                return Err(format!("request {number} has {bytes} bytes, more than {REQUEST_SIZE_MAX}; split it"));
            }
            () if offset.checked_add(bytes).is_none() => {
                return Err(format!("request {number} ends beyond what 64 bits can say"));
            }
            () if at_ns < before => {
                return Err(format!("request {number} is before the one in front of it; sort the file by time"));
            }
            () => before = at_ns,
        }
    }
    if before == requests[0].at_ns {
        return Err("all requests are at one time, which is no rate".into());
    }
    Ok(())
}

fn whole_blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK) * BLOCK
}

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
        let segments = segments_of(&trace.requests, parameters.segments as usize);
        let asks = trace.requests.iter().zip(segments).map(|(request, segment)| Ask {
            segment,
            is_write: request.is_write,
            bytes: whole_blocks(request.bytes) as u32,
        });
        let sum: u64 = trace.requests.iter().map(|request| whole_blocks(request.bytes)).sum();
        let length = sum as f64 / rate(parameters, shape) * 1e9;
        let stretch = length / trace.length_ns();
        let at: Vec<f64> = trace.requests.iter().map(|request| request.at_ns as f64 * stretch).collect();
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
    use super::*;

    fn request(at_ns: u64, offset: u64, bytes: u64) -> Request {
        Request { at_ns, device: 0, offset, bytes, is_write: true }
    }

    #[test]
    fn what_is_no_trace_is_refused_with_what_to_do() {
        let wrong = |bytes: &[u8]| Trace::parse("x", bytes).unwrap_err().to_string();
        assert!(wrong(b"").contains("it is empty"));
        assert!(wrong(b"hello\n").contains("line 1"));
        assert!(wrong(&[0; 33]).contains("neither text nor VSCSI"));
        assert!(wrong(b"0 0 0 4096 0\n").contains("two at least"));
        assert!(wrong(b"0 0 0 4096 0\n0 0 0 4096 0\n").contains("at one time"));
        assert!(wrong(b"0 0 0 4096 0\n1 0 0 0 0\n").contains("request 2 has no bytes"));
        assert!(wrong(b"0 0 0 4096 0\n1 0 0 99999999 0\n").contains("split it"));
        assert!(wrong(b"1 0 0 4096 0\n0 0 0 4096 0\n").contains("sort the file by time"));
        assert!(wrong(format!("0 0 {} 4096 0\n1 0 0 4096 0\n", u64::MAX).as_bytes()).contains("64 bits"));
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
        let requests: Vec<Request> = (0..1000).map(|number| request(number * 5_000_000, number << 20, 6000)).collect();
        let trace = Trace { name: "x".into(), requests };
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
