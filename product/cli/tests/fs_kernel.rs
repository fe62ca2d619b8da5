//! The kernel keeps most of a mounted file system, and asks the rest anew. Needs root and FUSE.

mod sandbox;

use sandbox::{Sandbox, can_mount, skipped};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

fn mounted(options: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["fs", "create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    sandbox.ok(&[&["fs", "mount", "disk.img", "mnt"], options].concat());
    sandbox
}

/// The output of `command` as the user `games`.
fn as_games(command: &str, path: &Path) -> String {
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid=games", "--regid=games", "--clear-groups", "sh", "-c", command, "sh"]);
    let output = shell.arg(path).output().expect("it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[test]
fn a_set_uid_program_that_another_user_has_written_to_is_not_run_as_its_owner() {
    let Some(_right) = can_mount("a set-uid program that another user has written to") else {
        return;
    };
    for cache in ["through", "back"] {
        let sandbox = mounted(&["--cache", cache]);
        fs::set_permissions(sandbox.path("."), fs::Permissions::from_mode(0o755)).expect("ours");
        let program = sandbox.path("mnt/id");
        fs::copy("/usr/bin/id", &program).expect("there is room");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4777)).expect("root may");
        assert_eq!(as_games("\"$1\" -u", &program), "0", "it is set-uid");
        assert_eq!(as_games("echo >>\"$1\" && \"$1\" -u", &program), "5", "it is not any more");
        let mode = fs::metadata(&program).expect("it is there").mode() & 0o7777;
        assert_eq!(mode, 0o777);
        sandbox.ok(&["umount", "mnt"]);
    }
}

#[test]
fn a_file_that_the_kernel_has_not_written_back_has_blocks_and_no_holes() {
    let Some(_right) = can_mount("a file that the kernel has not written back") else { return };
    let sandbox = mounted(&["--cache", "back"]);
    for name in ["new", "known"] {
        let path = sandbox.path("mnt").join(name);
        if name == "known" {
            File::create(&path).expect("it is writable");
            assert_eq!(fs::metadata(&path).expect("it is there").blocks(), 0);
        }
        held_back(&path);
    }
    sandbox.ok(&["umount", "mnt"]);
}

fn held_back(path: &Path) {
    let mut file = File::create(path).expect("it is writable");
    file.write_all(&vec![7; 1 << 20]).expect("there is room");
    let blocks = || fs::metadata(path).expect("it is there").blocks();
    assert!(blocks() > 0, "a program that archives files without blocks archives zeros");
    // SAFETY: the descriptor is open, and the call touches no memory.
    let seek = |whence| unsafe { libc::lseek(file.as_raw_fd(), 0, whence) };
    assert_eq!((seek(libc::SEEK_DATA), seek(libc::SEEK_HOLE)), (0, 1 << 20));
    file.sync_all().expect("it can be synced");
    assert_eq!(blocks(), 2048, "still open");
    drop(file);
    assert_eq!(blocks(), 2048, "closed");
}

/// A file handle, as large as the kernel makes them.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
    let path = CString::new(path.as_os_str().as_bytes()).expect("no zero");
    let mut mount = 0;
    // SAFETY: the handle has room for what it says, and the path ends with a zero.
    let done = unsafe {
        let pointer: *mut Handle = &mut handle;
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), pointer.cast(), &mut mount, 0)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    handle
}

fn open_handle(mount: &Path, handle: &mut Handle, flags: i32) -> std::io::Result<File> {
    let mount = File::open(mount)?;
    // SAFETY: the handle is as long as it says; the descriptor is ours if there is one.
    unsafe {
        let pointer: *mut Handle = handle;
        match libc::open_by_handle_at(mount.as_raw_fd(), pointer.cast(), flags) {
            -1 => Err(std::io::Error::last_os_error()),
            descriptor => Ok(File::from_raw_fd(descriptor)),
        }
    }
}

#[test]
fn handles_of_files_are_good_after_a_new_mount() {
    let Some(_right) = can_mount("handles of files are good after a new mount") else { return };
    let sandbox = mounted(&[]);
    let mount = sandbox.path("mnt");
    fs::create_dir(mount.join("directory")).expect("it is writable");
    fs::write(mount.join("directory/file"), "text").expect("it is writable");
    fs::write(mount.join("gone"), "text").expect("it is writable");
    let [mut file, mut directory, mut gone] =
        ["directory/file", "directory", "gone"].map(|name| handle_of(&mount.join(name)));
    fs::remove_file(mount.join("gone")).expect("it is ours");
    for round in 0..2 {
        let opened = open_handle(&mount, &mut file, libc::O_RDONLY).expect("the file is there");
        assert_eq!(std::io::read_to_string(opened).expect("readable"), "text", "{round}");
        open_handle(&mount, &mut directory, libc::O_RDONLY).expect("the directory is there");
        let stale = open_handle(&mount, &mut gone, libc::O_RDONLY).expect_err("it is gone");
        assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
        sandbox.ok(&["umount", "mnt"]);
        sandbox.ok(&["fs", "mount", "disk.img", "mnt"]);
    }
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn overlayfs_takes_its_upper_directory_on_it() {
    let Some(_right) = can_mount("overlayfs takes its upper directory on it") else { return };
    let known = fs::read_to_string("/proc/filesystems").expect("Linux has it");
    if !known.lines().any(|line| line.ends_with("\toverlay")) {
        return skipped("overlayfs takes its upper directory on it: the kernel has no overlayfs");
    }
    let sandbox = mounted(&[]);
    for directory in ["lower", "merged", "mnt/upper", "mnt/work"] {
        sandbox.make_directory(directory);
    }
    fs::write(sandbox.path("lower/old"), "text").expect("it is writable");
    fs::write(sandbox.path("lower/doomed"), "text").expect("it is writable");
    // In a mount namespace of its own, which takes the mount away.
    let script = "
        mount -t overlay overlay -o lowerdir=lower,upperdir=mnt/upper,workdir=mnt/work merged
        cd merged && mv old new && rm doomed && mkdir made && cp new made/copy
        mv made moved && ls";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec", script])
        .current_dir(sandbox.path("."))
        .output()
        .expect("util-linux has it");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "moved\nnew\n");
    let whiteout =
        fs::symlink_metadata(sandbox.path("mnt/upper/old")).expect("it hides the lower one");
    assert_eq!((whiteout.mode() & libc::S_IFMT, whiteout.rdev()), (libc::S_IFCHR, 0));
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["fs", "check", "disk.img", "--data"]);
    let report = sandbox.json(&["fs", "check", "disk.img", "--data", "--json"]);
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(0));
    let counters = &report["counters"];
    assert_eq!(counters["data_blocks_read"], counters["data_blocks"]);
}
