//! What memory knows of a leaf: 512 consecutive host blocks.

use super::frames::{CellIndex, FrameIndex};
use coulter_format::BlockPointer;

/// What is known of one leaf: 512 consecutive host blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    /// The leaf page on the device. Meaningless while the root is not loaded.
    pub(crate) disk: BlockPointer,
    /// The array in memory.
    pub(crate) frame: FrameIndex,
    /// Updates that are not in the array.
    pub(crate) chain: CellIndex,
    /// Updates since the sweep last wrote the leaf, saturating at 512: what recovery would find in
    /// runs and records.
    pub(crate) unmerged: u16,
    /// Relocations on their way that will compare this leaf's pointers.
    pub(crate) relocating: u16,
    flags: u16,
}

/// A condition of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Flag {
    /// The array holds updates that the leaf page does not.
    Changed = 1,
    /// A leaf page is on its way to the device.
    Writing = 2,
    /// An update came after the page on its way was made.
    Touched = 4,
    /// Every address without an update is unmapped, and the leaf page's locations are still
    /// counted.
    Dead = 8,
    /// Every address without an update is unmapped, and the leaf page's locations are no longer
    /// counted.
    Cleared = 16,
    /// The leaf page is on its way into memory.
    Loading = 32,
    /// The leaf page is damaged.
    Damaged = 64,
    /// Records that are referred to have changed addresses of it since it was swept: so there are
    /// updates that a run need not say.
    Referred = 128,
    /// It has updates, and no page that is known: it is counted as one that will take a page.
    Pageless = 256,
    /// The array was used since the hand that looks for one to give up last passed it.
    Used = 512,
}

impl Leaf {
    pub(super) const EMPTY: Leaf = Leaf {
        disk: BlockPointer::NOWHERE,
        frame: FrameIndex::NONE,
        chain: CellIndex::NONE,
        unmerged: 0,
        relocating: 0,
        flags: 0,
    };

    pub(crate) fn is(&self, flag: Flag) -> bool {
        self.flags & flag as u16 != 0
    }

    pub(crate) fn set(&mut self, flag: Flag, on: bool) {
        if on {
            self.flags |= flag as u16;
        } else {
            self.flags &= !(flag as u16);
        }
    }

    /// Whether the array was used since this was last asked.
    pub(crate) fn take_used(&mut self) -> bool {
        let was_used = self.is(Flag::Used);
        self.set(Flag::Used, false);
        was_used
    }

    /// Whether the array must stay in memory: it differs from the page on the device, or something
    /// is on its way that will need it.
    pub(crate) fn must_stay(&self) -> bool {
        let busy = Flag::Changed as u16 | Flag::Writing as u16 | Flag::Loading as u16;
        self.flags & busy != 0 || self.relocating > 0
    }

    /// Whether nothing is known of the leaf but that it is unmapped, and nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        let tells = [Flag::Dead, Flag::Damaged, Flag::Pageless].iter().any(|flag| self.is(*flag));
        let is_quiet = self.unmerged == 0 && !self.must_stay() && !tells;
        is_quiet && !self.disk.is_mapped() && !self.frame.is_some() && !self.chain.is_some()
    }

    /// Whether the addresses without an update are known to be unmapped.
    pub(crate) fn base_is_gone(&self) -> bool {
        self.is(Flag::Dead) || self.is(Flag::Cleared)
    }
}
