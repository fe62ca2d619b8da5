//! A run of journal entries, as the checkpoint names it.

use coulter_format::BlockPointer;
use coulter_format::checkpoint::RunHeader;

/// Bits of a run block's key that number the block.
pub(crate) const RUN_KEY_SHIFT: u32 = 20;

/// A run, with the places of its blocks.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) header: RunHeader,
    pub(crate) blocks: Vec<BlockPointer>,
}

impl Run {
    /// The key of one of its blocks.
    pub(crate) fn key(&self, index: usize) -> u64 {
        self.header.number.wrapping_shl(RUN_KEY_SHIFT) | index as u64
    }
}
