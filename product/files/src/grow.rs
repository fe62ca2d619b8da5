//! A file system that takes in more of its volume, while it is not mounted.
//!
//! The bitmaps of new groups are written first, then the superblock. Until that is durable the file
//! system has its old size, and nothing reads the blocks behind it.

use coulter_format::Block;
use coulter_format::files::{BLOCK_COUNT_MAX, Superblock, space};

/// The blocks that make a file system larger.
pub struct FilesGrowth {
    /// Bitmaps of new groups, all free: to be written, and durable, before the superblock.
    pub bitmaps: Vec<u64>,
    /// Its new superblock, for host block 0.
    pub superblock: Superblock,
}

/// The growth of a file system to `block_count` host blocks; `None` if it has them already.
pub fn grow(superblock: &Superblock, block_count: u64) -> Option<FilesGrowth> {
    let block_count = block_count.min(BLOCK_COUNT_MAX);
    let added = block_count.checked_sub(superblock.block_count).filter(|added| *added > 0)?;
    let groups = space::group_count(superblock.block_count)..space::group_count(block_count);
    let reserved: u64 = groups.clone().map(space::reserved_blocks).sum();
    let free_blocks = superblock.free_blocks + added - reserved;
    let superblock = Superblock { block_count, free_blocks, ..*superblock };
    Some(FilesGrowth { bitmaps: groups.map(space::bitmap_block).collect(), superblock })
}

/// A bitmap of a group in which nothing is in use.
pub const EMPTY_BITMAP: Block = [0; coulter_format::BLOCK_SIZE];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Time};

    fn made(block_count: u64) -> Superblock {
        let options = CreateOptions {
            block_count,
            uuid: [1; 16],
            hash_seed: [2; 16],
            label: [0; 64],
            owner: (0, 0),
            now: Time::default(),
        };
        let [superblock, ..] = crate::create(&options).expect("it has room");
        Superblock::decode(&superblock).expect("it was just made")
    }

    #[test]
    fn a_grown_file_system_counts_as_one_that_was_made_so_large() {
        let group = space::GROUP_BLOCKS;
        for (small, large) in
            [(8192, 8193), (8192, group), (group, group + 1), (group + 5, 9 * group + 7)]
        {
            let growth = grow(&made(small), large).expect("it is larger");
            assert_eq!(growth.superblock, made(large), "{small} to {large}");
            let new = (0..space::group_count(large)).map(space::bitmap_block);
            let new: Vec<u64> = new.filter(|block| *block >= small).collect();
            assert_eq!(growth.bitmaps, new, "{small} to {large}");
        }
        assert!(grow(&made(8192), 8192).is_none());
        assert!(grow(&made(8192), 8191).is_none(), "it never shrinks");
    }
}
