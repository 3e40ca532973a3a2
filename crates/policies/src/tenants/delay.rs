//! Cost that follows delay: what a profile cannot foresee (BurstCBS, OSDI 2024, §5.3, "unpredictable misestimation").
//!
//! The delay of a request is the time that the agent itself takes for it: neither what it waited for its tenant's share counts
//! nor the time at the store, whose tail says nothing about this loop. Here it is how long the loop took to come to it: from
//! there a request is handed on in one go. Its target is twice what it is without load, and no less than a fifth of a
//! millisecond: below, delay is what one look at the network brings, and nobody's harm. A window above it makes everything
//! 5% dearer, one below 2% cheaper, between once and four times the profile. The paper prints no numbers; these are ours.

/// How much dearer a window above the target makes everything.
const UP: f64 = 1.05;
/// How much cheaper one below.
const DOWN: f64 = 0.98;
/// The most by which a profile is taken to be wrong.
const FACTOR_MAX: f64 = 4.0;
/// The target, in delays without load.
const TARGET: f64 = 2.0;
/// The least that the target is, in nanoseconds.
const TARGET_MIN_NS: f64 = 200_000.0;
/// By how much the lowest delay that was seen is forgotten in a window: by half in a minute.
const FORGET: f64 = 1.000_012;

/// The factor by which everything is dearer than its profile.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    /// The lowest mean of a window: the delay without load, in nanoseconds. Infinite: nothing was seen.
    unloaded_ns: f64,
    /// Delays of the present window.
    sum_ns: f64,
    count: u32,
    factor: f64,
}

impl Default for Delay {
    fn default() -> Self {
        Delay { unloaded_ns: f64::INFINITY, sum_ns: 0.0, count: 0, factor: 1.0 }
    }
}

impl Delay {
    /// A request took so long, in nanoseconds.
    #[inline]
    pub fn on_delay(&mut self, delay_ns: u64) {
        self.sum_ns += delay_ns as f64;
        self.count += 1;
    }

    /// Windows have passed.
    pub fn on_windows(&mut self, windows: u64) {
        self.unloaded_ns *= FORGET.powi(windows.min(1 << 20) as i32);
        if self.count == 0 {
            self.factor = (self.factor * DOWN.powi(windows.min(100) as i32)).max(1.0);
            return;
        }
        let mean_ns = self.sum_ns / f64::from(self.count);
        self.unloaded_ns = self.unloaded_ns.min(mean_ns);
        let target_ns = (TARGET * self.unloaded_ns).max(TARGET_MIN_NS);
        let by = if mean_ns > target_ns { UP } else { DOWN };
        self.factor = (self.factor * by).clamp(1.0, FACTOR_MAX);
        (self.sum_ns, self.count) = (0.0, 0);
    }

    /// By how much everything is dearer than its profile says: 1 to 4.
    pub fn factor(&self) -> f64 {
        self.factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(delay: &mut Delay, count: u32, delay_ns: u64) {
        for _ in 0..count {
            delay.on_delay(delay_ns);
            delay.on_windows(1);
        }
    }

    #[test]
    fn cost_rises_with_delay_and_falls_with_it() {
        let mut delay = Delay::default();
        windows(&mut delay, 10, 150_000);
        assert_eq!(delay.factor(), 1.0);
        windows(&mut delay, 10, 290_000);
        assert_eq!(delay.factor(), 1.0, "below twice what it is without load");
        windows(&mut delay, 15, 350_000);
        assert!((2.0..2.2).contains(&delay.factor()), "{}", delay.factor());
        windows(&mut delay, 100, 350_000);
        assert_eq!(delay.factor(), FACTOR_MAX, "no more than that");
        windows(&mut delay, 35, 200_000);
        assert!((1.9..2.1).contains(&delay.factor()), "{}", delay.factor());
        delay.on_windows(1000);
        assert_eq!(delay.factor(), 1.0, "nobody is there");
    }
}
