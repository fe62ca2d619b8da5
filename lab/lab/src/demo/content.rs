//! Content that can be told from any other content, byte for byte, without having been kept.
//!
//! It looks random, so that no layer can shorten it, and follows from a seed alone.

pub(crate) use coulter_workload::Random;

/// Fills `bytes` with the content that belongs to `seed`.
pub(crate) fn fill(seed: u64, bytes: &mut [u8]) {
    Random::new(seed).fill(bytes);
}

/// Whether `bytes` are what [`fill`] would write for `seed`.
pub(crate) fn is_whole(seed: u64, bytes: &[u8]) -> bool {
    let mut random = Random::new(seed);
    bytes.chunks(8).all(|chunk| chunk == &random.bits().to_le_bytes()[..chunk.len()])
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
