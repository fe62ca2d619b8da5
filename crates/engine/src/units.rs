//! Numbers with a meaning. Conversions between them happen here and nowhere else.

use coulter_format::Pba;
use coulter_format::superblock::Geometry;

/// A record's place in the total order. Zero is before the first record.
pub type Sequence = u64;

/// A segment's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentIndex(pub u32);

impl SegmentIndex {
    /// For indexing tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A log head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// What the host writes.
    User = 0,
    /// What the cleaner relocates.
    Cleaning = 1,
    /// Map pages, runs, the segment table, checkpoints.
    Metadata = 2,
}

impl Stream {
    /// How many there are.
    pub const COUNT: usize = 3;
    /// All of them, by number.
    pub const ALL: [Stream; Stream::COUNT] = [Stream::User, Stream::Cleaning, Stream::Metadata];

    /// For indexing tables.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The first block of a segment.
pub fn segment_start(geometry: &Geometry, segment: SegmentIndex) -> Pba {
    let start = u64::from(geometry.first_segment.0)
        + u64::from(segment.0) * u64::from(geometry.segment_size);
    Pba(u32::try_from(start).expect("a checked geometry ends below 2^32 blocks"))
}

/// The segment that a block lies in; `None` outside the log.
pub fn segment_of(geometry: &Geometry, pba: Pba) -> Option<SegmentIndex> {
    let offset = pba.0.checked_sub(geometry.first_segment.0)?;
    let segment = offset / geometry.segment_size;
    (segment < geometry.segment_count).then_some(SegmentIndex(segment))
}
