//! Seeded choice for the wrappers and the tests: the same seed gives the same run.

/// The workload's random generator, good enough to choose faults by.
#[derive(Clone, Debug)]
pub(crate) struct Random(coulter_workload::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(coulter_workload::Random::new(seed))
    }

    /// The next 64 bits.
    #[cfg(feature = "conformance")]
    pub(crate) fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Whether something that happens `millionths` times in a million happens now.
    pub(crate) fn happens(&mut self, millionths: u32) -> bool {
        self.below(1_000_000) < u64::from(millionths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert!((0..1000).all(|_| random.happens(1_000_000)));
        assert!((0..1000).all(|_| !random.happens(0)));
    }
}
