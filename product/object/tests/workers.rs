//! Requests that panic, buckets that take nothing, and what of the host waits for them.

mod stamped;

use coulter_object::bucket::{
    Bucket, BucketError, BucketErrorKind, Created, MemoryBucket, Object, Swapped, Tag,
};
use coulter_object::names::Source;
use coulter_object::publish::{self, Once, Outcome};
use coulter_object::{Ack, Settings, history};
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
    /// Takes requests and answers none.
    is_silent: Arc<AtomicBool>,
    /// Reads that give something else.
    garbled: Arc<AtomicU32>,
}

impl Odd {
    fn meet(&self, name: &str) -> Result<(), BucketError> {
        let left = self
            .panics
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "no thread can be started for {name}");
        while self.is_silent.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(2));
        }
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
        let take = |left: u32| left.checked_sub(1);
        let mut found = self.bucket.read(name, range)?;
        if self.garbled.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
            && let Some(object) = &mut found
        {
            object.bytes = b"<html>".to_vec();
        }
        Ok(found)
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
                status.waiting.flushes > 0 && status.health.outage_since.is_some()
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

#[test]
fn a_bucket_that_answers_nothing_is_named_before_any_request_has_failed() {
    let odd = Odd::default();
    let bucket: Arc<dyn Bucket> = Arc::new(odd.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (device, replica) =
        ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    volume.flush().expect("the bucket takes it");
    odd.is_silent.store(true, Ordering::SeqCst);
    let start = Instant::now();
    std::thread::scope(|scope| {
        // Even to be written it may have to wait for what is under way.
        let flush = scope.spawn(|| {
            volume.write_at(0, &[2; 4096]).expect("it is written");
            volume.flush()
        });
        wait_until("it is named", || replica.status().health.error.is_some());
        let (health, time) = (replica.status().health, start.elapsed());
        let has_ended = flush.is_finished();
        // First: a flush that nothing answers would outlast what is asserted.
        odd.is_silent.store(false, Ordering::SeqCst);
        flush.join().expect("no panic").expect("the bucket takes it");
        let told = health.error.expect("it was there").to_string();
        assert!(told.contains("no answer from memory:"), "{told}");
        // After nine seconds, and a few for a machine that has other work.
        assert!(time.as_secs() < 15, "{time:?}");
        assert!(health.outage_since.is_some() && !has_ended);
    });
    volume.close().expect("it is closed in order");
    assert!(replica.status().health.error.is_none(), "it answers again");
}

#[test]
fn what_is_read_garbled_once_is_neither_damage_nor_another_hosts() {
    let odd = Odd::default();
    let bucket: Arc<dyn Bucket> = Arc::new(odd.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (device, _) = ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    let (mut oracle, mut random) = (Oracle::default(), Random::new(3));
    oracle.write(&volume, &mut random, 300).expect("nothing fails");
    volume.close().expect("it is closed in order");
    for garbled in 0..3 {
        odd.garbled.store(garbled, Ordering::SeqCst);
        history::record(&odd, &Once).expect("it is sound there");
        odd.garbled.store(garbled, Ordering::SeqCst);
        history::newest(&odd, &Once).expect("it is sound there");
    }
    odd.bucket.create("d/00/name", b"ours").expect("memory has room");
    odd.garbled.store(1, Ordering::SeqCst);
    let patience = publish::Briefly;
    let created = publish::create(&odd, "d/00/name", b"ours", &patience).expect("it answers");
    assert!(matches!(created, Outcome::Ours(_)), "the answer was lost: {created:?}");
}

#[test]
fn data_objects_that_a_killed_host_has_left_are_deleted_after_a_manifest() {
    let odd = Odd::default();
    let bucket: Arc<dyn Bucket> = Arc::new(odd.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let store = new_store();
    let (mut oracle, mut random) = (Oracle::default(), Random::new(4));
    let (device, _) = ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    oracle.write(&volume, &mut random, 50).expect("nothing fails");
    volume.close().expect("it is closed in order");
    let left: Vec<String> =
        (1 << 20..(1 << 20) + 20).map(|number| Source::Data { epoch: 1, number }.name()).collect();
    for name in &left {
        odd.bucket.create(name, b"of no commit").expect("memory has room");
    }
    let (device, _) = ship(store.open().expect("it is free"), &bucket, BUSY, marks(folder.path()));
    let volume = open(device);
    let is_there = |name: &String| odd.bucket.read(name, None).expect("memory reads").is_some();
    let start = Instant::now();
    while left.iter().any(is_there) {
        assert!(start.elapsed() < Duration::from_secs(60), "they stay");
        oracle.write(&volume, &mut random, 50).expect("nothing fails");
    }
    volume.close().expect("it is closed in order");
    oracle.assert_prefix(&open_copy(&copy(&odd.bucket)), oracle.blocks.len() as u64);
}
