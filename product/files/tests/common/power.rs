//! Workloads on the engine, with the power cut after each command to the device.

use super::Mount;
use super::ace::Op;
use super::engine::OnEngine;
use coulter_sim::device::{Device, Loss};
use coulter_sim::random::Random;

/// Blocks of metadata in memory: fewer than a tree may have.
const CACHE_BLOCKS: usize = 300;
/// Blocks of the volume that shows what states there are.
const SHADOW_BLOCKS: u64 = 4096;

/// A tree to begin with.
pub struct Base {
    ops: Vec<Op>,
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
        Base { ops: ops.to_vec(), dump: mount.dump(), device: mount.backend.device().clone() }
    }

    /// The tree before and after each operation, from a file system beside: to look at it makes
    /// what is gathered go out.
    fn states(&self, ops: &[Op]) -> Vec<String> {
        let mut mount = Mount::new(SHADOW_BLOCKS, CACHE_BLOCKS, 1);
        for (number, op) in (1..).zip(&self.ops) {
            mount.perform(*op, number).expect("the tree is made");
        }
        let mut states = vec![mount.dump()];
        assert_eq!(states[0], self.dump, "both begin with the same tree");
        for (number, op) in (1..).zip(ops) {
            let _ = mount.perform(*op, number);
            states.push(mount.dump());
        }
        states
    }

    /// Does the operations, and cuts the power everywhere. Returns how often.
    pub fn cut_everywhere(&self, ops: &[Op], seed: u64) -> u64 {
        let states = self.states(ops);
        let mut mount = Mount::on(OnEngine::open(self.device.clone()), CACHE_BLOCKS);
        mount.backend.watch();
        for (number, op) in (1..).zip(ops) {
            // Some operations are to fail, and change nothing.
            let _ = mount.perform(*op, number);
            if *op == Op::Sync {
                mount.backend.synced = number as usize;
            }
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
