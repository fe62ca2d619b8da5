//! What a store is: its identity and its sizes.

use crate::create::STRETCH_SIZE;
use crate::description::text_of;
use coulter_format::BLOCK_SIZE;
use coulter_format::superblock::Superblock;

/// A store's identity and sizes. None of it changes while the store is open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Geometry {
    /// Identity.
    pub uuid: [u8; 16],
    /// The name that it was given; may be empty.
    pub label: String,
    /// Bytes of the device that belong to the store.
    pub store_size_bytes: u64,
    /// Bytes that the volume offers.
    pub volume_size_bytes: u64,
    /// Bytes that may be stored at once, if they lie densely. As many as the volume offers unless it is
    /// sparse.
    pub capacity_bytes: u64,
    /// Bytes of addresses of a sparse volume that may be in use at once, counted in stretches of 1 GiB; `None` if
    /// it is not sparse.
    pub touched_limit_bytes: Option<u64>,
    /// Bytes of a segment.
    pub segment_size_bytes: u64,
    /// Bytes of a page of the flash below; `None` if the store knows of none.
    pub page_size_bytes: Option<u64>,
    /// Segments.
    pub segment_count: u64,
    /// Bytes of map memory that opening may need.
    pub map_memory_min_bytes: u64,
}

impl Geometry {
    pub(crate) fn of(superblock: &Superblock) -> Geometry {
        let geometry = &superblock.geometry;
        let block_size = BLOCK_SIZE as u64;
        let label = superblock.label.split(|byte| *byte == 0).next().unwrap_or_default();
        Geometry {
            uuid: superblock.store.uuid,
            label: String::from_utf8_lossy(label).into_owned(),
            store_size_bytes: geometry.device_size * block_size,
            volume_size_bytes: geometry.volume_size.saturating_mul(block_size),
            capacity_bytes: geometry.capacity * block_size,
            touched_limit_bytes: (geometry.root_limit > 0)
                .then_some(u64::from(geometry.root_limit) * STRETCH_SIZE),
            segment_size_bytes: u64::from(geometry.segment_blocks) * block_size,
            page_size_bytes: geometry
                .has_pages()
                .then_some(u64::from(geometry.page_blocks) * block_size),
            segment_count: geometry.segment_count.into(),
            map_memory_min_bytes: superblock.budget.map_size,
        }
    }

    /// The identity in its usual spelling, such as `67e55044-10b1-426f-9247-bb680e5fe0c8`.
    pub fn uuid_text(&self) -> String {
        text_of(&self.uuid)
    }
}
