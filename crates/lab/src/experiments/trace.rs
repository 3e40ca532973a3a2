//! Traces of real disks. What takes the place of what with one is said by each paper ([`super::Paper::replaying`]).
//!
//! **Formats** ([`Reader`] tells them apart): VSCSI version 1 ([`vscsi`]), and lines of text as the MSR Cambridge, Alibaba and
//! Tencent traces have them ([`lines`]). A file that is damaged is refused as a whole: half a trace is another load.
//! [`super::trace_statistics`] says what one is like.

mod lines;
mod reader;
mod vscsi;

use std::fmt;

pub use self::reader::Reader;

use base::limits::REQUEST_SIZE_MAX;
use base::{BLOCK, Error, Result};

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
        let mut requests =
            Reader::new(bytes).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>).map_err(&wrong)?;
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
    pub(super) fn length_ns(&self) -> f64 {
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

pub(super) fn whole_blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK) * BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
