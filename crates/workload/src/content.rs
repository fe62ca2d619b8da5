//! Bytes to write: they do not compress, and each block says where and by which write it was made.
//!
//! ```text
//! | block address | version | … window of random bytes … | address, version and seed mixed |
//!   8 bytes         8         4072                          8
//! ```
//! The window into a fixed pool of random bytes is chosen by address and version, so a block is
//! made by one copy and checked by one comparison: generating data must cost less than writing it.

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
        middle.copy_from_slice(self.window(origin));
        tail.copy_from_slice(&self.signature(origin).to_le_bytes());
    }

    /// Where a block came from; `None` if it is not one that [`Content::fill`] made, byte for
    /// byte.
    ///
    /// # Panics
    /// When `bytes` is no block.
    pub fn origin(&self, bytes: &[u8]) -> Option<Origin> {
        assert_eq!(bytes.len(), BLOCK_SIZE, "a whole block is looked at");
        let (block, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (middle, tail) = rest.split_at(WINDOW);
        let origin =
            Origin { block: u64::from_le_bytes(*block), version: u64::from_le_bytes(*version) };
        let whole = middle == self.window(origin) && tail == self.signature(origin).to_le_bytes();
        whole.then_some(origin)
    }

    fn window(&self, origin: Origin) -> &[u8] {
        let places = (POOL_SIZE - WINDOW) as u64 / 8;
        let start = (self.signature(origin) % places * 8) as usize;
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
