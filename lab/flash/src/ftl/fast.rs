//! FAST: a block map with log blocks that all logical blocks share.
//!
//! Source: Lee, Park, Chung, Lee, Park and Song, "A log buffer-based flash translation layer using
//! fully-associative sector translation" (ACM TECS 2007), and the DFTL authors' simulator.
//! Departures: as in BAST, places that were never programmed are programmed in place; a sequential
//! log that is full is switched at once.
//!
//! - One log is for a *sequential* run: it belongs to one logical block and holds its offsets
//!   0, 1, 2, … in place.
//! - The others take *random* writes of any logical block in order of arrival. When they are full
//!   the oldest is emptied: every logical block with a valid page in it is merged, which may be as
//!   many as it has pages.
//!
//! Invariants:
//! - the newest version lies in the sequential log, else in a random log if the table has it, else
//!   in the data block;
//! - of the blocks that a merge makes useless the old data block is erased first, then logs.

use super::block_map::{BlockMap, Scanned, by_logical_block, covers, scan_blocks};
use super::{Ftl, FtlKind, MapMemory, PageWrite};
use crate::counters::{Cause, FtlCounters};
use crate::nand::{Done, Nand, Oob, PowerCut};
use crate::profile::Profile;
use crate::units::{EraseBlock, Lpn, Ns, Ppn};
use std::collections::{BTreeMap, VecDeque};

const DATA: u8 = 0;
const SEQUENTIAL: u8 = 1;
const RANDOM: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct Sequential {
    logical: u32,
    block: EraseBlock,
}

#[derive(Clone, Debug)]
pub(super) struct Fast {
    map: BlockMap,
    logs: Logs,
    random_max: usize,
    counters: FtlCounters,
}

/// Where pages lie that are not in data blocks.
#[derive(Clone, Debug)]
struct Logs {
    sequential: Option<Sequential>,
    /// In order of age.
    random: VecDeque<EraseBlock>,
    /// The newest version of each page whose newest version is in a random log.
    table: BTreeMap<u32, Ppn>,
}

impl Logs {
    fn find(&self, map: &BlockMap, nand: &Nand, lpn: Lpn) -> Option<Ppn> {
        let (logical, offset) = map.geometry.logical(lpn);
        let sequential = self.sequential.filter(|log| log.logical == logical);
        sequential
            .map(|log| map.geometry.page(log.block, offset))
            .filter(|page| nand.oob(*page).is_some() && !nand.is_trimmed(lpn))
            .or_else(|| self.table.get(&lpn.0).copied())
            .or_else(|| map.in_data(nand, lpn))
    }
}

impl Fast {
    pub(super) fn recover(
        nand: &mut Nand,
        profile: &Profile,
        at: Ns,
    ) -> Result<(Fast, Ns), PowerCut> {
        let (found, ready) = scan_blocks(nand, at)?;
        let logs = Logs { sequential: None, random: VecDeque::new(), table: BTreeMap::new() };
        let mut ftl = Fast {
            map: BlockMap::of_empty_blocks(nand),
            logs,
            random_max: profile.log_blocks.max(2) as usize - 1,
            counters: FtlCounters::default(),
        };
        let (random, owned): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|scanned| scanned.role == RANDOM);
        let mut now = ready;
        for (logical, group) in by_logical_block(&ftl.map.geometry, owned) {
            now = ftl.adopt(nand, now, logical, group)?;
        }
        ftl.adopt_random(nand, &random);
        let logs = &ftl.logs;
        ftl.map.recount(|map, lpn| logs.find(map, nand, lpn).is_some());
        for logical in 0..profile.geometry.exported_erase_blocks {
            if ftl.map.is_unused(logical) {
                now = ftl.drop_all(nand, now, logical)?;
            }
        }
        Ok((ftl, now))
    }

    /// Gives the data and sequential blocks of a logical block their places.
    ///
    /// In order of opening these may be: data; data, sequential log; data and a merge; data,
    /// sequential log and a merge; sequential log and the finished merge. A data block that once
    /// was a sequential log still has that label.
    fn adopt(&mut self, nand: &mut Nand, at: Ns, logical: u32, mut group: Vec<Scanned>) -> Done {
        assert!(group.len() <= 3, "data, log and a merge of both");
        let mut now = at;
        if group.len() == 3 {
            let merge = group.pop().expect("there are three");
            now = self.map.retire(nand, now, merge.block)?;
        }
        let newer = group.pop().expect("groups are not empty");
        let data = match group.pop() {
            None => newer.block,
            Some(older) if newer.role == SEQUENTIAL => {
                assert!(self.logs.sequential.is_none(), "there is one sequential log");
                self.logs.sequential = Some(Sequential { logical, block: newer.block });
                older.block
            }
            Some(older) => {
                let finished = covers(nand, &newer, &older);
                let (keep, drop) = if finished { (newer, older) } else { (older, newer) };
                now = self.map.retire(nand, now, drop.block)?;
                keep.block
            }
        };
        self.map.set_data(logical, Some(data));
        Ok(now)
    }

    /// Fills the table with those pages of random logs that are newer than what lies elsewhere.
    fn adopt_random(&mut self, nand: &Nand, random: &[Scanned]) {
        for page in random.iter().flat_map(|scanned| &scanned.pages) {
            let lpn = Lpn(page.oob.lpn);
            let elsewhere = self.logs.find(&self.map, nand, lpn);
            let sequence = elsewhere.and_then(|page| nand.oob(page)).map_or(0, |oob| oob.sequence);
            if !nand.is_trimmed(lpn) && page.oob.sequence > sequence {
                self.logs.table.insert(lpn.0, page.page);
            }
        }
        self.logs.random = random.iter().map(|scanned| scanned.block).collect();
        assert!(self.logs.random.len() <= self.random_max, "the pool has a limit");
    }

    fn drop_all(&mut self, nand: &mut Nand, at: Ns, logical: u32) -> Done {
        let mut now = at;
        if let Some(data) = self.map.data(logical) {
            self.map.set_data(logical, None);
            now = self.map.retire(nand, now, data)?;
        }
        if let Some(log) = self.logs.sequential.filter(|log| log.logical == logical) {
            self.logs.sequential = None;
            now = self.map.retire(nand, now, log.block)?;
        }
        Ok(now)
    }

    /// Copies the newest versions of a logical block together, with `write` in its place if it is
    /// of this logical block, and erases what held them, random logs aside.
    fn merge_full(
        &mut self,
        nand: &mut Nand,
        at: Ns,
        logical: u32,
        write: Option<PageWrite<'_>>,
    ) -> Done {
        let geometry = self.map.geometry;
        let new = self.map.take(nand, logical, DATA);
        self.counters.merges_full += 1;
        let mut done = at;
        for offset in 0..geometry.pages_per_block {
            let lpn = geometry.lpn(logical, offset);
            let to = geometry.page(new, offset);
            match write.filter(|write| write.lpn == lpn) {
                Some(write) => {
                    let oob = Oob { lpn: lpn.0, sequence: write.sequence };
                    done = done.max(nand.program(at, to, oob, write.content, write.cause)?);
                }
                None => {
                    let Some(from) = self.peek(nand, lpn) else { continue };
                    done = done.max(nand.copy(at, from, to, Cause::Merge)?);
                    self.counters.copies_full += 1;
                }
            }
        }
        self.forget_logged(logical, 0);
        self.drop_all(nand, done, logical)?;
        if nand.is_empty(new) {
            self.map.retire(nand, done, new)?;
        } else {
            self.map.set_data(logical, Some(new));
        }
        Ok(done)
    }

    fn forget_logged(&mut self, logical: u32, from: u32) {
        let geometry = self.map.geometry;
        for offset in from..geometry.pages_per_block {
            self.logs.table.remove(&geometry.lpn(logical, offset).0);
        }
    }

    /// Makes the sequential log the data block: what it lacks is copied behind it, with `write` in
    /// its place. If it lacks something that should be before its end, which only a torn page can
    /// cause, it is merged in full.
    fn close_sequential(&mut self, nand: &mut Nand, at: Ns, write: Option<PageWrite<'_>>) -> Done {
        let Some(Sequential { logical, block }) = self.logs.sequential else { return Ok(at) };
        let geometry = self.map.geometry;
        let filled = nand.next_offset(block);
        let whole = (0..filled).all(|offset| {
            let newest = self.peek(nand, geometry.lpn(logical, offset));
            newest.is_none_or(|page| geometry.block_of(page) == block)
        });
        if !whole {
            return self.merge_full(nand, at, logical, write);
        }
        let (mut done, mut copied) = (at, 0);
        for offset in filled..geometry.pages_per_block {
            let lpn = geometry.lpn(logical, offset);
            let to = geometry.page(block, offset);
            match write.filter(|write| write.lpn == lpn) {
                Some(write) => {
                    let oob = Oob { lpn: lpn.0, sequence: write.sequence };
                    done = done.max(nand.program(at, to, oob, write.content, write.cause)?);
                }
                None => {
                    let Some(from) = self.peek(nand, lpn) else { continue };
                    done = done.max(nand.copy(at, from, to, Cause::Merge)?);
                    copied += 1;
                }
            }
        }
        self.counters.copies_partial += copied;
        match copied {
            0 => self.counters.merges_switch += 1,
            _ => self.counters.merges_partial += 1,
        }
        self.forget_logged(logical, 0);
        self.logs.sequential = None;
        let old = self.map.data(logical);
        self.map.set_data(logical, Some(block));
        if let Some(old) = old {
            self.map.retire(nand, done, old)?;
        }
        Ok(done)
    }

    /// Empties the oldest random log.
    fn empty_oldest(&mut self, nand: &mut Nand, at: Ns) -> Done {
        let geometry = self.map.geometry;
        let victim = *self.logs.random.front().expect("it is called when logs are full");
        let mut now = at;
        for slot in 0..geometry.pages_per_block {
            let page = geometry.page(victim, slot);
            let Some(oob) = nand.oob(page) else { continue };
            if self.logs.table.get(&oob.lpn) != Some(&page) {
                continue;
            }
            let logical = geometry.logical(Lpn(oob.lpn)).0;
            now = match self.logs.sequential {
                Some(log) if log.logical == logical => self.close_sequential(nand, now, None)?,
                _ => self.merge_full(nand, now, logical, None)?,
            };
        }
        self.logs.random.pop_front();
        self.map.retire(nand, now, victim)
    }

    fn write_random(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        let geometry = self.map.geometry;
        let mut now = at;
        let has_room = |block: &EraseBlock| nand.next_offset(*block) < geometry.pages_per_block;
        let current = self.logs.random.back().copied().filter(has_room);
        let block = match current {
            Some(block) => block,
            None => {
                if self.logs.random.len() >= self.random_max {
                    now = self.empty_oldest(nand, now)?;
                }
                let block = self.map.take(nand, self.logs.random.len() as u32, RANDOM);
                self.logs.random.push_back(block);
                block
            }
        };
        let page = geometry.page(block, nand.next_offset(block));
        let oob = Oob { lpn: write.lpn.0, sequence: write.sequence };
        let done = nand.program(now, page, oob, write.content, write.cause)?;
        self.logs.table.insert(write.lpn.0, page);
        Ok(done)
    }

    fn write_sequential(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        let geometry = self.map.geometry;
        let (logical, offset) = geometry.logical(write.lpn);
        let log = self.logs.sequential.expect("the caller has seen it");
        assert_eq!(log.logical, logical, "the log belongs to this logical block");
        let next = nand.next_offset(log.block);
        if offset < next {
            return self.merge_full(nand, at, logical, Some(write));
        }
        if offset > next {
            return self.close_sequential(nand, at, Some(write));
        }
        let oob = Oob { lpn: write.lpn.0, sequence: write.sequence };
        let page = geometry.page(log.block, offset);
        let done = nand.program(at, page, oob, write.content, write.cause)?;
        self.logs.table.remove(&write.lpn.0);
        if offset + 1 == geometry.pages_per_block {
            self.close_sequential(nand, done, None)?;
        }
        Ok(done)
    }

    fn place(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
        let geometry = self.map.geometry;
        let (logical, offset) = geometry.logical(write.lpn);
        let owns = self.logs.sequential.is_some_and(|log| log.logical == logical);
        if offset == 0 && self.map.data(logical).is_some() {
            // A new run begins; whatever the old one was, it ends.
            let closed = self.close_sequential(nand, at, None)?;
            let block = self.map.take(nand, logical, SEQUENTIAL);
            self.logs.sequential = Some(Sequential { logical, block });
            return self.write_sequential(nand, closed, write);
        }
        if owns {
            return self.write_sequential(nand, at, write);
        }
        if self.map.data(logical).is_none() {
            let block = self.map.take(nand, logical, DATA);
            self.map.set_data(logical, Some(block));
        }
        if !self.map.reachable(nand, logical, offset) {
            return self.write_random(nand, at, write);
        }
        let block = self.map.data(logical).expect("it is reachable");
        let oob = Oob { lpn: write.lpn.0, sequence: write.sequence };
        let page = geometry.page(block, offset);
        let done = nand.program(at, page, oob, write.content, write.cause)?;
        self.logs.table.remove(&write.lpn.0);
        Ok(done)
    }
}

impl Ftl for Fast {
    fn kind(&self) -> FtlKind {
        FtlKind::Fast
    }

    fn write(&mut self, nand: &mut Nand, at: Ns, write: PageWrite<'_>) -> Done {
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
        self.logs.table.remove(&lpn.0);
        if self.map.count_invalid(logical) {
            self.drop_all(nand, at, logical)?;
        }
        Ok(at)
    }

    fn peek(&self, nand: &Nand, lpn: Lpn) -> Option<Ppn> {
        self.logs.find(&self.map, nand, lpn)
    }

    fn counters(&self) -> &FtlCounters {
        &self.counters
    }

    fn memory(&self) -> MapMemory {
        let slots = (self.random_max as u64 + 1) * u64::from(self.map.geometry.pages_per_block);
        MapMemory { tables_bytes: self.map.tables_bytes(), cache_bytes: slots * 4 }
    }

    fn free_blocks(&self) -> usize {
        self.map.free.count()
    }

    fn assert_consistent(&self, nand: &Nand) {
        let logs = self.logs.random.len() + usize::from(self.logs.sequential.is_some());
        assert!(self.logs.random.len() <= self.random_max, "the pool has a limit");
        self.map.assert_consistent(nand, logs, |lpn| self.peek(nand, lpn));
    }
}
