//! Updates: an address gets another place. Into the chain or the array of its leaf, and into the journal.

use super::Map;
use super::bounds::SWEEP_FRAMES;
use super::chain::Update;
use super::directory::{Flag, LeafPlace, split};
use crate::canary::{Canary, sings};
use crate::segments::Segments;
use crate::units::Sequence;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::{BlockPointer, Lba, Pba};

/// A chain longer than this is folded into the leaf's array if there is one.
const CHAIN_LENGTH_MAX: u16 = 48;

/// What a conditional update assumes of an address of which nothing is known in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfUnknown {
    /// That cannot be: the leaf is kept in memory until the relocation arrives.
    Panic,
    /// It lies at the source. True in replay: an address without update since the checkpoint is
    /// where the cleaner saw it, for a checkpoint is cut only while no relocation is on its way.
    Matches,
}

impl Map {
    /// Sets where a block lies, or that it is unmapped. Returns whether nothing but this value is counted
    /// for the address now.
    pub(crate) fn update(
        &mut self,
        segments: &mut Segments,
        lba: Lba,
        pointer: BlockPointer,
        now: Sequence,
    ) -> bool {
        let place = self.directory.place(split(lba).0);
        self.update_at(segments, place, lba, pointer, now)
    }

    // Always inline: handing its arguments on costs as much as a part of what it does.
    #[inline(always)]
    fn update_at(
        &mut self,
        segments: &mut Segments,
        place: LeafPlace,
        lba: Lba,
        pointer: BlockPointer,
        now: Sequence,
    ) -> bool {
        let (_, index) = split(lba);
        self.end_doubt(lba.0..lba.0 + 1);
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
        assert!(pointer.is_mapped() && pointer.pba != source, "a copy lies elsewhere");
        let (key, index) = split(lba);
        let place = self.directory.place(key);
        let known = self.known(place, index);
        match (known, unknown) {
            (Some(current), _) if current.pba != source && !sings(Canary::OverwriteIgnored) => None,
            (Some(_), _) => Some(self.update_at(segments, place, lba, pointer, now)),
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

    /// In replay: a relocation of this address did not arrive, so it lies where it lay. If nothing
    /// is known of it in memory, that is now; else a later relocation from where this one would have
    /// gone would be believed.
    pub(crate) fn stays(&mut self, lba: Lba, pointer: BlockPointer) {
        assert!(pointer.is_mapped(), "what was to be copied lay somewhere");
        let (key, index) = split(lba);
        let place = self.directory.place(key);
        if self.known(place, index).is_some() {
            return;
        }
        self.note_update(place, lba.0 << 1);
        // What was counted for the leaf page is counted for the update from now on.
        self.add_to_chain(place, Update { index, pointer, released: true });
    }

    /// Puts a value into chain or array. Returns the old location if it is known and still
    /// counted: the caller releases it; and whether the page counts nothing for the address any more.
    pub(super) fn replace(
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
                self.doubt_array(place);
                self.change_in_array(place, index, pointer);
                return (BlockPointer::NOWHERE, true);
            }
        }
        self.add_to_chain(place, Update { index, pointer, released: nothing_counted });
        (BlockPointer::NOWHERE, nothing_counted)
    }

    pub(super) fn add_to_chain(&mut self, place: LeafPlace, update: Update) {
        let leaf = self.directory.leaf_mut(place);
        self.frames.chain_add(&mut leaf.chain, update);
    }

    #[inline]
    pub(super) fn change_in_array(
        &mut self,
        place: LeafPlace,
        index: usize,
        pointer: BlockPointer,
    ) {
        let leaf = self.directory.leaf_mut(place);
        let is_pinned = leaf.is(Flag::Changed);
        leaf.set(Flag::Changed, true);
        leaf.set(Flag::Touched, true);
        let frame = leaf.frame;
        self.frames.set_entry(frame, index, pointer);
        if !is_pinned {
            self.frames.pin(frame, !sings(Canary::PageEvictedEarly));
        }
    }

    /// Notes in journal and leaf that an address changes.
    pub(super) fn note_update(&mut self, place: LeafPlace, journal_entry: u64) {
        assert!(self.journal.len() < self.journal.capacity(), "room is checked on acceptance");
        self.journal.push(journal_entry);
        self.count_update(place);
    }

    /// Counts an update for the sweep and for what recovery would need.
    #[inline]
    pub(super) fn count_update(&mut self, place: LeafPlace) {
        let leaf = self.directory.leaf_mut(place);
        let was_clean = leaf.unmerged == 0;
        self.recovery.count(leaf);
        if was_clean {
            self.directory.note_dirty(place);
        }
        self.note_pageless(place);
    }

    #[inline]
    pub(super) fn fold_if_long(
        &mut self,
        segments: &mut Segments,
        place: LeafPlace,
        now: Sequence,
    ) {
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
    pub(super) fn fold(
        &mut self,
        segments: &mut Segments,
        place: LeafPlace,
        note: bool,
        now: Sequence,
    ) {
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
        assert!(!chain.is_some(), "the array has all updates");
        let leaf = self.directory.leaf_mut(place);
        leaf.chain = chain;
        leaf.set(Flag::Changed, true);
        leaf.set(Flag::Touched, true);
    }
}
