//! A file system that writes in place and keeps a journal of its metadata: ext4-like.
//!
//! ```text
//! | journal (a ring) | inode table and bitmaps | data |
//! ```
//! - A block gets its place when it is first written, next to the one before it where that is free,
//!   and keeps it.
//! - fsync: data in place, then one journal transaction: descriptor and the metadata blocks that
//!   changed, a flush, and the commit block with FUA.
//! - When half the journal is full, metadata goes to its own place, in ascending order.
//!
//! Left out: directories and extent trees as blocks of their own, data journalling, online discard
//! (off by default there, too), read-ahead.

use super::queue::Queue;
use super::{HostCounters, HostError, Layout};
use crate::drive::{Blocks, WriteOptions};
use crate::geometry::Geometry;
use crate::units::Ns;
use std::collections::{BTreeMap, BTreeSet};

/// Inodes in a block of the table, blocks that a bitmap block covers.
const INODES_PER_BLOCK: u32 = 16;
const BLOCKS_PER_BITMAP: u64 = 32_768;

#[derive(Debug)]
pub(super) struct Ext4 {
    journal_blocks: u64,
    journal_next: u64,
    /// Blocks written to the journal since metadata went to its place.
    journal_used: u64,
    table_blocks: u64,
    first_data: u64,
    used: Vec<bool>,
    used_count: u64,
    cursor: usize,
    files: BTreeMap<u32, Vec<Option<u32>>>,
    /// Metadata blocks that changed since the last transaction, and since they were written.
    changed: BTreeSet<u64>,
    unwritten: BTreeSet<u64>,
    counters: HostCounters,
}

impl Ext4 {
    pub(super) fn new(geometry: &Geometry) -> Ext4 {
        let blocks = geometry.host_blocks();
        // As mke2fs does in proportion: a journal of 1/64, an inode for each four blocks of data.
        let journal_blocks = (blocks / 64).clamp(16, 32_768);
        let table_blocks = (blocks / 64).max(4);
        let first_data = journal_blocks + table_blocks;
        Ext4 {
            journal_blocks,
            journal_next: 0,
            journal_used: 0,
            table_blocks,
            first_data,
            used: vec![false; (blocks - first_data) as usize],
            used_count: 0,
            cursor: 0,
            files: BTreeMap::new(),
            changed: BTreeSet::new(),
            unwritten: BTreeSet::new(),
            counters: HostCounters::default(),
        }
    }

    fn touch_inode(&mut self, file: u32) {
        let block = u64::from(file / INODES_PER_BLOCK) % (self.table_blocks - 1);
        self.changed.insert(self.journal_blocks + 1 + block);
    }

    fn touch_bitmap(&mut self, data_block: u64) {
        let block = data_block / BLOCKS_PER_BITMAP % (self.table_blocks - 1);
        self.changed.insert(self.journal_blocks + 1 + (self.table_blocks - 2 - block));
    }

    fn allocate(&mut self) -> Result<u32, HostError> {
        if self.used_count == self.used.len() as u64 {
            return Err(HostError::Full);
        }
        while self.used[self.cursor] {
            self.cursor = (self.cursor + 1) % self.used.len();
        }
        self.used[self.cursor] = true;
        self.used_count += 1;
        Ok(self.cursor as u32)
    }

    fn place(&mut self, file: u32, block: u32) -> Result<u64, HostError> {
        let blocks = self.files.entry(file).or_default();
        if blocks.len() <= block as usize {
            blocks.resize(block as usize + 1, None);
        }
        if let Some(place) = blocks[block as usize] {
            return Ok(self.first_data + u64::from(place));
        }
        let place = self.allocate()?;
        self.files.entry(file).or_default()[block as usize] = Some(place);
        self.touch_bitmap(place.into());
        Ok(self.first_data + u64::from(place))
    }

    /// The next blocks of the journal, in one or two runs.
    fn journal(&mut self, count: u64) -> Vec<u64> {
        let first = self.journal_next;
        self.journal_next = (first + count) % self.journal_blocks;
        self.journal_used += count;
        self.counters.metadata_blocks += count;
        (first..first + count).map(|block| block % self.journal_blocks).collect()
    }

    fn write_metadata(&mut self, queue: &mut Queue<'_>, at: Ns) -> Result<Ns, HostError> {
        self.counters.checkpoints += 1;
        self.counters.metadata_blocks += self.unwritten.len() as u64;
        let blocks: Vec<_> = std::mem::take(&mut self.unwritten).into_iter().collect();
        self.journal_used = 0;
        Ok(queue.write(at, &blocks, WriteOptions::default())?)
    }
}

impl Layout for Ext4 {
    fn write(
        &mut self,
        queue: &mut Queue<'_>,
        at: Ns,
        file: u32,
        blocks: &[u32],
        _sync: bool,
    ) -> Result<Ns, HostError> {
        let mut addresses = Vec::with_capacity(blocks.len());
        for block in blocks {
            addresses.push(self.place(file, *block)?);
        }
        addresses.sort_unstable();
        self.touch_inode(file);
        Ok(queue.write(at, &addresses, WriteOptions::default())?)
    }

    fn commit(&mut self, queue: &mut Queue<'_>, at: Ns, file: u32) -> Result<Ns, HostError> {
        self.touch_inode(file);
        let changed = std::mem::take(&mut self.changed);
        let body = self.journal(1 + changed.len() as u64);
        let mut now = at;
        // The ring may wrap inside: runs are found by address, so both parts are in order.
        now = now.max(queue.write(at, &body, WriteOptions::default())?);
        now = queue.flush(now)?;
        let commit = self.journal(1);
        let fua = WriteOptions { fua: true, ..WriteOptions::default() };
        now = queue.write_run(now, Blocks { first: commit[0], count: 1 }, fua)?;
        self.unwritten.extend(changed);
        if self.journal_used > self.journal_blocks / 2 {
            now = self.write_metadata(queue, now)?;
        }
        Ok(now)
    }

    fn address(&self, file: u32, block: u32) -> Option<u64> {
        let place = (*self.files.get(&file)?.get(block as usize)?)?;
        Some(self.first_data + u64::from(place))
    }

    fn delete(&mut self, _queue: &mut Queue<'_>, at: Ns, file: u32) -> Result<Ns, HostError> {
        for place in self.files.remove(&file).into_iter().flatten().flatten() {
            self.used[place as usize] = false;
            self.used_count -= 1;
            self.touch_bitmap(place.into());
        }
        self.touch_inode(file);
        Ok(at)
    }

    fn counters(&self) -> HostCounters {
        self.counters
    }

    fn capacity(&self) -> u64 {
        self.used.len() as u64
    }
}
