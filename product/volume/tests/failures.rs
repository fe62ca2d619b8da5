//! Devices that fail, data that rots, and a loop that dies.

mod common;

use common::*;
use coulter::service::{BlockService, Operation, RequestError, Watch};
use coulter::{CloseError, CreateOptions, OpenOptions, ReadOnlyReason, State, Volume, create};
use coulter_device::wrap::{
    Effect, Fault, FaultHandle, FaultRates, FaultyDevice, TraceLog, TracedDevice,
};
use coulter_device::{
    Command, CommandKind, Completion, Device, MemoryStore, Properties, Region, Wait, Waker,
};
use coulter_workload::Random;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

for_both_kinds!(
    after_a_failed_write_the_volume_is_read_only_and_says_why,
    after_a_failed_flush_the_volume_is_read_only,
    a_failed_read_fails_alone,
    a_map_page_that_cannot_be_read_fails_the_reads_below_it_alone,
    where_too_much_cannot_be_read_to_win_room_the_volume_is_read_only,
    where_too_many_headers_rotted_to_win_room_the_volume_is_read_only,
    damaged_data_is_an_error_and_never_wrong_bytes,
    a_device_that_vanishes_fails_everything_that_needs_it_and_hangs_nothing,
    failing_any_one_command_loses_nothing_that_was_flushed,
    held_back_completions_change_nothing,
    a_panic_of_the_loop_hangs_no_session_and_loses_no_buffer,
    a_device_that_cannot_be_polled_ends_the_volume_with_its_error,
);

fn faulty<V: AnyVolume>(store: &MemoryStore) -> (V, FaultHandle) {
    let inner = store.open().expect("nothing has it open");
    let (device, handle) = FaultyDevice::new(inner, 1);
    let volume = V::open_with(Box::new(device), OpenOptions::default()).expect("intact");
    // Behind the first checkpoint, so that faults meet what the test does.
    volume.write_at(0, &[1; 4096]).expect("in range");
    (volume, handle)
}

const FAILED: State = State::ReadOnly(ReadOnlyReason::Failed { errno: libc::EIO });

fn after_a_failed_write_the_volume_is_read_only_and_says_why<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let (volume, handle) = faulty::<V>(&store);
    volume.write_at(8192, &[2; 4096]).expect("in range");
    volume.flush().expect("the device works");
    handle.add(Fault::fail_nth(CommandKind::Write, 1, libc::EIO));
    let device_failed = Err(RequestError::Device { errno: libc::EIO });
    assert_eq!(volume.write_at(0, &[3; 4096]), device_failed);
    // Not tried again, though the device would do it now.
    assert_eq!(volume.write_at(0, &[3; 4096]), Err(RequestError::ReadOnly));
    assert_eq!(volume.write_at(512, &[3; 512]), Err(RequestError::ReadOnly));
    assert_eq!(volume.discard(0, 4096), Err(RequestError::ReadOnly));
    assert!(volume.flush().is_err());
    assert_eq!(volume.state(), FAILED);
    assert!(volume.state().to_string().starts_with("read-only since the device failed"));
    assert!(volume.read_only());
    let mut bytes = [0; 4096];
    volume.read_at(8192, &mut bytes).expect("reading goes on");
    assert_eq!(bytes, [2; 4096]);
    let counts = volume.statistics().requests;
    assert_eq!((counts.device_failures, counts.refused), (2, 3));
    assert_eq!(volume.close(), Err(CloseError::Device { errno: libc::EIO }));

    let volume = open::<V>(&store);
    volume.read_at(8192, &mut bytes).expect("in range");
    assert_eq!(bytes, [2; 4096]);
    volume.read_at(0, &mut bytes).expect("in range");
    assert!(bytes == [1; 4096] || bytes == [3; 4096]);
}

struct Told(AtomicBool);

impl Watch for Told {
    fn changed(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn who_watches_a_volume_is_told_when_it_becomes_read_only() {
    let store = small_store(48 * MIB);
    let (volume, handle) = faulty::<Volume>(&store);
    let told = Arc::new(Told(AtomicBool::new(false)));
    let watch: Arc<dyn Watch> = told.clone();
    volume.watch(Arc::downgrade(&watch));
    let before = volume.describe();
    assert_eq!((before.size, before.read_only), (volume.size(), false));
    assert_eq!(before.identity.uuid, volume.geometry().uuid);
    volume.write_at(0, &[2; 4096]).expect("in range");
    assert!(!told.0.load(Ordering::SeqCst), "nothing has changed");
    handle.add(Fault::fail_nth(CommandKind::Write, 1, libc::EIO));
    volume.write_at(0, &[3; 4096]).expect_err("the device fails");
    assert!(told.0.load(Ordering::SeqCst));
    assert!(volume.describe().read_only);
}

fn after_a_failed_flush_the_volume_is_read_only<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let (volume, handle) = faulty::<V>(&store);
    handle.add(Fault::fail_nth(CommandKind::Flush, 1, libc::EIO));
    assert_eq!(volume.flush(), Err(RequestError::Device { errno: libc::EIO }));
    assert_eq!(volume.write_at(0, &[3; 4096]), Err(RequestError::ReadOnly));
    assert_eq!(volume.state(), FAILED);
    let mut bytes = [0; 4096];
    volume.read_at(0, &mut bytes).expect("reading goes on");
    assert_eq!(bytes, [1; 4096]);
}

fn a_failed_read_fails_alone<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let (volume, handle) = faulty::<V>(&store);
    handle.add(Fault::fail_nth(CommandKind::Read, 1, libc::EIO));
    let mut bytes = [0; 4096];
    let failed = Err(RequestError::Device { errno: libc::EIO });
    assert_eq!(volume.read_at(0, &mut bytes), failed);
    assert_eq!(volume.read_at(0, &mut bytes), Ok(()));
    assert_eq!(bytes, [1; 4096]);
    // The same for the reading that a partial write begins with.
    handle.clear();
    handle.add(Fault::fail_nth(CommandKind::Read, 1, libc::EIO));
    assert_eq!(volume.write_at(512, &[2; 512]), failed);
    assert_eq!(volume.write_at(512, &[2; 512]), Ok(()));
    assert_eq!(volume.state(), State::Running);
    volume.close().expect("the device works");
}

fn a_map_page_that_cannot_be_read_fails_the_reads_below_it_alone<V: AnyVolume>() {
    const LEAF: u64 = 512 * BLOCK;
    let store = MemoryStore::sparse(1300 * MIB);
    let options = CreateOptions {
        segment_size: Some(2 * MIB),
        volume_size: Some(1024 * MIB),
        map_memory: Some(MIB),
        ..CreateOptions::default()
    };
    create(device(&store), &options).expect("it fits");
    let log = TraceLog::new(100_000);
    let (device, handle) = FaultyDevice::new(TracedDevice::new(device(&store), log.clone()), 1);
    let options = OpenOptions { map_memory: Some(MIB), ..OpenOptions::default() };
    let volume = V::open_with(Box::new(device), options).expect("it is intact");
    // So much of each leaf that the map does not fit into memory. Zeros take none of the machine's.
    for round in 0..16 {
        for leaf in 0..512 {
            volume.write_at(leaf * LEAF + (round << 16), &[0; 1 << 16]).expect("in range");
        }
    }
    let read = |leaf| volume.read_at(leaf * LEAF, &mut [0; 8192]);
    let pages_read_for = |leaf| {
        log.take();
        read(leaf).expect("the device works");
        log.take().into_iter().filter(|seen| seen.kind == CommandKind::Read && seen.length == BLOCK)
    };
    let found = (0..512).find_map(|leaf| Some((leaf, pages_read_for(leaf).next()?.offset)));
    let (leaf, page) = found.expect("not all of the map is in memory");
    let range = Some(page..page + BLOCK);
    handle
        .add(Fault { range, ..Fault::every(CommandKind::Read, Effect::Fail { errno: libc::EIO }) });
    (0..512).filter(|other| *other != leaf).for_each(|other| read(other).expect("it is intact"));
    let failed = Err(RequestError::Device { errno: libc::EIO });
    (0..40).for_each(|_| assert_eq!(read(leaf), failed));
    assert_eq!(volume.state(), State::Running);
    volume.write_at(600 * LEAF / 2, &[8; 4096]).expect("writing goes on");
    assert!(handle.injected() > 0);
    handle.clear();
    read(leaf).expect("it can be read again");
    volume.close().expect("the device works");
}

fn where_too_much_cannot_be_read_to_win_room_the_volume_is_read_only<V: AnyVolume>() {
    let store = small_store(96 * MIB);
    let (volume, handle) = faulty::<V>(&store);
    let blocks = volume.size() / BLOCK;
    (0..blocks).for_each(|block| volume.write_at(block * BLOCK, &[1; 4096]).expect("room"));
    volume.flush().expect("the device works");
    // More of the segments than are spare.
    let range = Some(32 * MIB..96 * MIB);
    handle
        .add(Fault { range, ..Fault::every(CommandKind::Read, Effect::Fail { errno: libc::EIO }) });
    let mut random = Random::new(3);
    let mut overwritten = None;
    let outcome = (0..4 * blocks).try_for_each(|_| {
        let block = random.below(blocks);
        volume.write_at(block * BLOCK, &[2; 4096])?;
        overwritten = Some(block);
        Ok(())
    });
    assert_eq!(outcome, Err(RequestError::ReadOnly));
    assert_eq!(volume.state(), FAILED);
    handle.clear();
    let mut bytes = [0; 4096];
    let last = overwritten.expect("there was room for some") * BLOCK;
    volume.read_at(last, &mut bytes).expect("reading goes on");
    assert_eq!(bytes, [2; 4096]);
    assert_eq!(volume.close(), Err(CloseError::Device { errno: libc::EIO }));
    let volume = open::<V>(&store);
    volume.read_at(last, &mut bytes).expect("in range");
    assert_eq!(bytes, [2; 4096]);
    volume.write_at(last, &[3; 4096]).expect("the device can be read again");
}

fn where_too_many_headers_rotted_to_win_room_the_volume_is_read_only<V: AnyVolume>() {
    let store = small_store(96 * MIB);
    let volume = open::<V>(&store);
    let blocks = volume.size() / BLOCK;
    (0..blocks).for_each(|block| volume.write_at(block * BLOCK, &[1; 4096]).expect("room"));
    volume.close().expect("the device works");
    // What lies in these segments is whole, and can be read; but nothing says what it is. The cleaner's long
    // records are spared: without the header of one that the checkpoint refers to the store is not opened.
    let mut block = [0; 4096];
    for place in (32 * MIB..96 * MIB).step_by(4096) {
        store.read_at(place, &mut block).expect("nothing has it open");
        let payload_size = u16::from_le_bytes([block[60], block[61]]);
        if block.starts_with(b"CRECORD\0") && payload_size < 128 {
            store.write_at(place + 100, &[block[100] ^ 4]).expect("nothing has it open");
        }
    }
    let volume = open::<V>(&store);
    let mut random = Random::new(3);
    let mut overwritten = std::collections::BTreeSet::new();
    let outcome = (0..4 * blocks).try_for_each(|_| {
        let block = random.below(blocks);
        volume.write_at(block * BLOCK, &[2; 4096])?;
        overwritten.insert(block);
        Ok(())
    });
    assert_eq!(outcome, Err(RequestError::ReadOnly));
    assert!(matches!(volume.state(), State::ReadOnly(ReadOnlyReason::Failed { .. })));
    let mut bytes = [0; 4096];
    for block in 0..blocks {
        volume.read_at(block * BLOCK, &mut bytes).expect("reading goes on");
        assert_eq!(bytes, [1 + u8::from(overwritten.contains(&block)); 4096], "block {block}");
    }
    assert!(volume.close().is_err(), "what it could not write is not on the device");
}

fn damaged_data_is_an_error_and_never_wrong_bytes<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let volume = open::<V>(&store);
    let mut content = vec![0; 64 << 10];
    Random::new(5).fill(&mut content);
    volume.write_at(0, &content).expect("in range");
    volume.close().expect("the device works");
    // One bit of block 9, wherever it lies.
    let wanted = &content[9 * 4096..10 * 4096];
    let mut block = [0; 4096];
    for place in (0..store.size()).step_by(4096) {
        store.read_at(place, &mut block).expect("nothing has it open");
        if block == wanted {
            store.write_at(place + 2000, &[block[2000] ^ 4]).expect("nothing has it open");
        }
    }
    let volume = open::<V>(&store);
    let corrupt = Err(RequestError::Corrupt { block: 9 });
    let mut bytes = vec![0; 64 << 10];
    assert_eq!(volume.read_at(0, &mut bytes), corrupt);
    assert_eq!(volume.read_at(9 * BLOCK + 512, &mut [0; 512]), corrupt);
    assert_eq!(volume.write_at(9 * BLOCK + 512, &[0; 512]), corrupt);
    volume.read_at(10 * BLOCK, &mut bytes[..4096]).expect("its neighbours are whole");
    assert!(bytes[..4096] == content[10 * 4096..11 * 4096]);
    assert!(volume.statistics().requests.corrupt >= 3);
    // Written whole it is healed.
    volume.write_at(9 * BLOCK, wanted).expect("in range");
    volume.read_at(0, &mut bytes).expect("healed");
    assert!(bytes == content);
}

fn a_device_that_vanishes_fails_everything_that_needs_it_and_hangs_nothing<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let (volume, handle) = faulty::<V>(&store);
    let mut session = volume.connect();
    handle.add(Fault::nth(CommandKind::Write, 3, Effect::Vanish));
    for tag in 0..200 {
        session.submit(write(tag, tag * BLOCK, &[2; 4096]));
        session.submit(read(tag, 0, 4096));
        session.submit(write(tag, tag * BLOCK + 512, &[3; 512]));
        session.submit(bare(tag, Operation::Flush, 0, 0));
        session.kick();
    }
    let completions = complete_all(&mut *session);
    assert_eq!(completions.len(), 800);
    assert!(completions.iter().any(|completion| completion.result.is_err()));
    drop(session);
    assert!(matches!(volume.close(), Err(CloseError::Device { .. })));
    drop(open::<V>(&store));
}

fn failing_any_one_command_loses_nothing_that_was_flushed<V: AnyVolume>() {
    // The n-th write or flush fails, for each n until the whole plan gets by without meeting it.
    for kind in [CommandKind::Write, CommandKind::Flush] {
        for nth in 1.. {
            let store = small_store(40 * MIB);
            let (volume, handle) = faulty::<V>(&store);
            handle.add(Fault::fail_nth(kind, nth, libc::ENOSPC));
            let mut flushed = [0u8; 64];
            let mut written = [0u8; 64];
            let mut random = Random::new(nth);
            let mut failed = false;
            for round in 1..60u8 {
                let block = random.below(64) as usize;
                // Noted first: a write that fails may have been stored all the same.
                written[block] = round;
                failed |= volume.write_at(block as u64 * BLOCK, &[round; 4096]).is_err();
                failed |= round % 5 == 0 && volume.flush().is_err();
                if failed {
                    break;
                }
                if round % 5 == 0 {
                    flushed = written;
                }
            }
            let closed = volume.close();
            assert!(!failed || closed.is_err(), "a failure is told at the end too");
            let volume = open::<V>(&store);
            for block in 0..64 {
                let mut bytes = [0; 4096];
                volume.read_at(block as u64 * BLOCK, &mut bytes).expect("in range");
                let found = bytes[0];
                let first = if block == 0 && flushed[0] == 0 { 1 } else { flushed[block] };
                assert!(bytes == [found; 4096], "a block is whole");
                assert!((first..=written[block].max(first)).contains(&found), "{kind:?} {nth}");
            }
            volume.close().expect("this device works");
            if handle.injected() == 0 {
                assert!(nth > 5);
                break;
            }
        }
    }
}

fn held_back_completions_change_nothing<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let (volume, handle) = faulty::<V>(&store);
    handle.set_rates(FaultRates { delays: 300_000, ..FaultRates::default() });
    let mut random = Random::new(11);
    let mut model = vec![0; 2 << 20];
    model[..4096].fill(1);
    for _ in 0..1500 {
        let sector = random.below(4000);
        let length = 1 + random.below(90);
        let range = (sector * 512) as usize..((sector + length) * 512) as usize;
        if random.below(3) == 0 {
            let mut bytes = vec![0; range.len()];
            volume.read_at(sector * SECTOR, &mut bytes).expect("in range");
            assert!(bytes == model[range]);
        } else {
            random.fill(&mut model[range.clone()]);
            volume.write_at(sector * SECTOR, &model[range]).expect("in range");
        }
    }
}

/// A device that dies on the thread that uses it when it is told to.
struct Deadly {
    inner: Box<dyn Device>,
    panics: Arc<AtomicBool>,
    breaks: Arc<AtomicBool>,
}

// SAFETY: what the inner device completes is handed on, once; nothing else touches the memory.
unsafe impl Device for Deadly {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }
    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.register(regions) }
    }
    unsafe fn submit(&mut self, command: Command) {
        assert!(!self.panics.load(Ordering::Relaxed), "told to panic");
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.submit(command) }
    }
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        if self.breaks.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        self.inner.poll(out, wait)
    }
    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.inner.arm()
    }
    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}

fn deadly<V: AnyVolume>(store: &MemoryStore) -> (V, Arc<AtomicBool>, Arc<AtomicBool>) {
    let (panics, breaks) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let deadly = Deadly { inner: device(store), panics: panics.clone(), breaks: breaks.clone() };
    let volume = V::open_with(Box::new(deadly), OpenOptions::default()).expect("intact");
    volume.write_at(0, &[1; 4096]).expect("in range");
    (volume, panics, breaks)
}

fn a_panic_of_the_loop_hangs_no_session_and_loses_no_buffer<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let (volume, panics, _) = deadly::<V>(&store);
    let mut session = volume.connect();
    let mut idle = volume.connect();
    panics.store(true, Ordering::Relaxed);
    for tag in 0..50 {
        session.submit(write(tag, tag * BLOCK, &[2; 4096]));
        session.submit(read(tag, tag * 512, 512));
        session.kick();
    }
    let completions = complete_all(&mut *session);
    assert_eq!(completions.len(), 100);
    for completion in &completions {
        assert!(matches!(completion.result, Ok(()) | Err(RequestError::Closed)));
        assert!(completion.buffer.len() == 4096 || completion.buffer.len() == 512);
    }
    assert_eq!(carry_out(&mut *idle, read(0, 0, 512)).result, Err(RequestError::Closed));
    assert_eq!(volume.read_at(0, &mut [0; 512]), Err(RequestError::Closed));
    let State::Failed(why) = volume.state() else { panic!("{}", volume.state()) };
    assert_eq!(why, "told to panic");
    assert!(volume.read_only());
    assert_eq!(volume.close(), Err(CloseError::Bug("told to panic".to_string())));
    drop(open::<V>(&store));
}

fn a_device_that_cannot_be_polled_ends_the_volume_with_its_error<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let (volume, _, breaks) = deadly::<V>(&store);
    breaks.store(true, Ordering::Relaxed);
    let mut session = volume.connect();
    session.submit(write(1, 0, &[2; 4096]));
    let completions = complete_all(&mut *session);
    assert_eq!(completions[0].result, Err(RequestError::Device { errno: libc::ENODEV }));
    assert!(matches!(volume.state(), State::Failed(_)));
    assert_eq!(volume.close(), Err(CloseError::Device { errno: libc::ENODEV }));
    drop(open::<V>(&store));
}
