//! DFTL's cached mapping table: entries of the page map, replaced by segmented LRU.
//!
//! New entries begin in the *probation* list; one that is used again moves to the *protected* list,
//! whose least recently used entry falls back when it is full. Entries leave from probation.
//!
//! Invariants: an entry is in one list; the protected list has at most four fifths of the capacity.

use std::collections::BTreeMap;
use std::ops::Range;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Probation,
    Protected,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    lpn: u32,
    page: u32,
    dirty: bool,
    list: List,
    newer: u32,
    older: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    newest: u32,
    oldest: u32,
    count: usize,
}

const EMPTY: Ends = Ends { newest: NONE, oldest: NONE, count: 0 };

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) lpn: u32,
    /// The raw number of the physical page.
    pub(super) page: u32,
    /// Whether flash says something else.
    pub(super) dirty: bool,
}

#[derive(Clone, Debug)]
pub(super) struct MapCache {
    capacity: usize,
    /// Ordered, so that the entries of one map page can be found together.
    slots: BTreeMap<u32, u32>,
    entries: Vec<Entry>,
    spare: Vec<u32>,
    probation: Ends,
    protected: Ends,
}

impl MapCache {
    pub(super) fn new(capacity: u32) -> MapCache {
        assert!(capacity > 0, "profiles give a cache at least one entry");
        MapCache {
            capacity: capacity as usize,
            slots: BTreeMap::new(),
            entries: Vec::new(),
            spare: Vec::new(),
            probation: EMPTY,
            protected: EMPTY,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn is_full(&self) -> bool {
        self.slots.len() >= self.capacity
    }

    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    /// The page of an entry, without using it.
    pub(super) fn peek(&self, lpn: u32) -> Option<u32> {
        self.slots.get(&lpn).map(|slot| self.entries[*slot as usize].page)
    }

    /// The page of an entry, which becomes the most recently used.
    pub(super) fn touch(&mut self, lpn: u32) -> Option<u32> {
        let slot = *self.slots.get(&lpn)?;
        self.unlink(slot);
        self.link(slot, List::Protected);
        if self.protected.count > self.capacity * 4 / 5 {
            let fallen = self.protected.oldest;
            self.unlink(fallen);
            self.link(fallen, List::Probation);
        }
        Some(self.entries[slot as usize].page)
    }

    pub(super) fn insert(&mut self, mapping: Mapping) {
        let Mapping { lpn, page, dirty } = mapping;
        let entry = Entry { lpn, page, dirty, list: List::Probation, newer: NONE, older: NONE };
        let slot = match self.spare.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        let before = self.slots.insert(lpn, slot);
        assert!(before.is_none(), "an entry is cached once");
        self.link(slot, List::Probation);
    }

    /// Changes what a cached entry says.
    ///
    /// # Panics
    /// When it is not cached.
    pub(super) fn change(&mut self, lpn: u32, page: u32) {
        let slot = self.slots[&lpn];
        let entry = &mut self.entries[slot as usize];
        (entry.page, entry.dirty) = (page, true);
    }

    /// The entry that leaves next.
    pub(super) fn oldest(&self) -> Option<Mapping> {
        let slot =
            if self.probation.count > 0 { self.probation.oldest } else { self.protected.oldest };
        (slot != NONE).then(|| {
            let entry = &self.entries[slot as usize];
            Mapping { lpn: entry.lpn, page: entry.page, dirty: entry.dirty }
        })
    }

    pub(super) fn remove(&mut self, lpn: u32) {
        let slot = self.slots.remove(&lpn).expect("the entry is cached");
        self.unlink(slot);
        self.spare.push(slot);
    }

    /// Marks the changed entries of a range as unchanged, and names them.
    pub(super) fn clean(&mut self, range: Range<u32>) -> Vec<Mapping> {
        let entries = &mut self.entries;
        let mut cleaned = Vec::new();
        for slot in self.slots.range(range).map(|(_, slot)| *slot as usize) {
            let entry = &mut entries[slot];
            if std::mem::take(&mut entry.dirty) {
                cleaned.push(Mapping { lpn: entry.lpn, page: entry.page, dirty: true });
            }
        }
        cleaned
    }

    fn ends(&mut self, list: List) -> &mut Ends {
        match list {
            List::Probation => &mut self.probation,
            List::Protected => &mut self.protected,
        }
    }

    fn link(&mut self, slot: u32, list: List) {
        let ends = self.ends(list);
        let older = std::mem::replace(&mut ends.newest, slot);
        ends.count += 1;
        if older == NONE {
            ends.oldest = slot;
        } else {
            self.entries[older as usize].newer = slot;
        }
        let entry = &mut self.entries[slot as usize];
        (entry.list, entry.older, entry.newer) = (list, older, NONE);
    }

    fn unlink(&mut self, slot: u32) {
        let Entry { list, newer, older, .. } = self.entries[slot as usize];
        let ends = self.ends(list);
        ends.count -= 1;
        if newer == NONE {
            ends.newest = older;
        }
        if older == NONE {
            ends.oldest = newer;
        }
        if newer != NONE {
            self.entries[newer as usize].older = older;
        }
        if older != NONE {
            self.entries[older as usize].newer = newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(capacity: u32, lpns: &[u32]) -> MapCache {
        let mut cache = MapCache::new(capacity);
        lpns.iter().for_each(|lpn| cache.insert(Mapping { lpn: *lpn, page: *lpn, dirty: false }));
        cache
    }

    fn leaving(cache: &mut MapCache) -> Vec<u32> {
        std::iter::from_fn(|| {
            let lpn = cache.oldest()?.lpn;
            cache.remove(lpn);
            Some(lpn)
        })
        .collect()
    }

    #[test]
    fn entries_leave_in_order_of_arrival_unless_they_are_used_again() {
        let mut cache = cache(10, &[1, 2, 3, 4]);
        assert!(!cache.is_full());
        cache.touch(1);
        cache.touch(3);
        assert_eq!(cache.touch(9), None);
        assert_eq!(leaving(&mut cache), [2, 4, 1, 3]);
        assert_eq!(cache.count(), 0);
    }

    #[test]
    fn what_falls_out_of_the_protected_list_gets_another_chance() {
        // Room for four protected ones.
        let mut cache = cache(5, &[1, 2, 3, 4, 5]);
        (1..=5).for_each(|lpn| assert!(cache.touch(lpn).is_some()));
        assert_eq!(leaving(&mut cache), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_cache_of_one_entry_works() {
        let mut cache = cache(1, &[7]);
        assert!(cache.is_full());
        cache.touch(7);
        assert_eq!(leaving(&mut cache), [7]);
    }

    #[test]
    fn changed_entries_of_a_range_are_cleaned_together() {
        let mut cache = cache(10, &[1, 2, 3, 11]);
        [1, 3, 11].into_iter().for_each(|lpn| cache.change(lpn, lpn + 100));
        let cleaned: Vec<_> = cache.clean(0..10).iter().map(|m| (m.lpn, m.page)).collect();
        assert_eq!(cleaned, [(1, 101), (3, 103)]);
        assert!(cache.clean(0..10).is_empty());
        assert_eq!(cache.clean(10..20).len(), 1);
    }
}
