//! The structures of a Coulter file system, which lies at the host addresses of a volume.
//!
//! None of them has a checksum of its own: each is a block of a volume, and the volume checks what it
//! reads. `docs/files.md` describes the same bytes in words.
//!
//! ```text
//! host block 0        superblock
//! host block 1        bitmap of group 0
//! host block g * 32768  bitmap of group g > 0
//! any other           node of the tree, or data of a file
//! ```

pub mod hash;
pub mod item;
pub mod key;
pub mod node;
pub mod space;
pub mod superblock;

pub use item::{Extent, Inode, NameEntry, Time};
pub use key::{Key, Kind};
pub use node::{Node, NodeMut};
pub use superblock::Superblock;

/// The version of these structures.
pub const FILES_VERSION: u32 = 1;
/// The number of the root directory.
pub const ROOT_INODE: u64 = 1;
/// The first number that a new inode may get.
pub const FIRST_INODE: u64 = 16;
/// Bytes of a name at most.
pub const NAME_SIZE_MAX: usize = 255;
/// Host blocks of a file system at most.
pub const BLOCK_COUNT_MAX: u64 = 1 << 40;
/// Host blocks of a file system at least.
pub const BLOCK_COUNT_MIN: u64 = 1024;
/// Bytes of a file at most: the last block's number has 48 bits.
pub const FILE_SIZE_MAX: u64 = 1 << 60;
