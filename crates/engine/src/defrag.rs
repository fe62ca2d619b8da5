//! Defragmentation: on demand, what has been scattered is written anew in the host's order.
//!
//! The volume is gone over once, 256 host blocks at a time. Where these lie in more than a few pieces
//! they are read, piece by piece, into one buffer, and relocated from there: by the cleaner's own
//! steps and with its comparison on arrival, so that a crash, an overwrite or a read in the meantime
//! is what it is for cleaning. What is left behind is garbage like any other.
//!
//! # Invariants
//! - It takes a step only while there are segments to spare, and the cleaner earns credit by every
//!   block that it moves, as by the host's.
//! - A block is moved only while its segment is in the life in which it was looked up: in another one
//!   the same address may have come to lie at the same place with other content. And only out of
//!   segments whose holes nobody looks at: see `holes`.
//! - It ends: the position only moves on.

use crate::Engine;
use crate::api::{Command, IoResult, Target};
use crate::chunk::Block;
use crate::ios::Purpose;
use crate::loads::Waiter;
use crate::map::{LoadPurpose, Lookup};
use crate::units::{Origin, SegmentIndex};
use coulter_format::checksum::Kind;
use coulter_format::record::ATOMIC_BLOCKS_MAX;
use coulter_format::{Lba, Pba};

/// Blocks that are looked at together.
const RANGE: u64 = ATOMIC_BLOCKS_MAX as u64;

/// Pieces of 32 blocks (128 KiB) on average are left as they are: a reader that meets one command for
/// each of them is near what the device gives.
const PIECE_BLOCKS: u32 = 32;

/// Ranges that are looked at in one step.
const RANGES_PER_STEP: u32 = 16;

/// Where it is.
#[derive(Debug, Default)]
pub(crate) struct Defrag {
    /// The next host block to be looked at; `None` if nobody wants any of it.
    next: Option<u64>,
    /// Whether the chunk in the cleaner's hands is a range of host blocks.
    pub(crate) has_chunk: bool,
    /// The leaf that was loaded for the range to be looked at.
    loaded: Option<u64>,
}

/// Consecutive blocks of a range that lie one behind the other.
#[derive(Clone, Copy)]
struct Piece {
    pba: Pba,
    place: u32,
    count: u32,
}

impl Engine {
    /// Begins to go over the volume, from its start, and to write scattered blocks anew in the host's
    /// order; or ends it. It ends by itself at the volume's end.
    pub fn set_defrag(&mut self, is_on: bool) {
        if !is_on {
            self.defrag.next = None;
        } else if self.defrag.next.is_none() {
            self.defrag.next = Some(0);
            self.statistics.defrag_next = 0;
        }
    }

    /// Whether it is going on.
    pub fn is_defragmenting(&self) -> bool {
        self.defrag.next.is_some()
    }

    /// Whether the next range may be taken, or is already in hand.
    pub(crate) fn defrag_is_wanted(&self) -> bool {
        let has_room = self.segments.usable_count() > self.pacing.kept_by_user() + 1;
        self.defrag.has_chunk || (self.defrag.next.is_some() && has_room)
    }

    /// Looks for the next range that is scattered, and begins to read it. False: must wait.
    pub(crate) fn gather_range(&mut self) -> bool {
        // What is still on its way has left the place where the map says it lies: moved from there once
        // more, it would arrive twice, and the copy that does not count leaves a gap in the range.
        if !self.log.is_quiet(Origin::Cleaning) || !self.cleaner.chunks.find_empty() {
            return false;
        }
        let volume = self.superblock.geometry.volume_size;
        for _ in 0..RANGES_PER_STEP {
            let Some(first) = self.defrag.next else { return false };
            if first >= volume {
                self.defrag.next = None;
                self.statistics.defrag_passes += 1;
                return false;
            }
            let end = (first + RANGE).min(volume);
            let pieces = match self.list_range(first, end) {
                Ok(pieces) => pieces,
                // In vain: it cannot be read, or did not stay. What is not looked at stays as it is.
                Err(leaf) if self.defrag.loaded.take() == Some(leaf) => {
                    self.pass_range(end);
                    continue;
                }
                Err(leaf) => {
                    self.defrag.loaded = Some(leaf);
                    self.cleaner.parked = true;
                    self.load_for(leaf, Waiter::Cleaner, LoadPurpose::Clean);
                    return false;
                }
            };
            let mapped = self.cleaner.chunks.first().blocks.len() as u32;
            if pieces > 1 && pieces * PIECE_BLOCKS > mapped {
                return self.read_range(mapped);
            }
            self.pass_range(end);
        }
        self.restless = true;
        false
    }

    /// Lists the range's blocks, and says in how many pieces they lie; or the leaf that must be loaded
    /// first.
    fn list_range(&mut self, first: u64, end: u64) -> Result<u32, u64> {
        self.cleaner.chunks.first_mut().blocks.clear();
        let (mut pieces, mut expected) = (0, Pba::NOWHERE);
        for lba in first..end {
            let pointer = match self.map.lookup(Lba(lba)) {
                Lookup::Mapped(pointer) => pointer,
                Lookup::Miss(leaf) => return Err(leaf),
                Lookup::Unmapped | Lookup::Damaged => continue,
            };
            let segment = self.segments.segment(self.segments.of(pointer.pba));
            if segment.watched {
                continue;
            }
            pieces += u32::from(pointer.pba != expected);
            expected = pointer.pba.plus(1);
            let place = 1 + self.cleaner.chunks.first().blocks.len() as u32;
            let (kind, key, checksum) = (Kind::Data, lba, pointer.checksum);
            let (pba, life, header) = (pointer.pba, segment.life, Pba::NOWHERE);
            let block = Block { kind, key, checksum, pba, place, life, header };
            self.cleaner.chunks.first_mut().blocks.push(block);
        }
        Ok(pieces)
    }

    fn read_range(&mut self, mapped: u32) -> bool {
        let Some(buffer) = self.log.lend() else { return false };
        let clock = self.log.write_clock;
        let blocks = self.cleaner.chunks.first().blocks.iter();
        let times =
            blocks.map(|block| u128::from(self.segments.mean_time(self.segments.of(block.pba))));
        let time = (times.sum::<u128>() / u128::from(mapped)) as u64;
        let stream = self.placer.cleaning_stream(clock.saturating_sub(time));
        self.cleaner.begin_range(buffer, stream, time);
        self.defrag.has_chunk = true;
        self.restraint.spend(mapped);
        self.statistics.cleaning_read_blocks += u64::from(mapped);
        let mut piece: Option<Piece> = None;
        for index in 0..self.cleaner.chunks.first().blocks.len() {
            let Block { pba, place, .. } = self.cleaner.chunks.first().blocks[index];
            piece = Some(match piece {
                Some(piece) if self.goes_on(piece, pba) => {
                    Piece { count: piece.count + 1, ..piece }
                }
                before => {
                    self.read_piece(before);
                    Piece { pba, place, count: 1 }
                }
            });
        }
        self.read_piece(piece);
        false
    }

    fn goes_on(&self, piece: Piece, pba: Pba) -> bool {
        piece.pba.plus(piece.count) == pba && self.segments.of(piece.pba) == self.segments.of(pba)
    }

    fn read_piece(&mut self, piece: Option<Piece>) {
        let Some(Piece { pba, place, count }) = piece else { return };
        let segment = self.segments.of(pba);
        self.segments.segment_mut(segment).readers += 1;
        self.cleaner.chunks.piece_begun();
        let record = self.cleaner.chunks.first().buffer();
        let target = Target::RecordPart { record, block: place };
        self.ios.start(Purpose::Defrag(segment), Command::Read { pba, count, target });
    }

    pub(crate) fn piece_read(&mut self, segment: SegmentIndex, result: IoResult) {
        self.segments.segment_mut(segment).readers -= 1;
        self.cleaner.chunks.piece_ended(result);
        let chunk = self.cleaner.chunks.first();
        if chunk.is_ready() && chunk.has_failed() {
            // What cannot be read cannot be moved: it stays where it is, and gives errors.
            self.end_range();
        }
    }

    /// The range in hand is done with.
    pub(crate) fn end_range(&mut self) {
        let moved = self.cleaner.copied;
        self.statistics.defragmented_blocks += moved;
        self.cleaner.earn(moved);
        self.drop_range();
        if let Some(first) = self.defrag.next {
            let volume = self.superblock.geometry.volume_size;
            self.pass_range((first + RANGE).min(volume));
        }
        self.restless = true;
    }

    /// The range in hand must be gathered anew.
    pub(crate) fn drop_range(&mut self) {
        self.defrag.has_chunk = false;
        self.drop_victim();
    }

    fn pass_range(&mut self, end: u64) {
        self.defrag.next = self.defrag.next.map(|_| end);
        self.statistics.defrag_next = end;
    }
}
