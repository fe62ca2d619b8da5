//! A closer look at segments in which map and log disagree: which pointers, which headers.
//!
//! The map is gone through once more, this time keeping the pointers into the suspects, and their
//! records are searched for block by block, also behind damaged headers. Suspects are taken in
//! batches, so that memory stays bounded.

use crate::checkpoint::Checkpoint;
use crate::finding::{Finding, Owner};
use crate::layout::Place;
use crate::leaves::{self, Leaf, Visitor};
use crate::log_pass::ChainRules;
use crate::map_pass::{Reference, leaf_references, listed};
use crate::progress::{Options, Phase};
use crate::references::{References, Source};
use crate::replay::Replay;
use crate::report::Report;
use crate::segments::Segments;
use crate::window::Window;
use coulter_format::checksum::{self, Kind};
use coulter_format::record::Entry;
use coulter_format::{BlockPointer, Lba, Pba, Structure};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Pointers kept at once; 32 bytes each. A batch has one segment at least, whatever its size.
const REFERENCES_MAX: u64 = 2 << 20;

/// A second look.
pub(crate) struct Detail<'a, 'w> {
    pub(crate) window: &'a mut Window<'w>,
    pub(crate) segments: &'a Segments,
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) replay: &'a Replay,
    pub(crate) references: &'a References,
    pub(crate) rules: ChainRules,
    /// Segments that hold blocks which a remote record names: under other headers than the one before
    /// them, so that of these segments only the blocks themselves can be compared with the map.
    pub(crate) remote: BTreeSet<u32>,
    pub(crate) data: bool,
}

/// Keeps the pointers into a batch of segments.
struct Collector<'a> {
    segments: &'a Segments,
    /// Sorted.
    batch: &'a [u32],
    kept: Vec<Reference>,
}

impl Collector<'_> {
    fn take(&mut self, reference: Reference) {
        let place = self.segments.layout.place(reference.pointer.pba);
        if place.is_some_and(|place| self.batch.binary_search(&place.segment).is_ok()) {
            self.kept.push(reference);
        }
    }

    fn page(&mut self, kind: Kind, key: u64, pointer: BlockPointer) {
        let (owner, source) = (Owner::new(kind, key), Source::Checkpoint);
        self.take(Reference { owner, pointer, source, mapped: false });
    }
}

impl Visitor for Collector<'_> {
    fn root(&mut self, key: u64, pointer: BlockPointer, _: &mut Report) {
        self.page(Kind::Root, key, pointer);
    }

    fn leaf_page(&mut self, key: u64, pointer: BlockPointer, _: &mut Report) {
        self.page(Kind::Leaf, key, pointer);
    }

    fn leaf(&mut self, leaf: &Leaf, _: &mut Window<'_>, _: &mut Report) -> ControlFlow<()> {
        leaf_references(leaf, |reference| self.take(reference));
        ControlFlow::Continue(())
    }
}

impl Detail<'_, '_> {
    /// Looks into the suspects, which are sorted.
    pub(crate) fn run(mut self, suspects: &[u32], options: &mut Options<'_>, report: &mut Report) {
        let total = suspects.len() as u64;
        let mut rest = suspects;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(self.batch_length(rest));
            rest = later;
            let kept = self.collect(batch);
            for segment in batch {
                self.segment(*segment, &kept, report);
            }
            options.report(Phase::Detail, total - rest.len() as u64, total);
        }
    }

    fn batch_length(&self, rest: &[u32]) -> usize {
        let mut sum = 0u64;
        let fitting = rest.iter().take_while(|segment| {
            sum += self.references.segment(**segment).map_or(0, |found| u64::from(found.total));
            sum <= REFERENCES_MAX
        });
        fitting.count().max(1)
    }

    /// The pointers into a batch, by device address.
    fn collect(&mut self, batch: &[u32]) -> Vec<Reference> {
        // What is damaged on the way was reported the first time.
        let mut silent = Report::default();
        let mut collector = Collector { segments: self.segments, batch, kept: Vec::new() };
        listed(self.checkpoint, |reference| collector.take(reference));
        leaves::walk(
            self.window,
            &self.segments.layout,
            self.checkpoint,
            self.replay,
            0..u64::MAX,
            &mut collector,
            &mut silent,
        );
        let mut kept = collector.kept;
        kept.sort_by_key(|reference| (reference.pointer.pba, reference.owner));
        kept
    }

    fn segment(&mut self, segment: u32, kept: &[Reference], report: &mut Report) {
        let layout = self.segments.layout;
        let start = layout.start(segment);
        let end = u64::from(start.0) + u64::from(layout.segment_size());
        let first = kept.partition_point(|reference| reference.pointer.pba < start);
        let last = kept.partition_point(|found| u64::from(found.pointer.pba.0) < end);
        let kept = kept.get(first..last).unwrap_or(&[]);
        self.report_shared(kept, report);
        let patched = self.segments.segment(segment).is_some_and(|slot| slot.patched);
        match (self.remote.contains(&segment), patched) {
            (true, _) => {}
            (false, true) => self.compare_patched(segment, kept, report),
            (false, false) => self.compare(segment, kept, report),
        }
        if self.data {
            self.verify_data(kept, report);
        }
    }

    fn report_shared(&self, kept: &[Reference], report: &mut Report) {
        for (one, other) in kept.iter().zip(kept.iter().skip(1)) {
            if one.pointer.pba == other.pointer.pba {
                let (first, second) = (one.owner, other.owner);
                report.add(Finding::BlockShared { pba: one.pointer.pba, first, second });
            }
        }
    }

    /// Goes through the records of a segment, also behind damaged headers, and compares them with
    /// the pointers.
    fn compare(&mut self, segment: u32, kept: &[Reference], report: &mut Report) {
        let size = self.segments.layout.segment_size();
        let mut chain = self.rules.start(segment);
        let mut entries: Vec<Entry> = Vec::new();
        let mut rest = kept;
        let mut gap = None::<Pba>;
        while chain.offset < size {
            // Nothing behind the last pointer matters.
            if rest.is_empty() {
                return;
            }
            let Some(header) = chain.read(self.window, &mut entries) else {
                gap = gap.or(Some(chain.pba()));
                chain.offset += 1;
                continue;
            };
            // Everything before this header lies in the gap, if there is one.
            rest = report_gap(segment, gap.take(), rest, chain.pba(), report);
            for entry in entries.iter().filter(|entry| entry.kind.has_payload()) {
                rest = compare_entry(entry, rest, report);
            }
            chain.advance(&header);
        }
        let end = self.segments.layout.start(segment).plus(size);
        report_gap(segment, gap.or(Some(chain.pba())), rest, end, report);
    }

    /// The same for a segment in which a header may be anywhere, and headers of dead records are left:
    /// every pointer must be what one of them says.
    fn compare_patched(&mut self, segment: u32, kept: &[Reference], report: &mut Report) {
        let mut recorded: Vec<(Pba, u64, Owner, u32)> = Vec::new();
        let mut entries: Vec<Entry> = Vec::new();
        for offset in 0..self.segments.layout.segment_size() {
            let place = Place { segment, offset };
            let sequence = self.rules.read_anywhere(self.window, place, &mut entries);
            let Some(sequence) = sequence else { continue };
            report.counters.records += 1;
            let inline = entries.iter().filter(|entry| entry.kind.has_payload());
            let used = inline.filter(|entry| {
                kept.binary_search_by_key(&entry.pba, |reference| reference.pointer.pba).is_ok()
            });
            recorded.extend(used.map(|entry| {
                (entry.pba, sequence, Owner::new(entry.kind, entry.key), entry.word.checksum)
            }));
        }
        recorded.sort_unstable();
        for Reference { owner, pointer, .. } in kept {
            let pba = pointer.pba;
            let first = recorded.partition_point(|(place, ..)| *place < pba);
            let last = recorded.partition_point(|(place, ..)| *place <= pba);
            let said = recorded.get(first..last).unwrap_or(&[]);
            let matches =
                |said: &&(Pba, u64, Owner, u32)| said.2 == *owner && said.3 == pointer.checksum;
            if said.iter().any(|said| matches(&said)) {
                continue;
            }
            match said.last() {
                Some((.., recorded, _)) => report.add(Finding::PointerMismatch {
                    pba,
                    owner: *owner,
                    recorded: *recorded,
                    checksum_only: recorded == owner,
                }),
                None => report.add(Finding::RecordMissing { segment, pba, blocks: 1 }),
            }
        }
    }

    /// Compares mapped data with the checksums of the map.
    fn verify_data(&mut self, kept: &[Reference], report: &mut Report) {
        for Reference { owner, pointer, .. } in kept.iter().filter(|found| found.mapped) {
            let pba = pointer.pba;
            report.counters.data_blocks += 1;
            match self.window.block(pba) {
                Err(error) => {
                    let (owner, structure) = (Some(*owner), Structure::Data);
                    report.add(Finding::Unreadable { owner, structure, pba, error });
                }
                Ok(block) if checksum::block(owner.kind, owner.key, block) != pointer.checksum => {
                    report.add(Finding::DataDamaged { lba: Lba(owner.key), pba });
                }
                Ok(_) => {}
            }
        }
    }
}

/// Reports pointers before `end` that no record covers; returns those from there on. A pointer to
/// the place of a header comes under this as well.
fn report_gap<'a>(
    segment: u32,
    gap: Option<Pba>,
    kept: &'a [Reference],
    end: Pba,
    report: &mut Report,
) -> &'a [Reference] {
    let count = kept.partition_point(|reference| reference.pointer.pba < end);
    if count > 0 {
        let first = kept.first().map(|reference| reference.pointer.pba);
        let pba = gap.or(first).unwrap_or(end);
        let blocks = count as u64;
        report.add(Finding::RecordMissing { segment, pba, blocks });
    }
    kept.get(count..).unwrap_or(&[])
}

/// Compares a payload block with the pointers to it; returns the pointers behind it.
fn compare_entry<'a>(entry: &Entry, kept: &'a [Reference], report: &mut Report) -> &'a [Reference] {
    let count = kept.partition_point(|reference| reference.pointer.pba <= entry.pba);
    let recorded = Owner::new(entry.kind, entry.key);
    for Reference { owner, pointer, .. } in kept.iter().take(count) {
        let same = *owner == recorded;
        if !same || pointer.checksum != entry.word.checksum {
            let (pba, owner) = (pointer.pba, *owner);
            let checksum_only = same;
            report.add(Finding::PointerMismatch { pba, owner, recorded, checksum_only });
        }
    }
    kept.get(count..).unwrap_or(&[])
}
