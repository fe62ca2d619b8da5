//! When blocks come home.

use crate::overlaid::{Overlaid, assert_holds, content, put_over, scatter, status};
use crate::sandbox::{Sandbox, can_mount, is_running, send, wait_until, write_and_sync};
use rustix::mount::UnmountFlags;
use std::fs;
use std::path::PathBuf;

/// A directory with a file of which blocks are in the store, and what it holds.
fn scattered(options: &[&str]) -> (Sandbox, PathBuf, Vec<u8>, u32) {
    let sandbox = Sandbox::new();
    let path = sandbox.make_directory("data").join("file");
    let mut expected = content(1);
    write_and_sync(&path, &expected);
    let pid = put_over(&sandbox, "data", options);
    scatter(&crate::open(&path), &mut expected, 2);
    assert_ne!(status(&sandbox, "data")["stored_bytes"], 0);
    (sandbox, path, expected, pid)
}

#[test]
fn unmounting_brings_everything_home_unless_that_is_never_wanted() {
    let Some(_right) = can_mount("when blocks come home") else { return };
    let cases = [("unmount", true), ("never", false), ("idle", false)];
    for (when, is_home) in cases {
        for by_command in [true, false] {
            let (sandbox, path, expected, pid) = scattered(&["--settle", when]);
            assert_eq!(status(&sandbox, "data")["settle"], when);
            if by_command {
                sandbox.ok(&["umount", "data"]);
            } else {
                rustix::mount::unmount(sandbox.path("data"), UnmountFlags::empty())
                    .expect("nobody uses it");
            }
            wait_until("it has ended", || !is_running(pid));
            let found = fs::read(&path).expect("it is there");
            assert_eq!(found == expected, is_home, "{when}, by our command: {by_command}");
            put_over(&sandbox, "data", &[]);
            let stored = status(&sandbox, "data")["stored_bytes"].as_u64();
            assert_eq!(stored == Some(0), is_home, "{when}: {stored:?}");
            assert_holds(&crate::open(&path), &expected);
            sandbox.ok(&["overlay", "detach", "data"]);
        }
    }
}

#[test]
fn a_daemon_that_is_told_to_stop_leaves_in_the_store_what_is_there() {
    let Some(_right) = can_mount("a daemon that is told to stop") else { return };
    let (sandbox, path, expected, pid) = scattered(&["--settle", "unmount"]);
    send(pid, "TERM");
    wait_until("it has ended", || !is_running(pid));
    assert!(fs::read(&path).expect("it is there") != expected, "that would take its time");
    put_over(&sandbox, "data", &[]);
    assert_holds(&crate::open(&path), &expected);
    // A detach that keeps the store brings nothing home either.
    sandbox.ok(&["overlay", "detach", "data", "--keep"]);
    assert!(fs::read(&path).expect("it is there") != expected);
    put_over(&sandbox, "data", &[]);
    // In use it goes on as it was.
    let file = crate::open(&path);
    sandbox.fails(1, &["overlay", "detach", "data", "--keep"]);
    assert_eq!(status(&sandbox, "data")["settle"], "unmount");
    drop(file);
    sandbox.ok(&["overlay", "detach", "data"]);
    assert!(fs::read(&path).expect("it is there") == expected);
}

#[test]
fn with_never_a_store_that_fills_up_takes_no_further_file() {
    let Some(_right) = can_mount("a store that fills up, with never") else { return };
    let overlaid = Overlaid::new();
    overlaid.sandbox.ok(&["overlay", "detach", "data"]);
    let options = ["--settle", "never", "--remap", "all"];
    put_over(&overlaid.sandbox, "data", &options);
    let capacity = status(&overlaid.sandbox, "data")["capacity_bytes"].as_u64();
    let capacity = capacity.expect("it is a number") as usize;
    // One file that fits, and then new ones, each written at once: more than the store can hold.
    fs::write(overlaid.path("large"), vec![0xa5; capacity / 8 * 7]).expect("there is room below");
    let part = vec![0x5a; 256 << 10];
    let count = capacity / 8 / part.len() + 20;
    for number in 0..count {
        fs::write(overlaid.path(&format!("file{number}")), &part).expect("there is room below");
    }
    let told = status(&overlaid.sandbox, "data");
    assert_eq!(told["files_brought_home"], 0, "nobody asked for it: {told}");
    let stored = told["stored_bytes"].as_u64().expect("it is a number") as usize;
    assert!(stored > capacity / 2 && stored <= capacity, "{stored} of {capacity}");
    assert_ne!(told["in_place_writes"], 0, "{told}");
    for number in 0..count {
        let path = overlaid.path(&format!("file{number}"));
        assert!(fs::read(&path).expect("it is there") == part, "file {number}");
    }
}

#[test]
fn settling_tells_of_a_file_that_cannot_come_home_whether_that_was_known_or_not() {
    let Some(_right) = can_mount("a file that cannot come home") else { return };
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.path("data/below")).expect("it is writable");
    let path = sandbox.path("data/below/file");
    let mut expected = content(1);
    write_and_sync(&path, &expected);
    let lower = crate::open(&path);
    put_over(&sandbox, "data", &[]);
    scatter(&crate::open(&path), &mut expected, 2);
    lower.set_len(expected.len() as u64 + 1).expect("there is room");
    for known in [false, true] {
        let error = sandbox.fails(1, &["overlay", "settle", "data"]);
        assert!(error.contains("data/below/file: its lower file was changed"), "{known}: {error}");
        assert_eq!(status(&sandbox, "data")["faults_total"], 1);
    }
    drop(lower);
    let kept = sandbox.fails(1, &["overlay", "detach", "data"]);
    assert!(kept.contains("the store stays"), "{kept}");
}
