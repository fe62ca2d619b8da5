//! What is kept in memory is sent from there, and the copy is what the device holds, kept or not.

mod stamped;

use coulter_device::wrap::CountingDevice;
use coulter_device::{
    AlignedMemory, Command, CommandKind, Completion, Device, MemoryStore, Properties, Region, Wait,
    Waker, blocking,
};
use coulter_object::bucket::MemoryBucket;
use coulter_object::ranges::RangeSet;
use coulter_object::ship::device::Opening;
use coulter_object::ship::marks::Marks;
use coulter_object::{Ack, Bucket, Replica, Settings, ShippedDevice};
use stamped::{BUSY, MIB, Random, STORE_SIZE, copy, opening};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECTOR: u64 = 4096;

fn ship<D: Device>(inner: D, settings: Settings) -> (ShippedDevice<D>, Replica, Arc<dyn Bucket>) {
    let bucket: Arc<dyn Bucket> = Arc::new(MemoryBucket::new());
    // The device begins with zeros, so there is nothing to be read at first.
    let opening = Opening {
        content: RangeSet::new(),
        ..opening(bucket.clone(), settings, Marks::in_memory())
    };
    let (device, replica) = ShippedDevice::open(inner, opening).expect("the bucket is empty");
    (device, replica, bucket)
}

fn wait_until_shipped(device: &mut impl Device, replica: &Replica) {
    let start = Instant::now();
    replica.commit();
    while !replica.status().is_idle {
        assert!(start.elapsed() < Duration::from_secs(60), "it is shipped within a minute");
        let mut done = Vec::new();
        device.poll(&mut done, Wait::For(Duration::from_millis(2))).expect("it can be polled");
        assert!(done.is_empty(), "nothing is under way");
    }
}

fn assert_same(store: &MemoryStore, bucket: &dyn Bucket) {
    let (mut here, mut there) = (vec![0; STORE_SIZE as usize], vec![0; STORE_SIZE as usize]);
    store.read_at(0, &mut here).expect("it is free");
    copy(bucket).read_at(0, &mut there).expect("it is free");
    let mut blocks = here.chunks(SECTOR as usize).zip(there.chunks(SECTOR as usize));
    let different = blocks.position(|(one, other)| one != other);
    assert_eq!(different, None, "the copy is what the device holds");
}

/// Writes, discards and flushes at random, here and there a row of zeros. Returns how often the device was read.
fn churn(keep_max: u64, ack: Ack, seed: u64) -> u64 {
    let store = MemoryStore::new(STORE_SIZE);
    let (counting, counts) = CountingDevice::new(store.open().expect("it is free"));
    let settings = Settings { keep_max, ack, ..BUSY };
    let (mut device, replica, bucket) = ship(counting, settings);
    let mut random = Random::new(seed);
    for step in 0..300_u32 {
        let offset = random.below(STORE_SIZE / 2 / SECTOR) * SECTOR;
        let length = (1 + random.below(64)) * SECTOR;
        let mut memory = AlignedMemory::zeroed(length as usize);
        match random.below(12) {
            0 => blocking::flush(&mut device).expect("nothing fails"),
            1 => blocking::discard(&mut device, offset, length).expect("nothing fails"),
            2 => blocking::write(&mut device, offset, &mut memory).expect("nothing fails"),
            _ => {
                memory.chunks_mut(8).for_each(|word| word.fill(step as u8 | 1));
                blocking::write(&mut device, offset, &mut memory).expect("nothing fails");
            }
        }
    }
    wait_until_shipped(&mut device, &replica);
    let reads = counts.of(CommandKind::Read).commands;
    drop(device);
    assert_same(&store, &*bucket);
    reads
}

#[test]
fn next_to_nothing_is_read_back_while_memory_suffices() {
    for (seed, ack) in (0..3).flat_map(|seed| [(seed, Ack::Local), (seed, Ack::Remote)]) {
        let (without, with) = (churn(0, ack, seed), churn(STORE_SIZE, ack, seed));
        // What was being written while a commit was cut may go into two objects, and memory holds it once.
        assert!(with * 10 <= without, "{with} reads with memory, {without} without");
    }
}

#[test]
fn what_found_no_room_in_memory_is_read_back() {
    for seed in 0..3 {
        let little = churn(256 << 10, Ack::Local, seed);
        assert!(little > 0, "it does not fit");
    }
}

/// Carries out what it was given since the last poll in reverse, and says nothing of it.
struct Reversing<D> {
    inner: D,
    taken: Vec<Command>,
}

// SAFETY: what the device within completes is handed on, once; nothing else touches the memory.
unsafe impl<D: Device> Device for Reversing<D> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.register(regions) }
    }

    unsafe fn submit(&mut self, command: Command) {
        self.taken.push(command);
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let count = self.taken.len();
        let mut done = Vec::new();
        for command in self.taken.drain(..).rev() {
            let before = done.len();
            // SAFETY: the caller's promises are the same.
            unsafe { self.inner.submit(command) };
            while done.len() == before {
                self.inner.poll(&mut done, Wait::For(Duration::from_secs(1)))?;
            }
        }
        done.reverse();
        out.append(&mut done);
        if count == 0 { self.inner.poll(out, wait) } else { Ok(()) }
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.inner.arm()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}

#[test]
fn of_writes_that_cross_the_copy_has_what_the_device_was_left_with() {
    let store = MemoryStore::new(STORE_SIZE);
    let inner = Reversing { inner: store.open().expect("it is free"), taken: Vec::new() };
    let settings = Settings { keep_max: 4 * MIB, ..BUSY };
    let (mut device, replica, bucket) = ship(inner, settings);
    let mut first = AlignedMemory::zeroed(SECTOR as usize);
    // So that the chunk is marked: then nothing is held.
    blocking::write(&mut device, 0, &mut first).expect("nothing fails");
    let mut memories: Vec<AlignedMemory> = (1..=3)
        .map(|stamp| {
            let mut memory = AlignedMemory::zeroed(2 * SECTOR as usize);
            memory.fill(stamp);
            memory
        })
        .collect();
    for (index, memory) in memories.iter_mut().enumerate() {
        let offset = MIB + index as u64 * SECTOR;
        let pointer = memory.as_mut_pointer();
        // SAFETY: the memory lives until all have completed, below.
        unsafe {
            device.submit(Command::write(index as u64, offset, 2 * SECTOR, pointer));
        }
    }
    let mut done = Vec::new();
    while done.len() < 3 {
        device.poll(&mut done, Wait::For(Duration::from_secs(1))).expect("it can be polled");
    }
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    wait_until_shipped(&mut device, &replica);
    drop(device);
    let mut bytes = vec![0; 4 * SECTOR as usize];
    store.read_at(MIB, &mut bytes).expect("it is free");
    let found: Vec<u8> = bytes.chunks(SECTOR as usize).map(|block| block[0]).collect();
    assert_eq!(found, [1, 1, 2, 3], "the first write came last");
    assert_same(&store, &*bucket);
}
