//! Coulter's on-disk format: bytes to values and back, for every structure in a store.
//!
//! This crate performs no I/O, holds no policy, allocates nothing and needs no `std`, so that the
//! same code serves a daemon, a simulator and a kernel module. Byte offsets live here and nowhere
//! else; `docs/format.md` describes the same bytes in words and changes in the same commit.
//!
//! # Invariants
//! - Everything is little-endian and of explicit width.
//! - Whatever an `encode` function accepts, the matching `decode` gives back unchanged.
//! - No input bytes make a `decode` function panic, loop without end or read outside its slice;
//!   damage is a [`Corrupt`] value.
//! - Every structure is covered by a checksum that a block of another place or another store does
//!   not satisfy (see [`checksum`]).
//!
//! # Map of a store
//! ```text
//! | superblock A | … | superblock B | … | segment 0 | segment 1 | … | segment N-1 |
//!                                          |
//!     record = header block + payload blocks: data, map pages, runs, segment table, checkpoint
//! ```

#![no_std]
#![deny(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod address;
mod bytes;
pub mod checkpoint;
pub mod checksum;
pub mod files;
pub mod map_page;
pub mod overlay;
pub mod places;
pub mod record;
pub mod root_list;
pub mod run;
pub mod segment_table;
pub mod superblock;

pub use address::{BlockPointer, Lba, Pba, StoreId};

/// Bytes in a block, the unit of mapping and of every structure.
pub const BLOCK_SIZE: usize = 4096;

/// One block of bytes.
pub type Block = [u8; BLOCK_SIZE];

/// The format version that this crate writes and the highest that it reads.
pub const FORMAT_VERSION: u32 = 2;

/// Numbers that only go up (generations, epochs, sequences) lie below this: so none ever overflows.
pub const NUMBER_LIMIT: u64 = 1 << 62;

/// A store of which such a number has come so far is not opened for writing: no writer takes so many
/// steps that it could come to the limit, and write what no reader accepts.
pub const NUMBER_LIMIT_AT_OPENING: u64 = NUMBER_LIMIT / 2;

/// Which structure a piece of bytes was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Structure {
    /// One of the two superblocks.
    Superblock,
    /// The body that a superblock points to.
    Checkpoint,
    /// The header block of a record.
    RecordHeader,
    /// A leaf or root page of the map.
    MapPage,
    /// A page of the segment table.
    SegmentTable,
    /// A block of a sorted run of map updates.
    Run,
    /// A page of the list of roots.
    RootList,
    /// A block of host data.
    Data,
    /// The superblock of a file system on the volume.
    FilesSuperblock,
    /// A node of a file system's tree.
    FilesNode,
    /// An item in such a node.
    FilesItem,
    /// The superblock of an overlay's store.
    OverlaySuperblock,
    /// What an overlay's store knows of a file.
    OverlayRecord,
    /// Which file a window of an overlay's store belongs to.
    OverlayOwner,
}

impl core::fmt::Display for Structure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Structure::Superblock => "superblock",
            Structure::Checkpoint => "checkpoint",
            Structure::RecordHeader => "record header",
            Structure::MapPage => "map page",
            Structure::SegmentTable => "segment table page",
            Structure::Run => "run block",
            Structure::RootList => "page of the list of roots",
            Structure::Data => "data block",
            Structure::FilesSuperblock => "file system superblock",
            Structure::FilesNode => "file system node",
            Structure::FilesItem => "file system item",
            Structure::OverlaySuperblock => "superblock of an overlay",
            Structure::OverlayRecord => "record of an overlay",
            Structure::OverlayOwner => "owner of an overlay's window",
        })
    }
}

/// What is wrong with a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The magic number is another one: these bytes were never this structure.
    Magic,
    /// Written by another version; the version found.
    Version(u32),
    /// Uses features that nobody knew when this was compiled; their bits.
    Features(u32),
    /// The checksum does not match the bytes.
    Checksum,
    /// Intact, but of another store.
    Store,
    /// Intact, but written for another address.
    Address,
    /// A field has a value that no writer gives it; the field's name.
    Field(&'static str),
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Reason::Magic => f.write_str("wrong magic number"),
            Reason::Version(found) => write!(f, "format version {found} is not supported"),
            Reason::Features(found) => write!(f, "features {found:#x} are not known"),
            Reason::Checksum => f.write_str("checksum mismatch"),
            Reason::Store => f.write_str("belongs to another store"),
            Reason::Address => f.write_str("was written for another address"),
            Reason::Field(name) => write!(f, "impossible value in field `{name}`"),
        }
    }
}

/// Bytes that are not what they were taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// What the bytes were taken for.
    pub structure: Structure,
    /// What is wrong with them.
    pub reason: Reason,
}

impl core::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.structure, self.reason)
    }
}

impl core::error::Error for Corrupt {}
