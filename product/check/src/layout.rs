//! Where segments lie: the arithmetic of a geometry that was found consistent.

use coulter_format::Pba;
use coulter_format::superblock::Geometry;

/// A block's place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The segment's number.
    pub(crate) segment: u32,
    /// Blocks from the segment's start.
    pub(crate) offset: u32,
}

/// The arithmetic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) geometry: Geometry,
}

impl Layout {
    /// Blocks in a segment.
    pub(crate) fn segment_blocks(&self) -> u32 {
        self.geometry.segment_blocks
    }

    /// Segments.
    pub(crate) fn segment_count(&self) -> u32 {
        self.geometry.segment_count
    }

    /// Where a block lies; `None` outside the log.
    pub(crate) fn place(&self, pba: Pba) -> Option<Place> {
        let distance = pba.0.checked_sub(self.geometry.first_segment.0)?;
        let size = self.geometry.segment_blocks;
        let segment = distance.checked_div(size)?;
        (segment < self.geometry.segment_count)
            .then_some(Place { segment, offset: distance & size.wrapping_sub(1) })
    }

    /// The first block of a segment. Saturates for segments that do not exist.
    pub(crate) fn start(&self, segment: u32) -> Pba {
        let distance = segment.saturating_mul(self.geometry.segment_blocks);
        self.geometry.first_segment.plus(distance)
    }

    /// The first block behind the log. Up to 2^32, so no device address.
    pub(crate) fn end(&self) -> u64 {
        let size = u64::from(self.geometry.segment_blocks) * u64::from(self.geometry.segment_count);
        u64::from(self.geometry.first_segment.0) + size
    }
}
