//! Overlays from the outside: what is over a directory, taken away and put there again; what cannot be below
//! one; and what users of other stacked file systems complain of. Needs root and FUSE.

mod complaints;
mod overlaid;
mod overlay_verbs;
mod sandbox;

use overlaid::{BLOCK, Overlaid, assert_holds, content, put_over, scatter, status, write_and_hear};
use sandbox::{
    Sandbox, can_mount, is_running, mounts_below, send, skipped, wait_until, write_and_sync,
};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("it is there")
}

/// Runs a tool that must succeed.
#[track_caller]
fn tool(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).output().expect("it can be run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", words.join(" "));
}

/// Has what lies in a directory seen in another one, even while something is mounted over the first.
fn bind(directory: &Path, other: &Path) {
    let (directory, other) = (directory.display().to_string(), other.display().to_string());
    tool(&["mount", "--bind", &directory, &other]);
    tool(&["mount", "--make-private", &other]);
}

#[test]
fn what_was_synced_is_there_after_a_kill_and_in_the_plain_directory_after_detaching() {
    let Some(_right) = can_mount("what was synced is there") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("data");
    fs::create_dir(directory.join("below")).expect("it is new");
    let names = ["one", "two", "below/three"];
    let mut expected: Vec<Vec<u8>> = (0..3).map(|seed| content(seed as u8)).collect();
    for (name, bytes) in names.iter().zip(&expected) {
        write_and_sync(&directory.join(name), bytes);
    }
    write_and_sync(&directory.join("untouched"), &content(77));
    let pid = put_over(&sandbox, "data", &[]);
    for (name, bytes) in names.iter().zip(&mut expected) {
        let file = open(&directory.join(name));
        scatter(&file, bytes, 40);
        assert_holds(&file, bytes);
    }
    let told = status(&sandbox, "data");
    assert_eq!((&told["files"], &told["remapped_writes"]), (&3.into(), &15.into()), "{told}");
    // It need not be gone when the next one comes.
    send(pid, "KILL");
    put_over(&sandbox, "data", &[]);
    for (name, bytes) in names.iter().zip(&mut expected) {
        let file = open(&directory.join(name));
        assert_holds(&file, bytes);
        scatter(&file, bytes, 50);
    }
    sandbox.ok(&["overlay", "settle", "data"]);
    assert_eq!(status(&sandbox, "data")["stored_bytes"], 0);
    sandbox.ok(&["overlay", "check", "data"]);
    scatter(&open(&directory.join("two")), &mut expected[1], 60);
    sandbox.ok(&["overlay", "detach", "data"]);
    assert!(mounts_below(&sandbox.path(".")).is_empty());
    for (name, bytes) in names.iter().zip(&expected) {
        assert_holds(&open(&directory.join(name)), bytes);
        let path = directory.join(name);
        let attributes = Command::new("getfattr").args(["-d", "-m", "-"]).arg(path).output();
        if let Ok(attributes) = attributes {
            assert!(attributes.stdout.is_empty(), "no mark is left");
        }
    }
    assert_holds(&open(&directory.join("untouched")), &content(77));
    let mut left: Vec<_> = fs::read_dir(&directory)
        .expect("it is there")
        .map(|e| e.expect("it is").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["below", "one", "two", "untouched"]);
}

#[test]
fn every_file_system_that_is_named_can_be_below() {
    let Some(_right) = can_mount("every file system below") else { return };
    for kind in ["ext4", "xfs", "btrfs"] {
        let make = format!("mkfs.{kind}");
        if Command::new(&make).arg("-V").output().is_err() {
            skipped(&format!("an overlay over {kind}: {make} is not installed"));
            continue;
        }
        let sandbox = Sandbox::new();
        let (image, point) = (sandbox.path("lower.img"), sandbox.make_directory("lower"));
        File::create(&image).and_then(|file| file.set_len(400 << 20)).expect("there is room");
        let (image, shown) = (image.display().to_string(), point.display().to_string());
        tool(&[&*make, "-q", &image]);
        tool(&["mount", "-o", "loop", &image, &shown]);
        let (path, mut expected) = (point.join("file"), content(1));
        write_and_sync(&path, &expected);
        let pid = put_over(&sandbox, "lower", &["--store", "store.img"]);
        let file = open(&path);
        scatter(&file, &mut expected, 2);
        fs::hard_link(&path, point.join("other")).expect("links are allowed");
        fs::remove_file(&path).expect("it is there");
        fs::rename(point.join("other"), &path).expect("it is there");
        assert_holds(&file, &expected);
        drop(file);
        send(pid, "KILL");
        put_over(&sandbox, "lower", &[]);
        assert_holds(&open(&path), &expected);
        scatter(&open(&path), &mut expected, 3);
        sandbox.ok(&["overlay", "check", "lower"]);
        sandbox.ok(&["overlay", "detach", "lower"]);
        assert_holds(&open(&path), &expected);
        tool(&["umount", &shown]);
    }
}

#[test]
fn a_kept_store_goes_on_after_a_kill_between() {
    let Some(_right) = can_mount("a kept store goes on") else { return };
    let mut overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("file", 1);
    drop(file);
    overlaid.kill_and_go_on();
    overlaid.sandbox.ok(&["overlay", "detach", "data", "--keep"]);
    assert!(overlaid.path(".coulter/store").exists());
    put_over(&overlaid.sandbox, "data", &["--remap", "all"]);
    scatter(&open(&overlaid.path("file")), &mut expected, 9);
    assert_holds(&open(&overlaid.path("file")), &expected);
    overlaid.detach();
    assert_holds(&open(&overlaid.path("file")), &expected);
}

#[test]
fn what_cannot_be_below_an_overlay_is_refused_with_what_to_do() {
    let Some(_right) = can_mount("what cannot be below an overlay") else { return };
    let sandbox = Sandbox::new();
    let error = sandbox.fails(1, &["overlay", "/", "--store-size", "256M"]);
    assert!(error.contains("root of everything"), "{error}");
    assert!(error.contains("a directory in it"), "it says what to do: {error}");

    sandbox.make_directory("data");
    let error = sandbox.fails(1, &["overlay", "missing"]);
    assert!(error.contains("missing"), "{error}");
    fs::write(sandbox.path("file"), "text").expect("it is writable");
    let error = sandbox.fails(1, &["overlay", "file"]);
    assert!(error.contains("not a directory"), "{error}");

    sandbox.ok(&["fs", "create", "disk.img", "--size", "64M"]);
    sandbox.make_directory("fuse");
    sandbox.ok(&["fs", "mount", "disk.img", "fuse"]);
    fs::create_dir(sandbox.path("fuse/below")).expect("it is writable");
    let error = sandbox.fails(1, &["overlay", "fuse/below"]);
    assert!(error.contains("FUSE"), "{error}");
    sandbox.ok(&["umount", "fuse"]);

    sandbox.make_directory("bound");
    bind(&sandbox.path("data"), &sandbox.path("bound"));
    let bound = sandbox.path("bound").display().to_string();
    tool(&["mount", "-o", "remount,bind,ro", &bound]);
    let error = sandbox.fails(1, &["overlay", "bound", "--store-size", "256M"]);
    assert!(error.contains("read-only"), "{error}");
    tool(&["umount", &bound]);

    sandbox.make_directory("data/below");
    let below = sandbox.path("data/below").display().to_string();
    tool(&["mount", "-t", "tmpfs", "none", &below]);
    let error = sandbox.fails(1, &["overlay", "data", "--store-size", "256M"]);
    assert!(error.contains(&below), "it names what is mounted: {error}");
    let error = sandbox.fails(1, &["overlay", "data/below", "--store-size", "256M"]);
    assert!(error.contains("tmpfs"), "{error}");
    tool(&["umount", &below]);
    assert!(!sandbox.path("data/.coulter").exists(), "a refusal leaves nothing");
}

#[test]
fn a_store_that_is_not_the_directorys_is_refused() {
    let Some(_right) = can_mount("a store that is not the directory's") else { return };
    let overlaid = Overlaid::new();
    let (file, expected) = overlaid.scattered("file", 1);
    drop(file);
    let sandbox = &overlaid.sandbox;
    sandbox.ok(&["overlay", "detach", "data", "--keep"]);

    // A copy of the directory has another one's store.
    let (data, copy) = (sandbox.path("data"), sandbox.path("copy"));
    tool(&["cp", "-a", &data.display().to_string(), &copy.display().to_string()]);
    let error = sandbox.fails(1, &["overlay", "copy"]);
    assert!(error.contains("belongs to another directory"), "{error}");
    assert!(mounts_below(&copy).is_empty());

    // So has a directory that is given it by name.
    sandbox.make_directory("other");
    let error = sandbox.fails(1, &["overlay", "other", "--store", "data/.coulter/store"]);
    assert!(error.contains("Coulter store"), "{error}");
    assert!(!sandbox.path("other/.coulter").exists(), "a refusal leaves nothing");
    let error = sandbox.fails(1, &["overlay", "data", "--store", "elsewhere"]);
    assert!(error.contains("bring them home first"), "{error}");

    // And one whose store is away.
    let store = overlaid.path(".coulter/store");
    fs::rename(&store, sandbox.path("away")).expect("it is there");
    let error = sandbox.fails(1, &["overlay", "data"]);
    assert!(error.contains("which is not there"), "{error}");
    assert!(!store.exists(), "no other is made in its place");
    fs::rename(sandbox.path("away"), &store).expect("it is there");
    put_over(sandbox, "data", &[]);
    overlaid.detach();
    assert_holds(&open(&overlaid.path("file")), &expected);
}

#[test]
fn a_store_elsewhere_goes_with_the_overlay_and_its_disk_can_be_used_again() {
    let Some(_right) = can_mount("a store elsewhere goes") else { return };
    let sandbox = Sandbox::new();
    let data = sandbox.make_directory("data");
    let image = sandbox.path("disk.img");
    File::create(&image).and_then(|file| file.set_len(300 << 20)).expect("there is room");
    let output = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let output = output.expect("losetup can be run");
    let disk = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(disk.starts_with("/dev/loop"), "{disk}");
    let file = sandbox.path("elsewhere.store").display().to_string();
    for (seed, store) in [&*disk, &file, &disk].into_iter().enumerate() {
        let size = if *store == *disk { &[][..] } else { &["--store-size", "256M"] };
        sandbox.ok(&[&["overlay", "data", "--store", store], size].concat());
        let path = data.join("file");
        let mut expected = content(seed as u8);
        write_and_sync(&path, &expected);
        scatter(&open(&path), &mut expected, 7);
        assert_ne!(status(&sandbox, "data")["stored_bytes"], 0);
        sandbox.ok(&["overlay", "detach", "data"]);
        assert_holds(&open(&path), &expected);
        assert!(!data.join(".coulter").exists() && !Path::new(&file).exists());
    }
    tool(&["losetup", "--detach", &disk]);
}

#[test]
fn a_directory_has_one_overlay_by_whatever_path() {
    let Some(_right) = can_mount("a directory has one overlay") else { return };
    let sandbox = Sandbox::new();
    let (data, bound) = (sandbox.make_directory("data"), sandbox.make_directory("bound"));
    bind(&data, &bound);
    let pid = put_over(&sandbox, "data", &[]);
    let error = sandbox.fails(1, &["overlay", "data"]);
    assert!(error.contains("one is over it already"), "{error}");
    let error = sandbox.fails(1, &["overlay", "bound", "--name", "second"]);
    assert!(error.contains("already attached"), "{error}");
    let error =
        sandbox.fails(1, &["overlay", "bound", "--name", "second", "--store", "second.store"]);
    assert!(error.contains("bring them home first"), "{error}");
    assert!(!sandbox.path("second.store").exists());
    assert!(is_running(pid), "the first is not disturbed");
    fs::write(data.join("file"), "text").expect("it serves");
    sandbox.ok(&["overlay", "detach", "data"]);
    assert_eq!(fs::read_to_string(bound.join("file")).expect("it is home"), "text");
}

#[test]
fn of_two_commands_at_once_one_puts_the_overlay_over_the_directory() {
    let Some(_right) = can_mount("two commands at once") else { return };
    let sandbox = Sandbox::new();
    let (data, bound) = (sandbox.make_directory("data"), sandbox.make_directory("bound"));
    bind(&data, &bound);
    for round in 0..3 {
        let words = ["overlay", "data", "--store-size", "256M"];
        let commands = [0, 1].map(|_| sandbox.command(&words).spawn().expect("it can be started"));
        let ended = commands.map(|mut command| command.wait().expect("it ends").success());
        assert_eq!(ended.iter().filter(|ok| **ok).count(), 1, "round {round}: {ended:?}");
        let path = data.join("file");
        write_and_sync(&path, &content(1));
        let mut expected = content(1);
        scatter(&open(&path), &mut expected, 2);
        assert!(bound.join(".coulter/store").exists(), "the store has its name");
        send(sandbox.pid_of("data"), "KILL");
        put_over(&sandbox, "data", &[]);
        assert_holds(&open(&path), &expected);
        sandbox.ok(&["overlay", "detach", "data"]);
    }
}

#[test]
fn a_killed_daemons_directory_is_found_by_a_link_and_told_what_to_do() {
    let Some(_right) = can_mount("a killed daemon's directory") else { return };
    let mut overlaid = Overlaid::new();
    let (file, expected) = overlaid.scattered("file", 1);
    drop(file);
    let sandbox = &overlaid.sandbox;
    std::os::unix::fs::symlink("data", sandbox.path("link")).expect("it is new");
    for path in ["data", "link"] {
        send(overlaid.pid, "KILL");
        wait_until("it is gone", || !is_running(overlaid.pid));
        for verb in ["status", "detach", "settle", "check"] {
            let error = sandbox.fails(1, &["overlay", verb, path]);
            assert!(error.contains("coulter overlay"), "{verb}: it says what to do: {error}");
        }
        overlaid.pid = put_over(sandbox, path, &[]);
        assert_holds(&open(&overlaid.path("file")), &expected);
    }
    overlaid.detach();
}

#[test]
fn a_lower_file_that_others_changed_gives_an_error_and_never_a_mixture() {
    let Some(_right) = can_mount("a lower file that others changed") else { return };
    let mut overlaid = Overlaid::new();
    let names = ["written", "replaced", "removed", "cut", "sound"];
    let mut expected = Vec::new();
    for (seed, name) in names.iter().enumerate() {
        expected.push(overlaid.scattered(name, seed as u8).1);
    }
    send(overlaid.pid, "KILL");
    overlaid.sandbox.ok(&["umount", "data"]);
    open(&overlaid.path("written")).write_all_at(&[1; 10], 5000).expect("it is plain");
    fs::write(overlaid.path("new"), content(9)).expect("it is plain");
    fs::rename(overlaid.path("new"), overlaid.path("replaced")).expect("both are there");
    fs::remove_file(overlaid.path("removed")).expect("it is there");
    open(&overlaid.path("cut")).set_len(BLOCK as u64 * 5).expect("it is plain");
    overlaid.pid = put_over(&overlaid.sandbox, "data", &[]);
    let told = status(&overlaid.sandbox, "data");
    assert_eq!(told["faults_total"], 4, "{told}");
    for name in ["written", "cut"] {
        let error = fs::read(overlaid.path(name)).expect_err("it is no mixture");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
        let written = write_and_hear(&open(&overlaid.path(name)), &[7; BLOCK], 8192);
        let error = written.expect_err("nor written");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
    }
    assert_holds(&open(&overlaid.path("replaced")), &content(9));
    assert_holds(&open(&overlaid.path("sound")), &expected[4]);
    let output = overlaid.sandbox.run(&["overlay", "check", "data"]);
    assert_eq!(output.status.code(), Some(1));
    let lines = String::from_utf8(output.stdout).expect("it is text");
    assert_eq!(lines.matches("changed while nothing was mounted").count(), 2, "{lines}");
    assert_eq!(lines.matches("its file is not there any more").count(), 2, "{lines}");
    // What can come home does; the store stays for what cannot, and that is told.
    let error = overlaid.sandbox.fails(1, &["overlay", "detach", "data"]);
    assert!(error.contains("could not be brought home"), "{error}");
    assert!(mounts_below(&overlaid.directory).is_empty());
    assert_holds(&open(&overlaid.path("sound")), &expected[4]);
    assert!(overlaid.path(".coulter/store").exists());
}

#[test]
fn a_copy_of_a_file_has_its_mark_and_is_not_taken_for_it() {
    let Some(_right) = can_mount("a copy of a file has its mark") else { return };
    let mut overlaid = Overlaid::new();
    let (file, expected) = overlaid.scattered("file", 1);
    drop(file);
    send(overlaid.pid, "KILL");
    overlaid.sandbox.ok(&["umount", "data"]);
    // The plain file, without what is in the store.
    let plain = fs::read(overlaid.path("file")).expect("it is there");
    assert!(plain != expected);
    let [from, to] = ["file", "copy"].map(|name| overlaid.path(name).display().to_string());
    tool(&["cp", "-a", &from, &to]);
    overlaid.pid = put_over(&overlaid.sandbox, "data", &[]);
    assert_holds(&open(&overlaid.path("file")), &expected);
    assert_holds(&open(&overlaid.path("copy")), &plain);
    open(&overlaid.path("copy"))
        .write_all_at(&[9; BLOCK], 5 * BLOCK as u64)
        .expect("it is writable");
    assert_holds(&open(&overlaid.path("file")), &expected);
    overlaid.sandbox.ok(&["overlay", "check", "data"]);
    overlaid.detach();
    assert_holds(&open(&overlaid.path("file")), &expected);
    let copy = fs::read(overlaid.path("copy")).expect("it is there");
    assert!(copy[5 * BLOCK..6 * BLOCK] == [9; BLOCK] && copy[6 * BLOCK..] == plain[6 * BLOCK..]);
}

#[test]
fn a_lower_file_that_others_change_in_use_gives_an_error() {
    let Some(_right) = can_mount("a lower file that others change in use") else { return };
    let sandbox = Sandbox::new();
    let (data, bound) = (sandbox.make_directory("data"), sandbox.make_directory("bound"));
    bind(&data, &bound);
    put_over(&sandbox, "data", &[]);
    let path = data.join("file");
    write_and_sync(&path, &content(1));
    scatter(&open(&path), &mut content(1), 2);
    open(&bound.join("file")).write_all_at(&[1; 10], 50 * BLOCK as u64).expect("it is plain");
    fs::write("/proc/sys/vm/drop_caches", "1").expect("root may");
    let error = fs::read(&path).expect_err("it is no mixture");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let output = sandbox.run(&["overlay", "check", "data"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("was changed by others"));
}
