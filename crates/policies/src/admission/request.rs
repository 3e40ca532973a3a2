//! What passes admission: a request that arrives, and one that is done.

use base::levels::Level;
use base::{Instant, SegmentId};

use crate::slow_requests::Direction;

/// An I/O that arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its segment, and with it its volume.
    pub segment: SegmentId,
    /// Its length.
    pub bytes: u64,
    /// Whether it reads or writes.
    pub direction: Direction,
    /// How its agent has marked it.
    pub level: Level,
}

/// An I/O that was started, and is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Its segment.
    pub segment: SegmentId,
    /// When it was started.
    pub granted: Instant,
    /// Its length.
    pub bytes: u64,
    /// Whether it read or wrote.
    pub direction: Direction,
    /// Whether anything below memory was asked for it.
    pub went_below: bool,
}
