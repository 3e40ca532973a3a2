//! What is asked of the disk: sizes, directions, places, and the time between two requests.

use std::ops::RangeInclusive;

use base::units::{format_size, parse_size};
use base::{BLOCK, MIB, Prng};

use crate::slow_requests::Direction;

/// Sizes that a request may have.
const SIZES: RangeInclusive<u64> = BLOCK..=MIB;

/// A mix of requests at random places: every power of two from the least size to the most is as likely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    least: u64,
    most: u64,
    reads_percent: u64,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Read or write.
    pub direction: Direction,
    /// A power of two, at least a block.
    pub bytes: u64,
    /// Where, in whole blocks.
    pub offset: u64,
}

impl Default for Mix {
    /// Half reads, of 4 to 64 KiB.
    fn default() -> Mix {
        Mix { least: BLOCK, most: 16 * BLOCK, reads_percent: 50 }
    }
}

impl Mix {
    /// Reads `SIZE-SIZE:READS` or `SIZE:READS`, such as `4K-64K:50`.
    ///
    /// # Errors
    /// A sentence that says what a mix looks like.
    pub fn parse(text: &str) -> Result<Mix, String> {
        let wrong = || {
            let (least, most) = (format_size(*SIZES.start()), format_size(*SIZES.end()));
            format!(
                "'{text}' is not a mix: write sizes and the share of reads in percent, such as 4K-64K:50 or 4K:70; sizes \
                 are powers of two from {least} to {most}"
            )
        };
        let (sizes, reads) = text.split_once(':').ok_or_else(wrong)?;
        let (least, most) = sizes.split_once('-').unwrap_or((sizes, sizes));
        let size = |text: &str| {
            let size = parse_size(text).map_err(|_| wrong())?;
            if size.is_power_of_two() && SIZES.contains(&size) { Ok(size) } else { Err(wrong()) }
        };
        let (least, most) = (size(least)?, size(most)?);
        let reads_percent: u64 = reads.trim_end_matches('%').parse().map_err(|_| wrong())?;
        match least <= most && reads_percent <= 100 {
            true => Ok(Mix { least, most, reads_percent }),
            false => Err(wrong()),
        }
    }

    /// Bytes of a request in the mean.
    pub fn mean_bytes(&self) -> f64 {
        let sizes = self.sizes();
        sizes.clone().sum::<u64>() as f64 / sizes.count() as f64
    }

    /// The largest size.
    pub fn most_bytes(&self) -> u64 {
        self.most
    }

    /// The share of reads, in percent.
    pub fn reads_percent(&self) -> u64 {
        self.reads_percent
    }

    /// One request within the first `len` bytes, which hold the largest one at least.
    pub fn draw(&self, prng: &mut Prng, len: u64) -> Ask {
        let direction = if prng.below(100) < self.reads_percent { Direction::Read } else { Direction::Write };
        let bytes = self.least << prng.below(self.sizes().count() as u64);
        let offset = prng.below((len - bytes) / BLOCK + 1) * BLOCK;
        Ask { direction, bytes, offset }
    }

    fn sizes(&self) -> impl Iterator<Item = u64> + Clone + use<> {
        let most = self.most;
        std::iter::successors(Some(self.least), |size| Some(size * 2)).take_while(move |size| *size <= most)
    }
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", format_size(self.least))?;
        if self.most > self.least {
            write!(f, " to {}", format_size(self.most))?;
        }
        write!(f, ", {}% reads", self.reads_percent)
    }
}

/// Nanoseconds until the next one of `per_sec` requests that come at random times.
pub fn gap_ns(prng: &mut Prng, per_sec: f64) -> u64 {
    let uniform = (prng.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
    (-uniform.ln() * 1e9 / per_sec) as u64
}
