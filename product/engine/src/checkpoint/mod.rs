//! Checkpoints: from time to time the whole state becomes durable, so that recovery has little to
//! replay and freed segments may be written again.
//!
//! ```text
//! Quiesce     relocations and leaf pages on their way arrive
//! ─ cut ─     everything applied up to here is in the checkpoint; images are taken in memory
//! Images      run, root pages, table pages go into the metadata stream; then the list of roots
//! Body        the lists of all those places, in one record; and a second copy of them before the log
//! Flush       … makes all of it durable
//! Superblock  names the body; alternating copies
//! LastFlush   … makes the superblock durable: the checkpoint counts
//! ─ again ─   both for the other copy: the checkpoint before it is no longer needed
//! ```
//!
//! # Power-loss contract
//! Until both copies of the superblock lead to the new checkpoint, nothing that the older one points to
//! is overwritten or trimmed: whichever copy turns out to be unreadable, the other leads to a state
//! that is whole. A superblock is written only after everything that it leads to is durable.
//!
//! The second copy of the body has two places, taken in turn: the copy that the older superblock names is
//! not overwritten either.

mod body;
mod copies;
mod cut;
mod due;
mod lists;
mod root_lists;
mod roots;
mod runs;

use crate::api::{Buffers, Command, IoResult, Phase, RecordRef, RequestId, Target};
use crate::canary::{Canary, sings};
use crate::config::Config;
use crate::create::RESERVED_MAX;
use crate::holes::SEGMENTS_MAX;
use crate::ios::Purpose;
use crate::memory::{self, Apart, NoMemory};
use crate::references::Parities;
use crate::shared::{Checkpointing, Shared};
use crate::units::{Origin, Sequence, Stream};
use alloc::vec::Vec;
pub(crate) use copies::Copies;
use coulter_format::checkpoint::{BODY_SIZE_MAX, Head, SweepPosition};
use coulter_format::checksum::{self, Kind};
use coulter_format::record::Extent;
use coulter_format::superblock::{CheckpointLocation, Superblock};
use coulter_format::{Block, Pba};
pub(crate) use lists::{Lists, RUN_KEY_SHIFT};
pub(crate) use runs::{Run, Runs};

/// Error number when the lists do not fit into a body (ENOSPC); see `create` for why they do.
const ERRNO_TOO_LARGE: i32 = 28;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CutStage {
    #[default]
    Idle,
    /// What was found is made durable, before the other copy is written.
    Found,
    Quiesce,
    Images,
    Body,
    Flush,
    Superblock,
    LastFlush,
}

/// What was true at the cut.
#[derive(Clone, Debug, Default)]
struct Cut {
    sequence: Sequence,
    write_clock: u64,
    sweep: SweepPosition,
    heads: [Option<Head>; Stream::COUNT],
    reserved: Vec<u32>,
    /// Segments of which the holes are reserved.
    holes: Vec<u32>,
    /// How many of the references; others came later.
    references: usize,
    patched: bool,
    may_have_lost: bool,
    clean: bool,
}

/// Which copies of a superblock are being written. One of A and B is always left alone, so whatever
/// becomes of the others there is a whole one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SuperblockWrite {
    /// The other of A and B, at opening. C stays as it is: nothing in it needs to change.
    #[default]
    Announcement,
    /// Only C, in a place of its own where the store has grown: A and B name that place after it is durable.
    /// Until then nobody looks there.
    MovedThird,
    /// One of A and B.
    First,
    /// The other one, and C.
    SecondAndThird,
}

/// The checkpoint being written, and the lists of the newest one.
#[derive(Default)]
pub(crate) struct Checkpointer {
    stage: CutStage,
    new_location: Option<CheckpointLocation>,
    images: Vec<Block>,
    image_keys: Vec<(Kind, u64)>,
    next_image: usize,
    /// Pages of the list of roots from this one on are still to be written.
    next_list: usize,
    /// Keys of what a cut lists no more; empty between cuts.
    gone: Vec<u64>,
    /// Memory of a body; of a store that is only read, none.
    body: Vec<u8>,
    /// Parities of the body that is being encoded.
    parities: Parities,
    cut: Cut,
    /// Holds the second copy of the body while it is being written.
    body_copy: Option<RecordRef>,
    next_superblock: Option<Superblock>,
    /// Writes of it that are out.
    superblock_writes: u32,
    /// Which copies of it these are.
    superblock_write: SuperblockWrite,
    /// Where copy C lies as the durable superblocks say.
    third: Pba,
    /// The superblock found at opening, until the other copy leads where it does and tells the epoch.
    unannounced: Option<Superblock>,
    /// Whether a flush has covered what opening found.
    found_is_durable: bool,
    /// The sequence of the last cut, and of the last flush that a checkpoint began.
    flushing: Sequence,
}

impl Checkpointer {
    /// Nothing is being written yet.
    // Not inlined: its locals would enlarge the caller's stack frame.
    #[inline(never)]
    pub(crate) fn new(config: &Config) -> Result<Apart<Checkpointer>, NoMemory> {
        let body_size = if config.read_only { 0 } else { BODY_SIZE_MAX as usize };
        let mut checkpointer =
            Checkpointer { body: memory::filled(0, body_size)?, ..Checkpointer::default() };
        checkpointer.cut.reserved = memory::list(2 * RESERVED_MAX)?;
        checkpointer.cut.holes = memory::list(2 * SEGMENTS_MAX)?;
        Apart::new(checkpointer)
    }

    pub(crate) fn accept_shutdown(&mut self, shared: &mut Shared, id: RequestId) {
        if shared.poisoned.is_some() || shared.config.read_only || shared.phase == Phase::Closed {
            shared.phase = Phase::Closed;
            let result = shared.poisoned.map_or(Ok(()), |errno| Err(crate::Failure::Device(errno)));
            shared.requests.respond(id, result);
            return;
        }
        shared.phase = Phase::ShuttingDown;
        shared.requests.shutdown = Some(id);
    }

    pub(crate) fn step(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) {
        if self.stage == CutStage::Idle && self.announce_epoch(shared, buffers) {
            return;
        }
        if self.stage == CutStage::Idle && self.is_due(shared) {
            self.enter(shared, CutStage::Quiesce);
        }
        if self.stage == CutStage::Quiesce {
            self.quiesce(shared, buffers);
        }
        // As often as there are images that can be written now.
        while self.stage == CutStage::Images && self.write_images(shared, buffers) {}
        if self.stage == CutStage::Body {
            self.write_body(shared, buffers);
        }
    }

    /// Whether one is due. That runs are too many makes the sweep hurry.
    fn is_due(&self, shared: &mut Shared) -> bool {
        let due = due::decide(shared, self.cut.sequence);
        if let Some(runs_are_too_many) = due.runs_are_too_many {
            shared.signals.sweep_hurry = runs_are_too_many;
        }
        due.is_due
    }

    /// The superblock that opening found: the first thing to be written is its other copy.
    pub(crate) fn announce(&mut self, found: Superblock) {
        assert_eq!(self.stage, CutStage::Idle, "nothing is written before");
        self.third = found.geometry.third_superblock;
        self.unannounced = Some(found);
    }

    /// The only place where the stage changes.
    fn enter(&mut self, shared: &mut Shared, stage: CutStage) {
        let is_next = match (self.stage, stage) {
            (CutStage::Idle, CutStage::Found | CutStage::Superblock | CutStage::Quiesce)
            | (CutStage::Found | CutStage::LastFlush, CutStage::Idle)
            | (CutStage::Quiesce, CutStage::Images)
            | (CutStage::Images, CutStage::Body)
            | (CutStage::Body, CutStage::Flush)
            | (CutStage::Flush, CutStage::Superblock)
            | (CutStage::Superblock, CutStage::LastFlush)
            // The other copy.
            | (CutStage::LastFlush, CutStage::Superblock) => true,
            (CutStage::Body, CutStage::Superblock) => sings(Canary::SuperblockUnordered),
            _ => false,
        };
        assert!(is_next, "a checkpoint goes from {:?} to {stage:?}", self.stage);
        self.stage = stage;
        shared.signals.checkpointing = match stage {
            CutStage::Idle => Checkpointing::No,
            CutStage::Quiesce => Checkpointing::Quiesces,
            _ => Checkpointing::Writes,
        };
    }

    fn quiesce(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) {
        for origin in [Origin::Cleaning, Origin::Metadata] {
            shared.seal_all_of(origin, buffers);
        }
        let are_quiet =
            [Origin::Cleaning, Origin::Metadata].iter().all(|o| shared.log.is_quiet(*o));
        if are_quiet {
            self.cut(shared);
            self.enter(shared, CutStage::Images);
        }
    }

    /// Writes the images that were taken. Returns whether all of them are on the device and others were taken.
    fn write_images(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) -> bool {
        // First all of them, then their second copies: in other records, behind the first. Of parity there is none.
        let count = self.images.len();
        while self.next_image < 2 * count {
            let (index, is_copy) = (self.next_image % count, self.next_image >= count);
            let (kind, key) = self.image_keys[index];
            let kind = match (is_copy, kind.of_copy()) {
                (true, None) => {
                    self.next_image += 1;
                    continue;
                }
                (true, Some(copy)) => copy,
                (false, _) => kind,
            };
            let extent = Extent { key, count: 1, kind, relocated: false };
            let Some(record) = shared.metadata_record(&extent, buffers) else { return false };
            let place = 1 + shared.log.record(record).payload as usize;
            assert!(place < crate::api::RECORD_BLOCKS, "a record that takes it has room");
            let image = &self.images[index];
            let checksum = checksum::block(kind, key, image);
            buffers.record_mut(record)[place] = *image;
            shared.push_metadata(record, extent, checksum);
            self.next_image += 1;
            *match kind {
                Kind::HeaderParity => &mut shared.statistics.header_parity_blocks,
                kind if kind.is_copy() => &mut shared.statistics.copy_blocks,
                Kind::Run => &mut shared.statistics.run_blocks,
                Kind::Root | Kind::RootList => &mut shared.statistics.root_blocks,
                _ => &mut shared.statistics.table_blocks,
            } += 1;
        }
        if shared.log.filling(Stream::Metadata).is_some() {
            shared.seal(Stream::Metadata, buffers);
        }
        // Pages of the list of roots say where the root pages are that were just written.
        if !shared.log.is_quiet(Origin::Metadata) {
            return false;
        }
        self.clear_images();
        let are_more = self.take_roots(shared) || self.take_root_lists(shared);
        if !are_more {
            self.enter(shared, CutStage::Body);
        }
        are_more
    }

    fn checkpoint_flush(&mut self, shared: &mut Shared, stage: CutStage) {
        self.enter(shared, stage);
        self.flushing = shared.log.applied;
        shared.statistics.device_flushes += 1;
        shared.ios.start(Purpose::Checkpoint, Command::Flush);
    }

    pub(crate) fn io_completed(
        &mut self,
        shared: &mut Shared,
        result: IoResult,
        buffers: &mut impl Buffers,
    ) {
        if let Some(buffer) = self.body_copy.take() {
            assert_eq!(self.stage, CutStage::Body, "nothing else is out while it is written");
            shared.log.give_back(buffer);
        }
        if let Err(errno) = result {
            shared.poison(errno);
        }
        if let Some(errno) = shared.poisoned {
            shared.give_up_shutdown(errno);
            return;
        }
        match self.stage {
            // The rest of it is said when the record has arrived as well.
            CutStage::Body => {}
            CutStage::Flush => {
                shared.durable_up_to(self.flushing);
                self.write_superblock(shared, buffers);
            }
            CutStage::Found => {
                self.enter(shared, CutStage::Idle);
            }
            CutStage::Superblock => {
                self.superblock_writes -= 1;
                if self.superblock_writes == 0 {
                    self.checkpoint_flush(shared, CutStage::LastFlush);
                }
            }
            CutStage::LastFlush => {
                shared.durable_up_to(self.flushing);
                self.superblock_is_durable(shared, buffers);
            }
            stage => panic!("no command is out in {stage:?}"),
        }
    }

    fn write_superblock(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) {
        let superblock = Superblock {
            generation: shared.superblock.generation + 1,
            epoch: shared.log.epoch,
            epoch_max: shared.log.epoch,
            checkpoint: self.new_location.expect("the body was written"),
            clean: self.cut.clean,
            patched: self.cut.patched,
            may_have_lost: self.cut.may_have_lost,
            long_records: !sings(Canary::LongRecordsUnannounced),
            durable_sequence: self.flushing,
            ..shared.superblock
        };
        assert!(self.flushing <= shared.log.applied, "what was flushed had taken effect");
        let third = superblock.geometry.third_superblock;
        let has_moved = third != self.third && third != Pba::NOWHERE;
        let write = match has_moved && !sings(Canary::ThirdNamedEarly) {
            true => SuperblockWrite::MovedThird,
            false => SuperblockWrite::First,
        };
        self.put_superblock(shared, superblock, write, buffers);
    }

    /// At opening: before anything else is written, the other copy of the superblock leads to the same
    /// checkpoint, and says which epoch this opening takes. Whether that was still to be done.
    ///
    /// So every epoch under which a record may lie anywhere is in a superblock, and no later opening
    /// takes it again: it could take records that an earlier one had left for its own.
    ///
    /// The copy found may not be durable, if only the process died. A flush goes before: should the power go
    /// while both are being written, both might be torn.
    fn announce_epoch(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) -> bool {
        // A shutdown may have come while the flush was out; an opening that has failed writes nothing.
        let is_open = matches!(shared.phase, Phase::Recovered | Phase::ShuttingDown);
        let Some(found) = self.unannounced.filter(|_| is_open) else { return false };
        if !core::mem::replace(&mut self.found_is_durable, true) {
            self.checkpoint_flush(shared, CutStage::Found);
            return true;
        }
        let (generation, epoch_max) = (found.generation + 1, shared.log.epoch);
        let superblock = Superblock { generation, epoch_max, ..found };
        self.put_superblock(shared, superblock, SuperblockWrite::Announcement, buffers);
        true
    }

    fn superblock_is_durable(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) {
        assert_eq!(self.stage, CutStage::LastFlush, "a flush made it durable");
        let written = self.next_superblock.take().expect("a superblock was written");
        match self.superblock_write {
            SuperblockWrite::Announcement => {
                self.unannounced = None;
                shared.log.generation = written.generation - 1;
                // Its sizes are what they were, even if the store is to grow.
                shared.superblock.generation = written.generation;
                self.enter(shared, CutStage::Idle);
            }
            SuperblockWrite::MovedThird => {
                self.third = written.geometry.third_superblock;
                self.put_superblock(shared, written, SuperblockWrite::First, buffers);
            }
            SuperblockWrite::First if sings(Canary::SuperblockSingle) => {
                shared.log.generation = written.generation;
                self.checkpoint_is_durable(shared, written);
            }
            SuperblockWrite::First => {
                let second = Superblock { generation: written.generation + 1, ..written };
                self.put_superblock(shared, second, SuperblockWrite::SecondAndThird, buffers);
            }
            SuperblockWrite::SecondAndThird => {
                // What records know of is the first of the two: the other one will do as well.
                shared.log.generation = written.generation - 1;
                self.checkpoint_is_durable(shared, written);
            }
        }
    }

    fn put_superblock(
        &mut self,
        shared: &mut Shared,
        superblock: Superblock,
        write: SuperblockWrite,
        buffers: &mut impl Buffers,
    ) {
        let page = shared.loads.superblock_page();
        assert!(
            superblock.epoch <= superblock.epoch_max,
            "an epoch is announced before it is used"
        );
        superblock.encode(buffers.page_mut(page));
        self.enter(shared, CutStage::Superblock);
        self.next_superblock = Some(superblock);
        let third = superblock.geometry.third_superblock;
        let third = Some(third).filter(|third| *third != Pba::NOWHERE);
        let (first, third) = match write {
            SuperblockWrite::Announcement | SuperblockWrite::First => {
                (Some(superblock.location()), None)
            }
            SuperblockWrite::MovedThird => (None, third),
            SuperblockWrite::SecondAndThird => (Some(superblock.location()), third),
        };
        self.superblock_write = write;
        self.superblock_writes = 0;
        for pba in first.into_iter().chain(third) {
            let (source, stream) = (Target::Page(page), Stream::Metadata);
            shared.ios.start(Purpose::Checkpoint, Command::Write { pba, count: 1, source, stream });
            self.superblock_writes += 1;
            shared.statistics.checkpoint_blocks += 1;
        }
    }

    /// The new checkpoint counts: what only the old one needed may go.
    fn checkpoint_is_durable(&mut self, shared: &mut Shared, superblock: Superblock) {
        assert!(superblock.generation > shared.superblock.generation, "generations rise");
        assert!(superblock.durable_sequence <= shared.log.durable, "it says what is durable");
        shared.superblock = superblock;
        // Both copies say so from now on: whichever is left after a crash, its reader expects them.
        let announced = superblock.long_records || sings(Canary::LongRecordsUnannounced);
        shared.log.long_records = announced && shared.map.holds_all();
        let (old, count) = shared.lists.body;
        let now = shared.log.now();
        for offset in 0..count {
            shared.segments.release_listed(old.plus(offset), now);
        }
        shared.lists.body = shared.lists.new_body;
        shared.segments.queue_is_durable();
        shared.segments.holes_are_durable();
        // Where space is short, what was freed is given back in any case: the front of the queue needs it.
        let trim = shared.config.trim || shared.lacks_space();
        let ios = &mut shared.ios;
        let geometry = shared.superblock.geometry;
        shared.segments.checkpoint_is_durable(self.cut.sequence, |segment| {
            if trim {
                let pba = crate::units::segment_start(&geometry, segment);
                let count = geometry.segment_blocks;
                ios.start(Purpose::Trim(segment), Command::Discard { pba, count });
            }
            trim
        });
        shared.map.checkpoint_is_durable();
        shared.statistics.checkpoints += 1;
        self.enter(shared, CutStage::Idle);
        if shared.phase == Phase::Recovered {
            shared.phase = Phase::Running;
        }
        if self.cut.clean
            && let Some(id) = shared.requests.shutdown.take()
        {
            shared.phase = Phase::Closed;
            shared.requests.respond(id, Ok(()));
        }
    }
}

#[cfg(feature = "verify")]
impl Checkpointer {
    /// Buffers that it has been lent.
    pub(crate) fn body_copies_out(&self) -> usize {
        usize::from(self.body_copy.is_some())
    }

    /// # Panics
    /// If the stage is not what its commands make it, or the lists are out of order.
    pub(crate) fn assert_invariants(&self, out: usize) {
        let awaited = match self.stage {
            CutStage::Found | CutStage::Flush | CutStage::LastFlush => 1,
            CutStage::Superblock => self.superblock_writes as usize,
            CutStage::Body => self.body_copies_out(),
            _ => 0,
        };
        assert_eq!(
            out, awaited,
            "a checkpoint waits for one flush, or for copies of a superblock or of its body"
        );
        assert!(self.superblock_writes <= 2, "one of A and B is left alone");
        assert!(self.next_image <= 2 * self.images.len(), "no more images than were taken");
        assert_eq!(self.images.len(), self.image_keys.len(), "each image has its key");
    }
}
