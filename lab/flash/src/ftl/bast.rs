//! BAST: a block map with log blocks, each of which belongs to one logical block.
//!
//! Source: Kim, Kim, Noh, Min and Cho, "A space-efficient flash translation layer for CompactFlash
//! systems" (IEEE Transactions on Consumer Electronics, 2002). Departures: a page whose place in
//! the data block was never programmed, nor any behind it, is programmed there; the victim is the
//! log block used least recently.
//!
//! ```text
//! data  | 0 | 1 | 2 | 3 |     log  | 2 | 0 | 2'|   |     newest: 0 and 2 in the log, 1 and 3 in data
//! ```
//! A log whose slots hold offsets 0, 1, 2, … in order becomes the data block, after the rest was
//! copied behind it (partial merge) or at once (switch). Any other is merged with the data block
//! into a third (full merge).
//!
//! Invariants:
//! - a log belongs to a logical block that has a data block;
//! - data block and log are erased only when the block that a full merge made of them is complete,
//!   so whichever of the three are left after a power cut have every newest version;
//! - at most as many logs are open as the profile has log blocks.

use super::block_map::{BlockMap, Scanned, by_logical_block, scan_blocks};
use super::{Ftl, FtlKind, MapMemory, PageWrite};
use crate::counters::{Cause, FtlCounters};
use crate::nand::{Done, Nand, Oob, PowerCut};
use crate::profile::Profile;
use crate::units::{EraseBlock, Lpn, Ns, Ppn};
use std::collections::BTreeMap;

const DATA: u8 = 0;
const LOG: u8 = 1;

/// No slot.
const NONE: u16 = u16::MAX;

#[derive(Clone, Debug)]
struct Log {
    block: EraseBlock,
    /// The slot of the newest version of each offset.
    slots: Vec<u16>,
    used_at: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Bast {
    map: BlockMap,
    logs: BTreeMap<u32, Log>,
    logs_max: usize,
    clock: u64,
    counters: FtlCounters,
}

impl Bast {
    pub(super) fn recover(
        nand: &mut Nand,
        profile: &Profile,
        at: Ns,
    ) -> Result<(Bast, Ns), PowerCut> {
        let (found, ready) = scan_blocks(nand, at)?;
        let mut ftl = Bast {
            map: BlockMap::of_empty_blocks(nand),
            logs: BTreeMap::new(),
            logs_max: profile.log_blocks as usize,
            clock: 0,
            counters: FtlCounters::default(),
        };
        let mut now = ready;
        for (logical, group) in by_logical_block(&ftl.map.geometry, found) {
            now = ftl.adopt(nand, now, logical, group)?;
        }
        let logs = &ftl.logs;
        ftl.map.recount(|map, lpn| find(map, logs, nand, lpn).is_some());
        for logical in 0..profile.geometry.exported_erase_blocks {
            if ftl.map.is_unused(logical) {
                now = ftl.drop_all(nand, now, logical)?;
            }
        }
        Ok((ftl, now))
    }

    /// Gives the erase blocks of a logical block their places.
    ///
    /// In order of opening these may be: data; data, log; data, log and an unfinished full merge of
    /// both; log and the finished merge, the data block being erased already. A data block that
    /// once was a log still has that label.
    fn adopt(&mut self, nand: &mut Nand, at: Ns, logical: u32, mut group: Vec<Scanned>) -> Done {
        assert!(group.len() <= 3, "data, log and a merge of both");
        let mut now = at;
        if group.len() == 3 {
            let merge = group.pop().expect("there are three");
            now = self.map.retire(nand, now, merge.block)?;
        }
        let newer_is_data = group.len() == 2 && group[1].role == DATA;
        let (data, log) = match (group.pop(), group.pop()) {
            (Some(newer), Some(older)) if newer_is_data => (newer, Some(older)),
            (Some(newer), Some(older)) => (older, Some(newer)),
            (Some(only), _) => (only, None),
            (None, _) => return Ok(now),
        };
        self.map.set_data(logical, Some(data.block));
        if let Some(log) = log {
            self.adopt_log(nand, logical, &data, &log);
        }
        Ok(now)
    }

    fn adopt_log(&mut self, nand: &Nand, logical: u32, data: &Scanned, log: &Scanned) {
        let geometry = self.map.geometry;
        let mut slots = vec![NONE; geometry.pages_per_block as usize];
        for found in &log.pages {
            let same = |other: &&super::scan::Found| other.oob.lpn == found.oob.lpn;
            let in_data = data.pages.iter().find(same).map_or(0, |other| other.oob.sequence);
            let lpn = Lpn(found.oob.lpn);
            // Equal means that a merge has copied it: then the data block is its place, unless the
            // copies go the other way, into a log that is to become the data block.
            let newer = found.oob.sequence > in_data;
            let same_place = geometry.logical(lpn).1 == geometry.offset_of(found.page);
            let counts = newer || (found.oob.sequence == in_data && same_place);
            if counts && !nand.is_trimmed(lpn) {
                // Later slots hold newer versions.
                slots[geometry.logical(lpn).1 as usize] = geometry.offset_of(found.page) as u16;
            }
        }
        self.clock += 1;
        self.logs.insert(logical, Log { block: log.block, slots, used_at: self.clock });
    }

    fn drop_all(&mut self, nand: &mut Nand, at: Ns, logical: u32) -> Done {
        let mut now = at;
        if let Some(data) = self.map.data(logical) {
            self.map.set_data(logical, None);
            now = self.map.retire(nand, now, data)?;
        }
        if let Some(log) = self.logs.remove(&logical) {
            now = self.map.retire(nand, now, log.block)?;
        }
        Ok(now)
    }

    /// Brings a log and its data block together, and gives the log block free.
    fn merge(&mut self, nand: &mut Nand, at: Ns, logical: u32) -> Done {
        let log = self.logs[&logical].clone();
        let filled = nand.next_offset(log.block);
        let in_order = (0..filled).all(|slot| u32::from(log.slots[slot as usize]) == slot);
        if in_order {
            self.merge_into_log(nand, at, logical, log.block, filled)
        } else {
            self.merge_full(nand, at, logical, log.block)
        }
    }

    fn merge_into_log(
        &mut self,
        nand: &mut Nand,
        at: Ns,
        logical: u32,
        log: EraseBlock,
        filled: u32,
    ) -> Done {
        let geometry = self.map.geometry;
        let mut done = at;
        let mut copied = 0;
        for offset in filled..geometry.pages_per_block {
            if let Some(from) = self.map.in_data(nand, geometry.lpn(logical, offset)) {
                let to = geometry.page(log, offset);
                done = done.max(nand.copy(at, from, to, Cause::Merge)?);
                copied += 1;
            }
        }
        self.counters.copies_partial += copied;
        match copied {
            0 => self.counters.merges_switch += 1,
            _ => self.counters.merges_partial += 1,
        }
        self.logs.remove(&logical);
        let old = self.map.data(logical).expect("a log belongs to a data block");
        self.map.set_data(logical, Some(log));
        self.map.retire(nand, done, old)?;
        Ok(done)
    }

    fn merge_full(&mut self, nand: &mut Nand, at: Ns, logical: u32, log: EraseBlock) -> Done {
        let geometry = self.map.geometry;
        let new = self.map.take(nand, logical, DATA);
        self.counters.merges_full += 1;
        let mut done = at;
        for offset in 0..geometry.pages_per_block {
            if let Some(from) = self.peek(nand, geometry.lpn(logical, offset)) {
                let to = geometry.page(new, offset);
                done = done.max(nand.copy(at, from, to, Cause::Merge)?);
                self.counters.copies_full += 1;
            }
        }
        let old = self.map.data(logical).expect("a log belongs to a data block");
        self.logs.remove(&logical);
        if nand.is_empty(new) {
            self.map.retire(nand, done, new)?;
            self.map.set_data(logical, None);
        } else {
            self.map.set_data(logical, Some(new));
        }
        let erased = self.map.retire(nand, done, old)?;
        self.map.retire(nand, erased, log)?;
        Ok(done)
    }

    /// Opens a log, merging the one used least recently if there are too many.
    fn open(&mut self, nand: &mut Nand, at: Ns, logical: u32) -> Done {
        let mut now = at;
        if self.logs.len() >= self.logs_max {
            let oldest = self.logs.iter().min_by_key(|(_, log)| log.used_at);
            let oldest = *oldest.expect("profiles allow at least one").0;
            now = self.merge(nand, now, oldest)?;
        }
        let block = self.map.take(nand, logical, LOG);
        let slots = vec![NONE; self.map.geometry.pages_per_block as usize];
        self.logs.insert(logical, Log { block, slots, used_at: self.clock });
        Ok(now)
    }

    fn place(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        let geometry = self.map.geometry;
        let (logical, offset) = geometry.logical(write.lpn);
        let oob = Oob { lpn: write.lpn.0, sequence: write.sequence };
        let mut now = at;
        let full = self
            .logs
            .get(&logical)
            .is_some_and(|log| nand.next_offset(log.block) == geometry.pages_per_block);
        if full {
            now = self.merge(nand, now, logical)?;
        }
        if self.map.data(logical).is_none() {
            let block = self.map.take(nand, logical, DATA);
            self.map.set_data(logical, Some(block));
        }
        if self.map.reachable(nand, logical, offset) {
            let block = self.map.data(logical).expect("it is reachable");
            let page = geometry.page(block, offset);
            return nand.program(now, page, oob, write.content, write.cause);
        }
        if !self.logs.contains_key(&logical) {
            now = self.open(nand, now, logical)?;
        }
        let log = self.logs.get_mut(&logical).expect("it is open");
        let slot = nand.next_offset(log.block);
        let page = geometry.page(log.block, slot);
        let done = nand.program(now, page, oob, write.content, write.cause)?;
        log.slots[offset as usize] = slot as u16;
        log.used_at = self.clock;
        Ok(done)
    }
}

fn find(map: &BlockMap, logs: &BTreeMap<u32, Log>, nand: &Nand, lpn: Lpn) -> Option<Ppn> {
    let (logical, offset) = map.geometry.logical(lpn);
    let logged = logs.get(&logical).and_then(|log| {
        let slot = log.slots[offset as usize];
        (slot != NONE).then(|| map.geometry.page(log.block, slot.into()))
    });
    logged.or_else(|| map.in_data(nand, lpn))
}

impl Ftl for Bast {
    fn kind(&self) -> FtlKind {
        FtlKind::Bast
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
        let (logical, offset) = self.map.geometry.logical(lpn);
        self.counters.pages_trimmed += 1;
        if let Some(log) = self.logs.get_mut(&logical) {
            log.slots[offset as usize] = NONE;
        }
        if self.map.count_invalid(logical) {
            self.drop_all(nand, at, logical)?;
        }
        Ok(at)
    }

    fn peek(&self, nand: &Nand, lpn: Lpn) -> Option<Ppn> {
        find(&self.map, &self.logs, nand, lpn)
    }

    fn counters(&self) -> &FtlCounters {
        &self.counters
    }

    fn memory(&self) -> MapMemory {
        let table = u64::from(self.map.geometry.pages_per_block) * 2;
        MapMemory {
            tables_bytes: self.map.tables_bytes(),
            cache_bytes: self.logs_max as u64 * table,
        }
    }

    fn free_blocks(&self) -> usize {
        self.map.free.count()
    }

    fn assert_consistent(&self, nand: &Nand) {
        assert!(self.logs.len() <= self.logs_max, "the pool has a limit");
        self.map.assert_consistent(nand, self.logs.len(), |lpn| self.peek(nand, lpn));
    }
}
