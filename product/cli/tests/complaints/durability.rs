//! What is there after a kill, and what the file system below runs out of.

use crate::overlaid::{BLOCK, Overlaid, assert_holds, content, put_over, scatter, write_and_hear};
use crate::sandbox::{Sandbox, can_mount, is_running, send, wait_until, write_and_sync};
use rustix::mount::UnmountFlags;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

#[test]
fn a_write_to_a_file_opened_for_synced_writes_outlives_a_kill() {
    let Some(_right) = can_mount("O_SYNC and O_DSYNC") else { return };
    let mut overlaid = Overlaid::new();
    for (name, flag) in [("sync", libc::O_SYNC), ("dsync", libc::O_DSYNC)] {
        let (file, mut expected) = overlaid.scattered(name, 1);
        drop(file);
        let file = OpenOptions::new().write(true).custom_flags(flag).open(overlaid.path(name));
        let file = file.expect("it is there");
        for block in [100, 9, 30] {
            file.write_all_at(&[200; BLOCK], block * BLOCK as u64).expect("it is writable");
            expected[block as usize * BLOCK..][..BLOCK].fill(200);
        }
        overlaid.kill_and_go_on();
        drop(file);
        assert_holds(&File::open(overlaid.path(name)).expect("it is there"), &expected);
    }
}

#[test]
fn a_synced_directory_has_its_names_after_a_kill() {
    let Some(_right) = can_mount("a synced directory") else { return };
    let mut overlaid = Overlaid::new();
    fs::create_dir(overlaid.path("below")).expect("it is new");
    let (file, expected) = overlaid.scattered("below/old", 1);
    drop(file);
    fs::rename(overlaid.path("below/old"), overlaid.path("below/new")).expect("it is there");
    for path in [overlaid.path("below"), overlaid.directory.clone()] {
        File::open(path).expect("it is there").sync_all().expect("a directory can be synced");
    }
    overlaid.kill_and_go_on();
    assert!(!overlaid.path("below/old").exists());
    assert_holds(&File::open(overlaid.path("below/new")).expect("it is there"), &expected);
}

#[test]
fn a_file_that_replaces_another_is_whole_after_a_kill_without_a_sync() {
    let Some(_right) = can_mount("a file that replaces another") else { return };
    let mut overlaid = Overlaid::new();
    drop(overlaid.scattered("old", 1));
    let (file, mut expected) = overlaid.scattered("new", 2);
    for block in [20, 10] {
        file.write_all_at(&[9; BLOCK], block * BLOCK as u64).expect("it is writable");
        expected[block as usize * BLOCK..][..BLOCK].fill(9);
    }
    drop(file);
    fs::rename(overlaid.path("new"), overlaid.path("old")).expect("both are there");
    overlaid.kill_and_go_on();
    assert_holds(&File::open(overlaid.path("old")).expect("it is there"), &expected);
}

#[test]
fn coulter_sync_reaches_what_is_in_the_store() {
    let Some(_right) = can_mount("coulter sync") else { return };
    let mut overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("file", 1);
    file.write_all_at(&[9; BLOCK], 50 * BLOCK as u64).expect("it is writable");
    expected[50 * BLOCK..][..BLOCK].fill(9);
    overlaid.sandbox.ok(&["sync", "data"]);
    drop(file);
    overlaid.kill_and_go_on();
    assert_holds(&File::open(overlaid.path("file")).expect("it is there"), &expected);
}

#[test]
fn a_dead_mount_answers_at_once_and_never_hangs() {
    let Some(_right) = can_mount("a dead mount") else { return };
    let mut overlaid = Overlaid::new();
    let (file, expected) = overlaid.scattered("file", 1);
    send(overlaid.pid, "KILL");
    wait_until("it is gone", || !is_running(overlaid.pid));
    let begun = Instant::now();
    let dead = fs::metadata(overlaid.path("other")).expect_err("nobody serves it").raw_os_error();
    assert_eq!(dead, Some(libc::ENOTCONN));
    assert!(file.sync_all().is_err() && write_and_hear(&file, &[1], 0).is_err());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(file);
    overlaid.pid = put_over(&overlaid.sandbox, "data", &[]);
    assert_holds(&File::open(overlaid.path("file")).expect("it is there"), &expected);
}

#[test]
fn unmounting_waits_until_all_is_in_the_store() {
    let Some(_right) = can_mount("unmounting waits") else { return };
    let overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("file", 1);
    drop(file);
    for seed in 2..6 {
        let file = OpenOptions::new().write(true).open(overlaid.path("file")).expect("it is there");
        file.write_all_at(&[seed; BLOCK], 60 * BLOCK as u64).expect("it is writable");
        expected[60 * BLOCK..][..BLOCK].fill(seed);
        drop(file);
        match seed % 2 {
            0 => drop(overlaid.sandbox.ok(&["umount", "data"])),
            // What umount(8) does returns before the daemon has closed the store.
            _ => rustix::mount::unmount(&overlaid.directory, UnmountFlags::empty())
                .expect("nobody uses it"),
        }
        put_over(&overlaid.sandbox, "data", &[]);
        assert_holds(&File::open(overlaid.path("file")).expect("it is there"), &expected);
    }
    overlaid.detach();
    assert_holds(&File::open(overlaid.path("file")).expect("it is there"), &expected);
}

#[test]
fn a_full_file_system_below_is_told_as_full_and_never_when_blocks_come_home() {
    let Some(_right) = can_mount("a full file system below") else { return };
    let sandbox = Sandbox::new();
    let image = sandbox.path("small.img");
    File::create(&image).and_then(|file| file.set_len(32 << 20)).expect("there is room");
    let small = sandbox.make_directory("small");
    let (image, point) = (image.display().to_string(), small.display().to_string());
    crate::tool(&["mkfs.ext4", "-q", "-m", "0", &image]);
    crate::tool(&["mount", "-o", "loop", &image, &point]);
    let directory = sandbox.make_directory("small/data");
    put_over(&sandbox, "small/data", &["--store", "store.img"]);
    let mut expected = content(1);
    write_and_sync(&directory.join("whole"), &expected);
    let whole = crate::open(&directory.join("whole"));
    scatter(&whole, &mut expected, 1);
    let sparse = File::create_new(directory.join("sparse")).expect("it is new");
    sparse.set_len(64 << 20).expect("a hole takes no room");
    // Every other block, so that it is random, and each takes its place below.
    let mut written = 0;
    let error = loop {
        let offset = (written * 2 + 1) * BLOCK as u64;
        match write_and_hear(&sparse, &[written as u8 | 1; BLOCK], offset) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 8192, "32 MiB do not go into less");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    let other = File::create_new(directory.join("other")).expect("it is new");
    let error = write_and_hear(&other, &content(2), 0).expect_err("it is full");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    scatter(&whole, &mut expected, 7);
    drop((whole, sparse, other));
    sandbox.ok(&["overlay", "detach", "small/data"]);
    assert_holds(&crate::open(&directory.join("whole")), &expected);
    let sparse = crate::open(&directory.join("sparse"));
    let mut block = [0; BLOCK];
    for number in 0..written {
        sparse.read_exact_at(&mut block, (number * 2 + 1) * BLOCK as u64).expect("it is there");
        assert!(block == [number as u8 | 1; BLOCK], "block {number} is home");
    }
    drop(sparse);
    crate::tool(&["umount", &point]);
}
