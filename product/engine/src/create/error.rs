//! Wishes for a new store that cannot be met.

use super::bounds::{JOURNAL_SIZE_MAX, JOURNAL_SIZE_MIN, RUN_COUNT_MAX};
use core::fmt;
use coulter_format::superblock::LISTED_ROOT_LIMIT_MAX;

/// Why a store cannot be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// The segment size is no power of two from 1 MiB to 1 GiB.
    SegmentSize,
    /// The page size is no power of two from 2 to 64 blocks, or the segment has more than 2^17 blocks.
    PageSize,
    /// The device is too small; blocks that it would need.
    DeviceTooSmall {
        /// Blocks needed at least.
        needed: u64,
    },
    /// The device has more than 2^32 blocks (16 TiB), or more than 2^18 segments.
    DeviceTooLarge,
    /// The volume does not leave enough spare space; blocks that it may have at most.
    VolumeTooLarge {
        /// Blocks at most.
        limit: u64,
    },
    /// A sparse volume would show fewer addresses than it may map, or more than 2^63, or would have no
    /// roots or more than [`LISTED_ROOT_LIMIT_MAX`].
    Addresses,
    /// The volume has no blocks.
    VolumeEmpty,
    /// The map memory is too small; bytes that it needs at least.
    MapTooSmall {
        /// Bytes needed.
        needed: u64,
    },
    /// The journal is below [`JOURNAL_SIZE_MIN`] or above [`JOURNAL_SIZE_MAX`], or the runs are
    /// none or too many to be listed.
    Budget,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::SegmentSize => {
                write!(formatter, "a segment has a power of two of blocks, 256 to 262144")
            }
            LayoutError::PageSize => write!(
                formatter,
                "a flash page has a power of two of blocks, 2 to 64, and a segment 131072 at most"
            ),
            LayoutError::DeviceTooSmall { needed } => {
                write!(formatter, "the device is too small: {needed} blocks are needed")
            }
            LayoutError::DeviceTooLarge => {
                write!(formatter, "a device has 2^32 blocks and 2^18 segments at most")
            }
            LayoutError::VolumeTooLarge { limit } => {
                write!(formatter, "too little spare space: {limit} blocks of volume would go")
            }
            LayoutError::Addresses => write!(
                formatter,
                "a sparse volume shows as many addresses as it may map or more, 2^63 at most, in 1 to \
                 {LISTED_ROOT_LIMIT_MAX} roots"
            ),
            LayoutError::VolumeEmpty => write!(formatter, "the volume has no blocks"),
            LayoutError::MapTooSmall { needed } => {
                write!(formatter, "the map needs {needed} bytes of memory at least")
            }
            LayoutError::Budget => write!(
                formatter,
                "a journal has {JOURNAL_SIZE_MIN} to {JOURNAL_SIZE_MAX} updates, and there are 2 to \
                 {RUN_COUNT_MAX} runs"
            ),
        }
    }
}

impl core::error::Error for LayoutError {}
