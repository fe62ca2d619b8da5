//! Opening, closing, dying, and what is left afterwards.

mod common;

use common::*;
use coulter::service::{Operation, RequestError};
use coulter::{
    CreateError, CreateOptions, OpenErrorKind, OpenOptions, ReadOnlyReason, State, Volume, create,
};
use coulter_device::wrap::{CutDevice, CutPolicy};
use coulter_device::{Device, MemoryStore};
use coulter_workload::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

for_both_kinds!(
    content_survives_closing_dropping_and_dying,
    closing_in_order_leaves_no_writes_to_replay,
    what_was_flushed_survives_a_power_cut_and_the_rest_is_a_prefix,
    a_thousand_openings_leave_no_thread_and_no_descriptor,
    a_session_that_goes_away_with_requests_in_flight_harms_nobody,
    a_volume_opened_read_only_serves_reads_and_leaves_the_device_alone,
    what_is_no_store_is_refused_with_the_reason,
    options_that_cannot_work_are_refused,
    a_store_on_a_file_is_opened_again_by_path,
);

fn open_error<V: AnyVolume>(store: &MemoryStore, options: OpenOptions) -> OpenErrorKind {
    let error = V::open_with(device(store), options).expect_err("it cannot be opened");
    let text = error.to_string();
    assert!(text.starts_with("memory: "), "{text}");
    error.kind
}

fn content_survives_closing_dropping_and_dying<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    for (round, end) in ["close", "drop", "abandon"].iter().cycle().take(30).enumerate() {
        let volume = open::<V>(&store);
        let round = round as u64;
        for block in 0..round {
            let mut bytes = [0; 4096];
            volume.read_at(block * 3 * BLOCK, &mut bytes).expect("in range");
            assert!(bytes.iter().all(|byte| *byte == block as u8 + 1), "block {block} of {round}");
        }
        volume.write_at(round * 3 * BLOCK, &[round as u8 + 1; 4096]).expect("in range");
        match *end {
            "close" => volume.close().expect("the device works"),
            "drop" => drop(volume),
            _ => volume.abandon().expect("nothing failed"),
        }
    }
}

fn closing_in_order_leaves_no_writes_to_replay<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let replayed_after = |end: fn(V)| {
        let volume = open::<V>(&store);
        for block in 0..50 {
            volume.write_at(block * BLOCK, &[1; 4096]).expect("in range");
        }
        end(volume);
        open::<V>(&store).statistics().log.records_replayed
    };
    // The records of the checkpoint itself lie behind it.
    let in_order = replayed_after(|volume| volume.close().expect("the device works"));
    assert!(in_order < 10, "{in_order} records");
    let abruptly = replayed_after(|volume| volume.abandon().expect("nothing failed"));
    assert!(abruptly >= 50, "{abruptly} records");
}

fn what_was_flushed_survives_a_power_cut_and_the_rest_is_a_prefix<V: AnyVolume>() {
    for seed in 0..40 {
        let store = small_store(48 * MIB);
        let (device, handle) = CutDevice::new(store.open().expect("nothing has it open"));
        let volume = V::open_with(Box::new(device), OpenOptions::default()).expect("intact");
        let mut random = Random::new(seed);
        let mut flushed = 0;
        handle.cut_after(20 + random.below(200), CutPolicy::Seeded(seed));
        // Each write goes to a block of its own, so the prefix can be told.
        let mut written = 0;
        for block in 0..400u64 {
            if volume.write_at(block * BLOCK, &[block as u8 | 1; 4096]).is_err() {
                break;
            }
            written = block + 1;
            if random.below(7) == 0 {
                if volume.flush().is_err() {
                    break;
                }
                flushed = written;
            }
        }
        // Its last checkpoint is refused, as everything is.
        drop(volume);
        let volume = open::<V>(&store);
        let mut survived = 0;
        let mut ended = false;
        for block in 0..written + 1 {
            let mut bytes = [0; 4096];
            volume.read_at(block * BLOCK, &mut bytes).expect("in range");
            let is_there = bytes == [block as u8 | 1; 4096];
            assert!(is_there || bytes == [0; 4096], "seed {seed}: block {block} is torn");
            assert!(!(is_there && ended), "seed {seed}: block {block} is behind a gap");
            ended |= !is_there;
            survived += u64::from(is_there);
        }
        assert!(survived >= flushed, "seed {seed}: {survived} of {flushed} flushed are left");
    }
}

fn a_thousand_openings_leave_no_thread_and_no_descriptor<V: AnyVolume>() {
    let store = small_store(32 * MIB);
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("Linux").count();
    let before = descriptors();
    for _ in 0..1000 {
        let volume = open::<V>(&store);
        let mut session = volume.connect();
        assert_eq!(carry_out(&mut *session, read(0, 0, 512)).result, Ok(()));
        volume.close().expect("the device works");
    }
    // Other tests of this process have a few open at the moment.
    assert!(descriptors() < before + 100);
}

#[test]
fn requests_in_flight_end_when_a_volume_is_shut_down() {
    let store = small_store(64 * MIB);
    for round in 0..20u64 {
        let volume = Arc::new(open::<Volume>(&store));
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (volume, done) = (&volume, &done);
                scope.spawn(move || {
                    let mut session = volume.connect();
                    let mut random = Random::new(round << 8 | thread);
                    let mut completions = Vec::new();
                    let mut is_closed = false;
                    while !is_closed || session.outstanding() > 0 {
                        while !is_closed && session.outstanding() < 16 {
                            let offset = random.below(4000) * SECTOR;
                            session.submit(write(offset, offset, &[thread as u8; 1536]));
                        }
                        session.complete(&mut completions, None);
                        for completion in completions.drain(..) {
                            assert_eq!(completion.buffer.len(), 1536, "buffers come back");
                            match completion.result {
                                Ok(()) => _ = done.fetch_add(1, Ordering::Relaxed),
                                Err(RequestError::Closed) => is_closed = true,
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                });
            }
            while done.load(Ordering::Relaxed) < 200 {
                std::thread::yield_now();
            }
            volume.shut_down().expect("the device works");
        });
        assert_eq!(volume.state(), State::Closed);
        let counts = volume.statistics().requests;
        assert!(counts.writes >= done.load(Ordering::Relaxed));
    }
}

#[test]
fn a_closed_volume_refuses_everything_and_still_tells_its_counters() {
    let store = small_store(32 * MIB);
    let volume = open::<Volume>(&store);
    let mut early = volume.connect();
    assert_eq!(carry_out(&mut *early, write(0, 0, &[1; 4096])).result, Ok(()));
    volume.shut_down().expect("the device works");
    volume.shut_down().expect("the second time does nothing");
    let mut late = volume.connect();
    for session in [&mut early, &mut late] {
        let completion = carry_out(&mut **session, write(5, 0, &[2; 4096]));
        assert_eq!((completion.tag, completion.buffer.len()), (5, 4096));
        assert_eq!(completion.result, Err(RequestError::Closed));
        let flushed = carry_out(&mut **session, bare(6, Operation::Flush, 0, 0));
        assert_eq!(flushed.result, Err(RequestError::Closed));
    }
    assert_eq!(volume.write_at(0, &[1; 512]), Err(RequestError::Closed));
    assert!(volume.read_only());
    assert_eq!(volume.statistics().requests.writes, 1);
    // The store is free again while handles are left.
    drop(open::<Volume>(&store));
}

fn a_session_that_goes_away_with_requests_in_flight_harms_nobody<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let volume = open::<V>(&store);
    for round in 0..300u64 {
        let mut session = volume.connect();
        for tag in 0..8 {
            session.submit(write(tag, (round * 8 + tag) % 2000 * BLOCK, &[round as u8; 4096]));
            session.submit(read(tag, tag * BLOCK, 65536));
        }
        session.kick();
        drop(session);
    }
    let mut session = volume.connect();
    assert_eq!(carry_out(&mut *session, bare(0, Operation::Flush, 0, 0)).result, Ok(()));
    let counts = volume.statistics().requests;
    assert_eq!((counts.writes, counts.reads), (2400, 2400));
}

fn a_volume_opened_read_only_serves_reads_and_leaves_the_device_alone<V: AnyVolume>() {
    let store = small_store(32 * MIB);
    let volume = open::<V>(&store);
    volume.write_at(4096, &[7; 4096]).expect("in range");
    volume.abandon().expect("nothing failed");
    let before = store.duplicate().expect("nothing has it open");

    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let device = store.open_read_only().expect("nothing has it open");
    let volume = V::open_with(Box::new(device), options).expect("intact");
    assert_eq!(volume.state(), State::ReadOnly(ReadOnlyReason::Opened));
    let mut bytes = [0; 4096];
    volume.read_at(4096, &mut bytes).expect("in range");
    assert_eq!(bytes, [7; 4096]);
    assert_eq!(volume.write_at(0, &[1; 4096]), Err(RequestError::ReadOnly));
    assert_eq!(volume.write_at(0, &[1; 512]), Err(RequestError::ReadOnly));
    assert_eq!(volume.discard(0, 8192), Err(RequestError::ReadOnly));
    assert_eq!(volume.flush(), Ok(()));
    volume.close().expect("nothing failed");

    let (mut one, mut other) = (vec![0; 4 << 20], vec![0; 4 << 20]);
    for offset in (0..32 * MIB).step_by(4 << 20) {
        before.read_at(offset, &mut one).expect("nothing has it open");
        store.read_at(offset, &mut other).expect("nothing has it open");
        assert!(one == other, "something was written after {offset}");
    }
}

fn what_is_no_store_is_refused_with_the_reason<V: AnyVolume>() {
    let options = OpenOptions::default();
    let zeros = MemoryStore::new(32 * MIB);
    assert!(matches!(open_error::<V>(&zeros, options), OpenErrorKind::NotAStore));
    let tiny = MemoryStore::new(512);
    assert!(matches!(open_error::<V>(&tiny, options), OpenErrorKind::NotAStore));

    let store = small_store(64 * MIB);
    let truncated = MemoryStore::new(40 * MIB);
    let mut bytes = vec![0; 40 << 20];
    store.read_at(0, &mut bytes).expect("nothing has it open");
    truncated.write_at(0, &bytes).expect("nothing has it open");
    let kind = open_error::<V>(&truncated, options);
    assert!(matches!(kind, OpenErrorKind::Truncated { found, .. } if found == 40 * MIB), "{kind}");

    let damaged = store.duplicate().expect("nothing has it open");
    for place in [0, MIB] {
        damaged.write_at(place + 100, &[0xff; 8]).expect("nothing has it open");
    }
    let kind = open_error::<V>(&damaged, options);
    assert!(matches!(kind, OpenErrorKind::FirstSuperblocksLost), "{kind}");
    // The device is all log, so the third copy lies before that.
    damaged.write_at(2 * MIB - 4096 + 100, &[0xff; 8]).expect("nothing has it open");
    let kind = open_error::<V>(&damaged, options);
    assert!(matches!(kind, OpenErrorKind::Damaged { .. }), "{kind}");

    let bodiless = store.duplicate().expect("nothing has it open");
    bodiless.write_at(2 * MIB, &[0xff; 64 << 10]).expect("nothing has it open");
    let kind = open_error::<V>(&bodiless, options);
    assert!(matches!(kind, OpenErrorKind::Damaged { .. }), "{kind}");
}

fn options_that_cannot_work_are_refused<V: AnyVolume>() {
    let store = small_store(32 * MIB);
    let options = OpenOptions { record_count: 3, ..OpenOptions::default() };
    let kind = open_error::<V>(&store, options);
    assert!(matches!(kind, OpenErrorKind::Option { name: "record_count", .. }), "{kind}");
    let options = OpenOptions { request_count: u32::MAX, ..OpenOptions::default() };
    let kind = open_error::<V>(&store, options);
    assert_eq!(kind.to_string(), "`request_count` must be at most 65536");
    let options = OpenOptions { request_count: 1 << 16, ..OpenOptions::default() };
    let volume = V::open_with(device(&store), options).expect("it may be so many");
    volume.close().expect("nothing fails");
    let options = OpenOptions { map_memory: Some(4096), ..OpenOptions::default() };
    let kind = open_error::<V>(&store, options);
    assert!(matches!(kind, OpenErrorKind::MapMemory { needed } if needed > 4096), "{kind}");
    let read_only = store.open_read_only().expect("nothing has it open");
    let error = V::open_with(Box::new(read_only), OpenOptions::default()).expect_err("refused");
    assert!(matches!(error.kind, OpenErrorKind::ReadOnlyDevice), "{error}");
}

fn a_store_on_a_file_is_opened_again_by_path<V: AnyVolume>() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("store");
    let make = coulter_device::OpenOptions {
        create_size: Some(64 * MIB),
        ..coulter_device::OpenOptions::default()
    };
    let device = coulter_device::open_path(&path, &make).expect("a file can be made");
    let options = coulter::CreateOptions { segment_size: Some(2 * MIB), ..Default::default() };
    let geometry = create(device, &options).expect("it fits");
    let again = || -> Box<dyn Device> {
        coulter_device::open_path(&path, &coulter_device::OpenOptions::default()).expect("free")
    };
    let volume = V::open_with(again(), OpenOptions::default()).expect("intact");
    assert_eq!(volume.geometry(), &geometry);
    volume.write_at(12288, &[3; 12288]).expect("in range");
    volume.close().expect("the device works");
    let volume = V::open_with(again(), OpenOptions::default()).expect("intact");
    let mut bytes = [0; 12288];
    volume.read_at(12288, &mut bytes).expect("in range");
    assert_eq!(bytes, [3; 12288]);
}

#[test]
fn an_idle_volume_sleeps() {
    let store = small_store(32 * MIB);
    let volume = open::<Volume>(&store);
    volume.write_at(0, &[1; 4096]).expect("in range");
    std::thread::sleep(Duration::from_millis(50));
    let before = volume.statistics().event_loop.turns;
    std::thread::sleep(Duration::from_millis(100));
    let after = volume.statistics().event_loop.turns;
    assert!(after - before <= 4, "{} turns for one question", after - before);
}

#[test]
fn the_smallest_device_that_an_error_names_holds_a_volume_that_works() {
    for segment_size in [2 * MIB, 4 * MIB, 32 * MIB] {
        let options =
            CreateOptions { segment_size: Some(segment_size), ..CreateOptions::default() };
        let size_min = |size| match coulter::check_create(size, &options) {
            Err(CreateError::DeviceTooSmall { size_min, .. }) => Some(size_min),
            Err(error) => panic!("{segment_size}: {error}"),
            Ok(()) => None,
        };
        let smallest = size_min(0).expect("nothing is too little");
        assert_eq!(size_min(smallest - BLOCK), Some(smallest), "{segment_size}");
        assert_eq!(size_min(smallest), None, "{segment_size}");
        let store = MemoryStore::new(smallest);
        coulter::create(device(&store), &options).expect("it was said to do");
        let volume: Volume = open(&store);
        let mut back = [0; BLOCK as usize];
        for round in 1..=20 {
            for at in (0..volume.size()).step_by(BLOCK as usize) {
                volume.write_at(at, &[round; BLOCK as usize]).expect("the cleaner makes room");
            }
            volume.flush().expect("it is writable");
            volume.read_at(volume.size() - BLOCK, &mut back).expect("it is readable");
            assert_eq!(back, [round; BLOCK as usize]);
        }
        volume.shut_down().expect("it ends in order");
    }
}
