//! What a fuzzer throws bytes at: every decoder, every protocol, and the engine.
//!
//! Each [`Target`] takes any bytes and returns; a panic is a fault of what it exercises. Bytes of
//! corpora that grew elsewhere stay meaningful, because a target reads them in order and takes what
//! is missing for zero.
//!
//! `fuzz/` links these with libFuzzer, for hours; the tests here do so with the corpora and random
//! changes of them, for seconds.
//!
//! What it does not do: decide what is right. Decoders check themselves, and have properties of
//! their own; the engine is compared with a map.

mod crafted;
mod decoders;
mod engine;
mod input;
mod store;

pub use input::Input;

/// Something to throw bytes at.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of the directory of its corpus.
    pub name: &'static str,
    /// What to call. Panics only at a fault.
    pub run: fn(&[u8]),
    /// Longest input that is worth trying, in bytes.
    pub size_max: usize,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "superblock", run: decoders::superblock, size_max: 4200 },
    Target { name: "record", run: decoders::record, size_max: 4200 },
    Target { name: "map_page", run: decoders::map_page, size_max: 4200 },
    Target { name: "checkpoint", run: decoders::checkpoint, size_max: 16_384 },
    Target { name: "run", run: decoders::run, size_max: 4200 },
    Target { name: "segment_table", run: decoders::segment_table, size_max: 4200 },
    Target { name: "store", run: store::damaged, size_max: 512 },
    Target { name: "crafted", run: crafted::store, size_max: 256 },
    Target { name: "nbd_handshake", run: coulter_attach::fuzz::nbd_handshake, size_max: 4096 },
    Target { name: "nbd_transmission", run: nbd_transmission, size_max: 16_384 },
    Target { name: "nbd_client", run: coulter_attach::fuzz::nbd_client, size_max: 16_384 },
    Target { name: "fuse_message", run: coulter_attach::fuzz::fuse_message, size_max: 512 },
    Target { name: "engine", run: engine::against_a_map, size_max: 4096 },
];

/// The target called `name`.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The first byte decides how the stream is cut up.
fn nbd_transmission(bytes: &[u8]) {
    let Some((first, stream)) = bytes.split_first() else { return };
    let piece = [usize::MAX, 4096, 13, 1][usize::from(*first) % 4];
    coulter_attach::fuzz::nbd_transmission(stream, piece);
}

/// Inputs to begin with, for a corpus that is made anew: what the engine writes, and a few streams.
pub fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let models = store::models();
    let marked = |bytes: &[u8]| [0, 1].map(|first| [&[first], bytes].concat()).to_vec();
    match target.name {
        "superblock" => marked(&models.superblock[..512]),
        "record" => marked(&models.record_header[..1024]),
        "checkpoint" => marked(&models.body),
        "run" => marked(&models.run_block[..512]),
        name => {
            let seed = name.bytes().map(u64::from).sum();
            let mut random = coulter_workload::Random::new(seed);
            let mut noise = |length| (0..length).map(|_| random.bits() as u8).collect();
            vec![vec![0; 64], noise(64), noise(256), noise(512)]
        }
    }
}
