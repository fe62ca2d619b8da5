//! Unmapping: single blocks and whole leaves, without loading anything.

use super::chain::Update;
use super::directory::{Flag, LeafPlace, split};
use super::lookup::Lookup;
use super::{Map, frames};
use crate::segments::Segments;
use crate::units::Sequence;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::{BlockPointer, Lba};

impl Map {
    /// Unmaps a range.
    pub(crate) fn discard(&mut self, segments: &mut Segments, lba: Lba, count: u64, now: Sequence) {
        let per_leaf = ENTRIES_PER_PAGE as u64;
        let end = lba.0 + count;
        self.end_doubt(lba.0..end);
        let mut next = lba.0;
        while next < end {
            let leaf_end = (next / per_leaf + 1) * per_leaf;
            if !self.directory.may_hold(next / per_leaf) {
                // Nothing was written there before, or it would exist.
            } else if next.is_multiple_of(per_leaf) && leaf_end <= end {
                self.discard_leaf(segments, next / per_leaf, now);
            } else {
                for block in next..leaf_end.min(end) {
                    self.discard_block(segments, Lba(block), now);
                }
            }
            next = leaf_end.min(end);
        }
        assert_eq!(next, end, "all of the range is unmapped, and nothing else");
    }

    /// Unmaps a whole leaf. Nothing is loaded: if the leaf page is only on the device, its
    /// locations are released when it is looked at next.
    pub(crate) fn discard_leaf(&mut self, segments: &mut Segments, key: u64, now: Sequence) {
        let place = self.directory.place(key);
        let leaf = *self.directory.leaf(place);
        let loaded = self.directory.is_loaded(place);
        // Also if nothing is mapped: see `discard_block`.
        self.note_update(place, (key * ENTRIES_PER_PAGE as u64) << 1 | 1);
        self.release_updates(segments, place, now);
        let keep_released = if leaf.frame.is_some() && !leaf.is(Flag::Loading) {
            self.clear_array(segments, place, now);
            self.give_up_cleared_array(place);
            false
        } else if leaf.is(Flag::Cleared) || (loaded && !leaf.disk.is_mapped()) {
            let leaf = self.directory.leaf_mut(place);
            leaf.set(Flag::Cleared, true);
            leaf.set(Flag::Dead, false);
            false
        } else {
            self.directory.leaf_mut(place).set(Flag::Dead, true);
            true
        };
        self.keep_tombstones(place, keep_released);
    }

    /// Releases the locations of all updates in the chain.
    fn release_updates(&mut self, segments: &mut Segments, place: LeafPlace, now: Sequence) {
        for update in self.frames.chain_updates(self.directory.leaf(place).chain) {
            if update.pointer.is_mapped() {
                segments.release(update.pointer.pba, now);
            }
        }
    }

    /// Releases what the array counts, save where the chain says that it was released before, and
    /// fills the array with zeros.
    fn clear_array(&mut self, segments: &mut Segments, place: LeafPlace, now: Sequence) {
        let leaf = *self.directory.leaf(place);
        assert!(leaf.frame.is_some() && !leaf.is(Flag::Loading), "its array is in memory");
        for index in 0..ENTRIES_PER_PAGE {
            let old = self.frames.entry(leaf.frame, index);
            let update = self.frames.chain_find(leaf.chain, index);
            let counted = update.is_none_or(|(_, update)| !update.released);
            if old.is_mapped() && counted {
                segments.release(old.pba, now);
            }
            self.change_in_array(place, index, BlockPointer::NOWHERE);
        }
        let leaf = self.directory.leaf_mut(place);
        leaf.set(Flag::Cleared, false);
        leaf.set(Flag::Dead, false);
    }

    /// An array of zeros needs no memory: the leaf is cleared instead, if nothing on its way needs
    /// the array.
    fn give_up_cleared_array(&mut self, place: LeafPlace) {
        let leaf = self.directory.leaf_mut(place);
        if leaf.is(Flag::Writing) || leaf.relocating > 0 {
            return;
        }
        leaf.set(Flag::Changed, false);
        leaf.set(Flag::Cleared, true);
        assert!(leaf.frame.is_some(), "an array was cleared");
        let frame = core::mem::replace(&mut leaf.frame, frames::FrameIndex::NONE);
        self.frames.release(frame);
    }

    /// Empties the chain, or keeps "unmapped" for addresses whose location in the leaf page is
    /// already released, so that it is not released again.
    pub(super) fn keep_tombstones(&mut self, place: LeafPlace, keep_released: bool) {
        let mut chain = self.directory.leaf(place).chain;
        let mut kept = frames::CellIndex::NONE;
        if keep_released {
            let mut released = [false; ENTRIES_PER_PAGE];
            for update in self.frames.chain_updates(chain) {
                released[update.index] = update.released;
            }
            self.frames.chain_release(&mut chain);
            for (index, _) in released.iter().enumerate().filter(|(_, released)| **released) {
                let pointer = BlockPointer::NOWHERE;
                self.frames.chain_add(&mut kept, Update { index, pointer, released: true });
            }
        } else {
            self.frames.chain_release(&mut chain);
        }
        self.directory.leaf_mut(place).chain = kept;
    }

    /// Unmaps one block. If it is unmapped, only that it was discarded is noted: replay, which has
    /// no pages at hand and so cannot tell, will take memory and journal for it, and both must count
    /// it before it is accepted.
    pub(crate) fn discard_block(&mut self, segments: &mut Segments, lba: Lba, now: Sequence) {
        if self.lookup(lba) == Lookup::Unmapped {
            let place = self.directory.place(split(lba).0);
            self.note_update(place, lba.0 << 1);
        } else {
            self.update(segments, lba, BlockPointer::NOWHERE, now);
        }
    }
}
