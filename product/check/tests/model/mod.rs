//! A store built by hand, by the rules of `docs/format.md` and with nothing but the codecs: what
//! the tests check, damage and dump.
//!
//! It is a model, not an engine: one thing after the other, everything in memory, no device. Its
//! image is sparse, so that copies and damage cost little.

#![allow(dead_code, reason = "every test file uses another part of it")]

mod metadata;
pub(crate) mod reseal;
pub(crate) mod rich;

use coulter_format::checkpoint::{Head, SweepPosition};
use coulter_format::checksum::{self, Kind};
use coulter_format::record::{self, BlockWord, Extent, RecordHeader};
use coulter_format::superblock::{Geometry, LABEL_SIZE, RecoveryBudget, Superblock};
use coulter_format::{BLOCK_SIZE, Block, BlockPointer, Pba, StoreId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

pub(crate) const PER_LEAF: u64 = 512;
pub(crate) const SEGMENT: u32 = 256;
const USER: usize = 0;
const CLEANING: usize = 1;
const METADATA: usize = 2;

/// Blocks on a device; those that are not there are zeros.
#[derive(Clone, Default)]
pub(crate) struct Image {
    pub(crate) blocks: BTreeMap<u32, Rc<Block>>,
    pub(crate) size_blocks: u64,
}

impl Image {
    pub(crate) fn block(&self, pba: u32) -> Block {
        self.blocks.get(&pba).map_or([0; BLOCK_SIZE], |block| **block)
    }

    pub(crate) fn put(&mut self, pba: u32, block: Block) {
        self.blocks.insert(pba, Rc::new(block));
    }

    /// Changes one byte; `change` must not be zero.
    pub(crate) fn damage(&mut self, pba: u32, at: usize, change: u8) {
        let mut block = self.block(pba);
        block[at] ^= change;
        self.put(pba, block);
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size_blocks as usize * BLOCK_SIZE];
        for (pba, block) in &self.blocks {
            let start = *pba as usize * BLOCK_SIZE;
            bytes[start..start + BLOCK_SIZE].copy_from_slice(&block[..]);
        }
        bytes
    }

    pub(crate) fn reader(&self) -> impl coulter_check::ReadBlocks + '_ {
        let read = |pba: Pba, block: &mut Block| {
            match self.blocks.get(&pba.0) {
                Some(content) => *block = **content,
                None => block.fill(0),
            }
            Ok(())
        };
        coulter_check::BlockFn { size_blocks: self.size_blocks, read }
    }
}

/// What the runs say of one leaf since its page was written.
#[derive(Clone, Default)]
pub(crate) struct Pending {
    /// Per address: whether the location in the page is released.
    pub(crate) updates: BTreeMap<u64, bool>,
    /// All of it was unmapped; whether the locations in the page are released.
    pub(crate) whole: Option<bool>,
}

#[derive(Clone)]
pub(crate) struct LeafPage {
    pub(crate) pointer: BlockPointer,
    pub(crate) entries: Vec<BlockPointer>,
}

#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) number: u64,
    pub(crate) sweep: SweepPosition,
    pub(crate) blocks: Vec<BlockPointer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Queued,
    Open,
    Closed,
}

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) image: Image,
    pub(crate) superblock: Superblock,
    pub(crate) sequence: u64,
    pub(crate) durable: u64,
    pub(crate) epoch: u64,
    pub(crate) heads: [Option<Head>; 3],
    pub(crate) queue: VecDeque<u32>,
    pub(crate) states: Vec<State>,
    pub(crate) map: BTreeMap<u64, BlockPointer>,
    pub(crate) leaves: BTreeMap<u64, LeafPage>,
    pub(crate) roots: BTreeMap<u64, BlockPointer>,
    pub(crate) dirty_roots: BTreeSet<u64>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    /// Addresses changed since the last checkpoint; a whole leaf as its key.
    pub(crate) journal: BTreeSet<u64>,
    pub(crate) journal_leaves: BTreeSet<u64>,
    pub(crate) runs: Vec<Run>,
    pub(crate) next_run: u64,
    pub(crate) sweep: SweepPosition,
    pub(crate) table: Vec<BlockPointer>,
    pub(crate) table_pages: Vec<Block>,
    pub(crate) body: Vec<Pba>,
    pub(crate) clock: u64,
    pub(crate) content_seed: u64,
    /// Segments in the order of opening.
    pub(crate) opened: Vec<u32>,
    /// Headers of all records, in order, as far as they were not overwritten.
    pub(crate) records: Vec<Pba>,
}

impl Model {
    /// An empty store of so many segments of 1 MiB.
    pub(crate) fn new(segment_count: u32) -> Model {
        let device_size = u64::from(SEGMENT) * u64::from(segment_count + 1);
        let geometry = Geometry {
            device_size,
            volume_size: u64::from(SEGMENT) * u64::from(segment_count) * 3 / 4,
            capacity: u64::from(SEGMENT) * u64::from(segment_count) * 3 / 4,
            root_limit: 0,
            root_lists: false,
            segment_blocks: SEGMENT,
            segment_count,
            first_segment: Pba(SEGMENT),
            second_superblock: Pba(SEGMENT / 2),
            third_superblock: Pba::NOWHERE,
            page_blocks: 1,
        };
        let mut label = [0; LABEL_SIZE];
        label[..5].copy_from_slice(b"model");
        let superblock = Superblock {
            store: StoreId { uuid: *b"a model of store", salt: 0x5a17_c0de },
            generation: 0,
            durable_sequence: 0,
            epoch_max: 0,
            geometry,
            budget: RecoveryBudget { map_size: 1 << 20, journal_size: 1024, run_count_limit: 16 },
            epoch: 1,
            checkpoint: coulter_format::superblock::CheckpointLocation {
                sequence: 0,
                pba: Pba(0),
                size: 0,
                checksum: 0,
                copy: Pba::NOWHERE,
            },
            clean: false,
            patched: false,
            long_records: false,
            may_have_lost: false,
            label,
        };
        let pages = segment_count.div_ceil(256) as usize;
        let mut model = Model {
            image: Image { blocks: BTreeMap::new(), size_blocks: device_size },
            superblock,
            sequence: 0,
            durable: 0,
            epoch: 1,
            heads: [None; 3],
            queue: (0..segment_count.min(6)).collect(),
            states: vec![State::Free; segment_count as usize],
            map: BTreeMap::new(),
            leaves: BTreeMap::new(),
            roots: BTreeMap::new(),
            dirty_roots: BTreeSet::new(),
            pending: BTreeMap::new(),
            journal: BTreeSet::new(),
            journal_leaves: BTreeSet::new(),
            runs: Vec::new(),
            next_run: 1,
            sweep: SweepPosition::default(),
            table: vec![BlockPointer::NOWHERE; pages],
            table_pages: vec![[0; BLOCK_SIZE]; pages],
            body: Vec::new(),
            clock: 0,
            content_seed: 1,
            opened: Vec::new(),
            records: Vec::new(),
        };
        model.queue.iter().for_each(|segment| model.states[*segment as usize] = State::Queued);
        model.checkpoint(true);
        model.checkpoint(true);
        model
    }

    pub(crate) fn start(&self, segment: u32) -> Pba {
        Pba(self.superblock.geometry.first_segment.0 + segment * SEGMENT)
    }

    pub(crate) fn segment_of(&self, pba: Pba) -> u32 {
        (pba.0 - self.superblock.geometry.first_segment.0) / SEGMENT
    }

    fn fresh_content(&mut self) -> Block {
        let mut state = self.content_seed;
        self.content_seed += 1;
        let mut block = [0; BLOCK_SIZE];
        for byte in &mut block {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        block
    }

    /// Appends a record. Returns where its payload begins. `sources` holds an address for every
    /// block, if they are relocated.
    pub(crate) fn append(
        &mut self,
        stream: usize,
        extents: &[Extent],
        payload: &[Block],
        sources: &[Pba],
    ) -> Pba {
        let need = 1 + payload.len() as u32;
        let full = self.heads[stream].is_none_or(|head| SEGMENT - head.offset < need);
        if full {
            let segment = self.queue.pop_front().expect("the model has segments left");
            if let Some(head) = self.heads[stream] {
                self.states[head.segment as usize] = State::Closed;
            }
            self.states[segment as usize] = State::Open;
            self.opened.push(segment);
            self.heads[stream] = Some(Head { segment, offset: 0 });
        }
        let head = self.heads[stream].expect("a head was opened");
        let pba = self.start(head.segment).plus(head.offset);
        self.sequence += 1;
        let header = RecordHeader {
            stream: stream as u8,
            epoch: self.epoch,
            sequence: self.sequence,
            durable_sequence: self.durable,
            generation: self.superblock.generation,
            cut: self.superblock.checkpoint.sequence,
            pba,
            payload_size: payload.len() as u16,
            scattered: None,
            goes_on: false,
            page_bits: 0,
        };
        let mut words = Vec::new();
        let mut blocks = payload.iter();
        for extent in extents.iter().filter(|extent| extent.kind != Kind::Discard) {
            for key in extent.key..extent.key + u64::from(extent.count) {
                let address = sources.get(words.len()).copied().unwrap_or_default();
                let content = blocks.next().expect("payload");
                let checksum = checksum::block(extent.kind, key, content);
                words.push(BlockWord { checksum, address });
            }
        }
        let mut block = [0; BLOCK_SIZE];
        let store = self.superblock.store;
        record::encode(&header, &store, extents, &words, &mut block).expect("it fits");
        self.image.put(pba.0, block);
        for (offset, content) in payload.iter().enumerate() {
            self.image.put(pba.0 + 1 + offset as u32, *content);
        }
        self.heads[stream] = Some(Head { offset: head.offset + need, ..head });
        // Headers of the segment's former life are overwritten.
        let written = pba..pba.plus(need);
        self.records.retain(|header| !written.contains(header));
        self.records.push(pba);
        pba.plus(1)
    }

    /// Writes blocks that were never written before, in one record.
    pub(crate) fn write(&mut self, lba: u64, count: u16) {
        let payload: Vec<_> = (0..count).map(|_| self.fresh_content()).collect();
        let extent = Extent { key: lba, count, kind: Kind::Data, relocated: false };
        let first = self.append(USER, &[extent], &payload, &[]);
        for (offset, content) in payload.iter().enumerate() {
            let key = lba + offset as u64;
            let checksum = checksum::block(Kind::Data, key, content);
            let pba = first.plus(offset as u32);
            self.set(key, BlockPointer { pba, checksum });
        }
        self.clock += u64::from(count);
    }

    /// Unmaps blocks.
    pub(crate) fn discard(&mut self, lba: u64, count: u16) {
        let extent = Extent { key: lba, count, kind: Kind::Discard, relocated: false };
        self.append(USER, &[extent], &[], &[]);
        let end = lba + u64::from(count);
        let mut next = lba;
        while next < end {
            if next.is_multiple_of(PER_LEAF) && next + PER_LEAF <= end {
                self.discard_leaf(next / PER_LEAF);
                next += PER_LEAF;
            } else {
                self.set(next, BlockPointer::NOWHERE);
                next += 1;
            }
        }
    }

    fn discard_leaf(&mut self, key: u64) {
        let released = !self.leaves.contains_key(&key);
        let pending = self.pending.entry(key).or_default();
        // What was released before stays released.
        pending.updates.retain(|_, released| *released);
        pending.whole = Some(released || pending.whole == Some(true));
        let range = key * PER_LEAF..(key + 1) * PER_LEAF;
        self.map.retain(|lba, _| !range.contains(lba));
        self.journal_leaves.insert(key);
    }

    fn set(&mut self, lba: u64, pointer: BlockPointer) {
        let key = lba / PER_LEAF;
        let no_page = !self.leaves.contains_key(&key);
        let pending = self.pending.entry(key).or_default();
        let released = no_page || pending.whole == Some(true);
        pending.updates.entry(lba).or_insert(released);
        self.journal.insert(lba);
        match pointer.is_mapped() {
            true => self.map.insert(lba, pointer),
            false => self.map.remove(&lba),
        };
    }

    /// Looks at a leaf's page, so that old locations of its updates are no longer counted.
    pub(crate) fn release(&mut self, key: u64) {
        if let Some(pending) = self.pending.get_mut(&key) {
            pending.updates.values_mut().for_each(|released| *released = true);
            self.journal.extend(pending.updates.keys());
            if pending.whole == Some(false) {
                pending.whole = Some(true);
                self.journal_leaves.insert(key);
            }
        }
    }

    /// Moves mapped blocks, as the cleaner does.
    pub(crate) fn relocate(&mut self, lbas: &[u64]) {
        let sources: Vec<_> = lbas.iter().map(|lba| self.map[lba].pba).collect();
        let payload: Vec<_> = sources.iter().map(|pba| self.image.block(pba.0)).collect();
        let extents: Vec<_> = lbas
            .iter()
            .map(|lba| Extent { key: *lba, count: 1, kind: Kind::Data, relocated: true })
            .collect();
        let first = self.append(CLEANING, &extents, &payload, &sources);
        for (offset, lba) in lbas.iter().enumerate() {
            let checksum = self.map[lba].checksum;
            self.set(*lba, BlockPointer { pba: first.plus(offset as u32), checksum });
        }
    }

    /// What was written so far is durable, and the next record says so.
    pub(crate) fn flush(&mut self) {
        self.durable = self.sequence;
    }

    /// The header of the record that holds a block.
    pub(crate) fn record_of(&self, pba: Pba) -> Pba {
        let before = self.records.iter().filter(|header| **header < pba);
        *before.max().expect("every block has a record")
    }
}
