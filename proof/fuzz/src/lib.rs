//! What a fuzzer throws bytes at: every decoder, every protocol, and the engine.
//!
//! Each [`Target`] takes any bytes and returns; a panic is a fault of what it exercises. Bytes of
//! corpora that grew elsewhere stay meaningful, because a target reads them in order and takes what
//! is missing for zero.
//!
//! `libfuzzer/` links these with libFuzzer, for hours; the tests here do so with the corpora and
//! random changes of them, for seconds.
//!
//! What it does not do: decide what is right. Decoders check themselves, and have properties of
//! their own; the engine is compared with a map.

mod crafted;
mod decoders;
mod engine;
mod input;
mod objects;
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
    Target { name: "root_list", run: decoders::root_list, size_max: 4200 },
    Target { name: "checkpoint", run: decoders::checkpoint, size_max: 16_384 },
    Target { name: "run", run: decoders::run, size_max: 4200 },
    Target { name: "segment_table", run: decoders::segment_table, size_max: 4200 },
    Target { name: "store", run: store::damaged, size_max: 512 },
    Target { name: "crafted", run: crafted::store, size_max: 256 },
    Target {
        name: "nbd_handshake",
        run: coulter_attach_suite::fuzz::nbd_handshake,
        size_max: 4096,
    },
    Target { name: "nbd_transmission", run: nbd_transmission, size_max: 16_384 },
    Target { name: "nbd_client", run: coulter_attach_suite::fuzz::nbd_client, size_max: 16_384 },
    Target { name: "fuse_message", run: coulter_attach_suite::fuzz::fuse_message, size_max: 512 },
    Target {
        name: "nvme_decoders",
        run: coulter_attach_suite::fuzz::nvme_decoders,
        size_max: 4200,
    },
    Target { name: "nvme_target", run: coulter_attach_suite::fuzz::nvme_target, size_max: 16_384 },
    Target { name: "object_volume", run: objects::volume, size_max: 4200 },
    Target { name: "object_pins", run: objects::pins, size_max: 4200 },
    Target { name: "object_commit", run: objects::commit, size_max: 4200 },
    Target { name: "object_manifest", run: objects::manifest, size_max: 4200 },
    Target { name: "object_copy", run: objects::copy, size_max: 4200 },
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
    coulter_attach_suite::fuzz::nbd_transmission(stream, piece);
}

/// Inputs to begin with, for a corpus that is made anew: what the engine writes, and a few streams.
pub fn seeds(target: &Target) -> Vec<Vec<u8>> {
    if let Some(seeds) = objects::seeds(target.name) {
        return seeds;
    }
    let models = store::models();
    let marked = |bytes: &[u8]| [0, 1].map(|first| [&[first], bytes].concat()).to_vec();
    match target.name {
        "superblock" => marked(&models.superblock[..512]),
        "record" => marked(&models.record_header[..1024]),
        "checkpoint" => [marked(&models.body), marked(&store::body_with_references())].concat(),
        "run" => marked(&models.run_block[..512]),
        "nvme_target" => nvme_seeds(),
        name => {
            let seed = name.bytes().map(u64::from).sum();
            let mut random = coulter_workload::Random::new(seed);
            let mut noise = |length| (0..length).map(|_| random.bits() as u8).collect();
            vec![vec![0; 64], noise(64), noise(256), noise(512)]
        }
    }
}

/// Commands, well formed, for each stage of a conversation and each way to cut it up.
fn nvme_seeds() -> Vec<Vec<u8>> {
    // A capsule of a command with this opcode, and with these bytes in its SGL.
    let capsule = |opcode: u8, kind: u8, data: &[u8]| {
        let mut bytes = vec![4, 0, 72, if data.is_empty() { 0 } else { 72 }];
        bytes.extend_from_slice(&(72 + data.len() as u32).to_le_bytes());
        let mut sqe = [0; 64];
        (sqe[0], sqe[1], sqe[2], sqe[4]) = (opcode, 0x40, 9, kind);
        sqe[32..36].copy_from_slice(&(data.len().max(4096) as u32).to_le_bytes());
        sqe[39] = if data.is_empty() { 0x5a } else { 0x01 };
        (sqe[41], sqe[42], sqe[43]) = (1, 1, 0xe9);
        bytes.extend_from_slice(&sqe);
        bytes.extend_from_slice(data);
        bytes
    };
    let greeting = [&[0, 0, 128, 0, 128, 0, 0, 0][..], &[0; 120]].concat();
    let negotiate = [&[0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1][..], &[0; 59]].concat();
    let streams = [
        [greeting, capsule(0x7f, 1, &[0; 1024])].concat(),
        [capsule(0x7f, 5, &negotiate), capsule(0x7f, 6, &[])].concat(),
        [capsule(6, 1, &[]), capsule(2, 0, &[]), capsule(0x0c, 0, &[])].concat(),
        [capsule(6, 1, &[]), capsule(0x0a, 0, &[])].concat(),
        [capsule(1, 1, &[7; 4096]), capsule(2, 1, &[]), capsule(9, 1, &[0; 16])].concat(),
    ];
    let stages = streams.len() as u8;
    let all = (0..).zip(streams);
    all.flat_map(|(stage, stream)| {
        [0u8, 2].map(|piece| [&[stage + piece * stages][..], &stream].concat())
    })
    .collect()
}
