//! Map pages on their way into memory, and who waits for them.

use crate::api::{Buffers, Command, IoResult, PageRef, Target};
use crate::canary::{Canary, sings};
use crate::ios::Purpose;
use crate::map::{LoadPurpose, LoadStep};
use crate::memory::{self, NoMemory};
use crate::shared::Shared;
use crate::units::SegmentIndex;
use alloc::vec::Vec;
use coulter_format::BlockPointer;
use coulter_format::checksum::{self, Kind};

/// Who goes on when a page has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// The read in this request slot.
    Read(u32),
    /// The discard in this request slot.
    Discard(u32),
    /// The cleaner.
    Cleaner,
    /// The scrubber.
    Scrubber,
    /// Nobody: the sweep and prefetching look again by themselves.
    Nobody,
}

/// Page reads that may fail in a row before the engine stops writing.
const FAILURES_MAX: u32 = 16;

/// A page being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    kind: Kind,
    key: u64,
    pointer: BlockPointer,
    segment: SegmentIndex,
    /// Only a read of the host asked for it, and is told if it fails.
    for_host: bool,
    /// It is read a second time, because it did not match its checksum.
    again: bool,
    /// It is read from its second copy.
    is_copy: bool,
}

/// The table of loads; one for each page buffer.
pub(crate) struct Loads {
    slots: Vec<Option<Load>>,
    waiters: Vec<(u16, Waiter)>,
    /// Waiters for which no memory, buffer or table entry was free.
    starved: Vec<Waiter>,
    /// Reads of pages, other than for the host, that failed in a row.
    failures: u32,
    /// Those who go on now.
    woken: Vec<Woken>,
}

/// Someone who goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Woken {
    pub(crate) waiter: Waiter,
    /// The page could not be read: the error number.
    pub(crate) failed: Option<i32>,
}

impl Loads {
    pub(crate) fn new(page_count: u16) -> Result<Loads, NoMemory> {
        Ok(Loads {
            slots: memory::filled(None, usize::from(page_count))?,
            waiters: memory::list(64)?,
            starved: memory::list(64)?,
            failures: 0,
            woken: memory::list(64)?,
        })
    }

    /// Someone who must try again later.
    pub(crate) fn starve(&mut self, waiter: Waiter) {
        if waiter != Waiter::Nobody {
            assert!(
                self.starved.len() < 1 << 24,
                "who starves is a request, the cleaner or a scrub"
            );
            self.starved.push(waiter);
        }
    }

    /// A page has come, or could not be read: who waits for it goes on.
    fn wake(&mut self, slot: u16, failed: Option<i32>) {
        let mut waiters = core::mem::take(&mut self.waiters);
        waiters.retain(|(waits_on, waiter)| {
            if *waits_on != slot {
                return true;
            }
            match waiter {
                Waiter::Discard(_) if failed.is_some() => self.starve(*waiter),
                waiter => self.woken.push(Woken { waiter: *waiter, failed }),
            }
            false
        });
        assert!(self.waiters.is_empty(), "who is woken does not wait again before it went on");
        self.waiters = waiters;
    }

    /// Lets those try again for whom something was missing.
    pub(crate) fn wake_starved(&mut self) {
        let woken = |waiter| Woken { waiter, failed: None };
        self.woken.extend(self.starved.drain(..).map(woken));
    }

    /// Those who go on now. To be given back when they have.
    pub(crate) fn take_woken(&mut self) -> Vec<Woken> {
        core::mem::take(&mut self.woken)
    }

    /// Keeps the memory of what was taken.
    pub(crate) fn give_back_woken(&mut self, mut woken: Vec<Woken>) {
        assert!(woken.is_empty(), "all of them went on");
        woken.append(&mut self.woken);
        self.woken = woken;
    }

    /// A page buffer outside loads: the last one is the checkpoint's.
    pub(crate) fn superblock_page(&self) -> PageRef {
        PageRef(self.slots.len() as u16 - 1)
    }

    fn free_slot(&self) -> Option<u16> {
        let loadable = &self.slots[..self.slots.len() - 1];
        loadable.iter().position(Option::is_none).map(|index| index as u16)
    }

    fn find(&self, kind: Kind, key: u64) -> Option<u16> {
        let wanted = |load: &Option<Load>| load.is_some_and(|l| l.kind == kind && l.key == key);
        self.slots.iter().position(wanted).map(|index| index as u16)
    }
}

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

#[cfg(feature = "verify")]
impl Loads {
    /// Pages being read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        self.slots.iter().flatten().map(|load| (load.kind, load.key))
    }

    /// The segment that a page is read from.
    pub(crate) fn segment_of(&self, slot: u16) -> SegmentIndex {
        self.slots[usize::from(slot)].expect("a load's command is out").segment
    }

    /// Whether somebody waits for a page, or to try again.
    pub(crate) fn waits(&self, waiter: Waiter) -> bool {
        let waiting = self.waiters.iter().map(|(_, waiter)| waiter);
        waiting.chain(&self.starved).any(|waiting| *waiting == waiter)
    }
}
