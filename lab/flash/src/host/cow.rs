//! A file system that never writes in place: Btrfs-like.
//!
//! - Every data block that is written gets a new place, the next free one behind the last.
//! - A commit (fsync, or writing back) writes the changed leaf of the tree and the two levels above
//!   it anew, 16 KiB each, flushes, and writes the superblock in place with FUA.
//!
//! Left out: the log tree that shortens fsync, checksum and extent trees of their own, the 30-second
//! transaction; one leaf describes [`BLOCKS_PER_LEAF`] blocks of a file.

use super::queue::Queue;
use super::{HostCounters, HostError, Layout};
use crate::drive::{Blocks, WriteOptions};
use crate::geometry::Geometry;
use crate::units::Ns;
use std::collections::{BTreeMap, BTreeSet};

const BLOCKS_PER_LEAF: u32 = 200;
const FILES_PER_LEAF: u32 = 16;

/// Host blocks of a tree node.
const NODE_BLOCKS: usize = 4;

/// The superblock lies at 64 KiB.
const SUPERBLOCK: u64 = 16;
const FIRST_DATA: u64 = 32;

#[derive(Debug)]
pub(super) struct Cow {
    used: Vec<bool>,
    used_count: u64,
    cursor: usize,
    files: BTreeMap<u32, Vec<Option<u32>>>,
    /// Where the nodes of the tree lie, by level and number.
    tree: BTreeMap<(u8, u32), Vec<u32>>,
    dirty_leaves: BTreeSet<u32>,
    /// Places whose content the superblock still points at.
    pinned: Vec<u32>,
    counters: HostCounters,
}

impl Cow {
    pub(super) fn new(geometry: &Geometry) -> Cow {
        let blocks = geometry.host_blocks() - FIRST_DATA;
        Cow {
            used: vec![false; blocks as usize],
            used_count: 0,
            cursor: 0,
            files: BTreeMap::new(),
            tree: BTreeMap::new(),
            dirty_leaves: BTreeSet::new(),
            pinned: Vec::new(),
            counters: HostCounters::default(),
        }
    }

    fn allocate(&mut self) -> Result<u32, HostError> {
        if self.used_count == self.used.len() as u64 {
            return Err(HostError::Full);
        }
        while self.used[self.cursor] {
            self.cursor = (self.cursor + 1) % self.used.len();
        }
        let place = self.cursor as u32;
        self.used[self.cursor] = true;
        self.used_count += 1;
        self.cursor = (self.cursor + 1) % self.used.len();
        Ok(place)
    }

    /// Whether so many blocks can be written and then still be committed. If not, a commit comes
    /// first: it frees what is pinned.
    fn room(&self, blocks: usize) -> bool {
        // At worst each block changes a leaf of its own, and each leaf has a parent of its own.
        let nodes = 2 * (self.dirty_leaves.len() + blocks) + 1;
        let needed = blocks + nodes * NODE_BLOCKS;
        self.used.len() as u64 - self.used_count >= needed as u64
    }

    /// Which leaf describes a block: files follow each other in the tree, and the beginnings of
    /// several share one.
    fn leaf(file: u32, block: u32) -> u32 {
        match block / BLOCKS_PER_LEAF {
            0 => file / FILES_PER_LEAF,
            later => (1 << 24) + file.wrapping_mul(1024).wrapping_add(later) % (1 << 24),
        }
    }

    /// Writes the changed leaves and what is above them to new places.
    fn write_tree(&mut self, queue: &mut Queue<'_>, at: Ns) -> Result<Ns, HostError> {
        let leaves = std::mem::take(&mut self.dirty_leaves);
        let mut nodes: BTreeSet<(u8, u32)> = leaves.iter().map(|leaf| (0, *leaf)).collect();
        nodes.extend(leaves.iter().map(|leaf| (1, leaf / 256)));
        nodes.insert((2, 0));
        let mut addresses = Vec::new();
        for node in nodes {
            let mut places = Vec::with_capacity(NODE_BLOCKS);
            for _ in 0..NODE_BLOCKS {
                places.push(self.allocate()?);
            }
            addresses.extend(places.iter().map(|place| FIRST_DATA + u64::from(*place)));
            let old = self.tree.insert(node, places).unwrap_or_default();
            self.pinned.extend(old);
        }
        addresses.sort_unstable();
        self.counters.metadata_blocks += addresses.len() as u64 + 1;
        self.counters.checkpoints += 1;
        let mut now = queue.write(at, &addresses, WriteOptions::default())?;
        now = queue.flush(now)?;
        let fua = WriteOptions { fua: true, ..WriteOptions::default() };
        now = queue.write_run(now, Blocks { first: SUPERBLOCK, count: 1 }, fua)?;
        for place in std::mem::take(&mut self.pinned) {
            self.used[place as usize] = false;
            self.used_count -= 1;
        }
        Ok(now)
    }
}

impl Layout for Cow {
    fn write(
        &mut self,
        queue: &mut Queue<'_>,
        at: Ns,
        file: u32,
        blocks: &[u32],
        _sync: bool,
    ) -> Result<Ns, HostError> {
        let mut now = at;
        if !self.room(blocks.len()) {
            now = self.write_tree(queue, now)?;
        }
        let mut addresses = Vec::with_capacity(blocks.len());
        for block in blocks {
            let place = self.allocate()?;
            addresses.push(FIRST_DATA + u64::from(place));
            let places = self.files.entry(file).or_default();
            if places.len() <= *block as usize {
                places.resize(*block as usize + 1, None);
            }
            self.pinned.extend(places[*block as usize].replace(place));
            self.dirty_leaves.insert(Cow::leaf(file, *block));
        }
        addresses.sort_unstable();
        Ok(queue.write(now, &addresses, WriteOptions::default())?)
    }

    fn commit(&mut self, queue: &mut Queue<'_>, at: Ns, _file: u32) -> Result<Ns, HostError> {
        self.write_tree(queue, at)
    }

    fn address(&self, file: u32, block: u32) -> Option<u64> {
        let place = (*self.files.get(&file)?.get(block as usize)?)?;
        Some(FIRST_DATA + u64::from(place))
    }

    fn delete(&mut self, _queue: &mut Queue<'_>, at: Ns, file: u32) -> Result<Ns, HostError> {
        let places = self.files.remove(&file).unwrap_or_default();
        for (block, place) in places.into_iter().enumerate() {
            self.pinned.extend(place);
            self.dirty_leaves.insert(Cow::leaf(file, block as u32));
        }
        Ok(at)
    }

    fn counters(&self) -> HostCounters {
        self.counters
    }

    fn capacity(&self) -> u64 {
        // What is overwritten is free only after the commit, and the tree takes its share.
        self.used.len() as u64 / 100 * 88
    }
}
