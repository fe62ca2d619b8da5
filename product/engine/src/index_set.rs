//! A set of small numbers, in which the next one is found in a few steps however many there could be.
//!
//! A bit for each number, and above it a bit for each word of bits that is not empty, and so on.
//!
//! # Invariants
//! - A bit of a level is set if, and only if, the word below it is not zero.
//! - All memory is there from the start.

use crate::memory::{self, NoMemory};
use alloc::vec::Vec;

const BITS: usize = u64::BITS as usize;

/// The set.
#[derive(Clone, Debug, Default)]
pub(crate) struct IndexSet {
    /// The lowest level first; the highest is one word.
    levels: Vec<Vec<u64>>,
    count: usize,
}

impl IndexSet {
    /// An empty set of numbers below this one.
    pub(crate) fn new(capacity: usize) -> Result<IndexSet, NoMemory> {
        let mut levels = memory::list(6)?;
        let mut words = capacity.div_ceil(BITS).max(1);
        loop {
            memory::push(&mut levels, memory::filled(0, words)?)?;
            if words == 1 {
                return Ok(IndexSet { levels, count: 0 });
            }
            words = words.div_ceil(BITS);
        }
    }

    /// How many numbers are in it.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn contains(&self, index: usize) -> bool {
        self.levels[0][index / BITS] & 1 << (index % BITS) != 0
    }

    /// Puts a number in; false if it was there.
    pub(crate) fn insert(&mut self, index: usize) -> bool {
        if self.contains(index) {
            return false;
        }
        self.count += 1;
        let mut at = index;
        for level in &mut self.levels {
            let word = &mut level[at / BITS];
            let was_empty = *word == 0;
            *word |= 1 << (at % BITS);
            if !was_empty {
                break;
            }
            at /= BITS;
        }
        true
    }

    /// Takes a number out; false if it was not there.
    pub(crate) fn remove(&mut self, index: usize) -> bool {
        if !self.contains(index) {
            return false;
        }
        assert!(self.count > 0, "what is in it is counted");
        self.count -= 1;
        let mut at = index;
        for level in &mut self.levels {
            let word = &mut level[at / BITS];
            *word &= !(1 << (at % BITS));
            if *word != 0 {
                break;
            }
            at /= BITS;
        }
        true
    }

    /// The first number from this one on.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        let mut at = from;
        let mut height = 0;
        // Upwards until a word has a bit from here on, then down to its first number.
        loop {
            let word = *self.levels.get(height)?.get(at / BITS)?;
            let rest = word & u64::MAX << (at % BITS);
            if rest != 0 {
                at = at / BITS * BITS + rest.trailing_zeros() as usize;
                break;
            }
            at = at / BITS + 1;
            height += 1;
        }
        for level in self.levels[..height].iter().rev() {
            assert!(level[at] != 0, "a word that a level above tells of is not empty");
            at = at * BITS + level[at].trailing_zeros() as usize;
        }
        Some(at)
    }

    /// All numbers, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let found = self.next(from)?;
            from = found + 1;
            Some(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use coulter_workload::Random;

    #[test]
    fn it_holds_what_an_ordered_set_holds() {
        for capacity in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let mut set = IndexSet::new(capacity).expect("there is memory");
            let mut expected = BTreeSet::new();
            let mut random = Random::new(capacity as u64 + 5);
            for _ in 0..2000 {
                let index = random.below(capacity as u64) as usize;
                if random.below(2) == 0 {
                    assert_eq!(set.insert(index), expected.insert(index));
                } else {
                    assert_eq!(set.remove(index), expected.remove(&index));
                }
                assert_eq!(set.next(index), expected.range(index..).next().copied());
            }
            assert!(set.iter().eq(expected.iter().copied()));
            assert_eq!(set.count(), expected.len());
            assert_eq!(set.next(capacity), None);
        }
    }
}
