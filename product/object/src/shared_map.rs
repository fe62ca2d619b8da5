//! A map in parts that its copies share until one of them changes: to copy it costs as much as it has parts.
//!
//! # Invariants
//! - No part is empty.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Tells the part that a key is in.
pub(crate) trait Parted: Ord + Clone {
    /// Keys with one number are in one part.
    fn part(&self) -> u64;
}

/// Bits of a byte's address within a part: 1 GiB of the device.
const PART_BITS: u32 = 30;

/// First bytes on the device. Parts are in the order of their keys.
impl Parted for u64 {
    fn part(&self) -> u64 {
        self >> PART_BITS
    }
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedMap<K: Ord, V> {
    parts: BTreeMap<u64, Arc<BTreeMap<K, V>>>,
}

impl<K: Ord, V> Default for SharedMap<K, V> {
    fn default() -> SharedMap<K, V> {
        SharedMap { parts: BTreeMap::new() }
    }
}

impl<K: Parted, V: Clone> SharedMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.parts.values().map(|part| part.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.parts.get(&key.part()).is_some_and(|part| part.contains_key(key))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.parts.values().flat_map(|part| part.iter())
    }

    /// The value of a key; a key that is not there gets `first`.
    pub(crate) fn value_or(&mut self, key: K, first: V) -> &mut V {
        let part = self.parts.entry(key.part()).or_default();
        Arc::make_mut(part).entry(key).or_insert(first)
    }

    /// Gives a key a value; returns the one that it had.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        Arc::make_mut(self.parts.entry(key.part()).or_default()).insert(key, value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let part = self.parts.get_mut(&key.part()).filter(|part| part.contains_key(key))?;
        let value = Arc::make_mut(part).remove(key);
        if part.is_empty() {
            self.parts.remove(&key.part());
        }
        value
    }
}

impl<V: Clone> SharedMap<u64, V> {
    /// The last one before `end`.
    pub(crate) fn last_before(&self, end: u64) -> Option<(u64, &V)> {
        // The part of `end` may hold nothing before it; the one before it is not empty.
        let mut parts = self.parts.range(..=end.part()).rev();
        let found = parts.find_map(|(_, part)| part.range(..end).next_back());
        found.map(|(key, value)| (*key, value))
    }

    /// Those in a range, ascending.
    pub(crate) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &V)> {
        let (start, end) = (range.start, range.end.max(range.start));
        let parts = self.parts.range(start.part()..=end.part());
        let found = parts.flat_map(move |(_, part)| part.range(start..end));
        found.map(|(key, value)| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_shares_all_parts_but_those_that_change() {
        let mut map: SharedMap<u64, u32> = SharedMap::default();
        for gib in 0..100_u64 {
            assert_eq!(map.insert(gib << PART_BITS, 1), None);
        }
        let copy = map.clone();
        assert_eq!(map.insert(7 << PART_BITS, 2), Some(1));
        assert_eq!(map.remove(&(9 << PART_BITS)), Some(1));
        *map.value_or((11 << PART_BITS) + 5, 8) += 1;
        let is_own = |part: &u64| match (map.parts.get(part), copy.parts.get(part)) {
            (Some(one), Some(other)) => !Arc::ptr_eq(one, other),
            _ => true,
        };
        assert_eq!((0..100).filter(is_own).collect::<Vec<_>>(), [7, 9, 11]);
        assert_eq!((copy.len(), map.len()), (100, 100));
        assert!(copy.contains(&(9 << PART_BITS)) && !map.contains(&(9 << PART_BITS)));
        assert_eq!(map.remove(&1), None);
    }

    #[test]
    fn the_last_one_before_and_a_range_cross_parts() {
        let mut map: SharedMap<u64, u32> = SharedMap::default();
        assert_eq!(map.last_before(u64::MAX), None);
        for (value, key) in
            [5, 1 << PART_BITS, (1 << PART_BITS) + 9, 5 << PART_BITS].iter().enumerate()
        {
            map.insert(*key, value as u32);
        }
        let last = |end: u64| map.last_before(end).map(|(_, value)| *value);
        assert_eq!((last(0), last(5), last(6)), (None, None, Some(0)));
        assert_eq!((last(1 << PART_BITS), last((1 << PART_BITS) + 1)), (Some(0), Some(1)));
        assert_eq!((last(5 << PART_BITS), last(u64::MAX)), (Some(2), Some(3)));
        let found: Vec<u32> = map.range(6..5 << PART_BITS).map(|(_, value)| *value).collect();
        assert_eq!(found, [1, 2]);
        assert_eq!(
            map.range(9..9).count() + map.range(std::ops::Range { start: 9, end: 3 }).count(),
            0
        );
    }
}
