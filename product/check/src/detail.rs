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
use coulter_format::record::{Entry, PAYLOAD_BLOCKS_MAX};
use coulter_format::{BlockPointer, Lba, Pba, Structure};
use std::collections::BTreeMap;
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
    pub(crate) data: bool,
}

/// How a record header begins: `docs/format.md`, section 4.
const RECORD_MAGIC: [u8; 8] = *b"CRECORD\0";

/// Blocks behind a header among which those of a scattered record lie.
const PLACES: u32 = 256;

/// Blocks of any record at most.
const SPAN: u32 = 1 + PAYLOAD_BLOCKS_MAX as u32;

/// Headers of a segment that are read once more, at most, to tell which of the damaged blocks was a header.
const READS_MAX: u32 = 1 << 16;

/// What the headers of a patched segment say, those of dead records too.
struct Patched {
    /// Where they lie, in order.
    headers: Vec<Pba>,
    /// Of each block that is in use, in order of the blocks.
    said: Vec<(Pba, Owner, u32)>,
    /// Blocks that are not in use: whether one still is what a header says of it.
    dead: BTreeMap<Pba, bool>,
    reads_left: u32,
}

impl Patched {
    fn new() -> Patched {
        let (headers, said, dead) = (Vec::new(), Vec::new(), BTreeMap::new());
        Patched { headers, said, dead, reads_left: READS_MAX }
    }

    fn said_of(&self, pba: Pba) -> &[(Pba, Owner, u32)] {
        let first = self.said.partition_point(|said| said.0 < pba);
        let last = self.said.partition_point(|said| said.0 <= pba);
        self.said.get(first..last).unwrap_or(&[])
    }
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
        let end = u64::from(start.0) + u64::from(layout.segment_blocks());
        let first = kept.partition_point(|reference| reference.pointer.pba < start);
        let last = kept.partition_point(|found| u64::from(found.pointer.pba.0) < end);
        let kept = kept.get(first..last).unwrap_or(&[]);
        self.report_shared(kept, report);
        let patched = self.segments.segment(segment).is_some_and(|slot| slot.patched);
        match patched {
            true => self.compare_patched(segment, kept, report),
            false => self.compare(segment, kept, report),
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
        let size = self.segments.layout.segment_blocks();
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
            let mut blocks = 0;
            for entry in entries.iter().filter(|entry| entry.kind.has_payload()) {
                let count = rest.partition_point(|reference| reference.pointer.pba <= entry.pba);
                let (of_entry, behind) = rest.split_at(count);
                rest = behind;
                blocks += self.compare_entry(entry, of_entry, report);
            }
            if blocks > 0 {
                let pba = chain.pba();
                report.add(Finding::RecordMissing { segment, pba, blocks });
            }
            chain.advance(&header);
        }
        let end = self.segments.layout.start(segment).plus(size);
        report_gap(segment, gap.or(Some(chain.pba())), rest, end, report);
    }

    /// Compares a payload block with the pointers to it. Returns how many of those have the block as it is: the
    /// header is not the one that was written last then, but an older one.
    fn compare_entry(&mut self, entry: &Entry, kept: &[Reference], report: &mut Report) -> u64 {
        let recorded = Owner::new(entry.kind, entry.key);
        let mut blocks = 0;
        for Reference { owner, pointer, .. } in kept {
            let same = *owner == recorded;
            if same && pointer.checksum == entry.word.checksum {
                continue;
            }
            let (pba, owner) = (pointer.pba, *owner);
            if self.holds(owner, pba, pointer.checksum) {
                blocks += 1;
                continue;
            }
            report.add(Finding::PointerMismatch { pba, owner, recorded, checksum_only: same });
        }
        blocks
    }

    /// Whether a block is what a pointer, or a header, says.
    fn holds(&mut self, owner: Owner, pba: Pba, checksum: u32) -> bool {
        let block = self.window.block(pba);
        block.is_ok_and(|block| checksum::block(owner.kind, owner.key, block) == checksum)
    }

    /// The same for a segment in which a header may be anywhere, and headers of dead records are left:
    /// every pointer must be what one of them says.
    fn compare_patched(&mut self, segment: u32, kept: &[Reference], report: &mut Report) {
        let mut found = Patched::new();
        let mut entries: Vec<Entry> = Vec::new();
        for offset in 0..self.segments.layout.segment_blocks() {
            let place = Place { segment, offset };
            if self.rules.read_anywhere(self.window, place, &mut entries).is_none() {
                continue;
            }
            report.counters.records += 1;
            found.headers.push(self.segments.layout.start(segment).plus(offset));
            let used = entries.iter().filter(|entry| {
                let is_used =
                    kept.binary_search_by_key(&entry.pba, |kept| kept.pointer.pba).is_ok();
                entry.kind.has_payload() && is_used
            });
            found.said.extend(
                used.map(|entry| {
                    (entry.pba, Owner::new(entry.kind, entry.key), entry.word.checksum)
                }),
            );
        }
        found.said.sort_unstable();
        let mut missing: BTreeMap<Pba, u64> = BTreeMap::new();
        for Reference { owner, pointer, .. } in kept {
            let BlockPointer { pba, checksum } = *pointer;
            let said = found.said_of(pba);
            if said.iter().any(|said| (said.1, said.2) == (*owner, checksum)) {
                continue;
            }
            // A header that is dead says what lay there once. Only if that still does, the map is wrong.
            let is_recorded = |said: &&(Pba, Owner, u32)| self.holds(said.1, pba, said.2);
            match said.iter().find(is_recorded) {
                Some((_, recorded, _)) => report.add(Finding::PointerMismatch {
                    pba,
                    owner: *owner,
                    recorded: *recorded,
                    checksum_only: recorded == owner,
                }),
                None => *missing.entry(self.lost_header(&mut found, kept, pba)).or_default() += 1,
            }
        }
        for (pba, blocks) in missing {
            report.add(Finding::RecordMissing { segment, pba, blocks });
        }
    }

    /// Where the header of a block lies that no header tells of: before it, where neither a block in use nor a
    /// header lies, nor what a header says. Other blocks of its own record may have died, so of those left it is
    /// the next that looks like a damaged header, or is blank; or else the next.
    fn lost_header(&mut self, found: &mut Patched, kept: &[Reference], pba: Pba) -> Pba {
        let offset = self.segments.layout.place(pba).map_or(0, |place| place.offset);
        let (mut next, mut blank) = (None, None);
        for distance in 1..=offset.min(PLACES) {
            let place = Pba(pba.0 - distance);
            let is_used = kept.binary_search_by_key(&place, |kept| kept.pointer.pba).is_ok();
            let is_header = found.headers.binary_search(&place).is_ok();
            if is_used || is_header || self.is_dead_payload(found, place) {
                continue;
            }
            next = next.or(Some(place));
            let Ok(block) = self.window.block(place) else { return place };
            if block.starts_with(&RECORD_MAGIC) {
                return place;
            }
            if block.iter().all(|byte| *byte == 0) {
                blank = blank.or(Some(place));
            }
        }
        blank.or(next).unwrap_or(pba)
    }

    /// Whether a block that is not in use still is what some header says of it.
    fn is_dead_payload(&mut self, found: &mut Patched, pba: Pba) -> bool {
        if let Some(known) = found.dead.get(&pba) {
            return *known;
        }
        let first = found.headers.partition_point(|header| header.0 < pba.0.saturating_sub(SPAN));
        let last = found.headers.partition_point(|header| *header < pba);
        let mut is_dead = false;
        let mut entries = Vec::new();
        for header in found.headers.get(first..last).unwrap_or(&[]) {
            if is_dead || found.reads_left == 0 {
                break;
            }
            found.reads_left -= 1;
            let Some(place) = self.segments.layout.place(*header) else { continue };
            self.rules.read_anywhere(self.window, place, &mut entries);
            let mut of_block = entries.iter().filter(|entry| entry.pba == pba);
            is_dead = of_block.any(|entry| {
                let owner = Owner::new(entry.kind, entry.key);
                entry.kind.has_payload() && self.holds(owner, pba, entry.word.checksum)
            });
        }
        found.dead.insert(pba, is_dead);
        is_dead
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
