//! The log behind the checkpoint: walking it, and deciding which records count.

use super::unreadable::Piece;
use super::{Found, JobKind, PROBE_BLOCKS, Recovery, Walk, damaged};
use crate::api::{Buffers, RECORD_BLOCKS, Target};
use crate::canary::{Canary, sings};
use crate::degraded::Degraded;
use crate::error::OpenError;
use crate::holes::Headers;
use crate::memory::{self, NoMemory};
use crate::segments::{State, Trim};
use crate::shared::Shared;
use crate::units::{SegmentIndex, Sequence, Stream, segment_start};
use coulter_format::checkpoint::Head;
use coulter_format::record::{RecordHeader, RecordView};
use coulter_format::{Block, NUMBER_LIMIT_AT_OPENING, Reason, Structure, checksum};

impl Walk {
    pub(super) fn new(segment: SegmentIndex, latest: Sequence) -> Walk {
        let step = RECORD_BLOCKS as u32;
        Walk {
            segment,
            offset: 0,
            latest,
            step,
            met: false,
            headers: Headers::InARow,
            probe: 0,
            end: None,
            end_is_settled: false,
            skips: false,
        }
    }
}

impl Recovery {
    /// What any header tells, whether its record counts or not.
    pub(super) fn meet(&mut self, header: &RecordHeader) {
        self.generation = self.generation.max(header.generation);
        if header.epoch > self.epoch {
            (self.epoch, self.epoch_pba) = (header.epoch, header.pba);
        }
    }

    /// Notes a record that may count. Its blocks are those from its header on; `end` is where it ends
    /// in the stretch that the walk is in.
    pub(super) fn take_record(
        &mut self,
        view: &RecordView<'_>,
        walk: &Walk,
        end: u32,
        blocks: &[Block],
    ) -> Result<(), NoMemory> {
        let header = view.header();
        self.durable = self.durable.max(header.durable_sequence);
        let first_entry = self.entries.len();
        let mut intact = true;
        for mut entry in view.entries() {
            if entry.kind.has_payload() {
                let content = &blocks[(entry.pba.0 - header.pba.0) as usize];
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
            memory::push(&mut self.entries, entry)?;
        }
        assert!(end as usize <= RECORD_BLOCKS + 1, "a record ends in its stretch");
        assert!(self.entries.len() <= u32::MAX as usize, "there are no more blocks in the log");
        let long_field = view.long_field();
        if let Some((name, _)) = long_field
            && self.long.is_none_or(|(first, ..)| header.sequence < first)
        {
            self.long = Some((header.sequence, header.pba, name));
        }
        let found = Found {
            sequence: header.sequence,
            stream: header.stream,
            pba: header.pba,
            segment: walk.segment,
            end: walk.offset + end,
            span: header.span(),
            scattered: header.scattered.is_some(),
            is_long: long_field.is_some(),
            intact,
            goes_on: header.goes_on,
            first_entry: first_entry as u32,
            entry_count: (self.entries.len() - first_entry) as u32,
        };
        memory::push(&mut self.found, found)
    }
}

impl Recovery {
    pub(super) fn discover(
        &mut self,
        shared: &mut Shared,
        buffers: &mut impl Buffers,
    ) -> Result<bool, OpenError> {
        if !self.begun {
            self.begun = true;
            self.begin_walks(shared)?;
        }
        loop {
            while let Some(walk) = self.walks_waiting.front().copied() {
                let Some(buffer) = shared.log.lend() else { break };
                self.walks_waiting.pop_front();
                let Walk { segment, offset, step, .. } = self.walks[walk];
                let pba = segment_start(&shared.superblock.geometry, segment).plus(offset);
                let count = step.min(shared.superblock.geometry.segment_blocks - offset);
                let target = Target::Record(buffer);
                self.start_job(shared, JobKind::Walk { walk }, pba, count, target);
            }
            let Some((job, result)) = self.take_job() else { break };
            let (walk, Piece { count, buffer, .. }) = match (job.kind, job.target) {
                (JobKind::Walk { walk }, Target::Record(buffer)) => {
                    let piece = Piece { pba: job.pba, count: job.count, buffer };
                    if result.is_err() {
                        self.begin_walk_blocks(shared, walk, piece);
                        continue;
                    }
                    (walk, piece)
                }
                (JobKind::WalkBlock { walk, piece, next }, Target::Page(_)) => {
                    if !self.take_walk_block(shared, (walk, piece, next), result, buffers)? {
                        continue;
                    }
                    (walk, piece)
                }
                (JobKind::Echo { walk }, Target::Page(page)) => {
                    let holder = result.ok().map(|()| *buffers.page(page));
                    self.take_holder(shared, walk, job.pba, holder, buffers)?;
                    continue;
                }
                (JobKind::Echoed { walk, holder }, Target::Record(buffer)) => {
                    let count = result.map(|()| job.count);
                    self.take_payload(shared, (walk, holder), buffer, count, buffers)?;
                    shared.log.give_back(buffer);
                    continue;
                }
                _ => unreachable!("walks are read into records, or block by block"),
            };
            let stretch = &buffers.record(buffer)[..count as usize];
            match self.walks[walk] {
                Walk { headers: Headers::Anywhere, .. } => self.search_on(shared, walk, stretch)?,
                Walk { probe: 0, .. } => self.walk_on(shared, walk, stretch)?,
                _ => self.probe_on(shared, walk, stretch)?,
            }
            shared.log.give_back(buffer);
        }
        let is_idle = self.walks_waiting.is_empty() && !self.jobs_out();
        // What is rebuilt may lead to more.
        Ok(is_idle && !self.ask_for_echo(shared))
    }

    fn begin_walks(&mut self, shared: &mut Shared) -> Result<(), OpenError> {
        let size = shared.superblock.geometry.segment_blocks;
        let latest = shared.superblock.checkpoint.sequence;
        for head in self.heads.iter().flatten() {
            if head.offset < size {
                let segment = SegmentIndex(head.segment);
                let walk = Walk { offset: head.offset, ..Walk::new(segment, latest) };
                memory::push(&mut self.walks, walk)?;
            }
            if shared.segments.segment(SegmentIndex(head.segment)).headers() != Headers::InARow {
                return Err(self.wrong_list(shared, "head"));
            }
        }
        self.begin_searches(shared, latest)?;
        for segment in &self.reserved {
            if !shared.segments.restore_queued(*segment) {
                return Err(self.wrong_list(shared, "reserved"));
            }
            let walk = Walk { step: 1, ..Walk::new(*segment, latest) };
            memory::push(&mut self.walks, walk)?;
        }
        self.walks_waiting = memory::queue(self.walks.len())?;
        self.walks_waiting.extend(0..self.walks.len());
        // The checkpoint's own records lie behind it and were durable before the superblock was.
        self.durable = latest.max(shared.superblock.durable_sequence);
        Ok(())
    }

    pub(super) fn wrong_list(&self, shared: &Shared, name: &'static str) -> OpenError {
        damaged(Structure::Checkpoint, Reason::Field(name), shared.superblock.checkpoint.pba)
    }

    /// Collects the records of a stretch; queues the walk again if there may be more.
    pub(super) fn walk_on(
        &mut self,
        shared: &mut Shared,
        index: usize,
        stretch: &[Block],
    ) -> Result<(), NoMemory> {
        let count = stretch.len() as u32;
        let store = shared.superblock.store;
        let epoch = shared.superblock.epoch;
        let size = shared.superblock.geometry.segment_blocks;
        let walk = self.walks[index];
        let start = segment_start(&shared.superblock.geometry, walk.segment).plus(walk.offset);
        let (mut latest, mut met) = (walk.latest, walk.met);
        let mut at = 0;
        let goes_on = loop {
            if at == count {
                break true;
            }
            let Ok(view) = RecordView::decode(&stretch[at as usize], &store, start.plus(at)) else {
                break false;
            };
            let header = view.header();
            self.meet(&header);
            self.hear(&view, epoch)?;
            let end = at + header.span();
            let foreign = header.epoch != epoch
                || usize::from(header.stream) >= Stream::COUNT
                || header.scattered.is_some();
            if foreign || header.sequence <= latest || walk.offset + end > size {
                break false;
            }
            met = true;
            if end > count {
                break true;
            }
            latest = header.sequence;
            self.take_record(&view, &walk, end, &stretch[at as usize..])?;
            at = end;
        };
        let step = RECORD_BLOCKS as u32;
        let offset = walk.offset + at;
        self.walks[index] = Walk { offset, latest, step, met, ..walk };
        if offset == size {
            return Ok(());
        }
        if goes_on {
            self.walks_waiting.push_back(index);
        } else if offset > 0 || self.may_have_been_opened(index) {
            self.walks[index].probe = PROBE_BLOCKS;
            (self.walks[index].end, self.walks[index].end_is_settled) =
                (Some(start.plus(at)), false);
            self.probe_on(shared, index, &stretch[at as usize..])?;
        }
        Ok(())
    }

    /// Whether a reserved segment without a first record could have been a stream's next one: they
    /// are opened in order, by as many streams as there are. Of those before it the first block has been
    /// looked at, perhaps no more.
    fn may_have_been_opened(&self, index: usize) -> bool {
        let before = self.walks[index.saturating_sub(Stream::COUNT)..index].iter();
        let mut before = before.filter(|walk| walk.headers == Headers::InARow);
        // The heads' segments were opened, be their offset what it may.
        let Some(reserved) = index.checked_sub(self.walks.len() - self.reserved.len()) else {
            return true;
        };
        reserved < Stream::COUNT || before.any(|walk| walk.met)
    }

    /// Behind the end of the log may lie records that cannot be reached, because a header before
    /// them is torn or damaged. If one of them says that what is missing was durable, it is damage.
    /// A record is at most so long that the header behind it lies among the blocks searched.
    fn probe_on(
        &mut self,
        shared: &mut Shared,
        index: usize,
        stretch: &[Block],
    ) -> Result<(), NoMemory> {
        let walk = self.walks[index];
        let size = shared.superblock.geometry.segment_blocks;
        let start = segment_start(&shared.superblock.geometry, walk.segment).plus(walk.offset);
        assert!(walk.probe > 0, "the end is searched while there is something to search");
        let searched = stretch.len().min(walk.probe as usize);
        for (offset, block) in stretch[..searched].iter().enumerate() {
            let place = start.plus(offset as u32);
            if let Ok(view) = RecordView::decode(block, &shared.superblock.store, place) {
                let header = view.header();
                self.meet(&header);
                self.hear(&view, shared.superblock.epoch)?;
                if header.epoch == shared.superblock.epoch && header.sequence > walk.latest {
                    self.durable = self.durable.max(header.durable_sequence);
                    let end = walk.offset + offset as u32 + header.span();
                    if walk.skips && header.scattered.is_none() && end <= size {
                        // It goes on there.
                        let offset = walk.offset + offset as u32;
                        let step = RECORD_BLOCKS as u32;
                        self.walks[index] = Walk { offset, probe: 0, step, ..walk };
                        self.walks_waiting.push_back(index);
                        return Ok(());
                    }
                }
            }
        }
        let offset = walk.offset + searched as u32;
        let probe = walk.probe - searched as u32;
        let step = probe.clamp(1, RECORD_BLOCKS as u32);
        self.walks[index] = Walk { offset, probe, step, ..walk };
        if probe > 0 && offset < size {
            self.walks_waiting.push_back(index);
        }
        Ok(())
    }

    /// Decides which records count, and sets heads and segments accordingly.
    pub(super) fn settle_log(&mut self, shared: &mut Shared) -> Result<(), OpenError> {
        let first = shared.superblock.checkpoint.sequence + 1;
        let last = self.accept(first);
        if let Some(missing) = self.first_missing(first) {
            let (sequence, durable) = (missing, self.durable);
            let error = OpenError::DurableRecordMissing { sequence, durable };
            self.lose_records(shared, (first, error))?;
        }
        if shared.config.degraded == Degraded::Refused {
            self.assert_readable(shared)?;
        }
        let last = last.max(self.durable);
        if self.generation > shared.superblock.generation {
            return Err(OpenError::SuperblockLost { generation: self.generation });
        }
        if self.epoch >= NUMBER_LIMIT_AT_OPENING && !shared.config.read_only {
            return Err(damaged(Structure::RecordHeader, Reason::Field("epoch"), self.epoch_pba));
        }
        shared.statistics.records_dropped = (self.found.len() - self.accepted) as u64;
        assert!(last + 1 >= first, "nothing before the checkpoint is replayed");
        assert!(self.accepted <= self.found.len(), "only what was found counts");
        shared.log.next_sequence = last + 1;
        shared.log.durable = shared.superblock.checkpoint.sequence;
        // Of an opening that was cut off, records may be left that no walk comes to; but before the first
        // of them it announced its epoch.
        let epoch_max = shared.superblock.epoch.max(shared.superblock.epoch_max);
        shared.log.epoch = epoch_max.max(self.epoch) + 1;
        if sings(Canary::EpochNotBumped) {
            shared.log.epoch = shared.superblock.epoch;
        }
        // With either copy found alone, what records say must hold: the other will be the next one.
        shared.log.generation = shared.superblock.generation;
        shared.log.cut = shared.superblock.checkpoint.sequence;
        assert!(shared.log.epoch >= shared.superblock.epoch, "epochs rise");
        self.restore_heads(shared)?;
        self.count_listed(shared)
    }

    /// In a segment that is not patched all records that count are of one stream. Were they not, the
    /// segment would be the head of two.
    fn check_streams(&self, shared: &Shared) -> Result<(), OpenError> {
        let mut streams = memory::filled(None, shared.superblock.geometry.segment_count as usize)?;
        for (stream, head) in (0..).zip(&self.heads) {
            if let Some(head) = head {
                streams[head.segment as usize] = Some(stream);
            }
        }
        for found in self.found[..self.accepted].iter().filter(|found| !found.scattered) {
            if *streams[found.segment.index()].get_or_insert(found.stream) != found.stream {
                return Err(damaged(Structure::RecordHeader, Reason::Field("stream"), found.pba));
            }
        }
        Ok(())
    }

    /// Before a record is long, the superblock says so, so that a reader that knows none refuses the store.
    fn check_long_records(&self, shared: &Shared) -> Result<(), OpenError> {
        if shared.superblock.long_records {
            return Ok(());
        }
        let is_accepted = self.found[..self.accepted].iter().any(|found| found.is_long);
        match self.long.filter(|_| is_accepted) {
            None => Ok(()),
            Some((_, pba, name)) => Err(damaged(Structure::RecordHeader, Reason::Field(name), pba)),
        }
    }

    fn restore_heads(&mut self, shared: &mut Shared) -> Result<(), OpenError> {
        let queued = memory::listed(shared.segments.queue())?;
        let clock = shared.log.write_clock;
        self.check_streams(shared)?;
        self.check_long_records(shared)?;
        for stream in Stream::ALL {
            let mut head = self.heads[stream.index()];
            let records = self.found[..self.accepted].iter().filter(|f| f.stream == stream as u8);
            for found in records {
                let segment = found.segment;
                if found.scattered {
                    shared.segments.record_sealed(segment);
                    continue;
                }
                if shared.segments.segment(segment).state == State::Queued(Trim::Done) {
                    assert!(queued.contains(&segment), "only queued segments are walked from 0");
                    shared.segments.restore_opened(segment, stream as u8, clock);
                }
                // Until it is replayed, the segment may not be freed.
                shared.segments.record_sealed(segment);
                if let Some(left) = head.filter(|head| head.segment != segment.0) {
                    shared.segments.restore_closed(SegmentIndex(left.segment), clock);
                }
                head = Some(Head { segment: segment.0, offset: found.end });
            }
            if let Some(head) = head {
                shared.segments.restore_reopened(SegmentIndex(head.segment));
            }
            shared.log.restore_head(stream, head);
        }
        shared.segments.close_headless(|segment| {
            Stream::ALL.iter().any(|s| shared.log.head(*s).is_some_and(|h| h.segment == segment.0))
        });
        Ok(())
    }
}
