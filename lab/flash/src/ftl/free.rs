//! Erase blocks that are empty and not in use.
//!
//! They are kept by lane (die and plane), first in, first out, which spreads wear evenly as long as
//! every erase block comes round. Whoever needs one names the lane that he would like.

use crate::geometry::Geometry;
use crate::nand::Nand;
use crate::units::EraseBlock;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub(crate) struct FreeBlocks {
    lanes: Vec<VecDeque<EraseBlock>>,
    count: usize,
}

/// Dies times planes: what can be programmed at once.
pub(crate) fn lane_count(geometry: &Geometry) -> u32 {
    geometry.dies() * geometry.planes_per_die
}

/// Lanes of one die follow each other, so that planes can work together.
fn lane_of(geometry: &Geometry, block: EraseBlock) -> u32 {
    geometry.die_of(block) * geometry.planes_per_die + geometry.plane_of(block)
}

impl FreeBlocks {
    pub(crate) fn none(geometry: &Geometry) -> FreeBlocks {
        FreeBlocks { lanes: vec![VecDeque::new(); lane_count(geometry) as usize], count: 0 }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn give(&mut self, nand: &Nand, block: EraseBlock) {
        assert!(nand.is_empty(block), "only empty erase blocks are free");
        let lane = lane_of(nand.geometry(), block);
        self.lanes[lane as usize].push_back(block);
        self.count += 1;
    }

    /// One from the lane, or from the next lane after it that has any.
    pub(crate) fn take(&mut self, lane: u32) -> Option<EraseBlock> {
        let count = self.lanes.len();
        let first = lane as usize % count;
        let found = (first..count).chain(0..first).find(|lane| !self.lanes[*lane].is_empty())?;
        self.count -= 1;
        self.lanes[found].pop_front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = EraseBlock> + '_ {
        self.lanes.iter().flatten().copied()
    }
}
