//! Numbers that look random, the same in each run.

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }

    /// One time in `count`.
    pub(super) fn one_of(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}
