//! The map, counted anew.

use super::Map;
use super::chain::{UPDATES_PER_CELL, Update};
use super::directory::{Flag, Leaf, LeafPlace, Root, RootState, split};
use super::frames::Frames;
use crate::invariants::{Stored, Tally};
use crate::log::verify::UnderWay;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use coulter_format::checksum::{self, Kind};
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::{BlockPointer, Lba, map_page};

const EMPTY: [BlockPointer; ENTRIES_PER_PAGE] = [BlockPointer::NOWHERE; ENTRIES_PER_PAGE];

/// A map page as the device holds it; `None` if it is not to be had.
fn page(stored: Stored<'_>, kind: Kind, key: u64, at: BlockPointer) -> Option<Vec<BlockPointer>> {
    let block = stored(at.pba)?;
    let is_intact = checksum::block(kind, key, &block) == at.checksum;
    is_intact.then(|| map_page::decode(&block).collect())
}

impl Map {
    /// Where a block lies, if memory tells.
    pub(crate) fn current(&self, lba: Lba) -> Option<BlockPointer> {
        let (key, index) = split(lba);
        self.known(self.directory.find(key)?, index)
    }

    /// Counts every reference that the map makes, save its root pages.
    pub(crate) fn tally(&self, tally: &mut Tally<'_>, stored: Stored<'_>) {
        for root in self.directory.roots() {
            self.tally_root(root, tally, stored);
        }
    }

    fn tally_root(&self, root: &Root, tally: &mut Tally<'_>, stored: Stored<'_>) {
        let listed = match root.state {
            RootState::Loaded => None,
            RootState::Damaged => return tally.miss(),
            RootState::OnDevice | RootState::Loading => {
                match page(stored, Kind::Root, root.key, root.disk) {
                    Some(page) => Some(page),
                    None => return tally.miss(),
                }
            }
        };
        for slot in 0..ENTRIES_PER_PAGE {
            let leaf = root.leaf(slot).map(|leaf| *self.directory.leaf_at(leaf));
            let disk = match (&listed, leaf) {
                (Some(page), _) => page[slot],
                (None, leaf) => leaf.map_or(BlockPointer::NOWHERE, |leaf| leaf.disk),
            };
            tally.count(disk.pba);
            let key = root.key * ENTRIES_PER_PAGE as u64 + slot as u64;
            self.tally_leaf(key, leaf, disk, tally, stored);
        }
    }

    fn tally_leaf(
        &self,
        key: u64,
        leaf: Option<Leaf>,
        disk: BlockPointer,
        tally: &mut Tally<'_>,
        stored: Stored<'_>,
    ) {
        let mut updates: [Option<Update>; ENTRIES_PER_PAGE] = [None; ENTRIES_PER_PAGE];
        let chain = leaf.map(|leaf| self.frames.chain_updates(leaf.chain));
        for update in chain.into_iter().flatten() {
            assert!(updates[update.index].is_none(), "an address occurs at most once in a chain");
            tally.count(update.pointer.pba);
            updates[update.index] = Some(update);
        }
        let base = match leaf {
            Some(leaf) if leaf.frame.is_some() && !leaf.is(Flag::Loading) => {
                let entry = |index| self.frames.entry(leaf.frame, index);
                Some((0..ENTRIES_PER_PAGE).map(entry).collect())
            }
            Some(leaf) if leaf.is(Flag::Cleared) => None,
            Some(leaf) if leaf.is(Flag::Damaged) => return tally.miss(),
            _ if !disk.is_mapped() => None,
            _ if disk.is_lost() => return tally.miss(),
            _ => match page(stored, Kind::Leaf, key, disk) {
                Some(page) => Some(page),
                None => return tally.miss(),
            },
        };
        let base: &[BlockPointer] = base.as_deref().unwrap_or(&EMPTY);
        for (old, update) in base.iter().zip(&updates) {
            if update.is_none_or(|update| !update.released) {
                tally.count(old.pba);
            }
        }
    }

    /// Leaves that are counted as ones that will take a page.
    pub(crate) fn count_pageless(&self) -> u64 {
        let leaves = self.directory.roots().flat_map(|root| self.directory.leaves(root));
        let leaves = leaves.map(|(_, leaf)| leaf);
        leaves.filter(|leaf| leaf.is(Flag::Pageless)).count() as u64
    }

    /// # Panics
    /// If leaves, frames, cells, promises and the account of recovery's memory contradict each other.
    pub(crate) fn assert_invariants(&self, under_way: &UnderWay, is_sound: bool) {
        assert_eq!(self.reserved_cells, under_way.reserved, "promises are those of records");
        assert!(self.journal.len() <= self.journal.capacity(), "the journal does not grow");
        let (mut arrays, mut pinned, mut cells, mut pending, mut dirty) = (0, 0, 0, 0, 0);
        let mut changed = 0;
        let mut next_dirty = self.directory.next_dirty(0);
        for index in self.directory.roots_from(0) {
            let root = self.directory.root(index);
            assert!(!root.changed || root.has_tables(), "a root that changed has leaves");
            changed += usize::from(root.changed);
            for slot in 0..ENTRIES_PER_PAGE {
                let Some(place) = self.directory.place_in(index, slot) else { continue };
                let leaf = self.directory.leaf(place);
                self.assert_leaf(place, leaf);
                arrays += usize::from(leaf.frame.is_some());
                pinned += usize::from(leaf.frame.is_some() && leaf.must_stay());
                cells += self.frames.chain_length(leaf.chain);
                pending += usize::from(leaf.unmerged).div_ceil(UPDATES_PER_CELL);
                dirty += usize::from(leaf.unmerged > 0);
                let key = self.directory.key(place);
                let is_next = next_dirty == Some(key);
                assert_eq!(is_next, leaf.unmerged > 0, "leaves to be swept are noted");
                if is_next {
                    next_dirty = self.directory.next_dirty(key + 1);
                }
            }
        }
        self.directory.assert_counted();
        assert_eq!(self.directory.changed_count(), changed, "roots that changed are listed");
        self.recovery.assert_pending(pending, dirty);
        self.frames.assert_invariants(arrays, pinned, cells);
        if is_sound {
            self.assert_on_their_way(under_way);
        }
    }

    fn assert_leaf(&self, place: LeafPlace, leaf: &Leaf) {
        let is_in_memory = leaf.frame.is_some() && !leaf.is(Flag::Loading);
        let updates = self.frames.chain_updates(leaf.chain).count();
        assert!(updates <= usize::from(leaf.unmerged), "each update is counted for the sweep");
        assert!(!leaf.is(Flag::Changed) || is_in_memory, "what the page lacks is in memory");
        assert!(!leaf.is(Flag::Loading) || leaf.frame.is_some(), "a page is loaded into a frame");
        assert!(!is_in_memory || !leaf.base_is_gone(), "an array tells all of its leaf");
        let (dead, cleared) = (leaf.is(Flag::Dead), leaf.is(Flag::Cleared));
        assert!(!(dead && cleared), "a leaf's page counts something, or nothing");
        if leaf.frame.is_some() {
            let key = self.directory.key(place);
            self.frames.assert_is_of(leaf.frame, key, leaf.must_stay());
        }
    }

    /// Leaves know of the relocations and pages that are on their way, and of no others.
    fn assert_on_their_way(&self, under_way: &UnderWay) {
        let mut relocating: BTreeMap<u64, u16> = BTreeMap::new();
        let data = under_way.relocations.iter().filter(|relocation| relocation.is_data);
        data.for_each(|r| *relocating.entry(r.key / ENTRIES_PER_PAGE as u64).or_default() += 1);
        let count: usize = relocating.values().map(|count| usize::from(*count)).sum();
        assert_eq!(self.relocating, count, "relocations on their way are counted");
        let leaf = |key| {
            let place = self.directory.find(key).expect("a leaf that is under way has a table");
            self.directory.leaf(place)
        };
        for (key, count) in &relocating {
            assert_eq!(leaf(*key).relocating, *count, "leaf {key} stays for its relocations");
        }
        for key in &under_way.leaf_pages {
            assert!(leaf(*key).is(Flag::Writing), "leaf {key}'s page is on its way");
        }
        let leaves = self.directory.roots().flat_map(|root| self.directory.leaves(root));
        let (mut kept, mut written) = (0, 0);
        for (_, leaf) in leaves {
            kept += usize::from(leaf.relocating);
            written += usize::from(leaf.is(Flag::Writing));
        }
        assert_eq!(kept, count, "and no leaf stays for others");
        assert_eq!(written, under_way.leaf_pages.len(), "nor waits for another page");
    }

    /// Root and leaf pages that are on their way into memory.
    pub(crate) fn pages_being_loaded(&self) -> usize {
        let leaves = self.directory.roots().flat_map(|root| self.directory.leaves(root));
        let leaves = leaves.filter(|(_, leaf)| leaf.is(Flag::Loading)).count();
        let roots = self.directory.roots().filter(|root| root.state == RootState::Loading);
        leaves + roots.count()
    }

    /// Whether this page is one of them.
    pub(crate) fn waits_for(&self, kind: Kind, key: u64) -> bool {
        if kind == Kind::Root {
            let root = self.directory.find_root(key);
            return root.is_some_and(|i| self.directory.root(i).state == RootState::Loading);
        }
        let place = self.directory.find(key);
        place.is_some_and(|place| self.directory.leaf(place).is(Flag::Loading))
    }
}

impl Frames {
    fn chain_length(&self, chain: super::frames::CellIndex) -> usize {
        self.chain_cells(chain).count()
    }
}
