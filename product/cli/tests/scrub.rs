//! `scrub`: of an attached volume in use, sound and damaged, stopped, killed and resumed.

mod sandbox;

use sandbox::{Sandbox, skipped, wait_until};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::Command;

const MIB: u64 = 1 << 20;
const BLOCK_SIZE: u64 = 4096;

/// Written before each test.
const WRITTEN: u64 = 24 * MIB;

/// An attached volume with a pattern in its first bytes; `None` where qemu-io is missing.
fn attached() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let uri = attach(&sandbox, &[]);
    let mut qemu = Command::new("qemu-io");
    let output =
        qemu.args(["-f", "raw", "-c", "write -P 0x42 0 24M", "-c", "flush", &uri]).output();
    if !output.is_ok_and(|output| output.status.success()) {
        skipped("scrub of written volumes: qemu-io is not installed");
        return None;
    }
    Some(sandbox)
}

fn attach(sandbox: &Sandbox, words: &[&str]) -> String {
    let base = ["attach", "disk.img", "--via", "nbd-server"];
    sandbox.ok(&[&base[..], words].concat()).trim_end().to_owned()
}

/// Where a host block lies in the store, in bytes.
fn place(sandbox: &Sandbox, block: u64) -> u64 {
    sandbox.ok(&["detach", "disk"]);
    let range = format!("{block}..{}", block + 1);
    let map = sandbox.json(&["dump", "disk.img", "map", "--blocks", &range, "--json"]);
    attach(sandbox, &[]);
    map[0]["block"].as_u64().expect("the block is mapped") * BLOCK_SIZE
}

fn flip(sandbox: &Sandbox, offset: u64) {
    let file = File::options().read(true).write(true).open(sandbox.path("disk.img"));
    let file = file.expect("the store is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("the offset is in the store");
    file.write_all_at(&[byte[0] ^ 1], offset).expect("the store is writable");
    file.sync_all().expect("it reaches the disk");
}

fn status(sandbox: &Sandbox) -> Value {
    sandbox.json(&["status", "disk", "--json"])["scrub"].clone()
}

#[test]
fn a_sound_volume_in_use_is_read_wholly() {
    let Some(sandbox) = attached() else { return };
    assert_eq!(status(&sandbox)["state"], "never");
    let scrub = sandbox.json(&["scrub", "disk", "--rate", "none", "--json"]);
    assert_eq!(scrub["state"], "done");
    assert_eq!(scrub["checked_bytes"], WRITTEN);
    assert!(scrub["metadata_checked_bytes"].as_u64() > Some(0), "{scrub}");
    assert_eq!((&scrub["damaged_bytes"], &scrub["metadata_damaged"]), (&0.into(), &0.into()));
    assert_eq!(status(&sandbox), scrub);
    let text = sandbox.ok(&["scrub", "disk.img", "--status"]);
    assert!(text.starts_with("done, 24") && text.contains("no data damaged"), "{text}");
    assert!(sandbox.ok(&["status", "disk"]).contains("  scrub      done, 24"));
}

#[test]
fn damaged_data_is_told_by_its_address_in_exit_code_status_and_metrics() {
    let Some(sandbox) = attached() else { return };
    let at = place(&sandbox, 1000);
    sandbox.ok(&["detach", "disk"]);
    let entry = {
        attach(&sandbox, &["--metrics", "127.0.0.1:0"]);
        sandbox.listed()[0].clone()
    };
    flip(&sandbox, at + 77);
    let error = sandbox.fails(1, &["scrub", "disk", "--rate", "none"]);
    assert!(error.contains("'disk' is damaged") && error.contains("4 KiB of data"), "{error}");
    let scrub = status(&sandbox);
    assert_eq!(scrub["damaged_bytes"], BLOCK_SIZE);
    assert_eq!(scrub["damage"][0]["part"], "data");
    assert_eq!(scrub["damage"][0]["offset"], 1000 * BLOCK_SIZE);
    assert_eq!(scrub["damage"].as_array().map(Vec::len), Some(1));
    let text = sandbox.ok(&["status", "disk"]);
    assert!(
        text.contains("data at byte 4096000 of the volume, 4 KiB: checksum mismatch"),
        "{text}"
    );
    let address: SocketAddr = entry["metrics"].as_str().and_then(|a| a.parse().ok()).expect("one");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it listens");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it is text");
    assert!(page.contains("coulter_scrub_damaged_bytes{name=\"disk\"} 4096"), "{page}");
    // The next daemon still knows.
    sandbox.ok(&["detach", "disk"]);
    attach(&sandbox, &[]);
    sandbox.fails(1, &["scrub", "disk", "--status"]);
    assert_eq!(status(&sandbox)["damage"], scrub["damage"]);
}

#[test]
fn damaged_metadata_is_written_anew_from_its_other_copy() {
    let Some(sandbox) = attached() else { return };
    // Superblock A.
    flip(&sandbox, 20);
    let scrub = sandbox.json(&["scrub", "disk", "--rate", "none", "--json"]);
    assert_eq!((&scrub["metadata_damaged"], &scrub["metadata_repaired"]), (&1.into(), &1.into()));
    assert_eq!(scrub["damage"][0]["part"], "superblock");
    assert_eq!(scrub["damage"][0]["repaired"], true);
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["check", "disk.img", "--data"]);
}

#[test]
fn a_volume_that_is_attached_read_only_is_read_and_not_repaired() {
    let Some(sandbox) = attached() else { return };
    sandbox.ok(&["detach", "disk"]);
    attach(&sandbox, &["--read-only"]);
    let before = std::fs::read(sandbox.path("disk.img")).expect("the store is there");
    sandbox.ok(&["scrub", "disk", "--rate", "none"]);
    flip(&sandbox, 20);
    let error = sandbox.fails(1, &["scrub", "disk", "--rate", "none"]);
    assert!(error.contains("unrepaired blocks of metadata: 1"), "{error}");
    flip(&sandbox, 20);
    let after = std::fs::read(sandbox.path("disk.img")).expect("the store is there");
    assert!(before == after, "it writes nothing");
}

#[test]
fn a_scrub_is_stopped_and_goes_on_where_it_was() {
    let Some(sandbox) = attached() else { return };
    let position = || status(&sandbox)["position_bytes"].as_u64().expect("it is told");
    let begun = sandbox.json(&["scrub", "disk", "--rate", "4M", "--background", "--json"]);
    assert_eq!(begun["state"], "running");
    wait_until("it gets on", || position() >= 2 * MIB);
    let stopped = sandbox.json(&["scrub", "disk", "--stop", "--json"]);
    assert_eq!(stopped["state"], "stopped");
    let at = stopped["position_bytes"].as_u64().expect("it is told");
    assert!(at < WRITTEN, "{stopped}");
    assert_eq!(position(), at);
    let done = sandbox.json(&["scrub", "disk", "--rate", "none", "--json"]);
    assert_eq!((&done["state"], &done["checked_bytes"]), (&"done".into(), &WRITTEN.into()));
    assert_eq!(done["started_at_unix_seconds"], begun["started_at_unix_seconds"]);
    // What is done is begun anew.
    let again = sandbox.json(&["scrub", "disk", "--rate", "none", "--json"]);
    assert_eq!(again["checked_bytes"], WRITTEN);
    // And what was stopped, if that is asked for.
    sandbox.ok(&["scrub", "disk", "--rate", "4M", "--background"]);
    wait_until("it gets on", || position() >= MIB);
    sandbox.ok(&["scrub", "disk", "--stop"]);
    let anew = sandbox.json(&["scrub", "disk", "--rate", "none", "--restart", "--json"]);
    assert_eq!(anew["checked_bytes"], WRITTEN);
}

#[test]
fn a_scrub_goes_on_after_its_daemon_was_killed() {
    let Some(sandbox) = attached() else { return };
    sandbox.ok(&["scrub", "disk", "--rate", "2M", "--background"]);
    // How far it is is written down now and then.
    let file = || {
        let files = std::fs::read_dir(sandbox.path("state")).ok()?;
        let mut files = files.flatten().map(|file| file.path());
        let file = files.find(|path| path.extension().is_some_and(|it| it == "scrub"))?;
        let kept: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
        kept["position_bytes"].as_u64()
    };
    wait_until("it is written down how far it is", || file() >= Some(4 * MIB));
    sandbox.signal("disk", "KILL");
    attach(&sandbox, &[]);
    let resumed = status(&sandbox);
    assert_eq!(resumed["state"], "running");
    assert!(resumed["position_bytes"].as_u64() >= Some(4 * MIB), "{resumed}");
    let done = sandbox.json(&["scrub", "disk", "--rate", "none", "--json"]);
    assert_eq!((&done["state"], &done["checked_bytes"]), (&"done".into(), &WRITTEN.into()));
}

#[test]
fn what_cannot_be_scrubbed_is_refused_with_the_reason() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let error = sandbox.fails(1, &["scrub", "disk.img"]);
    assert!(error.contains("not attached"), "{error}");
    attach(&sandbox, &[]);
    for rate in ["1K", "2T", "fast", "-1"] {
        sandbox.fails(2, &["scrub", "disk", "--rate", rate]);
    }
    sandbox.fails(2, &["scrub", "disk", "--stop", "--status"]);
    // There is nothing in it but metadata.
    let empty = sandbox.json(&["scrub", "disk", "--json"]);
    assert_eq!((&empty["state"], &empty["checked_bytes"]), (&"done".into(), &0.into()));
}
