//! `coulter grow` from the outside: what it takes, refuses and leaves.

mod sandbox;

use sandbox::{Sandbox, can_mount};
use std::fs;
use std::process::Command;

fn with_store() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "128M", "--segment-size", "2M"]);
    sandbox
}

#[test]
fn a_file_grows_and_is_sound() {
    let sandbox = with_store();
    let grown = sandbox.json(&["grow", "disk.img", "--size", "256M", "--json"]);
    assert_eq!(grown["store_size_bytes"], 256 << 20);
    assert!(grown["volume_size_bytes"].as_u64() > Some(150 << 20), "{grown}");
    assert_eq!(fs::metadata(sandbox.path("disk.img")).expect("it is there").len(), 256 << 20);
    sandbox.ok(&["check", "disk.img", "--data"]);
    let entry = sandbox.json(&["attach", "disk.img", "--via", "nbd-server", "--json"]);
    assert_eq!(entry["volume_size_bytes"], grown["volume_size_bytes"]);
    let error = sandbox.fails(1, &["grow", "disk.img", "--size", "512M"]);
    assert!(error.contains("attached as 'disk'") && error.contains("coulter detach"), "{error}");
}

#[test]
fn less_than_there_is_and_what_is_no_store_is_refused() {
    let sandbox = with_store();
    let before = fs::read(sandbox.path("disk.img")).expect("it is there");
    let error = sandbox.fails(2, &["grow", "disk.img", "--size", "100M"]);
    assert!(error.contains("never shrinks"), "{error}");
    let error = sandbox.fails(2, &["grow", "disk.img", "--size", "256M", "--volume-size", "1M"]);
    assert!(error.contains("never shrinks"), "{error}");
    let error = sandbox.fails(2, &["grow", "disk.img", "--size", "256M", "--volume-size", "255M"]);
    assert!(error.contains("at most"), "{error}");
    let after = fs::read(sandbox.path("disk.img")).expect("it is there");
    assert!(before == after, "a refusal leaves the file as it was, in length too");
    fs::write(sandbox.path("other"), vec![0; 1 << 20]).expect("there is room");
    let error = sandbox.fails(1, &["grow", "other", "--size", "2M"]);
    assert!(error.contains("no store here"), "{error}");
    assert_eq!(fs::metadata(sandbox.path("other")).expect("it is there").len(), 1 << 20);
    sandbox.fails(1, &["grow", "missing", "--size", "2M"]);
}

#[test]
fn a_file_system_grows_with_its_volume() {
    let Some(_right) = can_mount("a_file_system_grows_with_its_volume") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--size", "512M", "--mkfs", "ext4"]);
    let content: Vec<u8> = (0..8_000_000u32).map(|at| (at % 251) as u8).collect();
    fs::write(directory.join("file"), &content).expect("there is room");
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["grow", "disk.img", "--size", "1G"]);
    // Without a mount, for resizing one takes rights that not every container gives.
    let device = sandbox.ok(&["attach", "disk.img", "--via", "loop"]);
    for (tool, options) in [("e2fsck", &["-fp"][..]), ("resize2fs", &[])] {
        let output = Command::new(tool).args(options).arg(device.trim()).output();
        let output = output.expect("it comes with mkfs.ext4");
        assert!(output.status.success(), "{output:?}");
    }
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["mount", "disk.img", "mnt"]);
    let space = Command::new("stat").args(["-fc", "%S %b"]).arg(&directory).output();
    let space = String::from_utf8(space.expect("it can be run").stdout).expect("numbers");
    let numbers: Vec<u64> = space.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    assert!(numbers.iter().product::<u64>() > 600 << 20, "{space}");
    assert!(fs::read(directory.join("file")).expect("it is there") == content);
    sandbox.ok(&["umount", "mnt"]);
}
