//! An engine that has run for a while asks for no more memory: neither for writes of one range and of several, reads,
//! discards and flushes, nor for cleaning, checkpoints, a scrub and defragmentation. That a scrub begins may take
//! memory, and be refused. Alone in its program, for the allocator is the program's.

use coulter_engine::reclaim::Reclaim;
use coulter_engine::scrub::ScrubState;
use coulter_engine::{
    Buffers, Change, ChangeKind, Command, Config, Io, Request, RequestId, Statistics, Target,
};
use coulter_format::{BLOCK_SIZE, Lba, Pba};
use coulter_sim::hand::{Hand, store};
use coulter_sim::random::Random;
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static ASKED: Cell<u64> = const { Cell::new(0) };
    /// Whether the first request is remembered, and where it came from.
    static WATCHES: Cell<bool> = const { Cell::new(false) };
    static FIRST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The system's allocator, counting what the engine asks for.
struct Counting;

fn note() {
    if !COUNTS.get() {
        return;
    }
    ASKED.set(ASKED.get() + 1);
    if WATCHES.replace(false) {
        COUNTS.set(false);
        FIRST.set(Some(Backtrace::force_capture().to_string()));
        COUNTS.set(true);
    }
}

// SAFETY: all is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: it came from there, with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: it came from there, with this layout.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What the engine does, its requests for memory being counted.
fn counted<T>(engine: impl FnOnce() -> T) -> T {
    COUNTS.set(true);
    let result = engine();
    COUNTS.set(false);
    result
}

/// The device does what it is told.
fn execute(hand: &mut Hand, io: &Io) {
    let Hand { device, memory, .. } = hand;
    match io.command {
        Command::Read { pba, count, target } => {
            let mut blocks = vec![[0; BLOCK_SIZE]; count as usize];
            device.read(pba, &mut blocks);
            match target {
                Target::Record(record) => {
                    memory.record_mut(record)[..blocks.len()].copy_from_slice(&blocks);
                }
                Target::RecordPart { record, block } => {
                    memory.record_mut(record)[block as usize..][..blocks.len()]
                        .copy_from_slice(&blocks);
                }
                Target::Page(page) => *memory.page_mut(page) = blocks[0],
                Target::Request { buffer, block } => {
                    memory.host_mut(buffer)[block as usize..][..blocks.len()]
                        .copy_from_slice(&blocks);
                }
            }
        }
        Command::Write { pba, count, source, .. } => {
            let count = count as usize;
            match source {
                Target::Record(record) => device.write(pba, &memory.record(record)[..count]),
                Target::RecordPart { record, block } => {
                    device.write(pba, &memory.record(record)[block as usize..][..count]);
                }
                Target::Page(page) => device.write(pba, &[*memory.page(page)]),
                Target::Request { .. } => panic!("host memory is never written from"),
            }
        }
        Command::Flush => device.flush_all(),
        Command::Prepare { .. } => {}
        Command::Discard { pba, count } => clear(hand, pba, count),
    }
}

fn clear(hand: &mut Hand, pba: Pba, count: u32) {
    hand.device.write(pba, &vec![[0; BLOCK_SIZE]; count as usize]);
}

/// Lets all that is out end, and takes the answers. Returns how many there were.
fn turn(hand: &mut Hand) -> usize {
    let mut out = Vec::new();
    while let Some(io) = counted(|| hand.engine.poll_io(&mut hand.memory)) {
        execute(hand, &io);
        out.push(io.id);
    }
    for id in out {
        counted(|| hand.engine.handle_completion(id, Ok(()), &mut hand.memory));
    }
    let mut answers = 0;
    while let Some(response) = counted(|| hand.engine.poll_response()) {
        response.result.expect("the device does what it is told");
        answers += 1;
    }
    answers
}

/// A scrub begins anew when it is over, and so does a pass of defragmentation. Returns how many scrubs have gone through.
fn keep_busy(hand: &mut Hand, begins_to_defragment: bool) -> u64 {
    if begins_to_defragment {
        counted(|| hand.engine.set_defrag(true));
    }
    let state = hand.engine.scrub().state;
    if state != ScrubState::Running {
        assert!(hand.engine.start_scrub(0), "there is memory");
    }
    u64::from(state == ScrubState::Done)
}

/// So many requests, up to eight at a time; with all that is done on demand meanwhile, if `is_busy`. Returns how many scrubs have ended meanwhile.
fn work(hand: &mut Hand, requests: u64, volume: u64, random: &mut Random, is_busy: bool) -> u64 {
    let (mut outstanding, mut scrubs) = (0, 0);
    let written = hand.memory.add_host(vec![[7; BLOCK_SIZE]; 16]);
    let mut read = Vec::new();
    for number in 0..requests {
        if is_busy && number % 64 == 0 {
            // While a pass goes on, little else is cleaned.
            scrubs += keep_busy(hand, number % 6400 == 0);
        }
        let count = 1 + random.below(8) as u32;
        let lba = Lba(random.below(volume - 1000));
        let changes =
            [(0, 3, ChangeKind::Write), (10, 20, ChangeKind::Discard), (40, 5, ChangeKind::Write)]
                .map(|(offset, count, kind)| Change { lba: Lba(lba.0 + offset), count, kind });
        let request = match number % 100 {
            20 | 60 | 90 => Request::Flush,
            30 => Request::Discard { lba, count: 1 + random.below(900), fua: number % 200 == 30 },
            40 | 70 => {
                Request::WriteMany { changes: &changes, buffer: written, fua: number % 100 == 70 }
            }
            n if n % 5 == 1 => {
                read.push(hand.memory.add_host(vec![[0; BLOCK_SIZE]; 8]));
                Request::Read { lba, count, buffer: read[read.len() - 1] }
            }
            n => Request::Write { lba, count, buffer: written, fua: n == 50 },
        };

        let id = RequestId(number);
        while counted(|| hand.engine.handle_request(id, request, &mut hand.memory)).is_err() {
            outstanding -= turn(hand);
        }
        outstanding += 1;
        while outstanding >= 8 {
            outstanding -= turn(hand);
        }
    }
    while outstanding > 0 {
        outstanding -= turn(hand);
    }
    for buffer in read.into_iter().chain([written]) {
        hand.memory.take_host(buffer);
    }
    scrubs
}

/// What was done while nothing was asked for.
#[derive(Debug)]
struct Done {
    checkpoints: u64,
    segments_cleaned: u64,
    leaf_blocks: u64,
    defragmented_blocks: u64,
    scrubs: u64,
}

/// The same for 20,000 requests, during which the engine must ask for no memory.
fn watched(hand: &mut Hand, volume: u64, random: &mut Random, is_busy: bool) -> Done {
    let before = hand.engine.statistics();
    ASKED.set(0);
    WATCHES.set(true);
    let scrubs = work(hand, 20_000, volume, random, is_busy);
    let first = FIRST.take().unwrap_or_default();
    assert_eq!(ASKED.get(), 0, "{is_busy}: the first request comes from\n{first}");
    let after = hand.engine.statistics();
    let more = |of: fn(&Statistics) -> u64| of(&after) - of(&before);
    Done {
        checkpoints: more(|s| s.checkpoints),
        segments_cleaned: more(|s| s.segments_cleaned),
        leaf_blocks: more(|s| s.leaf_blocks),
        defragmented_blocks: more(|s| s.defragmented_blocks),
        scrubs,
    }
}

#[test]
fn an_engine_that_has_run_for_a_while_asks_for_no_more_memory() {
    for reclaim in [Reclaim::CopyOut, Reclaim::HoleFill, Reclaim::Threaded] {
        let config = Config {
            record_count: 12,
            page_count: 16,
            request_count: 32,
            trim: true,
            reclaim,
            ..Config::default()
        };
        let mut hand = Hand::open(store(40, 1024, None, None, 8), config);
        let volume = hand.engine.geometry().volume_size;
        let mut random = Random::new(31);
        work(&mut hand, 80_000, volume, &mut random, false);
        let alone = watched(&mut hand, volume, &mut random, false);
        assert!(alone.checkpoints > 10 && alone.segments_cleaned > 10, "{reclaim}: {alone:?}");
        assert!(alone.leaf_blocks > 10, "the sweep goes on: {alone:?}");
        work(&mut hand, 40_000, volume, &mut random, true);
        let busy = watched(&mut hand, volume, &mut random, true);
        assert!(busy.checkpoints > 10 && busy.scrubs > 1, "{reclaim}: scrubs end: {busy:?}");
        assert!(busy.defragmented_blocks > 10, "what is scattered moves: {busy:?}");
        println!("{reclaim}: none asked for; alone {alone:?}; {busy:?}");
    }
}
