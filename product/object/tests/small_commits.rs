//! A chunk that lies in hundreds of small objects: they are fetched side by side.

mod stamped;

use coulter_device::{AlignedMemory, Command, Device, MemoryStore, Wait};
use coulter_object::bucket::{BucketError, Created, MemoryBucket, Object, Swapped, Tag};
use coulter_object::fill::FillingDevice;
use coulter_object::history::takeover::{self, NewVolume};
use coulter_object::layout::commit::Inline;
use coulter_object::layout::{Commit, checksum, nonce};
use coulter_object::names::CommitId;
use coulter_object::publish::Briefly;
use coulter_object::ship::device::CHUNK_SIZE;
use coulter_object::ship::marks::{Marks, Owner};
use coulter_object::{Bucket, history};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const COMMITS: u64 = 450;
/// Bytes of what each commit holds.
const CELL: u64 = 8192;
/// What a request takes.
const GET_LATENCY: Duration = Duration::from_millis(60);

/// A bucket that is far away: requests that are made at once take one turn.
struct Far {
    inner: MemoryBucket,
    turns: AtomicU64,
}

impl Far {
    fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(GET_LATENCY);
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
        self.turn();
        self.inner.read(name, range)
    }
    fn read_all(&self, names: &[String]) -> Vec<Result<Option<Object>, BucketError>> {
        assert!(names.len() <= 128, "the number of requests at once is bounded");
        self.turn();
        self.inner.read_all(names)
    }
    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.inner.delete(name)
    }
    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        self.inner.list(prefix)
    }
    fn url(&self) -> String {
        self.inner.url()
    }
}

#[test]
fn a_chunk_in_hundreds_of_small_commits_is_fetched_in_a_few_turns() {
    let memory = MemoryBucket::new();
    let (device_size, owner) = (u64::from(CHUNK_SIZE), "test".to_string());
    let new = NewVolume { store: stamped::STORE, device_size, chunk_size: CHUNK_SIZE, owner };
    let made = takeover::create(&memory, &new, 0, &Briefly).expect("the bucket is empty");
    let (volume, mut previous) = (made.record.volume, 0);
    for number in 1..=COMMITS {
        let id = CommitId { epoch: 1, number };
        let start = (number - 1) * CELL;
        let bytes = vec![number as u8; CELL as usize];
        let inline = Inline { ranges: std::iter::once(start..start + CELL).collect(), bytes };
        let (nonce, entries) = (nonce(), Vec::new());
        let mut commit = Commit { volume, nonce, id, is_fence: false, previous, entries };
        let bytes = commit.encode(&inline);
        previous = checksum(&bytes);
        memory.create(&id.name(), &bytes).expect("memory has room");
    }
    let (record, history) = history::newest(&memory, &Briefly).expect("there is a volume");
    let mut missing = Marks::in_memory();
    missing
        .adopt(Owner { volume, device_size, chunk_size: CHUNK_SIZE, epoch: 1 }, true)
        .expect("marks in memory");
    let far = Arc::new(Far { inner: memory, turns: AtomicU64::new(0) });
    let store = MemoryStore::new(device_size);
    let inner = store.open().expect("it is free");
    let start = Instant::now();
    let filling = FillingDevice::new(
        inner,
        far.clone(),
        &record,
        history.pieces.clone(),
        missing,
        Box::new(|| {}),
    );
    let (mut device, _) = filling.expect("marks in memory");
    let mut memory = AlignedMemory::zeroed((COMMITS * CELL) as usize);
    let read = Command::read(1, 0, COMMITS * CELL, memory.as_mut_pointer());
    // SAFETY: the memory lives until the command has completed.
    unsafe { device.submit(read) };
    let mut done = Vec::new();
    while done.is_empty() {
        device.poll(&mut done, Wait::Forever).expect("it works");
    }
    let time = start.elapsed();
    done[0].result.expect("nothing is missing");
    for (number, cell) in (1_u64..).zip(memory.chunks(CELL as usize)) {
        assert!(cell.iter().all(|byte| *byte == number as u8), "commit {number} is there");
    }
    let turns = far.turns.load(Ordering::Relaxed);
    println!("{COMMITS} objects in {turns} turns of {GET_LATENCY:?}, {:.2} s", time.as_secs_f64());
    assert!(turns <= COMMITS / 16, "{turns} turns");
}
