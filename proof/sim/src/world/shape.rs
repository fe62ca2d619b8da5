//! How the store and the engine of a plan are made.

use super::RECORDS;
use crate::plan::{Shape, WINDOW};
use coulter_engine::Config;
use coulter_engine::create::{CreateOptions, Sparse, map_size_min};
use coulter_format::StoreId;

/// How a store of this shape is made.
pub(crate) fn create_options(shape: &Shape) -> CreateOptions {
    // Each superblock takes an erase block.
    let superblocks = if shape.page_blocks > 1 { 3 } else { 1 };
    let device_size = (shape.segments + superblocks) * u64::from(shape.segment_blocks);
    let sparse = shape.sparse.map(|sparse| Sparse {
        address_limit: shape.volume.div_ceil(WINDOW) * sparse.spread,
        root_limit: Some(sparse.roots),
        root_lists: sparse.lists,
    });
    let blocks = shape.sparse.map_or(shape.volume, |sparse| sparse.capacity);
    CreateOptions {
        device_size,
        sparse,
        volume_size: Some(blocks).filter(|blocks| *blocks > 0),
        segment_blocks: shape.segment_blocks,
        spare_percent: shape.spare,
        store: StoreId { uuid: [5; 16], salt: 99 },
        label: [0; 64],
        map_size: map_size(shape),
        journal_size: Some(shape.journal),
        run_count_limit: Some(shape.runs),
        page_blocks: (shape.page_blocks > 1).then_some(shape.page_blocks),
    }
}

fn map_size(shape: &Shape) -> Option<u64> {
    let log = shape.segments * u64::from(shape.segment_blocks);
    match shape.map {
        0 => None,
        // Each root of a sparse volume takes 12 KiB and a little.
        1 => {
            let roots = shape.sparse.map_or(0, |sparse| u64::from(sparse.roots));
            let lists = shape.sparse.is_some_and(|sparse| sparse.lists);
            // A list of roots is counted in whole pages, and in what finds them by key.
            Some(
                map_size_min(log)
                    + if lists { 12_700 * roots + (64 << 10) } else { 12_336 * roots },
            )
        }
        bytes => Some(bytes),
    }
}

/// Requests at once. Where segments hold long records, enough to fill them with single blocks; where there is
/// no spare space, enough to wait for it with more than there is.
fn request_count(shape: &Shape) -> u32 {
    let are_many = shape.segment_blocks >= crate::full::SEGMENT_SIZE || shape.spare == 0;
    if are_many { 1024 } else { 64 }
}

pub(super) fn config(shape: &Shape) -> Config {
    Config {
        map_size: map_size(shape),
        record_count: RECORDS,
        page_count: 16,
        request_count: request_count(shape),
        trim: shape.trim,
        placement: shape.placement,
        reclaim: shape.reclaim,
        reference_blocks: reference_blocks(shape.references),
        prepare: shape.prepare,
        atomic_page_blocks: if shape.pads { shape.page_blocks } else { 1 },
        pad_pages: shape.pads,
        ..Config::default()
    }
}

pub(super) fn reference_blocks(references: u32) -> u32 {
    if references == 0 { u32::MAX } else { references }
}
