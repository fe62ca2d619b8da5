//! From the journal to a run and, at recovery, from runs to chains.
//!
//! A journal entry names an address (× 2), or a whole leaf (its first address × 2 + 1). Sorting
//! brings a leaf's mark right behind its first address; whatever follows of that leaf is covered
//! by the mark.

use super::Map;
use super::chain::Update;
use super::directory::{Flag, LeafPlace, split};
use super::frames::CellIndex;
use crate::canary::{Canary, sings};
use alloc::vec::Vec;
use coulter_format::checkpoint::SweepPosition;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::run::{RunBlockWriter, RunEntry};
use coulter_format::{Block, BlockPointer, Lba};

/// A block of zeros, to be copied.
pub(crate) static EMPTY_BLOCK: [Block; 1] = [[0; coulter_format::BLOCK_SIZE]];

/// Entries of the journal that are looked up at the same time.
const WARM_ENTRIES: usize = 64;

/// Collects the blocks of a run.
pub(crate) struct RunBuilder<'a> {
    blocks: &'a mut Vec<Block>,
    writer: Option<RunBlockWriter>,
    pub(crate) entry_count: usize,
}

impl RunBuilder<'_> {
    pub(crate) fn new(blocks: &mut Vec<Block>) -> RunBuilder<'_> {
        RunBuilder { blocks, writer: None, entry_count: 0 }
    }

    fn push(&mut self, entry: &RunEntry) {
        self.entry_count += 1;
        if let (Some(writer), Some(block)) = (&mut self.writer, self.blocks.last_mut()) {
            if writer.push(entry, block) {
                return;
            }
            if let Some(full) = self.writer.take() {
                full.finish(block);
            }
        }
        // From memory to memory: a block is too much for the stack.
        self.blocks.extend_from_slice(&EMPTY_BLOCK);
        let block = self.blocks.last_mut().expect("it was just added");
        let mut writer = RunBlockWriter::new(entry.lba, block);
        assert!(writer.push(entry, block), "an empty block takes an entry");
        self.writer = Some(writer);
    }

    pub(crate) fn finish(mut self) -> usize {
        if let (Some(writer), Some(block)) = (self.writer.take(), self.blocks.last_mut()) {
            writer.finish(block);
        }
        self.entry_count
    }
}

impl Map {
    /// Updates since the last cut.
    pub(crate) fn journal_length(&self) -> usize {
        self.journal.len() + self.referred
    }

    /// Those of them that will be in the next run.
    pub(crate) fn run_length(&self) -> usize {
        self.journal.len()
    }

    /// Takes the last so many updates out of the journal: a reference says them. `before` is what
    /// [`Map::run_length`] was before the first. False, and nothing, if others were noted among them.
    pub(crate) fn refer(&mut self, before: usize, updates: usize) -> bool {
        let noted = &self.journal[before..];
        if noted.len() != updates && !sings(Canary::ReferenceUnfounded) {
            return false;
        }
        for entry in noted {
            let place = self.directory.place(split(Lba(entry >> 1)).0);
            self.directory.leaf_mut(place).set(Flag::Referred, true);
        }
        self.referred += noted.len();
        assert!(updates > 0 || noted.is_empty(), "something is referred to");
        self.journal.truncate(before);
        true
    }

    /// Entries that the journal can still take.
    pub(crate) fn journal_room(&self) -> usize {
        self.journal.capacity() - self.journal.len()
    }

    /// Cuts the journal: writes its addresses with their current values as a run.
    pub(crate) fn cut_run(&mut self, run: &mut RunBuilder<'_>) {
        self.referred = 0;
        let mut journal =
            core::mem::replace(&mut self.journal, core::mem::take(&mut self.journal_spare));
        journal.sort_unstable();
        let mut covered = None;
        let mut previous = None;
        // Sorted, so the addresses of a leaf are neighbours: its place is looked up once.
        let mut latest: Option<(u64, Option<LeafPlace>)> = None;
        let mut before_leaf = 0;
        for (number, entry) in journal.iter().enumerate() {
            if number.is_multiple_of(WARM_ENTRIES) {
                let ahead = &journal[number..journal.len().min(number + WARM_ENTRIES)];
                self.warm_entries(ahead);
            }
            let lba = Lba(entry >> 1);
            let (key, index) = split(lba);
            if covered == Some(key) || previous == Some(*entry) {
                continue;
            }
            previous = Some(*entry);
            let place = match latest {
                Some((same, place)) if same == key => place,
                _ => {
                    self.leaf_emitted(latest, run.entry_count - before_leaf);
                    before_leaf = run.entry_count;
                    let place = self.directory.find(key);
                    place.filter(|place| self.directory.leaf(*place).unmerged > 0)
                }
            };
            latest = Some((key, place));
            let Some(place) = place else { continue };
            if entry & 1 == 0 {
                self.emit_address(place, index, run);
            } else if !self.mark_was_swept(place) {
                covered = Some(key);
                self.emit_leaf(place, run);
            }
        }
        self.leaf_emitted(latest, run.entry_count - before_leaf);
        journal.clear();
        self.journal_spare = journal;
        self.recovery.cut();
    }

    /// Touches what entries of the journal are about to be looked up in. Each lookup is a chain of cache
    /// misses, and those of different addresses wait for memory at the same time.
    fn warm_entries(&self, entries: &[u64]) {
        assert!(entries.len() <= WARM_ENTRIES, "as many as there are places for");
        let mut chains = [CellIndex::NONE; WARM_ENTRIES];
        for (chain, entry) in chains.iter_mut().zip(entries) {
            let place = self.directory.find(split(Lba(entry >> 1)).0);
            *chain = place.map_or(CellIndex::NONE, |place| self.directory.leaf(place).chain);
        }
        let touched = chains.iter().fold(0, |sum, chain| sum ^ self.frames.chain_warm(*chain));
        core::hint::black_box(touched);
    }

    fn leaf_emitted(&mut self, leaf: Option<(u64, Option<LeafPlace>)>, entries: usize) {
        if let Some((_, Some(place))) = leaf
            && !sings(Canary::RunUncounted)
        {
            self.recovery.emitted(self.directory.leaf_mut(place), entries);
        }
    }

    fn emit_address(&self, place: LeafPlace, index: usize, run: &mut RunBuilder<'_>) {
        let leaf = self.directory.leaf(place);
        let lba = Lba(self.directory.key(place) * ENTRIES_PER_PAGE as u64 + index as u64);
        let (pointer, released) = match self.frames.chain_find(leaf.chain, index) {
            Some((_, update)) => (update.pointer, update.released),
            None if leaf.is(Flag::Changed) => (self.frames.entry(leaf.frame, index), true),
            None if leaf.frame.is_some() && sings(Canary::UnchangedReleased) => {
                (self.frames.entry(leaf.frame, index), true)
            }
            // Noted before the sweep came by: the page has it, and counts it. To say "released" of
            // it would be believed by a later discard of the whole leaf. Or the whole leaf was
            // discarded: its mark says the rest.
            None => return,
        };
        run.push(&RunEntry { lba, count: 1, pointer, released });
    }

    /// Whether the sweep came by since the journal marked a leaf as a whole. It did if the leaf has a page
    /// and an array, and updates whose old location may still be counted: after the mark there are such
    /// updates only before the page is looked at, which settles them, or once there is a new page.
    ///
    /// Then the page has what was before the sweep, and what came after is noted one by one. To say all
    /// of the array would take memory of recovery that nobody counted.
    fn mark_was_swept(&self, place: LeafPlace) -> bool {
        let leaf = self.directory.leaf(place);
        leaf.is(Flag::Changed)
            && leaf.disk.is_mapped()
            && self.frames.chain_updates(leaf.chain).any(|update| !update.released)
    }

    fn emit_leaf(&self, place: LeafPlace, run: &mut RunBuilder<'_>) {
        let leaf = self.directory.leaf(place);
        let start = Lba(self.directory.key(place) * ENTRIES_PER_PAGE as u64);
        // An array that is as its page says nothing that the page does not.
        let changed = leaf.is(Flag::Changed);
        // "All of it unmapped, nothing of the page counted" may only be said where nothing is: an array
        // has taken over what its page counts, and without a page there is nothing.
        let ranged = changed || leaf.base_is_gone();
        if ranged {
            let count = ENTRIES_PER_PAGE as u32;
            let released = changed || leaf.is(Flag::Cleared);
            assert!(!changed || !leaf.base_is_gone(), "an array tells all of its leaf");
            run.push(&RunEntry { lba: start, count, pointer: BlockPointer::NOWHERE, released });
        }
        for index in 0..ENTRIES_PER_PAGE {
            let update = self.frames.chain_find(leaf.chain, index).map(|(_, update)| update);
            let lba = Lba(start.0 + index as u64);
            let (pointer, released) = match update {
                Some(update) => (update.pointer, update.released),
                None if changed => (self.frames.entry(leaf.frame, index), true),
                None => continue,
            };
            // The range above may already say just that.
            let said = ranged && !pointer.is_mapped() && released && !leaf.is(Flag::Dead);
            if !said {
                run.push(&RunEntry { lba, count: 1, pointer, released });
            }
        }
    }

    /// Whether an update of a leaf in a run written at `written` is not yet in the leaf's page, the
    /// sweep being at `position`.
    pub(crate) fn run_is_live(written: SweepPosition, position: SweepPosition, leaf: u64) -> bool {
        let cycle = if leaf >= written.leaf { written.cycle } else { written.cycle + 1 };
        if sings(Canary::RunDiesEarly) {
            return SweepPosition { cycle, leaf } > position;
        }
        SweepPosition { cycle, leaf } >= position
    }

    /// Whether no update of a run written at `written` can be live any more.
    pub(crate) fn run_is_dead(written: SweepPosition, position: SweepPosition) -> bool {
        position >= SweepPosition { cycle: written.cycle + 1, leaf: written.leaf }
    }

    /// Puts an update of a run into a chain, at recovery. Runs must come oldest first. Returns
    /// false when the memory that the store promised to suffice does not.
    pub(crate) fn restore_update(&mut self, entry: &RunEntry) -> bool {
        assert!(self.is_recovering && entry.count > 0, "runs are read when a store is opened");
        let whole = entry.count as usize == ENTRIES_PER_PAGE
            && entry.lba.0.is_multiple_of(ENTRIES_PER_PAGE as u64);
        if whole && !entry.pointer.is_mapped() {
            return self.restore_discard(entry);
        }
        (0..u64::from(entry.count)).all(|offset| {
            let (key, index) = split(Lba(entry.lba.0 + offset));
            if !self.reserve(1) {
                return false;
            }
            let place = self.directory.place(key);
            let update = Update { index, pointer: entry.pointer, released: entry.released };
            let leaf = self.directory.leaf_mut(place);
            match self.frames.chain_find(leaf.chain, index) {
                Some((slot, _)) => self.frames.chain_set(slot, update),
                None => {
                    self.frames.chain_add(&mut leaf.chain, update);
                    self.count_update(place);
                }
            }
            self.unreserve(1);
            true
        })
    }

    fn restore_discard(&mut self, entry: &RunEntry) -> bool {
        assert!(!entry.pointer.is_mapped(), "nothing is there afterwards");
        let (key, _) = split(entry.lba);
        self.doubt.remove(entry.lba.0..entry.lba.0 + u64::from(entry.count));
        let place = self.directory.place(key);
        self.count_update(place);
        if entry.released {
            self.keep_tombstones(place, false);
        } else {
            self.keep_tombstones(place, true);
        }
        let leaf = self.directory.leaf_mut(place);
        leaf.set(Flag::Cleared, entry.released);
        leaf.set(Flag::Dead, !entry.released);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::EntryWidth;
    use super::super::load::{LoadPurpose, LoadStep};
    use super::super::sweep::PageWrite;
    use super::*;
    use crate::segments::Segments;
    use crate::segments::State;
    use crate::units::SegmentIndex;
    use coulter_format::Pba;
    use coulter_format::superblock::{Geometry, RecoveryBudget};

    fn map_and_segments() -> (Map, Segments) {
        let geometry = Geometry {
            volume_size: 1 << 16,
            capacity: 1 << 16,
            root_limit: 0,
            root_lists: false,
            segment_blocks: 4096,
            segment_count: 40,
            first_segment: Pba(4096),
            device_size: 4096 * 41,
            second_superblock: Pba(128),
            third_superblock: Pba::NOWHERE,
            page_blocks: 1,
        };
        let budget = RecoveryBudget { journal_size: 1024, run_count_limit: 8, map_size: 0 };
        let mut segments = Segments::new(geometry).expect("there is memory");
        segments.restore(SegmentIndex(0), 0, State::Open, 0, 0, 0);
        let width = EntryWidth::of_addresses_below(geometry.device_size);
        let map = Map::new(&geometry, 1 << 20, width, budget);
        (map.expect("there is memory").expect("it fits"), segments)
    }

    fn pointer(number: u32) -> BlockPointer {
        BlockPointer { pba: Pba(4096 + number), checksum: number }
    }

    fn entries_of_run(map: &mut Map) -> usize {
        let mut blocks = Vec::new();
        let mut run = RunBuilder::new(&mut blocks);
        map.cut_run(&mut run);
        run.finish()
    }

    /// Discarded, written, swept, written while not in memory, loaded, and written again.
    #[test]
    fn of_a_leaf_that_was_swept_after_a_discard_a_run_says_what_came_after() {
        let (mut map, mut segments) = map_and_segments();
        let start = 3 * ENTRIES_PER_PAGE as u64;
        map.discard_leaf(&mut segments, 3, 1);
        map.update(&mut segments, Lba(start + 7), pointer(1), 1);
        assert_eq!(map.sweep_next(), Some(3));
        let mut page = [0; coulter_format::BLOCK_SIZE];
        assert_eq!(map.sweep_page(&mut segments, 3, &mut page, 2), PageWrite::Page);
        map.leaf_written(&mut segments, 3, pointer(2), 2);
        assert!(map.evict_one());
        map.update(&mut segments, Lba(start + 8), pointer(3), 3);
        let step = map.load_step(3, LoadPurpose::Lookup);
        assert_eq!(step, LoadStep::ReadLeaf(pointer(2)));
        map.finish_leaf(&mut segments, 3, Some(&page), 3);
        map.update(&mut segments, Lba(start + 9), pointer(4), 4);
        let counted = map.recovery_cells().0;
        let said = entries_of_run(&mut map);
        assert_eq!(said, 3, "7, which was noted before the sweep, 8 and 9");
        assert!(map.recovery_cells().0 <= counted + 1);
    }

    /// Replay does not know whether a leaf has a page: it has none.
    #[test]
    fn of_a_discarded_leaf_without_page_a_run_says_that_all_else_is_unmapped() {
        let (mut map, mut segments) = map_and_segments();
        let start = 3 * ENTRIES_PER_PAGE as u64;
        map.restore_root(0, pointer(1), Pba::NOWHERE).expect("there is memory");
        map.discard_leaf(&mut segments, 3, 1);
        map.update(&mut segments, Lba(start + 8), pointer(2), 1);
        assert_eq!(map.load_step(3, LoadPurpose::Clean), LoadStep::ReadRoot(0, pointer(1)));
        let geometry = *segments.geometry();
        map.finish_root(0, Some(&[0; coulter_format::BLOCK_SIZE]), &geometry);
        map.recovery_is_over();
        map.update(&mut segments, Lba(start + 9), pointer(3), 2);
        assert_eq!(entries_of_run(&mut map), 3, "all of it unmapped, 8 and 9");
    }

    /// Replay takes them all, whoever says them.
    #[test]
    fn relocations_are_refused_beyond_three_journals_be_the_updates_referred_to_or_not() {
        for refers in [false, true] {
            let (mut map, mut segments) = map_and_segments();
            let mut update = |map: &mut Map, count: u32| {
                let before = map.run_length();
                for lba in 0..count {
                    map.update(&mut segments, Lba(u64::from(lba % 512)), pointer(lba), 1);
                }
                if refers {
                    assert!(map.refer(before, count as usize));
                }
            };
            update(&mut map, 2048);
            assert!(map.try_start_relocation(Lba(5)));
            update(&mut map, 1024);
            assert!(!map.try_start_relocation(Lba(6)));
        }
    }

    #[test]
    fn a_run_dies_leaf_by_leaf_as_the_sweep_passes() {
        let at = |cycle, leaf| SweepPosition { cycle, leaf };
        let written = at(3, 100);
        assert!(Map::run_is_live(written, written, 100));
        assert!(Map::run_is_live(written, written, 50), "comes next cycle");
        assert!(!Map::run_is_live(written, at(3, 101), 100), "passed");
        assert!(Map::run_is_live(written, at(3, 101), 99));
        assert!(!Map::run_is_live(written, at(4, 60), 59));
        assert!(Map::run_is_live(written, at(4, 60), 60));
        assert!(!Map::run_is_dead(written, at(4, 99)));
        assert!(Map::run_is_dead(written, at(4, 100)));
        assert!(Map::run_is_dead(written, at(5, 0)));
    }
}
