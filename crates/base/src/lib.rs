//! What every floor of Levee shares: units, ids, time, buffers, checksums, limits and a few collections.
//!
//! Nothing here does I/O, reads a clock or draws randomness by itself.

pub mod buffer;
pub mod checksum;
pub mod error;
pub mod histogram;
pub mod ids;
pub mod interval_map;
pub mod io;
pub mod levels;
pub mod limits;
pub mod passage;
pub mod prng;
pub mod seeded;
pub mod time;
pub mod units;

pub use buffer::{AlignedBuf, Gathered};
pub use error::{Error, ErrorKind, Result};
pub use histogram::Histogram;
pub use ids::*;
pub use interval_map::{IntervalMap, Split};
pub use io::{AllocationExtent, ReadPart, WriteStamp};
pub use passage::{Passage, Stage};
pub use prng::Prng;
pub use time::Instant;
pub use units::{BLOCK, Bytes, GIB, KIB, MIB, SECTOR, TIB};

/// A hash that is the same in every run.
pub type Hashing = std::hash::BuildHasherDefault<rustc_hash::FxHasher>;

/// A hash map whose iteration order depends on its content only, so that a simulation repeats itself.
// The one place where the std map is named: with a fixed hasher its order is the same in every run.
#[allow(clippy::disallowed_types)]
pub type Map<K, V> = std::collections::HashMap<K, V, Hashing>;

/// A hash set whose iteration order depends on its content only.
#[allow(clippy::disallowed_types)]
pub type Set<K> = std::collections::HashSet<K, Hashing>;
