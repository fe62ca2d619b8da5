//! What log-structured hosts have in common: which block of which file lies where, and how much of
//! each segment is valid.
//!
//! ```text
//! | shift | segment 0 | segment 1 | … | checkpoint area: two segments, a ring |
//! ```
//! Files are described by *nodes*, blocks that each list the places of [`BLOCKS_PER_NODE`] blocks
//! and lie in the log themselves.

use super::queue::Queue;
use super::{HostCounters, HostError};
use crate::drive::{Blocks, WriteOptions};
use crate::geometry::Geometry;
use crate::units::Ns;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of a file that one node describes, as in F2FS.
const BLOCKS_PER_NODE: u32 = 1018;

/// Blocks of a segment at least, if that leaves so many segments.
const BLOCKS_MIN: u32 = 256;
const SEGMENTS_MIN: u64 = 64;

/// Set in the file number of nodes.
const NODE: u32 = 1 << 31;

/// What lies in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    file: u32,
    block: u32,
}

impl Key {
    pub(super) fn data(file: u32, block: u32) -> Key {
        assert!(file & NODE == 0, "that bit means nodes");
        Key { file, block }
    }
}

const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Segments {
    shift: u64,
    pub(super) blocks_per_segment: u32,
    owners: Vec<Option<Key>>,
    valid: Vec<u32>,
    places: BTreeMap<u32, Vec<u32>>,
    dirty_nodes: BTreeSet<Key>,
    area_first: u64,
    area_blocks: u64,
    area_next: u64,
    blocks_per_page: u32,
    pub(super) counters: HostCounters,
}

impl Segments {
    pub(super) fn new(geometry: &Geometry, shift: u32) -> Segments {
        let mut blocks_per_segment = geometry.pages_per_block * geometry.blocks_per_page();
        // Several erase blocks, where these are much smaller than segments of file systems are.
        while blocks_per_segment < BLOCKS_MIN
            && geometry.host_blocks() / u64::from(blocks_per_segment) >= SEGMENTS_MIN
        {
            blocks_per_segment *= 2;
        }
        let per_segment = u64::from(blocks_per_segment);
        let shift = u64::from(shift) % per_segment;
        let whole = (geometry.host_blocks() - shift) / per_segment;
        assert!(whole > 4, "a log needs segments");
        let count = (whole - 2) as usize;
        Segments {
            shift,
            blocks_per_segment,
            owners: vec![None; count * blocks_per_segment as usize],
            valid: vec![0; count],
            places: BTreeMap::new(),
            dirty_nodes: BTreeSet::new(),
            area_first: shift + count as u64 * per_segment,
            area_blocks: 2 * per_segment,
            area_next: 0,
            blocks_per_page: geometry.blocks_per_page(),
            counters: HostCounters::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.valid.len()
    }

    pub(super) fn valid(&self, segment: usize) -> u32 {
        self.valid[segment]
    }

    pub(super) fn segment_of(&self, place: u32) -> usize {
        (place / self.blocks_per_segment) as usize
    }

    pub(super) fn owner(&self, place: u32) -> Option<Key> {
        self.owners[place as usize]
    }

    /// The drive's block for a place in the log.
    pub(super) fn address(&self, place: u32) -> u64 {
        self.shift + u64::from(place)
    }

    pub(super) fn place(&self, key: Key) -> Option<u32> {
        let place = *self.places.get(&key.file)?.get(key.block as usize)?;
        (place != NOWHERE).then_some(place)
    }

    /// All blocks of a segment that are valid, in order.
    pub(super) fn valid_places(&self, segment: usize) -> Vec<u32> {
        let first = segment as u32 * self.blocks_per_segment;
        (first..first + self.blocks_per_segment)
            .filter(|place| self.owner(*place).is_some())
            .collect()
    }

    /// A block was written to a free place; answers with its old one.
    pub(super) fn put(&mut self, key: Key, place: u32) -> Option<u32> {
        assert!(self.owners[place as usize].is_none(), "the place is free");
        let old = self.remove(key);
        let places = self.places.entry(key.file).or_default();
        if places.len() <= key.block as usize {
            places.resize(key.block as usize + 1, NOWHERE);
        }
        places[key.block as usize] = place;
        self.owners[place as usize] = Some(key);
        let segment = self.segment_of(place);
        self.valid[segment] += 1;
        if key.file & NODE == 0 {
            let node = Key { file: key.file | NODE, block: key.block / BLOCKS_PER_NODE };
            self.dirty_nodes.insert(node);
        }
        old
    }

    fn remove(&mut self, key: Key) -> Option<u32> {
        let old = self.place(key)?;
        self.owners[old as usize] = None;
        let segment = self.segment_of(old);
        self.valid[segment] -= 1;
        Some(old)
    }

    /// Forgets a file; answers with the places that it had.
    pub(super) fn delete(&mut self, file: u32) -> Vec<u32> {
        let mut freed = Vec::new();
        for file in [file, file | NODE] {
            let Some(places) = self.places.remove(&file) else { continue };
            for place in places.into_iter().filter(|place| *place != NOWHERE) {
                self.owners[place as usize] = None;
                let segment = self.segment_of(place);
                self.valid[segment] -= 1;
                freed.push(place);
            }
        }
        let nodes =
            Key { file: file | NODE, block: 0 }..=Key { file: file | NODE, block: u32::MAX };
        let gone: Vec<_> = self.dirty_nodes.range(nodes).copied().collect();
        gone.iter().for_each(|node| {
            self.dirty_nodes.remove(node);
        });
        freed
    }

    /// The nodes that have to be written so that a file can be found, or all of them.
    pub(super) fn take_dirty_nodes(&mut self, file: Option<u32>) -> Vec<Key> {
        let taken: Vec<_> = match file {
            None => self.dirty_nodes.iter().copied().collect(),
            Some(file) => {
                let file = file | NODE;
                let range = Key { file, block: 0 }..=Key { file, block: u32::MAX };
                self.dirty_nodes.range(range).copied().collect()
            }
        };
        taken.iter().for_each(|node| {
            self.dirty_nodes.remove(node);
        });
        self.counters.metadata_blocks += taken.len() as u64;
        taken
    }

    /// Writes a checkpoint behind the last one: a header, a footer and a table block for every 55
    /// segments, in whole flash pages.
    pub(super) fn checkpoint(&mut self, queue: &mut Queue<'_>, at: Ns) -> Result<Ns, HostError> {
        let tables = self.count().div_ceil(55) as u64;
        let page = u64::from(self.blocks_per_page);
        let blocks = (2 + tables).next_multiple_of(page);
        let half = self.area_blocks / 2;
        if !self.area_next.is_multiple_of(half) && self.area_next % half + blocks > half {
            self.area_next = self.area_next.next_multiple_of(half);
        }
        self.area_next %= self.area_blocks;
        // A half that begins held what is older than what the other holds.
        let mut now = at;
        if self.area_next.is_multiple_of(half) {
            let first = self.area_first + self.area_next;
            now = queue.trim(now, Blocks { first, count: half as u32 })?;
        }
        let first = self.area_first + self.area_next;
        let addresses: Vec<_> = (first..first + blocks).collect();
        self.area_next += blocks;
        now = queue.flush(now)?;
        now = queue.write(now, &addresses, WriteOptions::default())?;
        now = queue.flush(now)?;
        self.counters.checkpoints += 1;
        self.counters.metadata_blocks += blocks;
        Ok(now)
    }
}
