//! Opening when memory is refused: an error each time, no abort, and nothing is lost of what there was.
//! Alone in its program, for the allocator is the program's.

use coulter_engine::create::{CreateOptions, create};
use coulter_engine::{Buffers, Command, Config, Engine, OpenError, Phase, Request, Target};
use coulter_format::{Lba, StoreId};
use coulter_sim::buffers::Memory;
use coulter_sim::device::Device;
use coulter_sim::hand::Hand;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Requests for memory that are granted before one is refused; `None` for all of them.
    static GRANTED: Cell<Option<u64>> = const { Cell::new(None) };
    static ASKED: Cell<u64> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

struct Refusing;

/// Whether a request of this size is granted. Only the engine's are counted, and refused.
fn grants(size: usize) -> bool {
    if !COUNTS.get() {
        return true;
    }
    ASKED.set(ASKED.get() + 1);
    LARGEST.set(LARGEST.get().max(size));
    match GRANTED.get() {
        Some(0) => false,
        Some(left) => {
            GRANTED.set(Some(left - 1));
            true
        }
        None => true,
    }
}

// SAFETY: all is passed on to the system's allocator, or refused with a null pointer.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !grants(layout.size()) {
            return std::ptr::null_mut();
        }
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: it came from there, with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !grants(size) {
            return std::ptr::null_mut();
        }
        HELD.set(HELD.get() + size as i64 - layout.size() as i64);
        // SAFETY: it came from there, with this layout.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// What the engine does, its requests for memory being counted.
fn counted<T>(engine: impl FnOnce() -> T) -> T {
    COUNTS.set(true);
    let result = engine();
    COUNTS.set(false);
    result
}

/// Opens up to the point where reads are served.
fn open(device: &Device, config: Config, memory: &mut Memory) -> Result<Engine, OpenError> {
    let mut engine = counted(|| Engine::open(config, device.size()))?;
    loop {
        if let Phase::Failed(error) = engine.phase() {
            return Err(error);
        }
        let io = counted(|| engine.poll_io(memory));
        if let Phase::Failed(error) = engine.phase() {
            return Err(error);
        }
        if engine.phase() != Phase::Opening {
            return Ok(engine);
        }
        let Some(io) = io else { continue };
        let Command::Read { pba, count, target } = io.command else {
            panic!("only reads while it opens: {io:?}")
        };
        let mut blocks = vec![[0; coulter_format::BLOCK_SIZE]; count as usize];
        device.read(pba, &mut blocks);
        match target {
            Target::Record(record) => {
                memory.record_mut(record)[..blocks.len()].copy_from_slice(&blocks);
            }
            Target::Page(page) => *memory.page_mut(page) = blocks[0],
            other => panic!("{other:?} is not read into while it opens"),
        }
        counted(|| engine.handle_completion(io.id, Ok(()), memory));
    }
}

fn store(sparse: bool) -> Device {
    let options = CreateOptions {
        device_size: 256 * 41,
        sparse: sparse.then_some(coulter_engine::create::Sparse {
            address_limit: 1 << 40,
            root_limit: Some(8),
            root_lists: true,
        }),
        volume_size: None,
        segment_blocks: 256,
        spare_percent: 30,
        store: StoreId { uuid: [6; 16], salt: 1 },
        label: [0; 64],
        map_size: None,
        journal_size: None,
        run_count_limit: None,
        page_blocks: None,
    };
    let (_, blocks) = create(&options).expect("laid out");
    let mut device = Device::new(options.device_size);
    blocks.into_iter().for_each(|(pba, block)| device.write(pba, &[block]));
    device.flush_all();
    device
}

/// A store with runs, records behind the checkpoint, records in holes, discards, and roots far apart.
fn written(sparse: bool, config: Config) -> Device {
    let mut hand = Hand::open(store(sparse), config);
    for turn in 0..1200u64 {
        let spread = if sparse { 1 << 38 } else { 1 << 11 };
        let lba = (turn * 37 % 600) + (turn % 3) * spread;
        hand.write(lba, 1 + (turn % 5) as u32, turn as u8);
        if turn % 50 == 49 {
            hand.submit(Request::Discard { lba: Lba(lba), count: 700, fua: false });
        }
        hand.run();
    }
    hand.flush();
    hand.run();
    hand.device
}

#[test]
fn whichever_request_for_memory_is_refused_opening_is_an_error_and_nothing_leaks() {
    for (sparse, config) in [(false, Config::default()), (true, Config::default())] {
        let config = Config {
            record_count: 12,
            page_count: 16,
            request_count: 32,
            reclaim: coulter_engine::reclaim::Reclaim::Threaded,
            ..config
        };
        let device = written(sparse, config);
        let mut memory = Memory::new(config.record_count, config.page_count);
        ASKED.set(0);
        let engine = open(&device, config, &mut memory).expect("all memory is granted");
        assert!(engine.statistics().records_replayed > 0, "there is something to replay");
        drop(engine);
        let asked = ASKED.get();
        assert!(asked > 100, "{asked}");
        assert!(LARGEST.get() <= 1 << 20, "{} bytes were asked for at once", LARGEST.get());
        for granted in 0..asked {
            let before = HELD.get();
            GRANTED.set(Some(granted));
            let refused = open(&device, config, &mut memory);
            GRANTED.set(None);
            assert!(
                matches!(refused, Err(OpenError::Memory { .. })),
                "request {granted} of {asked} was refused: {:?}",
                refused.map(|engine| engine.phase())
            );
            drop(refused);
            assert_eq!(HELD.get(), before, "request {granted} of {asked} leaves something behind");
        }
        println!("{asked} requests, sparse: {sparse}");
        let whole = open(&device, config, &mut memory).expect("there is memory again");
        drop(whole);
    }
}
