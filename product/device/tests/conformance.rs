//! The conformance suite on every device of this crate.

mod common;

use common::{Scratch, file_fixture, uring};
use coulter_device::conformance::{Access, CHECKS, SIZE_MIN};
use coulter_device::{
    Device, Engine, MemoryStore, OpenError, OpenOptions, conformance_suite, open_path,
};
use std::fs::OpenOptions as File;
use std::io::{Read, Write};
use std::path::PathBuf;

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

/// A small NVMe namespace that may be overwritten; what the scenarios of the virtual machine set.
const NAMESPACE_VARIABLE: &str = "COULTER_NVME_NAMESPACE";

/// One test for the whole suite, since there is one namespace.
#[test]
fn a_namespace_by_passthrough() {
    let Some(path) = std::env::var_os(NAMESPACE_VARIABLE).map(PathBuf::from) else {
        println!("SKIPPED: {NAMESPACE_VARIABLE} names no NVMe namespace");
        return;
    };
    for (name, check) in CHECKS {
        println!("{name}");
        let mut file = File::new().read(true).write(true).open(&path).expect("it can be opened");
        let mut size = Vec::new();
        let sys = PathBuf::from("/sys/class/block").join(path.file_name().expect("a name"));
        let mut attribute = std::fs::File::open(sys.join("size")).expect("the kernel knows it");
        attribute.read_to_end(&mut size).expect("it can be read");
        let sectors: usize = String::from_utf8_lossy(&size).trim().parse().expect("a number");
        file.write_all(&vec![0; sectors * 512]).expect("it can be written");
        file.sync_all().expect("it can be flushed");
        drop(file);
        let options = by(Engine::NvmePassthrough);
        check(&|access| {
            let read_only = access == Access::ReadOnly;
            let device = open_path(&path, &OpenOptions { read_only, ..options.clone() })?;
            let description = &device.properties().description;
            assert!(description.contains("NVMe passthrough"), "{:?}", device.properties());
            Ok(device)
        });
    }
    println!("{} checks", CHECKS.len());
}
