//! The root pages on the device, their second copies, and the pages of the list of roots.
//!
//! A volume that may have more roots than a checkpoint's body lists has them in a list of its own, in pages. A root's
//! index in the directory is its place in the list, so a page changes only when one of its roots is written or moves.

use super::Map;
use super::directory::RootState;
use crate::memory::NoMemory;
use crate::segments::Segments;
use crate::units::Sequence;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::root_list::{self, RootEntry};
use coulter_format::{Block, BlockPointer, Corrupt, Pba, Reason};

impl Map {
    /// Sets where a root page lies, at recovery.
    pub(crate) fn restore_root(
        &mut self,
        key: u64,
        pointer: BlockPointer,
        copy: Pba,
    ) -> Result<(), NoMemory> {
        let index = self.directory.try_root_index(key)?;
        self.restore_root_at(index, pointer, copy);
        Ok(())
    }

    fn restore_root_at(&mut self, index: usize, pointer: BlockPointer, copy: Pba) {
        let root = self.directory.root_mut(index);
        root.disk = pointer;
        // A copy in the place of the first is none.
        root.copy = if copy == pointer.pba { Pba::NOWHERE } else { copy };
        assert!(root.state == RootState::Loaded && !root.has_tables(), "it is restored once");
        root.state = RootState::OnDevice;
        self.root_page_count += 1;
    }

    /// Takes over what a page of the list of roots says; pages come in order. `Err` with the name of a field if it
    /// cannot be.
    pub(crate) fn restore_root_list(
        &mut self,
        page: &Block,
        inside: impl Fn(Pba) -> bool,
    ) -> Result<Result<(), &'static str>, NoMemory> {
        for entry in root_list::decode(page) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Corrupt { reason: Reason::Field(name), .. }) => return Ok(Err(name)),
                Err(_) => return Ok(Err("entry")),
            };
            let Some(RootEntry { key, pointer, copy, tables }) = entry else {
                self.directory.restore_place(None)?;
                continue;
            };
            if key >= self.root_key_limit() || self.has_root(key) {
                return Ok(Err("key"));
            }
            if !inside(pointer.pba) || (copy != Pba::NOWHERE && !inside(copy)) {
                return Ok(Err("pba"));
            }
            let has_room = (self.root_count() as u64) < self.roots_max;
            if !has_room || u64::from(tables.count_ones()) > self.directory.tables_left() {
                return Ok(Err("tables"));
            }
            let index = self.directory.restore_place(Some(key))?.expect("a place with a root");
            self.directory.let_in(index, tables);
            self.restore_root_at(index, pointer, copy);
        }
        Ok(Ok(()))
    }

    /// A page of the list of roots is lost; so is what nothing else tells.
    pub(crate) fn lose_root_list(&mut self) -> Result<(), NoMemory> {
        self.roots_missing = true;
        for _ in 0..root_list::ROOTS_PER_PAGE {
            self.directory.restore_place(None)?;
        }
        Ok(())
    }

    /// Pages of the list of roots.
    pub(crate) fn root_list_count(&self) -> usize {
        self.directory.list_count()
    }

    /// The first page of the list of roots from this one on that changed; it counts as written now.
    pub(crate) fn take_changed_root_list(&mut self, from: usize) -> Option<usize> {
        self.directory.take_changed_list(from)
    }

    /// The next checkpoint writes this page of the list of roots anew.
    pub(crate) fn root_list_is_to_be_written(&mut self, page: usize) {
        self.directory.list_changed(page);
    }

    /// Writes what a page of the list of roots says.
    pub(crate) fn encode_root_list(&self, page: usize, block: &mut Block) {
        root_list::encode(self.directory.roots_of_list(page), block);
    }

    /// Takes the images of `count` root pages that changed, at most, for a checkpoint: `image` is told of a
    /// root's leaf pages. One that leads nowhere any more has none, and goes with its copy. Returns whether others
    /// changed: until these are taken as well no leaf page may move.
    pub(crate) fn cut_roots(
        &mut self,
        segments: &mut Segments,
        now: Sequence,
        count: usize,
        mut image: impl FnMut(u64, &mut dyn Iterator<Item = BlockPointer>),
    ) -> bool {
        self.directory.sort_changed_roots(count);
        for _ in 0..count {
            let Some(index) = self.directory.take_changed_root() else { break };
            let root = self.directory.root(index);
            if self.directory.leaves(root).all(|(_, leaf)| !leaf.disk.is_mapped()) {
                let root = self.directory.root_mut(index);
                let old = core::mem::replace(&mut root.disk, BlockPointer::NOWHERE);
                let old_copy = core::mem::replace(&mut root.copy, Pba::NOWHERE);
                if old_copy != Pba::NOWHERE {
                    segments.release_listed(old_copy, now);
                }
                if old.is_mapped() {
                    segments.release_listed(old.pba, now);
                    assert!(self.root_page_count > 0, "a page that goes was counted");
                    self.root_page_count -= 1;
                    self.directory.root_moved(index);
                }
                continue;
            }
            let page_of = |slot| {
                let place = self.directory.place_in(index, slot);
                place.map_or(BlockPointer::NOWHERE, |place| self.directory.leaf(place).disk)
            };
            image(root.key, &mut (0..ENTRIES_PER_PAGE).map(page_of));
        }
        self.directory.has_changed_roots()
    }

    /// The next checkpoint writes this root page anew.
    pub(crate) fn root_is_to_be_written(&mut self, key: u64) {
        let index = self.directory.root_index(key);
        if self.directory.root(index).has_tables() {
            self.directory.root_changed(index);
        }
    }

    /// Whether memory knows what a root page says.
    pub(crate) fn root_is_known(&self, key: u64) -> bool {
        let root = self.directory.find_root(key).map(|root| self.directory.root(root));
        root.is_some_and(|root| root.state == RootState::Loaded && root.has_tables())
    }

    /// A root page is on the device.
    pub(crate) fn root_written(
        &mut self,
        segments: &mut Segments,
        key: u64,
        pointer: BlockPointer,
        now: Sequence,
    ) {
        let index = self.directory.root_index(key);
        let root = self.directory.root_mut(index);
        root.copy_is_old = root.copy != Pba::NOWHERE;
        self.root_moves(segments, index, pointer, now);
    }

    fn root_moves(
        &mut self,
        segments: &mut Segments,
        index: usize,
        pointer: BlockPointer,
        now: Sequence,
    ) {
        self.directory.root_moved(index);
        let root = self.directory.root_mut(index);
        assert!(pointer.is_mapped() && !pointer.is_lost(), "a page that was written is somewhere");
        let old = core::mem::replace(&mut root.disk, pointer);
        segments.retain_listed(pointer.pba);
        if old.is_mapped() {
            segments.release_listed(old.pba, now);
        } else {
            self.root_page_count += 1;
        }
    }

    /// The cleaner copied a root page. Returns whether the copy is the page now.
    pub(crate) fn root_relocated(
        &mut self,
        segments: &mut Segments,
        key: u64,
        source: Pba,
        pointer: BlockPointer,
        now: Sequence,
    ) -> bool {
        let root = self.directory.find_root(key);
        let is_here = |index: &usize| self.directory.root(*index).disk.pba == source;
        let Some(index) = root.filter(is_here) else { return false };
        self.root_moves(segments, index, pointer, now);
        true
    }

    /// The second copy of a root page is on the device: written, or relocated from `source`. Returns whether it counts.
    pub(crate) fn root_copy_written(
        &mut self,
        segments: &mut Segments,
        key: u64,
        source: Option<Pba>,
        copy: Pba,
        now: Sequence,
    ) -> bool {
        let Some(index) = self.directory.find_root(key) else { return false };
        let root = self.directory.root_mut(index);
        if source.is_some_and(|source| root.copy != source || root.copy_is_old) {
            return false;
        }
        assert!(copy != Pba::NOWHERE && root.disk.is_mapped(), "there is a page, and a copy");
        let old = core::mem::replace(&mut root.copy, copy);
        root.copy_is_old = false;
        segments.retain_listed(copy);
        if old != Pba::NOWHERE {
            segments.release_listed(old, now);
        }
        self.directory.root_moved(index);
        true
    }

    /// Where the second copy of a root page lies.
    pub(crate) fn root_copy(&self, key: u64) -> Option<BlockPointer> {
        let index = self.directory.find_root(key)?;
        self.directory.root(index).copy()
    }

    /// Where a root page lies.
    pub(crate) fn root_page(&self, key: u64) -> Option<BlockPointer> {
        let index = self.directory.find_root(key)?;
        Some(self.directory.root(index).disk)
    }

    /// Root pages, on the device or not.
    pub(crate) fn root_count(&self) -> usize {
        self.directory.root_count() + self.held.0
    }

    /// All root pages on the device, by key.
    pub(crate) fn root_pages(&self) -> impl Iterator<Item = (u64, BlockPointer)> + '_ {
        let roots = self.directory.roots();
        roots.filter(|root| root.disk.is_mapped()).map(|root| (root.key, root.disk))
    }

    /// Where the second copies of these lie, in the same order; nowhere if there is none.
    pub(crate) fn root_copies(&self) -> impl Iterator<Item = Pba> + '_ {
        let roots = self.directory.roots();
        roots.filter(|root| root.disk.is_mapped()).map(|root| root.copy)
    }
}
