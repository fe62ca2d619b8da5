//! What the tiny store of an exhaustive search lies on, and where the addresses of a plan lie in it.

use coulter_engine::{Config, Prepare};

/// What the tiny store lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// A device with all its space.
    Whole,
    /// One without space for segments.
    WithoutSpace,
    /// Flash pages of this many blocks. A page is written whole or not at all, and the store pads pages.
    Pages(u32),
    /// A device with all its space; the store is sparse and lists its roots in pages.
    RootLists,
}

/// Addresses of a store with a list of roots that lie together, each window of them in a root of its own.
pub(super) const WINDOW: u64 = 4;

/// Blocks that a root covers.
const ROOT: u64 = 1 << 18;

/// Where an address of the plan lies in the store.
pub(super) fn place(ground: Ground, lba: u64) -> u64 {
    match ground {
        Ground::RootLists => lba / WINDOW * ROOT + lba % WINDOW,
        _ => lba,
    }
}

/// Ranges of the store in which `count` addresses of the plan lie, in order.
pub(super) fn ranges(ground: Ground, lba: u64, count: u64) -> Vec<(u64, u64)> {
    if ground != Ground::RootLists {
        return vec![(lba, count)];
    }
    let (mut ranges, mut next) = (Vec::new(), lba);
    while next < lba + count {
        let together = (WINDOW - next % WINDOW).min(lba + count - next);
        ranges.push((place(ground, next), together));
        next += together;
    }
    ranges
}

pub(super) fn config(ground: Ground) -> Config {
    let usual = Config { record_count: 12, page_count: 16, request_count: 16, ..Config::default() };
    match ground {
        Ground::Whole | Ground::RootLists => usual,
        Ground::WithoutSpace => Config { prepare: Prepare::Space, ..usual },
        Ground::Pages(blocks) => Config { atomic_page_blocks: blocks, pad_pages: true, ..usual },
    }
}
