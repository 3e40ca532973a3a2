//! The executor (to be written).

/// The state of one loop.
pub struct Executor {}
