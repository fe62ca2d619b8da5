//! A set of byte ranges.
//!
//! # Invariants
//! - Ranges are not empty, do not overlap and do not touch: neighbours are merged.
//! - `total` is the sum of their lengths.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of byte ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> RangeSet {
        RangeSet::default()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes in it.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Ranges that it consists of.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// Adds a range. An empty one adds nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Every range that overlaps or touches is swallowed, from the last one backwards.
        while let Some((found, until)) = self.ranges.range(..=end).next_back() {
            let (found, until) = (*found, *until);
            if until < start {
                break;
            }
            start = start.min(found);
            end = end.max(until);
            self.ranges.remove(&found);
            self.total -= until - found;
        }
        self.ranges.insert(start, end);
        self.total += end - start;
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((found, until)) = self.ranges.range(..range.end).next_back() {
            let (found, until) = (*found, *until);
            if until <= range.start {
                break;
            }
            self.ranges.remove(&found);
            self.total -= until - found;
            for rest in [found..range.start.max(found), range.end.min(until)..until] {
                if !rest.is_empty() {
                    self.ranges.insert(rest.start, rest.end);
                    self.total += rest.end - rest.start;
                }
            }
        }
    }

    /// Whether any byte of a range is in it.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.ranges.range(..range.end).next_back();
        !range.is_empty() && before.is_some_and(|(_, until)| *until > range.start)
    }

    /// Whether every byte of a range is in it.
    pub fn holds(&self, range: &Range<u64>) -> bool {
        let before = self.ranges.range(..=range.start).next_back();
        range.is_empty() || before.is_some_and(|(_, until)| *until >= range.end)
    }

    /// What of a range is in it, ascending.
    pub fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let first = self.ranges.range(..=range.start).next_back();
        let first =
            first.filter(|(_, until)| **until > range.start).map_or(range.start, |(s, _)| *s);
        let found = self.ranges.range(first..range.end);
        found
            .map(|(start, until)| (*start).max(range.start)..(*until).min(range.end))
            .filter(|part| !part.is_empty())
            .collect()
    }

    /// Takes up to `bytes` bytes out of it, the lowest first.
    pub fn take(&mut self, bytes: u64) -> Vec<Range<u64>> {
        let mut taken = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let Some((start, end)) = self.ranges.pop_first() else { break };
            let until = end.min(start.saturating_add(left));
            taken.push(start..until);
            left -= until - start;
            self.total -= until - start;
            if until < end {
                self.ranges.insert(until, end);
            }
        }
        taken
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> RangeSet {
        let mut set = RangeSet::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A set of bytes, one flag each.
    struct Model([bool; 64]);

    impl Model {
        fn agrees_with(&self, set: &RangeSet) {
            let mut flags = [false; 64];
            let mut last_end = None;
            for range in set.iter() {
                assert!(!range.is_empty(), "no range is empty");
                assert!(last_end.is_none_or(|end| end < range.start), "neighbours are merged");
                last_end = Some(range.end);
                for byte in range {
                    flags[byte as usize] = true;
                }
            }
            assert_eq!(flags, self.0);
            assert_eq!(set.total(), self.0.iter().filter(|is_in| **is_in).count() as u64);
        }
    }

    #[test]
    fn a_set_agrees_with_one_flag_per_byte() {
        let mut random = coulter_workload::Random::new(1);
        let mut next = |bound: u64| random.below(bound);
        let (mut set, mut model) = (RangeSet::new(), Model([false; 64]));
        for _ in 0..20_000 {
            let start = next(64);
            let range = start..(start + next(12)).min(64);
            match next(4) {
                0 | 1 => {
                    set.insert(range.clone());
                    model.0[start as usize..range.end as usize].fill(true);
                }
                2 => {
                    set.remove(&range);
                    model.0[start as usize..range.end as usize].fill(false);
                }
                _ => {
                    let bytes: u64 =
                        set.within(&range).iter().map(|part| part.end - part.start).sum();
                    let expected = range.clone().filter(|byte| model.0[*byte as usize]).count();
                    assert_eq!(bytes, expected as u64);
                    assert_eq!(set.overlaps(&range), expected > 0);
                    assert_eq!(set.holds(&range), bytes == range.end - range.start);
                    if next(20) == 0 {
                        for part in set.take(next(30)) {
                            model.0[part.start as usize..part.end as usize].fill(false);
                        }
                    }
                }
            }
            model.agrees_with(&set);
        }
    }
}
