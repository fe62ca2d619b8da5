//! In steady state the server allocates nothing for a request.
//!
//! Method: an allocator that counts, and a client and a service that allocate nothing either. One
//! test only, since the count is that of the whole process.

use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, Session};
use coulter_attach::memory::{MemoryOptions, MemoryService};
use coulter_attach::nbd::{Address, Client, ClientOptions, Export, Server, ServerOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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
