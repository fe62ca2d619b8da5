//! The directory: root pages in memory, each with the states of its 512 leaves.
//!
//! A root is there from the start for every 2^18 blocks of the volume, unless that is sparse: then it is
//! made when something is written there. Its table of leaves is allocated when it is first needed.

use super::frames::{CellIndex, FrameIndex};
use crate::memory::{self, NoMemory};
use alloc::boxed::Box;
use alloc::vec::Vec;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::{BlockPointer, Lba};

/// What is known of one leaf: 512 consecutive host blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    /// The leaf page on the device. Meaningless while the root is not loaded.
    pub(crate) disk: BlockPointer,
    /// The array in memory.
    pub(crate) frame: FrameIndex,
    /// Updates that are not in the array.
    pub(crate) chain: CellIndex,
    /// Updates since the sweep last wrote the leaf, saturating at 512: what recovery would find in
    /// runs and records.
    pub(crate) unmerged: u16,
    /// Relocations on their way that will compare this leaf's pointers.
    pub(crate) relocating: u16,
    flags: u16,
}

/// A condition of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Flag {
    /// The array holds updates that the leaf page does not.
    Changed = 1,
    /// A leaf page is on its way to the device.
    Writing = 2,
    /// An update came after the page on its way was made.
    Touched = 4,
    /// Every address without an update is unmapped, and the leaf page's locations are still
    /// counted.
    Dead = 8,
    /// Every address without an update is unmapped, and the leaf page's locations are no longer
    /// counted.
    Cleared = 16,
    /// The leaf page is on its way into memory.
    Loading = 32,
    /// The leaf page is damaged.
    Damaged = 64,
    /// Records that are referred to have changed addresses of it since it was swept: so there are
    /// updates that a run need not say.
    Referred = 128,
    /// It has updates, and no page that is known: it is counted as one that will take a page.
    Pageless = 256,
    /// The array was used since the hand that looks for one to give up last passed it.
    Used = 512,
}

impl Leaf {
    const EMPTY: Leaf = Leaf {
        disk: BlockPointer::NOWHERE,
        frame: FrameIndex::NONE,
        chain: CellIndex::NONE,
        unmerged: 0,
        relocating: 0,
        flags: 0,
    };

    pub(crate) fn is(&self, flag: Flag) -> bool {
        self.flags & flag as u16 != 0
    }

    pub(crate) fn set(&mut self, flag: Flag, on: bool) {
        if on {
            self.flags |= flag as u16;
        } else {
            self.flags &= !(flag as u16);
        }
    }

    /// Whether the array was used since this was last asked.
    pub(crate) fn take_used(&mut self) -> bool {
        let was_used = self.is(Flag::Used);
        self.set(Flag::Used, false);
        was_used
    }

    /// Whether the array must stay in memory: it differs from the page on the device, or something
    /// is on its way that will need it.
    pub(crate) fn must_stay(&self) -> bool {
        let busy = Flag::Changed as u16 | Flag::Writing as u16 | Flag::Loading as u16;
        self.flags & busy != 0 || self.relocating > 0
    }

    /// Whether nothing is known of the leaf but that it is unmapped, and nothing is under way.
    fn is_empty(&self) -> bool {
        let tells = [Flag::Dead, Flag::Damaged, Flag::Pageless].iter().any(|flag| self.is(*flag));
        let is_quiet = self.unmerged == 0 && !self.must_stay() && !tells;
        is_quiet && !self.disk.is_mapped() && !self.frame.is_some() && !self.chain.is_some()
    }

    /// Whether the addresses without an update are known to be unmapped.
    pub(crate) fn base_is_gone(&self) -> bool {
        self.is(Flag::Dead) || self.is(Flag::Cleared)
    }
}

/// Whether the pointers to a root's leaf pages are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootState {
    /// They are in the leaves.
    Loaded,
    /// They are on the device.
    OnDevice,
    /// They are on their way.
    Loading,
    /// They are damaged on the device.
    Damaged,
}

/// One root page: 512 leaves, 1 GiB of host space.
pub(crate) struct Root {
    pub(crate) key: u64,
    /// The root page on the device.
    pub(crate) disk: BlockPointer,
    pub(crate) state: RootState,
    /// A leaf page moved since the root page was last written. It is listed then.
    pub(super) changed: bool,
    /// A bit for each leaf with updates that its page does not contain.
    dirty: [u64; ENTRIES_PER_PAGE / 64],
    pub(crate) leaves: Option<Box<[Leaf; ENTRIES_PER_PAGE]>>,
}

impl Root {
    /// The first leaf from this one on that has updates which its page does not contain.
    pub(crate) fn next_dirty(&self, from: usize) -> Option<usize> {
        let first = from / 64;
        for (index, word) in self.dirty.iter().enumerate().skip(first) {
            let word = if index == first { word & u64::MAX << (from % 64) } else { *word };
            if word != 0 {
                return Some(index * 64 + word.trailing_zeros() as usize);
            }
        }
        None
    }

    /// Whether nothing is mapped in it, and nothing is under way.
    fn is_empty(&self) -> bool {
        let leaves = self.leaves.iter().flat_map(|leaves| leaves.iter());
        self.state == RootState::Loaded && leaves.clone().all(Leaf::is_empty)
    }

    fn empty(key: u64) -> Root {
        Root {
            key,
            disk: BlockPointer::NOWHERE,
            state: RootState::Loaded,
            changed: false,
            dirty: [0; ENTRIES_PER_PAGE / 64],
            leaves: None,
        }
    }
}

/// A leaf's place in the directory. Valid until a root is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafPlace {
    pub(crate) root: usize,
    pub(crate) slot: usize,
}

/// Leaf key and index of a host address.
pub(crate) fn split(lba: Lba) -> (u64, usize) {
    (lba.0 / ENTRIES_PER_PAGE as u64, (lba.0 % ENTRIES_PER_PAGE as u64) as usize)
}

/// All roots, by key.
pub(crate) struct Directory {
    roots: Vec<Root>,
    /// Roots `0..dense` have their index as key.
    dense: u64,
    pub(crate) leaf_tables: usize,
    /// Keys of the roots that changed.
    changed: Vec<u64>,
}

/// Bytes of a root's table of leaves.
pub(crate) const LEAF_TABLE_SIZE: usize = core::mem::size_of::<[Leaf; ENTRIES_PER_PAGE]>();

impl Directory {
    /// With roots of the keys below `dense` from the start, and no more than `most` ever.
    pub(crate) fn new(dense: u64, most: u64) -> Result<Directory, NoMemory> {
        let mut roots = memory::list(dense as usize)?;
        roots.extend((0..dense).map(Root::empty));
        let changed = memory::list(most as usize)?;
        Ok(Directory { roots, dense, leaf_tables: 0, changed })
    }

    /// There may be `most` roots from now on.
    pub(crate) fn allow(&mut self, most: u64) -> Result<(), NoMemory> {
        assert!(most >= self.roots.len() as u64, "those that are there are allowed");
        let mut changed = memory::list((most as usize).max(self.changed.len()))?;
        changed.extend_from_slice(&self.changed);
        self.changed = changed;
        Ok(())
    }

    /// There are roots of the keys below `dense` from now on.
    pub(crate) fn grow(&mut self, dense: u64) -> Result<(), NoMemory> {
        assert_eq!(self.roots.len() as u64, self.dense, "there are no roots behind the volume");
        for key in self.dense..dense {
            memory::push(&mut self.roots, Root::empty(key))?;
        }
        self.dense = self.dense.max(dense);
        assert_eq!(self.roots.len() as u64, self.dense, "a root for each key");
        Ok(())
    }

    /// A leaf page of a root moved: the next checkpoint writes the root's page.
    pub(crate) fn root_changed(&mut self, index: usize) {
        let root = &mut self.roots[index];
        assert!(root.leaves.is_some(), "a root that changes has leaves");
        if !core::mem::replace(&mut root.changed, true) {
            self.changed.push(root.key);
        }
    }

    /// Puts roots that changed into order, to be taken.
    pub(crate) fn sort_changed_roots(&mut self) {
        self.changed.sort_unstable_by(|a, b| b.cmp(a));
        assert!(self.changed.len() <= self.roots.len(), "each root is listed once");
    }

    /// The first root that changed; it counts as written now.
    pub(crate) fn take_changed_root(&mut self) -> Option<&mut Root> {
        let key = self.changed.pop()?;
        let index = self.find_root(key).expect("a root that changed stays until it is written");
        let root = &mut self.roots[index];
        assert!(root.changed, "a root is listed while it has changed");
        assert!(root.leaves.is_some(), "a root that changed has leaves");
        root.changed = false;
        Some(root)
    }

    /// How many have changed.
    #[cfg(feature = "verify")]
    pub(super) fn changed_count(&self) -> usize {
        self.changed.len()
    }

    pub(crate) fn roots(&self) -> &[Root] {
        &self.roots
    }

    pub(crate) fn roots_mut(&mut self) -> &mut [Root] {
        &mut self.roots
    }

    #[inline]
    pub(crate) fn find_root(&self, key: u64) -> Option<usize> {
        if key < self.dense {
            return Some(key as usize);
        }
        self.search_root(key)
    }

    /// Among the roots of a sparse volume. Not inline: lookups of others are short without it.
    #[inline(never)]
    fn search_root(&self, key: u64) -> Option<usize> {
        self.roots.binary_search_by_key(&key, |root| root.key).ok()
    }

    /// The root of this key, made if there is none.
    pub(crate) fn root_index(&mut self, key: u64) -> usize {
        if key < self.dense {
            return key as usize;
        }
        match self.roots.binary_search_by_key(&key, |root| root.key) {
            Ok(index) => index,
            Err(index) => {
                self.roots.insert(index, Root::empty(key));
                let near = &self.roots[index.saturating_sub(1)..(index + 2).min(self.roots.len())];
                assert!(near.is_sorted_by(|a, b| a.key < b.key), "roots are in order of key");
                index
            }
        }
    }

    /// The same, if there is memory.
    pub(crate) fn try_root_index(&mut self, key: u64) -> Result<usize, NoMemory> {
        if key >= self.dense {
            memory::reserve(&mut self.roots)?;
        }
        Ok(self.root_index(key))
    }

    /// Whether there is a root that says nothing.
    pub(crate) fn has_empty(&self) -> bool {
        self.roots.iter().any(|root| root.key >= self.dense && root.is_empty())
    }

    /// The first leaf from this one on that may hold anything.
    pub(crate) fn next_in_use(&self, leaf: u64) -> Option<u64> {
        let per_root = ENTRIES_PER_PAGE as u64;
        let first = self.roots.partition_point(|root| root.key < leaf / per_root);
        for root in &self.roots[first..] {
            let start = root.key * per_root;
            let from = leaf.saturating_sub(start).min(per_root);
            if root.state != RootState::Loaded {
                return Some(start + from);
            }
            let Some(leaves) = &root.leaves else { continue };
            let is_in_use = |leaf: &Leaf| !leaf.is_empty();
            if let Some(found) = leaves[from as usize..].iter().position(is_in_use) {
                return Some(start + from + found as u64);
            }
        }
        None
    }

    /// Forgets roots that say nothing; returns how many. Their pages were given up.
    pub(crate) fn drop_empty(&mut self) -> usize {
        let before = self.roots.len();
        assert!(self.leaf_tables <= before, "a root has one table");
        let (dense, leaf_tables) = (self.dense, &mut self.leaf_tables);
        self.roots.retain(|root| {
            let is_empty = root.key >= dense && root.is_empty() && !root.disk.is_mapped();
            assert!(!is_empty || !root.changed, "a root that changed is written first");
            *leaf_tables -= usize::from(is_empty && root.leaves.is_some());
            !is_empty
        });
        before - self.roots.len()
    }

    /// The place of a leaf whose root has a table.
    #[inline]
    pub(crate) fn find(&self, leaf: u64) -> Option<LeafPlace> {
        let root = self.find_root(leaf / ENTRIES_PER_PAGE as u64)?;
        self.roots[root].leaves.as_ref()?;
        Some(LeafPlace { root, slot: (leaf % ENTRIES_PER_PAGE as u64) as usize })
    }

    /// The place of a leaf, made if it is not there.
    #[inline]
    pub(crate) fn place(&mut self, leaf: u64) -> LeafPlace {
        match self.find(leaf) {
            Some(place) => place,
            None => self.try_place(leaf).expect("there is memory for a table of leaves"),
        }
    }

    /// The same, if there is memory.
    pub(crate) fn try_place(&mut self, leaf: u64) -> Result<LeafPlace, NoMemory> {
        let root = self.try_root_index(leaf / ENTRIES_PER_PAGE as u64)?;
        if self.roots[root].leaves.is_none() {
            self.roots[root].leaves = Some(memory::boxed(Leaf::EMPTY)?);
            self.leaf_tables += 1;
        }
        Ok(LeafPlace { root, slot: (leaf % ENTRIES_PER_PAGE as u64) as usize })
    }

    #[inline]
    pub(crate) fn leaf(&self, place: LeafPlace) -> &Leaf {
        &self.roots[place.root].leaves.as_ref().expect("a place has a table")[place.slot]
    }

    #[inline]
    pub(crate) fn leaf_mut(&mut self, place: LeafPlace) -> &mut Leaf {
        &mut self.roots[place.root].leaves.as_mut().expect("a place has a table")[place.slot]
    }

    /// Notes whether a leaf has updates that its page does not contain.
    pub(crate) fn note_dirty(&mut self, place: LeafPlace) {
        let is_dirty = self.leaf(place).unmerged > 0;
        let word = &mut self.roots[place.root].dirty[place.slot / 64];
        let bit = 1 << (place.slot % 64);
        *word = if is_dirty { *word | bit } else { *word & !bit };
    }

    /// Whether the leaf's page pointer is known.
    pub(crate) fn is_loaded(&self, place: LeafPlace) -> bool {
        self.roots[place.root].state == RootState::Loaded
    }

    /// The key of a leaf.
    pub(crate) fn key(&self, place: LeafPlace) -> u64 {
        self.roots[place.root].key * ENTRIES_PER_PAGE as u64 + place.slot as u64
    }
}
