//! The sweep: goes round all leaves in order of address and writes those with updates.
//!
//! It is the only writer of leaf pages. Because it goes in order, one position tells of every leaf
//! whether an old run's updates are in its page yet. Because it is slow, each page that it writes
//! retires many updates: twice as many as there are on the average leaf.

use super::directory::{Flag, LeafPlace, RootState};
use super::load::LoadPurpose;
use super::{Map, frames};
use crate::pacing::Updates;
use crate::segments::Segments;
use crate::units::Sequence;
use coulter_format::checkpoint::SweepPosition;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::{Block, BlockPointer, Pba};

/// What became of a leaf that the sweep came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageWrite {
    /// Its page is in the buffer and must be written.
    Page,
    /// All of it is unmapped: it needs no page.
    Vanished,
    /// No frame can be had now.
    NoMemory,
}

impl Map {
    /// Where the sweep stands. All leaves before it are merged.
    pub(crate) fn sweep_position(&self) -> SweepPosition {
        self.sweep
    }

    /// Sets the position, when a store is opened.
    pub(crate) fn restore_sweep(&mut self, position: SweepPosition) {
        assert!(self.is_recovering, "later the sweep alone moves it");
        self.sweep = position;
    }

    /// Leaves that the sweep must write at least before the next checkpoint, after an interval of so many
    /// updates.
    pub(crate) fn sweep_quota(&self, updates: Updates) -> usize {
        crate::pacing::sweep_quota(self.recovery.dirty_leaves(), updates, &self.budget)
    }

    /// Whether memory, now or at recovery, calls for sweeping faster.
    pub(crate) fn sweep_is_urgent(&self) -> bool {
        self.recovery.is_short() || self.obtainable() <= 5 * super::bounds::SWEEP_FRAMES / 2
    }

    /// Whether a checkpoint would lower what recovery needs by enough to be worth one, and should not
    /// wait: because little is left, or because somebody waits.
    pub(crate) fn recovery_calls_for_checkpoint(&self, somebody_waits: bool) -> bool {
        (self.recovery.is_short() || somebody_waits) && self.recovery.checkpoint_helps()
    }

    /// The checkpoint cut last is durable.
    pub(crate) fn checkpoint_is_durable(&mut self) {
        self.recovery.checkpoint_is_durable();
        // The sweep rests while one is written: what it did without was so at its cut.
        (self.held, self.given_up) = ((0, 0), 0);
    }

    /// The next leaf that has updates, from the position on; moves the position to it. `None` at
    /// the end of a round (the position is then at the start of the next one).
    pub(crate) fn sweep_next(&mut self) -> Option<u64> {
        let next = self.directory.next_dirty(self.sweep.leaf);
        assert!(next.is_none_or(|next| next >= self.sweep.leaf), "the sweep goes on in order");
        self.sweep = match next {
            Some(leaf) => SweepPosition { leaf, ..self.sweep },
            None => SweepPosition { cycle: self.sweep.cycle + 1, leaf: 0 },
        };
        next
    }

    /// Leaves to be swept so that none is left that has updates, and one more: the round comes to its end.
    pub(crate) fn sweep_quota_of_all(&self) -> usize {
        self.recovery.dirty_leaves() + 1
    }

    /// Sees to it that the sweep writes a leaf's page anew, which is damaged on the device and known in memory.
    /// False if it is not known there, or has no room to stay.
    pub(crate) fn write_leaf_anew(&mut self, key: u64) -> bool {
        let Some(place) = self.directory.find(key) else { return false };
        let leaf = *self.directory.leaf(place);
        if leaf.is(Flag::Changed) || leaf.is(Flag::Writing) {
            return true;
        }
        let is_known = leaf.frame.is_some() && !leaf.is(Flag::Loading);
        if !is_known || !self.is_roomy() || !self.recovery_admits(1) {
            return false;
        }
        // As though the array had been changed and changed back: it counts what it says itself.
        let leaf = self.directory.leaf_mut(place);
        leaf.set(Flag::Changed, true);
        if leaf.unmerged == 0 {
            self.count_update(place);
        }
        self.refresh_pin(place);
        true
    }

    /// Whether the leaf's page is still on its way from the last round.
    pub(crate) fn is_writing(&self, key: u64) -> bool {
        self.directory.find(key).is_some_and(|place| self.directory.leaf(place).is(Flag::Writing))
    }

    /// Leaves with updates behind `key`, in order; returns how many were found.
    pub(crate) fn sweep_ahead(&self, key: u64, found: &mut [u64]) -> usize {
        let (mut count, mut latest) = (0, key);
        for place in found {
            let Some(next) = self.directory.next_dirty(latest + 1) else { break };
            assert!(next > latest, "a leaf behind the one before");
            (*place, latest) = (next, next);
            count += 1;
        }
        count
    }

    /// Makes the page of a leaf that is ready (`load_step`), and moves the position past it. If the
    /// page on the device is damaged, the new one says of what nothing else tells that it is lost.
    pub(crate) fn sweep_page(
        &mut self,
        segments: &mut Segments,
        key: u64,
        page: &mut Block,
        now: Sequence,
    ) -> PageWrite {
        assert!(self.sweep.leaf <= key, "a leaf is swept when the sweep comes to it");
        let place = self.directory.place(key);
        self.give_up_damaged_root(key);
        let leaf = *self.directory.leaf(place);
        if !leaf.frame.is_some() {
            let needless = leaf.is(Flag::Cleared) || leaf.is(Flag::Damaged);
            assert!(!leaf.disk.is_mapped() || needless, "its page was loaded");
            let Some(frame) = self.take_frame(key, LoadPurpose::Sweep) else {
                return PageWrite::NoMemory;
            };
            let leaf = self.directory.leaf_mut(place);
            leaf.frame = frame;
            let inside = key < self.volume_leaves;
            let lost = leaf.is(Flag::Damaged) && !leaf.base_is_gone() && inside;
            leaf.set(Flag::Damaged, false);
            leaf.set(Flag::Cleared, false);
            leaf.set(Flag::Dead, false);
            if lost {
                self.note_loss();
                let start = key * ENTRIES_PER_PAGE as u64;
                let count = (self.volume_size - start).min(ENTRIES_PER_PAGE as u64) as usize;
                for index in 0..count {
                    self.frames.set_entry(frame, index, BlockPointer::LOST);
                }
            }
        }
        assert!(!leaf.is(Flag::Writing), "the sweep comes round after the page has arrived");
        // Its root is in memory now, and tells of an old page, which the new one replaces. Counted as a leaf
        // without page until the new one arrives, it would be charged twice.
        let old = self.directory.leaf(place).disk;
        if self.directory.is_loaded(place) && old.is_mapped() && !old.is_lost() {
            self.note_page(place);
        }
        self.fold(segments, place, false, now);
        self.recovery.forget(self.directory.leaf_mut(place));
        self.directory.note_dirty(place);
        self.sweep.leaf = key + 1;
        let frame = self.directory.leaf(place).frame;
        if !self.frames.make_page(frame, page) {
            self.vanish(segments, place, now);
            return PageWrite::Vanished;
        }
        let leaf = self.directory.leaf_mut(place);
        leaf.set(Flag::Writing, true);
        leaf.set(Flag::Touched, false);
        self.refresh_pin(place);
        PageWrite::Page
    }

    /// Sees to it that the sweep writes a leaf anew whose page is damaged, and that nobody waits any
    /// more for what it, or its root page, said.
    pub(crate) fn give_up_damaged(&mut self, key: u64) {
        self.give_up_damaged_root(key);
        let Some(place) = self.directory.find(key) else { return };
        let leaf = self.directory.leaf(place);
        if leaf.is(Flag::Damaged) && leaf.unmerged == 0 {
            self.count_update(place);
        }
    }

    /// If a leaf's root page is damaged, its leaf pages are lost, save those written since. The next
    /// checkpoint says so.
    fn give_up_damaged_root(&mut self, key: u64) {
        let root_key = key / ENTRIES_PER_PAGE as u64;
        let root = self.directory.root_index(root_key);
        if self.directory.root(root).state != RootState::Damaged {
            return;
        }
        self.note_loss();
        self.directory.root_mut(root).state = RootState::Loaded;
        self.directory.note_emptied();
        let first = root_key * ENTRIES_PER_PAGE as u64;
        let inside = self.volume_leaves.saturating_sub(first).min(ENTRIES_PER_PAGE as u64);
        for key in first..first + inside {
            if self.directory.may_hold(key) {
                let place = self.directory.place(key);
                let leaf = self.directory.leaf_mut(place);
                leaf.disk = BlockPointer::LOST;
                leaf.set(Flag::Damaged, true);
            }
        }
        if self.directory.root(root).has_tables() {
            self.directory.root_changed(root);
        }
    }

    /// Whether a leaf's page, or its root page, is damaged and still is what recovery would look at.
    pub(crate) fn is_doubtful(&self, key: u64) -> bool {
        let place = self.directory.find(key);
        let damaged = place.is_some_and(|place| self.directory.leaf(place).is(Flag::Damaged));
        damaged || self.root_is_damaged(key)
    }

    /// Whether the page that would tell where a leaf's page lies is damaged.
    pub(crate) fn root_is_damaged(&self, key: u64) -> bool {
        let root = self.directory.find_root(key / ENTRIES_PER_PAGE as u64);
        root.is_some_and(|root| self.directory.root(root).state == RootState::Damaged)
            && self.directory.may_hold(key)
    }

    fn vanish(&mut self, segments: &mut Segments, place: LeafPlace, now: Sequence) {
        self.note_page(place);
        self.directory.note_emptied();
        let leaf = self.directory.leaf_mut(place);
        let old = core::mem::replace(&mut leaf.disk, BlockPointer::NOWHERE);
        leaf.set(Flag::Changed, false);
        let frame = leaf.frame;
        if leaf.relocating == 0 {
            assert!(frame.is_some(), "its array says that all is unmapped");
            leaf.frame = frames::FrameIndex::NONE;
            self.frames.release(frame);
        } else {
            self.refresh_pin(place);
        }
        if old.is_mapped() {
            self.given_up += 1;
            self.directory.root_changed(place.root());
            segments.release(old.pba, now);
        }
    }

    /// The page is on the device.
    pub(crate) fn leaf_written(
        &mut self,
        segments: &mut Segments,
        key: u64,
        pointer: BlockPointer,
        now: Sequence,
    ) {
        let place = self.directory.place(key);
        self.move_leaf(segments, place, pointer, now);
        let leaf = self.directory.leaf_mut(place);
        assert!(leaf.is(Flag::Writing), "a page that arrives was on its way");
        leaf.set(Flag::Writing, false);
        if !leaf.is(Flag::Touched) {
            leaf.set(Flag::Changed, false);
        }
        leaf.set(Flag::Touched, false);
        self.refresh_pin(place);
    }

    /// The cleaner copied a leaf page. Returns whether the copy is the page now.
    pub(crate) fn leaf_relocated(
        &mut self,
        segments: &mut Segments,
        key: u64,
        source: Pba,
        pointer: BlockPointer,
        now: Sequence,
    ) -> bool {
        let Some(place) = self.directory.find(key) else { return false };
        let current = self.directory.leaf(place).disk;
        assert!(source.0 != 0 && pointer.pba != source, "a copy lies elsewhere");
        if !self.directory.is_loaded(place) || current.pba != source {
            return false;
        }
        self.move_leaf(segments, place, pointer, now);
        true
    }

    fn move_leaf(
        &mut self,
        segments: &mut Segments,
        place: LeafPlace,
        pointer: BlockPointer,
        now: Sequence,
    ) {
        assert!(pointer.is_mapped() && !pointer.is_lost(), "a page that was written is somewhere");
        assert!(self.directory.is_loaded(place), "where its page lay is known");
        self.note_page(place);
        let old = core::mem::replace(&mut self.directory.leaf_mut(place).disk, pointer);
        segments.retain(pointer.pba);
        if old.is_mapped() {
            segments.release(old.pba, now);
        }
        self.directory.root_changed(place.root());
    }

    /// Where a leaf's page lies, if it has one; `None` if its root must be loaded first.
    pub(crate) fn leaf_standing(&self, key: u64) -> Option<Option<BlockPointer>> {
        let root = self.directory.find_root(key / ENTRIES_PER_PAGE as u64);
        match root.map(|root| self.directory.root(root).state) {
            _ if !self.directory.may_hold(key) => Some(None),
            None | Some(RootState::Damaged) => Some(None),
            Some(RootState::OnDevice | RootState::Loading) => None,
            Some(RootState::Loaded) => {
                let place = self.directory.find(key);
                Some(place.map(|place| self.directory.leaf(place).disk))
            }
        }
    }
}
