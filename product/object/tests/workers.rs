//! Requests that panic, buckets that take nothing, and what of the host waits for them.

mod stamped;

use coulter_object::bucket::{
    Bucket, BucketError, BucketErrorKind, Created, MemoryBucket, Object, Swapped, Tag,
};
use coulter_object::{Ack, Settings};
use stamped::{BUSY, Oracle, Random, copy, marks, new_store, open, open_copy, ship, wait_until};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A bucket that panics some times, and that takes nothing while it is full.
#[derive(Clone, Default)]
struct Odd {
    bucket: MemoryBucket,
    panics: Arc<AtomicU32>,
    is_full: Arc<AtomicBool>,
}

impl Odd {
    fn meet(&self, name: &str) -> Result<(), BucketError> {
        let left = self
            .panics
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "no thread can be started for {name}");
        match self.is_full.load(Ordering::SeqCst) {
            true => Err(BucketError::new(BucketErrorKind::Full, "no room for anything")),
            false => Ok(()),
        }
    }
}

impl Bucket for Odd {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        self.meet(name)?;
        self.bucket.create(name, bytes)
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.meet(name)?;
        self.bucket.swap(name, tag, bytes)
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
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
fn a_request_that_panics_is_tried_again_and_loses_no_flush() {
    let odd = Odd::default();
    let bucket: Arc<dyn Bucket> = Arc::new(odd.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (device, _) = ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(1));
    for round in 0..6 {
        odd.panics.store(round, Ordering::SeqCst);
        oracle.write(&volume, &mut random, 40).expect("nothing fails");
        volume.flush().expect("each flush is answered");
    }
    volume.close().expect("it is closed in order");
    oracle.assert_prefix(&open_copy(&copy(&odd.bucket)), oracle.blocks.len() as u64);
}

#[test]
fn flushes_that_wait_for_a_full_bucket_are_told_and_go_on_without_it_when_that_is_asked() {
    let odd = Odd::default();
    let bucket: Arc<dyn Bucket> = Arc::new(odd.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let settings = Settings { lag_max: 64 << 20, ..BUSY };
    let (device, replica) =
        ship(store.open().expect("it is free"), &bucket, settings, marks(folder.path()));
    let volume = open(device);
    volume.write_at(0, &[1; 4096]).expect("it is written");
    volume.flush().expect("the bucket takes it");
    for _ in 0..3 {
        odd.is_full.store(true, Ordering::SeqCst);
        volume.write_at(0, &[2; 4096]).expect("it is written");
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| volume.flush());
            wait_until("it is told", || {
                let status = replica.status();
                status.waiting.flushes > 0 && status.weather.outage_since.is_some()
            });
            assert!(!flush.is_finished(), "the copy does not have it");
            replica.acknowledge(Ack::Local);
            flush.join().expect("no panic").expect("the local device has it");
        });
        volume.flush().expect("it waits for the local device alone");
        // From now on it waits for the copy again, while a flush may be out.
        replica.acknowledge(Ack::Remote);
        odd.is_full.store(false, Ordering::SeqCst);
        volume.write_at(4096, &[3; 4096]).expect("it is written");
        volume.flush().expect("the bucket takes it");
        assert_eq!(replica.status().waiting.flushes, 0);
    }
    volume.close().expect("it is closed in order");
    let copy = open_copy(&copy(&odd.bucket));
    let mut bytes = [0; 8192];
    copy.read_at(0, &mut bytes).expect("it is there");
    assert!(bytes[..4096] == [2; 4096] && bytes[4096..] == [3; 4096]);
}

#[test]
fn a_volume_that_is_closed_leaves_a_bucket_that_takes_nothing() {
    let odd = Odd::default();
    let bucket: Arc<dyn Bucket> = Arc::new(odd.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (device, replica) =
        ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    volume.flush().expect("the bucket takes it");
    odd.is_full.store(true, Ordering::SeqCst);
    let start = Instant::now();
    replica.leave_within(Duration::from_millis(200));
    // Even to be written it may have to wait for what is under way.
    volume.write_at(0, &[2; 4096]).expect("it is written");
    volume.flush().expect("the local device has it");
    volume.close().expect("it is closed in order");
    assert!(start.elapsed() < Duration::from_secs(20) && replica.status().has_left);
    let volume = open(store.open().expect("it is free"));
    let mut bytes = [0; 4096];
    volume.read_at(0, &mut bytes).expect("it is there");
    assert!(bytes == [2; 4096], "what was flushed locally is there");
}
