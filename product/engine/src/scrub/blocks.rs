//! Host blocks: listed from the map 256 at a time, together with the leaf page that leads to them.

use super::batch::{Content, Found};
use super::{Finding, Part, Scrubber, Trouble};
use crate::loads::Waiter;
use crate::map::lookup::Lookup;
use crate::shared::Shared;
use coulter_format::checksum::Kind;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::ATOMIC_BLOCKS_MAX;
use coulter_format::{BlockPointer, Lba};

/// Host blocks that are looked at together.
const RANGE: u64 = ATOMIC_BLOCKS_MAX as u64;

/// Leaf pages that wait to be written anew; what else is damaged is told, and waits for the next scrub.
const LEAVES_MAX: usize = 256;

/// How often a range is listed anew because what it led to changed, or left memory, while it was read.
const RELISTED_MAX: u32 = 8;

/// Blocks of a range.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LostBlocks([u64; RANGE as usize / 64]);

impl LostBlocks {
    fn add(&mut self, lba: u64) {
        let index = lba % RANGE;
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    fn contains(self, lba: u64) -> bool {
        let index = lba % RANGE;
        self.0[index as usize / 64] >> (index % 64) & 1 == 1
    }
}

impl Scrubber {
    /// Lists the next blocks that are mapped.
    pub(super) fn list_blocks(&mut self, shared: &mut Shared) {
        let volume = shared.superblock.geometry.volume_size;
        let first = shared.map.next_leaf_in_use(self.report.next).min(volume);
        assert!(self.report.next <= first, "what is in use is looked for ahead");
        self.pass(first);
        if first >= volume {
            self.begin_metadata(shared);
            return;
        }
        let leaf = first / ENTRIES_PER_PAGE as u64;
        let end = (first / RANGE * RANGE + RANGE).min(volume);
        assert!(self.batch.items.is_empty(), "one list at a time");
        assert!(first < end, "a range has blocks");
        self.lost = LostBlocks::default();
        for lba in first..end {
            match shared.map.lookup(Lba(lba)) {
                Lookup::Mapped(BlockPointer { pba, checksum }) => {
                    self.batch.add(Content::Block { kind: Kind::Data, key: lba, checksum }, pba);
                }
                Lookup::Unmapped => {}
                Lookup::Damaged => self.lost.add(lba),
                Lookup::Miss(key) => {
                    self.batch.items.clear();
                    self.load(shared, key, end);
                    return;
                }
            }
        }
        let is_first = first.is_multiple_of(ENTRIES_PER_PAGE as u64);
        let just_loaded = self.loaded.take() == Some(leaf);
        if is_first
            && !just_loaded
            && let Some(BlockPointer { pba, checksum }) = shared.map.leaf_page_in_use(leaf)
        {
            self.batch.add(Content::Block { kind: Kind::Leaf, key: leaf, checksum }, pba);
        }
        self.batch_end = end;
        if self.batch.items.is_empty() {
            self.end_range(shared, first);
        }
    }

    /// A leaf must be in memory first. If that was in vain, its blocks up to `end` cannot be found.
    fn load(&mut self, shared: &mut Shared, leaf: u64, end: u64) {
        let first = self.report.next;
        assert!(first < end, "what is waited for is ahead");
        if let Some(errno) = self.unreadable.take() {
            let count = (end - first) as u32;
            self.report.blocks_damaged += u64::from(count);
            self.losses_before = None;
            let trouble = Trouble::Unreadable(errno);
            self.findings.add(Finding::Blocks { lba: Lba(first), count, trouble });
            self.pass(end);
            return;
        }
        (self.parked, self.loaded) = (true, Some(leaf));
        shared.load(leaf, Waiter::Scrubber);
    }

    /// Tells of each block that is damaged.
    pub(super) fn judge_blocks(&mut self, shared: &mut Shared) {
        if self.is_to_be_listed_anew(shared) {
            return;
        }
        for index in 0..self.batch.items.len() {
            let item = self.batch.items[index];
            let Content::Block { kind, key, checksum } = item.content else {
                unreachable!("only blocks are listed here")
            };
            let is_data = kind == Kind::Data;
            *if is_data {
                &mut self.report.blocks_checked
            } else {
                &mut self.report.metadata_checked
            } += 1;
            if item.found == Found::Intact {
                continue;
            }
            let trouble = item.found.trouble().unwrap_or(Trouble::Damaged);
            let pointer = BlockPointer { pba: item.pba, checksum };
            if is_data {
                // Written again, moved or discarded meanwhile: what was read no longer counts.
                let still = shared.map.lookup(Lba(key));
                if still == Lookup::Mapped(pointer) || matches!(still, Lookup::Miss(_)) {
                    self.note_block(Lba(key), trouble);
                }
            } else if shared.map.leaf_page_in_use(key) == Some(pointer) {
                self.note_leaf_page(shared, key, pointer, trouble);
            }
        }
        let first = self.report.next;
        self.end_range(shared, first);
    }

    /// Whether a block is damaged that no longer lies there, or of which memory no longer tells. The cleaner moves
    /// what is damaged like anything else.
    fn is_to_be_listed_anew(&mut self, shared: &mut Shared) -> bool {
        let is_unknown = self.batch.items.iter().any(|item| {
            let Content::Block { kind: Kind::Data, key, checksum } = item.content else {
                return false;
            };
            let pointer = BlockPointer { pba: item.pba, checksum };
            item.found != Found::Intact
                && match shared.map.lookup(Lba(key)) {
                    Lookup::Miss(_) => true,
                    Lookup::Mapped(now) => now != pointer,
                    Lookup::Unmapped | Lookup::Damaged => false,
                }
        });
        self.relisted = if is_unknown { self.relisted + 1 } else { 0 };
        is_unknown && self.relisted <= RELISTED_MAX
    }

    /// Tells of blocks that the map cannot find any more, and moves on.
    fn end_range(&mut self, shared: &mut Shared, first: u64) {
        let lost = self.lost;
        assert!(self.batch_end - first <= RANGE, "a range is looked at together");
        for lba in (first..self.batch_end).filter(|lba| lost.contains(*lba)) {
            let still = shared.map.lookup(Lba(lba));
            if matches!(still, Lookup::Damaged | Lookup::Miss(_)) {
                self.losses_before = None;
                self.note_block(Lba(lba), Trouble::Lost);
            }
        }
        self.pass(self.batch_end);
    }

    fn note_block(&mut self, lba: Lba, trouble: Trouble) {
        self.report.blocks_damaged += 1;
        self.findings.add(Finding::Blocks { lba, count: 1, trouble });
    }

    /// A leaf page is damaged, and memory knows what it says.
    fn note_leaf_page(
        &mut self,
        shared: &mut Shared,
        key: u64,
        page: BlockPointer,
        trouble: Trouble,
    ) {
        let has_room = self.leaves.len() < LEAVES_MAX;
        let is_repaired =
            has_room && Scrubber::can_repair(shared) && shared.map.write_leaf_anew(key);
        if is_repaired {
            self.leaves.push(key);
            self.wants_sweep = true;
        }
        self.note_metadata(Part::LeafPage, page.pba, trouble, is_repaired);
    }

    fn pass(&mut self, next: u64) {
        assert!(self.report.next <= next, "the position never goes back");
        self.report.next = next;
    }
}
