//! The check, from the superblocks to the last block.

use crate::blocks::ReadBlocks;
use crate::checkpoint::{self, Checkpoint};
use crate::detail::Detail;
use crate::finding::Finding;
use crate::layout::Layout;
use crate::log_pass::{ChainRules, LogPass};
use crate::map_pass::{MapPass, compare_counts, compare_with_capacity};
use crate::progress::{Options, Phase};
use crate::replay::{self, Replay};
use crate::report::{Report, StoreFacts};
use crate::segments::Segments;
use crate::superblocks;
use crate::window::Window;
use coulter_format::superblock::Superblock;

/// Looks for every fault in a store. Reads only.
///
/// The store must not be written meanwhile. One that was not closed is no fault; the report says
/// what opening it would replay. Damage never ends the check early if anything can still be looked
/// at; [`Report::complete`] says whether everything could.
pub fn check(blocks: &mut impl ReadBlocks, options: &mut Options<'_>) -> Report {
    let findings_max = options.findings_max;
    let mut report = Report { complete: true, findings_max, ..Report::default() };
    let mut window = Window::new(blocks);
    if let Some(store) = open(&mut window, &mut report) {
        check_store(&mut window, &store, options, &mut report);
    } else {
        report.complete = false;
    }
    report
}

/// The parts of a store that everything else is found through.
pub(crate) struct Store {
    pub(crate) superblock: Superblock,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) segments: Segments,
    pub(crate) replay: Replay,
}

/// Reads them. `None`, with findings, if that cannot be done.
pub(crate) fn open(window: &mut Window<'_>, report: &mut Report) -> Option<Store> {
    let superblock = superblocks::check(window, report)?;
    report.store = Some(StoreFacts::new(&superblock));
    let layout = Layout { geometry: superblock.geometry };
    let found_blocks = window.size_blocks();
    if layout.end() > found_blocks {
        report.add(Finding::DeviceTruncated { needed_blocks: layout.end(), found_blocks });
        report.complete = false;
    }
    // A hostile superblock may promise any size: tables are made only for what is there.
    if layout.end() / 2 > found_blocks.saturating_add(u64::from(layout.segment_blocks())) {
        return None;
    }
    let checkpoint = checkpoint::read(window, &superblock, report)?;
    let mut segments = Segments::read(window, &superblock, &checkpoint, report);
    let replay = replay::read(window, &superblock, &checkpoint, &mut segments, report);
    Some(Store { superblock, checkpoint, segments, replay })
}

fn check_store(
    window: &mut Window<'_>,
    store: &Store,
    options: &mut Options<'_>,
    report: &mut Report,
) {
    let Store { superblock, checkpoint, segments, replay } = store;
    options.report(Phase::Metadata, 1, 1);
    report.counters.roots_in_use = checkpoint.roots.len() as u64;
    report.counters.runs = checkpoint.runs.len() as u64;
    report.recovery.updates_to_replay = replay.updates.count() as u64;
    if report.recovery.needed {
        let records = report.recovery.records_to_replay;
        let updates = report.recovery.updates_to_replay;
        report.add(Finding::NeedsRecovery { records, updates });
    }
    let references = MapPass::run(window, segments, checkpoint, replay, options, report);
    compare_counts(segments, &references, report);
    let roots = report.counters.roots_in_use;
    compare_with_capacity(&superblock.geometry, roots, segments, &references, report);
    let rules = ChainRules::new(superblock, replay.sequence, segments.layout);
    let data = options.data;
    let pass = LogPass::new(window, segments, &references, rules, data);
    let suspects = pass.run(options, report);
    let references = &references;
    let detail = Detail { window, segments, checkpoint, replay, references, rules, data };
    detail.run(&suspects, options, report);
}
