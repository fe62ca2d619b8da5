//! Reading map pages.

use super::{FAILURES_MAX, Load, Waiter};
use crate::api::{Buffers, Command, IoResult, PageRef, Target};
use crate::canary::{Canary, sings};
use crate::ios::Purpose;
use crate::map::load::{LoadPurpose, LoadStep};
use crate::shared::Shared;
use coulter_format::BlockPointer;
use coulter_format::checksum::{self, Kind};

impl Shared {
    /// Sees to it that a leaf comes into memory; `waiter` goes on when something has changed.
    pub(crate) fn load(&mut self, leaf: u64, waiter: Waiter) {
        let purpose = match self.poisoned {
            None => LoadPurpose::Lookup,
            Some(_) => LoadPurpose::LastLookup,
        };
        self.load_for(leaf, waiter, purpose);
    }

    /// The same for a purpose. Returns whether the leaf is ready now.
    pub(crate) fn load_for(&mut self, leaf: u64, waiter: Waiter, purpose: LoadPurpose) -> bool {
        let Some(slot) = self.loads.free_slot() else {
            self.loads.starve(waiter);
            return false;
        };
        let root_key = leaf / coulter_format::map_page::ENTRIES_PER_PAGE as u64;
        let waits_on = match self.map.load_step(leaf, purpose) {
            LoadStep::Ready => {
                self.loads.starve(waiter);
                return true;
            }
            LoadStep::NoMemory => {
                self.signals.memory = true;
                self.loads.starve(waiter);
                return false;
            }
            LoadStep::ReadRoot(key, pointer) => {
                self.start_load(slot, Kind::Root, key, pointer, purpose)
            }
            LoadStep::ReadLeaf(pointer) => {
                self.start_load(slot, Kind::Leaf, leaf, pointer, purpose)
            }
            LoadStep::Wait { root: true } => {
                self.loads.find(Kind::Root, root_key).expect("a root being loaded is listed")
            }
            LoadStep::Wait { root: false } => {
                self.loads.find(Kind::Leaf, leaf).expect("a leaf being loaded is listed")
            }
        };
        if waiter != Waiter::Nobody {
            self.loads.waiters.push((waits_on, waiter));
        }
        false
    }

    fn start_load(
        &mut self,
        slot: u16,
        kind: Kind,
        key: u64,
        pointer: BlockPointer,
        purpose: LoadPurpose,
    ) -> u16 {
        let segment = self.segments.of(pointer.pba);
        self.segments.begin_read(segment);
        let (for_host, again) = (purpose.is_lookup(), false);
        let load = Load { kind, key, pointer, segment, for_host, again, is_copy: false };
        assert!(pointer.is_mapped() && !pointer.is_lost(), "a page that is loaded is somewhere");
        assert!(self.loads.find(kind, key).is_none(), "a page is loaded once");
        assert!(self.loads.slots[usize::from(slot)].is_none(), "a page buffer is for one load");
        self.loads.slots[usize::from(slot)] = Some(load);
        let target = Target::Page(PageRef(slot));
        self.ios.start(Purpose::Load(slot), Command::Read { pba: pointer.pba, count: 1, target });
        slot
    }

    pub(crate) fn load_completed(&mut self, slot: u16, result: IoResult, buffers: &impl Buffers) {
        let load = self.loads.slots[usize::from(slot)].take().expect("a load completes once");
        self.segments.end_read(load.segment);
        if let Err(errno) = result {
            if self.load_copy(load, slot) {
                return;
            }
            self.load_failed(load, slot, errno);
            return;
        }
        self.loads.failures = 0;
        let page = buffers.page(PageRef(slot));
        let intact = checksum::block(load.kind, load.key, page) == load.pointer.checksum;
        if !intact && !load.again {
            // Perhaps the device read badly once.
            self.segments.begin_read(load.segment);
            self.loads.slots[usize::from(slot)] = Some(Load { again: true, ..load });
            let target = Target::Page(PageRef(slot));
            let read = Command::Read { pba: load.pointer.pba, count: 1, target };
            self.ios.start(Purpose::Load(slot), read);
            return;
        }
        if !intact && self.load_copy(load, slot) {
            return;
        }
        let page = intact.then_some(page);
        let now = self.log.now();
        match load.kind {
            Kind::Root => {
                self.map.finish_root(load.key, page, &self.superblock.geometry);
                if load.is_copy && intact {
                    // The next checkpoint writes both anew.
                    self.map.root_is_to_be_written(load.key);
                    self.statistics.metadata_copies_used += 1;
                }
            }
            _ => self.map.finish_leaf(&mut self.segments, load.key, page, now),
        }
        self.loads.wake(slot, None);
    }

    /// Reads a root page from its second copy, if that was not tried.
    fn load_copy(&mut self, load: Load, slot: u16) -> bool {
        let copy = self.map.root_copy(load.key);
        let (Some(copy), Kind::Root, false) = (copy, load.kind, load.is_copy) else { return false };
        if sings(Canary::CopyUnused) {
            return false;
        }
        assert_ne!(copy.pba, load.pointer.pba, "the copies lie apart");
        let segment = self.segments.of(copy.pba);
        self.segments.begin_read(segment);
        self.loads.slots[usize::from(slot)] =
            Some(Load { segment, again: true, is_copy: true, ..load });
        let read = Command::Read { pba: copy.pba, count: 1, target: Target::Page(PageRef(slot)) };
        self.ios.start(Purpose::Load(slot), read);
        true
    }

    /// A page could not be read. The reads that wait for it fail; the sweep and the cleaner try again,
    /// until that has failed so often that nothing can be expected of the device any more. How often the
    /// host tries says nothing.
    fn load_failed(&mut self, load: Load, slot: u16, errno: i32) {
        match load.kind {
            Kind::Root => self.map.forget_root_load(load.key),
            _ => self.map.forget_leaf_load(load.key),
        }
        self.loads.failures += u32::from(!load.for_host);
        if self.loads.failures >= FAILURES_MAX {
            self.poison(errno);
        }
        self.loads.wake(slot, Some(errno));
    }
}
