//! Holes: blocks of a closed segment that nothing needs, and that are written again in their place.
//!
//! ```text
//! Searched   the cleaner goes through the segment: which blocks are counted, and by which headers
//! Known      all is looked at; what dies from now on is noted
//! ─ cut ─    what nothing needs now is a hole. The checkpoint reserves the holes: recovery will
//!            look for records there, and the map that it restores leads to none of them
//! Reserved   the checkpoint is on its way
//! Ready      it is durable
//! Open       a stream writes records into the holes, in ascending order
//! ```
//! After that the segment is closed again.
//!
//! # Power-loss contract
//! A hole is overwritten only when a checkpoint is durable at whose cut nothing counted it, so no
//! state that recovery can come to leads there. As long as records may come, or are on their way,
//! each later checkpoint reserves the segment's holes as well.
//!
//! # Invariants
//! - Every reference that is counted in the segment was found by its header; if one was not, there are
//!   no holes. So what a damaged header hides is never overwritten.
//! - A header of a record of which any block was needed when it was looked at is no hole: the
//!   cleaner needs it to know what lies there.
//! - Nobody cleans a segment between the cut and its being closed: so no relocation from it is on
//!   its way, and none can find a new version of its address at the place that it came from.
//! - No read that began before the cut goes on when the first hole is overwritten.

pub(crate) mod pads;
pub(crate) mod pages;
pub(crate) mod search;

use crate::holes::pages::is_set;
use crate::units::SegmentIndex;
use alloc::vec::Vec;
use coulter_format::places::Places;

/// Segments at most of which the holes are reserved, and of which they are being looked for.
pub(crate) const SEGMENTS_MAX: usize = 32;

/// A segment is worth it from so many holes on that records can use, as a share of its size.
pub(crate) const HOLES_SHARE_MIN: u32 = 8;

/// One that was searched in vain is searched again when so much more of it is dead at least, as a share
/// of its size: where its records are short a search reads all of it.
const DEATHS_SHARE_MIN: u32 = 32;

/// Places that a record must find behind its header, at least: a header is a block as well.
pub(crate) const PLACES_MIN: u32 = 16;

/// Blocks of one write beyond which it goes to an empty segment: it is sequential by itself.
pub(crate) const WRITE_MAX: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SearchStage {
    Searched,
    Known,
    Reserved,
    Ready,
    Open,
}

/// What is known of one segment.
pub(crate) struct Entry {
    segment: SegmentIndex,
    stage: SearchStage,
    /// Blocks that are counted, and how many.
    counted: Vec<u64>,
    count: u32,
    /// Holes that records can use, as of when all was known, and what has died since.
    holes: u32,
    /// Headers of records of which a block is, or was when it was looked at. From the cut on, all
    /// that is no hole.
    pub(crate) needed: Vec<u64>,
}

/// The segments of which holes are known.
#[derive(Default)]
pub(crate) struct Holes {
    entries: Vec<Entry>,
    /// Bits of segments that are forgotten, for those to come.
    spare: Vec<[Vec<u64>; 2]>,
    /// All that is no hole of the segment in hand.
    in_hand: Vec<u64>,
    /// Whether the blocks of a page are holes one by one: see `pads`.
    pub(crate) pads: bool,
}

impl Holes {
    /// Bits for the blocks of a segment, none of them set.
    fn take_bits(&mut self, words: usize) -> [Vec<u64>; 2] {
        let mut bits = self.spare.pop().unwrap_or_default();
        bits.iter_mut().for_each(|bits| bits.resize(words, 0));
        bits
    }

    /// Forgets a segment, if it is known.
    fn forget(&mut self, segment: SegmentIndex) {
        if let Some(index) = self.entries.iter().position(|entry| entry.segment == segment) {
            self.spare.push(self.entries.remove(index).take_bits());
        }
        assert!(!self.entries.iter().any(|entry| entry.segment == segment), "it is known once");
    }
}

impl Entry {
    fn take_bits(&mut self) -> [Vec<u64>; 2] {
        let mut bits = [core::mem::take(&mut self.counted), core::mem::take(&mut self.needed)];
        bits.iter_mut().for_each(Vec::clear);
        bits
    }
}

/// Where a record can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoleRoom {
    /// The place of its header in the segment.
    pub(crate) offset: u32,
    /// Places for its payload.
    pub(crate) places: Places,
}

/// Where headers lie in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Headers {
    /// A record behind the other, from the first block on.
    InARow,
    /// Anywhere: records were written into holes, and headers of dead ones are left.
    Anywhere,
}

impl Headers {
    /// Where the next header can lie behind a record from `at` to `end`: in holes, between that one's header
    /// and its payload.
    pub(crate) fn behind(self, at: u32, end: u32) -> u32 {
        assert!(end > at, "a record has a header at least");
        match self {
            Headers::InARow => end,
            Headers::Anywhere => at + 1,
        }
    }

    /// Whether headers may lie behind a block that is none.
    pub(crate) fn lie_anywhere(self) -> bool {
        self == Headers::Anywhere
    }
}

/// The first room at or behind an offset, between the blocks that are needed, for a record of so many
/// blocks.
fn room(needed: &[u64], size: u32, offset: u32, blocks: u32) -> Option<HoleRoom> {
    let holes = (offset..size).filter(|header| !is_set(needed, *header));
    let mut rooms = holes.map(|offset| HoleRoom { offset, places: places(needed, offset + 1) });
    rooms.find(|room| room.places.count() >= blocks.max(PLACES_MIN))
}

/// The holes among the blocks from this one on that a record can reach.
fn places(needed: &[u64], first: u32) -> Places {
    // A segment is a whole number of words.
    let word = |index: u32| needed.get(index as usize).map_or(0, |needed| !needed);
    let words = [0, 1, 2, 3].map(|index| {
        let (at, shift) = (first / 64 + index, first % 64);
        word(at) >> shift | word(at + 1).unbounded_shl(64 - shift)
    });
    Places::from_words(words)
}

/// Blocks that records would take if as many as can be were written between the blocks that are needed.
fn usable(needed: &[u64], size: u32, page_blocks: u32) -> u32 {
    let (mut at, mut sum) = (0, 0);
    while let Some(room) = room(needed, size, at, 0) {
        sum += 1 + room.places.count();
        at = (room.offset + room.places.span()).next_multiple_of(page_blocks);
    }
    sum
}
