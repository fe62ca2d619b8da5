//! Erase blocks written as a log: open ones by stream, closed ones with their valid pages, free
//! ones. What page-mapped FTLs have in common.
//!
//! A *stream* has open erase blocks on several lanes (die and plane) and takes turns between them,
//! a word line each.
//!
//! What it does not do: decide when to collect, or know where a logical page lies.
//!
//! Invariant: every erase block is free, open in one slot of one stream, or closed, save the one
//! that is being collected.

use super::free::{FreeBlocks, lane_count};
use super::scan::NO_PAGE;
use super::victim::{Ledger, VictimPolicy};
use crate::geometry::Geometry;
use crate::nand::{Nand, PowerCut};
use crate::units::{EraseBlock, Ns, Ppn};

/// Open erase blocks of one stream.
#[derive(Clone, Debug)]
struct Stream {
    open: Vec<Option<EraseBlock>>,
    /// Which of them takes the next page, and how many it has taken in this turn.
    turn: usize,
    taken: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Space {
    geometry: Geometry,
    ledger: Ledger,
    free: FreeBlocks,
    /// The index is the label's role.
    streams: Vec<Stream>,
    pages_per_turn: u32,
    /// Lanes are taken in turns where a stream has fewer open erase blocks than there are lanes.
    next_lane: u32,
}

impl Space {
    /// The state that the flash is in, given each stream's number of open erase blocks and all
    /// pages that are valid. What was open is opened again, so that power cuts leave no half-filled
    /// erase blocks behind.
    pub(super) fn adopt(nand: &Nand, widths: &[u32], valid: impl Iterator<Item = u32>) -> Space {
        let geometry = *nand.geometry();
        let stream = |width: &u32| Stream { open: vec![None; *width as usize], turn: 0, taken: 0 };
        let mut space = Space {
            geometry,
            ledger: Ledger::new(geometry.erase_blocks, geometry.pages_per_block),
            free: FreeBlocks::none(&geometry),
            streams: widths.iter().map(stream).collect(),
            pages_per_turn: nand.time.pages_per_program(),
            next_lane: 0,
        };
        valid.filter(|page| *page != NO_PAGE).for_each(|page| space.add(Ppn(page)));
        let blocks = (0..geometry.erase_blocks).map(EraseBlock);
        let (empty, mut used): (Vec<_>, Vec<_>) = blocks.partition(|block| nand.is_empty(*block));
        empty.into_iter().for_each(|block| space.free.give(nand, block));
        used.sort_by_key(|block| nand.label_of(*block).opened);
        for block in used {
            let stream = space.streams.get_mut(usize::from(nand.label_of(block).role));
            let slot = stream.and_then(|stream| stream.open.iter_mut().find(|s| s.is_none()));
            match slot {
                Some(slot) if nand.next_offset(block) < geometry.pages_per_block => {
                    *slot = Some(block);
                }
                _ => space.ledger.close(block.index()),
            }
        }
        space
    }

    /// Open erase blocks that a stream may have, if so many streams share the spare space: as many
    /// as there are lanes, but not so many that open ones take more than a third of it.
    pub(super) fn width(geometry: &Geometry, streams: u32) -> u32 {
        (geometry.spare_erase_blocks() / 3 / streams).clamp(1, lane_count(geometry))
    }

    pub(super) fn free_count(&self) -> usize {
        self.free.count()
    }

    pub(super) fn valid(&self, block: EraseBlock) -> u32 {
        self.ledger.valid(block.index())
    }

    /// A page became valid.
    #[inline]
    pub(super) fn add(&mut self, page: Ppn) {
        self.ledger.add(self.geometry.block_of(page).index());
    }

    /// A page is valid no more.
    #[inline]
    pub(super) fn remove(&mut self, page: Ppn) {
        self.ledger.remove(self.geometry.block_of(page).index());
    }

    /// Makes the stream's next open erase block take its turn. Whether there is none: the next
    /// [`Space::next_page`] will take a free one.
    #[inline]
    pub(super) fn needs_block(&mut self, nand: &Nand, stream: usize) -> bool {
        let lanes = &mut self.streams[stream];
        if lanes.taken == self.pages_per_turn {
            lanes.turn = (lanes.turn + 1) % lanes.open.len();
            lanes.taken = 0;
        }
        match lanes.open[lanes.turn] {
            Some(block) if nand.next_offset(block) < self.geometry.pages_per_block => false,
            full => {
                if let Some(block) = full {
                    lanes.open[lanes.turn] = None;
                    self.ledger.close(block.index());
                }
                true
            }
        }
    }

    /// Where the next page of a stream goes.
    ///
    /// # Panics
    /// When it needs an erase block and none is free.
    #[inline]
    pub(super) fn next_page(&mut self, nand: &mut Nand, stream: usize) -> Ppn {
        if self.needs_block(nand, stream) {
            self.open_block(nand, stream);
        }
        let lanes = &mut self.streams[stream];
        lanes.taken += 1;
        let block = lanes.open[lanes.turn].expect("it was just opened");
        self.geometry.page(block, nand.next_offset(block))
    }

    fn open_block(&mut self, nand: &mut Nand, stream: usize) {
        let lanes = lane_count(&self.geometry);
        let slots = &mut self.streams[stream];
        let lane = if slots.open.len() == lanes as usize {
            slots.turn as u32
        } else {
            self.next_lane = (self.next_lane + 1) % lanes;
            self.next_lane
        };
        let block = self.free.take(lane).expect("collection leaves erase blocks free");
        nand.label(block, stream as u8);
        slots.open[slots.turn] = Some(block);
    }

    /// Takes the erase block that is to be collected out of the closed ones.
    pub(super) fn take_victim(&mut self, policy: VictimPolicy) -> EraseBlock {
        let victim = self.ledger.victim(policy);
        let victim = victim.expect("with spare space, some closed erase block has invalid pages");
        self.ledger.withdraw(victim);
        EraseBlock(victim as u32)
    }

    /// Erases a victim that has nothing valid left.
    pub(super) fn release(
        &mut self,
        nand: &mut Nand,
        at: Ns,
        victim: EraseBlock,
    ) -> Result<(), PowerCut> {
        assert_eq!(self.valid(victim), 0, "all valid pages were found and moved");
        nand.erase(at, victim)?;
        self.free.give(nand, victim);
        Ok(())
    }

    /// Stops unless the valid pages are `valid` and every erase block has one place.
    pub(super) fn assert_consistent(&self, nand: &Nand, valid: impl Iterator<Item = Ppn>) {
        let blocks = self.geometry.erase_blocks as usize;
        let mut counts = vec![0; blocks];
        valid.for_each(|page| counts[self.geometry.block_of(page).index()] += 1);
        for (block, count) in counts.into_iter().enumerate() {
            assert_eq!(self.ledger.valid(block), count, "valid pages of erase block {block}");
        }
        let open = self.streams.iter().flat_map(|stream| stream.open.iter().flatten());
        let closed = (0..blocks).filter(|block| self.ledger.is_closed(*block));
        let known = open.count() + closed.count() + self.free.count();
        assert_eq!(known, blocks, "every erase block has one place");
        self.free.iter().for_each(|block| assert!(nand.is_empty(block), "free means empty"));
    }
}
