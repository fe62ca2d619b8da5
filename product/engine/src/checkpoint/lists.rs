//! What the newest checkpoint lists, and where all of it lies.

use super::copies::Copies;
use super::runs::Runs;
use crate::map::Map;
use crate::references::References;
use crate::segments::Segments;
use crate::units::Sequence;
use alloc::vec::Vec;
use coulter_format::checksum::Kind;
use coulter_format::{BlockPointer, Pba};

/// Blocks of a run that a key can number.
pub(crate) const RUN_KEY_SHIFT: u32 = 20;

/// The lists of the newest checkpoint.
#[derive(Default)]
pub(crate) struct Lists {
    pub(crate) runs: Runs,
    pub(crate) references: References,
    /// Second copies of all of it.
    pub(crate) copies: Copies,
    /// Where the pages of the segment table lie.
    pub(crate) table: Vec<BlockPointer>,
    /// Where the pages of the list of roots lie, if there is one.
    pub(crate) root_lists: Vec<BlockPointer>,
    pub(crate) next_run: u64,
    /// First block and count of the durable body, and of the one being written.
    pub(crate) body: (Pba, u32),
    pub(crate) new_body: (Pba, u32),
}

impl Lists {
    pub(crate) fn has_runs(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Where a piece lies that the checkpoint lists, if the cleaner may move it.
    pub(crate) fn pointer(&self, kind: Kind, key: u64) -> Option<BlockPointer> {
        match kind {
            Kind::SegmentTable => self.table.get(key as usize).copied(),
            Kind::RootList => self.root_lists.get(key as usize).copied(),
            Kind::Run => {
                let number = key >> RUN_KEY_SHIFT;
                let index = (key & ((1 << RUN_KEY_SHIFT) - 1)) as usize;
                let run = self.runs.iter().find(|run| run.number == number)?;
                run.blocks.get(index).copied()
            }
            kind if kind.is_copy() => self.copies.pointer(kind, key),
            _ => None,
        }
    }

    fn pointer_mut(&mut self, kind: Kind, key: u64) -> Option<&mut BlockPointer> {
        match kind {
            Kind::SegmentTable => self.table.get_mut(key as usize),
            Kind::RootList => self.root_lists.get_mut(key as usize),
            Kind::Run => {
                let number = key >> RUN_KEY_SHIFT;
                let index = (key & ((1 << RUN_KEY_SHIFT) - 1)) as usize;
                self.runs.pointer_mut(number, index)
            }
            _ => None,
        }
    }

    /// A piece arrived on the device: written, or relocated from `source`. Returns whether it
    /// counts.
    pub(crate) fn block_written(
        &mut self,
        segments: &mut Segments,
        kind: Kind,
        key: u64,
        source: Option<Pba>,
        pointer: BlockPointer,
        now: Sequence,
    ) -> bool {
        if kind == Kind::Checkpoint {
            segments.retain_listed(pointer.pba);
            let first = if key == 0 { pointer.pba } else { self.new_body.0 };
            assert!(key == 0 || first.plus(key as u32) == pointer.pba, "a body lies in a row");
            self.new_body = (first, key as u32 + 1);
            return true;
        }
        if kind.is_copy() {
            let current = self.copies.pointer(kind, key);
            if source.is_some_and(|source| current.is_none_or(|copy| copy.pba != source)) {
                return false;
            }
            segments.retain_listed(pointer.pba);
            if let Some(old) = self.copies.put(kind, key, pointer) {
                segments.release_listed(old.pba, now);
            }
            return true;
        }
        let Some(slot) = self.pointer_mut(kind, key) else { return false };
        if source.is_some_and(|source| slot.pba != source) {
            return false;
        }
        let old = core::mem::replace(slot, pointer);
        segments.retain_listed(pointer.pba);
        if old.is_mapped() {
            segments.release_listed(old.pba, now);
        }
        true
    }

    /// What these were copies of is listed no more.
    pub(crate) fn release_copies(
        &mut self,
        segments: &mut Segments,
        kind: Kind,
        keys: &mut Vec<u64>,
        now: Sequence,
    ) {
        if !keys.is_empty() {
            keys.sort_unstable();
            self.copies.remove_all(kind, keys, |old| segments.release_listed(old.pba, now));
            keys.clear();
        }
    }

    /// Every block that the checkpoint lists, its own body included.
    pub(crate) fn listed<'a>(&'a self, map: &'a Map) -> impl Iterator<Item = Pba> + 'a {
        let pages = self.table.iter().chain(&self.root_lists).map(|pointer| pointer.pba);
        let runs = self.runs.iter().flat_map(|run| run.blocks.iter().map(|pointer| pointer.pba));
        let roots = map.root_pages().map(|(_, pointer)| pointer.pba).chain(map.root_copies());
        let body = (0..self.body.1).map(|offset| self.body.0.plus(offset));
        let copies = self.copies.iter().map(|pointer| pointer.pba);
        pages.chain(runs).chain(roots).chain(body).chain(copies).filter(|pba| *pba != Pba::NOWHERE)
    }
}

#[cfg(feature = "verify")]
impl Lists {
    /// Blocks of the body that has been written and does not count yet.
    pub(crate) fn listed_anew(&self) -> impl Iterator<Item = Pba> + '_ {
        let (first, count) = self.new_body;
        let count = if self.new_body == self.body { 0 } else { count };
        (0..count).map(move |offset| first.plus(offset))
    }

    /// # Panics
    /// If the lists are out of order.
    pub(crate) fn assert_invariants(&self, is_idle: bool) {
        let latest = self.runs.last().map_or(0, |run| run.number + 1);
        assert!(latest <= self.next_run, "the next run is a new one");
        self.runs.assert_invariants(is_idle);
    }
}
