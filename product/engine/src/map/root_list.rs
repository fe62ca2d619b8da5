//! The list of roots: of which of its pages changed, and what they say.
//!
//! A root's index is its place in the list, for as long as it is there.

use super::directory::{Directory, Limits, Root};
use crate::index_set::IndexSet;
use crate::memory::NoMemory;
use coulter_format::Pba;
use coulter_format::root_list::{ROOTS_PER_PAGE, RootEntry};

/// No page has changed; `None` if there is no list.
pub(super) fn none_changed(limits: &Limits) -> Result<Option<IndexSet>, NoMemory> {
    let pages = (limits.roots as usize).div_ceil(ROOTS_PER_PAGE);
    limits.tables.map(|_| IndexSet::new(pages)).transpose()
}

impl Directory {
    /// The next place of the list, while a store is opened. Returns the index of the root there, if there is one.
    pub(super) fn restore_place(&mut self, key: Option<u64>) -> Result<Option<usize>, NoMemory> {
        assert!(self.changed_lists.is_some(), "there is a list of roots");
        let index = self.add_place(Root::empty(key.unwrap_or(0), 0))?;
        match key {
            Some(key) => {
                self.order.insert(key, index)?;
                self.count += 1;
                Ok(Some(index))
            }
            None => {
                assert!(self.free.len() < self.free.capacity(), "there is room for all");
                self.free.push(index as u32);
                Ok(None)
            }
        }
    }

    /// Pages of the list; none if there is no list.
    pub(super) fn list_count(&self) -> usize {
        match self.changed_lists {
            Some(_) => self.place_count().div_ceil(ROOTS_PER_PAGE),
            None => 0,
        }
    }

    /// What a page of the list says.
    pub(super) fn roots_of_list(
        &self,
        page: usize,
    ) -> impl Iterator<Item = Option<RootEntry>> + '_ {
        let first = page * ROOTS_PER_PAGE;
        let places = first..(first + ROOTS_PER_PAGE).min(self.place_count());
        assert!(!places.is_empty(), "a page has places");
        places.map(|index| {
            let root = self.root(index);
            let copy = root.copy().map_or(Pba::NOWHERE, |copy| copy.pba);
            let entry = RootEntry { key: root.key, pointer: root.disk, copy, tables: root.needed };
            root.disk.is_mapped().then_some(entry)
        })
    }

    /// A root page or its copy lies elsewhere, or nowhere: the page of the list that says so is to be written.
    pub(super) fn root_moved(&mut self, index: usize) {
        self.list_changed(index / ROOTS_PER_PAGE);
    }

    pub(super) fn list_changed(&mut self, page: usize) {
        if let Some(changed) = &mut self.changed_lists {
            changed.insert(page);
        }
    }

    /// The first page of the list from this one on that changed. It counts as written now.
    pub(super) fn take_changed_list(&mut self, from: usize) -> Option<usize> {
        let changed = self.changed_lists.as_mut()?;
        let page = changed.next(from)?;
        assert!(changed.remove(page), "it was listed");
        Some(page)
    }
}
