//! The blocks that a request covers, and which of them it covers only in part.

use coulter_format::BLOCK_SIZE;

const SIZE: u64 = BLOCK_SIZE as u64;

/// Blocks from `first` to before `end`; the first and the last may be covered in part only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    /// First block that is touched.
    pub(super) first: u64,
    /// The block after the last that is touched.
    pub(super) end: u64,
    head_is_partial: bool,
    tail_is_partial: bool,
}

impl Span {
    /// The blocks of a range of bytes, which is not empty.
    pub(super) fn of(offset: u64, length: u64) -> Span {
        assert!(length > 0, "a range covers something");
        let end = offset + length;
        let (first, last) = (offset / SIZE, (end - 1) / SIZE);
        let (begins_whole, ends_whole) = (offset.is_multiple_of(SIZE), end.is_multiple_of(SIZE));
        let head_is_partial = !begins_whole || (first == last && !ends_whole);
        let tail_is_partial = first != last && !ends_whole;
        Span { first, end: last + 1, head_is_partial, tail_is_partial }
    }

    /// The blocks from `first` to before `end`, each of them whole.
    pub(super) fn whole_blocks(first: u64, end: u64) -> Span {
        assert!(first < end, "a range covers something");
        Span { first, end, head_is_partial: false, tail_is_partial: false }
    }

    pub(super) fn count(&self) -> u64 {
        self.end - self.first
    }

    pub(super) fn is_whole(&self) -> bool {
        !self.head_is_partial && !self.tail_is_partial
    }

    /// Whether no block is touched.
    pub(super) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// The blocks covered in part: none, one or two.
    pub(super) fn edges(&self) -> impl Iterator<Item = u64> + use<> {
        let head = self.head_is_partial.then_some(self.first);
        let tail = self.tail_is_partial.then_some(self.end.wrapping_sub(1));
        head.into_iter().chain(tail)
    }

    /// The blocks covered whole, as first and end; equal if there are none.
    pub(super) fn whole(&self) -> (u64, u64) {
        let first = self.first + u64::from(self.head_is_partial);
        let end = self.end - u64::from(self.tail_is_partial);
        (first, end)
    }

    /// Whether a block is in both.
    pub(super) fn overlaps(&self, other: &Span) -> bool {
        self.first < other.end && other.first < self.end
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        (self.first..self.end).contains(&block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(offset: u64, length: u64) -> Vec<u64> {
        Span::of(offset, length).edges().collect()
    }

    #[test]
    fn whole_blocks_have_no_edges() {
        let span = Span::of(8192, 12288);
        assert_eq!((span.first, span.end, span.count()), (2, 5, 3));
        assert!(span.is_whole());
        assert_eq!(span.whole(), (2, 5));
    }

    #[test]
    fn parts_of_blocks_are_edges() {
        assert_eq!(edges(512, 512), [0]);
        assert_eq!(edges(0, 512), [0]);
        assert_eq!(edges(3584, 512), [0]);
        assert_eq!(edges(0, 4608), [1]);
        assert_eq!(edges(3584, 1024), [0, 1]);
        assert_eq!(edges(512, 7680), [0]);
        assert_eq!(edges(512, 16384), [0, 4]);
        assert_eq!(Span::of(512, 16384).whole(), (1, 4));
        assert_eq!(Span::of(512, 512).whole(), (1, 1));
        assert_eq!(Span::of(0, 512).whole(), (1, 1));
        assert_eq!(Span::of(3584, 1024).whole(), (1, 1));
    }
}
