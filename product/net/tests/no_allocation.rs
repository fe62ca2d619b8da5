//! In steady state the server allocates nothing for a request.
//!
//! Method: an allocator that counts, and a client and a service that allocate nothing either. One
//! test at a time, since the counts are those of the whole process.

use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, Session};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_attach_suite::nbd_client::Client;
use coulter_net::nbd::{Address, ClientOptions, Export, Server, ServerOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Those of them that hold the data of a request.
static LARGE_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
const LARGE_SIZE: usize = 64 << 10;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LARGE_ALLOCATIONS.fetch_add(u64::from(layout.size() >= LARGE_SIZE), Ordering::Relaxed);
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

#[test]
fn a_request_costs_no_allocation() {
    let _alone = ONE_AT_A_TIME.lock();
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Unix(directory.path().join("nbd.sock"));
    let service = Arc::new(MemoryService::new(MemoryOptions::new(1 << 20)));
    let exports = vec![Export::new("", service)];
    let _server = Server::start(&address, exports, ServerOptions::default()).unwrap();
    let mut client = Client::connect(&address, &ClientOptions::default()).unwrap();
    let mut buffers: Vec<Buffer> = (0..32).map(|_| Buffer::zeroed(4096)).collect();
    let mut completions = Vec::with_capacity(64);
    let mut run = |rounds: u64| {
        for round in 0..rounds {
            for tag in 0..32 {
                let write = (tag + round).is_multiple_of(2);
                let operation =
                    if write { Operation::Write { fua: false } } else { Operation::Read };
                let buffer = buffers.pop().expect("there is one for each request");
                let offset = tag * 4096;
                client.submit(Request { tag, operation, offset, length: 4096, buffer });
            }
            client.kick();
            while client.outstanding() > 0 {
                client.complete(&mut completions, None);
            }
            for completion in completions.drain(..) {
                assert_eq!(completion.result, Ok(()));
                buffers.push(completion.buffer);
            }
        }
    };
    run(200);
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    run(500);
    let allocations = ALLOCATIONS.load(Ordering::SeqCst) - before;
    // A queue may still grow once; a request costs none.
    assert!(allocations < 32, "{allocations} allocations for 16000 requests");
}

/// What the kernel sends when it is short of memory: the largest requests, as many as it has.
#[test]
fn the_first_storm_of_large_requests_from_the_own_kernel_costs_no_memory() {
    const SIZE: usize = 1 << 20;
    const COUNT: u64 = 32;
    let _alone = ONE_AT_A_TIME.lock();
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Unix(directory.path().join("nbd.sock"));
    let service = Arc::new(MemoryService::new(MemoryOptions::new(SIZE as u64)));
    let options = ServerOptions { own_kernel: true, ..ServerOptions::default() };
    let _server = Server::start(&address, vec![Export::new("", service)], options).unwrap();
    let mut client = Client::connect(&address, &ClientOptions::default()).unwrap();
    let mut completions = Vec::with_capacity(COUNT as usize);
    let mut storm = |operation, mut buffers: Vec<Buffer>| {
        for (tag, buffer) in (0..).zip(buffers.drain(..)) {
            let length = buffer.len() as u64;
            client.submit(Request { tag, operation, offset: 0, length, buffer });
        }
        client.kick();
        while client.outstanding() > 0 {
            client.complete(&mut completions, None);
        }
        assert!(completions.iter().all(|completion| completion.result == Ok(())));
        completions.drain(..).map(|completion| completion.buffer).collect::<Vec<Buffer>>()
    };
    // Until this is answered the connection may still be on its way in, and the service makes what
    // it keeps.
    storm(Operation::Write { fua: false }, vec![Buffer::zeroed(SIZE)]);
    let buffers = (0..COUNT).map(|_| Buffer::zeroed(SIZE)).collect();
    let before = LARGE_ALLOCATIONS.load(Ordering::SeqCst);
    let buffers = storm(Operation::Write { fua: false }, buffers);
    storm(Operation::Read, buffers);
    let made = LARGE_ALLOCATIONS.load(Ordering::SeqCst) - before;
    assert_eq!(made, 0, "buffers made when memory may be short");
}
