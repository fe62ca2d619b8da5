//! Every record header that is left in the log.
//!
//! In a segment that is not patched, a header leads to the next one, and payload is not read. Wherever that
//! does not lead on, in patched segments, and where the segment table is damaged, every block is looked at.
//! What former lives of a segment left behind is found as well; it is older, and does no harm.

use crate::layout::Layout;
use crate::segments::Segments;
use crate::window::Window;
use coulter_format::checkpoint::Reference;
use coulter_format::checksum::{self, Kind};
use coulter_format::record::{Entry, PAYLOAD_BLOCKS_MAX, RecordView};
use coulter_format::superblock::Superblock;
use coulter_format::{Block, BlockPointer, Pba, StoreId};
use std::collections::BTreeMap;

/// A record whose header is intact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) pba: Pba,
    checksum: u32,
    epoch: u64,
    pub(super) sequence: u64,
    /// It lies in holes, so it says nothing of where the record before it ends.
    is_scattered: bool,
    /// Up to where the latest checkpoint went that had been begun when it was written; 0 if it does not say.
    cut: u64,
}

/// What the log says.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) store: StoreId,
    /// By address.
    pub(super) records: Vec<Record>,
    /// The first blocks of checkpoints' bodies.
    bodies: Vec<BlockPointer>,
    /// Up to where checkpoints went, by sequence: as far as records and bodies tell that are left.
    cuts: Vec<u64>,
    /// Where headers are missing between others of the same life, and blocks up to the next. Those after the
    /// checkpoint are not among them: their sequences are missing.
    gaps: BTreeMap<Pba, u64>,
    /// Entries of all records.
    entry_count: u64,
    /// Blocks that scattered records took, by which record: what lay there before is gone.
    taken: Vec<(Pba, u64)>,
    /// Every record up to this sequence was durable.
    durable: u64,
    pub(super) checkpoint: u64,
    epoch: u64,
    generation: u64,
    /// The newest superblock that some header knows of.
    generation_met: u64,
    /// Whether every block that may be a header could be read.
    is_all_read: bool,
    /// Records between the checkpoint and what was durable that are not there: how many, and the last.
    missing_count: u64,
    missing_last: u64,
    /// See [`Log::certain_after`].
    certain_after: u64,
}

/// Records that are missing, and how many blocks they can have at most.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Missing {
    pub(super) records: u64,
    pub(super) blocks: u64,
}

/// How far a segment was gone through.
#[derive(Clone, Copy, Debug, Default)]
struct ScanChain {
    /// Where the next header should be.
    end: u32,
    sequence: u64,
    /// A scattered record was met: the last one to be written is always there.
    is_patched: bool,
    /// Records from here on came after the checkpoint.
    checkpoint_end: u32,
}

impl Log {
    /// Reads all headers.
    pub(super) fn scan(
        window: &mut Window<'_>,
        superblock: &Superblock,
        segments: Option<&Segments>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Log {
        let mut log = Log {
            store: superblock.store,
            records: Vec::new(),
            bodies: Vec::new(),
            cuts: Vec::new(),
            gaps: BTreeMap::new(),
            entry_count: 0,
            taken: Vec::new(),
            durable: superblock.durable_sequence,
            checkpoint: superblock.checkpoint.sequence,
            epoch: superblock.epoch,
            generation: superblock.generation,
            generation_met: 0,
            is_all_read: true,
            missing_count: 0,
            missing_last: 0,
            certain_after: u64::MAX,
        };
        let layout = Layout { geometry: superblock.geometry };
        let count = layout.segment_count();
        for segment in 0..count {
            if u64::from(layout.start(segment).0) >= window.size_blocks() {
                log.is_all_read = false;
                break;
            }
            let known = segments.and_then(|segments| segments.segment(segment));
            let entry = known.and_then(|known| known.entry);
            let chained = entry.is_some() && known.is_some_and(|known| !known.patched);
            let checkpoint_end = known.map_or(u32::MAX, |known| known.checkpoint_end);
            let chain = ScanChain { checkpoint_end, ..ScanChain::default() };
            let chain = log.scan_segment(window, &layout, segment, chained, chain);
            // Where holes are filled, a header that nothing needs may be overwritten.
            if chain.is_patched || entry.is_some_and(|entry| entry.valid == 0) {
                log.forget_gaps(&layout, segment);
            }
            progress(u64::from(segment) + 1, u64::from(count));
        }
        log.taken.sort_unstable();
        log.miss_records();
        let bodies = std::mem::take(&mut log.bodies);
        log.read_cuts(window, &bodies);
        log
    }

    fn scan_segment(
        &mut self,
        window: &mut Window<'_>,
        layout: &Layout,
        segment: u32,
        chained: bool,
        mut chain: ScanChain,
    ) -> ScanChain {
        let size = layout.segment_blocks();
        let mut offset = 0;
        while offset < size {
            let pba = layout.start(segment).plus(offset);
            let at_header = chained && offset == chain.end;
            let block = match at_header {
                true => window.header(pba, size - offset).ok(),
                false => window.sequential(pba, 1, size - offset).ok().and_then(|b| b.first()),
            };
            self.is_all_read &= block.is_some();
            let span = block.and_then(|block| self.note(block, pba, offset, &mut chain));
            offset += if chained { span.unwrap_or(1) } else { 1 };
        }
        chain
    }

    /// Notes what a block says if it is a header; returns its span.
    fn note(&mut self, block: &Block, pba: Pba, offset: u32, chain: &mut ScanChain) -> Option<u32> {
        let view = RecordView::decode(block, &self.store, pba).ok()?;
        let header = view.header();
        if header.scattered.is_none() {
            let is_behind = chain.sequence >= self.checkpoint || chain.end >= chain.checkpoint_end;
            let is_recent = header.epoch == self.epoch && is_behind;
            if offset > chain.end && header.sequence > chain.sequence && !is_recent {
                let start = Pba(pba.0 - (offset - chain.end));
                self.gaps.insert(start, u64::from(offset - chain.end - 1));
            }
            if offset >= chain.end {
                chain.end = offset + header.span();
                chain.sequence = header.sequence;
            }
        } else {
            chain.is_patched = true;
            let payload = view.entries().filter(|entry| entry.kind.has_payload());
            let blocks = payload.map(|entry| entry.pba).chain([pba]);
            self.taken.extend(blocks.map(|pba| (pba, header.sequence)));
        }
        self.durable = self.durable.max(header.durable_sequence);
        self.generation_met = self.generation_met.max(header.generation);
        for entry in view.entries() {
            self.entry_count += 1;
            if entry.kind == Kind::Checkpoint && entry.key == 0 {
                let checksum = entry.word.checksum;
                self.bodies.push(BlockPointer { pba: entry.pba, checksum });
            }
        }
        let (epoch, sequence) = (header.epoch, header.sequence);
        self.records.push(Record {
            pba,
            checksum: view.checksum(),
            epoch,
            sequence,
            is_scattered: header.scattered.is_some(),
            cut: header.cut,
        });
        Some(header.span())
    }

    /// Finds out which records are missing: of those after the checkpoint none was overwritten, so each that was
    /// durable is there or is damaged.
    fn miss_records(&mut self) {
        let (checkpoint, durable) = (self.checkpoint, self.durable);
        let recent = self.records.iter().filter(|record| record.epoch == self.epoch);
        let sequences = recent.map(|record| record.sequence);
        let mut there: Vec<u64> =
            sequences.filter(|sequence| *sequence > checkpoint && *sequence <= durable).collect();
        there.sort_unstable();
        there.dedup();
        self.missing_count = durable.saturating_sub(checkpoint).saturating_sub(there.len() as u64);
        let mut last = durable;
        while self.missing_count > 0 && there.pop_if(|sequence| *sequence == last).is_some() {
            last -= 1;
        }
        self.missing_last = if self.missing_count > 0 { last } else { 0 };
    }

    /// What a record of a higher sequence wrote or discarded nothing that is missing can have changed later.
    pub(super) fn certain_after(&self) -> u64 {
        self.certain_after
    }

    /// Says what is certain: `is_whole` if replay found no record missing, `is_known` if it found nothing worse,
    /// or could not be done.
    pub(super) fn settle_certainty(&mut self, is_whole: bool, is_known: bool) {
        let is_newest = self.generation_met <= self.generation && self.is_all_read;
        self.certain_after = match (is_whole, is_known && is_newest) {
            (true, _) => self.checkpoint,
            (false, true) => self.checkpoint.max(self.missing_last),
            (false, false) => u64::MAX,
        };
    }

    /// Reads up to which sequence the checkpoints went whose bodies are left.
    fn read_cuts(&mut self, window: &mut Window<'_>, bodies: &[BlockPointer]) {
        for body in bodies {
            let Ok(block) = window.block(body.pba) else { continue };
            if checksum::block(Kind::Checkpoint, 0, block) == body.checksum
                && let Some(bytes) = block.get(8..16)
            {
                // Its sequence, as section 8 of the format has it.
                let bytes = <[u8; 8]>::try_from(bytes).unwrap_or_default();
                self.cuts.push(u64::from_le_bytes(bytes));
            }
        }
    }

    fn forget_gaps(&mut self, layout: &Layout, segment: u32) {
        let start = layout.start(segment);
        let mut later = self.gaps.split_off(&start);
        let end = start.plus(layout.segment_blocks());
        self.gaps.append(&mut later.split_off(&end));
    }

    /// The entries of a record.
    pub(super) fn entries(&self, window: &mut Window<'_>, pba: Pba) -> Option<Vec<Entry>> {
        let block = window.header(pba, 1).ok()?;
        let view = RecordView::decode(block, &self.store, pba).ok()?;
        Some(view.entries().collect())
    }

    /// Entries that all records come to.
    pub(super) fn entry_count(&self) -> u64 {
        self.entry_count
    }

    /// Whether what a record wrote to a block was overwritten by a later one that went into holes.
    pub(super) fn is_taken_after(&self, pba: Pba, sequence: u64) -> bool {
        let first = self.taken.partition_point(|taken| *taken <= (pba, sequence));
        self.taken.get(first).is_some_and(|(taken, _)| *taken == pba)
    }

    /// The last checkpoint before a sequence: what was not applied by then was written after it.
    pub(super) fn cut_before(&self, sequence: u64) -> u64 {
        let index = self.cuts.partition_point(|cut| *cut < sequence);
        index.checked_sub(1).and_then(|index| self.cuts.get(index)).copied().unwrap_or(0)
    }

    /// Forgets records that recovery dropped: of an epoch after which another one went on from a lower
    /// sequence, and what was being written when the power went last. `replayed` is the last sequence that
    /// counts, if that is known.
    pub(super) fn drop_what_never_happened(
        &mut self,
        window: &mut Window<'_>,
        replayed: Option<u64>,
    ) {
        if replayed.is_some() {
            let epoch = self.epoch;
            self.records.retain(|record| record.epoch <= epoch);
            let checkpoint = self.checkpoint;
            self.records.retain(|record| record.epoch == epoch || record.sequence <= checkpoint);
        }
        let mut firsts: BTreeMap<u64, u64> = BTreeMap::new();
        for record in &self.records {
            let first = firsts.entry(record.epoch).or_insert(record.sequence);
            *first = (*first).min(record.sequence);
        }
        self.records.retain(|record| {
            let mut later = firsts.range(record.epoch.saturating_add(1)..);
            later.all(|(_, first)| record.sequence < *first)
        });
        let last = replayed.unwrap_or_else(|| self.last_that_counts(window));
        self.records.retain(|record| record.sequence <= last);
        // What a record that never happened says of cuts may be of sequences that others took.
        self.cuts.extend(self.records.iter().map(|record| record.cut));
        self.cuts.sort_unstable();
        self.cuts.dedup();
    }

    /// The last sequence that counts, for all that the log says: what was durable, and what follows it
    /// without a gap, intact.
    fn last_that_counts(&self, window: &mut Window<'_>) -> u64 {
        let mut tail: Vec<_> =
            self.records.iter().filter(|record| record.sequence > self.durable).collect();
        tail.sort_by_key(|record| record.sequence);
        let (mut last, mut of_group) = (self.durable, self.durable);
        for record in tail {
            let Some(goes_on) = self.is_intact(window, record.pba) else { break };
            if record.sequence != of_group + 1 {
                break;
            }
            of_group = record.sequence;
            if !goes_on {
                last = of_group;
            }
        }
        last
    }

    /// Whether all that a record wrote is as it should be, relocated blocks aside; and then whether its group
    /// goes on.
    fn is_intact(&self, window: &mut Window<'_>, pba: Pba) -> Option<bool> {
        let block = window.block(pba).ok()?;
        let view = RecordView::decode(block, &self.store, pba).ok()?;
        let goes_on = view.header().goes_on;
        let entries: Vec<_> = view.entries().collect();
        let payload = entries.iter().filter(|entry| entry.kind.has_payload() && !entry.relocated);
        for entry in payload {
            let block = window.block(entry.pba).ok()?;
            if checksum::block(entry.kind, entry.key, block) != entry.word.checksum {
                return None;
            }
        }
        Some(goes_on)
    }

    /// The records whose headers are missing: those after the checkpoint, those referred to, and, if the log has to
    /// stand in for the map, all that are known to be.
    pub(super) fn missing(&self, all: bool, referred: &[Reference], layout: &Layout) -> Missing {
        let mut lost = if all { self.gaps.clone() } else { BTreeMap::new() };
        for reference in referred {
            let at = self.records.partition_point(|record| record.pba < reference.pba);
            let behind = self.records.get(at..).unwrap_or(&[]);
            let is_it = |record: &&Record| {
                record.pba == reference.pba && record.checksum == reference.checksum
            };
            if behind.first().filter(is_it).is_some() {
                continue;
            }
            let Some(place) = layout.place(reference.pba) else { continue };
            let end = layout.start(place.segment).plus(layout.segment_blocks());
            let is_next = |record: &&Record| record.pba > reference.pba && !record.is_scattered;
            let next = behind.iter().find(is_next);
            let next = next.map_or(end, |record| record.pba.min(end));
            let blocks = u64::from(next.0.saturating_sub(reference.pba.0 + 1));
            lost.entry(reference.pba).or_insert(blocks.min(PAYLOAD_BLOCKS_MAX as u64));
        }
        let recent = self.missing_count.saturating_mul(PAYLOAD_BLOCKS_MAX as u64);
        let blocks = recent.saturating_add(lost.values().sum());
        let blocks = blocks.min(layout.geometry.volume_size);
        Missing { records: self.missing_count.saturating_add(lost.len() as u64), blocks }
    }
}
