//! A volume of 1 TiB is attached from its copy, on a host that has nothing of it.
//!
//! The volume is sparse, and so is the bucket: written blocks are scattered over the whole volume, and the manifest is then
//! filled up to what that of a full volume lists, with objects of zeros that the bucket makes up when they are read. What is
//! behind the manifest and what the store's recovery reads is real.

mod stamped;

use coulter::{CreateOptions, create};
use coulter_device::{Device, OpenOptions, open_path};
use coulter_object::bucket::{BucketError, Created, MemoryBucket, Object, Swapped, Tag};
use coulter_object::fill::FillingDevice;
use coulter_object::layout::commit::Content;
use coulter_object::layout::{Entry, Manifest, data, nonce};
use coulter_object::names::{ManifestId, Source};
use coulter_object::publish::Briefly;
use coulter_object::ranges::RangeSet;
use coulter_object::ship::device::{CHUNK_SIZE, adopt};
use coulter_object::ship::marks::{Marks, Owner};
use coulter_object::{
    Bucket, Settings, ShippedDevice,
    history::{self, takeover},
};
use stamped::{BLOCK, Random, marks, open, opening};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the volume.
const VOLUME_SIZE: u64 = 1 << 40;
/// Bytes of the store: a fifth more.
const DEVICE_SIZE: u64 = VOLUME_SIZE / 5 * 6 / (8 << 20) * (8 << 20);
/// Blocks that are written, far from each other.
const WRITES: u64 = 4000;
/// Objects from this number on are zeros.
const ZEROS: u64 = 1 << 32;
/// What a GET takes: 60 ms, and 200 MB/s on its connection.
const GET_LATENCY: Duration = Duration::from_millis(60);
const BANDWIDTH: f64 = 200e6;

/// A bucket as far away as a region's, whose objects of zeros take no memory.
struct Far {
    inner: MemoryBucket,
    is_far: AtomicBool,
    gets: AtomicU64,
    received: AtomicU64,
}

impl Far {
    fn new() -> Far {
        Far {
            inner: MemoryBucket::new(),
            is_far: AtomicBool::new(false),
            gets: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }
}

impl Bucket for Far {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        self.inner.create(name, bytes)
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.inner.swap(name, tag, bytes)
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        assert!(range.is_none(), "whole objects are read");
        let number = name.starts_with("d/").then(|| name.rsplit_once('-')).flatten();
        let number = number.map(|(_, digits)| u64::from_str_radix(digits, 16).expect("a number"));
        let found = match number {
            Some(ZEROS..) => {
                let (record, _) = history::record(&self.inner, &Briefly).expect("there is one");
                let mut bytes = vec![0; CHUNK_SIZE as usize];
                data::seal(&mut bytes, record.volume, name);
                Some(Object { bytes, tag: Tag("zeros".to_string()) })
            }
            _ => self.inner.read(name, None)?,
        };
        let size = found.as_ref().map_or(0, |object| object.bytes.len());
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.received.fetch_add(size as u64, Ordering::Relaxed);
        if self.is_far.load(Ordering::Relaxed) {
            std::thread::sleep(GET_LATENCY + Duration::from_secs_f64(size as f64 / BANDWIDTH));
        }
        Ok(found)
    }

    fn read_all(&self, names: &[String]) -> Vec<Result<Option<Object>, BucketError>> {
        std::thread::scope(|scope| {
            let reads: Vec<_> =
                names.iter().map(|name| scope.spawn(|| self.read(name, None))).collect();
            reads.into_iter().map(|read| read.join().expect("it only reads")).collect()
        })
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.inner.delete(name)
    }

    fn list(&self, _: &str) -> Result<Vec<(String, u64)>, BucketError> {
        panic!("nothing is listed")
    }

    fn url(&self) -> String {
        "far".to_string()
    }
}

fn sparse(path: &Path) -> Box<dyn Device> {
    let options = OpenOptions { create_size: Some(DEVICE_SIZE), ..OpenOptions::default() };
    open_path(path, &options).expect("a sparse file")
}

fn place(random: &mut Random) -> u64 {
    random.below(VOLUME_SIZE / BLOCK as u64) * BLOCK as u64
}

/// What of a sparse file is not a hole.
fn content_of(path: &Path) -> RangeSet {
    let file = std::fs::File::open(path).expect("it is there");
    let mut content = RangeSet::new();
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start)).expect("a hole follows");
        content.insert(start..at);
    }
    content
}

/// A copy of a volume that a host was writing to when it was lost.
fn ship_scattered(bucket: &Arc<dyn Bucket>, folder: &Path) {
    let path = folder.join("first");
    let options = CreateOptions { volume_size: Some(VOLUME_SIZE), ..CreateOptions::default() };
    create(sparse(&path), &options).expect("the store fits");
    let mut opening = opening(bucket.clone(), Settings::DEFAULT, marks(folder));
    opening.content = content_of(&path);
    let shipped = ShippedDevice::open(sparse(&path), opening).expect("it is this host's");
    let volume = open(shipped.0);
    let mut random = Random::new(1);
    for stamp in 0..WRITES {
        let written = volume.write_at(place(&mut random), &[stamp as u8 | 1; BLOCK]);
        written.expect("nothing fails");
    }
    volume.flush().expect("nothing fails");
    // Without a last checkpoint.
    let _ = volume.abandon();
    std::fs::remove_file(&path).expect("it is ours");
}

/// Stores a manifest that lists an object for each chunk of the device, and returns its pieces and bytes.
fn fill_up(bucket: &dyn Bucket) -> (usize, usize) {
    let (mut record, tag) = history::record(bucket, &Briefly).expect("there is a volume");
    let (_, history) = history::newest(bucket, &Briefly).expect("there is a volume");
    let mut pieces = history.pieces.clone();
    let chunk_size = u64::from(CHUNK_SIZE);
    for chunk in 0..DEVICE_SIZE / chunk_size {
        let mut missing: RangeSet =
            std::iter::once(chunk * chunk_size..(chunk + 1) * chunk_size).collect();
        for range in missing.clone().iter() {
            for (start, piece) in pieces.within(&range) {
                missing.remove(&(start..start + u64::from(piece.length)));
            }
        }
        let source = Source::Data { epoch: 1, number: ZEROS + chunk };
        for range in missing.iter() {
            let content = Content::At(source, range.start - chunk * chunk_size);
            pieces.apply(&Entry { range, content }, &mut Vec::new());
        }
    }
    let nonce = nonce();
    let first = u64::from_le_bytes(*nonce.first_chunk().expect("16 bytes"));
    let id = ManifestId { commit: history.last, nonce: first };
    let manifest = Manifest {
        volume: record.volume,
        nonce,
        commit: history.last,
        checksum: history.checksum,
        pieces,
    };
    let bytes = manifest.encode();
    bucket.create(&id.name(), &bytes).expect("memory has room");
    record.manifest = Some(id);
    takeover::swap_record(bucket, &mut record, &tag, &Briefly).expect("nobody else does");
    (manifest.pieces.count(), bytes.len())
}

#[test]
#[ignore = "half a minute: make copies-attach"]
fn a_volume_of_a_tebibyte_is_attached_cold_with_few_requests() {
    let folder = tempfile::tempdir().expect("a folder");
    let far = Arc::new(Far::new());
    let bucket: Arc<dyn Bucket> = far.clone();
    ship_scattered(&bucket, folder.path());
    let (piece_count, manifest_bytes) = fill_up(&*bucket);
    far.is_far.store(true, Ordering::Relaxed);
    far.gets.store(0, Ordering::Relaxed);
    far.received.store(0, Ordering::Relaxed);

    let start = Instant::now();
    let claim = takeover::claim(&*bucket, "cold", 0, &Briefly).expect("nobody else claims");
    let claimed = (start.elapsed(), far.gets.load(Ordering::Relaxed));
    let mut opening = opening(bucket.clone(), Settings::DEFAULT, Marks::in_memory());
    adopt(&mut opening.marks, &claim, DEVICE_SIZE, false).expect("marks in memory");
    let mut missing = Marks::in_memory();
    let owner = Owner {
        volume: claim.record.volume,
        device_size: DEVICE_SIZE,
        chunk_size: CHUNK_SIZE,
        epoch: claim.epoch,
    };
    missing.adopt(owner, true).expect("marks in memory");
    let cache = sparse(&folder.path().join("cache"));
    let pieces = claim.history.pieces.clone();
    let is_whole = Box::new(|| {});
    let filling =
        FillingDevice::new(cache, bucket.clone(), &claim.record, pieces, missing, is_whole);
    let (device, _) = filling.expect("marks in memory");
    let started = ShippedDevice::start(device, opening, claim, RangeSet::new());
    let (device, _) = started.expect("threads start");
    let volume = open(device);
    let mut bytes = [0; BLOCK];
    let mut random = Random::new(1);
    volume.read_at(place(&mut random), &mut bytes).expect("it is intact");
    let (time, gets) = (start.elapsed(), far.gets.load(Ordering::Relaxed));
    let received = far.received.load(Ordering::Relaxed);
    println!(
        "{piece_count} pieces, manifest {manifest_bytes} bytes; claimed after {:.2} s and {} GETs; first block after \
        {:.2} s, {gets} GETs, {} MiB",
        claimed.0.as_secs_f64(),
        claimed.1,
        time.as_secs_f64(),
        received >> 20,
    );
    assert_eq!(bytes, [1; BLOCK], "the first write is there");
    assert!(piece_count >= 150_000, "an object for each chunk");
    assert!(gets <= 3500, "{gets} GETs");
    far.is_far.store(false, Ordering::Relaxed);
    // Every other block, too: what is behind the manifest and the store's log was brought back.
    for stamp in 1..200 {
        volume.read_at(place(&mut random), &mut bytes).expect("it is intact");
        assert_eq!(bytes, [stamp as u8 | 1; BLOCK], "write {stamp} is there");
    }
    let _ = volume.abandon();
}
