//! Which memory is registered with the ring, and under which number.

use crate::command::Region;
use crate::transfer::PIECE_SIZE_MAX;

/// A run of memory that the kernel knows by a number.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
    index: u16,
}

/// The registered memory, sorted by address.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    spans: Vec<Span>,
}

impl Pinned {
    /// Cuts regions into pieces that the kernel can register, at most 1 GiB each.
    pub(super) fn pieces(regions: &[Region]) -> Vec<libc::iovec> {
        let mut pieces = Vec::new();
        for region in regions {
            let mut done = 0;
            while done < region.length {
                let length = (region.length - done).min(PIECE_SIZE_MAX as usize);
                let start = region.start.wrapping_add(done);
                pieces.push(libc::iovec { iov_base: start.cast(), iov_len: length });
                done += length;
            }
        }
        pieces
    }

    /// The table of pieces that were registered, in that order.
    pub(super) fn of(pieces: &[libc::iovec]) -> Pinned {
        let mut spans: Vec<Span> = (0..)
            .zip(pieces)
            .map(|(index, piece)| {
                let start = piece.iov_base as usize;
                Span { start, end: start + piece.iov_len, index }
            })
            .collect();
        spans.sort_by_key(|span| span.start);
        Pinned { spans }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The number under which all of the memory is registered, if it is.
    #[inline]
    pub(super) fn index_of(&self, start: *const u8, length: u64) -> Option<u16> {
        let start = start as usize;
        let after = self.spans.partition_point(|span| span.start <= start);
        let span = self.spans.get(after.checked_sub(1)?)?;
        (start as u64 + length <= span.end as u64).then_some(span.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: usize, length: usize) -> Region {
        Region { start: start as *mut u8, length }
    }

    #[test]
    fn memory_is_found_only_if_all_of_it_is_registered() {
        let pieces = Pinned::pieces(&[region(0x9000, 0x2000), region(0x1000, 0x1000)]);
        let pinned = Pinned::of(&pieces);
        let index_of = |start: usize, length| pinned.index_of(start as *const u8, length);
        assert_eq!(index_of(0x9000, 0x2000), Some(0));
        assert_eq!(index_of(0xa000, 0x1000), Some(0));
        assert_eq!(index_of(0x1000, 0x1000), Some(1));
        assert_eq!(index_of(0x1000, 0x1001), None);
        assert_eq!(index_of(0xa000, 0x1001), None);
        assert_eq!(index_of(0x0, 0x10), None);
        assert_eq!(index_of(0x4000, 0x10), None);
        assert_eq!(Pinned::default().index_of(0x1000 as *const u8, 1), None);
    }

    #[test]
    fn a_large_region_falls_into_pieces() {
        let gib = 1 << 30;
        let pieces = Pinned::pieces(&[region(gib, 2 * gib + 4096)]);
        let lengths: Vec<usize> = pieces.iter().map(|piece| piece.iov_len).collect();
        assert_eq!(lengths, [gib, gib, 4096]);
        let pinned = Pinned::of(&pieces);
        // What straddles two pieces is in neither.
        assert_eq!(pinned.index_of((2 * gib - 4096) as *const u8, 8192), None);
        assert_eq!(pinned.index_of((2 * gib) as *const u8, 8192), Some(1));
    }
}
