//! Buffers for requests that are not whole blocks, used again and again.

use crate::buffer::Buffer;

/// Sizes in bytes that are kept; anything larger is allocated and freed.
const KEPT_SIZE_MAX: usize = 64 << 10;

/// Buffers that are kept, 4 MiB in all.
const KEPT_COUNT_MAX: usize = 64;

/// Idle buffers, all of the same size.
#[derive(Default)]
pub(crate) struct BounceBuffers {
    idle: Vec<Buffer>,
}

impl BounceBuffers {
    /// A buffer of `length` bytes, which are initialised to anything.
    pub(crate) fn take(&mut self, length: usize) -> Buffer {
        if length > KEPT_SIZE_MAX {
            return Buffer::zeroed(length);
        }
        let mut buffer = self.idle.pop().unwrap_or_else(|| Buffer::zeroed(KEPT_SIZE_MAX));
        buffer.set_length(length);
        buffer
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        if buffer.capacity() == KEPT_SIZE_MAX && self.idle.len() < KEPT_COUNT_MAX {
            self.idle.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_come_back_and_large_ones_do_not() {
        let mut buffers = BounceBuffers::default();
        let mut first = buffers.take(4096);
        let address = first.as_mut_pointer();
        buffers.give(first);
        let large = buffers.take(1 << 20);
        assert_eq!(large.len(), 1 << 20);
        buffers.give(large);
        let mut second = buffers.take(8192);
        assert_eq!((second.as_mut_pointer(), second.len()), (address, 8192));
        for _ in 0..2 * KEPT_COUNT_MAX {
            buffers.give(Buffer::zeroed(KEPT_SIZE_MAX));
        }
        assert_eq!(buffers.idle.len(), KEPT_COUNT_MAX);
    }
}
