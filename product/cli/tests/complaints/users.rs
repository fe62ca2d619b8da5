//! Owners, permissions, times, attributes and locks.

use crate::overlaid::{BLOCK, Overlaid, assert_holds, content, scatter};
use crate::sandbox::{can_mount, write_and_sync};
use rustix::fs::Mode;
use rustix::process::umask;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

/// Somebody without privileges.
const OTHER: u32 = 65_534;

/// An overlay that others can reach, with a directory that they can write to.
fn open_to_others() -> Overlaid {
    let overlaid = Overlaid::new();
    overlaid.sandbox.let_others_in();
    fs::create_dir(overlaid.path("theirs")).expect("it is new");
    allow(&overlaid.path("theirs"), 0o777);
    overlaid
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("root may");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

/// Runs a script as somebody else, in the directory.
fn as_other(overlaid: &Overlaid, script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(&overlaid.directory).uid(OTHER).gid(OTHER);
    command.output().expect("a shell can be run")
}

#[track_caller]
fn ok_as_other(overlaid: &Overlaid, script: &str) {
    let output = as_other(overlaid, script);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {error}");
}

#[test]
fn what_is_made_belongs_to_the_caller_with_the_mode_that_was_asked_for() {
    let Some(_right) = can_mount("ids of the caller") else { return };
    let overlaid = open_to_others();
    fs::create_dir(overlaid.path("theirs/group")).expect("it is new");
    std::os::unix::fs::chown(overlaid.path("theirs/group"), None, Some(77)).expect("root may");
    allow(&overlaid.path("theirs/group"), 0o2777);
    ok_as_other(
        &overlaid,
        "umask 0; cd theirs; : >file; mkdir directory; mkfifo pipe; ln -s file link; : >group/file
         mkdir group/directory; umask 077; : >private",
    );
    let check = || {
        for name in
            ["file", "directory", "pipe", "link", "private", "group/file", "group/directory"]
        {
            let found =
                fs::symlink_metadata(overlaid.path("theirs").join(name)).expect("it is there");
            let group = if name.starts_with("group/") { 77 } else { OTHER };
            assert_eq!((found.uid(), found.gid()), (OTHER, group), "{name}");
        }
        let modes = [("file", 0o666), ("directory", 0o777), ("pipe", 0o666), ("private", 0o600)];
        for (name, expected) in modes {
            assert_eq!(mode(&overlaid.path("theirs").join(name)), expected, "{name}");
        }
        assert_eq!(mode(&overlaid.path("theirs/group/directory")), 0o2777, "set-gid goes on");
    };
    check();
    let refused = as_other(&overlaid, ": >file");
    assert!(!refused.status.success(), "the directory is root's");
    overlaid.detach();
    check();
}

#[test]
fn a_file_without_a_name_has_the_mode_that_was_asked_for() {
    let Some(_right) = can_mount("the mode of a file without a name") else { return };
    let overlaid = Overlaid::new();
    let before = umask(Mode::empty());
    let file = OpenOptions::new()
        .write(true)
        .mode(0o666)
        .custom_flags(libc::O_TMPFILE)
        .open(&overlaid.directory);
    umask(before);
    let found = file.expect("it can be made").metadata().expect("it is open");
    assert_eq!(found.mode() & 0o7777, 0o666);
}

#[test]
fn a_write_by_somebody_without_privileges_takes_set_uid_away() {
    let Some(_right) = can_mount("set-uid goes") else { return };
    let overlaid = open_to_others();
    for name in ["write", "truncate"] {
        drop(overlaid.scattered(name, 1));
        allow(&overlaid.path(name), 0o6777);
    }
    ok_as_other(&overlaid, "printf x | dd of=write bs=1 seek=50000 conv=notrunc 2>&1");
    ok_as_other(&overlaid, "truncate -s 70000 truncate");
    for name in ["write", "truncate"] {
        assert_eq!(mode(&overlaid.path(name)), 0o777, "{name}");
    }
}

#[test]
fn a_write_by_anybody_takes_capabilities_away() {
    let Some(_right) = can_mount("capabilities go") else { return };
    let overlaid = Overlaid::new();
    // Version 2, permitted and effective: CAP_NET_RAW.
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (file, _) = overlaid.scattered("file", 1);
    let has_one = || rustix::fs::fgetxattr(&file, "security.capability", &mut [0; 64][..]).is_ok();
    let changes: [fn(&File); 3] = [
        |file| file.write_all_at(b"x", 50_000).expect("it is writable"),
        |file| file.set_len(70_000).expect("it can be cut"),
        |file| std::os::unix::fs::fchown(file, Some(7), None).expect("root may"),
    ];
    for (number, change) in changes.iter().enumerate() {
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::fsetxattr(&file, "security.capability", &capability, none).expect("root may");
        assert!(has_one());
        change(&file);
        assert!(!has_one(), "change {number}");
    }
}

#[test]
fn a_directory_that_gets_another_owner_keeps_set_gid() {
    let Some(_right) = can_mount("set-gid of a directory") else { return };
    let overlaid = Overlaid::new();
    let path = overlaid.path("directory");
    fs::create_dir(&path).expect("it is new");
    allow(&path, 0o2775);
    std::os::unix::fs::chown(&path, Some(OTHER), Some(77)).expect("root may");
    assert_eq!(mode(&path), 0o2775);
    // A program loses it.
    drop(overlaid.scattered("program", 1));
    allow(&overlaid.path("program"), 0o6775);
    std::os::unix::fs::chown(overlaid.path("program"), Some(OTHER), None).expect("root may");
    assert_eq!(mode(&overlaid.path("program")), 0o775);
}

#[test]
fn a_file_that_nobody_may_open_is_served_to_those_who_have_it_open() {
    let Some(_right) = can_mount("chmod 000") else { return };
    let mut overlaid = open_to_others();
    let (file, mut expected) = overlaid.scattered("file", 1);
    allow(&overlaid.path("file"), 0);
    scatter(&file, &mut expected, 2);
    assert_holds(&file, &expected);
    drop(file);
    overlaid.kill_and_go_on();
    ok_as_other(
        &overlaid,
        "cd theirs; echo text >file; chmod 444 file; chmod 644 file; echo >>file",
    );
    assert!(!as_other(&overlaid, "cat file").status.success(), "it is root's, and closed");
    allow(&overlaid.path("file"), 0o444);
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(overlaid.path("file"));
    let file = file.expect("root may");
    file.sync_all().expect("a descriptor for reading can be synced");
    assert_holds(&file, &expected);
    drop(file);
    overlaid.detach();
}

#[test]
fn somebody_who_may_write_may_set_the_time_to_now() {
    let Some(_right) = can_mount("utimensat by others") else { return };
    let overlaid = open_to_others();
    let (file, expected) = overlaid.scattered("file", 1);
    allow(&overlaid.path("file"), 0o666);
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    file.set_modified(long_ago).expect("root may");
    ok_as_other(&overlaid, "touch file");
    assert!(file.metadata().expect("it is open").mtime() > 1_500_000_000);
    assert!(!as_other(&overlaid, "touch -d 2001-01-01 file").status.success());
    assert_holds(&file, &expected);
}

#[test]
fn sizes_and_times_are_seen_at_once_and_are_the_same_at_home() {
    let Some(_right) = can_mount("sizes and times") else { return };
    let overlaid = Overlaid::new();
    let (file, mut expected) = overlaid.scattered("file", 1);
    let before = fs::metadata(overlaid.path("file")).expect("it is there");
    file.write_all_at(b"more", expected.len() as u64).expect("it is writable");
    expected.extend_from_slice(b"more");
    let after = fs::metadata(overlaid.path("file")).expect("it is there");
    assert_eq!(after.len(), expected.len() as u64);
    let time = |found: &fs::Metadata| (found.mtime(), found.mtime_nsec());
    assert!(time(&after) > time(&before));
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    file.set_modified(long_ago).expect("root may");
    drop(file);
    overlaid.detach();
    let home = fs::metadata(overlaid.path("file")).expect("it is there");
    assert_eq!((home.len(), time(&home)), (expected.len() as u64, (1_000_000_000, 123_456_789)));
    assert_holds(&File::open(overlaid.path("file")).expect("it is there"), &expected);
}

#[test]
fn attributes_are_kept_and_the_mark_is_not_shown() {
    let Some(_right) = can_mount("extended attributes") else { return };
    let overlaid = Overlaid::new();
    let (file, expected) = overlaid.scattered("file", 1);
    let none = rustix::fs::XattrFlags::empty();
    for (name, value) in
        [("user.small", vec![1; 3]), ("user.empty", vec![]), ("trusted.large", vec![2; 3000])]
    {
        rustix::fs::fsetxattr(&file, name, &value, none).expect("they are kept");
        let mut found = vec![0; 4096];
        let size = rustix::fs::fgetxattr(&file, name, &mut found[..]).expect("it was set");
        assert_eq!(found[..size], value, "{name}");
    }
    let names = || {
        let mut names = vec![0; 4096];
        let size = rustix::fs::flistxattr(&file, &mut names[..]).expect("they are listed");
        let mut names: Vec<String> = names[..size]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["trusted.large", "user.empty", "user.small"]);
    let create = rustix::fs::XattrFlags::CREATE;
    let refused = rustix::fs::fsetxattr(&file, "user.small", b"", create);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    let refused = rustix::fs::fsetxattr(&file, "trusted.coulter.id", b"mine", none);
    assert_eq!(refused, Err(rustix::io::Errno::PERM));
    rustix::fs::fremovexattr(&file, "user.empty").expect("it is there");
    assert_eq!(names(), ["trusted.large", "user.small"]);
    assert_holds(&file, &expected);
    drop(file);
    overlaid.detach();
    let file = File::open(overlaid.path("file")).expect("it is there");
    assert_holds(&file, &expected);
    let mut found = [0; 16];
    let size = rustix::fs::fgetxattr(&file, "user.small", &mut found[..]);
    assert_eq!(size, Ok(3), "it is at home");
}

/// Takes a lock on a part of a file, which belongs to the open file.
fn lock_part(file: &File, lock: &libc::flock) -> std::io::Result<()> {
    // SAFETY: the descriptor is open, and the kernel reads one lock.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const *lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn locks_keep_others_out_and_go_with_their_owner() {
    let Some(_right) = can_mount("locks") else { return };
    let overlaid = Overlaid::new();
    write_and_sync(&overlaid.path("file"), &content(1));
    let open = || OpenOptions::new().read(true).write(true).open(overlaid.path("file"));
    let open = || open().expect("it is there");
    let lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: BLOCK as i64,
        l_pid: 0,
    };
    let (one, two) = (open(), open());
    lock_part(&one, &lock).expect("it is free");
    let refused = lock_part(&two, &lock);
    assert_eq!(refused.map_err(|error| error.raw_os_error()), Err(Some(libc::EAGAIN)));
    let behind = libc::flock { l_start: BLOCK as i64, ..lock };
    lock_part(&two, &behind).expect("that part is free");
    drop(one);
    lock_part(&two, &lock).expect("it went with its owner");
    let held = open();
    held.try_lock().expect("it is free");
    assert!(matches!(open().try_lock_shared(), Err(TryLockError::WouldBlock)));
    drop(held);
    open().try_lock_shared().expect("it is free");
}
