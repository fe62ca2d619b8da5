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

use super::chunk::Block;
use super::{Cleaner, Job};
use crate::api::{Command, IoResult, Target};
use crate::ios::Purpose;
use crate::loads::Waiter;
use crate::map::load::LoadPurpose;
use crate::map::lookup::Lookup;
use crate::shared::Shared;
use crate::units::{Origin, SegmentIndex, mean};
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

/// Consecutive blocks of a range that lie one behind the other.
#[derive(Clone, Copy)]
struct Piece {
    pba: Pba,
    place: u32,
    count: u32,
}

impl Cleaner {
    /// Begins to go over the volume, or ends it. Whether it begins.
    pub(crate) fn set_defrag(&mut self, is_on: bool) -> bool {
        let begins = is_on && self.range.next.is_none();
        self.range.next = if is_on { self.range.next.or(Some(0)) } else { None };
        begins
    }

    pub(crate) fn is_defragmenting(&self) -> bool {
        self.range.next.is_some()
    }

    /// Whether the next range may be taken, or is already in hand.
    pub(crate) fn defrag_is_wanted(&self, shared: &Shared) -> bool {
        let has_room = shared.segments.usable_count() > shared.pacing.kept_by_user() + 1;
        self.job == Some(Job::Defrag) || (self.range.next.is_some() && has_room)
    }

    /// Looks for the next range that is scattered, and begins to read it. False: must wait.
    pub(crate) fn gather_range(&mut self, shared: &mut Shared) -> bool {
        // What is still on its way has left the place where the map says it lies: moved from there once
        // more, it would arrive twice, and the copy that does not count leaves a gap in the range.
        if !shared.log.is_quiet(Origin::Cleaning) || !self.chunks.find_empty() {
            return false;
        }
        let volume = shared.superblock.geometry.volume_size;
        for _ in 0..RANGES_PER_STEP {
            let Some(first) = self.range.next else { return false };
            // Of a sparse volume only what is in use is gone over.
            let first = match shared.map.next_in_use(first) {
                in_use if in_use > first && in_use < volume => in_use / RANGE * RANGE,
                in_use => in_use,
            };
            self.pass_range(shared, first);
            if first >= volume {
                self.range.next = None;
                shared.statistics.defrag_passes += 1;
                return false;
            }
            let end = (first + RANGE).min(volume);
            let pieces = match self.list_range(shared, first, end) {
                Ok(pieces) => pieces,
                // In vain: it cannot be read, or did not stay. What is not looked at stays as it is.
                Err(leaf) if self.range.loaded.take() == Some(leaf) => {
                    self.pass_range(shared, end);
                    continue;
                }
                Err(leaf) => {
                    self.range.loaded = Some(leaf);
                    self.parked = true;
                    shared.load_for(leaf, Waiter::Cleaner, LoadPurpose::Clean);
                    return false;
                }
            };
            let mapped = self.chunks.first().blocks.len() as u32;
            if pieces > 1 && pieces * PIECE_BLOCKS > mapped {
                return self.read_range(shared, mapped);
            }
            self.pass_range(shared, end);
        }
        self.has_changed = true;
        false
    }

    /// Lists the range's blocks, and says in how many pieces they lie; or the leaf that must be loaded
    /// first.
    fn list_range(&mut self, shared: &mut Shared, first: u64, end: u64) -> Result<u32, u64> {
        self.chunks.first_mut().blocks.clear();
        let (mut pieces, mut expected) = (0, Pba::NOWHERE);
        for lba in first..end {
            let pointer = match shared.map.lookup(Lba(lba)) {
                Lookup::Mapped(pointer) => pointer,
                Lookup::Miss(leaf) => return Err(leaf),
                Lookup::Unmapped | Lookup::Damaged => continue,
            };
            let segment = shared.segments.segment(shared.segments.of(pointer.pba));
            if segment.keeps_still() {
                continue;
            }
            pieces += u32::from(pointer.pba != expected);
            expected = pointer.pba.plus(1);
            let place = 1 + self.chunks.first().blocks.len() as u32;
            let (kind, key, checksum) = (Kind::Data, lba, pointer.checksum);
            let (pba, life, header) = (pointer.pba, segment.life, Pba::NOWHERE);
            let block = Block { kind, key, checksum, pba, place, life, header };
            self.chunks.first_mut().blocks.push(block);
        }
        Ok(pieces)
    }

    fn read_range(&mut self, shared: &mut Shared, mapped: u32) -> bool {
        assert!(mapped > 0, "a range that is read has blocks");
        assert!(u64::from(mapped) <= RANGE, "and no more than a range has");
        let Some(buffer) = shared.log.lend() else { return false };
        let clock = shared.log.write_clock;
        let blocks = self.chunks.first().blocks.iter();
        let times = blocks
            .map(|block| u128::from(shared.segments.mean_time(shared.segments.of(block.pba))));
        let time = mean(times.sum(), mapped);
        let stream = shared.placer.cleaning_stream(clock.saturating_sub(time));
        self.begin_range(buffer, stream, time);
        self.restraint.spend(mapped);
        shared.statistics.cleaning_read_blocks += u64::from(mapped);
        let mut piece: Option<Piece> = None;
        for index in 0..self.chunks.first().blocks.len() {
            let Block { pba, place, .. } = self.chunks.first().blocks[index];
            piece = Some(match piece {
                Some(piece) if self.goes_on(shared, piece, pba) => {
                    Piece { count: piece.count + 1, ..piece }
                }
                before => {
                    self.read_piece(shared, before);
                    Piece { pba, place, count: 1 }
                }
            });
        }
        self.read_piece(shared, piece);
        false
    }

    fn goes_on(&self, shared: &Shared, piece: Piece, pba: Pba) -> bool {
        piece.pba.plus(piece.count) == pba
            && shared.segments.of(piece.pba) == shared.segments.of(pba)
    }

    fn read_piece(&mut self, shared: &mut Shared, piece: Option<Piece>) {
        let Some(Piece { pba, place, count }) = piece else { return };
        assert!(count > 0 && place > 0, "a piece lies behind where a header would");
        let segment = shared.segments.of(pba);
        shared.segments.begin_read(segment);
        self.chunks.piece_begun();
        let record = self.chunks.first().buffer();
        let target = Target::RecordPart { record, block: place };
        shared.ios.start(Purpose::Defrag(segment), Command::Read { pba, count, target });
    }

    pub(crate) fn piece_read(
        &mut self,
        shared: &mut Shared,
        segment: SegmentIndex,
        result: IoResult,
    ) {
        shared.segments.end_read(segment);
        self.chunks.piece_ended(result);
        let chunk = self.chunks.first();
        if chunk.is_ready() && chunk.has_failed() {
            // What cannot be read cannot be moved: it stays where it is, and gives errors.
            self.end_range(shared);
        }
    }

    /// The range in hand is done with.
    pub(crate) fn end_range(&mut self, shared: &mut Shared) {
        assert_eq!(self.job, Some(Job::Defrag), "a range is in hand");
        assert!(self.copied <= RANGE, "no more was moved than it has");
        let moved = self.copied;
        shared.statistics.defragmented_blocks += moved;
        shared.pacing.earn(moved);
        self.drop_range(shared);
        if let Some(first) = self.range.next {
            let volume = shared.superblock.geometry.volume_size;
            self.pass_range(shared, (first + RANGE).min(volume));
        }
        self.has_changed = true;
    }

    /// The range in hand must be gathered anew.
    pub(crate) fn drop_range(&mut self, shared: &mut Shared) {
        self.drop_victim(shared);
    }

    fn pass_range(&mut self, shared: &mut Shared, end: u64) {
        assert!(self.range.next.is_none_or(|next| next <= end), "the position never goes back");
        self.range.next = self.range.next.map(|_| end);
        shared.statistics.defrag_next = end;
    }
}
