//! Requests of a warm volume allocate nothing.
//!
//! Alone in its process, because the allocator counts for all threads.

mod common;

use common::*;
use coulter::buffer::Buffer;
use coulter::service::{Completion, Operation, Request, Session};
use coulter::{Acknowledge, CreateOptions, LocalVolume, OpenOptions, Volume, create};
use coulter_device::MemoryStore;
use coulter_workload::Random;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is handed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends `count` requests of 4 KiB and 512 bytes, 32 at a time, over 4 MiB.
fn run(session: &mut dyn Session, buffers: &mut Vec<Buffer>, count: u64, random: &mut Random) {
    let mut completions: Vec<Completion> = Vec::with_capacity(64);
    let mut sent = 0;
    while sent < count || session.outstanding() > 0 {
        while sent < count
            && let Some(mut buffer) = buffers.pop()
        {
            let (sector, length) = match random.below(4) {
                0 => (random.below(8192), 512),
                _ => (random.below(1024) * 8, 4096),
            };
            buffer.set_length(length);
            let operation = match random.below(3) {
                0 => Operation::Read,
                _ => Operation::Write { fua: false },
            };
            let (offset, length) = (sector * SECTOR, length as u64);
            session.submit(Request { tag: 0, operation, offset, length, buffer });
            sent += 1;
        }
        session.complete(&mut completions, None);
        for completion in completions.drain(..) {
            completion.result.expect("in range");
            buffers.push(completion.buffer);
        }
    }
}

/// Allocations, and checkpoints, while a warm volume serves 10,000 requests.
fn allocations<V: AnyVolume>(acknowledge: Acknowledge) -> (u64, u64) {
    // So large that nothing is cleaned, and no checkpoint is due, while allocations are counted.
    let store = MemoryStore::new(1 << 30);
    let options = CreateOptions { journal_size: Some(65_536), ..CreateOptions::default() };
    create(device(&store), &options).expect("it fits");
    let options = OpenOptions { acknowledge, ..OpenOptions::default() };
    let volume = V::open_with(device(&store), options).expect("it is intact");
    // The device in memory allocates where it is written first.
    let content = vec![1; 16 << 20];
    for offset in (0..256 * MIB).step_by(content.len()) {
        volume.write_at(offset, &content).expect("in range");
    }
    let mut session = volume.connect();
    let mut buffers: Vec<Buffer> = (0..32).map(|_| Buffer::zeroed(4096)).collect();
    let mut random = Random::new(1);
    run(&mut *session, &mut buffers, 10_000, &mut random);
    let before = (ALLOCATIONS.load(Ordering::Relaxed), volume.statistics().log.checkpoints);
    run(&mut *session, &mut buffers, 10_000, &mut random);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before.0;
    let checkpoints = volume.statistics().log.checkpoints - before.1;
    (allocations, checkpoints)
}

#[test]
fn a_warm_volume_allocates_nothing_for_its_requests() {
    let (written, buffered) = (Acknowledge::Written, Acknowledge::Buffered);
    for (kind, (allocations, checkpoints)) in [
        ("threaded", allocations::<Volume>(written)),
        ("local", allocations::<LocalVolume>(written)),
        ("threaded, buffered", allocations::<Volume>(buffered)),
        ("local, buffered", allocations::<LocalVolume>(buffered)),
    ] {
        println!("{kind}: {allocations} allocations, {checkpoints} checkpoints");
        // The device's memory, one MiB at a time, and queues that grow once more are still
        // allowed.
        assert!(allocations < 200 + 200 * checkpoints, "{kind}: {allocations} for 10000 requests");
    }
}
