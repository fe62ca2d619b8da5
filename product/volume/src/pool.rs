//! The memory that the engine names: record buffers, pages, and the memory of requests.
//!
//! Record buffers and pages are one allocation, so that the device pins it once. Host data is
//! copied once, into the record that it will be written from, each block right after its checksum
//! was taken, while it is in the first-level cache.
//!
//! Invariants:
//! - host memory is named only while its request is in the table of jobs, which owns it;
//! - no reference into a buffer is kept while the device may write to it.

use crate::arena::Arena;
use coulter_device::Region;
use coulter_engine::{BufferRef, Buffers, PageRef, RECORD_BLOCKS, RecordRef, Target};
use coulter_format::checksum::{self, Kind};
use coulter_format::{BLOCK_SIZE, Block, Lba};
use std::io;
use std::ops::Range;

/// Memory of a request, as the engine may name it.
#[derive(Clone, Copy, Debug)]
struct HostMemory {
    start: *mut u8,
    length: usize,
}

const NOTHING: HostMemory = HostMemory { start: std::ptr::null_mut(), length: 0 };

/// All memory that device commands use.
pub(crate) struct Pool {
    arena: Arena,
    record_count: usize,
    page_count: usize,
    host: Vec<HostMemory>,
    /// By name, for requests that want to know which blocks are unmapped: a bit for each that is.
    absent: Vec<Option<Absent>>,
}

/// Which blocks of a request are unmapped.
#[derive(Debug)]
pub(crate) struct Absent(Vec<u64>);

impl Absent {
    /// Whether this block of the request is unmapped.
    pub(crate) fn contains(&self, block: usize) -> bool {
        self.0[block / 64] >> (block % 64) & 1 == 1
    }
}

// SAFETY: the pointers lead to memory of requests, whose owners let the loop's thread use it.
unsafe impl Send for Pool {}

impl Pool {
    /// Buffers for so many records and pages.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub(crate) fn new(record_count: u16, page_count: u16) -> io::Result<Pool> {
        let (record_count, page_count) = (usize::from(record_count), usize::from(page_count));
        let blocks = record_count * RECORD_BLOCKS + page_count;
        let arena = Arena::new(blocks * BLOCK_SIZE)?;
        Ok(Pool { arena, record_count, page_count, host: Vec::new(), absent: Vec::new() })
    }

    /// The memory for the device to pin.
    pub(crate) fn region(&self) -> Region {
        Region { start: self.arena.start(), length: self.arena.length() }
    }

    /// Names memory of a request.
    ///
    /// # Safety
    /// The memory stays valid, and its owner leaves it to the pool, until it is named anew or the
    /// name is used no more.
    pub(crate) unsafe fn name(&mut self, buffer: BufferRef, start: *mut u8, length: usize) {
        let index = buffer.0 as usize;
        if self.host.len() <= index {
            self.host.resize(index + 1, NOTHING);
        }
        self.host[index] = HostMemory { start, length };
    }

    /// Notes from now on which blocks of this request are unmapped.
    pub(crate) fn watch(&mut self, buffer: BufferRef, blocks: usize) {
        let index = buffer.0 as usize;
        if self.absent.len() <= index {
            self.absent.resize_with(index + 1, || None);
        }
        self.absent[index] = Some(Absent(vec![0; blocks.div_ceil(64)]));
    }

    /// What was noted, if that was asked for.
    pub(crate) fn take_absent(&mut self, buffer: BufferRef) -> Option<Absent> {
        self.absent.get_mut(buffer.0 as usize)?.take()
    }

    /// The memory of a device command over `count` blocks.
    pub(crate) fn target(&self, target: Target, count: u32) -> *mut u8 {
        match target {
            Target::Request { buffer, block } => self.host_blocks(buffer, block, count as usize),
            Target::Record(record) => {
                assert!(count as usize <= RECORD_BLOCKS, "a command stays inside its record");
                let offset = self.record_range(record).start * BLOCK_SIZE;
                self.arena.start().wrapping_add(offset)
            }
            Target::RecordPart { record, block } => {
                let end = block as usize + count as usize;
                assert!(end <= RECORD_BLOCKS, "a command stays inside its record");
                let first = self.record_range(record).start + block as usize;
                self.arena.start().wrapping_add(first * BLOCK_SIZE)
            }
            Target::Page(page) => {
                assert_eq!(count, 1, "a page is one block");
                let offset = self.page_index(page) * BLOCK_SIZE;
                self.arena.start().wrapping_add(offset)
            }
        }
    }

    /// The first of `count` blocks of host memory, which holds all of them.
    fn host_blocks(&self, buffer: BufferRef, first: u32, count: usize) -> *mut u8 {
        let memory = self.host[buffer.0 as usize];
        let start = first as usize * BLOCK_SIZE;
        assert!(start + count * BLOCK_SIZE <= memory.length, "host memory is not left");
        // In bounds, as just asserted.
        memory.start.wrapping_add(start)
    }

    fn host_slice(&self, buffer: BufferRef, first: u32, count: usize) -> &[Block] {
        let start = self.host_blocks(buffer, first, count);
        // SAFETY: in bounds; by the promise to `name` the memory is valid and nobody writes to it
        // now: the device's commands on it have completed. A block has no alignment.
        unsafe { std::slice::from_raw_parts(start.cast::<Block>(), count) }
    }

    fn host_slice_mut(&mut self, buffer: BufferRef, first: u32, count: usize) -> &mut [Block] {
        let start = self.host_blocks(buffer, first, count);
        // SAFETY: as in `host_slice`; and only the pool uses the memory now.
        unsafe { std::slice::from_raw_parts_mut(start.cast::<Block>(), count) }
    }

    fn record_range(&self, record: RecordRef) -> Range<usize> {
        let index = usize::from(record.0);
        assert!(index < self.record_count, "the engine names its own records");
        index * RECORD_BLOCKS..(index + 1) * RECORD_BLOCKS
    }

    fn page_index(&self, page: PageRef) -> usize {
        let index = usize::from(page.0);
        assert!(index < self.page_count, "the engine names its own pages");
        self.record_count * RECORD_BLOCKS + index
    }

    fn blocks(&self, range: Range<usize>) -> &[Block] {
        let bytes = range.start * BLOCK_SIZE..range.end * BLOCK_SIZE;
        assert!(bytes.end <= self.arena.length(), "the arena is not left");
        let start = self.arena.start().wrapping_add(bytes.start);
        // SAFETY: in bounds and initialised; the engine looks at a buffer only while no device
        // command fills it.
        unsafe { std::slice::from_raw_parts(start.cast::<Block>(), range.len()) }
    }

    fn blocks_mut(&mut self, range: Range<usize>) -> &mut [Block] {
        assert!(range.end * BLOCK_SIZE <= self.arena.length(), "the arena is not left");
        let start = self.arena.start().wrapping_add(range.start * BLOCK_SIZE);
        // SAFETY: in bounds; the engine writes to a buffer only while no device command uses it,
        // and `&mut self` excludes every other reference.
        unsafe { std::slice::from_raw_parts_mut(start.cast::<Block>(), range.len()) }
    }
}

impl Buffers for Pool {
    #[inline]
    fn stage(
        &mut self,
        source: BufferRef,
        source_block: u32,
        target: RecordRef,
        payload_block: u32,
        lba: Lba,
        checksums: &mut [u32],
    ) {
        let count = checksums.len();
        let source = self.host_blocks(source, source_block, count);
        // SAFETY: in bounds; the memory is valid and nobody writes to it while its write request
        // is under way. It is not part of the arena.
        let source = unsafe { std::slice::from_raw_parts(source.cast::<Block>(), count) };
        let start = self.record_range(target).start + 1 + payload_block as usize;
        assert!(payload_block as usize + count < RECORD_BLOCKS, "a payload stays in its record");
        let target = self.blocks_mut(start..start + count);
        for (index, (from, to)) in source.iter().zip(target).enumerate() {
            // Checksum first: it fetches the block for the copy. The other way round the checksum
            // would wait for the copy's stores, which takes half as long again. Nobody can change
            // the block in between, for the request owns or borrows it.
            checksums[index] = checksum::block(Kind::Data, lba.0 + index as u64, from);
            to.copy_from_slice(from);
        }
    }

    #[inline]
    fn verify(
        &mut self,
        buffer: BufferRef,
        first_block: u32,
        lba: Lba,
        expected: &[u32],
    ) -> Result<(), u32> {
        let blocks = self.host_slice(buffer, first_block, expected.len());
        for (index, (block, expected)) in blocks.iter().zip(expected).enumerate() {
            if checksum::block(Kind::Data, lba.0 + index as u64, block) != *expected {
                return Err(index as u32);
            }
        }
        Ok(())
    }

    fn zero(&mut self, buffer: BufferRef, first_block: u32, count: u32) {
        self.host_slice_mut(buffer, first_block, count as usize).as_flattened_mut().fill(0);
        self.absent(buffer, first_block, count);
    }

    fn absent(&mut self, buffer: BufferRef, first_block: u32, count: u32) {
        let Some(Some(absent)) = self.absent.get_mut(buffer.0 as usize) else { return };
        for block in first_block as usize..(first_block + count) as usize {
            absent.0[block / 64] |= 1 << (block % 64);
        }
    }

    fn relocate(
        &mut self,
        source: RecordRef,
        source_block: u32,
        target: RecordRef,
        payload_block: u32,
    ) {
        assert_ne!(source, target, "a block moves to another record");
        let (from, to) = (self.record_range(source), self.record_range(target));
        let (from, to) =
            (from.start + source_block as usize, to.start + 1 + payload_block as usize);
        assert!((source_block as usize) < RECORD_BLOCKS, "the source is inside its record");
        assert!(1 + (payload_block as usize) < RECORD_BLOCKS, "the target is inside its record");
        let start = self.arena.start();
        let from = start.wrapping_add(from * BLOCK_SIZE);
        let to = start.wrapping_add(to * BLOCK_SIZE);
        // SAFETY: both blocks are inside the arena and lie in different records.
        unsafe { std::ptr::copy_nonoverlapping(from, to, BLOCK_SIZE) }
    }

    fn carry(&mut self, source: RecordRef, first: u32, count: u32, target: RecordRef) {
        assert_ne!(source, target, "blocks are carried to another record");
        assert!((first + count) as usize <= RECORD_BLOCKS, "the source is inside its record");
        let (from, to) = (self.record_range(source), self.record_range(target));
        let start = self.arena.start();
        let from = start.wrapping_add((from.start + first as usize) * BLOCK_SIZE);
        let to = start.wrapping_add(to.start * BLOCK_SIZE);
        // SAFETY: both stretches are inside the arena and lie in different records.
        unsafe { std::ptr::copy_nonoverlapping(from, to, count as usize * BLOCK_SIZE) }
    }

    fn record(&self, record: RecordRef) -> &[Block] {
        self.blocks(self.record_range(record))
    }

    fn record_mut(&mut self, record: RecordRef) -> &mut [Block] {
        self.blocks_mut(self.record_range(record))
    }

    fn page(&self, page: PageRef) -> &Block {
        let index = self.page_index(page);
        &self.blocks(index..index + 1)[0]
    }

    fn page_mut(&mut self, page: PageRef) -> &mut Block {
        let index = self.page_index(page);
        &mut self.blocks_mut(index..index + 1)[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    const HOST: BufferRef = BufferRef(5);

    fn pool_with(host: &mut Buffer) -> Pool {
        let mut pool = Pool::new(3, 2).expect("there is room");
        // SAFETY: the buffer outlives the pool's use of it in each test.
        unsafe { pool.name(HOST, host.as_mut_pointer(), host.len()) };
        pool
    }

    /// The last block of a payload.
    const LAST: u32 = RECORD_BLOCKS as u32 - 2;

    #[test]
    fn staging_copies_and_checksums_each_block_for_its_own_address() {
        let mut host = Buffer::zeroed(3 * BLOCK_SIZE);
        host[BLOCK_SIZE..2 * BLOCK_SIZE].fill(7);
        host[2 * BLOCK_SIZE..].fill(8);
        let mut pool = pool_with(&mut host);
        let mut checksums = [0; 2];
        pool.stage(HOST, 1, RecordRef(1), LAST - 1, Lba(40), &mut checksums);
        let record = pool.record(RecordRef(1));
        assert_eq!((record[RECORD_BLOCKS - 2][0], record[RECORD_BLOCKS - 1][4095]), (7, 8));
        assert_eq!(checksums[0], checksum::block(Kind::Data, 40, &[7; BLOCK_SIZE]));
        assert_eq!(checksums[1], checksum::block(Kind::Data, 41, &[8; BLOCK_SIZE]));
        assert_eq!(pool.verify(HOST, 1, Lba(40), &checksums), Ok(()));
        assert_eq!(pool.verify(HOST, 1, Lba(40), &[checksums[0], 0]), Err(1));
        pool.zero(HOST, 2, 1);
        assert_eq!(pool.verify(HOST, 1, Lba(40), &checksums), Err(1));
    }

    #[test]
    fn records_and_pages_do_not_overlap() {
        let mut host = Buffer::zeroed(BLOCK_SIZE);
        let mut pool = pool_with(&mut host);
        for record in 0..3 {
            pool.record_mut(RecordRef(record)).as_flattened_mut().fill(1 + record as u8);
        }
        for page in 0..2 {
            pool.page_mut(PageRef(page)).fill(10 + page as u8);
        }
        for record in 0..3 {
            let bytes = pool.record(RecordRef(record)).as_flattened();
            assert!(bytes.iter().all(|byte| *byte == 1 + record as u8));
        }
        assert_eq!((pool.page(PageRef(0))[0], pool.page(PageRef(1))[4095]), (10, 11));
        pool.relocate(RecordRef(0), RECORD_BLOCKS as u32 - 1, RecordRef(2), LAST);
        assert_eq!(pool.record(RecordRef(2))[RECORD_BLOCKS - 1], [1; BLOCK_SIZE]);
        pool.carry(RecordRef(0), LAST, 2, RecordRef(1));
        let carried = pool.record(RecordRef(1));
        assert_eq!((carried[0][0], carried[1][4095], carried[2][0]), (1, 1, 2));
    }

    #[test]
    fn the_device_is_given_addresses_of_whole_blocks() {
        let mut host = Buffer::zeroed(2 * BLOCK_SIZE);
        let pool = pool_with(&mut host);
        let arena = pool.region();
        let record = pool.target(Target::Record(RecordRef(2)), RECORD_BLOCKS as u32);
        assert_eq!(record as usize - arena.start as usize, 2 * RECORD_BLOCKS * BLOCK_SIZE);
        let page = pool.target(Target::Page(PageRef(1)), 1);
        assert_eq!(page as usize - arena.start as usize, (3 * RECORD_BLOCKS + 1) * BLOCK_SIZE);
        let memory = pool.target(Target::Request { buffer: HOST, block: 1 }, 1);
        assert_eq!(memory as usize - host.as_mut_pointer() as usize, BLOCK_SIZE);
    }

    #[test]
    #[should_panic(expected = "host memory is not left")]
    fn a_command_past_the_end_of_host_memory_is_a_bug() {
        let mut host = Buffer::zeroed(2 * BLOCK_SIZE);
        let pool = pool_with(&mut host);
        pool.target(Target::Request { buffer: HOST, block: 1 }, 2);
    }
}
