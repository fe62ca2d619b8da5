//! Numbers with a meaning. Conversions between them happen here and nowhere else.

use coulter_format::Pba;
use coulter_format::superblock::Geometry;

/// A record's place in the total order. Zero is before the first record.
pub type Sequence = u64;

/// A segment's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentIndex(pub u32);

impl SegmentIndex {
    /// For indexing tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Who writes a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The host.
    User,
    /// The cleaner, relocating.
    Cleaning,
    /// The engine itself: map pages, runs, the segment table, checkpoints.
    Metadata,
}

impl Origin {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// For indexing tables.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A log head. Those of the host and of the cleaner are for blocks of different expected lifetimes;
/// see `placement`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// Host data, or all of it that is not told apart: the shortest lives.
    User = 0,
    /// Relocated blocks, or all of them that are not told apart: the youngest.
    Cleaning = 1,
    /// Map pages, runs, the segment table, checkpoints.
    Metadata = 2,
    /// Host data of longer lives.
    UserWarm = 3,
    /// Host data that is overwritten rarely or was never written before.
    UserCold = 4,
    /// Relocated blocks that are older.
    CleaningWarm = 5,
    /// Relocated blocks that are old.
    CleaningCold = 6,
}

impl Stream {
    /// How many there are.
    pub const COUNT: usize = 7;
    /// How many there were in the first stores.
    pub const COUNT_MIN: usize = 3;
    /// All of them, by number.
    pub const ALL: [Stream; Stream::COUNT] = [
        Stream::User,
        Stream::Cleaning,
        Stream::Metadata,
        Stream::UserWarm,
        Stream::UserCold,
        Stream::CleaningWarm,
        Stream::CleaningCold,
    ];
    /// Those that the host writes to, shortest lives first.
    pub const USER: [Stream; 3] = [Stream::User, Stream::UserWarm, Stream::UserCold];
    /// Those of the cleaner alone, youngest first.
    pub const CLEANING: [Stream; 3] =
        [Stream::Cleaning, Stream::CleaningWarm, Stream::CleaningCold];

    /// For indexing tables.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its place among those of the host, or of the cleaner.
    pub const fn class(self) -> usize {
        match self {
            Stream::User | Stream::Cleaning | Stream::Metadata => 0,
            Stream::UserWarm | Stream::CleaningWarm => 1,
            Stream::UserCold | Stream::CleaningCold => 2,
        }
    }
}

/// The first block of a segment.
pub fn segment_start(geometry: &Geometry, segment: SegmentIndex) -> Pba {
    let start = u64::from(geometry.first_segment.0)
        + u64::from(segment.0) * u64::from(geometry.segment_blocks);
    Pba(u32::try_from(start).expect("a checked geometry ends below 2^32 blocks"))
}

/// The segment that a block lies in; `None` outside the log.
pub fn segment_of(geometry: &Geometry, pba: Pba) -> Option<SegmentIndex> {
    let offset = pba.0.checked_sub(geometry.first_segment.0)?;
    let segment = offset / geometry.segment_blocks;
    (segment < geometry.segment_count).then_some(SegmentIndex(segment))
}

/// A sum divided by a count, rounded down; what is beyond 64 bits is cut off at their end. In steps of 32
/// bits, for where the engine runs there may be no division of 128.
pub(crate) fn mean(sum: u128, count: u32) -> u64 {
    assert!(count > 0, "a mean is of something");
    let (mut quotient, mut rest) = (0_u128, 0_u64);
    for shift in [96, 64, 32, 0] {
        let digit = u64::from((sum >> shift) as u32);
        let divided = rest << 32 | digit;
        quotient = quotient << 32 | u128::from(divided / u64::from(count));
        rest = divided % u64::from(count);
    }
    u64::try_from(quotient).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_workload::Random;

    #[test]
    fn a_mean_is_what_the_division_of_128_bits_gives() {
        let mut random = Random::new(7);
        for count in [1, 2, 3, 446, 65_535, u32::MAX - 1, u32::MAX] {
            for _ in 0..200 {
                let bits = u128::from(random.bits()) << 64 | u128::from(random.bits());
                let sum = bits >> random.below(90);
                let expected = u64::try_from(sum / u128::from(count)).unwrap_or(u64::MAX);
                assert_eq!(mean(sum, count), expected, "{sum} by {count}");
            }
        }
    }
}
