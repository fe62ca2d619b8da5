//! A root page in memory: 512 leaves, 1 GiB of host space.

use super::tables::{LEAVES_PER_TABLE, LeafIndex, TABLES_PER_ROOT, TableIndex};
use coulter_format::checksum::{Kind, rebound};
use coulter_format::{BlockPointer, Pba};

/// Whether the pointers to a root's leaf pages are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootState {
    /// They are in the leaves.
    Loaded,
    /// They are on the device.
    OnDevice,
    /// They are on their way.
    Loading,
    /// They are damaged on the device.
    Damaged,
}

/// One root page.
#[derive(Clone)]
pub(crate) struct Root {
    pub(crate) key: u64,
    /// The root page on the device.
    pub(crate) disk: BlockPointer,
    /// Its second copy.
    pub(super) copy: Pba,
    /// The root page was written anew, and its copy was not yet.
    pub(super) copy_is_old: bool,
    pub(crate) state: RootState,
    /// A leaf page moved since the root page was last written. It is listed then.
    pub(super) changed: bool,
    /// A bit for each table with leaves that have updates which their pages do not contain.
    pub(super) dirty: u16,
    /// A bit for each table that there is, or that what lies on the device or was let in may need. All of them where
    /// tables are not counted.
    pub(super) needed: u16,
    pub(super) tables: [TableIndex; TABLES_PER_ROOT],
}

impl Root {
    pub(super) fn empty(key: u64, needed: u16) -> Root {
        Root {
            key,
            disk: BlockPointer::NOWHERE,
            copy: Pba::NOWHERE,
            copy_is_old: false,
            state: RootState::Loaded,
            changed: false,
            dirty: 0,
            needed,
            tables: [TableIndex::NONE; TABLES_PER_ROOT],
        }
    }

    /// Where memory has a leaf, if it does.
    #[inline]
    pub(super) fn leaf(&self, slot: usize) -> Option<LeafIndex> {
        let table = self.tables[slot / LEAVES_PER_TABLE];
        table.is_some().then(|| table.leaf(slot))
    }

    /// The page's second copy, if there is one and it says the same.
    pub(super) fn copy(&self) -> Option<BlockPointer> {
        let is_there = self.copy != Pba::NOWHERE && self.disk.is_mapped() && !self.copy_is_old;
        let checksum = rebound(self.disk.checksum, self.key, Kind::Root, Kind::RootCopy);
        is_there.then_some(BlockPointer { pba: self.copy, checksum })
    }

    /// Whether there is anything to be known of any leaf.
    pub(crate) fn has_tables(&self) -> bool {
        self.tables.iter().any(|table| table.is_some())
    }

    /// Whether anything may be mapped in a leaf.
    pub(super) fn needs(&self, slot: usize) -> bool {
        self.needed & bit_of(slot) != 0
    }
}

/// The bit of a leaf's table.
pub(super) fn bit_of(slot: usize) -> u16 {
    1 << (slot / LEAVES_PER_TABLE)
}
