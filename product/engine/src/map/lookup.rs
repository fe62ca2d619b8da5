//! Lookups: where a block lies, as far as memory tells.

use super::Map;
use super::directory::{Flag, LeafPlace, RootState, split};
use super::frames::FrameIndex;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::{BlockPointer, Lba, Pba};

/// Addresses of which the leaves are looked up before the first array is touched.
const WARMED_AT_ONCE: usize = 64;

/// The answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The block lies there.
    Mapped(BlockPointer),
    /// The block reads as zeros.
    Unmapped,
    /// The leaf of this key must be loaded first.
    Miss(u64),
    /// The leaf, or its root, is damaged on the device.
    Damaged,
}

impl Map {
    /// Whether a block is mapped, if memory tells.
    pub(crate) fn presence(&self, lba: Lba) -> Option<bool> {
        let (key, index) = split(lba);
        match self.directory.find(key) {
            Some(place) => {
                let known = self.known(place, index);
                // What is lost takes no room, and what heals it does.
                known.map(|pointer| pointer.is_mapped() && !pointer.is_lost())
            }
            None => {
                let root = self.directory.find_root(key / ENTRIES_PER_PAGE as u64);
                let state = root.map(|root| self.directory.root(root).state);
                let is_known = matches!(state, None | Some(RootState::Loaded));
                let is_known = is_known || !self.directory.may_hold(key);
                (is_known && !self.roots_missing).then_some(false)
            }
        }
    }

    /// Where a block lies.
    #[inline]
    pub(crate) fn lookup(&mut self, lba: Lba) -> Lookup {
        let (key, index) = split(lba);
        let Some(place) = self.directory.find(key) else {
            return self.lookup_without_table(lba, key);
        };
        let leaf = self.directory.leaf_mut(place);
        if leaf.chain.is_some()
            && let Some((_, update)) = self.frames.chain_find(leaf.chain, index)
        {
            self.statistics.hits += 1;
            return found(update.pointer);
        }
        if leaf.frame.is_some() && !leaf.is(Flag::Loading) {
            self.statistics.hits += 1;
            leaf.set(Flag::Used, true);
            return found(self.frames.entry(leaf.frame, index));
        }
        self.lookup_without_array(lba, key, place)
    }

    #[inline(never)]
    fn lookup_without_array(&mut self, lba: Lba, key: u64, place: LeafPlace) -> Lookup {
        if self.doubt.contains(lba.0) {
            return Lookup::Damaged;
        }
        let leaf = self.directory.leaf(place);
        if leaf.base_is_gone() {
            return Lookup::Unmapped;
        }
        match self.directory.root(place.root()).state {
            RootState::Loaded if !leaf.disk.is_mapped() => Lookup::Unmapped,
            RootState::Loaded if leaf.is(Flag::Damaged) => Lookup::Damaged,
            RootState::Damaged => Lookup::Damaged,
            _ => {
                self.statistics.misses += 1;
                Lookup::Miss(key)
            }
        }
    }

    #[inline(never)]
    fn lookup_without_table(&self, lba: Lba, key: u64) -> Lookup {
        if self.doubt.contains(lba.0) {
            return Lookup::Damaged;
        }
        let root = self.directory.find_root(key / ENTRIES_PER_PAGE as u64);
        match root.map(|root| self.directory.root(root).state) {
            Some(RootState::Loaded) => Lookup::Unmapped,
            None | Some(RootState::Damaged) if self.roots_missing => Lookup::Damaged,
            None => Lookup::Unmapped,
            Some(_) if !self.directory.may_hold(key) => Lookup::Unmapped,
            Some(RootState::Damaged) => Lookup::Damaged,
            Some(_) => Lookup::Miss(key),
        }
    }

    /// The first address from here on of which the leaf may hold anything; behind all of them if there is none.
    pub(crate) fn next_leaf_in_use(&self, lba: u64) -> u64 {
        let (leaf, _) = split(Lba(lba));
        if self.roots_missing {
            return lba;
        }
        let next = self.directory.next_in_use(leaf);
        let next =
            next.map_or(u64::MAX, |next| next.saturating_mul(ENTRIES_PER_PAGE as u64).max(lba));
        next.min(self.doubt.next(lba))
    }

    /// Where the page of a leaf lies, if it has one that counts and that is not known to be damaged.
    pub(crate) fn leaf_page_in_use(&self, key: u64) -> Option<BlockPointer> {
        let place = self.directory.find(key).filter(|place| self.directory.is_loaded(*place))?;
        let leaf = self.directory.leaf(place);
        let counts = !leaf.base_is_gone() && !leaf.is(Flag::Damaged) && !leaf.is(Flag::Loading);
        (counts && leaf.disk.is_mapped() && !leaf.disk.is_lost()).then_some(leaf.disk)
    }

    /// Where a block lies, if memory tells and it lies anywhere. Counts as no lookup.
    pub(crate) fn location(&self, lba: Lba) -> Option<Pba> {
        let (key, index) = split(lba);
        let place = self.directory.find(key)?;
        let pointer = self.known(place, index)?;
        (pointer.is_mapped() && !pointer.is_lost()).then_some(pointer.pba)
    }

    /// Touches what updates or lookups of these addresses will need, so that the memory of many is fetched side
    /// by side: one after the other, each would be a cache miss of its own. First the leaves of some, then their
    /// arrays: the shorter a loop is, the more of what it touches is on its way at once.
    pub(crate) fn warm(&self, addresses: impl Iterator<Item = Lba>) {
        let mut arrays = [(FrameIndex::NONE, 0); WARMED_AT_ONCE];
        let (mut count, mut touched) = (0, 0);
        addresses.for_each(|lba| {
            let (key, index) = split(lba);
            let Some(place) = self.directory.find(key) else { return };
            arrays[count] = (self.directory.leaf(place).frame, index as u16);
            count += 1;
            if count == WARMED_AT_ONCE {
                touched ^= self.frames.touch(&arrays);
                count = 0;
            }
        });
        core::hint::black_box(touched ^ self.frames.touch(&arrays[..count]));
    }

    /// Whether a block may lie there, for all that is in memory. It is not counted as being used.
    pub(crate) fn may_lie_at(&self, lba: Lba, pba: Pba) -> bool {
        let (key, index) = split(lba);
        let place = self.directory.find(key);
        let known = place.and_then(|place| self.known(place, index));
        known.is_none_or(|pointer| pointer.pba == pba)
    }

    /// The same for an update that recovery restores: it looks through all of the leaf's chain.
    pub(crate) fn warm_chain(&self, lba: Lba) -> u64 {
        let place = self.directory.find(split(lba).0);
        place.map_or(0, |place| self.frames.chain_warm(self.directory.leaf(place).chain))
    }

    /// Whether a block is mapped, without loading anything: what is not in memory counts as
    /// mapped.
    pub(crate) fn is_mapped(&mut self, lba: Lba) -> bool {
        self.lookup(lba) != Lookup::Unmapped
    }

    /// The current value, if memory tells.
    #[inline]
    pub(super) fn known(&self, place: LeafPlace, index: usize) -> Option<BlockPointer> {
        let leaf = self.directory.leaf(place);
        if leaf.chain.is_some()
            && let Some((_, update)) = self.frames.chain_find(leaf.chain, index)
        {
            return Some(update.pointer);
        }
        if leaf.frame.is_some() && !leaf.is(Flag::Loading) {
            return Some(self.frames.entry(leaf.frame, index));
        }
        let in_doubt = !self.doubt.is_empty() && {
            let start = self.directory.key(place) * ENTRIES_PER_PAGE as u64;
            self.doubt.contains(start + index as u64)
        };
        if in_doubt {
            return Some(BlockPointer::LOST);
        }
        let nothing_on_device = self.directory.is_loaded(place) && !leaf.disk.is_mapped();
        (leaf.base_is_gone() || nothing_on_device).then_some(BlockPointer::NOWHERE)
    }

    /// Whether the leaf page counts nothing for the address any more, be it mapped or not. The leaf must be
    /// known.
    pub(crate) fn is_released(&self, lba: Lba) -> bool {
        let (key, index) = split(lba);
        let Some(place) = self.directory.find(key) else { return true };
        let leaf = self.directory.leaf(place);
        if let Some((_, update)) = self.frames.chain_find(leaf.chain, index) {
            return update.released;
        }
        let in_memory = leaf.frame.is_some() && !leaf.is(Flag::Loading);
        let no_page = self.directory.is_loaded(place) && !leaf.disk.is_mapped();
        in_memory || no_page || leaf.is(Flag::Cleared)
    }
}

fn found(pointer: BlockPointer) -> Lookup {
    match pointer.pba {
        Pba::NOWHERE => Lookup::Unmapped,
        Pba::LOST => Lookup::Damaged,
        _ => Lookup::Mapped(pointer),
    }
}
