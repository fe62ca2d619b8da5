//! Goal: a drive that says that it writes whole pages or none does so, with every FTL; and a volume that relies on
//! that to pad partly dead pages loses nothing. What padding costs and spares is measured here too.

use coulter::{CreateOptions, OpenOptions, Volume};
use coulter_device::{AlignedMemory, Device, blocking};
use coulter_flash::{Drive, FlashStore, FtlKind, FtlOptions, Keep, Pacing, Profile};
use coulter_workload::{BLOCK_SIZE, Content, Origin, Pattern, Random};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = 16 << 10;
const PAGE_BLOCKS: usize = PAGE as usize / BLOCK_SIZE;

/// The board of the S-LFS paper, with fewer erase blocks of 2 MiB; `spare_percent` of them are the FTL's.
fn board(erase_blocks: u32, spare_percent: u32) -> FlashStore {
    drive(FtlKind::Sftl, erase_blocks, spare_percent)
}

fn drive(kind: FtlKind, erase_blocks: u32, spare_percent: u32) -> FlashStore {
    let mut profile = Profile::named("openssd").expect("it comes with the crate");
    profile.geometry.exported_erase_blocks = erase_blocks;
    profile.geometry.erase_blocks = erase_blocks + 1;
    profile.log_blocks = 12;
    profile.buffer_pages = 8;
    let profile = profile.with_spare_percent(spare_percent).expect("possible");
    let drive = Drive::new(profile, kind, FtlOptions::default(), Keep::Bytes);
    FlashStore::new(drive.expect("it works there"))
}

/// What pages may hold after a power cut: a byte for each block, for each write since the last flush.
struct Pages(Vec<Vec<[u8; PAGE_BLOCKS]>>);

impl Pages {
    fn write(&mut self, first: usize, bytes: &[u8]) {
        for (block, byte) in (first..).zip(bytes) {
            let states = &mut self.0[block / PAGE_BLOCKS];
            let begins = block == first || block.is_multiple_of(PAGE_BLOCKS);
            if begins {
                states.push(*states.last().expect("it holds something"));
            }
            states.last_mut().expect("it was pushed")[block % PAGE_BLOCKS] = *byte;
        }
    }

    fn flushed(&mut self) {
        for states in &mut self.0 {
            states.drain(..states.len() - 1);
        }
    }
}

/// Writes of one block up to three pages, aligned to pages or not, and flushes, till the power goes.
fn write_until_cut(device: &mut impl Device, pages: &mut Pages, random: &mut Random) {
    let blocks = pages.0.len() * PAGE_BLOCKS;
    for step in 1..2000u64 {
        let count = 1 + random.below(3 * PAGE_BLOCKS as u64) as usize;
        let first = random.below((blocks - count) as u64) as usize;
        let bytes: Vec<u8> = (0..count as u64).map(|at| (1 + (step + at) % 255) as u8).collect();
        let mut memory = AlignedMemory::zeroed(count * BLOCK_SIZE);
        for (target, byte) in memory.chunks_mut(BLOCK_SIZE).zip(&bytes) {
            target.fill(*byte);
        }
        pages.write(first, &bytes);
        if blocking::write(device, (first * BLOCK_SIZE) as u64, &mut memory).is_err() {
            return;
        }
        if random.below(7) == 0 {
            if blocking::flush(device).is_err() {
                return;
            }
            pages.flushed();
        }
    }
}

#[test]
fn a_page_is_whole_or_not_there_after_a_power_cut_on_every_ftl() {
    let mut undecided = 0;
    for kind in FtlKind::ALL {
        let store = drive(kind, 16, 120);
        let page_count = 12 * 128;
        let mut pages = Pages(vec![vec![[0; PAGE_BLOCKS]]; page_count]);
        let mut random = Random::new(7);
        for _ in 0..25 {
            let cut = 1 + random.below(400);
            store.with(|drive| drive.cut_power_after(cut)).expect("nothing has it open");
            let mut device = store.open(Pacing::Virtual).expect("nothing has it open");
            assert_eq!(device.properties().atomic_page, PAGE, "{kind}: it says so");
            write_until_cut(&mut device, &mut pages, &mut random);
            drop(device);
            store.power_on().expect("nothing has it open");
            let mut device = store.open(Pacing::Virtual).expect("nothing has it open");
            let mut memory = AlignedMemory::zeroed(PAGE as usize);
            for (page, states) in pages.0.iter_mut().enumerate() {
                blocking::read(&mut device, page as u64 * PAGE, &mut memory).expect("power is on");
                let found: Vec<u8> = memory.chunks(BLOCK_SIZE).map(|block| block[0]).collect();
                let is_one = |state: &&[u8; PAGE_BLOCKS]| state[..] == found[..];
                let state = states.iter().rev().find(is_one);
                let state = *state.unwrap_or_else(|| {
                    panic!("{kind}: page {page} is {found:?}, none of {states:?}")
                });
                undecided += states.len() - 1;
                *states = vec![state];
            }
        }
    }
    assert!(undecided > 500, "only {undecided} states were at stake");
}

fn create(store: &FlashStore, spare_percent: u32) {
    let options = CreateOptions {
        segment_size: Some(2 << 20),
        page_size: Some(PAGE),
        spare_percent,
        ..CreateOptions::default()
    };
    let device = store.open(Pacing::Virtual).expect("nothing has it open");
    coulter::create(Box::new(device), &options).expect("it fits");
}

fn open(store: &FlashStore, pad_pages: bool) -> Volume {
    let device = Box::new(store.open(Pacing::Virtual).expect("nothing has it open"));
    let options = OpenOptions { trim: true, pad_pages, ..OpenOptions::default() };
    Volume::open(device, options).expect("a store lies there")
}

/// Overwrites of a few blocks at random, with a flush after each few, through many lives.
#[test]
fn a_volume_that_pads_keeps_what_was_flushed_over_power_cuts() {
    let store = board(48, 40);
    create(&store, 25);
    let content = Content::new(5);
    let mut random = Random::new(6);
    let volume = open(&store, true);
    let blocks = volume.size() / BLOCK_SIZE as u64;
    let mut durable = vec![1u64; blocks as usize];
    let mut bytes = vec![0; BLOCK_SIZE];
    for block in 0..blocks {
        content.fill(&mut bytes, Origin { block, version: 1 });
        volume.write_at(block * BLOCK_SIZE as u64, &bytes).expect("power is on");
    }
    volume.close().expect("power is on");
    let mut padded = 0;
    for life in 0..8u64 {
        let cut = 500 + random.below(9000);
        store.with(|drive| drive.cut_power_after(cut)).expect("nothing has it open");
        let device = store.open(Pacing::Virtual).expect("nothing has it open");
        let options = OpenOptions { trim: true, pad_pages: true, ..OpenOptions::default() };
        if let Ok(volume) = Volume::open(Box::new(device), options) {
            'life: for step in 0..1000u64 {
                let mut written = Vec::new();
                for place in 0..24u64 {
                    let block = random.below(blocks);
                    let version = life << 32 | step << 8 | place | 1 << 40;
                    content.fill(&mut bytes, Origin { block, version });
                    if volume.write_at(block * BLOCK_SIZE as u64, &bytes).is_err() {
                        break 'life;
                    }
                    written.push((block, version));
                }
                if volume.flush().is_err() {
                    break;
                }
                written.into_iter().for_each(|(block, version)| durable[block as usize] = version);
            }
            padded += volume.statistics().written.padded_bytes;
            let _ = volume.abandon();
        }
        store.power_on().expect("nothing has it open");
        let volume = open(&store, true);
        for (block, version) in durable.iter().enumerate() {
            volume.read_at((block * BLOCK_SIZE) as u64, &mut bytes).expect("it can be read");
            let origin = content.origin(&bytes).expect("whole content");
            assert_eq!(origin.block, block as u64);
            assert!(origin.version >= *version, "life {life}: block {block} is older than flushed");
        }
        volume.close().expect("power is on");
    }
    assert!(padded > 4 << 20, "only {padded} bytes were padded");
}

/// A device that does not say so is refused, and a store that knows of no pages too.
#[test]
fn padding_is_refused_where_nobody_says_that_pages_are_whole() {
    let memory = coulter_device::MemoryStore::new(64 << 20);
    let options = |page_size| CreateOptions {
        segment_size: Some(2 << 20),
        page_size,
        ..CreateOptions::default()
    };
    let open = |device: Box<dyn Device>| {
        let refused =
            Volume::open(device, OpenOptions { pad_pages: true, ..OpenOptions::default() });
        refused.expect_err("it is refused").to_string()
    };
    coulter::create(Box::new(memory.open().expect("free")), &options(Some(PAGE))).expect("it fits");
    let why = open(Box::new(memory.open().expect("free")));
    assert!(why.contains("does not say that it writes pages whole"), "{why}");
    let store = board(48, 40);
    coulter::create(Box::new(store.open(Pacing::Virtual).expect("free")), &options(None))
        .expect("it fits");
    let why = open(Box::new(store.open(Pacing::Virtual).expect("free")));
    assert!(why.contains("knows no page size"), "{why}");
}

/// What a load cost.
struct Figures {
    megabytes_per_second: f64,
    volume: f64,
    cleaning: f64,
    padding: f64,
    flash: f64,
    erases_per_gib: f64,
    partial_pages: u64,
    segments_cleaned: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} | {} | {}",
            self.megabytes_per_second,
            self.volume,
            self.cleaning,
            self.padding,
            self.flash,
            self.erases_per_gib,
            self.partial_pages,
            self.segments_cleaned
        )
    }
}

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Blocks of 4 KiB, each as likely as any other, 32 at a time.
    Random,
    /// Transactions, eight at a time: four updates of 8 KiB pages by Zipf 0.9, a block of log, a flush.
    Transactions,
}

/// Writes `blocks` blocks in all; how many it was.
fn work(volume: &Volume, load: Load, blocks: u64, seed: u64) -> u64 {
    let size = volume.size() / BLOCK_SIZE as u64;
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (threads, done) = (if load == Load::Random { 32 } else { 8 }, &done);
        for thread in 0..threads {
            scope.spawn(move || {
                let bytes = vec![thread as u8; 2 * BLOCK_SIZE];
                let write = |block: u64, count: usize| {
                    let offset = block * BLOCK_SIZE as u64;
                    volume.write_at(offset, &bytes[..count * BLOCK_SIZE]).expect("power is on");
                    done.fetch_add(count as u64, Ordering::Relaxed);
                };
                let log = size / 64;
                let pattern = match load {
                    Load::Random => Pattern::Uniform.over(size, seed + thread),
                    Load::Transactions => {
                        let pages = (size - log) / 2;
                        Pattern::Zipf { theta: 0.9 }.over(pages, seed)
                    }
                };
                let mut addresses = pattern;
                // Each draws others of the same distribution.
                (0..thread * 10_007).for_each(|_| {
                    addresses.address();
                });
                let mut at = thread;
                while done.load(Ordering::Relaxed) < blocks {
                    match load {
                        Load::Random => write(addresses.address(), 1),
                        Load::Transactions => {
                            (0..4).for_each(|_| write(log + 2 * addresses.address(), 2));
                            write(at % log, 1);
                            at += threads;
                            volume.flush().expect("power is on");
                        }
                    }
                }
            });
        }
    });
    done.into_inner()
}

fn measure(store: &FlashStore, load: Load, pad_pages: bool, rounds: u64) -> Figures {
    let volume = open(store, pad_pages);
    let size = volume.size() / BLOCK_SIZE as u64;
    let filling = vec![1; 64 * BLOCK_SIZE];
    for first in (0..size).step_by(64) {
        let count = 64.min(size - first) as usize;
        let offset = first * BLOCK_SIZE as u64;
        volume.write_at(offset, &filling[..count * BLOCK_SIZE]).expect("power is on");
    }
    work(&volume, load, rounds * size, 1);
    volume.close().expect("power is on");
    let counters = || {
        let counted = store.with(|drive| (*drive.counters(), *drive.nand().counters()));
        (counted.expect("closed"), store.now())
    };
    let (before, began) = counters();
    let volume = open(store, pad_pages);
    let written = work(&volume, load, rounds * size, 1_000_003) as f64;
    let statistics = volume.statistics();
    volume.close().expect("power is on");
    let (after, ended) = counters();
    let (drive, nand) = (after.0.since(&before.0), after.1.since(&before.1));
    let bytes = written * BLOCK_SIZE as f64;
    let share = |of: u64| of as f64 / statistics.written.host_bytes as f64;
    Figures {
        megabytes_per_second: bytes * 1e3 / (ended - began) as f64,
        volume: statistics.written.total_bytes() as f64 / statistics.written.host_bytes as f64,
        cleaning: share(statistics.written.relocated_bytes),
        padding: share(statistics.written.padded_bytes),
        flash: nand.programs.total() as f64 * PAGE as f64 / bytes,
        erases_per_gib: nand.erases as f64 / bytes * f64::from(1 << 30),
        partial_pages: drive.partial_pages,
        segments_cleaned: statistics.space.segments_cleaned,
    }
}

/// `make slfs-padding`; the table is in docs/flash.md.
#[test]
#[ignore = "takes minutes"]
fn what_padding_costs_and_spares() {
    println!(
        "| load | spare | padding | MB/s of virtual time | WAF of the volume | cleaning | padding | flash × written | erases per GiB | pages written in part | segments cleaned |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for load in [Load::Random, Load::Transactions] {
        for spare in [25, 60] {
            for pad_pages in [false, true] {
                let store = board(128, 15);
                create(&store, spare);
                let figures = measure(&store, load, pad_pages, 3);
                println!(
                    "| {load:?} | {spare} % | {} | {figures} |",
                    if pad_pages { "host" } else { "none" }
                );
            }
        }
    }
}
