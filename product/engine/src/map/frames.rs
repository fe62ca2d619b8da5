//! The map's memory: a fixed number of frames, each either the array of one leaf or cells of update
//! chains.
//!
//! A frame has as many cells of 64 bytes as an entry of an array has bits, 33 to 64: see `entries`.
//!
//! # Invariants
//! - All memory is allocated at open; the count of frames never changes.
//! - A frame is free, or a leaf's, or holds cells of which at least one is in use.
//! - A pinned frame is never given away.

use super::entries::EntryWidth;
use crate::memory::{self, NoMemory, PIECE_SIZE, Pieces};
use alloc::vec::Vec;
use coulter_format::map_page::{self, ENTRIES_PER_PAGE};
pub(super) use coulter_format::map_page::{pack, unpack};
use coulter_format::{Block, BlockPointer};

/// A frame's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameIndex(u32);

/// A cell's number: its frame × 64 + its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellIndex(u32);

impl FrameIndex {
    /// For a field that may hold no frame.
    pub(crate) const NONE: FrameIndex = FrameIndex(u32::MAX);

    pub(crate) fn is_some(self) -> bool {
        self != FrameIndex::NONE
    }
}

impl CellIndex {
    /// For a field that may hold no cell.
    pub(crate) const NONE: CellIndex = CellIndex(u32::MAX);

    pub(crate) fn is_some(self) -> bool {
        self != CellIndex::NONE
    }

    fn new(frame: FrameIndex, place: u32) -> CellIndex {
        assert!(
            place < CELLS_MAX && frame.0 < u32::MAX / CELLS_MAX,
            "a cell lies inside its frame"
        );
        CellIndex(frame.0 * CELLS_MAX + place)
    }

    fn frame(self) -> FrameIndex {
        FrameIndex(self.0 / CELLS_MAX)
    }

    fn place(self) -> u32 {
        self.0 % CELLS_MAX
    }

    pub(super) fn to_bits(self) -> u32 {
        self.0
    }

    pub(super) fn from_bits(bits: u32) -> CellIndex {
        CellIndex(bits)
    }
}

/// Cells of a frame at most: of the widest entries.
const CELLS_MAX: u32 = u64::BITS;
/// Frames whose memory is asked for at once.
const FRAMES_PER_PIECE: usize = 256;
const _: () = {
    let frame = EntryWidth::MAX.words_per_leaf() * size_of::<u64>();
    assert!(FRAMES_PER_PIECE * frame <= PIECE_SIZE, "and no more than may be");
};

/// Eight-byte words in a cell.
pub(super) const CELL_WORDS: usize = 8;
/// Bytes of a cell.
pub(super) const CELL_SIZE: u64 = 8 * CELL_WORDS as u64;

const _: () = {
    let most = EntryWidth::MAX;
    assert!(most.words_per_leaf() == most.bits() * CELL_WORDS, "a leaf is a cell for each bit");
    assert!(most.bits() <= u64::BITS as usize, "a frame's cells are counted in one u64");
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameUse {
    Free,
    /// The array of the leaf of this key.
    Leaf {
        key: u64,
        pinned: bool,
    },
    /// Bit i set: cell i is in use.
    Cells {
        used: u64,
        listed: bool,
    },
}

/// The pool.
pub(crate) struct Frames {
    width: EntryWidth,
    /// The memory is there from the start, but nothing was written to that of frames which were never
    /// used: so the system need not have given it yet.
    pieces: Vec<Vec<u64>>,
    uses: Pieces<FrameUse>,
    free: Vec<FrameIndex>,
    /// Cell frames with room.
    partial: Vec<FrameIndex>,
    free_cells: usize,
    leaf_count: usize,
    pinned_count: usize,
    hand: usize,
    /// Frames that nobody gets any more.
    retired_count: usize,
}

impl Frames {
    pub(crate) fn new(count: usize, width: EntryWidth) -> Result<Frames, NoMemory> {
        let mut pieces = memory::list(count.div_ceil(FRAMES_PER_PIECE))?;
        for first in (0..count).step_by(FRAMES_PER_PIECE) {
            let frames = (count - first).min(FRAMES_PER_PIECE);
            pieces.push(memory::list(frames * width.words_per_leaf())?);
        }
        let mut free = memory::list(count)?;
        free.extend((0..count as u32).rev().map(FrameIndex));
        Ok(Frames {
            width,
            pieces,
            uses: Pieces::filled(FrameUse::Free, count)?,
            free,
            partial: memory::list(count)?,
            free_cells: 0,
            leaf_count: 0,
            pinned_count: 0,
            hand: 0,
            retired_count: 0,
        })
    }

    /// Takes a free frame, in which anything may stand.
    fn take(&mut self) -> Option<FrameIndex> {
        let frame = self.free.pop()?;
        assert_eq!(self.uses[frame.0 as usize], FrameUse::Free, "a free frame is nobody's");
        let end = (frame.0 as usize % FRAMES_PER_PIECE + 1) * self.width.words_per_leaf();
        let piece = &mut self.pieces[frame.0 as usize / FRAMES_PER_PIECE];
        if piece.len() < end {
            assert!(piece.capacity() >= end, "its memory was asked for when the store was opened");
            piece.resize(end, 0);
        }
        Some(frame)
    }

    pub(crate) fn count(&self) -> usize {
        self.uses.len() - self.retired_count
    }

    /// Bits of an entry.
    pub(crate) fn width(&self) -> EntryWidth {
        self.width
    }

    /// Cells in a frame: one for each bit of an entry.
    pub(crate) fn cells_per_frame(&self) -> usize {
        self.width.bits()
    }

    /// Gives free frames up for good, until there are so many: those that were never used first, for
    /// which the system has given no memory yet.
    pub(crate) fn retire_down_to(&mut self, count: usize) {
        let surplus = self.count().saturating_sub(count).min(self.free.len());
        self.free.drain(..surplus);
        self.retired_count += surplus;
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Leaf frames that could be given away.
    pub(crate) fn evictable_count(&self) -> usize {
        self.leaf_count - self.pinned_count
    }

    pub(crate) fn pinned_count(&self) -> usize {
        self.pinned_count
    }

    /// A zeroed, pinned frame for a leaf, if one is free.
    pub(crate) fn take_free(&mut self, key: u64) -> Option<FrameIndex> {
        let frame = self.take()?;
        self.array_mut(frame).fill(0);
        self.uses[frame.0 as usize] = FrameUse::Leaf { key, pinned: true };
        self.leaf_count += 1;
        self.pinned_count += 1;
        Some(frame)
    }

    /// A leaf whose frame is not pinned and was not used lately: the second chance of a clock. The
    /// hand stands behind it afterwards. `take_used` says whether a leaf was used since it was last asked.
    pub(crate) fn evict_candidate(
        &mut self,
        mut take_used: impl FnMut(u64) -> bool,
    ) -> Option<u64> {
        if self.evictable_count() == 0 {
            return None;
        }
        // Two rounds: the first may only take the marks of those that were used.
        for _ in 0..2 * self.uses.len() {
            let index = self.hand;
            self.hand = (self.hand + 1) % self.uses.len();
            if let FrameUse::Leaf { key, pinned: false } = self.uses[index]
                && !take_used(key)
            {
                return Some(key);
            }
        }
        unreachable!("an evictable frame is found within two rounds")
    }

    /// Gives a leaf's frame back.
    pub(crate) fn release(&mut self, frame: FrameIndex) {
        let FrameUse::Leaf { pinned, .. } = self.uses[frame.0 as usize] else {
            panic!("only a leaf's frame is released")
        };
        self.pinned_count -= usize::from(pinned);
        self.leaf_count -= 1;
        self.uses[frame.0 as usize] = FrameUse::Free;
        self.free.push(frame);
    }

    /// Whether the frame must stay.
    pub(crate) fn pin(&mut self, frame: FrameIndex, pin: bool) {
        let FrameUse::Leaf { pinned, .. } = &mut self.uses[frame.0 as usize] else {
            panic!("only a leaf's frame is pinned")
        };
        match (*pinned, pin) {
            (false, true) => self.pinned_count += 1,
            (true, false) => self.pinned_count -= 1,
            _ => {}
        }
        *pinned = pin;
    }

    fn array_mut(&mut self, frame: FrameIndex) -> &mut [u64] {
        let words = self.width.words_per_leaf();
        let piece = &mut self.pieces[frame.0 as usize / FRAMES_PER_PIECE];
        &mut piece[frame.0 as usize % FRAMES_PER_PIECE * words..][..words]
    }

    /// The words of a frame's piece, and an entry's number among all of that piece.
    #[inline]
    fn entries(&self, frame: FrameIndex, index: usize) -> (&[u64], usize) {
        let number = Frames::entry_number(frame, index);
        (&self.pieces[frame.0 as usize / FRAMES_PER_PIECE], number)
    }

    #[inline]
    fn entry_number(frame: FrameIndex, index: usize) -> usize {
        assert!(index < ENTRIES_PER_PAGE, "an entry lies inside its frame");
        frame.0 as usize % FRAMES_PER_PIECE * ENTRIES_PER_PAGE + index
    }

    #[inline]
    pub(crate) fn entry(&self, frame: FrameIndex, index: usize) -> BlockPointer {
        let (words, number) = self.entries(frame, index);
        unpack(self.width.entry(words, number))
    }

    /// Touches entries, of those arrays that there are. The result is of no meaning.
    pub(super) fn touch(&self, entries: &[(FrameIndex, u16)]) -> u64 {
        let there = entries.iter().filter(|(frame, _)| frame.is_some());
        there.fold(0, |touched, (frame, index)| {
            let (words, number) = self.entries(*frame, usize::from(*index));
            touched ^ self.width.entry(words, number)
        })
    }

    #[inline]
    pub(crate) fn set_entry(&mut self, frame: FrameIndex, index: usize, pointer: BlockPointer) {
        let number = Frames::entry_number(frame, index);
        let words = &mut self.pieces[frame.0 as usize / FRAMES_PER_PIECE];
        self.width.set_entry(words, number, pack(pointer));
    }

    /// Fills a leaf's array from its page.
    pub(super) fn take_page(&mut self, frame: FrameIndex, page: &Block) {
        let width = self.width;
        width.pack_all(map_page::packed(page), self.array_mut(frame));
    }

    /// Makes a leaf's page of its array. Returns whether any entry points somewhere.
    pub(super) fn make_page(&self, frame: FrameIndex, page: &mut Block) -> bool {
        let start = frame.0 as usize % FRAMES_PER_PIECE * self.width.words_per_leaf();
        let piece = &self.pieces[frame.0 as usize / FRAMES_PER_PIECE];
        map_page::encode_packed(self.width.unpack_all(&piece[start..]), page)
    }

    /// Whether no entry of a leaf's array points anywhere.
    pub(super) fn is_empty(&self, frame: FrameIndex) -> bool {
        assert!(frame.is_some(), "there is an array");
        (0..ENTRIES_PER_PAGE).all(|index| !self.entry(frame, index).is_mapped())
    }

    /// Takes a cell, filled with zeros, if there is room. See [`Frames::grow_cells`].
    pub(super) fn take_cell(&mut self) -> Option<CellIndex> {
        let frame = *self.partial.last()?;
        let FrameUse::Cells { used, listed } = &mut self.uses[frame.0 as usize] else {
            panic!("a listed frame holds cells")
        };
        let place = (!*used).trailing_zeros();
        *used |= 1 << place;
        if *used == self.width.mask() {
            *listed = false;
            self.partial.pop();
        }
        self.free_cells -= 1;
        let cell = CellIndex::new(frame, place);
        *self.cell_mut(cell) = [0; CELL_WORDS];
        Some(cell)
    }

    /// Gives a cell back; the last one of a frame gives the frame back.
    pub(super) fn release_cell(&mut self, cell: CellIndex) {
        let cells_per_frame = self.cells_per_frame();
        let (frame, place) = (cell.frame(), cell.place());
        let FrameUse::Cells { used, listed } = &mut self.uses[frame.0 as usize] else {
            panic!("a cell lies in a cell frame")
        };
        assert!(*used & (1 << place) != 0, "a cell is released once");
        *used &= !(1 << place);
        self.free_cells += 1;
        if *used == 0 {
            if *listed {
                let position = self.partial.iter().position(|listed| *listed == frame);
                self.partial.swap_remove(position.expect("a listed frame is in the list"));
            }
            self.free_cells -= cells_per_frame;
            self.uses[frame.0 as usize] = FrameUse::Free;
            self.free.push(frame);
        } else if !*listed {
            *listed = true;
            self.partial.push(frame);
        }
    }

    /// Turns a free frame into cells; false if none is free.
    pub(crate) fn grow_cells(&mut self) -> bool {
        let Some(frame) = self.take() else { return false };
        self.uses[frame.0 as usize] = FrameUse::Cells { used: 0, listed: true };
        // At the front, so that cells come from the frames that are used already.
        self.partial.insert(0, frame);
        self.free_cells += self.cells_per_frame();
        true
    }

    pub(crate) fn free_cell_count(&self) -> usize {
        self.free_cells
    }

    /// Cells in use.
    pub(crate) fn used_cell_count(&self) -> usize {
        let cell_frames = self.count() - self.free_count() - self.leaf_count;
        cell_frames * self.cells_per_frame() - self.free_cells
    }

    /// A cell's piece, and where it begins in there.
    #[inline]
    fn cell_place(&self, cell: CellIndex) -> (usize, usize) {
        let frame = cell.frame().0 as usize;
        let start = frame % FRAMES_PER_PIECE * self.width.words_per_leaf();
        (frame / FRAMES_PER_PIECE, start + cell.place() as usize * CELL_WORDS)
    }

    pub(super) fn cell(&self, cell: CellIndex) -> &[u64; CELL_WORDS] {
        let (piece, start) = self.cell_place(cell);
        self.pieces[piece][start..].first_chunk().expect("a cell lies inside its frame")
    }

    pub(super) fn cell_mut(&mut self, cell: CellIndex) -> &mut [u64; CELL_WORDS] {
        let (piece, start) = self.cell_place(cell);
        self.pieces[piece][start..].first_chunk_mut().expect("a cell lies inside its frame")
    }
}

#[cfg(feature = "verify")]
impl Frames {
    /// # Panics
    /// If the frame is not the array of this leaf, or is not pinned while, and only while, it must stay.
    pub(super) fn assert_is_of(&self, frame: FrameIndex, leaf: u64, must_stay: bool) {
        let FrameUse::Leaf { key, pinned, .. } = self.uses[frame.0 as usize] else {
            panic!("a leaf's array is in a leaf's frame")
        };
        assert_eq!(key, leaf, "a frame knows whose it is");
        assert_eq!(pinned, must_stay, "leaf {leaf}'s frame is pinned while it must stay");
    }

    /// # Panics
    /// If the pool's counters contradict the frames, or what leaves hold of them.
    pub(super) fn assert_invariants(&self, arrays: usize, pinned: usize, cells: usize) {
        let (mut free, mut leaves, mut used, mut frames, mut listed) = (0, 0, 0, 0, 0);
        for state in self.uses.iter() {
            match state {
                FrameUse::Free => free += 1,
                FrameUse::Leaf { .. } => leaves += 1,
                FrameUse::Cells { used: bits, listed: is_listed } => {
                    assert!(*bits & !self.width.mask() == 0, "a frame has so many cells");
                    used += bits.count_ones() as usize;
                    frames += 1;
                    listed += usize::from(*is_listed);
                    assert_eq!(*is_listed, *bits != self.width.mask(), "what has room is listed");
                }
            }
        }
        assert_eq!(self.free.len() + self.retired_count, free, "free frames are listed");
        assert_eq!((self.leaf_count, leaves), (arrays, arrays), "a leaf's frame is its leaf's");
        assert_eq!(self.pinned_count, pinned, "pinned frames are counted");
        assert_eq!(used, cells, "every cell is in a chain");
        assert_eq!(self.free_cells, frames * self.cells_per_frame() - used, "the others are free");
        assert_eq!(self.partial.len(), listed, "frames with room are listed once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths() -> impl Iterator<Item = EntryWidth> {
        (1..=32).map(|bits| EntryWidth::of_addresses_below(1 << bits))
    }

    #[test]
    fn cells_give_their_frame_back_when_the_last_one_goes() {
        for width in widths() {
            let mut frames = Frames::new(2, width).expect("there is memory");
            assert!(frames.take_cell().is_none());
            assert!(frames.grow_cells());
            let cells: Vec<_> = (0..width.bits()).map(|_| frames.take_cell().unwrap()).collect();
            assert!(frames.take_cell().is_none());
            assert_eq!(frames.free_count(), 1);
            assert_eq!(frames.used_cell_count(), width.bits());
            for cell in cells {
                frames.release_cell(cell);
            }
            assert_eq!(frames.free_count(), 2);
            assert_eq!(frames.free_cell_count(), 0);
        }
    }

    #[test]
    fn frames_of_arrays_and_of_cells_lie_side_by_side() {
        for width in widths() {
            let pointer = |i: usize| BlockPointer {
                pba: coulter_format::Pba((width.mask() >> 32) as u32 - i as u32 % 2),
                checksum: u32::MAX - i as u32,
            };
            let mut frames = Frames::new(3, width).expect("there is memory");
            let before = frames.take_free(0).unwrap();
            assert!(frames.grow_cells());
            let behind = frames.take_free(1).unwrap();
            for index in 0..ENTRIES_PER_PAGE {
                frames.set_entry(before, index, pointer(index));
                frames.set_entry(behind, index, pointer(index + 1));
            }
            let mut page = [0; coulter_format::BLOCK_SIZE];
            assert!(frames.make_page(before, &mut page));
            for cell in 0..width.bits() as u64 {
                let place = frames.take_cell().unwrap();
                assert_eq!(*frames.cell(place), [0; CELL_WORDS]);
                *frames.cell_mut(place) = [!cell; CELL_WORDS];
            }
            for index in 0..ENTRIES_PER_PAGE {
                assert_eq!(frames.entry(before, index), pointer(index), "{width:?}");
                assert_eq!(frames.entry(behind, index), pointer(index + 1), "{width:?}");
            }
            frames.take_page(behind, &page);
            for (index, entry) in map_page::decode(&page).enumerate() {
                assert_eq!(frames.entry(behind, index), entry, "{width:?}");
                assert_eq!(entry, pointer(index), "{width:?}");
            }
        }
    }

    #[test]
    fn a_pinned_frame_is_never_evicted_and_a_used_one_gets_a_second_chance() {
        let mut frames = Frames::new(3, EntryWidth::MAX).expect("there is memory");
        let [a, b, c] = [10, 20, 30].map(|key| frames.take_free(key).unwrap());
        assert_eq!(frames.evict_candidate(|_| false), None);
        for frame in [a, b, c] {
            frames.pin(frame, false);
        }
        let mut used = alloc::vec![10, 20, 30];
        let mut candidate = |used: &mut Vec<u64>| {
            frames.evict_candidate(|key| {
                let position = used.iter().position(|used| *used == key);
                position.map(|position| used.swap_remove(position)).is_some()
            })
        };
        assert_eq!(candidate(&mut used), Some(10), "all were used: the first goes");
        used.push(20);
        assert_eq!(candidate(&mut used), Some(30));
    }
}
