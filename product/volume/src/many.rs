//! The ranges of a write that stores and discards several at once.

use crate::service::{BLOCK_SIZE, Change, RequestError};
use coulter_engine::many::{self, ChangesError};
use coulter_engine::{Change as BlockChange, ChangeKind};
use coulter_format::Lba;

/// Ranges in blocks. They passed [`many::check`], lie inside the volume, and match their data.
#[derive(Debug)]
pub(crate) struct Many {
    /// In the order in which their data lie in the buffer.
    changes: Vec<BlockChange>,
    /// First block and end of each, ascending.
    sorted: Vec<(u64, u64)>,
}

impl Many {
    /// Takes ranges of bytes.
    ///
    /// # Errors
    /// `Invalid` if a range is not of whole blocks or the data is not as long as the ranges to be
    /// written; `OutOfRange`; `Changes`.
    pub(crate) fn new(changes: &[Change], data: u64, size: u64) -> Result<Many, RequestError> {
        if changes.len() > many::CHANGES_MAX {
            return Err(RequestError::Changes(ChangesError::TooMany));
        }
        let mut blocks = Vec::with_capacity(changes.len());
        let mut expected = 0u64;
        for change in changes {
            let (kind, offset, length) = match *change {
                Change::Write { offset, length } => (ChangeKind::Write, offset, length),
                Change::Discard { offset, length } => (ChangeKind::Discard, offset, length),
            };
            if !(offset | length).is_multiple_of(BLOCK_SIZE) {
                return Err(RequestError::Invalid);
            }
            if offset.checked_add(length).is_none_or(|end| end > size) {
                return Err(RequestError::OutOfRange);
            }
            if kind == ChangeKind::Write {
                expected = expected.saturating_add(length);
            }
            // More than that is more than any write may change.
            let count = u32::try_from(length / BLOCK_SIZE).unwrap_or(u32::MAX);
            blocks.push(BlockChange { lba: Lba(offset / BLOCK_SIZE), count, kind });
        }
        let mut sorted = Vec::with_capacity(blocks.len());
        many::check(&blocks, &mut sorted).map_err(RequestError::Changes)?;
        if expected != data {
            return Err(RequestError::Invalid);
        }
        Ok(Many { changes: blocks, sorted })
    }

    /// The ranges, in the order in which their data lie in the buffer.
    pub(crate) fn changes(&self) -> &[BlockChange] {
        &self.changes
    }

    /// First block and end of what lies between the lowest and the highest range, both included.
    pub(crate) fn hull(&self) -> (u64, u64) {
        let first = self.sorted.first().map_or(0, |(first, _)| *first);
        (first, self.sorted.last().map_or(0, |(_, end)| *end))
    }

    /// First block and end of each range, ascending.
    pub(crate) fn ranges(&self) -> &[(u64, u64)] {
        &self.sorted
    }

    /// Whether a block of `first..end` is in a range.
    pub(crate) fn overlaps(&self, first: u64, end: u64) -> bool {
        let index = self.sorted.partition_point(|(_, range_end)| *range_end <= first);
        self.sorted.get(index).is_some_and(|(range_first, _)| *range_first < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    fn write(block: u64, count: u64) -> Change {
        Change::Write { offset: block * BLOCK_SIZE, length: count * BLOCK_SIZE }
    }

    fn refusal(changes: &[Change], data: u64) -> RequestError {
        Many::new(changes, data, SIZE).expect_err("it is refused")
    }

    #[test]
    fn ranges_are_whole_blocks_inside_the_volume_and_match_their_data() {
        let changes = [write(9, 2), Change::Discard { offset: 0, length: 8 * BLOCK_SIZE }];
        let many = Many::new(&changes, 2 * BLOCK_SIZE, SIZE).expect("they are sound");
        assert_eq!((many.hull(), many.ranges()), ((0, 11), [(0, 8), (9, 11)].as_slice()));
        assert_eq!(many.changes()[0].lba, Lba(9));
        assert_eq!(refusal(&changes, BLOCK_SIZE), RequestError::Invalid);
        assert_eq!(refusal(&changes, 10 * BLOCK_SIZE), RequestError::Invalid);
        let part = Change::Write { offset: 512, length: 4096 };
        assert_eq!(refusal(&[part], 4096), RequestError::Invalid);
        let last = SIZE / BLOCK_SIZE;
        assert_eq!(refusal(&[write(last - 1, 2)], 2 * BLOCK_SIZE), RequestError::OutOfRange);
        let wraps = Change::Discard { offset: u64::MAX - 4095, length: 8192 };
        assert_eq!(refusal(&[wraps], 0), RequestError::OutOfRange);
    }

    #[test]
    fn ranges_that_cannot_be_one_record_are_told_apart() {
        let refused = |changes: &[Change], data| match refusal(changes, data) {
            RequestError::Changes(error) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&[], 0), ChangesError::None);
        assert_eq!(refused(&vec![write(1, 1); 201], 201 * BLOCK_SIZE), ChangesError::TooMany);
        assert_eq!(refused(&[write(1, 257)], 257 * BLOCK_SIZE), ChangesError::TooMuchData);
        let twice = refused(&[write(4, 2), write(5, 1)], 3 * BLOCK_SIZE);
        assert_eq!(twice, ChangesError::Overlapping(Lba(5)));
        assert_eq!(refused(&[write(1, 0)], 0), ChangesError::Range(Lba(1)));
    }

    #[test]
    fn only_the_ranges_themselves_overlap() {
        let many = Many::new(&[write(20, 2), write(4, 4)], 6 * BLOCK_SIZE, SIZE).expect("sound");
        for (first, end, overlaps) in [
            (0, 4, false),
            (0, 5, true),
            (7, 9, true),
            (8, 20, false),
            (21, 99, true),
            (22, 99, false),
        ] {
            assert_eq!(many.overlaps(first, end), overlaps, "{first}..{end}");
        }
    }
}
