//! What the newest checkpoint lists, its body, and the superblocks: both copies of each.

use super::batch::{Content, Found};
use super::{Part, ScrubStage, ScrubState, Scrubber, Trouble};
use crate::api::Buffers;
use crate::checkpoint::RUN_KEY_SHIFT;
use crate::memory;
use crate::shared::Shared;
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::superblock::FIRST_SUPERBLOCK;
use coulter_format::{BLOCK_SIZE, BlockPointer, Pba};

/// Pieces that are looked at together, each with its second copy.
const PIECES: usize = 120;

/// Something that the checkpoint lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The header that lies there.
    Header(Pba),
    /// A block of this kind and key, and its second copy, if there are copies of it.
    Listed(Kind, u64),
}

impl Scrubber {
    /// All host blocks have been gone through.
    pub(super) fn begin_metadata(&mut self, shared: &mut Shared) {
        assert_eq!(self.stage, super::ScrubStage::Blocks, "host blocks come first");
        if let Some(count) = self.losses_before
            && shared.map.note_none_lost(count)
        {
            // Only a checkpoint that is cut from now on says so.
            self.wants_checkpoint |= Scrubber::can_repair(shared);
        }
        self.note_pieces(shared);
        self.stage = ScrubStage::Listed;
    }

    /// Notes what there is. It changes with every checkpoint; what is new then has just been written.
    fn note_pieces(&mut self, shared: &Shared) {
        self.pieces.clear();
        self.next_piece = 0;
        let lists = &shared.lists;
        let roots = shared.map.root_pages().map(|(key, _)| Piece::Listed(Kind::Root, key));
        let table = (0..lists.table.len() as u64).map(|key| Piece::Listed(Kind::SegmentTable, key));
        let pages =
            (0..lists.root_lists.len() as u64).map(|key| Piece::Listed(Kind::RootList, key));
        let runs = lists.runs.iter().flat_map(|run| {
            let keys = 0..run.blocks.len() as u64;
            keys.map(|index| Piece::Listed(Kind::Run, run.number << RUN_KEY_SHIFT | index))
        });
        let headers = lists.references.iter().map(|referred| Piece::Header(referred.reference.pba));
        let firsts = lists.references.iter().filter(|it| it.group == it.reference.pba);
        let parities = firsts.map(|it| Piece::Listed(Kind::HeaderParity, it.group.0.into()));
        // Those that were damaged are in new places.
        let leaves = self.leaves.iter().filter(|_| self.is_second_look);
        let leaves = leaves.map(|key| Piece::Listed(Kind::Leaf, *key));
        let listed = roots
            .chain(pages)
            .chain(table)
            .chain(runs)
            .chain(headers)
            .chain(parities)
            .chain(leaves);
        for piece in listed {
            // Without memory for it, what is left waits for the next scrub.
            if memory::push(&mut self.pieces, piece).is_err() {
                return;
            }
        }
    }

    /// Lists both copies of the next pieces.
    pub(super) fn list_pieces(&mut self, shared: &mut Shared) {
        if self.next_piece == self.pieces.len() {
            self.stage = ScrubStage::Body { is_copy: false };
            return;
        }
        let last = (self.next_piece + PIECES).min(self.pieces.len());
        assert!(self.batch.items.is_empty(), "one list at a time");
        for piece in &self.pieces[self.next_piece..last] {
            match *piece {
                Piece::Header(pba) => {
                    if let Some(header) = shared.lists.references.find(pba) {
                        self.batch.add(Content::Header { checksum: header.checksum }, pba);
                    }
                }
                Piece::Listed(kind, key) => {
                    let kinds = [Some(kind), kind.of_copy()].into_iter().flatten();
                    for kind in kinds {
                        if let Some(BlockPointer { pba, checksum }) = place_of(shared, kind, key) {
                            self.batch.add(Content::Block { kind, key, checksum }, pba);
                        }
                    }
                }
            }
        }
        if self.batch.items.is_empty() {
            self.next_piece = last;
        }
    }

    pub(super) fn judge_pieces(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) {
        assert!(self.batch.items.len() <= 2 * PIECES, "each has two copies at most");
        self.next_piece = (self.next_piece + PIECES).min(self.pieces.len());
        for index in 0..self.batch.items.len() {
            let item = self.batch.items[index];
            self.report.metadata_checked += 1;
            let differs =
                self.other_that_differs(index, buffers).map(|used| Trouble::Differs { used });
            let Some(trouble) = item.found.trouble().or(differs) else { continue };
            if !is_listed_there(shared, item.content, item.pba) {
                continue;
            }
            // Of two that differ nothing tells which is right.
            let is_known = differs.is_none();
            let can_repair = is_known && Scrubber::can_repair(shared) && !self.is_second_look;
            let is_repaired = can_repair && self.repair(shared, item.content, buffers);
            let part = match item.content {
                Content::Block { kind, .. } => Part::of(kind),
                _ => Part::Header,
            };
            self.note_metadata(part, item.pba, trouble, is_repaired);
        }
    }

    /// Where the first copy lies, if this is a second one, and both match the first one's checksum and differ. While a
    /// checkpoint is written, the second copy that is listed may yet be one of an older content, with its own checksum.
    fn other_that_differs(&self, index: usize, buffers: &impl Buffers) -> Option<Pba> {
        let item = self.batch.items[index];
        let Content::Block { kind, key, .. } = item.content else { return None };
        // Parity is of no one block.
        if !kind.is_copy() || kind == Kind::HeaderParity || item.found != Found::Intact {
            return None;
        }
        let kind = first_kind(kind);
        let checksum_of = |other: &super::batch::Item| match other.content {
            Content::Block { kind: of, key: of_key, checksum } => {
                ((of, of_key) == (kind, key)).then_some(checksum)
            }
            _ => None,
        };
        let items = self.batch.items.iter();
        let mut firsts = items.enumerate().filter_map(|(at, it)| Some((at, checksum_of(it)?)));
        let (first, checksum) = firsts.next()?;
        let (other, copy) = (self.batch.items[first], self.batch.block(index, buffers));
        let differ = self.batch.block(first, buffers) != copy;
        let is_one = differ && checksum::block(kind, key, copy) == checksum;
        (is_one && other.found == Found::Intact).then_some(other.pba)
    }

    /// Sees to it that a damaged piece is written anew. False if nothing tells what it was.
    fn repair(&mut self, shared: &mut Shared, damaged: Content, buffers: &impl Buffers) -> bool {
        let (kind, key) = match damaged {
            Content::Block { kind, key, .. } if kind != Kind::HeaderParity => (kind, key),
            // Headers stay where their records are. Once all leaves were swept nothing refers to any of the group:
            // memory knows what they say.
            _ => {
                self.wants_sweep = true;
                return true;
            }
        };
        if matches!(kind, Kind::Root | Kind::RootCopy) {
            // Memory knows what it says, once all leaves have been gone through.
            let is_known = shared.map.root_is_known(key);
            if is_known {
                shared.map.root_is_to_be_written(key);
                self.wants_checkpoint = true;
            }
            return is_known;
        }
        if matches!(kind, Kind::RootList | Kind::RootListCopy) {
            // Memory knows all of it.
            shared.map.root_list_is_to_be_written(key as usize);
            self.wants_checkpoint = true;
            return true;
        }
        let is_other = |other: &super::batch::Item| match other.content {
            Content::Block { kind: of, key: other_key, .. } => {
                let are_copies = of.of_copy() == Some(kind) || kind.of_copy() == Some(of);
                are_copies && other_key == key && other.found == Found::Intact
            }
            _ => false,
        };
        let Some(other) = self.batch.items.iter().position(is_other) else { return false };
        let first = if kind.is_copy() { first_kind(kind) } else { kind };
        shared.lists.copies.repair(first, key, self.batch.block(other, buffers));
        self.wants_checkpoint = true;
        true
    }

    /// Lists the body, or its second copy.
    pub(super) fn list_body(&mut self, shared: &mut Shared, is_copy: bool) {
        let checkpoint = shared.superblock.checkpoint;
        let start = if is_copy { checkpoint.copy } else { checkpoint.pba };
        let count = (checkpoint.size as usize).div_ceil(BLOCK_SIZE) as u32;
        assert!(count > 0, "a body says something");
        if start == Pba::NOWHERE {
            self.end_body(is_copy);
            return;
        }
        self.generation = shared.superblock.generation;
        (0..count).for_each(|index| self.batch.add(Content::Piece, start.plus(index)));
    }

    pub(super) fn judge_body(
        &mut self,
        shared: &mut Shared,
        is_copy: bool,
        buffers: &mut impl Buffers,
    ) {
        if self.generation != shared.superblock.generation {
            // There is another one, which is listed next.
            return;
        }
        let checkpoint = shared.superblock.checkpoint;
        let bytes = self.batch.blocks(buffers).as_flattened();
        let bytes = bytes.get(..checkpoint.size as usize).unwrap_or_default();
        let unreadable = self.batch.items.iter().find_map(|item| match item.found {
            Found::Unreadable(errno) => Some(Trouble::Unreadable(errno)),
            _ => None,
        });
        let is_intact = crc32c(bytes) == checkpoint.checksum;
        let trouble = unreadable.or((!is_intact).then_some(Trouble::Damaged));
        self.report.metadata_checked += self.batch.items.len() as u64;
        if let Some(trouble) = trouble {
            let is_repaired = Scrubber::can_repair(shared) && !self.is_second_look;
            self.wants_checkpoint |= is_repaired;
            let at = self.batch.items[0].pba;
            self.note_metadata(Part::Checkpoint, at, trouble, is_repaired);
        }
        // Two that match one checksum are compared by another one.
        let print = trouble.is_none().then(|| (checkpoint, fingerprint(bytes)));
        let first = core::mem::replace(&mut self.body_print, print.filter(|_| !is_copy));
        if let (true, Some(first), Some(second)) = (is_copy, first, print)
            && first.0 == second.0
            && first.1 != second.1
        {
            let trouble = Trouble::Differs { used: checkpoint.pba };
            self.note_metadata(Part::Checkpoint, checkpoint.copy, trouble, false);
        }
        self.end_body(is_copy);
    }

    fn end_body(&mut self, is_copy: bool) {
        self.stage =
            if is_copy { ScrubStage::Superblocks } else { ScrubStage::Body { is_copy: true } };
    }

    pub(super) fn list_superblocks(&mut self, shared: &mut Shared) {
        let geometry = &shared.superblock.geometry;
        self.generation = shared.superblock.generation;
        let third = Some(geometry.third_superblock).filter(|pba| *pba != Pba::NOWHERE);
        for pba in [FIRST_SUPERBLOCK, geometry.second_superblock].into_iter().chain(third) {
            self.batch.add(Content::Superblock, pba);
        }
    }

    pub(super) fn judge_superblocks(&mut self, shared: &mut Shared) {
        let is_newest = self.generation == shared.superblock.generation;
        if !is_newest || shared.signals.checkpoint_is_active() {
            let all_intact = self.batch.items.iter().all(|item| item.found == Found::Intact);
            if !all_intact {
                // They are being written: looked at again.
                return;
            }
        }
        for index in 0..self.batch.items.len() {
            let item = self.batch.items[index];
            self.report.metadata_checked += 1;
            if let Some(trouble) = item.found.trouble() {
                let is_repaired = Scrubber::can_repair(shared) && !self.is_second_look;
                self.wants_checkpoint |= is_repaired;
                self.note_metadata(Part::Superblock, item.pba, trouble, is_repaired);
            }
        }
        self.end_look(shared);
    }

    /// All was looked at: what is to be written anew is waited for, once.
    fn end_look(&mut self, shared: &mut Shared) {
        if self.is_second_look {
            let report = &mut self.report;
            let gone = report.metadata_damaged.saturating_sub(self.still_damaged);
            report.metadata_repaired = report.metadata_repaired.min(gone);
        }
        let wants = self.wants_sweep || self.wants_checkpoint;
        if self.is_second_look || !wants {
            self.end(ScrubState::Done);
            return;
        }
        assert!(
            Scrubber::can_repair(shared) || shared.poisoned.is_some(),
            "else nothing is wanted"
        );
        self.stage = ScrubStage::Repairs { checkpoints: None };
    }

    /// Looks again when what was damaged has been written anew.
    pub(super) fn await_repairs(&mut self, shared: &mut Shared, checkpoints: Option<u64>) {
        let is_over = checkpoints.is_some_and(|count| shared.statistics.checkpoints >= count);
        if !is_over && Scrubber::can_repair(shared) {
            // One that is being written now may have been cut before, and sets the sweep's share anew at its cut.
            if checkpoints.is_none() && !shared.signals.checkpoint_is_active() {
                if self.wants_sweep {
                    shared.signals.sweep_quota = shared.map.sweep_quota_of_all();
                }
                shared.signals.checkpoint = true;
                let checkpoints = Some(shared.statistics.checkpoints + 1);
                self.stage = ScrubStage::Repairs { checkpoints };
            }
            return;
        }
        self.is_second_look = true;
        self.note_pieces(shared);
        self.stage = ScrubStage::Listed;
    }
}

/// A hash that has nothing in common with the checksum: FNV-1a.
fn fingerprint(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The kind of what blocks of this kind are second copies of.
fn first_kind(kind: Kind) -> Kind {
    let firsts = [Kind::Root, Kind::SegmentTable, Kind::Run, Kind::RootList];
    let first = firsts.into_iter().find(|first| first.of_copy() == Some(kind));
    first.expect("a second copy is one of something")
}

/// Where a listed block lies; `None` if it is listed no more.
fn place_of(shared: &Shared, kind: Kind, key: u64) -> Option<BlockPointer> {
    let pointer = match kind {
        Kind::Root => shared.map.root_page(key),
        Kind::RootCopy => shared.map.root_copy(key),
        Kind::Leaf => shared.map.leaf_page_in_use(key),
        kind => shared.lists.pointer(kind, key),
    };
    pointer.filter(|pointer| pointer.is_mapped() && !pointer.is_lost())
}

/// Whether the checkpoint, or the next one, still lists a piece in this place.
fn is_listed_there(shared: &Shared, content: Content, pba: Pba) -> bool {
    match content {
        Content::Block { kind, key, checksum } => {
            place_of(shared, kind, key) == Some(BlockPointer { pba, checksum })
        }
        Content::Header { checksum } => {
            let header = shared.lists.references.find(pba);
            header.is_some_and(|header| header.checksum == checksum)
        }
        Content::Superblock | Content::Piece => true,
    }
}
