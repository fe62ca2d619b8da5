//! Buffers that are used again, so that serving a request allocates nothing in steady state.
//!
//! A pool belongs to one connection, mount or queue and therefore to one client: what an earlier
//! request left in a buffer can at most be seen by the client that put it there, and not even by
//! that one, because a buffer is only sent after it was filled whole.
//!
//! A client elsewhere is served with buffers made *on demand*. Where the kernel is the client, they
//! are a *stock*, all of it there from the start, and no more later: when the kernel is short of
//! memory it writes dirty pages to this very device, in the largest requests and as many as are
//! taken. Memory that were asked for then would have to be freed by what waits for it. So a request
//! that finds no buffer stays with the kernel, which has its data, until another is complete.
//!
//! # Invariants
//! - Sizes are powers of two from 4 KiB to `REQUEST_SIZE_MAX`, one free list for each.
//! - On demand: the bytes held never exceed the limit if [`BufferPool::can_take`] is asked first,
//!   and those that lie idle never exceed theirs.
//! - In stock: every page was touched when the pool was made; where memory is locked on touch, all
//!   of it is. A request takes the smallest buffer that it fits in, so that the small ones are
//!   never short for want of large ones.

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
pub struct BufferPool {
    idle: [Vec<Buffer>; CLASS_COUNT],
    idle_bytes: usize,
    held_bytes: usize,
    supply: Supply,
}

enum Supply {
    OnDemand {
        held_bytes_max: usize,
        idle_bytes_max: usize,
    },
    /// Buffers of each class that there are.
    Stock([usize; CLASS_COUNT]),
}

impl BufferPool {
    /// A pool that hands out at most `held_bytes_max` at a time, and keeps at most `idle_bytes_max`
    /// of what nobody uses.
    pub fn on_demand(held_bytes_max: usize, idle_bytes_max: usize) -> BufferPool {
        let supply = Supply::OnDemand { held_bytes_max, idle_bytes_max };
        BufferPool { idle: Default::default(), idle_bytes: 0, held_bytes: 0, supply }
    }

    /// A pool with a fixed number of buffers of each of these sizes, and no others.
    pub fn stocked(sizes_and_counts: &[(usize, usize)]) -> BufferPool {
        let mut counts = [0; CLASS_COUNT];
        let mut idle: [Vec<Buffer>; CLASS_COUNT] = Default::default();
        let mut idle_bytes = 0;
        for &(size, count) in sizes_and_counts {
            let class = class_of(size);
            idle[class].extend((0..count).map(|_| touched(class_size(class))));
            counts[class] += count;
            idle_bytes += count * class_size(class);
        }
        BufferPool { idle, idle_bytes, held_bytes: 0, supply: Supply::Stock(counts) }
    }

    /// Whether a request of `length` bytes may have a buffer now. One that is larger than all that
    /// are in stock may if nothing else is held.
    pub fn can_take(&self, length: usize) -> bool {
        if length == 0 {
            return true;
        }
        let class = class_of(length);
        match &self.supply {
            Supply::OnDemand { held_bytes_max, .. } => {
                self.held_bytes + class_size(class) <= *held_bytes_max
            }
            Supply::Stock(counts) => {
                let is_beyond_stock = counts[class..].iter().all(|count| *count == 0);
                self.smallest_idle(class).is_some() || (is_beyond_stock && self.held_bytes == 0)
            }
        }
    }

    /// A buffer of `length` bytes. Its content is unspecified (but initialised).
    ///
    /// # Panics
    /// When `length` exceeds [`REQUEST_SIZE_MAX`].
    pub fn take(&mut self, length: usize) -> Buffer {
        if length == 0 {
            return Buffer::empty();
        }
        let class = class_of(length);
        let found = match self.supply {
            // A larger one would count for more than was asked for.
            Supply::OnDemand { .. } => Some(class),
            Supply::Stock(_) => self.smallest_idle(class),
        };
        let mut buffer = match found.and_then(|class| self.idle[class].pop()) {
            Some(buffer) => {
                self.idle_bytes -= buffer.capacity();
                buffer
            }
            None => Buffer::zeroed(class_size(class)),
        };
        self.held_bytes += buffer.capacity();
        buffer.set_length(length);
        buffer
    }

    /// Takes a buffer back that [`BufferPool::take`] gave. It is freed if it is too many.
    pub fn give(&mut self, buffer: Buffer) {
        let capacity = buffer.capacity();
        if capacity == 0 {
            return;
        }
        assert!(self.held_bytes >= capacity, "buffers come back to where they are from");
        self.held_bytes -= capacity;
        let class = class_of(capacity);
        let is_kept = match &self.supply {
            Supply::OnDemand { idle_bytes_max, .. } => {
                self.idle_bytes + capacity <= *idle_bytes_max
            }
            Supply::Stock(counts) => self.idle[class].len() < counts[class],
        };
        if is_kept {
            self.idle_bytes += capacity;
            self.idle[class].push(buffer);
        }
    }

    /// Bytes of all buffers, those that lie idle included.
    pub fn bytes(&self) -> usize {
        self.held_bytes + self.idle_bytes
    }

    /// Bytes of the buffers that have to be made before `count` of `length` bytes can be taken,
    /// where they are made on demand.
    pub fn growth(&self, length: usize, count: usize) -> usize {
        if length == 0 {
            return 0;
        }
        assert!(matches!(self.supply, Supply::OnDemand { .. }), "a stock makes none");
        let class = class_of(length);
        count.saturating_sub(self.idle[class].len()) * class_size(class)
    }

    /// Frees the buffers that lie idle.
    pub fn drop_idle(&mut self) {
        let idle = self.idle.iter_mut().flat_map(|class| class.drain(..));
        let freed: usize = idle.map(|buffer| buffer.capacity()).sum();
        assert_eq!(freed, self.idle_bytes, "each idle buffer was counted");
        self.idle_bytes = 0;
        assert!(self.bytes() == self.held_bytes, "what hosts have stays");
    }

    /// Bytes of buffers that were taken and have not come back.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The smallest class from `class` on of which one lies idle.
    fn smallest_idle(&self, class: usize) -> Option<usize> {
        (class..CLASS_COUNT).find(|class| !self.idle[*class].is_empty())
    }
}

fn touched(length: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(length);
    touch(&mut buffer);
    buffer
}

/// Has the pages of zeroed memory there, which alone may be only promised.
pub fn touch(zeroed: &mut [u8]) {
    // Or the compiler would know that they are zero, and leave it out.
    std::hint::black_box(&mut *zeroed).fill(0);
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
        let mut pool = BufferPool::on_demand(1 << 20, 1 << 20);
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
        let mut pool = BufferPool::on_demand(64 << 20, 0);
        for length in [1, 512, 4096, 4097, 65536, 65537, 1 << 20, (1 << 20) + 1, 32 << 20] {
            let buffer = pool.take(length);
            assert_eq!(buffer.len(), length);
            assert_eq!(buffer.capacity(), length.next_power_of_two().max(4096));
            pool.give(buffer);
        }
        assert_eq!(pool.take(0).capacity(), 0);
    }

    #[test]
    fn growth_tells_what_is_taken_beyond_the_idle_buffers() {
        let mut pool = BufferPool::on_demand(1 << 20, 1 << 20);
        assert_eq!((pool.growth(512, 2), pool.growth(0, 2), pool.bytes()), (8192, 0, 0));
        let buffer = pool.take(4096);
        pool.give(buffer);
        assert_eq!((pool.growth(512, 2), pool.growth(4097, 1), pool.bytes()), (4096, 8192, 4096));
        pool.drop_idle();
        assert_eq!((pool.growth(4096, 1), pool.bytes()), (4096, 0));
    }

    #[test]
    fn held_and_idle_bytes_are_bounded() {
        let mut pool = BufferPool::on_demand(16384, 8192);
        let mut buffers = Vec::new();
        while pool.can_take(4096) {
            buffers.push(pool.take(4096));
        }
        assert_eq!((buffers.len(), pool.held_bytes()), (4, 16384));
        buffers.drain(..).for_each(|buffer| pool.give(buffer));
        assert_eq!((pool.idle_bytes, pool.held_bytes()), (8192, 0));
    }

    /// The addresses of everything that `pool` has, once and again, whatever is asked for.
    fn addresses(pool: &mut BufferPool, length: usize) -> Vec<usize> {
        let mut taken = Vec::new();
        while pool.can_take(length) {
            taken.push(pool.take(length));
        }
        let mut addresses: Vec<usize> =
            taken.iter_mut().map(|buffer| buffer.as_mut_pointer() as usize).collect();
        taken.into_iter().for_each(|buffer| pool.give(buffer));
        addresses.sort_unstable();
        addresses
    }

    #[test]
    fn a_stock_makes_nothing_and_loses_nothing() {
        let mut pool = BufferPool::stocked(&[(4096, 3), (1 << 16, 2), (1 << 20, 2)]);
        let all = addresses(&mut pool, 512);
        assert_eq!(all.len(), 7, "small requests may have the large ones once theirs are out");
        let large = addresses(&mut pool, (1 << 16) + 1);
        assert_eq!(large.len(), 2, "large ones wait for each other");
        assert!(large.iter().all(|address| all.contains(address)));
        assert_eq!(addresses(&mut pool, 512), all);
        assert_eq!(pool.held_bytes(), 0);
    }

    #[test]
    fn a_stock_is_memory_and_not_a_promise() {
        let mut pool = BufferPool::stocked(&[(1 << 20, 8)]);
        let mut buffers: Vec<Buffer> = (0..8).map(|_| pool.take(1 << 20)).collect();
        for buffer in &mut buffers {
            let start = buffer.as_mut_pointer() as u64;
            let absent = (start..start + (1 << 20)).step_by(4096).find(|page| !is_there(*page));
            assert_eq!(absent, None, "a page was only promised");
        }
        let promised = vec![0_u8; 64 << 20];
        let middle = promised.as_ptr() as u64 + (32 << 20);
        assert!(!is_there(middle), "it tells the two apart");
    }

    /// Whether the page at `address` has memory, as the kernel says.
    fn is_there(address: u64) -> bool {
        let pages = std::fs::File::open("/proc/self/pagemap").expect("Linux has it");
        let mut entry = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&pages, &mut entry, address / 4096 * 8)
            .expect("an entry for each page");
        u64::from_le_bytes(entry) >> 63 == 1
    }

    #[test]
    fn a_request_takes_the_smallest_of_the_stock_that_it_fits_in() {
        let mut pool = BufferPool::stocked(&[(4096, 1), (1 << 16, 1)]);
        let (first, second) = (pool.take(4096), pool.take(4096));
        assert_eq!((first.capacity(), second.capacity()), (4096, 1 << 16));
        assert!(!pool.can_take(512));
        pool.give(first);
        assert!(pool.can_take(512) && !pool.can_take(4097));
    }

    #[test]
    fn a_request_beyond_the_stock_is_served_alone() {
        let mut pool = BufferPool::stocked(&[(4096, 1)]);
        let small = pool.take(4096);
        assert!(!pool.can_take(1 << 20));
        pool.give(small);
        assert!(pool.can_take(1 << 20));
        let large = pool.take(1 << 20);
        assert!(!pool.can_take(1 << 20));
        pool.give(large);
        assert_eq!((pool.held_bytes(), pool.idle_bytes), (0, 4096), "it is not kept");
    }
}
