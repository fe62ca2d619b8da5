//! What recovery would need of the map's memory, counted while the engine runs.
//!
//! A store must open with as much memory as its superblock says, whenever the power goes. So the
//! engine counts the cells that recovery would come to hold, and takes no update that would be one
//! too many.
//!
//! # Why a store always opens
//! Recovery loads no page: from the first run to the last record every update goes into a chain.
//!
//! 1. A chain of *n* addresses takes ⌈n / 6⌉ cells and no more: only its first cell can have room.
//! 2. Recovery finds an address in a leaf's chain only if a live run or a record says something of
//!    it. Then it changed after the leaf's last sweep before the durable cut, and was counted: as
//!    `pending`, or, if the leaf was swept since, as `swept` or `swept_before_cut`. Or a run says it
//!    once more, because the journal noted it before that sweep: [`RecoveryMemory::emitted`]. A run
//!    says no other address: so what a cut adds to `pending` was `swept` before, and fits. (What a
//!    record changed that is referred to is live from when it took effect: not once the leaf was swept.)
//! 3. Before it takes a record, replay holds no more than was counted when the record was accepted,
//!    and asks for as much as was asked then. Both together were at most `cells_max`.
//! 4. It is refused nothing while [`SWEEP_FRAMES`] frames are left beside these cells. Arrays, which
//!    replay makes for leaves that have no page, leave [`PAGE_FRAMES_MIN`]: the sweep's, those that
//!    the cleaner's updates find when the host's do not, and those that a read may take.
//!
//! # Why whatever the width of its entries
//! A store may be opened by an engine whose frames have another size: by one that packs no entries, or
//! when it has grown and its addresses have more bits. Cells are the same for all of them, and
//! `cells_max` is told by the superblock alone, in frames of the largest size, of 64 cells. So none
//! lets in more than another could restore, if each finds frames of its own for so many cells, and
//! [`PAGE_FRAMES_MIN`] besides:
//!
//! 5. Let *F* be the frames of 64 cells that the budget has, *P* those of them that are left to pages,
//!    and *w* the cells of a frame. There are ⌊64 *F* / *w*⌋ frames at least, and cells fill
//!    ⌈64 (*F* - *P*) / *w*⌉ and no more, for a frame is begun when no cell is free anywhere. What
//!    remains is more than 64 *P* / *w* - 2. With *P* of 25 or more that is [`PAGE_FRAMES_MIN`], 24, at
//!    every *w*; *P* is less with fewer than [`PROVED_FRAME_COUNT`] frames, of which each is tried below.
//! 6. A store that grows has no fewer frames afterwards by the same count: its budget gets what its
//!    directory takes. Until it is opened anew it counts on what it had before.

use super::bounds::{FRAME_COUNT_MIN, SWEEP_FRAMES};
use super::chain::UPDATES_PER_CELL;
use super::directory::{Flag, Leaf};
use super::entries::EntryWidth;
use crate::canary::{Canary, sings};
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::DISCARD_BLOCKS_MAX;

/// Frames that cells leave to pages at least, also at recovery: more than the host's updates need to
/// find obtainable, or a store that was just opened would stand still.
pub(super) const PAGE_FRAMES_MIN: usize = 3 * SWEEP_FRAMES;

/// Cells of a frame of the largest size, in which budgets are counted.
const CELLS_PER_FRAME_MAX: usize = EntryWidth::MAX.bits();

/// Frames for pages with which the sweep, loading ahead and with two records on their way, and the
/// cleaner, which keeps the leaf of every block that it moves, do not wait for each other: with half
/// as many records are written that are not full. A small map has less, but no less than three
/// eighths; a large one a quarter, for pages that are read, and because what recovery holds in chains
/// takes time to be read and sorted in.
const PAGE_FRAMES: usize = 256;

const CELLS_MAX_LEAST: usize = cells_max(FRAME_COUNT_MIN as usize);
const LEAVES_OF_DISCARD: usize = DISCARD_BLOCKS_MAX as usize / ENTRIES_PER_PAGE;

/// From so many frames on, recovery leaves enough of them to pages whatever their size is.
const PROVED_FRAME_COUNT: usize = 67;

const _: () = {
    assert!(page_frames(PROVED_FRAME_COUNT) > PAGE_FRAMES_MIN);
    let mut frame_count = FRAME_COUNT_MIN as usize;
    while frame_count < PROVED_FRAME_COUNT {
        let mut width = EntryWidth::of_addresses_below(0).bits();
        while width <= EntryWidth::MAX.bits() {
            let frames = frame_count * CELLS_PER_FRAME_MAX / width;
            assert!(cells_max(frame_count).div_ceil(width) + PAGE_FRAMES_MIN <= frames);
            width += 1;
        }
        frame_count += 1;
    }
};
const _: () = assert!(
    CELLS_MAX_LEAST > 2 * (LEAVES_OF_DISCARD + 2 * ENTRIES_PER_PAGE),
    "the largest discard is let in when all has been swept"
);

/// Cells that recovery may take of so many frames of the largest size.
const fn cells_max(frame_count: usize) -> usize {
    (frame_count - page_frames(frame_count)) * CELLS_PER_FRAME_MAX
}

/// How many of these are left to pages.
const fn page_frames(frame_count: usize) -> usize {
    let large = if frame_count / 4 > PAGE_FRAMES { frame_count / 4 } else { PAGE_FRAMES };
    let small = frame_count * 3 / 8;
    if small < large { small } else { large }
}

/// The account, in cells.
pub(super) struct RecoveryMemory {
    /// For updates that no swept page contains.
    pending: usize,
    /// For updates that were swept since the last cut, and before it but since the cut that is
    /// durable: recovery from that one knows nothing of the sweep.
    swept: usize,
    swept_before_cut: usize,
    cells_max: usize,
    /// Leaves with updates that no page contains.
    dirty_leaves: usize,
}

impl RecoveryMemory {
    /// For recovery within so many frames of the largest size.
    pub(super) fn new(frame_count: usize) -> RecoveryMemory {
        let cells_max = cells_max(frame_count.max(FRAME_COUNT_MIN as usize));
        RecoveryMemory { pending: 0, swept: 0, swept_before_cut: 0, cells_max, dirty_leaves: 0 }
    }

    pub(super) fn cells_max(&self) -> usize {
        self.cells_max
    }

    /// Frames of so many cells that recovery may fill.
    pub(super) fn frames_max(&self, cells_per_frame: usize) -> usize {
        self.cells_max.div_ceil(cells_per_frame)
    }

    /// Cells that recovery would need now.
    pub(super) fn needed(&self) -> usize {
        self.pending + self.swept + self.swept_before_cut
    }

    /// Leaves with updates that no page contains.
    pub(super) fn dirty_leaves(&self) -> usize {
        self.dirty_leaves
    }

    /// A leaf has one more update.
    pub(super) fn count(&mut self, leaf: &mut Leaf) {
        self.dirty_leaves += usize::from(leaf.unmerged == 0);
        if leaf.unmerged < ENTRIES_PER_PAGE as u16 {
            self.pending += usize::from(leaf.unmerged.is_multiple_of(UPDATES_PER_CELL as u16));
            leaf.unmerged += 1;
        }
    }

    /// A leaf is swept.
    pub(super) fn forget(&mut self, leaf: &mut Leaf) {
        let cells = usize::from(leaf.unmerged).div_ceil(UPDATES_PER_CELL);
        assert!(self.pending >= cells, "what is swept was counted");
        self.pending -= cells;
        self.swept += cells;
        self.dirty_leaves -= usize::from(leaf.unmerged > 0);
        leaf.unmerged = 0;
        leaf.set(Flag::Referred, false);
    }

    /// A run says so much of a leaf. That can be more than changed since the sweep came by: what the
    /// journal noted before is said again if the array has changed since. It was counted as swept since
    /// the last cut; from now on it is in a run that the sweep has not passed. Recovery comes from the
    /// older checkpoint or from this one, so the sum stays what it was, but for one cell: of the older
    /// one's last cell the next updates may find no room where they are counted to find it.
    ///
    /// If records that changed it since are referred to, the run need not say what is counted. Then all that
    /// it says is taken for something else, and the sum is a little too high until the sweep comes by.
    pub(super) fn emitted(&mut self, leaf: &mut Leaf, entries: usize) {
        let counted = usize::from(leaf.unmerged);
        assert!(counted > 0, "a run says nothing of what the sweep has passed");
        if leaf.is(Flag::Referred) {
            let all = (counted + entries).min(ENTRIES_PER_PAGE);
            self.pending += all.div_ceil(UPDATES_PER_CELL) - counted.div_ceil(UPDATES_PER_CELL);
            leaf.unmerged = all as u16;
            return;
        }
        let entries = entries.min(ENTRIES_PER_PAGE);
        if entries > counted {
            let more = entries.div_ceil(UPDATES_PER_CELL) - counted.div_ceil(UPDATES_PER_CELL);
            self.pending += more;
            self.swept = self.swept.saturating_sub(more.saturating_sub(1));
            leaf.unmerged = entries as u16;
        }
    }

    /// A checkpoint is cut.
    pub(super) fn cut(&mut self) {
        self.swept_before_cut += core::mem::take(&mut self.swept);
    }

    /// The checkpoint cut last is durable.
    pub(super) fn checkpoint_is_durable(&mut self) {
        self.swept_before_cut = 0;
    }

    /// Whether so many more would be too many. The sweep must catch up first.
    pub(super) fn is_full(&self, cells: usize) -> bool {
        self.needed() + cells > self.cells_max && !sings(Canary::RecoveryOverfilled)
    }

    /// Whether a checkpoint would lower what recovery needs by enough to be worth one. While
    /// little is left, the sweep is urgent until that is so.
    pub(super) fn checkpoint_helps(&self) -> bool {
        self.swept > self.cells_max / 32
    }

    /// Whether there is so little left that such a checkpoint should not wait.
    pub(super) fn is_short(&self) -> bool {
        self.needed() > self.cells_max / 16 * 15
    }
}

#[cfg(feature = "verify")]
impl RecoveryMemory {
    /// # Panics
    /// If the account of what no page contains is not what its leaves make it.
    pub(super) fn assert_pending(&self, pending: usize, dirty_leaves: usize) {
        assert_eq!(self.pending, pending, "what recovery needs is counted");
        assert_eq!(self.dirty_leaves, dirty_leaves, "leaves to be swept are counted");
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Map, directory_size};
    use super::*;
    use crate::create::map_size_default;
    use coulter_format::Pba;
    use coulter_format::superblock::{Geometry, RecoveryBudget};

    fn map(volume_size: u64, map_size: u64, address_bits: u32) -> Map {
        let budget = RecoveryBudget { journal_size: 1024, run_count_limit: 8, map_size };
        let width = EntryWidth::of_addresses_below(1 << address_bits);
        let geometry = Geometry {
            device_size: 1 << 32,
            volume_size,
            capacity: volume_size,
            root_limit: 0,
            root_lists: false,
            segment_blocks: 256,
            segment_count: 1,
            first_segment: Pba(256),
            second_superblock: Pba(128),
            third_superblock: Pba::NOWHERE,
            page_blocks: 1,
        };
        Map::new(&geometry, map_size, width, budget).expect("there is memory").expect("it fits")
    }

    /// Frames of 4 KiB lent themselves to counting, and stores were written by engines that did.
    #[test]
    fn what_is_let_in_is_the_same_at_every_width_and_finds_frames() {
        let volume_size = 1 << 20;
        let odd = [0, 1, 63, 64, 65, 1000, 4095];
        for frames in (64..80).chain([127, 128, 255, 682, 683, 684, 1023, 1024, 1025, 4000]) {
            for (bits, rest) in (1..=32).flat_map(|bits| odd.map(|rest| (bits, rest))) {
                let map_size = directory_size(volume_size >> 18) + 4096 * frames + rest;
                let map = map(volume_size, map_size, bits);
                let (_, cells_max) = map.recovery_cells();
                let large = (frames / 4).max(256);
                let expected = (frames - (frames * 3 / 8).min(large)) * 64;
                assert_eq!(cells_max as u64, expected, "{frames} frames, {bits} bits");
                let for_cells = cells_max.div_ceil(map.frames.cells_per_frame());
                assert!(for_cells + PAGE_FRAMES_MIN <= map.frames.count(), "{frames}, {bits}");
                assert!(
                    map.frames.count() as u64 * (32 + u64::from(bits)) * 64 <= 4096 * frames + rest
                );
            }
        }
    }

    #[test]
    fn below_eight_tebibytes_a_whole_map_takes_eight_bytes_a_block_at_most() {
        let volume_size = 1 << 20;
        for address_bits in 1..=31 {
            let mut map = map(volume_size, map_size_default(volume_size), address_bits);
            for key in 0..volume_size / ENTRIES_PER_PAGE as u64 {
                let place = map.directory.place(key);
                let frame = map.take_unpromised(key, SWEEP_FRAMES).expect("there is one for each");
                map.directory.leaf_mut(place).frame = frame;
            }
            assert!(map.size() <= 8 * volume_size, "{} at {address_bits}", map.size());
        }
    }
}
