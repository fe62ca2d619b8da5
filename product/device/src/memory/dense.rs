//! Content in parts of 1 MiB, each allocated when it is first written.

use std::iter;

/// Bytes per part. Large enough that the allocator maps it afresh, so that its zeros cost nothing
/// until they are touched.
const PART_SIZE: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub(super) struct Dense {
    /// `None` stands for zeros.
    parts: Vec<Option<Box<[u8]>>>,
}

impl Dense {
    pub(super) fn new(size: u64) -> Dense {
        let count = usize::try_from(size.div_ceil(PART_SIZE)).expect("the table fits into memory");
        Dense { parts: iter::repeat_with(|| None).take(count).collect() }
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let mut bytes = bytes;
        for (index, start, length) in pieces(offset, bytes.len() as u64) {
            let (piece, rest) = bytes.split_at_mut(length);
            match &self.parts[index] {
                Some(part) => piece.copy_from_slice(&part[start..start + length]),
                None => piece.fill(0),
            }
            bytes = rest;
        }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut bytes = bytes;
        for (index, start, length) in pieces(offset, bytes.len() as u64) {
            let (piece, rest) = bytes.split_at(length);
            let part = self.parts[index].get_or_insert_with(zeroed_part);
            part[start..start + length].copy_from_slice(piece);
            bytes = rest;
        }
    }

    pub(super) fn clear(&mut self, offset: u64, length: u64) {
        for (index, start, length) in pieces(offset, length) {
            let part = &mut self.parts[index];
            if length == PART_SIZE as usize {
                *part = None;
            } else if let Some(part) = part {
                part[start..start + length].fill(0);
            }
        }
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.parts.iter().flatten().count() as u64 * PART_SIZE
    }
}

fn zeroed_part() -> Box<[u8]> {
    vec![0; PART_SIZE as usize].into_boxed_slice()
}

/// The parts that a range touches: number of the part, first byte in it, bytes.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (usize, usize, usize)> {
    let end = offset + length;
    let mut at = offset;
    iter::from_fn(move || {
        if at == end {
            return None;
        }
        let start = at % PART_SIZE;
        let piece = (PART_SIZE - start).min(end - at);
        let index = (at / PART_SIZE) as usize;
        at += piece;
        Some((index, start as usize, piece as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_falls_into_pieces() {
        let pieces: Vec<_> = pieces(PART_SIZE - 10, PART_SIZE + 30).collect();
        let part = PART_SIZE as usize;
        assert_eq!(pieces, [(0, part - 10, 10), (1, 0, part), (2, 0, 20)]);
    }

    #[test]
    fn parts_come_with_writes_and_go_with_discards() {
        let mut dense = Dense::new(4 * PART_SIZE);
        let mut bytes = vec![1; 3];
        dense.read(PART_SIZE - 1, &mut bytes);
        assert_eq!(bytes, [0, 0, 0]);
        assert_eq!(dense.stored_bytes(), 0);
        dense.write(PART_SIZE - 1, &[1, 2, 3]);
        assert_eq!(dense.stored_bytes(), 2 * PART_SIZE);
        dense.clear(0, PART_SIZE + 1);
        assert_eq!(dense.stored_bytes(), PART_SIZE);
        dense.read(PART_SIZE - 1, &mut bytes);
        assert_eq!(bytes, [0, 0, 3]);
    }
}
