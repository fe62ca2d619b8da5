//! Padding: pages of the flash below of which only some blocks are dead are written as a whole, with what is
//! needed there at its place and new blocks in the holes. Choi et al. 2015.
//!
//! ```text
//! page before    | live | dead | dead | live |
//! read ahead     | live |      |      | live |      into an image, a record buffer of its own
//! page written   | live | new  | new  | live |      one program: the drive has nothing to read or to copy
//! ```
//! What is needed keeps its address and its content, so the map does not change for it.
//!
//! # Power-loss contract
//! Only on a device of which each page is, after a power cut, as it was or as a write made it
//! ([`Config::atomic_page_blocks`](crate::Config::atomic_page_blocks)): elsewhere the page that is being programmed takes
//! along what is needed. Both states hold the needed blocks.
//!
//! # Invariants
//! - Nothing else writes to a block that is needed in such a page: its segment's holes were reserved, so nobody
//!   cleans it, and it is not freed before the record has taken effect.
//! - A page belongs to one record of those that are written over the same holes, and they go out in the order of
//!   their places, whichever of their pages are read first: a drive whose pages have their places in an erase block
//!   would have to copy it for each that comes too late.
//! - A page that cannot be read is written in part: the drive then merges it, or says that it cannot.

mod writing;

use crate::api::{RECORD_BLOCKS, RecordRef, Target};
use crate::holes::pages::{is_set, page_mask, set};
use crate::log::record::Record;
use crate::units::segment_start;
use coulter_format::Pba;
use coulter_format::places::PLACES;
use coulter_format::superblock::{Geometry, PAGE_BLOCKS_MAX};

/// Where in the image its first block lies: behind the block of a header, as the buffer is one of a record.
const IMAGE_FIRST: u32 = 1;

/// Blocks of the pages that a record in holes can lie in.
const IMAGE_BLOCKS: usize =
    (PAGE_BLOCKS_MAX + 1 + PLACES).next_multiple_of(PAGE_BLOCKS_MAX) as usize;

const _: () =
    assert!(IMAGE_FIRST as usize + IMAGE_BLOCKS <= RECORD_BLOCKS, "it has room in a buffer");
const _: () = assert!(IMAGE_BLOCKS.is_multiple_of(64), "bits are in whole words");

/// With padding, a segment is filled only if at least this share of it is holes (1 / the number): filling it programs
/// all of its pages, and cleaning the emptiest segments does not.
const PADDED_SHARE_MIN: u32 = 3;

type ImageBits = [u64; IMAGE_BLOCKS / 64];

/// The pages that a record lies in, if some of them hold what is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pads {
    /// The buffer in which they are put together.
    pub(crate) image: RecordRef,
    /// The first block of the first page, and how many there are up to the end of the last one.
    first: Pba,
    count: u32,
    page_blocks: u32,
    /// Blocks that are needed, and those of the record, counted from the first.
    needed: ImageBits,
    written: ImageBits,
    /// Blocks of pages that could not be read.
    unread: ImageBits,
    /// Reads that have not come back.
    reads: u32,
}

/// Blocks that go together, counted from the first one of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    at: u32,
    count: u32,
}

impl Pads {
    /// What is needed beside a record's blocks in their pages; `None` if nothing is. `needed` are the blocks of
    /// the segment that are no holes.
    fn new(record: &Record, image: RecordRef, needed: &[u64], geometry: &Geometry) -> Option<Pads> {
        let (page, start) = (geometry.page_blocks, segment_start(geometry, record.segment).0);
        let header = record.header_pba.0 - start;
        let first = header - header % page;
        let mut pads = Pads {
            image,
            first: Pba(start + first),
            count: 0,
            page_blocks: page,
            needed: ImageBits::default(),
            written: ImageBits::default(),
            unread: ImageBits::default(),
            reads: 0,
        };
        set(&mut pads.written, header - first);
        let mut places = record.place.payload(record.header_pba);
        let mut last = header - first;
        for _ in 0..record.payload {
            last = places.next().0 - pads.first.0;
            set(&mut pads.written, last);
        }
        pads.count = (last + 1).next_multiple_of(page);
        assert!(pads.count as usize <= IMAGE_BLOCKS, "a record has no larger reach");
        let mut pages = pads.pages();
        while let Some(stretch) = pages.next(&pads, Pads::is_written) {
            let blocks = stretch.at..stretch.at + stretch.count;
            for at in blocks.filter(|at| is_set(needed, first + at)) {
                assert!(!is_set(&pads.written, at), "what is needed is not overwritten");
                set(&mut pads.needed, at);
            }
        }
        (pads.padded() > 0).then_some(pads)
    }

    /// Blocks that are written again.
    fn padded(&self) -> u32 {
        let padded = self.needed.iter().zip(&self.unread).map(|(needed, unread)| needed & !unread);
        padded.map(u64::count_ones).sum()
    }

    fn pages(&self) -> PageRuns {
        PageRuns { at: 0 }
    }

    /// Whether the record has a block in the page that begins here.
    fn is_written(&self, page: u32) -> bool {
        any(&self.written, page, self.page_blocks)
    }

    /// Whether the page that begins here must be read before it is written.
    fn is_read(&self, page: u32) -> bool {
        self.is_written(page) && any(&self.needed, page, self.page_blocks)
    }

    /// Whether the page that begins here is written as a whole.
    fn is_whole(&self, page: u32) -> bool {
        self.is_written(page) && !any(&self.unread, page, self.page_blocks)
    }

    /// The buffer's block of a block of the image.
    fn target(&self, at: u32) -> Target {
        Target::RecordPart { record: self.image, block: IMAGE_FIRST + at }
    }
}

/// Whether one of a page's blocks is marked. A page lies in one word.
fn any(bits: &ImageBits, page: u32, page_blocks: u32) -> bool {
    bits[page as usize / 64] >> (page % 64) & page_mask(page_blocks) != 0
}

/// Goes through the pages of an image.
struct PageRuns {
    at: u32,
}

impl PageRuns {
    /// The next pages in a row that are all so.
    fn next(&mut self, pads: &Pads, are: fn(&Pads, u32) -> bool) -> Option<Stretch> {
        let page = pads.page_blocks;
        while self.at < pads.count && !are(pads, self.at) {
            self.at += page;
        }
        let at = self.at;
        while self.at < pads.count && are(pads, self.at) {
            self.at += page;
        }
        assert!(self.at <= pads.count, "an image has whole pages");
        (self.at > at).then_some(Stretch { at, count: self.at - at })
    }
}

#[cfg(feature = "verify")]
impl Pads {
    /// # Panics
    /// If what is needed would be overwritten, or a page be written for nothing.
    pub(crate) fn assert_invariants(&self, record: &Record) {
        let overwritten = self.needed.iter().zip(&self.written).any(|(a, b)| a & b != 0);
        assert!(!overwritten, "what is needed is not overwritten");
        assert!(self.first <= record.header_pba, "the first page has the header");
        let blocks: u32 = self.written.iter().map(|word| word.count_ones()).sum();
        assert_eq!(blocks, 1 + record.payload, "all of the record has its place");
        assert!(self.reads == 0 || record.is_held, "it waits for what is read");
    }
}
