//! The cases of the suite. Each makes its own service and attach point, and detaches it.

use super::{Harness, Host};
use crate::memory::{Fault, FaultKind, MemoryOptions, MemoryService};
use coulter::service::RequestError;
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use fastrand::Rng;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;
const BLOCK: u64 = 4096;

fn options() -> MemoryOptions {
    MemoryOptions::new(SIZE)
}

fn attach(harness: &dyn Harness, service: &MemoryService) -> Box<dyn AttachPoint> {
    harness.attach(Arc::new(service.clone()), false)
}

fn connect(harness: &dyn Harness, point: &dyn AttachPoint) -> Box<dyn Host> {
    harness.connect(point).expect("a user can connect")
}

fn detach(mut point: Box<dyn AttachPoint>) {
    point.detach(Detach::IfIdle).expect("an attach point without users can be detached");
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Option<i32> {
    result.expect_err("the request fails").raw_os_error()
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

pub(super) fn random_operations_agree_with_a_model(harness: &dyn Harness) {
    let seeds_and_latencies = [(1, Duration::ZERO), (2, Duration::from_micros(100))];
    for (seed, latency) in seeds_and_latencies {
        let service =
            MemoryService::new(MemoryOptions { latency, shuffle_seed: Some(seed), ..options() });
        let point = attach(harness, &service);
        let mut host = connect(harness, &*point);
        assert_eq!(host.size(), SIZE);
        let mut model = vec![0; SIZE as usize];
        let mut random = Rng::with_seed(seed);
        for step in 0..400 {
            let range = random_range(&mut random, harness.traits().granularity);
            let (offset, length) = (range.start as u64, range.len() as u64);
            match random.u64(..10) {
                0..4 => {
                    let bytes = pattern(random.u64(..), range.len());
                    let durable = random.u8(..4) == 0;
                    host.write(offset, &bytes, durable).expect("a write succeeds");
                    model[range].copy_from_slice(&bytes);
                }
                4..7 => {
                    let mut bytes = vec![0xaa; range.len()];
                    host.read(offset, &mut bytes).expect("a read succeeds");
                    assert!(bytes == model[range], "seed {seed}, step {step}: wrong data");
                }
                7 => {
                    host.discard(offset, length).expect("a discard succeeds");
                    model[range].fill(0);
                }
                8 => {
                    host.write_zeroes(offset, length).expect("write-zeroes succeeds");
                    model[range].fill(0);
                }
                _ => host.flush().expect("a flush succeeds"),
            }
        }
        drop(host);
        detach(point);
        let mut bytes = vec![0; SIZE as usize];
        service.peek(0, &mut bytes);
        assert!(bytes == model, "seed {seed}: the service has something else");
    }
}

/// Mostly short, sometimes more than 1 MiB, at any multiple of the granularity.
fn random_range(random: &mut Rng, granularity: u64) -> std::ops::Range<usize> {
    let length_max: u64 = match random.u64(..20) {
        0 => (1 << 20) + 128 * 1024,
        1..4 => 128 << 10,
        _ => 16 << 10,
    };
    let length = random.u64(1..=length_max / granularity) * granularity;
    let offset = random.u64(..=(SIZE - length) / granularity) * granularity;
    offset as usize..(offset + length) as usize
}

pub(super) fn cleared_ranges_read_as_zeros(harness: &dyn Harness) {
    let service = MemoryService::new(options());
    let point = attach(harness, &service);
    let mut host = connect(harness, &*point);
    let granularity = harness.traits().granularity;
    let bytes = pattern(3, 64 << 10);
    let (start, length) = (BLOCK + granularity, 2 * BLOCK + granularity);
    for zeroes in [false, true] {
        host.write(0, &bytes, false).expect("a write succeeds");
        if zeroes {
            host.write_zeroes(start, length).expect("write-zeroes succeeds");
        } else {
            host.discard(start, length).expect("a discard succeeds");
        }
        let mut expected = bytes.clone();
        expected[start as usize..(start + length) as usize].fill(0);
        let mut found = vec![0xaa; bytes.len()];
        host.read(0, &mut found).expect("a read succeeds");
        assert!(found == expected, "zeroes: {zeroes}");
    }
    let counters = service.counters();
    assert!(counters.discards > 0, "a discard reaches the service as one");
    drop(host);
    detach(point);
}

pub(super) fn flush_and_fua_reach_the_service(harness: &dyn Harness) {
    let service = MemoryService::new(MemoryOptions { volatile_cache: true, ..options() });
    let point = attach(harness, &service);
    let mut host = connect(harness, &*point);
    let [first, second, third] = [4, 5, 6].map(|seed| pattern(seed, BLOCK as usize));
    host.write(0, &first, false).expect("a write succeeds");
    host.flush().expect("a flush succeeds");
    assert!(service.counters().flushes > 0, "a flush reaches the service");
    host.write(BLOCK, &second, true).expect("a durable write succeeds");
    // One of the two is how FUA reaches a service.
    let counters = service.counters();
    assert!(counters.fua > 0 || counters.flushes > 1, "durability reaches the service");
    host.write(2 * BLOCK, &third, false).expect("a write succeeds");
    drop(host);
    service.crash();
    let mut found = vec![0xaa; 3 * BLOCK as usize];
    service.peek(0, &mut found);
    let lost = vec![0; BLOCK as usize];
    assert!(found == [first, second, lost].concat(), "what was flushed survives, and no more");
    detach(point);
}

pub(super) fn requests_beyond_the_end_are_refused(harness: &dyn Harness) {
    let service = MemoryService::new(options());
    let point = attach(harness, &service);
    let mut host = connect(harness, &*point);
    let traits = harness.traits();
    let mut bytes = vec![0; BLOCK as usize];
    assert_eq!(errno(host.write(SIZE, &bytes, false)), Some(traits.write_beyond));
    let read = host.read(SIZE, &mut bytes);
    match traits.read_beyond {
        Some(expected) => assert_eq!(errno(read), Some(expected)),
        None => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof),
    }
    assert!(host.discard(SIZE, BLOCK).is_err(), "a discard beyond the end fails");
    assert!(host.write_zeroes(SIZE, BLOCK).is_err(), "write-zeroes beyond the end fails");
    host.write(SIZE - BLOCK, &bytes, false).expect("the last block can be written");
    host.read(SIZE - BLOCK, &mut bytes).expect("and read");
    assert_eq!(service.counters().writes, 1, "what is refused does not reach the service");
    drop(host);
    detach(point);
}

pub(super) fn users_do_not_disturb_each_other(harness: &dyn Harness) {
    const USERS: u64 = 4;
    let latency = Duration::from_micros(50);
    let service = MemoryService::new(MemoryOptions { latency, ..options() });
    let point = attach(harness, &service);
    let share = SIZE / USERS;
    let hosts: Vec<_> = (0..USERS).map(|_| connect(harness, &*point)).collect();
    std::thread::scope(|scope| {
        for (user, mut host) in (0..USERS).zip(hosts) {
            scope.spawn(move || {
                let mut found = vec![0; 8 << 10];
                for round in 0..40 {
                    let offset = user * share + round % 20 * (8 << 10);
                    let bytes = pattern(user << 32 | round, 8 << 10);
                    host.write(offset, &bytes, false).expect("a write succeeds");
                    host.read(offset, &mut found).expect("a read succeeds");
                    assert!(found == bytes, "user {user} reads back what it wrote");
                }
            });
        }
    });
    let mut host = connect(harness, &*point);
    for user in 0..USERS {
        let mut found = vec![0; 8 << 10];
        host.read(user * share, &mut found).expect("a read succeeds");
        assert!(found == pattern(user << 32 | 20, 8 << 10), "others see what user {user} wrote");
    }
    drop(host);
    detach(point);
}

pub(super) fn big_requests_arrive_whole(harness: &dyn Harness) {
    let length = harness.traits().request_size_max;
    let service = MemoryService::new(MemoryOptions::new(length as u64 + BLOCK));
    let point = attach(harness, &service);
    let mut host = connect(harness, &*point);
    let bytes = pattern(7, length);
    host.write(BLOCK, &bytes, false).expect("a big write succeeds");
    let mut found = vec![0; length];
    host.read(BLOCK, &mut found).expect("a big read succeeds");
    assert!(found == bytes, "a big request comes back as it was");
    host.discard(0, length as u64 + BLOCK).expect("everything can be discarded");
    host.read(BLOCK, &mut found).expect("a big read succeeds");
    assert!(found.iter().all(|byte| *byte == 0));
    drop(host);
    detach(point);
}

pub(super) fn read_only_refuses_writes(harness: &dyn Harness) {
    let service = MemoryService::new(options());
    let point = harness.attach(Arc::new(service.clone()), true);
    let mut host = connect(harness, &*point);
    let mut bytes = vec![0xaa; BLOCK as usize];
    let write = errno(host.write(0, &bytes, false));
    assert!(write.is_some());
    if let Some(expected) = harness.traits().read_only {
        assert_eq!(write, Some(expected));
        assert_eq!(errno(host.discard(0, BLOCK)), Some(expected));
        assert_eq!(errno(host.write_zeroes(0, BLOCK)), Some(expected));
    }
    host.read(0, &mut bytes).expect("a read succeeds");
    assert!(bytes.iter().all(|byte| *byte == 0));
    let counters = service.counters();
    assert_eq!((counters.writes, counters.discards, counters.write_zeroes), (0, 0, 0));
    drop(host);
    detach(point);
}

pub(super) fn errors_reach_the_user(harness: &dyn Harness) {
    let service = MemoryService::new(options());
    let point = attach(harness, &service);
    let mut host = connect(harness, &*point);
    let mut bytes = pattern(8, BLOCK as usize);
    let device = RequestError::Device { errno: libc::EIO };
    let corrupt = RequestError::Corrupt { block: 1 };
    let fault = |kind, error| Fault { kind, range: BLOCK..2 * BLOCK, error, count: u32::MAX };
    host.write(0, &bytes, false).expect("a write succeeds");
    service.inject(fault(FaultKind::Read, corrupt));
    assert_eq!(errno(host.read(BLOCK, &mut bytes)), Some(libc::EIO));
    host.read(0, &mut bytes).expect("another block can be read");
    assert!(bytes == pattern(8, BLOCK as usize));
    service.inject(fault(FaultKind::Write, device));
    assert_eq!(errno(host.write(BLOCK, &bytes, false)), Some(libc::EIO));
    let poisoned = Some(harness.traits().poisoned);
    assert_eq!(errno(host.write(0, &bytes, false)), poisoned, "a failed write is final");
    host.read(0, &mut bytes).expect("reads go on");
    drop(host);
    detach(point);

    let service = MemoryService::new(options());
    let point = attach(harness, &service);
    let mut host = connect(harness, &*point);
    host.write(0, &bytes, false).expect("a write succeeds");
    service.inject(fault(FaultKind::Flush, device));
    assert_eq!(errno(host.flush()), Some(libc::EIO));
    drop(host);
    // The kernel flushes a device once more when it lets go of it, and that fails too.
    drop(point);
}

pub(super) fn a_closed_service_ends_requests(harness: &dyn Harness) {
    let latency = Duration::from_millis(30);
    let service = MemoryService::new(MemoryOptions { latency, ..options() });
    let point = attach(harness, &service);
    let mut host = connect(harness, &*point);
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; BLOCK as usize];
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if let Err(error) = host.read(0, &mut bytes) {
                return error.raw_os_error();
            }
        }
        None
    });
    std::thread::sleep(2 * latency);
    service.close();
    let ended = reader.join().expect("the reader does not panic");
    assert_eq!(ended, Some(harness.traits().closed));
    drop(point);
}

pub(super) fn detaching_waits_for_users_or_does_not(harness: &dyn Harness) {
    let service = MemoryService::new(options());
    let mut point = attach(harness, &service);
    let host = connect(harness, &*point);
    match point.detach(Detach::IfIdle) {
        Err(DetachError::Busy { holders, .. }) => assert!(!holders.is_empty()),
        other => panic!("an attach point in use is not detached: {other:?}"),
    }
    let mut host_still = host;
    let mut bytes = vec![0; BLOCK as usize];
    host_still.read(0, &mut bytes).expect("a refused detach changes nothing");
    point.detach(Detach::Always).expect("it can be detached in any case");
    point.detach(Detach::IfIdle).expect("and again, to no effect");
    assert!(host_still.read(0, &mut bytes).is_err(), "to its user it is gone");
    let newcomer = harness.connect(&*point).and_then(|mut host| host.read(0, &mut bytes));
    assert!(newcomer.is_err(), "nobody can come any more");
    drop(host_still);
    drop(point);

    let idle = attach(harness, &service);
    drop(connect(harness, &*idle));
    detach(idle);
}

pub(super) fn a_user_that_dies_leaves_no_trace(harness: &dyn Harness) {
    let latency = Duration::from_millis(2);
    let service = MemoryService::new(MemoryOptions { latency, ..options() });
    let point = attach(harness, &service);
    for _ in 0..3 {
        harness.die_in_mid_request(&*point);
    }
    let mut host = connect(harness, &*point);
    let bytes = pattern(9, BLOCK as usize);
    // What the dead had asked for may land even now, at the beginning.
    host.write(SIZE / 2, &bytes, true).expect("others can still write");
    let mut found = vec![0; BLOCK as usize];
    host.read(SIZE / 2, &mut found).expect("and read");
    assert!(found == bytes);
    drop(host);
    detach(point);
}
