//! Which host blocks are in use: one bitmap block for each group.

use crate::{BLOCK_SIZE, Block};

/// Host blocks of a group: the bits of its bitmap.
pub const GROUP_BLOCKS: u64 = (BLOCK_SIZE * 8) as u64;

/// The group that a host block lies in.
pub fn group_of(block: u64) -> u64 {
    block / GROUP_BLOCKS
}

/// The host block of a group's bitmap.
pub fn bitmap_block(group: u64) -> u64 {
    if group == 0 { 1 } else { group * GROUP_BLOCKS }
}

/// Blocks at the front of a group that are never free: its bitmap, and the superblock.
pub fn reserved_blocks(group: u64) -> u64 {
    if group == 0 { 2 } else { 1 }
}

/// Groups of a file system of so many host blocks.
pub fn group_count(block_count: u64) -> u64 {
    block_count.div_ceil(GROUP_BLOCKS)
}

/// Blocks of a group.
pub fn group_size(group: u64, block_count: u64) -> u64 {
    (block_count - group * GROUP_BLOCKS).min(GROUP_BLOCKS)
}

/// Whether a block of the group is in use. The reserved ones are, whatever their bits say.
pub fn is_used(bitmap: &Block, group: u64, bit: u64) -> bool {
    let byte = bitmap.get((bit / 8) as usize).copied().unwrap_or(0xff);
    bit < reserved_blocks(group) || byte & 1 << (bit % 8) != 0
}

/// Marks a run of a group's blocks.
pub fn mark(bitmap: &mut Block, first: u64, count: u64, used: bool) {
    for bit in first..first + count {
        if let Some(byte) = bitmap.get_mut((bit / 8) as usize) {
            if used {
                *byte |= 1 << (bit % 8);
            } else {
                *byte &= !(1 << (bit % 8));
            }
        }
    }
}

/// The first free block of a group at or behind `from`.
pub fn next_free(bitmap: &Block, group: u64, from: u64, size: u64) -> Option<u64> {
    let mut bit = from.max(reserved_blocks(group));
    while bit < size {
        if bit.is_multiple_of(64) && word(bitmap, bit) == u64::MAX {
            bit += 64;
        } else if is_used(bitmap, group, bit) {
            bit += 1;
        } else {
            return Some(bit);
        }
    }
    None
}

/// Free blocks from `first` on, up to `limit`.
pub fn free_run(bitmap: &Block, group: u64, first: u64, limit: u64, size: u64) -> u64 {
    let end = (first + limit).min(size);
    let mut bit = first;
    while bit < end {
        if bit.is_multiple_of(64) && bit + 64 <= end && word(bitmap, bit) == 0 {
            bit += 64;
        } else if is_used(bitmap, group, bit) {
            break;
        } else {
            bit += 1;
        }
    }
    bit - first
}

/// Free blocks of a group.
pub fn free_count(bitmap: &Block, group: u64, size: u64) -> u64 {
    let (words, _) = bitmap.as_chunks::<8>();
    let mut used = 0;
    for (index, word) in words.iter().enumerate() {
        let first = index as u64 * 64;
        let bits = size.saturating_sub(first).min(64);
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        used += u64::from((u64::from_le_bytes(*word) & mask).count_ones());
    }
    let hidden = (0..reserved_blocks(group)).filter(|bit| {
        let byte = bitmap.first().copied().unwrap_or(0);
        byte & 1 << bit == 0
    });
    size - used - hidden.count() as u64
}

fn word(bitmap: &Block, bit: u64) -> u64 {
    let (words, _) = bitmap.as_chunks::<8>();
    words.get((bit / 64) as usize).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_bitmap_has_all_free_but_what_is_reserved() {
        let bitmap = [0; BLOCK_SIZE];
        assert_eq!(free_count(&bitmap, 0, GROUP_BLOCKS), GROUP_BLOCKS - 2);
        assert_eq!(next_free(&bitmap, 0, 0, 100), Some(2));
        assert_eq!(next_free(&bitmap, 3, 0, 100), Some(1));
        assert_eq!(free_run(&bitmap, 0, 2, 1000, 500), 498);
    }

    #[test]
    fn runs_are_found_around_what_is_marked() {
        let mut bitmap = [0; BLOCK_SIZE];
        mark(&mut bitmap, 2, 300, true);
        mark(&mut bitmap, 100, 1, false);
        mark(&mut bitmap, 200, 40, false);
        assert_eq!(next_free(&bitmap, 0, 0, 1000), Some(100));
        assert_eq!(free_run(&bitmap, 0, 100, 64, 1000), 1);
        assert_eq!(next_free(&bitmap, 0, 101, 1000), Some(200));
        assert_eq!(free_run(&bitmap, 0, 200, 64, 1000), 40);
        assert_eq!(free_count(&bitmap, 0, 1000), 1000 - 2 - 300 + 41);
        assert_eq!(next_free(&bitmap, 0, 240, 302), None);
    }
}
