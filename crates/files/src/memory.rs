//! Memory (to be written).
