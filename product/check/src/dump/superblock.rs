//! Both superblocks.

use super::{FINDINGS_MAX, Outcome};
use crate::blocks::ReadBlocks;
use crate::finding::Copy;
use crate::report::{Report, label_text, uuid_text};
use crate::superblocks::{SuperblockCopy, newest, read};
use crate::window::Window;
use coulter_format::superblock::Superblock;
use coulter_format::{FORMAT_VERSION, Reason};
use serde::Serialize;
use std::fmt;

/// A place of a superblock, and what lies there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SuperblockDump {
    /// Which copy.
    pub copy: Copy,
    /// Where it lies.
    pub block: u32,
    /// Whether it can be used, and if not, why.
    #[serde(flatten)]
    pub state: SuperblockState,
}

/// What lies there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SuperblockState {
    /// It cannot be used.
    Damaged {
        /// Why.
        reason: String,
    },
    /// It can.
    Valid(Box<SuperblockFields>),
}

/// A superblock's fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SuperblockFields {
    /// Whether this copy counts.
    pub newest: bool,
    /// The format version.
    pub version: u32,
    /// Identity.
    pub uuid: String,
    /// The store's label.
    pub label: String,
    /// Higher is newer.
    pub generation: u64,
    /// What record headers are checksummed with.
    pub salt: u32,
    /// Of the records that may follow the checkpoint.
    pub epoch: u64,
    /// Whether the store was closed.
    pub clean: bool,
    /// Whether records may lie in holes of segments.
    pub patched: bool,
    /// Whether records may be packed, or longer than 256 blocks.
    pub long_records: bool,
    /// Whether host blocks may be marked lost.
    pub may_have_lost: bool,
    /// Blocks that belong to the store.
    pub device_blocks: u64,
    /// Blocks that the volume shows.
    pub volume_blocks: u64,
    /// Blocks that may be mapped at once if they lie densely.
    pub capacity_blocks: u64,
    /// Roots in use at most, if it is sparse; else 0.
    pub root_limit: u32,
    /// Blocks in a segment.
    pub segment_blocks: u32,
    /// Segments.
    pub segments: u32,
    /// The first block of segment 0.
    pub first_segment_block: u32,
    /// Where copy B lies.
    pub second_superblock_block: u32,
    /// Where copy C lies; 0 if there is none.
    pub third_superblock_block: u32,
    /// Blocks in a page of the flash below; 1 if the store knows of none.
    pub page_blocks: u32,
    /// Bytes of map memory that recovery needs at most.
    pub recovery_map_bytes: u64,
    /// Map updates between two checkpoints at most.
    pub journal_updates: u32,
    /// Runs alive at most.
    pub runs_max: u32,
    /// Every record up to this sequence is in the checkpoint.
    pub checkpoint_sequence: u64,
    /// Every record up to this sequence was durable when the superblock was written.
    pub durable_sequence: u64,
    /// No record is of a higher epoch than this and `epoch`.
    pub epoch_max: u64,
    /// The first block of the checkpoint's body.
    pub checkpoint_block: u32,
    /// Bytes of the body.
    pub checkpoint_bytes: u32,
    /// CRC-32C of the body.
    pub checkpoint_checksum: u32,
    /// The first block of the body's second copy; 0 if there is none.
    pub checkpoint_copy_block: u32,
}

/// Reads both superblocks. What looks like none is left out, save copy A.
pub fn superblock(blocks: &mut impl ReadBlocks) -> Outcome<Vec<SuperblockDump>> {
    let mut report = Report { findings_max: FINDINGS_MAX, ..Report::default() };
    let mut window = Window::new(blocks);
    let places = read(&mut window, &mut report);
    let newest = newest(&places);
    let shown = places.iter().filter(|place| is_shown(place, newest.as_ref()));
    let copies = shown.map(|place| dump(place, newest.as_ref())).collect();
    Outcome { value: Some(copies), findings: report.findings }
}

fn is_shown(place: &SuperblockCopy, newest: Option<&Superblock>) -> bool {
    let expected = newest.is_some_and(|newest| {
        let geometry = &newest.geometry;
        [geometry.second_superblock, geometry.third_superblock].contains(&place.pba)
    });
    let blank = matches!(&place.content, Some(Err(corrupt)) if corrupt.reason == Reason::Magic);
    let elsewhere = newest.is_some_and(|newest| place.pba >= newest.geometry.first_segment);
    expected || place.copy() == Copy::A || !(blank || elsewhere)
}

fn dump(place: &SuperblockCopy, newest: Option<&Superblock>) -> SuperblockDump {
    let state = match &place.content {
        None => SuperblockState::Damaged { reason: "unreadable".to_owned() },
        Some(Err(corrupt)) => SuperblockState::Damaged { reason: corrupt.reason.to_string() },
        Some(Ok(found)) if place.valid().is_none() => SuperblockState::Damaged {
            reason: format!("generation {} belongs into the other copy", found.generation),
        },
        Some(Ok(found)) => SuperblockState::Valid(Box::new(fields(found, newest == Some(found)))),
    };
    SuperblockDump { copy: place.copy(), block: place.pba.0, state }
}

fn fields(superblock: &Superblock, newest: bool) -> SuperblockFields {
    let Superblock { geometry, budget, checkpoint, .. } = superblock;
    SuperblockFields {
        newest,
        version: FORMAT_VERSION,
        uuid: uuid_text(&superblock.store.uuid),
        label: label_text(&superblock.label),
        generation: superblock.generation,
        salt: superblock.store.salt,
        epoch: superblock.epoch,
        clean: superblock.clean,
        patched: superblock.patched,
        long_records: superblock.long_records,
        may_have_lost: superblock.may_have_lost,
        device_blocks: geometry.device_size,
        volume_blocks: geometry.volume_size,
        capacity_blocks: geometry.capacity,
        root_limit: geometry.root_limit,
        segment_blocks: geometry.segment_blocks,
        segments: geometry.segment_count,
        first_segment_block: geometry.first_segment.0,
        second_superblock_block: geometry.second_superblock.0,
        third_superblock_block: geometry.third_superblock.0,
        page_blocks: geometry.page_blocks,
        recovery_map_bytes: budget.map_size,
        journal_updates: budget.journal_size,
        runs_max: budget.run_count_limit,
        checkpoint_sequence: checkpoint.sequence,
        durable_sequence: superblock.durable_sequence,
        epoch_max: superblock.epoch_max,
        checkpoint_block: checkpoint.pba.0,
        checkpoint_bytes: checkpoint.size,
        checkpoint_checksum: checkpoint.checksum,
        checkpoint_copy_block: checkpoint.copy.0,
    }
}

impl fmt::Display for SuperblockDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "superblock {} at block {}", self.copy, self.block)?;
        match &self.state {
            SuperblockState::Damaged { reason } => writeln!(f, ": {reason}"),
            SuperblockState::Valid(fields) => {
                writeln!(f, "{}", if fields.newest { " (newest)" } else { "" })?;
                fields.fmt(f)
            }
        }
    }
}

/// A label without control characters: who made the store need not have been this program, and a
/// terminal takes them for orders.
fn escaped(label: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    label.chars().map(shown).collect()
}

impl fmt::Display for SuperblockFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: &dyn fmt::Display| writeln!(f, "  {name:<20} {value}");
        row("version", &self.version)?;
        row("uuid", &self.uuid)?;
        row("label", &escaped(&self.label))?;
        row("generation", &self.generation)?;
        row("salt", &format_args!("{:#010x}", self.salt))?;
        row("epoch", &self.epoch)?;
        row("clean", &self.clean)?;
        row("patched", &self.patched)?;
        row("long records", &self.long_records)?;
        row("may have lost", &self.may_have_lost)?;
        row("device", &format_args!("{} blocks", self.device_blocks))?;
        row("volume", &format_args!("{} blocks", self.volume_blocks))?;
        if self.root_limit > 0 {
            row("capacity", &format_args!("{} blocks", self.capacity_blocks))?;
            row("roots at most", &self.root_limit)?;
        }
        let segments = format_args!("{} of {} blocks", self.segments, self.segment_blocks);
        row("segments", &segments)?;
        row("first segment", &format_args!("block {}", self.first_segment_block))?;
        row("second superblock", &format_args!("block {}", self.second_superblock_block))?;
        row("third superblock", &format_args!("block {}", self.third_superblock_block))?;
        if self.page_blocks > 1 {
            row("flash page", &format_args!("{} blocks", self.page_blocks))?;
        }
        row("recovery map", &format_args!("{} bytes", self.recovery_map_bytes))?;
        row("journal", &format_args!("{} updates", self.journal_updates))?;
        row("runs at most", &self.runs_max)?;
        row("checkpoint sequence", &self.checkpoint_sequence)?;
        row("durable sequence", &self.durable_sequence)?;
        row("highest epoch", &self.epoch_max)?;
        let (block, bytes) = (self.checkpoint_block, self.checkpoint_bytes);
        row("checkpoint body", &format_args!("block {block}, {bytes} bytes"))?;
        row("checkpoint checksum", &format_args!("{:#010x}", self.checkpoint_checksum))?;
        row("checkpoint copy", &format_args!("block {}", self.checkpoint_copy_block))
    }
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn a_label_gives_no_orders_to_a_terminal() {
        assert_eq!(escaped("Böse \u{1b}[2J\n\u{9b}"), "Böse \\u{1b}[2J\\n\\u{9b}");
    }
}
