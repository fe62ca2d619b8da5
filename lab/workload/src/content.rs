//! Bytes to write: they do not compress, and each block says where and by which write it was made.
//!
//! ```text
//! | block address | version | … window of random bytes … | address, version and seed mixed |
//!   8 bytes         8         4072                          8
//! ```
//! The window into a fixed pool of random bytes is chosen by address and version, so a block is
//! made by one copy and checked by one comparison: generating data must cost less than writing it.
//! Where even a copy is too much, the window is chosen once by a number, and the rest is stamped at
//! each write.

use crate::random::{Random, mix};

/// Bytes in a block.
pub const BLOCK_SIZE: usize = 4096;

const POOL_SIZE: usize = 1 << 20;
const HEAD: usize = 16;
const TAIL: usize = 8;
const WINDOW: usize = BLOCK_SIZE - HEAD - TAIL;

/// Where a block's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The block that they were made for.
    pub block: u64,
    /// Which write of that block.
    pub version: u64,
}

/// The version's upper half in a stamped block: the number of its window, and one.
const NUMBER_SHIFT: u32 = 32;

/// Makes and recognises blocks.
#[derive(Clone, Debug)]
pub struct Content {
    pool: Vec<u8>,
    seed: u64,
}

impl Content {
    /// Contents of their own for each seed.
    pub fn new(seed: u64) -> Content {
        let mut random = Random::new(seed);
        let pool = (0..POOL_SIZE / 8).flat_map(|_| random.bits().to_le_bytes()).collect();
        Content { pool, seed }
    }

    /// Fills a block.
    ///
    /// # Panics
    /// When `bytes` is no block.
    pub fn fill(&self, bytes: &mut [u8], origin: Origin) {
        assert_eq!(bytes.len(), BLOCK_SIZE, "a whole block is filled");
        let (head, rest) = bytes.split_at_mut(HEAD);
        let (middle, tail) = rest.split_at_mut(WINDOW);
        head[..8].copy_from_slice(&origin.block.to_le_bytes());
        head[8..].copy_from_slice(&origin.version.to_le_bytes());
        middle.copy_from_slice(self.window_at(self.signature(origin)));
        tail.copy_from_slice(&self.signature(origin).to_le_bytes());
    }

    /// Fills a block that is to be stamped many times, so that a write costs 24 bytes of new data
    /// and not a block. Blocks of different numbers have different bytes.
    ///
    /// # Panics
    /// When `bytes` is no block.
    pub fn prepare(&self, bytes: &mut [u8], number: u32) {
        assert_eq!(bytes.len(), BLOCK_SIZE, "a whole block is filled");
        bytes[HEAD..HEAD + WINDOW].copy_from_slice(self.window_at(mix(number.into())));
    }

    /// Says in a prepared block where it comes from.
    ///
    /// # Panics
    /// When `bytes` is no block, or the version or the number has more than 32 bits.
    pub fn stamp(&self, bytes: &mut [u8], origin: Origin, number: u32) {
        assert_eq!(bytes.len(), BLOCK_SIZE, "a whole block is stamped");
        assert!(origin.version < 1 << NUMBER_SHIFT, "the number is kept above the version");
        assert!(number < u32::MAX, "zero stands for no number");
        let version = (u64::from(number) + 1) << NUMBER_SHIFT | origin.version;
        bytes[..8].copy_from_slice(&origin.block.to_le_bytes());
        bytes[8..HEAD].copy_from_slice(&version.to_le_bytes());
        let tail = !self.signature(Origin { version, ..origin });
        bytes[HEAD + WINDOW..].copy_from_slice(&tail.to_le_bytes());
    }

    /// Where a block came from; `None` if it is not one that [`Content::stamp`] finished, byte for
    /// byte.
    ///
    /// # Panics
    /// When `bytes` is no block.
    pub fn stamped_origin(&self, bytes: &[u8]) -> Option<Origin> {
        let (origin, middle, tail) = Self::parts(bytes)?;
        if tail != !self.signature(origin) {
            return None;
        }
        let number = (origin.version >> NUMBER_SHIFT).checked_sub(1)?;
        let version = origin.version & ((1 << NUMBER_SHIFT) - 1);
        (middle == self.window_at(mix(number))).then_some(Origin { version, ..origin })
    }

    /// Where a block came from; `None` if it is not one that [`Content::fill`] made, byte for
    /// byte.
    ///
    /// # Panics
    /// When `bytes` is no block.
    pub fn origin(&self, bytes: &[u8]) -> Option<Origin> {
        let (origin, middle, tail) = Self::parts(bytes)?;
        let signature = self.signature(origin);
        (tail == signature && middle == self.window_at(signature)).then_some(origin)
    }

    /// What a block says of itself, its window, and its last word: the signature, or, of a stamped
    /// one, the signature's complement. By its window alone one in some 130,000 would be taken for
    /// the other.
    fn parts(bytes: &[u8]) -> Option<(Origin, &[u8], u64)> {
        assert_eq!(bytes.len(), BLOCK_SIZE, "a whole block is looked at");
        let (block, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (middle, tail) = rest.split_last_chunk()?;
        let origin =
            Origin { block: u64::from_le_bytes(*block), version: u64::from_le_bytes(*version) };
        Some((origin, middle, u64::from_le_bytes(*tail)))
    }

    /// The window that a value chooses.
    fn window_at(&self, choice: u64) -> &[u8] {
        let places = (POOL_SIZE - WINDOW) as u64 / 8;
        let start = (choice % places * 8) as usize;
        &self.pool[start..start + WINDOW]
    }

    fn signature(&self, origin: Origin) -> u64 {
        mix(mix(origin.block ^ self.seed).wrapping_add(origin.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_where_it_came_from_and_nothing_else_passes_for_one() {
        let content = Content::new(1);
        let mut block = [0; BLOCK_SIZE];
        assert_eq!(content.origin(&block), None, "zeros are not content");
        let origin = Origin { block: 77, version: 3 };
        content.fill(&mut block, origin);
        assert_eq!(content.origin(&block), Some(origin));
        assert_eq!(Content::new(2).origin(&block), None, "another seed");
        for place in [0, 8, 16, 2048, BLOCK_SIZE - 9, BLOCK_SIZE - 1] {
            block[place] ^= 1;
            assert_eq!(content.origin(&block), None, "byte {place} was changed");
            block[place] ^= 1;
        }
    }

    #[test]
    fn a_stamped_block_says_where_it_came_from_and_is_not_taken_for_one_that_was_filled() {
        let content = Content::new(1);
        let mut block = [0; BLOCK_SIZE];
        content.prepare(&mut block, 5);
        assert_eq!(content.stamped_origin(&block), None, "it is not stamped yet");
        for version in [1, 2] {
            let origin = Origin { block: 77, version };
            content.stamp(&mut block, origin, 5);
            assert_eq!(content.stamped_origin(&block), Some(origin));
        }
        // So many that a window would be the right one by chance in some.
        for number in 0..500_000 {
            content.stamp(&mut block, Origin { block: number, version: 1 }, 5);
            assert_eq!(content.origin(&block), None, "it was stamped, not filled");
        }
        for place in [0, 8, 12, 16, 2048, BLOCK_SIZE - 9, BLOCK_SIZE - 1] {
            block[place] ^= 1;
            assert_eq!(content.stamped_origin(&block), None, "byte {place} was changed");
            block[place] ^= 1;
        }
        content.fill(&mut block, Origin { block: 77, version: 3 });
        assert_eq!(content.stamped_origin(&block), None, "it was filled, not stamped");
    }

    #[test]
    fn blocks_do_not_compress() {
        let content = Content::new(1);
        let mut block = [0; BLOCK_SIZE];
        content.fill(&mut block, Origin { block: 1, version: 1 });
        let mut counts = [0u32; 256];
        block.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        let entropy: f64 = counts
            .iter()
            .filter(|count| **count > 0)
            .map(|count| f64::from(*count) / BLOCK_SIZE as f64)
            .map(|share| -share * share.log2())
            .sum();
        assert!(entropy > 7.9, "{entropy} bits in a byte");
    }
}
