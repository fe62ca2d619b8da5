//! Clones: they share objects, and neither volume's garbage collection harms the other.

mod stamped;

use coulter_object::history;
use coulter_object::history::verify::verify;
use coulter_object::layout::VolumeId;
use coulter_object::layout::pins::CloneLine;
use coulter_object::publish::Briefly;
use coulter_object::ship::marks::Marks;
use coulter_object::{
    Bucket, ReplicaError, ShippedDevice, Url,
    history::{lineage, snapshot, takeover},
};
use stamped::{BUSY, Oracle, Random, copy, new_store, open, open_copy, opening, restored, ship};
use std::fs;
use std::path::Path;
use std::sync::Arc;

#[test]
fn lines_of_clones_that_are_gone_make_room_for_new_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second] = ["a", "b"].map(|name| url(folder.path(), name));
    let made = first.open(true).expect("the folder is ours");
    let store = new_store();
    let inner = store.open().expect("it is free");
    let volume = open(ship(inner, &made, BUSY, Marks::in_memory()).0);
    Oracle::default().write(&volume, &mut Random::new(4), 50).expect("nothing fails");
    volume.close().expect("it is closed in order");
    snapshot::create(&*made, "one", 0, &Briefly).expect("nobody else does");
    let (record, _) = history::record(&*made, &Briefly).expect("it is there");
    let (mut pins, tag) = snapshot::pins(&*made, &record, &Briefly).expect("they are there");
    pins.counter += 1;
    let line = |number: u32| CloneLine {
        volume: VolumeId::random(),
        pin: "one".to_string(),
        path: format!("../gone-{number}"),
    };
    pins.clones = (0..4096).map(line).collect();
    made.swap("pins", &tag, &pins.encode()).expect("nobody else does");
    lineage::clone(&first, "one", &second, 0, &Briefly).expect("one that is gone makes room");
    let (pins, _) = snapshot::pins(&*made, &record, &Briefly).expect("they are there");
    assert_eq!((pins.clones.len(), &*pins.clones[4095].path), (4096, "../b"));
}

fn url(folder: &Path, name: &str) -> Url {
    Url::Directory(folder.join(name))
}

fn bucket(url: &Url) -> Arc<dyn Bucket> {
    lineage::open(url, false, &Briefly).expect("it is a directory")
}

/// Goes on with the volume of a copy on another host, until its garbage was collected a few times.
fn go_on(url: &Url, oracle: &mut Oracle, random: &mut Random) {
    let bucket = bucket(url);
    let claim = takeover::claim(&*bucket, "other", 0, &Briefly).expect("nobody else claims");
    let store = restored(&*bucket, &claim.history.pieces);
    let opening = opening(bucket.clone(), BUSY, Marks::in_memory());
    let inner = store.open().expect("it is free");
    let (device, replica) =
        ShippedDevice::take_over(inner, opening, claim).expect("marks in memory");
    let volume = open(device);
    oracle.assert_prefix(&volume, oracle.blocks.len() as u64);
    oracle.write(&volume, random, 1500).expect("nothing fails");
    volume.close().expect("it is closed in order");
    assert!(replica.status().counts.commits > 2 * BUSY.manifest_every, "there were collections");
    assert_is(url, oracle);
}

/// A copy is whole, and holds all that was written.
fn assert_is(url: &Url, oracle: &Oracle) {
    let bucket = bucket(url);
    oracle.assert_prefix(&open_copy(&copy(&*bucket)), oracle.blocks.len() as u64);
    let report = verify(&*bucket, 4, &Briefly, &|_, _| {}).expect("it can be read");
    assert!(report.faults.is_empty(), "{:?}", report.faults);
}

#[test]
fn a_clone_shares_objects_and_neither_collects_what_the_other_needs() {
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second, third] = ["a", "b", "c"].map(|name| url(folder.path(), name));
    let (mut oracle, mut random) = (Oracle::default(), Random::new(3));
    let store = new_store();
    let made = first.open(true).expect("the folder is ours");
    let (device, _) = ship(store.open().expect("it is free"), &made, BUSY, Marks::in_memory());
    let volume = open(device);
    oracle.write(&volume, &mut random, 1500).expect("nothing fails");
    volume.close().expect("it is closed in order");
    snapshot::create(&*made, "one", 0, &Briefly).expect("nobody else does");

    lineage::clone(&first, "one", &second, 0, &Briefly).expect("the place is free");
    let again = lineage::clone(&first, "one", &second, 0, &Briefly);
    assert!(matches!(again, Err(ReplicaError::Taken)), "one volume to a place");
    let none = lineage::clone(&first, "none", &third, 0, &Briefly);
    assert!(matches!(none, Err(ReplicaError::NoPin(_))), "a clone is of a snapshot");
    assert!(!folder.path().join("b/d").exists(), "it has no data of its own");
    assert_is(&second, &oracle);

    // All three go on by turns, and a clone of the clone begins in between.
    let (mut of_clone, mut of_third) = (oracle.clone(), None);
    for _ in 0..2 {
        go_on(&first, &mut oracle, &mut random);
        go_on(&second, &mut of_clone, &mut random);
        let of_third = of_third.get_or_insert_with(|| {
            let bucket = bucket(&second);
            snapshot::create(&*bucket, "two", 0, &Briefly).expect("nobody else does");
            lineage::clone(&second, "two", &third, 0, &Briefly).expect("the place is free");
            of_clone.clone()
        });
        go_on(&third, of_third, &mut random);
        assert_is(&first, &oracle);
        assert_is(&second, &of_clone);
    }

    // A snapshot stays while its clone does.
    let made = bucket(&first);
    let is_there = |line: &_| lineage::is_there(&first, line, &Briefly);
    let refused = snapshot::delete_unless_cloned(&*made, "one", &is_there, &Briefly);
    assert!(matches!(refused, Err(ReplicaError::HasClones(_))), "its clone needs it");
    fs::remove_dir_all(folder.path().join("b")).expect("it is ours");
    snapshot::delete_unless_cloned(&*made, "one", &is_there, &Briefly).expect("it is gone");
    let (record, _) = history::record(&*made, &Briefly).expect("it is there");
    let (pins, _) = snapshot::pins(&*made, &record, &Briefly).expect("they are there");
    assert!(pins.pins.is_empty() && pins.clones.is_empty());
    go_on(&first, &mut oracle, &mut random);
}
