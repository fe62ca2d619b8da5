//! The engine's buffers, in plain memory.

use coulter_engine::{BufferRef, Buffers, PageRef, RECORD_BLOCKS, RecordRef};
use coulter_format::checksum::{self, Kind};
use coulter_format::{BLOCK_SIZE, Block, Lba};
use std::collections::BTreeMap;

/// A host buffer, and which of its blocks the engine said to be unmapped.
struct Host {
    blocks: Vec<Block>,
    absent: Vec<bool>,
}

/// Record, page and host buffers.
pub struct Memory {
    records: Vec<Vec<Block>>,
    pages: Vec<Block>,
    hosts: BTreeMap<u32, Host>,
    next_host: u32,
}

impl Memory {
    /// Buffers as a configuration asks for.
    pub fn new(record_count: u16, page_count: u16) -> Memory {
        Memory {
            records: vec![vec![[0; BLOCK_SIZE]; RECORD_BLOCKS]; record_count.into()],
            pages: vec![[0; BLOCK_SIZE]; page_count.into()],
            hosts: BTreeMap::new(),
            next_host: 0,
        }
    }

    /// A new host buffer.
    pub fn add_host(&mut self, blocks: Vec<Block>) -> BufferRef {
        self.next_host += 1;
        let absent = vec![false; blocks.len()];
        self.hosts.insert(self.next_host, Host { blocks, absent });
        BufferRef(self.next_host)
    }

    /// Takes a host buffer back.
    pub fn take_host(&mut self, buffer: BufferRef) -> Vec<Block> {
        self.take_host_and_absent(buffer).0
    }

    /// Takes a host buffer back, and for each block whether the engine said that it is unmapped.
    pub fn take_host_and_absent(&mut self, buffer: BufferRef) -> (Vec<Block>, Vec<bool>) {
        let Host { blocks, absent } = self.hosts.remove(&buffer.0).expect("the buffer exists");
        (blocks, absent)
    }

    /// A host buffer's blocks.
    pub fn host_mut(&mut self, buffer: BufferRef) -> &mut [Block] {
        &mut self.hosts.get_mut(&buffer.0).expect("the buffer exists").blocks
    }
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
        let host = &self.hosts[&source.0].blocks;
        for (offset, sum) in checksums.iter_mut().enumerate() {
            let block = host[source_block as usize + offset];
            *sum = checksum::block(Kind::Data, lba.0 + offset as u64, &block);
            self.records[usize::from(target.0)][1 + payload_block as usize + offset] = block;
        }
    }

    fn verify(
        &mut self,
        buffer: BufferRef,
        first_block: u32,
        lba: Lba,
        expected: &[u32],
    ) -> Result<(), u32> {
        let host = &self.hosts[&buffer.0].blocks;
        for (offset, sum) in expected.iter().enumerate() {
            let block = &host[first_block as usize + offset];
            if checksum::block(Kind::Data, lba.0 + offset as u64, block) != *sum {
                return Err(offset as u32);
            }
        }
        Ok(())
    }

    fn zero(&mut self, buffer: BufferRef, first_block: u32, count: u32) {
        let range = first_block as usize..(first_block + count) as usize;
        self.host_mut(buffer)[range].fill([0; BLOCK_SIZE]);
        self.absent(buffer, first_block, count);
    }

    fn absent(&mut self, buffer: BufferRef, first_block: u32, count: u32) {
        let host = self.hosts.get_mut(&buffer.0).expect("the buffer exists");
        for absent in &mut host.absent[first_block as usize..(first_block + count) as usize] {
            assert!(!*absent, "a block is said to be unmapped once");
            *absent = true;
        }
    }

    fn relocate(
        &mut self,
        source: RecordRef,
        source_block: u32,
        target: RecordRef,
        payload_block: u32,
    ) {
        let block = self.records[usize::from(source.0)][source_block as usize];
        self.records[usize::from(target.0)][1 + payload_block as usize] = block;
    }

    fn carry(&mut self, source: RecordRef, first: u32, count: u32, target: RecordRef) {
        for offset in 0..count as usize {
            let block = self.records[usize::from(source.0)][first as usize + offset];
            self.records[usize::from(target.0)][offset] = block;
        }
    }

    fn record(&self, record: RecordRef) -> &[Block] {
        &self.records[usize::from(record.0)]
    }

    fn record_mut(&mut self, record: RecordRef) -> &mut [Block] {
        &mut self.records[usize::from(record.0)]
    }

    fn page(&self, page: PageRef) -> &Block {
        &self.pages[usize::from(page.0)]
    }

    fn page_mut(&mut self, page: PageRef) -> &mut Block {
        &mut self.pages[usize::from(page.0)]
    }
}
