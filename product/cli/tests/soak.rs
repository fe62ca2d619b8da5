//! A daemon's memory under endless random writes and trims: flat, however long it goes on.
//!
//! For seconds in every run of the tests; for `COULTER_SOAK_SECONDS` (300) by `make soak`, whose
//! output docs/benchmarking.md quotes. Needs fio; no root.

mod sandbox;

use sandbox::{Sandbox, skipped};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const VOLUME_MIB: u64 = 256;
/// What the second half may use more than the first did at most, in KiB: noise of an allocator.
const GROWTH_KIB_MAX: u64 = 4 << 10;

/// The daemon's memory in KiB: what it has now.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the kernel says so");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

/// fio, ended with the test.
struct Load(Child);

impl Load {
    fn start(uri: &str, seconds: u64, work: &[&str]) -> Load {
        let mut fio = Command::new("fio");
        fio.args(["--name=soak", "--ioengine=nbd", "--iodepth=32", "--thread", "--time_based"]);
        fio.args(["--norandommap", "--randrepeat=0", &format!("--runtime={seconds}")]);
        fio.args([&format!("--uri={uri}"), &format!("--size={VOLUME_MIB}M")]).args(work);
        fio.stdin(Stdio::null()).stdout(Stdio::null());
        Load(fio.spawn().expect("fio is installed"))
    }

    fn end(mut self) {
        let status = self.0.wait().expect("it is our child");
        assert!(status.success(), "fio: {status}");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn soak(seconds: u64) {
    if Command::new("fio").arg("--version").output().is_err() {
        return skipped("soaking: fio is not installed");
    }
    let sandbox = Sandbox::new();
    let volume = format!("{VOLUME_MIB}M");
    sandbox.ok(&[
        "create",
        "disk.img",
        "--store-size",
        "340M",
        "--size",
        &volume,
        "--segment-size",
        "2M",
    ]);
    let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]).trim_end().to_owned();
    let pid = sandbox.pid_of("disk");
    // Once over all of it, so that map and buffers have what they will ever need.
    Load::start(&uri, 2 + seconds / 20, &["--rw=randwrite", "--bs=64k"]).end();

    let begin = Instant::now();
    let writes = Load::start(&uri, seconds, &["--rw=randwrite", "--bsrange=4k-64k"]);
    let trims = Load::start(
        &uri,
        seconds,
        &["--rw=randtrim", "--bsrange=4k-1M", "--thinktime=10ms", "--iodepth=1"],
    );
    let mut samples = Vec::new();
    while begin.elapsed() < Duration::from_secs(seconds) {
        samples.push(resident_kib(pid));
        std::thread::sleep(Duration::from_millis(200));
    }
    writes.end();
    trims.end();
    let status = sandbox.json(&["status", "disk", "--json"]);
    let number = |group: &str, name: &str| {
        status["statistics"][group][name].as_u64().expect("the counter is there")
    };
    let times = number("written", "host_bytes") as f64 / f64::from(VOLUME_MIB as u32) / 1_048_576.0;
    let (first, second) = samples.split_at(samples.len() / 2);
    let most = |half: &[u64]| half.iter().copied().max().expect("there are samples");
    println!(
        "{seconds} s, {VOLUME_MIB} MiB overwritten {times:.1} times, {} trims, {} segments cleaned",
        number("requests", "discards"),
        number("space", "segments_cleaned"),
    );
    let tenths: Vec<String> = samples
        .chunks(samples.len().div_ceil(10))
        .map(|part| format!("{:.1}", most(part) as f64 / 1024.0))
        .collect();
    println!("resident MiB, most in each tenth: {}", tenths.join(" "));
    println!("first half {} KiB, second half {} KiB at most", most(first), most(second));
    sandbox.ok(&["detach", "disk"]);
    assert!(most(second) <= most(first) + GROWTH_KIB_MAX, "it grows");
}

#[test]
fn memory_is_flat_for_seconds() {
    soak(4);
}

#[test]
#[ignore = "minutes: make soak"]
fn memory_is_flat() {
    let seconds = std::env::var("COULTER_SOAK_SECONDS").ok();
    soak(seconds.and_then(|text| text.parse().ok()).unwrap_or(300));
}
