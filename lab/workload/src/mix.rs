//! What a host does with the addresses that it touches.

use crate::pattern::{Addresses, Pattern};
use crate::random::Random;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Blocks are read.
    Read,
    /// Blocks are written.
    Write,
    /// Blocks are given up.
    Discard,
    /// What was written is made durable; has no blocks.
    Flush,
}

/// One operation on blocks `block..block + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What to do.
    pub kind: Kind,
    /// The first block; zero for a flush.
    pub block: u64,
    /// Blocks; zero for a flush.
    pub count: u32,
}

/// What operations a host does, and how often: weights, of which only the ratios matter.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Where.
    pub pattern: Pattern,
    /// Weight of reads.
    pub reads: u32,
    /// Weight of writes.
    pub writes: u32,
    /// Weight of discards.
    pub discards: u32,
    /// Weight of flushes.
    pub flushes: u32,
    /// Sizes in blocks, each with its weight.
    pub sizes: Vec<(u32, u32)>,
}

impl Mix {
    /// Writes of one block.
    pub fn writes_of_a_block(pattern: Pattern) -> Mix {
        Mix { pattern, reads: 0, writes: 1, discards: 0, flushes: 0, sizes: vec![(1, 1)] }
    }

    /// Operations on blocks `0..count`, without end. None leaves the range: one that would is
    /// moved down to its end.
    ///
    /// # Panics
    /// When all weights of a choice are zero, or a size is zero or above `count`.
    pub fn over(&self, count: u64, seed: u64) -> Operations {
        let kinds = [
            (Kind::Read, self.reads),
            (Kind::Write, self.writes),
            (Kind::Discard, self.discards),
            (Kind::Flush, self.flushes),
        ];
        assert!(kinds.iter().any(|(_, weight)| *weight > 0), "some operation must be chosen");
        assert!(self.sizes.iter().any(|(_, weight)| *weight > 0), "some size must be chosen");
        for (size, _) in &self.sizes {
            assert!(*size > 0, "an operation has blocks");
            assert!(u64::from(*size) <= count, "an operation fits into the range");
        }
        Operations {
            addresses: self.pattern.over(count, seed),
            kinds,
            sizes: self.sizes.clone(),
            random: Random::new(!seed),
        }
    }
}

/// Operations of a mix, without end.
#[derive(Clone, Debug)]
pub struct Operations {
    addresses: Addresses,
    kinds: [(Kind, u32); 4],
    sizes: Vec<(u32, u32)>,
    random: Random,
}

impl Operations {
    /// The next operation.
    pub fn operation(&mut self) -> Operation {
        let kind = choose(&self.kinds, &mut self.random);
        if kind == Kind::Flush {
            return Operation { kind, block: 0, count: 0 };
        }
        let count = choose(&self.sizes, &mut self.random);
        let last = self.addresses.range() - u64::from(count);
        Operation { kind, block: self.addresses.address().min(last), count }
    }
}

impl Iterator for Operations {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        Some(self.operation())
    }
}

/// One of several, by weight.
fn choose<T: Copy>(options: &[(T, u32)], random: &mut Random) -> T {
    if let [(only, _)] = options {
        return *only;
    }
    let sum = options.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let mut at = random.below(sum);
    for (option, weight) in options {
        match at.checked_sub(u64::from(*weight)) {
            Some(rest) => at = rest,
            None => return *option,
        }
    }
    unreachable!("a number below the sum of the weights falls into one of them")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: fn() -> Mix = || Mix {
        pattern: Pattern::Uniform,
        reads: 60,
        writes: 30,
        discards: 8,
        flushes: 2,
        sizes: vec![(1, 3), (64, 1)],
    };

    #[test]
    fn kinds_and_sizes_come_by_weight() {
        let operations: Vec<_> = MIXED().over(1000, 9).take(50_000).collect();
        let share = |kind| operations.iter().filter(|o| o.kind == kind).count();
        assert!(share(Kind::Read).abs_diff(30_000) < 550);
        assert!(share(Kind::Write).abs_diff(15_000) < 520);
        assert!(share(Kind::Discard).abs_diff(4000) < 310);
        assert!(share(Kind::Flush).abs_diff(1000) < 160);
        let large = operations.iter().filter(|o| o.count == 64).count();
        assert!(large.abs_diff(12_250) < 490, "{large}");
    }

    #[test]
    fn no_operation_leaves_the_range() {
        let mut ends_at_the_end = 0;
        for operation in MIXED().over(100, 10).take(10_000) {
            assert!(operation.block + u64::from(operation.count) <= 100);
            ends_at_the_end += u32::from(operation.block + u64::from(operation.count) == 100);
        }
        assert!(ends_at_the_end > 0, "the last block is reached");
    }

    #[test]
    fn writes_of_a_block_are_just_that() {
        let mut operations = Mix::writes_of_a_block(Pattern::Sequential).over(10, 0);
        let expected = Operation { kind: Kind::Write, block: 0, count: 1 };
        assert_eq!(operations.operation(), expected);
    }
}
