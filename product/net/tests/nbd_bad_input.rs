//! An NBD client that sends nonsense, asks for what cannot be, or goes away in the middle: it gets
//! the protocol's error or the end of its connection, and nobody else notices.

use coulter::service::{Operation, RequestError};
use coulter_attach_suite::memory::{Fault, FaultKind, MemoryOptions, MemoryService};
use coulter_attach_suite::nbd_client::Client;
use coulter_attach_suite::raw_nbd::{Raw, serve, wait_until_alone};
use coulter_net::nbd::wire::{chunk, command, command_flag as flag, option, option_reply};
use coulter_net::nbd::{ClientOptions, Server, ServerOptions};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const SIZE: u64 = 64 << 20;
const MIB: u32 = 1 << 20;

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ESHUTDOWN: u32 = 108;

fn service() -> MemoryService {
    MemoryService::new(MemoryOptions::new(SIZE))
}

fn slow(latency: Duration) -> MemoryService {
    MemoryService::new(MemoryOptions { latency, ..MemoryOptions::new(SIZE) })
}

fn assert_serves(server: &Server) {
    let mut raw = Raw::entered(server, true, false);
    assert_eq!(raw.error_of(0, command::READ, 0, 4096), 0);
}

#[test]
fn nonsense_at_every_stage_of_the_negotiation_ends_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path(), &service(), ServerOptions::default());
    let stages: [fn(&mut Raw); 6] = [
        |raw| raw.send(b"GET / HTTP/1.1\r\n\r\n"),
        |raw| raw.send(&[0xff; 4]),
        |raw| raw.send(&[&[0, 0, 0, 3][..], &[0x55; 100]].concat()),
        |raw| raw.send(&[&[0, 0, 0, 3][..], b"IHAVEOPT\0\0\0\x03\xff\xff\xff\xff"].concat()),
        |raw| raw.send(&[&[0, 0, 0, 3][..], b"IHAVEOPT\0\0\0\x01\0\0\0\x06absent"].concat()),
        |raw| raw.send(&[&[0, 0, 0, 3][..], b"IHAVEOPT\0\0\0\x01\0\x01\0\0"].concat()),
    ];
    for stage in stages {
        let mut raw = Raw::connect(&server);
        stage(&mut raw);
        assert!(raw.ends_in_silence());
    }
    assert_serves(&server);
    wait_until_alone(&server);
    assert_eq!(server.statistics().protocol_errors, stages.len() as u64);
}

#[test]
fn an_oversize_option_is_refused_and_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path(), &service(), ServerOptions::default());
    let mut raw = Raw::flagged(&server);
    let long = vec![0x5a; 100_000];
    assert_eq!(raw.ask(option::GO, &long), [option_reply::ERR_TOO_BIG]);
    // In two parts: it is answered when all of it is here.
    raw.send(&[&b"IHAVEOPT\0\0\0\x07"[..], &100_000u32.to_be_bytes(), &long[..99_999]].concat());
    assert!(raw.is_silent());
    raw.send(&long[..1]);
    let mut reply = [0; 20];
    raw.stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[12..16], option_reply::ERR_TOO_BIG.to_be_bytes());
    raw.stream.read_exact(&mut vec![0; reply[19].into()]).unwrap();
    assert_eq!(raw.ask(0x4242, &long[..100]), [option_reply::ERR_UNSUP]);
    assert_eq!(raw.ask(option::LIST, &[]), [option_reply::SERVER, option_reply::ACK]);
    assert_eq!(raw.ask(option::ABORT, &[]), [option_reply::ACK]);
    assert!(raw.ends_in_silence());
}

#[test]
fn a_bad_request_gets_its_error_and_the_stream_stays_in_step() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path(), &service(), ServerOptions::default());
    for structured in [false, true] {
        let mut raw = Raw::entered(&server, structured, false);
        let cases = [
            (0, 99, 0, 512, EINVAL),
            (0, 5, 0, 512, EINVAL),
            (0x8000, command::READ, 0, 512, EINVAL),
            (flag::NO_HOLE, command::READ, 0, 512, EINVAL),
            (flag::REQ_ONE, command::FLUSH, 0, 0, EINVAL),
            (0, command::READ, 100, 512, EINVAL),
            (0, command::READ, 0, 100, EINVAL),
            (0, command::READ, 0, 0, EINVAL),
            (0, command::TRIM, 0, 0, EINVAL),
            (0, command::READ, SIZE, 512, EINVAL),
            (0, command::READ, SIZE - 512, 1024, EINVAL),
            (0, command::READ, u64::MAX - 511, 512, EINVAL),
            (0, command::TRIM, SIZE, 512, EINVAL),
            (flag::FUA, command::TRIM, SIZE, 512, EINVAL),
            (0, command::WRITE_ZEROES, SIZE, 512, ENOSPC),
            (0, command::READ, 0, 33 * MIB, EINVAL),
            (0, command::FLUSH, 512, 0, EINVAL),
            (0, command::FLUSH, 0, 512, EINVAL),
            (0, command::BLOCK_STATUS, 0, 512, EINVAL),
        ];
        for (flags, command, offset, length, expected) in cases {
            let found = raw.error_of(flags, command, offset, length);
            assert_eq!(found, expected, "command {command} at {offset}, {length} bytes");
        }
        let fragment = if structured { EOVERFLOW } else { EINVAL };
        assert_eq!(raw.error_of(flag::DF, command::READ, 0, 33 * MIB), fragment);
        assert_eq!(raw.error_of(0, command::READ, 0, 32 * MIB), 0, "the longest that is allowed");
        // FUA is valid on every command.
        assert_eq!(raw.error_of(flag::FUA, command::READ, 0, 512), 0);
        assert_eq!(raw.error_of(flag::FUA, command::FLUSH, 0, 0), 0);
    }
}

#[test]
fn the_payload_of_a_refused_write_is_dropped() {
    let service = service();
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path(), &service, ServerOptions::default());
    let mut raw = Raw::entered(&server, true, false);
    let payload = vec![0x77; 33 << 20];
    for (offset, length, expected) in
        [(SIZE, 4096, ENOSPC), (0, 33 * MIB, EINVAL), (100, 512, EINVAL), (SIZE - 512, MIB, ENOSPC)]
    {
        raw.request(0, command::WRITE, offset, length);
        raw.send(&payload[..length as usize]);
        let reply = raw.reply(0);
        assert_eq!((reply.error, reply.kind), (expected, chunk::ERROR));
        assert!(reply.body.len() > 6, "an error says why");
    }
    raw.request(0, command::WRITE, 0, 512);
    raw.send(&payload[..512]);
    assert_eq!(raw.reply(0).error, 0, "the stream is in step");
    assert_eq!(service.counters().writes, 1);
    // One that is more than twice too long is not waited for.
    raw.request(0, command::WRITE, 0, 65 * MIB);
    assert!(raw.ends_in_silence());
}

/// Whoever still sends does not listen: libnbd for one takes an answer by then for nonsense.
#[test]
fn a_refused_write_is_answered_when_its_payload_is_taken() {
    let service = service();
    let frozen = MemoryService::new(MemoryOptions { read_only: true, ..MemoryOptions::new(SIZE) });
    let directory = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let server = serve(directory.path(), &service, ServerOptions::default());
    let read_only = serve(other.path(), &frozen, ServerOptions::default());
    let cases = [
        (&read_only, 0, 0, MIB, EPERM),
        (&server, 0, SIZE, MIB, ENOSPC),
        (&server, 0, SIZE - 512, 256 << 10, ENOSPC),
        (&server, 0, 100, MIB, EINVAL),
        (&server, 0, 0, 33 * MIB, EINVAL),
        (&server, 0, 0, 64 * MIB, EINVAL),
        (&server, flag::NO_HOLE, 0, MIB, EINVAL),
        (&server, 0, 100, 512, EINVAL),
    ];
    let payload = vec![0x77; 64 << 20];
    for structured in [false, true] {
        for (server, flags, offset, length, expected) in cases {
            let mut raw = Raw::entered(server, structured, false);
            raw.request(flags, command::WRITE, offset, length);
            raw.send(&payload[..length as usize - 1]);
            assert!(raw.is_silent(), "{length} bytes at {offset}: one is to come");
            raw.send(&payload[..1]);
            assert_eq!(raw.reply(0).error, expected, "{length} bytes at {offset}");
            assert_eq!(raw.error_of(0, command::READ, 0, 512), 0, "the stream is in step");
        }
    }
    assert_eq!((service.counters().writes, frozen.counters().writes), (0, 0));
}

#[test]
fn a_broken_request_ends_the_connection_after_the_answers() {
    let directory = tempfile::tempdir().unwrap();
    let server =
        serve(directory.path(), &slow(Duration::from_millis(50)), ServerOptions::default());
    let mut raw = Raw::entered(&server, true, false);
    raw.request(0, command::READ, 0, 4096);
    raw.send(&[0x99; 28]);
    let reply = raw.reply(0);
    assert_eq!((reply.error, reply.body.len()), (0, 8 + 4096));
    assert!(raw.ends_in_silence());
    assert_serves(&server);
}

#[test]
fn errors_of_the_service_have_the_protocols_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let cases = [
        (RequestError::Corrupt { block: 0 }, EIO),
        (RequestError::Device { errno: libc::ENOSPC }, ENOSPC),
        (RequestError::Device { errno: libc::ETIMEDOUT }, EIO),
        (RequestError::Closed, ESHUTDOWN),
        (RequestError::ReadOnly, EPERM),
    ];
    for (error, expected) in cases {
        let service = service();
        let server = serve(directory.path(), &service, ServerOptions::default());
        let mut raw = Raw::entered(&server, true, false);
        service.inject(Fault { kind: FaultKind::Write, range: 0..SIZE, error, count: 1 });
        assert_eq!(raw.error_of(0, command::WRITE_ZEROES, 0, 512), expected);
        assert_eq!(raw.error_of(0, command::TRIM, 0, 512), EPERM, "and is read-only after it");
        assert_eq!(raw.error_of(0, command::READ, 0, 512), 0);
    }
}

#[test]
fn a_half_closed_socket_still_gets_its_answers() {
    let directory = tempfile::tempdir().unwrap();
    let server =
        serve(directory.path(), &slow(Duration::from_millis(50)), ServerOptions::default());
    let mut raw = Raw::entered(&server, true, false);
    for _ in 0..4 {
        raw.request(0, command::READ, 0, 4096);
    }
    raw.half_close();
    for _ in 0..4 {
        assert_eq!(raw.reply(0).error, 0);
    }
    assert!(raw.ends_in_silence());
    wait_until_alone(&server);
}

#[test]
fn disconnecting_waits_for_what_is_under_way() {
    let service = slow(Duration::from_millis(50));
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path(), &service, ServerOptions::default());
    let mut raw = Raw::entered(&server, false, false);
    raw.request(0, command::WRITE, 0, 512);
    raw.send(&[7; 512]);
    raw.request(0, command::DISC, 0, 0);
    // Nothing may follow a disconnect; it is not looked at.
    raw.request(0, command::TRIM, 0, 512);
    assert_eq!(raw.reply(0).error, 0);
    assert!(raw.ends_in_silence());
    assert_eq!(service.counters().discards, 0);
}

#[test]
fn a_client_that_vanishes_in_mid_payload_writes_nothing() {
    let service = service();
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path(), &service, ServerOptions::default());
    for sent in [0, 100, 70_000, 300_000] {
        let mut raw = Raw::entered(&server, true, false);
        raw.request(0, command::WRITE, 0, MIB);
        raw.send(&vec![7; sent]);
    }
    wait_until_alone(&server);
    assert_eq!(service.counters().writes, 0);
    assert_serves(&server);
}

#[test]
fn a_client_that_does_not_listen_is_not_given_all_memory() {
    let service = service();
    let directory = tempfile::tempdir().unwrap();
    let shutdown_timeout = Duration::from_millis(200);
    let options = ServerOptions { shutdown_timeout, ..ServerOptions::default() };
    let mut server = serve(directory.path(), &service, options);
    let mut raw = Raw::entered(&server, true, false);
    raw.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let header = |length| {
        let command = command::READ;
        coulter_net::nbd::wire::RequestHeader { flags: 0, command, cookie: 1, offset: 0, length }
            .encode()
    };
    // Far more than the socket holds; at some point the server reads no further.
    let mut asked = 0;
    while asked < 100_000 && raw.stream.write_all(&header(MIB)).is_ok() {
        asked += 1;
    }
    assert!(asked < 100_000, "the server stops reading");
    let reads = service.counters().reads;
    assert!(reads <= 64 + 1, "{reads} MiB are held for one client");
    assert_serves(&server);
    let start = Instant::now();
    server.shutdown();
    assert!(start.elapsed() < Duration::from_secs(3), "it is not waited for for ever");
}

#[test]
fn a_thousand_clients_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let options = ServerOptions { connections_max: 32, ..ServerOptions::default() };
    let server = serve(directory.path(), &service(), options);
    let path = directory.path().join("nbd.sock");
    let held: Vec<UnixStream> = (0..500).map(|_| UnixStream::connect(&path).unwrap()).collect();
    // One peer has at most seven eighths of the places, and the oldest that is silent makes room.
    let is_served = |mut stream: &UnixStream| {
        let mut greeting = [0; 18];
        let is_greeted = stream.read_exact(&mut greeting).is_ok();
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let rest = stream.read(&mut greeting);
        is_greeted && rest.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    for stream in &held {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
    // Until all have been let in or turned away, some are served that make room later.
    let numbers = || (server.statistics().opened, server.statistics().refused);
    let mut last = (0, 0);
    while last != numbers() {
        last = numbers();
        std::thread::sleep(Duration::from_millis(200));
    }
    // Those that come while threads of the displaced have yet to end are turned away themselves.
    let served = held.iter().filter(|stream| is_served(stream)).count();
    assert!((1..=28).contains(&served), "{served} are served");
    assert_eq!(server.statistics().refused, 500 - served as u64);
    drop(held);
    wait_until_alone(&server);
    for _ in 0..500 {
        drop(UnixStream::connect(&path).unwrap());
    }
    // Some are still in the queue of the system when the last has left it again, and take places.
    let is_let_in = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.read_exact(&mut [0; 18]).is_ok()
    };
    while !is_let_in() {
        std::thread::sleep(Duration::from_millis(5));
    }
    wait_until_alone(&server);
    assert_serves(&server);
}

#[test]
fn clients_that_are_silent_in_the_negotiation_keep_no_other_out() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path(), &service(), ServerOptions::default());
    let stages: [fn(&mut Raw); 3] = [
        |_| {},
        |raw| raw.send(&[0, 0, 0, 3]),
        |raw| raw.send(&[&[0, 0, 0, 3][..], b"IHAVEOPT\0\0\0\x03\0"].concat()),
    ];
    let silent: Vec<Raw> = (0..128)
        .map(|index| {
            let mut raw = Raw::connect(&server);
            stages[index % 3](&mut raw);
            raw
        })
        .collect();
    let start = Instant::now();
    assert_serves(&server);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    drop(silent);
}

#[test]
fn a_client_that_asks_for_lists_and_never_reads_is_not_answered_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = serve(directory.path(), &service(), ServerOptions::default());
    let mut raw = Raw::flagged(&server);
    raw.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let list = b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(1000);
    let sent = (0..1000).take_while(|_| raw.stream.write_all(&list).is_ok()).count();
    assert!(sent < 1000, "the server stops reading");
    assert_serves(&server);
    let start = Instant::now();
    server.shutdown();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_client_that_says_nothing_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let handshake_timeout = Duration::from_millis(100);
    let options = ServerOptions { handshake_timeout, ..ServerOptions::default() };
    let server = serve(directory.path(), &service(), options);
    assert!(Raw::connect(&server).ends_in_silence());
    // One that chose an export may be silent for as long as it likes.
    let mut raw = Raw::entered(&server, true, false);
    std::thread::sleep(2 * handshake_timeout);
    assert_eq!(raw.error_of(0, command::READ, 0, 512), 0);
}

#[test]
fn shutting_down_finishes_what_was_asked_for() {
    let service = slow(Duration::from_millis(100));
    let directory = tempfile::tempdir().unwrap();
    let mut server = serve(directory.path(), &service, ServerOptions::default());
    let mut busy = Raw::entered(&server, true, false);
    let idle = Raw::entered(&server, true, false);
    let mut half = Raw::entered(&server, true, false);
    let negotiating = Raw::flagged(&server);
    busy.request(0, command::WRITE, 0, 512);
    busy.send(&[7; 512]);
    half.request(0, command::WRITE, 4096, MIB);
    half.stream.write_all(&[7; 1000]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    server.shutdown();
    assert_eq!(busy.reply(0).error, 0);
    for raw in [busy, idle, half, negotiating] {
        assert!(raw.ends_in_silence());
    }
    assert_eq!(service.counters().writes, 1, "half a write is none");
    assert!(UnixStream::connect(directory.path().join("nbd.sock")).is_err());
}

#[test]
fn extents_are_reported_within_what_was_asked() {
    let service = service();
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path(), &service, ServerOptions::default());
    let mut raw = Raw::entered(&server, true, true);
    raw.request(0, command::WRITE, 8192, 4096);
    raw.send(&[7; 4096]);
    assert_eq!(raw.reply(0).error, 0);
    let words = |body: &[u8]| -> Vec<u32> {
        body.chunks(4).map(|word| u32::from_be_bytes(*word.first_chunk().unwrap())).collect()
    };
    raw.request(0, command::BLOCK_STATUS, 4096, 16384);
    let reply = raw.reply(0);
    assert_eq!(reply.kind, chunk::BLOCK_STATUS);
    assert_eq!(words(&reply.body), [1, 4096, 3, 4096, 0, 8192, 3]);
    raw.request(flag::REQ_ONE, command::BLOCK_STATUS, 4096, 16384);
    assert_eq!(words(&raw.reply(0).body), [1, 4096, 3]);
}

#[test]
fn durability_reaches_the_service_in_every_form() {
    let service = service();
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path(), &service, ServerOptions::default());
    let mut raw = Raw::entered(&server, true, false);
    raw.request(flag::FUA, command::WRITE, 0, 512);
    raw.send(&[7; 512]);
    assert_eq!(raw.reply(0).error, 0);
    assert_eq!(service.counters().fua, 1);
    assert_eq!(raw.error_of(flag::FUA, command::TRIM, 0, 512), 0);
    assert_eq!(service.counters().fua, 2);
    let zero = flag::FUA | flag::NO_HOLE | flag::FAST_ZERO;
    assert_eq!(raw.error_of(zero, command::WRITE_ZEROES, 0, 512), 0);
    assert_eq!(service.counters().fua, 3);
    assert_eq!(raw.error_of(0, command::FLUSH, 0, 0), 0);
    assert_eq!(service.counters().flushes, 1);
}

#[test]
fn a_client_survives_the_death_of_its_server() {
    use coulter::buffer::Buffer;
    use coulter::service::{Request, Session};
    let directory = tempfile::tempdir().unwrap();
    let mut server = serve(directory.path(), &service(), ServerOptions::default());
    let mut client = Client::connect(server.address(), &ClientOptions::default()).unwrap();
    server.shutdown();
    for tag in 0..8 {
        let operation =
            if tag % 2 == 0 { Operation::Read } else { Operation::Write { fua: false } };
        let buffer = Buffer::zeroed(65536);
        client.submit(Request { tag, operation, offset: 0, length: 65536, buffer });
    }
    client.kick();
    let mut completions = Vec::new();
    while client.outstanding() > 0 {
        client.complete(&mut completions, None);
    }
    assert_eq!(completions.len(), 8);
    assert!(completions.iter().all(|completion| {
        completion.result == Err(RequestError::Closed) && completion.buffer.len() == 65536
    }));
}
