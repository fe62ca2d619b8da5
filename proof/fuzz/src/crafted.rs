//! A store whose structures say what none that the engine wrote would say, with every checksum right.
//!
//! Fields are changed, records are put where none was, and pointers, checksums and superblocks above
//! that are made to match. Then the store is checked, opened and used. A panic is a fault, and so are
//! commands without end, and that the engine refuses a store, or later finds it damaged, in which the
//! checker found nothing.
//!
//! ```text
//! byte 0      which store; whether the other superblock is changed alike, left as it was, or missing
//! then        changes: what is changed (1), where in it (2), which field (1), new value (3)
//! ```

use crate::input::Input;
use crate::store::{empty, on_flash, with_root_list, write_over};
use coulter_check::{BlockFn, Report, Severity};
use coulter_engine::reclaim::Reclaim;
use coulter_engine::{Config, OpenError, Phase, Request};
use coulter_format::checkpoint::BodyView;
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::record::RecordView;
use coulter_format::root_list::ENTRY_SIZE;
use coulter_format::segment_table::SEGMENTS_PER_PAGE;
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, Lba, Pba, map_page};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small};
use coulter_workload::Random;
use std::ops::Range;

/// Changes at most.
const CHANGE_COUNT_MAX: usize = 8;
/// Commands after which an engine that is still busy with one request never ends.
const COMMAND_COUNT_MAX: usize = 100_000;

/// A field: its first byte, and bytes.
type Field = (usize, usize);

const SUPERBLOCK_FIELDS: &[Field] = &[
    (32, 8),
    (44, 4),
    (52, 4),
    (56, 4),
    (60, 4),
    (64, 4),
    (68, 4),
    (72, 8),
    (80, 8),
    (88, 8),
    (96, 8),
    (104, 4),
    (108, 4),
    (112, 8),
    (120, 4),
    (124, 4),
    (136, 8),
];
const RECORD_FIELDS: &[Field] = &[
    (10, 1),
    (10, 1),
    (11, 1),
    (32, 8),
    (40, 8),
    (40, 8),
    (48, 8),
    (60, 2),
    (62, 2),
    (64, 8),
    (96, 8),
    (104, 2),
    (106, 1),
    (107, 1),
    (108, 8),
    (116, 2),
    (118, 1),
    (119, 1),
];
const SEGMENT_FIELDS: &[Field] = &[(0, 4), (4, 1), (5, 1), (6, 2), (8, 8)];
const BODY_FIELDS: &[Field] =
    &[(6, 2), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8), (48, 4), (52, 4), (56, 4), (60, 4)];
const RUN_FIELDS: &[Field] =
    &[(6, 2), (8, 8), (16, 4), (20, 4), (24, 4), (28, 4), (32, 4), (36, 4)];
const ENTRY_FIELDS: &[Field] = &[(0, 4), (4, 4)];
const ROOT_LIST_FIELDS: &[Field] = &[(0, 8), (8, 4), (12, 4), (16, 4), (20, 2)];

/// Where the body lists pointers.
#[derive(Clone, Copy)]
struct Listed {
    /// Of the pointer in the body.
    at: usize,
    kind: Kind,
    key: u64,
    pba: Pba,
}

/// A store and where everything is in it.
#[derive(Clone)]
struct Crafted {
    device: Device,
    superblock: Superblock,
    /// Its bytes, as changed.
    block: Block,
    /// The body's bytes, as changed.
    body: Vec<u8>,
    listed: Vec<Listed>,
    /// Leaf pages: root, entry in it, key, place.
    leaves: Vec<(Listed, usize, u64, Pba)>,
    /// Headers of records behind the checkpoint.
    behind: Vec<Pba>,
    /// All headers.
    headers: Vec<Pba>,
    config: Config,
}

thread_local! {
    static STORES: Vec<Crafted> = stores();
}

fn stores() -> Vec<Crafted> {
    let ways = [Reclaim::CopyOut, Reclaim::Threaded, Reclaim::HoleFill].map(|way| (way, empty()));
    // The last one knows the page of the flash below, and so fills holes.
    let cuts =
        ways.into_iter().chain([(Reclaim::Threaded, on_flash())]).map(|(reclaim, device)| {
            let config = Config { reclaim, ..small() };
            let mut hand = Hand::open(device, config);
            write_over(&mut hand);
            let discard = Request::Discard { lba: Lba(300), count: 900, fua: false };
            hand.submit(discard).expect("nothing is under way");
            hand.run();
            let mut random = Random::new(7);
            let size = hand.engine.geometry().volume_size;
            for number in 0..90u64 {
                let count = 1 + number % 5;
                assert!(hand.write(random.below(size - count), count as u32, number as u8));
            }
            hand.device.flush_all();
            Crafted::of(hand.device, config)
        });
    let mut hand = Hand::open(empty(), small());
    write_over(&mut hand);
    hand.submit(Request::Shutdown).expect("nothing is under way");
    hand.run();
    hand.device.flush_all();
    let mut stores: Vec<_> = cuts.collect();
    stores.push(Crafted::of(hand.device, small()));
    // Its roots are in a list.
    let mut hand = Hand::open(with_root_list(), small());
    write_over(&mut hand);
    hand.device.flush_all();
    stores.push(Crafted::of(hand.device, small()));
    stores
}

fn read(device: &Device, pba: Pba) -> Block {
    let mut block = [[0; BLOCK_SIZE]];
    device.read(pba, &mut block);
    block[0]
}

impl Crafted {
    fn of(device: Device, config: Config) -> Crafted {
        let first = Superblock::decode(&read(&device, Pba(0))).expect("the engine wrote it");
        let second = Superblock::decode(&read(&device, first.geometry.second_superblock));
        let copies = second.into_iter().chain([first]);
        let superblock = copies.max_by_key(|copy| copy.generation).expect("one is there");
        let block = read(&device, superblock.location());
        let location = superblock.checkpoint;
        let count = location.size.div_ceil(BLOCK_SIZE as u32);
        let mut body: Vec<u8> =
            (0..count).flat_map(|offset| read(&device, location.pba.plus(offset))).collect();
        body.truncate(location.size as usize);
        let listed = listed(&body);
        let mut leaves = Vec::new();
        for root in listed.iter().filter(|listed| listed.kind == Kind::Root) {
            for (slot, pointer) in map_page::decode(&read(&device, root.pba)).enumerate() {
                if pointer.is_mapped() {
                    leaves.push((*root, slot, root.key * 512 + slot as u64, pointer.pba));
                }
            }
        }
        let log = superblock.geometry.first_segment.0..device.size() as u32;
        let header = |pba: u32| {
            let block = read(&device, Pba(pba));
            RecordView::decode(&block, &superblock.store, Pba(pba)).ok().map(|view| view.header())
        };
        let found: Vec<_> = log.filter_map(header).collect();
        let counts = |epoch, sequence| epoch == superblock.epoch && sequence > location.sequence;
        let behind = found.iter().filter(|header| counts(header.epoch, header.sequence));
        let behind = behind.map(|header| header.pba).collect();
        let headers = found.iter().map(|header| header.pba).collect();
        Crafted { device, superblock, block, body, listed, leaves, behind, headers, config }
    }

    fn change(&mut self, input: &mut Input<'_>) {
        match input.byte() % 12 {
            0 => {
                let field = pick(input, SUPERBLOCK_FIELDS);
                let mut block = self.block;
                self.set(&mut block, field, input);
                self.block = block;
            }
            1 => {
                let field = pick(input, BODY_FIELDS);
                self.set_in_body(field, input);
            }
            2 => {
                // Anything in the lists.
                let words = self.body.len() / 4 - 18;
                let field = (72 + 4 * input.below(words as u64) as usize, 4);
                self.set_in_body(field, input);
            }
            3 => self.change_page(Kind::SegmentTable, input, |input, geometry| {
                let segments = geometry.segment_count.min(SEGMENTS_PER_PAGE as u32);
                let segment = input.below(u64::from(segments)) as usize;
                (16 * segment, SEGMENT_FIELDS)
            }),
            4 => self.change_page(Kind::Run, input, |input, _| match input.byte() % 2 {
                0 => (0, RUN_FIELDS),
                _ => (12 * input.below(100) as usize, &RUN_FIELDS[2..5]),
            }),
            5 if self.superblock.geometry.root_lists => {
                self.change_page(Kind::RootList, input, |input, _| {
                    (ENTRY_SIZE * input.below(4) as usize, ROOT_LIST_FIELDS)
                });
            }
            5 => self.change_page(Kind::Root, input, |input, _| {
                (8 * input.below(12) as usize, ENTRY_FIELDS)
            }),
            6 => self.change_leaf(input),
            7 => {
                let from = self.record(input);
                let to = Pba(input.below(self.device.size()) as u32);
                self.put_record(from, to, input);
            }
            8 => {
                // To the start of a segment: where a stream would go on.
                let from = self.record(input);
                let geometry = self.superblock.geometry;
                let segment = input.below(u64::from(geometry.segment_count)) as u32;
                let to = geometry.first_segment.plus(segment * geometry.segment_blocks);
                self.put_record(from, to, input);
            }
            _ => {
                let from = self.record(input);
                self.put_record(from, from, input);
            }
        }
    }

    /// A record, more often than not one behind the checkpoint.
    fn record(&self, input: &mut Input<'_>) -> Pba {
        let all = input.byte().is_multiple_of(8) || self.behind.is_empty();
        let among = if all { &self.headers } else { &self.behind };
        among[input.below(among.len() as u64) as usize]
    }

    /// Puts a record, with a field changed or two, there.
    fn put_record(&mut self, from: Pba, to: Pba, input: &mut Input<'_>) {
        let mut header = read(&self.device, from);
        for _ in 0..1 + input.byte() % 3 {
            let field = match input.byte() % 4 {
                0 => (96 + 4 * input.below(200) as usize, 4),
                _ => pick(input, RECORD_FIELDS),
            };
            self.set(&mut header, field, input);
        }
        header[56..60].copy_from_slice(&to.0.to_le_bytes());
        crate::decoders::seal(&mut header, self.superblock.store.salt);
        // With its payload, as far as there is room.
        let count = (self.device.size() - u64::from(to.0.max(from.0))).min(8) as u32;
        let payload: Vec<Block> =
            (1..count).map(|offset| read(&self.device, from.plus(offset))).collect();
        let blocks: Vec<Block> = std::iter::once(header).chain(payload).collect();
        self.device.write(to, &blocks);
    }

    fn change_page(
        &mut self,
        kind: Kind,
        input: &mut Input<'_>,
        place: impl Fn(
            &mut Input<'_>,
            &coulter_format::superblock::Geometry,
        ) -> (usize, &'static [Field]),
    ) {
        let pages: Vec<Listed> =
            self.listed.iter().filter(|listed| listed.kind == kind).copied().collect();
        if pages.is_empty() {
            return;
        }
        let page = pages[input.below(pages.len() as u64) as usize];
        let (start, fields) = place(input, &self.superblock.geometry);
        let (at, size) = pick(input, fields);
        let mut block = read(&self.device, page.pba);
        self.set(&mut block, (start + at, size), input);
        self.write_page(page, block);
    }

    fn write_page(&mut self, page: Listed, block: Block) {
        self.device.write(page.pba, &[block]);
        let sum = checksum::block(page.kind, page.key, &block);
        self.body[page.at + 4..page.at + 8].copy_from_slice(&sum.to_le_bytes());
    }

    fn change_leaf(&mut self, input: &mut Input<'_>) {
        if self.leaves.is_empty() {
            return;
        }
        let (root, slot, key, pba) = self.leaves[input.below(self.leaves.len() as u64) as usize];
        let mut block = read(&self.device, pba);
        let (at, size) = pick(input, ENTRY_FIELDS);
        let entry = input.below(512) as usize;
        self.set(&mut block, (8 * entry + at, size), input);
        self.device.write(pba, &[block]);
        let sum = checksum::block(Kind::Leaf, key, &block);
        let mut page = read(&self.device, root.pba);
        page[8 * slot + 4..8 * slot + 8].copy_from_slice(&sum.to_le_bytes());
        self.write_page(root, page);
    }

    fn set_in_body(&mut self, field: Field, input: &mut Input<'_>) {
        let mut body = std::mem::take(&mut self.body);
        self.set(&mut body, field, input);
        self.body = body;
    }

    /// Gives a field another value: one that is near, at a limit, or found elsewhere.
    fn set(&self, bytes: &mut [u8], (at, size): Field, input: &mut Input<'_>) {
        let Some(field) = bytes.get(at..at + size) else { return };
        let mut old = [0; 8];
        old[..size].copy_from_slice(field);
        let old = u64::from_le_bytes(old);
        let geometry = self.superblock.geometry;
        let (how, number) = (input.byte() % 20, input.below(1 << 16));
        let value = match how {
            0 => old.wrapping_add(1 + number % 4),
            1 => old.wrapping_sub(1 + number % 4),
            2 => 0,
            3 => u64::MAX,
            4 => (1 << 62) - 1 - number % 4,
            5 => 1 << 62,
            6 => (1 << 63) - 1 - number % 3,
            7 => old ^ 1 << (number % 64),
            8 => number % u64::from(geometry.segment_count),
            9 => number % self.device.size(),
            10 => number % 8,
            11 => geometry.volume_size - 2 + number % 4,
            12 => self.superblock.checkpoint.sequence + number % 64,
            13 => self.superblock.epoch + number % 3,
            14 => number << 16 | number,
            15 => old | 1 << 31,
            // A field that is its like, most likely.
            16 => {
                let other = number as usize % bytes.len().saturating_sub(8).max(1) / 4 * 4;
                let mut other_value = [0; 8];
                other_value[..size].copy_from_slice(&bytes[other..other + size]);
                u64::from_le_bytes(other_value)
            }
            17 => geometry.volume_size << (number % 40),
            18 => (geometry.volume_size | 511) + 1 + (number << 18),
            _ => number,
        };
        bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }

    /// Makes the checksums of body and superblocks match.
    fn seal(&mut self, twin: u8) {
        let location = self.superblock.checkpoint;
        let mut blocks = vec![[0; BLOCK_SIZE]; self.body.len().div_ceil(BLOCK_SIZE)];
        blocks.as_flattened_mut()[..self.body.len()].copy_from_slice(&self.body);
        self.device.write(location.pba, &blocks);
        let size = u32::from_le_bytes(self.block[124..128].try_into().expect("four bytes"));
        let covered = self.body.get(..size as usize).unwrap_or(&self.body);
        self.block[128..132].copy_from_slice(&crc32c(covered).to_le_bytes());
        let newest = self.superblock.location();
        let mut other = self.block;
        let generation = u64::from_le_bytes(other[32..40].try_into().expect("eight bytes"));
        crate::decoders::seal(&mut self.block, 0);
        let second = self.superblock.geometry.second_superblock;
        let (place, twin_place) = match generation.is_multiple_of(2) {
            true => (Pba(0), second),
            false => (second, Pba(0)),
        };
        match twin % 4 {
            0 => {}
            1 => self.device.write(twin_place, &[[0; BLOCK_SIZE]]),
            _ => {
                other[32..40].copy_from_slice(&generation.wrapping_sub(1).to_le_bytes());
                crate::decoders::seal(&mut other, 0);
                self.device.write(twin_place, &[other]);
            }
        }
        self.device.write(if twin.is_multiple_of(4) { newest } else { place }, &[self.block]);
        self.device.flush_all();
    }
}

fn pick(input: &mut Input<'_>, fields: &[Field]) -> Field {
    fields[usize::from(input.byte()) % fields.len()]
}

/// Every page that a body lists.
fn listed(body: &[u8]) -> Vec<Listed> {
    let view = BodyView::decode(body).expect("the engine wrote it");
    let roots = 72 + 8 * view.heads().count() + 4 * view.counts().reserved as usize;
    let table = roots + 16 * view.roots().count() + 8 * view.root_lists().count();
    let runs = table + 8 * view.table().count();
    let mut listed = Vec::new();
    for (index, (key, pointer)) in view.roots().enumerate() {
        let at = roots + 16 * index + 8;
        listed.push(Listed { at, kind: Kind::Root, key, pba: pointer.pba });
    }
    for (index, pointer) in view.root_lists().enumerate() {
        let (at, key) = (roots + 8 * index, index as u64);
        listed.push(Listed { at, kind: Kind::RootList, key, pba: pointer.pba });
    }
    for (index, pointer) in view.table().enumerate() {
        let (at, key) = (table + 8 * index, index as u64);
        listed.push(Listed { at, kind: Kind::SegmentTable, key, pba: pointer.pba });
    }
    let mut at = runs;
    for (run, blocks) in view.runs() {
        at += 32;
        for (index, pointer) in blocks.iter().enumerate() {
            let key = run.number << 20 | index as u64;
            listed.push(Listed { at, kind: Kind::Run, key, pba: pointer.pba });
            at += 8;
        }
    }
    listed
}

/// Changes a store as the bytes say, and has it checked, opened and used.
pub(crate) fn store(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let first = input.byte();
    let mut crafted = STORES.with(|stores| stores[usize::from(first) % stores.len()].clone());
    for _ in 0..CHANGE_COUNT_MAX {
        if input.is_empty() {
            break;
        }
        crafted.change(&mut input);
    }
    crafted.seal(first / 4);
    let report = check(&crafted.device);
    let at_fault = report.findings.iter().any(|finding| finding.severity() == Severity::Fault);
    let mut hand = Hand::begin(crafted.device, crafted.config);
    drive(&mut hand);
    if let Phase::Failed(error) = hand.engine.phase() {
        // With more memory it would be opened, as far as the engine knows.
        let memory = matches!(error, OpenError::MapMemory { .. });
        assert!(at_fault || memory, "refused as {error:?}, and the checker finds no fault");
        return;
    }
    let size = hand.engine.geometry().volume_size;
    use_it(&mut hand, size, first);
    let findings = report.counters.faults + report.counters.warnings;
    if let Some(errno) = hand.engine.read_only() {
        assert!(findings > 0, "read-only by {errno}, and the checker finds nothing wrong");
    }
}

fn check(device: &Device) -> Report {
    let mut blocks = BlockFn {
        size_blocks: device.size(),
        read: |pba: Pba, block: &mut Block| {
            *block = read(device, pba);
            Ok(())
        },
    };
    let mut salvage = coulter_check::salvage::Options { events_max: 4096, ..Default::default() };
    let mut taken = crate::store::Taken::default();
    let _ = coulter_check::salvage::salvage(&mut blocks, &mut taken, &mut salvage);
    let mut options = coulter_check::Options { data: true, ..Default::default() };
    coulter_check::check(&mut blocks, &mut options)
}

/// Reads, writes over much of the volume, so that it is cleaned, discards, and closes.
fn use_it(hand: &mut Hand, size: u64, seed: u8) {
    for lba in (0..size).step_by(29) {
        let buffer = hand.memory.add_host(vec![[0; BLOCK_SIZE]]);
        let _ = hand.submit(Request::Read { lba: Lba(lba), count: 1, buffer });
        drive(hand);
        hand.memory.take_host(buffer);
    }
    let mut random = Random::new(seed.into());
    for number in 0..260u64 {
        let count = 1 + number % 16;
        let lba = random.below(size.saturating_sub(count).max(1));
        let _ = hand.try_write(lba, count.min(size - lba) as u32, number as u8);
        drive(hand);
    }
    let count = (size - size / 3).min(700);
    let _ = hand.submit(Request::Discard { lba: Lba(size / 3), count, fua: true });
    drive(hand);
    let _ = hand.submit(Request::Flush);
    drive(hand);
    let _ = hand.submit(Request::Shutdown);
    drive(hand);
}

fn drive(hand: &mut Hand) {
    let within: Range<usize> = 0..COMMAND_COUNT_MAX;
    for _ in within {
        hand.poll();
        if hand.out.is_empty() {
            return;
        }
        hand.complete(0, Ok(()));
    }
    panic!("the engine never rests: {:?}", hand.engine.statistics());
}
