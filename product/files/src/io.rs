//! What a file system asks of the volume below it.
//!
//! # Contract
//! Commands are taken from [`Files::poll_io`](crate::Files::poll_io) and given to the volume in
//! that order. The volume *accepts* them in that order: after a crash it holds what the first so
//! many of them wrote, and nothing of the others. They complete in any order. A
//! [`Command::WriteMany`] is there after a crash as a whole or not at all. A read that is given to
//! the volume after a write's completion sees that write.

use coulter::buffer::Buffer;

/// Blocks of one [`Command::Write`] or [`Command::WriteMany`] at most.
pub const WRITE_BLOCKS_MAX: usize = 256;
/// Ranges of one [`Command::WriteMany`] at most.
pub const CHANGES_MAX: usize = 200;

/// One range of a [`Command::WriteMany`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// First host block.
    pub block: u64,
    /// Blocks.
    pub count: u64,
    /// Whether the blocks are unmapped. Else they get the next `count` blocks of the buffer.
    pub discard: bool,
}

/// A command to the volume.
#[derive(Debug)]
pub enum Command {
    /// Fill the buffer.
    Read {
        /// First host block.
        block: u64,
        /// Whole blocks.
        buffer: Buffer,
    },
    /// Store the buffer.
    Write {
        /// First host block.
        block: u64,
        /// Whole blocks.
        buffer: Buffer,
    },
    /// Change several ranges, all of them or none.
    WriteMany {
        /// Ranges that do not overlap.
        changes: Vec<Change>,
        /// The data of those that are not discarded, one behind the other.
        buffer: Buffer,
        /// Durable when it completes.
        fua: bool,
    },
    /// Unmap blocks; they read as zeros.
    Discard {
        /// First host block.
        block: u64,
        /// Blocks.
        count: u64,
    },
    /// Make durable what had completed before.
    Flush,
}

/// A command and what to call it when it completes.
#[derive(Debug)]
pub struct Io {
    /// Comes back with the completion.
    pub id: u32,
    /// What to do.
    pub command: Command,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoError {
    /// The blocks are damaged.
    Corrupt,
    /// Anything else: the error number.
    Failed(i32),
}

impl IoError {
    pub(crate) fn errno(self) -> i32 {
        match self {
            IoError::Corrupt => libc::EIO,
            IoError::Failed(errno) => errno,
        }
    }
}
