//! Goal: no command allocates, once a device is open and has seen its deepest queue.
//!
//! Method: an allocator that counts, in a program with a single test, so that nothing else counts.

mod common;

use common::{Scratch, uring};
use coulter_device::wrap::{CountingDevice, TraceRecord, TracedDevice};
use coulter_device::{
    AlignedMemory, Command, Device, Engine, MemoryStore, OpenOptions, Region, Wait, open_path,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is handed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: u64 = 64;
const LENGTH: u64 = 4096;

#[test]
fn no_command_allocates() {
    let file = Scratch::new().file("store", 4 << 20);
    let by = |engine| {
        let options = OpenOptions { engine, queue_depth: DEPTH as usize, ..OpenOptions::default() };
        open_path(&file.path, &options).expect("nothing has it open")
    };
    let memory = || MemoryStore::new(4 << 20).open().expect("nothing has it open");
    assert_eq!(allocations(by(uring())), 0, "io_uring");
    assert_eq!(allocations(by(Engine::Threads)), 0, "threads");
    assert_eq!(allocations(memory()), 0, "memory");
    let sink = |_: &TraceRecord| {};
    let traced = TracedDevice::new(CountingDevice::new(by(uring())).0, sink);
    assert_eq!(allocations(traced), 0, "traced and counted");
}

/// Allocations during some thousand commands, after as many to warm up.
fn allocations(mut device: impl Device) -> u64 {
    let mut memory = AlignedMemory::zeroed((DEPTH * LENGTH) as usize);
    // The first half; the others are executed without being registered.
    let region = Region { start: memory.as_mut_pointer(), length: memory.len() / 2 };
    // SAFETY: the device is dropped before the memory is.
    unsafe { device.register(&[region]) }.expect("memory can be registered");
    let mut completions = Vec::with_capacity(DEPTH as usize);
    let mut run = || {
        let before = COUNT.load(Ordering::Relaxed);
        let mut outstanding = 0;
        for number in 0..4096 {
            let (lane, offset) = (number % DEPTH, number % 1024 * LENGTH);
            let buffer = memory.as_mut_pointer().wrapping_add((lane * LENGTH) as usize);
            let command = match number % 7 {
                0 => Command::flush(lane),
                1 => Command::discard(lane, offset, LENGTH),
                2 => Command::read(lane, 1 << 40, LENGTH, buffer),
                3 | 4 => Command::read(lane, offset, LENGTH, buffer),
                _ => Command::write(lane, offset, LENGTH, buffer),
            };
            // SAFETY: every completion is taken before the memory is used again.
            unsafe { device.submit(command) };
            outstanding += 1;
            while outstanding == DEPTH || number == 4095 && outstanding > 0 {
                let wait = Wait::For(Duration::from_secs(60));
                device.poll(&mut completions, wait).expect("it can be polled");
                outstanding -= completions.len() as u64;
                completions.clear();
            }
        }
        COUNT.load(Ordering::Relaxed) - before
    };
    run();
    run()
}
