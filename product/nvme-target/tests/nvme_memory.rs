//! What hosts can make an NVMe target hold is bounded for each connection: hosts that ask for data and never take it,
//! and hosts that announce data and never send it. Another host goes on undisturbed. The same of
//! hosts that never read an answer, in every phase of a conversation.
//!
//! Method: an allocator that counts the bytes that all threads but the hosts' have.

use coulter_attach_suite::conformance::{Host, NvmeHost};
use coulter_attach_suite::initiator::{Initiator, InitiatorOptions};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_net::Address;
use coulter_nvme::auth::Group;
use coulter_nvme::fabrics::{
    self, CNTLID_ANY, Connect, ConnectData, DISCOVERY_NQN, fabrics_command, property,
};
use coulter_nvme::log::{GetLog, page};
use coulter_nvme::opcode::{fabrics as fabrics_kind, io};
use coulter_nvme::tcp::{self, Digests, IcReq};
use coulter_nvme::{DataPointer, Sqe};
use coulter_nvme_target::{Disk, HostKey, Keys, Target, TargetOptions, host_name};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// The thread is the hosts'.
    static IS_HOST: Cell<bool> = const { Cell::new(false) };
}

fn count(bytes: i64) {
    if !IS_HOST.try_with(Cell::get).unwrap_or(true) {
        let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`, and `alloc` is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// All tests count the same bytes.
static TURN: Mutex<()> = Mutex::new(());

const MIB: i64 = 1 << 20;
const HOSTS: u8 = 6;
/// Commands of each, of 1 MiB.
const COMMANDS: u64 = 120;

fn wait_until(what: &str, is_so: impl Fn(i64) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so(LIVE.load(Ordering::Relaxed)) {
        let live = LIVE.load(Ordering::Relaxed);
        assert!(Instant::now() < deadline, "{what}: the target has {live} bytes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn serve(options: TargetOptions) -> Target {
    let service = MemoryService::new(MemoryOptions::new(COMMANDS << 20));
    let disk = Disk { service: Arc::new(service), read_only: false, block_size: 4096 };
    let address = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
    Target::start(&address, vec![disk], options).expect("the target starts")
}

fn connect(target: &Target, host: u8) -> Initiator {
    let options = InitiatorOptions::new(target.names()[0].clone(), host);
    Initiator::connect(target.address(), &options).expect("a host can connect")
}

/// Sends all commands of a host: reads whose data it does not take, or writes whose data it does
/// not send.
fn ask_for_all(host: &mut Initiator, opcode: u8) {
    let inward = if opcode == io::READ { 1 << 20 } else { 0 };
    for number in 0..COMMANDS {
        let sqe = Sqe::new(opcode, 1)
            .with_blocks(number << 8, 256)
            .with_data_pointer(DataPointer::Transport { length: 1 << 20 });
        host.io.submit_raw(sqe, &[], inward);
    }
    host.io.flush();
}

/// Lets greedy hosts at a target. Waits until it holds `least` for each of them; the most that it
/// ever had for each.
fn most_for_each(options: TargetOptions, least: i64) -> i64 {
    let target = serve(options);
    let mut good = NvmeHost(connect(&target, 200));
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut greedy: Vec<Initiator> = (1..=HOSTS).map(|host| connect(&target, host)).collect();
    for (index, host) in greedy.iter_mut().enumerate() {
        ask_for_all(host, [io::READ, io::WRITE][index % 2]);
    }
    wait_until("it takes what it may", |live| live - before >= i64::from(HOSTS) * least);
    let start = Instant::now();
    for block in 0..200 {
        good.write(block * 4096, &[block as u8; 4096], false).expect("a write succeeds");
        let mut back = [0; 4096];
        good.read(block * 4096, &mut back).expect("a read succeeds");
        assert_eq!(back, [block as u8; 4096]);
    }
    for number in 0..20 {
        good.read(number << 20, &mut vec![0; 1 << 20]).expect("a large read succeeds");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let most = (PEAK.load(Ordering::Relaxed) - before) / i64::from(HOSTS);
    drop(greedy);
    // The good host's queue keeps a few buffers.
    wait_until("it gives back what they had", |live| live - before < i64::from(HOSTS) * 2 * MIB);
    most
}

#[test]
fn hosts_that_never_take_or_send_data_hold_no_more_than_their_queues_may() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    IS_HOST.set(true);
    let few = |queue_memory_max| TargetOptions { queue_memory_max, ..TargetOptions::default() };
    let most = most_for_each(few(4 << 20), 3 * MIB);
    assert!(most < 6 * MIB, "{most} bytes for each of {HOSTS} hosts");
    // That it would be seen: with more they hold more.
    let most = most_for_each(few(32 << 20), 18 * MIB);
    assert!((18 * MIB..34 * MIB).contains(&most), "{most} bytes for each of {HOSTS} hosts");
}

#[test]
fn all_hosts_together_hold_no_more_than_the_target_may() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    IS_HOST.set(true);
    let options = |memory_max| TargetOptions {
        queue_memory_max: 32 << 20,
        memory_max,
        // Two of each host, and an eighth that one peer cannot have.
        connections_max: 2 * usize::from(HOSTS) + 4,
        ..TargetOptions::default()
    };
    let most = most_for_each(options(24 << 20), 2 * MIB);
    // With what their receivers and their lists of answers have.
    assert!(most < 5 * MIB, "{most} bytes for each of {HOSTS} hosts");
}

/// All buffers of its queue are in answers that the host does not take, and nothing is under way
/// that could complete: when the host takes them after all, its other commands go on.
#[test]
fn a_host_that_takes_its_data_late_gets_all_of_it() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    IS_HOST.set(true);
    let target = serve(TargetOptions { queue_memory_max: 4 << 20, ..TargetOptions::default() });
    let mut host = connect(&target, 1);
    let before = LIVE.load(Ordering::Relaxed);
    ask_for_all(&mut host, io::READ);
    wait_until("it reads", |live| live - before >= 3 * MIB);
    std::thread::sleep(Duration::from_millis(300));
    let mut finished = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while finished.len() < COMMANDS as usize && Instant::now() < deadline {
        host.io.poll(&mut finished, Some(Duration::from_millis(100)));
    }
    let good = finished.iter().filter(|it| it.outcome.is_some_and(|cqe| cqe.status.is_success()));
    assert_eq!(good.count(), COMMANDS as usize, "each command is answered");
}

/// How far a host has come that reads no answer from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Proving,
    Admin,
    Discovery,
}

const KEY: &str = "DHHC-1:00:sNRJqR6+NG0/ZXUFDeMqonMe+rt/et8u6uSLpsZSzzo1fbl3:";
/// Bytes of commands that a host sends at most: far more than the answers of what sockets hold are
/// to.
const FLOOD_SIZE: usize = 256 << 20;

fn target(has_keys: bool) -> Target {
    let service = MemoryService::new(MemoryOptions::new(8 << 20));
    let disk = Disk { service: Arc::new(service), read_only: false, block_size: 4096 };
    let address = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
    let key =
        || HostKey { host: None, secret: KEY.parse().expect("it is a key"), controller: None };
    let keys = || Arc::new(Keys::new(vec![key()], Group::Null).expect("there is a key"));
    let options = TargetOptions { keys: has_keys.then(keys), ..TargetOptions::default() };
    Target::start(&address, vec![disk], options).expect("the target starts")
}

fn command(sqe: Sqe, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    let sqe = match length {
        0 => sqe,
        _ => sqe.with_data_pointer(DataPointer::InCapsule { length, offset: 0 }),
    };
    [&tcp::command(&sqe, length, Digests::default())[..], data].concat()
}

/// A host that has come to `phase`, and has read nothing.
fn deaf(target: &Target, phase: Phase) -> TcpStream {
    let Address::Tcp { host, port } = target.address() else { unreachable!("it is TCP") };
    let mut stream = TcpStream::connect((host.as_str(), *port)).expect("it listens");
    stream.set_write_timeout(Some(Duration::from_secs(1))).expect("a timeout can be set");
    let greeting = IcReq { format: 0, alignment: 0, digests: Digests::default(), r2t_max: 1 };
    let mut bytes = greeting.encode().to_vec();
    if phase != Phase::Connecting {
        let connect = Connect {
            format: 0,
            queue_id: 0,
            queue_size: 32,
            flow_control_disabled: false,
            keep_alive_ms: 0,
        };
        let name = target.names()[0].clone();
        let subsystem = if phase == Phase::Discovery { DISCOVERY_NQN } else { &name };
        let host = host_name(&[1; 16]);
        let data = ConnectData { host_id: [1; 16], cntlid: CNTLID_ANY, subsystem, host: &host };
        bytes.extend(command(connect.encode(), &data.encode()));
        bytes.extend(command(fabrics::property_set(property::CC, 0x0046_0001), &[]));
    }
    stream.write_all(&bytes).expect("it is taken");
    stream
}

#[test]
fn a_host_that_never_reads_holds_no_more_than_256_kib_of_answers_in_any_phase() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    IS_HOST.set(true);
    let get_log = |page, length: u32| {
        GetLog { page, retains_event: false, length: length.into(), offset: 0 }
            .encode()
            .with_data_pointer(DataPointer::Transport { length })
    };
    let receive = fabrics_command(fabrics_kind::AUTH_RECEIVE);
    for (phase, sqe) in [
        (Phase::Connecting, Sqe::new(io::FLUSH, 1)),
        (Phase::Connecting, fabrics_command(fabrics_kind::CONNECT)),
        (Phase::Proving, Sqe::new(io::FLUSH, 1)),
        (Phase::Proving, receive),
        (Phase::Admin, get_log(page::EFFECTS, 4096)),
        (Phase::Admin, get_log(page::SMART, 1 << 20)),
        (Phase::Admin, fabrics::property_get(property::CAP, true)),
        (Phase::Discovery, get_log(page::DISCOVERY, 4096)),
        (Phase::Discovery, get_log(page::DISCOVERY, 1 << 20)),
    ] {
        let target = target(phase == Phase::Proving);
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let mut stream = deaf(&target, phase);
        let flood = command(sqe, &[]).repeat(4096);
        let floods = FLOOD_SIZE / flood.len();
        let sent = (0..floods).take_while(|_| stream.write_all(&flood).is_ok()).count();
        assert!(sent < floods, "{phase:?} {sqe:?}: the target does not stop reading");
        let most = PEAK.load(Ordering::Relaxed) - before;
        // As much for what is read at a time, and three times that for a list of answers that grows
        // by doubling.
        assert!(most < 5 * MIB / 4, "{phase:?} {sqe:?}: {most} bytes");
        assert!(most > 256 << 10, "{phase:?} {sqe:?}: {most} bytes, so it was not a flood");
        drop(stream);
        NvmeHost(
            Initiator::connect(
                target.address(),
                &InitiatorOptions {
                    authentication: Some(coulter_attach_suite::initiator::Authentication::new(
                        KEY.parse().expect("it is a key"),
                    )),
                    ..InitiatorOptions::new(target.names()[0].clone(), 2)
                },
            )
            .expect("others are let in"),
        )
        .write(0, &[1; 4096], false)
        .expect("others are served");
    }
}
