//! Who may have a frame.
//!
//! ```text
//! arrays that differ from their page   at most `changed_count_max`; they stay until they are swept
//! cells                               promised before a record is sealed, so an update finds one
//! pages that were read                 all the rest; what was not looked at lately goes first
//! the sweep                            its frames are nobody else's
//! ```

use super::Map;
use super::bounds::SWEEP_FRAMES;
use super::directory::Flag;
use super::frames::FrameIndex;
use super::load::LoadPurpose;
use super::recovery_memory::PAGE_FRAMES_MIN;

/// Frames that the sweep leaves: a page that it has written keeps its frame until it has arrived, and
/// after a failed write none arrives any more. Then one frame is enough for all that is to be read.
const FRAMES_KEPT_BY_SWEEP: usize = 1;

impl Map {
    /// Whether one more array may differ from its page.
    pub(super) fn is_roomy(&self) -> bool {
        self.frames.pinned_count() < self.changed_count_max() && self.may_pin()
    }

    /// Whether one more array may have to stay in memory, and still the sweep finds the frames that
    /// are kept for it, and every promised cell a place.
    pub(super) fn may_pin(&self) -> bool {
        self.obtainable() > SWEEP_FRAMES + self.promised_frames()
    }

    /// How many arrays may differ from their pages: all, where there is a frame for each leaf and some to
    /// spare. A leaf that has none gathers its updates in a chain, of 43 cells when the sweep comes by after
    /// 256 of them, and some take more. Three quarters of a frame are left to each of these, which are 48 cells
    /// of the largest and no fewer than 24 of the smallest, where a chain has 22 halfway between two sweeps; and
    /// seven eighths of all frames at most, which are for chains and for pages that are read.
    fn changed_count_max(&self) -> usize {
        let count = self.frames.count();
        if self.is_recovering {
            let cell_frames = self.recovery.frames_max(self.frames.cells_per_frame());
            return count.saturating_sub(cell_frames + PAGE_FRAMES_MIN);
        }
        // Beside what calls for an urgent sweep, room for arrays that stay because of relocations, and for
        // chains of leaves that find no frame.
        let rest = (count / 32).max((8 * SWEEP_FRAMES).min(count / 2));
        let most = count - rest;
        // With n arrays for L leaves, n + (L - n) * 3 / 4 = most.
        let lacking = self.leaf_count().saturating_sub(most);
        most.saturating_sub(3 * lacking).max(count / 8)
    }

    /// Whether every leaf may have an array that differs from its page: then nobody waits for those that
    /// stay because of relocations.
    pub(crate) fn holds_all(&self) -> bool {
        self.changed_count_max() >= self.leaf_count()
    }

    /// Leaves that may have arrays: of a sparse volume those in stretches that were looked at, for of the
    /// others there may be any number.
    fn leaf_count(&self) -> usize {
        if self.is_sparse {
            self.leaf_count_max.min(self.directory.leaf_count())
        } else {
            self.leaf_count_max
        }
    }

    /// Frames that could be had now.
    pub(super) fn obtainable(&self) -> usize {
        self.frames.free_count() + self.frames.evictable_count()
    }

    /// Whether there is memory enough for whoever wanted some.
    pub(crate) fn has_room(&self) -> bool {
        self.obtainable() > 3 * SWEEP_FRAMES
    }

    /// A pinned frame, at the cost of a leaf that was not used lately if there is no free one.
    /// Frames that promised cells will need stay, and some for the sweep unless it is the sweep
    /// that asks, or nothing is swept any more.
    pub(super) fn take_frame(&mut self, key: u64, purpose: LoadPurpose) -> Option<FrameIndex> {
        let kept = match purpose {
            LoadPurpose::Lookup | LoadPurpose::Clean => SWEEP_FRAMES,
            LoadPurpose::LastLookup => 0,
            LoadPurpose::Sweep => FRAMES_KEPT_BY_SWEEP + self.promised_frames(),
        };
        if self.obtainable() <= kept {
            return None;
        }
        loop {
            if let Some(frame) = self.take_unpromised(key, 0) {
                return Some(frame);
            }
            if !self.evict_one() {
                return None;
            }
        }
    }

    /// A pinned frame, if one is free that no promised cell may need and `kept` remain.
    pub(super) fn take_unpromised(&mut self, key: u64, kept: usize) -> Option<FrameIndex> {
        if self.frames.free_count() <= kept + self.promised_frames() {
            return None;
        }
        let frame = self.frames.take_free(key)?;
        let place = self.directory.find(key).expect("a leaf that gets a frame has a table");
        self.directory.leaf_mut(place).set(Flag::Used, true);
        Some(frame)
    }

    /// Frames that promised cells may need.
    fn promised_frames(&self) -> usize {
        let promised = self.reserved_cells.saturating_sub(self.frames.free_cell_count());
        promised.div_ceil(self.frames.cells_per_frame())
    }

    /// Makes sure that `blocks` more updates find a cell each. False: no memory can be had now.
    /// The host's updates leave some to the cleaner's: it must get on while the sweep has no
    /// segment to write to.
    pub(crate) fn reserve(&mut self, blocks: usize) -> bool {
        self.reserve_down_to(blocks, 2 * SWEEP_FRAMES)
    }

    pub(super) fn reserve_down_to(&mut self, blocks: usize, kept: usize) -> bool {
        let needed = self.reserved_cells + blocks;
        let suffice = |map: &Map, frames: usize| {
            let cells = frames.saturating_sub(SWEEP_FRAMES) * map.frames.cells_per_frame();
            map.frames.free_cell_count() + cells >= needed
        };
        // No page is given up in vain: somebody else has just loaded it perhaps, and would load it again,
        // and again.
        let obtainable = self.obtainable();
        let must_evict = !suffice(self, self.frames.free_count());
        if must_evict && (obtainable <= kept || !suffice(self, obtainable)) {
            return false;
        }
        while !suffice(self, self.frames.free_count()) {
            if !self.evict_one() {
                return false;
            }
        }
        assert!(needed >= blocks, "promises add up");
        self.reserved_cells = needed;
        true
    }

    /// The updates have been made.
    pub(crate) fn unreserve(&mut self, blocks: usize) {
        assert!(self.reserved_cells >= blocks, "what is given back was promised");
        self.reserved_cells -= blocks;
    }

    /// Frees one frame; false if every array in memory must stay.
    pub(super) fn evict_one(&mut self) -> bool {
        let directory = &mut self.directory;
        let candidate = self.frames.evict_candidate(|key| {
            let place = directory.find(key).expect("a leaf with a frame has a table");
            directory.leaf_mut(place).take_used()
        });
        let Some(key) = candidate else { return false };
        let place = self.directory.find(key).expect("a leaf with a frame has a table");
        let leaf = self.directory.leaf_mut(place);
        assert!(!leaf.must_stay(), "an array that must stay is pinned");
        let frame = core::mem::replace(&mut leaf.frame, FrameIndex::NONE);
        let has_page = leaf.disk.is_mapped();
        self.frames.release(frame);
        if !has_page {
            self.directory.note_emptied();
        }
        self.statistics.evictions += 1;
        true
    }
}
