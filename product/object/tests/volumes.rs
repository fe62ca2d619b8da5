//! Volumes whose device is shipped: lost hosts, power cuts, take-overs, snapshots.

mod stamped;

use coulter::Volume;
use coulter_device::wrap::{CutDevice, CutPolicy};
use coulter_object::bucket::MemoryBucket;
use coulter_object::bucket::faulty::{FaultyBucket, Rates};
use coulter_object::history;
use coulter_object::publish::Briefly;
use coulter_object::ship::marks::Marks;
use coulter_object::{
    Ack, Bucket, ReplicaError, Settings, ShippedDevice,
    history::{snapshot, takeover},
};
use stamped::{
    BLOCK, BUSY, Oracle, Random, STORE_SIZE, copy, marks, new_store, open, open_copy, opening,
    restored, ship, wait_until,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const FAULTS: Rates = Rates { refused: 30, unanswered: 60, late: 60, unread: 20 };

#[test]
fn the_remote_copy_is_a_prefix_with_all_that_was_flushed() {
    // Beside each other: nearly all of the time is pauses between the tries of refused requests.
    std::thread::scope(|scope| {
        for seed in 0..6 {
            scope.spawn(move || the_copy_is_a_prefix(seed));
        }
    });
}

fn the_copy_is_a_prefix(seed: u64) {
    let faulty = FaultyBucket::new(Arc::new(MemoryBucket::new()), FAULTS, seed);
    let bucket: Arc<dyn Bucket> = Arc::new(faulty.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (device, _) = ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(seed));
    let mut last = 0;
    for _ in 0..4 {
        oracle.write(&volume, &mut random, 700).expect("nothing fails");
        let copy = copy(&*bucket);
        last = oracle.assert_prefix(&open_copy(&copy), oracle.flushed.max(last));
    }
    volume.close().expect("it is closed in order");
    faulty.carry_out_late();
    let all = oracle.blocks.len() as u64;
    oracle.assert_prefix(&open_copy(&copy(&*bucket)), all);
}

#[test]
fn a_host_that_was_taken_over_acknowledges_nothing_and_nothing_flushed_is_lost() {
    for seed in 0..6 {
        let faulty = FaultyBucket::new(Arc::new(MemoryBucket::new()), FAULTS, seed);
        let bucket: Arc<dyn Bucket> = Arc::new(faulty.clone());
        let store = new_store();
        let (device, replica) =
            ship(store.open().expect("it is free"), &bucket, BUSY, Marks::in_memory());
        let volume = open(device);
        let oracle = Mutex::new(Oracle::default());
        // Beside the oracle, which the old host hardly ever lets go.
        let flushed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (volume, oracle, flushed) = (&volume, &oracle, &flushed);
            // The old host goes on until it is refused.
            let old = scope.spawn(move || {
                let mut random = Random::new(seed);
                loop {
                    let mut own = oracle.lock().expect("nobody panicked");
                    if own.write(volume, &mut random, 20).is_err() {
                        return;
                    }
                    flushed.store(own.flushed, Ordering::Relaxed);
                }
            });
            // The first commit brings the store itself.
            wait_until("a commit", || replica.status().counts.commits > 0);
            // The first block is then surely mapped, and its place on the device.
            wait_until("a flush", || flushed.load(Ordering::Relaxed) > 0);
            std::thread::sleep(Duration::from_millis(50 + 37 * seed));
            let claim =
                takeover::claim(&*bucket, "other", 0, &Briefly).expect("nobody else claims");
            let copied = restored(&*bucket, &claim.history.pieces);
            let inner = copied.open().expect("it is free");
            let opening = opening(bucket.clone(), BUSY, Marks::in_memory());
            let (device, _) =
                ShippedDevice::take_over(inner, opening, claim).expect("marks in memory");
            let other = open(device);
            old.join().expect("the old host's writer ended");
            let own = oracle.lock().expect("nobody panicked").clone();
            let count = own.assert_prefix(&other, own.flushed);
            // What the old host sent late changes nothing.
            faulty.carry_out_late();
            let mut next = Oracle { blocks: own.blocks[..count as usize].to_vec(), flushed: count };
            next.write(&other, &mut Random::new(seed + 100), 200).expect("nothing fails");
            other.flush().expect("nothing fails");
            other.close().expect("it is closed in order");
            next.assert_prefix(&open_copy(&copy(&*bucket)), next.blocks.len() as u64);
        });
        wait_until("the old host knows", || replica.status().is_fenced);
        // What is not mapped reads as zeros without a device.
        let mapped = *oracle.lock().expect("nobody panicked").blocks.first().expect("it wrote");
        let mut bytes = vec![0; BLOCK];
        let read = volume.read_at(mapped * BLOCK as u64, &mut bytes);
        read.expect_err("a fenced host reads nothing either");
        let _ = volume.abandon();
    }
}

#[test]
fn after_a_power_cut_the_local_store_goes_on_and_the_copy_follows_it() {
    for seed in 0..6 {
        let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
        let folder = tempfile::tempdir().expect("a folder");
        let store = new_store();
        let (mut oracle, mut random) = (Oracle::default(), Random::new(seed));
        // The copy may be ahead of what the local device kept.
        let settings = Settings { ack: Ack::Local, ..BUSY };
        for life in 0..4 {
            let (cut, handle) = CutDevice::new(store.open().expect("it is free"));
            let (device, replica) = ship(cut, &bucket, settings, marks(folder.path()));
            let volume = open(device);
            let kept = oracle.assert_prefix(&volume, oracle.flushed);
            oracle.blocks.truncate(kept as usize);
            handle.cut_after(300 + random.below(900), CutPolicy::Seeded(seed * 10 + life));
            // It ends with an error when the power is cut.
            while oracle.write(&volume, &mut random, 50).is_ok() {}
            assert!(handle.is_cut() && !replica.status().is_fenced);
            let _ = volume.abandon();
        }
        let (device, _) =
            ship(store.open().expect("it is free"), &bucket, settings, marks(folder.path()));
        let volume = open(device);
        let kept = oracle.assert_prefix(&volume, oracle.flushed);
        oracle.blocks.truncate(kept as usize);
        volume.close().expect("it is closed in order");
        oracle.assert_prefix(&open_copy(&copy(&*bucket)), kept);
        let mut remote = vec![0; STORE_SIZE as usize];
        copy(&*bucket).read_at(0, &mut remote).expect("it is free");
        let mut local = vec![0; STORE_SIZE as usize];
        store.read_at(0, &mut local).expect("it is free");
        // A discard may have done nothing here; there it left zeros.
        for (index, (one, other)) in local.chunks(BLOCK).zip(remote.chunks(BLOCK)).enumerate() {
            let is_zero = other.iter().all(|byte| *byte == 0);
            assert!(one == other || is_zero, "block {index} is the same, or was discarded");
        }
    }
}

#[test]
fn a_device_that_is_gone_leaves_the_copy_what_it_was() {
    let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    // Nothing is shipped before the end.
    let hour = Duration::from_secs(3600);
    let settings = Settings {
        ack: Ack::Local,
        every: hour,
        early_bytes: STORE_SIZE,
        lag_max: STORE_SIZE,
        // What is shipped is read back.
        keep_max: 0,
        ..BUSY
    };
    let (mut oracle, mut random) = (Oracle::default(), Random::new(1));
    let (device, _) =
        ship(store.open().expect("it is free"), &bucket, settings, marks(folder.path()));
    let volume = open(device);
    oracle.write(&volume, &mut random, 200).expect("nothing fails");
    volume.close().expect("it is closed in order");
    let shipped = oracle.blocks.len() as u64;

    let (cut, handle) = CutDevice::new(store.open().expect("it is free"));
    let (device, replica) = ship(cut, &bucket, settings, marks(folder.path()));
    let volume = open(device);
    oracle.write(&volume, &mut random, 200).expect("nothing fails");
    volume.flush().expect("the local device has it");
    handle.cut(CutPolicy::Seeded(1));
    replica.commit();
    wait_until("it is told", || replica.status().has_stopped);
    let _ = volume.abandon();
    let kept = oracle.assert_prefix(&open_copy(&copy(&*bucket)), shipped);
    assert_eq!(kept, shipped, "the copy is what it was");

    // The device is back, and the copy follows it.
    let (device, _) =
        ship(store.open().expect("it is free"), &bucket, settings, marks(folder.path()));
    let volume = open(device);
    let kept = oracle.assert_prefix(&volume, oracle.flushed);
    volume.close().expect("it is closed in order");
    oracle.assert_prefix(&open_copy(&copy(&*bucket)), kept);
}

#[test]
fn a_store_that_is_older_than_its_copy_is_refused() {
    let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (device, _) = ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    open(device).close().expect("it is closed in order");
    // Another host goes on.
    let claim = takeover::claim(&*bucket, "other", 0, &Briefly).expect("nobody else claims");
    let copied = restored(&*bucket, &claim.history.pieces);
    let opening_of_other = opening(bucket.clone(), BUSY, Marks::in_memory());
    let inner = copied.open().expect("it is free");
    let (device, _) =
        ShippedDevice::take_over(inner, opening_of_other, claim).expect("marks in memory");
    let other = open(device);
    other.write_at(0, &[1; BLOCK]).expect("nothing fails");
    other.flush().expect("nothing fails");
    let inner = store.open().expect("it is free");
    let refused = ShippedDevice::open(inner, opening(bucket.clone(), BUSY, marks(folder.path())));
    assert!(matches!(refused, Err(ReplicaError::Diverged(_))), "another host has written since");
    // The refusal has done the other host no harm.
    other.write_at(0, &[2; BLOCK]).expect("nothing fails");
    other.flush().expect("nothing fails");
    other.close().expect("it is closed in order");
}

#[test]
fn an_outage_stalls_and_fails_nothing() {
    let faulty = FaultyBucket::new(Arc::new(MemoryBucket::new()), Rates::default(), 1);
    let bucket: Arc<dyn Bucket> = Arc::new(faulty.clone());
    let store = new_store();
    let (device, replica) =
        ship(store.open().expect("it is free"), &bucket, BUSY, Marks::in_memory());
    let volume = open(device);
    volume.write_at(0, &[1; BLOCK]).expect("nothing fails");
    volume.flush().expect("nothing fails");
    faulty.set_down(true);
    volume.write_at(0, &[2; BLOCK]).expect("a write waits for no bucket");
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| volume.flush());
        wait_until("the outage is told", || replica.status().health.outage_since.is_some());
        std::thread::sleep(Duration::from_millis(200));
        assert!(!flush.is_finished(), "a flush waits for its commit");
        faulty.set_down(false);
        flush.join().expect("no panic").expect("the flush is answered when the bucket is back");
    });
    wait_until("the end of the outage is told", || replica.status().health.outage_since.is_none());
    volume.close().expect("it is closed in order");
}

#[test]
fn snapshots_keep_their_state_and_what_nothing_needs_is_deleted() {
    let memory = MemoryBucket::new();
    let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
    let store = new_store();
    let (device, replica) =
        ship(store.open().expect("it is free"), &bucket, BUSY, Marks::in_memory());
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(5));
    let mut kept = Vec::new();
    for round in 0..4 {
        oracle.write(&volume, &mut random, 900).expect("nothing fails");
        volume.flush().expect("nothing fails");
        let count = oracle.blocks.len() as u64;
        let name = format!("after {count}");
        // Its host goes on meanwhile, and may delete what an attempt needed.
        let made = (0..20).find_map(|_| snapshot::create(&*bucket, &name, round, &Briefly).ok());
        made.expect("one attempt is not overtaken");
        kept.push((name, count));
        let again = snapshot::create(&*bucket, &kept[0].0, 0, &Briefly);
        assert!(matches!(again, Err(ReplicaError::PinTaken)), "names are given once: {again:?}");
    }
    for (name, count) in &kept {
        let (_, manifest) = snapshot::read(&*bucket, name, &Briefly).expect("it is kept");
        let copy = restored(&*bucket, &manifest.pieces);
        assert_eq!(oracle.assert_prefix(&open_copy(&copy), *count), *count, "no more, no less");
    }
    let mut snapshot_only = std::collections::BTreeSet::new();
    for (name, _) in &kept {
        let (_, manifest) = snapshot::read(&*bucket, name, &Briefly).expect("it is kept");
        snapshot_only.extend(manifest.pieces.sources().map(|source| source.name()));
    }
    for (name, _) in &kept {
        snapshot::delete(&*bucket, name, &Briefly).expect("it is there");
    }
    let gone = snapshot::read(&*bucket, &kept[0].0, &Briefly);
    assert!(matches!(gone, Err(ReplicaError::NoPin(_))));
    oracle.write(&volume, &mut random, 900).expect("nothing fails");
    volume.flush().expect("nothing fails");
    // A collection follows each manifest, behind the host's back.
    wait_until("the garbage is small", || {
        volume.write_at(0, &[0; BLOCK]).expect("nothing fails");
        volume.flush().expect("nothing fails");
        let (_, history) = history::newest(&*bucket, &Briefly).expect("there is a volume");
        let needed = history.pieces.sources().count() + replica.status().counts.garbage as usize;
        let there = memory.list("d/").expect("memory lists").len()
            + memory.list("c/").expect("memory lists").len();
        there <= needed + BUSY.manifest_every as usize * 3
    });
    let (_, history) = history::newest(&*bucket, &Briefly).expect("there is a volume");
    for source in history.pieces.sources() {
        snapshot_only.remove(&source.name());
    }
    assert!(snapshot_only.len() >= 3, "the snapshots held something of their own");
    // They go with a collection, which follows a manifest.
    wait_until("nothing of the snapshots is left", || {
        volume.write_at(0, &[0; BLOCK]).expect("nothing fails");
        volume.flush().expect("nothing fails");
        let there = memory.list("").expect("memory lists");
        !there.iter().any(|(name, _)| snapshot_only.contains(name))
    });
    volume.close().expect("it is closed in order");
}

#[test]
fn a_new_copy_of_zeros_costs_next_to_nothing() {
    let memory = MemoryBucket::new();
    let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
    let store = new_store();
    let settings = Settings { ack: Ack::Remote, ..Settings::DEFAULT };
    let (device, _) =
        ship(store.open().expect("it is free"), &bucket, settings, Marks::in_memory());
    open(device).close().expect("it is closed in order");
    let stored: u64 = memory.list("").expect("memory lists").iter().map(|(_, size)| size).sum();
    assert!(stored < STORE_SIZE / 4, "{stored} bytes for an empty store of {STORE_SIZE}");
}

/// A write that no flush follows, as [`Oracle::write`] stamps them.
fn write_unflushed(oracle: &mut Oracle, volume: &Volume, block: u64) {
    let stamp = oracle.blocks.len() as u64 + 1;
    let mut bytes = vec![(stamp % 251) as u8; BLOCK];
    bytes[..8].copy_from_slice(&stamp.to_le_bytes());
    bytes[8..16].copy_from_slice(&block.to_le_bytes());
    oracle.blocks.push(block);
    volume.write_at(block * BLOCK as u64, &bytes).expect("the local device fails nothing");
}

#[test]
fn a_volume_that_is_closed_while_the_bucket_fails_is_closed_and_shipped_later() {
    let truth = MemoryBucket::new();
    let faulty = FaultyBucket::new(Arc::new(truth.clone()), Rates::default(), 1);
    let bucket: Arc<dyn Bucket> = Arc::new(faulty.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (mut oracle, mut random) = (Oracle::default(), Random::new(3));
    let settings = Settings { ack: Ack::Remote, ..BUSY };
    let open_shipped = || {
        let inner = store.open().expect("it is free");
        let (device, replica) = ship(inner, &bucket, settings, marks(folder.path()));
        (open(device), replica)
    };
    let (volume, replica) = open_shipped();
    oracle.write(&volume, &mut random, 200).expect("nothing fails");
    volume.flush().expect("nothing fails");
    faulty.set_down(true);
    for block in 0..20 {
        write_unflushed(&mut oracle, &volume, block);
    }
    replica.leave_within(Duration::from_millis(300));
    volume.close().expect("the local device fails nothing");
    assert!(replica.status().has_left);
    let kept = oracle.assert_prefix(&open_copy(&copy(&truth)), oracle.flushed);
    assert!(kept < oracle.blocks.len() as u64, "the copy is behind");

    faulty.set_down(false);
    let (volume, replica) = open_shipped();
    let all = oracle.blocks.len() as u64;
    assert_eq!(oracle.assert_prefix(&volume, all), all, "the local store lacks nothing");
    // The bucket answers again: within its time all of it is shipped.
    replica.leave_within(Duration::from_secs(60));
    volume.flush().expect("nothing fails");
    volume.close().expect("nothing fails");
    assert!(!replica.status().has_left);
    assert_eq!(oracle.assert_prefix(&open_copy(&copy(&*bucket)), all), all, "it has caught up");
}

#[test]
fn a_volume_that_stays_after_it_has_left_its_copy_acknowledges_nothing() {
    let faulty = FaultyBucket::new(Arc::new(MemoryBucket::new()), Rates::default(), 1);
    let bucket: Arc<dyn Bucket> = Arc::new(faulty.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (mut oracle, mut random) = (Oracle::default(), Random::new(4));
    let settings = Settings { ack: Ack::Remote, ..BUSY };
    let (device, replica) =
        ship(store.open().expect("it is free"), &bucket, settings, marks(folder.path()));
    let volume = open(device);
    oracle.write(&volume, &mut random, 50).expect("nothing fails");
    volume.flush().expect("nothing fails");
    faulty.set_down(true);
    write_unflushed(&mut oracle, &volume, 0);
    replica.leave_within(Duration::ZERO);
    wait_until("it leaves", || replica.status().has_left);
    replica.stay();
    wait_until("it stops", || replica.status().has_stopped);
    volume.flush().expect_err("the copy cannot be kept");
    let _ = volume.abandon();
}
