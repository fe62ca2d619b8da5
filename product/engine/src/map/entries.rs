//! Packed entries: a leaf's 512 pointers, each as wide as the addresses of the store need.
//!
//! A pointer is 32 bits of checksum and a device address, and no store below 8 TiB has addresses of
//! 32 bits. So in memory, and there alone, an entry of *w* bits lies at bit *i* × *w*:
//!
//! ```text
//! bit 0–31: checksum; bit 32 to w - 1: pba
//! ```
//!
//! 512 entries of *w* bits are *w* cells of 64 bytes, so whatever *w* is, arrays and cells share
//! frames and nothing is left over.
//!
//! # Invariants
//! - An entry takes no bit of its neighbours: a pointer that is wider than the entries is a bug.
//!
//! # Does not
//! know of the format on the device, where an entry has 64 bits. The words that come and go are of
//! that shape: see [`coulter_format::map_page::pack`].

use coulter_format::map_page::ENTRIES_PER_PAGE;

/// Bits of an entry: from 33, for "nowhere" and "lost" are addresses as well, to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryWidth {
    bits: u8,
    /// The lowest bits, as many as an entry has. Kept because lookups are many.
    mask: u64,
}

const CHECKSUM_BITS: u32 = 32;

impl EntryWidth {
    /// For every address that there is.
    pub(crate) const MAX: EntryWidth = EntryWidth::of_bits(64);

    const fn of_bits(bits: u32) -> EntryWidth {
        EntryWidth { bits: bits as u8, mask: u64::MAX >> (u64::BITS - bits) }
    }

    /// For the addresses below this one.
    pub(crate) const fn of_addresses_below(end: u64) -> EntryWidth {
        let bits = u64::BITS - end.saturating_sub(1).leading_zeros();
        // No more than an address has: what lies behind is refused elsewhere.
        let bits = if bits < 1 { 1 } else { bits };
        let bits = if bits > u32::BITS { u32::BITS } else { bits };
        EntryWidth::of_bits(CHECKSUM_BITS + bits)
    }

    /// How many bits.
    pub(crate) const fn bits(self) -> usize {
        self.bits as usize
    }

    /// The lowest bits, as many as an entry has.
    pub(super) const fn mask(self) -> u64 {
        self.mask
    }

    /// Words that all entries of a leaf take.
    pub(super) const fn words_per_leaf(self) -> usize {
        ENTRIES_PER_PAGE * self.bits() / u64::BITS as usize
    }

    /// An entry's first word, its last word, and its first bit in the first.
    #[inline]
    const fn place(self, index: usize) -> (usize, usize, u32) {
        let (bit, words) = (index * self.bits(), u64::BITS as usize);
        (bit / words, (bit + self.bits() - 1) / words, bit as u32 % u64::BITS)
    }

    /// One entry, of those of a leaf or of many that lie one behind the other.
    ///
    /// Without a branch: of an entry that lies in one word, that word is taken twice, and what the
    /// second adds lies behind the entry's last bit.
    #[inline]
    pub(super) fn entry(self, words: &[u64], index: usize) -> u64 {
        let (first, last, bit) = self.place(index);
        let upper = words[last].wrapping_shl(u64::BITS - bit);
        rotated((words[first] >> bit | upper) & self.mask)
    }

    /// Changes one entry, and no bit of the others that share its words. Without a branch, too: of
    /// an entry that lies in one word nothing is beyond it.
    #[inline]
    pub(super) fn set_entry(self, words: &mut [u64], index: usize, word: u64) {
        let (first, last, bit) = self.place(index);
        let entry = rotated(word);
        assert!(entry & !self.mask == 0, "an address is one that the store can have");
        words[first] = words[first] & !(self.mask << bit) | entry << bit;
        // Twice, for at bit 0 it would be by 64.
        let beyond = |bits: u64| bits >> 1 >> (63 - bit);
        words[last] = words[last] & !beyond(self.mask) | beyond(entry);
    }

    /// Packs all entries of a leaf.
    pub(super) fn pack_all(self, entries: impl Iterator<Item = u64>, words: &mut [u64]) {
        let (mut gathered, mut count, mut all) = (0_u128, 0, 0);
        let mut words = words.iter_mut();
        for entry in entries.map(rotated) {
            all |= entry;
            gathered |= u128::from(entry) << count;
            count += self.bits();
            if count >= 64 {
                *words.next().expect("there is a word for each 64 bits") = gathered as u64;
                gathered >>= 64;
                count -= 64;
            }
        }
        assert!(words.next().is_none() && count == 0, "entries fill their words");
        assert!(all & !self.mask == 0, "a page's addresses were looked at when it came");
    }

    /// The reverse.
    pub(super) fn unpack_all(self, words: &[u64]) -> impl Iterator<Item = u64> {
        (0..ENTRIES_PER_PAGE).map(move |index| self.entry(words, index))
    }
}

/// From an address below its checksum to one above, where its unused bits are the highest, and back.
#[inline]
const fn rotated(word: u64) -> u64 {
    word.rotate_left(CHECKSUM_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_workload::Random;

    fn widths() -> impl Iterator<Item = EntryWidth> {
        (33..=64).map(EntryWidth::of_bits)
    }

    /// Pointers that fit, the narrowest and the widest among them.
    struct Pointers {
        random: Random,
        width: EntryWidth,
    }

    impl Pointers {
        fn next(&mut self) -> u64 {
            let entry = match self.random.below(16) {
                0 => 0,
                1 => 1 << CHECKSUM_BITS,
                2 => u64::MAX,
                _ => self.random.bits(),
            };
            rotated(entry & self.width.mask())
        }
    }

    #[test]
    fn addresses_have_as_many_bits_as_the_highest_needs() {
        let bits = |end| EntryWidth::of_addresses_below(end).bits();
        for (end, expected) in [(0, 33), (1, 33), (2, 33), (3, 34), (4, 34), (5, 35)] {
            assert_eq!(bits(end), expected, "{end}");
        }
        assert_eq!(bits(1 << 31), 63, "8 TiB");
        assert_eq!(bits((1 << 31) + 1), 64);
        assert_eq!(bits(1 << 32), 64, "16 TiB");
        assert_eq!(bits(u64::MAX), 64);
        assert_eq!(EntryWidth::of_addresses_below(1 << 32), EntryWidth::MAX);
    }

    #[test]
    fn entries_of_every_width_are_read_as_they_were_set_and_no_neighbour_changes() {
        for width in widths() {
            let mut pointers = Pointers { random: Random::new(77 + width.bits() as u64), width };
            let mut plain = [0; ENTRIES_PER_PAGE];
            let mut words = alloc::vec![0; width.words_per_leaf()];
            assert_eq!(words.len(), 8 * width.bits());
            for turn in 0..3000 {
                let random = pointers.next() >> 32 ^ turn;
                let index = match turn {
                    0..1000 => turn as usize % ENTRIES_PER_PAGE,
                    _ => random as usize % ENTRIES_PER_PAGE,
                };
                plain[index] = pointers.next();
                width.set_entry(&mut words, index, plain[index]);
                let near = plain.iter().enumerate().skip(index.saturating_sub(2)).take(5);
                for (near, expected) in near {
                    assert_eq!(width.entry(&words, near), *expected, "{width:?}, {near}");
                }
            }
            for (index, expected) in plain.iter().enumerate() {
                assert_eq!(width.entry(&words, index), *expected, "{width:?}, {index}");
            }
        }
    }

    #[test]
    fn a_whole_leaf_of_every_width_comes_out_as_it_went_in() {
        for width in widths() {
            let mut pointers = Pointers { random: Random::new(5 + width.bits() as u64), width };
            let plain: [u64; ENTRIES_PER_PAGE] = core::array::from_fn(|_| pointers.next());
            // What was there before is gone.
            let mut words = alloc::vec![u64::MAX; width.words_per_leaf()];
            width.pack_all(plain.iter().copied(), &mut words);
            let mut one_by_one = alloc::vec![u64::MAX; width.words_per_leaf()];
            for (index, entry) in plain.iter().enumerate() {
                width.set_entry(&mut one_by_one, index, *entry);
            }
            assert_eq!(words, one_by_one, "{width:?}");
            assert!(width.unpack_all(&words).eq(plain), "{width:?}");
        }
    }

    const TOO_WIDE: u64 = 1 << 20;

    #[test]
    #[should_panic(expected = "one that the store can have")]
    fn an_entry_that_is_too_wide_is_refused() {
        let width = EntryWidth::of_addresses_below(TOO_WIDE);
        width.set_entry(&mut alloc::vec![0; width.words_per_leaf()], 0, TOO_WIDE);
    }

    #[test]
    #[should_panic(expected = "looked at when it came")]
    fn a_leaf_with_an_entry_that_is_too_wide_is_refused() {
        let width = EntryWidth::of_addresses_below(TOO_WIDE);
        let mut entries = [0; ENTRIES_PER_PAGE];
        entries[100] = TOO_WIDE;
        width.pack_all(entries.into_iter(), &mut alloc::vec![0; width.words_per_leaf()]);
    }
}
