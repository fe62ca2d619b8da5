//! The workload's random generator, with the choices that a simulation makes.

/// The generator.
#[derive(Clone, Debug)]
pub struct Random(coulter_workload::Random);

impl Random {
    /// A generator that gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Random {
        Random(coulter_workload::Random::new(seed ^ 0x5851_f42d_4c95_7f2d))
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
