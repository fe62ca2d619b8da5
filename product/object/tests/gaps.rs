//! Commits that are gone: whoever opens the copy is told, and no host goes on behind the gap.

mod stamped;

use coulter_object::bucket::MemoryBucket;
use coulter_object::history::rollback::rollback;
use coulter_object::history::{self, snapshot, takeover, verify};
use coulter_object::layout::VolumeRecord;
use coulter_object::names::{CommitId, VOLUME};
use coulter_object::publish::Briefly;
use coulter_object::ship::marks::Marks;
use coulter_object::{Bucket, ReplicaError, Settings, ShippedDevice};
use stamped::{
    BUSY, Oracle, Random, copy, marks, new_store, open, open_copy, opening, restored, ship,
    wait_until,
};
use std::sync::Arc;

/// No manifest, so that every commit is needed.
const SETTINGS: Settings = Settings { manifest_every: 1_000_000, ..BUSY };

/// A commit in the middle of the newest epoch, behind the snapshot if there is one.
fn middle(bucket: &MemoryBucket) -> CommitId {
    let (_, history) = history::newest(bucket, &Briefly).expect("there is a volume");
    let kept = snapshot::read(bucket, "kept", &Briefly);
    let number = kept.map_or(5, |(_, manifest)| manifest.commit.number + 2);
    assert!(history.last.number > number, "there are commits behind");
    CommitId { number, ..history.last }
}

/// Removes a commit in the middle of the newest epoch and `more` behind it.
fn lose_commits(bucket: &MemoryBucket, more: u64) -> CommitId {
    let first = middle(bucket);
    for number in first.number..=first.number + more {
        let name = CommitId { number, ..first }.name();
        bucket.delete(&name).expect("memory deletes");
    }
    first
}

fn assert_told<T>(result: Result<T, ReplicaError>, gone: CommitId) {
    match result {
        Err(ReplicaError::Gap(missing, found)) => {
            assert_eq!(missing, gone);
            assert!(found > missing);
        }
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("the gap was taken for the end"),
    }
}

#[test]
fn a_gap_is_told_and_ends_no_host_that_writes() {
    let memory = MemoryBucket::new();
    let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
    let store = new_store();
    let inner = store.open().expect("it is free");
    let (device, replica) = ship(inner, &bucket, SETTINGS, Marks::in_memory());
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(1));
    oracle.write(&volume, &mut random, 300).expect("nothing fails");
    volume.flush().expect("nothing fails");
    let gone = lose_commits(&memory, 3);
    assert_told(history::newest(&memory, &Briefly), gone);
    assert_told(snapshot::create(&memory, "new", 0, &Briefly), gone);
    assert_told(takeover::claim(&memory, "other", 0, &Briefly), gone);
    let report = verify::verify(&memory, 1, &Briefly, &|_, _| {}).expect("the bucket answers");
    assert!(report.faults.iter().any(|fault| fault.object == gone.name() && fault.is_newest));
    // The host need not know, until it wants to store a manifest.
    oracle.write(&volume, &mut random, 50).expect("nothing fails");
    volume.flush().expect("a refused claim ends nobody");
    assert!(!replica.status().is_fenced);
    let _ = volume.abandon();
}

#[test]
fn who_goes_on_before_a_gap_ends_the_host_behind_it() {
    for lost in [0, 3, 40] {
        let memory = MemoryBucket::new();
        let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
        let store = new_store();
        let inner = store.open().expect("it is free");
        let (device, replica) = ship(inner, &bucket, SETTINGS, Marks::in_memory());
        let volume = open(device);
        let (mut oracle, mut random) = (Oracle::default(), Random::new(lost));
        while replica.status().counts.commits < 60 {
            oracle.write(&volume, &mut random, 100).expect("nothing fails");
            volume.flush().expect("nothing fails");
        }
        let gone = lose_commits(&memory, lost);
        let (claim, why) =
            takeover::claim_anyway(&memory, "other", 0, &Briefly).expect("nobody else claims");
        // A gap of many looks like the end; its host is fenced there when it stores a manifest.
        assert_eq!(why.is_some(), lost < 16, "{why:?}");
        assert_eq!(claim.after, CommitId { number: gone.number - 1, ..gone });
        if why.is_some() {
            while oracle.write(&volume, &mut random, 20).is_ok() {}
            wait_until("the old host knows", || replica.status().is_fenced);
        }
        let _ = volume.abandon();

        let copied = restored(&memory, &claim.history.pieces);
        let inner = copied.open().expect("it is free");
        let opening = opening(bucket.clone(), BUSY, Marks::in_memory());
        let (device, _) = ShippedDevice::take_over(inner, opening, claim).expect("in memory");
        let other = open(device);
        let count = oracle.assert_prefix(&other, 0);
        let mut next = Oracle { blocks: oracle.blocks[..count as usize].to_vec(), flushed: 0 };
        next.write(&other, &mut random, 300).expect("nothing fails");
        other.close().expect("it is closed in order");
        next.assert_prefix(&open_copy(&copy(&memory)), next.blocks.len() as u64);
        let report = verify::verify(&memory, 1, &Briefly, &|_, _| {}).expect("it answers");
        assert!(report.faults.is_empty(), "{:?}", report.faults);
    }
}

/// A closed volume with a snapshot and commits behind it: its bucket, store, oracle, and writes in the snapshot.
fn closed(folder: &std::path::Path) -> (MemoryBucket, coulter_device::MemoryStore, Oracle, u64) {
    let memory = MemoryBucket::new();
    let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
    let store = new_store();
    let inner = store.open().expect("it is free");
    let volume = open(ship(inner, &bucket, SETTINGS, marks(folder)).0);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(7));
    oracle.write(&volume, &mut random, 300).expect("nothing fails");
    volume.flush().expect("nothing fails");
    let kept = oracle.blocks.len() as u64;
    snapshot::create(&memory, "kept", 0, &Briefly).expect("nothing is collected");
    oracle.write(&volume, &mut random, 300).expect("nothing fails");
    volume.close().expect("it is closed in order");
    (memory, store, oracle, kept)
}

/// What is wrong, and a way to make it so.
type Damage = (&'static str, fn(&MemoryBucket));

/// What can be wrong with the history of a copy.
const DAMAGES: [Damage; 3] = [
    ("a gap", |bucket| {
        lose_commits(bucket, 0);
    }),
    ("a damaged commit", |bucket| {
        replace(bucket, &middle(bucket).name(), b"nonsense".to_vec());
    }),
    ("a missing manifest", |bucket| {
        let (mut record, tag) = history::record(bucket, &Briefly).expect("there is a volume");
        let commit = CommitId { epoch: 1, number: 7 };
        record.manifest = Some(coulter_object::names::ManifestId { commit, nonce: 9 });
        takeover::swap_record(bucket, &mut record, &tag, &Briefly).expect("nobody else does");
    }),
];

fn replace(bucket: &MemoryBucket, name: &str, bytes: Vec<u8>) {
    bucket.delete(name).expect("memory deletes");
    bucket.create(name, &bytes).expect("memory has room");
}

#[test]
fn a_damaged_history_is_shipped_anew_from_the_store() {
    for (what, damage) in DAMAGES {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, store, mut oracle, _) = closed(folder.path());
        damage(&memory);
        let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
        let ordinary = opening(bucket.clone(), BUSY, marks(folder.path()));
        let refused = ShippedDevice::open(store.open().expect("it is free"), ordinary);
        assert!(refused.is_err_and(|error| error.is_of_object()), "{what} is told");
        let mut reseeding = opening(bucket, BUSY, marks(folder.path()));
        reseeding.reseed = true;
        let inner = store.open().expect("it is free");
        let (device, _) = ShippedDevice::open(inner, reseeding)
            .unwrap_or_else(|error| panic!("{what} is shipped over: {error}"));
        let volume = open(device);
        oracle.write(&volume, &mut Random::new(8), 100).expect("nothing fails");
        volume.close().expect("it is closed in order");
        oracle.assert_prefix(&open_copy(&copy(&memory)), oracle.blocks.len() as u64);
        let report = verify::verify(&memory, 1, &Briefly, &|_, _| {}).expect("it answers");
        assert!(report.faults.is_empty(), "{what}: {:?}", report.faults);
    }
}

#[test]
fn a_damaged_history_is_rolled_back_to_a_snapshot() {
    for (what, damage) in DAMAGES {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, _, oracle, kept) = closed(folder.path());
        damage(&memory);
        rollback(&memory, "kept", "test", 0, &|_| true, &Briefly)
            .unwrap_or_else(|error| panic!("{what} is given up: {error}"));
        let found = oracle.assert_prefix(&open_copy(&copy(&memory)), kept);
        assert_eq!(found, kept, "no more, no less");
    }
}

#[test]
fn a_record_with_more_epochs_than_any_host_leaves_is_refused_and_stops_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (memory, ..) = closed(folder.path());
    let (record, _) = history::record(&memory, &Briefly).expect("there is a volume");
    let first = *record.newest().expect("it was opened");
    let epochs = (0..256).map(|more| coulter_object::layout::Epoch {
        epoch: first.epoch + more,
        after: CommitId { epoch: (first.epoch + more).saturating_sub(1), number: 0 },
        ..first
    });
    let full = VolumeRecord { epochs: epochs.collect(), ..record };
    replace(&memory, VOLUME, full.encode());
    let refused = takeover::claim(&memory, "other", 0, &Briefly).expect_err("it is full");
    assert!(matches!(refused, ReplicaError::Damaged(..)), "{refused}");
}
