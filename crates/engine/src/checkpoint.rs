//! Checkpoints: from time to time the whole state becomes durable, so that recovery has little to
//! replay and freed segments may be written again.
//!
//! ```text
//! Quiesce     relocations and leaf pages on their way arrive
//! ─ cut ─     everything applied up to here is in the checkpoint; images are taken in memory
//! Images      run, root pages, table pages go into the metadata stream
//! Body        the lists of all those places, in one record
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

use crate::Engine;
use crate::api::{Buffers, Command, IoResult, Phase, RequestId, Target};
use crate::canary::{Canary, sings};
use crate::ios::Purpose;
use crate::map::{Map, RunBuilder};
use crate::pacing::Updates;
use crate::reclaim::Reclaim;
use crate::references::References;
use crate::segments::{Segments, State};
use crate::units::{Origin, Sequence, Stream};
use alloc::vec::Vec;
use coulter_format::checkpoint::{
    BODY_SIZE_MAX, BodyWriter, CheckpointHeader, Counts, Head, REFERENCE_SIZE, RunHeader,
    SweepPosition,
};
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::record::{BlockWord, Extent};
use coulter_format::segment_table::{
    self, CoarseAge, SEGMENTS_PER_PAGE, SegmentEntry, SegmentState,
};
use coulter_format::superblock::{CheckpointLocation, Superblock};
use coulter_format::{BLOCK_SIZE, Block, BlockPointer, Pba};

/// Blocks of a run that a key can number.
pub(crate) const RUN_KEY_SHIFT: u32 = 20;

/// Error number when the lists do not fit into a body (ENOSPC); see `create` for why they do.
const ERRNO_TOO_LARGE: i32 = 28;

/// Blocks in holes for which a checkpoint is worth a block of what it writes.
const HOLES_FOR_CHECKPOINT: u64 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
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

/// A run on the device.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) number: u64,
    pub(crate) sweep: SweepPosition,
    pub(crate) blocks: Vec<BlockPointer>,
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
    clean: bool,
}

/// The checkpoint being written, and the lists of the newest one.
#[derive(Default)]
pub(crate) struct Checkpointer {
    stage: Stage,
    pub(crate) runs: Vec<Run>,
    pub(crate) references: References,
    pub(crate) table: Vec<BlockPointer>,
    pub(crate) next_run: u64,
    /// First block and count of the durable body, and of the one being written.
    pub(crate) body: (Pba, u32),
    new_body: (Pba, u32),
    new_location: Option<CheckpointLocation>,
    images: Vec<Block>,
    image_keys: Vec<(Kind, u64)>,
    next_image: usize,
    cut: Cut,
    next_superblock: Option<Superblock>,
    /// It is the second copy that is being written.
    is_second: bool,
    /// The superblock found at opening, until the other copy leads where it does and tells the epoch.
    pub(crate) unannounced: Option<Superblock>,
    /// Whether a flush has covered what opening found.
    found_is_durable: bool,
    /// A checkpoint must be written even if nothing calls for it.
    pub(crate) wanted: bool,
    shutdown: Option<RequestId>,
    /// The sequence of the last cut, and of the last flush that a checkpoint began.
    flushing: Sequence,
}

impl Checkpointer {
    /// Whether one is under way; the sweep waits.
    pub(crate) fn is_active(&self) -> bool {
        self.stage != Stage::Idle
    }

    /// Whether relocations must not be started.
    pub(crate) fn is_quiescing(&self) -> bool {
        self.stage == Stage::Quiesce
    }

    pub(crate) fn has_runs(&self) -> bool {
        !self.runs.is_empty()
    }

    pub(crate) fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// Where a piece lies that the checkpoint lists, if the cleaner may move it.
    pub(crate) fn pointer(&self, kind: Kind, key: u64) -> Option<BlockPointer> {
        match kind {
            Kind::SegmentTable => self.table.get(key as usize).copied(),
            Kind::Run => {
                let number = key >> RUN_KEY_SHIFT;
                let index = (key & ((1 << RUN_KEY_SHIFT) - 1)) as usize;
                let run = self.runs.iter().find(|run| run.number == number)?;
                run.blocks.get(index).copied()
            }
            _ => None,
        }
    }

    fn pointer_mut(&mut self, kind: Kind, key: u64) -> Option<&mut BlockPointer> {
        match kind {
            Kind::SegmentTable => self.table.get_mut(key as usize),
            Kind::Run => {
                let number = key >> RUN_KEY_SHIFT;
                let index = (key & ((1 << RUN_KEY_SHIFT) - 1)) as usize;
                let run = self.runs.iter_mut().find(|run| run.number == number)?;
                run.blocks.get_mut(index)
            }
            _ => None,
        }
    }

    /// A piece arrived on the device: written, or relocated from `source`. Returns whether it
    /// counts.
    pub(crate) fn block_written(
        &mut self,
        segments: &mut Segments,
        kind: Kind,
        key: u64,
        source: Option<Pba>,
        pointer: BlockPointer,
        now: Sequence,
    ) -> bool {
        if kind == Kind::Checkpoint {
            segments.retain(pointer.pba);
            let first = if key == 0 { pointer.pba } else { self.new_body.0 };
            self.new_body = (first, key as u32 + 1);
            return true;
        }
        let Some(slot) = self.pointer_mut(kind, key) else { return false };
        if source.is_some_and(|source| slot.pba != source) {
            return false;
        }
        let old = core::mem::replace(slot, pointer);
        segments.retain(pointer.pba);
        if old.is_mapped() {
            segments.release(old.pba, now);
        }
        true
    }

    /// Every block that the checkpoint lists, its own body included.
    pub(crate) fn listed<'a>(&'a self, map: &'a Map) -> impl Iterator<Item = Pba> + 'a {
        let table = self.table.iter().map(|pointer| pointer.pba);
        let runs = self.runs.iter().flat_map(|run| run.blocks.iter().map(|pointer| pointer.pba));
        let roots = map.root_pages().map(|(_, pointer)| pointer.pba);
        let body = (0..self.body.1).map(|offset| self.body.0.plus(offset));
        table.chain(runs).chain(roots).chain(body).filter(|pba| *pba != Pba::NOWHERE)
    }
}

/// Blocks of log, headers and all else included, after which a checkpoint is due although the journal
/// is not full: records of one block take recovery twice as long to read as full ones.
fn log_blocks_max(journal_size: usize) -> u64 {
    journal_size as u64 / 2 * 3
}

impl Engine {
    pub(crate) fn accept_shutdown(&mut self, id: RequestId) {
        if self.poisoned.is_some() || self.config.read_only || self.phase == Phase::Closed {
            self.phase = Phase::Closed;
            let result = self.poisoned.map_or(Ok(()), |errno| Err(crate::Failure::Device(errno)));
            self.respond(id, result);
            return;
        }
        self.phase = Phase::ShuttingDown;
        self.checkpointer.shutdown = Some(id);
    }

    pub(crate) fn pump_checkpoint(&mut self, buffers: &mut impl Buffers) {
        if self.checkpointer.stage == Stage::Idle && self.announce_epoch(buffers) {
            return;
        }
        if self.checkpointer.stage == Stage::Idle && self.checkpoint_is_due() {
            self.checkpointer.stage = Stage::Quiesce;
        }
        if self.checkpointer.stage == Stage::Quiesce {
            self.quiesce(buffers);
        }
        if self.checkpointer.stage == Stage::Images {
            self.write_images(buffers);
        }
        if self.checkpointer.stage == Stage::Body {
            self.write_body(buffers);
        }
    }

    fn checkpoint_is_due(&mut self) -> bool {
        if self.checkpointer.shutdown.is_some() {
            let quiet = self.phase == Phase::ShuttingDown
                && self.log.is_quiet(Origin::User)
                && !self.discard_under_way;
            return quiet && !self.runs_are_too_many();
        }
        if self.log.applied == self.checkpointer.cut.sequence && !self.checkpointer.wanted {
            return false;
        }
        // The sweep's share comes first: so runs never become too many for another one.
        if self.runs_are_too_many() || self.sweeper.quota > 0 {
            return false;
        }
        let journal_size = self.superblock.budget.journal_size as usize;
        let marks = self.pacing.marks();
        let freed = self.segments.freed_count();
        // Not before they are needed: a checkpoint for every freed segment would cost more than
        // some segments give.
        let worth = u64::from(freed) * u64::from(self.superblock.geometry.segment_size)
            >= 2 * self.checkpoint_cost();
        let at_the_floor = self.segments.usable_count() <= marks.kept_by_cleaning as usize;
        let scarce = self.segments.empty_count() - freed <= marks.wanted_by_user
            && (worth || (at_the_floor && freed + self.segments.gone_through_count() > 0));
        // Of those that are listed and not prepared a checkpoint would make no more usable.
        let queue_is_short = self.segments.listed_count() <= marks.wanted_by_user as usize
            && self.segments.queue_could_grow();
        self.checkpointer.wanted
            || self.map.recovery_calls_for_checkpoint(self.sweeper.wanted_recovery)
            || self.map.journal_length() >= journal_size
            || self.log.blocks_since_cut >= log_blocks_max(journal_size)
            || scarce
            || queue_is_short
            // What it frees is given back to the device, which then has space.
            || (self.lacks_space() && freed > 0)
            || self.holes_are_wanted()
    }

    /// Blocks that a checkpoint would write now, about.
    fn checkpoint_cost(&self) -> u64 {
        let run = self.map.run_length() / coulter_format::run::ENTRIES_PER_RUN_BLOCK + 1;
        let body = self.checkpointer.body.1 as usize;
        (run + self.checkpointer.table.len() + body + 4) as u64
    }

    /// Whether the oldest run must die before another one is written; then the sweep hurries.
    fn runs_are_too_many(&mut self) -> bool {
        let position = self.map.sweep_position();
        let alive = self.checkpointer.runs.iter();
        let alive = alive.filter(|run| !Map::run_is_dead(run.sweep, position));
        let (count, blocks) = alive.fold((0, 0), |(c, b), run| (c + 1, b + run.blocks.len()));
        let limit = self.superblock.budget.run_count_limit as usize;
        self.sweeper.hurry = count > 0 && (count >= limit || !self.lists_fit(count, blocks));
        self.sweeper.hurry
    }

    /// Whether the body will have room for so many runs and one more, which comes from the journal
    /// as it is. With something to spare, since a whole leaf in the journal may become many entries.
    fn lists_fit(&self, runs: usize, blocks: usize) -> bool {
        let run = self.map.run_length() / coulter_format::run::ENTRIES_PER_RUN_BLOCK + 2;
        let references = REFERENCE_SIZE * self.checkpointer.references.count();
        let lists = 16 * self.map.root_count() + 8 * self.checkpointer.table.len() + references;
        let size = lists + 32 * (runs + 1) + 8 * (blocks + run);
        size <= BODY_SIZE_MAX as usize / 4 * 3
    }

    fn quiesce(&mut self, buffers: &mut impl Buffers) {
        for origin in [Origin::Cleaning, Origin::Metadata] {
            self.seal_all_of(origin, buffers);
        }
        if self.log.is_quiet(Origin::Cleaning) && self.log.is_quiet(Origin::Metadata) {
            self.cut();
            self.checkpointer.stage = Stage::Images;
        }
    }

    /// Takes the images. Everything applied is in them, nothing else.
    fn cut(&mut self) {
        let sequence = self.log.applied;
        let position = self.map.sweep_position();
        let checkpointer = &mut self.checkpointer;
        for run in checkpointer.runs.extract_if(.., |run| Map::run_is_dead(run.sweep, position)) {
            let written = run.blocks.iter().filter(|pointer| pointer.is_mapped());
            written.for_each(|pointer| self.segments.release(pointer.pba, sequence));
        }
        checkpointer.images.clear();
        checkpointer.image_keys.clear();
        checkpointer.next_image = 0;
        let mut run = RunBuilder::new(&mut checkpointer.images);
        let referred = self.map.journal_length() - self.map.run_length();
        self.map.cut_run(&mut run);
        let updates = Updates { in_run: run.finish(), referred };
        let number = checkpointer.next_run;
        let block_count = checkpointer.images.len();
        assert!(block_count < 1 << RUN_KEY_SHIFT, "a key numbers every block of a run");
        if block_count > 0 {
            let blocks = alloc::vec![BlockPointer::NOWHERE; block_count];
            checkpointer.runs.push(Run { number, sweep: position, blocks });
            checkpointer.next_run += 1;
        }
        let keys =
            (0..block_count as u64).map(|index| (Kind::Run, number << RUN_KEY_SHIFT | index));
        checkpointer.image_keys.extend(keys);
        let (images, image_keys) = (&mut checkpointer.images, &mut checkpointer.image_keys);
        self.map.cut_roots(|key, page| {
            images.push(page);
            image_keys.push((Kind::Root, key));
        });
        self.forgive_lost_references();
        self.log.close_unwanted(&mut self.segments, self.placer.streams());
        let queue_length = self.queue_length();
        self.segments.fill_queue(queue_length, sequence);
        if sings(Canary::SegmentReusedEarly) {
            self.segments.queue_is_durable();
        }
        self.cut_holes();
        // Only now is it certain which segments this checkpoint calls free.
        self.checkpointer.references.drop_dead(&self.segments, position);
        let (heads, opened) = self.log.cut_heads(&self.segments);
        let queued = self.segments.queue();
        let reserved = opened.iter().copied().chain(queued).map(|segment| segment.0).collect();
        self.cut_table(&opened);
        let holes = self.segments.reserved_holes().map(|segment| segment.0).collect();
        let patched = self.segments.any_patched();
        let clean = self.checkpointer.shutdown.is_some() && self.log.order.is_empty();
        let write_clock = self.log.write_clock;
        let sweep = position;
        let references = self.checkpointer.references.count();
        self.checkpointer.cut = Cut {
            sequence,
            write_clock,
            sweep,
            heads,
            reserved,
            holes,
            references,
            patched,
            clean,
        };
        self.checkpointer.wanted = false;
        self.checkpointer.new_location = None;
        self.sweeper.quota = self.map.sweep_quota(updates);
    }

    /// See [`Segments::forgive`]: only if map pages were damaged once is there anything to forgive.
    fn forgive_lost_references(&mut self) {
        if self.segments.gone_through_count() == 0 {
            return;
        }
        let mut listed = alloc::vec![0; self.superblock.geometry.segment_count as usize];
        for pba in self.checkpointer.listed(&self.map) {
            listed[self.segments.of(pba).index()] += 1;
        }
        let now = self.log.now();
        self.statistics.references_lost += self.segments.forgive(&listed, now);
    }

    /// Reserves holes, or gives up those that nobody wants any more.
    fn cut_holes(&mut self) {
        let streams: &[Stream] = match self.config.reclaim {
            _ if self.phase != Phase::Running => &[],
            Reclaim::CopyOut => &[],
            Reclaim::HoleFill => self.placer.cleaning_streams(),
            Reclaim::Threaded => &Stream::USER,
        };
        self.log.close_patches(&mut self.segments, streams);
        match streams.is_empty() {
            false => {
                let most = self.holes_max();
                self.segments.reserve_holes(most, &self.checkpointer.references);
            }
            true => self.segments.give_up_holes(self.log.now()),
        }
    }

    /// Segments of which the holes may be reserved: recovery reads each of them, and no more than it
    /// may have to read of the log; and most must be left for the cleaner.
    pub(crate) fn holes_max(&self) -> usize {
        let geometry = &self.superblock.geometry;
        let log = 4 * u64::from(self.superblock.budget.journal_size);
        let by_log = (log / u64::from(geometry.segment_size)).max(1) as usize;
        let by_count = (geometry.segment_count as usize / 12).max(2);
        by_log.min(by_count).min(crate::holes::SEGMENTS_MAX)
    }

    /// Whether holes are worth a checkpoint.
    fn holes_are_wanted(&self) -> bool {
        self.config.reclaim != Reclaim::CopyOut
            && self
                .segments
                .holes_wait_for_cut()
                .is_some_and(|blocks| blocks >= HOLES_FOR_CHECKPOINT * self.checkpoint_cost())
    }

    /// Segments that should wait in the queue: enough for twice the journal.
    fn queue_length(&self) -> usize {
        let size = u64::from(self.superblock.geometry.segment_size);
        let journal = u64::from(self.superblock.budget.journal_size);
        let length = (4 * journal).div_ceil(size) as usize + self.pacing.kept_by_user() + 4;
        length.min(crate::create::RESERVED_MAX)
    }

    /// Images of the table pages that changed.
    fn cut_table(&mut self, opened: &[crate::units::SegmentIndex]) {
        let mut counts: Vec<u32> = self.segments.iter().map(|(_, segment)| segment.valid).collect();
        for pba in self.checkpointer.listed(&self.map) {
            counts[self.segments.of(pba).index()] -= 1;
        }
        let entry = |(index, segment): (crate::units::SegmentIndex, &crate::segments::Segment)| {
            let state = match segment.state {
                State::Open if !opened.contains(&index) => SegmentState::Open,
                State::Closed | State::Patching if segment.patched => SegmentState::Patched,
                State::Closed if !opened.contains(&index) => SegmentState::Closed,
                _ => SegmentState::Free,
            };
            let valid = counts[index.index()];
            let mean_age = CoarseAge::from_blocks(segment.mean_age());
            SegmentEntry { valid, state, stream: segment.stream, clock: segment.clock, mean_age }
        };
        let entries: Vec<_> = self.segments.iter().map(entry).collect();
        for (key, chunk) in entries.chunks(SEGMENTS_PER_PAGE).enumerate() {
            let mut page = [0; BLOCK_SIZE];
            segment_table::encode(chunk.iter().copied(), &mut page);
            let checksum = checksum::block(Kind::SegmentTable, key as u64, &page);
            let written = self.checkpointer.table[key];
            if written.checksum != checksum || written.pba == Pba::NOWHERE {
                self.checkpointer.images.push(page);
                self.checkpointer.image_keys.push((Kind::SegmentTable, key as u64));
            }
        }
    }

    fn write_images(&mut self, buffers: &mut impl Buffers) {
        while let Some((kind, key)) =
            self.checkpointer.image_keys.get(self.checkpointer.next_image).copied()
        {
            let extent = Extent { key, count: 1, kind, relocated: false };
            let Some(record) = self.metadata_record(&extent, buffers) else { return };
            let place = 1 + self.log.record(record).payload as usize;
            let image = &self.checkpointer.images[self.checkpointer.next_image];
            let checksum = checksum::block(kind, key, image);
            buffers.record_mut(record)[place] = *image;
            self.push_metadata(record, extent, checksum);
            self.checkpointer.next_image += 1;
            *match kind {
                Kind::Run => &mut self.statistics.run_blocks,
                Kind::Root => &mut self.statistics.root_blocks,
                _ => &mut self.statistics.table_blocks,
            } += 1;
        }
        if self.log.filling(Stream::Metadata).is_some() {
            self.seal(Stream::Metadata, buffers);
        }
        if self.log.is_quiet(Origin::Metadata) {
            self.checkpointer.stage = Stage::Body;
        }
    }

    fn write_body(&mut self, buffers: &mut impl Buffers) {
        if self.checkpointer.new_location.is_some() {
            if self.log.is_quiet(Origin::Metadata) && sings(Canary::SuperblockUnordered) {
                self.checkpointer.flushing = self.log.durable;
                self.write_superblock(buffers);
            } else if self.log.is_quiet(Origin::Metadata) {
                self.checkpoint_flush(Stage::Flush);
            }
            return;
        }
        if !self.log.can_begin_metadata() {
            return;
        }
        let mut bytes = alloc::vec![0; BODY_SIZE_MAX as usize];
        let Some(size) = self.encode_body(&mut bytes) else {
            self.poison(ERRNO_TOO_LARGE);
            return;
        };
        let count = size.div_ceil(BLOCK_SIZE) as u32;
        let extent =
            Extent { key: 0, count: count as u16, kind: Kind::Checkpoint, relocated: false };
        let Some(record) = self.metadata_record(&extent, buffers) else { return };
        let (blocks, _) = bytes.as_chunks::<BLOCK_SIZE>();
        let payload = &mut buffers.record_mut(record)[1..=count as usize];
        for (index, (target, block)) in payload.iter_mut().zip(blocks).enumerate() {
            *target = *block;
            let checksum = checksum::block(Kind::Checkpoint, index as u64, block);
            let word = BlockWord { checksum, address: Pba::NOWHERE };
            self.log.record_mut(record).words.push(word);
        }
        self.log.record_mut(record).push_extent(extent);
        self.statistics.checkpoint_blocks += u64::from(count) + 1;
        self.checkpointer.new_location = Some(CheckpointLocation {
            sequence: self.checkpointer.cut.sequence,
            pba: self.log.record(record).header_pba.plus(1),
            size: size as u32,
            checksum: crc32c(&bytes[..size]),
        });
        self.seal(Stream::Metadata, buffers);
    }

    fn encode_body(&self, bytes: &mut [u8]) -> Option<usize> {
        let Checkpointer { runs, references, table, next_run, cut, .. } = &self.checkpointer;
        let references = references.first(cut.references);
        let header = CheckpointHeader {
            sequence: cut.sequence,
            write_clock: cut.write_clock,
            sweep: cut.sweep,
            next_run: *next_run,
        };
        let counts = Counts {
            streams: Stream::COUNT as u16,
            reserved: (cut.reserved.len() + cut.holes.len()) as u32,
            roots: self.map.root_pages().count() as u32,
            table: table.len() as u32,
            runs: runs.len() as u32,
            references: references.len() as u32,
        };
        let mut writer = BodyWriter::new(&header, &counts, bytes);
        cut.heads.iter().for_each(|head| writer.head(*head));
        cut.reserved.iter().for_each(|segment| writer.reserved(*segment));
        cut.holes.iter().for_each(|segment| writer.reserved_holes(*segment));
        self.map.root_pages().for_each(|(key, pointer)| writer.root(key, pointer));
        table.iter().for_each(|pointer| writer.pointer(*pointer));
        for run in runs {
            let Run { number, sweep, blocks } = run;
            let block_count = blocks.len() as u32;
            writer.run(&RunHeader { number: *number, sweep: *sweep, block_count });
            blocks.iter().for_each(|pointer| writer.pointer(*pointer));
        }
        references.iter().for_each(|reference| writer.reference(reference));
        writer.finish()
    }

    fn checkpoint_flush(&mut self, stage: Stage) {
        self.checkpointer.stage = stage;
        self.checkpointer.flushing = self.log.applied;
        self.statistics.device_flushes += 1;
        self.ios.start(Purpose::Checkpoint, Command::Flush);
    }

    pub(crate) fn checkpoint_io_completed(&mut self, result: IoResult, buffers: &mut impl Buffers) {
        if let Err(errno) = result {
            self.poison(errno);
        }
        if let Some(errno) = self.poisoned {
            self.give_up_shutdown(errno);
            return;
        }
        match self.checkpointer.stage {
            Stage::Flush => {
                self.durable_up_to(self.checkpointer.flushing);
                self.write_superblock(buffers);
            }
            Stage::Found => {
                self.checkpointer.stage = Stage::Idle;
                self.restless = true;
            }
            Stage::Superblock => self.checkpoint_flush(Stage::LastFlush),
            Stage::LastFlush => {
                self.durable_up_to(self.checkpointer.flushing);
                self.superblock_is_durable(buffers);
            }
            stage => panic!("no command is out in {stage:?}"),
        }
    }

    fn write_superblock(&mut self, buffers: &mut impl Buffers) {
        let superblock = Superblock {
            generation: self.superblock.generation + 1,
            epoch: self.log.epoch,
            epoch_max: self.log.epoch,
            checkpoint: self.checkpointer.new_location.expect("the body was written"),
            clean: self.checkpointer.cut.clean,
            patched: self.checkpointer.cut.patched,
            long_records: !sings(Canary::LongRecordsUnannounced),
            durable_sequence: self.checkpointer.flushing,
            ..self.superblock
        };
        self.checkpointer.is_second = false;
        self.put_superblock(superblock, buffers);
    }

    /// At opening: before anything else is written, the other copy of the superblock leads to the same
    /// checkpoint, and says which epoch this opening takes. Whether that was still to be done.
    ///
    /// So every epoch under which a record may lie anywhere is in a superblock, and no later opening
    /// takes it again: it could take records that an earlier one had left for its own.
    ///
    /// The copy found may not be durable, if only the process died. A flush goes before: should the power go
    /// while both are being written, both might be torn.
    fn announce_epoch(&mut self, buffers: &mut impl Buffers) -> bool {
        // A shutdown may have come while the flush was out; an opening that has failed writes nothing.
        let is_open = matches!(self.phase, Phase::Recovered | Phase::ShuttingDown);
        let Some(found) = self.checkpointer.unannounced.filter(|_| is_open) else { return false };
        if !core::mem::replace(&mut self.checkpointer.found_is_durable, true) {
            self.checkpoint_flush(Stage::Found);
            return true;
        }
        self.checkpointer.is_second = true;
        let (generation, epoch_max) = (found.generation + 1, self.log.epoch);
        self.put_superblock(Superblock { generation, epoch_max, ..found }, buffers);
        true
    }

    fn superblock_is_durable(&mut self, buffers: &mut impl Buffers) {
        let written = self.checkpointer.next_superblock.take().expect("a superblock was written");
        if !self.checkpointer.is_second && !sings(Canary::SuperblockSingle) {
            self.checkpointer.is_second = true;
            let second = Superblock { generation: written.generation + 1, ..written };
            self.put_superblock(second, buffers);
            return;
        }
        // What records know of is the first of the two: the other one will do as well.
        self.log.generation = written.generation - u64::from(self.checkpointer.is_second);
        if self.checkpointer.unannounced.take().is_some() {
            // Its sizes are what they were, even if the store is to grow.
            self.superblock.generation = written.generation;
            self.checkpointer.stage = Stage::Idle;
            self.restless = true;
        } else {
            self.checkpoint_is_durable(written);
        }
    }

    fn put_superblock(&mut self, superblock: Superblock, buffers: &mut impl Buffers) {
        let page = self.loads.superblock_page();
        superblock.encode(buffers.page_mut(page));
        self.checkpointer.stage = Stage::Superblock;
        let (pba, source) = (superblock.location(), Target::Page(page));
        self.checkpointer.next_superblock = Some(superblock);
        let stream = Stream::Metadata;
        self.ios.start(Purpose::Checkpoint, Command::Write { pba, count: 1, source, stream });
    }

    /// The new checkpoint counts: what only the old one needed may go.
    fn checkpoint_is_durable(&mut self, superblock: Superblock) {
        self.superblock = superblock;
        // Both copies say so from now on: whichever is left after a crash, its reader expects them.
        let announced = superblock.long_records || sings(Canary::LongRecordsUnannounced);
        self.log.long_records = announced && self.map.holds_all();
        let (old, count) = self.checkpointer.body;
        let now = self.log.now();
        for offset in 0..count {
            self.segments.release(old.plus(offset), now);
        }
        self.checkpointer.body = self.checkpointer.new_body;
        self.segments.queue_is_durable();
        self.segments.holes_are_durable();
        // Where space is short, what was freed is given back in any case: the front of the queue needs it.
        let trim = self.config.trim || self.lacks_space();
        let ios = &mut self.ios;
        let geometry = self.superblock.geometry;
        self.segments.checkpoint_is_durable(self.checkpointer.cut.sequence, |segment| {
            if trim {
                let pba = crate::units::segment_start(&geometry, segment);
                let count = geometry.segment_size;
                ios.start(Purpose::Trim(segment), Command::Discard { pba, count });
            }
            trim
        });
        self.map.checkpoint_is_durable();
        self.statistics.checkpoints += 1;
        self.checkpointer.stage = Stage::Idle;
        if self.phase == Phase::Recovered {
            self.phase = Phase::Running;
        }
        if self.checkpointer.cut.clean
            && let Some(id) = self.checkpointer.shutdown.take()
        {
            self.phase = Phase::Closed;
            self.respond(id, Ok(()));
        }
    }

    pub(crate) fn give_up_shutdown(&mut self, errno: i32) {
        if let Some(id) = self.checkpointer.shutdown.take() {
            self.phase = Phase::Closed;
            self.respond(id, Err(crate::Failure::Device(errno)));
        }
    }
}

#[cfg(feature = "verify")]
impl Checkpointer {
    /// Blocks of the body that has been written and does not count yet.
    pub(crate) fn listed_anew(&self) -> impl Iterator<Item = Pba> + '_ {
        let (first, count) = self.new_body;
        let count = if self.new_body == self.body { 0 } else { count };
        (0..count).map(move |offset| first.plus(offset))
    }

    /// # Panics
    /// If the stage is not what its commands make it, or the lists are out of order.
    pub(crate) fn assert_invariants(&self, out: usize) {
        let waits = matches!(
            self.stage,
            Stage::Found | Stage::Flush | Stage::Superblock | Stage::LastFlush
        );
        assert_eq!(out, usize::from(waits), "a checkpoint waits for one command at a time");
        assert!(self.next_image <= self.images.len(), "no more images than were taken");
        assert_eq!(self.images.len(), self.image_keys.len(), "each image has its key");
        assert!(self.runs.is_sorted_by(|a, b| a.number < b.number), "runs are in order");
        let latest = self.runs.last().map_or(0, |run| run.number + 1);
        assert!(latest <= self.next_run, "the next run is a new one");
        for run in self.runs.iter().filter(|run| run.number + 1 < self.next_run) {
            let is_idle = self.stage == Stage::Idle;
            let is_written = run.blocks.iter().all(|pointer| pointer.is_mapped());
            assert!(is_written || !is_idle, "the blocks of a run are somewhere");
        }
    }
}
