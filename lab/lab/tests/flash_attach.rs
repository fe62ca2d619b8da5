//! Emulated drives behind an attach point that needs no privilege.

mod sandbox;

use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, Session};
use coulter_attach_suite::nbd_client::Client;
use coulter_net::nbd::{Address, ClientOptions};
use sandbox::{Sandbox, wait_until};
use serde_json::Value;
use std::process::Stdio;
use std::time::Instant;

const BLOCK: u64 = 4096;

/// A client of the drive or volume called `name`.
fn client(sandbox: &Sandbox, name: &str) -> Client {
    let address = Address::Unix(sandbox.path("state").join(format!("{name}.nbd")));
    Client::connect(&address, &ClientOptions::default()).expect("the server answers")
}

fn ask(session: &mut dyn Session, operation: Operation, offset: u64, buffer: Buffer) -> Buffer {
    let length = buffer.len() as u64;
    session.submit(Request { tag: 1, operation, offset, length, buffer });
    let mut out = Vec::new();
    while out.is_empty() {
        session.complete(&mut out, None);
    }
    let completion = out.remove(0);
    completion.result.expect("the request makes sense");
    completion.buffer
}

/// Writes `count` blocks in an order that no FTL likes, then flushes.
fn scatter(session: &mut dyn Session, count: u64) {
    for step in 0..count {
        let block = step * 7919 % count;
        let bytes = Buffer::copied_from(&[block as u8; BLOCK as usize]);
        ask(session, Operation::Write { fua: false }, block * BLOCK, bytes);
    }
    ask(session, Operation::Flush, 0, Buffer::empty());
}

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {value}"))
}

#[test]
fn a_drive_keeps_data_counts_and_tells_at_the_end() {
    let sandbox = Sandbox::new();
    for ftl in ["page", "dftl", "fast"] {
        let attach = ["flash", "attach", "--size", "64M", "--spare", "60%", "--via", "nbd-server"];
        let more = ["--ftl", ftl, "--name", "drive", "--statistics", "end.json"];
        let entry = sandbox.json(&[&attach[..], &more, &["--json"]].concat());
        assert_eq!(entry["store"], format!("flash:sata-tlc+{ftl}"));
        assert_eq!(entry["volume_size_bytes"], 64 << 20);
        let mut session = client(&sandbox, "drive");
        scatter(&mut session, 1000);
        for block in [0, 1, 500, 999] {
            let room = Buffer::zeroed(BLOCK as usize);
            let read = ask(&mut session, Operation::Read, block * BLOCK, room);
            assert!(read.iter().all(|byte| *byte == block as u8), "{ftl}: block {block}");
        }
        drop(session);
        let status = sandbox.json(&["status", "drive", "--json"]);
        assert_eq!(number(&status, "/flash/drive/blocks_written"), 1000);
        assert!(number(&status, "/flash/nand/programs/host") >= 1000, "{status}");
        assert!(number(&status, "/flash/virtual_ns") > 1_000_000, "{status}");
        assert_eq!(status["flash"]["ftl"], ftl);
        sandbox.ok(&["detach", "drive"]);
        let end = std::fs::read_to_string(sandbox.path("end.json")).expect("it was written");
        let end: Value = serde_json::from_str(&end).expect("it is JSON");
        assert_eq!(end["flash"]["drive"], status["flash"]["drive"], "{ftl}");
    }
}

#[test]
fn a_volume_on_a_drive_tells_what_both_have_written() {
    let sandbox = Sandbox::new();
    let attach = ["flash", "attach", "--size", "128M", "--via", "nbd-server", "--name", "stack"];
    let volume = ["--volume", "--segment-size", "2M", "--streams", "4"];
    sandbox.ok(&[&attach[..], &volume].concat());
    scatter(&mut client(&sandbox, "stack"), 1000);
    let status = sandbox.json(&["status", "stack", "--json"]);
    assert_eq!(number(&status, "/statistics/written/host_bytes"), 1000 * BLOCK);
    let programmed = number(&status, "/flash/nand/programs/host") * BLOCK;
    let total = status["total_write_amplification"].as_f64().expect("a number");
    assert!(total >= programmed as f64 / (1000 * BLOCK) as f64, "{status}");
    assert!(total >= status["write_amplification"].as_f64().expect("a number") * 0.99, "{status}");
    let told = sandbox.ok(&["status", "stack"]);
    assert!(told.contains("in all     WAF"), "{told}");
    sandbox.ok(&["detach", "stack"]);
}

#[test]
fn drives_of_one_kind_get_names_of_their_own() {
    let sandbox = Sandbox::new();
    for name in ["sata-tlc", "sata-tlc-2"] {
        let attach = ["flash", "attach", "--size", "64M", "--via", "nbd-server", "--json"];
        assert_eq!(sandbox.json(&attach)["name"], name);
    }
    let taken = ["flash", "attach", "--size", "64M", "--via", "nbd-server", "--name", "sata-tlc"];
    assert!(sandbox.fails(1, &taken).contains("sata-tlc"));
    // What failed leaves no entry behind.
    assert_eq!(sandbox.json(&["list", "--json"]).as_array().map(Vec::len), Some(2));
    sandbox
        .fails(2, &["flash", "attach", "--ftl", "redo", "--streams", "4", "--via", "nbd-server"]);
    let entries = std::fs::read_dir(sandbox.path("state")).expect("it is there").flatten();
    let json = entries.filter(|file| file.path().extension().is_some_and(|e| e == "json"));
    assert_eq!(json.count(), 2);
}

#[test]
fn a_drive_that_does_not_fit_into_memory_is_refused() {
    let sandbox = Sandbox::new();
    let said = sandbox.fails(1, &["flash", "attach", "--size", "3T", "--via", "nbd-server"]);
    assert!(said.contains("held in memory") && said.contains("--size"), "{said}");
    assert_eq!(sandbox.ok(&["list", "--json"]).trim(), "[]");
}

#[test]
fn in_real_time_a_host_waits_as_long_as_the_drive_works() {
    let sandbox = Sandbox::new();
    let attach =
        ["flash", "attach", "--profile", "sd-card", "--size", "256M", "--via", "nbd-server"];
    sandbox.ok(&[&attach[..], &["--pace", "real", "--name", "card"]].concat());
    let begin = Instant::now();
    let mut session = client(&sandbox, "card");
    scatter(&mut session, 64);
    let passed = begin.elapsed().as_nanos() as u64;
    drop(session);
    let status = sandbox.json(&["status", "card", "--json"]);
    let latency = |kind: &str| {
        let path = |name: &str| format!("/flash/latency/{kind}/{name}");
        number(&status, &path("mean_ns")) * number(&status, &path("count"))
    };
    let emulated = latency("write") + latency("flush");
    assert!(passed >= emulated * 9 / 10, "{passed} ns of real time for {emulated}");
    assert_eq!(status["flash"]["pace"], "real");
    sandbox.ok(&["detach", "card"]);
}

#[test]
fn a_server_in_the_foreground_prints_figures_when_it_is_told_to_end() {
    let sandbox = Sandbox::new();
    let serve = ["flash", "serve", "--nbd", "unix:q.sock", "--size", "64M", "--json"];
    let mut command = sandbox.command(&serve);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.spawn().expect("the program can be started");
    wait_until("it serves", || sandbox.path("q.sock").exists());
    wait_until("it is listed", || sandbox.ok(&["list"]).contains("q.sock"));
    sandbox::send(child.id(), "TERM");
    let output = child.wait_with_output().expect("it is our child");
    assert!(output.status.success());
    assert!(!sandbox.path("q.sock").exists());
    let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let values: Vec<Value> = values.map(|value| value.expect("the output is JSON")).collect();
    let [entry, end] = &values[..] else { panic!("{values:?}") };
    assert_eq!(entry["name"], "sata-tlc");
    assert_eq!(number(end, "/flash/exported_bytes"), 64 << 20);
}

#[test]
fn an_emulated_drive_does_not_restart() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["flash", "attach", "--profile", "tiny", "--via", "nbd-server", "--name", "drive"]);
    let error = sandbox.fails(1, &["restart", "drive"]);
    assert!(error.contains("in its memory"), "{error}");
    sandbox.ok(&["detach", "drive"]);
}

#[test]
fn settings_are_for_the_volume_on_a_drive_and_not_for_the_drive() {
    let sandbox = Sandbox::new();
    let tuned = ["--tune", "reclaim=threaded", "--tune", "policy=greedy"];
    let flash = ["flash", "attach", "--via", "nbd-server", "--name", "stack", "--volume"];
    sandbox.ok(&[&flash[..], &tuned].concat());
    let settings = sandbox.json(&["tune", "stack", "--json"]);
    assert_eq!((&settings["reclaim"], &settings["policy"]), (&"threaded".into(), &"greedy".into()));
    sandbox.ok(&["detach", "stack"]);
    sandbox.ok(&["flash", "attach", "--profile", "tiny", "--via", "nbd-server", "--name", "drive"]);
    let error = sandbox.fails(1, &["tune", "drive", "cleaning=paused"]);
    assert!(error.contains("no volume"), "{error}");
    sandbox.ok(&["detach", "drive"]);
}
