//! Takes all out of a damaged store that can be taken out of it, for a store that the engine refuses to
//! open, or opens with errors.
//!
//! # What it does
//! ```text
//! map      every leaf that nothing damaged hides: its blocks are handed out at once
//! scan     if anything is hidden: every record header in the log, old ones too
//! resolve  leaf by leaf, what is left of the map and the records settle where each block lies last
//! ```
//! A block is handed out only if its checksum, which is bound to its address, is right. So nothing is ever
//! taken for what it is not; what remains open, if the map does not tell or a record is missing, is which version is
//! the newest: see [`State::Found`].
//!
//! # What is said to be as it was
//! Only what nothing that is hidden can have changed. Zeros are content like any other.
//! - Records after the checkpoint have consecutive sequences, and headers and superblock tell up to which of them
//!   all was durable. One of those is missing: any block may be outdated that no later record wrote.
//! - A run, a page or a header is damaged that the checkpoint leads to: so may all of the leaves that it was for.
//!
//! # Why the log can stand in for the map
//! The record that tells where a block lies is not overwritten as long as the block counts (`docs/format.md`,
//! section 12). So the newest record of an address is there, save if it is damaged itself. What may be
//! missing are older records, and discards: they leave nothing behind that has to stay.
//!
//! # Invariants
//! - The store is never written.
//! - No bytes on the device make it panic or loop without end.
//! - Memory: as much as the map of what is hidden, 24 bytes for each record, and [`Options::events_max`]
//!   events of 32 bytes; if there are more, the headers are read once more for each so many.

mod copy;
mod events;
mod resolve;
mod scan;

use crate::blocks::ReadBlocks;
use crate::check::{self, Store};
use crate::finding::Finding;
use crate::layout::Layout;
use crate::leaves::{self, Hidden, Leaf, Visitor};
use crate::progress::{Phase, Progress};
use crate::report::Report;
use crate::superblocks;
use crate::window::Window;
use copy::Copier;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::superblock::Superblock;
pub use coulter_format::{Block, Lba};
use events::Events;
use resolve::Base;
use scan::{Log, Missing};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;

const PER_LEAF: u64 = ENTRIES_PER_PAGE as u64;

/// What is to be done.
pub struct Options<'a> {
    /// Events that are held in memory at once, 32 bytes each: a version of a block, or a discard.
    pub events_max: usize,
    /// Findings that the report lists at most; the rest is only counted.
    pub findings_max: usize,
    /// Called now and then.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options { events_max: 1 << 24, findings_max: 1000, progress: None }
    }
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("events_max", &self.events_max).finish_non_exhaustive()
    }
}

/// Takes the blocks of the volume, each at most once, in any order. What is not handed over reads as zeros.
pub trait Sink {
    /// A block whose checksum is right.
    ///
    /// # Errors
    /// Whatever keeps it from being taken; that ends it all.
    fn block(&mut self, lba: Lba, content: &Block) -> io::Result<()>;
}

/// What is known of blocks that are not simply as the map says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The map does not tell any more, or a record that was durable is missing: this is the newest version that
    /// is left. It may be outdated, or have been discarded.
    Found,
    /// For the same reasons nothing tells whether anything was there. Zeros.
    Unknown,
    /// It was there, and that version of it is not: it cannot be read, or does not match its checksum. Where
    /// the map does not tell, it may have been discarded before.
    Lost,
}

/// Blocks of the volume in a row, all in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Range {
    /// The first of them.
    pub lba: u64,
    /// How many.
    pub blocks: u64,
    /// What is known of them.
    pub state: State,
}

/// What came of it.
#[derive(Debug, Default, serde::Serialize)]
pub struct Salvage {
    /// Blocks that the volume exports.
    pub volume_blocks: u64,
    /// Blocks that are as the map says.
    pub whole_blocks: u64,
    /// Blocks in [`State::Found`].
    pub found_blocks: u64,
    /// Blocks in [`State::Unknown`].
    pub unknown_blocks: u64,
    /// Blocks in [`State::Lost`].
    pub lost_blocks: u64,
    /// Records that are known to have been there and whose headers are damaged, where they would be needed:
    /// nobody knows which blocks they wrote or discarded.
    pub records_missing: u64,
    /// Blocks that they wrote, at most: how many of those in doubt are outdated or missing. What they discarded
    /// comes on top.
    pub stale_max: u64,
    /// What is not as the map says, by address.
    #[serde(skip)]
    pub ranges: Vec<Range>,
    /// What is damaged.
    pub report: Report,
}

impl Salvage {
    /// Whether all that was in the volume is known to have been handed out as it was.
    pub fn is_whole(&self) -> bool {
        let in_doubt = self.found_blocks + self.unknown_blocks + self.lost_blocks;
        in_doubt == 0 && self.records_missing == 0
    }
}

/// Why nothing can be taken out.
#[derive(Debug)]
#[non_exhaustive]
pub enum SalvageError {
    /// Neither superblock is there: without them headers cannot be told from data. Or one is of a newer
    /// program, which has to do it. The report says what was found.
    NoSuperblock(Box<Report>),
    /// The sink refused a block.
    Sink(io::Error),
}

impl std::fmt::Display for SalvageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SalvageError::NoSuperblock(_) => f.write_str("neither superblock can be read"),
            SalvageError::Sink(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for SalvageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SalvageError::NoSuperblock(_) => None,
            SalvageError::Sink(error) => Some(error),
        }
    }
}

/// The size of the volume, in blocks, and what is wrong with the superblocks.
///
/// # Errors
/// [`SalvageError::NoSuperblock`].
pub fn volume_blocks(blocks: &mut impl ReadBlocks) -> Result<u64, SalvageError> {
    let found = newest(&mut Window::new(blocks))?;
    Ok(found.geometry.volume_size)
}

fn newest(window: &mut Window<'_>) -> Result<Superblock, SalvageError> {
    let mut report = Report { findings_max: 1000, ..Report::default() };
    let found = superblocks::check(window, &mut report);
    let is_newer = |finding: &Finding| {
        matches!(finding, Finding::OtherVersion { .. } | Finding::OtherFeatures { .. })
    };
    match found {
        Some(found) if !report.findings.iter().any(is_newer) => Ok(found),
        _ => Err(SalvageError::NoSuperblock(Box::new(report))),
    }
}

/// Hands all blocks of a store's volume that can be found to `sink`.
///
/// # Errors
/// [`SalvageError`]: nothing but the loss of both superblocks, and what the sink says, ends it early.
pub fn salvage(
    blocks: &mut impl ReadBlocks,
    sink: &mut dyn Sink,
    options: &mut Options<'_>,
) -> Result<Salvage, SalvageError> {
    let findings_max = options.findings_max;
    let mut report = Report { complete: true, findings_max, ..Report::default() };
    let mut window = Window::new(blocks);
    let superblock = newest(&mut window)?;
    let store = check::open(&mut window, &mut report);
    let copier = Copier::new(sink, superblock.geometry.volume_size);
    let mut work = Work { superblock, store, copier, report, options, known: Known::default() };
    work.take_what_the_map_tells(&mut window)?;
    let Missing { records, blocks } = work.take_what_the_log_tells(&mut window)?;
    let (records_missing, stale_max) = (records, blocks);
    Ok(Salvage { records_missing, stale_max, report: work.report, ..work.copier.finish() })
}

/// What is known of leaves when the map was gone through.
#[derive(Debug, Default)]
struct Known {
    /// Leaves that the map tells all of. Of what could not be read, the same version is looked for.
    done: BTreeSet<u64>,
    /// Leaves that are to be settled, with what is known of them.
    left: BTreeMap<u64, Base>,
    /// Root pages that are damaged.
    roots: BTreeSet<u64>,
    hidden: Hidden,
}

struct Work<'a, 'o> {
    superblock: Superblock,
    store: Option<Store>,
    copier: Copier<'a>,
    report: Report,
    options: &'a mut Options<'o>,
    known: Known,
}

impl Work<'_, '_> {
    /// Whether the map, where nothing hides it, says what holds: no record that was durable is missing.
    fn trusts_map(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.replay.is_whole)
    }

    fn take_what_the_map_tells(&mut self, window: &mut Window<'_>) -> Result<(), SalvageError> {
        let trusts_map = self.trusts_map();
        let Some(store) = &self.store else { return Ok(()) };
        let (copier, known) = (&mut self.copier, &mut self.known);
        let options = &mut *self.options;
        let mut taker = Taker { copier, known, options, trusts_map, refused: None };
        let hidden = leaves::walk(
            window,
            &store.segments.layout,
            &store.checkpoint,
            &store.replay,
            0..u64::MAX,
            &mut taker,
            &mut self.report,
        );
        taker.read(window);
        match taker.refused {
            Some(error) => Err(SalvageError::Sink(error)),
            None => {
                self.known.hidden = hidden;
                Ok(())
            }
        }
    }

    /// Settles what is left; returns what is missing for that.
    fn take_what_the_log_tells(
        &mut self,
        window: &mut Window<'_>,
    ) -> Result<Missing, SalvageError> {
        let Known { left, roots, hidden, .. } = &self.known;
        let trusts_map = self.trusts_map();
        if trusts_map && left.is_empty() && roots.is_empty() && hidden.is_empty() {
            return Ok(Missing::default());
        }
        let segments = self.store.as_ref().map(|store| &store.segments);
        let mut progress = |done, total| report_progress(self.options, Phase::Log, done, total);
        let mut log = Log::scan(window, &self.superblock, segments, &mut progress);
        let replay = self.store.as_ref().map(|store| &store.replay);
        log.settle_certainty(trusts_map, replay.is_none_or(|replay| replay.has_only_gap));
        let replayed = replay.filter(|_| trusts_map);
        log.drop_what_never_happened(window, replayed.map(|replay| replay.sequence));
        let leaves = self.superblock.geometry.volume_size.div_ceil(PER_LEAF);
        let passes = log.entry_count().div_ceil(self.options.events_max.max(1) as u64).max(1);
        let step = leaves.div_ceil(passes).max(1);
        let mut relies_on_log = false;
        let mut first = 0;
        while first < leaves {
            let range = first..first.saturating_add(step).min(leaves);
            first = range.end;
            let known = &self.known;
            let wanted = |leaf: u64| range.contains(&leaf) && known.wants(leaf, trusts_map);
            let events = Events::collect(window, &log, &wanted);
            relies_on_log |= self.settle(window, &log, &events, range)?;
            report_progress(self.options, Phase::Detail, first, leaves);
        }
        let referred = self.store.as_ref().map(|store| store.checkpoint.references.all.as_slice());
        let layout = Layout { geometry: self.superblock.geometry };
        Ok(log.missing(relies_on_log, referred.unwrap_or(&[]), &layout))
    }

    /// Settles these leaves; returns whether the log had to stand in for the map.
    fn settle(
        &mut self,
        window: &mut Window<'_>,
        log: &Log,
        events: &Events,
        leaves: std::ops::Range<u64>,
    ) -> Result<bool, SalvageError> {
        let left = self.known.left.range(leaves.clone()).map(|(key, _)| *key);
        let keys: BTreeSet<u64> = left.chain(events.leaves()).collect();
        let trusts_map = self.trusts_map();
        let is_untold = |key: &u64| self.known.wants(*key, trusts_map) && !keys.contains(key);
        if self.superblock.geometry.is_sparse() {
            // Of other roots nobody can say how many there are.
            let listed = self.store.iter().flat_map(|store| &store.checkpoint.roots);
            let roots: BTreeSet<u64> = listed.map(|(key, _)| *key).collect();
            let of_root =
                |root: &u64| root.saturating_mul(PER_LEAF)..(root + 1).saturating_mul(PER_LEAF);
            let of_roots = roots.union(&self.known.roots).flat_map(of_root);
            let of_roots = of_roots.filter(|key| leaves.contains(key));
            of_roots.filter(is_untold).for_each(|key| self.copier.unknown_leaf(key));
        } else {
            leaves.filter(is_untold).for_each(|key| self.copier.unknown_leaf(key));
        }
        let mut relies_on_log = false;
        for key in keys {
            let mut base = self.known.left.remove(&key).unwrap_or_else(|| Base::unknown(key));
            let of_leaf = events.of(key);
            relies_on_log |= base.is_open();
            if self.known.hidden.hides_run(key) {
                base.doubt_checkpoint();
            } else if !trusts_map || self.known.hidden.hides(key) {
                base.doubt();
            }
            base.find_page(window, of_leaf);
            base.resolve(of_leaf, log);
            if self.copier.want(&base.settled()) {
                let read = self.copier.read_with_copies(window, events);
                read.map_err(SalvageError::Sink)?;
            }
        }
        self.copier.read_with_copies(window, events).map_err(SalvageError::Sink)?;
        Ok(relies_on_log)
    }
}

impl Known {
    /// Whether a leaf has to be settled by what the log says of it.
    fn wants(&self, leaf: u64, trusts_map: bool) -> bool {
        let is_left = self.left.contains_key(&leaf);
        let is_hidden =
            || !trusts_map || self.roots.contains(&(leaf / PER_LEAF)) || self.hidden.hides(leaf);
        is_left || (!self.done.contains(&leaf) && is_hidden())
    }
}

/// Takes what the walk knows, and notes what it does not.
struct Taker<'a, 's, 'o> {
    copier: &'a mut Copier<'s>,
    known: &'a mut Known,
    options: &'a mut Options<'o>,
    trusts_map: bool,
    refused: Option<io::Error>,
}

impl Taker<'_, '_, '_> {
    /// Reads what waits. Of what cannot be read there may be another copy of the same version.
    fn read(&mut self, window: &mut Window<'_>) {
        match self.copier.read(window) {
            Ok(missing) => {
                for leaf in missing.chunk_by(|a, b| a.lba / PER_LEAF == b.lba / PER_LEAF) {
                    let Some(key) = leaf.first().map(|wanted| wanted.lba / PER_LEAF) else {
                        continue;
                    };
                    self.known.left.insert(key, Base::missing(key, leaf));
                }
            }
            Err(error) => self.refused = Some(error),
        }
    }
}

impl Visitor for Taker<'_, '_, '_> {
    fn leaf(
        &mut self,
        leaf: &Leaf,
        window: &mut Window<'_>,
        _report: &mut Report,
    ) -> ControlFlow<()> {
        if !self.trusts_map {
            self.known.left.insert(leaf.key, Base::doubtful(leaf));
            return ControlFlow::Continue(());
        }
        if leaf.now.iter().any(|pointer| pointer.is_lost()) {
            self.known.left.insert(leaf.key, Base::known(leaf));
            return ControlFlow::Continue(());
        }
        self.known.done.insert(leaf.key);
        if self.copier.want(&Base::known(leaf).settled()) {
            self.read(window);
        }
        match self.refused {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    }

    fn doubtful(&mut self, leaf: &Leaf) {
        self.known.left.insert(leaf.key, Base::doubtful(leaf));
    }

    fn root_damaged(&mut self, key: u64) {
        self.known.roots.insert(key);
    }

    fn progress(&mut self, done: u64, total: u64) {
        report_progress(self.options, Phase::Map, done, total);
    }
}

fn report_progress(options: &mut Options<'_>, phase: Phase, done: u64, total: u64) {
    if let Some(progress) = &mut options.progress {
        progress(Progress { phase, done, total });
    }
}
