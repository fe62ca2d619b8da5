//! `salvage` out of stores that were damaged so that they cannot be attached any more.

mod sandbox;

use sandbox::{Sandbox, skipped};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

const BLOCK_SIZE: u64 = 4096;

/// A store with patterns at its start, in its midst and at its end, of 64 MiB that the host sees; `None`
/// where qemu-io is missing.
fn written() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    let sizes = ["--store-size", "256M", "--segment-size", "2M", "--size", "64M"];
    sandbox.ok(&[&["create", "disk.img"][..], &sizes].concat());
    let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw"]);
    let writes = ["write -P 0x11 0 1M", "write -P 0x42 512k 1M", "write -P 0x33 30M 3M", "flush"];
    for command in [&writes[..], &["write -P 0x77 65532k 4k", "discard 31M 1M"]].concat() {
        qemu.args(["-c", command]);
    }
    let written = qemu.arg(uri.trim_end()).output();
    sandbox.ok(&["detach", "disk"]);
    if !written.is_ok_and(|output| output.status.success()) {
        skipped("salvage: qemu-io is not installed");
        return None;
    }
    Some(sandbox)
}

/// What the volume holds.
fn expected() -> Vec<u8> {
    let mut bytes = vec![0; 64 << 20];
    bytes[..512 << 10].fill(0x11);
    bytes[512 << 10..1536 << 10].fill(0x42);
    bytes[30 << 20..33 << 20].fill(0x33);
    bytes[31 << 20..32 << 20].fill(0);
    bytes[65532 << 10..].fill(0x77);
    bytes
}

/// Damages a block of a store.
fn damage(sandbox: &Sandbox, block: u64) {
    let file = File::options().write(true).open(sandbox.path("disk.img")).expect("it is there");
    file.write_all_at(&[0x5a; 100], block * BLOCK_SIZE).expect("it is writable");
}

/// The first blocks of both copies of the checkpoint's body.
fn bodies(sandbox: &Sandbox) -> [u64; 2] {
    let copies = sandbox.json(&["dump", "disk.img", "superblock", "--json"]);
    let copies = copies.as_array().expect("an array");
    ["checkpoint_block", "checkpoint_copy_block"].map(|name| {
        let newest = copies.iter().find_map(|copy| find(copy, name));
        newest.and_then(Value::as_u64).expect("a copy says where it lies")
    })
}

/// The first value of this name, however deep.
fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = value.as_object()?;
    fields.get(name).or_else(|| fields.values().find_map(|value| find(value, name)))
}

#[test]
fn a_sound_store_comes_out_as_it_is_and_sparse() {
    let Some(sandbox) = written() else { return };
    let text = sandbox.ok(&["salvage", "disk.img", "volume.img", "--map", "volume.map"]);
    assert!(text.contains("3.50 MiB as it was, 0 B in doubt; 0 B lost"), "{text}");
    let image = sandbox.path("volume.img");
    assert!(fs::read(&image).expect("it was made") == expected(), "another content");
    assert!(
        fs::metadata(&image).expect("it is there").blocks() * 512 < 8 << 20,
        "it is not sparse"
    );
    let map = fs::read_to_string(sandbox.path("volume.map")).expect("it was made");
    let lines: Vec<_> = map.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines[1..], ["0x000000000000  0x000004000000  +"], "{map}");
    // Nothing is written to the store: it can be attached as before.
    sandbox.ok(&["check", "disk.img", "--data"]);
}

#[test]
fn without_its_checkpoint_a_store_is_not_attached_and_all_of_it_comes_out() {
    let Some(sandbox) = written() else { return };
    bodies(&sandbox).into_iter().for_each(|block| damage(&sandbox, block));
    let error = sandbox.fails(1, &["attach", "disk.img", "--via", "nbd-server"]);
    assert!(error.contains("`coulter salvage` takes out what is left"), "{error}");
    let error = sandbox.fails(1, &["check", "disk.img"]);
    assert!(error.contains("`coulter salvage` takes out what is left"), "{error}");

    let output = sandbox.run(&["salvage", "disk.img", "volume.img", "--json"]);
    assert_eq!(output.status.code(), Some(1), "where blocks lie is not known for certain");
    let found: Value = serde_json::from_slice(&output.stdout).expect("the output is JSON");
    assert_eq!(found["whole"], false);
    assert_eq!(found["volume_size_bytes"], 64 << 20);
    assert_eq!(found["lost_bytes"], 0);
    assert_eq!(found["records_missing"], 0);
    assert_eq!(found["report"]["counters"]["faults"], 1);
    let image = fs::read(sandbox.path("volume.img")).expect("it was made");
    assert!(image == expected(), "another content");
}

#[test]
fn what_is_lost_is_zeros_and_said_to_be_lost() {
    let Some(sandbox) = written() else { return };
    let map = sandbox.json(&["dump", "disk.img", "map", "--blocks", "7..8", "--json"]);
    damage(&sandbox, map[0]["block"].as_u64().expect("the block is mapped"));
    let arguments = ["salvage", "disk.img", "volume.img", "--map", "volume.map"];
    let error = sandbox.fails(1, &arguments);
    assert!(error.contains("4 KiB are lost and read as zeros"), "{error}");
    let mut expected = expected();
    expected[7 * 4096..8 * 4096].fill(0);
    assert!(fs::read(sandbox.path("volume.img")).expect("it was made") == expected);
    let map = fs::read_to_string(sandbox.path("volume.map")).expect("it was made");
    assert!(map.contains("\n0x000000007000  0x000000001000  -\n"), "{map}");
}

#[test]
fn nothing_is_overwritten_that_was_not_meant_to_be() {
    let Some(sandbox) = written() else { return };
    fs::write(sandbox.path("there.img"), "something").expect("it is writable");
    let salvage = |image| ["salvage", "disk.img", image];
    let error = sandbox.fails(1, &salvage("there.img"));
    assert!(error.contains("there is something already"), "{error}");
    assert_eq!(fs::read_to_string(sandbox.path("there.img")).expect("it is there"), "something");
    fs::hard_link(sandbox.path("disk.img"), sandbox.path("same.img")).expect("it can be linked");
    for name in ["disk.img", "same.img"] {
        let error = sandbox.fails(2, &[&salvage(name)[..], &["--force"]].concat());
        assert!(error.contains("that is the store itself"), "{error}");
    }
    sandbox.make_directory("directory");
    let error = sandbox.fails(2, &salvage("directory"));
    assert!(error.contains("neither a regular file nor a block device"), "{error}");
    let error = sandbox.fails(1, &salvage("nowhere/volume.img"));
    assert!(error.contains("cannot make nowhere/volume.img"), "{error}");
    // The map comes first: nothing is taken out that could not be told of.
    let arguments = [&salvage("volume.img")[..], &["--map", "there.img"]].concat();
    let error = sandbox.fails(1, &arguments);
    assert!(error.contains("cannot make there.img"), "{error}");
    assert!(!sandbox.path("volume.img").exists());

    sandbox.ok(&[&salvage("there.img")[..], &["--force"]].concat());
    assert!(fs::read(sandbox.path("there.img")).expect("it is there") == expected());
    sandbox.ok(&["check", "disk.img", "--data"]);
}

#[test]
fn an_image_for_which_there_is_no_room_is_removed() {
    let Some(sandbox) = written() else { return };
    let command = sandbox.command_with_file_limit(2 << 20, &["salvage", "disk.img", "volume.img"]);
    let output = { command }.output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("volume.img"), "{error}");
    assert!(!sandbox.path("volume.img").exists(), "an image that is not whole was left");
}

#[test]
fn an_attached_store_and_what_is_none_are_refused() {
    let Some(sandbox) = written() else { return };
    fs::write(sandbox.path("noise.img"), vec![7; 1 << 20]).expect("it is writable");
    let error = sandbox.fails(1, &["salvage", "noise.img", "volume.img"]);
    assert!(error.contains("cannot take anything out of noise.img"), "{error}");
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let error = sandbox.fails(1, &["salvage", "disk.img", "volume.img"]);
    assert!(error.contains("in use by process"), "{error}");
    assert!(!sandbox.path("volume.img").exists());
}

/// A loop device, until it goes.
struct Loop(String);

impl Loop {
    fn over(sandbox: &Sandbox, file: &str) -> Option<Loop> {
        let output =
            Command::new("losetup").args(["--find", "--show"]).arg(sandbox.path(file)).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(Loop(String::from_utf8(output.stdout).ok()?.trim_end().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn to_a_disk_all_is_written_zeros_too_and_nothing_behind_it() {
    let Some(sandbox) = written() else { return };
    fs::write(sandbox.path("target"), vec![0xff; 80 << 20]).expect("it is writable");
    fs::write(sandbox.path("small"), vec![0xff; 8 << 20]).expect("it is writable");
    let (Some(target), Some(small)) =
        (Loop::over(&sandbox, "target"), Loop::over(&sandbox, "small"))
    else {
        return skipped("salvage to a disk: it needs root and loop devices");
    };
    let error = sandbox.fails(1, &["salvage", "disk.img", &target.0]);
    assert!(error.contains("it is a disk"), "{error}");
    let error = sandbox.fails(1, &["salvage", "disk.img", &small.0, "--force"]);
    assert!(error.contains("it has 8 MiB, and the volume 64 MiB"), "{error}");
    sandbox.ok(&["salvage", "disk.img", &target.0, "--force"]);
    let found = fs::read(&target.0).expect("it can be read");
    assert!(found[..64 << 20] == expected(), "another content");
    assert!(found[64 << 20..].iter().all(|byte| *byte == 0xff), "behind the volume");
}

/// Status of each block of an image, as its map has it.
fn statuses(sandbox: &Sandbox, map: &str, blocks: usize) -> Vec<char> {
    let text = fs::read_to_string(sandbox.path(map)).expect("it was made");
    let number = |text: &str| {
        usize::from_str_radix(text.trim_start_matches("0x"), 16).expect("it is a number")
    };
    let mut statuses = vec![' '; blocks];
    for line in text.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (start, size) = (number(fields[0]) / 4096, number(fields[1]) / 4096);
        statuses[start..start + size].fill(fields[2].chars().next().expect("a status"));
    }
    statuses
}

/// Blocks that were there and are not have to be said to be lost or in doubt.
#[test]
fn a_store_that_was_cut_short_gives_no_zeros_as_good() {
    for killed in [false, true] {
        let sandbox = Sandbox::new();
        sandbox.ok(&["create", "disk.img", "--size", "256M"]);
        let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
        let mut qemu = Command::new("qemu-io");
        qemu.args(["-f", "raw", "-c", "write -P 0x11 0 50M", "-c", "write -P 0x11 50M 50M"]);
        let written = qemu.args(["-c", "flush", uri.trim_end()]).output();
        if !written.is_ok_and(|output| output.status.success()) {
            return skipped("salvage: qemu-io is not installed");
        }
        if killed {
            let pid = sandbox.pid_of("disk");
            sandbox.signal("disk", "KILL");
            sandbox::wait_until("it is gone", || !sandbox::is_running(pid));
        } else {
            sandbox.ok(&["detach", "disk"]);
        }
        let file = File::options().write(true).open(sandbox.path("disk.img"));
        let file = file.expect("it is writable");
        for (round, extended) in [(0, false), (1, true)] {
            file.set_len((if killed { 90 } else { 60 }) << 20).expect("it can be cut");
            if extended {
                file.set_len(256 << 20).expect("it can be made longer");
            }
            let (image, map) = (format!("volume{round}.img"), format!("volume{round}.map"));
            let arguments = ["salvage", "disk.img", &image, "--map", &map];
            let error = sandbox.fails(1, &arguments);
            assert!(error.contains("not all of disk.img is as it was"), "{error}");
            let bytes = fs::read(sandbox.path(&image)).expect("it was made");
            let statuses = statuses(&sandbox, &map, bytes.len() / 4096);
            let blocks = bytes.chunks(4096).zip(statuses).take((100 << 20) / 4096);
            let wrong = blocks.filter(|(block, status)| block[0] != 0x11 && *status == '+');
            assert_eq!(wrong.count(), 0, "killed: {killed}, extended: {extended}");
        }
    }
}

/// A stray `mkfs` over the first 4 MiB takes both superblocks there. The third lies at the end.
#[test]
fn what_a_stray_mkfs_left_comes_out_as_it_was() {
    let Some(sandbox) = written() else { return };
    fs::write(sandbox.path("ext4"), vec![0; 4 << 20]).expect("it is writable");
    let mut make = Command::new("mkfs.ext4");
    let made = make.args(["-q", "-F"]).arg(sandbox.path("ext4")).status();
    if !made.is_ok_and(|status| status.success()) {
        return skipped("a stray mkfs: mkfs.ext4 is not installed");
    }
    let first = fs::read(sandbox.path("ext4")).expect("it was made");
    let file = File::options().write(true).open(sandbox.path("disk.img")).expect("it is there");
    file.write_all_at(&first, 0).expect("it is writable");
    let attach = ["attach", "disk.img", "--via", "nbd-server"];
    let error = sandbox.fails(1, &attach);
    assert!(error.contains("A third copy at the end is whole"), "{error}");
    let text = sandbox.ok(&["salvage", "disk.img", "volume.img"]);
    assert!(text.contains("3.50 MiB as it was, 0 B in doubt; 0 B lost"), "{text}");
    assert!(fs::read(sandbox.path("volume.img")).expect("it was made") == expected());
    let uri = sandbox.ok(&[&attach[..], &["--read-only"]].concat());
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-r", "-f", "raw", "-c", "read -P 0x42 512k 1M", uri.trim_end()]);
    assert!(qemu.output().expect("it is installed").status.success(), "it can be read");
}
