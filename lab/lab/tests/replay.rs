//! `coulter-lab replay` on traces as they come: good, damaged, endless.

mod sandbox;

use sandbox::Sandbox;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

const QUICK: [&str; 4] = ["--spare", "40%", "--passes", "1"];

fn blkparse(requests: u64) -> String {
    let mut text = String::new();
    for number in 0..requests {
        let sector = number * 7919 % 50_000 * 8;
        writeln!(
            text,
            "  8,0    1 {:>8} {:>14.9} {:>5}  Q  WS {sector} + 8 [postgres]",
            number + 1,
            number as f64 * 1e-4,
            4242
        )
        .expect("a string takes all text");
    }
    text + "CPU1 (sda):\n Writes Queued:  1,  4KiB\n"
}

#[test]
fn a_trace_is_judged_and_drawn() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("t.txt"), blkparse(30_000)).expect("the file can be written");
    let arguments = [&["replay", "t.txt", "--json", "--plot", "t.svg"], &QUICK[..]].concat();
    let report = sandbox.json(&arguments);
    assert_eq!(report["trace"]["format"], "blkparse");
    assert_eq!(report["trace"]["writes"], 30_000);
    assert_eq!(report["trace"]["bad_lines"], 0);
    let row = &report["rows"][0];
    assert_eq!(row["spare"], 0.4);
    assert!(row["figures"]["write_amplification"].as_f64() > Some(1.0), "{row}");
    assert_eq!(report["advice"]["gains"][0]["worth"], "yes", "{report}");
    let picture = std::fs::read_to_string(sandbox.path("t.svg")).expect("it was drawn");
    assert!(picture.starts_with("<svg") && picture.contains("<polyline"), "{picture}");
}

#[test]
fn every_field_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/replay.md");
    let documentation = std::fs::read_to_string(path).expect("the documentation is there");
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("t.txt"), blkparse(2000)).expect("the file can be written");
    let report = sandbox.json(&[&["replay", "t.txt", "--json"], &QUICK[..]].concat());
    let mut names = Vec::new();
    sandbox::names(&report, &mut names);
    assert!(names.len() > 50, "{names:?}");
    let missing: Vec<_> =
        names.iter().filter(|name| !documentation.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/replay.md: {missing:?}");
}

#[test]
fn damaged_lines_are_told_and_refused_when_asked() {
    let sandbox = Sandbox::new();
    let text = blkparse(100)
        .replace(" + 8 [postgres]\n  8,0    1       51", " + x [postgres]\n  8,0    1       51");
    std::fs::write(sandbox.path("t.txt"), text).expect("the file can be written");
    let output = sandbox.run(&[&["replay", "t.txt"], &QUICK[..]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert!(error.contains("left out 1 of 102 lines"), "{error}");
    let output = sandbox.run(&["replay", "t.txt", "--strict"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("line 50"), "{error}");
}

/// While the trace is still coming, what is kept of it is far smaller than what came.
#[test]
fn a_trace_is_read_as_a_stream() {
    const REPEATS: usize = 40;
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&[&["replay", "-", "--json"], &QUICK[..]].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the program can be started");
    let text = blkparse(20_000);
    let text = text.split("CPU1").next().expect("there are requests");
    let mut input = child.stdin.take().expect("it is a pipe");
    (0..REPEATS).for_each(|_| input.write_all(text.as_bytes()).expect("the program reads"));
    let status = std::fs::File::open(format!("/proc/{}/status", child.id())).expect("it runs");
    let peak = BufReader::new(status).lines().map_while(Result::ok);
    let peak = peak.filter_map(|line| line.strip_prefix("VmHWM:").map(str::to_owned)).next();
    let peak = peak.and_then(|kib| kib.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok());
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let peak = peak.expect("the kernel knows") << 10;
    let sent = text.len() * REPEATS;
    assert!(sent > 48 << 20, "{sent} bytes");
    assert!(peak < sent * 2 / 3, "{peak} bytes in memory after {sent}");
}

#[test]
fn a_published_trace_is_read_whole() {
    let sandbox = Sandbox::new();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/tpcc-excerpt.trace");
    let report = sandbox.json(&[&["replay", path, "--strict", "--json"], &QUICK[..]].concat());
    let trace = &report["trace"];
    assert_eq!(trace["format"], "mqsim");
    assert_eq!(trace["lines"], 1000);
    let requests = trace["reads"].as_u64().zip(trace["writes"].as_u64());
    assert_eq!(requests.map(|(reads, writes)| reads + writes), Some(1000));
    let one = sandbox.json(&[&["replay", path, "--device", "4", "--json"], &QUICK[..]].concat());
    assert_eq!(one["trace"]["devices"], 1);
}
