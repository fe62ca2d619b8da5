//! Blocks that were found damaged, each counted once however often it is read.
//!
//! Memory is bounded: behind the first [`KNOWN_MAX`] damaged blocks each finding counts.

use crate::memory::{NoMemory, list};
use alloc::vec::Vec;
use coulter_format::checksum::Kind;

/// Damaged blocks that are told apart.
const KNOWN_MAX: usize = 1024;

/// Tells the key of a map page from the address of a host block.
const METADATA: u64 = 1 << 63;

/// Those that are known, in order.
pub(crate) struct CorruptBlocks {
    known: Vec<u64>,
}

impl CorruptBlocks {
    pub(crate) fn new() -> Result<CorruptBlocks, NoMemory> {
        Ok(CorruptBlocks { known: list(KNOWN_MAX)? })
    }

    /// Notes one. True if it was not known before, and counts.
    pub(crate) fn note(&mut self, kind: Kind, key: u64) -> bool {
        let key = if kind == Kind::Data { key } else { key | METADATA };
        match self.known.binary_search(&key) {
            Ok(_) => false,
            Err(place) => {
                if self.known.len() < KNOWN_MAX {
                    self.known.insert(place, key);
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_counts_once_in_bounded_memory() {
        let mut corrupt = CorruptBlocks::new().expect("there is memory");
        assert!(corrupt.note(Kind::Data, 7));
        assert!(!corrupt.note(Kind::Data, 7));
        assert!(corrupt.note(Kind::Leaf, 7), "a map page is no host block");
        let room = corrupt.known.capacity();
        for key in 0..2 * KNOWN_MAX as u64 {
            corrupt.note(Kind::Data, key);
        }
        assert_eq!((corrupt.known.len(), corrupt.known.capacity()), (KNOWN_MAX, room));
        assert!(!corrupt.note(Kind::Data, 7));
    }
}
