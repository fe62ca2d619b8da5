//! Lives in which the host waits for the cleaner, and asks for more meanwhile.
//!
//! The volume is written all over, with no space or little to spare and mostly with the least map. Then
//! single blocks are overwritten until writes wait for what is gained, and discards come in such numbers
//! that they claim all that recovery may hold: the cleaner needs some of that to begin anything.

use crate::device::Loss;
use crate::generate::{references, volume_size};
use crate::plan::{Plan, SPARE_PERCENT, Shape, Step};
use crate::random::Random;
use coulter_engine::Prepare;
use coulter_engine::placement::Placement;
use coulter_engine::reclaim::Reclaim;

/// Keeps these lives' randomness apart from that of all others.
const SCARCE: u64 = 0x7363_6172_6365_2121;

/// Power cuts in a life.
const CUTS: u64 = 3;

const LEAF: u64 = coulter_format::map_page::ENTRIES_PER_PAGE as u64;

/// Blocks of the writes that fill it.
const LONG: u64 = 255;

/// Makes the plan of a seed.
pub fn plan(seed: u64) -> Plan {
    let mut random = Random::new(seed ^ SCARCE);
    let shape = shape(&mut random);
    let mut maker = Maker { random, volume: volume_size(&shape), steps: Vec::new() };
    maker.life();
    Plan { shape, steps: maker.steps }
}

fn shape(random: &mut Random) -> Shape {
    let segment_blocks = if random.chance(50) { 256 } else { 512 };
    Shape {
        segments: 60 + random.below(80),
        segment_blocks,
        volume: 0,
        spare: if random.chance(75) { 0 } else { SPARE_PERCENT },
        journal: [1024, 4096, 8192, 16_384][random.below(4) as usize],
        runs: [2, 2, 4, 32, 128][random.below(5) as usize],
        map: u64::from(random.chance(75)),
        trim: random.chance(30),
        sparse: None,
        page_blocks: 1,
        pads: false,
        placement: [Placement::Mixed, Placement::Apart, Placement::Lifetime, Placement::Scattered]
            [random.below(4) as usize],
        reclaim: [Reclaim::CopyOut, Reclaim::HoleFill, Reclaim::Threaded][random.below(3) as usize],
        references: references(random),
        prepare: Prepare::Never,
    }
}

struct Maker {
    random: Random,
    volume: u64,
    steps: Vec<Step>,
}

impl Maker {
    fn life(&mut self) {
        self.write_all(0, self.volume);
        self.steps.push(Step::Drain);
        for _ in 0..CUTS {
            for _ in 0..4 + self.random.below(8) {
                self.overwrite();
                let discarded = self.discard_much();
                if self.random.chance(80) {
                    self.steps.push(Step::Drain);
                }
                // Else the volume would soon be far from full.
                for (lba, count) in discarded {
                    self.write_all(lba, count);
                }
            }
            if self.random.chance(15) {
                self.steps.push(Step::Shutdown);
            }
            let losses = [Loss::Nothing, Loss::SomeWrites, Loss::SomeSectors, Loss::Everything];
            let loss = losses[self.random.below(losses.len() as u64) as usize];
            let seed = self.random.below(1 << 32);
            let mut again = Vec::new();
            while again.len() < 3 && self.random.chance(25) {
                again.push(1 + self.random.below(200) as u32);
            }
            self.steps.push(Step::Cut { loss, seed, again });
        }
    }

    fn write_all(&mut self, lba: u64, count: u64) {
        for at in (0..count).step_by(LONG as usize) {
            let count = LONG.min(count - at);
            self.steps.push(Step::Write { lba: lba + at, count, fua: false });
        }
    }

    /// Single blocks, in which the device hardly keeps up.
    fn overwrite(&mut self) {
        let (most, pause) = (self.random.below(600), 1 + self.random.below(8));
        for _ in 0..most {
            let lba = self.random.below(self.volume);
            self.steps.push(Step::Write { lba, count: 1, fua: false });
            if self.random.chance(pause) {
                let (events, seed) = (self.random.below(12) as u32, self.random.below(1 << 32));
                self.steps.push(Step::Run { events, seed });
            }
        }
    }

    /// Discards of parts of leaves, nothing else happening meanwhile. Which they were.
    fn discard_much(&mut self) -> Vec<(u64, u64)> {
        let count = [LEAF - 1, LEAF - 1, 300, 100, 17][self.random.below(5) as usize];
        let mut leaf = self.random.below(self.volume / LEAF);
        let in_order = self.random.chance(50);
        let mut discarded = Vec::new();
        for _ in 0..self.random.below(400) {
            let lba = leaf * LEAF + self.random.below(LEAF - count + 1);
            self.steps.push(Step::Discard { lba, count });
            discarded.push((lba, count));
            let next = if in_order { leaf + 1 } else { self.random.bits() };
            leaf = next % (self.volume / LEAF);
        }
        discarded
    }
}
