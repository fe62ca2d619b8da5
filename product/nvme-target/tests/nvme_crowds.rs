//! Many hosts at a target, most of them hostile or silent: those that behave are let in, and served.

use coulter_attach_suite::conformance::{Host, NvmeHost};
use coulter_attach_suite::initiator::{Channel, connect_admin, enable};
use coulter_attach_suite::initiator::{Initiator, InitiatorOptions};
use coulter_attach_suite::loopback::{connect, serve};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_net::Address;
use coulter_nvme::fabrics::{self, CNTLID_ANY, Connect, ConnectData};
use coulter_nvme::opcode::admin;
use coulter_nvme::tcp::{self, Digests, IcReq};
use coulter_nvme::{DataPointer, Sqe};
use coulter_nvme_target::{Target, TargetOptions};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BOTH: Digests = Digests { header: true, data: true };

fn target(options: TargetOptions) -> Target {
    serve(Arc::new(MemoryService::new(MemoryOptions::new(8 << 20))), options)
}

fn stream(target: &Target) -> TcpStream {
    let Address::Tcp { host, port } = target.address() else { unreachable!("it is TCP") };
    TcpStream::connect((host.as_str(), *port)).expect("it listens")
}

fn greeting(digests: Digests) -> Vec<u8> {
    IcReq { format: 0, alignment: 0, digests, r2t_max: 1 }.encode().to_vec()
}

#[test]
fn two_hundred_hostile_connections_do_not_disturb_a_good_one() {
    let options = TargetOptions { connections_max: 256, ..TargetOptions::default() };
    let target = target(options);
    let mut good = NvmeHost(connect(&target, 200));
    let mut sockets: Vec<TcpStream> = Vec::new();
    for index in 0..200u32 {
        let mut socket = stream(&target);
        let junk: Vec<u8> = (0..index * 37).map(|at| (at * index) as u8).collect();
        let bytes = match index % 4 {
            0 => greeting(Digests::default()),
            1 => junk,
            2 => [greeting(BOTH), junk].concat(),
            _ => Vec::new(),
        };
        let _ = socket.write_all(&bytes);
        sockets.push(socket);
    }
    let start = Instant::now();
    for block in 0..100 {
        good.write(block * 4096, &[block as u8; 4096], false).expect("a write succeeds");
        let mut back = [0; 4096];
        good.read(block * 4096, &mut back).expect("a read succeeds");
        assert_eq!(back, [block as u8; 4096]);
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    drop(sockets);
}

#[test]
fn hosts_that_are_silent_keep_no_other_out() {
    let target = target(TargetOptions::default());
    let connection = |subsystem: &str| {
        let connect = Connect {
            format: 0,
            queue_id: 0,
            queue_size: 32,
            flow_control_disabled: false,
            keep_alive_ms: 0,
        };
        let host = coulter_nvme_target::host_name(&[3; 16]);
        let data = ConnectData { host_id: [3; 16], cntlid: CNTLID_ANY, subsystem, host: &host };
        let data = data.encode();
        let pointer = DataPointer::InCapsule { length: data.len() as u32, offset: 0 };
        let sqe = connect.encode().with_data_pointer(pointer);
        [&tcp::command(&sqe, data.len() as u32, Digests::default())[..], &data].concat()
    };
    let greeting = greeting(Digests::default());
    let discovering = [&greeting[..], &connection(fabrics::DISCOVERY_NQN)].concat();
    let phases: [&[u8]; 4] = [&[], &greeting, &discovering[..300], &discovering];
    let mut good = NvmeHost(connect(&target, 200));
    let silent: Vec<TcpStream> = (0..256)
        .map(|index| {
            let mut silent = stream(&target);
            // Those that came first are hung up on.
            let _ = silent.write_all(phases[index % phases.len()]);
            silent
        })
        .collect();
    let start = Instant::now();
    let mut late = NvmeHost(connect(&target, 201));
    late.write(0, &[1; 4096], false).expect("it is let in");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    good.write(0, &[2; 4096], false).expect("a host that is in stays in");
    assert!(target.statistics().refused >= 128);
    drop(silent);
}

#[test]
fn queues_that_are_told_of_may_be_connected() {
    let target = target(TargetOptions::default());
    let options = InitiatorOptions::new(target.names()[0].clone(), 1);
    let (mut channel, cntlid) = connect_admin(target.address(), &options).unwrap();
    enable(&mut channel).expect("it becomes ready");
    let features = Sqe::new(admin::GET_FEATURES, 0).with_dword(10, 7);
    let told = channel.send(features, &[]).expect("it may be asked").result32();
    assert_eq!(told, 7 << 16 | 7, "eight of each");
    let address = target.address();
    let queues: Vec<Channel> = (1..=8)
        .map(|id| Initiator::connect_queue(address, &options, cntlid, id).expect("it is told of"))
        .collect();
    assert!(Initiator::connect_queue(address, &options, cntlid, 9).is_err());
    drop(queues);
}
