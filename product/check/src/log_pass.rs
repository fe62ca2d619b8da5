//! Through the log once, in order of the device: every record header, and the data if asked for.

use crate::finding::{Finding, Owner};
use crate::layout::{Layout, Place};
use crate::progress::{Options, Phase};
use crate::references::{References, SegmentReferences, hash};
use crate::report::Report;
use crate::segments::{Segment, Segments};
use crate::window::Window;
use coulter_format::checksum::{self, Kind};
use coulter_format::record::{Entry, RecordHeader, RecordView};
use coulter_format::superblock::Superblock;
use coulter_format::{BlockPointer, Lba, Pba, StoreId, Structure};

/// What a chain of records must be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainRules {
    store: StoreId,
    epoch: u64,
    /// No record that counts has a higher sequence.
    sequence: u64,
    layout: Layout,
}

/// How far along a chain one is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    rules: ChainRules,
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    /// Epoch and sequence of the record before.
    latest: Option<(u64, u64)>,
}

impl ChainRules {
    pub(crate) fn new(superblock: &Superblock, sequence: u64, layout: Layout) -> ChainRules {
        ChainRules { store: superblock.store, epoch: superblock.epoch, sequence, layout }
    }

    /// The entries of the record at this place of a patched segment, if one lies there that counts or
    /// once did, with its sequence; they go to `entries`.
    pub(crate) fn read_anywhere(
        &self,
        window: &mut Window<'_>,
        place: Place,
        entries: &mut Vec<Entry>,
    ) -> Option<u64> {
        entries.clear();
        let left = self.layout.segment_blocks().checked_sub(place.offset)?;
        let pba = self.layout.start(place.segment).plus(place.offset);
        let block = window.sequential(pba, 1, left).ok()?.first()?;
        let header = RecordView::decode(block, &self.store, pba).ok()?;
        entries.extend(header.entries());
        let header = header.header();
        let counts = header.epoch <= self.epoch && header.sequence <= self.sequence;
        (counts && header.span() <= left).then_some(header.sequence)
    }

    /// The start of a segment's chain.
    pub(crate) fn start(self, segment: u32) -> Chain {
        Chain { rules: self, segment, offset: 0, latest: None }
    }
}

impl Chain {
    /// Where the next header should be.
    pub(crate) fn pba(&self) -> Pba {
        self.rules.layout.start(self.segment).plus(self.offset)
    }

    /// The header at this place, if it goes on with the chain; its entries go to `entries`.
    ///
    /// An older record that lies there from the segment's former life does not: its sequence is
    /// lower. Nor does one that recovery has dropped: its epoch is over.
    pub(crate) fn read(
        &self,
        window: &mut Window<'_>,
        entries: &mut Vec<Entry>,
    ) -> Option<RecordHeader> {
        entries.clear();
        let size = self.rules.layout.segment_blocks();
        let pba = self.pba();
        let left = size.checked_sub(self.offset)?;
        let block = window.header(pba, left).ok()?;
        let view = RecordView::decode(block, &self.rules.store, pba).ok()?;
        let header = view.header();
        let follows = self
            .latest
            .is_none_or(|(epoch, sequence)| header.epoch >= epoch && header.sequence > sequence);
        let counts = header.epoch <= self.rules.epoch && header.sequence <= self.rules.sequence;
        let fits = header.scattered.is_none() && header.span() <= left;
        if follows && counts && fits {
            entries.extend(view.entries());
            Some(header)
        } else {
            None
        }
    }

    /// Steps over a record.
    pub(crate) fn advance(&mut self, header: &RecordHeader) {
        self.offset += header.span();
        self.latest = Some((header.epoch, header.sequence));
    }
}

/// The pass.
pub(crate) struct LogPass<'a, 'w> {
    pub(crate) window: &'a mut Window<'w>,
    pub(crate) segments: &'a Segments,
    pub(crate) references: &'a References,
    pub(crate) rules: ChainRules,
    pub(crate) data: bool,
    /// Segments to be looked into.
    pub(crate) suspects: Vec<u32>,
    entries: Vec<Entry>,
    /// Of the segment in hand: data blocks compared, and what was wrong with them.
    compared: u64,
    damaged: Vec<Finding>,
}

impl<'a, 'w> LogPass<'a, 'w> {
    pub(crate) fn new(
        window: &'a mut Window<'w>,
        segments: &'a Segments,
        references: &'a References,
        rules: ChainRules,
        data: bool,
    ) -> LogPass<'a, 'w> {
        LogPass {
            window,
            segments,
            references,
            rules,
            data,
            suspects: Vec::new(),
            entries: Vec::new(),
            compared: 0,
            damaged: Vec::new(),
        }
    }

    /// Goes through all segments in use. Returns those in which map and log disagree.
    pub(crate) fn run(mut self, options: &mut Options<'_>, report: &mut Report) -> Vec<u32> {
        let total = u64::from(self.segments.layout.segment_count());
        for (segment, slot) in self.segments.iter() {
            let references = self.references.segment(segment);
            let referenced = references.is_some_and(|found| found.total > 0);
            if slot.in_use() || referenced {
                self.segment(segment, slot, report);
            }
            if slot.in_use() {
                report.counters.segments_in_use += 1;
            }
            if segment.is_multiple_of(16) {
                options.report(Phase::Log, u64::from(segment), total);
            }
        }
        options.report(Phase::Log, total, total);
        self.suspects
    }

    fn segment(&mut self, segment: u32, slot: &Segment, report: &mut Report) {
        let Some(references) = self.references.segment(segment) else { return };
        if slot.patched {
            // Headers of dead records are left in it, so no sum can be compared: block by block.
            self.suspects.push(segment);
            return;
        }
        let size = self.segments.layout.segment_blocks();
        let limit = if slot.end_is_exact { slot.end } else { size };
        let mut chain = self.rules.start(segment);
        let mut fingerprint = 0u64;
        let mut boundary_met = slot.checkpoint_end == 0 || !slot.end_is_exact;
        self.compared = 0;
        self.damaged.clear();
        let mut entries = std::mem::take(&mut self.entries);
        while chain.offset < limit {
            let Some(header) = chain.read(self.window, &mut entries) else { break };
            report.counters.records += 1;
            let sum = self.record(&chain, &entries, references);
            fingerprint = fingerprint.wrapping_add(sum);
            chain.advance(&header);
            boundary_met |= chain.offset == slot.checkpoint_end;
        }
        self.entries = entries;
        if slot.end_is_exact && (chain.offset != slot.end || !boundary_met) {
            let expected_end = self.segments.layout.start(segment).plus(slot.end);
            report.add(Finding::ChainBroken { segment, pba: chain.pba(), expected_end });
        }
        if fingerprint != references.fingerprint || references.suspicious {
            // Its data are verified by the map's own checksums there.
            self.suspects.push(segment);
        } else {
            report.counters.data_blocks += self.compared;
            self.damaged.drain(..).for_each(|finding| report.add(finding));
        }
    }

    /// Sums up the used blocks of a record; reads its mapped data if asked for.
    fn record(&mut self, chain: &Chain, entries: &[Entry], references: &SegmentReferences) -> u64 {
        let mut sum = 0u64;
        let mut mapped = None::<(u32, u32)>;
        let mut offset = chain.offset;
        for entry in entries {
            if !entry.kind.has_payload() {
                continue;
            }
            offset += 1;
            if references.is_used(offset) {
                let pointer = BlockPointer { pba: entry.pba, checksum: entry.word.checksum };
                sum = sum.wrapping_add(hash(Owner::new(entry.kind, entry.key), pointer));
            }
            if references.is_mapped(offset) {
                let (first, _) = mapped.unwrap_or((offset, offset));
                mapped = Some((first, offset));
            }
        }
        if self.data
            && let Some((first, last)) = mapped
        {
            self.verify_data(chain, entries, references, (first, last));
        }
        sum
    }

    /// Compares the mapped blocks of a record, from the first to the last, with their checksums.
    fn verify_data(
        &mut self,
        chain: &Chain,
        entries: &[Entry],
        references: &SegmentReferences,
        (first, last): (u32, u32),
    ) {
        let start = self.segments.layout.start(chain.segment);
        let left = self.segments.layout.segment_blocks() - first;
        let count = last - first + 1;
        let together = self.window.sequential(start.plus(first), count, left).is_ok();
        let mut offset = chain.offset;
        for entry in entries.iter().filter(|entry| entry.kind.has_payload()) {
            offset += 1;
            if !references.is_mapped(offset) {
                continue;
            }
            let (pba, key) = (entry.pba, entry.key);
            // Once more, from the buffer; or alone, if one of them cannot be read.
            let block = match together {
                true => self
                    .window
                    .sequential(start.plus(first), count, left)
                    .map(|blocks| blocks.get((offset - first) as usize)),
                false => self.window.block(pba).map(Some),
            };
            self.compared += 1;
            match block {
                Err(error) => {
                    let owner = Some(Owner::new(Kind::Data, key));
                    let structure = Structure::Data;
                    self.damaged.push(Finding::Unreadable { owner, structure, pba, error });
                }
                Ok(block) => {
                    let found = block.map(|block| checksum::block(entry.kind, key, block));
                    if found != Some(entry.word.checksum) {
                        self.damaged.push(Finding::DataDamaged { lba: Lba(key), pba });
                    }
                }
            }
        }
    }
}
