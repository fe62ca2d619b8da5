//! The segment table: sixteen bytes a segment, 256 segments a page.
//!
//! ```text
//! offset size field
//!      0    4 valid   blocks that the map or a pointer of the checkpoint counts on, except those
//!                     that the checkpoint itself lists (roots, table pages, runs, its own body)
//!      4    1 state   0 free, 1 open, 2 closed
//!      5    1 stream  that wrote it last
//!      6    2 zero
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
        _ => return None,
    };
    let stream = reader.u8()?;
    let _zero = reader.u16()?;
    Some(SegmentEntry { valid, state, stream, clock: reader.u64()? })
}

/// Writes entries in order; the rest of the page is free segments.
pub fn encode(entries: impl Iterator<Item = SegmentEntry>, page: &mut Block) {
    page.fill(0);
    let mut writer = Writer::new(page);
    for entry in entries.take(SEGMENTS_PER_PAGE) {
        writer.u32(entry.valid);
        writer.u8(entry.state as u8);
        writer.u8(entry.stream);
        writer.u16(0);
        writer.u64(entry.clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_the_round_trip() {
        let entry = |i: u32| SegmentEntry {
            valid: i * 7,
            state: [SegmentState::Free, SegmentState::Open, SegmentState::Closed][i as usize % 3],
            stream: (i % 4) as u8,
            clock: u64::from(i) << 40,
        };
        let mut page = [0xff; BLOCK_SIZE];
        encode((0..200).map(entry), &mut page);
        let decoded: std::vec::Vec<_> = decode(&page).map(Result::unwrap).collect();
        assert_eq!(decoded.len(), SEGMENTS_PER_PAGE);
        assert!(decoded.iter().take(200).enumerate().all(|(i, e)| *e == entry(i as u32)));
        assert!(decoded.iter().skip(200).all(|e| e.state == SegmentState::Free && e.valid == 0));
    }

    #[test]
    fn an_unknown_state_is_corrupt() {
        let mut page = [0; BLOCK_SIZE];
        page[4] = 9;
        assert!(decode(&page).next().unwrap().is_err());
    }

    extern crate std;
}
