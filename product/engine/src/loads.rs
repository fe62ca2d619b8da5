//! Map pages on their way into memory, and who waits for them.

mod fetch;

use crate::api::PageRef;
use crate::memory::{self, NoMemory};
use crate::units::SegmentIndex;
use alloc::vec::Vec;
use coulter_format::BlockPointer;
use coulter_format::checksum::Kind;

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
