//! What no host should send, and what the target makes of it: each gets its status, or the connection
//! ends with its reason, and others go on undisturbed.

use coulter::buffer::Buffer;
use coulter::service::RequestError;
use coulter_attach_suite::conformance::{Host, NvmeHost};
use coulter_attach_suite::initiator::{Channel, connect_admin, enable, is_status};
use coulter_attach_suite::initiator::{Initiator, InitiatorError, InitiatorOptions};
use coulter_attach_suite::memory::{Fault, FaultKind, MemoryOptions, MemoryService};
use coulter_net::Address;
use coulter_nvme::fabrics::{self, CNTLID_ANY, Connect, ConnectData, property};
use coulter_nvme::log::{GetLog, page};
use coulter_nvme::opcode::{admin, fabrics as fabrics_kind, io};
use coulter_nvme::range::{DEALLOCATE, Range};
use coulter_nvme::tcp::{self, Data, Digests, IcReq, kind};
use coulter_nvme::{DataPointer, Sqe, Status};
use coulter_nvme_target::{Disk, Target, TargetOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;
const BLOCKS: u64 = SIZE / 4096;
const BOTH: Digests = Digests { header: true, data: true };

struct Served {
    target: Target,
    service: MemoryService,
}

impl Served {
    fn new() -> Served {
        Served::with(MemoryOptions::new(SIZE), TargetOptions::default())
    }

    fn with(memory: MemoryOptions, options: TargetOptions) -> Served {
        let service = MemoryService::new(memory);
        let disk = Disk { service: Arc::new(service.clone()), read_only: false, block_size: 4096 };
        let address = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
        let target = Target::start(&address, vec![disk], options).expect("the target starts");
        Served { target, service }
    }

    fn options(&self, host: u8) -> InitiatorOptions {
        let timeout = Duration::from_secs(20);
        InitiatorOptions { timeout, ..InitiatorOptions::new(self.target.names()[0].clone(), host) }
    }

    fn connect(&self, host: u8) -> Initiator {
        Initiator::connect(self.target.address(), &self.options(host)).expect("a host can connect")
    }

    fn stream(&self) -> TcpStream {
        let Address::Tcp { host, port } = self.target.address() else { unreachable!("it is TCP") };
        let stream = TcpStream::connect((host.as_str(), *port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
        stream
    }

    /// Says what a target answers to these bytes, until it hangs up.
    fn answers(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.stream();
        // A target may hang up before it has all.
        let _ = stream.write_all(bytes);
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        answers
    }
}

fn greeting(digests: Digests) -> Vec<u8> {
    IcReq { format: 0, alignment: 0, digests, r2t_max: 1 }.encode().to_vec()
}

/// The reason in the last PDU, if that is an end.
fn end_of(answers: &[u8]) -> Option<u16> {
    let end = answers.get(tcp::IC_SIZE..)?;
    (end.first() == Some(&kind::C2H_TERM)).then(|| tcp::term_status(end.first_chunk().unwrap()))
}

fn transport(length: u32) -> DataPointer {
    DataPointer::Transport { length }
}

fn write(slba: u64, count: u32) -> Sqe {
    Sqe::new(io::WRITE, 1).with_blocks(slba, count).with_data_pointer(transport(count << 12))
}

fn read(slba: u64, count: u32) -> Sqe {
    Sqe::new(io::READ, 1).with_blocks(slba, count).with_data_pointer(transport(count << 12))
}

#[test]
fn a_command_that_makes_no_sense_gets_its_status_and_the_queue_goes_on() {
    let served = Served::new();
    let mut initiator = served.connect(1);
    let in_capsule = |length, offset| DataPointer::InCapsule { length, offset };
    let page = vec![7; 4096];
    let mut fused = read(0, 1);
    fused.0[1] |= 1;
    let mut without_list = read(0, 1);
    without_list.0[1] = 0;
    let range = Range { slba: BLOCKS, count: 1 }.encode();
    let trim = Sqe::new(io::DATASET_MANAGEMENT, 1).with_dword(11, DEALLOCATE);
    let cases: Vec<(Sqe, &[u8], Status)> = vec![
        (Sqe::new(0x7e, 1), &[], Status::INVALID_OPCODE),
        (Sqe::new(0x80, 1), &[], Status::INVALID_OPCODE),
        (fused, &[], Status::INVALID_FIELD),
        (without_list, &[], Status::INVALID_FIELD),
        (Sqe::new(io::FLUSH, 2), &[], Status::INVALID_NAMESPACE),
        (Sqe::new(io::FLUSH, 0), &[], Status::INVALID_NAMESPACE),
        (Sqe::new(io::READ, u32::MAX).with_blocks(0, 1), &[], Status::INVALID_NAMESPACE),
        (read(BLOCKS, 1), &[], Status::LBA_OUT_OF_RANGE),
        (read(BLOCKS - 1, 2), &[], Status::LBA_OUT_OF_RANGE),
        (read(u64::MAX, 1), &[], Status::LBA_OUT_OF_RANGE),
        (write(u64::MAX - 3, 8), &[], Status::LBA_OUT_OF_RANGE),
        (read(0, 257), &[], Status::INVALID_FIELD),
        (read(0, 2).with_data_pointer(transport(4096)), &[], Status::INVALID_SGL_LENGTH),
        (read(0, 1).with_data_pointer(DataPointer::None), &[], Status::INVALID_SGL_LENGTH),
        (
            read(0, 1).with_data_pointer(DataPointer::Unsupported { kind: 0x40 }),
            &[],
            Status::INVALID_SGL_TYPE,
        ),
        (write(0, 1).with_data_pointer(in_capsule(4096, 4)), &page, Status::INVALID_SGL_OFFSET),
        (write(0, 2).with_data_pointer(in_capsule(4096, 0)), &page, Status::INVALID_SGL_LENGTH),
        (write(0, 1).with_data_pointer(in_capsule(4096, 0)), &[], Status::INVALID_SGL_LENGTH),
        (write(0, 1), &page, Status::INVALID_SGL_LENGTH),
        (read(0, 1).with_data_pointer(in_capsule(4096, 0)), &page, Status::INVALID_SGL_TYPE),
        (trim.with_data_pointer(in_capsule(16, 0)), &range, Status::LBA_OUT_OF_RANGE),
        (
            trim.with_dword(10, 1).with_data_pointer(in_capsule(16, 0)),
            &range,
            Status::INVALID_SGL_LENGTH,
        ),
        (Sqe::new(io::VERIFY, 1).with_blocks(BLOCKS, 1), &[], Status::LBA_OUT_OF_RANGE),
        (Sqe::new(io::WRITE_ZEROES, 1).with_blocks(BLOCKS, 1), &[], Status::LBA_OUT_OF_RANGE),
        (fabrics::property_get(0, true), &[], Status::INVALID_OPCODE),
    ];
    for (sqe, data, expected) in cases {
        let outcome = initiator.io.send_raw(sqe, data);
        assert!(is_status(&outcome, expected), "{sqe:?}: {outcome:?}, not {expected}");
        let Err(InitiatorError::Status(cqe)) = outcome else { unreachable!("it is a status") };
        assert!(cqe.status.is_final(), "{sqe:?} would be tried again");
        assert_eq!(cqe.sq_id, 1);
        initiator.io.send(write(3, 1), &page).expect("the queue goes on");
    }
    assert_eq!(served.service.counters().discards, 0);
    let log = GetLog { page: page::ERROR, retains_event: false, length: 4096, offset: 0 };
    let log = initiator.admin.fetch(log.encode(), 4096).expect("the error log can be read");
    assert!(log[0] >= 25, "failures are counted: {}", log[0]);
}

#[test]
fn a_range_longer_than_a_controller_says_is_refused() {
    let served = Served::with(MemoryOptions::new(16 << 30), TargetOptions::default());
    let mut initiator = served.connect(1);
    let trim = Sqe::new(io::DATASET_MANAGEMENT, 1).with_dword(11, DEALLOCATE);
    let pointer = DataPointer::InCapsule { length: 16, offset: 0 };
    for (count, is_taken) in [(1 << 21, true), ((1 << 21) + 1, false)] {
        let range = Range { slba: 0, count }.encode();
        let outcome = initiator.io.send_raw(trim.with_data_pointer(pointer), &range);
        assert_eq!(outcome.is_ok(), is_taken, "{count}: {outcome:?}");
        assert!(is_taken || is_status(&outcome, Status::INVALID_FIELD));
    }
    assert_eq!(served.service.counters().discards, 1);
}

#[test]
fn an_admin_command_that_makes_no_sense_gets_its_status() {
    let served = Served::new();
    let options = served.options(1);
    let (mut channel, _) = connect_admin(served.target.address(), &options).expect("it is let in");
    let identify = Sqe::new(admin::IDENTIFY, 0).with_data_pointer(transport(4096));
    let early = channel.send_raw(identify.with_dword(10, 1), &[]);
    assert!(is_status(&early, Status::SEQUENCE_ERROR), "before it is enabled: {early:?}");
    let odd = channel.send(fabrics::property_set(property::CC, 0x0046_0011), &[]);
    assert!(is_status(&odd, Status::INVALID_FIELD), "a command set that there is not: {odd:?}");
    enable(&mut channel).expect("it becomes ready");
    let features =
        |id: u32, value| Sqe::new(admin::SET_FEATURES, 0).with_dword(10, id).with_dword(11, value);
    let log = |page, length| {
        GetLog { page, retains_event: false, length, offset: 0 }
            .encode()
            .with_data_pointer(transport(4096))
    };
    for (sqe, expected) in [
        (Sqe::new(0xc0, 0), Status::INVALID_OPCODE),
        (Sqe::new(0x00, 0), Status::INVALID_OPCODE),
        (identify.with_dword(10, 0x77), Status::INVALID_FIELD),
        (identify.with_dword(10, 0x03), Status::INVALID_NAMESPACE),
        (identify.with_dword(10, 1).with_data_pointer(transport(512)), Status::INVALID_SGL_LENGTH),
        (identify.with_dword(10, 1).with_data_pointer(DataPointer::None), Status::INVALID_SGL_TYPE),
        (log(0x99, 4096), Status::INVALID_LOG_PAGE),
        (log(page::DISCOVERY, 4096), Status::INVALID_LOG_PAGE),
        (log(page::SMART, 1 << 40), Status::INVALID_FIELD),
        (log(page::SMART, 8192), Status::INVALID_SGL_LENGTH),
        (features(0x42, 0), Status::INVALID_FIELD),
        (features(0x01, 1), Status::FEATURE_NOT_CHANGEABLE),
        (features(0x8000_000b, 1), Status::FEATURE_NOT_SAVEABLE),
        (features(0x07, 0xffff), Status::INVALID_FIELD),
        (features(0x81, 0), Status::SEQUENCE_ERROR),
        (fabrics::property_get(0x00, false), Status::INVALID_FIELD),
        (fabrics::property_get(0x999, false), Status::INVALID_FIELD),
        (fabrics::property_set(0x00, 1), Status::INVALID_FIELD),
        (fabrics::fabrics_command(0x77), Status::INVALID_OPCODE),
        (fabrics::fabrics_command(fabrics_kind::CONNECT), Status::SEQUENCE_ERROR),
        (Sqe::new(io::WRITE, 1), Status::INVALID_OPCODE),
    ] {
        let outcome = channel.send_raw(sqe, &[]);
        assert!(is_status(&outcome, expected), "{sqe:?}: {outcome:?}, not {expected}");
    }
    let abort = channel.send(Sqe::new(admin::ABORT, 0).with_dword(10, 0x0005_0000), &[]);
    assert_eq!(abort.expect("it may be asked").result, 1, "nothing was aborted");
}

#[test]
fn more_event_requests_than_there_are_places_for_are_refused() {
    let served = Served::new();
    let mut initiator = served.connect(1);
    for _ in 0..4 {
        initiator.admin.submit_raw(Sqe::new(admin::ASYNC_EVENT, 0), &[], 0);
    }
    let mut finished = Vec::new();
    initiator.admin.submit_raw(Sqe::new(admin::ASYNC_EVENT, 0), &[], 0);
    initiator.admin.poll(&mut finished, Some(Duration::from_secs(10)));
    let status = finished[0].outcome.expect("it is answered").status;
    assert_eq!((finished.len(), status.code_and_type()), (1, Status::ASYNC_EVENT_LIMIT));
}

#[test]
fn what_connect_says_is_checked_and_what_is_wrong_is_named() {
    let served = Served::new();
    let initiator = served.connect(1);
    let good = served.options(1);
    let connect = |queue_id, queue_size| Connect {
        format: 0,
        queue_id,
        queue_size,
        flow_control_disabled: false,
        keep_alive_ms: 0,
    };
    let name = served.target.names()[0].clone();
    let other_host = coulter_nvme_target::host_name(&[9; 16]);
    let data =
        |cntlid| ConnectData { host_id: good.host_id, cntlid, subsystem: &name, host: &good.host };
    let ours = data(initiator.cntlid);
    let foreign_name = ConnectData { host: &other_host, ..ours };
    let foreign_id = ConnectData { host_id: [8; 16], ..ours };
    let unknown = ConnectData { subsystem: "nqn.2014-08.org.example:x", ..data(CNTLID_ANY) };
    let odd = Connect { format: 1, ..connect(0, 32) };
    let invalid = Status::CONNECT_INVALID;
    for (what, connect, data, status, position) in [
        ("a format", odd, data(CNTLID_ANY), Status::CONNECT_INCOMPATIBLE, 0),
        ("a subsystem that there is not", connect(0, 32), unknown, invalid, 0x1_0100),
        ("a second admin queue", connect(0, 32), ours, invalid, 0x1_0010),
        ("a queue of one", connect(1, 1), ours, invalid, 44),
        ("a queue too long", connect(1, 129), ours, invalid, 44),
        ("a queue beyond the grant", connect(2, 32), ours, invalid, 42),
        ("a controller that there is not", connect(1, 32), data(0xfff1), invalid, 0x1_0010),
        ("another name", connect(1, 32), foreign_name, invalid, 0x1_0200),
        ("another identity", connect(1, 32), foreign_id, invalid, 0x1_0200),
    ] {
        let mut channel =
            Channel::open(served.target.address(), Digests::default(), good.timeout).unwrap();
        let outcome = channel.send(connect.encode(), &data.encode());
        assert!(is_status(&outcome, status), "{what}: {outcome:?}");
        let Err(InitiatorError::Status(cqe)) = outcome else { unreachable!("it is a status") };
        assert_eq!(cqe.result32(), position, "{what}");
        let outcome = channel.send_raw(read(0, 1), &[]);
        assert!(is_status(&outcome, Status::SEQUENCE_ERROR), "{what}: commands before Connect");
    }
    let options = InitiatorOptions { subsystem: fabrics::DISCOVERY_NQN.into(), ..good.clone() };
    let outcome = Initiator::connect_queue(served.target.address(), &options, 1, 1).map(|_| ());
    assert!(matches!(outcome, Err(InitiatorError::Status(_))), "I/O with a discovery service");
}

#[test]
fn bytes_that_are_no_pdu_end_the_connection_with_a_reason() {
    let served = Served::new();
    let with = |digests, bytes: &[u8]| [&greeting(digests)[..], bytes].concat();
    let none = Digests::default();
    let command = tcp::command(&Sqe::new(io::FLUSH, 1), 0, none);
    let mut no_header = command;
    no_header[2] = 71;
    let mut short = command;
    short[4..8].copy_from_slice(&71u32.to_le_bytes());
    let mut kind_unknown = command;
    kind_unknown[0] = 0x33;
    let mut answer = command;
    (answer[0], answer[2]) = (kind::RESPONSE, 24);
    let data = Data { cid: 0, tag: 0, offset: 0, length: 8 }.encode(kind::H2C_DATA, 4, 0, none);
    let long = tcp::command(&Sqe::new(io::FLUSH, 1), 8193, none);
    let mut with_digest = tcp::command(&Sqe::new(io::FLUSH, 1), 0, BOTH).to_vec();
    with_digest.extend_from_slice(&[1, 2, 3, 4]);
    for (what, bytes, reason) in [
        ("a header too short", with(none, &no_header), 1),
        ("a PDU shorter than its header", with(none, &short), 1),
        ("a kind that there is not", with(none, &kind_unknown), 1),
        ("a PDU of a target", with(none, &answer), 2),
        ("a second greeting", with(none, &greeting(none)), 2),
        ("data that nobody asked for", with(none, &data), 2),
        ("too much data with an admin command", with(none, &long), 5),
        ("a header without its digest", with(BOTH, &command), 1),
        ("a header with a wrong digest", with(BOTH, &with_digest), 3),
    ] {
        assert_eq!(end_of(&served.answers(&bytes)), Some(reason), "{what}");
    }
    let first = served.answers(&command);
    assert_eq!((first[0], tcp::term_status(first.first_chunk().unwrap())), (kind::C2H_TERM, 2));
    let mut future = greeting(none);
    future[8] = 1;
    let first = served.answers(&future);
    assert_eq!((first[0], tcp::term_status(first.first_chunk().unwrap())), (kind::C2H_TERM, 6));
}

#[test]
fn a_wrong_digest_of_data_fails_its_command_and_no_other() {
    let served = Served::new();
    let options = InitiatorOptions { digests: BOTH, ..served.options(1) };
    let mut initiator = Initiator::connect(served.target.address(), &options).unwrap();
    let page = [7; 4096];
    let sqe = write(0, 1).with_data_pointer(DataPointer::InCapsule { length: 4096, offset: 0 });
    // The same as a good one, but for the last byte.
    let slot = initiator.io.submit_raw(sqe, &page, 0);
    initiator.io.spoil_last_byte();
    let mut finished = Vec::new();
    initiator.io.poll(&mut finished, Some(Duration::from_secs(10)));
    assert_eq!((finished.len(), finished[0].slot), (1, slot));
    let status = finished[0].outcome.expect("it is answered").status;
    assert_eq!(status.code_and_type(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert!(!status.is_final(), "trying again is of use");
    assert_eq!(served.service.counters().writes, 0);
    initiator.io.send(write(0, 1), &page).expect("the queue goes on");
    let long = vec![9; 256 << 10];
    initiator.io.send(write(8, 64), &long).expect("data that is asked for has digests too");
    let back = initiator.io.fetch(read(8, 64), 256 << 10).expect("it can be read");
    assert!(back == long);
}

#[test]
fn a_stream_cut_at_any_byte_leaves_a_target_that_serves() {
    let served = Served::new();
    let mut good = NvmeHost(served.connect(200));
    let name = served.target.names()[0].clone();
    let connect = Connect {
        format: 0,
        queue_id: 0,
        queue_size: 32,
        flow_control_disabled: false,
        keep_alive_ms: 0,
    };
    let host = coulter_nvme_target::host_name(&[3; 16]);
    let data = ConnectData { host_id: [3; 16], cntlid: CNTLID_ANY, subsystem: &name, host: &host };
    let sqe =
        connect.encode().with_data_pointer(DataPointer::InCapsule { length: 1024, offset: 0 });
    let command = tcp::command(&sqe, 1024, Digests::default());
    let stream = [&greeting(Digests::default())[..], &command, &data.encode()].concat();
    for cut in (0..stream.len()).step_by(7) {
        let mut socket = served.stream();
        socket.write_all(&stream[..cut]).expect("it is taken");
        drop(socket);
    }
    good.write(0, &[5; 4096], true).expect("others are not disturbed");
    let limit = Instant::now() + Duration::from_secs(20);
    while served.target.statistics().connections > 2 {
        assert!(Instant::now() < limit, "connections that were cut are left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_host_that_gives_no_sign_of_life_loses_its_controller() {
    let served = Served::new();
    let options = InitiatorOptions { keep_alive: Duration::from_millis(900), ..served.options(1) };
    let mut initiator = Initiator::connect(served.target.address(), &options).unwrap();
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(500));
        initiator.admin.send(Sqe::new(admin::KEEP_ALIVE, 0), &[]).expect("it is heard");
    }
    initiator.io.send(write(0, 1), &[1; 4096]).expect("it lives");
    std::thread::sleep(Duration::from_millis(1800));
    let outcome = initiator.io.send(write(0, 1), &[2; 4096]);
    assert!(matches!(outcome, Err(InitiatorError::Ended(_) | InitiatorError::Io(_))));
    assert_eq!(served.service.counters().writes, 1, "nothing is written by a host that is gone");
    let mut again = NvmeHost(served.connect(1));
    again.write(0, &[3; 4096], false).expect("it may come back");
}

#[test]
fn a_host_that_comes_back_ends_what_it_had_before() {
    let latency = Duration::from_millis(300);
    let served = Served::with(
        MemoryOptions { latency, ..MemoryOptions::new(SIZE) },
        TargetOptions::default(),
    );
    let mut first = served.connect(1);
    // It is with the service when its host comes back.
    first.io.submit(write(0, 1), Buffer::copied_from(&[1; 4096]), Buffer::empty());
    first.io.flush();
    std::thread::sleep(Duration::from_millis(50));
    let mut second = NvmeHost(served.connect(1));
    second.write(0, &[2; 4096], false).expect("a write succeeds");
    std::thread::sleep(2 * latency);
    let mut bytes = [0; 4096];
    served.service.peek(0, &mut bytes);
    assert_eq!(bytes, [2; 4096], "what was given up does not come after what was written later");
}

#[test]
fn a_queue_that_comes_back_takes_the_place_of_the_one_that_was() {
    let served = Served::new();
    let mut initiator = served.connect(1);
    let mut again = initiator.connect_another(1).expect("the older one makes room");
    again.send(write(0, 1), &[2; 4096]).expect("it works");
    assert!(initiator.io.send(write(0, 1), &[1; 4096]).is_err(), "the older one is gone");
}

#[test]
fn a_queue_that_was_disconnected_takes_no_more_commands_and_its_controller_stays() {
    let served = Served::new();
    let mut initiator = served.connect(1);
    initiator.io.send(write(0, 1), &[7; 4096]).expect("a write succeeds");
    let goodbye = fabrics::fabrics_command(fabrics_kind::DISCONNECT);
    initiator.io.send(goodbye, &[]).expect("a host may leave");
    let outcome = initiator.io.send(write(0, 1), &[8; 4096]);
    let is_over = matches!(outcome, Err(InitiatorError::Ended(_) | InitiatorError::Io(_)));
    assert!(is_over, "{outcome:?}");
    initiator.admin.send(Sqe::new(admin::KEEP_ALIVE, 0), &[]).expect("the controller lives");
    let mut back = NvmeHost(served.connect(2));
    let mut block = [0; 4096];
    back.read(0, &mut block).expect("a read succeeds");
    assert_eq!(block, [7; 4096], "nothing was written behind its back");
}

#[test]
fn hosts_with_one_identity_and_two_names_are_two_hosts() {
    let served = Served::new();
    let first = served.options(1);
    let host = coulter_nvme_target::host_name(&[9; 16]);
    let second = InitiatorOptions { host, ..first.clone() };
    let connect = |options| Initiator::connect(served.target.address(), options);
    let mut hosts = [&first, &second].map(|options| NvmeHost(connect(options).expect("let in")));
    for round in 0..3 {
        for (host, block) in hosts.iter_mut().zip(0..) {
            host.write(block * 4096, &[round; 4096], false).expect("neither ends the other");
        }
    }
}

#[test]
fn a_reset_ends_io_queues_and_the_controller_stays() {
    let served = Served::new();
    let mut initiator = served.connect(1);
    let set = fabrics::property_set(property::CC, 0x0046_0000);
    initiator.admin.send(set, &[]).expect("it may be asked");
    assert!(initiator.io.send(write(0, 1), &[1; 4096]).is_err(), "its queue is gone");
    let get = fabrics::property_get(property::CSTS, false);
    let limit = Instant::now() + Duration::from_secs(10);
    while initiator.admin.send(get, &[]).expect("it is heard").result32() & 1 != 0 {
        assert!(Instant::now() < limit, "it does not come to rest");
    }
    assert!(initiator.connect_another(1).is_err(), "nothing works until it is enabled");
    enable(&mut initiator.admin).expect("it becomes ready");
    let queues = Sqe::new(admin::SET_FEATURES, 0).with_dword(10, 7).with_dword(11, 0x0003_0003);
    let granted = initiator.admin.send(queues, &[]).expect("queues are granted").result32();
    assert_eq!(granted, 0x0003_0003);
    let mut io = initiator.connect_another(4).expect("queues can be had again");
    io.send(write(0, 1), &[1; 4096]).expect("it works");
    let outcome = initiator.admin.send(queues, &[]);
    assert!(is_status(&outcome, Status::SEQUENCE_ERROR), "not while there are queues");
    let shut_down = fabrics::property_set(property::CC, 0x0046_4001);
    initiator.admin.send(shut_down, &[]).expect("it may be asked");
    while initiator.admin.send(get, &[]).expect("it is heard").result32() >> 2 & 3 != 2 {
        assert!(Instant::now() < limit, "it does not shut down");
    }
    assert_eq!(served.service.counters().flushes, 1, "what was written is made durable");
}

#[test]
fn a_volume_that_becomes_read_only_is_told_to_its_hosts() {
    let served = Served::new();
    let mut initiator = served.connect(1);
    let events = Sqe::new(admin::SET_FEATURES, 0).with_dword(10, 0xb).with_dword(11, 0x100);
    initiator.admin.send(events, &[]).expect("events can be asked for");
    initiator.admin.submit_raw(Sqe::new(admin::ASYNC_EVENT, 0), &[], 0);
    initiator.admin.flush();
    let error = RequestError::Device { errno: libc::EIO };
    let fault = Fault { kind: FaultKind::Write, range: 0..4096, error, count: 1 };
    served.service.inject(fault);
    let outcome = initiator.io.send(write(0, 1), &[1; 4096]);
    assert!(is_status(&outcome, Status::WRITE_FAULT), "{outcome:?}");
    let mut finished = Vec::new();
    initiator.admin.poll(&mut finished, Some(Duration::from_secs(10)));
    let cqe = finished[0].outcome.expect("the event is told");
    assert_eq!(cqe.result32(), 0x0004_0002, "a namespace has changed; the log says which");
    let log =
        GetLog { page: page::CHANGED_NAMESPACES, retains_event: false, length: 4096, offset: 0 };
    let changed = initiator.admin.fetch(log.encode(), 4096).expect("the log can be read");
    assert_eq!(changed[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    let identify = Sqe::new(admin::IDENTIFY, 1);
    let namespace = initiator.admin.fetch(identify, 4096).expect("it can be asked");
    assert_eq!(namespace[99], 1, "it is protected from writes");
    // Newer kernels look here instead.
    let independent = Sqe::new(admin::IDENTIFY, 1).with_dword(10, 8);
    let independent = initiator.admin.fetch(independent, 4096).expect("it can be asked");
    assert_eq!(independent[..15], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    let health = GetLog { page: page::SMART, retains_event: false, length: 512, offset: 0 };
    let health = initiator.admin.fetch(health.encode(), 512).expect("the log can be read");
    assert_eq!(health[0], 8, "its media is read-only");
    let outcome = initiator.io.send(write(0, 1), &[1; 4096]);
    assert!(is_status(&outcome, Status::NAMESPACE_WRITE_PROTECTED), "{outcome:?}");
}

#[test]
fn an_admin_queue_is_as_long_as_hosts_have_it_however_short_the_others_are() {
    let options = TargetOptions { queue_size_max: 17, ..TargetOptions::default() };
    let served = Served::with(MemoryOptions::new(SIZE), options);
    // Its admin queue has 32 slots, as Linux has them.
    let short = InitiatorOptions { queue_size: 17, ..served.options(1) };
    let initiator = Initiator::connect(served.target.address(), &short).expect("it can connect");
    let long = InitiatorOptions { queue_size: 18, ..served.options(1) };
    let cntlid = initiator.cntlid;
    let refused = Initiator::connect_queue(served.target.address(), &long, cntlid, 1).map(drop);
    let is_invalid = |error: &InitiatorError| {
        matches!(error, InitiatorError::Status(cqe)
            if cqe.status.code_and_type() == Status::CONNECT_INVALID)
    };
    assert!(refused.as_ref().is_err_and(is_invalid), "{refused:?}");
}

#[test]
fn addresses_that_others_reach_and_ports_in_use_are_refused() {
    let served = Served::new();
    let disks = || {
        let service = Arc::new(MemoryService::new(MemoryOptions::new(SIZE)));
        vec![Disk { service, read_only: false, block_size: 4096 }]
    };
    let open: Address = "tcp:0.0.0.0:0".parse().unwrap();
    let refused = Target::start(&open, disks(), TargetOptions::default());
    let text = refused.err().expect("others reach it").to_string();
    assert!(text.contains("neither TLS"), "{text}");
    let taken = Target::start(served.target.address(), disks(), TargetOptions::default());
    let text = taken.err().expect("the port is in use").to_string();
    assert!(text.contains("cannot listen"), "{text}");
    let unix: Address = "unix:/run/x".parse().unwrap();
    assert!(Target::start(&unix, disks(), TargetOptions::default()).is_err());
    for options in [
        TargetOptions { queue_size_max: 1, ..TargetOptions::default() },
        TargetOptions { queue_size_max: 1025, ..TargetOptions::default() },
        TargetOptions { io_queues_max: 0, ..TargetOptions::default() },
        TargetOptions { queue_memory_max: 1 << 20, ..TargetOptions::default() },
    ] {
        assert!(Target::start(served.target.address(), disks(), options).is_err());
    }
}
