//! What can be wrong with a file system.

use coulter_format::Corrupt;
use coulter_format::files::Key;
use std::fmt;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the text of each says what its fields are")]
pub enum Finding {
    Data { inode: u64, block: u64, count: u64 },
    Superblock { corrupt: Corrupt },
    Truncated { blocks: u64, volume: u64 },
    Unreadable { block: u64 },
    Node { block: u64, corrupt: Corrupt },
    Level { block: u64, found: u8, expected: u8 },
    OutOfOrder { block: u64, key: Key },
    FirstKey { block: u64, key: Key, expected: Key },
    EmptyNode { block: u64 },
    OutOfRange { block: u64, by: u64 },
    UsedTwice { block: u64, by: u64 },
    Item { key: Key, corrupt: Corrupt },
    UnknownItem { key: Key },
    NameHash { directory: u64, position: u64 },
    Overlap { inode: u64, block: u64 },
    MissingInode { inode: u64 },
    DanglingName { directory: u64, inode: u64 },
    Kind { directory: u64, inode: u64 },
    Links { inode: u64, said: u32, found: u64 },
    Names { inode: u64, found: u64 },
    Parent { inode: u64, said: u64, found: u64 },
    Unreachable { inode: u64 },
    Lost { inode: u64 },
    Orphan { inode: u64 },
    Blocks { inode: u64, said: u64, found: u64 },
    Size { inode: u64, said: u64, found: u64 },
    Part { inode: u64 },
    NotADirectory { inode: u64 },
    UsedAndFree { block: u64 },
    Leaked { block: u64 },
    FreeCount { said: u64, found: u64 },
    InodeCount { said: u64, found: u64 },
    NextInode { said: u64, found: u64 },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Finding::*;
        match *self {
            Data { inode, block, count } => {
                write!(f, "inode {inode}: {count} blocks from its block {block} on cannot be read")
            }
            Superblock { corrupt } => write!(f, "block 0: {corrupt}"),
            Truncated { blocks, volume } => {
                write!(f, "the file system has {blocks} blocks, the volume only {volume}")
            }
            Unreadable { block } => write!(f, "block {block} cannot be read"),
            Node { block, corrupt } => write!(f, "block {block}: {corrupt}"),
            Level { block, found, expected } => {
                write!(f, "node {block} is on level {found}, not {expected}")
            }
            OutOfOrder { block, key } => {
                write!(f, "node {block} holds {key:?}, which belongs elsewhere")
            }
            FirstKey { block, key, expected } => {
                write!(f, "node {block} begins with {key:?}, its parent says {expected:?}")
            }
            EmptyNode { block } => write!(f, "node {block} is empty"),
            OutOfRange { block, by } => {
                write!(f, "block {block}, which {by} refers to, cannot hold that")
            }
            UsedTwice { block, by } => {
                write!(f, "block {block} is used twice, the second time by {by}")
            }
            Item { key, corrupt } => write!(f, "{key:?}: {corrupt}"),
            UnknownItem { key } => write!(f, "{key:?} is no item that there can be"),
            NameHash { directory, position } => write!(
                f,
                "directory {directory}: the name at {position:#x} does not belong there by its hash"
            ),
            Overlap { inode, block } => write!(f, "inode {inode} has its block {block} twice"),
            MissingInode { inode } => write!(f, "inode {inode} has items and no attributes"),
            DanglingName { directory, inode } => {
                write!(f, "directory {directory} names inode {inode}, which there is not")
            }
            Kind { directory, inode } => {
                write!(f, "directory {directory} says another kind of inode {inode} than that")
            }
            Links { inode, said, found } => {
                write!(f, "inode {inode} says that it has {said} links, and has {found}")
            }
            Names { inode, found } => write!(f, "directory {inode} has {found} names"),
            Parent { inode, said, found } => {
                write!(f, "directory {inode} says that it is in {said}, and is in {found}")
            }
            Unreachable { inode } => write!(f, "directory {inode} cannot be reached from the root"),
            Lost { inode } => write!(f, "inode {inode} has no name, and nobody will take it away"),
            Orphan { inode } => write!(f, "inode {inode} is to be taken away, and there is none"),
            Blocks { inode, said, found } => {
                write!(f, "inode {inode} says that it has {said} blocks, and has {found}")
            }
            Size { inode, said, found } => {
                write!(f, "inode {inode} says that it has {said} bytes, and has {found}")
            }
            Part { inode } => write!(f, "a value of inode {inode} has not all of its parts"),
            NotADirectory { inode } => write!(f, "inode {inode} has names and is no directory"),
            UsedAndFree { block } => write!(f, "block {block} is in use, and marked as free"),
            Leaked { block } => write!(f, "block {block} is not in use, and not marked as free"),
            FreeCount { said, found } => write!(f, "{found} blocks are free, not {said}"),
            InodeCount { said, found } => write!(f, "there are {found} inodes, not {said}"),
            NextInode { said, found } => {
                write!(f, "the next inode would be {said}, and there is {found} already")
            }
        }
    }
}
