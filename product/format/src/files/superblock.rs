//! The superblock of a file system: host block 0.
//!
//! ```text
//! 0   magic "COULTRFS"   8  version (u32)   12  features (u32)   16  identity
//! 32  host blocks (u64)  40 root node (u64) 48  level of the root (u32)   52  zeros
//! 56  next inode (u64)   64 free blocks (u64)   72  inodes (u64)   80  sets written (u64)
//! 88  seed of the hashes 104 label   168  zeros
//! ```

use crate::bytes::{at, put, u32_at, u64_at};
use crate::files::node::LEVELS_MAX;
use crate::files::{BLOCK_COUNT_MAX, BLOCK_COUNT_MIN, FILES_VERSION, FIRST_INODE};
use crate::{BLOCK_SIZE, Block, Corrupt, Reason, Structure};

/// The first bytes of a file system.
pub const MAGIC: [u8; 8] = *b"COULTRFS";
/// Numbers of inodes lie below this.
pub const INODE_LIMIT: u64 = 1 << 48;

/// What is true of the file system as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Which file system it is.
    pub uuid: [u8; 16],
    /// Host blocks that it may use, this one included.
    pub block_count: u64,
    /// Host block of the root of the tree.
    pub root: u64,
    /// Level of that node.
    pub root_level: u8,
    /// The number that the next inode gets.
    pub next_inode: u64,
    /// Host blocks that are free.
    pub free_blocks: u64,
    /// Inodes that there are.
    pub inode_count: u64,
    /// Sets of changes that were written.
    pub set_count: u64,
    /// What the hashes of names begin with.
    pub hash_seed: [u8; 16],
    /// A name for people, padded with zeros.
    pub label: [u8; 64],
}

fn corrupt(reason: Reason) -> Corrupt {
    Corrupt { structure: Structure::FilesSuperblock, reason }
}

impl Superblock {
    /// The block's bytes.
    pub fn encode(&self, block: &mut Block) {
        *block = [0; BLOCK_SIZE];
        put::<0, 8>(block, MAGIC);
        put::<8, 4>(block, FILES_VERSION.to_le_bytes());
        put::<16, 16>(block, self.uuid);
        put::<32, 8>(block, self.block_count.to_le_bytes());
        put::<40, 8>(block, self.root.to_le_bytes());
        put::<48, 4>(block, u32::from(self.root_level).to_le_bytes());
        put::<56, 8>(block, self.next_inode.to_le_bytes());
        put::<64, 8>(block, self.free_blocks.to_le_bytes());
        put::<72, 8>(block, self.inode_count.to_le_bytes());
        put::<80, 8>(block, self.set_count.to_le_bytes());
        put::<88, 16>(block, self.hash_seed);
        put::<104, 64>(block, self.label);
    }

    /// The values in a block.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(block: &Block) -> Result<Superblock, Corrupt> {
        if at::<0, 8>(block) != MAGIC {
            return Err(corrupt(Reason::Magic));
        }
        let version = u32_at::<8>(block);
        if version != FILES_VERSION {
            return Err(corrupt(Reason::Version(version)));
        }
        let features = u32_at::<12>(block);
        if features != 0 {
            return Err(corrupt(Reason::Features(features)));
        }
        let superblock = Superblock {
            uuid: at::<16, 16>(block),
            block_count: u64_at::<32>(block),
            root: u64_at::<40>(block),
            root_level: at::<48, 1>(block)[0],
            next_inode: u64_at::<56>(block),
            free_blocks: u64_at::<64>(block),
            inode_count: u64_at::<72>(block),
            set_count: u64_at::<80>(block),
            hash_seed: at::<88, 16>(block),
            label: at::<104, 64>(block),
        };
        let checks = [
            ("blocks", (BLOCK_COUNT_MIN..=BLOCK_COUNT_MAX).contains(&superblock.block_count)),
            ("root", superblock.root >= 2 && superblock.root < superblock.block_count),
            ("level", u32_at::<48>(block) < u32::from(LEVELS_MAX)),
            ("next inode", (FIRST_INODE..INODE_LIMIT).contains(&superblock.next_inode)),
            ("free blocks", superblock.free_blocks < superblock.block_count),
        ];
        match checks.iter().find(|(_, holds)| !holds) {
            Some((name, _)) => Err(corrupt(Reason::Field(name))),
            None => Ok(superblock),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_survives_its_bytes_and_foreign_bytes_are_refused() {
        let superblock = Superblock {
            uuid: [1; 16],
            block_count: 5000,
            root: 2,
            root_level: 3,
            next_inode: 77,
            free_blocks: 4000,
            inode_count: 5,
            set_count: 9,
            hash_seed: [3; 16],
            label: [b'x'; 64],
        };
        let mut block = [0; BLOCK_SIZE];
        superblock.encode(&mut block);
        assert_eq!(Superblock::decode(&block), Ok(superblock));
        let reason = |change: fn(&mut Block)| {
            let mut other = block;
            change(&mut other);
            Superblock::decode(&other).unwrap_err().reason
        };
        assert_eq!(reason(|block| block[0] = b'X'), Reason::Magic);
        assert_eq!(reason(|block| block[8] = 9), Reason::Version(9));
        assert_eq!(reason(|block| block[12] = 4), Reason::Features(4));
        assert_eq!(reason(|block| block[40] = 1), Reason::Field("root"));
    }
}
