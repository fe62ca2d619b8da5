//! The contract of sessions: what is refused, how completions come back, what extents say.

mod common;

use common::*;
use coulter::buffer::Buffer;
use coulter::service::{Extent, Operation, REQUEST_SIZE_MAX, Request, RequestError, Session};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

for_both_kinds!(
    senseless_requests_are_refused_and_their_buffers_come_back,
    extents_tell_data_from_nothing,
    completions_are_awaited_for_as_long_as_asked,
    a_caller_may_sleep_on_the_descriptor,
    counters_and_latencies_tell_what_was_asked,
    buffers_are_used_again_without_showing_what_they_held,
);

fn senseless_requests_are_refused_and_their_buffers_come_back<V: AnyVolume>() {
    let store = small_store(64 * MIB);
    let volume = open::<V>(&store);
    let size = volume.size();
    let mut session = volume.connect();
    let invalid = Err(RequestError::Invalid);
    let outside = Err(RequestError::OutOfRange);
    let mut result_of = |request: Request| {
        let length = request.buffer.len();
        let completion = carry_out(&mut *session, request);
        assert_eq!(completion.buffer.len(), length);
        completion.result
    };
    assert_eq!(result_of(read(0, 100, 512)), invalid);
    assert_eq!(result_of(write(0, 0, &[0; 100])), invalid);
    assert_eq!(result_of(read(0, size, 512)), outside);
    assert_eq!(result_of(read(0, size - 512, 1024)), outside);
    assert_eq!(result_of(read(0, u64::MAX - 511, 1024)), outside);
    assert_eq!(result_of(read(0, 0, REQUEST_SIZE_MAX + 512)), invalid);
    assert_eq!(result_of(bare(0, Operation::Discard, 0, size + 512)), outside);
    assert_eq!(result_of(bare(0, Operation::Extents, 0, 0)), invalid);
    let short = Request { length: 1024, ..write(0, 0, &[0; 512]) };
    assert_eq!(result_of(short), invalid);
    assert_eq!(result_of(write(0, size, &[])), Ok(()));
    assert_eq!(result_of(bare(0, Operation::Flush, 77, 99)), Ok(()));
    assert_eq!(result_of(write(0, size - 512, &[1; 512])), Ok(()));
    assert_eq!(volume.read_at(3, &mut [0; 512]), Err(RequestError::Invalid));
    assert_eq!(volume.write_at(size, &[0; 512]), Err(RequestError::OutOfRange));
}

fn extents_tell_data_from_nothing<V: AnyVolume>() {
    let store = small_store(64 * MIB);
    let volume = open::<V>(&store);
    volume.write_at(8 * BLOCK, &[1; 8192]).expect("in range");
    volume.write_at(11 * BLOCK, &[1; 512]).expect("in range");
    volume.flush().expect("the device works");
    let runs = |offset, length| -> Vec<(u64, bool)> {
        let extents = volume.extents(offset, length).expect("in range");
        extents.iter().map(|Extent { length, mapped }| (*length, *mapped)).collect()
    };
    let block = BLOCK;
    assert_eq!(
        runs(7 * block, 6 * block),
        [(block, false), (2 * block, true), (block, false), (block, true), (block, false)]
    );
    assert_eq!(runs(8 * block + 512, 512), [(512, true)]);
    assert_eq!(runs(7 * block + 512, block), [(block - 512, false), (512, true)]);
    volume.discard(8 * block, 4 * block).expect("in range");
    assert_eq!(runs(7 * block, 6 * block), [(6 * block, false)]);
    // A long question may be answered in part, but never beyond its end.
    let covered: u64 = runs(0, volume.size()).iter().map(|(length, _)| length).sum();
    assert!(covered >= BLOCK && covered <= volume.size());
}

fn completions_are_awaited_for_as_long_as_asked<V: AnyVolume>() {
    let store = small_store(32 * MIB);
    let volume = open::<V>(&store);
    let mut session = volume.connect();
    let mut completions = Vec::new();
    // Nothing is outstanding: returns at once.
    session.complete(&mut completions, None);
    assert!(completions.is_empty());
    session.submit(read(1, 0, 4096));
    assert_eq!(session.outstanding(), 1);
    let begun = Instant::now();
    while session.outstanding() > 0 {
        session.complete(&mut completions, Some(Duration::ZERO));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(completions.pop().map(|completion| completion.tag), Some(1));
    session.submit(read(2, 0, 4096));
    session.complete(&mut completions, Some(Duration::from_secs(10)));
    assert_eq!(completions.pop().map(|completion| completion.tag), Some(2));
}

fn a_caller_may_sleep_on_the_descriptor<V: AnyVolume>() {
    let store = small_store(32 * MIB);
    let volume = open::<V>(&store);
    let mut session = volume.connect();
    let mut completions = Vec::new();
    for round in 0..2000 {
        session.submit(read(round, 0, 4096));
        // Refused here, without the loop: to be told all the same.
        session.submit(read(round, 1, 4096));
        session.kick();
        let mut left = 2;
        while left > 0 {
            sleep_on(&*session);
            session.complete(&mut completions, Some(Duration::ZERO));
            assert!(!completions.is_empty(), "readable means that something is there");
            left -= completions.drain(..).count();
        }
    }
}

/// Sleeps until the session's descriptor is readable.
fn sleep_on(session: &dyn Session) {
    let fd = session.completion_fd().as_raw_fd();
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry is given, and it lives until the call returns.
    let ready = unsafe { libc::poll(&mut entry, 1, 10_000) };
    assert_eq!(ready, 1, "a completion comes within ten seconds");
}

fn counters_and_latencies_tell_what_was_asked<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let volume = open::<V>(&store);
    volume.write_at(0, &[1; 8192]).expect("in range");
    volume.write_durable_at(8192, &[1; 4096]).expect("in range");
    volume.write_at(512, &[1; 512]).expect("in range");
    volume.read_at(0, &mut [0; 4096]).expect("in range");
    volume.flush().expect("the device works");
    volume.discard(0, 4096).expect("in range");
    let statistics = volume.statistics();
    let counts = statistics.requests;
    assert_eq!((counts.writes, counts.write_bytes, counts.durable_writes), (3, 12800, 1));
    assert_eq!((counts.reads, counts.flushes, counts.discards), (1, 1, 1));
    assert_eq!((counts.merged, counts.refused, counts.device_failures), (1, 0, 0));
    assert_eq!(statistics.written.host_bytes, 16384);
    assert!(statistics.device.write_bytes >= statistics.written.total_bytes());
    assert!(statistics.device.flushes >= 1);
    assert_eq!(statistics.write_latency.count, 4);
    assert_eq!(statistics.read_latency.count, 1);
    let write = statistics.write_latency;
    assert!(write.p50_ns > 0 && write.p50_ns <= write.p99_ns && write.p999_ns <= write.max_ns);
    assert!(statistics.write_amplification_thousandths() > 1000);
}

fn buffers_are_used_again_without_showing_what_they_held<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let volume = open::<V>(&store);
    let mut session = volume.connect();
    volume.write_at(0, &[0xaa; 65536]).expect("in range");
    let mut buffer = Buffer::zeroed(65536);
    for (offset, wanted) in [(0, 0xaa), (1 << 20, 0)] {
        let length = buffer.len() as u64;
        let request = Request { tag: 0, operation: Operation::Read, offset, length, buffer };
        buffer = carry_out(&mut *session, request).buffer;
        assert!(buffer.iter().all(|byte| *byte == wanted));
    }
    // The same by way of a bounce buffer, which was used before.
    volume.read_at(512, &mut [0; 1024]).expect("in range");
    let mut bytes = [1; 1024];
    volume.read_at((1 << 20) + 512, &mut bytes).expect("in range");
    assert_eq!(bytes, [0; 1024]);
}
