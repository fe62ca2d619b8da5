//! Volumes whose writes are numbered, and what their copies must be.
//!
//! Each write stamps a block with the number of the write, one write after the other. So what a copy
//! holds tells after which write it stands: the prefix that all blocks must agree on.

#![allow(dead_code, reason = "each test program uses a part of this")]

use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_device::{Device, MemoryStore};
use coulter_object::history;
use coulter_object::history::restore::restore;
use coulter_object::pieces::PieceMap;
use coulter_object::publish::Briefly;
use coulter_object::ship::device::Opening;
use coulter_object::ship::marks::Marks;
use coulter_object::{Ack, Bucket, Replica, ReplicaError, Settings, ShippedDevice};
pub(crate) use coulter_workload::Random;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) mod life;
pub(crate) mod stepping;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const BLOCK: usize = 4096;
pub(crate) const STORE_SIZE: u64 = 48 * MIB;
/// Blocks that the oracle reads at once.
const READ_BLOCKS: u64 = 256;
pub(crate) const STORE: [u8; 16] = [9; 16];

/// Many commits and manifests in little time, and objects that are soon full.
pub(crate) const BUSY: Settings = Settings {
    ack: Ack::Remote,
    every: Duration::from_millis(3),
    early_bytes: 2 << 20,
    lag_max: 8 << 20,
    object_size: 512 << 10,
    inline_max: 64 << 10,
    captures_max: 3,
    keep_max: 1 << 20,
    manifest_every: 7,
    look_every: Duration::from_millis(50),
};

pub(crate) fn new_store() -> MemoryStore {
    let store = MemoryStore::new(STORE_SIZE);
    let options = CreateOptions { segment_size: Some(2 * MIB), ..CreateOptions::default() };
    create(Box::new(store.open().expect("it is free")), &options).expect("the store fits");
    store
}

pub(crate) fn opening(bucket: Arc<dyn Bucket>, settings: Settings, marks: Marks) -> Opening {
    Opening {
        bucket,
        settings,
        marks,
        store: STORE,
        owner: "test".to_string(),
        content: std::iter::once(0..STORE_SIZE).collect(),
        reseed: false,
        has_ended: |_| true,
    }
}

pub(crate) fn marks(folder: &Path) -> Marks {
    Marks::open(&folder.join("marks")).expect("the marks can be opened")
}

pub(crate) fn ship<D: Device>(
    inner: D,
    bucket: &Arc<dyn Bucket>,
    settings: Settings,
    marks: Marks,
) -> (ShippedDevice<D>, Replica) {
    ShippedDevice::open(inner, opening(bucket.clone(), settings, marks)).expect("it is this host's")
}

pub(crate) fn open(device: impl Device + 'static) -> Volume {
    Volume::open(Box::new(device), OpenOptions::default()).expect("the store is intact")
}

/// What was written so far.
#[derive(Clone, Default)]
pub(crate) struct Oracle {
    /// The block that each write stamped; write 1 first.
    pub(crate) blocks: Vec<u64>,
    /// Writes that a flush has covered.
    pub(crate) flushed: u64,
}

impl Oracle {
    /// Writes `count` blocks one after the other, and flushes now and then. Ends at the first error.
    pub(crate) fn write(
        &mut self,
        volume: &Volume,
        random: &mut Random,
        count: u64,
    ) -> Result<(), coulter::service::RequestError> {
        let blocks = volume.size() / BLOCK as u64;
        for _ in 0..count {
            // A few hot blocks, so that segments die and are written again.
            let block = if random.below(4) > 0 { random.below(64) } else { random.below(blocks) };
            let stamp = self.blocks.len() as u64 + 1;
            let mut bytes = vec![(stamp % 251) as u8; BLOCK];
            bytes[..8].copy_from_slice(&stamp.to_le_bytes());
            bytes[8..16].copy_from_slice(&block.to_le_bytes());
            self.blocks.push(block);
            volume.write_at(block * BLOCK as u64, &bytes)?;
            if random.below(12) == 0 {
                volume.flush()?;
                self.flushed = stamp;
            }
        }
        Ok(())
    }

    /// The number of writes after which `volume` stands; it must be one, and no less than `least`.
    pub(crate) fn assert_prefix(&self, volume: &Volume, least: u64) -> u64 {
        let mut found = std::collections::BTreeMap::new();
        let mut newest = 0;
        // A request of many blocks: each one waits for the volume's thread, which takes long on a busy machine.
        let mut bytes = vec![0; READ_BLOCKS as usize * BLOCK];
        let end = volume.size() / BLOCK as u64;
        for first in (0..end).step_by(READ_BLOCKS as usize) {
            let part = &mut bytes[..(end - first).min(READ_BLOCKS) as usize * BLOCK];
            volume.read_at(first * BLOCK as u64, part).expect("every block is intact");
            for (block, bytes) in (first..).zip(part.chunks(BLOCK)) {
                let stamp = u64::from_le_bytes(*bytes.first_chunk().expect("a block"));
                if stamp > 0 {
                    let named = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
                    assert_eq!(named, block, "a block holds what was written to it");
                    let body = (stamp % 251) as u8;
                    assert!(bytes[16..].iter().all(|byte| *byte == body), "it is whole");
                    found.insert(block, stamp);
                }
                newest = newest.max(stamp);
            }
        }
        let mut expected = std::collections::BTreeMap::new();
        for (index, block) in self.blocks.iter().enumerate().take(newest as usize) {
            expected.insert(*block, index as u64 + 1);
        }
        assert_eq!(found, expected, "it is the state after {newest} writes");
        assert!(newest >= least, "{least} writes were flushed, {newest} are there");
        newest
    }
}

pub(crate) fn restored(bucket: &dyn Bucket, pieces: &PieceMap) -> MemoryStore {
    let (record, _) = history::record(bucket, &Briefly).expect("there is a volume");
    let memory = Mutex::new(vec![0; STORE_SIZE as usize]);
    restore(bucket, record.volume, pieces, &memory, 4, &Briefly, &|_| {})
        .expect("nothing is missing");
    let store = MemoryStore::new(STORE_SIZE);
    store.write_at(0, &memory.into_inner().expect("nobody panicked")).expect("it is free");
    store
}

/// The remote copy as somebody else sees it now, as a store. A host may be writing to it meanwhile.
pub(crate) fn copy(bucket: &dyn Bucket) -> MemoryStore {
    for _ in 0..50 {
        let (record, history) = history::newest(bucket, &Briefly).expect("there is a volume");
        history.pieces.assert_invariants();
        let memory = Mutex::new(vec![0; STORE_SIZE as usize]);
        match restore(bucket, record.volume, &history.pieces, &memory, 4, &Briefly, &|_| {}) {
            // What the copy needed was collected while it was made: a newer manifest is there.
            Err(ReplicaError::Missing(_)) => continue,
            other => other.expect("the bucket answers"),
        }
        let store = MemoryStore::new(STORE_SIZE);
        store.write_at(0, &memory.into_inner().expect("nobody panicked")).expect("it is free");
        return store;
    }
    panic!("the copy was never whole for long enough");
}

pub(crate) fn open_copy(store: &MemoryStore) -> Volume {
    open(store.open().expect("it is free"))
}

pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}
