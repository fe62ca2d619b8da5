//! What is read at a time: a list of blocks, in one record buffer, a block for each in the order of the list.
//!
//! # Invariants
//! - A block that was read badly once is read once more before anything is concluded.
//! - The buffer is given back when no command fills it any more.

use crate::api::{Buffers, Command, IoResult, RecordRef, Target};
use crate::canary::{Canary, sings};
use crate::ios::{Purpose, ScrubPiece};
use crate::shared::{ERRNO_DAMAGED, Shared};
use crate::units::{SegmentIndex, segment_of};
use alloc::vec::Vec;
use coulter_format::checksum::{self, Kind};
use coulter_format::record::RecordView;
use coulter_format::superblock::Superblock;
use coulter_format::{Block, Pba};

/// Blocks of one command: 128 KiB, so that a read of the host does not wait for long behind one, and what is
/// compared at once takes some ten microseconds.
const PIECE_BLOCKS: usize = 32;

/// Commands that are out at a time.
const PIECES_OUT_MAX: u32 = 4;

/// What a block should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// What has this checksum.
    Block { kind: Kind, key: u64, checksum: u32 },
    /// A header of which this is the checksum.
    Header { checksum: u32 },
    /// A superblock that leads where the newest one does.
    Superblock,
    /// A part of a whole that is compared by whoever asked for it.
    Piece,
}

/// How a block was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is yet to be read.
    Nothing,
    /// As it should be.
    Intact,
    /// Otherwise.
    Damaged,
    /// Not at all; the device's error number.
    Unreadable(i32),
}

/// A block to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) content: Content,
    pub(super) pba: Pba,
    pub(super) found: Found,
}

/// Blocks that are read together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    buffer: Option<RecordRef>,
    /// The next item to be asked for.
    next: usize,
    outstanding: u32,
    is_again: bool,
}

/// Whether a batch has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Reads,
    IsRead,
}

impl Batch {
    pub(super) fn add(&mut self, content: Content, pba: Pba) {
        assert!(self.buffer.is_none(), "a batch is listed before it is read");
        // Superblock A lies where nothing else does.
        let is_somewhere = pba != Pba::NOWHERE || content == Content::Superblock;
        assert!(is_somewhere, "what is read is somewhere");
        self.items.push(Item { content, pba, found: Found::Nothing });
    }

    /// Whether it is being read, or has been and nobody has looked at it yet.
    pub(super) fn is_in_hand(&self) -> bool {
        self.buffer.is_some()
    }

    /// Begins to read what is listed into `buffer`, in the order in which it lies.
    pub(super) fn begin(
        &mut self,
        shared: &mut Shared,
        buffer: RecordRef,
        is_ordered: bool,
    ) -> Progress {
        assert!(self.buffer.is_none() && self.outstanding == 0, "one batch at a time");
        assert!(self.items.len() < crate::api::RECORD_BLOCKS, "a batch fits into a buffer");
        if is_ordered {
            self.items.sort_unstable_by_key(|item| item.pba.0);
        }
        (self.buffer, self.next, self.is_again) = (Some(buffer), 0, false);
        self.advance(shared)
    }

    /// Gives the buffer back.
    pub(super) fn end(&mut self, shared: &mut Shared) {
        assert_eq!(self.outstanding, 0, "nothing fills it any more");
        self.items.clear();
        if let Some(buffer) = self.buffer.take() {
            shared.log.give_back(buffer);
        }
    }

    /// The content of an item, after it was read.
    pub(super) fn block<'b>(&self, index: usize, buffers: &'b impl Buffers) -> &'b Block {
        assert!(index < self.items.len(), "an item of this batch");
        &buffers.record(self.buffer.expect("a batch that was read has a buffer"))[index]
    }

    /// The blocks of all items, after they were read.
    pub(super) fn blocks<'b>(&self, buffers: &'b impl Buffers) -> &'b [Block] {
        let buffer = self.buffer.expect("a batch that was read has a buffer");
        &buffers.record(buffer)[..self.items.len()]
    }

    /// Asks for what is still to be read.
    fn go_on(&mut self, shared: &mut Shared) {
        while self.outstanding < PIECES_OUT_MAX {
            let wanted = |item: &Item| item.found != Found::Intact;
            let rest = self.items.get(self.next..).unwrap_or_default();
            let Some(skipped) = rest.iter().position(wanted) else {
                self.next = self.items.len();
                return;
            };
            self.next += skipped;
            let first = self.items[self.next].pba;
            let segment = segment_of(&shared.superblock.geometry, first);
            let count = self.items[self.next..].iter().take(PIECE_BLOCKS).enumerate();
            let goes_on = |(index, item): &(usize, &Item)| {
                wanted(item)
                    && item.pba == first.plus(*index as u32)
                    && segment_of(&shared.superblock.geometry, item.pba) == segment
            };
            let count = count.take_while(goes_on).count();
            self.read(shared, segment, count);
        }
    }

    fn read(&mut self, shared: &mut Shared, segment: Option<SegmentIndex>, count: usize) {
        assert!(count > 0, "a command reads something");
        let place = self.next;
        self.next += count;
        assert!(self.next <= self.items.len(), "what is read is listed");
        if sings(Canary::ScrubSkipsSegment) && segment.is_some_and(|s| s.0.is_multiple_of(3)) {
            self.items[place..place + count].iter_mut().for_each(|i| i.found = Found::Intact);
            return;
        }
        if let Some(segment) = segment {
            shared.segments.begin_read(segment);
        }
        self.outstanding += 1;
        let record = self.buffer.expect("a batch that is read has a buffer");
        let target = Target::RecordPart { record, block: place as u32 };
        let command = Command::Read { pba: self.items[place].pba, count: count as u32, target };
        let piece = ScrubPiece { segment, place: place as u16, count: count as u16 };
        shared.ios.start(Purpose::Scrub(piece), command);
    }

    /// A piece has been read, or could not be.
    pub(super) fn completed(
        &mut self,
        shared: &mut Shared,
        piece: ScrubPiece,
        result: IoResult,
        buffers: &impl Buffers,
    ) -> Progress {
        assert!(self.outstanding > 0, "a piece ends once");
        self.outstanding -= 1;
        if let Some(segment) = piece.segment {
            shared.segments.end_read(segment);
        }
        let first = usize::from(piece.place);
        assert!(first + usize::from(piece.count) <= self.items.len(), "it is of this batch");
        for index in first..first + usize::from(piece.count) {
            self.items[index].found = match result {
                Err(errno) => Found::Unreadable(errno),
                Ok(()) if self.is_intact(shared, index, buffers) => Found::Intact,
                Ok(()) => Found::Damaged,
            };
        }
        self.advance(shared)
    }

    /// Asks for more; for what was bad once more if nothing else is left.
    fn advance(&mut self, shared: &mut Shared) -> Progress {
        self.go_on(shared);
        if self.outstanding > 0 {
            return Progress::Reads;
        }
        assert_eq!(self.next, self.items.len(), "all of it was asked for");
        let all_intact = self.items.iter().all(|item| item.found == Found::Intact);
        if all_intact || self.is_again {
            return Progress::IsRead;
        }
        // Perhaps the device read badly once, or the block was written over just then.
        (self.next, self.is_again) = (0, true);
        self.go_on(shared);
        Progress::Reads
    }

    fn is_intact(&self, shared: &Shared, index: usize, buffers: &impl Buffers) -> bool {
        if sings(Canary::ScrubBelieves) {
            return true;
        }
        let (block, Item { content, pba, .. }) = (self.block(index, buffers), self.items[index]);
        match content {
            Content::Block { kind, key, checksum } => checksum::block(kind, key, block) == checksum,
            Content::Header { checksum } => {
                let view = RecordView::decode(block, &shared.superblock.store, pba);
                view.is_ok_and(|view| view.checksum() == checksum)
            }
            Content::Superblock => is_superblock(shared, block, pba),
            Content::Piece => true,
        }
    }
}

/// Whether a block is this store's superblock. While nothing is being written all copies lead to the same
/// checkpoint.
fn is_superblock(shared: &Shared, block: &Block, pba: Pba) -> bool {
    let Ok(found) = Superblock::decode(block) else { return false };
    let newest = &shared.superblock;
    let may_differ = shared.phase != crate::Phase::Running || shared.signals.checkpoint_is_active();
    found.store == newest.store
        && found.belongs_at(pba)
        && (may_differ || says_the_same(&found, newest))
}

/// Whether two superblocks say the same, but for what differs between the two of a checkpoint or an opening.
fn says_the_same(found: &Superblock, newest: &Superblock) -> bool {
    let Superblock { generation, epoch_max, .. } = *newest;
    Superblock { generation, epoch_max, ..*found } == *newest
}

impl Found {
    /// What is told of it.
    pub(super) fn trouble(self) -> Option<super::Trouble> {
        match self {
            Found::Intact => None,
            Found::Damaged => Some(super::Trouble::Damaged),
            Found::Unreadable(errno) => Some(super::Trouble::Unreadable(errno)),
            Found::Nothing => Some(super::Trouble::Unreadable(ERRNO_DAMAGED)),
        }
    }
}

#[cfg(feature = "verify")]
impl Batch {
    /// Buffers that it has been lent.
    pub(super) fn lent(&self) -> usize {
        usize::from(self.buffer.is_some())
    }

    /// # Panics
    /// If it waits for other commands than there are.
    pub(super) fn assert_invariants(&self, out: usize) {
        assert_eq!(self.outstanding as usize, out, "a scrub waits for its commands");
        assert!(out == 0 || self.buffer.is_some(), "what is read goes somewhere");
    }
}
