//! A small generator of random numbers with an explicit seed, for policies, the simulation and tests.
//!
//! xoshiro256** seeded by splitmix64 (Blackman and Vigna, 2018). Not for secrets.

/// A deterministic generator: the same seed gives the same numbers, on every machine.
#[derive(Clone, Debug)]
pub struct Prng {
    state: [u64; 4],
}

impl Prng {
    /// A generator whose numbers depend on `seed` only.
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        let mut split_mix = || {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Prng { state: [split_mix(), split_mix(), split_mix(), split_mix()] }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`, evenly distributed. `bound` must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        match (high - low).checked_add(1) {
            Some(span) => low + self.below(span),
            None => self.next_u64(),
        }
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Fills `bytes` with random content.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// An independent generator, seeded by this one.
    pub fn fork(&mut self) -> Prng {
        Prng::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let (mut a, mut b, mut c) = (Prng::new(7), Prng::new(7), Prng::new(8));
        let first: Vec<u64> = (0..16).map(|_| a.next_u64()).collect();
        assert_eq!(first, (0..16).map(|_| b.next_u64()).collect::<Vec<_>>());
        assert_ne!(first, (0..16).map(|_| c.next_u64()).collect::<Vec<_>>());
    }

    #[test]
    fn below_covers_its_range() {
        let mut prng = Prng::new(1);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[prng.below(7) as usize] = true;
        }
        assert!(seen.iter().all(|&s| s));
        assert_eq!(prng.between(u64::MAX, u64::MAX), u64::MAX);
    }
}
