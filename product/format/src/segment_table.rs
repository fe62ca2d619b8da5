//! The segment table: sixteen bytes a segment, 256 segments a page.
//!
//! ```text
//! offset size field
//!      0    4 valid   blocks that the map or a pointer of the checkpoint counts on, except those
//!                     that the checkpoint itself lists (roots, table pages, runs, its own body)
//!      4    1 state   0 free, 1 open, 2 closed, 3 patched
//!      5    1 stream  that wrote it last
//!      6    2 mean_age how long, in user blocks, its blocks had been written when it was closed, on
//!                     average: a CoarseAge
//!      8    8 clock   user blocks written to the store when the segment was closed
//! ```

use crate::bytes::{Reader, Writer};
use crate::{BLOCK_SIZE, Block, Corrupt, Reason, Structure};

/// Segments described by one page.
pub const SEGMENTS_PER_PAGE: usize = 256;

const ENTRY_SIZE: usize = 16;
const _: () = assert!(SEGMENTS_PER_PAGE * ENTRY_SIZE == BLOCK_SIZE);

/// What a checkpoint says of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentState {
    /// Holds nothing that anything points to.
    Free = 0,
    /// A stream's head.
    Open = 1,
    /// Holds records and takes no more.
    Closed = 2,
    /// Closed, and records were or will be written into its holes: a header may be anywhere in it.
    Patched = 3,
}

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// Blocks counted on; see the module's table.
    pub valid: u32,
    /// State at the checkpoint.
    pub state: SegmentState,
    /// The stream that wrote it last.
    pub stream: u8,
    /// The store's write clock when it was closed, in user blocks.
    pub clock: u64,
    /// How long its blocks had been written by then, on average.
    pub mean_age: CoarseAge,
}

/// A number of user blocks, to one part in two thousand: eleven bits that count, and an exponent.
///
/// It serves decisions about placement only: nothing depends on it being right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoarseAge(u16);

impl CoarseAge {
    const FRACTION_BITS: u32 = 11;

    /// The nearest age at or below; 2^42 blocks and more are all the same.
    pub fn from_blocks(blocks: u64) -> CoarseAge {
        let largest = 0xfff << 30;
        let blocks = blocks.min(largest);
        let exponent = (blocks >> Self::FRACTION_BITS).checked_ilog2().map_or(0, |log| log + 1);
        let fraction = blocks >> exponent.saturating_sub(1) & ((1 << Self::FRACTION_BITS) - 1);
        CoarseAge((exponent << Self::FRACTION_BITS) as u16 | fraction as u16)
    }

    /// In user blocks.
    pub fn blocks(self) -> u64 {
        let exponent = u32::from(self.0) >> Self::FRACTION_BITS;
        let fraction = u64::from(self.0) & ((1 << Self::FRACTION_BITS) - 1);
        match exponent.checked_sub(1) {
            None => fraction,
            Some(shift) => (fraction | 1 << Self::FRACTION_BITS) << shift,
        }
    }

    /// As the table has it.
    pub fn to_bits(self) -> u16 {
        self.0
    }

    /// From what the table has.
    pub fn from_bits(bits: u16) -> CoarseAge {
        CoarseAge(bits)
    }
}

/// The page's entries in order.
pub fn decode(page: &Block) -> impl Iterator<Item = Result<SegmentEntry, Corrupt>> + '_ {
    page.chunks_exact(ENTRY_SIZE).map(|bytes| {
        decode_entry(bytes)
            .ok_or(Corrupt { structure: Structure::SegmentTable, reason: Reason::Field("state") })
    })
}

fn decode_entry(bytes: &[u8]) -> Option<SegmentEntry> {
    let mut reader = Reader::new(bytes);
    let valid = reader.u32()?;
    let state = match reader.u8()? {
        0 => SegmentState::Free,
        1 => SegmentState::Open,
        2 => SegmentState::Closed,
        3 => SegmentState::Patched,
        _ => return None,
    };
    let stream = reader.u8()?;
    let mean_age = CoarseAge::from_bits(reader.u16()?);
    Some(SegmentEntry { valid, state, stream, mean_age, clock: reader.u64()? })
}

/// Writes entries in order; the rest of the page is free segments.
pub fn encode(entries: impl Iterator<Item = SegmentEntry>, page: &mut Block) {
    page.fill(0);
    let mut writer = Writer::new(page);
    for entry in entries.take(SEGMENTS_PER_PAGE) {
        writer.u32(entry.valid);
        writer.u8(entry.state as u8);
        writer.u8(entry.stream);
        writer.u16(entry.mean_age.to_bits());
        writer.u64(entry.clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [SegmentState; 4] =
        [SegmentState::Free, SegmentState::Open, SegmentState::Closed, SegmentState::Patched];

    #[test]
    fn entries_survive_the_round_trip() {
        let entry = |i: u32| SegmentEntry {
            valid: i * 7,
            state: STATES[i as usize % 4],
            stream: (i % 4) as u8,
            clock: u64::from(i) << 40,
            mean_age: CoarseAge::from_bits(i as u16 * 300),
        };
        let mut page = [0xff; BLOCK_SIZE];
        encode((0..200).map(entry), &mut page);
        let decoded: std::vec::Vec<_> = decode(&page).map(Result::unwrap).collect();
        assert_eq!(decoded.len(), SEGMENTS_PER_PAGE);
        assert!(decoded.iter().take(200).enumerate().all(|(i, e)| *e == entry(i as u32)));
        assert!(decoded.iter().skip(200).all(|e| e.state == SegmentState::Free && e.valid == 0));
    }

    #[test]
    fn an_age_loses_one_part_in_two_thousand_and_order_is_kept() {
        let mut previous = 0;
        for shift in 0..42 {
            for odd in [0u64, 1, 3] {
                let blocks = (1u64 << shift) + (odd << shift >> 2);
                let coarse = CoarseAge::from_blocks(blocks).blocks();
                assert!(coarse <= blocks && blocks - coarse <= blocks / 2048, "{blocks}: {coarse}");
                assert!(coarse >= previous);
                previous = coarse;
            }
        }
        assert_eq!(CoarseAge::from_blocks(u64::MAX), CoarseAge::from_bits(u16::MAX));
        for bits in 0..=u16::MAX {
            let age = CoarseAge::from_bits(bits);
            assert_eq!(CoarseAge::from_blocks(age.blocks()), age);
        }
    }

    #[test]
    fn an_unknown_state_is_corrupt() {
        let mut page = [0; BLOCK_SIZE];
        page[4] = 9;
        assert!(decode(&page).next().unwrap().is_err());
    }

    extern crate std;
}
