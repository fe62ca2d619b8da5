//! Bytes that were changed and have the checksum that they had: a CRC is linear, so four bytes make up for any others.

use coulter_format::checksum::crc32c;

/// Flips bits of the byte `at`, and changes the four bytes from `patch` on so that the CRC-32C stays as it was.
///
/// # Panics
/// If `at` is one of those four, or nothing is changed.
pub fn forge(bytes: &mut [u8], at: usize, flip: u8, patch: usize) {
    assert!(flip != 0 && !(patch..patch + 4).contains(&at), "something else is changed");
    let before = crc32c(bytes);
    bytes[at] ^= flip;
    let mut wanted = crc32c(bytes) ^ before;
    // What each bit of the patch does to the checksum, whatever the bytes are, in steps.
    let mut rows: Vec<(u32, u32)> = Vec::new();
    let now = crc32c(bytes);
    for bit in 0..32 {
        bytes[patch + bit / 8] ^= 1 << (bit % 8);
        let (mut effect, mut bits) = (crc32c(bytes) ^ now, 1u32 << bit);
        bytes[patch + bit / 8] ^= 1 << (bit % 8);
        for (row, row_bits) in &rows {
            if effect ^ row < effect {
                (effect, bits) = (effect ^ row, bits ^ row_bits);
            }
        }
        assert!(effect != 0, "four bytes give each checksum");
        rows.push((effect, bits));
        rows.sort_unstable_by(|one, other| other.cmp(one));
    }
    let mut change = 0;
    for (row, bits) in rows {
        if wanted ^ row < wanted {
            (wanted, change) = (wanted ^ row, change ^ bits);
        }
    }
    assert_eq!(wanted, 0, "the steps give each checksum");
    for (byte, change) in bytes[patch..].iter_mut().zip(change.to_le_bytes()) {
        *byte ^= change;
    }
    assert_eq!(crc32c(bytes), before, "nothing tells");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forged_differs_and_has_the_same_checksum() {
        for (at, flip, patch) in [(0, 1, 4), (5000, 0x80, 17), (9, 0xff, 5996), (5999, 3, 0)] {
            let before: Vec<u8> = (0..6000u32).map(|index| ((index * index) >> 3) as u8).collect();
            let mut after = before.clone();
            forge(&mut after, at, flip, patch);
            assert_eq!(after[at], before[at] ^ flip);
            let changed = (0..6000).filter(|index| after[*index] != before[*index]);
            assert!(
                changed.clone().all(|index| index == at || (patch..patch + 4).contains(&index))
            );
            assert!(changed.count() > 1);
            assert_eq!(crc32c(&after), crc32c(&before));
        }
    }
}
