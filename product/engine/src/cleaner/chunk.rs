//! Reading the segment that the cleaner is at: a chunk of whole records at a time.
//!
//! ```text
//! Unread    the first blocks are on their way: a header, or a stretch; then what a long record lacks
//! Listed    what its records say is listed; ready when all that is wanted of them has arrived
//! ```
//! Two chunks are in hand at most. While one is gone through, the next is read: it begins where the
//! records of the first end, which is known as soon as these are listed, and takes over what was read
//! beyond.
//!
//! Where little is current and records are long, only that little is read: first the header, then the
//! stretches of its payload to which the map still leads. Looking for holes needs no payload at all.
//!
//! # Invariants
//! - Blocks of a chunk lie in its buffer at their distance from its start, so what was not read at
//!   first can be read in its place.
//! - What is in the buffer is believed only by its checksum. A block that the map led to when it was
//!   not read for that reason cannot come to be current again: nothing is written to a segment that is
//!   being cleaned.
//! - A buffer is given back when no command fills it any more, whatever has become of its segment.

use super::Cleaner;
use crate::api::{Buffers, Command, IoResult, RECORD_BLOCKS, RecordRef, Target};
use crate::canary::{Canary, sings};
use crate::ios::Purpose;
use crate::memory::{self, NoMemory};
use crate::shared::Shared;
use crate::units::{SegmentIndex, segment_start};
use alloc::vec::Vec;
use coulter_format::checksum::Kind;
use coulter_format::record::{RecordView, SHORT_BLOCKS_MAX};
use coulter_format::{Lba, Pba};

/// Blocks from the header of a record to its end, from which on it is worth a command of its own to
/// read only its header.
const LONG_RECORD: u32 = 24;

/// Of a segment, the share that is current, as a divisor, up to which only that is read.
const SPARSE_SHARE: u32 = 8;

/// Blocks that are read in vain rather than beginning another command behind them: about what a
/// device transfers in the time of a command, on a disk in a cloud as on an SSD.
const GAP_MAX: u32 = 8;

/// Blocks of one command: 256 KiB. Several at once are read sooner than one that is longer, on an SSD,
/// and where operations are counted a longer one counts as so many.
const PIECE: u32 = 64;

/// Blocks that are read at once where all are wanted and the map is not wholly in memory: a record that is
/// not long, and its header. With more in hand more of the map would be wanted at once.
const STRETCH: u32 = 1 + SHORT_BLOCKS_MAX as u32;

/// Chunks in hand.
const COUNT: usize = 2;

/// A block of the segment, as its record describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) kind: Kind,
    pub(crate) key: u64,
    pub(crate) checksum: u32,
    pub(crate) pba: Pba,
    /// Its place in the chunk's buffer.
    pub(crate) place: u32,
    /// Of its segment when it was listed.
    pub(crate) life: u32,
    /// Where the header lies that describes it, if that is how it was found.
    pub(crate) header: Pba,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BlockState {
    #[default]
    Empty,
    Unread,
    Listed,
    /// Nobody wants it any more, but a command still fills the buffer.
    Abandoned,
}

/// A stretch of a segment in a buffer.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    state: BlockState,
    buffer: Option<RecordRef>,
    segment: SegmentIndex,
    /// The place of its first block in the segment.
    start: u32,
    /// Blocks from there on that are in the buffer, or will be when nothing is outstanding.
    held: u32,
    /// Blocks of the records that are listed; the rest of the segment if none follows.
    covered: u32,
    is_last: bool,
    /// What is to be read before it is listed is decided.
    is_decided: bool,
    outstanding: u32,
    has_failed: bool,
    pub(crate) blocks: Vec<Block>,
}

impl Chunk {
    /// The buffer that it is in.
    pub(crate) fn buffer(&self) -> RecordRef {
        self.buffer.expect("a chunk in hand has a buffer")
    }

    /// Whether it can be gone through.
    pub(crate) fn is_ready(&self) -> bool {
        self.state == BlockState::Listed && self.outstanding == 0
    }

    /// Whether some of it could not be read.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Blocks that are done with when it is, headers included.
    pub(crate) fn covered(&self) -> u32 {
        self.covered
    }

    /// Whether no record follows in its segment.
    pub(crate) fn is_last(&self) -> bool {
        self.is_last
    }
}

/// The chunks in hand.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    slots: [Chunk; COUNT],
    /// The slot of the one that is gone through first.
    first: usize,
    /// The latest record of which only the header had been read was a short one.
    was_short: bool,
}

impl Chunks {
    /// None in hand, with room for as many blocks as a buffer holds, so that listing them asks for none.
    pub(crate) fn new() -> Result<Chunks, NoMemory> {
        let mut chunks = Chunks::default();
        for chunk in &mut chunks.slots {
            chunk.blocks = memory::list(RECORD_BLOCKS)?;
        }
        Ok(chunks)
    }

    /// The one that is gone through first.
    pub(crate) fn first(&self) -> &Chunk {
        &self.slots[self.first]
    }

    pub(crate) fn first_mut(&mut self) -> &mut Chunk {
        &mut self.slots[self.first]
    }

    fn second(&self) -> usize {
        (self.first + 1) % COUNT
    }

    /// Makes an empty slot the first, if nothing is in hand and there is one.
    pub(crate) fn find_empty(&mut self) -> bool {
        if self.first().state == BlockState::Abandoned {
            self.first = self.second();
        }
        self.first().state == BlockState::Empty
    }

    /// A range of host blocks, listed by the caller, is to be read into the first.
    pub(crate) fn take_range(&mut self, buffer: RecordRef) {
        let chunk = self.first_mut();
        assert_eq!(chunk.state, BlockState::Empty, "one thing at a time");
        assert!(chunk.buffer.is_none(), "an empty chunk has no buffer");
        (chunk.state, chunk.buffer) = (BlockState::Listed, Some(buffer));
        (chunk.covered, chunk.outstanding, chunk.has_failed) = (0, 0, false);
    }

    /// A piece of the range is being read.
    pub(crate) fn piece_begun(&mut self) {
        self.first_mut().outstanding += 1;
    }

    /// A piece has been read, or could not be.
    pub(crate) fn piece_ended(&mut self, result: IoResult) {
        let chunk = self.first_mut();
        assert!(chunk.outstanding > 0, "a piece ends once");
        chunk.outstanding -= 1;
        chunk.has_failed |= result.is_err();
    }
}

impl Cleaner {
    /// Reads what comes next, and, as long as `may_read_ahead`, what comes after that.
    pub(crate) fn read_chunks(
        &mut self,
        shared: &mut Shared,
        may_read_ahead: bool,
        buffers: &mut impl Buffers,
    ) {
        let chunks = &mut self.chunks;
        if chunks.find_empty() {
            let first = chunks.first;
            if let Some(buffer) = shared.log.lend() {
                self.begin_chunk(shared, first, buffer, 0, buffers);
            }
        }
        let chunks = &self.chunks;
        let (first, second) = (chunks.first(), chunks.second());
        let follows = first.state == BlockState::Listed && !first.is_last && !first.has_failed;
        if !follows || !may_read_ahead || chunks.slots[second].state != BlockState::Empty {
            return;
        }
        if let Some(buffer) = shared.log.lend_ahead() {
            let carried = self.carry_over(buffer, buffers);
            self.begin_chunk(shared, second, buffer, carried, buffers);
        }
    }

    /// Copies what was read beyond the first chunk's records; returns how many blocks.
    fn carry_over(&self, to: RecordRef, buffers: &mut impl Buffers) -> u32 {
        let first = self.chunks.first();
        let beyond = first.covered..first.held;
        let count = beyond.len() as u32;
        buffers.carry(first.buffer(), beyond.start, count, to);
        count
    }

    /// Begins the chunk that comes next; `carried` blocks of it are there.
    fn begin_chunk(
        &mut self,
        shared: &mut Shared,
        slot: usize,
        buffer: RecordRef,
        carried: u32,
        buffers: &mut impl Buffers,
    ) {
        let segment = self.segment.expect("a segment was chosen");
        let chunk = &mut self.chunks.slots[slot];
        chunk.blocks.clear();
        (chunk.state, chunk.buffer) = (BlockState::Unread, Some(buffer));
        (chunk.segment, chunk.start) = (segment, self.next);
        (chunk.held, chunk.covered) = (carried, 0);
        (chunk.is_last, chunk.has_failed, chunk.is_decided) = (false, false, false);
        if carried > 0 {
            self.look_into_chunk(shared, slot, buffers);
        } else if self.reads_sparsely && !self.chunks.was_short {
            self.read_up_to(shared, slot, 1);
        } else {
            self.read_before_listing(shared, slot, self.stretch(shared, slot));
        }
    }

    /// Blocks that a chunk can have.
    fn window(&self, shared: &Shared, slot: usize) -> u32 {
        let left = shared.superblock.geometry.segment_blocks - self.chunks.slots[slot].start;
        left.min(RECORD_BLOCKS as u32)
    }

    /// Blocks that are read of it at once; more if its first record is longer.
    fn stretch(&self, shared: &Shared, slot: usize) -> u32 {
        let most = if shared.map.holds_all() { RECORD_BLOCKS as u32 } else { STRETCH };
        self.window(shared, slot).min(most)
    }

    /// Whether of a segment, as it is now, payload is to be read only where it is wanted. In a patched
    /// one any block may be a header.
    pub(crate) fn suits_sparse_reading(&self, shared: &Shared, segment: SegmentIndex) -> bool {
        let segment = shared.segments.segment(segment);
        let size = shared.superblock.geometry.segment_blocks;
        !segment.headers().lie_anywhere()
            && (self.is_searching() || segment.valid <= size / SPARSE_SHARE)
    }

    fn read_before_listing(&mut self, shared: &mut Shared, slot: usize, blocks: u32) {
        self.chunks.slots[slot].is_decided = true;
        self.read_up_to(shared, slot, blocks);
    }

    /// Reads a chunk from what it has up to so many blocks.
    fn read_up_to(&mut self, shared: &mut Shared, slot: usize, blocks: u32) {
        let chunk = &mut self.chunks.slots[slot];
        let place = core::mem::replace(&mut chunk.held, blocks);
        assert!(place < blocks && blocks as usize <= RECORD_BLOCKS, "more is read, and has room");
        self.read_blocks(shared, slot, place, blocks - place);
    }

    fn read_blocks(&mut self, shared: &mut Shared, slot: usize, place: u32, count: u32) {
        for piece in (0..count).step_by(PIECE as usize) {
            self.read_piece_of_chunk(shared, slot, place + piece, (count - piece).min(PIECE));
        }
    }

    fn read_piece_of_chunk(&mut self, shared: &mut Shared, slot: usize, place: u32, count: u32) {
        let chunk = &mut self.chunks.slots[slot];
        chunk.outstanding += 1;
        shared.segments.begin_read(chunk.segment);
        self.restraint.spend(count);
        shared.statistics.cleaning_read_blocks += u64::from(count);
        let start = segment_start(&shared.superblock.geometry, chunk.segment).plus(chunk.start);
        let target = Target::RecordPart { record: chunk.buffer(), block: place };
        let command = Command::Read { pba: start.plus(place), count, target };
        shared.ios.start(Purpose::Clean(slot as u8), command);
    }

    /// Reads all of the first chunk again: a block did not match its checksum.
    pub(crate) fn read_again(&mut self, shared: &mut Shared) {
        let first = self.chunks.first;
        let window = self.window(shared, first);
        // What lies beyond its records is on its way too: the next chunk must not take it over now.
        let chunk = self.chunks.first_mut();
        chunk.held = chunk.held.min(chunk.covered);
        self.read_blocks(shared, first, 0, window);
    }

    pub(crate) fn read_completed(
        &mut self,
        shared: &mut Shared,
        slot: u8,
        result: IoResult,
        buffers: &mut impl Buffers,
    ) {
        let slot = usize::from(slot);
        let chunk = &mut self.chunks.slots[slot];
        assert!(chunk.outstanding > 0, "a command of a chunk ends once");
        assert!(chunk.state != BlockState::Empty, "it has a buffer to fill");
        chunk.outstanding -= 1;
        chunk.has_failed |= result.is_err();
        self.unreadable = result.err().or(self.unreadable);
        shared.segments.end_read(chunk.segment);
        if chunk.outstanding > 0 {
            return;
        }
        match chunk.state {
            BlockState::Abandoned => self.empty_chunk(shared, slot),
            // What cannot be read cannot be moved: who comes to it leaves the segment.
            BlockState::Unread if chunk.has_failed => chunk.state = BlockState::Listed,
            BlockState::Unread => self.look_into_chunk(shared, slot, buffers),
            BlockState::Listed | BlockState::Empty => {}
        }
    }

    /// Lists what the blocks say that have arrived, or reads more of them first.
    fn look_into_chunk(&mut self, shared: &mut Shared, slot: usize, buffers: &mut impl Buffers) {
        let chunk = &self.chunks.slots[slot];
        let (held, window) = (chunk.held, self.window(shared, slot));
        let is_decided = chunk.is_decided;
        let span = self.first_span(shared, slot, buffers);
        if is_decided && held < span && span <= window {
            return self.read_before_listing(shared, slot, window.min(span + 1));
        }
        if is_decided || held == window {
            self.list_blocks(shared, slot, held, buffers);
            return self.sort_listed(shared, slot);
        }
        if !self.reads_sparsely {
            let blocks = self.dense_stretch(shared, slot, span);
            if held < blocks {
                return self.read_before_listing(shared, slot, blocks);
            }
            // More was left of a long record's chunk than is read at once here.
            self.list_blocks(shared, slot, held, buffers);
            return self.sort_listed(shared, slot);
        }
        if span >= LONG_RECORD && span <= window {
            self.chunks.was_short = false;
            self.list_blocks(shared, slot, 1, buffers);
            if sings(Canary::RecordPassedOver) {
                self.chunks.slots[slot].blocks.clear();
            }
            self.read_wanted(shared, slot);
            return self.sort_listed(shared, slot);
        }
        if span == 0 || span > window {
            // No record follows.
            self.list_blocks(shared, slot, held, buffers);
            return self.sort_listed(shared, slot);
        }
        // One short record between long ones is read with the header behind it; where they are all short,
        // so many commands are worse than reading all of them.
        let was_short = core::mem::replace(&mut self.chunks.was_short, true);
        let blocks = if was_short { self.stretch(shared, slot) } else { window.min(span + 1) };
        if held < blocks {
            self.read_before_listing(shared, slot, blocks);
        } else {
            self.list_blocks(shared, slot, held, buffers);
            self.sort_listed(shared, slot);
        }
    }

    /// Blocks of a chunk to be read where all are wanted, if it begins with a record of so many. One behind
    /// which no other of its kind has room is read with the header that follows: what is read beyond has to
    /// be copied.
    fn dense_stretch(&self, shared: &Shared, slot: usize, span: u32) -> u32 {
        let (window, stretch) = (self.window(shared, slot), self.stretch(shared, slot));
        let chunk = &self.chunks.slots[slot];
        let headers = shared.segments.segment(chunk.segment).headers();
        let is_alone = span > stretch / 2 && span < window && chunk.held <= span;
        if is_alone && !headers.lie_anywhere() { span + 1 } else { stretch }
    }

    /// Blocks of the record that the chunk begins with; zero if there is none.
    fn first_span(&self, shared: &Shared, slot: usize, buffers: &mut impl Buffers) -> u32 {
        let chunk = &self.chunks.slots[slot];
        let pba = segment_start(&shared.superblock.geometry, chunk.segment).plus(chunk.start);
        let block = &buffers.record(chunk.buffer())[0];
        let view = RecordView::decode(block, &shared.superblock.store, pba);
        view.map_or(0, |view| view.header().span())
    }

    /// Lists the blocks of the records that lie wholly in the chunk and of which the header is among the
    /// first `count` blocks. If that is one, it is the chunk.
    fn list_blocks(
        &mut self,
        shared: &mut Shared,
        slot: usize,
        count: u32,
        buffers: &mut impl Buffers,
    ) {
        let segment = self.segment.expect("a segment is being read");
        let store = shared.superblock.store;
        let cleaner = &mut *self;
        let chunk = &mut cleaner.chunks.slots[slot];
        let start = segment_start(&shared.superblock.geometry, segment).plus(chunk.start);
        let room = shared.superblock.geometry.segment_blocks - chunk.start;
        let end_max = if count == 1 { room } else { count };
        let life = cleaner.life;
        let content = buffers.record(chunk.buffer());
        let headers = shared.segments.segment(segment).headers();
        // What a damaged header hides there, nobody knows.
        cleaner.doubtful |= headers.lie_anywhere();
        let mut at = 0;
        chunk.is_last = loop {
            if at >= count {
                break at == room;
            }
            let Ok(view) = RecordView::decode(&content[at as usize], &store, start.plus(at)) else {
                if headers.lie_anywhere() {
                    at += 1;
                    continue;
                }
                // What the stream left unused when it went on to the next segment, or a header that
                // rotted and hides what lies behind it.
                cleaner.doubtful |= room - at > 1;
                break true;
            };
            let end = at + view.header().span();
            if headers.lie_anywhere() && end > room {
                at += 1;
                continue;
            }
            if end > end_max {
                // The rest of it is in the next chunk, unless it claims to leave the segment.
                cleaner.doubtful |= end > room;
                break end > room;
            }
            let payload = view.entries().filter(|entry| entry.kind.has_payload());
            chunk.blocks.extend(payload.map(|entry| Block {
                kind: entry.kind,
                key: entry.key,
                checksum: entry.word.checksum,
                pba: entry.pba,
                place: entry.pba.0 - start.0,
                life,
                header: view.header().pba,
            }));
            at = headers.behind(at, end);
        };
        // Nothing readable at all: whatever the rest of the segment was, it is not valid.
        assert!(at <= room, "records end inside their segment");
        chunk.covered = if chunk.is_last { room } else { at };
        chunk.state = BlockState::Listed;
        cleaner.next = chunk.start + at;
    }

    /// Puts what is listed in the host's order, which costs nothing here and spares sequential readers a
    /// command where neighbours meet; and fetches what the map says of it into the processor's cache.
    fn sort_listed(&mut self, shared: &mut Shared, slot: usize) {
        let blocks = &mut self.chunks.slots[slot].blocks;
        blocks.sort_unstable_by_key(|block| (block.kind as u8, block.key, block.place));
        let data = blocks.iter().filter(|block| block.kind == Kind::Data);
        shared.map.warm(data.map(|block| Lba(block.key)));
    }

    /// Reads of a chunk that is one record what may be current.
    fn read_wanted(&mut self, shared: &mut Shared, slot: usize) {
        if self.is_searching() {
            return;
        }
        let held = self.chunks.slots[slot].held;
        let mut wanted: Option<(u32, u32)> = None;
        for index in 0..self.chunks.slots[slot].blocks.len() {
            let block = self.chunks.slots[slot].blocks[index];
            let is_data = block.kind == Kind::Data;
            let outdated = is_data && !shared.map.may_lie_at(Lba(block.key), block.pba);
            if block.place < held || outdated {
                continue;
            }
            wanted = Some(match wanted {
                Some((place, end)) if block.place <= end + GAP_MAX => (place, block.place + 1),
                before => {
                    self.read_stretch(shared, slot, before);
                    (block.place, block.place + 1)
                }
            });
        }
        self.read_stretch(shared, slot, wanted);
    }

    fn read_stretch(&mut self, shared: &mut Shared, slot: usize, stretch: Option<(u32, u32)>) {
        if let Some((place, end)) = stretch {
            self.read_blocks(shared, slot, place, end - place);
        }
    }

    /// The first chunk is done with.
    pub(crate) fn leave_chunk(&mut self, shared: &mut Shared) {
        let first = self.chunks.first;
        self.empty_chunk(shared, first);
        self.chunks.first = self.chunks.second();
    }

    /// Nothing in hand is wanted any more.
    pub(crate) fn abandon_chunks(&mut self, shared: &mut Shared) {
        for slot in 0..COUNT {
            let chunk = &mut self.chunks.slots[slot];
            if chunk.outstanding > 0 && !sings(Canary::AbandonedBufferReused) {
                chunk.state = BlockState::Abandoned;
            } else {
                self.empty_chunk(shared, slot);
            }
        }
    }

    fn empty_chunk(&mut self, shared: &mut Shared, slot: usize) {
        let chunk = &mut self.chunks.slots[slot];
        assert!(chunk.outstanding == 0 || sings(Canary::AbandonedBufferReused), "nothing fills it");
        chunk.state = BlockState::Empty;
        if let Some(buffer) = chunk.buffer.take() {
            shared.log.give_back(buffer);
        }
    }
}

#[cfg(feature = "verify")]
impl Cleaner {
    /// The segment that a chunk's commands read.
    pub(crate) fn segment_of(&self, slot: u8) -> SegmentIndex {
        self.chunks.segment_of(slot)
    }

    /// # Panics
    /// See [`Chunks::assert_invariants`].
    pub(crate) fn assert_chunks(&self, out: usize, lent: usize) {
        self.chunks.assert_invariants(out, lent);
        assert!(self.segment.is_none() || self.job.is_some(), "who rests goes through nothing");
    }
}

#[cfg(feature = "verify")]
impl Chunks {
    /// The segment that a slot's commands read.
    pub(crate) fn segment_of(&self, slot: u8) -> SegmentIndex {
        self.slots[usize::from(slot)].segment
    }

    /// # Panics
    /// If chunks wait for other commands, or hold other buffers, than there are.
    pub(crate) fn assert_invariants(&self, out: usize, lent: usize) {
        let outstanding: u32 = self.slots.iter().map(|chunk| chunk.outstanding).sum();
        assert_eq!(outstanding as usize, out, "chunks wait for their commands");
        let held = self.slots.iter().filter(|chunk| chunk.buffer.is_some()).count();
        assert_eq!(held, lent, "what is lent is a chunk's");
        for chunk in &self.slots {
            let is_empty = chunk.state == BlockState::Empty;
            assert_eq!(chunk.buffer.is_none(), is_empty, "a chunk in hand has a buffer");
        }
    }
}
