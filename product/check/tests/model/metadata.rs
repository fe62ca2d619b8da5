//! Leaf pages, runs, the segment table, checkpoints.

use super::{LeafPage, METADATA, Model, PER_LEAF, Pending, Run, SEGMENT, State};
use coulter_format::checkpoint::{BodyWriter, CheckpointHeader, Counts, RunHeader, SweepPosition};
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::record::Extent;
use coulter_format::run::{RunBlockWriter, RunEntry};
use coulter_format::segment_table::{self, CoarseAge, SegmentEntry, SegmentState};
use coulter_format::superblock::CheckpointLocation;
use coulter_format::{BLOCK_SIZE, Block, BlockPointer, Lba, map_page};

impl Model {
    /// Writes one metadata block.
    fn put_metadata(&mut self, kind: Kind, key: u64, block: Block) -> BlockPointer {
        let extent = Extent { key, count: 1, kind, relocated: false };
        let pba = self.append(METADATA, &[extent], &[block], &[]);
        BlockPointer { pba, checksum: checksum::block(kind, key, &block) }
    }

    /// Sweeps up to `count` leaves that have updates; at the end of a round it stops.
    pub(crate) fn sweep(&mut self, count: usize) {
        for _ in 0..count {
            let Some(key) = self.pending.range(self.sweep.leaf..).next().map(|(key, _)| *key)
            else {
                self.sweep = SweepPosition { cycle: self.sweep.cycle + 1, leaf: 0 };
                return;
            };
            self.pending.remove(&key);
            self.sweep.leaf = key + 1;
            self.write_leaf(key);
        }
    }

    fn write_leaf(&mut self, key: u64) {
        self.dirty_roots.insert(key / PER_LEAF);
        let at = |index| self.map.get(&(key * PER_LEAF + index)).copied().unwrap_or_default();
        let entries: Vec<_> = (0..PER_LEAF).map(at).collect();
        if entries.iter().all(|entry| !entry.is_mapped()) {
            self.leaves.remove(&key);
            return;
        }
        let mut page = [0; BLOCK_SIZE];
        map_page::encode(entries.iter().copied(), &mut page);
        let pointer = self.put_metadata(Kind::Leaf, key, page);
        self.leaves.insert(key, LeafPage { pointer, entries });
    }

    /// The blocks of each segment that the table counts.
    pub(crate) fn valid_counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.states.len()];
        let mut count = |pointer: BlockPointer| counts[self.segment_of(pointer.pba) as usize] += 1;
        self.map.values().for_each(|pointer| count(*pointer));
        for (key, leaf) in &self.leaves {
            count(leaf.pointer);
            let Some(pending) = self.pending.get(key) else { continue };
            for (lba, entry) in (key * PER_LEAF..).zip(&leaf.entries) {
                if entry.is_mapped() && pending.is_unreleased(lba) {
                    count(*entry);
                }
            }
        }
        counts
    }

    /// The run of this checkpoint, in blocks.
    fn run_blocks(&mut self) -> Vec<Block> {
        let entries = self.run_entries();
        let mut blocks: Vec<Block> = Vec::new();
        let mut writer: Option<RunBlockWriter> = None;
        for entry in &entries {
            if let (Some(open), Some(block)) = (&mut writer, blocks.last_mut()) {
                if open.push(entry, block) {
                    continue;
                }
                writer.take().expect("it is open").finish(block);
            }
            let mut block = [0; BLOCK_SIZE];
            let mut open = RunBlockWriter::new(entry.lba, &mut block);
            assert!(open.push(entry, &mut block));
            blocks.push(block);
            writer = Some(open);
        }
        if let (Some(open), Some(block)) = (writer, blocks.last_mut()) {
            open.finish(block);
        }
        blocks
    }

    fn run_entries(&mut self) -> Vec<RunEntry> {
        let journal = std::mem::take(&mut self.journal);
        let whole = std::mem::take(&mut self.journal_leaves);
        let mut entries = Vec::new();
        for (key, pending) in &self.pending {
            if whole.contains(key)
                && let Some(released) = pending.whole
            {
                let lba = Lba(key * PER_LEAF);
                let pointer = BlockPointer::NOWHERE;
                entries.push(RunEntry { lba, count: PER_LEAF as u32, pointer, released });
            }
            for (lba, released) in &pending.updates {
                if whole.contains(key) || journal.contains(lba) {
                    let pointer = self.map.get(lba).copied().unwrap_or_default();
                    let (lba, released) = (Lba(*lba), *released);
                    entries.push(RunEntry { lba, count: 1, pointer, released });
                }
            }
        }
        entries
    }

    fn is_dead(&self, run: &Run) -> bool {
        let end = SweepPosition { cycle: run.sweep.cycle + 1, leaf: run.sweep.leaf };
        self.sweep >= end
    }

    /// Writes a checkpoint of everything so far.
    pub(crate) fn checkpoint(&mut self, clean: bool) {
        // As in the engine: with as many runs as there may be, the oldest dies before there is another.
        let limit = self.superblock.budget.run_count_limit as usize;
        while self.runs.len() >= limit && !self.is_dead(&self.runs[0]) {
            self.sweep(1);
        }
        let (cut, clock, sweep) = (self.sequence, self.clock, self.sweep);
        let dead: Vec<_> = self.runs.iter().map(|run| self.is_dead(run)).collect();
        let mut dead = dead.into_iter();
        self.runs.retain(|_| !dead.next().expect("one for each"));
        let run = self.run_blocks();
        let freed = self.free_and_queue();
        let (heads, reserved) = (self.heads, self.queue.clone());
        let table = self.table_images();
        self.put_roots();
        for (key, page) in table {
            self.table[key] = self.put_metadata(Kind::SegmentTable, key as u64, page);
        }
        if !run.is_empty() {
            let number = self.next_run;
            self.next_run += 1;
            let keyed = (number << 20..).zip(run);
            let blocks = keyed.map(|(key, block)| self.put_metadata(Kind::Run, key, block));
            let blocks = blocks.collect();
            self.runs.push(Run { number, sweep, blocks });
        }
        let header =
            CheckpointHeader { sequence: cut, write_clock: clock, sweep, next_run: self.next_run };
        let counts = Counts {
            streams: 3,
            reserved: reserved.len() as u32,
            roots: self.roots.len() as u32,
            table: self.table.len() as u32,
            runs: self.runs.len() as u32,
            references: 0,
            parities: 0,
            copies: false,
            root_lists: false,
        };
        let mut bytes = vec![0; 64 * BLOCK_SIZE];
        let mut writer = BodyWriter::new(&header, &counts, &mut bytes);
        heads.iter().for_each(|head| writer.head(*head));
        reserved.iter().for_each(|segment| writer.reserved(*segment));
        self.roots.iter().for_each(|(key, pointer)| writer.root(*key, *pointer));
        self.table.iter().for_each(|pointer| writer.pointer(*pointer));
        for Run { number, sweep, blocks } in &self.runs {
            let block_count = blocks.len() as u32;
            writer.run(&RunHeader { number: *number, sweep: *sweep, block_count });
            blocks.iter().for_each(|pointer| writer.pointer(*pointer));
        }
        let size = writer.finish().expect("it fits");
        self.put_body(cut, &bytes[..size], clean);
        for segment in freed {
            self.states[segment as usize] = State::Free;
        }
    }

    fn put_roots(&mut self) {
        for key in std::mem::take(&mut self.dirty_roots) {
            let at = |slot| self.leaves.get(&(key * PER_LEAF + slot)).map(|leaf| leaf.pointer);
            let mut page = [0; BLOCK_SIZE];
            map_page::encode((0..PER_LEAF).map(|slot| at(slot).unwrap_or_default()), &mut page);
            let pointer = self.put_metadata(Kind::Root, key, page);
            self.roots.insert(key, pointer);
        }
    }

    /// Queues free segments. Returns closed segments in which nothing is counted or listed: free
    /// once this checkpoint is durable.
    fn free_and_queue(&mut self) -> Vec<u32> {
        let mut counts = self.valid_counts();
        let listed = self.table.iter().chain(self.roots.values());
        let listed = listed.chain(self.runs.iter().flat_map(|run| &run.blocks));
        let listed = listed.map(|pointer| pointer.pba).chain(self.body.iter().copied());
        for pba in listed.filter(|pba| pba.0 > 0) {
            counts[self.segment_of(pba) as usize] += 1;
        }
        for segment in 0..self.states.len() {
            if self.queue.len() < 6 && self.states[segment] == State::Free {
                self.states[segment] = State::Queued;
                self.queue.push_back(segment as u32);
            }
        }
        let empty = (0u32..).zip(&self.states).zip(counts);
        let empty = empty.filter(|((_, state), count)| **state == State::Closed && *count == 0);
        empty.map(|((segment, _), _)| segment).collect()
    }

    fn table_images(&mut self) -> Vec<(usize, Block)> {
        let counts = self.valid_counts();
        let entry = |(segment, state): (usize, &State)| SegmentEntry {
            valid: counts[segment],
            state: match state {
                State::Free | State::Queued => SegmentState::Free,
                State::Open => SegmentState::Open,
                State::Closed => SegmentState::Closed,
            },
            stream: 0,
            clock: 0,
            mean_age: CoarseAge::default(),
        };
        let entries: Vec<_> = self.states.iter().enumerate().map(entry).collect();
        let mut images = Vec::new();
        for (key, chunk) in entries.chunks(segment_table::SEGMENTS_PER_PAGE).enumerate() {
            let mut page = [0; BLOCK_SIZE];
            segment_table::encode(chunk.iter().copied(), &mut page);
            if !self.table[key].is_mapped() || self.table_pages[key] != page {
                self.table_pages[key] = page;
                images.push((key, page));
            }
        }
        images
    }

    fn put_body(&mut self, cut: u64, body: &[u8], clean: bool) {
        let mut padded = body.to_vec();
        padded.resize(body.len().next_multiple_of(BLOCK_SIZE), 0);
        let (blocks, _) = padded.as_chunks::<BLOCK_SIZE>();
        let count = blocks.len() as u16;
        let extent = Extent { key: 0, count, kind: Kind::Checkpoint, relocated: false };
        let pba = self.append(METADATA, &[extent], blocks, &[]);
        self.body = (0..u32::from(count)).map(|offset| pba.plus(offset)).collect();
        self.durable = self.sequence;
        self.superblock.generation += 1;
        self.superblock.durable_sequence = self.sequence;
        self.superblock.epoch = self.epoch;
        self.superblock.clean = clean;
        let (size, checksum) = (body.len() as u32, crc32c(body));
        let copy = coulter_format::Pba::NOWHERE;
        self.superblock.checkpoint =
            CheckpointLocation { sequence: cut, pba, size, checksum, copy };
        self.put_superblock();
    }

    pub(crate) fn put_superblock(&mut self) {
        let mut block = [0; BLOCK_SIZE];
        self.superblock.encode(&mut block);
        self.image.put(self.superblock.location().0, block);
    }

    /// Blocks that are free to be written.
    pub(crate) fn room(&self) -> u32 {
        self.queue.len() as u32 * SEGMENT
    }
}

impl Pending {
    /// Whether the table still counts where the page says that an address lies.
    pub(crate) fn is_unreleased(&self, lba: u64) -> bool {
        match (self.updates.get(&lba), self.whole) {
            (Some(released), _) => !released,
            (None, Some(released)) => !released,
            (None, None) => false,
        }
    }
}
