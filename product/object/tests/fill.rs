//! Volumes that are attached from their copy: a cache is filled while they are in use.

mod stamped;

use coulter_device::conformance::{Access, SIZE_MIN};
use coulter_device::wrap::{CutDevice, CutPolicy};
use coulter_device::{
    AlignedMemory, Device, DeviceErrorKind, MemoryStore, OpenError, Wait, blocking,
    conformance_suite,
};
use coulter_object::bucket::faulty::{FaultyBucket, Rates};
use coulter_object::bucket::{MemoryBucket, MeteredBucket};

use coulter_object::fill::{Fill, FillingDevice};
use coulter_object::history::takeover::{self, Claim, NewVolume};
use coulter_object::layout::commit::Content;
use coulter_object::layout::{Entry, data};
use coulter_object::names::Source;
use coulter_object::pieces::PieceMap;
use coulter_object::publish::Briefly;
use coulter_object::ranges::RangeSet;
use coulter_object::ship::device::{CHUNK_SIZE, adopt, begin};
use coulter_object::ship::marks::{Marks, Owner};
use coulter_object::{Ack, Bucket, Replica, Settings, ShippedDevice, history};
use stamped::{
    BLOCK, BUSY, Oracle, Random, STORE_SIZE, copy, marks, new_store, open, open_copy, opening,
    ship, wait_until,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const NO_FAULTS: Rates = Rates { refused: 0, unanswered: 0, late: 0, unread: 0 };

/// The record of what is missing, as one host keeps it.
fn missing(folder: &Path, claim: &Claim) -> Marks {
    let mut marks = Marks::open(&folder.join("missing")).expect("it can be opened");
    let is_new = marks.owner().is_none();
    let owner = Owner {
        volume: claim.record.volume,
        device_size: claim.record.device_size,
        chunk_size: CHUNK_SIZE,
        epoch: claim.epoch,
    };
    marks.adopt(owner, is_new).expect("it can be written");
    marks
}

/// Attaches a cache, for the first time or again.
fn attach<D: Device>(
    cache: D,
    bucket: &Arc<dyn Bucket>,
    settings: Settings,
    folder: &Path,
) -> (ShippedDevice<FillingDevice<D>>, Replica, Fill) {
    let mut opening = opening(bucket.clone(), settings, marks(folder));
    let is_new = opening.marks.owner().is_none();
    let (claim, unsure) = if is_new {
        let claim = takeover::claim(&**bucket, "cache", 0, &Briefly).expect("nobody else claims");
        adopt(&mut opening.marks, &claim, STORE_SIZE, false).expect("marks can be kept");
        (claim, RangeSet::new())
    } else {
        begin(&mut opening, STORE_SIZE, &Briefly).expect("it is this cache's")
    };
    let missing = missing(folder, &claim);
    let pieces = claim.history.pieces.clone();
    let filling =
        FillingDevice::new(cache, bucket.clone(), &claim.record, pieces, missing, Box::new(|| {}));
    let (device, fill) = filling.expect("the record can be kept");
    let started = ShippedDevice::start(device, opening, claim, unsure);
    let (device, replica) = started.expect("threads start");
    (device, replica, fill)
}

/// A copy of a volume with stamps all over, and what was written.
fn shipped(bucket: &Arc<dyn Bucket>, seed: u64) -> (Oracle, Random) {
    let store = new_store();
    let (mut oracle, mut random) = (Oracle::default(), Random::new(seed));
    let (device, _) = ship(store.open().expect("it is free"), bucket, BUSY, Marks::in_memory());
    let volume = open(device);
    oracle.write(&volume, &mut random, 3000).expect("nothing fails");
    volume.close().expect("it is closed in order");
    oracle.flushed = oracle.blocks.len() as u64;
    (oracle, random)
}

#[test]
fn a_volume_is_whole_while_its_cache_is_filled_and_what_is_written_is_shipped() {
    let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
    let (mut oracle, mut random) = shipped(&bucket, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = MemoryStore::new(STORE_SIZE);
    let (device, _, fill) = attach(cache.open().expect("it is free"), &bucket, BUSY, folder.path());
    assert!(fill.status().missing_bytes > 0, "nothing was fetched before");
    let volume = open(device);
    oracle.assert_prefix(&volume, oracle.flushed);
    oracle.write(&volume, &mut random, 500).expect("nothing fails");
    wait_until("the cache is whole", || fill.status().missing_bytes == 0);
    oracle.assert_prefix(&volume, oracle.blocks.len() as u64);
    volume.close().expect("it is closed in order");
    let all = oracle.blocks.len() as u64;
    // Alone, too.
    oracle.assert_prefix(&open_copy(&cache), all);
    oracle.assert_prefix(&open_copy(&copy(&*bucket)), all);
}

#[test]
fn after_power_cuts_what_was_flushed_to_a_cache_is_there_whatever_was_missing() {
    // Beside each other: nearly all of the time is pauses between the tries of refused requests.
    std::thread::scope(|scope| {
        for seed in 0..6 {
            scope.spawn(move || a_cache_survives_power_cuts(seed));
        }
    });
}

fn a_cache_survives_power_cuts(seed: u64) {
    let faulty = FaultyBucket::new(Arc::new(MemoryBucket::new()), NO_FAULTS, seed);
    let bucket: Arc<dyn Bucket> = Arc::new(faulty.clone());
    let (mut oracle, mut random) = shipped(&bucket, seed);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = MemoryStore::new(STORE_SIZE);
    faulty.set_rates(Rates { refused: 30, unanswered: 0, late: 0, unread: 200 });
    // What a flush has covered is in the cache, and not necessarily in the copy.
    let settings = Settings { ack: Ack::Local, ..BUSY };
    for life in 0..6 {
        let (cut, handle) = CutDevice::new(cache.open().expect("it is free"));
        let (device, replica, _) = attach(cut, &bucket, settings, folder.path());
        // While the cache is being filled, and some time later.
        handle.cut_after(5 + random.below(60 << life), CutPolicy::Seeded(seed * 10 + life));
        let opened = coulter::Volume::open(Box::new(device), coulter::OpenOptions::default());
        let Ok(volume) = opened else { continue };
        // One thing after the other: each flush counts only once it was answered.
        while oracle.write(&volume, &mut random, 20).is_ok() {}
        assert!(handle.is_cut() && !replica.status().is_fenced);
        let _ = volume.abandon();
        let (device, _, _) =
            attach(cache.open().expect("it is free"), &bucket, settings, folder.path());
        let volume = open(device);
        let kept = oracle.assert_prefix(&volume, oracle.flushed);
        oracle.blocks.truncate(kept as usize);
        let _ = volume.abandon();
    }
    let (device, _, fill) =
        attach(cache.open().expect("it is free"), &bucket, settings, folder.path());
    let volume = open(device);
    wait_until("the cache is whole", || fill.status().missing_bytes == 0);
    let kept = oracle.assert_prefix(&volume, oracle.flushed);
    volume.close().expect("it is closed in order");
    // `open_copy` repeats a read a few times only, and one of thousands would fail each time.
    faulty.set_rates(NO_FAULTS);
    oracle.assert_prefix(&open_copy(&copy(&*bucket)), kept);
    oracle.assert_prefix(&open_copy(&cache), kept);
}

/// Who reads on from a cache that has gone hears so at once, and has nothing fetched first.
#[test]
fn a_cache_that_has_gone_fails_every_command_and_fetches_nothing() {
    let metered = MeteredBucket::new(MemoryBucket::new());
    let meter = metered.meter();
    let bucket: Arc<dyn Bucket> = Arc::new(metered);
    shipped(&bucket, 2);
    let folder = tempfile::tempdir().expect("a folder");
    let (cut, handle) = CutDevice::new(MemoryStore::new(STORE_SIZE).open().expect("it is free"));
    let (mut device, _, fill) = attach(cut, &bucket, BUSY, folder.path());
    let missing = fill.status().missing_bytes;
    assert!(missing > 0, "there is something to be fetched");
    handle.cut(CutPolicy::LoseAll);
    let gone = |device: &mut _| {
        let result = blocking::flush(device);
        result.is_err_and(|error| error.kind == DeviceErrorKind::Gone)
    };
    assert!(gone(&mut device));
    // Fetches that were under way end: then nothing is counted any more, however long one looks.
    let mut before = meter.total().gets;
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(50));
        assert!(gone(&mut device));
        let now = meter.total().gets;
        if now == before {
            break;
        }
        before = now;
    }
    let mut memory = AlignedMemory::zeroed(BLOCK);
    for block in 0..200 {
        let result = blocking::read(&mut device, block * (STORE_SIZE / 256), &mut memory);
        assert!(result.is_err_and(|error| error.kind == DeviceErrorKind::Gone));
    }
    assert_eq!(meter.total().gets, before, "nothing was fetched for them");
}

#[test]
fn an_outage_stalls_what_is_missing_and_an_object_that_is_gone_fails_it() {
    let faulty = FaultyBucket::new(Arc::new(MemoryBucket::new()), NO_FAULTS, 1);
    let bucket: Arc<dyn Bucket> = Arc::new(faulty.clone());
    let (oracle, _) = shipped(&bucket, 3);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = MemoryStore::new(STORE_SIZE);
    let (device, _, fill) = attach(cache.open().expect("it is free"), &bucket, BUSY, folder.path());
    faulty.set_down(true);
    let opening = std::thread::spawn(move || open(device));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!opening.is_finished(), "it waits for the bucket");
    faulty.set_down(false);
    let volume = opening.join().expect("it is opened when the bucket is back");
    oracle.assert_prefix(&volume, oracle.flushed);
    volume.close().expect("it is closed in order");

    // An object is gone: what needs it fails, and all else goes on.
    let folder = tempfile::tempdir().expect("a folder");
    let (_, history) = history::newest(&*bucket, &Briefly).expect("there is a volume");
    let last = history.pieces.iter().last().expect("it holds something").1.source;
    bucket.delete(&last.name()).expect("it is there");
    let cache = MemoryStore::new(STORE_SIZE);
    let (device, _, again) =
        attach(cache.open().expect("it is free"), &bucket, BUSY, folder.path());
    let opened = coulter::Volume::open(Box::new(device), coulter::OpenOptions::default());
    wait_until("it is told", || again.status().error.is_some());
    if let Ok(volume) = opened {
        let mut bytes = vec![0; BLOCK];
        let blocks = volume.size() / BLOCK as u64;
        let failed =
            (0..blocks).filter(|block| volume.read_at(block * BLOCK as u64, &mut bytes).is_err());
        assert!(failed.count() < blocks as usize, "the rest can be read");
        let _ = volume.abandon();
    }
    assert_eq!(fill.status().error, None, "the first cache met nothing");
}

/// Memory that was filled from a copy at its first opening, and is quiet since; the suite's device.
fn filling() -> impl Fn(Access) -> Result<Box<dyn Device>, OpenError> {
    let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
    let new = NewVolume {
        store: stamped::STORE,
        device_size: SIZE_MIN,
        chunk_size: CHUNK_SIZE,
        owner: "test".to_string(),
    };
    let made = takeover::create(&*bucket, &new, 0, &Briefly).expect("the bucket is empty");
    // Zeros, as the suite expects of a new device, which have to be fetched all the same.
    let size = u64::from(CHUNK_SIZE).min(SIZE_MIN);
    let mut object = vec![0; size as usize];
    let source = Source::Data { epoch: 1, number: 0 };
    data::seal(&mut object, made.record.volume, &source.name());
    bucket.create(&source.name(), &object).expect("the bucket is empty");
    let mut pieces = PieceMap::new();
    pieces.apply(&Entry { range: 0..size, content: Content::At(source, 0) }, &mut Vec::new());
    let folder = tempfile::tempdir().expect("a folder");
    let store = MemoryStore::new(SIZE_MIN);
    move |access| {
        if access == Access::ReadOnly {
            return Ok(Box::new(store.open_read_only()?));
        }
        let inner = store.open()?;
        let claim = takeover::claim(&*bucket, "cache", 0, &Briefly).expect("nobody else claims");
        let missing = missing(folder.path(), &claim);
        let (bucket, pieces) = (bucket.clone(), pieces.clone());
        let filling =
            FillingDevice::new(inner, bucket, &claim.record, pieces, missing, Box::new(|| {}));
        let (mut device, fill) = filling.expect("the record can be kept");
        while fill.status().missing_bytes > 0 {
            device.poll(&mut Vec::new(), Wait::For(Duration::from_millis(1))).expect("it works");
        }
        Ok(Box::new(device))
    }
}

conformance_suite!(filled_from_a_copy, filling());
