//! Other people's NBD clients on a volume: libnbd's, QEMU's and fio's.
//!
//! In short in every run of the tests; for long by `make nbd-interop`, which also measures against
//! `qemu-nbd` and whose output is quoted in docs/attach.md. Needs no root.

mod sandbox;

use sandbox::{Sandbox, skipped, wait_until};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// How much is done.
struct Scale {
    /// MiB of the volume, and so of the copy.
    volume_mib: u64,
    /// MiB that each of four jobs of fio writes and reads back.
    job_mib: u64,
    /// Patterns that QEMU writes and reads.
    patterns: u64,
}

const SHORT: Scale = Scale { volume_mib: 96, job_mib: 6, patterns: 24 };
const LONG: Scale = Scale { volume_mib: 2048, job_mib: 256, patterns: 2000 };

const CONNECTIONS: u64 = 4;
/// Seconds of each turn of a measurement, and turns.
const TURN: &str = "4";
const TURNS: usize = 5;

struct Volume {
    sandbox: Sandbox,
    uri: String,
}

impl Volume {
    fn new(volume_mib: u64) -> Volume {
        let sandbox = Sandbox::new();
        let (size, volume) = (format!("{}M", 2 * volume_mib), format!("{volume_mib}M"));
        let shape = ["--store-size", &size, "--size", &volume, "--segment-size", "2M"];
        sandbox.ok(&[&["create", "disk.img"], &shape[..]].concat());
        let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]).trim_end().to_owned();
        Volume { sandbox, uri }
    }

    fn path(&self, name: &str) -> String {
        self.sandbox.path(name).display().to_string()
    }

    /// Detached in order, and every block of it compared by our checker.
    fn end(self) -> u64 {
        self.sandbox.ok(&["detach", "disk"]);
        let report = self.sandbox.json(&["check", "disk.img", "--data", "--json"]);
        report["counters"]["data_blocks"].as_u64().expect("a number")
    }
}

/// Runs what must succeed, and gives back what it printed.
#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("it is installed");
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether all of them are installed; says loudly which is not.
fn have(programs: &[&str]) -> bool {
    let missing = |program: &&&str| {
        let mut probe = Command::new(program);
        probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
    };
    let missing: Vec<&str> = programs.iter().filter(missing).copied().collect();
    if !missing.is_empty() {
        skipped(&format!("NBD clients: {} not installed", missing.join(", ")));
    }
    missing.is_empty()
}

fn nbdinfo(volume: &Volume, scale: &Scale) -> String {
    let text = run("nbdinfo", &["--json", &volume.uri]);
    let json: Value = serde_json::from_str(&text).expect("it is JSON");
    let export = &json["exports"][0];
    assert_eq!(export["export-size"], scale.volume_mib << 20);
    for can in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero", "can_df"] {
        assert_eq!(export[can], true, "{can}");
    }
    format!(
        "{}, {} MiB, flush, FUA, trim, zero, several clients",
        json["protocol"].as_str().expect("a word"),
        scale.volume_mib
    )
}

/// Random bytes there and back: the first and the last third of the volume, a hole between.
fn nbdcopy(volume: &Volume, scale: &Scale) -> String {
    let size = scale.volume_mib << 20;
    let part = vec![0; size as usize / 3 / 4096 * 4096];
    let random = |mut bytes: Vec<u8>| {
        let mut source = File::open("/dev/urandom").expect("it is there");
        source.read_exact(&mut bytes).expect("it never ends");
        bytes
    };
    let mut content = random(part.clone());
    let last = random(part);
    content.resize(size as usize - last.len(), 0);
    content.extend(last);
    fs::write(volume.path("in"), &content).expect("there is room");
    run("nbdcopy", &["--flush", &volume.path("in"), &volume.uri]);
    run("nbdcopy", &[&volume.uri, &volume.path("out")]);
    assert!(fs::read(volume.path("out")).expect("it was written") == content, "the copy differs");
    let map = run("nbdinfo", &["--map", "--json", &volume.uri]);
    let map: Value = serde_json::from_str(&map).expect("it is JSON");
    let holes = map.as_array().expect("an array").iter().filter(|extent| extent["type"] == 3);
    assert!(holes.count() > 0, "the hole came back as data: {map}");
    for name in ["in", "out"] {
        fs::remove_file(volume.path(name)).expect("it was written");
    }
    format!("{} MiB there and back, equal, the hole still one", scale.volume_mib)
}

/// Patterns at odd places and sizes, zeros and discards among them, each read back; then all of
/// what was not overwritten since once more.
fn qemu_io(volume: &Volume, scale: &Scale) -> String {
    let slot = (scale.volume_mib << 20) / scale.patterns / 4096 * 4096;
    let place = |number: u64| (number * slot + number % 7 * 512, 512 * (1 + number * 37 % 90));
    let mut script = Vec::new();
    for number in 0..scale.patterns {
        let (offset, length) = place(number);
        let pattern = 1 + number % 255;
        script.push(format!("write -P {pattern} {offset} {length}"));
        match number % 5 {
            0 => script.push(format!("write -z {offset} {length}")),
            1 => script.push(format!("discard {offset} {length}")),
            2 => script.push(format!("write -f -P {pattern} {offset} {length}")),
            _ => {}
        }
    }
    script.push("flush".to_owned());
    for number in 0..scale.patterns {
        let (offset, length) = place(number);
        let pattern = if number % 5 < 2 { 0 } else { 1 + number % 255 };
        script.push(format!("read -P {pattern} {offset} {length}"));
    }
    for commands in script.chunks(200) {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let arguments = ["-f", "raw", "-t", "none"].into_iter().chain(commands);
        let arguments: Vec<&str> = arguments.chain([&volume.uri[..]]).collect();
        let said = run("qemu-io", &arguments);
        assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
    }
    format!("{} patterns of 512 B to 45 KiB, zeros and discards", scale.patterns)
}

/// Four connections at once, each with a part of its own, everything read back and compared.
fn fio_verified(volume: &Volume, scale: &Scale) -> String {
    let uri = format!("--uri={}", volume.uri);
    let size = format!("--size={}M", scale.job_mib);
    let apart = format!("--offset_increment={}M", scale.job_mib);
    let jobs = format!("--numjobs={CONNECTIONS}");
    let common = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        &size,
        &apart,
        &jobs,
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--verify_state_save=0",
        "--group_reporting",
        "--output-format=json",
    ];
    let mut verified = 0;
    for work in [
        &["--rw=randwrite", "--bsrange=512-1M", "--fsync=32", "--randseed=7"][..],
        &["--rw=randtrimwrite", "--bsrange=512-64k", "--randseed=8"],
        &["--rw=randrw", "--bs=4k", "--randseed=9"],
    ] {
        let text = run("fio", &[&common, work].concat());
        let report: Value =
            serde_json::from_str(&text[text.find('{').expect("a report")..]).expect("it is JSON");
        let job = &report["jobs"][0];
        assert_eq!(job["error"], 0, "{text}");
        verified += job["read"]["io_bytes"].as_u64().expect("a number");
    }
    assert!(verified > 0);
    format!("{CONNECTIONS} connections, 512 B to 1 MiB, trims: {} MiB verified", verified >> 20)
}

fn interoperate(scale: &Scale) {
    if !have(&["nbdinfo", "nbdcopy", "qemu-io", "fio"]) {
        return;
    }
    let volume = Volume::new(scale.volume_mib);
    println!("nbdinfo  {}", nbdinfo(&volume, scale));
    println!("nbdcopy  {}", nbdcopy(&volume, scale));
    println!("qemu-io  {}", qemu_io(&volume, scale));
    println!("fio      {}", fio_verified(&volume, scale));
    println!("coulter  check --data: {} blocks compared, sound", volume.end());
}

#[test]
fn other_peoples_clients_find_what_they_wrote() {
    interoperate(&SHORT);
}

#[test]
#[ignore = "minutes: make nbd-interop"]
fn other_peoples_clients_find_what_they_wrote_for_long() {
    interoperate(&LONG);
    println!(
        "4 KiB requests at random, medians of {TURNS} turns of {TURN} s; qemu-nbd --cache=none --aio=io_uring:"
    );
    for (Load { operation, depth }, ours, theirs) in measure() {
        let ratio = ours / theirs;
        println!(
            "{operation}, depth {depth:2}: coulter {ours:6.0}/s; qemu-nbd {theirs:6.0}/s; {ratio:.2} : 1"
        );
        assert!(ours > 0.0 && theirs > 0.0, "both sides carry requests out");
    }
}

/// What `fio` does.
#[derive(Clone, Copy)]
struct Load {
    operation: &'static str,
    depth: u32,
}

/// One program that waits for each request, and one that has many under way.
const LOADS: [Load; 4] = [
    Load { operation: "read", depth: 1 },
    Load { operation: "write", depth: 1 },
    Load { operation: "read", depth: 32 },
    Load { operation: "write", depth: 32 },
];

/// A server of QEMU's that ends with the test.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Medians of both sides in requests per second, which take turns.
fn measure() -> Vec<(Load, f64, f64)> {
    if !have(&["qemu-nbd", "fio"]) {
        return Vec::new();
    }
    let volume = Volume::new(1024);
    let (raw, socket) = (volume.path("raw.img"), volume.path("q.sock"));
    // Prewritten, as a disk in use is: else its first writes would allocate.
    let fill = ["--name=fill", "--rw=write", "--bs=1M", "--size=1G", "--direct=1", "--end_fsync=1"];
    run("fio", &[&fill[..], &[&format!("--filename={raw}")]].concat());
    let qemu = Command::new("qemu-nbd")
        .args(["--persistent", "--format=raw", "--cache=none", "--aio=io_uring", "--shared=8"])
        .args(["--socket", &socket, &raw])
        .spawn()
        .expect("it is installed");
    let _qemu = Qemu(qemu);
    wait_until("qemu-nbd serves", || Path::new(&socket).exists());
    let theirs = format!("nbd+unix:///?socket={socket}");
    // The volume is written once too.
    let fill = ["--name=fill", "--ioengine=nbd", "--rw=write", "--bs=1M", "--size=1G"];
    run("fio", &[&fill[..], &[&format!("--uri={}", volume.uri)]].concat());
    let measured = LOADS.map(|load| {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for turn in 0..TURNS {
            if turn % 2 == 0 {
                a.push(rate(load, &volume.uri));
                b.push(rate(load, &theirs));
            } else {
                b.push(rate(load, &theirs));
                a.push(rate(load, &volume.uri));
            }
        }
        (load, median(a), median(b))
    });
    volume.end();
    measured.into()
}

fn rate(load: Load, uri: &str) -> f64 {
    let Load { operation, depth } = load;
    let uri = format!("--uri={uri}");
    let runtime = format!("--runtime={TURN}");
    let text = run(
        "fio",
        &[
            "--name=random",
            "--ioengine=nbd",
            &uri,
            &format!("--rw=rand{operation}"),
            "--bs=4k",
            &format!("--iodepth={depth}"),
            "--size=1G",
            "--norandommap",
            "--randrepeat=0",
            "--time_based",
            &runtime,
            "--output-format=json",
        ],
    );
    let report: Value =
        serde_json::from_str(&text[text.find('{').expect("a report")..]).expect("it is JSON");
    report["jobs"][0][operation]["iops"].as_f64().expect("a number")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
