//! What the records changed that a checkpoint refers to, sorted by leaf.
//!
//! The headers are read once. A header that is not the one referred to leaves unknown whatever leaf
//! it could be live for; recovery does not open such a store.

use crate::finding::Finding;
use crate::layout::Layout;
use crate::report::Report;
use crate::runs::is_live;
use crate::window::Window;
use coulter_format::checkpoint::{Reference, SweepPosition};
use coulter_format::checksum::Kind;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::RecordView;
use coulter_format::run::RunEntry;
use coulter_format::superblock::Superblock;
use coulter_format::{BlockPointer, Lba, Reason, Structure};

const PER_LEAF: u64 = ENTRIES_PER_PAGE as u64;

/// A block of such a record.
#[derive(Clone, Copy, Debug)]
struct Referred {
    lba: u64,
    /// Which of the references.
    reference: u32,
    pointer: BlockPointer,
}

/// All blocks of all such records.
#[derive(Debug, Default)]
pub(crate) struct References {
    pub(crate) all: Vec<Reference>,
    /// By leaf; those of one leaf in order of what they did.
    blocks: Vec<Referred>,
    /// Where the sweep stood when those took effect whose headers are damaged.
    damaged: Vec<SweepPosition>,
}

impl References {
    /// Reads the headers.
    pub(crate) fn read(
        window: &mut Window<'_>,
        superblock: &Superblock,
        all: Vec<Reference>,
        report: &mut Report,
    ) -> References {
        let (mut blocks, mut damaged) = (Vec::new(), Vec::new());
        for (index, reference) in (0u32..).zip(&all) {
            let before = blocks.len();
            match read(window, superblock, reference) {
                Ok(entries) => blocks.extend(entries.map(|(lba, pointer)| Referred {
                    lba,
                    reference: index,
                    pointer,
                })),
                Err(finding) => {
                    report.complete = false;
                    report.add(finding);
                    damaged.push(reference.sweep);
                }
            }
            report.counters.references += u64::from(blocks.len() > before);
        }
        // Stable: within a leaf the order of the records stays.
        blocks.sort_by_key(|referred| referred.lba / PER_LEAF);
        References { all, blocks, damaged }
    }

    /// Where the sweep stood when those took effect whose headers are damaged.
    pub(crate) fn damaged(&self) -> &[SweepPosition] {
        &self.damaged
    }

    /// Goes through them leaf by leaf.
    pub(crate) fn cursor(&self) -> ReferenceCursor<'_> {
        ReferenceCursor { references: self, rest: &self.blocks }
    }
}

/// What a header says, or why it cannot be the one.
fn read(
    window: &mut Window<'_>,
    superblock: &Superblock,
    reference: &Reference,
) -> Result<impl Iterator<Item = (u64, BlockPointer)>, Finding> {
    let pba = reference.pba;
    let damaged = |reason| Finding::ReferenceDamaged { pba, reason };
    let layout = Layout { geometry: superblock.geometry };
    let place = layout.place(pba).ok_or(damaged(Reason::Field("pba")))?;
    let block = window.block(pba).map_err(|error| {
        let structure = Structure::RecordHeader;
        Finding::Unreadable { owner: None, structure, pba, error }
    })?;
    let view = RecordView::decode(block, &superblock.store, pba)
        .map_err(|corrupt| damaged(corrupt.reason))?;
    if view.checksum() != reference.checksum {
        return Err(damaged(Reason::Checksum));
    }
    let header = view.header();
    let fits = header.span() <= layout.segment_blocks().saturating_sub(place.offset);
    if header.scattered.is_some() || !fits {
        return Err(damaged(Reason::Field("payload_size")));
    }
    let volume_leaves = superblock.geometry.volume_size.div_ceil(PER_LEAF);
    let entries: Vec<_> = view.entries().collect();
    if entries.iter().any(|entry| entry.kind != Kind::Data) {
        return Err(damaged(Reason::Field("kind")));
    }
    if entries.iter().any(|entry| entry.key / PER_LEAF >= volume_leaves) {
        return Err(damaged(Reason::Field("key")));
    }
    Ok(entries
        .into_iter()
        .map(|entry| (entry.key, BlockPointer { pba: entry.pba, checksum: entry.word.checksum })))
}

/// A place between two leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReferenceCursor<'a> {
    references: &'a References,
    rest: &'a [Referred],
}

/// The blocks of one leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfLeaf<'a> {
    references: &'a References,
    leaf: u64,
    rest: &'a [Referred],
}

impl<'a> ReferenceCursor<'a> {
    /// The next leaf that has any.
    pub(crate) fn leaf(&self) -> Option<u64> {
        self.rest.first().map(|referred| referred.lba / PER_LEAF)
    }

    /// Those of a leaf; those of leaves before it are skipped.
    pub(crate) fn take(&mut self, leaf: u64) -> OfLeaf<'a> {
        let start = self.rest.partition_point(|referred| referred.lba / PER_LEAF < leaf);
        let end = self.rest.partition_point(|referred| referred.lba / PER_LEAF <= leaf);
        let rest = self.rest.get(start..end).unwrap_or(&[]);
        self.rest = self.rest.get(end..).unwrap_or(&[]);
        OfLeaf { references: self.references, leaf, rest }
    }

    /// Whether a damaged header may have said something of this leaf that counts.
    pub(crate) fn hides(&self, leaf: u64, position: SweepPosition) -> bool {
        self.references.damaged.iter().any(|written| is_live(*written, position, leaf))
    }
}

impl OfLeaf<'_> {
    /// The next one before this run that counts, as if a run said it; of all, without a run.
    pub(crate) fn next_before(
        &mut self,
        run: Option<u64>,
        position: SweepPosition,
    ) -> Option<RunEntry> {
        while let Some((first, rest)) = self.rest.split_first() {
            let reference = self.references.all.get(first.reference as usize)?;
            if run.is_some_and(|run| reference.run > run) {
                return None;
            }
            self.rest = rest;
            if is_live(reference.sweep, position, self.leaf) {
                let (lba, pointer) = (Lba(first.lba), first.pointer);
                return Some(RunEntry { lba, count: 1, pointer, released: true });
            }
        }
        None
    }
}
