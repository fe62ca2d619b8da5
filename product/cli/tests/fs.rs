//! File systems of Coulter's own, from the outside. Needs root and FUSE.

mod sandbox;

use rustix::mount::UnmountFlags;
use sandbox::{Sandbox, can_mount, mounts_below, send};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

fn write_and_sync(path: &Path, content: &[u8]) {
    let mut file = File::create(path).expect("the file system is writable");
    file.write_all(content).expect("there is room");
    file.sync_all().expect("it can be synced");
}

/// A store with a file system, and the directory to mount it on.
fn made() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["fs", "create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    sandbox
}

fn mounted(sandbox: &Sandbox) -> i32 {
    let entry = sandbox.json(&["fs", "mount", "disk.img", "mnt", "--json"]);
    entry["pid"].as_i64().expect("it has a process") as i32
}

#[test]
fn a_killed_daemon_leaves_nothing_that_mount_umount_or_detach_cannot_take_away() {
    let Some(_right) =
        can_mount("a_killed_daemon_leaves_nothing_that_mount_umount_or_detach_cannot_take_away")
    else {
        return;
    };
    let sandbox = made();
    let file = sandbox.path("mnt/file");
    for (round, verb) in ["mount", "umount", "detach"].into_iter().enumerate() {
        let pid = mounted(&sandbox);
        if round > 0 {
            let before = fs::read(&file).expect("it was synced");
            assert_eq!(before, [round as u8 - 1; 5000]);
        }
        write_and_sync(&file, &[round as u8; 5000]);
        fs::write(sandbox.path("mnt/other"), "not synced").expect("it is writable");
        send(pid as u32, "KILL");
        let dead = fs::read(&file).expect_err("nobody serves it");
        // A request that was on its way is aborted; those that come later find no connection.
        let dead = dead.raw_os_error().expect("the kernel says it");
        assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&dead), "{dead}");
        match verb {
            "mount" => {
                mounted(&sandbox);
                assert_eq!(fs::read(&file).expect("it was synced"), [0; 5000]);
                sandbox.ok(&["umount", "mnt"]);
            }
            "umount" => drop(sandbox.ok(&["umount", "mnt"])),
            _ => drop(sandbox.ok(&["detach", "disk"])),
        }
        let left = mounts_below(&sandbox.path("."));
        assert!(left.is_empty(), "{verb} leaves {left:?}");
        assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]", "{verb}");
        sandbox.ok(&["fs", "check", "disk.img"]);
    }
}

/// Programs would write into the bare directory from then on.
#[test]
fn a_mount_of_another_store_leaves_a_dead_mount_where_it_is() {
    let Some(_right) = can_mount("a_mount_of_another_store_leaves_a_dead_mount_where_it_is") else {
        return;
    };
    let sandbox = made();
    sandbox.make_directory("other");
    sandbox.ok(&["fs", "create", "other.img", "--size", "128M", "--segment-size", "2M"]);
    sandbox.ok(&["create", "device.img", "--size", "128M", "--segment-size", "2M"]);
    let pid = mounted(&sandbox);
    write_and_sync(&sandbox.path("mnt/file"), b"synced");
    send(pid as u32, "KILL");
    let file = sandbox.path("mnt/file");
    let dead = || fs::write(&file, "astray").is_err() && fs::read(&file).is_err();
    assert!(dead(), "its daemon is dead");

    sandbox.ok(&["fs", "mount", "other.img", "other"]);
    assert!(dead(), "a mount of another store took it away");
    sandbox.ok(&["attach", "--via", "nbd-server", "device.img"]);
    assert!(dead(), "another volume took it away");
    sandbox.ok(&["umount", "other"]);
    let error = sandbox.fails(1, &["fs", "mount", "other.img", "mnt"]);
    assert!(error.contains("is mounted there already"), "{error}");
    assert!(dead(), "a refused mount took it away");

    mounted(&sandbox);
    assert_eq!(fs::read(&file).expect("it was synced"), b"synced");
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["detach", "device"]);
}

#[test]
fn sync_makes_durable_what_was_written() {
    let Some(_right) = can_mount("sync_makes_durable_what_was_written") else { return };
    let sandbox = made();
    let pid = mounted(&sandbox);
    fs::create_dir(sandbox.path("mnt/directory")).expect("it is writable");
    fs::write(sandbox.path("mnt/directory/file"), vec![7; 100_000]).expect("it is writable");
    sandbox.ok(&["sync", "mnt"]);
    send(pid as u32, "KILL");
    sandbox.ok(&["umount", "mnt"]);
    mounted(&sandbox);
    let found = fs::read(sandbox.path("mnt/directory/file")).expect("it was synced");
    assert!(found == vec![7; 100_000]);
    sandbox.ok(&["sync", "mnt/directory/file"]);
    sandbox.ok(&["umount", "mnt"]);
    let error = sandbox.fails(1, &["sync", "mnt"]);
    assert!(error.contains("cannot sync"), "{error}");
}

#[test]
fn a_mount_waits_until_the_one_before_has_closed_the_store() {
    let Some(_right) = can_mount("a_mount_waits_until_the_one_before_has_closed_the_store") else {
        return;
    };
    let sandbox = made();
    for round in 0..4u8 {
        mounted(&sandbox);
        let file = sandbox.path("mnt/file");
        if round > 0 {
            assert!(fs::read(&file).expect("it was written") == vec![round - 1; 3_000_000]);
        }
        fs::write(&file, vec![round; 3_000_000]).expect("it is writable");
        rustix::mount::unmount(sandbox.path("mnt"), UnmountFlags::empty()).expect("nobody uses it");
    }
    mounted(&sandbox);
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["fs", "check", "disk.img"]);
}

#[test]
fn a_directory_that_gets_another_owner_keeps_set_gid() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let Some(_right) = can_mount("a_directory_that_gets_another_owner_keeps_set_gid") else {
        return;
    };
    let sandbox = made();
    mounted(&sandbox);
    let (directory, program) = (sandbox.path("mnt/directory"), sandbox.path("mnt/program"));
    fs::create_dir(&directory).expect("it is writable");
    fs::write(&program, "text").expect("it is writable");
    for (path, mode, expected) in [(directory, 0o2775, 0o2775), (program, 0o6775, 0o775)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root may");
        chown(&path, Some(65_534), Some(77)).expect("root may");
        let found = fs::metadata(&path).expect("it is there").mode() & 0o7777;
        assert_eq!(found, expected, "{}", path.display());
    }
    sandbox.ok(&["umount", "mnt"]);
}

/// Files that are replaced in turn.
const FILES: u64 = 20;
/// Every seventh replacement is synced.
const SYNC_EACH: u64 = 7;

/// What the file holds after replacement `number`: some lines, or some blocks.
fn content(number: u64) -> Vec<u8> {
    format!("{number}\n").repeat(1 + (number * 131 % 5000) as usize).into_bytes()
}

/// Replaces files until the mount is dead; the last number begun, and the last one synced.
fn replace(directory: &Path, first: u64) -> (u64, Option<u64>) {
    let (mut number, mut synced) = (first, None);
    let temporary = directory.join("new");
    loop {
        let done = fs::write(&temporary, content(number))
            .and_then(|()| fs::rename(&temporary, directory.join(format!("{}", number % FILES))));
        if done.is_err() {
            return (number, synced);
        }
        if number.is_multiple_of(SYNC_EACH) {
            match File::open(directory).and_then(|directory| directory.sync_all()) {
                Ok(()) => synced = Some(number),
                Err(_) => return (number, synced),
            }
        }
        number += 1;
    }
}

/// The number of the last replacement; all files are as they were right after it.
fn last_replacement(directory: &Path) -> Option<u64> {
    let found: Vec<Option<u64>> = (0..FILES)
        .map(|file| {
            let text = fs::read(directory.join(format!("{file}"))).ok()?;
            let line = text.split(|byte| *byte == b'\n').next().expect("there is a line");
            let number = String::from_utf8_lossy(line).parse().expect("a number");
            assert!(text == content(number), "replacement {number} is whole");
            Some(number)
        })
        .collect();
    let last = found.iter().flatten().max().copied()?;
    for (file, number) in (0..FILES).zip(found) {
        let expected = last.checked_sub((last + FILES - file) % FILES);
        assert_eq!(number, expected, "file {file} after replacement {last}");
    }
    Some(last)
}

/// Kills the daemon again and again: the tree is always what it was after one of the latest operations.
fn kill_under_load(kills: u64) {
    let sandbox = made();
    let directory = sandbox.path("mnt");
    let mut next = 0;
    for round in 0..kills {
        let pid = mounted(&sandbox);
        let pause = Duration::from_millis(20 + round * 37 % 400);
        let (begun, synced) = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(pause);
                send(pid as u32, "KILL");
            });
            replace(&directory, next)
        });
        sandbox.ok(&["umount", "mnt"]);
        sandbox.ok(&["fs", "check", "disk.img"]);
        mounted(&sandbox);
        let last = last_replacement(&directory);
        assert!(last <= Some(begun), "{last:?} of {begun} begun");
        assert!(last >= synced, "{last:?}, but {synced:?} was synced");
        sandbox.ok(&["umount", "mnt"]);
        next = last.map_or(0, |last| last + 1);
    }
    println!("{kills} kills, {next} replacements of files are left");
}

#[test]
fn a_killed_daemon_leaves_the_tree_of_one_of_the_latest_operations() {
    let Some(_right) = can_mount("a_killed_daemon_leaves_the_tree_of_one_of_the_latest_operations")
    else {
        return;
    };
    kill_under_load(3);
}

#[test]
#[ignore = "a minute and more; `make fs-kills` runs it"]
fn sixty_killed_daemons_leave_the_tree_of_one_of_the_latest_operations() {
    let Some(_right) =
        can_mount("sixty_killed_daemons_leave_the_tree_of_one_of_the_latest_operations")
    else {
        return;
    };
    kill_under_load(60);
}

/// Direct writes do not wait for each other; pages that others hold are dropped with each.
#[test]
fn direct_writes_side_by_side_agree_with_the_page_cache() {
    const THREADS: usize = 4;
    const BLOCK: usize = 4096;
    const BLOCKS: usize = 64;
    let Some(_right) = can_mount("direct_writes_side_by_side_agree_with_the_page_cache") else {
        return;
    };
    let sandbox = made();
    mounted(&sandbox);
    let path = sandbox.path("mnt/file");
    write_and_sync(&path, &[0; THREADS * BLOCKS * BLOCK]);
    for round in 1..=3_u8 {
        let before = fs::read(&path).expect("it is there");
        assert!(before.iter().all(|byte| *byte == round - 1), "the pages are of the round before");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let path = &path;
                scope.spawn(move || {
                    let mut options = File::options();
                    let file = options.write(true).custom_flags(libc::O_DIRECT).open(path);
                    let file = file.expect("it opens for direct I/O");
                    let mut buffer = coulter::buffer::Buffer::zeroed(BLOCK);
                    buffer.fill(round);
                    // The threads' blocks lie between each other.
                    for block in (thread..THREADS * BLOCKS).step_by(THREADS) {
                        let offset = (block * BLOCK) as u64;
                        file.write_all_at(&buffer, offset).expect("it is in the file");
                    }
                });
            }
            // Fills the page cache while they write.
            let content = fs::read(&path).expect("it is there");
            assert!(content.iter().all(|byte| *byte == round - 1 || *byte == round));
        });
        let after = fs::read(&path).expect("it is there");
        assert!(after.iter().all(|byte| *byte == round), "no page is of the time before");
    }
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["fs", "mount", "disk.img", "mnt"]);
    assert!(fs::read(&path).expect("it is there").iter().all(|byte| *byte == 3));
    sandbox.ok(&["umount", "mnt"]);
}
