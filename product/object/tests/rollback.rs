//! A snapshot becomes the newest state: whole, and at one step, whatever ends or races there.

mod stamped;

use coulter_object::bucket::MemoryBucket;
use coulter_object::history::rollback::{RolledBack, rollback};
use coulter_object::history::{self, History};
use coulter_object::names::Source;
use coulter_object::pieces::PieceMap;
use coulter_object::publish::Briefly;
use coulter_object::ship::housekeeper::Housekeeper;
use coulter_object::ship::marks::Marks;
use coulter_object::{
    Bucket, ReplicaError, ShippedDevice,
    history::{snapshot, takeover, verify},
};
use stamped::stepping::{Step, SteppingBucket, duplicate};
use stamped::{BUSY, Oracle, Random, marks, new_store, open, open_copy, opening, restored, ship};
use std::sync::{Arc, Mutex};

/// A copy whose snapshot `kept` is older than its newest state.
struct Copy {
    bucket: MemoryBucket,
    oracle: Oracle,
    /// Writes that the snapshot holds.
    kept: u64,
    newest: History,
    snapshot: PieceMap,
}

impl Copy {
    fn new(seed: u64) -> Copy {
        let memory = MemoryBucket::new();
        let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
        let store = new_store();
        let inner = store.open().expect("it is free");
        let volume = open(ship(inner, &bucket, BUSY, Marks::in_memory()).0);
        let (mut oracle, mut random) = (Oracle::default(), Random::new(seed));
        oracle.write(&volume, &mut random, 600).expect("nothing fails");
        volume.flush().expect("nothing fails");
        let kept = oracle.blocks.len() as u64;
        let made = (0..20).find_map(|_| snapshot::create(&memory, "kept", 0, &Briefly).ok());
        made.expect("one attempt is not overtaken");
        oracle.write(&volume, &mut random, 600).expect("nothing fails");
        volume.close().expect("it is closed in order");
        let (_, newest) = history::newest(&memory, &Briefly).expect("there is a volume");
        let (_, manifest) = snapshot::read(&memory, "kept", &Briefly).expect("it is kept");
        Copy { bucket: memory, oracle, kept, newest, snapshot: manifest.pieces }
    }

    /// What the snapshot needs and the newest state does not.
    fn only_in_snapshot(&self) -> Vec<Source> {
        let sources = self.snapshot.sources();
        sources.filter(|source| !self.newest.pieces.names(*source)).collect()
    }
}

fn roll_back(bucket: &dyn Bucket) -> Result<RolledBack, ReplicaError> {
    rollback(bucket, "kept", "test", 0, &|_| true, &Briefly)
}

fn newest(bucket: &dyn Bucket) -> PieceMap {
    history::newest(bucket, &Briefly).expect("there is a volume").1.pieces
}

fn assert_sound(bucket: &dyn Bucket) {
    let report = verify::verify(bucket, 1, &Briefly, &|_, _| {}).expect("the bucket answers");
    assert!(report.faults.is_empty(), "{:?}", report.faults);
}

#[test]
fn the_volume_goes_on_from_the_snapshot_and_the_old_store_is_refused() {
    let memory = MemoryBucket::new();
    let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let inner = store.open().expect("it is free");
    let volume = open(ship(inner, &bucket, BUSY, marks(folder.path())).0);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(3));
    oracle.write(&volume, &mut random, 500).expect("nothing fails");
    volume.flush().expect("nothing fails");
    let kept = oracle.blocks.len();
    let made = (0..20).find_map(|_| snapshot::create(&memory, "kept", 0, &Briefly).ok());
    made.expect("one attempt is not overtaken");
    let mut old = oracle.clone();
    old.write(&volume, &mut random, 500).expect("nothing fails");
    volume.flush().expect("nothing fails");
    let count_before = memory.list("d/").expect("memory lists").len();

    let refused = rollback(
        &memory,
        "kept",
        "test",
        0,
        &|record| !record.owner.starts_with("test, "),
        &Briefly,
    );
    assert!(matches!(refused, Err(ReplicaError::InUse(_))), "its host may be writing: {refused:?}");
    volume.flush().expect("a refusal does the host no harm");
    roll_back(&memory).expect("nobody else is there");
    while old.write(&volume, &mut random, 20).is_ok() {}
    let _ = volume.abandon();
    assert_sound(&memory);
    let count_after = memory.list("d/").expect("memory lists").len();
    assert!(count_after < count_before, "what nothing needs any more is deleted");

    let inner = store.open().expect("it is free");
    let refused = ShippedDevice::open(inner, opening(bucket.clone(), BUSY, marks(folder.path())));
    assert!(matches!(refused, Err(ReplicaError::Diverged(_))), "the copy is not what it shipped");
    // No host has it now, so nobody is asked.
    rollback(&memory, "kept", "test", 0, &|_| false, &Briefly).expect("the epoch was ended");

    let claim = takeover::claim(&memory, "other", 0, &Briefly).expect("nobody else claims");
    let copied = restored(&memory, &claim.history.pieces);
    let opening = opening(bucket.clone(), BUSY, Marks::in_memory());
    let inner = copied.open().expect("it is free");
    let (device, _) = ShippedDevice::take_over(inner, opening, claim).expect("marks in memory");
    let other = open(device);
    assert_eq!(oracle.assert_prefix(&other, kept as u64), kept as u64, "no more, no less");
    oracle.write(&other, &mut random, 500).expect("nothing fails");
    let all = oracle.blocks.len() as u64;
    other.close().expect("it is closed in order");
    oracle.assert_prefix(&open_copy(&stamped::copy(&memory)), all);
    assert_sound(&memory);
    let (_, manifest) = snapshot::read(&memory, "kept", &Briefly).expect("it is kept");
    let old = restored(&memory, &manifest.pieces);
    oracle.blocks.truncate(kept);
    assert_eq!(oracle.assert_prefix(&open_copy(&old), kept as u64), kept as u64);
}

#[test]
fn a_rollback_that_ends_at_any_step_leaves_one_of_the_two_states_whole() {
    let copy = Copy::new(1);
    let bucket = SteppingBucket::new(duplicate(&copy.bucket), u64::MAX, Step::EndsBefore);
    roll_back(&bucket).expect("nothing fails");
    let steps = bucket.count();
    assert!(steps > 12, "it deletes objects, too: {steps}");
    let (mut seen, mut unfinished) = ([0, 0], 0);
    for at in (1..=12).chain([steps / 2, steps]) {
        for step in [Step::EndsBefore, Step::EndsAfter] {
            let memory = duplicate(&copy.bucket);
            let _ = roll_back(&SteppingBucket::new(memory.clone(), at, step));
            assert_sound(&memory);
            let now = newest(&memory);
            assert!(now == copy.newest.pieces || now == copy.snapshot, "step {at}: one of the two");
            seen[usize::from(now == copy.snapshot)] += 1;
            let (_, kept) = snapshot::read(&memory, "kept", &Briefly).expect("it is kept");
            assert_eq!(kept.pieces, copy.snapshot, "the snapshot stays what it was");
            match snapshot::create(&memory, "later", 0, &Briefly) {
                Ok(_) => assert_eq!(
                    snapshot::read(&memory, "later", &Briefly).expect("made").1.pieces,
                    now
                ),
                Err(ReplicaError::Unfinished) => unfinished += 1,
                Err(error) => panic!("step {at}: {error}"),
            }
            roll_back(&memory).expect("it can be done again");
            assert_eq!(newest(&memory), copy.snapshot);
            assert_sound(&memory);
        }
    }
    assert!((1..=3).contains(&unfinished), "between the two swaps, and only there: {unfinished}");
    assert!(seen[0] >= 8 && seen[1] >= 8, "both states were met: {seen:?}");
    let memory = duplicate(&copy.bucket);
    roll_back(&memory).expect("nothing fails");
    let whole = restored(&memory, &newest(&memory));
    let count = copy.oracle.assert_prefix(&open_copy(&whole), copy.kept);
    assert_eq!(count, copy.kept, "no more, no less");
}

#[test]
fn of_a_rollback_and_a_take_over_that_race_one_is_refused_or_counts_the_other() {
    let copy = Copy::new(2);
    for at in 1..=10 {
        let memory = duplicate(&copy.bucket);
        let claimed = Arc::new(Mutex::new(None));
        let (other, result) = (memory.clone(), claimed.clone());
        let claim = move || {
            let claim = takeover::claim(&other, "other", 0, &Briefly).expect("it comes last");
            *result.lock().expect("no panic") = Some(claim.history.pieces);
        };
        let step = Step::Meanwhile(Mutex::new(Some(Box::new(claim))));
        let rolled_back = roll_back(&SteppingBucket::new(memory.clone(), at, step));
        let claimed = claimed.lock().expect("no panic").take().expect("the step was reached");
        match rolled_back {
            Ok(_) => assert_eq!(claimed, copy.snapshot, "step {at}: it took over the snapshot"),
            Err(ReplicaError::TakenOver) => {
                assert_eq!(claimed, copy.newest.pieces, "step {at}: it took over the newest state");
            }
            Err(other) => panic!("step {at}: {other}"),
        }
        assert_eq!(newest(&memory), claimed, "step {at}");
        assert_sound(&memory);
    }
}

#[test]
fn a_fenced_host_that_deletes_late_deletes_nothing_that_the_snapshot_needs() {
    let copy = Copy::new(3);
    let garbage = copy.only_in_snapshot();
    assert!(!garbage.is_empty(), "the snapshot has objects of its own");
    let mut rolled_back_count = 0;
    for at in 1..=10 {
        let memory = duplicate(&copy.bucket);
        let (record, tag) = history::record(&memory, &Briefly).expect("there is a volume");
        let mut housekeeper = Housekeeper::new(Arc::new(memory.clone()), record, tag);
        let horizon = copy.newest.last;
        let (late, sources) = (memory.clone(), garbage.clone());
        // Somebody deletes the snapshot, and the old host goes through what it noted as garbage before.
        let collect = move || {
            snapshot::delete(&late, "kept", &Briefly).expect("it is there");
            let _ = housekeeper.collect(horizon, sources, &Briefly);
        };
        let step = Step::Meanwhile(Mutex::new(Some(Box::new(collect))));
        let rolled_back = roll_back(&SteppingBucket::new(memory.clone(), at, step));
        let expected = match rolled_back {
            Ok(_) => &copy.snapshot,
            Err(ReplicaError::NoPin(_)) => &copy.newest.pieces,
            Err(other) => panic!("step {at}: {other}"),
        };
        rolled_back_count += u64::from(rolled_back.is_ok());
        assert_eq!(newest(&memory), *expected, "step {at}");
        assert_sound(&memory);
    }
    assert!((2..9).contains(&rolled_back_count), "both ends were met: {rolled_back_count}");
}
