//! Lives whose map memory is full: the power goes when recovery needs all that it may have.
//!
//! What fills it are updates that no leaf page contains yet: of ranges that were never mapped, of parts
//! of leaves, of whole leaves and of the same leaf again and again. Runs are at their limit or far from
//! it, journals long or short.

use crate::device::Loss;
use crate::generate::{references, volume_size};
use crate::plan::{Plan, SPARE_PERCENT, Shape, Step};
use crate::random::Random;
use coulter_engine::Prepare;
use coulter_engine::create::map_size_min;
use coulter_engine::placement::Placement;
use coulter_engine::reclaim::Reclaim;
use coulter_format::BLOCK_SIZE;

/// Keeps these lives' randomness apart from that of all others.
const TIGHT: u64 = 0x7469_6768_746d_6170;

/// Power cuts in a life.
const CUTS: u64 = 12;

const LEAF: u64 = coulter_format::map_page::ENTRIES_PER_PAGE as u64;

/// A quarter of it, in full chunks of six updates.
const QUARTER: u64 = 126;

/// Makes the plan of a seed.
pub fn plan(seed: u64) -> Plan {
    let mut random = Random::new(seed ^ TIGHT);
    let shape = shape(&mut random);
    let mut maker = Maker { random, leaves: volume_size(&shape) / LEAF, steps: Vec::new() };
    maker.life();
    Plan { shape, steps: maker.steps }
}

fn shape(random: &mut Random) -> Shape {
    // With few or short runs the sweep is never so far behind that memory fills.
    let (journal, runs) = match random.below(6) {
        0 => (1024, 128),
        1 => (4096, 128),
        2 => (16_384, 32),
        3 => (65_536, 4),
        _ => (65_536, 128),
    };
    let small = Shape {
        segments: 280 + random.below(60),
        segment_blocks: 256,
        volume: 0,
        spare: SPARE_PERCENT,
        journal,
        runs,
        // The least: what is left to pages is what the sweep needs.
        map: 1,
        trim: random.chance(50),
        sparse: None,
        page_blocks: 1,
        pads: false,
        placement: Placement::Apart,
        reclaim: Reclaim::CopyOut,
        references: references(random),
        prepare: Prepare::Never,
    };
    match random.below(4) {
        // Large enough for a share of another kind to be left to pages.
        0 => Shape {
            segments: 1000 + random.below(200),
            map: map_size_min(1 << 18) + (600 + random.below(100)) * BLOCK_SIZE as u64,
            journal: 65_536,
            runs: 128,
            ..small
        },
        // Between the two; arrays of all leaves would nearly fit, or half of them.
        1 => {
            let frames = random.below(40);
            Shape { map: map_size_min(1 << 18) + frames * BLOCK_SIZE as u64, ..small }
        }
        _ => small,
    }
}

struct Maker {
    random: Random,
    leaves: u64,
    steps: Vec<Step>,
}

impl Maker {
    fn life(&mut self) {
        let loss_least = self.random.below(5);
        // A root page on the device: only then must recovery keep what is discarded and never was
        // mapped.
        for lba in (0..self.leaves * LEAF).step_by((LEAF * LEAF) as usize) {
            self.steps.push(Step::Write { lba, count: 1, fua: false });
        }
        self.steps.extend([Step::Shutdown, Step::Shutdown]);
        for leaf in 0..self.leaves {
            (0..4).for_each(|quarter| self.quarter(leaf, quarter));
            if self.random.chance(10) {
                self.run(20);
            }
        }
        for _ in 0..CUTS {
            for _ in 0..10 + self.random.below(60) {
                self.request();
                if self.random.chance(30) {
                    self.run(12);
                }
            }
            // Little by little, so that nothing is refused before it is full.
            if self.random.chance(60) {
                for _ in 0..self.random.below(600) {
                    self.write_one();
                    if self.random.chance(5) {
                        self.run(12);
                    }
                }
            }
            let losses = [
                Loss::Nothing,
                Loss::Nothing,
                Loss::SomeWrites,
                Loss::SomeSectors,
                Loss::Everything,
            ];
            let loss = losses[self.random.below(loss_least + 1) as usize];
            let seed = self.random.below(1 << 32);
            let mut again = Vec::new();
            while again.len() < 3 && self.random.chance(25) {
                again.push(1 + self.random.below(200) as u32);
            }
            self.steps.push(Step::Cut { loss, seed, again });
        }
    }

    fn run(&mut self, events: u64) {
        let events = self.random.below(events) as u32;
        let seed = self.random.below(1 << 32);
        self.steps.push(Step::Run { events, seed });
    }

    /// A quarter of a leaf: written, or discarded, which is an update for each block as well.
    fn quarter(&mut self, leaf: u64, quarter: u64) {
        let (lba, count) = (leaf * LEAF + quarter * QUARTER, QUARTER);
        let writes = if self.leaves < 200 { 80 } else { 10 };
        self.steps.push(match self.random.chance(writes) {
            true => Step::Write { lba, count, fua: false },
            false => Step::Discard { lba, count },
        });
    }

    fn write_one(&mut self) {
        let lba = self.random.below(self.leaves * LEAF);
        self.steps.push(Step::Write { lba, count: 1, fua: false });
    }

    fn request(&mut self) {
        let leaf = self.random.below(self.leaves);
        let start = leaf * LEAF;
        match self.random.below(20) {
            0..6 => {
                let quarter = self.random.below(4);
                self.quarter(leaf, quarter);
            }
            6..8 => {
                let count = LEAF * (1 + self.random.below(4)).min(self.leaves - leaf);
                self.steps.push(Step::Discard { lba: start, count });
            }
            // A leaf is written as a whole, and once more a little later.
            8..10 => {
                for part in 0..4 {
                    let (lba, count) = (start + part * (LEAF / 4), LEAF / 4);
                    self.steps.push(Step::Write { lba, count, fua: false });
                }
            }
            10..12 => {
                let lba = start + self.random.below(LEAF - 40);
                let count = 1 + self.random.below(40);
                self.steps.push(Step::Write { lba, count, fua: false });
            }
            // A block here and there: a chunk each.
            12..18 => {
                for _ in 0..8 {
                    self.write_one();
                }
            }
            18 => self.steps.push(Step::Read { lba: start, count: 8 }),
            _ => self.steps.push(Step::Flush),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Simulator, lives};

    /// Goal: the power does go when recovery needs most of what it may have. (More is counted: an address
    /// that changes again counts again.)
    #[test]
    fn these_lives_fill_what_recovery_may_use() {
        let mut simulator = Simulator::default();
        let full = (0..8).filter(|seed| {
            let outcome = lives::run(&mut simulator, &plan(*seed)).expect("the life holds");
            outcome.recovery_fill_max >= 60
        });
        assert!(full.count() >= 3);
    }
}
