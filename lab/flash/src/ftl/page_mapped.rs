//! The page-mapped FTL: one entry of four bytes for each logical page, all in memory.
//!
//! Source: the scheme of every SSD with enough memory; FEMU and MQSim were read for details. What
//! they do that this does not: random choice among samples, wear levelling beyond first in first
//! out, background collection.
//!
//! Host writes and what survives collection go to streams of their own (see `space`), so that what
//! survived once is kept apart from what was just written. Victims are collected when the host
//! needs an erase block and too few are free; their copies and erases are queued on the dies like
//! everything else, and what waits for those dies waits for them.
//!
//! Invariants:
//! - a physical page is valid if and only if the map points at it;
//! - enough erase blocks are free for garbage collection to finish a victim;
//! - a page is moved before its erase block is erased.

use super::scan::{NO_PAGE, newest_pages};
use super::space::Space;
use super::{Ftl, FtlKind, FtlOptions, MapMemory, PageWrite};
use crate::counters::{Cause, FtlCounters};
use crate::geometry::Geometry;
use crate::nand::{Done, Nand, Oob, PowerCut};
use crate::units::{Lpn, Ns, Ppn};

/// How writes are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// All host writes together.
    Mixed,
    /// First writes apart from overwrites.
    HotCold,
    /// By the handle that the host names, as multi-stream drives do; what survives collection is
    /// mixed. FDP calls this initially isolated.
    Handles {
        /// Handles `0..count`; higher ones count as the last.
        count: u8,
    },
    /// By the handle, and kept apart in collection too: FDP's persistently isolated.
    Isolated {
        /// Handles `0..count`; higher ones count as the last.
        count: u8,
    },
}

impl Placement {
    fn host_streams(self) -> u32 {
        match self {
            Placement::Mixed => 1,
            Placement::HotCold => 2,
            Placement::Handles { count } | Placement::Isolated { count } => count.max(1).into(),
        }
    }

    fn gc_streams(self) -> u32 {
        match self {
            Placement::Isolated { .. } => self.host_streams(),
            _ => 1,
        }
    }
}

/// Spare erase blocks without which it cannot work: one open for each stream, one more for each
/// stream of garbage collection, and two that are free.
pub(super) fn spare_needed(options: &FtlOptions) -> u32 {
    options.placement.host_streams() + 2 * options.placement.gc_streams() + 2
}

#[derive(Clone, Debug)]
pub(super) struct PageMapped {
    geometry: Geometry,
    options: FtlOptions,
    map: Vec<u32>,
    /// Streams of the host, then those of garbage collection.
    space: Space,
    /// Collection begins when no more erase blocks are free.
    free_low: usize,
    counters: FtlCounters,
}

impl PageMapped {
    pub(super) fn recover(
        nand: &mut Nand,
        options: FtlOptions,
        at: Ns,
    ) -> Result<(PageMapped, Ns), PowerCut> {
        let (map, ready) = newest_pages(nand, at)?;
        let geometry = *nand.geometry();
        let (host, gc) = (options.placement.host_streams(), options.placement.gc_streams());
        let width = Space::width(&geometry, host + gc);
        let space = Space::adopt(nand, &vec![width; (host + gc) as usize], map.iter().copied());
        let free_low = (gc * width + 1) as usize;
        let counters = FtlCounters::default();
        Ok((PageMapped { geometry, options, map, space, free_low, counters }, ready))
    }

    /// The stream of a host write.
    fn host_stream(&self, lpn: Lpn, handle: u8) -> usize {
        match self.options.placement {
            Placement::Mixed => 0,
            Placement::HotCold => usize::from(self.map[lpn.index()] != NO_PAGE),
            Placement::Handles { count } | Placement::Isolated { count } => {
                handle.min(count.max(1) - 1).into()
            }
        }
    }

    /// The stream for what survives of a victim.
    fn gc_stream(&self, victim_role: u8) -> usize {
        let host = self.options.placement.host_streams() as usize;
        match self.options.placement {
            Placement::Isolated { .. } => host + usize::from(victim_role) % host,
            _ => host,
        }
    }

    /// Moves what is valid in a victim elsewhere and erases it.
    fn collect(&mut self, nand: &mut Nand, at: Ns) -> Result<(), PowerCut> {
        let victim = self.space.take_victim(self.options.victims);
        self.counters.gc_victims += 1;
        self.counters.gc_valid_pages += u64::from(self.space.valid(victim));
        let stream = self.gc_stream(nand.label_of(victim).role);
        let mut moved = at;
        for offset in 0..nand.next_offset(victim) {
            if self.space.valid(victim) == 0 {
                break;
            }
            let from = self.geometry.page(victim, offset);
            let Some(oob) = nand.oob(from) else { continue };
            if self.map[oob.lpn as usize] != from.0 {
                continue;
            }
            let to = self.space.next_page(nand, stream);
            moved = moved.max(nand.copy(at, from, to, Cause::Gc)?);
            self.map[oob.lpn as usize] = to.0;
            self.space.remove(from);
            self.space.add(to);
        }
        self.space.release(nand, moved, victim)
    }

    fn forget(&mut self, lpn: Lpn) -> bool {
        let old = std::mem::replace(&mut self.map[lpn.index()], NO_PAGE);
        if old != NO_PAGE {
            self.space.remove(Ppn(old));
        }
        old != NO_PAGE
    }
}

impl Ftl for PageMapped {
    fn kind(&self) -> FtlKind {
        FtlKind::PageMapped
    }

    #[inline]
    fn write(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        let stream = self.host_stream(write.lpn, write.handle);
        if self.space.needs_block(nand, stream) {
            while self.space.free_count() <= self.free_low {
                self.collect(nand, at)?;
            }
        }
        let page = self.space.next_page(nand, stream);
        let oob = Oob { lpn: write.lpn.0, sequence: write.sequence };
        let done = nand.program(at, page, oob, write.content, write.cause)?;
        self.forget(write.lpn);
        self.map[write.lpn.index()] = page.0;
        self.space.add(page);
        Ok(done)
    }

    #[inline]
    fn locate(&mut self, nand: &mut Nand, at: Ns, lpn: Lpn) -> Result<(Option<Ppn>, Ns), PowerCut> {
        Ok((self.peek(nand, lpn), at))
    }

    fn trim(&mut self, _nand: &mut Nand, at: Ns, lpn: Lpn) -> Done {
        if self.forget(lpn) {
            self.counters.pages_trimmed += 1;
        }
        Ok(at)
    }

    #[inline]
    fn peek(&self, _nand: &Nand, lpn: Lpn) -> Option<Ppn> {
        let page = self.map[lpn.index()];
        (page != NO_PAGE).then_some(Ppn(page))
    }

    fn counters(&self) -> &FtlCounters {
        &self.counters
    }

    fn memory(&self) -> MapMemory {
        MapMemory { tables_bytes: self.map.len() as u64 * 4, cache_bytes: 0 }
    }

    fn free_blocks(&self) -> usize {
        self.space.free_count()
    }

    fn assert_consistent(&self, nand: &Nand) {
        let mapped = |lpn: usize| self.peek(nand, Lpn(lpn as u32));
        for (lpn, page) in (0..self.map.len()).filter_map(|lpn| Some((lpn, mapped(lpn)?))) {
            let oob = nand.oob(page).expect("the map points at programmed pages");
            assert_eq!(oob.lpn as usize, lpn, "the map points at the page's own copies");
        }
        self.space.assert_consistent(nand, (0..self.map.len()).filter_map(mapped));
    }
}
