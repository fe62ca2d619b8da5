//! Opening a store of which something is damaged beyond repair.
//!
//! What the damage may have changed is *in doubt*: reading it is an error, never zeros and never an older value.
//! All else is as it was. The addresses in doubt are kept as ranges, in bounded memory: where there would be too many,
//! neighbours become one, so that more is in doubt, never less.
//!
//! # Power-loss contract
//! Nothing is written to a store that is opened degraded, unless all that is in doubt could be marked *lost* in the
//! map: then the next checkpoint says so, and every later opening too.

use crate::error::OpenError;
use crate::memory::{self, NoMemory};
use alloc::vec::Vec;
use core::ops::Range;

/// What to do about a store of which something is damaged beyond repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Degraded {
    /// It is not opened.
    #[default]
    Refused,
    /// It is opened, and refuses writes.
    ReadOnly,
    /// It is opened, and takes writes if that can make nothing worse: if all that is in doubt is known address by
    /// address. Else it refuses writes.
    ReadWrite,
}

impl Degraded {
    /// Each by its name.
    pub const NAMED: [(&str, Degraded); 3] =
        [("refuse", Degraded::Refused), ("ro", Degraded::ReadOnly), ("rw", Degraded::ReadWrite)];
}

/// Ranges of addresses in doubt, at most.
pub(crate) const RANGES_MAX: usize = 1024;

/// Why a store is degraded, and what is in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degradation {
    /// The first damage that was met.
    pub cause: OpenError,
    /// How many such were met.
    pub causes: u64,
    /// Whether writing would be safe.
    pub(crate) may_write: bool,
}

impl Degradation {
    pub(crate) fn new(cause: OpenError) -> Degradation {
        Degradation { cause, causes: 0, may_write: true }
    }
}

/// Host addresses in doubt: ranges that ascend and do not touch each other.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    ranges: Vec<Range<u64>>,
}

impl Doubt {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The first range that ends behind this address.
    fn first_behind(&self, lba: u64) -> usize {
        self.ranges.partition_point(|range| range.end <= lba)
    }

    pub(crate) fn contains(&self, lba: u64) -> bool {
        self.ranges.get(self.first_behind(lba)).is_some_and(|range| range.start <= lba)
    }

    /// Whether any of these addresses is in doubt.
    pub(crate) fn meets(&self, range: &Range<u64>) -> bool {
        self.ranges.get(self.first_behind(range.start)).is_some_and(|met| met.start < range.end)
    }

    /// The first address in doubt from this one on; behind all addresses if there is none.
    pub(crate) fn next(&self, lba: u64) -> u64 {
        self.ranges.get(self.first_behind(lba)).map_or(u64::MAX, |range| range.start.max(lba))
    }

    pub(crate) fn add(&mut self, range: Range<u64>) -> Result<(), NoMemory> {
        if range.is_empty() {
            return Ok(());
        }
        let first = self.ranges.partition_point(|met| met.end < range.start);
        let behind = self.ranges.partition_point(|met| met.start <= range.end);
        if first == behind {
            memory::reserve(&mut self.ranges)?;
            self.ranges.insert(first, range);
        } else {
            let start = self.ranges[first].start.min(range.start);
            let end = self.ranges[behind - 1].end.max(range.end);
            self.ranges[first] = start..end;
            self.ranges.drain(first + 1..behind);
        }
        self.join_nearest();
        assert!(self.ranges.len() <= RANGES_MAX, "what is in doubt takes bounded memory");
        Ok(())
    }

    /// Where there are too many ranges, the two that are nearest become one.
    fn join_nearest(&mut self) {
        while self.ranges.len() > RANGES_MAX {
            let gap = |index: &usize| self.ranges[index + 1].start - self.ranges[*index].end;
            let nearest = (0..self.ranges.len() - 1).min_by_key(gap);
            let nearest = nearest.expect("there are more than two");
            self.ranges[nearest].end = self.ranges[nearest + 1].end;
            self.ranges.remove(nearest + 1);
        }
    }

    /// These addresses are known again. Where that would take too many ranges, they stay in doubt.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() || !self.meets(&range) {
            return;
        }
        let first = self.first_behind(range.start);
        let is_within =
            self.ranges[first].start < range.start && self.ranges[first].end > range.end;
        if is_within {
            let has_room = self.ranges.len() < RANGES_MAX;
            if has_room && memory::reserve(&mut self.ranges).is_ok() {
                let rest = range.end..self.ranges[first].end;
                self.ranges[first].end = range.start;
                self.ranges.insert(first + 1, rest);
            }
            return;
        }
        for met in &mut self.ranges[first..] {
            if met.start >= range.end {
                break;
            }
            if met.start < range.start {
                met.end = range.start;
            } else {
                met.start = met.end.min(range.end);
            }
        }
        self.ranges.retain(|range| !range.is_empty());
    }

    /// Asks for the memory that [`Doubt::remove`] may need.
    pub(crate) fn reserve(&mut self) -> Result<(), NoMemory> {
        memory::reserve_in_all(&mut self.ranges, RANGES_MAX)
    }

    /// Addresses in doubt.
    pub(crate) fn count(&self) -> u64 {
        self.ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.end - range.start))
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]
mod tests {
    use super::*;

    fn doubt(ranges: &[Range<u64>]) -> Doubt {
        let mut doubt = Doubt::default();
        ranges.iter().for_each(|range| doubt.add(range.clone()).expect("there is memory"));
        doubt
    }

    #[test]
    fn ranges_that_meet_become_one() {
        assert_eq!(doubt(&[5..9, 20..30, 9..12]).ranges(), [5..12, 20..30]);
        assert_eq!(doubt(&[5..9, 20..30, 40..41, 8..40]).ranges(), [5..41]);
        assert_eq!(doubt(&[5..5]).ranges(), []);
    }

    #[test]
    fn what_is_known_again_is_in_doubt_no_more() {
        let mut met = doubt(&[10..20, 30..40, 50..60]);
        met.remove(15..55);
        assert_eq!(met.ranges(), [10..15, 55..60]);
        met.remove(11..12);
        assert_eq!(met.ranges(), [10..11, 12..15, 55..60]);
        met.remove(0..100);
        assert!(met.is_empty());
        let met = doubt(&[10..20]);
        let asked = [9, 10, 19, 20].map(|lba| met.contains(lba));
        assert_eq!(asked, [false, true, true, false]);
        assert!(met.meets(&(0..11)) && !met.meets(&(0..10)) && !met.meets(&(20..30)));
    }

    #[test]
    fn too_many_ranges_put_more_in_doubt_and_never_less() {
        let mut met = Doubt::default();
        for number in 0..4 * RANGES_MAX as u64 {
            met.add(10 * number..10 * number + 1).expect("there is memory");
            assert!(met.ranges().len() <= RANGES_MAX);
        }
        assert!((0..4 * RANGES_MAX as u64).all(|number| met.contains(10 * number)));
        met.remove(10..11);
        assert!(met.ranges().len() <= RANGES_MAX);
    }
}
