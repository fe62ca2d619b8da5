//! Workloads on the engine, with the power cut after each command to the device.

use super::Mount;
use super::ace::Op;
use super::engine::OnEngine;
use coulter_sim::device::{Device, Loss};
use coulter_sim::random::Random;

/// Blocks of metadata in memory: fewer than a tree may have.
const CACHE_BLOCKS: usize = 300;

/// A tree to begin with.
pub struct Base {
    device: Device,
    dump: String,
}

impl Base {
    pub fn new(ops: &[Op]) -> Base {
        let mut mount = Mount::on(OnEngine::open(OnEngine::empty()), CACHE_BLOCKS);
        for (number, op) in (1..).zip(ops) {
            mount.perform(*op, number).expect("the tree is made");
        }
        mount.sync();
        mount.settle();
        Base { dump: mount.dump(), device: mount.backend.device().clone() }
    }

    /// Does the operations, and cuts the power everywhere. Returns how often.
    pub fn cut_everywhere(&self, ops: &[Op], seed: u64) -> u64 {
        let mut mount = Mount::on(OnEngine::open(self.device.clone()), CACHE_BLOCKS);
        let mut states = vec![self.dump.clone()];
        mount.backend.watch();
        for (number, op) in (1..).zip(ops) {
            // Some operations are to fail, and change nothing.
            let _ = mount.perform(*op, number);
            if *op == Op::Sync {
                mount.backend.synced = states.len();
            }
            states.push(mount.dump());
        }
        mount.settle();
        mount.backend.keep_last();
        let mut random = Random::new(seed);
        let mut count = 0;
        for (place, cut) in std::mem::take(&mut mount.backend.cuts).into_iter().enumerate() {
            let losses: &[Loss] = match cut.before_flush {
                true => &[Loss::Everything],
                false => &[Loss::Nothing, Loss::SomeSectors],
            };
            for loss in losses {
                let mut device = cut.device.clone();
                device.cut(*loss, &mut random);
                let what = || format!("{ops:?}, cut {place}, {loss:?} lost");
                check(device, &states[cut.synced..], &what);
                count += 1;
            }
        }
        count
    }
}

/// Opens what a cut has left, and compares it with the states that may be there.
fn check(device: Device, allowed: &[String], what: &dyn Fn() -> String) {
    let mut volume = OnEngine::open(device);
    let findings = volume.check().0;
    assert!(findings.is_empty(), "{}: {findings:?}", what());
    let mut mount = Mount::on(volume, CACHE_BLOCKS);
    let dump = mount.dump();
    if !allowed.contains(&dump) {
        let last = allowed.last().expect("there is the start");
        panic!("{}: found\n{dump}\nwhich is no state; the last one is\n{last}", what());
    }
    // What was left to be taken away goes, and nothing leaks.
    mount.sync();
    mount.settle();
    let (findings, orphans) = mount.backend.check();
    assert!(findings.is_empty(), "{}, mounted: {findings:?}", what());
    assert_eq!(orphans, 0, "{}: orphans go", what());
}
