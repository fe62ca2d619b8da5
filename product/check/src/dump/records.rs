//! The records of the log, in order of the device.

use super::{Outcome, with_store};
use crate::blocks::ReadBlocks;
use crate::check::Store;
use crate::finding::kind_name;
use crate::window::Window;
use coulter_format::record::RecordView;
use serde::Serialize;
use std::fmt;
use std::ops::ControlFlow;

/// What becomes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordState {
    /// The checkpoint contains it.
    Contained,
    /// It follows the checkpoint and is replayed.
    Replayed,
    /// It is intact, but does not count: it follows a gap, or is left over from before.
    Dropped,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordRow {
    /// Its segment.
    pub segment: u32,
    /// The place of its header in the segment.
    pub offset_blocks: u32,
    /// The block of its header.
    pub block: u32,
    /// Its sequence.
    pub sequence: u64,
    /// The epoch it was written in.
    pub epoch: u64,
    /// The stream that it belongs to.
    pub stream: u8,
    /// Every record up to this one was durable when it was written.
    pub durable_sequence: u64,
    /// Generation of the superblock that was durable when it was written.
    pub generation: u64,
    /// Blocks of payload.
    pub payload_blocks: u16,
    /// Whether they lie in holes, and not in a row behind the header.
    pub scattered: bool,
    /// Whether its header names each block by itself in the short form.
    pub packed: bool,
    /// What becomes of it.
    pub state: RecordState,
    /// What it says.
    pub extents: Vec<EntryDump>,
}

/// An extent of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EntryDump {
    /// What the blocks are.
    pub kind: &'static str,
    /// The first key.
    pub key: u64,
    /// Blocks.
    pub blocks: u16,
    /// Whether the cleaner moved them.
    pub relocated: bool,
}

/// Shows every record, or those of one segment, until `show` breaks.
///
/// A segment is read from its start for as long as one intact header follows the other; so records
/// that are left over from before may be shown as well, marked as dropped. In a patched segment every
/// block is looked at.
pub fn records(
    blocks: &mut impl ReadBlocks,
    segment: Option<u32>,
    mut show: impl FnMut(&RecordRow) -> ControlFlow<()>,
) -> Outcome<()> {
    with_store(blocks, |window, store, _| {
        let count = store.segments.layout.segment_count();
        let wanted = segment.map_or(0..count, |segment| segment..segment.saturating_add(1));
        for segment in wanted.filter(|segment| *segment < count) {
            if show_segment(window, store, segment, &mut show).is_break() {
                return;
            }
        }
    })
}

fn show_segment(
    window: &mut Window<'_>,
    store: &Store,
    segment: u32,
    show: &mut impl FnMut(&RecordRow) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let layout = store.segments.layout;
    let ends = store.segments.segment(segment).map(|slot| (slot.checkpoint_end, slot.end));
    let (checkpoint_end, end) = ends.unwrap_or((0, 0));
    let patched = store.segments.segment(segment).is_some_and(|slot| slot.patched);
    let cut = store.superblock.checkpoint.sequence;
    let mut offset = 0;
    let mut latest = 0;
    while offset < layout.segment_blocks() {
        let pba = layout.start(segment).plus(offset);
        let Ok(block) = window.header(pba, layout.segment_blocks() - offset) else { break };
        let Ok(view) = RecordView::decode(block, &store.superblock.store, pba) else {
            if !patched {
                break;
            }
            offset += 1;
            continue;
        };
        let header = view.header();
        let next = offset.saturating_add(header.span());
        let follows =
            (patched || header.sequence > latest) && header.sequence <= store.replay.sequence;
        let contained = if patched { header.sequence <= cut } else { next <= checkpoint_end };
        let extents = view.extents().map(|extent| EntryDump {
            kind: kind_name(extent.kind),
            key: extent.key,
            blocks: extent.count,
            relocated: extent.relocated,
        });
        let row = RecordRow {
            segment,
            offset_blocks: offset,
            block: pba.0,
            sequence: header.sequence,
            epoch: header.epoch,
            stream: header.stream,
            durable_sequence: header.durable_sequence,
            generation: header.generation,
            payload_blocks: header.payload_size,
            scattered: header.scattered.is_some(),
            packed: view.is_packed(),
            state: match (follows && next <= end, contained) {
                (false, _) => RecordState::Dropped,
                (true, true) => RecordState::Contained,
                (true, false) => RecordState::Replayed,
            },
            extents: extents.collect(),
        };
        show(&row)?;
        latest = latest.max(header.sequence);
        offset = if patched { offset + 1 } else { next };
    }
    ControlFlow::Continue(())
}

impl fmt::Display for RecordRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            RecordState::Contained => "contained",
            RecordState::Replayed => "replayed",
            RecordState::Dropped => "dropped",
        };
        write!(
            f,
            "record {:<8} block {:<10} segment {} + {}, stream {}, epoch {}, durable {}, \
             generation {}, {state}",
            self.sequence,
            self.block,
            self.segment,
            self.offset_blocks,
            self.stream,
            self.epoch,
            self.durable_sequence,
            self.generation,
        )?;
        if self.scattered {
            f.write_str(", scattered")?;
        }
        if self.packed {
            f.write_str(", packed")?;
        }
        for extent in &self.extents {
            let EntryDump { kind, key, blocks, relocated } = extent;
            let moved = if *relocated { " relocated" } else { "" };
            write!(f, "\n    {kind} {key} × {blocks}{moved}")?;
        }
        Ok(())
    }
}
