//! A file system on the blocks of a volume.
//!
//! Names, attributes and the places of data are a tree of 4 KiB nodes, each at a fixed host block.
//! The volume below writes nothing in place and keeps a prefix of what it was given, and it changes
//! many blocks at once: so there is no journal here, no log, no cleaner and no recovery but
//! opening. The bytes are in `docs/files.md`.
//!
//! There is no I/O, no thread and no clock in here. [`Files`] is a function of its inputs: requests
//! and completions go in, commands to the volume and answers come out.
//!
//! # Promise
//! After a crash the tree is the state after the first n operations, with n at least the number of
//! those that a completed `Sync` covered. Operations count in the order in which they took effect.
//! Times that an overwrite sets may be older. A write of more than 1 MiB, or to more than 24
//! separate holes, is several operations, and so is a long `fallocate`.
//!
//! # How it is kept
//! - Changes of nodes gather in one open *set*, which is submitted as one atomic write.
//! - New data is submitted before the set that refers to it, into blocks that nothing refers to.
//! - Data that is overwritten in place is submitted after the set with the changes before it.
//! - A block that a set frees is used again, and discarded, only with or after that set.
//!
//! # Invariants
//! - A step does all or nothing: it finds every block that it needs in memory, or is undone.
//! - Memory: the cache, one set being built, and what is in flight.

mod cache;
#[cfg(coulter_canary)]
pub mod canary;
#[cfg(not(coulter_canary))]
mod canary;
mod create;
mod data;
pub mod desk;
mod files;
mod flushes;
mod gather;
mod grow;
mod invariants;
mod io;
mod items;
mod loads;
mod locks;
mod namespace;
mod nodes;
pub mod order;
mod parts;
mod request;
mod served;
mod sets;
mod space;
mod stop;
mod task;
mod traffic;
mod tree;
mod work;

pub use coulter_format::files::{Inode, Time};
pub use create::{CreateError, CreateOptions, create};
pub use files::{Files, Options};
pub use grow::{EMPTY_BITMAP, FilesGrowth, grow};
pub use io::{CHANGES_MAX, Change, Command, Io, IoError, WRITE_BLOCKS_MAX};
pub use parts::Counters;
pub use request::{
    AllocateMode, Attributes, Changes, Listed, Listing, Name, NewNode, RenameFlags, Reply, Request,
    Response, SetTime, Usage, Whence, XattrMode, read_span,
};
pub use served::{Ending, FileService};

/// The number of the root directory.
pub const ROOT: u64 = coulter_format::files::ROOT_INODE;
/// Bytes of a block.
pub const BLOCK_SIZE: usize = coulter_format::BLOCK_SIZE;
