//! Going through the runs leaf by leaf, all of them at once, a block of each in memory.

use crate::finding::{Finding, Owner};
use crate::layout::Layout;
use crate::metadata::read_metadata;
use crate::report::Report;
use crate::run::Run;
use crate::window::Window;
use coulter_format::checkpoint::SweepPosition;
use coulter_format::checksum::Kind;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::run::{self, RunEntry};
use coulter_format::{Lba, Reason};

const PER_LEAF: u64 = ENTRIES_PER_PAGE as u64;

/// Whether the updates of a leaf in a run written at `written` are in no leaf page yet, the sweep
/// being at `position`: it has not come to the leaf since.
pub(crate) fn is_live(written: SweepPosition, position: SweepPosition, leaf: u64) -> bool {
    let cycle = if leaf >= written.leaf { written.cycle } else { written.cycle.saturating_add(1) };
    SweepPosition { cycle, leaf } >= position
}

/// One run, and how far it was gone through.
pub(crate) struct RunCursor<'a> {
    run: &'a Run,
    next_block: usize,
    entries: Vec<RunEntry>,
    next_entry: usize,
    /// The address of the entry taken last.
    latest: Option<u64>,
    /// Leaves, from first to last, whose entries were in blocks that are damaged.
    unknown: Vec<(u64, u64)>,
}

impl<'a> RunCursor<'a> {
    pub(crate) fn new(run: &'a Run) -> RunCursor<'a> {
        let (entries, unknown) = (Vec::new(), Vec::new());
        RunCursor { run, next_block: 0, entries, next_entry: 0, latest: None, unknown }
    }

    pub(crate) fn number(&self) -> u64 {
        self.run.header.number
    }

    /// Where the sweep stood when it was written.
    pub(crate) fn written(&self) -> SweepPosition {
        self.run.header.sweep
    }

    /// The leaves, from first to last, of which entries were in a damaged block, as far as was read.
    pub(crate) fn unknown(&self) -> &[(u64, u64)] {
        &self.unknown
    }

    /// The next leaf that the run has entries of. Reads on if it must.
    pub(crate) fn leaf(
        &mut self,
        window: &mut Window<'_>,
        layout: &Layout,
        report: &mut Report,
    ) -> Option<u64> {
        loop {
            if let Some(entry) = self.entries.get(self.next_entry) {
                return Some(entry.lba.0 / PER_LEAF);
            }
            self.load(window, layout, report)?;
        }
    }

    /// Reads the next block. `None` behind the last one.
    fn load(
        &mut self,
        window: &mut Window<'_>,
        layout: &Layout,
        report: &mut Report,
    ) -> Option<()> {
        let index = self.next_block;
        let pointer = *self.run.blocks.get(index)?;
        self.next_block += 1;
        self.next_entry = 0;
        self.entries.clear();
        let owner = Owner::new(Kind::Run, self.run.key(index));
        if let Some(block) = read_metadata(window, layout, owner, pointer, report) {
            match run::decode(block) {
                Ok(entries) => {
                    self.entries.extend(entries);
                    let leaves = layout.geometry.volume_size.div_ceil(PER_LEAF);
                    if self.entries.iter().any(|entry| entry.lba.0 / PER_LEAF >= leaves) {
                        let (pba, reason) = (pointer.pba, Reason::Field("lba"));
                        self.entries.clear();
                        report.add(Finding::MetadataDamaged { owner, pba, reason });
                    }
                }
                Err(corrupt) => {
                    let (pba, reason) = (pointer.pba, corrupt.reason);
                    report.add(Finding::MetadataDamaged { owner, pba, reason });
                }
            }
        }
        let latest = self.latest.map_or(0, |lba| lba / PER_LEAF);
        match self.entries.first() {
            // An intact block has an entry at least.
            None => {
                report.complete = false;
                if self.unknown.last().is_none_or(|(_, last)| *last < u64::MAX) {
                    self.unknown.push((latest, u64::MAX));
                }
            }
            Some(first) => {
                report.counters.run_blocks += 1;
                if let Some((_, last)) = self.unknown.last_mut()
                    && *last == u64::MAX
                {
                    *last = first.lba.0 / PER_LEAF;
                }
                if self.latest.is_some_and(|latest| first.lba.0 < latest) {
                    let run = self.run.header.number;
                    report.complete = false;
                    report.add(Finding::RunUnsorted { run, lba: first.lba });
                }
            }
        }
        Some(())
    }

    /// The run's next entry of this leaf, if it has one. Entries of leaves before it are skipped.
    pub(crate) fn take(
        &mut self,
        leaf: u64,
        window: &mut Window<'_>,
        layout: &Layout,
        report: &mut Report,
    ) -> Option<RunEntry> {
        while self.leaf(window, layout, report)? <= leaf {
            let entry = *self.entries.get(self.next_entry)?;
            self.next_entry += 1;
            let Lba(lba) = entry.lba;
            self.latest = Some(self.latest.map_or(lba, |latest| latest.max(lba)));
            if lba / PER_LEAF == leaf {
                return Some(entry);
            }
        }
        None
    }

    /// Whether the run may have had live entries of this leaf in a block that is damaged. To be
    /// asked after all entries of the leaf were taken.
    pub(crate) fn hides(&self, leaf: u64, position: SweepPosition) -> bool {
        let live = is_live(self.run.header.sweep, position, leaf);
        live && self.unknown.iter().any(|(first, last)| (*first..=*last).contains(&leaf))
    }

    /// Whether the run's entries of this leaf count.
    pub(crate) fn is_live(&self, leaf: u64, position: SweepPosition) -> bool {
        is_live(self.run.header.sweep, position, leaf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_dies_leaf_by_leaf_as_the_sweep_passes() {
        let at = |cycle, leaf| SweepPosition { cycle, leaf };
        let written = at(3, 100);
        assert!(is_live(written, written, 100), "the next leaf to be swept");
        assert!(is_live(written, written, 99), "comes in the next cycle");
        assert!(!is_live(written, at(3, 101), 100));
        assert!(is_live(written, at(3, 101), 101));
        assert!(is_live(written, at(4, 0), 0));
        assert!(!is_live(written, at(4, 0), 500));
        assert!(!is_live(written, at(4, 1), 0));
        assert!(is_live(written, at(4, 99), 99));
        assert!(!is_live(written, at(4, 100), 99));
    }
}
