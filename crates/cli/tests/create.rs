//! `create`: what it makes, and what it will not overwrite.

mod sandbox;

use sandbox::{Sandbox, can_mount, skipped};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;

#[test]
fn a_new_file_is_sparse_private_and_as_large_as_was_asked() {
    let sandbox = Sandbox::new();
    let made = sandbox.json(&["create", "disk.img", "--size", "1G", "--json"]);
    let file = fs::metadata(sandbox.path("disk.img")).expect("it was made");
    assert_eq!(file.len(), 1 << 30);
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert!(file.blocks() * 512 < 64 << 20, "{} bytes are allocated", file.blocks() * 512);
    assert_eq!(made["store_size_bytes"], 1 << 30);
    assert_eq!(made["segment_size_bytes"], 4 << 20);
    let volume = made["volume_size_bytes"].as_u64().expect("a number");
    assert!((500 << 20..900 << 20).contains(&volume), "{volume}");
    let uuid = made["uuid"].as_str().expect("a text");
    assert_eq!(uuid.len(), 36, "{uuid}");
}

#[test]
fn two_stores_differ_in_identity() {
    let sandbox = Sandbox::new();
    let uuid = |name| sandbox.json(&["create", name, "--size", "1G", "--json"])["uuid"].clone();
    assert_ne!(uuid("a.img"), uuid("b.img"));
}

#[test]
fn preallocation_reserves_the_space() {
    let sandbox = Sandbox::new();
    let size = ["--size", "128M", "--segment-size", "2M"];
    sandbox.ok(&[&["create", "disk.img", "--preallocate"], &size[..]].concat());
    let file = fs::metadata(sandbox.path("disk.img")).expect("it was made");
    assert!(file.blocks() * 512 >= 128 << 20);
}

#[test]
fn what_holds_something_is_refused_and_force_erases_its_marks() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("disk.img");
    let file = fs::File::create(&path).expect("the directory is writable");
    file.set_len(256 << 20).expect("it can be extended");
    // A Btrfs mark lies where a store writes nothing at first.
    file.write_all_at(b"_BHRfS_M", 0x1_0040).expect("it is writable");
    let error = sandbox.fails(1, &["create", "disk.img", "--segment-size", "2M"]);
    assert!(error.contains("a Btrfs file system (at byte 65600)"), "{error}");
    assert!(error.contains("--force"), "{error}");
    sandbox.ok(&["create", "disk.img", "--segment-size", "2M", "--force"]);
    let mut mark = [0; 8];
    fs::File::open(&path).expect("it is there").read_exact_at(&mut mark, 0x1_0040).expect("it is");
    assert_ne!(&mark, b"_BHRfS_M");
}

#[test]
fn a_file_of_no_known_kind_stays_as_it_is() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("notes.txt");
    let text = "worth keeping\n";
    fs::write(&path, text).expect("the directory is writable");
    for arguments in [&["--size", "1G"][..], &[], &["--size", "1G", "--preallocate"]] {
        let error = sandbox.fails(1, &[&["create", "notes.txt"], arguments].concat());
        assert!(error.contains("data of an unknown kind (at byte 0)"), "{error}");
        assert!(error.contains("--force"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), text);
    }
    sandbox.ok(&["create", "notes.txt", "--size", "1G", "--force"]);
    sandbox.ok(&["check", "notes.txt"]);
}

#[test]
fn a_disk_without_a_signature_is_formatted_whatever_was_on_it() {
    let Some(_alone) = can_mount("formatting a disk that was in use") else { return };
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("disk"), vec![0xa5; 256 << 20]).expect("the directory is writable");
    let mut attach = Command::new("losetup");
    let output = attach
        .args(["--find", "--show"])
        .arg(sandbox.path("disk"))
        .output()
        .expect("losetup is there");
    let device = String::from_utf8(output.stdout).expect("it is text");
    // The sandbox detaches it.
    sandbox.ok(&["create", device.trim(), "--segment-size", "2M"]);
    sandbox.ok(&["check", device.trim()]);
}

#[test]
fn a_store_is_not_formatted_again_by_mistake() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let before = fs::read(sandbox.path("disk.img")).expect("it is readable");
    let error = sandbox.fails(1, &["create", "disk.img"]);
    assert!(error.contains("a Coulter store (at byte 0)"), "{error}");
    let after = fs::read(sandbox.path("disk.img")).expect("it is readable");
    assert!(before == after, "a refused format has written");
}

#[test]
fn a_file_system_made_by_its_own_tool_is_refused() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("disk.img");
    let file = fs::File::create(&path).expect("the directory is writable");
    file.set_len(256 << 20).expect("it can be extended");
    let made = Command::new("/usr/sbin/mkfs.ext4").arg("-q").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        skipped("refusing a real ext4: mkfs.ext4 is not installed");
        return;
    }
    let error = sandbox.fails(1, &["create", "disk.img"]);
    assert!(error.contains("ext4"), "{error}");
}

#[test]
fn sizes_that_cannot_be_are_explained_and_leave_nothing_behind() {
    let sandbox = Sandbox::new();
    for (arguments, words) in [
        (&["--size", "1M"][..], "larger device"),
        (&["--size", "1G", "--segment-size", "3M"], "power of two"),
        (&["--size", "1G", "--volume-size", "2G"], "volume"),
    ] {
        let error = sandbox.fails(2, &[&["create", "disk.img"], arguments].concat());
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert!(!sandbox.path("disk.img").exists(), "{arguments:?} leaves a file");
    }
}
