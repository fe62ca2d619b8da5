//! Readers of a copy whose host goes on shipping while they read.

mod stamped;

use coulter::service::{Change, RequestError};
use coulter_object::bucket::{BucketError, Created, MemoryBucket, Object, Swapped, Tag};
use coulter_object::names::CommitId;
use coulter_object::publish::Briefly;
use coulter_object::ship::device::Opening;
use coulter_object::{
    Ack, Bucket, ReplicaError, Settings, ShippedDevice,
    history::{self, takeover},
};
use stamped::{BUSY, Oracle, Random, marks, new_store, open, open_copy, ship, wait_until};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Gives a record of the volume that was read earlier, once; then what is there.
struct Earlier {
    bucket: Arc<dyn Bucket>,
    record: Mutex<Option<Object>>,
}

impl Bucket for Earlier {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        self.bucket.create(name, bytes)
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.bucket.swap(name, tag, bytes)
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        if name == "volume"
            && let Some(earlier) = self.record.lock().expect("nobody panicked").take()
        {
            return Ok(Some(earlier));
        }
        self.bucket.read(name, range)
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.bucket.delete(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.bucket.list(prefix)
    }

    fn url(&self) -> String {
        self.bucket.url()
    }
}

#[test]
fn a_manifest_that_is_collected_under_a_reader_is_followed_by_a_newer_one() {
    let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (device, _) = ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(1));
    let record = || bucket.read("volume", None).expect("it answers").expect("there is a volume");
    let manifest = || history::record(&*bucket, &Briefly).expect("there is a volume").0.manifest;
    while manifest().is_none() {
        oracle.write(&volume, &mut random, 100).expect("nothing fails");
    }
    let (earlier, name) = (record(), manifest().expect("there is one").name());
    while bucket.read(&name, None).expect("it answers").is_some() {
        oracle.write(&volume, &mut random, 100).expect("nothing fails");
    }
    volume.close().expect("it is closed in order");
    let reader = Earlier { bucket: bucket.clone(), record: Mutex::new(Some(earlier)) };
    let (record, found) = history::newest(&reader, &Briefly).expect("a newer one is there");
    let copy = open_copy(&stamped::restored(&*bucket, &found.pieces));
    assert_eq!(oracle.assert_prefix(&copy, oracle.flushed), oracle.blocks.len() as u64);
    // Where the record has not changed, what it names is lost.
    bucket.delete(&record.manifest.expect("there is one").name()).expect("it is there");
    assert!(matches!(history::newest(&*bucket, &Briefly), Err(ReplicaError::Missing(_))));
}

#[test]
fn a_manifest_that_is_stored_under_a_claim_is_no_other_claim() {
    let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (device, _) = ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(2));
    let record = || bucket.read("volume", None).expect("it answers").expect("there is a volume");
    let earlier = record();
    let manifest = || history::record(&*bucket, &Briefly).expect("there is a volume").0.manifest;
    while manifest().is_none() {
        oracle.write(&volume, &mut random, 100).expect("nothing fails");
    }
    volume.flush().expect("nothing fails");
    let claimed = record();
    let claimant = Earlier { bucket: bucket.clone(), record: Mutex::new(Some(earlier)) };
    let claim = takeover::claim(&claimant, "other", 0, &Briefly).expect("nobody else claims");
    let copy = open_copy(&stamped::restored(&*bucket, &claim.history.pieces));
    assert_eq!(oracle.assert_prefix(&copy, oracle.flushed), oracle.blocks.len() as u64);
    let _ = volume.abandon();
    // Another claim in between counts.
    let late = Earlier { bucket: bucket.clone(), record: Mutex::new(Some(claimed)) };
    let refused = takeover::claim(&late, "late", 0, &Briefly);
    assert!(matches!(refused, Err(ReplicaError::TakenOver)), "{refused:?}");
}

#[test]
fn a_host_that_has_opened_the_volume_and_not_committed_is_not_fenced_in_passing() {
    let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (device, _) = ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(5));
    oracle.write(&volume, &mut random, 50).expect("nothing fails");
    volume.close().expect("it is closed in order");
    let claim = takeover::claim(&*bucket, "other", 0, &Briefly).expect("nobody else claims");

    let again = |has_ended: fn(&str) -> bool| {
        let opening = stamped::opening(bucket.clone(), BUSY, marks(folder.path()));
        let inner = store.open().expect("it is free");
        ShippedDevice::open(inner, Opening { has_ended, ..opening }).map(|_| ())
    };
    let refused = again(|_| false);
    assert!(matches!(&refused, Err(ReplicaError::InUse(owner)) if owner == "other"), "{refused:?}");
    takeover::give_up(&*bucket, claim.epoch, &Briefly).expect("it is the other's");
    again(|_| false).expect("the other has given the volume up, and wrote nothing");
    takeover::claim(&*bucket, "another", 0, &Briefly).expect("nobody else claims");
    let refused = again(|_| true);
    assert!(
        matches!(refused, Err(ReplicaError::InUse(_))),
        "its process is not its store: {refused:?}"
    );
}

#[test]
fn a_claim_of_its_own_that_a_crash_cut_short_keeps_no_store_out() {
    let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (device, _) = ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(7));
    oracle.write(&volume, &mut random, 50).expect("nothing fails");
    volume.close().expect("it is closed in order");
    // The epoch has begun, and the marks do not know it yet.
    let claimant = stamped::opening(bucket.clone(), BUSY, marks(folder.path())).claimant();
    takeover::claim(&*bucket, &claimant, 0, &Briefly).expect("nobody else claims");
    let again = |has_ended: fn(&str) -> bool| {
        let opening = stamped::opening(bucket.clone(), BUSY, marks(folder.path()));
        let inner = store.open().expect("it is free");
        ShippedDevice::open(inner, Opening { has_ended, ..opening }).map(|_| ())
    };
    let refused = again(|_| false);
    assert!(matches!(refused, Err(ReplicaError::InUse(_))), "a copy of it may run: {refused:?}");
    again(|_| true).expect("it is this store's claim");
}

/// A host that ships nothing, and what it answers after another has taken the volume over.
fn answers_after_a_take_over(ack: Ack) {
    let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let settings = Settings { ack, ..BUSY };
    let inner = store.open().expect("it is free");
    let (device, replica) = ship(inner, &bucket, settings, marks(folder.path()));
    let volume = open(device);
    volume.write_at(0, &[1; 8192]).expect("it is written");
    volume.flush().expect("nothing fails");
    replica.commit();
    wait_until("all is shipped", || replica.status().is_idle);
    takeover::claim(&*bucket, "other", 0, &Briefly).expect("nobody else claims");
    wait_until("it is told", || replica.status().is_fenced);
    let mut bytes = [0; 4096];
    let far = volume.size() / 2;
    let discard = Change::Discard { offset: far, length: 4096 };
    let answers = [
        ("a read", volume.read_at(0, &mut bytes)),
        ("a read of what is not mapped", volume.read_at(far, &mut bytes)),
        ("a part of a block", volume.read_at(far, &mut bytes[..512])),
        ("a write", volume.write_at(0, &[2; 4096])),
        ("a discard", volume.discard(4096, 4096)),
        ("a discard of what is not mapped", volume.discard(far, 4096)),
        ("zeros", volume.write_zeroes(far, 4096)),
        ("a flush", volume.flush()),
        ("extents", volume.extents(0, far).map(drop)),
        ("exact extents", volume.exact_extents(0, far).map(drop)),
        ("several", volume.write_many(&[discard], &[], false)),
        ("a read with its extents", volume.read_present_at(far, &mut bytes).map(drop)),
    ];
    for (what, answer) in answers {
        let is_gone = matches!(answer, Err(RequestError::Device { .. }));
        assert!(is_gone, "{what} is answered with {answer:?}");
    }
}

#[test]
fn a_host_that_ships_nothing_learns_of_a_take_over_and_answers_nothing_any_more() {
    answers_after_a_take_over(Ack::Remote);
    answers_after_a_take_over(Ack::Local);
}

/// Names that a history is first asked for.
const ASKED_FOR_AT_ONCE: u64 = 16;

/// A bucket in which every commit becomes visible only when the one after next is asked for: so of names that are
/// asked for at once, one is still free and the one behind it is not.
struct Late {
    bucket: MemoryBucket,
    hidden: Mutex<Option<String>>,
}

impl Bucket for Late {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        self.bucket.create(name, bytes)
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.bucket.swap(name, tag, bytes)
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        let mut hidden = self.hidden.lock().expect("nobody panicked");
        if hidden.as_deref() == Some(name) {
            *hidden = None;
            return Ok(None);
        }
        self.bucket.read(name, range)
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.bucket.delete(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.bucket.list(prefix)
    }

    fn url(&self) -> String {
        self.bucket.url()
    }
}

#[test]
fn a_name_that_was_still_free_before_a_commit_that_is_seen_is_read_again() {
    let memory = MemoryBucket::new();
    let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
    let store = new_store();
    let folder = tempfile::tempdir().expect("a folder");
    let settings = Settings { manifest_every: 1000, ..BUSY };
    let (device, _) =
        ship(store.open().expect("it is free"), &bucket, settings, marks(folder.path()));
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(6));
    while memory.list("c/").expect("memory lists").len() < 12 {
        oracle.write(&volume, &mut random, 50).expect("nothing fails");
    }
    volume.close().expect("it is closed in order");
    let (_, whole) = history::newest(&*bucket, &Briefly).expect("there is a volume");
    for number in 1..=whole.last.number {
        let hidden = CommitId { number, ..whole.last };
        let late = Late { bucket: memory.clone(), hidden: Mutex::new(Some(hidden.name())) };
        let (_, found) = history::newest(&late, &Briefly).expect("there is a volume");
        // If none behind it was asked for at once, the history is what it was a moment before.
        let is_last = hidden == whole.last || number == ASKED_FOR_AT_ONCE;
        let expected = if is_last { number - 1 } else { whole.last.number };
        assert_eq!(found.last.number, expected, "commit {number}");
        found.pieces.assert_invariants();
    }
}
