//! What only a volume without a thread is asked: sleeping beside other things, over each kind of
//! device, and several sessions on one thread.

mod common;

use common::*;
use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, RequestError, Session};
use coulter::{CreateOptions, LocalVolume, OpenOptions, State, create};
use coulter_device::wrap::{FaultRates, FaultyDevice, SlowDevice, SlowModel};
use coulter_device::{Device, Engine, MemoryStore, open_path};
use coulter_workload::Random;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Sleeps until the session has something, in `poll`; panics when nothing comes.
fn sleep_beside(session: &dyn Session, other: &impl AsRawFd) {
    let fd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries = [fd(session.completion_fd().as_raw_fd()), fd(other.as_raw_fd())];
    // SAFETY: two entries are given, and they live until the call returns.
    let ready = unsafe { libc::poll(entries.as_mut_ptr(), 2, 10_000) };
    assert!(ready > 0, "neither has anything to say for ten seconds");
}

/// Many requests in flight, by an owner that never sleeps but in a `poll` of its own.
fn run_asleep_elsewhere(volume: &LocalVolume, count: u64) {
    let (quiet, _other_end) = std::os::unix::net::UnixStream::pair().expect("two descriptors");
    let mut session = volume.connect();
    let mut random = Random::new(11);
    let (mut sent, mut done, mut completions) = (0, 0, Vec::new());
    let mut versions = vec![0u64; 512];
    let mut busy = vec![false; 512];
    while done < count {
        while sent < count && session.outstanding() < 24 {
            let block = random.below(512);
            if std::mem::replace(&mut busy[block as usize], true) {
                break;
            }
            sent += 1;
            if random.below(2) == 0 {
                versions[block as usize] = sent;
                session.submit(write(block, block * BLOCK, &sent.to_le_bytes().repeat(512)));
            } else {
                session.submit(read(block, block * BLOCK, BLOCK));
            }
        }
        session.kick();
        sleep_beside(&*session, &quiet);
        session.complete(&mut completions, Some(Duration::ZERO));
        for completion in completions.drain(..) {
            assert_eq!(completion.result, Ok(()));
            let wanted = versions[completion.tag as usize].to_le_bytes();
            assert!(completion.buffer.chunks(8).all(|word| word == wanted), "wrong content");
            busy[completion.tag as usize] = false;
            done += 1;
        }
    }
}

/// A device in memory has completed by the next poll all that it was told, more than is handled in
/// one turn, and says nothing afterwards that could end a sleep. What is handled first is another
/// session's.
#[test]
fn nobody_sleeps_over_completions_that_are_left_for_a_later_turn() {
    const COUNT: u64 = 100;
    let store = small_store(48 * MIB);
    let volume: LocalVolume = open(&store);
    for block in (0..2 * COUNT).step_by(2) {
        volume.write_at(block * BLOCK, &block.to_le_bytes().repeat(512)).expect("in range");
    }
    let (quiet, _other_end) = std::os::unix::net::UnixStream::pair().expect("two descriptors");
    let (mut first, mut last) = (volume.connect(), volume.connect());
    // Not side by side, so that each is a command of its own.
    (1..COUNT).for_each(|tag| first.submit(read(tag, tag * 2 * BLOCK, BLOCK)));
    last.submit(read(0, 0, BLOCK));
    first.kick();
    last.kick();
    let mut completions = Vec::new();
    while last.outstanding() > 0 {
        sleep_beside(&*last, &quiet);
        last.complete(&mut completions, Some(Duration::ZERO));
    }
    while first.outstanding() > 0 {
        first.complete(&mut completions, None);
    }
    assert_eq!(completions.len() as u64, COUNT);
    for completion in completions {
        assert_eq!(completion.result, Ok(()));
        let wanted = (completion.tag * 2).to_le_bytes();
        assert!(completion.buffer.chunks(8).all(|word| word == wanted), "wrong content");
    }
    volume.close().expect("the device works");
}

#[test]
fn an_owner_may_sleep_in_a_poll_of_its_own_over_any_device() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("store");
    for engine in [Engine::Automatic, Engine::Threads] {
        let options = coulter_device::OpenOptions { engine, ..Default::default() };
        let make = coulter_device::OpenOptions { create_size: Some(64 * MIB), ..options.clone() };
        let _ = std::fs::remove_file(&path);
        let device = open_path(&path, &make).expect("a file can be made");
        let options_of_store =
            CreateOptions { segment_size: Some(2 * MIB), ..CreateOptions::default() };
        create(device, &options_of_store).expect("it fits");
        let device = open_path(&path, &options).expect("it is there");
        println!("{}: {:?}", device.properties().description, device.properties().note);
        let volume = LocalVolume::open(device, OpenOptions::default()).expect("intact");
        run_asleep_elsewhere(&volume, 4000);
        volume.close().expect("the device works");
    }
    let model = SlowModel {
        latency: Duration::from_micros(300),
        operations_per_second: None,
        operation_size: 4096,
        bytes_per_second: None,
    };
    type Wrap<'a> = &'a dyn Fn(Box<dyn Device>) -> Box<dyn Device>;
    let delayed = |inner| -> Box<dyn Device> {
        let (device, handle) = FaultyDevice::new(inner, 3);
        handle.set_rates(FaultRates { delays: 300_000, ..FaultRates::default() });
        Box::new(device)
    };
    let slow = |inner| -> Box<dyn Device> { Box::new(SlowDevice::new(inner, model)) };
    let wraps: [Wrap<'_>; 3] = [&|inner| inner, &slow, &delayed];
    for wrap in wraps {
        let store = small_store(64 * MIB);
        let device = wrap(device(&store));
        let volume = LocalVolume::open(device, OpenOptions::default()).expect("intact");
        run_asleep_elsewhere(&volume, 2000);
        volume.close().expect("the device works");
    }
}

#[test]
fn an_idle_owner_is_not_called() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("store");
    let make = coulter_device::OpenOptions { create_size: Some(64 * MIB), ..Default::default() };
    let device = open_path(&path, &make).expect("a file can be made");
    create(device, &CreateOptions { segment_size: Some(2 * MIB), ..Default::default() })
        .expect("it fits");
    let device = open_path(&path, &Default::default()).expect("it is there");
    let volume = LocalVolume::open(device, OpenOptions::default()).expect("intact");
    volume.write_at(0, &[1; 4096]).expect("in range");
    let session = volume.connect();
    let begun = Instant::now();
    let mut calls = 0;
    loop {
        let fd = session.completion_fd().as_raw_fd();
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry is given, and it lives until the call returns.
        if unsafe { libc::poll(&mut entry, 1, 50) } == 0 {
            break;
        }
        calls += 1;
        assert!(begun.elapsed() < Duration::from_secs(10), "called for ever");
    }
    // The first checkpoint may have been under way.
    assert!(calls < 100, "{calls} calls for nothing");
}

#[test]
fn sessions_of_one_thread_share_the_volume_and_not_their_completions() {
    let store = small_store(48 * MIB);
    let volume: LocalVolume = open(&store);
    let (mut one, mut other) = (volume.connect(), volume.connect());
    for round in 0..200u8 {
        for tag in 0..4 {
            one.submit(write(tag, tag * BLOCK, &[round; 4096]));
            other.submit(write(10 + tag, (10 + tag) * BLOCK, &[!round; 4096]));
        }
        one.kick();
        other.kick();
        let tags = |session: &mut dyn Session| {
            complete_all(session).iter().map(|completion| completion.tag).collect::<Vec<_>>()
        };
        assert_eq!(tags(&mut *other), [10, 11, 12, 13]);
        assert_eq!(tags(&mut *one), [0, 1, 2, 3]);
        let mut bytes = [0; 4096];
        volume.read_at(3 * BLOCK, &mut bytes).expect("in range");
        assert_eq!(bytes, [round; 4096]);
    }
    drop(one);
    let mut third = volume.connect();
    assert_eq!(carry_out(&mut *third, read(7, 13 * BLOCK, 4096)).buffer[0], !199);
}

#[test]
fn a_session_that_outlives_its_volume_gets_everything_back() {
    for ends_abruptly in [false, true] {
        let store = small_store(48 * MIB);
        let volume: LocalVolume = open(&store);
        let (mut session, mut idle) = (volume.connect(), volume.connect());
        for tag in 0..600 {
            session.submit(write(tag, tag * BLOCK, &[3; 4096]));
            session.submit(write(1000 + tag, tag * BLOCK + SECTOR, &[4; 512]));
        }
        session.kick();
        session.submit(read(5000, 0, 4096));
        if ends_abruptly {
            volume.abandon().expect("nothing failed");
        } else {
            volume.close().expect("the device works");
        }
        let completions = complete_all(&mut *session);
        assert_eq!(completions.len(), 1201);
        let (late, early) = completions.split_last().expect("there are some");
        assert_eq!((late.tag, late.result), (5000, Err(RequestError::Closed)));
        for completion in early {
            assert!(!completion.buffer.is_empty(), "buffers come back");
            let may_fail = ends_abruptly && completion.result == Err(RequestError::Closed);
            assert!(completion.result == Ok(()) || may_fail, "{completion:?}");
        }
        assert_eq!(carry_out(&mut *idle, read(1, 0, 512)).result, Err(RequestError::Closed));
        // It has nothing to tell, and says so.
        let fd = idle.completion_fd().as_raw_fd();
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry is given, and it lives until the call returns.
        assert_eq!(unsafe { libc::poll(&mut entry, 1, 0) }, 0);
        drop(session);
        let volume: LocalVolume = open(&store);
        if !ends_abruptly {
            let mut bytes = [0; 4096];
            volume.read_at(599 * BLOCK, &mut bytes).expect("in range");
            assert_eq!((bytes[0], bytes[512], bytes[1024]), (3, 4, 3));
        }
    }
}

#[test]
fn a_panic_of_the_owner_closes_the_volume_in_order() {
    let store = small_store(48 * MIB);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let volume: LocalVolume = open(&store);
        volume.write_at(0, &[5; 4096]).expect("in range");
        let mut session = volume.connect();
        session.submit(Request {
            tag: 0,
            operation: Operation::Read,
            offset: 0,
            length: 4096,
            buffer: Buffer::zeroed(4096),
        });
        panic!("the owner's own");
    }));
    assert!(panicked.is_err());
    let volume: LocalVolume = open(&store);
    assert!(volume.statistics().log.records_replayed < 10, "it was closed in order");
    let mut bytes = [0; 4096];
    volume.read_at(0, &mut bytes).expect("in range");
    assert_eq!(bytes, [5; 4096]);
    assert_eq!(volume.state(), State::Running);
}

#[test]
fn a_store_is_opened_by_either_kind_in_turn() {
    let store: MemoryStore = small_store(48 * MIB);
    for round in 0..10u8 {
        let local: LocalVolume = open(&store);
        local.write_at(0, &[round; 4096]).expect("in range");
        local.close().expect("the device works");
        let threaded: coulter::Volume = open(&store);
        let mut bytes = [0; 4096];
        threaded.read_at(0, &mut bytes).expect("in range");
        assert_eq!(bytes, [round; 4096]);
    }
}
