//! The memory that the data of requests passes through where the daemon copies it: all of it there
//! from the start, and no more later.
//!
//! When the kernel is short of memory it writes dirty pages to this very device, in the largest
//! requests and as many as there are slots. Memory that were asked for then would have to be freed
//! by what waits for it. So a request that finds no buffer stays with the driver, which has its
//! data, until another is complete.
//!
//! # Invariants
//! - Every slot can have a small buffer at any time, so small requests never wait.
//! - Every page was touched when the stock was made; where memory is locked on touch, all of it is.

use coulter::buffer::Buffer;

/// Bytes of a small buffer.
const SMALL_SIZE: usize = 64 << 10;
/// Buffers for the largest request. With a request of that size eight keep any device busy.
const LARGE_COUNT: usize = 8;

/// Buffers of two sizes.
pub(super) struct Stock {
    small: Vec<Buffer>,
    large: Vec<Buffer>,
    large_size: usize,
}

impl Stock {
    /// For so many slots, and requests of at most `size_max` bytes.
    pub(super) fn new(slot_count: u16, size_max: usize) -> Stock {
        let large_size = size_max.max(SMALL_SIZE + 1);
        let large = (0..LARGE_COUNT).map(|_| touched(large_size)).collect();
        let small = (0..slot_count).map(|_| touched(SMALL_SIZE)).collect();
        Stock { small, large, large_size }
    }

    /// One that no slot needs, since nothing is copied by way of it.
    pub(super) fn empty() -> Stock {
        Stock { small: Vec::new(), large: Vec::new(), large_size: 0 }
    }

    /// A buffer of `length` bytes, with whatever is in it; `None` if it has to wait.
    pub(super) fn try_take(&mut self, length: usize) -> Option<Buffer> {
        let list = if length <= SMALL_SIZE { &mut self.small } else { &mut self.large };
        let mut buffer = list.pop()?;
        buffer.set_length(length);
        Some(buffer)
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buffer: Buffer) {
        match buffer.capacity() {
            0 => {}
            SMALL_SIZE => self.small.push(buffer),
            capacity => {
                assert!(capacity >= self.large_size, "buffers come back to where they are from");
                self.large.push(buffer);
            }
        }
    }
}

/// Memory whose pages are there: zeroed memory alone is only promised.
fn touched(length: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(length);
    buffer.fill(0);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_small_buffer_and_large_requests_wait_for_each_other() {
        let mut stock = Stock::new(4, 1 << 20);
        let mut taken: Vec<Buffer> = Vec::new();
        while let Some(buffer) = stock.try_take(1 << 20) {
            taken.push(buffer);
        }
        assert_eq!(taken.len(), LARGE_COUNT);
        taken.extend((0..4).map(|_| stock.try_take(512).expect("small ones never wait")));
        assert!(stock.try_take(4096).is_none(), "there are no more slots");
        assert!(stock.try_take(SMALL_SIZE + 512).is_none());
        stock.give(taken.remove(0));
        assert_eq!(stock.try_take(SMALL_SIZE + 512).map(|buffer| buffer.len()), Some(66048));
        stock.give(taken.pop().expect("it was taken"));
        assert_eq!(stock.try_take(SMALL_SIZE).map(|buffer| buffer.len()), Some(SMALL_SIZE));
    }
}
