//! The checkpoint's body, read and compared with the geometry.

use crate::copies::{self, Copied};
use crate::finding::{BodyFault, Finding, Owner};
use crate::referred::References;
use crate::report::Report;
use crate::root_lists;
use crate::run::{RUN_KEY_SHIFT, Run};
use crate::window::Window;
use coulter_format::checkpoint::{BODY_SIZE_MAX, BodyView, CheckpointHeader, Head, RunHeader};
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::root_list::ROOTS_PER_PAGE;
use coulter_format::segment_table::SEGMENTS_PER_PAGE;
use coulter_format::superblock::{CheckpointLocation, Superblock};
use coulter_format::{
    BLOCK_SIZE, Block, BlockPointer, NUMBER_LIMIT_AT_OPENING, Pba, Reason, Structure,
};

/// Streams that format version 1 has.
pub(crate) const STREAM_COUNT: usize = 7;
/// As many as the first stores had.
const STREAM_COUNT_MIN: usize = 3;

/// A body that makes sense.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) header: CheckpointHeader,
    /// The blocks of the body itself, with checksums as a record header holds them.
    pub(crate) body: Vec<BlockPointer>,
    pub(crate) heads: Vec<Option<Head>>,
    pub(crate) reserved: Vec<u32>,
    /// Segments of which the holes are reserved.
    pub(crate) holes: Vec<u32>,
    pub(crate) roots: Vec<(u64, BlockPointer)>,
    /// Pages of the list of roots, if the body lists these.
    pub(crate) root_lists: Vec<BlockPointer>,
    /// One of them is damaged: there may be roots that nobody knows of.
    pub(crate) roots_missing: bool,
    /// Which leaves of a root may have pages, as the list of roots tells.
    pub(crate) tables: root_lists::Tables,
    pub(crate) table: Vec<BlockPointer>,
    pub(crate) runs: Vec<Run>,
    pub(crate) references: References,
    /// Second copies of all of it but the body.
    pub(crate) copies: Vec<Copied>,
}

/// Reads the body that a superblock names. `None`, with a finding, if it is damaged; contradictions
/// are reported, and what can be used is kept.
pub(crate) fn read(
    window: &mut Window<'_>,
    superblock: &Superblock,
    report: &mut Report,
) -> Option<Checkpoint> {
    let location = superblock.checkpoint;
    let pba = location.pba;
    let blocks = &read_copies(window, &location, report)?;
    let bytes = blocks.as_flattened().get(..location.size as usize).unwrap_or(&[]);
    let view = match BodyView::decode(bytes) {
        Ok(view) => view,
        Err(corrupt) => {
            report.add(Finding::CheckpointDamaged { pba, reason: corrupt.reason });
            return None;
        }
    };
    let references: Vec<_> = view.references().collect();
    let body = (0u32..).zip(blocks).map(|(index, block)| BlockPointer {
        pba: pba.plus(index),
        checksum: checksum::block(Kind::Checkpoint, u64::from(index), block),
    });
    let checkpoint = Checkpoint {
        header: view.header(),
        body: body.collect(),
        heads: view.heads().collect(),
        reserved: view.reserved().collect(),
        holes: view.reserved_holes().collect(),
        roots: view.roots().collect(),
        root_lists: view.root_lists().collect(),
        roots_missing: false,
        tables: root_lists::Tables::new(),
        table: view.table().collect(),
        runs: view
            .runs()
            .map(|(header, blocks)| Run { header, blocks: blocks.iter().collect() })
            .collect(),
        references: References::default(),
        copies: Vec::new(),
    };
    let Checkpoint { roots, root_lists, table, runs, .. } = &checkpoint;
    let pages: Vec<_> = (0..).zip(root_lists.iter().copied()).collect();
    let listed = match view.counts().root_lists {
        true => (Kind::RootList, pages.as_slice()),
        false => (Kind::Root, roots.as_slice()),
    };
    let copies = copies::listed(&view, listed, table, runs, &references);
    copies::verify(window, superblock, &copies, report);
    let references = References::read(window, superblock, references, report);
    let mut checkpoint = Checkpoint { references, copies, ..checkpoint };
    if view.counts().root_lists != superblock.geometry.root_lists {
        let value = view.counts().root_lists.into();
        report.add(Finding::CheckpointContradicts { pba, field: "version", value });
    }
    root_lists::read(window, superblock, &mut checkpoint, report);
    Some(Verifier { superblock, pba, report }.verify(checkpoint))
}

/// The body's blocks, from whichever of its two copies is whole. `None`, with a finding, if neither is.
fn read_copies(
    window: &mut Window<'_>,
    location: &CheckpointLocation,
    report: &mut Report,
) -> Option<Vec<Block>> {
    let first = read_copy(window, location, location.pba);
    let second =
        (location.copy != Pba::NOWHERE).then(|| read_copy(window, location, location.copy));
    let first = match (first, second) {
        (Ok(whole), Some(Err(fault))) => {
            let (pba, whole_pba) = (location.copy, location.pba);
            report.add(copy_damaged(window, pba, whole_pba, &whole, fault));
            return Some(whole);
        }
        (Err(fault), Some(Ok(whole))) => {
            let (pba, whole_pba) = (location.pba, location.copy);
            report.add(copy_damaged(window, pba, whole_pba, &whole, fault));
            return Some(whole);
        }
        (Ok(first), Some(Ok(_))) => {
            compare_copies(window, location, report);
            return Some(first);
        }
        (first, _) => first,
    };
    let pba = location.pba;
    let structure = Structure::Checkpoint;
    match first {
        Ok(blocks) => return Some(blocks),
        Err(BodyFault::Unreadable(error)) => {
            report.add(Finding::Unreadable { owner: None, structure, pba, error });
        }
        Err(BodyFault::Checksum) => {
            report.add(Finding::CheckpointDamaged { pba, reason: Reason::Checksum });
        }
    }
    None
}

/// Both copies match the checksum: they should be the same.
fn compare_copies(window: &mut Window<'_>, location: &CheckpointLocation, report: &mut Report) {
    let mut rest = location.size as usize;
    for index in 0..location.blocks() {
        let owner = Owner::new(Kind::Checkpoint, index.into());
        let (used, other) = (location.pba.plus(index), location.copy.plus(index));
        let size = rest.min(BLOCK_SIZE);
        copies::compare_content(window, owner, used, other, size, report);
        rest -= size;
    }
}

fn read_copy(
    window: &mut Window<'_>,
    location: &CheckpointLocation,
    pba: Pba,
) -> Result<Vec<Block>, BodyFault> {
    let blocks = window.blocks(pba, location.blocks()).map_err(BodyFault::Unreadable)?;
    let bytes = blocks.as_flattened().get(..location.size as usize).unwrap_or(&[]);
    if crc32c(bytes) != location.checksum {
        return Err(BodyFault::Checksum);
    }
    Ok(blocks.to_vec())
}

/// Names the first block in which a damaged copy differs from the one that is whole.
fn copy_damaged(
    window: &mut Window<'_>,
    pba: Pba,
    whole_pba: Pba,
    whole: &[Block],
    fault: BodyFault,
) -> Finding {
    let mut pairs = (0u32..).zip(whole);
    let differs = pairs.find(|(index, block)| window.block(pba.plus(*index)).ok() != Some(*block));
    let pba = pba.plus(differs.map_or(0, |(index, _)| index));
    Finding::CheckpointCopyDamaged { pba, whole: whole_pba, fault }
}

/// Compares a body with the superblock that names it.
struct Verifier<'a> {
    superblock: &'a Superblock,
    pba: Pba,
    report: &'a mut Report,
}

impl Verifier<'_> {
    fn contradiction(&mut self, field: &'static str, value: u64) {
        let pba = self.pba;
        self.report.add(Finding::CheckpointContradicts { pba, field, value });
    }

    fn verify(mut self, mut checkpoint: Checkpoint) -> Checkpoint {
        let header = checkpoint.header;
        if header.sequence != self.superblock.checkpoint.sequence {
            self.contradiction("sequence", header.sequence);
        }
        self.verify_numbers(&header);
        self.verify_lists(&checkpoint);
        self.verify_segments(&mut checkpoint);
        self.verify_roots(&mut checkpoint);
        self.verify_runs(&mut checkpoint);
        checkpoint
    }

    /// Numbers that go up by one at a time.
    fn verify_numbers(&mut self, header: &CheckpointHeader) {
        let numbers = [
            ("next_run", header.next_run, 1 << (62 - RUN_KEY_SHIFT)),
            ("sweep_cycle", header.sweep.cycle, NUMBER_LIMIT_AT_OPENING),
            ("write_clock", header.write_clock, NUMBER_LIMIT_AT_OPENING),
        ];
        for (field, value, limit) in numbers {
            if value >= limit {
                let (structure, pba) = (Structure::Checkpoint, self.pba);
                self.report.add(Finding::NumberSpent { structure, pba, field, value });
            }
        }
    }

    fn verify_lists(&mut self, checkpoint: &Checkpoint) {
        let count = self.superblock.geometry.segment_count as usize;
        let roots_max = self.superblock.geometry.roots_max() as usize;
        if checkpoint.root_lists.len() > roots_max.div_ceil(ROOTS_PER_PAGE) {
            self.contradiction("root_count", checkpoint.root_lists.len() as u64);
        }
        if checkpoint.table.len() != count.div_ceil(SEGMENTS_PER_PAGE) {
            self.contradiction("table_count", checkpoint.table.len() as u64);
        }
        if !(STREAM_COUNT_MIN..=STREAM_COUNT).contains(&checkpoint.heads.len()) {
            self.contradiction("stream_count", checkpoint.heads.len() as u64);
        }
        if checkpoint.runs.len() > self.superblock.budget.run_count_limit as usize {
            self.contradiction("run_count", checkpoint.runs.len() as u64);
        }
        if checkpoint.body.len() * BLOCK_SIZE > BODY_SIZE_MAX as usize {
            self.contradiction("size", checkpoint.body.len() as u64);
        }
    }

    /// Heads and reserved segments: inside the log, and none twice.
    fn verify_segments(&mut self, checkpoint: &mut Checkpoint) {
        let geometry = self.superblock.geometry;
        let mut named = std::collections::BTreeSet::new();
        for head in &mut checkpoint.heads {
            let Some(Head { segment, offset }) = *head else { continue };
            let possible = segment < geometry.segment_count && offset <= geometry.segment_blocks;
            if !possible || !named.insert(segment) {
                self.contradiction("head", u64::from(segment));
                *head = None;
            }
        }
        for list in [&mut checkpoint.reserved, &mut checkpoint.holes] {
            list.retain(|segment| {
                let possible = *segment < geometry.segment_count && named.insert(*segment);
                if !possible {
                    self.contradiction("reserved", u64::from(*segment));
                }
                possible
            });
        }
    }

    /// Roots: by key, and of the volume.
    fn verify_roots(&mut self, checkpoint: &mut Checkpoint) {
        let per_root = (ENTRIES_PER_PAGE * ENTRIES_PER_PAGE) as u64;
        let limit = self.superblock.geometry.volume_size.div_ceil(per_root);
        if checkpoint.roots.len() as u64 > self.superblock.geometry.roots_max() {
            self.contradiction("root_count", checkpoint.roots.len() as u64);
        }
        let mut next = 0;
        checkpoint.roots.retain(|(key, _)| {
            let possible = *key >= next && *key < limit;
            if possible {
                next = key.saturating_add(1);
            } else {
                self.contradiction("root", *key);
            }
            possible
        });
    }

    /// Runs: by number, and none newer than the checkpoint.
    fn verify_runs(&mut self, checkpoint: &mut Checkpoint) {
        let header = checkpoint.header;
        let mut next = 0;
        for run in &checkpoint.runs {
            let RunHeader { number, sweep, .. } = run.header;
            if number < next || number >= header.next_run || number >= 1 << (63 - RUN_KEY_SHIFT) {
                self.contradiction("run", number);
            }
            if sweep > header.sweep {
                self.contradiction("run sweep_position", number);
            }
            next = number.saturating_add(1);
        }
        checkpoint.runs.sort_by_key(|run| run.header.number);
    }
}
