//! The block map of REDO: one entry for each logical block and nothing else. The host is expected
//! to write each block once, forwards, and to trim it before it writes there again.
//!
//! Source: Lee, Kim and Arvind, "Refactored design of I/O architecture for flash storage" (Computer
//! Architecture Letters 2014), and the author's `block_ftl.c`. Departures: a logical block is one
//! erase block, not one of every chip; writes that the host should not make (backwards, or of a
//! page again) are merged into an empty erase block before the old one is erased, where the original
//! erases first and loses everything if power fails then.
//!
//! Invariants: a data block is erased only when nothing in it counts, or all of that has been
//! copied.

use super::block_map::{BlockMap, by_logical_block, covers, scan_blocks};
use super::{Ftl, FtlKind, MapMemory, PageWrite};
use crate::counters::{Cause, FtlCounters};
use crate::nand::{Done, Nand, Oob, PowerCut};
use crate::units::{Lpn, Ns, Ppn};

const DATA: u8 = 0;

#[derive(Clone, Debug)]
pub(super) struct Redo {
    map: BlockMap,
    counters: FtlCounters,
}

impl Redo {
    pub(super) fn recover(nand: &mut Nand, at: Ns) -> Result<(Redo, Ns), PowerCut> {
        let (found, ready) = scan_blocks(nand, at)?;
        let mut map = BlockMap::of_empty_blocks(nand);
        let mut now = ready;
        for (logical, mut group) in by_logical_block(&map.geometry.clone(), found) {
            assert!(group.len() <= 2, "a data block and what it was being merged into");
            let newest = group.pop().expect("groups are not empty");
            let keep = match group.pop() {
                None => newest,
                Some(older) => {
                    let finished = covers(nand, &newest, &older);
                    let (keep, drop) = if finished { (newest, older) } else { (older, newest) };
                    now = map.retire(nand, now, drop.block)?;
                    keep
                }
            };
            if keep.pages.iter().all(|found| nand.is_trimmed(Lpn(found.oob.lpn))) {
                now = map.retire(nand, now, keep.block)?;
            } else {
                map.set_data(logical, Some(keep.block));
            }
        }
        map.recount(|map, lpn| map.in_data(nand, lpn).is_some());
        Ok((Redo { map, counters: FtlCounters::default() }, now))
    }

    /// Puts the page and everything else of its logical block into an empty erase block.
    fn merge(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        let geometry = self.map.geometry;
        let (logical, offset) = geometry.logical(write.lpn);
        let old = self.map.data(logical).expect("only a data block has unreachable pages");
        let new = self.map.take(nand, logical, DATA);
        self.counters.merges_full += 1;
        let mut done = at;
        for place in 0..geometry.pages_per_block {
            let to = geometry.page(new, place);
            if place == offset {
                let oob = Oob { lpn: write.lpn.0, sequence: write.sequence };
                done = done.max(nand.program(at, to, oob, write.content, write.cause)?);
            } else if let Some(from) = self.map.in_data(nand, geometry.lpn(logical, place)) {
                done = done.max(nand.copy(at, from, to, Cause::Merge)?);
                self.counters.copies_full += 1;
            }
        }
        self.map.set_data(logical, Some(new));
        self.map.retire(nand, done, old)?;
        Ok(done)
    }
}

impl Ftl for Redo {
    fn kind(&self) -> FtlKind {
        FtlKind::Redo
    }

    fn write(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        let (logical, offset) = self.map.geometry.logical(write.lpn);
        let was_valid = self.map.in_data(nand, write.lpn).is_some();
        if self.map.data(logical).is_none() {
            let block = self.map.take(nand, logical, DATA);
            self.map.set_data(logical, Some(block));
        }
        let done = if self.map.reachable(nand, logical, offset) {
            let block = self.map.data(logical).expect("it is reachable");
            let oob = Oob { lpn: write.lpn.0, sequence: write.sequence };
            nand.program(
                at,
                self.map.geometry.page(block, offset),
                oob,
                write.content,
                write.cause,
            )?
        } else {
            self.merge(nand, at, write)?
        };
        if !was_valid {
            self.map.count_valid(logical);
        }
        Ok(done)
    }

    fn locate(&mut self, nand: &mut Nand, at: Ns, lpn: Lpn) -> Result<(Option<Ppn>, Ns), PowerCut> {
        Ok((self.peek(nand, lpn), at))
    }

    fn trim(&mut self, nand: &mut Nand, at: Ns, lpn: Lpn) -> Done {
        let (logical, _) = self.map.geometry.logical(lpn);
        self.counters.pages_trimmed += 1;
        if self.map.count_invalid(logical) {
            let block = self.map.data(logical).expect("the page was valid");
            self.map.set_data(logical, None);
            self.map.retire(nand, at, block)?;
        }
        Ok(at)
    }

    fn peek(&self, nand: &Nand, lpn: Lpn) -> Option<Ppn> {
        self.map.in_data(nand, lpn)
    }

    fn counters(&self) -> &FtlCounters {
        &self.counters
    }

    fn memory(&self) -> MapMemory {
        MapMemory { tables_bytes: self.map.tables_bytes(), cache_bytes: 0 }
    }

    fn free_blocks(&self) -> usize {
        self.map.free.count()
    }

    fn assert_consistent(&self, nand: &Nand) {
        self.map.assert_consistent(nand, 0, |lpn| self.peek(nand, lpn));
    }
}
