//! A block service in memory: the double that attach points are tested against, and the baseline
//! that costs nothing, by which the price of a protocol is measured.
//!
//! It does not persist, and it is not quick in the way a volume is: a request is carried out by
//! the thread that submits it.
//!
//! # Invariants
//! - It keeps the contract of [`coulter::service`], the rule "a failed write or flush makes the
//!   service read-only" included.
//! - With [`MemoryOptions::volatile_cache`] a completed write that no flush covered is undone by
//!   [`MemoryService::crash`]; everything else survives it.

mod fault;
mod session;
mod storage;

pub use fault::{Fault, FaultKind};

use coulter::service::{
    BLOCK_SIZE, BlockService, Description, Identity, RequestError, Session, Watch, Watchers,
};
use fault::Faults;
use session::MemorySession;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use storage::Storage;

/// How a [`MemoryService`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Size in bytes, a multiple of 4096.
    pub size: u64,
    /// Whether writes are refused from the start.
    pub read_only: bool,
    /// Time between submission and completion of every request; zero completes at once.
    pub latency: Duration,
    /// Completions of one batch come back in an order drawn from this seed, not in that of
    /// submission.
    pub shuffle_seed: Option<u64>,
    /// Which disk it is.
    pub uuid: [u8; 16],
    /// Whether writes stay undoable by [`MemoryService::crash`] until they are flushed.
    pub volatile_cache: bool,
}

impl MemoryOptions {
    /// A writable service of `size` bytes that answers at once.
    pub fn new(size: u64) -> MemoryOptions {
        MemoryOptions {
            size,
            read_only: false,
            latency: Duration::ZERO,
            shuffle_seed: None,
            uuid: [0xc0; 16],
            volatile_cache: false,
        }
    }
}

/// How many requests of each kind were carried out. Counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Writes, those with FUA included.
    pub writes: u64,
    /// Writes and write-zeroes with FUA.
    pub fua: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Write-zeroes, those with FUA included.
    pub write_zeroes: u64,
    /// Extents.
    pub extents: u64,
}

/// Blocks in memory behind the block-service contract.
#[derive(Clone)]
pub struct MemoryService {
    shared: Arc<Shared>,
}

struct Shared {
    options: MemoryOptions,
    storage: Storage,
    faults: Faults,
    read_only: AtomicBool,
    closed: AtomicBool,
    watchers: Watchers,
    counters: AtomicCounters,
}

#[derive(Default)]
struct AtomicCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    fua: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    write_zeroes: AtomicU64,
    extents: AtomicU64,
}

impl MemoryService {
    /// A service of zeros. Memory is taken as blocks are written.
    ///
    /// # Panics
    /// When the size is not a multiple of 4096.
    pub fn new(options: MemoryOptions) -> MemoryService {
        assert_eq!(options.size % BLOCK_SIZE, 0, "the size is whole blocks");
        MemoryService {
            shared: Arc::new(Shared {
                options,
                storage: Storage::new(options.size, options.volatile_cache),
                faults: Faults::default(),
                read_only: AtomicBool::new(options.read_only),
                closed: AtomicBool::new(false),
                watchers: Watchers::default(),
                counters: AtomicCounters::default(),
            }),
        }
    }

    /// Makes coming requests fail as `fault` says.
    pub fn inject(&self, fault: Fault) {
        self.shared.faults.inject(fault);
    }

    /// Drops all that was written since it was last made durable, as a power cut would.
    ///
    /// # Panics
    /// Without [`MemoryOptions::volatile_cache`].
    pub fn crash(&self) {
        assert!(self.shared.options.volatile_cache, "only a volatile cache can lose writes");
        self.shared.storage.undo();
    }

    /// Shuts the service down: what is outstanding and what still comes completes with
    /// [`RequestError::Closed`].
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.watchers.notify();
    }

    /// What was carried out so far.
    pub fn counters(&self) -> Counters {
        let counters = &self.shared.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Counters {
            reads: load(&counters.reads),
            writes: load(&counters.writes),
            fua: load(&counters.fua),
            flushes: load(&counters.flushes),
            discards: load(&counters.discards),
            write_zeroes: load(&counters.write_zeroes),
            extents: load(&counters.extents),
        }
    }

    /// The bytes at `offset`, for a test to compare with.
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        assert!(offset + out.len() as u64 <= self.shared.options.size, "peek within the service");
        self.shared.storage.read(offset, out);
    }
}

impl BlockService for MemoryService {
    fn size(&self) -> u64 {
        self.shared.options.size
    }

    fn read_only(&self) -> bool {
        self.shared.read_only.load(Ordering::SeqCst)
    }

    fn describe(&self) -> Description {
        let identity = Identity::of_store(self.shared.options.uuid, "");
        Description::new(identity, self.size(), self.read_only())
    }

    fn watch(&self, watcher: Weak<dyn Watch>) {
        self.shared.watchers.add(watcher);
    }

    fn connect(&self) -> Box<dyn Session + Send> {
        Box::new(MemorySession::new(self.shared.clone()))
    }
}

impl Shared {
    fn result_at_completion(&self, result: Result<(), RequestError>) -> Result<(), RequestError> {
        if self.closed.load(Ordering::SeqCst) { Err(RequestError::Closed) } else { result }
    }
}
