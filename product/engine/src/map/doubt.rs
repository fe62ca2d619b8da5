//! Addresses in doubt: what memory knows of them is void, and what their pages tell too.
//!
//! Chain and array tell *lost* of them until they are written or discarded. What is in neither is looked up among the
//! ranges in doubt.

use super::Map;
use super::chain::Update;
use super::directory::{LeafPlace, split};
use crate::canary::{Canary, sings};
use crate::degraded::Doubt;
use crate::memory::{self, NoMemory};
use crate::segments::Segments;
use crate::units::Sequence;
use core::ops::Range;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::{BlockPointer, Lba};

impl Map {
    /// Addresses of which reading is an error since the store was opened degraded.
    pub(crate) fn doubt(&self) -> &Doubt {
        assert!(self.doubt.is_empty() || self.lost.is_empty(), "what is lost is in doubt no more");
        if self.lost.is_empty() { &self.doubt } else { &self.lost }
    }

    /// A write or a discard of these addresses took effect: they are known again.
    #[inline]
    pub(crate) fn end_doubt(&mut self, range: Range<u64>) {
        if !self.doubt.is_empty() {
            self.doubt.remove(range.clone());
        }
        if !self.lost.is_empty() {
            self.lost.remove(range);
        }
    }

    /// From now on these addresses are in doubt, whatever was known of them so far; where that lies counts no more. While
    /// a store is opened.
    pub(crate) fn cast_doubt(
        &mut self,
        segments: &mut Segments,
        range: Range<u64>,
        now: Sequence,
    ) -> Result<(), NoMemory> {
        assert!(self.is_recovering, "a store that is open is not put in doubt");
        if sings(Canary::DoubtAnswered) {
            return Ok(());
        }
        let range = range.start..range.end.min(self.volume_size);
        self.doubt.add(range.clone())?;
        assert!(range.is_empty() || self.doubt.meets(&range), "what was added is in doubt");
        let per_leaf = ENTRIES_PER_PAGE as u64;
        let per_root = per_leaf * per_leaf;
        let met = self.directory.roots_from(range.start / per_root);
        let met = met.take_while(|root| self.directory.root(*root).key * per_root < range.end);
        for root in memory::listed(met)? {
            for slot in 0..ENTRIES_PER_PAGE {
                let Some(place) = self.directory.place_in(root, slot) else { continue };
                let start = self.directory.key(place) * per_leaf;
                let met = start.max(range.start)..range.end.min(start + per_leaf);
                if !met.is_empty() {
                    self.doubt_chain(segments, place, &met, now)?;
                    self.release_array(segments, place, met.clone(), now);
                    self.doubt_array_in(place, met);
                }
            }
        }
        Ok(())
    }

    /// What was restored of these addresses is void.
    fn doubt_chain(
        &mut self,
        segments: &mut Segments,
        place: LeafPlace,
        range: &Range<u64>,
        now: Sequence,
    ) -> Result<(), NoMemory> {
        let start = self.directory.key(place) * ENTRIES_PER_PAGE as u64;
        let chain = self.directory.leaf(place).chain;
        if !chain.is_some() {
            return Ok(());
        }
        let updates = self.frames.chain_updates(chain);
        let met = updates.filter(|update| range.contains(&(start + update.index as u64)));
        for index in memory::listed(met.map(|update| update.index))? {
            let found = self.frames.chain_find(chain, index);
            let (slot, update) = found.expect("it was listed");
            assert_eq!(update.index, index, "an update is of its address");
            if update.pointer.is_mapped() {
                segments.release(update.pointer.pba, now);
            }
            self.frames.chain_set(slot, Update { pointer: BlockPointer::LOST, ..update });
        }
        Ok(())
    }

    /// What an array that replay has made holds of addresses that come into doubt counts no more.
    fn release_array(
        &self,
        segments: &mut Segments,
        place: LeafPlace,
        range: Range<u64>,
        now: Sequence,
    ) {
        let frame = self.directory.leaf(place).frame;
        for lba in range.filter(|_| frame.is_some()) {
            let (_, index) = split(Lba(lba));
            let pointer = self.frames.entry(frame, index);
            if pointer.is_mapped() {
                segments.release(pointer.pba, now);
            }
        }
    }

    /// What the array of a leaf tells of addresses in doubt is void: it came from a page, or is new.
    pub(super) fn doubt_array(&mut self, place: LeafPlace) {
        if !self.doubt.is_empty() {
            let start = self.directory.key(place) * ENTRIES_PER_PAGE as u64;
            self.doubt_array_in(place, start..start + ENTRIES_PER_PAGE as u64);
        }
    }

    fn doubt_array_in(&mut self, place: LeafPlace, range: Range<u64>) {
        let frame = self.directory.leaf(place).frame;
        if !frame.is_some() {
            return;
        }
        assert!(range.end - range.start <= ENTRIES_PER_PAGE as u64, "it is of one leaf");
        for lba in range {
            if self.doubt.contains(lba) {
                let (_, index) = split(Lba(lba));
                self.frames.set_entry(frame, index, BlockPointer::LOST);
            }
        }
    }

    /// All that is in doubt is marked lost, as updates that the next checkpoint writes down. Returns whether there was
    /// room for that; if not, some of it may be, which is no harm: it is in doubt still.
    pub(crate) fn lose_doubtful(
        &mut self,
        segments: &mut Segments,
        now: Sequence,
    ) -> Result<bool, NoMemory> {
        assert!(self.is_recovering, "it is decided before anything is written");
        if sings(Canary::DoubtForgotten) {
            return Ok(true);
        }
        for index in 0..self.doubt.ranges().len() {
            let range = self.doubt.ranges()[index].clone();
            for lba in range {
                // In this order: what is promised must be used or given back.
                if self.journal_room() <= 1 || !self.reserve(1) {
                    return Ok(false);
                }
                if !self.has_leaf_of(Lba(lba)) {
                    self.unreserve(1);
                    return Ok(false);
                }
                self.make_leaves(Lba(lba), 1, true)?;
                let (key, slot) = split(Lba(lba));
                let place = self.directory.place(key);
                let was_written = self.known_since(place, slot);
                if !was_written {
                    self.note_update(place, lba << 1);
                    let (old, _) = self.replace(place, slot, BlockPointer::LOST);
                    if old.is_mapped() {
                        segments.release(old.pba, now);
                    }
                }
                self.unreserve(1);
            }
        }
        self.lost = core::mem::take(&mut self.doubt);
        self.lost.reserve()?;
        Ok(true)
    }

    /// Whether something newer is known of an address in doubt.
    fn known_since(&self, place: LeafPlace, index: usize) -> bool {
        self.known(place, index).is_some_and(|pointer| !pointer.is_lost())
    }
}
