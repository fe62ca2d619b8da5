//! Pages of the flash below: what a store that knows their size does for them.
//!
//! What is written to a page takes along whatever else lies there if the power goes meanwhile, and costs the
//! flash at least the page. So a record begins at a page and nothing else is written to its last one, and only
//! pages of which nothing is needed are holes, unless they are padded (see `pads`).
//!
//! Which segment is written into next follows from what it costs the flash to make room there: as a segment
//! is an erase block, all pages without a hole are copied to another one, and this one is erased. What is
//! needed in the other pages the host reads.

/// The time that flash takes, in nanoseconds. Only how they compare matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlashTimes {
    /// To copy a page to another erase block: a read, a program and two transfers.
    pub(crate) copy: u64,
    /// To erase.
    pub(crate) erase: u64,
    /// For the host to read a block of a page.
    pub(crate) read: u64,
}

/// Multi-level cells, pages of 16 KiB: 64 µs to read, 1575 µs to program, 244.5 µs to transfer, 3 ms to
/// erase; 16.4 µs for a block on the link to the host. As of `lab/flash/profiles/openssd.profile`, which names its sources.
pub(crate) const MULTI_LEVEL: FlashTimes =
    FlashTimes { copy: 64_000 + 1_575_000 + 2 * 244_537, erase: 3_000_000, read: 64_000 + 16_384 };

/// What it costs to write into the holes of a segment, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PaddingCost {
    time: u64,
    holes: u32,
}

impl PaddingCost {
    /// The cost of filling a segment of so many blocks. `needed` marks the blocks that are not holes. A page that is
    /// needed whole is copied; of other pages the needed blocks are read.
    pub(crate) fn new(
        times: &FlashTimes,
        needed: &[u64],
        size: u32,
        page_blocks: u32,
    ) -> PaddingCost {
        assert!(size.is_multiple_of(page_blocks), "a segment has whole pages");
        let mask = page_mask(page_blocks);
        let (mut copied, mut read, mut holes) = (0, 0, 0);
        for first in (0..size).step_by(page_blocks as usize) {
            let needed = (needed[first as usize / 64] >> (first % 64) & mask).count_ones();
            copied += u32::from(needed == page_blocks);
            read += if needed == page_blocks { 0 } else { needed };
            holes += page_blocks - needed;
        }
        let time = u64::from(copied) * times.copy + times.erase + u64::from(read) * times.read;
        PaddingCost { time, holes }
    }

    /// Whether a hole costs less here than there.
    pub(crate) fn is_less_than(self, other: PaddingCost) -> bool {
        // Without fractions, and without overflow: a segment has 2^18 blocks at most.
        let here = u128::from(self.time) * u128::from(other.holes);
        here < u128::from(other.time) * u128::from(self.holes)
    }
}

/// Whether a block is marked.
pub(crate) fn is_set(bits: &[u64], offset: u32) -> bool {
    bits[offset as usize / 64] & 1 << (offset % 64) != 0
}

/// Marks a block; false if it was marked.
pub(crate) fn set(bits: &mut [u64], offset: u32) -> bool {
    let was_set = is_set(bits, offset);
    bits[offset as usize / 64] |= 1 << (offset % 64);
    !was_set
}

/// Marks all blocks of each page of which one is marked. A page lies in one word.
pub(crate) fn fill_pages(marks: &mut [u64], page_blocks: u32) {
    assert!(page_blocks.is_power_of_two() && page_blocks <= 64, "a page lies in one word");
    if page_blocks == 1 {
        return;
    }
    for word in marks {
        for first in (0..64).step_by(page_blocks as usize) {
            let page = page_mask(page_blocks) << first;
            *word |= if *word & page == 0 { 0 } else { page };
        }
    }
}

/// Whether nothing is marked of the page in which a block lies.
pub(crate) fn page_is_clear(marks: &[u64], block: u32, page_blocks: u32) -> bool {
    let first = block - block % page_blocks;
    assert!(first % 64 + page_blocks <= 64, "a page lies in one word");
    marks[first as usize / 64] >> (first % 64) & page_mask(page_blocks) == 0
}

/// As many bits as a page has blocks.
pub(crate) fn page_mask(page_blocks: u32) -> u64 {
    assert!((1..=64).contains(&page_blocks), "a page lies in one word");
    u64::MAX >> (64 - page_blocks)
}

/// Blocks of payload that a record in a row may have if its pages are to fit into `blocks`.
pub(crate) fn payload_max(blocks: u32, page_blocks: u32) -> u32 {
    assert!(page_blocks <= blocks, "a page is shorter than a record may be");
    blocks / page_blocks * page_blocks - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_page_of_which_a_block_is_marked_is_marked() {
        let mut marks = [0b1_0000_0000_0100, 1 << 63, 0];
        fill_pages(&mut marks, 4);
        assert_eq!(marks, [0b1111_0000_0000_1111, 0xf << 60, 0]);
        assert!(page_is_clear(&marks, 7, 4) && !page_is_clear(&marks, 15, 4));
        assert!(!page_is_clear(&marks, 127, 4) && page_is_clear(&marks, 191, 4));
        let mut marks = [0b101, 0];
        fill_pages(&mut marks, 1);
        assert_eq!(marks, [0b101, 0], "a block is a page of its own");
        fill_pages(&mut marks, 64);
        assert_eq!(marks, [u64::MAX, 0]);
    }

    #[test]
    fn the_segment_is_taken_where_a_hole_costs_least() {
        let of = |kept: u32, pages: u32| {
            let needed: Vec<u64> = (0..pages / 16)
                .map(|word| {
                    (0..16)
                        .filter(|page| 16 * word + page < kept)
                        .map(|page| 15 << (4 * page))
                        .sum()
                })
                .collect();
            PaddingCost::new(&MULTI_LEVEL, &needed, 4 * pages, 4)
        };
        let cost = |kept| of(kept, 128);
        assert!(cost(0).is_less_than(cost(1)), "an erase is shared by more");
        assert!(cost(10).is_less_than(cost(11)) && !cost(11).is_less_than(cost(10)));
        assert!(!cost(10).is_less_than(cost(10)), "ties are nobody's");
        assert!(!cost(128).is_less_than(cost(127)), "without a hole it is never worth it");
        // As much is copied, but the erase is for twice as many holes.
        let larger = of(20, 256);
        assert!(larger.is_less_than(cost(10)));
    }

    /// Pages of four blocks; the cost is c·(read + program + two transfers) + erase + h·(read + link).
    #[test]
    fn what_is_padded_is_read_and_what_is_not_is_copied() {
        let cost = |needed| PaddingCost::new(&MULTI_LEVEL, &[needed], 16, 4);
        for (needed, copied, read, holes) in [
            (0, 0, 0, 16),
            (0b0001, 0, 1, 15),
            (0b1111, 1, 0, 12),
            (0b0111_1111, 1, 3, 9),
            (0b0111_0111_0111_0111, 0, 12, 4),
            (0xffff, 4, 0, 0),
        ] {
            let time = copied * MULTI_LEVEL.copy + MULTI_LEVEL.erase + read * MULTI_LEVEL.read;
            assert_eq!(cost(needed), PaddingCost { time, holes }, "{needed:b}");
        }
        // As much is needed: better in pages that are written all the same than in others.
        assert!(cost(0b0001_0001_0001_0001).is_less_than(cost(0b1111)));
        assert!(cost(0).is_less_than(cost(0b0001)));
    }

    #[test]
    fn a_record_has_no_more_payload_than_its_pages_hold() {
        assert_eq!(
            (payload_max(445, 1), payload_max(445, 4), payload_max(445, 64)),
            (444, 443, 383)
        );
        for page in [1u32, 2, 4, 8, 16, 32, 64] {
            let span = (1 + payload_max(445, page)).next_multiple_of(page);
            assert!(span <= 445 && span + page > 445, "{page}");
        }
    }
}
