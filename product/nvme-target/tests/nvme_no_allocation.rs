//! After Connect an I/O queue of the NVMe target allocates nothing for a command.
//!
//! Method: an allocator that counts what all threads but the host's allocate, and a service that allocates
//! nothing.

use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, Session};
use coulter_attach_suite::initiator::{Initiator, InitiatorOptions};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_net::Address;
use coulter_nvme::tcp::Digests;
use coulter_nvme_target::{Disk, Target, TargetOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

thread_local! {
    /// The thread is the host's.
    static IS_HOST: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let is_host = IS_HOST.try_with(Cell::get).unwrap_or(true);
        ALLOCATIONS.fetch_add(u64::from(!is_host), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `alloc` is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const COMMANDS: u64 = 32;

/// Commands of a size: what the target allocates for 500 rounds of them, once it has its buffers.
fn allocations(size: usize, digests: bool, flow_control_disabled: bool) -> u64 {
    let _alone = ONE_AT_A_TIME.lock();
    IS_HOST.set(true);
    let service = Arc::new(MemoryService::new(MemoryOptions::new(COMMANDS * size as u64)));
    let disk = Disk { service, read_only: false, block_size: 4096 };
    let address = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
    let target = Target::start(&address, vec![disk], TargetOptions::default()).unwrap();
    let options = InitiatorOptions {
        digests: Digests { header: digests, data: digests },
        flow_control_disabled,
        ..InitiatorOptions::new(target.names().remove(0), 1)
    };
    let mut initiator = Initiator::connect(target.address(), &options).unwrap();
    let mut buffers: Vec<Buffer> = (0..COMMANDS).map(|_| Buffer::zeroed(size)).collect();
    let mut completions = Vec::new();
    let mut run = |rounds: u64| {
        for round in 0..rounds {
            for tag in 0..COMMANDS {
                let (operation, buffer) = match (tag + round) % 4 {
                    0 | 1 => (Operation::Write { fua: tag == 0 }, buffers.pop()),
                    2 => (Operation::Read, buffers.pop()),
                    _ if tag.is_multiple_of(2) => (Operation::Flush, Some(Buffer::empty())),
                    _ => (Operation::Read, buffers.pop()),
                };
                let buffer = buffer.expect("there is one for each command");
                let length = buffer.len() as u64;
                let offset = if length > 0 { tag * length } else { 0 };
                initiator.submit(Request { tag, operation, offset, length, buffer });
            }
            initiator.kick();
            while initiator.outstanding() > 0 {
                initiator.complete(&mut completions, None);
            }
            for completion in completions.drain(..) {
                assert_eq!(completion.result, Ok(()));
                if !completion.buffer.is_empty() {
                    buffers.push(completion.buffer);
                }
            }
        }
    };
    // Until every buffer and queue is as large as it gets.
    run(200);
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    run(500);
    let made = ALLOCATIONS.load(Ordering::SeqCst) - before;
    IS_HOST.set(false);
    made
}

#[test]
fn commands_with_their_data_in_capsules_cost_no_allocation() {
    let made = allocations(4096, false, false);
    // A queue may still grow once; a command costs none.
    assert!(made < 16, "{made} allocations for 16000 commands");
}

#[test]
fn commands_whose_data_is_asked_for_cost_no_allocation() {
    let made = allocations(64 << 10, false, true);
    assert!(made < 16, "{made} allocations for 16000 commands");
}

#[test]
fn digests_cost_no_allocation() {
    let made = allocations(4096, true, false);
    assert!(made < 16, "{made} allocations for 16000 commands");
}
