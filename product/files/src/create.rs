//! A new file system: three blocks.

use coulter_format::files::{
    BLOCK_COUNT_MAX, BLOCK_COUNT_MIN, FIRST_INODE, Inode, Key, Kind, NodeMut, ROOT_INODE,
    Superblock, Time, space,
};
use coulter_format::{BLOCK_SIZE, Block};

/// What a new file system is like.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Host blocks that it may use.
    pub block_count: u64,
    /// Which it is.
    pub uuid: [u8; 16],
    /// A random number.
    pub hash_seed: [u8; 16],
    /// A name for people, padded with zeros.
    pub label: [u8; 64],
    /// Owner and group of the root directory.
    pub owner: (u32, u32),
    /// When.
    pub now: Time,
}

/// Why there can be no such file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateError {
    /// It would have fewer blocks than are needed.
    TooSmall,
    /// It would have more blocks than the format can count.
    TooLarge,
}

impl std::fmt::Display for CreateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CreateError::TooSmall => {
                write!(f, "a file system takes at least {} MiB", (BLOCK_COUNT_MIN * 4096) >> 20)
            }
            CreateError::TooLarge => {
                write!(
                    f,
                    "a file system takes at most {} TiB",
                    ((BLOCK_COUNT_MAX >> 20) * 4096) >> 20
                )
            }
        }
    }
}

impl std::error::Error for CreateError {}

/// Where the first root is.
const ROOT_NODE: u64 = 2;

/// The blocks of a new file system, for host blocks 0, 1 and 2 of a volume that holds nothing else.
///
/// # Errors
/// [`CreateError`].
pub fn create(options: &CreateOptions) -> Result<[Block; 3], CreateError> {
    if options.block_count < BLOCK_COUNT_MIN {
        return Err(CreateError::TooSmall);
    }
    if options.block_count > BLOCK_COUNT_MAX {
        return Err(CreateError::TooLarge);
    }
    let mut blocks = [[0; BLOCK_SIZE]; 3];
    let [superblock, bitmap, root] = &mut blocks;
    let groups = space::group_count(options.block_count);
    let reserved: u64 = (0..groups).map(space::reserved_blocks).sum();
    Superblock {
        uuid: options.uuid,
        block_count: options.block_count,
        root: ROOT_NODE,
        root_level: 0,
        next_inode: FIRST_INODE,
        free_blocks: options.block_count - reserved - 1,
        inode_count: 1,
        set_count: 0,
        hash_seed: options.hash_seed,
        label: options.label,
    }
    .encode(superblock);
    space::mark(bitmap, ROOT_NODE, 1, true);
    let (uid, gid) = options.owner;
    let now = options.now;
    let inode = Inode {
        mode: libc::S_IFDIR | 0o755,
        uid,
        gid,
        links: 2,
        parent: ROOT_INODE,
        accessed: now,
        modified: now,
        changed: now,
        born: now,
        ..Inode::default()
    };
    let mut node = NodeMut(root);
    node.clear(ROOT_NODE, 0);
    node.insert_item(0, Key::new(ROOT_INODE, Kind::Inode, 0), &inode.encode());
    Ok(blocks)
}
