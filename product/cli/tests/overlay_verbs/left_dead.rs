//! A daemon that ends while programs use its directory: none goes on in what lies below.

use crate::overlaid::{Overlaid, assert_holds, put_over};
use crate::sandbox::{
    Sandbox, can_mount, is_running, mounts_below, send, wait_until, write_and_sync,
};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// That the directory answers nothing.
#[track_caller]
fn assert_dead(path: &Path) {
    let error = fs::read(path).expect_err("its daemon has ended").raw_os_error();
    assert!([Some(libc::ENOTCONN), Some(libc::ECONNABORTED)].contains(&error), "{error:?}");
    let error = fs::write(path, "lost").expect_err("its daemon has ended").raw_os_error();
    assert!([Some(libc::ENOTCONN), Some(libc::ECONNABORTED)].contains(&error), "{error:?}");
}

#[test]
fn a_signal_leaves_no_bare_directory_to_those_who_use_an_overlay() {
    let Some(_right) = can_mount("a signal while an overlay is in use") else { return };
    for (signal, cache) in [("TERM", "through"), ("INT", "back"), ("HUP", "through")] {
        let mut overlaid = Overlaid::new();
        overlaid.sandbox.ok(&["overlay", "detach", "data"]);
        overlaid.pid = put_over(&overlaid.sandbox, "data", &["--cache", cache]);
        let (file, expected) = overlaid.scattered("file", 1);
        // Written and not synced: the kernel has it, and the end is in order.
        let new = overlaid.path("new");
        let mut unsynced = File::create(&new).expect("it is writable");
        unsynced.write_all(b"kept").expect("there is room");
        send(overlaid.pid, signal);
        wait_until("it has ended", || !is_running(overlaid.pid));
        assert_dead(&overlaid.path("file"));
        let list = overlaid.sandbox.fails(1, &["list"]);
        assert!(list.contains("data"), "it is known whose mount that is: {list}");
        drop((file, unsynced));
        overlaid.pid = put_over(&overlaid.sandbox, "data", &["--cache", cache]);
        assert_holds(&crate::open(&overlaid.path("file")), &expected);
        assert_eq!(fs::read(&new).expect("it is there"), b"kept", "{cache}");
        overlaid.detach();
    }
}

#[test]
fn a_signal_leaves_no_bare_directory_to_those_who_use_a_file_system() {
    let Some(_right) = can_mount("a signal while a file system is in use") else { return };
    let sandbox = Sandbox::new();
    let mount_point = sandbox.make_directory("mnt");
    sandbox.ok(&["fs", "create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let path = mount_point.join("file");
    for again in [&["umount", "mnt"][..], &["fs", "mount", "disk.img", "mnt"]] {
        let entry = sandbox.json(&["fs", "mount", "disk.img", "mnt", "--json"]);
        let pid = entry["pid"].as_u64().expect("it has a process") as u32;
        write_and_sync(&path, b"kept");
        // One works in it and has no file open.
        let mut sleep = Command::new("sleep");
        let mut user =
            sleep.arg("60").current_dir(&mount_point).stdin(Stdio::null()).spawn().unwrap();
        send(pid, "TERM");
        wait_until("it has ended", || !is_running(pid));
        user.kill().and_then(|()| user.wait()).expect("it is ours");
        assert_dead(&path);
        sandbox.ok(again);
        if again[0] == "fs" {
            assert_eq!(fs::read(&path).expect("it is there"), b"kept");
            sandbox.ok(&["umount", "mnt"]);
        }
        assert!(mounts_below(&mount_point).is_empty());
    }
    // It is not in use: it goes.
    let entry = sandbox.json(&["fs", "mount", "disk.img", "mnt", "--json"]);
    let pid = entry["pid"].as_u64().expect("it has a process") as u32;
    send(pid, "TERM");
    wait_until("it has ended", || !is_running(pid));
    assert!(mounts_below(&mount_point).is_empty());
    assert!(File::open(&path).is_err());
    assert_eq!(sandbox.json(&["list", "--json"]).as_array().map(Vec::len), Some(0));
}

#[test]
fn a_mount_right_behind_a_kill_waits_for_the_daemon_and_works() {
    let Some(_right) = can_mount("a mount right behind a kill") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["fs", "create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let entry = sandbox.json(&["fs", "mount", "disk.img", "mnt", "--json"]);
    let pid = entry["pid"].as_u64().expect("it has a process") as u32;
    // A call that waits for the mount when its daemon is killed ends with another error than later
    // ones.
    send(pid, "STOP");
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| fs::metadata(sandbox.path("mnt/name")));
        let mount = scope.spawn(|| sandbox.ok(&["fs", "mount", "disk.img", "mnt"]));
        std::thread::sleep(Duration::from_millis(500));
        send(pid, "KILL");
        mount.join().expect("it is mounted");
        drop(looks.join());
    });
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn no_command_waits_for_a_mount_whose_daemon_does_not_answer() {
    let Some(_right) = can_mount("a daemon that does not answer") else { return };
    let overlaid = Overlaid::new();
    let sandbox = &overlaid.sandbox;
    std::os::unix::fs::symlink("data", sandbox.path("link")).expect("it is writable");
    send(overlaid.pid, "STOP");
    let begun = Instant::now();
    let listed = sandbox.ok(&["list"]);
    let commands: [&[&str]; 7] = [
        &["status", "data"],
        &["overlay", "status", "link"],
        &["overlay", "settle", "data"],
        &["overlay", "data"],
        &["overlay", "detach", "data/"],
        &["umount", "link"],
        &["sync", "data/file"],
    ];
    std::thread::scope(|scope| {
        let ask = |words| scope.spawn(move || (words, sandbox.fails(1, words)));
        let asked: Vec<_> = commands.into_iter().map(ask).collect();
        for asked in asked {
            let (words, error) = asked.join().expect("it ends");
            assert!(error.contains("does not answer"), "{words:?}: {error}");
        }
    });
    // Five seconds each, side by side, on a machine that may have other things to do.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    send(overlaid.pid, "CONT");
    assert!(listed.contains("data"), "{listed}");
    overlaid.detach();
}

#[test]
fn what_overlayfs_has_a_layer_on_is_not_unmounted() {
    let Some(_right) = can_mount("overlayfs over an overlay") else { return };
    let overlaid = Overlaid::new();
    let sandbox = &overlaid.sandbox;
    let merged = sandbox.make_directory("merged").display().to_string();
    let lower = sandbox.make_directory("lower");
    for name in ["upper", "work"] {
        fs::create_dir(overlaid.path(name)).expect("it is writable");
    }
    let (upper, work) = (overlaid.path("upper"), overlaid.path("work"));
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    crate::tool(&["mount", "-t", "overlay", "none", &merged, "-o", &options]);
    for words in [&["overlay", "detach", "data"][..], &["umount", "data"]] {
        let error = sandbox.fails(1, words);
        assert!(error.contains("overlayfs") && error.contains("merged"), "{words:?}: {error}");
    }
    assert_eq!(mounts_below(&overlaid.directory).len(), 1, "it is not bare");
    crate::tool(&["umount", &merged]);
    overlaid.detach();
}
