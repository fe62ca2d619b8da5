//! Directories and stores that are refused, and a store that is full, which nobody hears of.

use crate::overlaid::{Overlaid, assert_holds, content, put_over, scatter, status};
use crate::sandbox::{Sandbox, can_mount, mounts_below, send, wait_until, write_and_sync};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

#[test]
fn a_store_in_the_directory_or_below_it_is_refused() {
    let Some(_right) = can_mount("a store in the directory") else { return };
    let sandbox = Sandbox::new();
    let data = sandbox.make_directory("data");
    sandbox.make_directory("data/below");
    // It would be one of the files that it serves.
    for store in ["data/store", "data/below/store", "data/../data/store"] {
        let words = ["overlay", "data", "--store", store, "--store-size", "256M"];
        let error = sandbox.fails(1, &words);
        assert!(error.contains("lies in it"), "{store}: {error}");
        assert!(error.contains("--store"), "it says what to do: {error}");
    }
    let left = || fs::read_dir(&data).expect("it is there").count();
    assert_eq!(left(), 1, "a refusal leaves nothing");

    // A directory whose own disk is on the store, by the file and by the disk.
    sandbox.ok(&["create", "volume.img", "--size", "400M"]);
    let disk = sandbox.ok(&["attach", "volume.img"]).trim().to_owned();
    let point = sandbox.make_directory("point").display().to_string();
    crate::tool(&["mkfs.ext4", "-q", &disk]);
    crate::tool(&["mount", &disk, &point]);
    for store in ["volume.img", &disk] {
        sandbox.fails(1, &["overlay", "point", "--store", store]);
        assert!(!sandbox.path("point/.coulter").exists(), "a refusal leaves nothing");
    }
    fs::write(sandbox.path("point/file"), "text").expect("it is as it was");
    crate::tool(&["umount", &point]);
    sandbox.ok(&["detach", "volume.img"]);
    sandbox.ok(&["check", "volume.img"]);
    assert!(mounts_below(&sandbox.path(".")).is_empty());
}

#[test]
fn a_directory_whose_files_cannot_be_known_again_is_refused() {
    let Some(_right) = can_mount("no handles, no attributes") else { return };
    let sandbox = Sandbox::new();
    let error = sandbox.fails(1, &["overlay", "/proc/sys", "--store-size", "256M"]);
    assert!(error.contains("no file handles"), "{error}");
    let data = sandbox.make_directory("data").display().to_string();
    crate::tool(&["chattr", "+i", &data]);
    let error = sandbox.run(&["overlay", "data", "--store-size", "256M"]);
    crate::tool(&["chattr", "-i", &data]);
    let error = String::from_utf8_lossy(&error.stderr).into_owned();
    assert!(error.contains("no extended attributes"), "{error}");
    assert_eq!(fs::read_dir(&data).expect("it is there").count(), 0, "a refusal leaves nothing");
    put_over(&sandbox, "data", &[]);
    sandbox.ok(&["overlay", "detach", "data"]);
}

#[test]
fn writers_to_a_full_store_wait_until_blocks_are_home_and_never_hear_of_it() {
    let Some(_right) = can_mount("a full store") else { return };
    let overlaid = Overlaid::new();
    overlaid.sandbox.ok(&["overlay", "detach", "data"]);
    put_over(&overlaid.sandbox, "data", &["--remap", "all"]);
    let told = status(&overlaid.sandbox, "data");
    let capacity = told["capacity_bytes"].as_u64().expect("it is a number");
    const CHUNK: u64 = 256 << 10;
    // Together they are more than the store can hold.
    let names = ["one", "two", "three"];
    let files = names.map(|name| fs::File::create_new(overlaid.path(name)).expect("it is new"));
    let chunks = capacity / 2 / CHUNK;
    let byte_of = |chunk: u64, file: usize| (chunk * 3 + file as u64) as u8 | 1;
    for chunk in 0..chunks {
        // From the end, so that no write goes on where another ended.
        let at = (chunks - 1 - chunk) * CHUNK;
        for (number, file) in files.iter().enumerate() {
            let bytes = vec![byte_of(chunk, number); CHUNK as usize];
            file.write_all_at(&bytes, at).expect("there is room below");
        }
    }
    files.iter().for_each(|file| file.sync_all().expect("there is room below"));
    let told = status(&overlaid.sandbox, "data");
    assert!(told["bytes_brought_home"].as_u64() > Some(capacity / 8), "{told}");
    drop(files);
    overlaid.detach();
    for (number, name) in names.iter().enumerate() {
        let found = fs::read(overlaid.path(name)).expect("it is there");
        assert_eq!(found.len() as u64, chunks * CHUNK);
        for (place, bytes) in found.chunks(CHUNK as usize).enumerate() {
            let expected = byte_of(chunks - 1 - place as u64, number);
            assert!(bytes.iter().all(|byte| *byte == expected), "{name}, chunk {place}");
        }
    }
}

/// A part that is mounted elsewhere would go on being served, while the directory shows what lies below it.
#[test]
fn unmounting_is_refused_first_while_a_part_is_mounted_elsewhere() {
    let Some(_right) = can_mount("a part that is mounted elsewhere") else { return };
    let overlaid = Overlaid::new();
    let sandbox = &overlaid.sandbox;
    let (file, expected) = overlaid.scattered("file", 1);
    let stored = overlaid.stored();
    let assert_refused = |holder: &str| {
        for words in [&["overlay", "detach", "data"][..], &["umount", "data"], &["detach", "data"]]
        {
            let error = sandbox.fails(1, words);
            assert!(error.contains(holder), "{words:?}: {error}");
        }
        assert_eq!(overlaid.stored(), stored, "nothing came home");
    };
    fs::create_dir(overlaid.path("below")).expect("it is new");
    let bound = sandbox.make_directory("bound").display().to_string();
    crate::tool(&["mount", "--bind", &overlaid.path("below").display().to_string(), &bound]);
    assert_refused(&bound);
    crate::tool(&["umount", &bound]);

    let words = ["--mount", "--propagation", "private", "sleep", "600"];
    let mut other = std::process::Command::new("unshare").args(words).spawn().expect("root may");
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let pid = other.id().to_string();
    crate::wait_until("it has mounts of its own", || namespace(&pid) != namespace("self"));
    assert_refused(&pid);
    other.kill().and_then(|()| other.wait()).expect("it runs");
    drop(file);
    overlaid.detach();
    crate::assert_holds(&fs::File::open(overlaid.path("file")).expect("it is there"), &expected);
}

#[test]
fn a_directory_whose_name_has_a_blank_has_an_overlay_and_advice_that_can_be_pasted() {
    let Some(_right) = can_mount("a directory whose name has a blank") else { return };
    let sandbox = Sandbox::new();
    let data = sandbox.make_directory("my data's");
    put_over(&sandbox, "my data's", &[]);
    fs::write(data.join("file"), "text").expect("it is served");
    let error = sandbox.fails(1, &["overlay", "my data's"]);
    assert!(error.contains(r"my data'\''s'`"), "{error}");

    // Unmounted, it says that its store stays, and is taken away all the same.
    let output = sandbox.run(&["umount", "my data's"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains("overlay detach"), "{told}");
    sandbox.ok(&["overlay", "detach", "my data's"]);
    assert!(!data.join(".coulter").exists());
    assert!(mounts_below(&sandbox.path(".")).is_empty());

    // A name that is refused leaves nothing.
    sandbox.fails(2, &["overlay", "my data's", "--name", "a b", "--store-size", "256M"]);
    assert!(!data.join(".coulter").exists(), "a refusal leaves nothing");
}

/// A daemon that is killed between the mark of a file and its record leaves a mark that no record names.
#[test]
fn a_mark_that_a_killed_daemon_left_goes_with_the_overlay() {
    let Some(_right) = can_mount("a mark that a killed daemon left") else { return };
    for in_foreground in [false, true] {
        let mut overlaid = Overlaid::new();
        let (file, _) = overlaid.scattered("file", 1);
        drop(file);
        crate::send(overlaid.pid, "KILL");
        overlaid.sandbox.ok(&["umount", "data"]);
        let mark = |name: &str| {
            let mut value = [0; 16];
            rustix::fs::getxattr(overlaid.path(name), "trusted.coulter.id", &mut value[..])
                .map(|_| value)
        };
        let mut value = mark("file").expect("it has blocks in the store");
        value[15] = 99;
        fs::create_dir(overlaid.path("below")).expect("it is new");
        for name in ["below/left", "foreign"] {
            fs::write(overlaid.path(name), "text").expect("it is plain");
            value[0] ^= u8::from(name == "foreign");
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(overlaid.path(name), "trusted.coulter.id", &value, flags)
                .expect("root may");
        }
        let words = ["overlay", "data", "--foreground", "--json"];
        let served = in_foreground.then(|| overlaid.sandbox.start(&words).0);
        overlaid.pid = match &served {
            Some(served) => served.id(),
            None => put_over(&overlaid.sandbox, "data", &[]),
        };
        overlaid.detach();
        if let Some(mut served) = served {
            assert!(served.wait().expect("it was started").success());
        }
        let left = ["file", "below/left", "foreign"].map(|name| {
            let path = overlaid.path(name);
            rustix::fs::getxattr(path, "trusted.coulter.id", &mut [0_u8; 16][..]).is_ok()
        });
        assert_eq!(left, [false, false, true], "foreground {in_foreground}: another's stays");
    }
}

/// What a command that was killed had begun is no reason to refuse the next one.
#[test]
fn a_store_that_was_half_made_when_the_command_was_killed_is_made_anew() {
    let Some(_right) = can_mount("a store that was half made") else { return };
    let sandbox = Sandbox::new();
    let data = sandbox.make_directory("data");
    let store = sandbox.path("half.store");
    let words = ["overlay", "data", "--store", "half.store", "--store-size", "256M"];
    sandbox.ok(&["create", "half.store", "--store-size", "256M"]);
    let error = sandbox.fails(1, &words);
    assert!(error.contains("Coulter store"), "not ours: {error}");
    fs::create_dir(data.join(".coulter")).expect("it is new");
    let place = store.display().to_string();
    fs::write(data.join(".coulter/begun"), &place).expect("root may");
    sandbox.ok(&words);
    sandbox.ok(&["overlay", "detach", "data"]);
    assert!(!data.join(".coulter").exists() && !store.exists());
}

#[test]
fn a_command_that_fails_leaves_the_dead_mount_over_old_blocks() {
    let Some(_right) = can_mount("a dead mount, and a command that fails") else { return };
    let sandbox = Sandbox::new();
    let data = sandbox.make_directory("data");
    let (store, away) = (sandbox.path("a.store"), sandbox.path("away"));
    let path = data.join("file");
    let mut expected = content(1);
    write_and_sync(&path, &expected);
    let pid = put_over(&sandbox, "data", &["--store", "a.store"]);
    scatter(&crate::open(&path), &mut expected, 2);
    send(pid, "KILL");
    let is_dead = || {
        let error = fs::read(&path).err().and_then(|error| error.raw_os_error());
        [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)].contains(&error)
    };
    wait_until("it is dead", is_dead);
    let refused = |words: &[&str], why: &str| {
        let error = sandbox.fails(1, &[&["overlay", "data"], words].concat());
        assert!(error.contains(why), "{why}: {error}");
        assert!(is_dead(), "{why}: the directory is not bare");
    };
    refused(&["--store", "other.store"], "bring them home first");
    fs::rename(&store, &away).expect("it is there");
    refused(&[], "coulter umount");
    // One that is there and cannot be served: that is known only once it is opened.
    let size = fs::metadata(&away).expect("it is there").len();
    File::create(&store).and_then(|file| file.set_len(size)).expect("there is room");
    refused(&[], "a.store");
    fs::rename(&away, &store).expect("it is there");
    put_over(&sandbox, "data", &["--store", "a.store"]);
    assert_holds(&crate::open(&path), &expected);
    sandbox.ok(&["overlay", "detach", "data"]);
}

#[test]
fn a_store_that_would_be_too_small_is_refused_with_the_least_size() {
    let Some(_right) = can_mount("a store that is too small") else { return };
    let sandbox = Sandbox::new();
    let data = sandbox.make_directory("data");
    let error = sandbox.fails(1, &["overlay", "data", "--store-size", "47M"]);
    assert!(error.contains("--store-size 48 MiB") && !error.contains("segments"), "{error}");
    assert_eq!(fs::read_dir(&data).expect("it is there").count(), 0, "a refusal leaves nothing");
    sandbox.ok(&["overlay", "data", "--store-size", "48M"]);
    sandbox.ok(&["overlay", "detach", "data"]);
}
