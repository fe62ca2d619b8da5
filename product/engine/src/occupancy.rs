//! What the segments are taken up by: a view for whoever measures it.
//!
//! Does not say which blocks of a segment are what: the engine does not keep that. Whoever wants to know
//! follows what is written to the device.

use crate::Engine;
use crate::segments::{Segment, State};
use crate::units::{SegmentIndex, Stream, segment_start};
use coulter_format::Pba;

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nothing: it is free, or will be after a checkpoint or a discard.
    Empty,
    /// Map pages, runs, checkpoints.
    Metadata,
    /// Host data, and metadata that the cleaner has moved there.
    HostData,
}

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentOccupancy {
    /// Its first block.
    pub start: Pba,
    /// What it is used for.
    pub used_for: Use,
    /// Blocks at its end that a stream is still to write for the first time.
    pub unwritten: u32,
    /// Host blocks in it that the cleaner has moved: it is being emptied, or waits for a relocation.
    pub moved: u32,
}

impl Engine {
    /// All segments, in order of their places.
    pub fn occupancy(&self) -> impl Iterator<Item = SegmentOccupancy> + '_ {
        self.shared.segments.iter().map(|(index, segment)| self.occupancy_of(index, segment))
    }

    fn occupancy_of(&self, index: SegmentIndex, segment: &Segment) -> SegmentOccupancy {
        let size = self.shared.superblock.geometry.segment_blocks;
        let start = segment_start(&self.shared.superblock.geometry, index);
        let used_for = match segment.state {
            State::Open | State::Closed | State::Patching => match segment.stream {
                stream if stream == Stream::Metadata as u8 => Use::Metadata,
                _ => Use::HostData,
            },
            State::Free | State::Freed(_) | State::Trimming | State::Queued(_) => Use::Empty,
        };
        let mut heads = Stream::ALL.iter().filter_map(|stream| self.shared.log.head(*stream));
        let head = heads.find(|head| head.segment == index.0);
        let unwritten = head.map_or(0, |head| size - head.offset);
        let moved = if used_for == Use::HostData { segment.moved } else { 0 };
        SegmentOccupancy { start, used_for, unwritten, moved }
    }

    /// Host blocks, relocated ones included, in records that were sent off and are not applied yet.
    pub fn host_blocks_on_their_way(&self) -> u64 {
        self.shared
            .log
            .order
            .iter()
            .map(|record| u64::from(self.shared.log.record(*record).timed))
            .sum()
    }
}
