//! What the device holds, as pieces of objects.
//!
//! # Invariants
//! - Pieces do not overlap. What none covers reads as zeros.
//! - For each object that a piece names, its bytes in use are counted; an object of which none is left
//!   is in no piece.
//! - A copy shares what does not change afterwards, so a manifest is made without a pause.

use crate::layout::commit::{Content, Entry};
use crate::names::Source;
use crate::ranges::RangeSet;
use crate::shared_map::{Parted, SharedMap};
use std::ops::Range;

/// A stretch of the device that lies in a row in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes.
    pub length: u32,
    /// The object.
    pub source: Source,
    /// First byte in it.
    pub offset: u32,
}

impl Piece {
    /// Its bytes in the object's payload.
    pub(crate) fn part_of<'a>(&self, payload: &'a [u8]) -> Option<&'a [u8]> {
        let from = self.offset as usize;
        payload.get(from..from + self.length as usize)
    }
}

impl Parted for Source {
    fn part(&self) -> u64 {
        let number = match self {
            Source::Data { number, .. } => *number,
            Source::Commit(id) => id.number,
        };
        // Objects of one time are in one part: they are given up together, too.
        number >> 10
    }
}

/// What the device holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PieceMap {
    /// By first byte on the device.
    pieces: SharedMap<u64, Piece>,
    /// Bytes of each object that pieces name.
    used: SharedMap<Source, u64>,
    /// Bytes of all pieces.
    total: u64,
}

impl PieceMap {
    /// A device full of zeros.
    pub fn new() -> PieceMap {
        PieceMap::default()
    }

    /// Pieces.
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes that are stored.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether no piece is there.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether a piece covers any byte of a range.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.pieces.last_before(range.end);
        before.is_some_and(|(start, piece)| start + u64::from(piece.length) > range.start)
    }

    /// The pieces with their first byte on the device, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Piece)> + '_ {
        self.pieces.iter().map(|(start, piece)| (*start, *piece))
    }

    /// The objects that pieces name, in no particular order.
    pub fn sources(&self) -> impl Iterator<Item = Source> + '_ {
        self.used.iter().map(|(source, _)| *source)
    }

    /// Whether a piece names an object.
    pub fn names(&self, source: Source) -> bool {
        self.used.contains(&source)
    }

    /// Adds a piece where there is none.
    pub(crate) fn place(&mut self, start: u64, piece: Piece) {
        assert!(piece.length > 0, "a piece is not empty");
        *self.used.value_or(piece.source, 0) += u64::from(piece.length);
        self.total += u64::from(piece.length);
        let before = self.pieces.insert(start, piece);
        assert!(before.is_none(), "two pieces do not begin at one byte");
    }

    /// Makes an entry of a commit true. Adds objects that no piece names any more to `dead`.
    pub fn apply(&mut self, entry: &Entry, dead: &mut Vec<Source>) {
        self.clear(&entry.range, dead);
        let Content::At(source, offset) = entry.content else { return };
        let length = entry.range.end - entry.range.start;
        let (length, offset) = (u32::try_from(length), u32::try_from(offset));
        let (Ok(length), Ok(offset)) = (length, offset) else {
            unreachable!("objects are smaller than 4 GiB")
        };
        self.place(entry.range.start, Piece { length, source, offset });
        // It may have been given up above, by the piece before it that came from the same object.
        dead.retain(|one| *one != source);
    }

    /// Takes a range out. Adds objects that no piece names any more to `dead`.
    pub(crate) fn clear(&mut self, range: &Range<u64>, dead: &mut Vec<Source>) {
        while let Some((start, piece)) = self.pieces.last_before(range.end) {
            let piece = *piece;
            let end = start + u64::from(piece.length);
            if end <= range.start {
                break;
            }
            self.pieces.remove(&start);
            for rest in [start..range.start.max(start), range.end.min(end)..end] {
                if !rest.is_empty() {
                    let skipped = (rest.start - start) as u32;
                    let length = (rest.end - rest.start) as u32;
                    let piece = Piece { length, offset: piece.offset + skipped, ..piece };
                    self.pieces.insert(rest.start, piece);
                }
            }
            let gone = range.end.min(end) - range.start.max(start);
            self.total -= gone;
            let used = self.used.value_or(piece.source, 0);
            *used = used.checked_sub(gone).expect("every piece is counted");
            if *used == 0 {
                self.used.remove(&piece.source);
                dead.push(piece.source);
            }
        }
    }

    /// The pieces of a range, cut to it, ascending; what lies between them is zeros.
    pub fn within(&self, range: &Range<u64>) -> Vec<(u64, Piece)> {
        let before = self.pieces.last_before(range.start.saturating_add(1));
        let first = before.map_or(range.start, |(start, _)| start);
        let mut found = Vec::new();
        for (start, piece) in self.pieces.range(first..range.end) {
            let end = start + u64::from(piece.length);
            let part = start.max(range.start)..end.min(range.end);
            if !part.is_empty() {
                let offset = piece.offset + (part.start - start) as u32;
                let length = (part.end - part.start) as u32;
                found.push((part.start, Piece { length, offset, ..*piece }));
            }
        }
        found
    }

    /// Ranges that come from different bytes of objects in `self` and `other`. A range that was written anew with
    /// the same bytes is among them: objects are not read.
    pub fn differences(&self, other: &PieceMap) -> RangeSet {
        let range_of = |(start, piece): (u64, Piece)| start..start + u64::from(piece.length);
        let mut ranges: RangeSet = self.iter().chain(other.iter()).map(range_of).collect();
        for (start, piece) in self.iter() {
            for (at, part) in other.within(&range_of((start, piece))) {
                let offset = piece.offset + (at - start) as u32;
                if part.source == piece.source && part.offset == offset {
                    ranges.remove(&range_of((at, part)));
                }
            }
        }
        ranges
    }

    /// Checks every invariant.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn assert_invariants(&self) {
        let mut used: SharedMap<Source, u64> = SharedMap::default();
        let mut free = 0;
        for (start, piece) in self.pieces.iter() {
            assert!(*start >= free, "pieces do not overlap");
            assert!(piece.length > 0, "a piece is not empty");
            free = start + u64::from(piece.length);
            *used.value_or(piece.source, 0) += u64::from(piece.length);
        }
        assert_eq!(
            used.iter().map(|(_, bytes)| bytes).sum::<u64>(),
            self.total,
            "bytes are counted"
        );
        assert_eq!(used, self.used, "bytes in use are counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(u64, u64, u64, u64)]) -> PieceMap {
        let mut map = PieceMap::new();
        for (start, length, number, offset) in entries {
            let content = Content::At(Source::Data { epoch: 1, number: *number }, *offset);
            map.apply(&Entry { range: *start..start + length, content }, &mut Vec::new());
        }
        map
    }

    #[test]
    fn what_comes_from_the_same_bytes_of_an_object_does_not_differ() {
        let one = map(&[(0, 100, 1, 0), (200, 50, 2, 0)]);
        let differ = |other: &PieceMap| {
            let ranges = one.differences(other);
            assert_eq!(ranges, other.differences(&one));
            ranges.iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        assert_eq!(differ(&one), []);
        assert_eq!(differ(&PieceMap::new()), [(0, 100), (200, 250)], "the other is zeros");
        // The first piece was written over in its middle: its rest is in two pieces.
        let split = map(&[(0, 100, 1, 0), (200, 50, 2, 0), (40, 20, 3, 0)]);
        assert_eq!(differ(&split), [(40, 60)]);
        // The same object, but other bytes of it.
        assert_eq!(differ(&map(&[(0, 100, 1, 4), (200, 50, 2, 0)])), [(0, 100)]);
        // Beyond the end of the other's piece, and another object.
        assert_eq!(differ(&map(&[(0, 120, 1, 0), (200, 50, 9, 0)])), [(100, 120), (200, 250)]);
    }
}
