//! `check` and `dump` on stores that were written to, killed and damaged.

mod sandbox;

use sandbox::{Sandbox, skipped, wait_until};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

const BLOCK_SIZE: u64 = 4096;

/// A store with a pattern in its first MiB; `None` where qemu-io is missing.
fn written() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    if !qemu_io(&sandbox, &["write -P 0x42 0 1M", "flush"]) {
        skipped("check of written stores: qemu-io is not installed");
        return None;
    }
    Some(sandbox)
}

/// Attaches, runs commands, detaches. Whether all went well.
fn qemu_io(sandbox: &Sandbox, commands: &[&str]) -> bool {
    let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw"]);
    commands.iter().for_each(|command| {
        qemu.args(["-c", command]);
    });
    let output = qemu.arg(uri.trim_end()).output();
    sandbox.ok(&["detach", "disk"]);
    output.is_ok_and(|output| {
        output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("failed")
    })
}

/// Where the first host block lies on the device, in bytes.
fn place_of_first_block(sandbox: &Sandbox) -> u64 {
    let map = sandbox.json(&["dump", "disk.img", "map", "--blocks", "0..1", "--json"]);
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

#[test]
fn a_written_store_is_sound() {
    let Some(sandbox) = written() else { return };
    let report = sandbox.json(&["check", "disk.img", "--data", "--json"]);
    assert_eq!(report["counters"]["faults"], 0);
    assert_eq!(report["counters"]["data_blocks"], 256);
    assert_eq!(report["complete"], true);
    let text = sandbox.ok(&["check", "disk.img"]);
    assert!(text.starts_with("sound: 1 MiB mapped"), "{text}");
}

#[test]
fn a_killed_store_is_sound_too() {
    let Some(sandbox) = written() else { return };
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    sandbox.signal("disk", "KILL");
    sandbox.ok(&["check", "disk.img", "--data"]);
}

#[test]
fn rotten_data_is_found_and_never_read() {
    let Some(sandbox) = written() else { return };
    flip(&sandbox, place_of_first_block(&sandbox) + 1000);
    let error = sandbox.fails(1, &["check", "disk.img", "--data"]);
    assert!(error.contains("1 fault,"), "{error}");
    let output = sandbox.run(&["check", "disk.img", "--data", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("the output is JSON");
    assert_eq!(report["counters"]["faults"], 1);
    assert!(!qemu_io(&sandbox, &["read 0 4k"]), "a rotten block was read");
    assert!(qemu_io(&sandbox, &["read -P 0x42 4k 64k"]), "its neighbours are gone as well");
}

#[test]
fn damaged_data_and_a_failing_device_are_told_in_the_log_and_do_not_fill_it() {
    let Some(sandbox) = written() else { return };
    let place = place_of_first_block(&sandbox);
    flip(&sandbox, place + 1000);
    let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let read = || {
        let words = ["-r", "-f", "raw", "-c", "read 0 4k", uri.trim_end()];
        let output = Command::new("qemu-io").args(words).output().expect("it is there");
        assert!(String::from_utf8_lossy(&output.stdout).contains("failed"), "{output:?}");
    };
    let log = || std::fs::read_to_string(sandbox.path("state/disk.log")).expect("there is a log");
    let (damaged, failed) = ("blocks are damaged", "the device below failed commands");
    read();
    wait_until("it is told", || log().contains(damaged));
    let log_of_damage = log();
    let line = log_of_damage.lines().find(|line| line.contains(damaged)).expect("it is there");
    assert!(line.contains("ERROR") && line.contains("last_offset=0"), "{line}");
    // Behind its end there is nothing to be read.
    let file = std::fs::File::options().write(true).open(sandbox.path("disk.img"));
    file.and_then(|file| file.set_len(place)).expect("it is writable");
    (0..3).for_each(|_| read());
    wait_until("it is told", || log().contains(failed));
    std::thread::sleep(std::time::Duration::from_secs(2));
    for what in [damaged, failed] {
        assert_eq!(log().matches(what).count(), 1, "{}", log());
    }
    sandbox.run(&["detach", "disk"]);
}

#[test]
fn a_damaged_superblock_is_found_and_the_other_one_serves() {
    let Some(sandbox) = written() else { return };
    flip(&sandbox, 100);
    sandbox.fails(1, &["check", "disk.img"]);
    assert!(qemu_io(&sandbox, &["read -P 0x42 0 1M"]), "one good superblock is not enough");
}

#[test]
fn an_attached_store_is_checked_by_its_daemon() {
    let Some(sandbox) = written() else { return };
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let text = sandbox.ok(&["check", "disk.img"]);
    assert!(text.starts_with("sound as far as can be seen in use"), "{text}");
    let metadata = sandbox.json(&["check", "disk", "--json"]);
    assert_eq!((&metadata["state"], &metadata["checked_bytes"]), (&"done".into(), &0.into()));
    assert!(metadata["metadata_checked_bytes"].as_u64() > Some(3 * BLOCK_SIZE), "{metadata}");
    // That is no scrub.
    assert_eq!(sandbox.json(&["status", "disk", "--json"])["scrub"]["state"], "never");
    let data = sandbox.json(&["check", "disk", "--data", "--json"]);
    assert_eq!(data["checked_bytes"], 1 << 20);
    // Superblock A is written anew.
    flip(&sandbox, 100);
    let text = sandbox.ok(&["check", "disk"]);
    assert!(text.starts_with("repaired: superblock at byte 0 of the store"), "{text}");
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["check", "disk.img"]);
}

#[test]
fn an_attached_store_is_not_looked_into_behind_its_daemon() {
    let Some(sandbox) = written() else { return };
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    for words in [
        &["dump", "disk.img", "superblock"][..],
        &["salvage", "disk.img", "image"],
        &["create", "disk.img", "--force"],
    ] {
        let error = sandbox.fails(1, words);
        assert!(error.contains("in use by process"), "{error}");
        assert!(error.contains("(coulter), which serves it as 'disk'"), "{error}");
        assert!(error.contains("first run `coulter detach disk`"), "{error}");
    }
    // Of another state directory it is not known by which name.
    let other = sandbox.path("other").display().to_string();
    let error = sandbox.fails(1, &["check", "disk.img", "--state-directory", &other]);
    assert!(error.contains("in use by process") && !error.contains("coulter detach"), "{error}");
}

#[test]
fn every_structure_is_dumped_as_text_and_as_json() {
    let Some(sandbox) = written() else { return };
    for structure in ["superblock", "checkpoint", "segments", "map", "records"] {
        assert!(!sandbox.ok(&["dump", "disk.img", structure]).is_empty(), "{structure}");
        let json = sandbox.json(&["dump", "disk.img", structure, "--json"]);
        assert!(json.is_array() || json.is_object(), "{structure}");
    }
    let records = sandbox.json(&["dump", "disk.img", "records", "--segment", "0", "--json"]);
    let records = records.as_array().expect("records come as an array");
    assert!(!records.is_empty());
    assert!(records.iter().all(|record| record["segment"] == 0));
    let error = sandbox.fails(2, &["dump", "disk.img", "records", "--segment", "9999"]);
    assert!(error.contains("its segments are 0 to "), "{error}");
}

#[test]
fn a_level_of_the_log_that_is_none_is_named() {
    let sandbox = Sandbox::new();
    let output = sandbox.command(&["list"]).env("COULTER_LOG", "loud").output();
    let error = String::from_utf8(output.expect("it runs").stderr).expect("it is text");
    assert!(error.contains("COULTER_LOG=loud is no level"), "{error}");
}

#[test]
fn what_is_no_store_has_nothing_to_dump_or_to_call_sound() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("noise.img"), vec![7; 1 << 20]).expect("it is writable");
    for arguments in [&["check", "noise.img"][..], &["dump", "noise.img", "map"]] {
        let error = sandbox.fails(1, arguments);
        assert!(error.contains("noise.img"), "{error}");
        assert!(!error.contains("there may be more"), "{error}");
    }
}
