//! The engine's buffers when all host data is zeros.
//!
//! Invariants:
//! - a block of a record buffer that stands for host data holds zeros, so it need not be copied,
//!   stored or read;
//! - its checksum is that of zeros at its address, so verification means what it always does.

use coulter_engine::{BufferRef, Buffers, PageRef, RECORD_BLOCKS, RecordRef};
use coulter_format::checksum::{self, Kind};
use coulter_format::{BLOCK_SIZE, Block, Lba};

const ZEROS: Block = [0; BLOCK_SIZE];

/// Blocks of host memory that requests with data take turns in: 4 MiB, more than a core's caches
/// of the first level hold.
const HOST_BLOCKS: usize = 1024;

/// What is done with host data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Neither copied nor checksummed: what remains is the engine alone.
    Ignored,
    /// Copied and checksummed on its way in, checksummed on its way out.
    Handled,
}

/// A set of blocks in one record buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockSet([u64; RECORD_BLOCKS.div_ceil(64)]);

impl BlockSet {
    pub(super) fn contains(&self, block: usize) -> bool {
        self.0[block / 64] & (1 << (block % 64)) != 0
    }

    pub(super) fn insert(&mut self, block: usize) {
        self.0[block / 64] |= 1 << (block % 64);
    }

    pub(super) fn remove(&mut self, block: usize) {
        self.0[block / 64] &= !(1 << (block % 64));
    }
}

/// A record buffer.
pub(super) struct RecordMemory {
    pub(super) blocks: Vec<Block>,
    /// Blocks that stand for host data in the record being filled.
    pub(super) host: BlockSet,
    /// Blocks that may hold something else than zeros.
    pub(super) filled: BlockSet,
}

impl RecordMemory {
    fn new() -> RecordMemory {
        let blocks = vec![ZEROS; RECORD_BLOCKS];
        RecordMemory { blocks, host: BlockSet::default(), filled: BlockSet::default() }
    }

    /// Makes sure that a block holds zeros.
    pub(super) fn empty(&mut self, block: usize) {
        if self.filled.contains(block) {
            self.blocks[block] = ZEROS;
            self.filled.remove(block);
        }
    }
}

/// All buffers.
pub(crate) struct Memory {
    pub(super) records: Vec<RecordMemory>,
    pub(super) pages: Vec<Block>,
    hosts: Vec<Block>,
    pub(super) data: Data,
    /// CRC-32C of a block of zeros, before it is bound to an address.
    zeros_checksum: u32,
}

impl Memory {
    pub(super) fn new(record_count: u16, page_count: u16) -> Memory {
        Memory {
            records: (0..record_count).map(|_| RecordMemory::new()).collect(),
            pages: vec![ZEROS; page_count.into()],
            hosts: vec![ZEROS; HOST_BLOCKS],
            data: Data::Ignored,
            zeros_checksum: checksum::crc32c(&ZEROS),
        }
    }

    /// The name of host memory for a request of `count` blocks.
    pub(super) fn host(&self, number: u64, count: u32) -> BufferRef {
        let places = HOST_BLOCKS as u64 / u64::from(count);
        BufferRef((number % places) as u32 * count)
    }

    fn checksum_of_zeros(&self, lba: Lba) -> u32 {
        self.zeros_checksum ^ binding(lba)
    }

    fn record_memory(&mut self, record: RecordRef) -> &mut RecordMemory {
        &mut self.records[usize::from(record.0)]
    }
}

/// What a checksum of host data at this address differs by from the bare CRC. The same mix as in
/// the format, which a test compares it with.
fn binding(lba: Lba) -> u32 {
    let mut mixed = lba.0 ^ ((Kind::Data as u64) << 56) ^ 0x9e37_79b9_7f4a_7c15;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 32) as u32 ^ mixed as u32
}

impl Buffers for Memory {
    fn stage(
        &mut self,
        source: BufferRef,
        source_block: u32,
        target: RecordRef,
        payload_block: u32,
        lba: Lba,
        checksums: &mut [u32],
    ) {
        for (offset, sum) in checksums.iter_mut().enumerate() {
            let lba = Lba(lba.0 + offset as u64);
            let at = 1 + payload_block as usize + offset;
            let record = &mut self.records[usize::from(target.0)];
            record.host.insert(at);
            record.empty(at);
            *sum = match self.data {
                Data::Ignored => self.checksum_of_zeros(lba),
                Data::Handled => {
                    let host = (source.0 + source_block) as usize + offset;
                    record.blocks[at] = self.hosts[host % HOST_BLOCKS];
                    checksum::block(Kind::Data, lba.0, &record.blocks[at])
                }
            };
        }
    }

    fn verify(
        &mut self,
        buffer: BufferRef,
        first_block: u32,
        lba: Lba,
        expected: &[u32],
    ) -> Result<(), u32> {
        for (offset, sum) in expected.iter().enumerate() {
            let lba = Lba(lba.0 + offset as u64);
            let seen = match self.data {
                Data::Ignored => self.checksum_of_zeros(lba),
                Data::Handled => {
                    let host = (buffer.0 + first_block) as usize + offset;
                    checksum::block(Kind::Data, lba.0, &self.hosts[host % HOST_BLOCKS])
                }
            };
            if seen != *sum {
                return Err(offset as u32);
            }
        }
        Ok(())
    }

    fn zero(&mut self, _buffer: BufferRef, _first_block: u32, _count: u32) {}

    fn absent(&mut self, _buffer: BufferRef, _first_block: u32, _count: u32) {}

    fn relocate(
        &mut self,
        source: RecordRef,
        source_block: u32,
        target: RecordRef,
        payload_block: u32,
    ) {
        let at = 1 + payload_block as usize;
        let from = &self.records[usize::from(source.0)];
        if from.filled.contains(source_block as usize) {
            let block = from.blocks[source_block as usize];
            let target = self.record_memory(target);
            target.blocks[at] = block;
            target.filled.insert(at);
            return;
        }
        if self.data == Data::Handled {
            let block = from.blocks[source_block as usize];
            self.record_memory(target).blocks[at] = block;
        }
        let target = self.record_memory(target);
        target.empty(at);
        target.host.insert(at);
    }

    fn carry(&mut self, source: RecordRef, first: u32, count: u32, target: RecordRef) {
        for offset in 0..count as usize {
            let from = first as usize + offset;
            let source = &self.records[usize::from(source.0)];
            let block = source.filled.contains(from).then(|| source.blocks[from]);
            let target = self.record_memory(target);
            match block {
                Some(block) => {
                    target.blocks[offset] = block;
                    target.filled.insert(offset);
                }
                None => target.empty(offset),
            }
        }
    }

    fn record(&self, record: RecordRef) -> &[Block] {
        &self.records[usize::from(record.0)].blocks
    }

    fn record_mut(&mut self, record: RecordRef) -> &mut [Block] {
        &mut self.records[usize::from(record.0)].blocks
    }

    fn page(&self, page: PageRef) -> &Block {
        &self.pages[usize::from(page.0)]
    }

    fn page_mut(&mut self, page: PageRef) -> &mut Block {
        &mut self.pages[usize::from(page.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_zeros_is_the_format_s() {
        let memory = Memory::new(1, 1);
        for lba in [0, 1, 511, 1 << 40, (1 << 63) - 1] {
            let expected = checksum::block(Kind::Data, lba, &ZEROS);
            assert_eq!(memory.checksum_of_zeros(Lba(lba)), expected);
        }
    }

    #[test]
    fn both_ways_of_staging_give_the_same_checksums() {
        let mut memory = Memory::new(1, 1);
        let mut sums = [[0; 3]; 2];
        for (sums, data) in sums.iter_mut().zip([Data::Ignored, Data::Handled]) {
            memory.data = data;
            memory.stage(BufferRef(0), 0, RecordRef(0), 5, Lba(9), sums);
            assert_eq!(memory.verify(BufferRef(0), 0, Lba(9), sums), Ok(()));
        }
        assert_eq!(sums[0], sums[1]);
        sums[0][1] ^= 1;
        assert_eq!(memory.verify(BufferRef(0), 0, Lba(9), &sums[0]), Err(1));
    }

    #[test]
    fn a_block_that_held_metadata_is_emptied_before_it_stands_for_host_data() {
        let mut memory = Memory::new(2, 1);
        memory.records[0].blocks[3] = [9; BLOCK_SIZE];
        memory.records[0].filled.insert(3);
        memory.relocate(RecordRef(0), 3, RecordRef(1), 0);
        assert_eq!(memory.record(RecordRef(1))[1], [9; BLOCK_SIZE]);
        memory.stage(BufferRef(0), 0, RecordRef(1), 0, Lba(0), &mut [0]);
        assert_eq!(memory.record(RecordRef(1))[1], ZEROS);
        assert!(memory.records[1].host.contains(1));
    }
}
