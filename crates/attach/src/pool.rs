//! Buffers that are used again, so that serving a request allocates nothing in steady state.
//!
//! A pool belongs to one connection and therefore to one client: what an earlier request left in
//! a buffer can at most be seen by the client that put it there, and not even by that one, because
//! a buffer is only sent after it was filled whole.
//!
//! # Invariants
//! - Sizes are powers of two from 4 KiB to `REQUEST_SIZE_MAX`, one free list for each.
//! - The bytes that lie idle never exceed the limit given to [`BufferPool::new`].

use coulter::buffer::Buffer;
use coulter::service::{BLOCK_SIZE, REQUEST_SIZE_MAX};

/// log2 of the smallest size class.
const CLASS_BITS_MIN: u32 = BLOCK_SIZE.trailing_zeros();
/// log2 of the largest size class.
const CLASS_BITS_MAX: u32 = REQUEST_SIZE_MAX.trailing_zeros();
const CLASS_COUNT: usize = (CLASS_BITS_MAX - CLASS_BITS_MIN + 1) as usize;

const _: () = assert!(BLOCK_SIZE.is_power_of_two());
const _: () = assert!(REQUEST_SIZE_MAX.is_power_of_two());

/// Free lists of [`Buffer`]s by size class.
pub(crate) struct BufferPool {
    idle: [Vec<Buffer>; CLASS_COUNT],
    idle_bytes: usize,
    idle_bytes_max: usize,
}

impl BufferPool {
    /// A pool that keeps at most `idle_bytes_max` bytes of buffers that nobody uses.
    pub(crate) fn new(idle_bytes_max: usize) -> BufferPool {
        BufferPool { idle: Default::default(), idle_bytes: 0, idle_bytes_max }
    }

    /// A buffer of `length` bytes. Its content is unspecified (but initialised).
    ///
    /// # Panics
    /// When `length` exceeds [`REQUEST_SIZE_MAX`].
    pub(crate) fn take(&mut self, length: usize) -> Buffer {
        if length == 0 {
            return Buffer::empty();
        }
        let class = class_of(length);
        let mut buffer = match self.idle[class].pop() {
            Some(buffer) => {
                self.idle_bytes -= buffer.capacity();
                buffer
            }
            None => Buffer::zeroed(class_size(class)),
        };
        buffer.set_length(length);
        buffer
    }

    /// Gives a buffer back. One that is not of this pool's sizes is freed.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        let capacity = buffer.capacity();
        if capacity == 0 || self.idle_bytes + capacity > self.idle_bytes_max {
            return;
        }
        let class = class_of(capacity);
        if class_size(class) == capacity {
            self.idle_bytes += capacity;
            self.idle[class].push(buffer);
        }
    }

    /// Bytes of a buffer that [`BufferPool::take`] returns for `length`: what a request costs.
    pub(crate) fn cost(length: usize) -> usize {
        if length == 0 { 0 } else { class_size(class_of(length)) }
    }
}

fn class_of(length: usize) -> usize {
    assert!(length as u64 <= REQUEST_SIZE_MAX, "a request never exceeds the contract's maximum");
    let bits = length.next_power_of_two().trailing_zeros().max(CLASS_BITS_MIN);
    (bits - CLASS_BITS_MIN) as usize
}

fn class_size(class: usize) -> usize {
    1 << (CLASS_BITS_MIN as usize + class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_given_back_is_used_again() {
        let mut pool = BufferPool::new(1 << 20);
        let mut first = pool.take(4096);
        let address = first.as_mut_pointer();
        pool.give(first);
        let mut second = pool.take(512);
        assert_eq!(second.as_mut_pointer(), address);
        assert_eq!(second.len(), 512);
        assert_eq!(second.capacity(), 4096);
    }

    #[test]
    fn classes_cover_every_legal_length() {
        let mut pool = BufferPool::new(0);
        for length in [1, 512, 4096, 4097, 65536, 65537, 1 << 20, (1 << 20) + 1, 32 << 20] {
            let buffer = pool.take(length);
            assert_eq!(buffer.len(), length);
            assert_eq!(buffer.capacity(), BufferPool::cost(length));
        }
        assert_eq!(BufferPool::cost(0), 0);
    }

    #[test]
    fn idle_bytes_are_bounded() {
        let mut pool = BufferPool::new(8192);
        let buffers: Vec<Buffer> = (0..4).map(|_| pool.take(4096)).collect();
        for buffer in buffers {
            pool.give(buffer);
        }
        assert_eq!(pool.idle_bytes, 8192);
        pool.give(Buffer::zeroed(3 * 4096));
        assert_eq!(pool.idle_bytes, 8192);
    }
}
