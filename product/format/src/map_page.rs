//! Map pages: 512 pointers and nothing else, so that a page covers exactly 2 MiB of host space.
//!
//! A page carries no header. Its kind, key and checksum are held by whatever points at it, and the
//! version by the record that it was written in.
//!
//! ```text
//! leaf page: entry i → host block  key × 512 + i
//! root page: entry i → leaf page   key × 512 + i
//! ```

use crate::{Block, BlockPointer, Pba};

/// Entries in a map page.
pub const ENTRIES_PER_PAGE: usize = 512;

const _: () = assert!(ENTRIES_PER_PAGE * 8 == crate::BLOCK_SIZE);

/// The page's entries in order.
pub fn decode(page: &Block) -> impl Iterator<Item = BlockPointer> + '_ {
    page.as_chunks::<8>().0.iter().map(|[a, b, c, d, e, f, g, h]| BlockPointer {
        pba: Pba(u32::from_le_bytes([*a, *b, *c, *d])),
        checksum: u32::from_le_bytes([*e, *f, *g, *h]),
    })
}

/// Writes entries in order; those that the iterator does not give point nowhere.
pub fn encode(entries: impl Iterator<Item = BlockPointer>, page: &mut Block) {
    let (slots, _) = page.as_chunks_mut::<8>();
    let mut entries = entries;
    for slot in slots {
        let entry = entries.next().unwrap_or(BlockPointer::NOWHERE);
        let [a, b, c, d] = entry.pba.0.to_le_bytes();
        let [e, f, g, h] = entry.checksum.to_le_bytes();
        *slot = [a, b, c, d, e, f, g, h];
    }
}

/// An entry as the map keeps it in memory: `pba` in the low half, checksum in the high one. On disk
/// it is the same eight bytes, little-endian.
pub const fn pack(pointer: BlockPointer) -> u64 {
    pointer.pba.0 as u64 | (pointer.checksum as u64) << 32
}

/// See [`pack`].
pub const fn unpack(word: u64) -> BlockPointer {
    BlockPointer { pba: Pba(word as u32), checksum: (word >> 32) as u32 }
}

/// Writes a page of packed entries, in order. Returns whether any of them points somewhere.
pub fn encode_packed(words: impl Iterator<Item = u64>, page: &mut Block) -> bool {
    let mut any = 0;
    for (slot, word) in page.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *slot = word.to_le_bytes();
        any |= word as u32;
    }
    any != 0
}

/// The entries of a page, packed.
pub fn packed(page: &Block) -> impl Iterator<Item = u64> + '_ {
    page.as_chunks::<8>().0.iter().map(|slot| u64::from_le_bytes(*slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_the_round_trip_and_missing_ones_point_nowhere() {
        let mut page = [0xff; crate::BLOCK_SIZE];
        let pointer = |i: u32| BlockPointer { pba: Pba(i + 1), checksum: i * 3 };
        encode((0..100).map(pointer), &mut page);
        for (index, entry) in decode(&page).enumerate() {
            let expected = if index < 100 { pointer(index as u32) } else { BlockPointer::NOWHERE };
            assert_eq!(entry, expected);
        }
        assert_eq!(decode(&page).count(), ENTRIES_PER_PAGE);
    }

    #[test]
    fn packed_entries_are_the_same_bytes() {
        let pointer = |i: u32| BlockPointer { pba: Pba(i % 7), checksum: i * 3 };
        let mut words = [0; ENTRIES_PER_PAGE];
        for (index, word) in words.iter_mut().enumerate() {
            *word = pack(pointer(index as u32));
            assert_eq!(unpack(*word), pointer(index as u32));
        }
        let (mut page, mut packed) = ([0; crate::BLOCK_SIZE], [0; crate::BLOCK_SIZE]);
        encode((0..512).map(pointer), &mut page);
        assert!(encode_packed(words.into_iter(), &mut packed));
        assert_eq!(page, packed);
        assert!(super::packed(&packed).eq(words));
        assert!(!encode_packed([0; ENTRIES_PER_PAGE].into_iter(), &mut packed));
    }
}
