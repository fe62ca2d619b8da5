//! When the engine's own counts are made anew: `Engine::assert_invariants`, with the feature `verify`.

use super::World;

/// Blocks of the largest store that is looked at after every step.
#[cfg(feature = "verify")]
const SMALL: u64 = 16 * 1024;

/// Whether it is done, and when it was last.
#[derive(Default)]
pub(super) struct Invariants {
    pub(super) are_asserted: bool,
    /// Checkpoints that the engine had made.
    #[cfg(feature = "verify")]
    checkpoints: u64,
}

impl World {
    /// After a step.
    #[cfg(feature = "verify")]
    pub(super) fn assert_invariants(&mut self) {
        let Some(engine) = self.engine.as_ref().filter(|_| self.invariants.are_asserted) else {
            return;
        };
        // An engine of a degraded store counts nothing if it refuses writes.
        let is_uncounted = engine.degradation().is_some() && engine.read_only().is_some();
        if is_uncounted || self.ruins.hides_counts {
            return;
        }
        if self.device.size() > SMALL {
            let checkpoints = engine.statistics().checkpoints;
            if std::mem::replace(&mut self.invariants.checkpoints, checkpoints) == checkpoints {
                return;
            }
        }
        let device = &self.device;
        engine.assert_invariants(&|pba| device.block(pba));
    }

    #[cfg(not(feature = "verify"))]
    #[expect(clippy::unused_self, reason = "there is nothing to be called without the feature")]
    pub(super) fn assert_invariants(&mut self) {}
}
