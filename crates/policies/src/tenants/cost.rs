//! What a request takes, in the four dimensions in which a loop can be full (BurstCBS, OSDI 2024, §5.3).
//!
//! A scalar would be the price of the dearest dimension, and leave the others idle: a loop that is out of processor time
//! still has bytes to give. Numbers are floating point: a window's shares are products of ratios, and one look at a
//! thousand tenants is four multiplications each.

use std::ops::{Add, AddAssign, Mul, Sub, SubAssign};

/// How many dimensions there are.
pub const DIMENSIONS: usize = 4;

/// A dimension without a limit has so much of it in each window.
pub const UNLIMITED: f64 = 1e15;

/// In what a loop can be full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dimension {
    /// Processor time, in nanoseconds.
    Processor,
    /// Bytes that come in from clients.
    Ingress,
    /// Bytes that go out to them.
    Egress,
    /// Bytes both ways, against a limit that somebody has set.
    Software,
}

/// An amount in each dimension, by [`Dimension`].
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Cost(pub [f64; DIMENSIONS]);

impl Cost {
    /// Nothing.
    pub const ZERO: Cost = Cost([0.0; DIMENSIONS]);
    /// More than there ever is.
    pub const UNLIMITED: Cost = Cost([UNLIMITED; DIMENSIONS]);

    /// The amount in one dimension.
    pub fn of(&self, dimension: Dimension) -> f64 {
        self.0[dimension as usize]
    }

    /// Changes the amount in one dimension.
    pub fn set(&mut self, dimension: Dimension, amount: f64) {
        self.0[dimension as usize] = amount;
    }

    /// By dimension.
    #[inline]
    pub fn zip(self, other: Cost, with: impl Fn(f64, f64) -> f64) -> Cost {
        Cost(std::array::from_fn(|d| with(self.0[d], other.0[d])))
    }

    /// The lower amount of each dimension. Amounts are numbers: what `f64::min` does besides for those that are
    /// not takes several instructions where one is enough.
    #[inline]
    pub fn min(self, other: Cost) -> Cost {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    /// The higher amount of each dimension.
    #[inline]
    pub fn max(self, other: Cost) -> Cost {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    /// Whether there is as much in every dimension.
    #[inline]
    pub fn covers(&self, other: &Cost) -> bool {
        (0..DIMENSIONS).all(|d| self.0[d] >= other.0[d])
    }

    /// Whether there is nothing in any dimension.
    #[inline]
    pub fn is_zero(&self) -> bool {
        *self == Cost::ZERO
    }

    /// The highest share that this is of a total, in any dimension.
    #[inline]
    pub fn share_of(&self, total: &Cost) -> f64 {
        let shares = self.zip(*total, |amount, total| amount / total);
        shares.0.into_iter().fold(0.0, |most, share| if share > most { share } else { most })
    }
}

impl Add for Cost {
    type Output = Cost;

    #[inline]
    fn add(self, other: Cost) -> Cost {
        self.zip(other, |a, b| a + b)
    }
}

impl Sub for Cost {
    type Output = Cost;

    #[inline]
    fn sub(self, other: Cost) -> Cost {
        self.zip(other, |a, b| a - b)
    }
}

impl Mul<f64> for Cost {
    type Output = Cost;

    #[inline]
    fn mul(self, by: f64) -> Cost {
        Cost(self.0.map(|amount| amount * by))
    }
}

impl AddAssign for Cost {
    #[inline]
    fn add_assign(&mut self, other: Cost) {
        *self = *self + other;
    }
}

impl SubAssign for Cost {
    #[inline]
    fn sub_assign(&mut self, other: Cost) {
        *self = *self - other;
    }
}
