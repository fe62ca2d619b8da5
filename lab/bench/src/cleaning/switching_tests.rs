//! Settings that are changed while a volume is full: it goes on whatever they were.

use super::tests::tiny;
use crate::model_store::{ModelStore, Reserve, Shape};
use crate::standin::RigError;
use coulter_engine::Config;
use coulter_engine::placement::Placement;
use coulter_engine::reclaim::Reclaim;
use coulter_engine::tuning::CleaningMode;
use coulter_workload::Random;

const PLACEMENTS: [Placement; 3] = [Placement::Mixed, Placement::Apart, Placement::Lifetime];
const WAYS: [Reclaim; 3] = [Reclaim::CopyOut, Reclaim::HoleFill, Reclaim::Threaded];

/// A full store of some shape, which is written to and told to do otherwise again and again.
fn life(seed: u64) -> Result<(), RigError> {
    let mut random = Random::new(seed);
    let shape = Shape {
        blocks: 4000 + random.below(30_000),
        segment_blocks: Some(256 << random.below(2)),
        spare: [0.1, 0.14, 0.2, 0.3, 0.5][random.below(5) as usize],
        reserve: Reserve::Segments(1),
        queue_depth: [1, 8, 32, 256][random.below(4) as usize],
        ..tiny().shape
    };
    let config = Config { placement: PLACEMENTS[random.below(3) as usize], ..Config::default() };
    // Some shapes leave too little room for any store.
    let Ok(mut store) = ModelStore::open(&shape, config) else { return Ok(()) };
    store.fill(|_| ()).expect("it is filled");
    for _ in 0..60 {
        let engine = &mut store.rig.engine;
        match random.below(5) {
            0..3 => engine.set_placement(PLACEMENTS[random.below(3) as usize]),
            3 if random.below(2) == 0 => engine.set_cleaning(CleaningMode::Paused),
            3 => engine.set_cleaning(CleaningMode::Paced),
            _ => {
                let way = WAYS[random.below(3) as usize];
                if random.below(3) == 0 {
                    engine.set_reclaim(way);
                }
            }
        }
        overwrite(&mut store, &mut random)?;
    }
    Ok(())
}

/// Some writes, or thousands, now and then a discard; often to a tenth of the volume for the most part.
fn overwrite(store: &mut ModelStore, random: &mut Random) -> Result<(), RigError> {
    let count = [3, 100, 1500, 6000][random.below(4) as usize];
    let is_hot = random.below(2) == 0;
    for _ in 0..random.below(count) {
        let is_everywhere = !is_hot || random.below(10) == 0;
        let lba = random.below(if is_everywhere { store.blocks } else { store.blocks / 10 });
        let is_long = random.below(20) == 0;
        let blocks = if is_long { (1 + random.below(200)).min(store.blocks - lba) } else { 1 };
        match random.below(60) {
            0 => store.rig.discard(lba, blocks)?,
            _ => store.rig.write(lba, blocks as u32)?,
        }
    }
    Ok(())
}

/// The head that host and cleaner had shared was the host's alone after the change. With no segment to
/// spare the cleaner had no room for any victim, and nothing was won any more: life 225.
#[test]
fn a_full_volume_goes_on_whatever_settings_are_changed() {
    for seed in 222..228 {
        life(seed).unwrap_or_else(|error| panic!("life {seed}: {}", error.0));
    }
}
