//! S-FTL: a block map in which a logical block that is written again gets a *replacement* block,
//! written in place: every page lies at its own offset there too.
//!
//! Source: Choi, Gwak and Shin, "Host-driven block management scheme using log-structured file
//! system for memory-constrained SSD". The paper leaves open what is filled in here: pages that the
//! host skips are copied when it writes behind them; a write before the end of the replacement
//! closes it and opens another; the replacement used least recently is closed when too many are
//! open; pages that were trimmed are not copied.
//!
//! ```text
//! data         | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
//! replacement  | 0'| 1 | 2'| 3'|  ^ next            1 was skipped by the host and copied (pad)
//!                close: copy 4..7 (partial merge), or nothing if the host wrote them all (switch)
//! ```
//! Invariants:
//! - a page below `next` of the replacement counts there, others in the data block;
//! - there is no full merge, save that after a power cut which tore a page of a replacement, data
//!   and replacement are copied together once (counted as recovery);
//! - at most as many replacements are open as the profile has log blocks.

use super::block_map::{BlockMap, Scanned, by_logical_block, scan_blocks};
use super::{Ftl, FtlKind, MapMemory, PageWrite};
use crate::counters::{Cause, FtlCounters};
use crate::nand::{Done, Nand, Oob, PowerCut};
use crate::profile::Profile;
use crate::units::{EraseBlock, Lpn, Ns, Ppn};
use std::collections::BTreeMap;

const DATA: u8 = 0;
const REPLACEMENT: u8 = 1;

/// Bytes of a replacement's entry: its erase block and the next offset.
const REPLACEMENT_ENTRY: u64 = 6;

#[derive(Clone, Copy, Debug)]
struct Replacement {
    block: EraseBlock,
    /// Pages were copied into it.
    padded: bool,
    used_at: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Sftl {
    map: BlockMap,
    replacements: BTreeMap<u32, Replacement>,
    replacements_max: usize,
    clock: u64,
    counters: FtlCounters,
}

impl Sftl {
    pub(super) fn recover(
        nand: &mut Nand,
        profile: &Profile,
        at: Ns,
    ) -> Result<(Sftl, Ns), PowerCut> {
        let (found, ready) = scan_blocks(nand, at)?;
        let mut ftl = Sftl {
            map: BlockMap::of_empty_blocks(nand),
            replacements: BTreeMap::new(),
            replacements_max: profile.log_blocks as usize,
            clock: 0,
            counters: FtlCounters::default(),
        };
        let mut now = ready;
        let groups = by_logical_block(&ftl.map.geometry, found);
        for (logical, group) in groups {
            now = ftl.adopt(nand, now, logical, group)?;
        }
        let replacements = &ftl.replacements;
        ftl.map.recount(|map, lpn| find(map, replacements, nand, lpn).is_some());
        for logical in 0..profile.geometry.exported_erase_blocks {
            if ftl.map.is_unused(logical) {
                now = ftl.drop_all(nand, now, logical)?;
            }
        }
        Ok((ftl, now))
    }

    /// Gives the erase blocks of a logical block their places: the first opened is the data block,
    /// the second the replacement, a third an unfinished repair of both.
    fn adopt(&mut self, nand: &mut Nand, at: Ns, logical: u32, mut group: Vec<Scanned>) -> Done {
        assert!(group.len() <= 3, "data, replacement, and a repair of both");
        let mut now = at;
        if group.len() == 3 {
            let repair = group.pop().expect("there are three");
            now = self.map.retire(nand, now, repair.block)?;
        }
        self.map.set_data(logical, Some(group[0].block));
        let Some(second) = group.get(1) else { return Ok(now) };
        self.clock += 1;
        let replacement = Replacement { block: second.block, padded: true, used_at: self.clock };
        self.replacements.insert(logical, replacement);
        let torn = (0..nand.next_offset(second.block))
            .any(|offset| nand.is_torn(self.map.geometry.page(second.block, offset)));
        if torn { self.repair(nand, now, logical) } else { Ok(now) }
    }

    /// Copies data and replacement together: a page of the replacement was torn, and the data
    /// block's is the one that counts, so the replacement cannot be completed.
    fn repair(&mut self, nand: &mut Nand, at: Ns, logical: u32) -> Done {
        let geometry = self.map.geometry;
        let new = self.map.take(nand, logical, DATA);
        let mut now = at;
        for offset in 0..geometry.pages_per_block {
            if let Some(from) = self.peek(nand, geometry.lpn(logical, offset)) {
                now = nand.copy(now, from, geometry.page(new, offset), Cause::Recovery)?;
            }
        }
        now = self.drop_all(nand, now, logical)?;
        if nand.is_empty(new) {
            self.map.retire(nand, now, new)?;
        } else {
            self.map.set_data(logical, Some(new));
        }
        Ok(now)
    }

    /// Erases whatever the logical block has.
    fn drop_all(&mut self, nand: &mut Nand, at: Ns, logical: u32) -> Done {
        let mut now = at;
        if let Some(data) = self.map.data(logical) {
            self.map.set_data(logical, None);
            now = self.map.retire(nand, now, data)?;
        }
        if let Some(replacement) = self.replacements.remove(&logical) {
            now = self.map.retire(nand, now, replacement.block)?;
        }
        Ok(now)
    }

    /// Makes the replacement the data block, after copying what it lacks.
    fn close(&mut self, nand: &mut Nand, at: Ns, logical: u32) -> Done {
        let replacement = self.replacements[&logical];
        let geometry = self.map.geometry;
        let mut done = at;
        let mut copied = 0;
        for offset in nand.next_offset(replacement.block)..geometry.pages_per_block {
            if let Some(from) = self.map.in_data(nand, geometry.lpn(logical, offset)) {
                let to = geometry.page(replacement.block, offset);
                done = done.max(nand.copy(at, from, to, Cause::Merge)?);
                copied += 1;
            }
        }
        self.counters.copies_partial += copied;
        if replacement.padded || copied > 0 {
            self.counters.merges_partial += 1;
        } else {
            self.counters.merges_switch += 1;
        }
        self.replacements.remove(&logical);
        let old = self.map.data(logical).expect("a replacement replaces something");
        self.map.set_data(logical, Some(replacement.block));
        self.map.retire(nand, done, old)?;
        Ok(done)
    }

    /// Opens a replacement, closing the one used least recently if there are too many.
    fn open(&mut self, nand: &mut Nand, at: Ns, logical: u32) -> Done {
        let mut now = at;
        if self.replacements.len() >= self.replacements_max {
            let oldest = self.replacements.iter().min_by_key(|(_, open)| open.used_at);
            let oldest = *oldest.expect("profiles allow at least one").0;
            now = self.close(nand, now, oldest)?;
        }
        let block = self.map.take(nand, logical, REPLACEMENT);
        let replacement = Replacement { block, padded: false, used_at: self.clock };
        self.replacements.insert(logical, replacement);
        Ok(now)
    }

    /// Programs a page in the replacement, after those that the host skipped.
    fn replace(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        let geometry = self.map.geometry;
        let (logical, offset) = geometry.logical(write.lpn);
        let block = self.replacements[&logical].block;
        let mut done = at;
        let mut padded = false;
        for skipped in nand.next_offset(block)..offset {
            if let Some(from) = self.map.in_data(nand, geometry.lpn(logical, skipped)) {
                done = done.max(nand.copy(at, from, geometry.page(block, skipped), Cause::Pad)?);
                self.counters.copies_pad += 1;
                padded = true;
            }
        }
        let oob = Oob { lpn: write.lpn.0, sequence: write.sequence };
        let to = geometry.page(block, offset);
        done = done.max(nand.program(at, to, oob, write.content, write.cause)?);
        let replacement = self.replacements.get_mut(&logical).expect("it is open");
        replacement.padded |= padded;
        replacement.used_at = self.clock;
        if offset + 1 == geometry.pages_per_block {
            self.close(nand, done, logical)?;
        }
        Ok(done)
    }

    fn place(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        let geometry = self.map.geometry;
        let (logical, offset) = geometry.logical(write.lpn);
        let open = self.replacements.get(&logical).copied();
        if open.is_none() {
            if self.map.data(logical).is_none() {
                let block = self.map.take(nand, logical, DATA);
                self.map.set_data(logical, Some(block));
            }
            if self.map.reachable(nand, logical, offset) {
                let block = self.map.data(logical).expect("it is reachable");
                let oob = Oob { lpn: write.lpn.0, sequence: write.sequence };
                let page = geometry.page(block, offset);
                return nand.program(at, page, oob, write.content, write.cause);
            }
        }
        let mut now = at;
        match open {
            Some(open) if nand.next_offset(open.block) <= offset => {}
            Some(_) => {
                now = self.close(nand, now, logical)?;
                now = self.open(nand, now, logical)?;
            }
            None => now = self.open(nand, now, logical)?,
        }
        self.replace(nand, now, write)
    }
}

fn find(
    map: &BlockMap,
    replacements: &BTreeMap<u32, Replacement>,
    nand: &Nand,
    lpn: Lpn,
) -> Option<Ppn> {
    if nand.is_trimmed(lpn) {
        return None;
    }
    let (logical, offset) = map.geometry.logical(lpn);
    let replaced = replacements.get(&logical).map(|open| map.geometry.page(open.block, offset));
    replaced.filter(|page| nand.oob(*page).is_some()).or_else(|| map.in_data(nand, lpn))
}

impl Ftl for Sftl {
    fn kind(&self) -> FtlKind {
        FtlKind::Sftl
    }

    fn write(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        self.clock += 1;
        let was_valid = self.peek(nand, write.lpn).is_some();
        let done = self.place(nand, at, write)?;
        if !was_valid {
            self.map.count_valid(self.map.geometry.logical(write.lpn).0);
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
            self.drop_all(nand, at, logical)?;
        }
        Ok(at)
    }

    fn peek(&self, nand: &Nand, lpn: Lpn) -> Option<Ppn> {
        find(&self.map, &self.replacements, nand, lpn)
    }

    fn counters(&self) -> &FtlCounters {
        &self.counters
    }

    fn memory(&self) -> MapMemory {
        MapMemory {
            tables_bytes: self.map.tables_bytes(),
            cache_bytes: self.replacements_max as u64 * REPLACEMENT_ENTRY,
        }
    }

    fn free_blocks(&self) -> usize {
        self.map.free.count()
    }

    fn assert_consistent(&self, nand: &Nand) {
        assert!(self.replacements.len() <= self.replacements_max, "the pool has a limit");
        self.map.assert_consistent(nand, self.replacements.len(), |lpn| self.peek(nand, lpn));
    }
}
