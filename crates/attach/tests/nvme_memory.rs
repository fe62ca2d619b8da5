//! What hosts can make an NVMe target hold is bounded for each connection: hosts that ask for data and never take it,
//! and hosts that announce data and never send it. Another host goes on undisturbed.
//!
//! Method: an allocator that counts the bytes that all threads but the hosts' have.

use coulter_attach::conformance::{Host, NvmeHost};
use coulter_attach::memory::{MemoryOptions, MemoryService};
use coulter_attach::net::Address;
use coulter_attach::nvme::{Disk, Initiator, InitiatorOptions, Target, TargetOptions};
use coulter_nvme::opcode::io;
use coulter_nvme::{DataPointer, Sqe};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// The thread is the hosts'.
    static IS_HOST: Cell<bool> = const { Cell::new(false) };
}

fn count(bytes: i64) {
    if !IS_HOST.try_with(Cell::get).unwrap_or(true) {
        let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`, and `alloc` is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: i64 = 1 << 20;
const HOSTS: u8 = 6;
/// Commands of each, of 1 MiB.
const COMMANDS: u64 = 120;

fn wait_until(what: &str, is_so: impl Fn(i64) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so(LIVE.load(Ordering::Relaxed)) {
        let live = LIVE.load(Ordering::Relaxed);
        assert!(Instant::now() < deadline, "{what}: the target has {live} bytes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Lets greedy hosts at a target whose queues may hold so much; waits until it holds `least` for each of them, and
/// gives the most that it ever had for each.
fn most_for_each(queue_memory_max: usize, least: i64) -> i64 {
    let service = MemoryService::new(MemoryOptions::new(COMMANDS << 20));
    let disk = Disk { service: Arc::new(service), read_only: false, block_size: 4096 };
    let address = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
    let options = TargetOptions { queue_memory_max, ..TargetOptions::default() };
    let target = Target::start(&address, vec![disk], options).expect("the target starts");
    let connect = |host| {
        let options = InitiatorOptions::new(target.names()[0].clone(), host);
        Initiator::connect(target.address(), &options).expect("a host can connect")
    };
    let mut good = NvmeHost(connect(200));
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut greedy: Vec<Initiator> = (1..=HOSTS).map(connect).collect();
    for (index, host) in greedy.iter_mut().enumerate() {
        for number in 0..COMMANDS {
            let (opcode, inward) = [(io::READ, 1 << 20), (io::WRITE, 0)][index % 2];
            let sqe = Sqe::new(opcode, 1)
                .with_blocks(number << 8, 256)
                .with_data_pointer(DataPointer::Transport { length: 1 << 20 });
            host.io.submit_raw(sqe, &[], inward);
        }
        host.io.flush();
    }
    wait_until("it takes what it may", |live| live - before >= i64::from(HOSTS) * least);
    for block in 0..200 {
        good.write(block * 4096, &[block as u8; 4096], false).expect("a write succeeds");
        let mut back = [0; 4096];
        good.read(block * 4096, &mut back).expect("a read succeeds");
        assert_eq!(back, [block as u8; 4096]);
    }
    let most = (PEAK.load(Ordering::Relaxed) - before) / i64::from(HOSTS);
    drop(greedy);
    // The good host's queue keeps a few buffers.
    wait_until("it gives back what they had", |live| live - before < i64::from(HOSTS) * MIB);
    most
}

#[test]
fn hosts_that_never_take_or_send_data_hold_no_more_than_their_queues_may() {
    IS_HOST.set(true);
    let most = most_for_each(4 << 20, 3 * MIB);
    assert!(most < 6 * MIB, "{most} bytes for each of {HOSTS} hosts");
    // That it would be seen: with more they hold more.
    let most = most_for_each(32 << 20, 24 * MIB);
    assert!((24 * MIB..34 * MIB).contains(&most), "{most} bytes for each of {HOSTS} hosts");
}
