//! Lives of full records: so many single blocks at once that their headers are packed, and stores so full
//! that as many are relocated at once.
//!
//! Other lives have few requests at a time, and segments in which a record has no room for more than 255
//! blocks: their records are rarely full.

use crate::device::Loss;
use crate::generate::{references, volume_size};
use crate::plan::{Plan, SPARE_PERCENT, Shape, Step};
use crate::random::Random;
use coulter_engine::Prepare;
use coulter_engine::placement::Placement;
use coulter_engine::reclaim::Reclaim;

/// Keeps these lives' randomness apart from that of all others.
const FULL: u64 = 0x6675_6c6c_7265_6373;

/// Power cuts in a life.
const CUTS: u64 = 12;

/// Blocks of a segment, at least, in which a record of packed blocks is not all.
pub(crate) const SEGMENT_SIZE: u32 = 1024;

/// Makes the plan of a seed.
pub fn plan(seed: u64) -> Plan {
    let mut random = Random::new(seed ^ FULL);
    let shape = shape(&mut random);
    let mut maker = Maker { random, volume: volume_size(&shape), steps: Vec::new() };
    maker.life();
    Plan { shape, steps: maker.steps }
}

fn shape(random: &mut Random) -> Shape {
    Shape {
        segments: 18 + random.below(6),
        segment_blocks: SEGMENT_SIZE,
        // As much as fits, every other time: then victims have many blocks that are current.
        volume: if random.chance(50) { 0 } else { 3000 + random.below(3000) },
        spare: SPARE_PERCENT,
        journal: if random.chance(50) { 1024 } else { 4096 },
        runs: 2 + random.below(6) as u32,
        map: random.below(2),
        trim: random.chance(50),
        sparse: None,
        page_blocks: 1,
        pads: false,
        placement: match random.below(4) {
            0 => Placement::Scattered,
            1 => Placement::Lifetime,
            _ => Placement::Mixed,
        },
        reclaim: if random.chance(20) { Reclaim::HoleFill } else { Reclaim::CopyOut },
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
        for _ in 0..CUTS {
            for _ in 0..1 + self.random.below(4) {
                self.burst();
                self.run();
            }
            if self.random.chance(10) {
                self.steps.push(Step::Shutdown);
            }
            let cut = self.cut();
            self.steps.push(cut);
        }
    }

    /// Single blocks at once, some of them neighbours, and now and then something else between them,
    /// after which nothing more can be packed with what came before.
    fn burst(&mut self) {
        let neighbours = self.random.below(3) * 20;
        let others = self.random.below(3);
        let mut lba = 0;
        for _ in 0..200 + self.random.below(800) {
            let next = self.random.chance(neighbours) && lba + 1 < self.volume;
            lba = if next { lba + 1 } else { self.random.below(self.volume) };
            self.steps.push(Step::Write { lba, count: 1, fua: self.random.below(400) == 0 });
            if self.random.below(400) < others {
                let other = self.other();
                self.steps.push(other);
            }
        }
    }

    fn other(&mut self) -> Step {
        let count = 1 + self.random.below(256);
        let lba = self.random.below(self.volume - count);
        match self.random.below(4) {
            0 => Step::Discard { lba, count },
            1 => Step::Write { lba, count, fua: false },
            2 => Step::Read { lba, count },
            _ => Step::Flush,
        }
    }

    fn run(&mut self) {
        let most = if self.random.chance(50) { 20 } else { 400 };
        let events = self.random.below(most) as u32;
        let seed = self.random.below(1 << 32);
        self.steps.push(Step::Run { events, seed });
    }

    fn cut(&mut self) -> Step {
        let losses = [
            Loss::Nothing,
            Loss::SomeWrites,
            Loss::SomeBlocks,
            Loss::SomeSectors,
            Loss::SomeSectors,
            Loss::Everything,
        ];
        let loss = losses[self.random.below(losses.len() as u64) as usize];
        let seed = self.random.below(1 << 32);
        let mut again = Vec::new();
        while again.len() < 3 && self.random.chance(25) {
            again.push(1 + self.random.below(60) as u32);
        }
        Step::Cut { loss, seed, again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Simulator, lives};

    /// Goal: long records are written, torn by power cuts, and recovered from.
    #[test]
    fn these_lives_write_long_records_and_recover_from_them() {
        let mut simulator = Simulator::default();
        let (mut written, mut replayed) = (0, 0);
        for seed in 0..6 {
            let outcome = lives::run(&mut simulator, &plan(seed)).expect("the life holds");
            written += outcome.long_records;
            replayed += outcome.long_records_replayed;
        }
        assert!(written >= 100 && replayed >= 20, "{written} written, {replayed} replayed");
    }
}
