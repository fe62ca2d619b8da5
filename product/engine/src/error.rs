//! Errors of opening a store, and of growing one.

use crate::create::error::LayoutError;
use crate::memory::NoMemory;
use coulter_format::{Corrupt, Pba};

/// Why a store could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// Neither superblock is one of a store.
    NotAStore,
    /// A superblock is there, but of another format version.
    Version(u32),
    /// A superblock is there, but uses features that this engine does not know; their bits.
    Features(u32),
    /// The device ends before the store does; blocks needed and there.
    Truncated {
        /// Blocks that the store needs.
        needed: u64,
        /// Blocks that the device has.
        found: u64,
    },
    /// Metadata that recovery needs is damaged.
    Damaged {
        /// What is wrong.
        corrupt: Corrupt,
        /// Where.
        pba: Pba,
    },
    /// A record that was durable cannot be found any more: opening would lose it.
    DurableRecordMissing {
        /// The first sequence that is missing.
        sequence: u64,
        /// Durable up to here.
        durable: u64,
    },
    /// Both superblocks at the start of the device are gone; a third one is there. Only a read-only opening
    /// goes on from that.
    FirstSuperblocksLost,
    /// Records tell of a newer superblock than can be found: it was damaged, and the older one leads
    /// to a state that is long over.
    SuperblockLost {
        /// The generation that is missing.
        generation: u64,
    },
    /// The device reported this error number.
    Device(i32),
    /// The map memory is less than recovery may need.
    MapMemory {
        /// Bytes needed.
        needed: u64,
    },
    /// There is not so much memory.
    Memory {
        /// Bytes that were asked for, and refused.
        needed: u64,
    },
    /// It cannot grow as it should.
    Growth(GrowthError),
    /// Partly dead flash pages were to be padded, and that is not safe, or means nothing.
    Padding {
        /// Blocks in a page of the flash that the store knows of; 1 if it knows of none.
        page_blocks: u32,
        /// Blocks of the pages that the device says it writes whole or not at all; 1 if it says nothing.
        atomic_page_blocks: u32,
    },
}

impl From<NoMemory> for OpenError {
    fn from(refused: NoMemory) -> OpenError {
        OpenError::Memory { needed: refused.bytes as u64 }
    }
}

/// Why a store cannot grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrowthError {
    /// The store would have fewer segments than before; blocks that the device needs at least.
    StoreShrinks {
        /// Blocks needed.
        needed: u64,
    },
    /// The volume would have fewer blocks than before.
    VolumeShrinks {
        /// Blocks that it has.
        present: u64,
    },
    /// With so much spare space the volume would have fewer blocks than before.
    SpareTooLarge {
        /// Blocks that it has.
        present: u64,
        /// Percent that there can be at most.
        limit: u32,
    },
    /// With so little spare space cleaning would win less than it writes.
    SpareTooSmall {
        /// Percent that are needed.
        needed: u32,
    },
    /// The map memory that was allowed is less than recovery of the larger volume may need.
    MapMemory {
        /// Bytes needed.
        needed: u64,
    },
    /// There is no such store.
    Layout(LayoutError),
}
