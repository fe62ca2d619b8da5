//! SipHash-2-4, with which names are hashed: a keyed hash, so that nobody can choose names that meet.

/// The hash of `bytes` under a key.
pub fn hash(seed: &[u8; 16], bytes: &[u8]) -> u64 {
    let (low, high) = seed.split_at(8);
    let word = |half: &[u8]| half.try_into().map_or(0, u64::from_le_bytes);
    let (key0, key1) = (word(low), word(high));
    let mut state = [
        key0 ^ 0x736f_6d65_7073_6575,
        key1 ^ 0x646f_7261_6e64_6f6d,
        key0 ^ 0x6c79_6765_6e65_7261,
        key1 ^ 0x7465_6462_7974_6573,
    ];
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        absorb(&mut state, u64::from_le_bytes(*word));
    }
    let mut last = (bytes.len() as u64) << 56;
    for (index, byte) in rest.iter().enumerate() {
        last |= u64::from(*byte) << (8 * index);
    }
    absorb(&mut state, last);
    let [_, _, third, _] = &mut state;
    *third ^= 0xff;
    (0..4).for_each(|_| round(&mut state));
    state.into_iter().fold(0, |sum, word| sum ^ word)
}

fn absorb(state: &mut [u64; 4], word: u64) {
    let [.., last] = state;
    *last ^= word;
    (0..2).for_each(|_| round(state));
    let [first, ..] = state;
    *first ^= word;
}

fn round(state: &mut [u64; 4]) {
    let [a, b, c, d] = state;
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_siphash_2_4() {
        // The vectors of the reference implementation: key 00 01 … 0f, messages 00, 00 01, …
        let key = core::array::from_fn(|index| index as u8);
        let message: [u8; 15] = core::array::from_fn(|index| index as u8);
        assert_eq!(hash(&key, &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(hash(&key, &message), 0xa129_ca61_49be_45e5);
    }
}
