//! The cleaner: copies what is still valid out of a segment, so that the segment becomes free.
//!
//! A victim is read in chunks of whole records (see `chunk`). Record headers say what every block was written
//! as; the map (or the checkpoint's lists) says whether it still lies there. What does is copied
//! into the cleaning stream as a *relocation*: on arrival it takes effect only if the source is
//! still current, so overwrites and reads in the meantime need no lock and no table.
//!
//! # Power-loss contract
//! The source stays intact until the segment is opened again, and that happens only after a
//! checkpoint is durable in which nothing points into it.
//!
//! # Invariants
//! - A checkpoint is cut only while no relocation is on its way.
//! - Every address whose old location in the victim may still be counted is settled, so when the
//!   last relocation arrives, nothing of the victim is counted (save a checkpoint's body, which
//!   the next checkpoint replaces).

use crate::Engine;
use crate::api::{Buffers, Phase, RecordRef};
use crate::canary::{Canary, sings};
use crate::chunk::{Block, Chunks};
use crate::loads::Waiter;
use crate::map::{LoadPurpose as Purpose, Lookup, Settled};
use crate::restraint::Reason;
use crate::segments::State;
use crate::units::{Origin, SegmentIndex, Sequence, Stream};
use coulter_format::checksum::{self, Kind};
use coulter_format::record::{BlockWord, Extent, SHORT_BLOCKS_MAX};
use coulter_format::{BlockPointer, Lba};

/// Relocations that wait for more while the cleaner rests: enough for a header to weigh little, and
/// no more than a device takes at once without a write of the host waiting for long. If the host's own
/// records are longer, as many as these have.
const GATHERED_MAX: u32 = 64;

/// Leaves loaded ahead of the block in hand.
const AHEAD: usize = 32;

/// What a segment is gone through for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Task {
    /// What is current is copied out.
    #[default]
    Clean,
    /// What is current is noted: the rest may become holes.
    Search,
}

/// Where the cleaner is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Idle,
    /// Chunks of a segment, or a range of host blocks, are being read and looked at.
    Busy,
}

/// The cleaner's state.
#[derive(Default)]
pub(crate) struct Cleaner {
    pub(crate) stage: Stage,
    task: Task,
    pub(crate) segment: Option<SegmentIndex>,
    /// Where its blocks go, and when the host wrote them, on average.
    pub(crate) stream: Option<Stream>,
    time: u64,
    /// Of the segment when it was chosen.
    pub(crate) life: u32,
    /// Whether only what is current of it is read.
    pub(crate) reads_sparsely: bool,
    /// The place in it of the next record to be listed.
    pub(crate) next: u32,
    pub(crate) chunks: Chunks,
    /// The next block of the first chunk to be looked at, and how many of it were copied.
    cursor: usize,
    pub(crate) copied: u64,
    /// Whether the segment before this one was searched, not cleaned.
    has_searched: bool,
    /// When to look again for a segment that may have holes, if there was none.
    pub(crate) search_again: Sequence,
    /// When no victim was found: applied sequence, usable segments, least gain.
    pub(crate) fruitless: Option<(Sequence, usize, u32)>,
    /// Some block's address lies below a damaged map page: whether the block is current is not known.
    pub(crate) doubtful: bool,
    /// The chunk was read a second time, because a block did not match its checksum.
    again: bool,
    /// The error number of the latest read that failed: its segment was left as it is.
    pub(crate) unreadable: Option<i32>,
    pub(crate) parked: bool,
    credit: u64,
    /// Whether one of the segments that are left to metadata may be taken for this victim.
    pub(crate) borrows: bool,
    /// Valid blocks of the latest victim, for the credit.
    latest_valid: u32,
}

impl Cleaner {
    pub(crate) fn resume(&mut self) {
        self.parked = false;
    }

    /// The segment that is being emptied.
    pub(crate) fn victim(&self) -> Option<SegmentIndex> {
        self.segment.filter(|_| self.task == Task::Clean)
    }

    /// A range of host blocks is being read into `buffer`, to be relocated to `stream`.
    pub(crate) fn begin_range(&mut self, buffer: RecordRef, stream: Stream, time: u64) {
        assert!(self.segment.is_none(), "one chunk at a time");
        self.borrows = false;
        self.task = Task::Clean;
        self.chunks.take_range(buffer);
        (self.stream, self.time) = (Some(stream), time);
        (self.cursor, self.copied) = (0, 0);
        self.stage = Stage::Busy;
    }

    /// The host wrote blocks; what that is worth is decided when the cleaner looks.
    pub(crate) fn earn(&mut self, blocks: u64) {
        self.credit += blocks;
    }
}

impl Engine {
    pub(crate) fn pump_cleaner(&mut self, buffers: &mut impl Buffers) {
        let is_apart = self.placer.splits_user_data();
        self.pacing.update(self.empty_with_space(), is_apart);
        self.leave_freed_victim();
        if self.phase != Phase::Running || self.checkpointer.is_quiescing() {
            self.seal_all_of(Origin::Cleaning, buffers);
            return;
        }
        let mut turns = 0;
        while !self.cleaner.parked && turns < 4 {
            let reason = self.reason_for_step();
            let may_search = self.restraint.lets_search();
            let may_go_on = reason.is_some() || (may_search && self.is_searching());
            let goes_on = match self.cleaner.stage {
                Stage::Idle => {
                    let searches_first = may_search && !self.cleans_before_searching(reason);
                    (searches_first && self.begin_search())
                        || reason.is_some_and(|reason| self.begin_step(reason, buffers))
                        || (may_search && !searches_first && self.begin_search())
                }
                Stage::Busy => may_go_on && self.work_on_chunks(buffers),
            };
            turns += 1;
            if !goes_on {
                break;
            }
        }
        if self.is_searching() || !self.may_gather() {
            self.seal_all_of(Origin::Cleaning, buffers);
        }
    }

    /// Whether what the cleaner has copied may wait for more: while it works, and while it only rests in
    /// step with the host. A step copies a few blocks; a header and a command for so few would cost as
    /// much as they do. In the midst of a victim nobody misses what waits, for the victim is not free
    /// before its end; at the end it waits for what the host writes meanwhile, if that is anything.
    fn may_gather(&mut self) -> bool {
        let gathered = self.gathered();
        if gathered == 0 {
            return true;
        }
        if self.sweeper.wanted_memory {
            return false;
        }
        let is_busy = self.cleaner.stage == Stage::Busy;
        match self.reason_for_step() {
            Some(_) => is_busy,
            None if self.pacing.is_scarce() || gathered >= self.gathered_max() => false,
            None => is_busy || self.log.in_flight(Origin::User) > 0,
        }
    }

    fn gathered_max(&self) -> u32 {
        GATHERED_MAX.max(self.log.user_record_length.min(SHORT_BLOCKS_MAX as u32))
    }

    /// Blocks that wait in the largest record of relocations.
    fn gathered(&self) -> u32 {
        let filled = Stream::ALL.iter().filter_map(|s| self.log.filled_by(*s, Origin::Cleaning));
        filled.map(|record| self.log.record(record).payload).max().unwrap_or(0)
    }

    /// A victim whose last block was overwritten is free without the cleaner, and may soon be
    /// written anew. What was listed of it would then describe a former life, in which the same
    /// address may have lain at the same place: it must not be looked at any more.
    fn leave_freed_victim(&mut self) {
        let Some(victim) = self.cleaner.segment else { return };
        let segment = self.segments.segment(victim);
        let same_life = segment.state == State::Closed && segment.life == self.cleaner.life;
        let given_up = self.is_searching() && !segment.watched;
        if !same_life || given_up {
            self.end_victim();
        }
    }

    /// Whether to win a segment comes before looking for holes. Metadata goes to empty segments only:
    /// where the host may take none any more, nor fill holes, one is cleaned for each that is
    /// searched, and on the floor nothing is searched at all if there is a victim.
    fn cleans_before_searching(&self, reason: Option<Reason>) -> bool {
        match reason {
            Some(Reason::Floor) => true,
            Some(Reason::Scarce) => {
                let host_waits = self.segments.usable_count() <= self.pacing.kept_by_user();
                host_waits && self.cleaner.has_searched
            }
            _ => false,
        }
    }

    fn begin_step(&mut self, reason: Reason, buffers: &mut impl Buffers) -> bool {
        match reason {
            Reason::Defrag => self.gather_range(),
            _ => self.begin_victim(reason, buffers),
        }
    }

    /// Why the cleaner should take its next step, if it should.
    fn reason_for_step(&mut self) -> Option<Reason> {
        let size = self.superblock.geometry.segment_size;
        let valid = self.cleaner.latest_valid;
        let worth = self.pacing.credit_for(self.cleaner.credit, valid, size);
        if worth == 0 {
            self.cleaner.credit = 0;
        }
        let paced = self.pacing.wants_cleaning(worth);
        self.reason_to_clean(paced)
    }

    fn begin_victim(&mut self, reason: Reason, buffers: &mut impl Buffers) -> bool {
        let Some(victim) = self.choose_victim(reason) else { return false };
        self.statistics.victims_ahead += u64::from(reason == Reason::Idle);
        self.cleaner.latest_valid = self.segments.segment(victim).valid;
        self.begin_segment(victim, Task::Clean);
        self.cleaner.time = self.segments.mean_time(victim);
        let clock = self.log.write_clock;
        let stream = self.placer.cleaning_stream(clock.saturating_sub(self.cleaner.time));
        // What was begun for another one would wait for long, and its victim with it.
        if self.cleaner.stream.replace(stream).is_some_and(|before| before != stream) {
            self.seal_all_of(Origin::Cleaning, buffers);
        }
        true
    }

    fn begin_segment(&mut self, segment: SegmentIndex, task: Task) {
        self.cleaner.task = task;
        self.cleaner.has_searched = task == Task::Search;
        self.cleaner.segment = Some(segment);
        self.cleaner.life = self.segments.segment(segment).life;
        self.cleaner.next = 0;
        (self.cleaner.cursor, self.cleaner.copied) = (0, 0);
        self.cleaner.doubtful = false;
        self.cleaner.stage = Stage::Busy;
        self.cleaner.reads_sparsely = self.suits_sparse_reading(segment);
    }

    pub(crate) fn is_searching(&self) -> bool {
        self.cleaner.stage != Stage::Idle && self.cleaner.task == Task::Search
    }

    /// Begins to look for holes in a segment.
    fn begin_search(&mut self) -> bool {
        let Some(segment) = self.choose_to_search() else { return false };
        self.segments.watch(segment);
        self.begin_segment(segment, Task::Search);
        true
    }

    /// Reads, and looks at what has been read. False: must wait.
    fn work_on_chunks(&mut self, buffers: &mut impl Buffers) -> bool {
        if self.cleaner.segment.is_some() {
            let may_read_ahead = self.restraint.lets_search();
            self.read_chunks(may_read_ahead, buffers);
        }
        let chunk = self.cleaner.chunks.first();
        if !chunk.is_ready() {
            return false;
        }
        if chunk.has_failed() {
            // What cannot be read cannot be moved. The segment stays as it is; its blocks give errors
            // when they are read, and the cleaner takes another one.
            self.end_victim();
            return true;
        }
        self.sort_blocks(buffers)
    }

    /// Looks at the chunk's blocks one by one. False: must wait.
    fn sort_blocks(&mut self, buffers: &mut impl Buffers) -> bool {
        // Settling addresses notes them in the journal, beside what was promised to others.
        if !self.map.journal_has_room_to_settle(self.cleaner.chunks.first().blocks.len()) {
            self.checkpointer.wanted = true;
            return false;
        }
        while self.cleaner.cursor < self.cleaner.chunks.first().blocks.len() {
            let block = self.cleaner.chunks.first().blocks[self.cleaner.cursor];
            let goes_on = match self.is_current(&block) {
                Standing::Current if self.is_searching() => {
                    self.segments.found_counted(block.pba, block.header);
                    true
                }
                Standing::Current => self.relocate(&block, buffers),
                Standing::Outdated => true,
                Standing::Doubtful => {
                    // Not this time, but when the sweep has written the leaf anew.
                    self.cleaner.doubtful = true;
                    let per_page = coulter_format::map_page::ENTRIES_PER_PAGE as u64;
                    let leaf =
                        if block.kind == Kind::Data { block.key / per_page } else { block.key };
                    self.map.give_up_damaged(leaf);
                    true
                }
                Standing::Unknown(leaf) => {
                    self.cleaner.parked = true;
                    self.load_for(leaf, Waiter::Cleaner, Purpose::Clean);
                    self.load_ahead_of_cleaner();
                    false
                }
            };
            if !goes_on {
                return false;
            }
            self.cleaner.cursor += 1;
        }
        self.end_chunk();
        true
    }

    /// Whether the map, or the checkpoint, says that the block lies there.
    fn is_current(&mut self, block: &Block) -> Standing {
        let segment = self.segments.segment(self.segments.of(block.pba));
        if segment.life != block.life || (self.defrag.has_chunk && segment.watched) {
            return Standing::Outdated;
        }
        let now = self.log.now();
        // By its checksum too: in a patched segment the headers of dead records may be left, which say
        // of a block what it was before.
        let is_here = |pointer: BlockPointer| {
            let same = pointer.checksum == block.checksum || sings(Canary::StaleHeaderBelieved);
            pointer.pba == block.pba && same
        };
        let lies_here = |pointer: Option<BlockPointer>| match pointer {
            Some(pointer) if is_here(pointer) => Standing::Current,
            _ => Standing::Outdated,
        };
        match block.kind {
            Kind::Data => {
                let lba = Lba(block.key);
                let leaf = block.key / coulter_format::map_page::ENTRIES_PER_PAGE as u64;
                match self.map.lookup(lba) {
                    Lookup::Mapped(pointer) if is_here(pointer) => Standing::Current,
                    Lookup::Miss(leaf) => Standing::Unknown(leaf),
                    Lookup::Damaged if self.map.is_doubtful(leaf) => Standing::Doubtful,
                    Lookup::Damaged => Standing::Outdated,
                    _ => match self.map.settle(&mut self.segments, lba, now) {
                        Settled::Done => Standing::Outdated,
                        Settled::MustLoad => Standing::Unknown(leaf),
                        Settled::Damaged => Standing::Doubtful,
                    },
                }
            }
            Kind::Leaf if self.map.root_is_damaged(block.key) => Standing::Doubtful,
            Kind::Leaf => match self.map.leaf_standing(block.key) {
                Some(pointer) => lies_here(pointer),
                None => Standing::Unknown(block.key),
            },
            Kind::Root => lies_here(self.map.root_page(block.key)),
            kind => lies_here(self.checkpointer.pointer(kind, block.key)),
        }
    }

    fn load_ahead_of_cleaner(&mut self) {
        let ahead = self.cleaner.cursor + 1..self.cleaner.chunks.first().blocks.len();
        let mut asked = 0;
        for index in ahead {
            let block = self.cleaner.chunks.first().blocks[index];
            if block.kind != Kind::Data || asked == AHEAD {
                continue;
            }
            if let Lookup::Miss(leaf) = self.map.lookup(Lba(block.key)) {
                self.load_for(leaf, Waiter::Nobody, Purpose::Clean);
                asked += 1;
            }
        }
    }

    /// Copies a block into the cleaning stream. False: no room now.
    fn relocate(&mut self, block: &Block, buffers: &mut impl Buffers) -> bool {
        let buffer = self.cleaner.chunks.first().buffer();
        let content = &buffers.record(buffer)[block.place as usize];
        if checksum::block(block.kind, block.key, content) != block.checksum {
            if self.defrag.has_chunk {
                // Nothing needs it to be moved. Who reads it is told.
                self.statistics.corrupt_blocks += 1;
                return true;
            }
            if !self.cleaner.again {
                // Perhaps the device read badly once. If not, the block is moved as it is, with the
                // checksum that it should have: it goes on giving an error, never wrong bytes.
                self.cleaner.again = true;
                self.read_again();
                return false;
            }
            self.statistics.corrupt_blocks += 1;
        }
        let extent = Extent { key: block.key, count: 1, kind: block.kind, relocated: true };
        let is_data = block.kind == Kind::Data;
        let Some(target) = self.cleaning_record(&extent, buffers) else {
            self.leave_victim_without_room();
            return false;
        };
        if is_data && !self.map.try_start_relocation(Lba(block.key)) {
            // Those on their way arrive and make room; what else is short makes the sweep urgent.
            if self.log.record(target).extents.is_empty() {
                self.log.abandon(target);
            }
            self.seal_all_of(Origin::Cleaning, buffers);
            self.seal_what_holds_promises(buffers);
            return false;
        }
        let record = self.log.record_mut(target);
        buffers.relocate(buffer, block.place, target, record.payload);
        record.reserved += usize::from(is_data);
        record.timed += u32::from(is_data);
        record.times += u128::from(self.cleaner.time) * u128::from(is_data);
        record.words.push(BlockWord { checksum: block.checksum, address: block.pba });
        record.push_extent(extent);
        self.segments.relocation_began(block.pba);
        let record = self.log.record(target);
        let in_holes = record.places.is_some();
        // Into holes, nothing that was won is used up.
        self.cleaner.copied += u64::from(!in_holes);
        true
    }

    /// What is short may be what was promised to a group that waits for what the cleaner gains. Its place in
    /// the log is taken already, so it goes, and is paid for afterwards.
    fn seal_what_holds_promises(&mut self, buffers: &mut impl Buffers) {
        let is_quiet = [Origin::Cleaning, Origin::User].iter().all(|o| self.log.in_flight(*o) == 0);
        if is_quiet && self.filled_by_user().1.is_some() {
            self.seal_group(buffers);
        }
    }

    /// A record for relocations: of the victim's stream, or, if there is no room for that, of any
    /// that the cleaner has begun.
    fn cleaning_record(
        &mut self,
        extent: &Extent,
        buffers: &mut impl Buffers,
    ) -> Option<RecordRef> {
        let stream = self.cleaner.stream.expect("a victim was chosen");
        if let Some(record) = self.log.fitting(stream, Origin::Cleaning, extent) {
            return Some(record);
        }
        self.seal(stream, buffers);
        let keep = self.kept_by_cleaner();
        let begin = |engine: &mut Engine, stream| {
            engine.log.begin(&mut engine.segments, stream, Origin::Cleaning, 1, keep)
        };
        if let Some(record) = begin(self, stream) {
            return Some(record);
        }
        let size = self.superblock.geometry.segment_size;
        for other in self.placer.cleaning_streams() {
            if let Some(record) = self.log.fitting(*other, Origin::Cleaning, extent) {
                return Some(record);
            }
            if self.log.filling(*other).is_none() && self.log.head_takes(*other, size, 1) {
                return begin(self, *other);
            }
        }
        // What is full must go before there is a buffer again.
        self.seal_all_of(Origin::Cleaning, buffers);
        None
    }

    fn end_chunk(&mut self) {
        if self.is_searching() {
            self.end_searched_chunk();
            return;
        }
        if self.defrag.has_chunk {
            self.end_range();
            return;
        }
        let chunk = self.cleaner.chunks.first();
        let (covered, is_last) = (u64::from(chunk.covered()), chunk.is_last());
        let gained = covered.saturating_sub(self.cleaner.copied);
        let size = self.superblock.geometry.segment_size;
        // What was gone through is paid from the credit, in user blocks.
        let rate = self.pacing.credit_for(1 << 20, self.cleaner.latest_valid, size);
        let price = (covered << 20).checked_div(rate).unwrap_or(self.cleaner.credit);
        self.cleaner.credit = self.cleaner.credit.saturating_sub(price);
        self.next_chunk();
        self.pacing.gain(gained);
        if is_last {
            let segment = self.cleaner.segment.expect("a victim was being cleaned");
            if !self.cleaner.doubtful {
                self.segments.went_through(segment);
            }
            self.statistics.segments_cleaned += 1;
            self.end_victim();
        }
    }

    fn next_chunk(&mut self) {
        self.leave_chunk();
        self.cleaner.again = false;
        (self.cleaner.cursor, self.cleaner.copied) = (0, 0);
        self.restless = true;
    }

    fn end_searched_chunk(&mut self) {
        let is_last = self.cleaner.chunks.first().is_last();
        self.next_chunk();
        if is_last {
            let segment = self.cleaner.segment.expect("a segment was being searched");
            self.segments.holes_known(segment);
            self.drop_victim();
        }
    }

    /// There is no segment to copy into. Another victim may fit into what is left of the head: an
    /// emptier one, or this one, which has less left by now.
    fn leave_victim_without_room(&mut self) {
        let size = self.superblock.geometry.segment_size;
        let mut streams = self.placer.cleaning_streams().iter();
        let segments_are_short = !streams.any(|stream| self.log.head_takes(*stream, size, 1))
            && self.segments.usable_count() <= self.kept_by_cleaner();
        if segments_are_short && self.defrag.has_chunk {
            self.drop_range();
        } else if segments_are_short {
            self.drop_victim();
        }
    }

    fn end_victim(&mut self) {
        let segment = self.cleaner.segment.expect("a victim was being cleaned");
        if self.is_searching() {
            if self.segments.segment(segment).watched {
                self.segments.searched_in_vain(segment, 0);
            }
        } else {
            self.segments.segment_mut(segment).exhausted = true;
        }
        self.drop_victim();
    }

    pub(crate) fn drop_victim(&mut self) {
        self.cleaner.segment = None;
        self.abandon_chunks();
        self.cleaner.again = false;
        self.cleaner.parked = false;
        self.cleaner.stage = Stage::Idle;
    }
}

/// What is known of a block in the victim.
enum Standing {
    Current,
    Outdated,
    /// The page that would tell is damaged. The block stays where it is.
    Doubtful,
    /// The leaf of this key must be loaded first.
    Unknown(u64),
}
