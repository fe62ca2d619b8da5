//! Other people's clients against our server, and other people's tools on our device.

use coulter::service::BlockService;
use coulter_attach::point::{AttachPoint, Detach};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_block::loop_device::{LoopDevice, LoopOptions};
use coulter_net::nbd::{Address, Export, Server, ServerOptions};
use coulter_systems::Scratch;
use coulter_systems::requirement;
use coulter_workload::Random;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

const SIZE: u64 = 64 << 20;

struct Served {
    service: MemoryService,
    server: Server,
    scratch: coulter_systems::Scratch,
}

/// A server over a service that answers late and out of order.
fn serve() -> Served {
    let latency = std::time::Duration::from_micros(50);
    let options = MemoryOptions { latency, shuffle_seed: Some(3), ..MemoryOptions::new(SIZE) };
    let service = MemoryService::new(options);
    let scratch = Scratch::on_disk();
    let address = Address::Unix(scratch.path("nbd.sock"));
    let export = Export {
        description: "blocks in memory".into(),
        ..Export::new("disk", Arc::new(service.clone()))
    };
    let server = Server::start(&address, vec![export], ServerOptions::default()).unwrap();
    Served { service, server, scratch }
}

impl Served {
    fn uri(&self) -> String {
        self.server.uri()
    }

    /// Every client leaves in good order, and the server too.
    fn end(mut self) {
        self.server.detach(Detach::IfIdle).expect("the clients are gone");
        assert_eq!(self.server.statistics().protocol_errors, 0);
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    if !requirement::has_program("nbdinfo") {
        return;
    }
    let served = serve();
    let output = run("nbdinfo", &["--json", &served.uri()]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["protocol"], "newstyle-fixed");
    assert_eq!(json["structured"], true);
    let export = &json["exports"][0];
    for (field, expected) in [
        ("is_read_only", false),
        ("is_rotational", false),
        ("can_df", true),
        ("can_flush", true),
        ("can_fua", true),
        ("can_multi_conn", true),
        ("can_trim", true),
        ("can_zero", true),
        ("can_fast_zero", true),
    ] {
        assert_eq!(export[field], expected, "{field}");
    }
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    assert_eq!(export["export-size"], SIZE);
    assert_eq!(export["description"], "blocks in memory");
    assert_eq!(export["block_size_minimum"], 512);
    assert_eq!(export["block_size_preferred"], 4096);
    assert_eq!(export["block_size_maximum"], 32 << 20);
    let output = run("nbdinfo", &["--list", "--json", &served.uri()]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"export-name\": \"disk\""));
    served.end();
}

#[test]
fn nbdcopy_brings_back_what_it_took() {
    if !requirement::has_program("nbdcopy") || !requirement::has_program("nbdinfo") {
        return;
    }
    let served = serve();
    let path = |name: &str| served.scratch.path(name).display().to_string();
    // Data, then nothing, then data: the hole must come back as one.
    let mut bytes = vec![0; SIZE as usize];
    Random::new(1).fill(&mut bytes[..10 << 20]);
    Random::new(2).fill(&mut bytes[50 << 20..]);
    std::fs::write(path("in"), &bytes).unwrap();
    run("nbdcopy", &["--flush", &path("in"), &served.uri()]);
    run("nbdcopy", &[&served.uri(), &path("out")]);
    assert!(std::fs::read(path("out")).unwrap() == bytes, "the copy differs");
    let mut found = vec![0; SIZE as usize];
    served.service.peek(0, &mut found);
    assert!(found == bytes, "the service has something else");
    assert!(served.service.counters().flushes > 0);
    let output = run("nbdinfo", &["--map", "--json", &served.uri()]);
    let map: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let hole = map.as_array().unwrap().iter().any(|extent| extent["type"] == 3);
    assert!(hole, "the map shows a hole: {map}");
    served.end();
}

#[test]
fn qemu_io_reads_its_patterns() {
    if !requirement::has_program("qemu-io") {
        return;
    }
    let served = serve();
    let script = [
        "write -P 0xab 0 1M",
        "write -P 0xcd 1536 512",
        "read -P 0xab 0 1536",
        "read -P 0xcd 1536 512",
        "read -P 0xab 2048 1046528",
        "write -z 65536 65536",
        "read -P 0 65536 65536",
        "discard 131072 131072",
        "read -P 0 131072 131072",
        "write -f -P 0x11 4M 4M",
        "read -P 0x11 4M 4M",
        "aio_write -P 0x22 8M 1M",
        "aio_write -P 0x33 9M 1M",
        "aio_flush",
        "read -P 0x22 8M 1M",
        "read -P 0x33 9M 1M",
        "flush",
    ];
    let commands = script.iter().flat_map(|command| ["-c", command]);
    let uri = served.uri();
    let arguments: Vec<&str> = ["-f", "raw", "-t", "none"].into_iter().chain(commands).collect();
    let output = run("qemu-io", &[&arguments[..], &[&uri]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("failed") && !text.contains("rror"), "{text}");
    let counters = served.service.counters();
    assert!(counters.fua > 0 && counters.flushes > 0 && counters.discards > 0);
    assert!(counters.write_zeroes > 0, "{counters:?}");
    served.end();
}

fn fio(arguments: &[&str]) {
    let common = [
        "--name=verify",
        "--size=8M",
        "--offset_increment=8M",
        "--numjobs=4",
        "--iodepth=8",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--verify_state_save=0",
        "--randseed=7",
        "--group_reporting",
        "--output-format=json",
    ];
    let output = run("fio", &[&common, arguments].concat());
    // Notes of the engine come before the report.
    let text = String::from_utf8_lossy(&output.stdout);
    let report = &text[text.find('{').expect("a report")..];
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{text}");
    assert_eq!(job["read"]["total_ios"], job["write"]["total_ios"], "all of it was read back");
    assert_ne!(job["write"]["total_ios"], 0);
}

#[test]
fn fio_verifies_what_four_connections_wrote() {
    if !requirement::has_program("fio") {
        return;
    }
    let served = serve();
    let uri = format!("--uri={}", served.uri());
    fio(&["--ioengine=nbd", &uri, "--rw=randwrite", "--bsrange=512-1M", "--fsync=32"]);
    fio(&["--ioengine=nbd", &uri, "--rw=randtrimwrite", "--bsrange=512-64k"]);
    let counters = served.service.counters();
    assert!(counters.discards > 0 && counters.flushes > 0, "{counters:?}");
    served.end();
}

#[test]
fn fio_verifies_what_it_wrote_to_the_loop_device() {
    if !requirement::may_mount() || !requirement::has_program("fio") {
        return;
    }
    let served = serve();
    let service: &dyn BlockService = &served.service;
    let directory = served.scratch.path("point");
    let mut device = LoopDevice::attach(service, &directory, &LoopOptions::default()).unwrap();
    let file = format!("--filename={}", device.address());
    let common = ["--ioengine=io_uring", "--direct=1", &file];
    fio(&[&common[..], &["--rw=randwrite", "--bsrange=4k-1M", "--fsync=32"]].concat());
    fio(&[&common[..], &["--rw=randtrimwrite", "--bsrange=4k-64k"]].concat());
    let counters = served.service.counters();
    assert!(counters.discards > 0 && counters.flushes > 0, "{counters:?}");
    device.detach(Detach::IfIdle).expect("fio is gone");
    served.end();
    assert!(!Path::new(&directory).exists());
}
