//! Numbers that are random enough for tests, and the same for the same seed.

/// The workload's random generator.
#[derive(Clone, Debug)]
pub struct Random(coulter_workload::Random);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(coulter_workload::Random::new(seed))
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// When `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
}
