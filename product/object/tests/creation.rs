//! The making of a copy, cut short at each of its steps: the next opening goes on with it.

mod stamped;

use coulter_object::bucket::MemoryBucket;
use coulter_object::history::takeover::{self, NewVolume};
use coulter_object::names::PINS;
use coulter_object::publish::Briefly;
use coulter_object::{
    Bucket, ReplicaError, ShippedDevice,
    history::{snapshot, verify},
};
use stamped::stepping::{Step, SteppingBucket};
use stamped::{
    BUSY, Oracle, Random, STORE, STORE_SIZE, copy, marks, new_store, open, open_copy, opening, ship,
};
use std::sync::Arc;

#[test]
fn after_a_crash_at_any_step_of_the_making_the_next_opening_goes_on() {
    for at in 1..=2 {
        for step in [Step::EndsBefore, Step::EndsAfter] {
            let memory = MemoryBucket::new();
            let folder = tempfile::tempdir().expect("a folder");
            let store = new_store();
            let lost: Arc<dyn Bucket> = Arc::new(SteppingBucket::new(memory.clone(), at, step));
            let opened = ShippedDevice::open(
                store.open().expect("it is free"),
                opening(lost, BUSY, marks(folder.path())),
            );
            opened.expect_err("the host is lost");

            let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
            let inner = store.open().expect("it is free");
            let volume = open(ship(inner, &bucket, BUSY, marks(folder.path())).0);
            let (mut oracle, mut random) = (Oracle::default(), Random::new(at));
            oracle.write(&volume, &mut random, 300).expect("nothing fails");
            volume.flush().expect("nothing fails");
            let made = (0..20).find_map(|_| snapshot::create(&memory, "kept", 0, &Briefly).ok());
            made.expect("the pins are there");
            volume.close().expect("it is closed in order");
            oracle.assert_prefix(&open_copy(&copy(&memory)), oracle.blocks.len() as u64);
            let report = verify::verify(&memory, 1, &Briefly, &|_, _| {}).expect("it answers");
            assert!(report.faults.is_empty(), "{:?}", report.faults);
        }
    }
}

#[test]
fn a_host_that_was_cut_short_while_it_made_the_copy_may_still_run_elsewhere() {
    let memory = MemoryBucket::new();
    let folder = tempfile::tempdir().expect("a folder");
    let owner = "another host".to_string();
    let new = NewVolume { store: STORE, device_size: STORE_SIZE, chunk_size: 8 << 20, owner };
    takeover::create(&memory, &new, 0, &Briefly).expect("the bucket is empty");
    let store = new_store();
    let mut opening = opening(Arc::new(memory), BUSY, marks(folder.path()));
    opening.has_ended = |_| false;
    let refused = ShippedDevice::open(store.open().expect("it is free"), opening);
    assert!(matches!(refused, Err(ReplicaError::InUse(_))), "it may be about to commit");
}

#[test]
fn pins_that_were_used_are_left_overs() {
    let memory = MemoryBucket::new();
    let folder = tempfile::tempdir().expect("a folder");
    let bucket: Arc<dyn Bucket> = Arc::new(memory.clone());
    let store = new_store();
    let volume =
        open(ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path())).0);
    Oracle::default().write(&volume, &mut Random::new(1), 100).expect("nothing fails");
    volume.flush().expect("nothing fails");
    let made = (0..20).find_map(|_| snapshot::create(&memory, "kept", 0, &Briefly).ok());
    made.expect("one attempt is not overtaken");
    volume.close().expect("it is closed in order");
    for (name, _) in memory.list("").expect("memory lists") {
        if name != PINS {
            memory.delete(&name).expect("memory deletes");
        }
    }
    let opened = ShippedDevice::open(
        store.open().expect("it is free"),
        opening(bucket, BUSY, marks(folder.path())),
    );
    assert!(matches!(opened, Err(ReplicaError::Leftovers(name)) if name == PINS));
}
