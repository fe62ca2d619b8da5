//! Counters. All are totals since open, in the unit that the name says.

use crate::map::MapStatistics;

/// What the engine has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Blocks that the host wrote.
    pub user_blocks_written: u64,
    /// Blocks that the host read.
    pub user_blocks_read: u64,
    /// Blocks that the host discarded.
    pub user_blocks_discarded: u64,
    /// Host blocks that the cleaner wrote again.
    pub relocated_blocks: u64,
    /// Metadata blocks that the cleaner wrote again.
    pub relocated_metadata_blocks: u64,
    /// Of a sparse store: blocks that its data and map pages are charged, and how many they may be. Zero of any other.
    pub charged_blocks: u64,
    /// See `charged_blocks`.
    pub charged_blocks_max: u64,
    /// Roots of a sparse store, with a page or without one yet. Zero for any other store. `roots_touched_max` is how
    /// many there may be.
    pub roots_touched: u64,
    /// See `roots_touched`.
    pub roots_touched_max: u64,
    /// Root pages on the device: stretches of 1 GiB of addresses that hold something.
    pub roots_in_use: u64,
    /// Relocated host blocks that had been overwritten in the meantime.
    pub relocations_dropped: u64,
    /// Record headers written for host data.
    pub user_header_blocks: u64,
    /// Record headers written for relocations.
    pub cleaning_header_blocks: u64,
    /// Record headers written for metadata.
    pub metadata_header_blocks: u64,
    /// Leaf pages written by the sweep.
    pub leaf_blocks: u64,
    /// Root pages written.
    pub root_blocks: u64,
    /// Images of root pages that one turn took at most.
    pub root_images_at_once: u64,
    /// Pages of the segment table written.
    pub table_blocks: u64,
    /// Blocks of runs written.
    pub run_blocks: u64,
    /// Second copies written of root pages, pages of the segment table and blocks of runs.
    pub copy_blocks: u64,
    /// Parity written of headers that checkpoints refer to.
    pub header_parity_blocks: u64,
    /// Blocks of checkpoint bodies written, and superblocks.
    pub checkpoint_blocks: u64,
    /// Host blocks by the stream that they went to: short, longer and longest lives expected.
    pub user_blocks_by_class: [u64; 3],
    /// Relocated host blocks by the stream that they went to: young, older, old.
    pub relocated_blocks_by_class: [u64; 3],
    /// Records written.
    pub records: u64,
    /// Of these, the long ones: packed, or of more than 256 blocks.
    pub long_records: u64,
    /// Of all blocks written, those that went into holes.
    pub hole_blocks: u64,
    /// Blocks that were written again at their places, so that flash pages with holes were written as a whole.
    pub padded_blocks: u64,
    /// Commands that read them.
    pub pad_reads: u64,
    /// Segments with records in their holes.
    pub segments_patched: u64,
    /// Blocks that the device was to prepare before they were written: see [`crate::prepare`].
    pub prepared_blocks: u64,
    /// Checkpoints made durable.
    pub checkpoints: u64,
    /// Flushes sent to the device.
    pub device_flushes: u64,
    /// Flush and FUA requests answered.
    pub flush_requests: u64,
    /// Segments that the cleaner has gone through.
    pub segments_cleaned: u64,
    /// Blocks of segments that the cleaner read.
    pub cleaning_read_blocks: u64,
    /// Victims that it took because the host was idle.
    pub victims_ahead: u64,
    /// Host blocks that were put in the host's order on demand; they count as relocated too.
    pub defragmented_blocks: u64,
    /// Up to which host block the volume has been gone over for that, and how often to its end.
    pub defrag_next: u64,
    /// See `defrag_next`.
    pub defrag_passes: u64,
    /// Blocks found damaged by a read or by the cleaner, each of the first 1024 counted once.
    pub corrupt_blocks: u64,
    /// Whether blocks may be marked lost, by damage of this time or an earlier one: until a scrub from the first block to
    /// the last meets none.
    pub may_have_lost: bool,
    /// References that only a damaged map page can have held, given up so that their segments can be
    /// used again.
    pub references_lost: u64,
    /// Requests that were told to come again.
    pub busy: u64,
    /// Records that checkpoints refer to, or did, instead of repeating in a run what they changed.
    pub records_referred: u64,
    /// Records that the checkpoint referred to with which this opening began.
    pub references_followed: u64,
    /// 1 if this opening found the checkpoint's body damaged, and used its second copy.
    pub body_copies_used: u64,
    /// Root pages, pages of the segment table and blocks of runs that were damaged or could not be read, and were read
    /// from their second copies; and headers referred to that were rebuilt from parity.
    pub metadata_copies_used: u64,
    /// Records that recovery applied.
    pub records_replayed: u64,
    /// Of these, the long ones.
    pub long_records_replayed: u64,
    /// Records that recovery found behind the first gap and dropped.
    pub records_dropped: u64,
    /// The map's counters.
    pub map: MapStatistics,
    /// Bytes that the map occupies.
    pub map_bytes: u64,
    /// The most that it occupied.
    pub map_bytes_peak: u64,
    /// Bytes that it may occupy.
    pub map_bytes_limit: u64,
    /// Cells (64 bytes, six updates of a leaf) that recovery may need if the power goes now.
    pub recovery_cells: u64,
    /// How many that may be.
    pub recovery_cells_max: u64,
    /// How many this opening's recovery came to hold.
    pub recovered_cells: u64,
    /// Segments in all.
    pub segment_count: u64,
    /// Segments without anything in them.
    pub segments_empty: u64,
    /// Empty segments below which the host waits for the cleaner, and above which nothing is cleaned.
    pub segments_low: u64,
    /// See `segments_low`.
    pub segments_high: u64,
    /// Blocks counted in all segments.
    pub valid_blocks: u64,
    /// Blocks in a segment.
    pub segment_blocks: u64,
    /// How many blocks the host wrote during the life of a segment of the shortest-lived stream, on
    /// average of the last sixteen; zero while too few have ended. See `placement`.
    pub segment_life: u64,
    /// Runs alive.
    pub run_count: u64,
    /// Records referred to.
    pub reference_count: u64,
    /// Records applied so far; the sequence of the last.
    pub applied_sequence: u64,
    /// Records durable so far.
    pub durable_sequence: u64,
}

impl Statistics {
    /// All blocks written to the device for metadata: headers, map, checkpoints.
    pub fn metadata_blocks(&self) -> u64 {
        self.user_header_blocks
            + self.cleaning_header_blocks
            + self.metadata_header_blocks
            + self.leaf_blocks
            + self.root_blocks
            + self.table_blocks
            + self.run_blocks
            + self.copy_blocks
            + self.header_parity_blocks
            + self.checkpoint_blocks
            + self.relocated_metadata_blocks
    }

    /// All blocks written to the device.
    pub fn device_blocks_written(&self) -> u64 {
        self.user_blocks_written
            + self.relocated_blocks
            + self.padded_blocks
            + self.metadata_blocks()
    }
}
