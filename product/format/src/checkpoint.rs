//! The checkpoint's body: from here recovery replays.
//!
//! It lies in the log like any other payload, contiguous, and a superblock names its place, size
//! and checksum. It lists every piece of metadata that is not found through the map: the heads of
//! the streams, the segments that may be opened next, the root pages, the pages of the segment
//! table, the runs of updates that no leaf page contains yet, and the records that need no run, for
//! their headers say what they changed.
//!
//! ```text
//! offset size field
//!      0    4 magic "CCKP"
//!      4    2 version
//!      6    2 stream_count
//!      8    8 sequence        every record up to this one is contained
//!     16    8 write_clock     user blocks written since creation
//!     24    8 sweep_position  leaf key from which the sweep goes on
//!     32    8 sweep_cycle     how often the sweep began anew
//!     40    8 next_run        number of the next run
//!     48    4 reserved_count
//!     52    4 root_count
//!     56    4 table_count
//!     60    4 run_count
//!     64    4 reference_count from version 2 on; what follows begins at 64 in version 1
//!     68    4 parity_count    from version 3 on; zero in version 2
//!      …      head            × stream_count    segment u32 (0xffff_ffff: none), offset u32
//!      …      reserved        × reserved_count  segment u32, in the order of opening; with bit 31, one
//!                                               into whose holes records may be written
//!      …      root            × root_count      key u64, pba u32, checksum u32; by key. In version 5 a page of
//!                                               the list of roots: pba u32, checksum u32
//!      …      table           × table_count     pba u32, checksum u32
//!      …      run             × run_count       number u64, sweep_cycle u64, sweep_position u64,
//!                                               block_count u32, zero u32, then
//!                                               block_count × (pba u32, checksum u32)
//!      …      reference       × reference_count pba u32, checksum u32, sweep_position u64,
//!                                               sweep_cycles u16, runs u16
//!      …      copy            from version 4 on: pba u32 for each root page (or page of the list), table page and
//!                             block of a run, in that order
//!      …      group           from version 4 on: u16 for each reference: which parity is of its header, and others
//!                             (0xffff: none)
//!      …      parity          × parity_count    pba u32, checksum u32
//! ```
//!
//! A body without second copies is of version 2 if it has references, else of version 1; one that lists pages of the
//! list of roots is of version 5.

mod view;
mod writer;

use crate::Pba;
pub use view::{BodyView, RunBlocks, Runs};
pub use writer::BodyWriter;

const MAGIC: [u8; 4] = *b"CCKP";
const VERSION: u16 = 1;
const VERSION_WITH_REFERENCES: u16 = 2;
/// Version 3 listed second copies, too, but not always in this layout, and was never released.
const VERSION_WITH_COPIES: u16 = 4;
/// The roots are in pages of their own, which the body lists. Second copies are listed, too.
const VERSION_WITH_ROOT_LISTS: u16 = 5;

/// Bytes of a reference.
pub const REFERENCE_SIZE: usize = 20;

/// Bytes in which a body says where the second copy of a page or of a run's block lies.
pub const COPY_SIZE: usize = 4;

/// Bytes in which a body says of a reference which parity is of its header.
pub const GROUP_SIZE: usize = 2;

/// Bytes in which a body says where a parity block lies.
pub const PARITY_SIZE: usize = 8;

const NO_PARITY: u16 = u16::MAX;

/// Parity blocks of a body at most.
pub const PARITY_COUNT_MAX: usize = NO_PARITY as usize;

/// Streams at most.
pub const STREAM_COUNT_MAX: usize = 16;

/// Bytes of a body at most: the payload of one record.
pub const BODY_SIZE_MAX: u32 = (crate::record::SHORT_BLOCKS_MAX * crate::BLOCK_SIZE) as u32;

const NO_SEGMENT: u32 = u32::MAX;

/// In the list of reserved segments: only the holes are.
const HOLES: u32 = 1 << 31;

/// The fixed part of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointHeader {
    /// Every record up to this sequence is contained.
    pub sequence: u64,
    /// User blocks written since creation; the clock by which data ages.
    pub write_clock: u64,
    /// Where the sweep goes on.
    pub sweep: SweepPosition,
    /// Number of the next run.
    pub next_run: u64,
}

/// A place in the endless sweep over the leaf pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SweepPosition {
    /// How often the sweep began anew.
    pub cycle: u64,
    /// The leaf key that comes next.
    pub leaf: u64,
}

/// Where a stream appends next: a segment, and the block in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The open segment.
    pub segment: u32,
    /// The next block in it.
    pub offset: u32,
}

/// One run, without its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHeader {
    /// The run's number; a higher one is newer.
    pub number: u64,
    /// Where the sweep stood when the run was written: leaves swept since contain its updates.
    pub sweep: SweepPosition,
    /// Blocks.
    pub block_count: u32,
}

/// A record whose header says what changed: its data lies where the record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Of the header.
    pub pba: Pba,
    /// The header's own checksum: a header that was written there later has another.
    pub checksum: u32,
    /// Where the sweep stood when the record took effect: leaves swept since contain its updates.
    pub sweep: SweepPosition,
    /// Number of the run that came next: what that one says is newer.
    pub run: u64,
}

/// How many of each piece a body has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Stream heads.
    pub streams: u16,
    /// Reserved segments, and those of which the holes are.
    pub reserved: u32,
    /// Root pages; or pages of the list of roots.
    pub roots: u32,
    /// Whether it is the latter. Then second copies are listed.
    pub root_lists: bool,
    /// Pages of the segment table.
    pub table: u32,
    /// Runs.
    pub runs: u32,
    /// Records referred to.
    pub references: u32,
    /// Parity blocks of their headers.
    pub parities: u32,
    /// Whether the second copies are listed.
    pub copies: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockPointer, Reason};
    extern crate std;
    use std::vec::Vec;

    fn pointer(i: u32) -> BlockPointer {
        BlockPointer { pba: Pba(i), checksum: i ^ 0xffff }
    }

    fn example(bytes: &mut [u8]) -> usize {
        let header = CheckpointHeader {
            sequence: 11,
            write_clock: 22,
            sweep: SweepPosition { cycle: 3, leaf: 44 },
            next_run: 9,
        };
        let counts = Counts {
            streams: 2,
            reserved: 4,
            roots: 2,
            table: 1,
            runs: 2,
            references: 2,
            parities: 1,
            copies: true,
            root_lists: false,
        };
        let mut writer = BodyWriter::new(&header, &counts, bytes);
        writer.head(Some(Head { segment: 4, offset: 17 }));
        writer.head(None);
        (5..8).for_each(|segment| writer.reserved(segment));
        writer.reserved_holes(9);
        writer.root(0, pointer(100));
        writer.root(7, pointer(101));
        writer.pointer(pointer(102));
        for (number, block_count) in [(7, 3), (8, 0)] {
            writer.run(&RunHeader { number, sweep: header.sweep, block_count });
            (0..block_count).for_each(|i| writer.pointer(pointer(200 + i)));
        }
        references().iter().for_each(|reference| writer.reference(reference));
        (300..306).for_each(|pba| writer.copy(Pba(pba)));
        [Some(0), None].into_iter().for_each(|parity| writer.group(parity));
        writer.pointer(pointer(400));
        writer.finish().unwrap()
    }

    fn references() -> [Reference; 2] {
        let at = |cycle, leaf| SweepPosition { cycle, leaf };
        [
            Reference { pba: Pba(300), checksum: 7, sweep: at(2, 90), run: 8 },
            Reference { pba: Pba(200), checksum: 8, sweep: at(3, 44), run: 9 },
        ]
    }

    #[test]
    fn a_body_survives_the_round_trip() {
        let mut bytes = [0; 4096];
        let size = example(&mut bytes);
        let view = BodyView::decode(&bytes[..size]).unwrap();
        assert_eq!(view.header().sequence, 11);
        assert_eq!(view.header().sweep, SweepPosition { cycle: 3, leaf: 44 });
        let heads: Vec<_> = view.heads().collect();
        assert_eq!(heads, [Some(Head { segment: 4, offset: 17 }), None]);
        assert_eq!(view.reserved().collect::<Vec<_>>(), [5, 6, 7]);
        assert_eq!(view.reserved_holes().collect::<Vec<_>>(), [9]);
        assert_eq!(view.roots().collect::<Vec<_>>(), [(0, pointer(100)), (7, pointer(101))]);
        assert_eq!(view.table().collect::<Vec<_>>(), [pointer(102)]);
        let runs: Vec<_> =
            view.runs().map(|(run, blocks)| (run.number, blocks.iter().count())).collect();
        assert_eq!(runs, [(7, 3), (8, 0)]);
        assert_eq!(view.references().collect::<Vec<_>>(), references());
        assert_eq!(
            view.copies().map(|pba| pba.0).collect::<Vec<_>>(),
            [300, 301, 302, 303, 304, 305]
        );
        let headers: Vec<_> = view.header_parities().collect();
        assert_eq!(headers, [pointer(400), BlockPointer::NOWHERE]);
    }

    #[test]
    fn a_body_that_lists_pages_of_the_list_of_roots_is_of_a_version_of_its_own() {
        let mut bytes = [0; 4096];
        let counts = Counts { roots: 2, table: 1, root_lists: true, ..Counts::default() };
        let mut writer = BodyWriter::new(&CheckpointHeader::default(), &counts, &mut bytes);
        (100..103).for_each(|pba| writer.pointer(pointer(pba)));
        (200..203).for_each(|pba| writer.copy(Pba(pba)));
        let size = writer.finish().unwrap();
        assert_eq!((size, bytes[4]), (72 + 3 * (8 + 4), 5));
        let view = BodyView::decode(&bytes[..size]).unwrap();
        assert_eq!(view.roots().count(), 0);
        assert_eq!(view.root_lists().collect::<Vec<_>>(), [pointer(100), pointer(101)]);
        assert_eq!(view.table().collect::<Vec<_>>(), [pointer(102)]);
        assert_eq!(view.copies().map(|pba| pba.0).collect::<Vec<_>>(), [200, 201, 202]);
        (0..size).for_each(|length| assert!(BodyView::decode(&bytes[..length]).is_err()));
    }

    /// Older programs read it.
    #[test]
    fn a_body_without_references_is_of_the_first_version() {
        let mut bytes = [0; 4096];
        let counts = Counts { streams: 1, ..Counts::default() };
        let mut writer = BodyWriter::new(&CheckpointHeader::default(), &counts, &mut bytes);
        writer.head(Some(Head { segment: 4, offset: 17 }));
        let size = writer.finish().unwrap();
        assert_eq!((size, bytes[4], bytes[64]), (72, 1, 4));
        let view = BodyView::decode(&bytes[..size]).unwrap();
        assert_eq!(view.references().count(), 0);
        assert_eq!(view.copies().count() + view.header_parities().count(), 0);
    }

    #[test]
    fn a_body_of_the_version_with_two_layouts_is_refused() {
        let mut bytes = [0; 4096];
        let size = example(&mut bytes);
        assert_eq!(bytes[4], 4);
        bytes[4] = 3;
        let error = BodyView::decode(&bytes[..size]).map(|_| ()).unwrap_err();
        assert_eq!(error.reason, Reason::Version(3));
    }

    #[test]
    fn a_reference_of_too_long_ago_is_not_written() {
        let header = CheckpointHeader { next_run: 1 << 16, ..CheckpointHeader::default() };
        let fits = |run| {
            let mut bytes = [0; 4096];
            let counts = Counts { references: 1, ..Counts::default() };
            let mut writer = BodyWriter::new(&header, &counts, &mut bytes);
            let [_, reference] = references();
            writer.reference(&Reference { sweep: header.sweep, run, ..reference });
            writer.finish().is_some()
        };
        assert_eq!([0, 1, 1 << 16, (1 << 16) + 1].map(fits), [false, true, true, false]);
    }

    #[test]
    fn references_that_cannot_be_are_refused() {
        let header = CheckpointHeader { next_run: 9, ..CheckpointHeader::default() };
        let refuse = |runs: [u16; 2], cycles: u16| {
            let counts = Counts { references: 2, ..Counts::default() };
            let mut bytes = [0; 4096];
            let mut writer = BodyWriter::new(&header, &counts, &mut bytes);
            let [_, reference] = references();
            let reference = Reference { sweep: header.sweep, ..reference };
            (0..2).for_each(|_| writer.reference(&reference));
            let size = writer.finish().unwrap();
            for (at, runs) in [72, 92].into_iter().zip(runs) {
                bytes[at + 16..at + 18].copy_from_slice(&cycles.to_le_bytes());
                bytes[at + 18..at + 20].copy_from_slice(&runs.to_le_bytes());
            }
            BodyView::decode(&bytes[..size]).err().map(|corrupt| corrupt.reason)
        };
        let refused = Some(Reason::Field("reference"));
        assert_eq!(refuse([9, 0], 0), None);
        assert_eq!(refuse([0, 1], 0), refused, "a newer one before an older one");
        assert_eq!(refuse([10, 0], 0), refused, "of a run before the first");
        assert_eq!(refuse([1, 1], 1), refused, "of a round before the first");
    }

    #[test]
    fn a_truncated_body_is_refused_at_every_length() {
        let mut bytes = [0; 4096];
        let size = example(&mut bytes);
        for length in 0..size {
            assert!(BodyView::decode(&bytes[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn roots_and_runs_out_of_order_are_refused() {
        let header = CheckpointHeader::default();
        let reason = |roots: &[u64], runs: &[u64]| {
            let (count, run_count) = (roots.len() as u32, runs.len() as u32);
            let counts = Counts { roots: count, runs: run_count, ..Counts::default() };
            let mut bytes = [0; 4096];
            let mut writer = BodyWriter::new(&header, &counts, &mut bytes);
            roots.iter().for_each(|key| writer.root(*key, pointer(1)));
            for number in runs {
                writer.run(&RunHeader { number: *number, sweep: header.sweep, block_count: 0 });
            }
            let size = writer.finish().unwrap();
            BodyView::decode(&bytes[..size]).err().map(|corrupt| corrupt.reason)
        };
        assert_eq!(reason(&[1, 2, 9], &[3, 4]), None);
        assert_eq!(reason(&[2, 1], &[]), Some(Reason::Field("root")));
        assert_eq!(reason(&[2, 2], &[]), Some(Reason::Field("root")));
        assert_eq!(reason(&[], &[4, 4]), Some(Reason::Field("run")));
    }

    #[test]
    fn a_body_that_does_not_fit_is_refused() {
        let mut bytes = [0; 4096];
        let size = example(&mut bytes);
        let header = CheckpointHeader::default();
        let mut writer = BodyWriter::new(&header, &Counts::default(), &mut bytes[..size.min(66)]);
        writer.reserved(1);
        assert_eq!(writer.finish(), None);
    }
}
