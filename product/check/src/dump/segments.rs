//! The segment table, as the checkpoint holds it.

use super::{Outcome, with_store};
use crate::blocks::ReadBlocks;
use coulter_format::segment_table::SegmentState;
use serde::Serialize;
use std::fmt;
use std::ops::ControlFlow;

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentRow {
    /// Its number.
    pub segment: u32,
    /// Its first block.
    pub block: u32,
    /// `free`, `open`, `closed`, `patched`, or `unknown` if the table page is damaged.
    pub state: &'static str,
    /// Blocks counted on, without those that the checkpoint itself lists.
    pub valid_blocks: u32,
    /// The stream that wrote it last.
    pub stream: u8,
    /// The store's write clock when it was closed.
    pub clock_blocks: u64,
    /// Its place among the segments that may be opened next, from 0.
    pub reserved: Option<u32>,
    /// Whether a record after the checkpoint lies in it.
    pub replayed: bool,
}

/// Shows every segment, in order, until `show` breaks.
pub fn segments(
    blocks: &mut impl ReadBlocks,
    mut show: impl FnMut(&SegmentRow) -> ControlFlow<()>,
) -> Outcome<()> {
    with_store(blocks, |_, store, _| {
        let mut reserved: Vec<_> = store.checkpoint.reserved.iter().copied().zip(0u32..).collect();
        reserved.sort_unstable();
        for (segment, slot) in store.segments.iter() {
            let entry = slot.entry;
            let place = reserved.binary_search_by_key(&segment, |(segment, _)| *segment).ok();
            let row = SegmentRow {
                segment,
                block: store.segments.layout.start(segment).0,
                state: match entry.map(|entry| entry.state) {
                    Some(SegmentState::Free) => "free",
                    Some(SegmentState::Open) => "open",
                    Some(SegmentState::Closed) => "closed",
                    Some(SegmentState::Patched) => "patched",
                    None => "unknown",
                },
                valid_blocks: entry.map_or(0, |entry| entry.valid),
                stream: entry.map_or(0, |entry| entry.stream),
                clock_blocks: entry.map_or(0, |entry| entry.clock),
                reserved: place.and_then(|place| reserved.get(place)).map(|(_, order)| *order),
                replayed: slot.end > slot.checkpoint_end,
            };
            if show(&row).is_break() {
                return;
            }
        }
    })
}

impl fmt::Display for SegmentRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "segment {:<8} block {:<10} {:<7} stream {} valid {:<8} clock {}",
            self.segment, self.block, self.state, self.stream, self.valid_blocks, self.clock_blocks,
        )?;
        if let Some(order) = self.reserved {
            write!(f, " reserved {order}")?;
        }
        if self.replayed {
            f.write_str(" written after the checkpoint")?;
        }
        Ok(())
    }
}
