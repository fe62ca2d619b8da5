//! The conformance suite on every device of this crate.

mod common;

use common::{Scratch, file_fixture, uring};
use coulter_device::conformance::{Access, SIZE_MIN};
use coulter_device::{Device, Engine, MemoryStore, OpenError, OpenOptions, conformance_suite};

type Opened = Result<Box<dyn Device>, OpenError>;

fn memory(store: MemoryStore) -> impl Fn(Access) -> Opened {
    move |access| {
        Ok(match access {
            Access::ReadWrite => Box::new(store.open()?),
            Access::ReadOnly => Box::new(store.open_read_only()?),
        })
    }
}

fn file(options: OpenOptions) -> impl Fn(Access) -> Opened {
    file_fixture(Scratch::new().file("store", 2 * SIZE_MIN), options)
}

fn by(engine: Engine) -> OpenOptions {
    OpenOptions { engine, ..OpenOptions::default() }
}

conformance_suite!(dense_memory, memory(MemoryStore::new(SIZE_MIN)));
conformance_suite!(sparse_memory, memory(MemoryStore::sparse(SIZE_MIN + 512)));
conformance_suite!(
    memory_of_4096_byte_sectors,
    memory(MemoryStore::sparse(SIZE_MIN).with_alignment(4096))
);
conformance_suite!(file_by_uring, file(by(uring())));
conformance_suite!(file_by_shallow_uring, file(OpenOptions { queue_depth: 1, ..by(uring()) }));
conformance_suite!(buffered_file_by_uring, file(OpenOptions { direct: false, ..by(uring()) }));
conformance_suite!(file_by_threads, file(by(Engine::Threads)));
conformance_suite!(
    buffered_file_by_one_thread,
    file(OpenOptions { direct: false, threads: 1, queue_depth: 8, ..by(Engine::Threads) })
);
