//! The map: host address → device address and checksum, under a hard ceiling of memory.
//!
//! A leaf covers 512 host blocks. Its newest values are found in this order:
//!
//! ```text
//! 1. the chain    updates kept apart, a few bytes each
//! 2. the array    in a frame, its entries packed, if the leaf is in memory
//! 3. the page     on the device; a miss, loaded without blocking anyone else
//! ```
//!
//! A random overwrite of a leaf that is not in memory is one update in a chain: nothing is read.
//! Every changed address is noted in the journal, and a checkpoint writes the journal's addresses
//! with their current values as a sorted *run*. Leaf pages are written by the *sweep*, which goes
//! round all leaves in order, slowly: each page that it writes retires all updates that gathered
//! since its last visit.
//!
//! # Invariants
//! - Segment counts equal the number of current values, plus, for every address whose old location
//!   in the leaf page was never looked at, that location ("unreleased").
//! - The newest value of every address that changed since the sweep's last visit of its leaf is in
//!   a live run, in the journal, or in a record after the checkpoint.
//! - An array that differs from the page on the device is never given up, so the value of every
//!   address in the journal is in memory until a run has it or the sweep has written the page.
//! - Nothing here allocates once the tables of leaves are there.
//!
//! # Does not
//! read or write the device (the engine does, on request), or know of records and streams.

mod bounds;
mod chain;
mod directory;
mod discard;
mod doubt;
mod entries;
mod frames;
pub(crate) mod journal;
mod leaf;
pub(crate) mod load;
pub(crate) mod lookup;
mod losses;
mod memory;
mod order;
mod recovery_memory;
mod root;
mod root_list;
mod root_pages;
pub(crate) mod settle;
pub(crate) mod sweep;
mod tables;
pub(crate) mod update;
#[cfg(feature = "verify")]
mod verify;

use crate::degraded::Doubt;
use crate::memory::{NoMemory, list};
use alloc::vec::Vec;
pub(crate) use bounds::{FRAME_COUNT_MIN, FRAME_SIZE_MAX};
use coulter_format::Lba;
use coulter_format::checkpoint::SweepPosition;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::superblock::{Geometry, RecoveryBudget};
use directory::{Directory, Flag, LeafPlace, Limits, RootState, split};
pub(crate) use entries::EntryWidth;
use frames::{CELL_SIZE, Frames};
use leaf::Leaf;
use losses::Losses;
use recovery_memory::RecoveryMemory;

/// The map.
pub(crate) struct Map {
    directory: Directory,
    /// Blocks, and leaves, that the volume has addresses for.
    volume_size: u64,
    volume_leaves: u64,
    /// Leaves, and roots, that may be in use at once.
    leaf_count_max: usize,
    roots_max: u64,
    is_sparse: bool,
    /// Roots that were forgotten and that the durable checkpoint still has, and tables that they needed.
    held: (usize, u64),
    /// Leaf pages that the sweep did without since the newest checkpoint: recovery would have them again.
    given_up: u64,
    /// Root pages on the device.
    root_page_count: u64,
    /// Leaves of which it is not known that they have a page, and that have updates.
    pageless: u64,
    frames: Frames,
    /// Changed addresses since the last cut: host address × 2, or leaf start × 2 + 1 for "all of
    /// the leaf's updates".
    journal: Vec<u64>,
    journal_spare: Vec<u64>,
    /// Updates since the last cut that the journal need not say, for a reference does.
    referred: usize,
    budget: RecoveryBudget,
    recovery: RecoveryMemory,
    /// Addresses of which the newest value is damaged beyond repair, unless chain or array tell another.
    doubt: Doubt,
    /// Addresses that were in doubt and are marked lost, until they are written or discarded: for those who ask how many.
    lost: Doubt,
    losses: Losses,
    /// A page of the list of roots is lost: of addresses in no root that is known nothing is known.
    roots_missing: bool,
    /// Until all has been replayed.
    is_recovering: bool,
    /// Cells promised to blocks in flight.
    reserved_cells: usize,
    /// Relocations on their way.
    relocating: usize,
    /// Leaves before it are merged.
    sweep: SweepPosition,
    pub(crate) statistics: MapStatistics,
}

/// Counters of the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapStatistics {
    /// Lookups answered from memory.
    pub hits: u64,
    /// Lookups that had to load a page.
    pub misses: u64,
    /// Leaf pages given up to make room.
    pub evictions: u64,
}

/// Bytes that the directory of a volume that is not sparse can take, if it has so many roots.
pub(crate) fn directory_size(roots: u64) -> u64 {
    Limits { dense: roots, roots, tables: None }.size()
}

/// Bytes that the directory of a volume can take.
pub(crate) fn directory_size_of(geometry: &Geometry) -> u64 {
    limits(geometry).size()
}

/// What the directory of a volume may come to.
fn limits(geometry: &Geometry) -> Limits {
    let roots = geometry.roots_max();
    let dense = if geometry.is_sparse() { 0 } else { roots };
    Limits { dense, roots, tables: geometry.root_lists.then(|| geometry.tables_max()) }
}

/// Leaves that may be in use at once.
fn leaf_count_max(geometry: &Geometry) -> u64 {
    let addressable = geometry.volume_size.div_ceil(ENTRIES_PER_PAGE as u64);
    // Of a sparse volume each block may be in a leaf of its own; but then half of them are map pages.
    if geometry.is_sparse() { addressable.min(geometry.capacity) } else { addressable }
}

/// Bytes of a frame of entries of this width.
const fn frame_size(width: EntryWidth) -> u64 {
    CELL_SIZE * width.bits() as u64
}

impl Map {
    /// A map without entries, within `map_size` bytes; `None` if that is too little.
    // Not inlined: its locals would enlarge the caller's stack frame.
    #[inline(never)]
    pub(crate) fn new(
        geometry: &Geometry,
        map_size: u64,
        width: EntryWidth,
        budget: RecoveryBudget,
    ) -> Result<Option<Map>, NoMemory> {
        // An array for each leaf, and a chain of all its addresses besides: more is of no use, and
        // what a damaged superblock asks for is not taken on trust.
        let leaf_count_max = leaf_count_max(geometry);
        let roots_max = geometry.roots_max();
        assert!(geometry.volume_size > 0 && roots_max > 0, "a volume has blocks");
        assert!(budget.journal_size > 0, "some updates come between two checkpoints");
        let useful = (3 * leaf_count_max + 1024) * FRAME_SIZE_MAX;
        let Some(left) = map_size.checked_sub(limits(geometry).size()) else { return Ok(None) };
        let size = left.min(useful);
        if size / FRAME_SIZE_MAX < FRAME_COUNT_MIN {
            return Ok(None);
        }
        let frame_count = size / frame_size(width);
        let budget_size = budget.map_size.saturating_sub(limits(geometry).size()).min(size);
        // Three times the size between cuts, and replay may have to take two intervals in one.
        let journal_capacity = 8 * budget.journal_size as usize;
        assert!(
            journal_capacity > 2 * 3 * budget.journal_size as usize,
            "both intervals have room"
        );
        Ok(Some(Map {
            directory: Directory::new(limits(geometry))?,
            volume_size: geometry.volume_size,
            volume_leaves: geometry.volume_size.div_ceil(ENTRIES_PER_PAGE as u64),
            leaf_count_max: leaf_count_max as usize,
            roots_max,
            is_sparse: geometry.is_sparse(),
            held: (0, 0),
            given_up: 0,
            root_page_count: 0,
            pageless: 0,
            frames: Frames::new(frame_count as usize, width)?,
            journal: list(journal_capacity)?,
            journal_spare: list(journal_capacity)?,
            referred: 0,
            budget,
            recovery: RecoveryMemory::new((budget_size / FRAME_SIZE_MAX) as usize),
            doubt: Doubt::default(),
            lost: Doubt::default(),
            losses: Losses::default(),
            roots_missing: false,
            is_recovering: true,
            reserved_cells: 0,
            relocating: 0,
            sweep: SweepPosition::default(),
            statistics: MapStatistics::default(),
        }))
    }

    /// The volume is larger from now on, before anything is written to it. Its directory takes memory that
    /// frames had. They are free: the new size is one that recovery could do with, directory and all, and
    /// all that was restored was let in by the old one.
    pub(crate) fn grow(&mut self, geometry: &Geometry, map_size: u64) -> Result<(), NoMemory> {
        assert!(geometry.volume_size >= self.volume_size, "a volume does not shrink");
        assert!(geometry.roots_max() >= self.roots_max, "nor does what may be in use");
        assert_eq!(geometry.is_sparse(), self.is_sparse, "and it stays what it is");
        let width = self.frames.width();
        let frames = map_size.saturating_sub(limits(geometry).size()) / frame_size(width);
        self.frames.retire_down_to(frames as usize);
        assert!(self.frames.count() > 0, "frames are left");
        self.directory.allow(limits(geometry))?;
        self.volume_size = geometry.volume_size;
        self.volume_leaves = geometry.volume_size.div_ceil(ENTRIES_PER_PAGE as u64);
        self.leaf_count_max = leaf_count_max(geometry) as usize;
        self.roots_max = geometry.roots_max();
        Ok(())
    }

    /// Whether arrays have room for every address below this one.
    pub(crate) fn holds_addresses_below(&self, end: u64) -> bool {
        EntryWidth::of_addresses_below(end) <= self.frames.width()
    }

    /// Keys of the volume's roots are below it.
    pub(crate) fn root_key_limit(&self) -> u64 {
        self.volume_size.div_ceil((ENTRIES_PER_PAGE * ENTRIES_PER_PAGE) as u64)
    }

    /// Roots that may be in use at once.
    pub(crate) fn roots_max(&self) -> u64 {
        self.roots_max
    }

    /// Whether an address belongs to a leaf that the volume can have.
    pub(crate) fn can_have_leaf_of(&self, lba: Lba) -> bool {
        split(lba).0 < self.volume_leaves
    }

    /// The same, and besides all others that it has.
    pub(crate) fn has_leaf_of(&self, lba: Lba) -> bool {
        let (leaf, _) = split(lba);
        let root = leaf / ENTRIES_PER_PAGE as u64;
        let has_room = self.has_root(root) || (self.root_count() as u64) < self.roots_max;
        let has_table = self.directory.may_hold(leaf) || self.directory.tables_left() > 0;
        self.can_have_leaf_of(lba) && has_room && has_table
    }

    /// Whether anything may be mapped in this root: it is in use.
    pub(crate) fn has_root(&self, key: u64) -> bool {
        self.directory.find_root(key).is_some()
    }

    /// While a store is opened: there is memory for what is known of each leaf that may be mapped among so
    /// many blocks: of all of them if data comes, else of those that may hold something.
    pub(crate) fn make_leaves(
        &mut self,
        lba: Lba,
        count: u64,
        is_data: bool,
    ) -> Result<(), NoMemory> {
        let (first, last) = (split(lba).0, split(Lba(lba.0 + count.max(1) - 1)).0);
        assert!(self.is_recovering, "once it runs, leaves are made as they are written");
        for leaf in first..=last {
            if is_data || self.directory.may_hold(leaf) {
                let is_new = !self.has_root(leaf / ENTRIES_PER_PAGE as u64);
                let place = self.directory.try_place(leaf)?;
                if is_new && self.roots_missing {
                    // What it says of other leaves is lost.
                    self.directory.root_mut(place.root()).state = RootState::Damaged;
                }
            }
        }
        Ok(())
    }

    /// Takes a root into use.
    pub(crate) fn make_root(&mut self, key: u64) {
        assert!(key < self.root_key_limit(), "a root covers addresses of the volume");
        self.directory.root_index(key);
    }

    /// The first address from here on that belongs to a root in use; behind all addresses if none does.
    pub(crate) fn next_in_use(&self, lba: u64) -> u64 {
        let per_root = (ENTRIES_PER_PAGE * ENTRIES_PER_PAGE) as u64;
        let mut roots = self.directory.roots_from(lba / per_root);
        let first =
            roots.next().map(|index| self.directory.root(index).key.saturating_mul(per_root));
        let next = first.map_or(self.volume_size.max(lba), |first| first.max(lba));
        if self.roots_missing { lba } else { next.min(self.doubt.next(lba)) }
    }

    /// Whether these leaves' tables are in use, or may come into use.
    pub(crate) fn has_tables_for(&self, leaves: &[u64]) -> bool {
        let is_new = |leaf: &&u64| !self.directory.may_hold(**leaf);
        let new = leaves.iter().filter(is_new).count() as u64;
        new <= self.directory.tables_left().saturating_sub(self.held.1)
    }

    /// Takes the table of a leaf into use.
    pub(crate) fn make_table(&mut self, leaf: u64) {
        let (root, slot) = split(Lba(leaf));
        let root = self.directory.root_index(root);
        self.directory.let_in(root, root::bit_of(slot));
    }

    /// Whether there is a root in which there is nothing.
    pub(crate) fn has_empty_root(&self) -> bool {
        self.directory.has_empty()
    }

    /// It was asked, and there is none.
    pub(crate) fn note_no_empty_root(&mut self) {
        self.directory.note_none_empty();
    }

    /// At a cut: forgets roots in which there is nothing. Only while nothing is promised: what was accepted
    /// and did not take effect needs its root. Recovery may come from the checkpoint before this one, which
    /// has them, so they count until this one is durable.
    pub(crate) fn drop_empty_roots(&mut self) {
        let (roots, tables) = self.directory.drop_empty();
        self.held = (self.held.0 + roots, self.held.1 + tables);
    }

    /// Root pages on the device.
    pub(crate) fn root_page_count(&self) -> u64 {
        self.root_page_count
    }

    /// Leaf pages that were given up, and that the newest checkpoint has.
    pub(crate) fn given_up_count(&self) -> u64 {
        self.given_up
    }

    /// Leaves with updates of which it is not known that they have a page.
    pub(crate) fn pageless_count(&self) -> u64 {
        self.pageless
    }

    /// Whether a leaf has a page, or is counted as one that will.
    pub(crate) fn has_page_or_update(&self, key: u64) -> bool {
        let Some(place) = self.directory.find(key) else { return false };
        let leaf = self.directory.leaf(place);
        leaf.is(Flag::Pageless) || leaf.is(Flag::Writing) || leaf.disk.is_mapped()
    }

    /// Whether anything is counted of which the sweep would find that it is not needed: an old location at which
    /// nobody looked, or the page of a leaf in which nothing is mapped any more.
    pub(crate) fn has_unsettled(&self) -> bool {
        let mut next = self.directory.next_dirty(0);
        while let Some(key) = next {
            let leaf = self.directory.find(key).map(|place| self.directory.leaf(place));
            let leaf = leaf.expect("a leaf with updates has a table");
            let unknown = leaf.is(Flag::Pageless) || leaf.is(Flag::Dead);
            let mut updates = self.frames.chain_updates(leaf.chain);
            if unknown || updates.any(|update| !update.released) || self.may_be_emptied(leaf) {
                return true;
            }
            next = self.directory.next_dirty(key + 1);
        }
        false
    }

    /// Whether an address of a leaf was unmapped since it was swept, and perhaps the last one.
    fn may_be_emptied(&self, leaf: &Leaf) -> bool {
        if leaf.chain.is_some() {
            let mut updates = self.frames.chain_updates(leaf.chain);
            return updates.any(|update| !update.pointer.is_mapped());
        }
        let is_known = leaf.frame.is_some() && !leaf.is(Flag::Loading);
        match is_known {
            true => self.frames.is_empty(leaf.frame),
            false => leaf.is(Flag::Cleared),
        }
    }

    /// A leaf has updates: if it is not known to have a page, it is counted as one that will.
    fn note_pageless(&mut self, place: LeafPlace) {
        let is_loaded = self.directory.is_loaded(place);
        let leaf = self.directory.leaf_mut(place);
        let has_page = is_loaded && leaf.disk.is_mapped();
        if !has_page && !leaf.is(Flag::Pageless) {
            leaf.set(Flag::Pageless, true);
            self.pageless += 1;
        }
    }

    /// A leaf has a page, or needs none.
    fn note_page(&mut self, place: LeafPlace) {
        let leaf = self.directory.leaf_mut(place);
        if leaf.is(Flag::Pageless) {
            leaf.set(Flag::Pageless, false);
            assert!(self.pageless > 0, "it was counted");
            self.pageless -= 1;
        }
    }

    /// Bytes in use: arrays, chains, directory.
    pub(crate) fn size(&self) -> u64 {
        assert!(self.frames.free_count() <= self.frames.count(), "what is free is there");
        let frames = (self.frames.count() - self.frames.free_count()) as u64;
        frames * frame_size(self.frames.width()) + self.directory.size() as u64
    }

    /// Pins a leaf's array while it must stay.
    fn refresh_pin(&mut self, place: LeafPlace) {
        let leaf = self.directory.leaf(place);
        if leaf.frame.is_some() {
            self.frames.pin(leaf.frame, leaf.must_stay());
        }
    }

    /// Whether the journal has room for so many more updates and for all that was promised before.
    pub(crate) fn journal_admits(&self, updates: usize) -> bool {
        let promised = self.reserved_cells + updates;
        self.journal_length() + promised <= 2 * self.budget.journal_size as usize
    }

    /// Whether an empty journal would.
    pub(crate) fn promises_fit_journal(&self, updates: usize) -> bool {
        self.reserved_cells + updates <= 2 * self.budget.journal_size as usize
    }

    /// The same for the memory that recovery may need.
    pub(crate) fn recovery_admits(&self, updates: usize) -> bool {
        !self.recovery.is_full(self.reserved_cells + updates)
    }

    /// Cells that recovery may need if the power goes now, with all that was accepted, and how many
    /// it may.
    pub(crate) fn recovery_cells(&self) -> (usize, usize) {
        (self.recovery.needed() + self.reserved_cells, self.recovery.cells_max())
    }

    /// All has been replayed. Returns how many cells hold updates.
    pub(crate) fn recovery_is_over(&mut self) -> usize {
        assert!(self.is_recovering, "it is over once");
        self.is_recovering = false;
        self.frames.used_cell_count()
    }
}
