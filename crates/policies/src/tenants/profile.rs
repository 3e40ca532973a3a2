//! What requests cost: a straight line of processor time over size for each kind (BurstCBS, OSDI 2024, §5.3).
//!
//! Only processor time is profiled, and only from 4 to 16 KiB: beyond that it is not what a loop runs out of. Bytes are
//! counted as they are. Units are nanoseconds and bytes.

use super::cost::{Cost, Dimension};

/// Where a request came in: each takes a way of its own (the paper's product classes).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Frontend {
    /// A connection of the NBD protocol.
    Nbd,
    /// A queue of a virtual machine.
    VhostUser,
}

/// What it asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Bytes that go out.
    Read,
    /// Bytes that come in.
    Write,
    /// Space that is given back: takes processor time, and no bytes.
    Discard,
    /// Costs nothing that is worth counting.
    Flush,
}

/// Processor time of a kind of request: `fixed + bytes x per_byte`, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Line {
    /// Of each request.
    pub fixed_ns: f64,
    /// Of each byte.
    pub per_byte_ns: f64,
}

/// What requests of one size took.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// Their size.
    pub bytes: u64,
    /// Processor time of each.
    pub processor_ns: f64,
}

impl Line {
    /// The line with the least squares through samples; flat, or through zero, where they would have it lean the other way.
    /// None without samples.
    pub fn fit(samples: &[Sample]) -> Option<Line> {
        if samples.is_empty() {
            return None;
        }
        let n = samples.len() as f64;
        let mean = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / n;
        let (x, y) = (mean(&|sample| sample.bytes as f64), mean(&|sample| sample.processor_ns));
        let square = samples.iter().map(|sample| (sample.bytes as f64 - x).powi(2)).sum::<f64>();
        let product = samples.iter().map(|sample| (sample.bytes as f64 - x) * (sample.processor_ns - y)).sum::<f64>();
        let slope = if square > 0.0 { (product / square).max(0.0) } else { 0.0 };
        let fixed_ns = y - slope * x;
        Some(match fixed_ns > 0.0 {
            true => Line { fixed_ns, per_byte_ns: slope },
            false => Line { fixed_ns: 0.0, per_byte_ns: if x > 0.0 { y / x } else { 0.0 } },
        })
    }

    fn at(&self, bytes: u64) -> f64 {
        self.fixed_ns + bytes as f64 * self.per_byte_ns
    }
}

/// What each kind costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Profile {
    /// By frontend, reads and then writes.
    lines: [[Line; 2]; 2],
}

impl Default for Profile {
    /// About what this store takes on processors of 2020 to 2024 (bench/README.md has what it took on some). What is
    /// wrong with it is found while it runs ([`super::Measured`]); only how reads, writes and sizes compare stays.
    fn default() -> Self {
        let line = |fixed_ns, per_byte_ns| Line { fixed_ns, per_byte_ns };
        let nbd = [line(7_000.0, 0.25), line(8_000.0, 0.5)];
        Profile { lines: [nbd, [line(5_000.0, 0.25), line(6_000.0, 0.5)]] }
    }
}

impl Profile {
    /// Changes the line of a kind.
    pub fn set(&mut self, frontend: Frontend, operation: Operation, line: Line) {
        self.lines[frontend as usize][usize::from(operation != Operation::Read)] = line;
    }

    /// The line of a kind: a discard has that of a write.
    pub fn line(&self, frontend: Frontend, operation: Operation) -> Line {
        self.lines[frontend as usize][usize::from(operation != Operation::Read)]
    }

    /// What a request costs.
    #[inline]
    pub fn cost(&self, frontend: Frontend, operation: Operation, bytes: u64) -> Cost {
        let mut cost = Cost::ZERO;
        let line = self.line(frontend, operation);
        match operation {
            Operation::Flush => return cost,
            Operation::Discard => cost.set(Dimension::Processor, line.fixed_ns),
            Operation::Read | Operation::Write => {
                let way = if operation == Operation::Read { Dimension::Egress } else { Dimension::Ingress };
                cost.set(Dimension::Processor, line.at(bytes));
                cost.set(way, bytes as f64);
                cost.set(Dimension::Software, bytes as f64);
            }
        }
        cost
    }

    /// What a rate comes to in a second: in each dimension the larger of its operations at 4 KiB and its bytes at 128 KiB,
    /// by whatever is dearer, reads or writes, of either frontend.
    pub fn of_rate(&self, iops: u64, bytes_per_sec: u64) -> Cost {
        const SMALL: u64 = 4 * base::KIB;
        const LARGE: u64 = 128 * base::KIB;
        let dearest = |bytes: u64| {
            let kinds = [Frontend::Nbd, Frontend::VhostUser].into_iter().flat_map(|frontend| {
                [Operation::Read, Operation::Write].map(|operation| self.cost(frontend, operation, bytes))
            });
            kinds.fold(Cost::ZERO, Cost::max)
        };
        (dearest(SMALL) * iops as f64).max(dearest(LARGE) * (bytes_per_sec as f64 / LARGE as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_its_samples_and_never_leans_back() {
        let sample = |bytes, processor_ns| Sample { bytes, processor_ns };
        let line = Line::fit(&[sample(4096, 5096.0), sample(8192, 6120.0), sample(16384, 8168.0)]).unwrap();
        assert!((line.fixed_ns - 4072.0).abs() < 1e-6 && (line.per_byte_ns - 0.25).abs() < 1e-9, "{line:?}");
        let flat = Line::fit(&[sample(4096, 9000.0), sample(16384, 8000.0)]).unwrap();
        assert_eq!(flat, Line { fixed_ns: 8500.0, per_byte_ns: 0.0 });
        let steep = Line::fit(&[sample(4096, 1000.0), sample(8192, 9000.0)]).unwrap();
        assert!(steep.fixed_ns == 0.0 && steep.at(6144) > 4999.0, "{steep:?}");
        assert_eq!(Line::fit(&[sample(4096, 7.0)]).unwrap(), Line { fixed_ns: 7.0, per_byte_ns: 0.0 });
        assert_eq!(Line::fit(&[]), None);
    }

    #[test]
    fn a_rate_is_priced_by_the_larger_of_its_two_sides() {
        let mut profile = Profile::default();
        for frontend in [Frontend::Nbd, Frontend::VhostUser] {
            for operation in [Operation::Read, Operation::Write] {
                profile.set(frontend, operation, Line { fixed_ns: 1000.0, per_byte_ns: 0.01 });
            }
        }
        let cost = profile.of_rate(1000, 128 * 1024 * 100);
        assert_eq!(cost.of(Dimension::Processor), 1000.0 * 1040.96);
        assert_eq!(cost.of(Dimension::Egress), 13_107_200.0);
        assert_eq!(cost.of(Dimension::Ingress), 13_107_200.0);
        assert_eq!(profile.cost(Frontend::Nbd, Operation::Flush, 0), Cost::ZERO);
        assert_eq!(profile.cost(Frontend::Nbd, Operation::Discard, 1 << 30).of(Dimension::Processor), 1000.0);
    }
}
