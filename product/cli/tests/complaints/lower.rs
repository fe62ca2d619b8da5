//! What happens to the file system below: it loses its power, it fills up, it reaches a quota.

use crate::overlaid::{BLOCK, assert_holds, content, put_over, scatter, status};
use crate::sandbox::{Sandbox, can_mount, send, skipped, wait_until, write_and_sync};
use rustix::mount::UnmountFlags;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of its own in a sandbox, at `lower`.
fn make_lower(sandbox: &Sandbox, kind: &str, size: u64) -> Option<PathBuf> {
    let make = format!("mkfs.{kind}");
    if Command::new(&make).arg("-V").output().is_err() {
        skipped(&format!("{kind} below an overlay: {make} is not installed"));
        return None;
    }
    let (image, point) = (sandbox.path("lower.img"), sandbox.make_directory("lower"));
    File::create(&image).and_then(|file| file.set_len(size)).expect("there is room");
    crate::tool(&[&*make, "-q", &image.display().to_string()]);
    mount(sandbox);
    Some(point)
}

fn mount(sandbox: &Sandbox) {
    let [image, point] = ["lower.img", "lower"].map(|name| sandbox.path(name));
    let words = [image.display().to_string(), point.display().to_string()];
    crate::tool(&["mount", "-o", "loop", &words[0], &words[1]]);
}

/// Takes the power from a file system: what is not durable is lost, nothing is written any more.
fn cut_power(point: &Path) {
    const NO_LOG_FLUSH: u32 = 2;
    // EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN: _IOR('X', 125, u32).
    const SHUTDOWN: rustix::ioctl::Opcode = 0x8004_587d;
    let root = File::open(point).expect("it is there");
    // SAFETY: the request reads a number, which lives over the call.
    unsafe {
        let request = rustix::ioctl::Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH);
        rustix::ioctl::ioctl(&root, request).expect("root may");
    }
}

#[test]
fn a_power_cut_after_a_sync_of_a_directory_leaves_it_usable() {
    let Some(_right) = can_mount("a power cut below") else { return };
    for kind in ["ext4", "xfs"] {
        let sandbox = Sandbox::new();
        let Some(point) = make_lower(&sandbox, kind, 640 << 20) else { continue };
        let data = sandbox.make_directory("lower/data");
        let pid = put_over(&sandbox, "lower/data", &[]);
        let mut expected = content(1);
        fs::create_dir(data.join("below")).expect("it is new");
        let path = data.join("below/file");
        write_and_sync(&path, &expected);
        let file = crate::open(&path);
        scatter(&file, &mut expected, 2);
        fs::rename(&path, data.join("below/named")).expect("it is there");
        fs::create_dir(data.join("below/empty")).expect("it is new");
        for directory in ["below/empty", "below", "."] {
            let directory = File::open(data.join(directory)).expect("it is there");
            directory.sync_all().expect("a directory can be synced");
        }
        // What comes now was never synced: it may be there or not.
        fs::create_dir(data.join("below/late")).expect("it is new");
        fs::write(data.join("below/late/file"), content(3)).expect("it is writable");
        file.write_all_at(&[9; BLOCK], 20 * BLOCK as u64).expect("it is writable");
        cut_power(&point);
        drop(file);
        send(pid, "KILL");
        crate::tool(&["umount", "--lazy", &data.display().to_string()]);
        wait_until("the last who used it is gone", || {
            rustix::mount::unmount(&point, UnmountFlags::empty()).is_ok()
        });
        mount(&sandbox);
        put_over(&sandbox, "lower/data", &[]);
        let names = fs::read_dir(data.join("below")).expect("it can be listed");
        let names: Vec<_> = names.map(|entry| entry.expect("it is").file_name()).collect();
        assert!(names.iter().any(|name| name == "named"), "{kind}: {names:?}");
        assert!(names.iter().any(|name| name == "empty"), "{kind}: {names:?}");
        let file = crate::open(&data.join("below/named"));
        let mut block = [0; BLOCK];
        file.read_exact_at(&mut block, 20 * BLOCK as u64).expect("it is readable");
        if block == [9; BLOCK] {
            expected[20 * BLOCK..21 * BLOCK].fill(9);
        }
        assert_holds(&file, &expected);
        drop(file);
        fs::write(data.join("below/new"), "text").expect("it is usable");
        fs::remove_dir(data.join("below/empty")).expect("it is empty");
        sandbox.ok(&["overlay", "check", "lower/data"]);
        sandbox.ok(&["overlay", "detach", "lower/data"]);
        assert_holds(&crate::open(&data.join("below/named")), &expected);
        crate::tool(&["umount", &point.display().to_string()]);
    }
}

/// Blocks of the file that comes home to where there is too little room, and of them each other one is
/// overwritten.
const LARGE: usize = 16 << 20;

fn overwrite(path: &Path, expected: &mut [u8]) {
    let file = crate::open(path);
    for offset in (0..LARGE).step_by(2 * BLOCK) {
        file.write_all_at(&[7; BLOCK], offset as u64).expect("it goes to the store");
        expected[offset..offset + BLOCK].fill(7);
    }
    file.sync_all().expect("it can be synced");
}

/// Bringing home stops with `error` and loses nothing; `mend` makes room, and then it goes on.
fn assert_stops(sandbox: &Sandbox, path: &Path, expected: &[u8], error: &str, mend: impl FnOnce()) {
    let told = sandbox.fails(1, &["overlay", "settle", "lower/data"]);
    assert!(told.to_lowercase().contains(error), "{told}");
    let told = status(sandbox, "lower/data");
    assert!(
        told["settle_error"].as_str().is_some_and(|why| why.to_lowercase().contains(error)),
        "{told}"
    );
    assert_ne!(told["stored_bytes"], 0, "what is not at home stays");
    fs::write("/proc/sys/vm/drop_caches", "1").expect("root may");
    assert_holds(&crate::open(path), expected);
    // Unmounting does not lose it either.
    sandbox.ok(&["umount", "lower/data"]);
    put_over(sandbox, "lower/data", &[]);
    assert_holds(&crate::open(path), expected);
    mend();
    sandbox.ok(&["overlay", "settle", "lower/data"]);
    assert_eq!(status(sandbox, "lower/data")["stored_bytes"], 0);
    sandbox.ok(&["overlay", "detach", "lower/data"]);
    assert_holds(&crate::open(path), expected);
}

#[test]
fn a_lower_file_system_that_fills_up_while_blocks_come_home_stops_that_and_loses_nothing() {
    let Some(_right) = can_mount("a full file system while blocks come home") else { return };
    let sandbox = Sandbox::new();
    let Some(point) = make_lower(&sandbox, "xfs", 400 << 20) else { return };
    let path = sandbox.make_directory("lower/data").join("file");
    let mut expected = vec![1; LARGE];
    write_and_sync(&path, &expected);
    // Blocks that another file shares are written elsewhere: that takes room which nobody could take before.
    let [from, to] = [path.clone(), point.join("shared")].map(|path| path.display().to_string());
    crate::tool(&["cp", "--reflink=always", &from, &to]);
    put_over(&sandbox, "lower/data", &["--store", "store.img"]);
    overwrite(&path, &mut expected);
    let filler = File::create(point.join("filler")).expect("it is new");
    let chunk = vec![0; 1 << 20];
    let mut offset = 0;
    for size in [1 << 20, 64 << 10, BLOCK] {
        while filler.write_all_at(&chunk[..size], offset).is_ok() {
            offset += size as u64;
        }
    }
    let _ = filler.sync_all();
    assert_stops(&sandbox, &path, &expected, "no space left", || {
        filler.set_len(0).and_then(|()| filler.sync_all()).expect("it can be cut");
    });
    drop(filler);
    crate::tool(&["umount", &point.display().to_string()]);
}

#[test]
fn a_quota_that_is_reached_while_blocks_come_home_stops_that_and_loses_nothing() {
    let Some(_right) = can_mount("a quota while blocks come home") else { return };
    let sandbox = Sandbox::new();
    let Some(point) = make_lower(&sandbox, "btrfs", 400 << 20) else { return };
    let [shown, volume] =
        [point.clone(), point.join("data")].map(|path| path.display().to_string());
    crate::tool(&["btrfs", "-q", "subvolume", "create", &volume]);
    crate::tool(&["btrfs", "quota", "enable", &shown]);
    let path = point.join("data/file");
    let mut expected = vec![1; LARGE];
    write_and_sync(&path, &expected);
    put_over(&sandbox, "lower/data", &["--store", "store.img"]);
    overwrite(&path, &mut expected);
    crate::tool(&["btrfs", "filesystem", "sync", &shown]);
    let limit = |limit: &str| {
        // By its number: the path leads into the overlay.
        let listed = Command::new("btrfs").args(["subvolume", "list", &shown]).output();
        let listed = String::from_utf8(listed.expect("it can be run").stdout).expect("it is text");
        let number = listed.split_whitespace().nth(1).expect("there is one subvolume");
        crate::tool(&["btrfs", "qgroup", "limit", limit, &format!("0/{number}"), &shown]);
    };
    limit("17M");
    assert_stops(&sandbox, &path, &expected, "quota exceeded", || limit("none"));
    crate::tool(&["umount", &shown]);
}
