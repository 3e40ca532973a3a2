//! The compute side: frontends that clients attach to, and the way from a volume's bytes to the owners of its segments.

pub mod nbd;
