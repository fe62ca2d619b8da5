//! Which requests make sense, decided before they reach the loop.

use crate::service::{Operation, REQUEST_SIZE_MAX, RequestError, SECTOR_SIZE};

/// The range of a request in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Whether a volume of `size` bytes can carry out the request.
///
/// # Errors
/// `Invalid` and `OutOfRange`, as [`RequestError`] defines them.
pub(crate) fn check(
    operation: Operation,
    range: ByteRange,
    memory_length: u64,
    size: u64,
) -> Result<(), RequestError> {
    if operation == Operation::Flush {
        return Ok(());
    }
    if !(range.offset | range.length).is_multiple_of(SECTOR_SIZE) {
        return Err(RequestError::Invalid);
    }
    let carries_data = matches!(operation, Operation::Read | Operation::Write { .. });
    if carries_data && (range.length > REQUEST_SIZE_MAX || memory_length != range.length) {
        return Err(RequestError::Invalid);
    }
    // An answer of at least one byte is promised.
    if operation == Operation::Extents && range.length == 0 {
        return Err(RequestError::Invalid);
    }
    match range.offset.checked_add(range.length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(RequestError::OutOfRange),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;
    const WRITE: Operation = Operation::Write { fua: false };

    fn answer(operation: Operation, offset: u64, length: u64) -> Result<(), RequestError> {
        check(operation, ByteRange { offset, length }, length, SIZE)
    }

    #[test]
    fn whole_sectors_inside_the_volume_pass() {
        assert_eq!(answer(Operation::Read, 512, 1024), Ok(()));
        assert_eq!(answer(WRITE, SIZE - 512, 512), Ok(()));
        assert_eq!(answer(Operation::Discard, 0, SIZE), Ok(()));
        assert_eq!(answer(WRITE, SIZE, 0), Ok(()));
    }

    #[test]
    fn parts_of_sectors_are_invalid() {
        assert_eq!(answer(Operation::Read, 1, 512), Err(RequestError::Invalid));
        assert_eq!(answer(Operation::Discard, 0, 100), Err(RequestError::Invalid));
    }

    #[test]
    fn data_must_fit_its_memory_and_the_largest_request() {
        let range = ByteRange { offset: 0, length: 4096 };
        assert_eq!(check(WRITE, range, 512, SIZE), Err(RequestError::Invalid));
        assert_eq!(answer(WRITE, 0, REQUEST_SIZE_MAX), Ok(()));
        assert_eq!(answer(WRITE, 0, REQUEST_SIZE_MAX + 512), Err(RequestError::Invalid));
    }

    #[test]
    fn what_ends_beyond_the_volume_is_out_of_range_even_if_the_sum_overflows() {
        assert_eq!(answer(Operation::Read, SIZE, 512), Err(RequestError::OutOfRange));
        assert_eq!(answer(Operation::Discard, !511, 1024), Err(RequestError::OutOfRange));
    }

    #[test]
    fn a_flush_has_no_range_and_extents_need_one() {
        assert_eq!(answer(Operation::Flush, 7, u64::MAX), Ok(()));
        assert_eq!(answer(Operation::Extents, 0, 0), Err(RequestError::Invalid));
    }
}
