//! What clients ask a server for, and how much of it.

/// How much is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Bursts beyond the limit, and pauses.
    Bursts,
    /// A constant load below it, spread evenly over the segments.
    Steady,
    /// The same after some lessons, in which the store is got to know ([`super::load`]).
    Taught,
}

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The segment's number at its server.
    pub segment: u32,
    /// Whether it is a write.
    pub is_write: bool,
    /// How much.
    pub bytes: u32,
}
