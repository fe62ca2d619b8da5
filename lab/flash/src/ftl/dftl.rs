//! DFTL: a page map that lies on flash and is cached entry by entry.
//!
//! Source: Gupta, Kim and Urgaonkar, "DFTL: a flash translation layer employing demand-based
//! selective caching of page-level address mappings" (ASPLOS 2009), and the authors' simulator.
//! Departures: data that survives collection goes to a stream of its own (there it shares the
//! current block), so that with a cache that holds everything this equals the page-mapped FTL; what
//! a map page holds and where it lies is known after a power cut from a scan.
//!
//! ```text
//! lookup -> map cache --miss--> evict one (changed: read its map page, program it anew)
//!                               read the map page, found through the directory in memory
//! ```
//! Collection of a data block: entries of moved pages that are cached are changed there, the others
//! on flash, one read and one program for each map page concerned.
//!
//! Invariants:
//! - a data page is valid if and only if the cache, or else flash, maps its logical page to it;
//! - a map page is valid if and only if the directory points at it;
//! - no map page is ever written while the cache holds all entries.

use super::map_cache::{MapCache, Mapping};
use super::scan::{NO_PAGE, newest_pages};
use super::space::Space;
use super::{Ftl, FtlKind, FtlOptions, MapMemory, PageWrite};
use crate::counters::{Cause, FtlCounters};
use crate::geometry::Geometry;
use crate::nand::{Done, Nand, Oob, PowerCut};
use crate::profile::Profile;
use crate::units::{Lpn, Ns, Ppn};

/// Bytes of an entry in a map page, and in the cache.
const ENTRY_ON_FLASH: u32 = 4;
const ENTRY_IN_CACHE: u64 = 8;

const HOST: usize = 0;
const SURVIVORS: usize = 1;
const MAP: usize = 2;

/// Spare erase blocks without which it cannot work: three open, the map pages themselves, and what
/// collection may need at once.
pub(super) fn spare_needed(profile: &Profile) -> u32 {
    let geometry = &profile.geometry;
    7 + map_pages(geometry).div_ceil(geometry.pages_per_block)
}

fn map_pages(geometry: &Geometry) -> u32 {
    geometry.logical_pages().div_ceil(entries_per_page(geometry))
}

fn entries_per_page(geometry: &Geometry) -> u32 {
    geometry.page_size / ENTRY_ON_FLASH
}

#[derive(Clone, Debug)]
pub(super) struct Dftl {
    geometry: Geometry,
    options: FtlOptions,
    cache: MapCache,
    /// Where each map page lies.
    directory: Vec<u32>,
    map_sequence: u64,
    space: Space,
    free_low: usize,
    counters: FtlCounters,
}

impl Dftl {
    pub(super) fn recover(
        nand: &mut Nand,
        profile: &Profile,
        options: FtlOptions,
        at: Ns,
    ) -> Result<(Dftl, Ns), PowerCut> {
        let geometry = *nand.geometry();
        let (newest, ready) = newest_pages(nand, at)?;
        let (directory, map_sequence) = newest_map_pages(nand, &geometry);
        let width = Space::width(&geometry, 2);
        let valid = newest.iter().chain(&directory).copied();
        let space = Space::adopt(nand, &[width, width, 1], valid);
        let cache = MapCache::new(profile.map_cache_entries);
        let caches_all = cache.capacity() >= geometry.logical_pages() as usize;
        let for_map = if caches_all { 0 } else { 2 };
        let mut ftl = Dftl {
            geometry,
            options,
            cache,
            directory,
            map_sequence,
            space,
            free_low: (width + 1 + for_map) as usize,
            counters: FtlCounters::default(),
        };
        let now = ftl.restore_entries(nand, &newest, ready)?;
        Ok((ftl, now))
    }

    /// Entries that flash has wrong go into the cache, which may grow over its capacity while the
    /// drive does nothing else; then it shrinks again.
    fn restore_entries(&mut self, nand: &mut Nand, newest: &[u32], at: Ns) -> Done {
        for (lpn, page) in newest.iter().enumerate() {
            if nand.map_entry(lpn) != *page {
                self.cache.insert(Mapping { lpn: lpn as u32, page: *page, dirty: true });
            }
        }
        let mut now = at;
        while self.cache.count() > self.cache.capacity() {
            now = self.evict(nand, now, true)?;
        }
        Ok(now)
    }

    fn map_page_of(&self, lpn: u32) -> u32 {
        lpn / entries_per_page(&self.geometry)
    }

    fn range_of(&self, map_page: u32) -> std::ops::Range<u32> {
        let entries = entries_per_page(&self.geometry);
        map_page * entries..((map_page + 1) * entries).min(self.geometry.logical_pages())
    }

    /// What is true of a logical page, at no cost.
    fn truth(&self, nand: &Nand, lpn: u32) -> u32 {
        self.cache.peek(lpn).unwrap_or_else(|| nand.map_entry(lpn as usize))
    }

    /// Brings an entry into the cache; answers with its page.
    fn translate(&mut self, nand: &mut Nand, at: Ns, lpn: Lpn) -> Result<(u32, Ns), PowerCut> {
        if let Some(page) = self.cache.touch(lpn.0) {
            self.counters.map_hits += 1;
            return Ok((page, at));
        }
        self.counters.map_misses += 1;
        let mut now = at;
        while self.cache.is_full() {
            now = self.evict(nand, now, self.options.batch_evictions)?;
        }
        let map_page = self.directory[self.map_page_of(lpn.0) as usize];
        if map_page != NO_PAGE {
            now = nand.read(now, Ppn(map_page), Cause::Map)?;
            self.counters.map_loads += 1;
        }
        let page = nand.map_entry(lpn.index());
        self.cache.insert(Mapping { lpn: lpn.0, page, dirty: false });
        Ok((page, now))
    }

    /// Makes room for one entry.
    fn evict(&mut self, nand: &mut Nand, at: Ns, batch: bool) -> Done {
        let oldest = self.cache.oldest().expect("a full cache has entries");
        let mut now = at;
        if oldest.dirty {
            now = self.make_room(nand, now, MAP)?;
            // Collection may have moved the page meanwhile.
            let page = self.cache.peek(oldest.lpn).expect("collection evicts nothing");
            let map_page = self.map_page_of(oldest.lpn);
            let changes = if batch {
                self.cache.clean(self.range_of(map_page))
            } else {
                vec![Mapping { page, ..oldest }]
            };
            now = self.write_map_page(nand, now, map_page, &changes)?;
            self.counters.map_evictions += 1;
        }
        self.cache.remove(oldest.lpn);
        Ok(now)
    }

    /// Programs a map page anew with some entries changed.
    fn write_map_page(
        &mut self,
        nand: &mut Nand,
        at: Ns,
        map_page: u32,
        changes: &[Mapping],
    ) -> Done {
        let old = self.directory[map_page as usize];
        let read = if old == NO_PAGE { at } else { nand.read(at, Ppn(old), Cause::Map)? };
        let page = self.space.next_page(nand, MAP);
        self.map_sequence += 1;
        let oob = Oob { lpn: Oob::MAP | map_page, sequence: self.map_sequence };
        let entries = changes.iter().map(|change| (change.lpn as usize, change.page));
        let done = nand.program_map(read, page, oob, entries)?;
        if old != NO_PAGE {
            self.space.remove(Ppn(old));
        }
        self.space.add(page);
        self.directory[map_page as usize] = page.0;
        Ok(done)
    }

    /// Collects until a stream can have the page that it wants next.
    fn make_room(&mut self, nand: &mut Nand, at: Ns, stream: usize) -> Done {
        if self.space.needs_block(nand, stream) {
            while self.space.free_count() <= self.free_low {
                self.collect(nand, at)?;
            }
        }
        Ok(at)
    }

    fn collect(&mut self, nand: &mut Nand, at: Ns) -> Result<(), PowerCut> {
        let victim = self.space.take_victim(self.options.victims);
        self.counters.gc_victims += 1;
        self.counters.gc_valid_pages += u64::from(self.space.valid(victim));
        let mut moved = at;
        let mut uncached = Vec::new();
        for offset in 0..nand.next_offset(victim) {
            let from = self.geometry.page(victim, offset);
            let Some(oob) = nand.oob(from) else { continue };
            let is_map = oob.lpn & Oob::MAP != 0;
            let number = oob.lpn & !Oob::MAP;
            let current = match is_map {
                true => self.directory[number as usize],
                false => self.truth(nand, number),
            };
            if current != from.0 {
                continue;
            }
            let to = self.space.next_page(nand, if is_map { MAP } else { SURVIVORS });
            moved = moved.max(nand.copy(at, from, to, Cause::Gc)?);
            self.space.remove(from);
            self.space.add(to);
            if is_map {
                self.directory[number as usize] = to.0;
            } else if self.cache.peek(number).is_some() {
                self.cache.change(number, to.0);
            } else {
                uncached.push(Mapping { lpn: number, page: to.0, dirty: false });
            }
        }
        moved = self.update_uncached(nand, moved, uncached)?;
        self.space.release(nand, moved, victim)
    }

    /// Writes what collection moved and the cache does not have: one program for each map page.
    fn update_uncached(&mut self, nand: &mut Nand, at: Ns, mut moved: Vec<Mapping>) -> Done {
        moved.sort_unstable_by_key(|mapping| mapping.lpn);
        let entries = entries_per_page(&self.geometry);
        let mut now = at;
        for group in moved.chunk_by(|a, b| a.lpn / entries == b.lpn / entries) {
            let map_page = self.map_page_of(group[0].lpn);
            now = now.max(self.write_map_page(nand, at, map_page, group)?);
            self.counters.map_gc_updates += 1;
        }
        Ok(now)
    }

    fn remap(&mut self, nand: &Nand, lpn: Lpn, page: u32) -> bool {
        let old = self.truth(nand, lpn.0);
        if old != NO_PAGE {
            self.space.remove(Ppn(old));
        }
        self.cache.change(lpn.0, page);
        old != NO_PAGE
    }
}

/// Where the newest version of each map page lies, and the highest sequence of any. The scan before
/// has paid for looking.
fn newest_map_pages(nand: &Nand, geometry: &Geometry) -> (Vec<u32>, u64) {
    let mut directory = vec![NO_PAGE; map_pages(geometry) as usize];
    let mut ages = vec![(0, 0); directory.len()];
    let mut highest = 0;
    for page in (0..geometry.pages()).map(Ppn) {
        let Some(oob) = nand.oob(page).filter(|oob| oob.lpn & Oob::MAP != 0) else { continue };
        let index = (oob.lpn & !Oob::MAP) as usize;
        let age = (oob.sequence, nand.written(geometry.block_of(page)));
        if directory[index] == NO_PAGE || age > ages[index] {
            (directory[index], ages[index]) = (page.0, age);
        }
        highest = highest.max(oob.sequence);
    }
    (directory, highest)
}

impl Ftl for Dftl {
    fn kind(&self) -> FtlKind {
        FtlKind::Dftl
    }

    fn write(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        let (_, known) = self.translate(nand, at, write.lpn)?;
        let now = self.make_room(nand, known, HOST)?;
        let page = self.space.next_page(nand, HOST);
        let oob = Oob { lpn: write.lpn.0, sequence: write.sequence };
        let done = nand.program(now, page, oob, write.content, write.cause)?;
        self.remap(nand, write.lpn, page.0);
        self.space.add(page);
        Ok(done)
    }

    fn locate(&mut self, nand: &mut Nand, at: Ns, lpn: Lpn) -> Result<(Option<Ppn>, Ns), PowerCut> {
        let (page, known) = self.translate(nand, at, lpn)?;
        Ok(((page != NO_PAGE).then_some(Ppn(page)), known))
    }

    fn trim(&mut self, nand: &mut Nand, at: Ns, lpn: Lpn) -> Done {
        let (_, known) = self.translate(nand, at, lpn)?;
        if self.remap(nand, lpn, NO_PAGE) {
            self.counters.pages_trimmed += 1;
        }
        Ok(known)
    }

    fn peek(&self, nand: &Nand, lpn: Lpn) -> Option<Ppn> {
        let page = self.truth(nand, lpn.0);
        (page != NO_PAGE).then_some(Ppn(page))
    }

    fn counters(&self) -> &FtlCounters {
        &self.counters
    }

    fn memory(&self) -> MapMemory {
        MapMemory {
            tables_bytes: self.directory.len() as u64 * 4,
            cache_bytes: self.cache.capacity().min(self.geometry.logical_pages() as usize) as u64
                * ENTRY_IN_CACHE,
        }
    }

    fn free_blocks(&self) -> usize {
        self.space.free_count()
    }

    fn assert_consistent(&self, nand: &Nand) {
        let mapped: Vec<_> =
            (0..self.geometry.logical_pages()).map(|lpn| self.truth(nand, lpn)).collect();
        for (lpn, page) in mapped.iter().enumerate().filter(|(_, page)| **page != NO_PAGE) {
            let oob = nand.oob(Ppn(*page)).expect("the map points at programmed pages");
            assert_eq!(oob.lpn as usize, lpn, "the map points at the page's own copies");
        }
        for (number, page) in self.directory.iter().enumerate().filter(|(_, p)| **p != NO_PAGE) {
            let oob = nand.oob(Ppn(*page)).expect("the directory points at programmed pages");
            assert_eq!(oob.lpn, Oob::MAP | number as u32, "a map page's own copies");
        }
        let valid = mapped.iter().chain(&self.directory).filter(|page| **page != NO_PAGE);
        self.space.assert_consistent(nand, valid.map(|page| Ppn(*page)));
        assert!(self.cache.count() <= self.cache.capacity(), "the cache keeps to its size");
    }
}
