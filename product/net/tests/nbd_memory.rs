//! Clients that ask for data and never read it make a server hold a bounded number of bytes
//! together, however many they are, and keep no other client from being served.

use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_attach_suite::raw_nbd::{Raw, serve};
use coulter_net::nbd::ServerOptions;
use coulter_net::nbd::wire::command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const VOLUME_SIZE: u64 = 64 * MIB;
const CLIENTS: usize = 14;

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let text = line.expect("it is told").trim().trim_end_matches(" kB");
    text.parse::<u64>().expect("it is a number") << 10
}

/// Waits until the process has got no more memory for a while; how much it has then.
fn settled() -> u64 {
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut last, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(300) && Instant::now() < deadline {
        let now = resident();
        if now.abs_diff(last) > MIB {
            (last, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    resident()
}

#[test]
fn clients_that_do_not_read_hold_a_bounded_number_of_bytes_together() {
    let directory = tempfile::tempdir().unwrap();
    let service = MemoryService::new(MemoryOptions::new(VOLUME_SIZE));
    let options =
        ServerOptions { connections_max: 18, memory_max: 64 << 20, ..ServerOptions::default() };
    let server = serve(directory.path(), &service, options);
    let before = settled();
    let deaf: Vec<Raw> = (0..CLIENTS)
        .map(|_| {
            let mut raw = Raw::entered(&server, false, false);
            for request in 0..60 {
                raw.request(0, command::READ, request * MIB, MIB as u32);
            }
            raw
        })
        .collect();
    let grown = settled().saturating_sub(before);
    // Their receivers, threads and sockets have some.
    assert!(grown < 96 * MIB, "{} MiB for {CLIENTS} clients", grown / MIB);
    assert!(grown > 30 * MIB, "{} MiB: they were not served at all", grown / MIB);
    let mut good = Raw::entered(&server, false, false);
    let start = Instant::now();
    for request in 0..50 {
        assert_eq!(good.error_of(0, command::READ, request * MIB, MIB as u32), 0);
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    drop(deaf);
    assert_eq!(good.error_of(0, command::READ, 0, 32 * MIB as u32), 0, "all of it is free again");
}
