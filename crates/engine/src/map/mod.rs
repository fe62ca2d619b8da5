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

mod chain;
mod directory;
mod discard;
mod entries;
mod frames;
mod journal;
mod load;
mod memory;
mod recovery_memory;
mod sweep;
#[cfg(feature = "verify")]
mod verify;

use crate::canary::{Canary, sings};
use crate::segments::Segments;
use crate::units::Sequence;
use alloc::vec::Vec;
use chain::{UPDATES_PER_CELL, Update};
use coulter_format::checkpoint::SweepPosition;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::superblock::{Geometry, RecoveryBudget};
use coulter_format::{BlockPointer, Lba, Pba};
use directory::{Directory, Flag, LEAF_TABLE_SIZE, LeafPlace, RootState, split};
pub(crate) use entries::EntryWidth;
use frames::{CELL_SIZE, Frames};
pub(crate) use journal::{EMPTY_BLOCK, RunBuilder};
pub(crate) use load::{LoadPurpose, LoadStep};
use recovery_memory::RecoveryMemory;
pub(crate) use sweep::PageWrite;

/// Bytes of a frame of the widest entries. What a store is promised, and what it promises, is counted
/// in these, whatever its own frames are: see [`recovery_memory`].
pub(crate) const FRAME_SIZE_MAX: u64 = CELL_SIZE * EntryWidth::MAX.bits() as u64;

/// A chain longer than this is folded into the leaf's array if there is one.
const CHAIN_LENGTH_MAX: u16 = 48;

/// Frames that only the sweep may take: it must always get on, for it makes room for all others.
const SWEEP_FRAMES: usize = 8;

/// The answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The block lies there.
    Mapped(BlockPointer),
    /// The block reads as zeros.
    Unmapped,
    /// The leaf of this key must be loaded first.
    Miss(u64),
    /// The leaf, or its root, is damaged on the device.
    Damaged,
}

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
    /// Roots that were forgotten and that the durable checkpoint still has.
    roots_held: usize,
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

/// The least frames that a map works with, if they are of the largest size.
pub(crate) const FRAME_COUNT_MIN: u64 = 64;

/// Bytes that a directory of so many roots can take.
pub(crate) fn directory_size(roots: u64) -> u64 {
    roots * (LEAF_TABLE_SIZE + core::mem::size_of::<directory::Root>()) as u64
}

/// Leaves that may be in use at once.
fn leaf_count_max(geometry: &Geometry) -> u64 {
    let addressable = geometry.volume_size.div_ceil(ENTRIES_PER_PAGE as u64);
    // Of a sparse volume each block may be in a leaf of its own; but then half of them are map pages.
    if geometry.is_sparse() { addressable.min(geometry.capacity) } else { addressable }
}

/// Roots that are there from the start.
fn dense_roots(geometry: &Geometry) -> u64 {
    if geometry.is_sparse() { 0 } else { geometry.roots_max() }
}

/// Bytes of a frame of entries of this width.
const fn frame_size(width: EntryWidth) -> u64 {
    CELL_SIZE * width.bits() as u64
}

impl Map {
    /// A map without entries, within `map_size` bytes; `None` if that is too little.
    pub(crate) fn new(
        geometry: &Geometry,
        map_size: u64,
        width: EntryWidth,
        budget: RecoveryBudget,
    ) -> Option<Map> {
        // An array for each leaf, and a chain of all its addresses besides: more is of no use, and
        // what a damaged superblock asks for is not taken on trust.
        let leaf_count_max = leaf_count_max(geometry);
        let roots_max = geometry.roots_max();
        let useful = (3 * leaf_count_max + 1024) * FRAME_SIZE_MAX;
        let size = map_size.checked_sub(directory_size(roots_max))?.min(useful);
        if size / FRAME_SIZE_MAX < FRAME_COUNT_MIN {
            return None;
        }
        let frame_count = size / frame_size(width);
        let budget_size = budget.map_size.saturating_sub(directory_size(roots_max)).min(size);
        // Three times the size between cuts, and replay may have to take two intervals in one.
        let journal_capacity = 8 * budget.journal_size as usize;
        Some(Map {
            directory: Directory::new(dense_roots(geometry)),
            volume_size: geometry.volume_size,
            volume_leaves: geometry.volume_size.div_ceil(ENTRIES_PER_PAGE as u64),
            leaf_count_max: leaf_count_max as usize,
            roots_max,
            is_sparse: geometry.is_sparse(),
            roots_held: 0,
            root_page_count: 0,
            pageless: 0,
            frames: Frames::new(frame_count as usize, width),
            journal: Vec::with_capacity(journal_capacity),
            journal_spare: Vec::with_capacity(journal_capacity),
            referred: 0,
            budget,
            recovery: RecoveryMemory::new((budget_size / FRAME_SIZE_MAX) as usize),
            is_recovering: true,
            reserved_cells: 0,
            relocating: 0,
            sweep: SweepPosition::default(),
            statistics: MapStatistics::default(),
        })
    }

    /// The volume is larger from now on, before anything is written to it. Its directory takes memory that
    /// frames had. They are free: the new size is one that recovery could do with, directory and all, and
    /// all that was restored was let in by the old one.
    pub(crate) fn grow(&mut self, geometry: &Geometry, map_size: u64) {
        let width = self.frames.width();
        let directory = directory_size(geometry.roots_max());
        let frames = map_size.saturating_sub(directory) / frame_size(width);
        self.frames.retire_down_to(frames as usize);
        if !geometry.is_sparse() {
            self.directory.grow(dense_roots(geometry));
        }
        self.volume_size = geometry.volume_size;
        self.volume_leaves = geometry.volume_size.div_ceil(ENTRIES_PER_PAGE as u64);
        self.leaf_count_max = leaf_count_max(geometry) as usize;
        self.roots_max = geometry.roots_max();
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
        self.can_have_leaf_of(lba) && has_room
    }

    /// Whether anything may be mapped in this root: it is in use.
    pub(crate) fn has_root(&self, key: u64) -> bool {
        self.directory.find_root(key).is_some()
    }

    /// Takes a root into use.
    pub(crate) fn make_root(&mut self, key: u64) {
        self.directory.root_index(key);
    }

    /// The first address from here on that belongs to a root in use; behind all addresses if none does.
    pub(crate) fn next_in_use(&self, lba: u64) -> u64 {
        let per_root = (ENTRIES_PER_PAGE * ENTRIES_PER_PAGE) as u64;
        let roots = self.directory.roots();
        let index = roots.partition_point(|root| root.key < lba / per_root);
        let first = roots.get(index).map(|root| root.key.saturating_mul(per_root));
        first.map_or(self.volume_size.max(lba), |first| first.max(lba))
    }

    /// Whether there is a root in which there is nothing.
    pub(crate) fn has_empty_root(&self) -> bool {
        self.directory.has_empty()
    }

    /// At a cut: forgets roots in which there is nothing. Only while nothing is promised: what was accepted
    /// and did not take effect needs its root. Recovery may come from the checkpoint before this one, which
    /// has them, so they count until this one is durable.
    pub(crate) fn drop_empty_roots(&mut self) {
        self.roots_held += self.directory.drop_empty();
    }

    /// Root pages on the device.
    pub(crate) fn root_page_count(&self) -> u64 {
        self.root_page_count
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

    /// Whether a block is mapped, if memory tells.
    pub(crate) fn presence(&self, lba: Lba) -> Option<bool> {
        let (key, index) = split(lba);
        match self.directory.find(key) {
            Some(place) => {
                let known = self.known(place, index);
                // What is lost takes no room, and what heals it does.
                known.map(|pointer| pointer.is_mapped() && !pointer.is_lost())
            }
            None => {
                let root = self.directory.find_root(key / ENTRIES_PER_PAGE as u64);
                let state = root.map(|root| self.directory.roots()[root].state);
                matches!(state, None | Some(RootState::Loaded)).then_some(false)
            }
        }
    }

    /// Whether any old location in a leaf page is counted though nobody looked whether it is there.
    pub(crate) fn has_unsettled(&self) -> bool {
        let tables = self.directory.roots().iter().filter_map(|root| root.leaves.as_ref());
        let mut leaves = tables.flat_map(|leaves| leaves.iter()).filter(|leaf| leaf.unmerged > 0);
        leaves.any(|leaf| {
            let unknown = leaf.is(Flag::Pageless) || leaf.is(Flag::Dead);
            unknown || self.frames.chain_updates(leaf.chain).any(|update| !update.released)
        })
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
            self.pageless -= 1;
        }
    }

    /// Bytes in use: arrays, chains, directory.
    pub(crate) fn size(&self) -> u64 {
        let frames = (self.frames.count() - self.frames.free_count()) as u64;
        frames * frame_size(self.frames.width())
            + (self.directory.leaf_tables * LEAF_TABLE_SIZE
                + core::mem::size_of_val(self.directory.roots())) as u64
    }

    /// Where a block lies.
    pub(crate) fn lookup(&mut self, lba: Lba) -> Lookup {
        let (key, index) = split(lba);
        let Some(place) = self.directory.find(key) else { return self.lookup_without_table(key) };
        let leaf = self.directory.leaf(place);
        if leaf.chain.is_some()
            && let Some((_, update)) = self.frames.chain_find(leaf.chain, index)
        {
            self.statistics.hits += 1;
            return found(update.pointer);
        }
        if leaf.frame.is_some() && !leaf.is(Flag::Loading) {
            self.statistics.hits += 1;
            return found(self.frames.touch(leaf.frame, index));
        }
        if leaf.base_is_gone() {
            return Lookup::Unmapped;
        }
        match self.directory.roots()[place.root].state {
            RootState::Loaded if !leaf.disk.is_mapped() => Lookup::Unmapped,
            RootState::Loaded if leaf.is(Flag::Damaged) => Lookup::Damaged,
            RootState::Damaged => Lookup::Damaged,
            _ => {
                self.statistics.misses += 1;
                Lookup::Miss(key)
            }
        }
    }

    fn lookup_without_table(&self, key: u64) -> Lookup {
        let root = self.directory.find_root(key / ENTRIES_PER_PAGE as u64);
        match root.map(|root| self.directory.roots()[root].state) {
            None | Some(RootState::Loaded) => Lookup::Unmapped,
            Some(RootState::Damaged) => Lookup::Damaged,
            Some(_) => Lookup::Miss(key),
        }
    }

    /// Where a block lies, if memory tells and it lies anywhere. Counts as no lookup.
    pub(crate) fn location(&self, lba: Lba) -> Option<Pba> {
        let (key, index) = split(lba);
        let place = self.directory.find(key)?;
        let pointer = self.known(place, index)?;
        (pointer.is_mapped() && !pointer.is_lost()).then_some(pointer.pba)
    }

    /// Touches what an update or lookup of the address will need, so that the memory of many
    /// addresses is fetched side by side. The result is of no meaning but must be used.
    pub(crate) fn warm(&self, lba: Lba) -> u64 {
        let (key, index) = split(lba);
        let Some(place) = self.directory.find(key) else { return 0 };
        let leaf = self.directory.leaf(place);
        if !leaf.frame.is_some() {
            return u64::from(leaf.unmerged);
        }
        self.frames.warm(leaf.frame, index)
    }

    /// Whether a block may lie there, for all that is in memory. It is not counted as being used.
    pub(crate) fn may_lie_at(&self, lba: Lba, pba: Pba) -> bool {
        let (key, index) = split(lba);
        let place = self.directory.find(key);
        let known = place.and_then(|place| self.known(place, index));
        known.is_none_or(|pointer| pointer.pba == pba)
    }

    /// The same for an update that recovery restores: it looks through all of the leaf's chain.
    pub(crate) fn warm_chain(&self, lba: Lba) -> u64 {
        let place = self.directory.find(split(lba).0);
        place.map_or(0, |place| self.frames.chain_warm(self.directory.leaf(place).chain))
    }

    /// Whether a block is mapped, without loading anything: what is not in memory counts as
    /// mapped.
    pub(crate) fn is_mapped(&mut self, lba: Lba) -> bool {
        self.lookup(lba) != Lookup::Unmapped
    }

    /// Sets where a block lies, or that it is unmapped. Returns whether nothing but this value is counted
    /// for the address now.
    pub(crate) fn update(
        &mut self,
        segments: &mut Segments,
        lba: Lba,
        pointer: BlockPointer,
        now: Sequence,
    ) -> bool {
        let (key, index) = split(lba);
        let place = self.directory.place(key);
        self.note_update(place, lba.0 << 1);
        if pointer.is_mapped() {
            segments.retain(pointer.pba);
        }
        let (old, released) = self.replace(place, index, pointer);
        if old.is_mapped() {
            segments.release(old.pba, now);
        }
        self.fold_if_long(segments, place, now);
        released
    }

    /// Sets where a block lies if it lies at `source` now. `None` if it did not; else what
    /// [`Map::update`] returns. When nothing is known of the address in memory, `unknown` decides: see
    /// the caller.
    pub(crate) fn update_if(
        &mut self,
        segments: &mut Segments,
        lba: Lba,
        source: Pba,
        pointer: BlockPointer,
        unknown: IfUnknown,
        now: Sequence,
    ) -> Option<bool> {
        let (key, index) = split(lba);
        let place = self.directory.place(key);
        let known = self.known(place, index);
        match (known, unknown) {
            (Some(current), _) if current.pba != source && !sings(Canary::OverwriteIgnored) => None,
            (Some(_), _) => Some(self.update(segments, lba, pointer, now)),
            (None, IfUnknown::Panic) => panic!("a leaf with relocations on their way stays known"),
            (None, IfUnknown::Matches) => {
                self.note_update(place, lba.0 << 1);
                segments.retain(pointer.pba);
                segments.release(source, now);
                let update = Update { index, pointer, released: true };
                let mut chain = self.directory.leaf(place).chain;
                self.frames.chain_add(&mut chain, update);
                self.directory.leaf_mut(place).chain = chain;
                Some(true)
            }
        }
    }

    /// Sets where a block lies to where it lies, so that the next run says it. The leaf must be known.
    pub(crate) fn affirm(&mut self, segments: &mut Segments, lba: Lba, now: Sequence) {
        let (key, index) = split(lba);
        let place = self.directory.place(key);
        let current = self.known(place, index).expect("relocations keep a leaf known");
        self.note_update(place, lba.0 << 1);
        self.replace(place, index, current);
        self.fold_if_long(segments, place, now);
    }

    /// Whether the leaf page counts nothing for the address any more, be it mapped or not. The leaf must be
    /// known.
    pub(crate) fn is_released(&self, lba: Lba) -> bool {
        let (key, index) = split(lba);
        let Some(place) = self.directory.find(key) else { return true };
        let leaf = self.directory.leaf(place);
        if let Some((_, update)) = self.frames.chain_find(leaf.chain, index) {
            return update.released;
        }
        let in_memory = leaf.frame.is_some() && !leaf.is(Flag::Loading);
        let no_page = self.directory.is_loaded(place) && !leaf.disk.is_mapped();
        in_memory || no_page || leaf.is(Flag::Cleared)
    }

    /// In replay: a relocation of this address did not arrive, so it lies where it lay. If nothing
    /// is known of it in memory, that is now; else a later relocation from where this one would have
    /// gone would be believed.
    pub(crate) fn stays(&mut self, lba: Lba, pointer: BlockPointer) {
        let (key, index) = split(lba);
        let place = self.directory.place(key);
        if self.known(place, index).is_some() {
            return;
        }
        self.note_update(place, lba.0 << 1);
        // What was counted for the leaf page is counted for the update from now on.
        self.add_to_chain(place, Update { index, pointer, released: true });
    }

    /// The current value, if memory tells.
    fn known(&self, place: LeafPlace, index: usize) -> Option<BlockPointer> {
        let leaf = self.directory.leaf(place);
        if leaf.chain.is_some()
            && let Some((_, update)) = self.frames.chain_find(leaf.chain, index)
        {
            return Some(update.pointer);
        }
        if leaf.frame.is_some() && !leaf.is(Flag::Loading) {
            return Some(self.frames.entry(leaf.frame, index));
        }
        let nothing_on_device = self.directory.is_loaded(place) && !leaf.disk.is_mapped();
        (leaf.base_is_gone() || nothing_on_device).then_some(BlockPointer::NOWHERE)
    }

    /// Puts a value into chain or array. Returns the old location if it is known and still
    /// counted: the caller releases it; and whether the page counts nothing for the address any more.
    fn replace(
        &mut self,
        place: LeafPlace,
        index: usize,
        pointer: BlockPointer,
    ) -> (BlockPointer, bool) {
        let (leaf, frames) = (self.directory.leaf(place), &mut self.frames);
        if leaf.chain.is_some()
            && let Some((slot, update)) = frames.chain_find(leaf.chain, index)
        {
            frames.chain_set(slot, Update { pointer, ..update });
            return (update.pointer, update.released);
        }
        if leaf.frame.is_some() && !leaf.is(Flag::Loading) {
            let old = frames.entry(leaf.frame, index);
            // A page on its way frees its array when it arrives, unless the array changes.
            let changed = leaf.is(Flag::Changed) && !leaf.is(Flag::Writing);
            if changed || self.is_roomy() {
                self.change_in_array(place, index, pointer);
            } else {
                self.add_to_chain(place, Update { index, pointer, released: true });
            }
            return (old, true);
        }
        let loaded = self.directory.is_loaded(place);
        let leaf = self.directory.leaf(place);
        let nothing_counted = leaf.is(Flag::Cleared) || (loaded && !leaf.disk.is_mapped());
        if nothing_counted && !leaf.is(Flag::Loading) && self.is_roomy() {
            let key = self.directory.key(place);
            if let Some(frame) = self.take_unpromised(key, SWEEP_FRAMES) {
                let leaf = self.directory.leaf_mut(place);
                leaf.frame = frame;
                leaf.set(Flag::Cleared, false);
                leaf.set(Flag::Dead, false);
                self.change_in_array(place, index, pointer);
                return (BlockPointer::NOWHERE, true);
            }
        }
        self.add_to_chain(place, Update { index, pointer, released: nothing_counted });
        (BlockPointer::NOWHERE, nothing_counted)
    }

    fn add_to_chain(&mut self, place: LeafPlace, update: Update) {
        let leaf = self.directory.leaf_mut(place);
        self.frames.chain_add(&mut leaf.chain, update);
    }

    fn change_in_array(&mut self, place: LeafPlace, index: usize, pointer: BlockPointer) {
        let leaf = self.directory.leaf_mut(place);
        leaf.set(Flag::Changed, true);
        leaf.set(Flag::Touched, true);
        let frame = leaf.frame;
        self.frames.set_entry(frame, index, pointer);
        self.frames.pin(frame, !sings(Canary::PageEvictedEarly));
    }

    /// Pins a leaf's array while it must stay.
    fn refresh_pin(&mut self, place: LeafPlace) {
        let leaf = self.directory.leaf(place);
        if leaf.frame.is_some() {
            self.frames.pin(leaf.frame, leaf.must_stay());
        }
    }

    /// Notes in journal and leaf that an address changes.
    fn note_update(&mut self, place: LeafPlace, journal_entry: u64) {
        assert!(self.journal.len() < self.journal.capacity(), "room is checked on acceptance");
        self.journal.push(journal_entry);
        self.count_update(place);
    }

    /// Counts an update for the sweep and for what recovery would need.
    fn count_update(&mut self, place: LeafPlace) {
        let leaf = self.directory.leaf_mut(place);
        let was_clean = leaf.unmerged == 0;
        self.recovery.count(leaf);
        if was_clean {
            self.directory.note_dirty(place);
        }
        self.note_pageless(place);
    }

    fn fold_if_long(&mut self, segments: &mut Segments, place: LeafPlace, now: Sequence) {
        let leaf = self.directory.leaf(place);
        let long = leaf.chain.is_some() && leaf.unmerged > CHAIN_LENGTH_MAX;
        // Folding may note every update once more.
        let room = self.journal.capacity() - self.journal.len();
        if long
            && leaf.frame.is_some()
            && !leaf.is(Flag::Loading)
            && (leaf.is(Flag::Changed) || self.is_roomy())
            && room > self.budget.journal_size as usize
        {
            self.fold(segments, place, true, now);
        }
    }

    /// Puts a leaf's chain into its array. With `note`, newly released addresses are noted in the
    /// journal: runs on the device say "unreleased" of them, and a newer one must say otherwise.
    /// The sweep need not: all older runs are done with a leaf that it has passed.
    fn fold(&mut self, segments: &mut Segments, place: LeafPlace, note: bool, now: Sequence) {
        let leaf = *self.directory.leaf(place);
        assert!(leaf.frame.is_some() && !leaf.is(Flag::Loading), "only into an array");
        if !leaf.chain.is_some() {
            return;
        }
        let mut chain = leaf.chain;
        let start = self.directory.key(place) * ENTRIES_PER_PAGE as u64;
        let mut rest = chain;
        while let Some((updates, behind)) = self.frames.cell_updates(rest) {
            for update in updates.into_iter().flatten() {
                if !update.released {
                    let old = self.frames.entry(leaf.frame, update.index);
                    if old.is_mapped() {
                        segments.release(old.pba, now);
                    }
                    if note {
                        assert!(self.journal.len() < self.journal.capacity(), "room was checked");
                        self.journal.push((start + update.index as u64) << 1);
                    }
                }
                self.frames.set_entry(leaf.frame, update.index, update.pointer);
            }
            rest = behind;
        }
        self.frames.chain_release(&mut chain);
        self.frames.pin(leaf.frame, true);
        let leaf = self.directory.leaf_mut(place);
        leaf.chain = chain;
        leaf.set(Flag::Changed, true);
        leaf.set(Flag::Touched, true);
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
        self.is_recovering = false;
        self.frames.used_cell_count()
    }

    /// Looks whether an old location of this address is still counted, and releases it.
    /// Told to load, [`Map::load_step`] has something to do; else who waits would wait for ever.
    pub(crate) fn settle(&mut self, segments: &mut Segments, lba: Lba, now: Sequence) -> Settled {
        let (key, index) = split(lba);
        let Some(place) = self.directory.find(key) else { return Settled::Done };
        let leaf = *self.directory.leaf(place);
        let damaged = leaf.is(Flag::Damaged) || self.root_is_damaged(key);
        let unknown = if damaged { Settled::Damaged } else { Settled::MustLoad };
        let in_memory = leaf.frame.is_some() && !leaf.is(Flag::Loading);
        let no_page = self.directory.is_loaded(place) && !leaf.disk.is_mapped();
        let nothing_counted = no_page || leaf.is(Flag::Cleared);
        let update = self.frames.chain_find(leaf.chain, index);
        let (slot, update) = match update {
            Some((slot, update)) if !update.released => (slot, update),
            None if leaf.is(Flag::Dead) && !in_memory && !nothing_counted => return unknown,
            _ => return Settled::Done,
        };
        if !in_memory && !nothing_counted {
            return unknown;
        }
        if in_memory {
            let old = self.frames.entry(leaf.frame, index);
            if old.is_mapped() {
                segments.release(old.pba, now);
            }
        }
        self.frames.chain_set(slot, Update { released: true, ..update });
        assert!(self.journal.len() < self.journal.capacity(), "room was asked for");
        self.journal.push(lba.0 << 1);
        Settled::Done
    }

    /// A relocation of an address of this leaf is on its way, or has arrived: while one is, the
    /// leaf stays known, so that the comparison on arrival can be made.
    fn relocation_started(&mut self, lba: Lba) {
        let place = self.directory.place(split(lba).0);
        self.directory.leaf_mut(place).relocating += 1;
        self.refresh_pin(place);
        assert!(self.relocating < u32::MAX as usize, "relocations can be counted");
        self.relocating += 1;
    }

    /// See [`Map::try_start_relocation`].
    pub(crate) fn relocation_ended(&mut self, lba: Lba) {
        let place = self.directory.place(split(lba).0);
        let leaf = self.directory.leaf_mut(place);
        assert!(leaf.relocating > 0, "a relocation ends once");
        leaf.relocating -= 1;
        self.refresh_pin(place);
        assert!(self.relocating > 0, "a relocation that ends was counted");
        self.relocating -= 1;
    }

    /// Whether so many addresses may be settled, beside what was promised.
    pub(crate) fn journal_has_room_to_settle(&self, addresses: usize) -> bool {
        self.journal.len() + addresses <= 4 * self.budget.journal_size as usize
    }

    /// Begins a relocation of this address if that may be: it keeps the leaf in memory, and needs a
    /// cell. Pinned first: making room for the cell must not give up this very leaf.
    pub(crate) fn try_start_relocation(&mut self, lba: Lba) -> bool {
        if !self.admits_relocation(lba) {
            return false;
        }
        self.relocation_started(lba);
        let reserved = self.reserve_down_to(1, SWEEP_FRAMES);
        if !reserved {
            self.relocation_ended(lba);
        }
        reserved
    }

    fn admits_relocation(&self, lba: Lba) -> bool {
        let Some(place) = self.directory.find(split(lba).0) else { return false };
        // On arrival each notes an address, like every update that was promised.
        let noted = self.relocating + self.reserved_cells + 1;
        let stays_anyway = self.directory.leaf(place).must_stay();
        (stays_anyway || (self.may_pin() && self.obtainable() > SWEEP_FRAMES + 4))
            && self.journal_length() + noted <= 3 * self.budget.journal_size as usize
            && !self.recovery.is_full(noted)
    }
}

/// What became of an address whose old location may still be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is not.
    Done,
    /// The leaf must be loaded first.
    MustLoad,
    /// The page that would tell is damaged.
    Damaged,
}

/// What a conditional update assumes of an address of which nothing is known in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfUnknown {
    /// That cannot be: the leaf is kept in memory until the relocation arrives.
    Panic,
    /// It lies at the source. True in replay: an address without update since the checkpoint is
    /// where the cleaner saw it, for a checkpoint is cut only while no relocation is on its way.
    Matches,
}

fn found(pointer: BlockPointer) -> Lookup {
    match pointer.pba {
        Pba::NOWHERE => Lookup::Unmapped,
        Pba::LOST => Lookup::Damaged,
        _ => Lookup::Mapped(pointer),
    }
}
