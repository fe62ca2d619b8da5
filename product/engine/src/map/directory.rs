//! The directory: root pages in memory, each with the states of those of its 512 leaves that are in use.
//!
//! A root is there from the start for every 2^18 blocks of the volume, unless that is sparse: then it is
//! made when something is written there. Its tables of leaves are allocated when they are first needed.
//!
//! # Invariants
//! - A root stays where it is for as long as it is there: its index is good until a cut forgets it.
//! - Where tables are counted, roots never need more of them than the volume may have.

pub(crate) use super::leaf::{Flag, Leaf};
use super::order::{KEY_SIZE_MAX, Order};
use super::root::bit_of;
pub(crate) use super::root::{Root, RootState};
use super::tables::{LEAVES_PER_TABLE, LeafIndex, TABLE_SIZE, TABLES_PER_ROOT, Tables};
use crate::index_set::IndexSet;
use crate::memory::{self, NoMemory};
use alloc::vec::Vec;
use coulter_format::Lba;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::root_list::ROOTS_PER_PAGE;

/// A leaf's place in the directory. Valid until the next cut. Small enough for two registers: it is handed on at every
/// update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafPlace {
    root: u32,
    slot: u16,
    at: LeafIndex,
}

impl LeafPlace {
    #[inline]
    pub(crate) fn root(self) -> usize {
        self.root as usize
    }

    #[inline]
    fn slot(self) -> usize {
        usize::from(self.slot)
    }
}

/// Leaf key and index of a host address.
pub(crate) fn split(lba: Lba) -> (u64, usize) {
    (lba.0 / ENTRIES_PER_PAGE as u64, (lba.0 % ENTRIES_PER_PAGE as u64) as usize)
}

/// Key of a leaf's root, and the leaf's index there.
fn split_leaf(leaf: u64) -> (u64, usize) {
    split(Lba(leaf))
}

/// How many roots and tables there may be at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Roots of lower keys are there from the start.
    pub(crate) dense: u64,
    pub(crate) roots: u64,
    /// If there may be fewer tables than all roots have.
    pub(crate) tables: Option<u64>,
}

impl Limits {
    /// Bytes that the directory can take.
    pub(crate) fn size(&self) -> u64 {
        let root = ROOT_SIZE as u64;
        match self.tables {
            None => self.roots * (root + (TABLES_PER_ROOT * TABLE_SIZE) as u64),
            // A page and a piece more, for those that are begun. Besides a root there is its key, here and in the
            // list of those that changed, and its place in the list of free ones; and of a table the latter.
            Some(tables) => {
                let roots = self.roots + ROOTS_PER_PAGE as u64;
                let tables = tables + TABLES_PER_ROOT as u64;
                roots * (root + KEY_SIZE_MAX as u64 + 8 + 4) + tables * (TABLE_SIZE as u64 + 4)
            }
        }
    }
}

/// Bytes that a root is counted with. It is part of what stores were promised.
const ROOT_SIZE: usize = 96;

const _: () = assert!(size_of::<Root>() <= ROOT_SIZE);

/// Roots of a piece of memory.
const ROOTS_PER_PIECE: usize = 256;

/// Roots that a cut looks at to find those that say nothing; more wait for the next one.
const LOOKED_AT_MAX: usize = 1 << 15;

/// All roots.
pub(crate) struct Directory {
    /// By index, in pieces of [`ROOTS_PER_PIECE`]. Roots `0..dense` have their index as key.
    roots: Vec<Vec<Root>>,
    /// Indices where there is no root any more.
    pub(super) free: Vec<u32>,
    /// Roots that are there.
    pub(super) count: usize,
    /// The others by key.
    pub(super) order: Order,
    pub(super) limits: Limits,
    tables: Tables,
    /// Tables that roots need, if these are counted.
    needed: u64,
    /// Keys of the roots that changed.
    changed: Vec<u64>,
    /// There may be a root that says nothing: one was made or emptied since none was found.
    may_have_empty: bool,
    /// Roots from here on are looked at by the next cut.
    looked_at: usize,
    /// Pages of the list of roots that changed, if there is one: see [`super::root_list`].
    pub(super) changed_lists: Option<IndexSet>,
}

impl Directory {
    pub(crate) fn new(limits: Limits) -> Result<Directory, NoMemory> {
        let mut directory = Directory {
            roots: Vec::new(),
            free: Vec::new(),
            count: 0,
            order: Order::default(),
            limits: Limits { dense: 0, ..limits },
            tables: Tables::default(),
            needed: 0,
            changed: memory::list(limits.roots as usize)?,
            may_have_empty: true,
            looked_at: 0,
            changed_lists: super::root_list::none_changed(&limits)?,
        };
        directory.grow(limits.dense)?;
        Ok(directory)
    }

    /// There may be more roots and tables from now on.
    pub(crate) fn allow(&mut self, limits: Limits) -> Result<(), NoMemory> {
        assert!(limits.roots >= self.count as u64, "those that are there are allowed");
        assert!(limits.tables.is_none_or(|most| most >= self.needed), "and so are their tables");
        assert_eq!(
            limits.tables.is_some(),
            self.limits.tables.is_some(),
            "they are counted or not"
        );
        let mut changed = memory::list((limits.roots as usize).max(self.changed.len()))?;
        changed.extend_from_slice(&self.changed);
        self.changed = changed;
        self.limits = Limits { dense: self.limits.dense, ..limits };
        self.grow(limits.dense)
    }

    /// There are roots of the keys below `dense` from now on.
    fn grow(&mut self, dense: u64) -> Result<(), NoMemory> {
        assert!(
            dense == 0 || self.count as u64 == self.limits.dense,
            "none lies behind the volume"
        );
        for key in self.limits.dense..dense {
            let index = self.add_root(key)?;
            assert_eq!(index as u64, key, "a root for each key, in order");
        }
        self.limits.dense = self.limits.dense.max(dense);
        Ok(())
    }

    /// A root's place in memory.
    fn add_root(&mut self, key: u64) -> Result<usize, NoMemory> {
        let root = Root::empty(key, if self.limits.tables.is_some() { 0 } else { u16::MAX });
        let index = match self.free.pop() {
            Some(index) => {
                *self.root_mut(index as usize) = root;
                index as usize
            }
            None => self.add_place(root)?,
        };
        self.count += 1;
        self.may_have_empty = true;
        assert_eq!(self.root(index).key, key, "the root lies at its index");
        Ok(index)
    }

    /// One place more; in it something that is not counted yet.
    pub(super) fn add_place(&mut self, root: Root) -> Result<usize, NoMemory> {
        let index = self.place_count();
        assert!(index < u32::MAX as usize, "places can be numbered");
        if index.is_multiple_of(ROOTS_PER_PIECE) {
            // Room for all there will be: forgetting roots asks for no memory.
            memory::reserve_amply(&mut self.free, index + ROOTS_PER_PIECE)?;
            let rest = (self.limits.roots as usize).saturating_sub(index);
            let piece = memory::list(rest.clamp(1, ROOTS_PER_PIECE))?;
            memory::push(&mut self.roots, piece)?;
        }
        memory::push(&mut self.roots[index / ROOTS_PER_PIECE], root)?;
        Ok(index)
    }

    /// Places that there are, with a root or without.
    pub(super) fn place_count(&self) -> usize {
        let last = self.roots.last().map_or(0, Vec::len);
        self.roots.len().saturating_sub(1) * ROOTS_PER_PIECE + last
    }

    /// A leaf page of a root moved: the next checkpoint writes the root's page.
    pub(crate) fn root_changed(&mut self, index: usize) {
        let root = self.root_mut(index);
        assert!(root.has_tables(), "a root that changes has leaves");
        if !core::mem::replace(&mut root.changed, true) {
            let key = root.key;
            self.changed.push(key);
        }
    }

    /// Puts the roots that are taken next into order of key: the latest that changed, `count` of them at most.
    pub(crate) fn sort_changed_roots(&mut self, count: usize) {
        assert!(self.changed.len() <= self.count, "each root is listed once");
        let first = self.changed.len().saturating_sub(count);
        self.changed[first..].sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Whether a root changed that was not taken.
    pub(crate) fn has_changed_roots(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The next root that changed; it counts as written now.
    pub(crate) fn take_changed_root(&mut self) -> Option<usize> {
        let key = self.changed.pop()?;
        let index = self.find_root(key).expect("a root that changed stays until it is written");
        let root = self.root_mut(index);
        assert!(root.changed, "a root is listed while it has changed");
        assert!(root.has_tables(), "a root that changed has leaves");
        root.changed = false;
        Some(index)
    }

    /// How many have changed.
    #[cfg(feature = "verify")]
    pub(super) fn changed_count(&self) -> usize {
        self.changed.len()
    }

    #[inline]
    pub(crate) fn root(&self, index: usize) -> &Root {
        &self.roots[index / ROOTS_PER_PIECE][index % ROOTS_PER_PIECE]
    }

    #[inline]
    pub(crate) fn root_mut(&mut self, index: usize) -> &mut Root {
        &mut self.roots[index / ROOTS_PER_PIECE][index % ROOTS_PER_PIECE]
    }

    /// Roots that are there.
    pub(crate) fn root_count(&self) -> usize {
        self.count
    }

    /// The roots by key, from this one on.
    pub(crate) fn roots_from(&self, key: u64) -> impl Iterator<Item = usize> + '_ {
        let dense = key.min(self.limits.dense) as usize..self.limits.dense as usize;
        dense.chain(self.order.iter_from(key))
    }

    /// All roots by key.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &Root> + '_ {
        self.roots_from(0).map(|index| self.root(index))
    }

    #[inline]
    pub(crate) fn find_root(&self, key: u64) -> Option<usize> {
        if key < self.limits.dense {
            return Some(key as usize);
        }
        self.search_root(key)
    }

    /// Among the roots of a sparse volume. Not inline: lookups of others are short without it.
    #[inline(never)]
    fn search_root(&self, key: u64) -> Option<usize> {
        self.order.find(key)
    }

    /// The root of this key, made if there is none.
    pub(crate) fn root_index(&mut self, key: u64) -> usize {
        self.try_root_index(key).expect("there is memory for a root")
    }

    /// The same, if there is memory.
    pub(crate) fn try_root_index(&mut self, key: u64) -> Result<usize, NoMemory> {
        match self.find_root(key) {
            Some(index) => Ok(index),
            None => {
                let index = self.add_root(key)?;
                self.order.insert(key, index)?;
                Ok(index)
            }
        }
    }

    /// A leaf may be empty from now on that was not.
    #[inline]
    pub(super) fn note_emptied(&mut self) {
        self.may_have_empty = true;
    }

    /// Whether there is a root that says nothing. Roots are looked at only if one was made, or a leaf emptied, since
    /// [`Directory::note_none_empty`].
    pub(crate) fn has_empty(&self) -> bool {
        self.may_have_empty && self.find_empty()
    }

    /// None was found: refused writes that come one after the other look once.
    pub(crate) fn note_none_empty(&mut self) {
        self.may_have_empty = false;
    }

    /// Its page is gone, or it changed since it was written.
    fn find_empty(&self) -> bool {
        let is_gone = |root: &Root| !root.disk.is_mapped() && root.key >= self.limits.dense;
        let changed = self.changed.iter().filter_map(|key| self.find_root(*key));
        let mut changed = changed.map(|index| self.root(index));
        changed.any(|root| root.key >= self.limits.dense && self.is_empty(root))
            || self.roots().any(|root| is_gone(root) && self.is_empty(root))
    }

    /// Whether nothing is mapped in a root, and nothing is under way.
    fn is_empty(&self, root: &Root) -> bool {
        root.state == RootState::Loaded && self.leaves(root).all(|(_, leaf)| leaf.is_empty())
    }

    /// The leaves of a root of which something is known, with their indices.
    pub(crate) fn leaves<'a>(
        &'a self,
        root: &'a Root,
    ) -> impl Iterator<Item = (usize, &'a Leaf)> + Clone + 'a {
        let tables = root.tables.iter().enumerate().filter(|(_, table)| table.is_some());
        tables
            .flat_map(|(index, table)| (index * LEAVES_PER_TABLE..).zip(self.tables.leaves(*table)))
    }

    /// The first leaf from this one on that may hold anything.
    pub(crate) fn next_in_use(&self, leaf: u64) -> Option<u64> {
        let (first, slot) = split_leaf(leaf);
        for index in self.roots_from(first) {
            let root = self.root(index);
            let start = root.key * ENTRIES_PER_PAGE as u64;
            let from = if root.key == first { slot } else { 0 };
            if root.state != RootState::Loaded {
                return Some(start + from as u64);
            }
            let mut in_use =
                self.leaves(root).filter(|(slot, leaf)| *slot >= from && !leaf.is_empty());
            if let Some((found, _)) = in_use.next() {
                return Some(start + found as u64);
            }
        }
        None
    }

    /// The first leaf from this one on that has updates which its page does not contain.
    pub(crate) fn next_dirty(&self, leaf: u64) -> Option<u64> {
        let (first, slot) = split_leaf(leaf);
        let dense = first.min(self.limits.dense) as usize..self.limits.dense as usize;
        for index in dense.chain(self.order.dirty_from(first)) {
            let root = self.root(index);
            let from = if root.key == first { slot } else { 0 };
            if let Some(found) = self.next_dirty_of(root, from) {
                assert!(found >= from && found < ENTRIES_PER_PAGE, "the sweep goes on in order");
                return Some(root.key * ENTRIES_PER_PAGE as u64 + found as u64);
            }
        }
        None
    }

    fn next_dirty_of(&self, root: &Root, from: usize) -> Option<usize> {
        let mut dirty = root.dirty & (u16::MAX << (from / LEAVES_PER_TABLE));
        while dirty != 0 {
            let index = dirty.trailing_zeros() as usize;
            dirty &= dirty - 1;
            let first = index * LEAVES_PER_TABLE;
            let skipped = from.saturating_sub(first);
            let leaves = &self.tables.leaves(root.tables[index])[skipped..];
            if let Some(found) = leaves.iter().position(|leaf| leaf.unmerged > 0) {
                return Some(first + skipped + found);
            }
        }
        None
    }

    /// Forgets roots that say nothing; returns how many, and how many tables they needed. Their pages were given up.
    /// Looks at a limited number of roots; the next call goes on with the others.
    pub(crate) fn drop_empty(&mut self) -> (usize, u64) {
        let before = (self.count, self.needed);
        let end = self.place_count();
        for _ in 0..end.min(LOOKED_AT_MAX) {
            self.looked_at = if self.looked_at + 1 < end { self.looked_at + 1 } else { 0 };
            let root = self.root(self.looked_at);
            // One that changed is to be gone through first.
            let stays = root.changed || root.key < self.limits.dense || root.disk.is_mapped();
            if stays || !self.is_empty(root) {
                continue;
            }
            if self.order.find(root.key) == Some(self.looked_at) {
                self.drop_root(self.looked_at);
            }
        }
        assert!(self.count <= before.0, "none is made here");
        (before.0 - self.count, before.1 - self.needed)
    }

    fn drop_root(&mut self, index: usize) {
        let root = self.root_mut(index);
        let (key, needed, dirty) = (root.key, root.needed, root.dirty);
        assert_eq!(dirty, 0, "nothing of it is to be swept");
        assert!(!root.disk.is_mapped(), "its page was given up");
        let tables = core::mem::replace(&mut root.tables, Root::empty(key, 0).tables);
        tables.into_iter().filter(|table| table.is_some()).for_each(|t| self.tables.give_back(t));
        if self.limits.tables.is_some() {
            self.needed -= u64::from(needed.count_ones());
        }
        self.order.remove(key);
        assert!(self.free.len() < self.free.capacity(), "there is room for all");
        self.free.push(index as u32);
        self.count -= 1;
    }

    /// The place of a leaf whose table is there.
    #[inline]
    pub(crate) fn find(&self, leaf: u64) -> Option<LeafPlace> {
        let (key, slot) = split_leaf(leaf);
        let root = self.find_root(key)?;
        self.place_in(root, slot)
    }

    /// The place of a root's leaf whose table is there.
    #[inline]
    pub(crate) fn place_in(&self, root: usize, slot: usize) -> Option<LeafPlace> {
        let at = self.root(root).leaf(slot)?;
        Some(LeafPlace { root: root as u32, slot: slot as u16, at })
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
        let (key, slot) = split_leaf(leaf);
        let root = self.try_root_index(key)?;
        self.let_in(root, bit_of(slot));
        if self.root(root).leaf(slot).is_none() {
            let table = self.tables.take()?;
            self.root_mut(root).tables[slot / LEAVES_PER_TABLE] = table;
        }
        Ok(self.place_in(root, slot).expect("its table is there now"))
    }

    /// A root may need these tables from now on.
    pub(crate) fn let_in(&mut self, root: usize, tables: u16) {
        let Some(most) = self.limits.tables else { return };
        let new = tables & !self.root(root).needed;
        self.root_mut(root).needed |= new;
        self.needed += u64::from(new.count_ones());
        assert!(self.needed <= most, "no table is one too many");
    }

    /// Whether anything may be mapped in a leaf, for all that is known without its root page.
    #[inline]
    pub(crate) fn may_hold(&self, leaf: u64) -> bool {
        let (key, slot) = split_leaf(leaf);
        self.find_root(key).is_some_and(|root| self.root(root).needs(slot))
    }

    /// How many more tables roots may need.
    pub(crate) fn tables_left(&self) -> u64 {
        self.limits.tables.map_or(u64::MAX, |most| most - self.needed)
    }

    /// Leaves of which something is known.
    pub(crate) fn leaf_count(&self) -> usize {
        self.tables.count() * LEAVES_PER_TABLE
    }

    /// Bytes in use, of those that [`Limits::size`] counts: what finds roots by key only where tables are counted.
    pub(crate) fn size(&self) -> usize {
        let order = if self.limits.tables.is_some() { self.order.size() } else { 0 };
        self.tables.count() * TABLE_SIZE + self.count * size_of::<Root>() + order
    }

    #[inline]
    pub(crate) fn leaf(&self, place: LeafPlace) -> &Leaf {
        self.tables.leaf(place.at)
    }

    #[inline]
    pub(crate) fn leaf_mut(&mut self, place: LeafPlace) -> &mut Leaf {
        self.tables.leaf_mut(place.at)
    }

    #[cfg(feature = "verify")]
    pub(super) fn leaf_at(&self, leaf: LeafIndex) -> &Leaf {
        self.tables.leaf(leaf)
    }

    /// # Panics
    /// If the counts of roots and tables are wrong.
    #[cfg(feature = "verify")]
    pub(super) fn assert_counted(&self) {
        assert_eq!(self.roots().count(), self.count, "roots are counted");
        assert!(self.may_have_empty || !self.find_empty(), "an empty root is not overlooked");
        assert!(self.roots().map(|root| root.key).is_sorted(), "roots are in order of key");
        let tables = self.roots().flat_map(|root| root.tables.iter());
        let count = tables.filter(|table| table.is_some()).count();
        assert_eq!(count, self.tables.count(), "a table is of one root");
        if self.limits.tables.is_some() {
            let needed = self.roots().map(|root| u64::from(root.needed.count_ones()));
            assert_eq!(needed.sum::<u64>(), self.needed, "needed tables are counted");
            let of = |slot: usize| bit_of(slot * LEAVES_PER_TABLE);
            let is_let_in = |root: &Root| {
                let tables = root.tables.iter().enumerate().filter(|(_, table)| table.is_some());
                tables.clone().all(|(index, _)| root.needed & of(index) != 0)
            };
            assert!(self.roots().all(is_let_in), "a table that is there was let in");
        }
    }

    /// Notes whether a leaf has updates that its page does not contain.
    pub(crate) fn note_dirty(&mut self, place: LeafPlace) {
        let bit = bit_of(place.slot());
        let (was_dirty, is_dirty) = (self.root(place.root()).dirty, self.leaf(place).unmerged > 0);
        if is_dirty == (was_dirty & bit != 0) {
            return;
        }
        let table = self.root(place.root()).tables[place.slot() / LEAVES_PER_TABLE];
        if !is_dirty && self.tables.leaves(table).iter().any(|leaf| leaf.unmerged > 0) {
            return;
        }
        let root = self.root_mut(place.root());
        root.dirty ^= bit;
        let (key, dirty) = (root.key, root.dirty);
        if (was_dirty == 0 || dirty == 0) && key >= self.limits.dense {
            self.order.note_dirty(key, dirty != 0);
        }
    }

    /// Whether the leaf's page pointer is known.
    #[inline]
    pub(crate) fn is_loaded(&self, place: LeafPlace) -> bool {
        self.root(place.root()).state == RootState::Loaded
    }

    /// The key of a leaf.
    pub(crate) fn key(&self, place: LeafPlace) -> u64 {
        self.root(place.root()).key * ENTRIES_PER_PAGE as u64 + place.slot() as u64
    }
}
