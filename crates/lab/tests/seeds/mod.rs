//! Which seeds a test runs.

use std::time::{SystemTime, UNIX_EPOCH};

/// A number of the environment.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// The first seed of a test: `LEVEE_BASE`, or a new one each time.
pub fn base() -> u64 {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    number("LEVEE_BASE").unwrap_or_else(|| clock().as_micros() as u64 % 1_000_000_000_000)
}
