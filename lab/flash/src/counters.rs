//! What the flash did, split by why it did it.

use serde::Serialize;

/// Why a page was read or programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The host asked for it.
    Host,
    /// Valid pages of a victim were moved so that it can be erased.
    Gc,
    /// Pages were moved to bring a data and a log or replacement block together.
    Merge,
    /// Pages that the host skipped were moved so that every page stays at its own offset.
    Pad,
    /// A part of the map went to or came from flash.
    Map,
    /// The host wrote part of a page, and the rest had to be read.
    Rmw,
    /// Power came back, and the flash was looked through.
    Recovery,
}

/// Operations by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByCause {
    /// Asked for by the host.
    pub host: u64,
    /// Garbage collection.
    pub gc: u64,
    /// Merges.
    pub merge: u64,
    /// Padding.
    pub pad: u64,
    /// Map pages.
    pub map: u64,
    /// Reads for partly written pages, and their programs.
    pub rmw: u64,
    /// Looking through the flash after power came back.
    pub recovery: u64,
}

impl ByCause {
    /// Counts one more.
    #[inline]
    pub fn count(&mut self, cause: Cause) {
        *match cause {
            Cause::Host => &mut self.host,
            Cause::Gc => &mut self.gc,
            Cause::Merge => &mut self.merge,
            Cause::Pad => &mut self.pad,
            Cause::Map => &mut self.map,
            Cause::Rmw => &mut self.rmw,
            Cause::Recovery => &mut self.recovery,
        } += 1;
    }

    /// All causes together.
    pub fn total(&self) -> u64 {
        self.host + self.gc + self.merge + self.pad + self.map + self.rmw + self.recovery
    }

    /// What was added since `earlier`.
    pub fn since(&self, earlier: &ByCause) -> ByCause {
        ByCause {
            host: self.host - earlier.host,
            gc: self.gc - earlier.gc,
            merge: self.merge - earlier.merge,
            pad: self.pad - earlier.pad,
            map: self.map - earlier.map,
            rmw: self.rmw - earlier.rmw,
            recovery: self.recovery - earlier.recovery,
        }
    }
}

/// What the flash itself did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NandCounters {
    /// Pages read.
    pub reads: ByCause,
    /// Pages programmed.
    pub programs: ByCause,
    /// Erase blocks erased.
    pub erases: u64,
}

impl NandCounters {
    /// What was added since `earlier`.
    pub fn since(&self, earlier: &NandCounters) -> NandCounters {
        NandCounters {
            reads: self.reads.since(&earlier.reads),
            programs: self.programs.since(&earlier.programs),
            erases: self.erases - earlier.erases,
        }
    }
}

/// What an FTL did, beyond the operations that [`NandCounters`] has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FtlCounters {
    /// A log or replacement block became the data block as it was; nothing was copied.
    pub merges_switch: u64,
    /// It became the data block after its missing pages were copied to it.
    pub merges_partial: u64,
    /// Pages of both were copied to a third block.
    pub merges_full: u64,
    /// Pages copied by partial merges.
    pub copies_partial: u64,
    /// Pages copied by full merges.
    pub copies_full: u64,
    /// Pages copied because the host skipped them.
    pub copies_pad: u64,
    /// Victims collected.
    pub gc_victims: u64,
    /// Pages that were valid in them.
    pub gc_valid_pages: u64,
    /// Lookups that the map cache answered.
    pub map_hits: u64,
    /// Lookups that had to read a map page.
    pub map_misses: u64,
    /// Map pages read for a lookup.
    pub map_loads: u64,
    /// Map pages written because a changed entry left the cache.
    pub map_evictions: u64,
    /// Map pages written because garbage collection moved what they point at.
    pub map_gc_updates: u64,
    /// Pages that the host gave up and that were mapped.
    pub pages_trimmed: u64,
}

impl FtlCounters {
    /// What was added since `earlier`.
    pub fn since(&self, earlier: &FtlCounters) -> FtlCounters {
        FtlCounters {
            merges_switch: self.merges_switch - earlier.merges_switch,
            merges_partial: self.merges_partial - earlier.merges_partial,
            merges_full: self.merges_full - earlier.merges_full,
            copies_partial: self.copies_partial - earlier.copies_partial,
            copies_full: self.copies_full - earlier.copies_full,
            copies_pad: self.copies_pad - earlier.copies_pad,
            gc_victims: self.gc_victims - earlier.gc_victims,
            gc_valid_pages: self.gc_valid_pages - earlier.gc_valid_pages,
            map_hits: self.map_hits - earlier.map_hits,
            map_misses: self.map_misses - earlier.map_misses,
            map_loads: self.map_loads - earlier.map_loads,
            map_evictions: self.map_evictions - earlier.map_evictions,
            map_gc_updates: self.map_gc_updates - earlier.map_gc_updates,
            pages_trimmed: self.pages_trimmed - earlier.pages_trimmed,
        }
    }
}
