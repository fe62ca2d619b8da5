//! A life of a volume on any bucket: written, kept, taken over, gone on with.

use super::{
    BUSY, Oracle, Random, copy, new_store, open, open_copy, opening, restored, ship, wait_until,
};
use coulter_object::bucket::{BucketError, BucketErrorKind};
use coulter_object::publish::Patience;
use coulter_object::ship::marks::Marks;
use coulter_object::{
    Bucket, ShippedDevice,
    history::{snapshot, takeover},
};
use std::sync::Arc;
use std::time::Duration;

/// Tries again after every failure, as often as tests wait for.
pub(crate) struct Stubborn;

impl Patience for Stubborn {
    fn wait(&self, tries: u32, error: &BucketError) -> bool {
        assert_ne!(error.kind, BucketErrorKind::Unsupported, "{error}");
        std::thread::sleep(Duration::from_millis(10));
        tries < 100
    }
}

/// Writes `count` blocks four times, keeps a snapshot, takes over, writes on, and compares each state.
/// The bucket may fail now and then.
pub(crate) fn live(bucket: &Arc<dyn Bucket>, seed: u64, count: u64) {
    let store = new_store();
    let (device, replica) =
        ship(store.open().expect("it is free"), bucket, BUSY, Marks::in_memory());
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(seed));
    let mut last = 0;
    for _ in 0..2 {
        oracle.write(&volume, &mut random, count).expect("nothing fails");
        last = oracle.assert_prefix(&open_copy(&copy(&**bucket)), oracle.flushed.max(last));
    }
    volume.flush().expect("nothing fails");
    let kept = oracle.blocks.len() as u64;
    // Nothing is written meanwhile, so no attempt is overtaken.
    snapshot::create(&**bucket, "kept", 0, &Stubborn).expect("it can be kept");
    oracle.write(&volume, &mut random, count).expect("nothing fails");
    volume.flush().expect("nothing fails");

    let all = oracle.blocks.len() as u64;
    let claim = takeover::claim(&**bucket, "other", 0, &Stubborn).expect("nobody else claims");
    let copied = restored(&**bucket, &claim.history.pieces);
    let inner = copied.open().expect("it is free");
    let opening = opening(bucket.clone(), BUSY, Marks::in_memory());
    let (device, _) = ShippedDevice::take_over(inner, opening, claim).expect("marks in memory");
    let other = open(device);
    oracle.assert_prefix(&other, all);
    let mut old = oracle.clone();
    // A write may be answered before the old host meets the fence; a flush is not.
    while old.write(&volume, &mut random, 20).is_ok() {}
    wait_until("the old host knows", || replica.status().is_fenced);
    let _ = volume.abandon();
    oracle.write(&other, &mut random, count).expect("nothing fails");
    other.close().expect("it is closed in order");
    oracle.assert_prefix(&open_copy(&copy(&**bucket)), oracle.blocks.len() as u64);

    let (_, manifest) = snapshot::read(&**bucket, "kept", &Stubborn).expect("it is kept");
    let old = restored(&**bucket, &manifest.pieces);
    assert_eq!(oracle.assert_prefix(&open_copy(&old), kept), kept, "no more, no less");
    snapshot::delete(&**bucket, "kept", &Stubborn).expect("it is there");
}
