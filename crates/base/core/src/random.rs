//! The seeded random number generator of simulators, injected faults and tests.
//!
//! A run must replay from its seed alone, on any machine and any number of threads. The generator is therefore
//! implemented here: `SplitMix64` expands the seed, xoshiro256++ draws (both by Blackman and Vigna, public domain).
//! Parallel tasks do not share a generator: each derives its own seed with [`Seed::part`], which depends on the task's
//! number and not on the order of execution.
//!
//! The numbers are predictable. Secrets and unique names take random bits from the kernel (`straightway_sys::nonce`).

use serde::{Deserialize, Serialize};

/// The seed of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

/// A random number generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Default for Seed {
    fn default() -> Self {
        Self(1)
    }
}

impl Seed {
    /// Derives the seed of one of many independent tasks.
    #[must_use]
    pub fn part(self, number: u64) -> Self {
        Self(mix(self.0 ^ mix(number.wrapping_add(1)).rotate_left(17)))
    }

    /// A new generator with this seed.
    pub fn rng(self) -> Rng {
        let mut x = self.0;
        Rng {
            state: std::array::from_fn(|_| split_mix(&mut x)),
        }
    }

    /// `len` random bytes. Those of a shorter length are the beginning of these.
    // Inlined: tests that make megabytes run in crates that are optimised even in development.
    #[inline]
    pub fn bytes(self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rng().fill(&mut bytes);
        bytes
    }
}

impl Rng {
    /// The next 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let drawn = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        drawn
    }

    /// A number in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        // The top 53 bits: the precision of a double.
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A uniform whole number in `0..n` (Lemire's method without its rare retry: the bias is below n / 2^64).
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "there is no number below zero");
        let wide = u128::from(self.bits()) * u128::from(n);
        (wide >> 64) as u64
    }

    /// A uniform index of a slice with `len` items.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }

    /// A uniform choice of an item.
    #[inline]
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// An exponential waiting time with the given mean, as between independent failures.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Returns `true` with probability `p`.
    #[inline]
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }

    /// Fills `bytes` with random bytes.
    #[inline]
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.bits().to_le_bytes();
        }
        if !rest.is_empty() {
            let last = self.bits().to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

/// Hashes a number: the first output of `SplitMix64` with that seed. Different numbers have different hashes.
#[inline]
pub fn mix(mut number: u64) -> u64 {
    split_mix(&mut number)
}

/// One step of `SplitMix64`.
#[inline]
fn split_mix(x: &mut u64) -> u64 {
    *x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn split_mix_gives_the_published_values() {
        // The first outputs for seed 1234567, from the reference C code's test values.
        let mut x = 1_234_567;
        assert_eq!(split_mix(&mut x), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut x), 3_203_168_211_198_807_973);
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
    }

    #[test]
    fn xoshiro_gives_the_published_values() {
        // State 1, 2, 3, 4: the first outputs of the reference C code.
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let drawn: Vec<u64> = (0..4).map(|_| rng.bits()).collect();
        assert_eq!(
            drawn,
            [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]
        );
    }

    #[test]
    fn equal_seeds_give_equal_streams_and_parts_differ() {
        let draw = |seed: Seed| seed.rng().bits();
        assert_eq!(draw(Seed(7)), draw(Seed(7)));
        assert_ne!(draw(Seed(7).part(0)), draw(Seed(7).part(1)));
        assert_ne!(draw(Seed(7).part(0)), draw(Seed(8).part(0)));
    }

    #[test]
    fn the_means_match_their_distributions() {
        let mut rng = Seed(3).rng();
        let n = 100_000;
        let unit: f64 = (0..n).map(|_| rng.unit()).sum::<f64>() / f64::from(n);
        assert!((unit - 0.5).abs() < 0.005, "{unit}");
        let wait: f64 = (0..n).map(|_| rng.exponential(20.0)).sum::<f64>() / f64::from(n);
        assert!((wait - 20.0).abs() < 0.3, "{wait}");
        let below: u64 = (0..n).map(|_| rng.below(7)).sum();
        assert!((below as f64 / f64::from(n) - 3.0).abs() < 0.03, "{below}");
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Seed(5).rng().shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn an_index_is_inside_and_every_item_is_picked() {
        let mut rng = Seed(6).rng();
        assert!((1..200).all(|len| rng.index(len) < len));
        let picked: BTreeSet<_> = (0..100).map(|_| *rng.pick(&[1, 2, 3])).collect();
        assert_eq!(picked, BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn bytes_are_the_drawn_words_in_little_endian_order() {
        let mut rng = Seed(9).rng();
        let words: Vec<u8> = (0..5).flat_map(|_| rng.bits().to_le_bytes()).collect();
        for len in 0..=words.len() {
            assert_eq!(Seed(9).bytes(len), words[..len]);
        }
    }
}
