//! Opening: from the superblocks to a running engine.
//!
//! ```text
//! Superblocks  both copies are looked for; the newest valid one wins
//! Body         the checkpoint's lists
//! Table        the segment table
//! Discover     the log behind the checkpoint is walked: the streams' heads and the reserved
//!              segments, nothing else
//! Runs         updates that no leaf page contains, oldest first
//! Replay       the records behind the checkpoint, in order, up to the first gap
//! ```
//! Then reads are served, and a checkpoint under a new epoch is written before any write is
//! accepted: records that were dropped can never come back, for their epoch is over.
//!
//! # What counts as a record
//! An intact header of this store and address, of the superblock's epoch, behind the checkpoint,
//! of rising sequence within its segment; and, unless the log itself says that it was durable, a
//! payload that matches its checksums. Replay takes the sequences that follow the checkpoint
//! without a gap. A gap at or below a sequence that was durable is damage, not a torn tail: then
//! the store is not opened.

use crate::Engine;
use crate::api::{Buffers, Command, IoResult, OpenError, PageRef, Phase, RECORD_BLOCKS, Target};
use crate::canary::{Canary, sings};
use crate::checkpoint::{RUN_KEY_SHIFT, Run};
use crate::ios::Purpose;
use crate::map::{IfUnknown, Map};
use crate::pacing::{Pacing, Watermarks};
use crate::placement::Placer;
use crate::segments::{Segments, State};
use crate::units::{SegmentIndex, Sequence, Stream, segment_of, segment_start};
use crate::writes::discard_updates;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use coulter_format::checkpoint::{BodyView, Head};
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::record::{Entry, RecordView};
use coulter_format::segment_table::{self, SegmentState};
use coulter_format::superblock::{FIRST_SUPERBLOCK, Superblock};
use coulter_format::{Block, BlockPointer, Corrupt, Lba, Pba, Reason, Structure, run};

/// Where superblock B lies for every segment size that there can be.
const SECOND_SUPERBLOCKS: [Pba; 11] = {
    let mut places = [Pba(0); 11];
    let mut index = 0;
    while index < places.len() {
        places[index] = Pba(128 << index);
        index += 1;
    }
    places
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Superblocks,
    Body,
    Table,
    Discover,
    Runs,
    Replay,
}

/// What a read of recovery is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobKind {
    /// A superblock, in a page.
    Superblock(Pba),
    Body,
    /// Items `first..first + count` of the fetch list.
    Items {
        first: usize,
        count: usize,
    },
    /// A piece of a walk.
    Walk {
        walk: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Job {
    kind: JobKind,
    target: Target,
    pba: Pba,
    count: u32,
    result: Option<IoResult>,
}

/// A metadata block to be fetched.
#[derive(Clone, Copy, Debug)]
struct Item {
    kind: Kind,
    key: u64,
    pointer: BlockPointer,
    /// Which run it belongs to.
    run: usize,
}

/// A segment being walked.
#[derive(Clone, Copy, Debug)]
struct Walk {
    segment: SegmentIndex,
    offset: u32,
    latest: Sequence,
    /// Blocks to read next: one to look whether there is anything, then whole chunks.
    step: u32,
    /// Blocks behind the end still to be searched for a record that tells what was durable.
    probe: u32,
}

/// A record that was found behind the checkpoint.
#[derive(Clone, Copy, Debug)]
struct Found {
    sequence: Sequence,
    stream: u8,
    segment: SegmentIndex,
    end: u32,
    intact: bool,
    /// It counts only if the next one does.
    goes_on: bool,
    first_entry: usize,
    entry_count: usize,
}

/// Recovery's state; gone once the engine runs.
pub(crate) struct Recovery {
    stage: Stage,
    begun: bool,
    jobs: Vec<Option<Job>>,
    /// Jobs whose results are taken in order.
    in_order: VecDeque<u32>,
    newest: Option<Superblock>,
    superblock_errors: Vec<SuperblockError>,
    heads: Vec<Option<Head>>,
    reserved: Vec<SegmentIndex>,
    items: Vec<Item>,
    next_item: usize,
    walks: Vec<Walk>,
    walks_waiting: VecDeque<usize>,
    found: Vec<Found>,
    entries: Vec<Entry>,
    durable: Sequence,
    /// The newest superblock that any record knows of.
    generation: u64,
    /// The highest epoch of any record seen: of a recovery that did not get to its end, too.
    epoch: u64,
    /// Records of `found`, in order, that replay takes.
    accepted: usize,
}

#[derive(Clone, Copy, Debug)]
enum SuperblockError {
    Device(i32),
    Corrupt(Corrupt),
}

impl Recovery {
    pub(crate) fn new(record_count: u16) -> Recovery {
        Recovery {
            stage: Stage::Superblocks,
            begun: false,
            jobs: Vec::with_capacity(usize::from(record_count)),
            in_order: VecDeque::new(),
            newest: None,
            superblock_errors: Vec::new(),
            heads: Vec::new(),
            reserved: Vec::new(),
            items: Vec::new(),
            next_item: 0,
            walks: Vec::new(),
            walks_waiting: VecDeque::new(),
            found: Vec::new(),
            entries: Vec::new(),
            durable: 0,
            generation: 0,
            epoch: 0,
            accepted: 0,
        }
    }

    fn jobs_out(&self) -> bool {
        self.jobs.iter().any(Option::is_some)
    }
}

/// Damage that keeps a store from being opened.
fn damaged(structure: Structure, reason: Reason, pba: Pba) -> OpenError {
    OpenError::Damaged { corrupt: Corrupt { structure, reason }, pba }
}

impl Engine {
    pub(crate) fn pump_recovery(&mut self, buffers: &mut impl Buffers) {
        let Some(mut recovery) = self.recovery.take() else { return };
        if matches!(self.phase, Phase::Failed(_)) {
            self.recovery = Some(recovery);
            return;
        }
        match self.recover(&mut recovery, buffers) {
            Ok(true) => {
                self.finish_recovery();
                if let Err(error) = self.grow() {
                    self.phase = Phase::Failed(OpenError::Growth(error));
                    self.recovery = Some(recovery);
                }
            }
            Ok(false) => self.recovery = Some(recovery),
            Err(error) => {
                self.phase = Phase::Failed(error);
                self.recovery = Some(recovery);
            }
        }
    }

    pub(crate) fn recovery_completed(
        &mut self,
        job: u32,
        result: IoResult,
        _buffers: &mut impl Buffers,
    ) {
        // A failed recovery no longer cares.
        if let Some(recovery) = &mut self.recovery
            && let Some(job) = &mut recovery.jobs[job as usize]
        {
            job.result = Some(result);
        }
    }

    /// Goes as far as it can without another read. True when all is done.
    fn recover(&mut self, r: &mut Recovery, buffers: &mut impl Buffers) -> Result<bool, OpenError> {
        loop {
            let stage_done = match r.stage {
                Stage::Superblocks => self.read_superblocks(r, buffers)?,
                Stage::Body => self.read_body(r, buffers)?,
                Stage::Table | Stage::Runs => self.fetch_items(r, buffers)?,
                Stage::Discover => self.discover(r, buffers)?,
                Stage::Replay => {
                    self.replay(r)?;
                    return Ok(true);
                }
            };
            if !stage_done {
                return Ok(false);
            }
            r.begun = false;
            r.stage = match r.stage {
                Stage::Superblocks => Stage::Body,
                Stage::Body => Stage::Table,
                Stage::Table => Stage::Discover,
                Stage::Discover => {
                    self.settle_log(r)?;
                    self.list_runs(r);
                    Stage::Runs
                }
                Stage::Runs => Stage::Replay,
                Stage::Replay => unreachable!("replay returns"),
            };
        }
    }

    fn start_job(&mut self, r: &mut Recovery, kind: JobKind, pba: Pba, count: u32, target: Target) {
        let job = Job { kind, target, pba, count, result: None };
        let index = match r.jobs.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                r.jobs.push(None);
                r.jobs.len() - 1
            }
        };
        r.jobs[index] = Some(job);
        r.in_order.push_back(index as u32);
        self.ios.start(Purpose::Recover(index as u32), Command::Read { pba, count, target });
    }

    /// The oldest job, if it has completed.
    fn take_job(&mut self, r: &mut Recovery) -> Option<(Job, IoResult)> {
        let index = *r.in_order.front()? as usize;
        let result = r.jobs[index].as_ref()?.result?;
        r.in_order.pop_front();
        let job = r.jobs[index].take()?;
        Some((job, result))
    }

    // Superblocks.

    fn read_superblocks(
        &mut self,
        r: &mut Recovery,
        buffers: &mut impl Buffers,
    ) -> Result<bool, OpenError> {
        if !r.begun {
            r.begun = true;
            let places = core::iter::once(FIRST_SUPERBLOCK).chain(SECOND_SUPERBLOCKS);
            let device_size = self.device_size;
            let places = places.filter(|pba| u64::from(pba.0) < device_size);
            for (index, pba) in places.enumerate() {
                let page = Target::Page(PageRef(index as u16));
                self.start_job(r, JobKind::Superblock(pba), pba, 1, page);
            }
        }
        while let Some((job, result)) = self.take_job(r) {
            let Target::Page(page) = job.target else { unreachable!("superblocks go to pages") };
            match result.map(|()| Superblock::decode(buffers.page(page))) {
                Err(errno) => r.superblock_errors.push(SuperblockError::Device(errno)),
                Ok(Err(corrupt)) => r.superblock_errors.push(SuperblockError::Corrupt(corrupt)),
                Ok(Ok(superblock)) => {
                    let newer = r.newest.is_none_or(|best| superblock.generation > best.generation);
                    if superblock.location() == job.pba && newer {
                        r.newest = Some(superblock);
                    }
                }
            }
        }
        if r.jobs_out() {
            return Ok(false);
        }
        let Some(superblock) = r.newest else { return Err(no_superblock(r)) };
        self.adopt(superblock)?;
        Ok(true)
    }

    fn adopt(&mut self, superblock: Superblock) -> Result<(), OpenError> {
        let geometry = superblock.geometry;
        let end = u64::from(geometry.first_segment.0)
            + u64::from(geometry.segment_size) * u64::from(geometry.segment_count);
        if end > self.device_size {
            return Err(OpenError::Truncated { needed: end, found: self.device_size });
        }
        self.superblock = superblock;
        let needed = superblock.budget.map_size;
        let map_size = self.map_size();
        let too_small = OpenError::MapMemory { needed };
        if map_size < needed {
            return Err(too_small);
        }
        self.map = Map::new(geometry.volume_size, map_size, superblock.budget).ok_or(too_small)?;
        self.segments = Segments::new(geometry);
        let marks = Watermarks::of(&geometry, &superblock.budget);
        self.pacing = Pacing::new(marks);
        self.placer = Placer::new(self.placer.placement, marks.spare);
        self.log.applied = superblock.checkpoint.sequence;
        Ok(())
    }

    // The checkpoint's body.

    fn read_body(
        &mut self,
        r: &mut Recovery,
        buffers: &mut impl Buffers,
    ) -> Result<bool, OpenError> {
        let location = self.superblock.checkpoint;
        if !r.begun {
            r.begun = true;
            let buffer = self.log.lend().expect("no buffer is in use yet");
            let count = (location.size as usize).div_ceil(coulter_format::BLOCK_SIZE) as u32;
            self.start_job(r, JobKind::Body, location.pba, count, Target::Record(buffer));
        }
        let Some((job, result)) = self.take_job(r) else { return Ok(false) };
        let Target::Record(buffer) = job.target else { unreachable!("the body fills a record") };
        result.map_err(OpenError::Device)?;
        let bytes = &buffers.record(buffer).as_flattened()[..location.size as usize];
        if crc32c(bytes) != location.checksum {
            return Err(damaged(Structure::Checkpoint, Reason::Checksum, location.pba));
        }
        let body = BodyView::decode(bytes)
            .map_err(|corrupt| OpenError::Damaged { corrupt, pba: location.pba })?;
        self.take_body(r, &body, job.count)
            .map_err(|name| damaged(Structure::Checkpoint, Reason::Field(name), location.pba))?;
        self.log.give_back(buffer);
        Ok(true)
    }

    /// Takes the lists over, once every address in them is one that can be.
    fn take_body(
        &mut self,
        r: &mut Recovery,
        body: &BodyView<'_>,
        body_blocks: u32,
    ) -> Result<(), &'static str> {
        let geometry = self.superblock.geometry;
        let inside = |pointer: &BlockPointer| segment_of(&geometry, pointer.pba).is_some();
        let header = body.header();
        let check = |holds: bool, name| if holds { Ok(()) } else { Err(name) };
        check(header.sequence == self.superblock.checkpoint.sequence, "sequence")?;
        r.heads = body.heads().collect();
        // A store that was last written when there were fewer streams has no heads for the others.
        check((Stream::COUNT_MIN..=Stream::COUNT).contains(&r.heads.len()), "stream_count")?;
        r.heads.resize(Stream::COUNT, None);
        for head in r.heads.iter().flatten() {
            check(head.segment < geometry.segment_count, "head")?;
            check(head.offset <= geometry.segment_size, "head")?;
            check(body.reserved().all(|reserved| reserved != head.segment), "head")?;
        }
        r.reserved = body.reserved().map(SegmentIndex).collect();
        check(r.reserved.iter().all(|s| s.0 < geometry.segment_count), "reserved")?;
        let root_key_limit = coulter_format::address::LBA_LIMIT >> 18;
        check(body.roots().all(|(key, p)| key < root_key_limit && inside(&p)), "root")?;
        body.roots().for_each(|(key, pointer)| self.map.restore_root(key, pointer));
        let table: Vec<_> = body.table().collect();
        let pages = (geometry.segment_count as usize).div_ceil(segment_table::SEGMENTS_PER_PAGE);
        check(table.len() == pages && table.iter().all(inside), "table")?;
        for (index, pointer) in table.iter().enumerate() {
            let (kind, key) = (Kind::SegmentTable, index as u64);
            r.items.push(Item { kind, key, pointer: *pointer, run: 0 });
        }
        let mut runs: Vec<Run> = Vec::new();
        for (header, blocks) in body.runs() {
            let blocks: Vec<_> = blocks.iter().collect();
            let rising = runs.last().is_none_or(|run| run.number < header.number);
            check(rising && blocks.iter().all(inside), "run")?;
            runs.push(Run { number: header.number, sweep: header.sweep, blocks });
        }
        check(runs.last().is_none_or(|run| run.number < header.next_run), "next_run")?;
        check(header.next_run < 1 << (63 - RUN_KEY_SHIFT), "next_run")?;
        check(header.sweep.cycle < 1 << 62, "sweep_cycle")?;
        check(header.write_clock < 1 << 62, "write_clock")?;
        self.checkpointer.runs = runs;
        self.checkpointer.table = table;
        self.checkpointer.next_run = header.next_run;
        self.checkpointer.body = (self.superblock.checkpoint.pba, body_blocks);
        self.map.restore_sweep(header.sweep);
        self.log.write_clock = header.write_clock;
        Ok(())
    }

    // Metadata blocks by list: the segment table, then the runs.

    fn fetch_items(
        &mut self,
        r: &mut Recovery,
        buffers: &mut impl Buffers,
    ) -> Result<bool, OpenError> {
        loop {
            while r.next_item < r.items.len() {
                let Some(buffer) = self.log.lend() else { break };
                let first = r.next_item;
                let start = r.items[first].pointer.pba;
                let contiguous = r.items[first..].iter().take(RECORD_BLOCKS).enumerate();
                let count = contiguous
                    .take_while(|(i, item)| item.pointer.pba == start.plus(*i as u32))
                    .count();
                r.next_item += count;
                let kind = JobKind::Items { first, count };
                self.start_job(r, kind, start, count as u32, Target::Record(buffer));
            }
            let Some((job, result)) = self.take_job(r) else { break };
            let (JobKind::Items { first, count }, Target::Record(buffer)) = (job.kind, job.target)
            else {
                unreachable!("items are read into records")
            };
            result.map_err(OpenError::Device)?;
            for index in 0..count {
                let item = r.items[first + index];
                self.take_item(&item, &buffers.record(buffer)[index])?;
            }
            self.log.give_back(buffer);
        }
        let done = r.next_item == r.items.len() && !r.jobs_out();
        if done {
            r.items.clear();
            r.next_item = 0;
        }
        Ok(done)
    }

    fn take_item(&mut self, item: &Item, block: &Block) -> Result<(), OpenError> {
        let pba = item.pointer.pba;
        let structure = match item.kind {
            Kind::SegmentTable => Structure::SegmentTable,
            _ => Structure::Run,
        };
        if checksum::block(item.kind, item.key, block) != item.pointer.checksum {
            return Err(damaged(structure, Reason::Checksum, pba));
        }
        if item.kind == Kind::SegmentTable {
            return self.take_table_page(item.key, block, pba);
        }
        let written = self.checkpointer.runs[item.run].sweep;
        let position = self.map.sweep_position();
        let geometry = self.superblock.geometry;
        let entries = run::decode(block).map_err(|corrupt| OpenError::Damaged { corrupt, pba })?;
        for entry in entries {
            let leaf = entry.lba.0 / coulter_format::map_page::ENTRIES_PER_PAGE as u64;
            let somewhere = entry.pointer.is_mapped() && !entry.pointer.is_lost();
            if somewhere && segment_of(&geometry, entry.pointer.pba).is_none() {
                return Err(damaged(Structure::Run, Reason::Field("pba"), pba));
            }
            if entry.count as usize > coulter_format::map_page::ENTRIES_PER_PAGE {
                return Err(damaged(Structure::Run, Reason::Field("count"), pba));
            }
            let live = Map::run_is_live(written, position, leaf);
            if live && !self.map.restore_update(&entry) {
                return Err(OpenError::MapMemory { needed: self.map_size() * 2 });
            }
        }
        Ok(())
    }

    fn take_table_page(&mut self, key: u64, block: &Block, pba: Pba) -> Result<(), OpenError> {
        let geometry = self.superblock.geometry;
        let first = key as u32 * segment_table::SEGMENTS_PER_PAGE as u32;
        let entries = segment_table::decode(block).enumerate();
        for (index, entry) in entries.take((geometry.segment_count - first) as usize) {
            let entry = entry.map_err(|corrupt| OpenError::Damaged { corrupt, pba })?;
            let segment = SegmentIndex(first + index as u32);
            let state = match entry.state {
                SegmentState::Free => State::Free,
                SegmentState::Open => State::Open,
                SegmentState::Closed => State::Closed,
            };
            let possible =
                entry.valid <= geometry.segment_size && (entry.valid == 0 || state != State::Free);
            if !possible {
                return Err(damaged(Structure::SegmentTable, Reason::Field("valid"), pba));
            }
            let mean_time = entry.clock.saturating_sub(entry.mean_age.blocks());
            self.segments.restore(
                segment,
                entry.valid,
                state,
                entry.stream,
                entry.clock,
                mean_time,
            );
        }
        Ok(())
    }

    // The log behind the checkpoint.

    fn discover(
        &mut self,
        r: &mut Recovery,
        buffers: &mut impl Buffers,
    ) -> Result<bool, OpenError> {
        if !r.begun {
            r.begun = true;
            self.begin_walks(r)?;
        }
        loop {
            while let Some(walk) = r.walks_waiting.front().copied() {
                let Some(buffer) = self.log.lend() else { break };
                r.walks_waiting.pop_front();
                let Walk { segment, offset, step, .. } = r.walks[walk];
                let pba = segment_start(&self.superblock.geometry, segment).plus(offset);
                let count = step.min(self.superblock.geometry.segment_size - offset);
                let target = Target::Record(buffer);
                self.start_job(r, JobKind::Walk { walk }, pba, count, target);
            }
            let Some((job, result)) = self.take_job(r) else { break };
            let (JobKind::Walk { walk }, Target::Record(buffer)) = (job.kind, job.target) else {
                unreachable!("walks are read into records")
            };
            // Nobody knows whether what cannot be read was durable: to go on without it could lose it.
            result.map_err(OpenError::Device)?;
            let chunk = &buffers.record(buffer)[..job.count as usize];
            if r.walks[walk].probe > 0 {
                self.probe_on(r, walk, chunk);
            } else {
                self.walk_on(r, walk, chunk);
            }
            self.log.give_back(buffer);
        }
        Ok(r.walks_waiting.is_empty() && !r.jobs_out())
    }

    fn begin_walks(&mut self, r: &mut Recovery) -> Result<(), OpenError> {
        let size = self.superblock.geometry.segment_size;
        let latest = self.superblock.checkpoint.sequence;
        for head in r.heads.iter().flatten() {
            if head.offset < size {
                let segment = SegmentIndex(head.segment);
                let step = RECORD_BLOCKS as u32;
                r.walks.push(Walk { segment, offset: head.offset, latest, step, probe: 0 });
            }
        }
        for segment in &r.reserved {
            if !self.segments.restore_queued(*segment) {
                let pba = self.superblock.checkpoint.pba;
                return Err(damaged(Structure::Checkpoint, Reason::Field("reserved"), pba));
            }
            r.walks.push(Walk { segment: *segment, offset: 0, latest, step: 1, probe: 0 });
        }
        r.walks_waiting.extend(0..r.walks.len());
        // The checkpoint's own records lie behind it and were durable before the superblock was.
        r.durable = latest.max(self.superblock.durable_sequence);
        Ok(())
    }

    /// Collects the records of a chunk; queues the walk again if there may be more.
    fn walk_on(&mut self, r: &mut Recovery, index: usize, chunk: &[Block]) {
        let count = chunk.len() as u32;
        let store = self.superblock.store;
        let epoch = self.superblock.epoch;
        let size = self.superblock.geometry.segment_size;
        let walk = r.walks[index];
        let start = segment_start(&self.superblock.geometry, walk.segment).plus(walk.offset);
        let mut latest = walk.latest;
        let mut at = 0;
        let goes_on = loop {
            if at == count {
                break true;
            }
            let Ok(view) = RecordView::decode(&chunk[at as usize], &store, start.plus(at)) else {
                break false;
            };
            let header = view.header();
            r.generation = r.generation.max(header.generation);
            r.epoch = r.epoch.max(header.epoch);
            let end = at + 1 + u32::from(header.payload_size);
            let foreign = header.epoch != epoch || usize::from(header.stream) >= Stream::COUNT;
            if foreign || header.sequence <= latest || walk.offset + end > size {
                break false;
            }
            if end > count {
                break true;
            }
            latest = header.sequence;
            r.durable = r.durable.max(header.durable_sequence);
            let first_entry = r.entries.len();
            let mut intact = true;
            for mut entry in view.entries() {
                if entry.kind.has_payload() {
                    let content = &chunk[(entry.pba.0 - start.0) as usize];
                    let matches =
                        checksum::block(entry.kind, entry.key, content) == entry.word.checksum;
                    // A relocated block that did not arrive, or was rotten before, is no loss: its
                    // source is still there, for nothing is reused before the next checkpoint. It
                    // goes on to lie there.
                    if entry.relocated && !matches {
                        entry.pba = entry.word.address;
                    }
                    intact &= matches || entry.relocated || sings(Canary::TornRecordAccepted);
                }
                r.entries.push(entry);
            }
            r.found.push(Found {
                sequence: header.sequence,
                stream: header.stream,
                segment: walk.segment,
                end: walk.offset + end,
                intact,
                goes_on: header.goes_on,
                first_entry,
                entry_count: r.entries.len() - first_entry,
            });
            at = end;
        };
        let step = RECORD_BLOCKS as u32;
        let offset = walk.offset + at;
        r.walks[index] = Walk { offset, latest, step, ..walk };
        if offset == size {
            return;
        }
        if goes_on {
            r.walks_waiting.push_back(index);
        } else if offset > 0 || self.may_have_been_opened(r, index) {
            r.walks[index].probe = RECORD_BLOCKS as u32;
            self.probe_on(r, index, &chunk[at as usize..]);
        }
    }

    /// Whether a reserved segment without a first record could have been a stream's next one: they
    /// are opened in order, by as many streams as there are.
    fn may_have_been_opened(&self, r: &Recovery, index: usize) -> bool {
        let before = &r.walks[index.saturating_sub(Stream::COUNT)..index];
        let reserved = index - (r.walks.len() - r.reserved.len());
        reserved < Stream::COUNT || before.iter().any(|walk| walk.offset > 0)
    }

    /// Behind the end of the log may lie records that cannot be reached, because a header before
    /// them is torn or damaged. If one of them says that what is missing was durable, it is damage.
    /// A record is at most so long that the next header lies among the blocks searched.
    fn probe_on(&mut self, r: &mut Recovery, index: usize, chunk: &[Block]) {
        let walk = r.walks[index];
        let size = self.superblock.geometry.segment_size;
        let start = segment_start(&self.superblock.geometry, walk.segment).plus(walk.offset);
        let searched = chunk.len().min(walk.probe as usize);
        for (offset, block) in chunk[..searched].iter().enumerate() {
            let place = start.plus(offset as u32);
            if let Ok(view) = RecordView::decode(block, &self.superblock.store, place) {
                let header = view.header();
                r.generation = r.generation.max(header.generation);
                r.epoch = r.epoch.max(header.epoch);
                if header.epoch == self.superblock.epoch && header.sequence > walk.latest {
                    r.durable = r.durable.max(header.durable_sequence);
                }
            }
        }
        let offset = walk.offset + searched as u32;
        let probe = walk.probe - searched as u32;
        r.walks[index] = Walk { offset, probe, step: probe.max(1), ..walk };
        if probe > 0 && offset < size {
            r.walks_waiting.push_back(index);
        }
    }

    /// Decides which records count, and sets heads and segments accordingly.
    fn settle_log(&mut self, r: &mut Recovery) -> Result<(), OpenError> {
        r.found.sort_unstable_by_key(|found| found.sequence);
        let first = self.superblock.checkpoint.sequence + 1;
        let counts = |(index, found): &(usize, &Found)| {
            let follows = found.sequence == first + *index as u64;
            follows && (found.intact || found.sequence <= r.durable)
        };
        r.accepted = r.found.iter().enumerate().take_while(counts).count();
        // Of a group, all or nothing.
        if !sings(Canary::GroupHalved) {
            let ends = r.found[..r.accepted].iter().rposition(|found| !found.goes_on);
            r.accepted = ends.map_or(0, |end| end + 1);
        }
        let last = first + r.accepted as u64 - 1;
        if last < r.durable {
            let durable = r.durable;
            return Err(OpenError::DurableRecordMissing { sequence: last + 1, durable });
        }
        if r.generation > self.superblock.generation {
            return Err(OpenError::SuperblockLost { generation: r.generation });
        }
        self.statistics.records_dropped = (r.found.len() - r.accepted) as u64;
        self.log.next_sequence = last + 1;
        self.log.durable = self.superblock.checkpoint.sequence;
        self.log.epoch = self.superblock.epoch.max(r.epoch).saturating_add(1);
        if sings(Canary::EpochNotBumped) {
            self.log.epoch = self.superblock.epoch;
        }
        self.log.generation = self.superblock.generation;
        self.restore_heads(r)?;
        self.count_listed()
    }

    fn restore_heads(&mut self, r: &mut Recovery) -> Result<(), OpenError> {
        let queued: Vec<_> = self.segments.queue().collect();
        let clock = self.log.write_clock;
        for stream in Stream::ALL {
            let mut head = r.heads[stream.index()];
            let records = r.found[..r.accepted].iter().filter(|f| f.stream == stream as u8);
            for found in records {
                let segment = found.segment;
                if self.segments.segment(segment).state == State::Queued {
                    assert!(queued.contains(&segment), "only queued segments are walked from 0");
                    self.segments.restore_opened(segment, stream as u8, clock);
                    self.log.restore_opened(segment, found.sequence);
                }
                // Until it is replayed, the segment may not be freed.
                self.segments.record_sealed(segment);
                if let Some(left) = head.filter(|head| head.segment != segment.0) {
                    self.segments.restore_closed(SegmentIndex(left.segment), clock);
                }
                head = Some(Head { segment: segment.0, offset: found.end });
            }
            if let Some(head) = head {
                self.segments.restore_reopened(SegmentIndex(head.segment));
            }
            self.log.restore_head(stream, head);
        }
        self.segments.close_headless(|segment| {
            Stream::ALL.iter().any(|s| self.log.head(*s).is_some_and(|h| h.segment == segment.0))
        });
        Ok(())
    }

    /// Counts the blocks that the checkpoint lists: its table does not.
    fn count_listed(&mut self) -> Result<(), OpenError> {
        let listed: Vec<_> = self.checkpointer.listed(&self.map).collect();
        for pba in listed {
            let segment = self.segments.of(pba);
            let state = self.segments.segment(segment).state;
            let room = self.segments.segment(segment).valid < self.superblock.geometry.segment_size;
            if !matches!(state, State::Open | State::Closed) || !room {
                return Err(damaged(Structure::Checkpoint, Reason::Field("pba"), pba));
            }
            self.segments.retain(pba);
        }
        Ok(())
    }

    fn list_runs(&mut self, r: &mut Recovery) {
        for (run, Run { number, blocks, .. }) in self.checkpointer.runs.iter().enumerate() {
            let keyed = blocks.iter().enumerate();
            r.items.extend(keyed.map(|(index, pointer)| Item {
                kind: Kind::Run,
                key: number << RUN_KEY_SHIFT | index as u64,
                pointer: *pointer,
                run,
            }));
        }
    }

    // Replay.

    fn replay(&mut self, r: &mut Recovery) -> Result<(), OpenError> {
        for found in r.found[..r.accepted].iter() {
            let entries = found.first_entry..found.first_entry + found.entry_count;
            for entry in &r.entries[entries] {
                self.replay_entry(entry)?;
            }
            self.segments.record_applied(found.segment, self.log.now());
            self.log.applied = found.sequence;
            self.statistics.records_replayed += 1;
        }
        match self.segments.miscounted() {
            false => Ok(()),
            true => {
                let pba = self.superblock.checkpoint.pba;
                Err(damaged(Structure::SegmentTable, Reason::Field("valid"), pba))
            }
        }
    }

    /// Applies an entry of host data. Metadata needs no replay: the pages that the checkpoint knows
    /// are intact, for nothing is reused before the next one.
    fn replay_entry(&mut self, entry: &Entry) -> Result<(), OpenError> {
        let now = self.log.now();
        let pointer = BlockPointer { pba: entry.pba, checksum: entry.word.checksum };
        let geometry = self.superblock.geometry;
        let updates = match entry.kind {
            // As many as were promised when it was accepted: what had room then has room now.
            Kind::Discard => discard_updates(Lba(entry.key), entry.key + u64::from(entry.count)),
            Kind::Data | Kind::Remote => 1,
            _ => return Ok(()),
        };
        if !self.map.reserve(updates) || self.map.journal_room() <= updates {
            return Err(OpenError::MapMemory { needed: self.map_size() * 2 });
        }
        let countable = |pba: Pba| {
            segment_of(&geometry, pba).is_some_and(|segment| {
                let segment = self.segments.segment(segment);
                matches!(segment.state, State::Open | State::Closed)
                    && segment.valid < geometry.segment_size
            })
        };
        let lba = Lba(entry.key);
        let source = entry.word.address;
        let nowhere = damaged(Structure::RecordHeader, Reason::Field("address"), entry.pba);
        match entry.kind {
            Kind::Discard if sings(Canary::DiscardForgotten) => {}
            Kind::Discard => self.apply_discard(lba, u64::from(entry.count)),
            // The source may have been freed since, if it was overwritten meanwhile.
            Kind::Data if entry.relocated && segment_of(&geometry, source).is_none() => {
                return Err(nowhere);
            }
            Kind::Data if entry.relocated && entry.pba == source => self.map.stays(lba, pointer),
            _ if !countable(entry.pba) => return Err(nowhere),
            Kind::Data if entry.relocated => {
                let matches = IfUnknown::Matches;
                self.map.update_if(&mut self.segments, lba, source, pointer, matches, now);
            }
            _ => {
                self.map.update(&mut self.segments, lba, pointer, now);
                self.log.write_clock += 1;
            }
        }
        self.map.unreserve(updates);
        Ok(())
    }

    fn finish_recovery(&mut self) {
        let now = self.log.now();
        self.segments.free_empty(now);
        if self.config.read_only {
            self.phase = Phase::Running;
        } else {
            self.phase = Phase::Recovered;
            self.checkpointer.wanted = true;
        }
    }
}

/// What to say when no superblock is valid.
fn no_superblock(r: &Recovery) -> OpenError {
    let mut answer = OpenError::NotAStore;
    for error in &r.superblock_errors {
        match error {
            SuperblockError::Corrupt(Corrupt { reason: Reason::Version(version), .. }) => {
                return OpenError::Version(*version);
            }
            SuperblockError::Corrupt(Corrupt { reason: Reason::Magic, .. }) => {}
            SuperblockError::Corrupt(corrupt) => {
                answer = OpenError::Damaged { corrupt: *corrupt, pba: FIRST_SUPERBLOCK };
            }
            SuperblockError::Device(errno) if answer == OpenError::NotAStore => {
                answer = OpenError::Device(*errno);
            }
            SuperblockError::Device(_) => {}
        }
    }
    answer
}
