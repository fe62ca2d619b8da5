//! Checks the metadata of a large store that is worked out block by block as it is read, and prints
//! how long it took and how much memory: `cargo run --release --example large -- 256`, in GiB.
//!
//! Every host block is mapped, at random, in records of 250 single blocks: the worst case for the
//! map and nearly the worst for the log. What it takes to make up the blocks is measured apart.

use coulter_check::{BlockFn, Options, check};
use coulter_format::checkpoint::{BodyWriter, CheckpointHeader, Counts, Head, SweepPosition};
use coulter_format::checksum::{Kind, block as checksum, crc32c};
use coulter_format::record::{self, BlockWord, Extent, RecordHeader};
use coulter_format::segment_table::{
    self, CoarseAge, SEGMENTS_PER_PAGE, SegmentEntry, SegmentState,
};
use coulter_format::superblock::{
    CheckpointLocation, Geometry, LABEL_SIZE, RecoveryBudget, Superblock,
};
use coulter_format::{BLOCK_SIZE, Block, BlockPointer, Pba, StoreId, map_page};
use std::collections::HashMap;
use std::time::Instant;

const SEGMENT: u32 = 8192;
const PAYLOAD: u64 = 250;
const RECORDS_PER_SEGMENT: u64 = (SEGMENT as u64) / (PAYLOAD + 1);
const STORE: StoreId = StoreId { uuid: *b"a large store...", salt: 7 };
/// An odd number and its inverse modulo 2^64 scatter host addresses over the log.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;
const GATHER: u64 = inverse(SCATTER);

const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut round = 0;
    while round < 6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
}

/// The store's numbers, and the few blocks that are kept.
struct Large {
    /// Host blocks; a power of two.
    blocks: u64,
    data_segments: u32,
    kept: HashMap<u32, Block>,
    leaves: Vec<BlockPointer>,
}

fn start(segment: u32) -> u32 {
    SEGMENT + segment * SEGMENT
}

fn data_checksum(lba: u64) -> u32 {
    (lba.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

impl Large {
    fn pointer(&self, lba: u64) -> BlockPointer {
        let slot = lba.wrapping_mul(SCATTER) & (self.blocks - 1);
        let (record, offset) = (slot / PAYLOAD, slot % PAYLOAD);
        let segment = (record / RECORDS_PER_SEGMENT) as u32;
        let place = (record % RECORDS_PER_SEGMENT) * (PAYLOAD + 1) + 1 + offset;
        BlockPointer { pba: Pba(start(segment) + place as u32), checksum: data_checksum(lba) }
    }

    fn leaf(&self, key: u64) -> Block {
        let mut page = [0; BLOCK_SIZE];
        map_page::encode((key * 512..(key + 1) * 512).map(|lba| self.pointer(lba)), &mut page);
        page
    }

    fn data_header(&self, segment: u32, place: u32) -> Option<Block> {
        let (index, offset) = (u64::from(place) / (PAYLOAD + 1), u64::from(place) % (PAYLOAD + 1));
        let record = u64::from(segment) * RECORDS_PER_SEGMENT + index;
        let first = record * PAYLOAD;
        if offset != 0 || index >= RECORDS_PER_SEGMENT || first >= self.blocks {
            return None;
        }
        let slots = first..(first + PAYLOAD).min(self.blocks);
        let lbas: Vec<_> =
            slots.map(|slot| slot.wrapping_mul(GATHER) & (self.blocks - 1)).collect();
        let extent = |key: &u64| Extent { key: *key, count: 1, kind: Kind::Data, relocated: false };
        let extents: Vec<_> = lbas.iter().map(extent).collect();
        let word = |lba: &u64| BlockWord { checksum: data_checksum(*lba), address: Pba(0) };
        let words: Vec<_> = lbas.iter().map(word).collect();
        let pba = Pba(start(segment) + place);
        Some(header(pba, 1 + record, lbas.len(), &extents, &words))
    }

    fn read(&self, pba: Pba, target: &mut Block) {
        target.fill(0);
        if let Some(block) = self.kept.get(&pba.0) {
            *target = *block;
            return;
        }
        let Some(place) = pba.0.checked_sub(SEGMENT) else { return };
        let (segment, place) = (place / SEGMENT, place % SEGMENT);
        if segment < self.data_segments {
            if let Some(header) = self.data_header(segment, place) {
                *target = header;
            }
        } else if let Ok(key) = self.leaves.binary_search_by_key(&pba, |leaf| leaf.pba) {
            *target = self.leaf(key as u64);
        }
    }
}

fn header(pba: Pba, sequence: u64, size: usize, extents: &[Extent], words: &[BlockWord]) -> Block {
    let header = RecordHeader {
        stream: 0,
        epoch: 1,
        sequence,
        durable_sequence: 0,
        generation: 1,
        cut: 0,
        pba,
        payload_size: size as u16,
        scattered: None,
        goes_on: false,
        page_bits: 0,
    };
    let mut block = [0; BLOCK_SIZE];
    record::encode(&header, &STORE, extents, words, &mut block).expect("it fits");
    block
}

/// Appends metadata records of one extent each.
struct Metadata {
    next: u32,
    sequence: u64,
    kept: HashMap<u32, Block>,
}

impl Metadata {
    /// Places `checksums.len()` blocks in one record; returns the first's address.
    fn place(&mut self, kind: Kind, key: u64, checksums: &[u32]) -> Pba {
        let need = 1 + checksums.len() as u32;
        if self.next % SEGMENT + need > SEGMENT {
            self.next = self.next.next_multiple_of(SEGMENT);
        }
        let pba = Pba(self.next);
        let extent = Extent { key, count: checksums.len() as u16, kind, relocated: false };
        let word = |checksum: &u32| BlockWord { checksum: *checksum, address: Pba(0) };
        let words: Vec<_> = checksums.iter().map(word).collect();
        self.kept.insert(pba.0, header(pba, self.sequence, checksums.len(), &[extent], &words));
        self.sequence += 1;
        self.next += need;
        pba.plus(1)
    }

    fn put(&mut self, kind: Kind, key: u64, block: Block) -> BlockPointer {
        let checksum = checksum(kind, key, &block);
        let pba = self.place(kind, key, &[checksum]);
        self.kept.insert(pba.0, block);
        BlockPointer { pba, checksum }
    }
}

fn build(gib: u64) -> (Large, u64) {
    let blocks = gib << 18;
    let records = blocks.div_ceil(PAYLOAD);
    let data_segments = records.div_ceil(RECORDS_PER_SEGMENT) as u32;
    let leaf_count = blocks / 512;
    let metadata_segments = (leaf_count * 2 / u64::from(SEGMENT)) as u32 + 4;
    let segment_count = data_segments + metadata_segments;
    let mut large = Large { blocks, data_segments, kept: HashMap::new(), leaves: Vec::new() };
    let mut metadata =
        Metadata { next: start(data_segments), sequence: records + 1, kept: HashMap::new() };
    for first in (0..leaf_count).step_by(256) {
        let keys = first..(first + 256).min(leaf_count);
        let checksums: Vec<_> =
            keys.map(|key| checksum(Kind::Leaf, key, &large.leaf(key))).collect();
        let pba = metadata.place(Kind::Leaf, first, &checksums);
        let pointers = (0u32..).zip(checksums);
        large
            .leaves
            .extend(pointers.map(|(i, checksum)| BlockPointer { pba: pba.plus(i), checksum }));
    }
    let roots: Vec<_> = large
        .leaves
        .chunks(512)
        .zip(0u64..)
        .map(|(leaves, key)| {
            let mut page = [0; BLOCK_SIZE];
            map_page::encode(leaves.iter().copied(), &mut page);
            (key, metadata.put(Kind::Root, key, page))
        })
        .collect();
    let superblock = finish(&large, &mut metadata, segment_count, &roots);
    let size_blocks = superblock.geometry.device_size;
    for generation in [1, 2] {
        let copy = Superblock { generation, ..superblock };
        let mut block = [0; BLOCK_SIZE];
        copy.encode(&mut block);
        metadata.kept.insert(copy.location().0, block);
    }
    large.kept = metadata.kept;
    (large, size_blocks)
}

/// Segment table, body, superblock.
fn finish(
    large: &Large,
    metadata: &mut Metadata,
    segment_count: u32,
    roots: &[(u64, BlockPointer)],
) -> Superblock {
    let mut valid = vec![0u32; segment_count as usize];
    for slot_record in 0..large.blocks.div_ceil(PAYLOAD) {
        let count = PAYLOAD.min(large.blocks - slot_record * PAYLOAD);
        valid[(slot_record / RECORDS_PER_SEGMENT) as usize] += count as u32;
    }
    large.leaves.iter().for_each(|leaf| valid[((leaf.pba.0 - SEGMENT) / SEGMENT) as usize] += 1);
    let entries: Vec<_> = (0..segment_count)
        .map(|segment| SegmentEntry {
            valid: valid[segment as usize],
            state: SegmentState::Closed,
            stream: 0,
            clock: 0,
            mean_age: CoarseAge::default(),
        })
        .collect();
    let table: Vec<_> = entries
        .chunks(SEGMENTS_PER_PAGE)
        .zip(0u64..)
        .map(|(entries, key)| {
            let mut page = [0; BLOCK_SIZE];
            segment_table::encode(entries.iter().copied(), &mut page);
            metadata.put(Kind::SegmentTable, key, page)
        })
        .collect();
    let sequence = metadata.sequence;
    let header = CheckpointHeader {
        sequence,
        write_clock: large.blocks,
        sweep: SweepPosition::default(),
        next_run: 1,
    };
    let counts = Counts {
        streams: 3,
        roots: roots.len() as u32,
        table: table.len() as u32,
        ..Counts::default()
    };
    let mut bytes = vec![0; 64 * BLOCK_SIZE];
    let mut writer = BodyWriter::new(&header, &counts, &mut bytes);
    (0..3).for_each(|_| writer.head(None::<Head>));
    roots.iter().for_each(|(key, pointer)| writer.root(*key, *pointer));
    table.iter().for_each(|pointer| writer.pointer(*pointer));
    let size = writer.finish().expect("it fits");
    let (body, _) = bytes[..size.next_multiple_of(BLOCK_SIZE)].as_chunks::<BLOCK_SIZE>();
    let checksums: Vec<_> =
        (0u64..).zip(body).map(|(key, b)| checksum(Kind::Checkpoint, key, b)).collect();
    let pba = metadata.place(Kind::Checkpoint, 0, &checksums);
    for (offset, block) in (0u32..).zip(body) {
        metadata.kept.insert(pba.0 + offset, *block);
    }
    let checksum = crc32c(&bytes[..size]);
    Superblock {
        store: STORE,
        generation: 2,
        geometry: Geometry {
            device_size: u64::from(start(segment_count)),
            volume_size: large.blocks,
            capacity: large.blocks,
            root_limit: 0,
            root_lists: false,
            segment_blocks: SEGMENT,
            segment_count,
            first_segment: Pba(SEGMENT),
            second_superblock: Pba(SEGMENT / 2),
            third_superblock: Pba::NOWHERE,
            page_blocks: 1,
        },
        budget: RecoveryBudget { map_size: 1 << 30, journal_size: 65_536, run_count_limit: 128 },
        epoch: 1,
        checkpoint: CheckpointLocation {
            sequence,
            pba,
            size: size as u32,
            checksum,
            copy: Pba::NOWHERE,
        },
        durable_sequence: sequence,
        epoch_max: 0,
        clean: true,
        patched: false,
        long_records: false,
        may_have_lost: false,
        label: [0; LABEL_SIZE],
    }
}

/// The process's largest resident size so far, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn main() {
    let gib = std::env::args().nth(1).and_then(|gib| gib.parse().ok()).unwrap_or(64u64);
    assert!(gib.is_power_of_two(), "a power of two, in GiB");
    let (large, size_blocks) = build(gib);
    let before = peak_kib();
    let (mut reads, mut making) = (0u64, std::time::Duration::ZERO);
    let read = |pba: Pba, block: &mut Block| {
        let begun = Instant::now();
        large.read(pba, block);
        making += begun.elapsed();
        reads += 1;
        Ok(())
    };
    let begun = Instant::now();
    let report = check(&mut BlockFn { size_blocks, read }, &mut Options::default());
    let took = begun.elapsed();
    for finding in report.findings.iter().take(10) {
        println!("{finding}");
    }
    println!(
        "{gib} GiB mapped: {:.1} s, of which {:.1} s made up {reads} blocks; {} MiB more memory",
        took.as_secs_f64(),
        making.as_secs_f64(),
        (peak_kib() - before) / 1024,
    );
    assert!(report.findings.is_empty(), "the store is sound");
    assert_eq!(report.counters.mapped_blocks, large.blocks, "all of it was looked at");
}
