//! Content that can be told from any other content, byte for byte, without having been kept.
//!
//! It looks random, so that no layer can shorten it, and follows from a seed alone.

/// A small generator of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator that gives the same numbers for the same seed.
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        assert_ne!(bound, 0, "there is no number below 0");
        // The bias is at most bound / 2^64.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Fills `bytes` with the content that belongs to `seed`.
pub(crate) fn fill(seed: u64, bytes: &mut [u8]) {
    let mut random = Random::new(seed);
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
}

/// Whether `bytes` are what [`fill`] would write for `seed`.
pub(crate) fn is_whole(seed: u64, bytes: &[u8]) -> bool {
    let mut random = Random::new(seed);
    bytes.chunks(8).all(|chunk| chunk == &random.next().to_le_bytes()[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_recognised_and_any_changed_bit_is_seen() {
        let mut bytes = vec![0; 1003];
        fill(7, &mut bytes);
        assert!(is_whole(7, &bytes));
        assert!(!is_whole(8, &bytes));
        for index in [0, 7, 8, 500, 1002] {
            bytes[index] ^= 0x10;
            assert!(!is_whole(7, &bytes), "a change of byte {index} goes unseen");
            bytes[index] ^= 0x10;
        }
    }

    #[test]
    fn bounded_numbers_stay_below_their_bound_and_reach_all_values() {
        let mut random = Random::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[random.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
