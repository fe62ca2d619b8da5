//! Why a store cannot be made. Every message says what, where and what to do.

use crate::bytes::Bytes;
use coulter_device::DeviceError;
use coulter_engine::create as layout;
use coulter_format::BLOCK_SIZE;

/// Why a store cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The segment size is not a power of two from 2 MiB to 1 GiB.
    #[error("the segment size must be a power of two from 2 MiB to 1 GiB")]
    SegmentSize,
    /// The page size of the flash is not a power of two from 8 to 256 KiB, or a segment has more than 512 MiB.
    #[error(
        "the page size of the flash must be a power of two from 8 KiB to 256 KiB, and a segment, \
         which is to be an erase block, 512 MiB at most"
    )]
    PageSize,
    /// The volume size is not a positive multiple of 4096.
    #[error("the volume size must be a multiple of 4096 bytes, and not zero")]
    VolumeSize,
    /// The address space of a sparse volume is no multiple of 4096, less than it may store, or too large; or
    /// there are to be no stretches in use, or more than 4,194,304.
    #[error(
        "the address space must be a multiple of 4096 bytes, at least what may be stored, and at \
         most 4 EiB, with 1 to 4194304 stretches in use"
    )]
    AddressSpace,
    /// The label is too long or contains control characters.
    #[error("the label must have at most {size_max} bytes and no control characters")]
    Label {
        /// Bytes that it may have.
        size_max: usize,
    },
    /// The device has no room for even the smallest volume.
    #[error(
        "the device has {}, but a store with segments of {} needs {}: use a larger device or \
         smaller segments", Bytes(*.size), Bytes(*.segment_size), Bytes(*.size_min)
    )]
    DeviceTooSmall {
        /// Bytes that it has.
        size: u64,
        /// Bytes that it needs at least, with this segment size.
        size_min: u64,
        /// Bytes of a segment.
        segment_size: u64,
    },
    /// The device has more than 16 TiB, or more segments than a store can have.
    #[error("{}", too_large(*.size, *.segment_size))]
    DeviceTooLarge {
        /// Bytes that it has.
        size: u64,
        /// Bytes of a segment.
        segment_size: u64,
    },
    /// The volume would leave too little spare space to clean.
    #[error(
        "the volume would leave too little room for cleaning: it can have {} at most here",
        Bytes(*.size_max)
    )]
    VolumeTooLarge {
        /// Bytes that it may have at most.
        size_max: u64,
    },
    /// So little spare space could not be cleaned.
    #[error(
        "so little spare space could not be cleaned: with segments of {} it must be at least \
         {percent_min} % of the volume", Bytes(*.segment_size)
    )]
    SpareTooSmall {
        /// Percent of the volume that it must have at least, with this segment size.
        percent_min: u32,
        /// Bytes of a segment.
        segment_size: u64,
    },
    /// The map memory is too small for the volume.
    #[error("the map of this volume needs at least {} of memory", Bytes(*.size_min))]
    MapMemoryTooSmall {
        /// Bytes that it needs at least.
        size_min: u64,
    },
    /// The journal has too few or too many updates.
    #[error("the journal must have from {min} to {max} updates")]
    JournalSize {
        /// Updates that it must have at least.
        min: u32,
        /// Updates that it may have at most.
        max: u32,
    },
    /// The operating system gave no random numbers.
    #[error("the operating system gave no random numbers for the identity")]
    NoRandomness,
    /// The device failed; what it holds now is no store.
    #[error("{device} could not be formatted and holds no store now: {source}")]
    Device {
        /// What and where the device is.
        device: String,
        /// What it met.
        source: DeviceError,
    },
}

impl CreateError {
    /// What the layout of a device of `size` bytes refuses.
    pub(crate) fn of(
        error: layout::LayoutError,
        size: u64,
        options: &layout::CreateOptions,
    ) -> CreateError {
        let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
        let segment_size = bytes(options.segment_blocks.into());
        match error {
            layout::LayoutError::SegmentSize => CreateError::SegmentSize,
            layout::LayoutError::PageSize => CreateError::PageSize,
            layout::LayoutError::DeviceTooSmall { needed } => {
                CreateError::DeviceTooSmall { size, size_min: bytes(needed), segment_size }
            }
            layout::LayoutError::DeviceTooLarge => {
                CreateError::DeviceTooLarge { size, segment_size }
            }
            layout::LayoutError::VolumeTooLarge { limit } => {
                CreateError::VolumeTooLarge { size_max: bytes(limit) }
            }
            layout::LayoutError::MapTooSmall { needed } => {
                CreateError::MapMemoryTooSmall { size_min: needed }
            }
            layout::LayoutError::Addresses => CreateError::AddressSpace,
            layout::LayoutError::Budget => {
                let (min, max) = (layout::JOURNAL_SIZE_MIN, layout::JOURNAL_SIZE_MAX);
                CreateError::JournalSize { min, max }
            }
            // The only other way to be wrong is a size of zero.
            _ => CreateError::VolumeSize,
        }
    }
}

/// Addresses on the device are 32 bits of blocks.
const DEVICE_SIZE_MAX: u64 = 16 << 40;

fn too_large(size: u64, segment_size: u64) -> String {
    let (size, size_max) = (Bytes(size), Bytes(DEVICE_SIZE_MAX));
    if size.0 > DEVICE_SIZE_MAX {
        return format!(
            "that would be a store of {size}, and a store can have {size_max} at most: use less, or \
             a part of the disk"
        );
    }
    let segment_size = Bytes(segment_size);
    format!("the device has {size}, too much for segments of {segment_size}: use larger segments")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_would_do() {
        let error = CreateError::DeviceTooSmall {
            size: 1 << 20,
            size_min: 24 << 20,
            segment_size: 1 << 20,
        };
        let text = error.to_string();
        assert!(text.contains("has 1 MiB") && text.contains("needs 24 MiB"), "{text}");
    }
}
