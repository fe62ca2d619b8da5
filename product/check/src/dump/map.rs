//! The map as opening the store would find it: pages, live runs, and the records after the
//! checkpoint.

use super::{Outcome, with_store};
use crate::blocks::ReadBlocks;
use crate::leaves::{self, Leaf, Visitor};
use crate::report::Report;
use crate::window::Window;
use coulter_format::BlockPointer;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use serde::Serialize;
use std::fmt;
use std::ops::ControlFlow;

/// Neighbouring host addresses that lie in neighbouring blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MapRow {
    /// The first host address.
    pub host_block: u64,
    /// The first device address.
    pub block: u32,
    /// Blocks.
    pub blocks: u32,
    /// The checksum of the first.
    pub checksum: u32,
    /// Whether any of it comes from a run or a record, and not from a leaf page.
    pub overlaid: bool,
}

/// Host addresses to be shown: from `first` up to and without `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRange {
    /// The first.
    pub first: u64,
    /// The first behind them.
    pub end: u64,
}

impl MapRange {
    /// All of them.
    pub const ALL: MapRange = MapRange { first: 0, end: u64::MAX };
}

/// Shows what is mapped in a range, in order of host address, until `show` breaks.
pub fn map(
    blocks: &mut impl ReadBlocks,
    range: MapRange,
    show: impl FnMut(&MapRow) -> ControlFlow<()>,
) -> Outcome<()> {
    with_store(blocks, |window, store, report| {
        let per_leaf = ENTRIES_PER_PAGE as u64;
        let keys = range.first / per_leaf..range.end.div_ceil(per_leaf);
        let mut rows = Rows { range, row: None, show };
        let layout = &store.segments.layout;
        leaves::walk(window, layout, &store.checkpoint, &store.replay, keys, &mut rows, report);
        rows.flush()
    })
    .ignore_break()
}

impl Outcome<ControlFlow<()>> {
    fn ignore_break(self) -> Outcome<()> {
        Outcome { value: self.value.map(|_| ()), findings: self.findings }
    }
}

/// Joins neighbours to rows.
struct Rows<F> {
    range: MapRange,
    row: Option<MapRow>,
    show: F,
}

impl<F: FnMut(&MapRow) -> ControlFlow<()>> Rows<F> {
    fn flush(&mut self) -> ControlFlow<()> {
        match self.row.take() {
            Some(row) => (self.show)(&row),
            None => ControlFlow::Continue(()),
        }
    }

    fn add(&mut self, lba: u64, pointer: BlockPointer, overlaid: bool) -> ControlFlow<()> {
        if let Some(row) = &mut self.row {
            let follows = row.host_block + u64::from(row.blocks) == lba
                && row.block.checked_add(row.blocks) == Some(pointer.pba.0)
                && row.overlaid == overlaid;
            if follows {
                row.blocks += 1;
                return ControlFlow::Continue(());
            }
        }
        self.flush()?;
        let (block, checksum) = (pointer.pba.0, pointer.checksum);
        self.row = Some(MapRow { host_block: lba, block, blocks: 1, checksum, overlaid });
        ControlFlow::Continue(())
    }
}

impl<F: FnMut(&MapRow) -> ControlFlow<()>> Visitor for Rows<F> {
    fn leaf(&mut self, leaf: &Leaf, _: &mut Window<'_>, _: &mut Report) -> ControlFlow<()> {
        for (index, (pointer, base)) in leaf.now.iter().zip(&leaf.base).enumerate() {
            let lba = leaf.lba(index).0;
            let somewhere = pointer.is_mapped() && !pointer.is_lost();
            if somewhere && (self.range.first..self.range.end).contains(&lba) {
                self.add(lba, *pointer, pointer != base)?;
            }
        }
        ControlFlow::Continue(())
    }
}

impl fmt::Display for MapRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "host block {:<12} block {:<10} count {:<8} checksum {:#010x}{}",
            self.host_block,
            self.block,
            self.blocks,
            self.checksum,
            if self.overlaid { " overlaid" } else { "" },
        )
    }
}
