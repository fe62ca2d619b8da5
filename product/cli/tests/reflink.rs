//! A store file that is copied by reflink while it is in use: a snapshot with no code of ours.

mod sandbox;

use sandbox::{Sandbox, can_mount, skipped, write_and_sync};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn tool(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).output().expect("it can be run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", words.join(" "));
}

/// A file system in a file, mounted by loop until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn image(image: &Path, directory: &Path) -> Mounted {
        let (image, at) = (image.display().to_string(), directory.display().to_string());
        tool(&["mount", "-o", "loop", &image, &at]);
        Mounted(directory.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + (number as usize * 7919) % 8000)
}

/// Whether a kernel has a file system and there is a program that makes it.
fn is_there(kind: &str) -> bool {
    let _ = Command::new("modprobe").arg(kind).output();
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.contains(kind) && Command::new(format!("mkfs.{kind}")).arg("-V").output().is_ok()
}

fn a_copy_has_everything_that_was_synced(kind: &str) {
    let Some(_right) = can_mount("a reflink copy of a store in use") else { return };
    if !is_there(kind) {
        return skipped(&format!("reflink copies on {kind}"));
    }
    let sandbox = Sandbox::new();
    let image = sandbox.path("below.raw");
    let file = fs::File::create(&image).expect("there is room");
    file.set_len(600 << 20).expect("it may have holes");
    tool(&[&format!("mkfs.{kind}"), "-q", &image.display().to_string()]);
    let below = Mounted::image(&image, &sandbox.make_directory("below"));
    sandbox.make_directory("mnt");
    sandbox.make_directory("back");
    let words = ["mount", "below/disk.img", "mnt", "--create", "--size", "96M", "--mkfs", "ext4"];
    sandbox.ok(&words);
    let (synced, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let mount = sandbox.path("mnt");
    let copies: Vec<(String, u64)> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let number = synced.load(Ordering::Relaxed);
                write_and_sync(&mount.join(number.to_string()), &content(number));
                synced.store(number + 1, Ordering::Release);
            }
        });
        let copy = |name: &str| {
            let before = synced.load(Ordering::Acquire);
            sandbox::wait_until("files are written", || {
                synced.load(Ordering::Acquire) > before + 20
            });
            let before = synced.load(Ordering::Acquire);
            let (from, to) = (below.0.join("disk.img"), below.0.join(name));
            tool(&[
                "cp",
                "--reflink=always",
                &from.display().to_string(),
                &to.display().to_string(),
            ]);
            (format!("below/{name}"), before)
        };
        let copies = ["one.img", "two.img", "three.img"].map(copy).to_vec();
        ends.store(true, Ordering::Relaxed);
        copies
    });
    sandbox.ok(&["umount", "mnt"]);
    for (copy, count) in &copies {
        sandbox.ok(&["check", copy, "--data"]);
        let _ = fs::remove_file(sandbox.path("copy.raw"));
        sandbox.ok(&["export", copy, "copy.raw"]);
        let back = Mounted::image(&sandbox.path("copy.raw"), &sandbox.path("back"));
        for number in 0..*count {
            let found = fs::read(back.0.join(number.to_string())).unwrap_or_default();
            assert!(found == content(number), "{kind}: {copy} lacks file {number} of {count}");
        }
    }
    drop(below);
}

#[test]
fn a_reflink_copy_on_xfs_of_a_store_in_use_has_everything_that_was_synced() {
    a_copy_has_everything_that_was_synced("xfs");
}

#[test]
fn a_reflink_copy_on_btrfs_of_a_store_in_use_has_everything_that_was_synced() {
    a_copy_has_everything_that_was_synced("btrfs");
}
