//! Every number below a bound once, in random order, from a few bytes of state.
//!
//! A Feistel network over the smallest even number of bits that holds the bound is a bijection;
//! results outside the bound are put through again until they fall inside ("cycle walking", Black
//! and Rogaway 2002), which keeps it a bijection of the numbers below the bound.

use crate::random::mix;

const ROUNDS: u64 = 4;

/// A random order of the numbers `0..count`.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Permutation {
    /// An order of its own for each seed.
    ///
    /// # Panics
    /// When `count` is zero or above 2^62.
    pub fn new(count: u64, seed: u64) -> Permutation {
        assert!(count > 0, "an order of something");
        assert!(count <= 1 << 62, "the network works on at most 62 bits");
        let bits = (u64::BITS - (count - 1).leading_zeros()).max(2);
        Permutation { count, half_bits: bits.div_ceil(2), seed: mix(seed) }
    }

    /// How many numbers there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The number at a place in the order.
    ///
    /// # Panics
    /// When `place` is not below the count.
    #[inline]
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.count, "a place in the order");
        let mut number = self.scramble(place);
        // The network's range is below four times the count, so this takes four turns on average
        // at most; a cycle that never came inside would not contain `place`.
        while number >= self.count {
            number = self.scramble(number);
        }
        number
    }

    #[inline]
    fn scramble(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            let key = self.seed.wrapping_add(round << 56 | right);
            (left, right) = (right, left ^ (mix(key) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once() {
        for count in [1, 2, 3, 4, 5, 100, 255, 256, 257, 4095, 10_000] {
            let order = Permutation::new(count, 3);
            let mut seen: Vec<_> = (0..count).map(|place| order.at(place)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn the_order_looks_random_and_depends_on_the_seed() {
        let order = Permutation::new(10_000, 3);
        let rising = (1..10_000).filter(|place| order.at(place - 1) < order.at(*place)).count();
        assert!(rising.abs_diff(5000) < 250, "{rising} of 9999 steps go up");
        let neighbours =
            (1..10_000).filter(|place| order.at(place - 1).abs_diff(order.at(*place)) == 1);
        assert!(neighbours.count() < 15, "about two neighbours in ten thousand are due to chance");
        let other = Permutation::new(10_000, 4);
        let same = (0..10_000).filter(|place| order.at(*place) == other.at(*place)).count();
        assert!(same < 10, "{same} places agree");
    }
}
