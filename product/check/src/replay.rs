//! The records after the checkpoint: which of them count.
//!
//! The rules are those of `docs/format.md`, *Records after the checkpoint*. Only the heads, the
//! reserved segments and the reserved holes are looked at, as recovery does.

use crate::checkpoint::{Checkpoint, STREAM_COUNT};
use crate::echoes;
use crate::finding::Finding;
use crate::layout::Layout;
use crate::report::Report;
use crate::segments::Segments;
use crate::updates::{Updates, UpdatesBuilder};
use crate::window::Window;
use coulter_format::checksum::{self, Kind};
use coulter_format::record::{Entry, PAYLOAD_BLOCKS_MAX, RecordHeader, RecordView};
use coulter_format::superblock::Superblock;
use coulter_format::{NUMBER_LIMIT_AT_OPENING, Pba, StoreId, Structure};
use std::collections::BTreeMap;

/// A header that was found after the checkpoint.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    sequence: u64,
    stream: u8,
    pba: Pba,
    segment: u32,
    /// Where the record ends in its segment.
    end: u32,
    scattered: bool,
    /// The field by which it is a long one, if it is, with its value.
    long_field: Option<(&'static str, u64)>,
    /// It counts only if the record of the next sequence does.
    goes_on: bool,
}

/// How far a segment was walked.
#[derive(Clone, Copy, Debug)]
struct Walk {
    segment: u32,
    offset: u32,
    /// The sequence of the last record, or the checkpoint's.
    latest: u64,
}

/// What may be replayed.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) updates: Updates,
    /// The last sequence that counts.
    pub(crate) sequence: u64,
    /// Whether nothing that was durable is missing, nor anything else wrong, for all that was found.
    pub(crate) is_whole: bool,
    /// Whether it is not for this reason alone: records that were durable are missing.
    pub(crate) has_only_gap: bool,
}

/// The state of looking for records.
struct Search<'a, 'w> {
    window: &'a mut Window<'w>,
    superblock: &'a Superblock,
    report: &'a mut Report,
    found: Vec<Candidate>,
    /// The highest sequence that the superblock, or some header that recovery looks at, says is durable.
    durable: u64,
    /// The same of headers further behind, at which recovery does not look.
    durable_beyond: u64,
    /// Durable records are missing.
    has_gap: bool,
    /// Something else is wrong, so that what holds is not known.
    is_wrong: bool,
    /// The newest superblock that some header knows of.
    generation: u64,
    /// The highest epoch of any header, and where it is.
    epoch: Option<(u64, Pba)>,
    heard: Heard,
}

/// Where walks ended, and of which headers others tell.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Where no header was found with which a walk would go on, and the sequence of its last.
    pub(crate) ends: Vec<(Pba, u64)>,
    /// The place told of, and the header that tells.
    pub(crate) echoes: Vec<(Pba, Pba)>,
    /// Every record up to this sequence was durable.
    pub(crate) durable: u64,
}

/// Blocks from the end of a walk on among which the next header lies, if there is one: behind a damaged
/// header and the longest payload.
const PROBE_BLOCKS: u32 = 1 + PAYLOAD_BLOCKS_MAX as u32 + 1;

/// Finds the records that count, extends the segments by them, and collects their updates.
pub(crate) fn read(
    window: &mut Window<'_>,
    superblock: &Superblock,
    checkpoint: &Checkpoint,
    segments: &mut Segments,
    report: &mut Report,
) -> Replay {
    loop {
        let before = report.mark();
        let mut search = Search::new(window, superblock, report);
        search.walk_all(checkpoint, &segments.layout);
        let heard = Heard { durable: search.durable, ..std::mem::take(&mut search.heard) };
        let mended = echoes::next(search.window, superblock, &segments.layout, &heard);
        let Some(mended) = mended else { return replay(search, checkpoint, segments) };
        // It may lead to more: the log is gone through again.
        report.rewind(before);
        mended.tell(window, report);
    }
}

/// Decides which of the records that were found count.
fn replay(mut search: Search<'_, '_>, checkpoint: &Checkpoint, segments: &mut Segments) -> Replay {
    let superblock = search.superblock;
    search.found.sort_by_key(|found| found.sequence);
    search.report_twins();
    let accepted = search.accept();
    let mut updates = UpdatesBuilder::default();
    let mut sequence = superblock.checkpoint.sequence;
    search.check_streams(&accepted, checkpoint);
    search.check_long_records(&accepted);
    for found in &accepted {
        if !found.scattered {
            segments.extend(found.segment, found.end);
        }
        search.collect(found, &mut updates);
        sequence = found.sequence;
    }
    search.sum_up(&accepted, sequence);
    let (is_whole, has_only_gap) = (!search.has_gap && !search.is_wrong, !search.is_wrong);
    Replay { updates: updates.finish(), sequence, is_whole, has_only_gap }
}

impl<'a, 'w> Search<'a, 'w> {
    fn new(
        window: &'a mut Window<'w>,
        superblock: &'a Superblock,
        report: &'a mut Report,
    ) -> Search<'a, 'w> {
        // The checkpoint's own records lie behind it and were durable before the superblock was.
        let durable = superblock.checkpoint.sequence.max(superblock.durable_sequence);
        Search {
            window,
            superblock,
            report,
            found: Vec::new(),
            durable,
            durable_beyond: durable,
            has_gap: false,
            is_wrong: false,
            generation: 0,
            epoch: None,
            heard: Heard::default(),
        }
    }
}

impl Search<'_, '_> {
    fn store(&self) -> StoreId {
        self.superblock.store
    }

    /// What holds is not known, and there is more that cannot be looked at.
    fn wrong(&mut self, finding: Finding) {
        self.report.complete = false;
        self.contradicts(finding);
    }

    /// What holds is not known.
    fn contradicts(&mut self, finding: Finding) {
        self.is_wrong = true;
        self.report.add(finding);
    }

    /// Walks the heads, then the reserved segments; searches behind the end of each walk for
    /// records that tell what was durable.
    fn walk_all(&mut self, checkpoint: &Checkpoint, layout: &Layout) {
        let mut beyond = Vec::new();
        for head in checkpoint.heads.iter().flatten() {
            let walk = self.walk(layout, head.segment, head.offset);
            self.probe(layout, walk);
            beyond.push(walk);
        }
        // Reserved segments are opened in order, by as many streams as there are: behind so many
        // that hold no record nothing can follow.
        let (mut without, mut without_any) = (0, 0);
        for segment in &checkpoint.reserved {
            let walk = self.walk(layout, *segment, 0);
            without = if walk.offset > 0 { 0 } else { without + 1 };
            let mut holds_any = walk.offset > 0;
            if without <= STREAM_COUNT {
                holds_any |= self.probe(layout, walk);
            }
            without_any = if holds_any { 0 } else { without_any + 1 };
            if without_any <= STREAM_COUNT {
                beyond.push(walk);
            }
        }
        // What was closed has nothing there.
        if !self.superblock.clean || !self.found.is_empty() {
            beyond.into_iter().for_each(|walk| self.probe_beyond(layout, walk));
        }
        for segment in &checkpoint.holes {
            self.search_holes(layout, *segment);
        }
        let found = self.superblock.generation;
        if self.generation > found {
            let generation = self.generation;
            self.wrong(Finding::SuperblockLost { generation, found });
        }
        if let Some((value, pba)) = self.epoch
            && value >= NUMBER_LIMIT_AT_OPENING
        {
            let (structure, field) = (Structure::RecordHeader, "epoch");
            self.report.add(Finding::NumberSpent { structure, pba, field, value });
        }
    }

    /// Notes the headers of a segment from an offset on, as long as they can follow the checkpoint.
    fn walk(&mut self, layout: &Layout, segment: u32, start: u32) -> Walk {
        let store = self.store();
        let size = layout.segment_blocks();
        let latest = self.superblock.checkpoint.sequence;
        let mut walk = Walk { segment, offset: start, latest };
        while walk.offset < size {
            let pba = layout.start(segment).plus(walk.offset);
            let block = match self.window.header(pba, size - walk.offset) {
                Ok(block) => block,
                Err(error) => {
                    let structure = coulter_format::Structure::RecordHeader;
                    self.wrong(Finding::Unreadable { owner: None, structure, pba, error });
                    self.heard.ends.push((pba, walk.latest));
                    break;
                }
            };
            let Ok(view) = RecordView::decode(block, &store, pba) else {
                self.heard.ends.push((pba, walk.latest));
                break;
            };
            let (header, long_field) = (view.header(), view.long_field());
            let echo = view.echo().map(|echo| echo.pba());
            self.meet(&header);
            self.hear(&header, echo);
            let end = walk.offset + header.span();
            let ours = self.is_ours(&header) && header.scattered.is_none();
            if !ours || header.sequence <= walk.latest || end > size {
                break;
            }
            self.note(segment, end, &header, long_field);
            walk = Walk { latest: header.sequence, offset: end, ..walk };
        }
        walk
    }

    /// What any header tells, whether its record counts or not.
    fn meet(&mut self, header: &RecordHeader) {
        self.generation = self.generation.max(header.generation);
        if self.epoch.is_none_or(|(epoch, _)| header.epoch > epoch) {
            self.epoch = Some((header.epoch, header.pba));
        }
    }

    /// Notes of which header one tells.
    fn hear(&mut self, header: &RecordHeader, echo: Option<Pba>) {
        if let Some(pba) = echo.filter(|_| header.epoch == self.superblock.epoch) {
            self.heard.echoes.push((pba, header.pba));
        }
    }

    fn is_ours(&self, header: &RecordHeader) -> bool {
        header.epoch == self.superblock.epoch && usize::from(header.stream) < STREAM_COUNT
    }

    fn note(
        &mut self,
        segment: u32,
        end: u32,
        header: &RecordHeader,
        long_field: Option<(&'static str, u64)>,
    ) {
        self.durable = self.durable.max(header.durable_sequence);
        self.durable_beyond = self.durable_beyond.max(self.durable);
        let RecordHeader { sequence, stream, goes_on, pba, .. } = *header;
        let scattered = header.scattered.is_some();
        self.found.push(Candidate {
            sequence,
            stream,
            pba,
            segment,
            end,
            scattered,
            long_field,
            goes_on,
        });
    }

    /// Notes the scattered records of a segment that can follow the checkpoint, wherever they are.
    fn search_holes(&mut self, layout: &Layout, segment: u32) {
        let (store, size) = (self.store(), layout.segment_blocks());
        for offset in 0..size {
            let pba = layout.start(segment).plus(offset);
            let block = match self.window.sequential(pba, 1, size - offset) {
                Ok(blocks) => blocks.first(),
                Err(error) => {
                    let structure = coulter_format::Structure::RecordHeader;
                    self.wrong(Finding::Unreadable { owner: None, structure, pba, error });
                    continue;
                }
            };
            let Some(view) = block.and_then(|block| RecordView::decode(block, &store, pba).ok())
            else {
                continue;
            };
            let (header, echo) = (view.header(), view.echo().map(|echo| echo.pba()));
            self.meet(&header);
            self.hear(&header, echo);
            let end = offset + header.span();
            let follows = header.sequence > self.superblock.checkpoint.sequence && end <= size;
            if header.scattered.is_some() && follows && self.is_ours(&header) {
                self.note(segment, end, &header, None);
            }
        }
    }

    /// Behind a header that is torn or damaged may lie records that cannot be reached. They do not
    /// count, but what they say of durability does. Returns whether there are any.
    fn probe(&mut self, layout: &Layout, walk: Walk) -> bool {
        let end = layout.segment_blocks().min(walk.offset.saturating_add(PROBE_BLOCKS));
        let found = self.search_headers(layout, walk, walk.offset..end);
        self.durable = self.durable.max(self.durable_beyond);
        found
    }

    /// Where many headers in a row are damaged, records lie further behind than recovery looks.
    fn probe_beyond(&mut self, layout: &Layout, walk: Walk) {
        let start = walk.offset.saturating_add(PROBE_BLOCKS);
        self.search_headers(layout, walk, start..layout.segment_blocks());
    }

    /// Notes what headers say of durability that can only follow a walk; returns whether there are any.
    fn search_headers(
        &mut self,
        layout: &Layout,
        walk: Walk,
        offsets: std::ops::Range<u32>,
    ) -> bool {
        let (store, epoch) = (self.store(), self.superblock.epoch);
        let mut found = false;
        for offset in offsets.clone() {
            let pba = layout.start(walk.segment).plus(offset);
            let Ok(block) = self.window.sequential(pba, 1, offsets.end - offset) else { continue };
            let Some(block) = block.first() else { continue };
            let Ok(view) = RecordView::decode(block, &store, pba) else { continue };
            let (header, echo) = (view.header(), view.echo().map(|echo| echo.pba()));
            self.meet(&header);
            self.hear(&header, echo);
            if header.epoch == epoch && header.sequence > walk.latest {
                self.durable_beyond = self.durable_beyond.max(header.durable_sequence);
                found = true;
            }
        }
        found
    }

    fn end_pba(&self, found: &Candidate) -> u64 {
        let geometry = &self.superblock.geometry;
        let start = u64::from(geometry.first_segment.0)
            + u64::from(found.segment) * u64::from(geometry.segment_blocks);
        start + u64::from(found.end)
    }

    fn report_twins(&mut self) {
        let mut twins = Vec::new();
        for (one, other) in self.found.iter().zip(self.found.iter().skip(1)) {
            if one.sequence == other.sequence {
                let (sequence, first, second) = (one.sequence, one.pba, other.pba);
                twins.push(Finding::SequenceTwice { sequence, first, second });
            }
        }
        twins.into_iter().for_each(|twin| self.contradicts(twin));
    }

    /// The records that follow the checkpoint without a gap, and are durable or intact.
    fn accept(&mut self) -> Vec<Candidate> {
        let mut accepted: Vec<Candidate> = Vec::new();
        let mut next = self.superblock.checkpoint.sequence.saturating_add(1);
        let mut at = None;
        for index in 0..self.found.len() {
            let Some(found) = self.found.get(index).copied() else { break };
            if found.sequence < next {
                continue;
            }
            if found.sequence > next {
                break;
            }
            if found.sequence > self.durable && !self.payload_is_intact(&found) {
                at = Some(found.pba);
                break;
            }
            accepted.push(found);
            next = next.saturating_add(1);
        }
        // A group takes effect as a whole or not at all.
        while let Some(last) = accepted.pop_if(|last| last.goes_on) {
            next = last.sequence;
            at = Some(last.pba);
        }
        if next <= self.durable_beyond {
            let (sequence, durable_sequence) = (next, self.durable_beyond);
            let opens = next > self.durable;
            self.report.complete = false;
            self.has_gap = true;
            let (durable, pba) = (durable_sequence, at);
            let finding =
                Finding::DurableRecordMissing { sequence, durable_sequence: durable, pba, opens };
            self.report.add(finding);
        } else {
            let dropped = self.found.iter().filter(|found| found.sequence >= next).count() as u64;
            self.report.recovery.records_dropped = dropped;
            if dropped > 0 {
                let finding = Finding::TornTail { sequence: next, dropped_records: dropped };
                self.report.add(finding);
            }
        }
        accepted
    }

    /// In a segment that is not patched all records that count are of one stream.
    fn check_streams(&mut self, accepted: &[Candidate], checkpoint: &Checkpoint) {
        let heads = (0..).zip(&checkpoint.heads);
        let mut streams: BTreeMap<u32, u8> =
            heads.filter_map(|(stream, head)| Some(((*head)?.segment, stream))).collect();
        for found in accepted.iter().filter(|found| !found.scattered) {
            if *streams.entry(found.segment).or_insert(found.stream) != found.stream {
                let (pba, value) = (found.pba, u64::from(found.stream));
                self.contradicts(Finding::RecordContradicts { pba, field: "stream", value });
            }
        }
    }

    /// Long records are only where the superblock says that there may be some.
    fn check_long_records(&mut self, accepted: &[Candidate]) {
        if self.superblock.long_records {
            return;
        }
        for found in accepted {
            if let Some((field, value)) = found.long_field {
                self.contradicts(Finding::RecordContradicts { pba: found.pba, field, value });
            }
        }
    }

    fn payload_is_intact(&mut self, found: &Candidate) -> bool {
        let (_, damaged) = self.compare(found);
        damaged.is_some_and(|damaged| damaged.iter().all(|entry| entry.relocated))
    }

    /// The entries of a record, and those with a payload that does not match; `None` for them if the
    /// record cannot be read.
    fn compare(&mut self, found: &Candidate) -> (Vec<Entry>, Option<Vec<Entry>>) {
        let store = self.store();
        let count = (self.end_pba(found) - u64::from(found.pba.0)) as u32;
        let Ok(blocks) = self.window.blocks(found.pba, count) else { return (Vec::new(), None) };
        let view = blocks.first().map(|header| RecordView::decode(header, &store, found.pba));
        let Some(Ok(view)) = view else { return (Vec::new(), None) };
        let is_damaged = |entry: &Entry| {
            let block = blocks.get(entry.pba.0.wrapping_sub(found.pba.0) as usize);
            let sum = block.map(|block| checksum::block(entry.kind, entry.key, block));
            entry.kind.has_payload() && sum != Some(entry.word.checksum)
        };
        let damaged = view.entries().filter(is_damaged).collect();
        (view.entries().collect(), Some(damaged))
    }

    /// The relocated blocks of a record that did not arrive as they should be: their source still
    /// counts.
    fn lost_relocations(&mut self, found: &Candidate, entries: &[Entry]) -> Vec<Pba> {
        if !entries.iter().any(|entry| entry.relocated) {
            return Vec::new();
        }
        let (_, damaged) = self.compare(found);
        let damaged = damaged.into_iter().flatten();
        damaged.filter(|entry| entry.relocated).map(|entry| entry.pba).collect()
    }

    /// Takes a record's updates of the map.
    fn collect(&mut self, found: &Candidate, updates: &mut UpdatesBuilder) {
        let store = self.store();
        let before = updates.count();
        let entries: Vec<Entry> = match self.window.block(found.pba) {
            Ok(block) => RecordView::decode(block, &store, found.pba)
                .map_or(Vec::new(), |view| view.entries().collect()),
            Err(_) => Vec::new(),
        };
        let lost = self.lost_relocations(found, &entries);
        let volume_size = self.superblock.geometry.volume_size;
        for mut entry in entries {
            let is_host = matches!(entry.kind, Kind::Data | Kind::Discard);
            let end = entry.key.saturating_add(u64::from(entry.count));
            if is_host && end > volume_size {
                let (pba, value) = (found.pba, entry.key);
                self.wrong(Finding::RecordContradicts { pba, field: "key", value });
                continue;
            }
            // What did not arrive still tells that its address lay at the source then.
            if entry.relocated && lost.contains(&entry.pba) {
                entry.pba = entry.word.address;
            }
            updates.add(found.sequence, &entry);
        }
        let recovery = &mut self.report.recovery;
        recovery.records_to_replay += u64::from(updates.count() > before);
    }

    fn sum_up(&mut self, accepted: &[Candidate], sequence: u64) {
        let recovery = &mut self.report.recovery;
        recovery.records = accepted.len() as u64;
        recovery.sequence = sequence;
        recovery.needed = recovery.records_to_replay > 0;
        let records = recovery.records_to_replay;
        if self.superblock.clean && records > 0 {
            self.report.add(Finding::CleanButWritten { records });
        }
    }
}
