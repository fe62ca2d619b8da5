//! Who may have what done by an overlay, and what a change of content takes from a file.

use crate::overlaid::Overlaid;
use crate::sandbox::{can_mount, write_and_sync};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// What the mount of an overlay or a file system of Coulter's understands.
const SYNC: libc::Ioctl = 0x4301;
const SETTLE: libc::Ioctl = 0x4302;
/// A user who is not root.
const GAMES: u32 = 5;

/// What the kernel says to a request from another user's thread.
fn ask_as_games(file: &File, request: libc::Ioctl) -> i32 {
    let descriptor = file.as_raw_fd();
    let ask = move || {
        // SAFETY: only this thread gets the user; the request has no argument.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setresuid, GAMES, GAMES, GAMES), 0);
            if libc::ioctl(descriptor, request) == 0 { 0 } else { *libc::__errno_location() }
        }
    };
    std::thread::spawn(ask).join().expect("it ends")
}

#[test]
fn only_root_brings_files_home_and_others_sync_what_they_have_open() {
    let Some(_right) = can_mount("who may settle") else { return };
    let overlaid = Overlaid::new();
    let (file, _) = overlaid.scattered("file", 1);
    let stored = overlaid.stored();
    assert_eq!(ask_as_games(&file, SETTLE), libc::EPERM);
    assert_eq!(ask_as_games(&file, SYNC), 0);
    assert_eq!(overlaid.stored(), stored, "nothing came home");
    drop(file);
    overlaid.detach();
}

fn fallocate(file: &File, mode: i32) {
    // SAFETY: the descriptor is open, and the call touches no memory.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, 8192) };
    assert_eq!(result, 0, "{mode}: {}", std::io::Error::last_os_error());
}

fn copy_over(file: &File) {
    let source = tempfile_of(file);
    // SAFETY: both descriptors are open; without offsets no memory is touched.
    let count = unsafe {
        let null = std::ptr::null_mut();
        libc::copy_file_range(source.as_raw_fd(), null, file.as_raw_fd(), null, 4096, 0)
    };
    assert_eq!(count, 4096, "{}", std::io::Error::last_os_error());
}

/// A nameless file beside another one, of a block.
fn tempfile_of(file: &File) -> File {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("it has a name");
    let path = path.with_extension("source");
    write_and_sync(&path, &[7; 4096]);
    let source = File::open(&path).expect("it is there");
    fs::remove_file(&path).expect("it is there");
    source
}

#[test]
fn every_change_of_content_takes_set_uid_and_set_gid_away() {
    let Some(_right) = can_mount("what takes set-uid away") else { return };
    let overlaid = Overlaid::new();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    type Change<'a> = (&'a str, &'a dyn Fn(&File));
    let changes: [Change<'_>; 4] = [
        ("allocate", &|file| fallocate(file, 0)),
        ("punch", &|file| fallocate(file, punch)),
        ("zero", &|file| fallocate(file, libc::FALLOC_FL_ZERO_RANGE)),
        ("copy", &copy_over),
    ];
    for is_remapped in [false, true] {
        for (name, change) in changes {
            let (file, _) = overlaid.scattered(name, 1);
            if !is_remapped {
                overlaid.sandbox.ok(&["overlay", "settle", "data"]);
            }
            let path = overlaid.path(name);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).expect("root may");
            assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o7777, 0o6755);
            change(&file);
            let mode = fs::metadata(&path).expect("it is there").mode() & 0o7777;
            assert_eq!(mode, 0o755, "{name}, remapped: {is_remapped}");
            fs::remove_file(&path).expect("it is there");
        }
    }
    overlaid.detach();
}

/// A lower file that others replace often gets the inode of the one that is gone.
#[test]
fn a_lower_file_that_was_replaced_is_known_when_the_kernel_forgets_the_old_one() {
    let Some(_right) = can_mount("a lower file that was replaced") else { return };
    let sandbox = crate::sandbox::Sandbox::new();
    let (data, bound) = (sandbox.make_directory("data"), sandbox.make_directory("bound"));
    crate::bind(&data, &bound);
    crate::overlaid::put_over(&sandbox, "data", &[]);
    for round in 0..50 {
        let name = format!("file{round}");
        let (path, below) = (data.join(&name), bound.join(&name));
        fs::write(&below, "old").expect("it is writable");
        let number = |path: &Path| fs::metadata(path).expect("it is there").ino();
        assert_eq!(number(&path), number(&below));
        let before = number(&below);
        fs::remove_file(&below).expect("it is there");
        fs::write(&below, "new").expect("it is writable");
        if number(&below) != before {
            assert!(round < 49, "the file system below gives numbers anew");
            continue;
        }
        // The kernel learns of it, and knows both; then it forgets the old one.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it asks anew");
        let file = File::open(&path).expect("it is there");
        fs::write("/proc/sys/vm/drop_caches", "2").expect("root may");
        std::thread::sleep(std::time::Duration::from_millis(100));
        file.sync_all().expect("it is known");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "new");
        break;
    }
    sandbox.ok(&["overlay", "detach", "data"]);
}

#[test]
fn attributes_may_have_a_slash_in_their_names() {
    let Some(_right) = can_mount("names of attributes") else { return };
    let overlaid = Overlaid::new();
    write_and_sync(&overlaid.path("file"), b"text");
    let file = File::open(overlaid.path("file")).expect("it is there");
    let (name, value) = (c"user.a/b", b"value");
    // SAFETY: the name ends with a zero, and the buffers are as long as is said.
    let (set, read, buffer) = unsafe {
        let descriptor = file.as_raw_fd();
        let set = libc::fsetxattr(descriptor, name.as_ptr(), value.as_ptr().cast(), 5, 0);
        let mut buffer = [0_u8; 5];
        let place = buffer.as_mut_ptr().cast();
        (set, libc::fgetxattr(descriptor, name.as_ptr(), place, 5), buffer)
    };
    assert_eq!((set, read, &buffer), (0, 5, value));
    drop(file);
    overlaid.detach();
}
