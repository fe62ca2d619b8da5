//! What block-mapped FTLs have in common: for each erase-block-sized piece of the host's address
//! space (a *logical block*) a data block, in which every page lies at its own offset.
//!
//! What it does not do: know of logs or replacements.
//!
//! Invariant: `valid` counts the pages of a logical block that the host would get if it read them,
//! wherever they lie. When none is left, everything of the logical block is erased.

use super::free::FreeBlocks;
use super::scan::{Found, walk};
use crate::geometry::Geometry;
use crate::nand::{Nand, PowerCut};
use crate::units::{EraseBlock, Lpn, Ns, Ppn};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct BlockMap {
    pub(super) geometry: Geometry,
    data: Vec<Option<EraseBlock>>,
    valid: Vec<u16>,
    pub(super) free: FreeBlocks,
}

impl BlockMap {
    /// A map without data blocks; what is empty is free.
    pub(super) fn of_empty_blocks(nand: &Nand) -> BlockMap {
        let geometry = *nand.geometry();
        let count = geometry.exported_erase_blocks as usize;
        let mut free = FreeBlocks::none(&geometry);
        let blocks = (0..geometry.erase_blocks).map(EraseBlock);
        blocks.filter(|block| nand.is_empty(*block)).for_each(|block| free.give(nand, block));
        BlockMap { geometry, data: vec![None; count], valid: vec![0; count], free }
    }

    pub(super) fn data(&self, logical: u32) -> Option<EraseBlock> {
        self.data[logical as usize]
    }

    pub(super) fn set_data(&mut self, logical: u32, block: Option<EraseBlock>) {
        self.data[logical as usize] = block;
    }

    /// The page in the data block, if the host has written it there and not given it up.
    #[inline]
    pub(super) fn in_data(&self, nand: &Nand, lpn: Lpn) -> Option<Ppn> {
        let (logical, offset) = self.geometry.logical(lpn);
        let page = self.geometry.page(self.data(logical)?, offset);
        (nand.oob(page).is_some() && !nand.is_trimmed(lpn)).then_some(page)
    }

    /// Whether a page can be programmed at its place in the data block.
    pub(super) fn reachable(&self, nand: &Nand, logical: u32, offset: u32) -> bool {
        self.data(logical).is_some_and(|block| nand.next_offset(block) <= offset)
    }

    /// An empty erase block for a logical one. Neighbours get different dies.
    pub(super) fn take(&mut self, nand: &mut Nand, logical: u32, role: u8) -> EraseBlock {
        let planes = self.geometry.planes_per_die;
        let lane =
            logical % self.geometry.dies() * planes + logical / self.geometry.dies() % planes;
        let block = self.free.take(lane).expect("the spare space covers all that may be open");
        nand.label(block, role);
        block
    }

    /// Erases an erase block that is of no more use. One that was taken and never programmed is
    /// just given back.
    pub(super) fn retire(
        &mut self,
        nand: &mut Nand,
        at: Ns,
        block: EraseBlock,
    ) -> Result<Ns, PowerCut> {
        let done = if nand.is_empty(block) { at } else { nand.erase(at, block)? };
        self.free.give(nand, block);
        Ok(done)
    }

    pub(super) fn count_valid(&mut self, logical: u32) {
        self.valid[logical as usize] += 1;
        let most = self.geometry.pages_per_block;
        assert!(u32::from(self.valid[logical as usize]) <= most, "no more than there are");
    }

    /// One valid page less; whether it was the last.
    pub(super) fn count_invalid(&mut self, logical: u32) -> bool {
        let valid = &mut self.valid[logical as usize];
        assert!(*valid > 0, "the page was valid");
        *valid -= 1;
        *valid == 0
    }

    /// Counts again after a recovery, by what can be read.
    pub(super) fn recount(&mut self, peek: impl Fn(&BlockMap, Lpn) -> bool) {
        for logical in 0..self.geometry.exported_erase_blocks {
            let pages = (0..self.geometry.pages_per_block).map(|o| self.geometry.lpn(logical, o));
            self.valid[logical as usize] = pages.filter(|lpn| peek(self, *lpn)).count() as u16;
        }
    }

    /// Logical blocks without a valid page.
    pub(super) fn is_unused(&self, logical: u32) -> bool {
        self.valid[logical as usize] == 0
    }

    pub(super) fn tables_bytes(&self) -> u64 {
        self.data.len() as u64 * 4
    }

    /// Stops unless `used` are exactly the erase blocks that are neither free nor data blocks, and
    /// valid pages are what `peek` finds.
    pub(super) fn assert_consistent(
        &self,
        nand: &Nand,
        used: usize,
        peek: impl Fn(Lpn) -> Option<Ppn>,
    ) {
        let data = self.data.iter().flatten().count();
        let known = data + used + self.free.count();
        assert_eq!(known, self.geometry.erase_blocks as usize, "every erase block has one place");
        self.free.iter().for_each(|block| assert!(nand.is_empty(block), "free means empty"));
        for logical in 0..self.geometry.exported_erase_blocks {
            let pages = (0..self.geometry.pages_per_block).map(|o| self.geometry.lpn(logical, o));
            let mut valid = 0;
            for lpn in pages {
                let Some(page) = peek(lpn) else { continue };
                valid += 1;
                let oob = nand.oob(page).expect("the map points at programmed pages");
                assert_eq!(oob.lpn, lpn.0, "the map points at the page's own copies");
            }
            assert_eq!(valid, self.valid[logical as usize], "pages of logical block {logical}");
        }
    }
}

/// An erase block that a scan has found.
#[derive(Clone, Debug)]
pub(super) struct Scanned {
    pub(super) block: EraseBlock,
    pub(super) role: u8,
    pub(super) opened: u64,
    /// Readable pages, in order.
    pub(super) pages: Vec<Found>,
}

/// All erase blocks with readable pages, those opened first coming first.
pub(super) fn scan_blocks(nand: &mut Nand, at: Ns) -> Result<(Vec<Scanned>, Ns), PowerCut> {
    let geometry = *nand.geometry();
    let mut found: Vec<Scanned> = Vec::new();
    let ready = walk(nand, at, |page| {
        let block = geometry.block_of(page.page);
        match found.last_mut() {
            Some(last) if last.block == block => last.pages.push(page),
            _ => found.push(Scanned { block, role: 0, opened: 0, pages: vec![page] }),
        }
    })?;
    for scanned in &mut found {
        let label = nand.label_of(scanned.block);
        (scanned.role, scanned.opened) = (label.role, label.opened);
    }
    found.sort_by_key(|scanned| scanned.opened);
    Ok((found, ready))
}

/// The same by logical block, for FTLs whose erase blocks have pages of one each.
pub(super) fn by_logical_block(
    geometry: &Geometry,
    found: Vec<Scanned>,
) -> BTreeMap<u32, Vec<Scanned>> {
    let mut groups: BTreeMap<u32, Vec<Scanned>> = BTreeMap::new();
    for scanned in found {
        let logical = geometry.logical(Lpn(scanned.pages[0].oob.lpn)).0;
        groups.entry(logical).or_default().push(scanned);
    }
    groups
}

/// Whether `newer` has everything that counts in `older`, in versions at least as new. Then a copy
/// from one to the other was finished.
pub(super) fn covers(nand: &Nand, newer: &Scanned, older: &Scanned) -> bool {
    let counts = |found: &&Found| !nand.is_trimmed(Lpn(found.oob.lpn));
    older.pages.iter().filter(counts).all(|old| {
        let same = |new: &&Found| new.oob.lpn == old.oob.lpn;
        newer.pages.iter().find(same).is_some_and(|new| new.oob.sequence >= old.oob.sequence)
    })
}
