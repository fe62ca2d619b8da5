//! Bringing root and leaf pages into memory, without anyone waiting inside the map.

use super::directory::{Flag, RootState};
use super::{Map, frames};
use crate::segments::Segments;
use crate::units::{Sequence, segment_of};
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::superblock::Geometry;
use coulter_format::{Block, BlockPointer, map_page};

/// What a leaf is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadPurpose {
    /// A lookup: nothing is needed of a leaf that is known to be unmapped.
    Lookup,
    /// A lookup when nothing is written any more; may take what was kept for the sweep.
    LastLookup,
    /// Settling what its page still counts.
    Clean,
    /// Writing its page; may take the last frames but one.
    Sweep,
}

/// What stands between a leaf and being in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadStep {
    /// Nothing: it can be looked up (or written out), or is known to be damaged.
    Ready,
    /// Its root page must be read: key and place. The caller reads it.
    ReadRoot(u64, BlockPointer),
    /// Its leaf page must be read. The caller reads it.
    ReadLeaf(BlockPointer),
    /// A read that was asked for before is under way: of the root page, or of the leaf page.
    Wait {
        /// Whether the root page is what is awaited.
        root: bool,
    },
    /// No memory can be had before the sweep has written something out.
    NoMemory,
}

impl LoadPurpose {
    pub(crate) fn is_lookup(self) -> bool {
        matches!(self, LoadPurpose::Lookup | LoadPurpose::LastLookup)
    }
}

impl Map {
    /// The next step to bring a leaf into memory.
    pub(crate) fn load_step(&mut self, key: u64, purpose: LoadPurpose) -> LoadStep {
        let root_key = key / ENTRIES_PER_PAGE as u64;
        let root = self.directory.root_index(root_key);
        match self.directory.root(root).state {
            RootState::Loaded => {}
            RootState::Damaged => return LoadStep::Ready,
            RootState::Loading => return LoadStep::Wait { root: true },
            RootState::OnDevice => {
                let root = self.directory.root_mut(root);
                root.state = RootState::Loading;
                return LoadStep::ReadRoot(root_key, root.disk);
            }
        }
        let Some(place) = self.directory.find(key) else { return LoadStep::Ready };
        let leaf = *self.directory.leaf(place);
        if leaf.is(Flag::Loading) {
            return LoadStep::Wait { root: false };
        }
        let needless = leaf.frame.is_some()
            || !leaf.disk.is_mapped()
            || leaf.is(Flag::Cleared)
            || leaf.is(Flag::Damaged)
            || (leaf.is(Flag::Dead) && purpose.is_lookup());
        if needless {
            return LoadStep::Ready;
        }
        let Some(frame) = self.take_frame(key, purpose) else { return LoadStep::NoMemory };
        let leaf = self.directory.leaf_mut(place);
        leaf.frame = frame;
        leaf.set(Flag::Loading, true);
        assert!(leaf.disk.is_mapped(), "a page that is loaded is somewhere");
        LoadStep::ReadLeaf(leaf.disk)
    }

    /// The root page arrived; `None` if it is damaged.
    pub(crate) fn finish_root(&mut self, key: u64, page: Option<&Block>, geometry: &Geometry) {
        let index = self.directory.root_index(key);
        assert_eq!(self.directory.root(index).state, RootState::Loading, "one load at a time");
        let page = page.filter(|page| points_into_log(page, geometry));
        // Tables of which the root's list knows nothing would be more than was allowed.
        let first = key * ENTRIES_PER_PAGE as u64;
        let is_expected = |page: &&Block| {
            let mut mapped =
                (first..).zip(map_page::decode(page)).filter(|(_, page)| page.is_mapped());
            mapped.all(|(leaf, _)| self.directory.may_hold(leaf))
        };
        let Some(page) = page.filter(is_expected) else {
            self.directory.root_mut(index).state = RootState::Damaged;
            self.note_loss();
            return;
        };
        for (slot, pointer) in map_page::decode(page).enumerate() {
            if pointer.is_mapped() || self.directory.place_in(index, slot).is_some() {
                let place = self.directory.place(first + slot as u64);
                let leaf = self.directory.leaf_mut(place);
                leaf.disk = pointer;
                leaf.set(Flag::Damaged, pointer.is_lost());
            }
        }
        self.directory.root_mut(index).state = RootState::Loaded;
        self.directory.note_emptied();
    }

    /// The root page could not be read.
    pub(crate) fn forget_root_load(&mut self, key: u64) {
        let index = self.directory.root_index(key);
        assert_eq!(self.directory.root(index).state, RootState::Loading, "it was on its way");
        self.directory.root_mut(index).state = RootState::OnDevice;
    }

    /// The leaf page could not be read.
    pub(crate) fn forget_leaf_load(&mut self, key: u64) {
        let place = self.directory.find(key).expect("a leaf that is loaded has a table");
        let leaf = self.directory.leaf_mut(place);
        assert!(leaf.is(Flag::Loading) && leaf.frame.is_some(), "it was on its way to its frame");
        leaf.set(Flag::Loading, false);
        let frame = core::mem::replace(&mut leaf.frame, frames::FrameIndex::NONE);
        self.frames.release(frame);
    }

    /// The leaf page arrived; `None` if it is damaged.
    pub(crate) fn finish_leaf(
        &mut self,
        segments: &mut Segments,
        key: u64,
        page: Option<&Block>,
        now: Sequence,
    ) {
        let place = self.directory.find(key).expect("a leaf that is loaded has a table");
        let geometry = *segments.geometry();
        let page = page.filter(|page| points_into_log(page, &geometry));
        let leaf = self.directory.leaf_mut(place);
        assert!(leaf.is(Flag::Loading) && leaf.frame.is_some(), "it was on its way to its frame");
        leaf.set(Flag::Loading, false);
        let Some(page) = page else {
            leaf.set(Flag::Damaged, true);
            let is_loss = !leaf.base_is_gone();
            let frame = core::mem::replace(&mut leaf.frame, frames::FrameIndex::NONE);
            self.frames.release(frame);
            if is_loss {
                self.note_loss();
            }
            return;
        };
        let frame = leaf.frame;
        let dead = leaf.is(Flag::Dead);
        let cleared = leaf.is(Flag::Cleared);
        self.frames.take_page(frame, page);
        self.doubt_array(place);
        self.refresh_pin(place);
        assert!(!cleared, "a cleared leaf's page is never loaded");
        if dead {
            self.bury(segments, place, now);
        }
    }

    /// Releases all that a dead leaf's page still counts. The leaf is then cleared.
    fn bury(&mut self, segments: &mut Segments, place: super::directory::LeafPlace, now: Sequence) {
        let chain = self.directory.leaf(place).chain;
        let frame = self.directory.leaf(place).frame;
        for index in 0..ENTRIES_PER_PAGE {
            let old = self.frames.entry(frame, index);
            let update = self.frames.chain_find(chain, index);
            if let Some((slot, update)) = update {
                self.frames.chain_set(slot, super::chain::Update { released: true, ..update });
            }
            if old.is_mapped() && update.is_none_or(|(_, update)| !update.released) {
                segments.release(old.pba, now);
            }
        }
        let leaf = self.directory.leaf_mut(place);
        leaf.set(Flag::Dead, false);
        leaf.set(Flag::Cleared, true);
        // Nothing of the page is needed any more, so it need not stay in memory.
        leaf.frame = frames::FrameIndex::NONE;
        self.frames.release(frame);
        let start = self.directory.key(place) * ENTRIES_PER_PAGE as u64;
        assert!(self.journal.len() < self.journal.capacity(), "the journal has room to spare");
        self.journal.push(start << 1 | 1);
    }
}

/// Whether every pointer of a map page is one that a store of this geometry can hold.
fn points_into_log(page: &Block, geometry: &Geometry) -> bool {
    map_page::decode(page).all(|pointer| {
        let somewhere = pointer.is_mapped() && !pointer.is_lost();
        !somewhere || segment_of(geometry, pointer.pba).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::super::entries::EntryWidth;
    use super::super::settle::Settled;
    use super::*;
    use coulter_format::superblock::RecoveryBudget;
    use coulter_format::{BLOCK_SIZE, Lba, Pba};

    const GEOMETRY: Geometry = Geometry {
        volume_size: 1 << 16,
        capacity: 1 << 16,
        root_limit: 0,
        root_lists: false,
        segment_blocks: 256,
        segment_count: 400,
        first_segment: Pba(256),
        device_size: 256 * 401,
        second_superblock: Pba(128),
        third_superblock: Pba::NOWHERE,
        page_blocks: 1,
    };

    /// A discard of a whole leaf is replayed before its root page is read, and the root page says
    /// that the leaf has no page.
    #[test]
    fn a_leaf_that_need_not_be_loaded_is_settled() {
        for root_page in [Some(&[0; BLOCK_SIZE]), None] {
            let budget = RecoveryBudget { journal_size: 1024, run_count_limit: 8, map_size: 0 };
            let map = Map::new(&GEOMETRY, 1 << 20, EntryWidth::MAX, budget);
            let (mut map, mut segments) = (
                map.expect("there is memory").expect("it fits"),
                Segments::new(GEOMETRY).expect("there is memory"),
            );
            let on_device = BlockPointer { pba: Pba(300), checksum: 1 };
            map.restore_root(0, on_device, Pba::NOWHERE).expect("there is memory");
            map.discard_leaf(&mut segments, 3, 1);
            let lba = Lba(3 * ENTRIES_PER_PAGE as u64 + 5);

            assert_eq!(map.settle(&mut segments, lba, 2), Settled::MustLoad);
            let step = map.load_step(3, LoadPurpose::Clean);
            assert_eq!(step, LoadStep::ReadRoot(0, on_device));
            map.finish_root(0, root_page, &GEOMETRY);
            assert_eq!(map.load_step(3, LoadPurpose::Clean), LoadStep::Ready);
            let settled = map.settle(&mut segments, lba, 3);
            assert_ne!(settled, Settled::MustLoad, "who waits would wait for ever");
        }
    }
}
