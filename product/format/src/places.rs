//! Where the payload of a scattered record lies: a bit for each of the 256 blocks behind its header.
//!
//! A record that is written into the holes of a segment cannot have its payload in a row. It lies in
//! the same order, at the blocks whose bits are set; so a record never reaches further than one
//! whose payload is in a row, and whoever has that much from its header on has all of it.

/// Blocks behind a header at which payload may lie.
pub const PLACES: u32 = 256;

/// Bytes of the bits in a header.
pub const PLACES_SIZE: usize = PLACES as usize / 8;

/// A set of places. Place 0 is the block behind the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places([u64; 4]);

/// Payload in a row: from the n-th block of the payload on, so many, from this place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceRun {
    /// First block, counted in the payload.
    pub payload: u32,
    /// Its place.
    pub place: u32,
    /// Blocks.
    pub count: u32,
}

impl Places {
    /// The places whose bits are set, lowest first.
    pub const fn from_words(words: [u64; 4]) -> Places {
        Places(words)
    }

    /// Adds a place. Places from [`PLACES`] on do not exist.
    pub fn insert(&mut self, place: u32) {
        if let Some(word) = self.0.get_mut(place as usize / 64) {
            *word |= 1 << (place % 64);
        }
    }

    /// Whether a place is in the set.
    pub fn contains(&self, place: u32) -> bool {
        self.0.get(place as usize / 64).is_some_and(|word| word & 1 << (place % 64) != 0)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The places in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..PLACES).filter(move |place| self.contains(*place))
    }

    /// The first place at or behind this one.
    pub fn next(&self, place: u32) -> Option<u32> {
        let first = place as usize / 64;
        let masked = self.0.get(first)? & (u64::MAX << (place % 64));
        let rest = self.0.iter().enumerate().skip(first + 1).map(|(index, word)| (index, *word));
        let mut words = core::iter::once((first, masked)).chain(rest);
        let (index, word) = words.find(|(_, word)| *word != 0)?;
        Some(index as u32 * 64 + word.trailing_zeros())
    }

    /// Blocks from the header to the last place, the header included.
    pub fn span(&self) -> u32 {
        let last = self.0.iter().enumerate().rev().find(|(_, word)| **word != 0);
        last.map_or(1, |(index, word)| index as u32 * 64 + 65 - word.leading_zeros())
    }

    /// The first `count` of them.
    pub fn first(self, count: u32) -> Places {
        let mut first = Places::default();
        self.iter().take(count as usize).for_each(|place| first.insert(place));
        first
    }

    /// Places in a row.
    pub fn runs(self) -> impl Iterator<Item = PlaceRun> {
        let (mut place, mut payload) = (0, 0);
        core::iter::from_fn(move || {
            let start = self.next(place)?;
            let count = (start..PLACES).take_while(|place| self.contains(*place)).count() as u32;
            let run = PlaceRun { payload, place: start, count };
            (place, payload) = (start + count, payload + count);
            Some(run)
        })
    }

    /// As a header has them.
    pub fn to_bytes(self) -> [u8; PLACES_SIZE] {
        let mut bytes = [0; PLACES_SIZE];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (target, word) in words.iter_mut().zip(self.0) {
            *target = word.to_le_bytes();
        }
        bytes
    }

    /// From what a header has.
    pub fn from_bytes(bytes: [u8; PLACES_SIZE]) -> Places {
        let mut words = [0; 4];
        let (chunks, _) = bytes.as_chunks::<8>();
        for (word, chunk) in words.iter_mut().zip(chunks) {
            *word = u64::from_le_bytes(*chunk);
        }
        Places(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    fn set(places: &[u32]) -> Places {
        let mut all = Places::default();
        places.iter().for_each(|place| all.insert(*place));
        all
    }

    #[test]
    fn places_come_back_in_order_and_in_runs() {
        let list = [0, 1, 5, 63, 64, 65, 127, 130, 255];
        let places = set(&list);
        assert_eq!(places.iter().collect::<Vec<_>>(), list);
        assert_eq!((places.count(), places.span()), (9, 257));
        assert_eq!(Places::from_bytes(places.to_bytes()), places);
        let runs: Vec<_> = places.runs().map(|run| (run.payload, run.place, run.count)).collect();
        assert_eq!(runs, [(0, 0, 2), (2, 5, 1), (3, 63, 3), (6, 127, 1), (7, 130, 1), (8, 255, 1)]);
        assert_eq!(places.first(4), set(&list[..4]));
        assert_eq!(places.first(4).span(), 65);
        let next = [(0, 0), (2, 5), (6, 63), (66, 127), (131, 255)];
        next.iter().for_each(|(from, found)| assert_eq!(places.next(*from), Some(*found)));
    }

    #[test]
    fn none_and_all_are_no_special_cases() {
        let none = Places::default();
        assert_eq!((none.count(), none.span(), none.next(0)), (0, 1, None));
        assert_eq!(none.runs().count(), 0);
        let all = set(&(0..PLACES).collect::<Vec<_>>());
        assert_eq!((all.count(), all.span(), all.next(255)), (256, 257, Some(255)));
        assert_eq!(all.runs().collect::<Vec<_>>(), [PlaceRun { payload: 0, place: 0, count: 256 }]);
        assert_eq!(all.next(256), None);
        let mut more = all;
        more.insert(256);
        assert_eq!(more, all);
    }
}
